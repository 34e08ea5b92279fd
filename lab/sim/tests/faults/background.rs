//! Reads fail during writeback, in calls and in the background: only the file concerned is
//! affected.
//!
//! The file has more extents than fit into an index node, and is overwritten where the index has
//! not been read yet. All other files are new, so their writeback reads nothing.
//!
//! Contract: failure.read

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cairnfs::fs::{FileSystem, Options};
use cairnfs::{Error, Result};
use cairnfs_disk::device::Device;
use cairnfs_disk::types::Creds;
use cairnfs_sim::disk::{Fault, Kind, SimDisk};
use cairnfs_sim::record::options;
use cairnfs_sim::tree::{ROOT, Tree};
use cairnfs_sim::workload::{Runner, Step};

use crate::support::{
    Count, Told, Workload, is_failure, long_truncations, reopen, seeds, sound, used,
};

/// The offset in file `x` that is overwritten: its extent is far behind the inode in the index.
const FAR: u64 = 500 * 8192;
const NEW: [u8; 4096] = [7; 4096];

/// A disk that fails all reads of one block for a while: of the block that is read first.
struct FailingReads {
    disk: SimDisk,
    reads_fail: AtomicBool,
    /// The failing block, once it was read.
    place: OnceLock<u64>,
    /// Number of failed reads.
    failed: AtomicU64,
}

impl FailingReads {
    fn new(work: &Workload) -> Arc<Self> {
        Arc::new(Self {
            disk: SimDisk::new(work.start.clone(), false),
            reads_fail: AtomicBool::new(false),
            place: OnceLock::new(),
            failed: AtomicU64::new(0),
        })
    }

    fn allow_reads(&self, allowed: bool) {
        self.reads_fail.store(!allowed, Ordering::SeqCst);
    }

    fn failed(&self) -> u64 {
        self.failed.load(Ordering::SeqCst)
    }
}

impl Device for FailingReads {
    fn size(&self) -> u64 {
        self.disk.size()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if self.reads_fail.load(Ordering::SeqCst) && *self.place.get_or_init(|| offset) == offset {
            self.failed.fetch_add(1, Ordering::SeqCst);
            return Err(Error::Io {
                op: "read",
                offset,
                len: buf.len(),
                source: Arc::new(std::io::Error::other("reads_fail")),
            });
        }
        self.disk.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.disk.write(offset, buf)
    }
    fn flush(&self) -> Result<()> {
        self.disk.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.disk.discard(offset, len)
    }
}

/// A volume on a disk whose reads fail from here on, with data to be written back.
struct Bench {
    device: Arc<FailingReads>,
    fs: Arc<FileSystem>,
    /// The file that cannot be written back.
    x: u64,
    /// The files that can be written back.
    others: [u64; 2],
}

fn bench(options: &Options) -> Bench {
    let device = FailingReads::new(&long_truncations());
    let fs = FileSystem::open_device(device.clone(), options).unwrap();
    // Free space is loaded here too.
    let create = |name: &[u8]| {
        let made = fs.mknod(ROOT, name, 0o100_644, 0, Creds::default());
        made.unwrap().ino
    };
    let others = [create(b"one"), create(b"two")];
    fs.write(others[0], 0, &NEW, false).unwrap();
    fs.sync().unwrap();
    let x = fs.lookup(ROOT, b"x").unwrap().ino;
    device.allow_reads(false);
    // The affected file comes first on every list.
    fs.write(x, FAR, &NEW, false).unwrap();
    for other in others {
        fs.write(other, 4096, &NEW, false).unwrap();
    }
    Bench {
        device,
        fs,
        x,
        others,
    }
}

fn quiet() -> Options {
    options(1)
}

impl Bench {
    fn assert_read_failed<T: std::fmt::Debug>(&self, result: Result<T>) {
        let read_failed = result
            .as_ref()
            .is_err_and(|e| e.to_string().contains("reads_fail"));
        assert!(read_failed, "{result:?}");
        assert!(self.fs.failure().is_none(), "the volume stopped");
    }

    fn flushes(&self) -> u64 {
        let counters = self.fs.counters();
        counters.iter().find(|c| c.0 == "device_flushes").unwrap().1
    }

    /// Checks a power failure: the other files are as written, `x` is if `x_is_new`.
    fn cut(&self, x_is_new: bool) {
        self.device.disk.cut();
        self.found(x_is_new);
    }

    /// Checks the same after a kill.
    fn found(&self, x_is_new: bool) {
        let image = self.device.disk.image();
        sound(&image).unwrap();
        let disk = Arc::new(SimDisk::new(image, false));
        let fs = FileSystem::open_device(disk, &options(9)).unwrap();
        let read = |ino, offset| {
            let mut bytes = [0; 4096];
            fs.read(ino, offset, &mut bytes).unwrap();
            bytes == NEW
        };
        assert_eq!(read(self.x, FAR), x_is_new);
        for other in self.others {
            assert!(read(other, 4096), "inode {other}");
        }
    }
}

