//! Volumes with a long log, opened read-only with a small memory budget: the files are the same as
//! after an ordinary recovery, memory stays within the budget, and no byte of the volume is
//! changed.
//!
//! Contract: readonly

use std::fs::{self, File, OpenOptions, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex};

use cairnfs::device::{Device, MemoryDevice};
use cairnfs::fs::{MakeOptions, Options, make_device};
use cairnfs::{Error, Result, Volume};
use cairnfs_disk::format::geometry::SUPERBLOCK_SLOTS;
use cairnfs_disk::format::superblock::RawSuperblock;
use cairnfs_disk::format::{BLOCK_SIZE, NODE_SIZE};

use super::engine::{copy, open_with};

/// The smallest cache budget, in bytes.
const LITTLE: usize = 8 << 20;
/// Maximum bytes of dirty sets that replay may hold with that budget.
const LIMIT: u64 = (LITTLE / 16 * 5) as u64;
/// A cache budget in bytes that exceeds the log's need.
const MUCH: usize = 4 << 30;

const SIZE: u64 = 192 << 20;
/// Number of files that are only in the log, not in the index.
const NEW: usize = 24_000;

/// A volume whose last process was killed, with a log of several MiB that is not merged, over an
/// index that the log changes.
fn killed() -> Arc<MemoryDevice> {
    static KILLED: LazyLock<Arc<MemoryDevice>> = LazyLock::new(|| {
        let device = Arc::new(MemoryDevice::new(SIZE));
        let options = MakeOptions {
            log_size: Some(64 << 20),
            ..MakeOptions::default()
        };
        make_device(&*device, &options, &mut |_, _| {}).unwrap();
        let options = Options {
            cache_budget: MUCH,
            ..Options::default()
        };
        let fs = open_with(device.clone(), options);
        let volume = Volume::from(fs.clone());
        fill(&volume, "old", 3_000);
        fs.merge().unwrap();
        change(&volume, "old", 3_000);
        fill(&volume, "new", NEW);
        change(&volume, "new", NEW);
        volume.sync().unwrap();
        assert!(counter(&volume, "merges") == 1 && volume.info().log_used > 4 << 20);
        // Not dropped, because dropping would merge.
        std::mem::forget((volume, fs));
        device
    });
    copy(&KILLED)
}

fn fill(volume: &Volume, dir: &str, files: usize) {
    volume.create_dir_all(format!("{dir}/moved")).unwrap();
    let label = [b'l'; 200];
    for n in 0..files {
        let name = format!("{dir}/{n}");
        match n % 8 {
            0 => volume.write(&name, vec![n as u8; 3_000]).unwrap(),
            1 => volume.write(&name, n.to_string()).unwrap(),
            _ => drop(volume.create_file(&name).unwrap()),
        }
        if n % 5 == 0 {
            volume.set_xattr(&name, "user.label", label).unwrap();
        }
    }
}

fn change(volume: &Volume, dir: &str, files: usize) {
    for n in 0..files {
        let name = format!("{dir}/{n}");
        match n % 16 {
            3 => volume.remove_file(&name).unwrap(),
            4 => volume.rename(&name, format!("{dir}/moved/{n}")).unwrap(),
            8 => volume.write(&name, vec![!n as u8; 5_000]).unwrap(),
            9 => volume
                .set_permissions(&name, Permissions::from_mode(0o600))
                .unwrap(),
            _ => {}
        }
    }
}

/// A hash of all visible state, and the number of files and directories.
fn tree(volume: &Volume) -> (u64, u64) {
    let mut seen = DefaultHasher::new();
    let mut count = 0;
    let mut dirs = vec!["/".to_owned()];
    while let Some(dir) = dirs.pop() {
        let mut names = super::names(volume, &dir);
        names.sort();
        for name in names {
            let path = format!("{dir}/{name}");
            let found = volume.symlink_metadata(&path).unwrap();
            format!("{path} {:?}", found.attr()).hash(&mut seen);
            volume
                .get_xattr(&path, "user.label")
                .unwrap()
                .hash(&mut seen);
            if found.is_dir() {
                dirs.push(path)
            } else {
                volume.read(&path).unwrap().hash(&mut seen)
            }
            count += 1;
        }
    }
    (seen.finish(), count)
}

