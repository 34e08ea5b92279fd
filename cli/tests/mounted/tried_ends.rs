//! `cairnfs try` where its branch is mounted in parts or read-only, and where the mount, the fork or the
//! daemon ends while the program runs.
//!
//! Contract: branch.try

use std::fs;
use std::process::{Command, Output};
use std::sync::PoisonError;
use std::thread;

use rustix::mount::{UnmountFlags, mount_bind, unmount};
use rustix::process::Signal;

use crate::place::{MOUNT_COPIES, Place, able, arg, said, succeed};
use crate::tried::{Gate, attempt, begun, code, forks, text};

/// Runs `cairnfs try` with words in the directory of the mount, and `meanwhile` while its program, which
/// writes `new`, waits.
fn attempt_while(place: &Place, words: &[&str], meanwhile: impl FnOnce()) -> Output {
    attempt_in(place, "m", words, meanwhile)
}

/// The same in the directory `dir` of a mount.
fn attempt_in(place: &Place, dir: &str, words: &[&str], meanwhile: impl FnOnce()) -> Output {
    // The last word is the name of the fork.
    let gate = Gate::new(place, words.last().unwrap());
    // The working directory keeps nothing in use.
    let script = format!("echo new > d/new; cd /; {}", gate.script());
    thread::scope(|scope| {
        let words = [words, &["sh", "-c", &script]].concat();
        let volume = ["--volume", dir];
        let tried = scope.spawn(move || {
            let mut command = place.command(&["try"]);
            command.args(volume).args(words).output().unwrap()
        });
        gate.wait();
        meanwhile();
        gate.open();
        tried.join().unwrap()
    })
}

/// Asserts that a fork was kept, and that the command that is told publishes it.
fn assert_kept(place: &Place, output: &Output, fork: &str) {
    let told = said(output);
    assert_eq!(code(output), 125, "{told}");
    assert!(told.contains(" is kept"), "{told}");
    let publish = told.find("cairnfs publish ").expect("it is told");
    let line = told[publish..].split(", or ").next().unwrap();
    assert!(line.contains(&format!(" {fork} --onto main")), "{told}");
    let words: Vec<&str> = line.split(' ').skip(1).collect();
    place.ok(&words);
}

#[test]
fn program_works_where_it_was_started_in_a_part_of_a_mount() {
    if !able(&[]) {
        return;
    }
    let _copies = MOUNT_COPIES.read().unwrap_or_else(PoisonError::into_inner);
    let place = begun();
    fs::create_dir_all(place.at("d/sub")).unwrap();
    fs::write(place.at("top"), "top").unwrap();
    fs::create_dir(place.beside("bind")).unwrap();
    fs::create_dir(place.at("within")).unwrap();
    mount_bind(place.at("d"), place.beside("bind")).unwrap();
    mount_bind(place.at("d"), place.at("within")).unwrap();
    for (dir, below) in [
        ("m/d", ""),
        ("m/d/sub", "sub"),
        ("bind", ""),
        ("bind/sub", "sub"),
        ("m/within", ""),
    ] {
        for how in [&[][..], &["--beside"]] {
            // Every path leads into the fork.
            let script = format!(
                "pwd; cd {0}/bind/{below}; ls -a; echo x > made; ls {0}/m/d/{below} {0}/m/within/{below}; \
                 cd {0}/m/d; rm -rf ./*",
                arg(&place.beside(""))
            );
            let script = match how {
                [] => script,
                _ => "pwd; ls -a; rm -rf ./*".into(),
            };
            let words = [how, &["--keep", "--name", "it", "sh", "-c", &script]].concat();
            let mut command = place.command(&["try"]);
            let output = command.args(words).current_dir(place.beside(dir)).output();
            let output = output.unwrap();
            let told = said(&output);
            assert_eq!(code(&output), 0, "{dir}: {told}");
            let shown = text(&output.stdout);
            if how.is_empty() {
                let first = shown.lines().next();
                assert_eq!(first, Some(arg(&place.beside(dir))), "{told}");
                assert_eq!(shown.matches("made").count(), 2, "{told}");
            }
            assert!(!shown.contains("top") && !told.contains("D top"), "{told}");
            if below.is_empty() {
                assert!(shown.lines().any(|line| line == "f"), "{told}");
                assert!(told.contains("D d/f"), "{told}");
            }
            assert!(place.at("d/f").exists() && place.at("top").exists());
            assert!(!place.at("d/sub/made").exists() && !place.at("d/made").exists());
            place.ok(&["drop", "v.cairn", "it"]);
        }
    }
    for dir in [place.beside("bind"), place.at("within")] {
        unmount(dir, UnmountFlags::empty()).unwrap();
    }
    place.finish();
}

