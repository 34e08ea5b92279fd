//! Snapshots that are made in the middle of other calls.

use std::sync::Arc;

use crate::fs::extents::Extent;
use crate::fs::{FileSystem, MakeOptions, Options, make_device};
use crate::txn::{ForkKind, Unchanged};
use cairnfs_disk::device::{Device, MemoryDevice};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::BLOCK_SIZE;
use cairnfs_disk::sync::Mutex;
use cairnfs_disk::types::{Creds, Fallocate, RenameMode, SetAttr, XattrMode};

const BLOCK: u64 = BLOCK_SIZE as u64;

/// What a device does once, before it reads or writes this block next.
type Before = (u64, Box<dyn FnOnce() + Send>);

/// A device that runs a closure before it reads or writes data.
struct Interrupted {
    memory: MemoryDevice,
    before: Mutex<Option<Before>>,
}

impl Interrupted {
    fn new() -> Arc<Self> {
        let device = Arc::new(Self {
            memory: MemoryDevice::new(64 << 20),
            before: Mutex::default(),
        });
        make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        device
    }

    fn interrupt(&self, offset: u64, len: usize) {
        let blocks = offset / BLOCK..(offset + len as u64) / BLOCK;
        let due = {
            let mut before = self.before.lock();
            before.take_if(|(block, _)| blocks.contains(block))
        };
        if let Some((_, before)) = due {
            before();
        }
    }
}

impl Device for Interrupted {
    fn size(&self) -> u64 {
        self.memory.size()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.interrupt(offset, buf.len());
        self.memory.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.interrupt(offset, buf.len());
        self.memory.write(offset, buf)
    }

    fn flush(&self) -> Result<()> {
        self.memory.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.memory.discard(offset, len)
    }
}

fn options() -> Options {
    Options {
        cache_budget: 8 << 20,
        durability_interval: None,
        workers: false,
        seed: Some(1),
        ..Options::default()
    }
}

/// The extents of a file.
fn extents(fs: &FileSystem, ino: u64) -> Vec<Extent> {
    let inode = fs.inode(ino).unwrap();
    let state = inode.read();
    let found = fs.extents(&inode, &state, 0, u64::MAX, usize::MAX).unwrap();
    found.into_vec()
}

/// A snapshot comes between the write of data into preallocated blocks and the commit of its
/// extents: the blocks belong to the snapshot, so the data gets others.
#[test]
fn unwritten_write_races_snapshot() {
    let device = Interrupted::new();
    let fs = FileSystem::open_device(device.clone(), &options()).unwrap();
    let ino = fs
        .mknod(1, b"f", 0o100_644, 0, Creds::default())
        .unwrap()
        .ino;
    let what = Fallocate::Allocate { keep_size: false };
    fs.fallocate(ino, 0, 4 * BLOCK, what, false).unwrap();
    fs.merge().unwrap();
    let allocated = extents(&fs, ino)[0].block;
    fs.write(ino, BLOCK, &[7; BLOCK_SIZE], false).unwrap();
    let forked = fs.clone();
    let fork = move || forked.core().snapshot("s").unwrap();
    *device.before.lock() = Some((allocated + 1, Box::new(fork)));
    fs.write_back(&fs.inode(ino).unwrap()).unwrap();
    assert!(device.before.lock().is_none(), "no write in place");
    let boundary = fs.items().inherited();
    assert!(boundary > 0);
    let pieces = extents(&fs, ino);
    let written = pieces.iter().find(|e| e.at == 1).unwrap();
    assert!(!written.is_unwritten());
    assert_ne!(written.block, allocated + 1, "the snapshot's block");
    assert!(written.birth > boundary);
    for rest in pieces.iter().filter(|e| e.at != 1) {
        assert!(rest.is_unwritten() && rest.birth <= boundary, "{rest:?}");
    }
    fs.sync().unwrap();
    fs.merge().unwrap();
    let reserved = fs.core().space().reserved();
    assert_eq!(reserved.0, 0, "the page's reservation was returned");
    fs.close().unwrap();
    let snapshot = Options {
        read_only: true,
        root: Some("s".into()),
        ..options()
    };
    let mut bytes = vec![1; 4 * BLOCK_SIZE];
    let kept = FileSystem::open_device(device, &snapshot).unwrap();
    assert_eq!(kept.read(ino, 0, &mut bytes).unwrap(), bytes.len());
    assert!(bytes.iter().all(|b| *b == 0));
}

