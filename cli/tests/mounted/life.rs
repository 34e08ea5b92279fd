//! Life cycle of a mount: how it begins, becomes durable and ends, for root and for ordinary
//! users.
//!
//! Contract: durable.sync, durable.unmount

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::PoisonError;

use cairnfs_fuse::mountinfo;
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::process::Signal;

use crate::gate::{Held, Mount};
use crate::place::{
    CAIRNFS, MOUNT_COPIES, Place, able, arg, nap, no_fork_is_tried, pattern, said, shell,
};

fn is_mounted(dir: &Path) -> bool {
    mountinfo::at(dir).unwrap().is_some()
}

#[test]
fn umount_returns_when_the_volume_is_closed() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("256M", "durability=0");
    for n in 0..50 {
        fs::write(place.at(format!("f{n}")), pattern(n, 1 << 20)).unwrap();
    }
    place.ok(&["umount", "m"]);
    // The volume can be opened for writing at once, and holds everything.
    place.ok(&["mkdir", "v.cairn:/new"]);
    place.wait_for_end();
    place.check();
    place.mount("ro");
    for n in 0..50 {
        assert!(fs::read(place.at(format!("f{n}"))).unwrap() == pattern(n, 1 << 20));
    }
    let refused = File::create(place.at("x")).unwrap_err();
    assert_eq!(
        refused.raw_os_error(),
        Some(rustix::io::Errno::ROFS.raw_os_error())
    );
    place.finish();
}

#[test]
fn stats_show_counters_of_mount() {
    if !able(&[]) {
        return;
    }
    let place = Place::mounted("64M", "durability=0");
    let stats = |args: &[&str]| {
        let report = place.ok(&[&["stats"], args].concat());
        serde_json::from_str::<serde_json::Value>(&report).unwrap()
    };
    let before = stats(&["--json", "m"]);
    for n in 0..10 {
        File::create(place.at(format!("f{n}"))).unwrap();
    }
    place.ok(&["sync", "m"]);
    let after = stats(&["--json", "m/f3"]);
    let rose = |name: &str| after[name].as_u64().unwrap() - before[name].as_u64().unwrap();
    assert!(rose("commits") >= 10, "{after}");
    assert!(rose("vectors_reused") >= 9, "{after}");
    assert!(rose("log_bytes") > 0 && rose("pushes") > 0, "{after}");
    let table = place.ok(&["stats", "-i", "0.01", "-n", "2", "m"]);
    assert_eq!(table.matches("transactions").count(), 2, "{table}");
    place.fails(&["stats", "."], 3, &["not in a mounted volume"]);
    place.finish();
}

#[test]
fn umount_works_if_image_path_is_gone() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("64M", "");
    fs::write(place.at("f"), b"x").unwrap();
    fs::remove_file(place.volume()).unwrap();
    let out = place.run(&["umount", "m"]);
    assert!(out.status.success(), "{}", said(&out));
    assert!(said(&out).contains("was deleted"), "{}", said(&out));
    place.wait_for_end();

    // The image is hidden by its own mount, and also by a file of the same name in it.
    for covered in [false, true] {
        let place = Place::new("16M");
        fs::rename(place.volume(), place.at("own.cairn")).unwrap();
        place.ok(&["mount", "m/own.cairn", "m"]);
        if covered {
            fs::write(place.at("own.cairn"), b"another").unwrap();
        }
        let out = place.run(&["umount", "m"]);
        assert!(out.status.success(), "{}", said(&out));
        // The volume is closed.
        place.ok(&["mkdir", "m/own.cairn:/new"]);
        place.ok(&["check", "m/own.cairn"]);
    }
}

#[test]
fn df_shows_inode_counts() {
    if !able(&[]) {
        return;
    }
    let place = Place::mounted("64M", "");
    let inodes = || {
        let stat = rustix::fs::statvfs(place.dir()).unwrap();
        (stat.f_files, stat.f_ffree, stat.f_bavail)
    };
    let (files, free, _) = inodes();
    assert!(free > 10_000 && files >= free, "{files}, {free}");
    fs::write(place.at("large"), pattern(1, 20 << 20)).unwrap();
    place.ok(&["sync", "m"]);
    let (same, fewer, available) = inodes();
    assert_eq!(same, files);
    assert!(
        fewer < free && (fewer == 0) == (available == 0),
        "{fewer} of {free}"
    );
    place.finish();
}

