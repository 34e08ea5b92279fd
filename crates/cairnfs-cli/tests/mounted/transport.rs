//! What differs between the transports of a mount. That all else is the same is shown by running
//! these tests with `CAIRNFS_TRANSPORT=ring`.

use std::fs::{self, File};
use std::io::Write;
use std::sync::Barrier;
use std::thread;

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use rustix::io::Errno;

use crate::place::{Place, able_with_rings};

#[test]
fn stats_name_the_transport() {
    if !able_with_rings() {
        return;
    }
    for (asked, used) in [("dev", "dev"), ("ring", "ring"), ("auto", "ring")] {
        let place = Place::mounted("64M", &format!("transport={asked}"));
        fs::write(place.at("f"), "text").unwrap();
        let stats = place.ok(&["stats", "m"]);
        let mut lines = stats.lines().map(str::trim);
        let line = lines.find(|line| line.starts_with("transport")).unwrap();
        assert!(line.contains(&format!(" {used}, ")), "{asked}: {line}");
    }
}

/// Each waits in an entry of a ring until the kernel has written back through other entries.
#[test]
fn more_flags_are_set_at_once_than_rings_have_entries() {
    const FILES: usize = 150;
    if !able_with_rings() {
        return;
    }
    let place = Place::mounted("64M", "transport=ring,write=back");
    let path = |n: usize| place.at(format!("f{n}"));
    let text = |n: usize| format!("{n} ").repeat(20_000);
    let together = Barrier::new(FILES);
    thread::scope(|scope| {
        for n in 0..FILES {
            let together = &together;
            scope.spawn(move || {
                // Closing it would send the data.
                let mut file = File::create(path(n)).unwrap();
                file.write_all(text(n).as_bytes()).unwrap();
                together.wait();
                while let Err(e) = ioctl_setflags(&file, IFlags::IMMUTABLE) {
                    assert_eq!(e, Errno::BUSY);
                    thread::yield_now();
                }
            });
        }
    });
    for n in 0..FILES {
        let file = File::open(path(n)).unwrap();
        assert!(ioctl_getflags(&file).unwrap().contains(IFlags::IMMUTABLE));
        assert_eq!(fs::read_to_string(path(n)).unwrap(), text(n));
    }
}