/// A device that panics on each write, flush and discard.
struct ReadOnlyDevice {
    device: Arc<MemoryDevice>,
    /// Offsets at which index nodes were read, in bytes.
    nodes: Mutex<Vec<u64>>,
}

impl ReadOnlyDevice {
    fn new(device: Arc<MemoryDevice>) -> Self {
        Self {
            device,
            nodes: Mutex::default(),
        }
    }
}

impl Device for ReadOnlyDevice {
    fn size(&self) -> u64 {
        self.device.size()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if buf.len() == NODE_SIZE {
            self.nodes.lock().unwrap().push(offset);
        }
        self.device.read(offset, buf)
    }
    fn write(&self, _offset: u64, _buf: &[u8]) -> Result<()> {
        unreachable!("a write")
    }
    fn flush(&self) -> Result<()> {
        unreachable!("a flush")
    }
    fn discard(&self, _offset: u64, _len: u64) -> Result<()> {
        unreachable!("a discard")
    }
}

fn read_only(device: Arc<MemoryDevice>, budget: usize) -> Result<Volume> {
    let options = Volume::options().read_only(true).cache_budget(budget);
    options.open_device(Arc::new(ReadOnlyDevice::new(device)))
}

/// The tree hash after ordinary recovery.
fn recovered() -> (u64, u64) {
    static RECOVERED: LazyLock<(u64, u64)> = LazyLock::new(|| {
        let options = Options {
            cache_budget: LITTLE,
            ..Options::default()
        };
        let found = tree(&Volume::from(open_with(killed(), options)));
        assert!(found.1 > NEW as u64);
        found
    });
    *RECOVERED
}

fn counter(volume: &Volume, name: &str) -> u64 {
    let counters = volume.file_system().counters();
    counters.iter().find(|(n, _)| *n == name).unwrap().1
}

/// Bytes of dirty sets, and bytes written to the temporary file.
fn memory_and_file(volume: &Volume) -> (u64, u64) {
    (
        counter(volume, "dirty_bytes"),
        counter(volume, "device_write_bytes"),
    )
}

/// Contract: readonly
#[test]
fn read_only_replay_of_long_log_stays_within_budget() {
    let little = read_only(killed(), LITTLE).unwrap();
    let (dirty, written) = memory_and_file(&little);
    assert!(dirty <= LIMIT, "{dirty} bytes of dirty sets");
    assert!(written > 1 << 20, "{written} bytes in the temporary file");
    assert_eq!(tree(&little), recovered());
    super::fails(
        little.write("new/more", ""),
        std::io::ErrorKind::ReadOnlyFilesystem,
    );
    // With enough memory for the whole log no temporary file is used.
    let much = read_only(killed(), MUCH).unwrap();
    let (dirty, written) = memory_and_file(&much);
    assert!(dirty > 4 * LIMIT && written == 0, "{dirty}, {written}");
    assert_eq!(tree(&much), recovered());
}

/// Copies a device to a sparse file.
fn image(device: &MemoryDevice, path: &Path) {
    let file = File::create_new(path).unwrap();
    file.set_len(device.size()).unwrap();
    let mut chunk = vec![0; 1 << 20];
    for at in (0..device.size()).step_by(chunk.len()) {
        device.read(at, &mut chunk).unwrap();
        if chunk.iter().any(|b| *b != 0) {
            file.write_all_at(&chunk, at).unwrap();
        }
    }
}

