//! An ordinary user exports a tree again, over what an earlier export has left: directories that may not
//! be written are no obstacle, and have their permissions when it ends, however it ends.
//!
//! Contract: copies.failed

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

use rustix::process::{Signal, geteuid};

use super::interrupted::kill;
use super::place::{Place, pattern};

const USER: u32 = 65_534;

/// A place of an ordinary user, with a copy of the command that any user can run.
fn place() -> Place {
    let p = Place::with_volume();
    let copied = Command::new("cp")
        .args([env!("CARGO_BIN_EXE_cairnfs"), "cairnfs"])
        .current_dir(p.path(""))
        .status();
    assert!(copied.unwrap().success());
    mode_of(&p, "cairnfs", 0o755);
    mode_of(&p, "", 0o755);
    if geteuid().is_root() {
        for name in ["", "v.img"] {
            chown(p.path(name), Some(USER), Some(USER)).unwrap();
        }
    }
    p
}

fn mode_of(p: &Place, name: &str, mode: u32) {
    fs::set_permissions(p.path(name), Permissions::from_mode(mode)).unwrap();
}

fn mode(p: &Place, name: &str) -> u32 {
    p.path(name).metadata().unwrap().mode() & 0o7777
}

/// Prepares to run the command as an ordinary user, with the default actions of signals.
fn user(p: &Place, args: &[&str]) -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal=INT,TERM,HUP");
    if geteuid().is_root() {
        let user = format!("--reuid={USER}");
        command.args(["setpriv", &user, "--regid=65534", "--clear-groups"]);
    }
    command.arg("./cairnfs").args(args).current_dir(p.path(""));
    command.stdin(Stdio::null());
    command
}

fn done(out: &Output) {
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{text}");
}

/// Imports the tree `in`, whose directories get their permissions in the volume.
fn fill(p: &Place, dirs: &[(&str, u32)]) {
    for (dir, mode) in dirs.iter().rev() {
        mode_of(p, dir, *mode);
    }
    p.ok(&["import", "-q", "in", "v.img"]);
    for (dir, _) in dirs {
        mode_of(p, dir, 0o755);
    }
}

#[test]
fn directories_without_write_permission_are_exported_again() {
    let p = place();
    let dirs = [
        ("in", 0o555),
        ("in/d", 0o550),
        ("in/d/e", 0o1500),
        ("in/closed", 0),
        ("in/hidden", 0o300),
    ];
    for (dir, _) in dirs {
        fs::create_dir(p.path(dir)).unwrap();
        fs::write(p.path(dir).join("f"), "first").unwrap();
    }
    fill(&p, &dirs);
    done(
        &user(&p, &["export", "-q", "v.img", "out"])
            .output()
            .unwrap(),
    );
    let out = |dir: &str| dir.replacen("in", "out", 1);
    let modes = || dirs.map(|(dir, _)| mode(&p, &out(dir)));
    assert_eq!(modes(), dirs.map(|(_, mode)| mode));
    for (dir, _) in dirs {
        fs::write(p.path(dir).join("f"), "second").unwrap();
        fs::create_dir(p.path(dir).join("new")).unwrap();
    }
    fill(&p, &dirs);
    // Without --force what exists stays, with its permissions; only what is missing could be made.
    let refused = user(&p, &["export", "-q", "v.img", "out"]).output();
    assert_eq!(refused.unwrap().status.code(), Some(1));
    assert_eq!(modes(), dirs.map(|(_, mode)| mode));
    done(
        &user(&p, &["export", "-q", "-f", "v.img", "out"])
            .output()
            .unwrap(),
    );
    assert_eq!(modes(), dirs.map(|(_, mode)| mode));
    for (dir, _) in dirs {
        mode_of(&p, &out(dir), 0o700);
        let file = p.path(&out(dir)).join("f");
        assert_eq!(fs::read(file).unwrap(), b"second", "{dir}");
        assert!(p.path(&out(dir)).join("new").is_dir(), "{dir}");
    }
    // A single file, into a directory whose own attributes stay.
    mode_of(&p, "out", 0o511);
    done(
        &user(&p, &["export", "-q", "-f", "v.img:/f", "out"])
            .output()
            .unwrap(),
    );
    assert_eq!(mode(&p, "out"), 0o511);
}

#[test]
fn interrupted_export_gives_permissions_back() {
    let p = place();
    fs::create_dir_all(p.path("in/d")).unwrap();
    fs::write(p.path("in/d/f"), pattern(24 << 20)).unwrap();
    fill(&p, &[("in", 0o755), ("in/d", 0o755)]);
    done(
        &user(&p, &["export", "-q", "v.img", "out"])
            .output()
            .unwrap(),
    );
    for signal in [Signal::INT, Signal::TERM] {
        loop {
            mode_of(&p, "out/d", 0o511);
            mode_of(&p, "out", 0o555);
            let mut child = user(&p, &["export", "-q", "-f", "v.img", "out"])
                .spawn()
                .unwrap();
            while mode(&p, "out/d") == 0o511 && child.try_wait().unwrap().is_none() {
                std::hint::spin_loop();
            }
            if child.try_wait().unwrap().is_none() {
                kill(&child, signal);
            }
            let status = child.wait().unwrap();
            if !status.success() {
                assert_eq!(status.signal(), Some(signal.as_raw()), "{status:?}");
                break;
            }
        }
        assert_eq!((mode(&p, "out"), mode(&p, "out/d")), (0o555, 0o511));
    }
}
