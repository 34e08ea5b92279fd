//! What differs between the transports of a mount. That all else is the same is shown by running
//! these tests with `CAIRNFS_TRANSPORT=ring`.

use std::fs::{self, File};
use std::io::Write;
use std::sync::Barrier;
use std::thread;

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use rustix::io::Errno;

use crate::place::{Place, able_with_rings, nap};

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

/// As many as a ring can serve besides the data that they wait for.
#[test]
fn hundred_files_with_dirty_data_get_flags_at_once() {
    const FILES: usize = 100;
    if !able_with_rings() {
        return;
    }
    let place = Place::mounted("64M", "transport=ring,write=back");
    let together = Barrier::new(FILES);
    thread::scope(|scope| {
        for n in 0..FILES {
            let (together, path) = (&together, place.at(format!("f{n}")));
            scope.spawn(move || {
                let mut file = File::create(path).unwrap();
                file.write_all(&[n as u8; 50_000]).unwrap();
                together.wait();
                ioctl_setflags(&file, IFlags::NODUMP | IFlags::IMMUTABLE).unwrap();
            });
        }
    });
    for n in 0..FILES {
        let bytes = fs::read(place.at(format!("f{n}"))).unwrap();
        assert!(bytes == [n as u8; 50_000]);
    }
}

/// Bytes in memory of the mappings that a process keeps from its children and that are as large as
/// the entries of a ring.
fn memory_of_rings(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let (mut size, mut resident, mut sum) = (0, 0, 0);
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (name, value) = (words.next().unwrap(), words.next());
        let kib = || value.unwrap().parse::<u64>().unwrap();
        match name {
            "Size:" => size = kib(),
            "Rss:" => resident = kib(),
            "VmFlags:" if line.contains(" dc") && size >= 128 << 10 => sum += resident << 10,
            _ => {}
        }
    }
    sum
}

/// After many large requests at the same time.
#[test]
fn memory_of_rings_is_given_back() {
    const THREADS: usize = 48;
    if !able_with_rings() {
        return;
    }
    let place = Place::mounted("1G", "transport=ring,cache=64M");
    let together = Barrier::new(THREADS);
    thread::scope(|scope| {
        for n in 0..THREADS {
            let (together, path) = (&together, place.at(format!("f{n}")));
            scope.spawn(move || {
                let mut file = File::create(path).unwrap();
                together.wait();
                (0..4).for_each(|_| file.write_all(&vec![n as u8; 1 << 20]).unwrap());
            });
        }
    });
    let rings = thread::available_parallelism().unwrap().get() as u64;
    // Four large entries of each ring, and a page of each of the others.
    let kept = rings * (6 << 20);
    assert!(memory_of_rings(place.daemon_pid()) > 0);
    // Does not end if it is not given back.
    while memory_of_rings(place.daemon_pid()) > kept {
        nap(20);
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
