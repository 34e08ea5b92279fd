//! Mount options given by mount(8), fstab and the command, and those that the kernel shows.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::process::Command;

use rustix::io::Errno;

use crate::life::private;
use crate::place::{CAIRNFS, Place, able, arg, no_fork_is_tried, said};

/// Prefix of a script in a private namespace in which mount(8) finds the helpers. It looks for
/// them in only one directory, which is covered.
const HELPERS: &str = "
    export PATH=$PATH:/usr/sbin:/sbin
    S=$(readlink -f /sbin)
    mkdir up; mount -t tmpfs none up; mkdir up/u up/w
    for name in $NAMES; do ln -s $COMMAND up/u/$name; done
    mount -t overlay none -o lowerdir=$S,upperdir=$PWD/up/u,workdir=$PWD/up/w $S
    shown() { sed -n \"s|.* $PWD/m \\([^ ]*\\) .*- fuse.cairnfs [^ ]* \\(.*\\)|\\1,\\2|p\" /proc/self/mountinfo; }
    has() { for word; do [[ ,$(shown), = *,$word,* ]] || { shown; return 1; }; done; }
    lacks() { for word; do [[ ,$(shown), != *,$word,* ]] || { shown; return 1; }; done; }
";

pub fn with_helpers(place: &Place, names: &str, script: &str) {
    let set = format!("COMMAND={CAIRNFS}; NAMES=\"{names}\"");
    private(place, &format!("{set}{HELPERS}{script}"));
}

#[test]
fn mount_8_allows_dev_and_suid_by_default() {
    if !able(&["mount", "umount", "unshare"]) {
        return;
    }
    let _copies = no_fork_is_tried();
    let place = Place::new("64M");
    let line = format!(
        "{} {} cairnfs defaults,nofail 0 0\n",
        arg(&place.volume()),
        arg(&place.dir())
    );
    fs::write(place.beside("fstab"), line).unwrap();
    let script = "
        mount -t cairnfs -o dev,suid $PWD/v.cairn m
        lacks nodev nosuid noexec; has rw noatime; lacks relatime
        mknod m/null c 1 3; echo x > m/null; umount m
        mount -T fstab $PWD/m; lacks nodev nosuid; echo x > m/null; umount m
        mount -t cairnfs -o nodev,nosuid,noexec $PWD/v.cairn m
        has nodev nosuid noexec; ! echo x > m/null; umount m
        mount -t cairnfs -o user $PWD/v.cairn m; has nodev nosuid noexec; umount m
        # Without mount(8) it is as for ordinary users.
        $COMMAND mount v.cairn m; has nodev nosuid noatime; umount m
        mount -t cairnfs -o sync,dirsync,nodiratime,_netdev,x-systemd.automount v.cairn m 2>errors
        has sync noatime; umount m; ! grep . errors
        for words in relatime strictatime; do
            mount -t cairnfs -o $words v.cairn m 2>errors; grep -q 'note: .*noatime' errors
            has noatime; lacks relatime
            # A read changes nothing that stat(1) shows, also of what has just been written.
            echo x > m/f; before=$(stat -c %x m/f); cat m/f > read; ls m > list
            test \"$before\" = \"$(stat -c %x m/f)\"
            umount m
        done
        mount -t cairnfs -o relatime,noatime v.cairn m 2>errors; ! grep . errors; has noatime; umount m";
    with_helpers(&place, "mount.cairnfs umount.fuse.cairnfs", script);
    place.check();
}

#[test]
fn remount_makes_mount_read_only_and_writable_again() {
    // In the second round mount.fuse(8) calls the command by the subtype's name.
    if !able(&["mount", "umount", "unshare", "mount.fuse"]) {
        return;
    }
    let _copies = no_fork_is_tried();
    for names in ["mount.cairnfs mount.fuse.cairnfs", "mount.cairnfs cairnfs"] {
        let place = Place::new("64M");
        let script = "
            mount -t cairnfs -o durability=0,nodev $PWD/v.cairn m
            echo one > m/f
            mount -o remount,ro m 2>errors || { cat errors; false; }
            has ro nodev noatime; lacks nosuid
            ! echo two > m/f; ! rm m/f
            # All is durable: a copy of the volume is what a crash would leave.
            cp v.cairn copy; test $($COMMAND cat copy:/f) = one
            mount -o remount,rw m; has rw nodev noatime; lacks nosuid ro
            mount -o remount,strictatime m 2>errors; cat errors; has noatime; grep -q 'note: .*noatime' errors
            mount -o remount,noexec,nosuid,sync m; has noexec nosuid nodev sync
            mount -o remount,exec m; has nosuid nodev sync; lacks noexec
            mount -o remount,suid,async m; has nodev; lacks nosuid noexec sync
            echo two > m/f
            exec 5>m/open; ! mount -o remount,ro m; exec 5>&-
            mount -t cairnfs -o remount,noexec,ro $PWD/v.cairn m; has ro noexec nodev
            umount m; flock -s v.cairn true
            # The daemon of a volume that was mounted read-only cannot write.
            mount -t cairnfs -o ro $PWD/v.cairn m
            ! mount -o remount,rw m 2>errors; grep -q 'unmount it' errors; has ro
            umount m; flock -s v.cairn true";
        with_helpers(&place, names, script);
        place.check();
    }
}

#[test]
fn remount_reports_unchanged_options_and_refusals() {
    if !able(&[]) {
        return;
    }
    let place = Place::mounted("64M", "durability=0");
    place.ok(&["mount", "-o", "remount,ro", "m"]);
    let refused = File::create(place.at("x")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::ROFS.raw_os_error()));
    let out = place.run(&["mount", "-o", "remount,rw,cache=16M", "v.cairn", "m"]);
    assert!(out.status.success() && said(&out).contains("does not change cache=16M"));
    let file = File::create(place.at("x")).unwrap();
    let says = ["busy", "open for writing"];
    place.fails(&["mount", "-o", "remount,ro", "v.cairn", "m"], 32, &says);
    drop(file);
    place.fails(
        &["mount", "-o", "remount,ro", "v.cairn", "."],
        32,
        &["no volume is mounted"],
    );
    place.finish();
}