/// Data of a branch that is replaced before it is committed is not left to the next log record: its
/// block may belong to another file by then.
#[test]
fn staged_write_races_replacement() {
    const SIZE: u64 = 16 << 20;
    let device = Arc::new(MemoryDevice::new(SIZE));
    make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let fs = FileSystem::open_device(device, &options()).unwrap();
    let staged = fs.stage().unwrap();
    let creds = Creds::default();
    let ino = fs.mknod(1, b"f", 0o100_644, 0, creds).unwrap().ino;
    fs.write(ino, 0, &[7; BLOCK_SIZE], false).unwrap();
    let (base, new) = (fs.root_id(), staged.root_id());
    fs.core()
        .publish_names(base, new, "before", Unchanged::default(), || false)
        .unwrap();
    let refused = fs.write_back_staged(&fs.inode(ino).unwrap());
    assert!(matches!(refused, Err(Error::Stale)), "{refused:?}");
    // Reads see what is staged.
    let has_data = |block: &u64| {
        let mut bytes = [0; BLOCK_SIZE];
        let storage = fs.core().storage();
        storage.read(block * BLOCK, &mut bytes).unwrap();
        bytes == [7; BLOCK_SIZE]
    };
    assert_eq!((0..SIZE / BLOCK).find(has_data), None);
}

/// A branch is replaced in the middle of a write, which is refused then: neither tree has it, as nobody
/// has ever been told that it was done.
#[test]
fn refused_write_is_in_no_tree() {
    let device = Interrupted::new();
    let fs = FileSystem::open_device(device.clone(), &options()).unwrap();
    let creds = Creds::default();
    let ino = fs.mknod(1, b"f", 0o100_644, 0, creds).unwrap().ino;
    fs.write(ino, 0, &[7; 4 * BLOCK_SIZE], false).unwrap();
    fs.close().unwrap();
    drop(fs);
    let fs = FileSystem::open_device(device.clone(), &options()).unwrap();
    let staged = fs.stage().unwrap();
    let before = fs.getattr(ino).unwrap();
    let block = extents(&fs, ino)[0].block + 1;
    let replaced = fs.clone();
    let replace = move || replaced.replace_by(&staged, "before", None).unwrap();
    *device.before.lock() = Some((block, Box::new(replace)));
    // It reads the rest of the block, after it has found that the branch can be changed.
    let refused = fs.write(ino, BLOCK, &[9], false);
    assert!(matches!(refused, Err(Error::Stale)), "{refused:?}");
    assert!(device.before.lock().is_none(), "no read of the block");
    for name in ["before", "main"] {
        let tree = fs.open_named(name).unwrap();
        let mut bytes = [0; 4 * BLOCK_SIZE];
        assert_eq!(tree.read(ino, 0, &mut bytes).unwrap(), bytes.len());
        assert!(bytes == [7; 4 * BLOCK_SIZE], "{name}");
        let now = tree.getattr(ino).unwrap();
        assert_eq!(
            (now.mtime, now.ctime),
            (before.mtime, before.ctime),
            "{name}"
        );
    }
    assert_eq!(fs.core().space().reserved().0, 0);
}

/// A write that returned after the write-back of a branch refuses its replacement, and is in the
/// state before after the next attempt; a write into a replaced branch is refused.
/// Contract: replace
#[test]
fn unwritten_data_refuses_replacement() {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let fs = FileSystem::open_device(device, &options()).unwrap();
    let staged = fs.stage().unwrap();
    let creds = Creds::default();
    let ino = fs.mknod(1, b"f", 0o100_644, 0, creds).unwrap().ino;
    fs.write_back_all().unwrap();
    fs.write(ino, 0, &[7; BLOCK_SIZE], false).unwrap();
    let (base, new) = (fs.root_id(), staged.root_id());
    let unwritten = || !fs.root.writeback.close();
    let any = Unchanged::default();
    let refused = fs.core().publish_names(base, new, "before", any, unwritten);
    assert!(matches!(refused, Err(Error::Stale)), "{refused:?}");
    fs.replace_by(&staged, "before", None).unwrap();
    let mut bytes = [0; BLOCK_SIZE];
    let before = fs.open_named("before").unwrap();
    assert_eq!(before.read(ino, 0, &mut bytes).unwrap(), BLOCK_SIZE);
    assert_eq!(bytes, [7; BLOCK_SIZE]);
    // As for a call that began before the replacement.
    let inode = fs.inode(ino).unwrap();
    let late = fs.list_changed(&inode, &mut inode.write());
    assert!(matches!(late, Err(Error::Stale)), "{late:?}");
}

