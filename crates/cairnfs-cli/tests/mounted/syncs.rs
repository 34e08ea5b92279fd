//! Syncs through a mount: how they wait for the device, and that nothing else waits with them.
//!
//! The daemon is in this process, over a device in memory whose flushes a test can hold back; its
//! clients are other threads and processes.

use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use cairnfs::device::{Device, MemoryDevice};
use cairnfs::fs::{FileSystem, MakeOptions, Options, make_device};
use cairnfs_fuse::adapter::Adapter;
use cairnfs_fuse::ops::Ops;
use cairnfs_fuse::{MountOptions, Serving};
use rustix::fs::OFlags;
use rustix::io::{ReadWriteFlags, pwritev2};
use tempfile::TempDir;

use crate::place::{Place, able, arg, pattern};

const SIZE: u64 = 64 << 20;

/// A device that holds flushes back while it is shut.
struct Gate {
    memory: MemoryDevice,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    shut: bool,
    /// Flushes that wait at the gate.
    waiting: usize,
}

impl Gate {
    fn set(&self, shut: bool) {
        self.state.lock().unwrap().shut = shut;
        self.changed.notify_all();
    }

    fn wait_for_flush(&self) {
        let mut state = self.state.lock().unwrap();
        while state.waiting == 0 {
            state = self.changed.wait(state).unwrap();
        }
    }
}

impl Device for Gate {
    fn size(&self) -> u64 {
        self.memory.size()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> cairnfs::Result<()> {
        self.memory.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: &[u8]) -> cairnfs::Result<()> {
        self.memory.write(offset, buf)
    }
    fn flush(&self) -> cairnfs::Result<()> {
        let mut state = self.state.lock().unwrap();
        state.waiting += 1;
        self.changed.notify_all();
        while state.shut {
            state = self.changed.wait(state).unwrap();
        }
        state.waiting -= 1;
        drop(state);
        self.memory.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> cairnfs::Result<()> {
        self.memory.discard(offset, len)
    }
}

/// A mount served by two event loops of this process.
struct Mount {
    gate: Arc<Gate>,
    fs: Arc<FileSystem>,
    serving: Option<Serving>,
    folder: TempDir,
}

impl Mount {
    fn new() -> Self {
        let gate = Arc::new(Gate {
            memory: MemoryDevice::new(SIZE),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        make_device(&*gate, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        let options = Options {
            durability_interval: None,
            ..Options::default()
        };
        let fs = FileSystem::open_device(gate.clone(), &options).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().canonicalize().unwrap();
        let options = MountOptions {
            threads: Some(2),
            ..MountOptions::default()
        };
        let name = Path::new("cairnfs-test");
        let ops = Arc::new(Ops::new(Arc::clone(&fs), name, options.write));
        let adapter = Adapter::new(ops, &options);
        let serving = Serving::start(adapter, name, &dir, &options).unwrap();
        Self {
            gate,
            fs,
            serving: Some(serving),
            folder,
        }
    }

    fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(name)
    }

    fn counter(&self, name: &str) -> u64 {
        let counters = self.fs.counters();
        counters.iter().find(|(n, _)| *n == name).unwrap().1
    }

    /// Writes a file, and leaves the data with the kernel.
    fn written(&self, name: &str) -> File {
        let mut file = File::create(self.at(name)).unwrap();
        file.write_all(&pattern(7, 20_000)).unwrap();
        file
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.gate.set(false);
        if let Some(serving) = self.serving.take() {
            let _ = serving.end();
        }
    }
}

#[test]
fn syncs_share_flushes_and_hold_up_nobody() {
    const FILES: u64 = 24;
    if !able(&[]) {
        return;
    }
    let mount = Mount::new();
    fs::write(mount.at("old"), b"from the daemon").unwrap();
    File::open(mount.at("old")).unwrap().sync_all().unwrap();
    let files: Vec<_> = (0..FILES).map(|n| mount.written(&n.to_string())).collect();
    let before = ["fsyncs", "device_flushes", "device_writes"].map(|name| mount.counter(name));
    mount.gate.set(true);
    let synced = Arc::new(AtomicUsize::new(0));
    let syncing = files.into_iter().map(|file| {
        let synced = Arc::clone(&synced);
        thread::spawn(move || {
            file.sync_all().unwrap();
            synced.fetch_add(1, Ordering::SeqCst);
        })
    });
    let syncing: Vec<_> = syncing.collect();
    mount.gate.wait_for_flush();
    // The data of all is written while two of them wait for the device.
    while mount.counter("device_writes") < before[2] + FILES + 2 {
        thread::yield_now();
    }
    fs::create_dir(mount.at("new")).unwrap();
    fs::rename(mount.at("new"), mount.at("other")).unwrap();
    assert!(fs::metadata(mount.at("other")).unwrap().is_dir());
    assert_eq!(fs::read_dir(mount.folder.path()).unwrap().count(), 26);
    let direct = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::DIRECT.bits() as i32)
        .open(mount.at("old"))
        .unwrap();
    let mut bytes = [0; 15];
    direct.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"from the daemon");
    assert_eq!(synced.load(Ordering::SeqCst), 0);
    mount.gate.set(false);
    syncing.into_iter().for_each(|one| one.join().unwrap());
    let rose = |name, before| mount.counter(name) - before;
    assert_eq!(rose("fsyncs", before[0]), FILES);
    let flushes = rose("device_flushes", before[1]);
    assert!(flushes <= FILES / 3, "{flushes} flushes for {FILES}");
}

#[test]
fn the_end_waits_for_syncs() {
    if !able(&[]) {
        return;
    }
    let mut mount = Mount::new();
    let file = mount.written("f");
    mount.gate.set(true);
    let synced = thread::spawn(move || file.sync_all());
    mount.gate.wait_for_flush();
    let serving = mount.serving.take().unwrap();
    let ended = thread::spawn(move || serving.end());
    mount.gate.set(false);
    ended.join().unwrap().unwrap();
    mount.fs.close().unwrap();
    synced.join().unwrap().unwrap();
}

#[test]
fn a_killed_client_harms_nobody() {
    if !able(&["dd"]) {
        return;
    }
    let mount = Mount::new();
    mount.gate.set(true);
    let target = format!("of={}", arg(&mount.at("killed")));
    let mut client = Command::new("dd")
        .args(["if=/dev/zero", &target, "bs=8k", "count=1", "conv=fsync"])
        .spawn()
        .unwrap();
    mount.gate.wait_for_flush();
    client.kill().unwrap();
    let file = mount.written("other");
    let synced = thread::spawn(move || file.sync_all());
    mount.gate.set(false);
    assert!(!client.wait().unwrap().success());
    synced.join().unwrap().unwrap();
    assert_eq!(fs::metadata(mount.at("killed")).unwrap().len(), 8192);
    mount.written("later").sync_all().unwrap();
}

#[test]
fn a_synchronous_write_is_durable_when_it_returns() {
    const WRITES: usize = 10;
    const LEN: usize = 3000;
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("64M", "durability=0");
    let counters = |place: &Place| {
        let told = place.ok(&["stats", "--json", "m"]);
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        ["fsyncs", "device_flushes"].map(|name| told[name].as_u64().unwrap())
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
    // What nobody syncs stays in the kernel, and goes with the daemon.
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
