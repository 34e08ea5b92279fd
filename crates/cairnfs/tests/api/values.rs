//! Extended attributes in the index and in memory: which accesses need index lookups, and the space
//! of equal values.

use std::collections::HashMap;
use std::sync::Arc;

use cairnfs::fs::{FileSystem, MakeOptions, Options, make_device};
use cairnfs_disk::device::MemoryDevice;
use cairnfs_disk::types::XattrMode;

use super::engine::{OWNER, create, open_with};

/// A volume without workers, with this budget: all work is done within the calls.
fn quiet(device: Arc<MemoryDevice>, cache_budget: usize) -> Arc<FileSystem> {
    let options = Options {
        cache_budget,
        ..Options::default()
    };
    open_with(device, options)
}

fn made(size: u64) -> Arc<MemoryDevice> {
    made_with(size, None)
}

fn made_with(size: u64, log_size: Option<u64>) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(size));
    let make = MakeOptions {
        log_size,
        ..MakeOptions::default()
    };
    make_device(&*device, &make, &mut |_, _| {}).unwrap();
    device
}

fn counters<const N: usize>(fs: &FileSystem, names: [&str; N]) -> [u64; N] {
    let all: HashMap<_, _> = fs.counters().into_iter().collect();
    names.map(|name| *all.get(name).unwrap())
}

/// Returns the increase of counters during `run`.
fn grown<const N: usize>(fs: &FileSystem, names: [&str; N], run: impl FnOnce()) -> [u64; N] {
    let mut before = counters(fs, names).into_iter();
    run();
    counters(fs, names).map(|after| after - before.next().unwrap())
}

const LOOK_UPS: [&str; 3] = ["node_cache_hits", "node_cache_misses", "device_reads"];

#[test]
fn known_attributes_need_no_index_lookup() {
    let device = made(64 << 20);
    let fs = quiet(device.clone(), 64 << 20);
    let [none, one] = ["none", "one"].map(|name| create(&fs, name));
    fs.setxattr(one, b"user.a", &[1; 400], XattrMode::Set)
        .unwrap();
    fs.close().unwrap();
    drop(fs);
    let fs = quiet(device, 64 << 20);
    for ino in [none, one] {
        fs.getattr(ino).unwrap();
    }
    let absent = |ino, name: &str| {
        grown(&fs, LOOK_UPS, || {
            assert!(fs.getxattr(ino, name.as_bytes()).is_err());
        })
    };
    assert_eq!(absent(none, "user.a"), [0; 3], "it counts its attributes");
    assert_ne!(absent(one, "user.b"), [0; 3], "the first time");
    assert_eq!(absent(one, "user.b"), [0; 3], "now it knows which it has");
    assert_eq!(absent(one, "user.c"), [0; 3]);
    let set = |ino, name: &str, value: &[u8]| {
        grown(&fs, LOOK_UPS, || {
            fs.setxattr(ino, name.as_bytes(), value, XattrMode::Set)
                .unwrap();
        })
    };
    assert_eq!(
        set(none, "user.a", &[1; 400]),
        [0; 3],
        "the first attribute"
    );
    assert_eq!(set(none, "user.b", b"small"), [0; 3], "the second");
    assert_eq!(set(one, "user.b", &[2; 400]), [0; 3]);
    assert_eq!(absent(none, "user.c"), [0; 3]);
    fs.removexattr(none, b"user.a").unwrap();
    fs.merge().unwrap();
    assert_eq!(absent(none, "user.x"), [0; 3]);
    assert_eq!(fs.getxattr(one, b"user.a").unwrap(), [1; 400]);
    assert_eq!(fs.getxattr(one, b"user.b").unwrap(), [2; 400]);
    let present = grown(&fs, LOOK_UPS, || {
        fs.getxattr(one, b"user.b").unwrap();
    });
    assert!(
        present[0] <= 1 && present[2] == 0,
        "the value is in memory: {present:?}"
    );
}