/// A change of another root takes what was committed to a base for a merge that is made later. Until
/// then neither the trees nor the list of dirty inodes tell that the base has changed.
#[test]
fn change_that_waits_for_a_merge_refuses_replacement() {
    for replayed in [false, true] {
        let device = Arc::new(MemoryDevice::new(16 << 20));
        make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        let mut fs = FileSystem::open_device(device.clone(), &options()).unwrap();
        fs.branch("other").unwrap();
        let staged = fs.branch("staged").unwrap();
        let since = fs.root_info().unwrap().parent.unwrap();
        assert_eq!(fs.core().roots().get(staged).unwrap().parent, since);
        fs.merge().unwrap();
        let creds = Creds::default();
        fs.mknod(1, b"late", 0o100_644, 0, creds).unwrap();
        fs.sync().unwrap();
        if replayed {
            std::mem::forget(fs);
            fs = FileSystem::open_device(device, &options()).unwrap();
        }
        fs.open_named("other").unwrap().snapshot("y").unwrap();
        let staged = fs.open_root(staged).unwrap();
        let refused = fs.replace_by(&staged, "before", Some(since));
        assert!(matches!(refused, Err(Error::Stale)), "{refused:?}");
        assert!(fs.lookup(1, b"late").is_ok());
        fs.replace_by(&staged, "before", None).unwrap();
    }
}

/// The step that replaces a base takes the name of the merged branch away, and is refused if that
/// branch has changed since.
/// Contract: replace
#[test]
fn replacement_retires_branch() {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let fs = FileSystem::open_device(device, &options()).unwrap();
    let branch = fs.open_root(fs.branch("x").unwrap()).unwrap();
    let staged = fs.stage().unwrap();
    let equal = || {
        let core = branch.core();
        core.fork_pinned(branch.root_id(), "", ForkKind::Frozen)
            .unwrap()
    };
    let pin = equal();
    let creds = Creds::default();
    branch.mknod(1, b"late", 0o100_644, 0, creds).unwrap();
    let retire = |id| fs.replace_retiring(&staged, "before", None, (Some((&branch, id)), None));
    let refused = retire(pin.id());
    assert!(matches!(refused, Err(Error::Stale)), "{refused:?}");
    assert!(fs.open_named("x").is_ok() && fs.open_named("before").is_err());
    let pin = equal();
    retire(pin.id()).unwrap();
    assert!(fs.open_named("x").is_err() && fs.open_named("before").is_ok());
    let late = branch.mknod(1, b"later", 0o100_644, 0, creds);
    assert!(matches!(late, Err(Error::Stale)), "{late:?}");
}