#[test]
fn failed_sync_writes_other_files_and_can_be_retried() {
    let bench = bench(&quiet());
    let fs = &bench.fs;
    let point = fs.sequence();
    let before = bench.flushes();
    bench.assert_read_failed(fs.sync());
    assert!(bench.device.failed() > 0 && bench.flushes() > before);
    bench.assert_read_failed(fs.sync_through(point));
    assert!(!fs.is_durable(point));
    bench.found(false);
    bench.device.allow_reads(true);
    fs.sync().unwrap();
    assert!(fs.is_durable(point));
    bench.cut(true);
}

#[test]
fn only_fsync_of_unwritable_file_fails() {
    let bench = bench(&quiet());
    let fs = &bench.fs;
    for _ in 0..2 {
        bench.assert_read_failed(fs.fsync(bench.x, false));
    }
    fs.fsync(bench.others[0], false).unwrap();
    bench.assert_read_failed(fs.fsync_all(&[bench.x, bench.others[1]]));
    bench.found(false);
    bench.device.allow_reads(true);
    fs.fsync(bench.x, false).unwrap();
    bench.cut(true);
}

#[test]
fn writers_of_other_files_get_no_error() {
    let bench = bench(&quiet());
    let fs = &bench.fs;
    bench.assert_read_failed(fs.fsync(bench.x, false));
    // More data than may wait in memory: all files are written back meanwhile.
    for i in 0..48 {
        fs.write(bench.others[0], 4096 * (2 + 16 * i), &[3; 65536], false)
            .unwrap();
    }
    bench.assert_read_failed(fs.fsync(bench.x, false));
    bench.device.allow_reads(true);
    fs.sync().unwrap();
    bench.cut(true);
}

#[test]
fn close_reports_lost_file_every_time() {
    let bench = bench(&quiet());
    let fs = &bench.fs;
    bench.assert_read_failed(fs.close());
    bench.assert_read_failed(fs.close());
    bench.cut(false);
}

#[test]
fn background_writeback_continues_and_retries() {
    let workers = Options {
        workers: true,
        durability_interval: Some(Duration::from_millis(5)),
        ..quiet()
    };
    let bench = bench(&workers);
    let fs = &bench.fs;
    let point = fs.sequence();
    let before = bench.device.failed();
    // Wait until two background rounds failed, or the first one stopped the volume.
    while bench.device.failed() < before + 2 && fs.failure().is_none() {
        std::thread::yield_now();
    }
    assert!(fs.failure().is_none(), "{:?}", fs.failure());
    for other in bench.others {
        fs.fsync(other, false).unwrap();
    }
    assert!(!fs.is_durable(point));
    bench.device.allow_reads(true);
    while !fs.is_durable(point) && fs.failure().is_none() {
        std::thread::yield_now();
    }
    assert!(fs.failure().is_none(), "{:?}", fs.failure());
    bench.cut(true);
}

/// Runs a workload with workers while one read fails; returns whether one did.
fn run(work: &Workload, n: u64) -> bool {
    let disk = Arc::new(SimDisk::new(work.start.clone(), false));
    let workers = Options {
        workers: true,
        durability_interval: Some(Duration::from_millis(1)),
        ..options(4)
    };
    let fs = FileSystem::open_device(disk.clone(), &workers).unwrap();
    let merges = || fs.counters().iter().find(|c| c.0 == "merges").unwrap().1;
    disk.plan(Kind::Read, n, Fault::Error);
    let mut runner = Runner::new(&fs);
    for step in work
        .steps
        .iter()
        .filter(|step| !matches!(step, Step::Merge))
    {
        let result = runner.run(step);
        let failed = result.as_ref().is_err_and(is_failure);
        assert!(!failed || disk.hit().is_some(), "`{step}`: {result:?}");
    }
    let hit = disk.hit().is_some();
    if fs.failure().is_some() {
        assert!(merges() > 0, "stopped though nothing was merged");
        return hit;
    }
    // The background syncs, and retries what failed.
    let point = fs.sequence();
    while !fs.is_durable(point) && fs.failure().is_none() {
        std::thread::yield_now();
    }
    assert!(fs.failure().is_none(), "{:?}", fs.failure());
    let hit = hit || disk.hit().is_some();
    let tree = Tree::read(&fs).or_else(|_| Tree::read(&fs)).unwrap();
    disk.cut();
    sound(&disk.image()).unwrap();
    assert!(reopen(&disk.image()).unwrap() == tree, "after a power cut");
    hit
}

/// Overwrites whole blocks far from each other: the calls read nothing, the writeback does.
fn far_writes() -> Workload {
    let places = (0..500).step_by(100).flat_map(|i| [('x', i), ('y', i)]);
    let write = |(name, i)| format!("write {name} {} 4096", i * 8192);
    Workload {
        name: "far writes".into(),
        steps: places.map(|place| write(place).parse().unwrap()).collect(),
        ..long_truncations()
    }
}

#[test]
fn failed_read_with_workers_does_not_stop_volume() {
    let mut count = Count::default();
    let mut work = vec![far_writes(), long_truncations()];
    work.extend(seeds(1, 3).map(used));
    for work in &work {
        for n in 0..20 {
            let read_failed = Told::new(format!("{}: read {n}", work.name));
            let hit = run(work, n);
            read_failed.well();
            count.add(if hit { "failed" } else { "not so many" }, 1);
        }
    }
    count.print("failed reads beside workers");
}