/// Returns the bytes of index for `files` files, each with these attributes. One merge writes them
/// all, so the nodes have the same fill in every case.
fn index_bytes(files: usize, attributes: impl Fn(usize) -> Vec<(&'static str, Vec<u8>)>) -> u64 {
    let fs = quiet(made_with(512 << 20, Some(128 << 20)), 1 << 30);
    let before = fs.statfs().free;
    for file in 0..files {
        let ino = create(&fs, &format!("file{file:08}"));
        for (name, value) in attributes(file) {
            fs.setxattr(ino, name.as_bytes(), &value, XattrMode::Set)
                .unwrap();
        }
        fs.forget(ino, 1);
    }
    fs.merge().unwrap();
    assert_eq!(counters(&fs, ["merges"]), [1]);
    (before - fs.statfs().free) * 4096
}

#[test]
fn shared_value_costs_few_index_bytes_per_file() {
    let files = 30_000;
    let one = |file: usize| vec![("user.cairnfs-bench", vec![(file % 10) as u8; 400])];
    let (without, with) = (index_bytes(files, |_| Vec::new()), index_bytes(files, one));
    let each = (with - without) as f64 / files as f64;
    println!("{each:.1} bytes of index for each attribute of 400 bytes");
    assert!(each <= 40.0, "{each}");
}

/// The saving that storing a whole set of attributes once could give: each file would then have one
/// reference, which is no larger than that of an attribute with a short name.
#[test]
fn three_attributes_stay_within_index_byte_bounds() {
    const SET: [&str; 3] = [
        "security.selinux",
        "security.other_acl_access",
        "security.other_acl_default",
    ];
    let files = 20_000;
    let without = index_bytes(files, |_| Vec::new()) as f64;
    let each = |len: usize| {
        let set = |file: usize| {
            let value = |n: usize| vec![(file % 10 * 3 + n) as u8; len];
            (0..).zip(SET).map(|(n, name)| (name, value(n))).collect()
        };
        (index_bytes(files, set) as f64 - without) / files as f64
    };
    let reference = |file: usize| vec![("user.s", vec![(file % 10) as u8; 400])];
    let reference = (index_bytes(files, reference) as f64 - without) / files as f64;
    let (own, shared) = (each(44), each(100));
    let file = without / files as f64;
    println!(
        "index for each file: {file:.0} bytes, three values of 44 bytes {own:.0}, of 100 bytes {shared:.0}, one reference {reference:.0}"
    );
    assert!(file < 200.0 && own < 260.0 && shared < 140.0 && reference < 35.0);
}

#[test]
fn equal_values_are_stored_once_in_memory() {
    let fs = quiet(made(256 << 20), 256 << 20);
    let names = [
        "xattr_value_hits",
        "xattr_value_misses",
        "xattr_shared_bytes",
    ];
    let files = 1000;
    let [hits, misses, shared] = grown(&fs, names, || {
        for file in 0..files {
            let ino = create(&fs, &format!("f{file}"));
            let value = vec![(file % 10) as u8; 400];
            fs.setxattr(ino, b"user.a", &value, XattrMode::Set).unwrap();
        }
    });
    assert_eq!((hits, misses), (files - 10, 10));
    assert_eq!(shared, (files - 10) * 400);
    let [bytes, dirty] = counters(&fs, ["xattr_value_bytes", "dirty_bytes"]);
    assert_eq!(bytes, 10 * 464);
    assert!(
        dirty / files < 2500,
        "{} bytes for each file",
        dirty / files
    );
}

#[test]
fn attributes_of_all_sizes_survive_reopen() {
    let device = made(128 << 20);
    let fs = quiet(device.clone(), 16 << 20);
    let ino = create(&fs, "f");
    let sizes = [
        0, 1, 64, 65, 400, 4000, 4089, 4096, 5000, 16_376, 65_535, 65_536,
    ];
    let name = |i: usize| format!("user.number{i}").into_bytes();
    let value = |i: usize, size: usize| vec![i as u8; size];
    for round in 0..20 {
        for (i, size) in sizes.into_iter().enumerate() {
            let number = round * 100 + i;
            fs.setxattr(ino, &name(number), &value(number, size), XattrMode::Set)
                .unwrap();
        }
    }
    let too_large = fs.setxattr(ino, b"user.x", &[0; 65_537], XattrMode::Set);
    assert!(too_large.is_err());
    fs.close().unwrap();
    drop(fs);
    let fs = quiet(device, 16 << 20);
    for round in 0..20 {
        for (i, size) in sizes.into_iter().enumerate() {
            let number = round * 100 + i;
            assert!(fs.getxattr(ino, &name(number)).unwrap() == value(number, size));
        }
    }
    let listed = fs.listxattr(ino).unwrap();
    assert_eq!(listed.split(|b| *b == 0).count() - 1, 240);
}

/// Two attribute names with equal hashes on a volume of seed 1.
const NEIGHBOURS: [&[u8]; 2] = [b"user.2KYhuLdzFE8", b"user.4Mb5IpU6INd"];

#[test]
fn make_with_sets_attributes_in_one_transaction() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let make = MakeOptions {
        seed: Some(1),
        ..MakeOptions::default()
    };
    make_device(&*device, &make, &mut |_, _| {}).unwrap();
    let fs = quiet(device, 64 << 20);
    let [a, b] = NEIGHBOURS;
    let given = [
        (a, &[1; 400][..]),
        (&b"user.c"[..], b"own"),
        (b, &[2; 9000]),
    ];
    let mut made = Vec::new();
    let [commits] = grown(&fs, ["commits"], || {
        for (name, mode) in [("f", 0o100_644), ("d", 0o040_755)] {
            let attr = fs.make_with(1, name.as_bytes(), (mode, 0), OWNER, &given);
            made.push(attr.unwrap().ino);
        }
    });
    assert_eq!(commits, 2, "one transaction each");
    let all_there = || {
        for ino in &made {
            for (name, value) in given {
                assert_eq!(fs.getxattr(*ino, name).unwrap(), value);
            }
            let listed = fs.listxattr(*ino).unwrap();
            assert_eq!(listed.split(|b| *b == 0).count() - 1, 3);
            assert!(fs.getxattr(*ino, b"user.d").is_err());
        }
    };
    all_there();
    fs.merge().unwrap();
    all_there();
    for bad in [
        &[(&b"user."[..], &b"1"[..])][..],
        &[(b"user.a", b"1"), (b"user.a", b"2")],
        &[(b"user.a", &[0; 65_537])],
    ] {
        assert!(fs.make_with(1, b"bad", (0o100_644, 0), OWNER, bad).is_err());
        assert!(fs.lookup(1, b"bad").is_err(), "nothing is left");
    }
    fs.removexattr(made[0], a).unwrap();
    fs.merge().unwrap();
    assert_eq!(fs.getxattr(made[0], b).unwrap(), [2; 9000]);
    assert_eq!(fs.getxattr(made[1], a).unwrap(), [1; 400]);
}