/// While writers are held, by one or by two, all calls that change files wait; then they go on.
#[test]
fn held_writers_wait() {
    type Named<'a> = (&'a str, &'a dyn Fn() -> Result<(), Error>);
    let device = Arc::new(MemoryDevice::new(16 << 20));
    make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let fs = FileSystem::open_device(device, &options()).unwrap();
    let ino = fs
        .mknod(1, b"f", 0o100_644, 0, Creds::default())
        .unwrap()
        .ino;
    let truncate = SetAttr {
        size: Some(10),
        ..SetAttr::default()
    };
    let punch = Fallocate::PunchHole;
    let creds = Creds::default();
    let make = |name: &[u8]| fs.mknod(1, name, 0o100_644, 0, creds).map(|_| ());
    let mode = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    let replace = RenameMode::Replace;
    let calls: [Named<'_>; 16] = [
        ("write", &|| fs.write(ino, 0, b"x", false).map(|_| ())),
        ("append", &|| fs.append(ino, b"x", false).map(|_| ())),
        ("truncate", &|| fs.setattr(ino, &truncate).map(|_| ())),
        ("extend", &|| fs.extend(ino, 20)),
        ("fallocate", &|| fs.fallocate(ino, 0, 1, punch, false)),
        ("make", &|| make(b"made")),
        ("make a directory", &|| {
            fs.mkdir(1, b"dir", 0o755, creds).map(|_| ())
        }),
        ("make a file without a name", &|| {
            fs.tmpfile(1, 0o100_644, creds).map(|_| ())
        }),
        ("link", &|| fs.link(ino, 1, b"linked").map(|_| ())),
        ("rename", &|| fs.rename(1, b"made", 1, b"moved", replace)),
        ("remove", &|| fs.unlink(1, b"moved")),
        ("set attributes", &|| fs.setattr(ino, &mode).map(|_| ())),
        ("set a value", &|| {
            fs.setxattr(ino, b"user.a", b"1", XattrMode::Set)
        }),
        ("remove a value", &|| fs.removexattr(ino, b"user.a")),
        ("snapshot", &|| fs.snapshot("s")),
        ("branch", &|| fs.branch("b").map(|_| ())),
    ];
    let held = (fs.hold_writers(), fs.hold_writers());
    for (name, call) in calls {
        let (done, waits) = fs.without_waiting(call);
        assert!(
            matches!(done, Err(Error::WouldWait)) && waits.refused,
            "{name}"
        );
    }
    drop(held.0);
    let (done, _) = fs.without_waiting(|| make(b"made"));
    assert!(matches!(done, Err(Error::WouldWait)), "one holder is left");
    fs.sync().unwrap();
    drop(held.1);
    for (name, call) in calls {
        call().unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

/// Flushes of the device that a call takes.
fn flushes(fs: &FileSystem, call: impl FnOnce()) -> u64 {
    let counted = || {
        let counters = fs.core().storage().counters();
        let found = counters.iter().find(|(name, _)| *name == "device_flushes");
        found.unwrap().1
    };
    let before = counted();
    call();
    counted() - before
}

/// A fork flushes the device for its record, and before for data that no flush has covered. The
/// merge that it needs if there were changes shares the flush of the record, and its superblock is
/// left to the next flush.
#[test]
fn fork_takes_one_flush_and_one_for_what_came_before() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let fs = FileSystem::open_device(device, &options()).unwrap();
    let branch = |name: &str| {
        let opened = fs.open_root(fs.branch(name).unwrap()).unwrap();
        assert_eq!(opened.root_info().unwrap().name.as_deref(), Some(name));
    };
    fs.snapshot("first").unwrap();
    fs.merge().unwrap();
    for n in 0..3 {
        let name = format!("unchanged {n}");
        assert_eq!(flushes(&fs, || branch(&name)), 1, "{name}");
    }
    fs.merge().unwrap();
    let creds = Creds::default();
    let make = |n: u64| {
        let name = format!("file {n}");
        let made = fs.mknod(1, name.as_bytes(), 0o100_644, 0, creds);
        made.unwrap().ino
    };
    make(0);
    assert_eq!(flushes(&fs, || branch("names")), 1);
    for n in 1..4 {
        make(n);
        // One more makes the superblock durable that the fork before has left.
        let name = format!("names {n}");
        assert_eq!(flushes(&fs, || branch(&name)), 2, "{name}");
    }
    for n in 4..7 {
        let ino = make(n);
        fs.write(ino, 0, &[7; 3 * BLOCK_SIZE], false).unwrap();
        // The flush of the data does that as well.
        let name = format!("data {n}");
        assert_eq!(flushes(&fs, || branch(&name)), 2, "{name}");
    }
    make(7);
    fs.sync().unwrap();
    assert_eq!(flushes(&fs, || branch("after a sync")), 1);
    assert_eq!(flushes(&fs, || fs.core().settle_merge().unwrap()), 1);
    assert_eq!(flushes(&fs, || fs.core().settle_merge().unwrap()), 0);
    // What only the log has is known, too.
    let last = fs.branch("last").unwrap();
    assert_eq!(fs.space_of(last).unwrap(), 0);
}

/// What chooses a root by its name, and drops it by its id, does not drop it under another name.
#[test]
fn renamed_root_is_not_dropped() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let fs = FileSystem::open_device(device, &options()).unwrap();
    fs.snapshot("a").unwrap();
    let id = fs.core().roots().named("a").unwrap();
    fs.rename_root("a", "b").unwrap();
    for name in ["a", ""] {
        let refused = fs.drop_id(id, name);
        assert!(matches!(refused, Err(Error::NotFound)), "{refused:?}");
    }
    fs.open_named("b").unwrap();
    fs.drop_id(id, "b").unwrap();
}
