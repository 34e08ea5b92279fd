//! How a mount ends while another mount shows its file system, or after its image was moved or
//! replaced.
//!
//! Contract: durable.unmount

use std::fs::{self, File};

use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;

use crate::life::private;
use crate::place::{CAIRNFS, Place, able, arg, nap, no_fork_is_tried, said, shell, umount};

fn run_private(place: &Place, script: &str) {
    private(place, &format!("COMMAND={CAIRNFS}\n{script}"));
}

#[test]
fn umount_does_not_wait_for_another_mount_of_the_same_volume() {
    if !able(&["mount", "umount", "unshare", "timeout", "flock"]) {
        return;
    }
    let _copies = no_fork_is_tried();
    let place = Place::new("64M");
    let script = "
        $COMMAND mount v.cairn m
        mkdir b; mount --bind m b
        echo kept > b/f
        timeout 60 $COMMAND umount b 2>said
        grep 'stays open' said; grep \"on $PWD/m, too\" said
        grep kept m/f
        # The one that is left is waited for.
        $COMMAND umount m 2>said; test ! -s said
        flock -n v.cairn true";
    run_private(&place, script);
    place.check();
}

#[test]
fn umount_waits_for_other_namespace_with_message_and_timeout() {
    if !able(&["mount", "umount", "unshare", "timeout", "flock"]) {
        return;
    }
    let _copies = no_fork_is_tried();
    let place = Place::new("64M");
    let script = "
        $COMMAND mount v.cairn m
        mkfifo up hold
        unshare -m --propagation private sh -c 'echo $$ > up; read end < hold' &
        read other < up
        code=0; timeout 60 $COMMAND umount --timeout 2.1 m 2>said || code=$?
        test $code = 32
        grep 'waiting for the daemon (pid [0-9]*)' said
        grep \"still mounted on $PWD/m in the mount namespace of sh (pid $other)\" said
        tail -n 1 said | grep 'is unmounted; .* is still open after 2.1 seconds'
        echo > hold; wait
        flock v.cairn true
        # One that ends meanwhile is waited for.
        $COMMAND mount v.cairn m
        unshare -m --propagation private sh -c 'echo > up; read end < hold' &
        read other < up
        $COMMAND umount m 2>said &
        echo > hold; wait $!
        flock -n v.cairn true";
    run_private(&place, script);
    place.check();
}

#[test]
fn signal_reports_remaining_mount() {
    if !able(&["mount", "umount"]) {
        return;
    }
    let mut place = logged("durability=0,grace=0");
    let other = place.beside("b");
    fs::create_dir(&other).unwrap();
    shell(&place.beside(""), "mount --bind m b");
    fs::write(other.join("f"), b"kept").unwrap();
    place.signal(Signal::TERM);
    place.wait_for_end();
    umount(&other);
    let log = log(&place);
    let says = format!("is mounted on {}, too", arg(&other));
    assert!(log.contains(&says), "{log}");
    place.check();
    place.mount("");
    assert_eq!(fs::read(place.at("f")).unwrap(), b"kept");
    place.finish();
}

/// A mounted volume whose daemon logs to the file `log`.
fn logged(options: &str) -> Place {
    let mut place = Place::new("64M");
    place.mount_logged(options);
    place
}

fn log(place: &Place) -> String {
    fs::read_to_string(place.beside("log")).unwrap()
}

#[test]
fn replaced_image_is_reported() {
    if !able(&[]) {
        return;
    }
    let mut place = logged("durability=0.02");
    fs::write(place.at("f"), b"x").unwrap();
    place.ok(&["mkfs", "-q", "--size", "64M", "other.cairn"]);
    assert!(!said(&place.run(&["sync", "m"])).contains("warning"));
    fs::rename(place.beside("other.cairn"), place.volume()).unwrap();
    let says = "was deleted or replaced";
    // The daemon notices it at a durability interval, without a request.
    while !log(&place).contains(says) {
        nap(20);
    }
    let out = place.run(&["sync", "m"]);
    assert!(out.status.success() && said(&out).contains(says));
    assert!(place.ok(&["stats", "m"]).contains(says));
    place.fails(&["stats", "--check", "m"], 1, &["DEGRADED", says]);
    // The new file at the path is not the volume; umount must not wait for it.
    let new = File::open(place.volume()).unwrap();
    flock(&new, FlockOperation::LockExclusive).unwrap();
    let out = place.run(&["umount", "m"]);
    let text = said(&out);
    assert!(out.status.success(), "{text}");
    assert!(
        text.contains(says) && text.contains("not waited for"),
        "{text}"
    );
    place.wait_for_end();
    assert_eq!(log(&place).matches(says).count(), 1, "{}", log(&place));
    drop(new);
    place.check();
}

#[test]
fn umount_waits_for_moved_image() {
    if !able(&[]) {
        return;
    }
    let mut place = logged("durability=0");
    fs::write(place.at("f"), b"kept").unwrap();
    let moved = place.beside("w.cairn");
    fs::rename(place.volume(), &moved).unwrap();
    place.ok(&["mkfs", "-q", "--size", "64M", "v.cairn"]);
    let new = File::open(place.volume()).unwrap();
    flock(&new, FlockOperation::LockExclusive).unwrap();
    let says = format!("was moved while it was open: it is {} now", arg(&moved));
    let out = place.run(&["sync", "m"]);
    assert!(out.status.success() && said(&out).contains(&says));
    let out = place.run(&["umount", "m"]);
    let text = said(&out);
    assert!(out.status.success() && text.contains(&says), "{text}");
    assert!(!text.contains("not waited for"), "{text}");
    flock(
        File::open(&moved).unwrap(),
        FlockOperation::NonBlockingLockExclusive,
    )
    .unwrap();
    assert!(log(&place).contains(&says), "{}", log(&place));
    place.wait_for_end();
    assert_eq!(place.ok(&["cat", "w.cairn:/f"]), "kept");
}
