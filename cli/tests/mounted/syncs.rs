//! Syncs through a mount: how they wait for the device, and that no other request waits with
//! them.
//!
//! The daemon is in this process, over a device whose flushes a test can hold back; its clients
//! are other threads and processes.

use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use cairnfs_disk::format::ROOT_INO;
use cairnfs_disk::types::Creds;
use cairnfs_fuse::options::WriteMode;
use cairnfs_fuse::{MountOptions, Transport, control};
use rustix::fs::{Advice, FallocateFlags, OFlags, fadvise, fallocate, getxattr};
use rustix::io::{ReadWriteFlags, pwritev2};

use crate::gate::{Held, Mount};
use crate::place::{Place, able, able_with_rings, arg, pattern};
use crate::queues::{bind_to, processors};

#[test]
fn syncs_share_flushes_and_do_not_delay_other_requests() {
    const FILES: u64 = 24;
    if !able(&[]) {
        return;
    }
    let mount = Mount::new();
    fs::write(mount.at("old"), b"from the daemon").unwrap();
    File::open(mount.at("old")).unwrap().sync_all().unwrap();
    let files: Vec<_> = (0..FILES).map(|n| mount.written(&n.to_string())).collect();
    let before = ["fsyncs", "device_flushes", "device_writes"].map(|name| mount.counter(name));
    mount.gate.hold(Held::Flushes);
    let synced = Arc::new(AtomicUsize::new(0));
    let syncing = files.into_iter().map(|file| {
        let synced = Arc::clone(&synced);
        thread::spawn(move || {
            file.sync_all().unwrap();
            synced.fetch_add(1, Ordering::SeqCst);
        })
    });
    let syncing: Vec<_> = syncing.collect();
    mount.gate.wait_for(1);
    // The data of all files is written while two syncs wait for the device.
    while mount.counter("device_writes") < before[2] + FILES + 2 {
        thread::yield_now();
    }
    fs::create_dir(mount.at("new")).unwrap();
    fs::rename(mount.at("new"), mount.at("other")).unwrap();
    assert!(fs::metadata(mount.at("other")).unwrap().is_dir());
    assert_eq!(fs::read_dir(mount.dir()).unwrap().count(), 26);
    let direct = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::DIRECT.bits() as i32)
        .open(mount.at("old"))
        .unwrap();
    let mut bytes = [0; 15];
    direct.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"from the daemon");
    assert_eq!(synced.load(Ordering::SeqCst), 0);
    mount.gate.open();
    syncing.into_iter().for_each(|one| one.join().unwrap());
    let rose = |name, before| mount.counter(name) - before;
    assert_eq!(rose("fsyncs", before[0]), FILES);
    let flushes = rose("device_flushes", before[1]);
    assert!(flushes <= FILES / 3, "{flushes} flushes for {FILES}");
}

/// Contract: durable.unmount
#[test]
fn unmount_waits_for_syncs() {
    if !able(&[]) {
        return;
    }
    let mut mount = Mount::new();
    let file = mount.written("f");
    mount.gate.hold(Held::Flushes);
    let synced = thread::spawn(move || file.sync_all());
    mount.gate.wait_for(1);
    let serving = mount.serving.take().unwrap();
    let ended = thread::spawn(move || serving.end());
    mount.gate.open();
    ended.join().unwrap().unwrap();
    mount.fs.close().unwrap();
    synced.join().unwrap().unwrap();
}

#[test]
fn killed_client_does_not_affect_other_syncs() {
    if !able(&["dd"]) {
        return;
    }
    let mount = Mount::new();
    mount.gate.hold(Held::Flushes);
    let target = format!("of={}", arg(&mount.at("killed")));
    let mut client = Command::new("dd")
        .args(["if=/dev/zero", &target, "bs=8k", "count=1", "conv=fsync"])
        .spawn()
        .unwrap();
    mount.gate.wait_for(1);
    client.kill().unwrap();
    let file = mount.written("other");
    let synced = thread::spawn(move || file.sync_all());
    mount.gate.open();
    assert!(!client.wait().unwrap().success());
    synced.join().unwrap().unwrap();
    assert_eq!(fs::metadata(mount.at("killed")).unwrap().len(), 8192);
    mount.written("later").sync_all().unwrap();
}