fn same_bytes(one: &Path, other: &Path) -> bool {
    let (mut one, mut other) = (File::open(one).unwrap(), File::open(other).unwrap());
    let (mut left, mut right) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let same = one.metadata().unwrap().len() == other.metadata().unwrap().len();
    same && (0..SIZE).step_by(left.len()).all(|_| {
        one.read_exact(&mut left).unwrap();
        other.read_exact(&mut right).unwrap();
        left == right
    })
}

/// Contract: readonly
#[test]
fn read_only_opens_leave_image_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let (path, before) = (dir.path().join("v.cairn"), dir.path().join("before"));
    image(&killed(), &path);
    image(&killed(), &before);
    fs::set_permissions(&path, Permissions::from_mode(0o400)).unwrap();
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    let options = Volume::options().read_only(true).cache_budget(LITTLE);
    let readers: Vec<Volume> = (0..2).map(|_| options.open(&path).unwrap()).collect();
    for reader in readers {
        assert!(memory_and_file(&reader).1 > 0);
        assert_eq!(tree(&reader), recovered());
        reader.sync().unwrap();
        reader.close().unwrap();
    }
    assert!(same_bytes(&path, &before));
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), modified);
    // The readers have released the lock, and the log is still to be replayed.
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    let writer = Volume::options().cache_budget(LITTLE).open(&path).unwrap();
    assert_eq!(tree(&writer), recovered());
}

#[test]
fn truncated_image_is_readable_up_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v.cairn");
    image(&killed(), &path);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(SIZE - (16 << 20)).unwrap();
    let options = Volume::options().read_only(true).cache_budget(LITTLE);
    let volume = options.open(&path).unwrap();
    assert!(memory_and_file(&volume).1 > 0);
    assert_eq!(tree(&volume), recovered());
}

/// A version that does not know the format of free space must not allocate space.
#[test]
fn read_only_replay_does_not_merge_with_unknown_features() {
    let device = killed();
    for block in SUPERBLOCK_SLOTS {
        let mut bytes = vec![0; BLOCK_SIZE];
        device.read(block * BLOCK_SIZE as u64, &mut bytes).unwrap();
        let mut superblock = RawSuperblock::decode(block, &bytes).unwrap();
        superblock.ro_compatible = (1 << 40).into();
        let bytes = superblock.encode();
        device.write(block * BLOCK_SIZE as u64, &bytes).unwrap();
    }
    let volume = read_only(device, LITTLE).unwrap();
    assert_eq!(memory_and_file(&volume).1, 0);
    assert_eq!(tree(&volume), recovered());
}

/// Returns the offset of an index node that is read for files in "old", but not needed to open the
/// volume.
fn node_of_old_files(device: Arc<MemoryDevice>) -> u64 {
    let read_only_device = Arc::new(ReadOnlyDevice::new(device));
    let options = Volume::options().read_only(true).cache_budget(MUCH);
    let volume = options.open_device(read_only_device.clone()).unwrap();
    read_only_device.nodes.lock().unwrap().clear();
    super::names(&volume, "old");
    read_only_device.nodes.lock().unwrap()[1]
}

#[test]
fn damaged_node_fails_only_reads_that_need_it() {
    let device = killed();
    let node = node_of_old_files(device.clone());
    device.write(node, &[0x5a; BLOCK_SIZE]).unwrap();
    // With little memory the log must be merged, and what it has for the node is left out.
    for memory in [MUCH, LITTLE] {
        let volume = read_only(device.clone(), memory).unwrap();
        let left_out = volume.file_system().info().left_out;
        assert_eq!(left_out > 0, memory == LITTLE, "{left_out}");
        if memory == MUCH {
            assert_eq!(super::names(&volume, "new").len(), NEW * 14 / 16 + 1);
        }
        let old = volume
            .read_dir("old")
            .and_then(Iterator::collect::<Result<Vec<_>>>);
        assert!(matches!(old.unwrap_err().cause(), Error::Corrupt(_)));
    }
}