#[test]
fn invalid_mount_options_are_refused_with_hint() {
    let place = Place::new("16M");
    for (option, says) in [
        ("noatme", "durability"),
        ("fsname=", "empty"),
        ("subtype=", "always cairnfs"),
        ("cache=0", "less than 8M"),
        ("cache=1", "less than 8M"),
    ] {
        place.fails(&["mount", "-o", option, "v.cairn", "m"], 1, &[option, says]);
    }
    let large = ["mount", "-o", "cache=99999T", "v.cairn", "m"];
    place.fails(
        &large,
        1,
        &["cache", "more than the memory of this machine"],
    );
    place.fails(&["mount", "v.cairn"], 1, &["VOLUME DIR"]);
    let helper = place.beside("mount.cairnfs");
    symlink(CAIRNFS, &helper).unwrap();
    for (flag, says) in [("--help", "Mount options:"), ("-V", "cairnfs ")] {
        let out = Command::new(&helper).arg(flag).output().unwrap();
        assert!(out.status.success() && said(&out).contains(says));
    }
}

#[test]
fn sync_mount_makes_writes_durable() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("64M", "sync,durability=0");
    let mut file = File::create(place.at("f")).unwrap();
    file.sync_all().unwrap();
    std::io::Write::write_all(&mut file, b"durable").unwrap();
    place.kill();
    drop(file);
    place.mount("");
    assert_eq!(fs::read(place.at("f")).unwrap(), b"durable");
    place.finish();
}

#[test]
fn transport_is_selected_and_shown() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("64M", "transport=dev");
    let status: serde_json::Value =
        serde_json::from_str(&place.ok(&["stats", "--json", "m"])).unwrap();
    assert_eq!(status["transport"]["name"], "dev", "{status}");
    assert!(status["transport"]["polled"].is_u64(), "{status}");
    let table = place.ok(&["stats", "m"]);
    let row = table.lines().find(|line| line.starts_with("transport "));
    assert!(row.is_some_and(|row| row.contains(" dev, ")), "{table}");
    let metrics = place.ok(&["stats", "--prometheus", "m"]);
    assert!(metrics.contains("transport=\"dev\"} "), "{metrics}");
    place.umount();
    place.fails(
        &["mount", "-o", "transport=cable", "v.cairn", "m"],
        1,
        &["transport=cable", "neither auto, dev nor ring"],
    );
    place.check();
}
