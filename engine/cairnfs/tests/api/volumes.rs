//! Volumes as a whole: creation, close, reopening.

use std::io::{self, ErrorKind, Write};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cairnfs::device::{Device, MemoryDevice};
use cairnfs::fs::{MakeOptions, make_device};
use cairnfs::{Error, OpenOptions, Result, Volume, VolumeOptions};
use cairnfs_disk::format::BLOCK_SIZE;
use cairnfs_disk::format::geometry::SUPERBLOCK_SLOTS;
use cairnfs_disk::format::superblock::{RENAMED_ENTRIES, RawSuperblock};

use super::engine::{FailingFlushes, ROOT, copy, create, fresh, open};
use super::{SIZE, fails, names, permissions, volume};

fn fill(v: &Volume) {
    v.create_dir_all("a/b").unwrap();
    v.write("a/b/small", b"small").unwrap();
    v.write("a/large", vec![3; 3_000_000]).unwrap();
    v.symlink("b/small", "a/link").unwrap();
    v.set_xattr("a/large", "user.k", b"value").unwrap();
    v.set_permissions("a/b", permissions(0o700)).unwrap();
}

fn check(v: &Volume) {
    assert_eq!(v.read_to_string("a/link").unwrap(), "small");
    assert_eq!(v.read("a/large").unwrap(), vec![3; 3_000_000]);
    assert_eq!(v.get_xattr("a/large", "user.k").unwrap().unwrap(), b"value");
    assert_eq!(v.metadata("a/b").unwrap().mode() & 0o7777, 0o700);
    assert_eq!(names(v, "a"), ["b", "large", "link"]);
}

/// Contract: durable.fsync
#[test]
fn volume_in_file_keeps_contents_when_reopened() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v.cairn");
    fails(Volume::open(&path), ErrorKind::NotFound);
    fails(
        Volume::options().create(true).open(&path),
        ErrorKind::InvalidInput,
    );
    let v = Volume::create(&path, SIZE).unwrap();
    fails(Volume::create(&path, SIZE), ErrorKind::AlreadyExists);
    fill(&v);
    let uuid = v.info().uuid;
    fails(Volume::open(&path), ErrorKind::ResourceBusy);
    v.close().unwrap();
    for _ in 0..3 {
        let v = Volume::options()
            .create(true)
            .size(SIZE)
            .open(&path)
            .unwrap();
        check(&v);
        assert_eq!(v.info().uuid, uuid);
        // Dropping closes as well.
    }
    let v = Volume::options().read_only(true).open(&path).unwrap();
    check(&v);
    assert!(v.is_read_only());
    fails(v.write("new", b""), ErrorKind::ReadOnlyFilesystem);
    fails(v.write("a/b/small", b""), ErrorKind::ReadOnlyFilesystem);
    let mut writing = OpenOptions::new();
    writing.write(true);
    fails(
        v.open_with("a/large", &writing),
        ErrorKind::ReadOnlyFilesystem,
    );
    fails(v.open_with("none", &writing), ErrorKind::NotFound);
    fails(v.remove_dir_all("a"), ErrorKind::ReadOnlyFilesystem);
    fails(v.create_dir("d"), ErrorKind::ReadOnlyFilesystem);
    check(&v);
}

#[test]
fn closed_volume_refuses_all_handles() {
    let v = volume();
    v.write("f", b"x").unwrap();
    let file = v.open_file("f").unwrap();
    let clone = v.clone();
    v.close().unwrap();
    clone.write("g", b"y").unwrap_err();
    clone.read("f").unwrap_err();
    file.read_at(&mut [0], 0).unwrap_err();
    drop(file);
}

#[test]
fn closed_volume_reopens_despite_open_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v.cairn");
    let v = Volume::create(&path, SIZE).unwrap();
    fill(&v);
    let stale = v.open_file("a/large").unwrap();
    v.close().unwrap();
    let v = Volume::open(&path).unwrap();
    drop(stale);
    check(&v);
}

/// A device that, once `failing` is set, fails all reads of the offset that is read first then.
struct FailingReads {
    device: Arc<dyn Device>,
    failing: AtomicBool,
    place: OnceLock<u64>,
}

impl Device for FailingReads {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if self.failing.load(Ordering::SeqCst) && *self.place.get_or_init(|| offset) == offset {
            return Err(Error::Io {
                op: "read",
                offset,
                len: buf.len(),
                source: Arc::new(io::Error::other("injected fault")),
            });
        }
        self.device.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.device.write(offset, buf)
    }

    fn flush(&self) -> Result<()> {
        self.device.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.device.discard(offset, len)
    }
}

