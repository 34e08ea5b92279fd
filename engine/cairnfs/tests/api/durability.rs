//! The cost of an fsync, measured by counters. Other tests check by power cuts which changes are
//! durable after it.
//!
//! Contract: durable.cost

use std::collections::HashMap;
use std::io::Write;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use cairnfs::device::{Device, MemoryDevice};
use cairnfs::fs::{FileSystem, FsyncRequest, MakeOptions, Options, make_device};
use cairnfs::{OpenOptions, Result};
use cairnfs_disk::types::{RenameMode, SetAttr, SetTime, XattrMode};

use super::engine::{OWNER, ROOT, open};

/// A volume without workers: all work is done within the calls.
fn quiet() -> Arc<FileSystem> {
    quiet_on(Arc::new(MemoryDevice::new(super::SIZE)))
}

fn quiet_on(device: Arc<dyn Device>) -> Arc<FileSystem> {
    make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    open(device)
}

fn create(fs: &FileSystem, dir: u64, name: &str) -> u64 {
    let made = fs.mknod(dir, name.as_bytes(), 0o100_644, 0, OWNER);
    made.unwrap().ino
}

fn mkdir(fs: &FileSystem, dir: u64, name: &str) -> u64 {
    fs.mkdir(dir, name.as_bytes(), 0o755, OWNER).unwrap().ino
}

fn counted(fs: &FileSystem, name: &str) -> u64 {
    let counters: HashMap<_, _> = fs.counters().into_iter().collect();
    *counters.get(name).unwrap()
}

/// The increase of counters during an fsync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cost {
    inodes: u64,
    entries: u64,
    blocks: u64,
    writes: u64,
    flushes: u64,
    contexts: u64,
}

fn cost(fs: &FileSystem, ino: u64) -> Cost {
    cost_of(fs, ino, false)
}

fn cost_of(fs: &FileSystem, ino: u64, data_only: bool) -> Cost {
    let before: HashMap<_, _> = fs.counters().into_iter().collect();
    fs.fsync(ino, data_only).unwrap();
    let after: HashMap<_, _> = fs.counters().into_iter().collect();
    let by = |name| after.get(name).unwrap() - before.get(name).unwrap();
    Cost {
        inodes: by("fsync_inodes"),
        entries: by("fsync_entries"),
        blocks: by("fsync_log_blocks"),
        writes: by("device_writes"),
        flushes: by("device_flushes"),
        contexts: by("contexts"),
    }
}

/// The cost for a new file in the root: its inode, the root's, and the entry.
const NEW_FILE: Cost = Cost {
    inodes: 2,
    entries: 3,
    blocks: 1,
    writes: 1,
    flushes: 1,
    contexts: 0,
};

/// The cost of an fsync without anything left to do.
const NOTHING: Cost = Cost {
    inodes: 0,
    entries: 0,
    blocks: 0,
    writes: 0,
    flushes: 0,
    contexts: 0,
};

#[test]
fn fsync_cost_excludes_other_files() {
    let fs = quiet();
    let alone = create(&fs, ROOT, "alone");
    assert_eq!(cost(&fs, alone), NEW_FILE);
    let dir = mkdir(&fs, ROOT, "dir");
    for i in 0..3000 {
        let other = create(&fs, if i % 2 == 0 { ROOT } else { dir }, &i.to_string());
        fs.setxattr(other, b"user.k", &[7; 100], XattrMode::Set)
            .unwrap();
        fs.write(other, 0, &[1; 5000], false).unwrap();
    }
    let among = create(&fs, ROOT, "among");
    assert_eq!(cost(&fs, among), NEW_FILE);
    assert_eq!(
        cost(&fs, among),
        Cost {
            inodes: 1,
            ..NOTHING
        }
    );
    assert_eq!(
        cost(&fs, alone),
        Cost {
            inodes: 1,
            ..NOTHING
        }
    );
    fs.sync().unwrap();
    let large = create(&fs, ROOT, "large");
    fs.write(large, 0, &[1; 1 << 20], false).unwrap();
    fs.rename(ROOT, b"large", ROOT, b"written", RenameMode::Replace)
        .unwrap();
    let nothing = cost(&fs, among);
    assert_eq!(nothing, NOTHING, "nor is others' data flushed");
}