#[test]
fn umount_leaves_busy_mount() {
    if !able(&[]) {
        return;
    }
    let place = Place::mounted("64M", "");
    let file = File::create(place.at("open")).unwrap();
    place.fails(&["umount", "m"], 32, &["busy", "--lazy"]);
    drop(file);
    place.finish();
}

#[test]
fn second_mount_of_volume_or_mountpoint_is_refused() {
    if !able(&[]) {
        return;
    }
    let place = Place::mounted("64M", "");
    fs::create_dir(place.beside("other")).unwrap();
    let daemon = place.daemon_pid().to_string();
    let dir = place.dir();
    let step = format!("cairnfs umount {}", arg(&dir));
    let says = [
        "v.cairn",
        "in use: mounted on",
        arg(&dir),
        "(pid ",
        &daemon,
        &step,
    ];
    place.fails(&["mount", "v.cairn", "other"], 32, &says);
    place.fails(&["ls", "v.cairn"], 1, &says);
    place.fails(&["check", "v.cairn"], 8, &says);
    place.ok(&["mkfs", "-q", "--size", "64M", "w.cairn"]);
    place.fails(&["mount", "w.cairn", "m"], 32, &["is taken", "v.cairn"]);
    place.fails(&["mkdir", "v.cairn:/x"], 1, &["in use", "umount"]);
    place.fails(&["mkfs", "--force", "v.cairn"], 1, &["in use"]);
    fs::write(place.at("still"), b"here").unwrap();
    place.finish();
}

#[test]
fn sync_makes_everything_durable() {
    if !able(&["fusermount3"]) {
        return;
    }
    let mut place = Place::mounted("256M", "durability=0");
    shell(
        &place.dir(),
        "mkdir -p a/b; for n in $(seq 500); do echo $n > a/b/$n; done",
    );
    let open = File::create(place.at("open")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&open, &pattern(1, 3_000_000), 0).unwrap();
    place.ok(&["sync", "m/a"]);
    place.kill();
    drop(open);
    place.mount("");
    shell(
        &place.dir(),
        "test $(ls a/b | wc -l) = 500; test $(cat a/b/250) = 250",
    );
    assert!(fs::read(place.at("open")).unwrap() == pattern(1, 3_000_000));
    place.finish();
}

/// Contract: durable.interval
#[test]
fn interval_makes_everything_durable() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("64M", "durability=0.1");
    // The file stays open; closing a duplicate descriptor makes the kernel send its dirty pages.
    let mut file = File::create(place.at("f")).unwrap();
    file.write_all(b"nobody syncs this").unwrap();
    drop(file.try_clone().unwrap());
    // A copy of the volume is the state after a crash at this moment.
    let started = std::time::Instant::now();
    loop {
        shell(&place.beside(""), "cp --sparse=always v.cairn copy.cairn");
        if place.run(&["cat", "copy.cairn:/f"]).stdout == b"nobody syncs this" {
            break;
        }
        assert!(
            started.elapsed().as_secs() < 60,
            "not durable after a minute"
        );
    }
    place.kill();
    drop(file);
    place.mount("");
    assert_eq!(fs::read(place.at("f")).unwrap(), b"nobody syncs this");
    place.finish();
}

#[test]
fn mount_replaces_dead_mount() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("64M", "");
    fs::write(place.at("f"), b"kept").unwrap();
    File::open(place.at("f")).unwrap().sync_all().unwrap();
    place.kill();
    assert!(is_mounted(&place.dir()));
    place.check();
    place.mount("");
    assert_eq!(fs::read(place.at("f")).unwrap(), b"kept");
    place.kill();
    place.ok(&["umount", "m"]);
    assert!(!is_mounted(&place.dir()));
    place.check();
}

/// Contract: durable.unmount
#[test]
fn signal_unmounts_cleanly() {
    if !able(&[]) {
        return;
    }
    for busy in [false, true] {
        let mut place = Place::mounted("64M", "durability=0,grace=0");
        fs::write(place.at("f"), pattern(1, 5_000_000)).unwrap();
        let open = busy.then(|| File::create(place.at("open")).unwrap());
        if let Some(mut open) = open.as_ref() {
            open.write_all(&pattern(2, 1_000_000)).unwrap();
        }
        place.signal(Signal::TERM);
        place.wait_for_end();
        assert!(!is_mounted(&place.dir()), "busy: {busy}");
        if let Some(mut open) = open {
            assert!(mountinfo::is_dead(&open.write_all(b"late").unwrap_err()));
        }
        place.check();
        place.mount("");
        assert!(fs::read(place.at("f")).unwrap() == pattern(1, 5_000_000));
        assert!(!busy || fs::read(place.at("open")).unwrap() == pattern(2, 1_000_000));
        place.finish();
    }
}