#[test]
fn directory_that_is_hidden_or_removed_is_refused() {
    if !able(&["bash"]) {
        return;
    }
    let _copies = MOUNT_COPIES.read().unwrap_or_else(PoisonError::into_inner);
    let place = begun();
    fs::create_dir(place.beside("bind")).unwrap();
    fs::create_dir_all(place.at("gone/sub")).unwrap();
    mount_bind(place.at("gone"), place.beside("bind")).unwrap();
    fs::remove_dir_all(place.at("gone")).unwrap();
    let output = place
        .command(&["try", "--yes", "rm", "-rf", "d"])
        .current_dir(place.beside("bind"))
        .output()
        .unwrap();
    assert_eq!(code(&output), 125, "{}", said(&output));
    unmount(place.beside("bind"), UnmountFlags::DETACH).unwrap();
    mount_bind(place.at("d"), place.beside("bind")).unwrap();
    let hides = format!(
        "cd {0}/bind; mount --bind {0}/m {0}/bind; {1} try --yes rm -rf d f && exit 1 || test $? = 125",
        arg(&place.beside("")),
        crate::place::CAIRNFS
    );
    succeed(
        Command::new("bash")
            .args(["-c", &hides])
            .env("XDG_RUNTIME_DIR", place.runtime()),
    );
    // umount(8) may miss a mount in the kernel's list while other tests change it.
    for _ in 0..2 {
        unmount(place.beside("bind"), UnmountFlags::empty()).unwrap();
    }
    assert!(place.at("d/f").exists());
    assert_eq!(forks(&place), [""; 0]);
    place.finish();
}

#[test]
fn fork_whose_base_is_unmounted_is_kept_and_named() {
    if !able(&["mkfifo"]) {
        return;
    }
    let _copies = MOUNT_COPIES.read().unwrap_or_else(PoisonError::into_inner);
    let mut place = begun();
    // Where the system does not propagate mounts, a program that sees the fork under the path of the
    // branch keeps that in use.
    for (name, how, umount) in [
        ("one", "--beside", &["umount", "m"][..]),
        ("two", "--beside", &["umount", "-l", "m"]),
        ("three", "-q", &["umount", "-l", "m"]),
    ] {
        let output = attempt_while(&place, &[how, "--yes", "--name", name], || {
            place.ok(umount);
        });
        place.wait_for_end();
        assert_kept(&place, &output, name);
        place.mount("");
        assert_eq!(fs::read(place.at("d/new")).unwrap(), b"new\n");
        fs::remove_file(place.at("d/new")).unwrap();
    }
    place.finish();
}

#[test]
fn fork_to_drop_is_dropped_also_if_its_base_was_unmounted() {
    if !able(&["mkfifo"]) {
        return;
    }
    let _copies = MOUNT_COPIES.read().unwrap_or_else(PoisonError::into_inner);
    let mut place = begun();
    place.ok(&["branch", "m", "base"]);
    place.mount_beside("branch=base", "b");
    let drop = |name| ["--beside", "--drop", "--name", name];
    // While the daemon serves another mount, and when it has ended.
    let served = attempt_in(&place, "b", &drop("it"), || place.umount_beside("b"));
    let log = place.ok(&["log", "--json", "m"]);
    let last = attempt_while(&place, &drop("too"), || {
        place.ok(&["umount", "m"]);
    });
    place.wait_for_end();
    for output in [&served, &last] {
        let told = said(output);
        assert_eq!(code(output), 0, "{told}");
        assert!(
            told.contains("A d/new") && told.contains("Dropped what was done"),
            "{told}"
        );
    }
    for log in [log, place.ok(&["log", "--json", "v.cairn"])] {
        assert!(
            !log.contains("\"it\"") && !log.contains("\"too\"") && log.contains("\"base\""),
            "{log}"
        );
    }
    place.check();
}

/// Another one may have its name by then.
#[test]
fn base_that_was_renamed_is_followed() {
    if !able(&["mkfifo"]) {
        return;
    }
    let _copies = MOUNT_COPIES.read().unwrap_or_else(PoisonError::into_inner);
    let place = begun();
    place.ok(&["branch", "m", "base"]);
    place.mount_beside("branch=base", "b");
    let rename = |from: &str, to: &str| {
        place.ok(&["rename", "m", from, to]);
        place.ok(&["branch", "m", from]);
    };
    let kept = attempt_in(&place, "b", &["--keep", "--name", "it"], || {
        rename("base", "second");
    });
    let told = said(&kept);
    assert_eq!(code(&kept), 0, "{told}");
    assert!(
        told.contains("A d/new") && told.contains(" it --onto second"),
        "{told}"
    );
    let published = attempt_in(&place, "b", &["--yes", "--name", "other"], || {
        rename("second", "third");
    });
    let told = said(&published);
    assert_eq!(code(&published), 0, "{told}");
    assert!(told.contains("Published onto third"), "{told}");
    assert_eq!(fs::read(place.beside("b").join("d/new")).unwrap(), b"new\n");
    place.umount_beside("b");
    place.finish();
}