#[test]
fn directory_fsync_costs_only_new_entry() {
    let fs = quiet();
    let dir = mkdir(&fs, ROOT, "dir");
    for i in 0..20_000 {
        create(&fs, dir, &i.to_string());
    }
    // More items than an fsync record may hold, so the whole context is written.
    let all = cost(&fs, dir);
    assert_eq!((all.contexts, all.flushes, all.entries), (1, 1, 0));
    for name in ["one", "another"] {
        create(&fs, dir, name);
        assert_eq!(cost(&fs, dir), NEW_FILE);
        fs.unlink(dir, name.as_bytes()).unwrap();
        // The file is still in use, so there is an orphan item as well.
        let entries = NEW_FILE.entries + 1;
        assert_eq!(
            cost(&fs, dir),
            Cost {
                entries,
                ..NEW_FILE
            }
        );
    }
}

#[test]
fn overwrite_fsync_cost_is_independent_of_extent_count() {
    let fs = quiet();
    let costs = [1, 2000].map(|extents: u64| {
        let ino = create(&fs, ROOT, &extents.to_string());
        for i in 0..extents {
            fs.write(ino, i * 8192, &[1; 4096], false).unwrap();
        }
        fs.setxattr(ino, b"user.k", &[7; 100], XattrMode::Set)
            .unwrap();
        fs.fsync(ino, false).unwrap();
        fs.write(ino, 0, &[2; 4096], false).unwrap();
        cost(&fs, ino)
    });
    let [small, large] = costs;
    assert_eq!(small, large);
    assert_eq!((small.entries, small.blocks), (2, 1));
    assert_eq!((small.writes, small.flushes), (2, 1), "data and record");
}

#[test]
fn rename_fsync_writes_only_its_dependencies() {
    let fs = quiet();
    let (a, b) = (mkdir(&fs, ROOT, "a"), mkdir(&fs, ROOT, "b"));
    let file = create(&fs, a, "file");
    create(&fs, a, "other");
    let replaced = create(&fs, b, "file");
    fs.sync().unwrap();
    let replace = RenameMode::Replace;
    fs.rename(a, b"other", a, b"another", replace).unwrap();
    fs.rename(a, b"file", b, b"file", replace).unwrap();
    let moved = cost(&fs, file);
    assert_eq!(
        moved.inodes, 4,
        "the file, who was there, and both directories"
    );
    // One entry removed and one changed, four inodes, and the orphan item of the replaced file,
    // which is open.
    assert_eq!((moved.entries, moved.blocks), (7, 1));
    assert_eq!(cost(&fs, replaced).entries, 0);
}

#[test]
fn sync_files_uses_one_flush() {
    let volume = super::volume();
    let files: Vec<_> = (0..300)
        .map(|i| {
            let mut file = volume.create_file(format!("{i}")).unwrap();
            file.write_all(&[3; 6000]).unwrap();
            file
        })
        .collect();
    let flushes = || counted(volume.file_system(), "device_flushes");
    let before = flushes();
    volume
        .sync_files(&files.iter().collect::<Vec<_>>())
        .unwrap();
    assert_eq!(flushes(), before + 1);
    let other = super::volume().create_file("other").unwrap();
    super::fails(
        volume.sync_files(&[&other]),
        std::io::ErrorKind::InvalidInput,
    );
}

/// A sync that states what is durable costs a write and a flush more, and nothing if nothing became
/// durable; an fsync states nothing.
#[test]
fn durable_mark_is_written_once_for_what_became_durable() {
    let fs = quiet();
    let cost_of_sync = || {
        let before = counted(&fs, "device_writes");
        fs.sync_stated().unwrap();
        counted(&fs, "device_writes") - before
    };
    let file = create(&fs, ROOT, "file");
    assert_eq!(
        cost_of_sync(),
        4,
        "the context, and the mark in three places"
    );
    assert_eq!(cost_of_sync(), 0, "an idle volume");
    fs.setxattr(file, b"user.a", b"b", XattrMode::Set).unwrap();
    let fsynced = cost(&fs, file);
    assert_eq!((fsynced.writes, fsynced.flushes), (1, 1), "{fsynced:?}");
    assert_eq!(cost_of_sync(), 3, "the mark states the fsync");
    assert_eq!(cost_of_sync(), 0);
}