/// Contract: failure.read
#[test]
fn each_close_reports_data_that_was_not_written() {
    let options = VolumeOptions::new().durability_interval(None);
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(SIZE));
    let v = options.create_device(device.clone()).unwrap();
    let file = v.create_file("scattered").unwrap();
    // More extents than one index node holds.
    for i in 0..1000 {
        file.write_at(&[1; 4096], i * 8192).unwrap();
    }
    drop(file);
    v.close().unwrap();

    let faulty = Arc::new(FailingReads {
        device: device.clone(),
        failing: AtomicBool::new(false),
        place: OnceLock::new(),
    });
    let v = options.open_device(faulty.clone()).unwrap();
    v.write("other", vec![2; 10_000]).unwrap();
    v.sync().unwrap();
    let writing = OpenOptions::new().write(true).clone();
    let file = v.open_with("scattered", &writing).unwrap();
    faulty.failing.store(true, Ordering::SeqCst);
    file.write_at(&[3; 4096], 900 * 8192).unwrap();
    v.write("late", vec![4; 10_000]).unwrap();
    for _ in 0..2 {
        assert!(file.sync_all().is_err() && v.sync().is_err());
    }
    for v in [v.clone(), v.clone(), v] {
        let error = v.close().unwrap_err();
        assert!(error.to_string().contains("injected fault"), "{error}");
    }
    drop(file);

    let v = options.open_device(device).unwrap();
    assert_eq!(v.read("other").unwrap(), vec![2; 10_000]);
    assert_eq!(v.read("late").unwrap(), vec![4; 10_000]);
    assert_eq!(v.read("scattered").unwrap()[900 * 8192], 1);
}

#[test]
fn volume_on_custom_device_keeps_contents() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(SIZE));
    let options = VolumeOptions::new()
        .label("mine")
        .cache_budget(16 << 20)
        .durability_interval(None)
        .discard(false);
    let v = options.create_device(Arc::clone(&device)).unwrap();
    fill(&v);
    v.close().unwrap();
    let v = options.open_device(device).unwrap();
    check(&v);
    assert_eq!(v.info().label, "mine");
    let space = v.statfs();
    assert!(space.free < space.blocks && space.available <= space.free);
    assert_eq!(space.name_max, 255);
}

/// A custom device that converts errors of `std::io`.
struct Converting {
    memory: MemoryDevice,
    errno: AtomicI32,
}

impl Converting {
    fn fail(&self) -> Result<()> {
        match self.errno.load(Ordering::Relaxed) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno).into()),
        }
    }
}

impl Device for Converting {
    fn size(&self) -> u64 {
        self.memory.size()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.fail()?;
        self.memory.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.fail()?;
        self.memory.write(offset, buf)
    }
    fn flush(&self) -> Result<()> {
        self.fail()?;
        self.memory.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.memory.discard(offset, len)
    }
}

#[test]
fn device_errno_is_reported_as_eio() {
    for errno in [libc::ENOENT, libc::ENOSPC, libc::EROFS, libc::EACCES] {
        let device = Arc::new(Converting {
            memory: MemoryDevice::new(SIZE),
            errno: AtomicI32::new(0),
        });
        let v = Volume::options()
            .size(SIZE)
            .create_device(device.clone())
            .unwrap();
        v.write("f", vec![7; 1 << 20]).unwrap();
        v.close().unwrap();
        let options = Volume::options().durability_interval(None);
        let v = options.open_device(device.clone()).unwrap();
        v.write("g", b"").unwrap();
        device.errno.store(errno, Ordering::Relaxed);
        let failed = v.read("f").unwrap_err();
        assert_eq!(failed.errno(), libc::EIO, "{failed}");
        assert!(failed.to_string().starts_with("f: read of "), "{failed}");
        let failed = v.sync().unwrap_err();
        assert_eq!(failed.errno(), libc::EIO, "{failed}");
    }
}

#[test]
fn drop_of_last_handle_returns_after_volume_is_closed() {
    for round in 0..200 {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(SIZE));
        let options = Volume::options()
            .size(SIZE)
            .durability_interval(Some(Duration::from_millis(1)));
        let v = options.create_device(device.clone()).unwrap();
        // Of different lengths, so that the drop meets the syncs of the interval at any point.
        for i in 0..100 + round {
            v.write(format!("f{i}"), [1; 3000]).unwrap();
        }
        let file = v.open_file("f0").unwrap();
        drop(v);
        drop(file);
        assert_eq!(Arc::strong_count(&device), 1, "round {round}: in use");
    }
}

