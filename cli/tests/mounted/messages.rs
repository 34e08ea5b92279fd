//! Destinations of the daemon's messages.

use std::os::unix::net::UnixDatagram;

use crate::life::private;
use crate::place::{CAIRNFS, Place, able, no_fork_is_tried};

#[test]
fn messages_go_to_syslog_without_log_file() {
    if !able(&["mount", "unshare"]) {
        return;
    }
    let _copies = no_fork_is_tried();
    let place = Place::new("64M");
    let log = UnixDatagram::bind(place.beside("log")).unwrap();
    log.set_nonblocking(true).unwrap();
    // A private namespace has its own /dev, with this socket in it.
    let script = format!(
        "mkdir d; mount -t tmpfs none d; cp -a /dev/null /dev/fuse d; ln -s $PWD/log d/log
        mount --bind d /dev
        {CAIRNFS} mount -o durability=0 v.cairn m
        echo early > m/early; {CAIRNFS} sync m; truncate -s 32M v.cairn
        ! {CAIRNFS} sync m"
    );
    private(&place, &script);
    let mut messages = Vec::new();
    let mut bytes = [0; 4096];
    while let Ok(len) = log.recv(&mut bytes) {
        messages.push(String::from_utf8(bytes[..len].to_vec()).unwrap());
    }
    let volume = place.volume();
    let volume = volume.to_str().unwrap();
    let has = |priority: &str, words: &[&str]| {
        let fits = |m: &&String| m.starts_with(priority) && words.iter().all(|w| m.contains(w));
        assert!(
            messages.iter().any(|m| fits(&m)),
            "{words:?} in {messages:#?}"
        );
    };
    has("<30>", &["cairnfs[", volume, "mounted"]);
    let says = [
        "cairnfs[",
        volume,
        "has stopped",
        "was truncated",
        "unmount it",
    ];
    has("<27>", &says);
    assert!(
        messages.iter().all(|m| !m.contains(['\n', '\x1b'])),
        "{messages:#?}"
    );
}
