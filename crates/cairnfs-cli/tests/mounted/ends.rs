//! How a mount ends while others hold its file system, or after its image was taken away.

use std::fs;

use rustix::process::Signal;

use crate::life::private;
use crate::place::{CAIRNFS, Place, able, arg, shell};

fn run_private(place: &Place, script: &str) {
    private(place, &format!("COMMAND={CAIRNFS}\n{script}"));
}

#[test]
fn umount_does_not_wait_for_another_mount_of_the_same_volume() {
    if !able(&["mount", "umount", "unshare", "timeout", "flock"]) {
        return;
    }
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
fn umount_waits_for_another_namespace_with_words_and_not_for_ever() {
    if !able(&["mount", "umount", "unshare", "timeout", "flock"]) {
        return;
    }
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
fn a_signal_tells_of_the_mount_that_stays() {
    if !able(&["mount", "umount"]) {
        return;
    }
    let mut place = Place::new("64M");
    let mount = ["mount", "--log", "log", "-o", "durability=0,grace=0"];
    place.ok(&[&mount[..], &["v.cairn", "m"]].concat());
    place.adopt();
    let other = place.beside("b");
    fs::create_dir(&other).unwrap();
    shell(&place.beside(""), "mount --bind m b");
    fs::write(other.join("f"), b"kept").unwrap();
    place.signal(Signal::TERM);
    place.wait_for_end();
    shell(&place.beside(""), "umount b");
    let log = fs::read_to_string(place.beside("log")).unwrap();
    let says = format!("is mounted on {}, too", arg(&other));
    assert!(log.contains(&says), "{log}");
    place.check();
    place.mount("");
    assert_eq!(fs::read(place.at("f")).unwrap(), b"kept");
    place.finish();
}