/// Waits until nothing is mounted there.
fn wait_for_detachment(place: &Place) {
    while is_mounted(&place.dir()) {
        nap(20);
    }
}

/// Contract: durable.unmount
#[test]
fn open_files_stay_usable_after_signal() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::new("64M");
    place.mount_logged("durability=0");
    let mut open = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(place.at("open"))
        .unwrap();
    open.write_all(&pattern(1, 300_000)).unwrap();
    place.signal(Signal::TERM);
    wait_for_detachment(&place);
    let reopened = File::open(place.at("open")).unwrap_err();
    assert_eq!(reopened.kind(), std::io::ErrorKind::NotFound);
    open.write_all(&pattern(2, 300_000)).unwrap();
    open.sync_all().unwrap();
    let mut read = vec![0; 300_000];
    open.read_exact_at(&mut read, 0).unwrap();
    assert!(read == pattern(1, 300_000));
    // The log names the process that holds the mount.
    let log = fs::read_to_string(place.beside("log")).unwrap();
    let holder = format!("pid {}", std::process::id());
    assert!(log.contains("in use") && log.contains(&holder), "{log}");
    drop(open);
    place.wait_for_end();
    place.check();
    place.mount("");
    let whole = [pattern(1, 300_000), pattern(2, 300_000)].concat();
    assert!(fs::read(place.at("open")).unwrap() == whole);
    place.finish();
}

/// Contract: durable.unmount
#[test]
fn second_signal_ends_daemon_at_once() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("64M", "durability=0");
    let mut open = File::create(place.at("open")).unwrap();
    let mut idle = File::create(place.at("idle")).unwrap();
    idle.write_all(&pattern(3, 5000)).unwrap();
    place.signal(Signal::TERM);
    wait_for_detachment(&place);
    open.write_all(&pattern(1, 300_000)).unwrap();
    place.signal(Signal::TERM);
    place.wait_for_end();
    // Accepted data is kept, and no more data is accepted.
    for late in [&mut open, &mut idle] {
        let refused = late.write_all(b"late").unwrap_err();
        assert!(mountinfo::is_dead(&refused), "{refused}");
    }
    drop((open, idle));
    place.check();
    place.mount("");
    assert!(fs::read(place.at("open")).unwrap() == pattern(1, 300_000));
    assert!(fs::read(place.at("idle")).unwrap() == pattern(3, 5000));
    place.finish();
}

#[test]
fn foreground_mount_ends_with_its_terminal() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::new("64M");
    let mut child = Command::new(CAIRNFS)
        .args([
            "mount",
            "--foreground",
            "--",
            arg(&place.volume()),
            arg(&place.dir()),
        ])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    assert!(line.contains("Ctrl-C unmounts"), "{line}");
    let pid = rustix::process::Pid::from_child(&child);
    fs::write(place.at("f"), b"x").unwrap();
    rustix::process::kill_process(pid, Signal::INT).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(!is_mounted(&place.dir()));
    place.mount("");
    assert_eq!(fs::read(place.at("f")).unwrap(), b"x");
    place.finish();
}

#[test]
fn mount_and_fstab_find_the_helper() {
    if !able(&["mount", "umount", "unshare"]) {
        return;
    }
    let _copies = no_fork_is_tried();
    // mount(8) looks for helpers in fixed directories. One of them is covered in a private mount
    // namespace; the mount ends with the namespace.
    let place = Place::new("64M");
    let helpers = place.beside("helpers");
    fs::create_dir(&helpers).unwrap();
    symlink(CAIRNFS, helpers.join("mount.cairnfs")).unwrap();
    let line = format!(
        "{} {} cairnfs ro,nofail,noauto,x-systemd.automount 0 0\n",
        arg(&place.volume()),
        arg(&place.dir())
    );
    fs::write(place.beside("fstab"), line).unwrap();
    place.ok(&["mkdir", "v.cairn:/inside"]);
    let script = "
        export PATH=$PATH:/usr/sbin:/sbin
        cp -a /sbin/mount.* helpers/ 2>/dev/null || true
        helper=$(readlink -f helpers/mount.cairnfs)
        helpers/mount.cairnfs $PWD/v.cairn $PWD/m -o rw,noatime
        test -d m/inside; umount m
        for n in $(seq 1000); do flock -s v.cairn true && break; done
        mkdir up work
        mount -t tmpfs none up; mkdir up/u up/w; ln -s $helper up/u/mount.cairnfs
        mount -t overlay none -o lowerdir=$(readlink -f /sbin),upperdir=$PWD/up/u,workdir=$PWD/up/w $(readlink -f /sbin)
        mount -T fstab $PWD/m
        test -d m/inside; ! mkdir m/x 2>/dev/null
        grep -q \"$PWD/m ro.* fuse.cairnfs $PWD/v.cairn\" /proc/self/mountinfo
        umount m; flock -s v.cairn true";
    private(&place, script);
    place.check();
}