/// Contract: durable.write
#[test]
fn synchronous_write_is_durable_when_it_returns() {
    const WRITES: usize = 10;
    const LEN: usize = 3000;
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("64M", "durability=0");
    let counters = |place: &Place| {
        let stats = place.ok(&["stats", "--json", "m"]);
        let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
        ["fsyncs", "device_flushes"].map(|name| stats[name].as_u64().unwrap())
    };
    let kinds = [
        ("sync", OFlags::SYNC, ReadWriteFlags::empty()),
        ("dsync", OFlags::DSYNC, ReadWriteFlags::empty()),
        (
            "direct",
            OFlags::DSYNC | OFlags::DIRECT,
            ReadWriteFlags::empty(),
        ),
        ("call", OFlags::empty(), ReadWriteFlags::SYNC),
        ("data call", OFlags::empty(), ReadWriteFlags::DSYNC),
    ];
    for (name, open, write) in kinds {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .custom_flags(open.bits() as i32)
            .open(place.at(name))
            .unwrap();
        let before = counters(&place);
        for n in 0..WRITES {
            let bytes = pattern(n as u64, LEN);
            let at = (n * LEN) as u64;
            let written = pwritev2(&file, &[IoSlice::new(&bytes)], at, write);
            assert_eq!(written.unwrap(), LEN);
        }
        let after = counters(&place);
        let rose = [after[0] - before[0], after[1] - before[1]];
        assert!(rose.iter().all(|n| *n >= WRITES as u64), "{name}: {rose:?}");
    }
    // Data without a sync stays in the kernel, and is lost with the daemon.
    let mut unsynced = File::create(place.at("unsynced")).unwrap();
    unsynced.write_all(&pattern(0, LEN)).unwrap();
    place.kill();
    drop(unsynced);
    place.check();
    place.mount("");
    let expected: Vec<u8> = (0..WRITES).flat_map(|n| pattern(n as u64, LEN)).collect();
    for (name, ..) in kinds {
        assert!(fs::read(place.at(name)).unwrap() == expected, "{name}");
    }
    assert!(!place.at("unsynced").exists());
    place.finish();
}

/// Not every kernel waits in syncfs for the writes that it begins, and rings have no order between
/// processors: what follows can overtake them.
/// Contract: durable.sync
#[test]
fn synced_data_is_durable_that_was_on_its_way() {
    const ROUNDS: u64 = 12;
    const FILES: u64 = 8;
    const LEN: usize = 4 << 20;
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("1G", "durability=0,write=back");
    let bytes = |round: u64, n: u64| pattern(round * FILES + n, LEN);
    for round in 0..ROUNDS {
        for n in 0..FILES {
            fs::write(place.at(n.to_string()), bytes(round, n)).unwrap();
        }
        place.ok(&["sync", "m"]);
        place.kill();
        place.mount("durability=0,write=back");
        for n in 0..FILES {
            let same = fs::read(place.at(n.to_string())).unwrap() == bytes(round, n);
            assert!(same, "file {n} of round {round}");
        }
    }
    place.finish();
}

/// The ring of one processor has data and does not come to it, because its thread waits for an inode;
/// the sync is asked for through the other one, as by a command whose syncfs did not wait. This process
/// serves the rings that it uses: killed in the middle, it can stay in the kernel until a reboot.
/// Contract: durable.sync
#[test]
#[ignore = "a failure can leave a process that nothing ends"]
fn sync_waits_for_data_that_it_overtook() {
    const LEN: u64 = 64 << 10;
    let processors = processors();
    if !able_with_rings() || processors.len() < 2 {
        return;
    }
    let options = MountOptions {
        transport: Transport::Ring,
        write: WriteMode::Back,
        ..MountOptions::default()
    };
    let mount = Mount::with(options, |fs| {
        let made = fs.mknod(ROOT_INO, b"busy", 0o100_644, 0, Creds { uid: 0, gid: 0 });
        let busy = made.unwrap().ino;
        fs.link(busy, ROOT_INO, b"busy too").unwrap();
        fs.write(busy, 0, &[1; 4096], false).unwrap();
    });
    let data = File::create(mount.at("data")).unwrap();
    data.write_all_at(&pattern(3, LEN as usize), 0).unwrap();
    let ino = data.metadata().unwrap().ino();
    let busy = OpenOptions::new()
        .write(true)
        .open(mount.at("busy"))
        .unwrap();
    let looked_up = || control::status(mount.dir()).unwrap().messages["lookup"];
    let has_data = || {
        let mut bytes = vec![0; LEN as usize];
        let len = mount.fs.read(ino, 0, &mut bytes).unwrap();
        bytes[..len] == pattern(3, LEN as usize)
    };
    // This thread, too, needs answers while the ring of the first processor gives none.
    bind_to(processors[1]);
    thread::scope(|scope| {
        mount.gate.hold(Held::Reads);
        // It has the inode, and needs the rest of the block.
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let busy = &busy;
        let punching = scope.spawn(move || fallocate(busy, punch, 0, 100).unwrap());
        mount.gate.wait_for(1);
        let before = looked_up();
        let looking = scope.spawn(|| {
            bind_to(processors[0]);
            fs::metadata(mount.at("busy too")).unwrap();
        });
        while looked_up() == before {
            thread::yield_now();
        }
        let sending = scope.spawn(|| {
            bind_to(processors[0]);
            fadvise(&data, 0, None, Advice::DontNeed).unwrap();
        });
        sending.join().unwrap();
        let (synced, is_synced) = channel();
        let (dir, other, has_data) = (mount.dir(), processors[1], &has_data);
        scope.spawn(move || {
            bind_to(other);
            getxattr(dir, "user.cairnfs.sync", &mut [0; 100][..]).unwrap();
            synced.send(has_data()).unwrap();
        });
        // It returns at once if it does not wait, and must have the data then.
        let early = is_synced.recv_timeout(Duration::from_secs(1));
        mount.gate.open();
        assert!(early.or_else(|_| is_synced.recv()).unwrap());
        punching.join().unwrap();
        looking.join().unwrap();
    });
}
