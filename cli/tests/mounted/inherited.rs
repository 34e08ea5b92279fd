//! What processes that outlive their caller keep of its descriptors: nothing.

use std::fs;

use rustix::process::Signal;

use crate::place::{CAIRNFS, Place, able, shell};

#[test]
fn daemon_closes_descriptors_of_its_caller() {
    if !able(&["flock"]) {
        return;
    }
    let mut place = Place::new("64M");
    let script = format!(
        "mkfifo p; (exec 3<>p; exec 9>l; flock 9; {CAIRNFS} mount --log log v.cairn m)
        flock -n l true"
    );
    shell(&place.beside(""), &script);
    place.adopt();
    let open = format!("/proc/{}/fd", place.daemon_pid());
    for entry in fs::read_dir(open).unwrap() {
        let target = fs::read_link(entry.unwrap().path()).unwrap();
        assert!(
            target != place.beside("p") && target != place.beside("l"),
            "{target:?}"
        );
    }
    place.ok(&["sync", "m"]);
    place.finish();
}

#[test]
fn request_left_behind_closes_descriptors_of_its_caller() {
    if !able(&["flock"]) {
        return;
    }
    let place = Place::mounted("64M", "");
    place.stop();
    // The child process that waits for the daemon does not keep the lock.
    let script = format!(
        "(exec 9>l; flock 9; ! {CAIRNFS} sync --timeout 0.2 m 2>why)
        grep 'does not answer' why; flock l true"
    );
    shell(&place.beside(""), &script);
    place.signal(Signal::CONT);
    place.finish();
}