#[test]
fn ordinary_user_mounts_and_unmounts() {
    if !able(&["unshare", "setpriv", "fusermount3", "flock"]) {
        return;
    }
    let _copies = no_fork_is_tried();
    let place = Place::new("16M");
    let open = fs::Permissions::from_mode(0o777);
    fs::set_permissions(place.beside(""), open).unwrap();
    place.copy_command();
    // The device may be accessible to root only, so the namespace has another one.
    let script = "
        mknod fuse c 10 229; chmod 666 fuse; mount --bind fuse /dev/fuse
        cat > user.sh <<'END'
        set -eux
        ./cairnfs mount --create --size 64M own.cairn own
        grep \" $PWD/own .*nosuid,nodev,noatime.* fuse.cairnfs .*user_id=65534\" /proc/self/mountinfo
        mkdir own/d; head -c 3000000 /dev/urandom > own/d/f; sha256sum own/d/f > sum
        ! ./cairnfs mount own.cairn own
        ./cairnfs sync own/d
        # Their kernel asks for the capability among all users, not for that of a namespace.
        ! chattr +i own/d/f; ! chattr +a own/d/f; chattr +d own/d/f; lsattr own/d/f | grep -q -- -d-
        sha256sum -c --quiet sum; ln own/d/f own/l; ! chown 0 own/l; test $(stat -c %u own/l) = 65534
        ./cairnfs umount own
        ./cairnfs check --data own.cairn
        ./cairnfs mount -o defaults own.cairn own 2>note; ! grep . note
        ./cairnfs umount own
        ./cairnfs mount -o ro,dev,suid own.cairn own 2>note
        grep -q 'note: .*dev,suid' note; grep \" $PWD/own .*nosuid,nodev\" /proc/self/mountinfo
        ./cairnfs umount own
        ./cairnfs mount -o ro own.cairn own
        sha256sum -c --quiet sum; ! touch own/x
        ./cairnfs umount own
        # Of daemons that only read there may be several, so umount does not wait for this one.
        flock own.cairn true
        ! ./cairnfs mount -o allow_other own.cairn own 2>refused; grep -q user_allow_other refused
        ! ./cairnfs mount v.cairn own 2>refused; grep -qi permission refused
END
        setpriv --reuid=65534 --regid=65534 --clear-groups bash user.sh";
    private(&place, script);
    place.check();
}

/// Unmounts, in a new mount namespace, the copies of other tests' mounts, which would keep their
/// volumes and loop devices open.
const DROP_COPIES: &str = r#"
    awk -v own="$(pwd -P)/" '{ for (i = 7; $i != "-"; i++) {} }
        ($(i + 1) ~ /^fuse[.]/ || $(i + 2) ~ /^\/dev\/loop/) && index($5, own) != 1 { print $5 }' \
        /proc/self/mountinfo | while read -r at; do umount -l "$(printf %b "$at")" || true; done
"#;

/// Runs a script of a user who is not the superuser in [`private`] mount and process namespaces: with a volume
/// mounted on `own`, which it finds as `$top/own`, and which is unmounted at the end.
pub fn private_user(place: &Place, script: &str) {
    // The device may be accessible to root only, so the namespace has another one.
    let script = format!(
        r#"
        mknod fuse c 10 229; chmod 666 fuse; mount --bind fuse /dev/fuse
        mkdir tmp; chmod 1777 tmp; export TMPDIR=$PWD/tmp; unset XDG_RUNTIME_DIR
        cat > user.sh <<'END'
        set -eux
        export top=$PWD
        ./cairnfs mount --create --size 64M own.cairn own
{script}
        cd $top; ./cairnfs umount own
END
        setpriv --reuid=65534 --regid=65534 --clear-groups bash user.sh"#
    );
    private(place, &script);
}