/// Another volume is mounted there meanwhile.
#[test]
fn fork_is_not_sought_in_a_volume_that_has_taken_the_place() {
    if !able(&["mkfifo"]) {
        return;
    }
    let _copies = MOUNT_COPIES.read().unwrap_or_else(PoisonError::into_inner);
    let mut place = begun();
    let other = Place::new("64M");
    other.ok(&["branch", "v.cairn", "it"]);
    let volume = arg(&other.volume()).to_owned();
    let output = attempt_while(&place, &["--beside", "--yes", "--name", "it"], || {
        place.ok(&["umount", "m"]);
        place.ok(&["mount", &volume, "m"]);
    });
    let told = said(&output);
    assert_eq!(code(&output), 125, "{told}");
    assert!(told.contains("the fork it is kept"), "{told}");
    assert!(told.contains(arg(&place.volume())), "{told}");
    place.ok(&["umount", "m"]);
    place.wait_for_end();
    assert!(other.ok(&["log", "v.cairn"]).contains("it"));
    assert_kept(&place, &output, "it");
    place.check();
}

#[test]
fn fork_that_was_renamed_is_kept_under_its_new_name() {
    if !able(&["mkfifo"]) {
        return;
    }
    let place = begun();
    let output = attempt_while(&place, &["--yes", "--name", "it"], || {
        place.ok(&["rename", "m", "it", "other"]);
        // Another branch may have the name.
        place.ok(&["branch", "m", "it"]);
    });
    assert!(text(&output.stderr).contains("renamed to other"));
    assert_kept(&place, &output, "other");
    assert!(place.at("d/new").exists());
    place.finish();
}

#[test]
fn snapshot_is_tried_only_to_be_kept_or_dropped() {
    if !able(&[]) {
        return;
    }
    let place = begun();
    place.ok(&["snapshot", "m", "sn"]);
    place.mount_beside("branch=sn", "s");
    let run = |words: &[&str]| {
        let mut command = place.command(&["try"]);
        command.args(words).current_dir(place.beside("s"));
        command.output().unwrap()
    };
    let refused = run(&["--yes", "sh", "-c", "echo ran; echo x > d/f"]);
    assert_eq!(code(&refused), 125);
    assert_eq!(text(&refused.stdout), "");
    assert!(text(&refused.stderr).contains("sn: is a snapshot"));
    assert_eq!(forks(&place), [""; 0]);
    let kept = run(&["--name", "it", "sh", "-c", "echo x > d/f"]);
    let told = text(&kept.stderr);
    assert_eq!(code(&kept), 0, "{told}");
    let note = told.find("sn is a snapshot").expect("it is told");
    assert!(note < told.find("M d/f").unwrap(), "{told}");
    assert!(!told.contains("publish "), "{told}");
    let steps = format!("cairnfs mount -o branch=it {} DIR", arg(&place.volume()));
    assert!(told.contains(&steps), "{told}");
    place.mount_beside("branch=it", "t");
    place.umount_beside("t");
    assert_eq!(code(&run(&["--drop", "rm", "d/f"])), 0);
    place.umount_beside("s");
    place.finish();
}

#[test]
fn no_directory_is_named_that_a_dead_daemon_has_left() {
    if !able(&["mkfifo"]) {
        return;
    }
    let mut place = begun();
    place.ok(&["sync", "m"]);
    let output = attempt_while(&place, &["--beside", "--yes", "--name", "it"], || {
        place.signal(Signal::KILL);
    });
    place.wait_for_end();
    let told = text(&output.stderr);
    assert_eq!(code(&output), 125, "{told}");
    assert!(
        told.contains("the fork it is kept") && told.contains("the daemon"),
        "{told}"
    );
    assert!(
        !told.contains("stays mounted") && !told.contains("cairnfs-try-"),
        "{told}"
    );
    place.ok(&["umount", "m"]);
    place.check();
}

#[test]
fn failure_of_the_program_is_told_where_it_matters() {
    if !able(&["script"]) {
        return;
    }
    let place = begun();
    let output = attempt(&place, "d", &["--yes", "sh", "-c", "echo x > x; exit 7"]);
    let told = text(&output.stderr);
    assert_eq!(code(&output), 7);
    let why = "Not published, because CMD failed with exit code 7";
    assert!(told.contains(why), "{told}");
    let command = format!("{} try sh -c 'echo y > y; exit 3'", crate::place::CAIRNFS);
    let output = Command::new("bash")
        .args([
            "-c",
            &format!("echo k | script -qec \"{command}\" /dev/null"),
        ])
        .env("XDG_RUNTIME_DIR", place.runtime())
        .current_dir(place.at("d"))
        .output()
        .unwrap();
    let told = text(&output.stdout);
    let question = "CMD failed with exit code 3. Publish this onto main";
    assert!(told.contains(question), "{}", said(&output));
    place.finish();
}