/// Contract: durable.sync
#[test]
fn sync_through_covers_thousand_changes_with_one_flush() {
    let fs = quiet();
    let flushes = || counted(&fs, "device_flushes");
    let before = flushes();
    let sequences: Vec<_> = (0..1000)
        .map(|n| {
            let file = create(&fs, ROOT, &n.to_string());
            fs.write(file, 0, &[1; 1000], false).unwrap();
            fs.sequence()
        })
        .collect();
    assert!(sequences.is_sorted());
    assert!(!sequences.iter().any(|s| fs.is_durable(*s)));
    assert_eq!(flushes(), before);
    for sequence in &sequences {
        fs.sync_through(*sequence).unwrap();
        assert!(fs.is_durable(*sequence));
    }
    assert_eq!(flushes(), before + 1);
    // The later change is not durable yet.
    let later = create(&fs, ROOT, "later");
    let sequence = fs.sequence();
    assert!(sequence > *sequences.last().unwrap() && !fs.is_durable(sequence));
    fs.fsync(later, false).unwrap();
    assert!(!fs.is_durable(sequence), "others may have changed");
    fs.sync().unwrap();
    assert!(fs.is_durable(sequence));
    let all = flushes();
    fs.sync_through(sequence).unwrap();
    assert_eq!(flushes(), all);
}

#[test]
fn sync_through_sequence_of_other_volume_syncs_once() {
    let [other, fs] = [quiet(), quiet()];
    (0..20).for_each(|_| other.sync().unwrap());
    let sequence = other.sequence();
    create(&fs, ROOT, "f");
    let before = counted(&fs, "syncs");
    fs.sync_through(sequence).unwrap();
    assert_eq!(counted(&fs, "syncs") - before, 1);
    assert!(!fs.is_durable(sequence));
}

/// Contract: durable.write
#[test]
fn sync_open_options_sync_each_write() {
    let volume = super::volume();
    let fs = volume.file_system();
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    for (name, options, syncs) in [
        ("none", options.clone(), 0),
        ("data", options.clone().sync_data(true).clone(), 3),
        ("all", options.clone().sync_all(true).clone(), 3),
        ("off", options.sync_all(true).sync_all(false).clone(), 0),
    ] {
        let mut file = volume.open_with(name, &options).unwrap();
        let before = ["fsyncs", "device_flushes"].map(|counter| counted(fs, counter));
        file.write_all(b"one").unwrap();
        file.write_all_at(&[2; 5000], 3).unwrap();
        file.write_all(b"three").unwrap();
        let after = ["fsyncs", "device_flushes"].map(|counter| counted(fs, counter));
        assert_eq!(after, before.map(|count| count + syncs), "{name}");
    }
}

#[test]
fn fsync_each_returns_result_per_request() {
    let fs = quiet();
    let request = |ino| FsyncRequest {
        ino,
        data_only: false,
    };
    let files = ["a", "b"].map(|name| create(&fs, ROOT, name));
    fs.write(files[1], 0, &[1; 9000], false).unwrap();
    let before = counted(&fs, "device_flushes");
    let outcomes = fs.fsync_each(&[request(files[0]), request(4711), request(files[1])]);
    let outcomes: Vec<_> = outcomes.iter().map(Result::is_ok).collect();
    assert_eq!(outcomes, [true, false, true]);
    assert_eq!(counted(&fs, "device_flushes"), before + 1);
    assert_eq!(cost(&fs, files[1]).entries, 0);
}

/// Copies a device; blocks that contain only the byte `rotten` are damaged in the copy.
fn copied(from: &MemoryDevice, rotten: u8) -> Arc<MemoryDevice> {
    let to = MemoryDevice::new(from.size());
    let mut block = vec![0; 4096];
    for at in (0..from.size()).step_by(block.len()) {
        from.read(at, &mut block).unwrap();
        if block.iter().all(|b| *b == rotten) {
            block.fill(0xaa);
        }
        if block.iter().any(|b| *b != 0) {
            to.write(at, &block).unwrap();
        }
    }
    Arc::new(to)
}