/// Runs a script as root in the place's directory, in its own namespaces: its mounts and
/// processes end with it.
pub fn private(place: &Place, script: &str) {
    let _copies = MOUNT_COPIES.read().unwrap_or_else(PoisonError::into_inner);
    let out = Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["bash", "-euxo", "pipefail", "-c"])
        .arg(format!("{DROP_COPIES}{script}"))
        .current_dir(place.beside(""))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", said(&out));
}

#[test]
fn volume_made_by_mount_create_is_private() {
    if !able(&[]) {
        return;
    }
    let place = Place::new("16M");
    place.ok(&["mount", "--create", "--size", "32M", "new.cairn", "new"]);
    place.ok(&["umount", "new"]);
    let made = place.beside("new.cairn").metadata().unwrap();
    assert_eq!(made.permissions().mode() & 0o7777, 0o600);
}

#[test]
fn mount_create_takes_blank_file_but_no_other() {
    if !able(&[]) {
        return;
    }
    let place = Place::new("16M");
    for (len, shown) in [(0, 48 << 20), (40 << 20, 40 << 20)] {
        File::create(place.beside("new.cairn"))
            .unwrap()
            .set_len(len)
            .unwrap();
        let mut args = vec!["mount", "--create", "new.cairn", "new"];
        if len == 0 {
            args.splice(2..2, ["--size", "48M"]);
        }
        place.ok(&args);
        place.ok(&["umount", "new"]);
        place.ok(&["check", "new.cairn"]);
        assert_eq!(place.beside("new.cairn").metadata().unwrap().len(), shown);
    }
    fs::write(place.beside("notes"), "notes").unwrap();
    let args = ["mount", "--create", "notes", "new"];
    place.fails(&args, 32, &["notes", "CairnFS volume"]);
    assert_eq!(fs::read(place.beside("notes")).unwrap(), b"notes");
}

#[test]
fn umount_by_another_user_tells_who_may() {
    if !able(&["setpriv", "fusermount3"]) {
        return;
    }
    let place = Place::mounted("16M", "allow_other");
    place.copy_command();
    for path in [place.beside(""), place.beside("cairnfs")] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    for way in ["--", "--lazy", "--force"] {
        let out = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .args(["./cairnfs", "umount", way, "m"])
            .current_dir(place.beside(""))
            .output()
            .unwrap();
        assert_eq!(out.status.code(), Some(32), "{}", said(&out));
        assert!(said(&out).contains("only root"), "{}", said(&out));
    }
    place.finish();
}

/// Makes a FIFO and runs `cairnfs` with it. The command must fail with `says` and must never open
/// the FIFO: an open could wait for the process at the other end.
fn assert_fifo_not_opened(fifo: &Path, args: &[&str], code: i32, says: &str) {
    let rights = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, fifo, FileType::Fifo, rights, 0).unwrap();
    let mut child = Command::new(CAIRNFS)
        .args(args)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut end = None;
    while end.is_none() {
        // Succeeds only while a process has the FIFO open for reading.
        let reader = File::options()
            .write(true)
            .custom_flags(OFlags::NONBLOCK.bits() as i32)
            .open(fifo);
        assert!(
            reader.is_err(),
            "cairnfs {args:?} opened {}",
            fifo.display()
        );
        end = child.try_wait().unwrap();
    }
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(code), "{}", said(&out));
    assert!(said(&out).contains(says), "{}", said(&out));
}

#[test]
fn umount_does_not_open_fifo_named_by_mount_owner() {
    if !able(&[]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("volume");
    let mount = Mount::telling(&fifo);
    let dir = mount.dir().to_path_buf();
    let says = "neither a regular file nor a block device";
    assert_fifo_not_opened(&fifo, &["umount", arg(&dir)], 32, says);
    assert!(!is_mounted(&dir));
}

#[test]
fn commands_do_not_wait_for_fifos() {
    if !able(&[]) {
        return;
    }
    let place = Place::mounted("16M", "");
    for (command, code) in [("sync", 1), ("stats", 3)] {
        let fifo = place.at(command);
        let says = "neither a regular file nor a directory";
        assert_fifo_not_opened(&fifo, &[command, arg(&fifo)], code, says);
    }
    place.finish();
}

#[test]
fn lazy_umount_sends_no_request_to_daemon() {
    if !able(&[]) {
        return;
    }
    let mount = Mount::new();
    let file = mount.written("f");
    mount.gate.hold(Held::Flushes);
    let dir = mount.dir().to_path_buf();
    let out = Command::new(CAIRNFS)
        .args(["umount", "--lazy", arg(&dir)])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", said(&out));
    assert!(!is_mounted(&dir));
    mount.gate.open();
    file.sync_all().unwrap();
}