/// Returns the valid superblocks of a device.
fn superblocks(device: &MemoryDevice) -> impl Iterator<Item = RawSuperblock> {
    SUPERBLOCK_SLOTS.into_iter().filter_map(|block| {
        let mut bytes = vec![0; BLOCK_SIZE];
        let at = block * BLOCK_SIZE as u64;
        device.read(at, &mut bytes).unwrap();
        RawSuperblock::decode(block, &bytes).ok()
    })
}

fn features(device: &MemoryDevice) -> u64 {
    let newest = superblocks(device).max_by_key(|s| s.generation.get());
    newest.unwrap().incompatible.get()
}

#[test]
fn feature_bit_is_set_before_log_needs_it() {
    let device = fresh();
    assert_eq!(features(&device), RENAMED_ENTRIES);
    let fs = open(device.clone());
    create(&fs, "a");
    fs.merge().unwrap();
    fs.rename(ROOT, b"a", ROOT, b"b", cairnfs::RenameMode::Replace)
        .unwrap();
    fs.unlink(ROOT, b"b").unwrap();
    let c = create(&fs, "c");
    fs.sync().unwrap();
    let device = copy(&device);
    for mut superblock in superblocks(&device).collect::<Vec<_>>() {
        superblock.incompatible = 0.into();
        let at = superblock.slot_block() * BLOCK_SIZE as u64;
        device.write(at, &superblock.encode()).unwrap();
    }
    let read_only = Volume::options().read_only(true);
    read_only.open_device(device.clone()).unwrap();
    assert_eq!(features(&device), 0);
    for _ in 0..3 {
        let fs = open(device.clone());
        assert_eq!(features(&device), RENAMED_ENTRIES);
        assert_eq!(fs.lookup(ROOT, b"c").unwrap().ino, c);
        assert!(matches!(fs.lookup(ROOT, b"b"), Err(Error::NotFound)));
        std::mem::forget(fs);
    }
}

#[test]
fn open_for_writing_fails_after_volume_failure() {
    let device = FailingFlushes::new();
    let v = Volume::options().open_device(device.clone()).unwrap();
    let mut file = v.create_file("file").unwrap();
    device.fail();
    file.write_all(b"lost").unwrap();
    file.sync_all().unwrap_err();
    let writing = OpenOptions::new().write(true).clone();
    let refused = v.open_with("file", &writing).err().unwrap();
    assert!(matches!(refused.cause(), Error::Stopped(_)), "{refused}");
    v.open_file("file").unwrap();
}

/// Memory that refuses writes after a number of them.
struct Cut {
    memory: MemoryDevice,
    left: AtomicI32,
}

impl Device for Cut {
    fn size(&self) -> u64 {
        self.memory.size()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.memory.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        if self.left.fetch_sub(1, Ordering::Relaxed) > 0 {
            self.memory.write(offset, buf)
        } else {
            Err(io::Error::other("cut").into())
        }
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.memory.discard(offset, len)
    }
}

#[test]
fn interrupted_creation_leaves_empty_device_or_volume() {
    let options = MakeOptions::default();
    for writes in 0.. {
        let cut = Cut {
            memory: MemoryDevice::new(SIZE),
            left: AtomicI32::new(writes),
        };
        let made = make_device(&cut, &options, &mut |_, _| {});
        let device = Arc::new(cut.memory);
        match make_device(&*device, &options, &mut |_, _| {}) {
            Ok(_) => assert!(made.is_err(), "{writes}"),
            Err(e) => assert!(matches!(e, Error::Exists), "{writes}: {e}"),
        }
        Volume::options().open_device(device).unwrap();
        if made.is_ok() {
            break;
        }
    }
}

#[test]
fn create_takes_file_of_zeros_but_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v.cairn");
    let create = Volume::options().create(true).size(SIZE);
    std::fs::File::create(&path)
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    let v = create.open(&path).unwrap();
    assert_eq!(v.info().size, SIZE);
    v.create_dir("a").unwrap();
    v.close().unwrap();
    assert_eq!(names(&create.open(&path).unwrap(), "/"), ["a"]);
    std::fs::write(&path, "notes").unwrap();
    fails(create.open(&path), ErrorKind::InvalidData);
    assert_eq!(std::fs::read(&path).unwrap(), b"notes");
}