#[test]
fn new_reference_to_long_value_does_not_rewrite_value() {
    let device = made(256 << 20);
    let fs = quiet(device.clone(), 64 << 20);
    let value = vec![7; 65_536];
    let inos: Vec<u64> = (0..20).map(|n| create(&fs, &format!("f{n}"))).collect();
    fs.setxattr(inos[0], b"user.a", &value, XattrMode::Set)
        .unwrap();
    fs.merge().unwrap();
    // The log is written before, so the counter shows only the bytes written to the index.
    let merged = |change: &dyn Fn()| {
        change();
        fs.sync().unwrap();
        let [bytes] = grown(&fs, ["device_write_bytes"], || fs.merge().unwrap());
        bytes
    };
    let set = |ino: u64| {
        fs.setxattr(ino, b"user.a", &value, XattrMode::Set).unwrap();
    };
    let one = merged(&|| set(inos[1]));
    // With the two copies of the superblock.
    let little = 65_536 + 8192;
    assert!(one < little, "{one} bytes for one more");
    let many = merged(&|| inos[2..].iter().for_each(|ino| set(*ino)));
    assert!(many < little + 16_384, "{many} bytes for many more");
    let fewer = merged(&|| fs.removexattr(inos[1], b"user.a").unwrap());
    assert!(fewer < little, "{fewer} bytes for one less");
    let free = fs.statfs().free;
    let last = merged(&|| {
        let users = inos.iter().filter(|ino| **ino != inos[1]);
        users.for_each(|ino| fs.removexattr(*ino, b"user.a").unwrap());
    });
    assert!(last < little, "{last} bytes to let it go");
    assert!(fs.statfs().free >= free + 5 * 4, "its units are free");
    println!("one user more: {one} bytes of index, 18 more: {many}, one less: {fewer}");
    set(inos[5]);
    fs.close().unwrap();
    drop(fs);
    let fs = quiet(device, 16 << 20);
    assert_eq!(fs.getxattr(inos[5], b"user.a").unwrap(), value);
    assert!(fs.getxattr(inos[0], b"user.a").is_err());
}