#[test]
fn damaged_old_data_does_not_end_replay() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let fs = quiet_on(device.clone());
    let file = create(&fs, ROOT, "file");
    let old = [[1; 4096], [2; 4096], [3; 4096]].concat();
    fs.write(file, 0, &old, false).unwrap();
    fs.sync().unwrap();
    fs.merge().unwrap();
    // The new extents are adjacent to the rest of the old one; the record contains all three.
    fs.write(file, 4096, &[4; 4096], false).unwrap();
    fs.write(file, 3 * 4096, &[5; 4096], false).unwrap();
    fs.fsync(file, false).unwrap();
    let read = |rotten: u8, block: u64| {
        let again = FileSystem::open_device(copied(&device, rotten), &Options::default()).unwrap();
        let mut bytes = [0; 4096];
        let n = again.read(file, block * 4096, &mut bytes);
        n.ok().map(|n| (n, *bytes.first().unwrap()))
    };
    assert_eq!(read(1, 0), None, "old rot is an error");
    assert_eq!(read(1, 1), Some((4096, 4)));
    assert_eq!(read(1, 3), Some((4096, 5)));
    // Damage in data that no later record confirms as durable cannot be distinguished from data
    // that was never written.
    assert_eq!(read(5, 1), Some((4096, 2)));
}

#[test]
fn fdatasync_ignores_changed_times() {
    let fs = quiet();
    let file = create(&fs, ROOT, "file");
    fs.write(file, 0, &[1; 9000], false).unwrap();
    fs.fsync(file, false).unwrap();
    let touch = SetAttr {
        mtime: Some(SetTime::Now),
        ..SetAttr::default()
    };
    fs.setattr(file, &touch).unwrap();
    assert_eq!(
        cost_of(&fs, file, true),
        Cost {
            inodes: 1,
            ..NOTHING
        }
    );
    fs.write(file, 4096, &[2; 4096], false).unwrap();
    let overwritten = cost_of(&fs, file, true);
    let parts = |cost: Cost| (cost.entries, cost.flushes);
    assert!(overwritten.entries > 0 && overwritten.flushes == 1);
    assert_eq!(parts(cost_of(&fs, file, false)), (1, 1), "the inode");
    fs.write(file, 9000, &[3; 9000], false).unwrap();
    let longer = cost_of(&fs, file, true);
    assert_eq!(longer.flushes, 1);
    assert!(longer.entries >= 2, "an extent, and the inode");
    assert_eq!(parts(cost_of(&fs, file, false)), (0, 0));
}

/// A device that reports the start of writes of length `len`, and blocks them until the test
/// continues.
struct Gate {
    memory: MemoryDevice,
    len: usize,
    ends: Mutex<(Sender<()>, Receiver<()>)>,
}

impl Device for Gate {
    fn size(&self) -> u64 {
        self.memory.size()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.memory.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        if buf.len() == self.len {
            let ends = self.ends.lock().unwrap();
            ends.0.send(()).unwrap();
            ends.1.recv().unwrap();
        }
        self.memory.write(offset, buf)
    }
    fn flush(&self) -> Result<()> {
        self.memory.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.memory.discard(offset, len)
    }
}

#[test]
fn readers_do_not_wait_during_fsync_data_write() {
    let (begins, began) = channel();
    let (goes_on, go_on) = channel();
    let fs = quiet_on(Arc::new(Gate {
        memory: MemoryDevice::new(super::SIZE),
        len: 7 * 4096,
        ends: Mutex::new((begins, go_on)),
    }));
    let file = create(&fs, ROOT, "file");
    fs.write(file, 0, &[5; 7 * 4096], false).unwrap();
    std::thread::scope(|scope| {
        let synced = scope.spawn(|| fs.fsync(file, false));
        began.recv().unwrap();
        assert_eq!(fs.getattr(file).unwrap().size, 7 * 4096);
        let mut data = [0; 4096];
        assert_eq!(fs.read(file, 8192, &mut data).unwrap(), 4096);
        assert_eq!(data, [5; 4096]);
        goes_on.send(()).unwrap();
        synced.join().unwrap().unwrap();
    });
}

#[test]
fn sequences_pass_through_their_numbers() {
    use cairnfs::Sequence;
    let v = super::volume();
    v.write("f", "x").unwrap();
    let before = v.sequence();
    let same = Sequence::from_u64(before.as_u64());
    assert!(!v.is_durable(same));
    v.sync_through(same).unwrap();
    assert!(v.is_durable(before));
    v.sync_through(Sequence::from_u64(u64::MAX)).unwrap();
    assert!(!v.is_durable(Sequence::from_u64(u64::MAX)));
}
