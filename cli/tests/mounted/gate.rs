//! A mount served from this process, over a device in memory whose requests a test can hold back.
//!
//! The clients are other threads and processes. While a kind of device request is held, every
//! request that needs one waits at the gate; all other requests are answered.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};

use cairnfs::fs::{FileSystem, MakeOptions, Options, make_device};
use cairnfs_disk::device::{Device, MemoryDevice};
use cairnfs_fuse::adapter::Adapter;
use cairnfs_fuse::ops::Ops;
use cairnfs_fuse::{MountOptions, Serving, Transport};
use tempfile::TempDir;

use crate::place::pattern;

const SIZE: u64 = 64 << 20;

/// Event loops of a [`Mount`].
pub const EVENT_LOOPS: usize = 2;

/// The kind of device requests that the gate holds back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Held {
    Flushes,
    Reads,
    Writes,
}

/// A device in memory with a gate.
pub struct Gate {
    memory: MemoryDevice,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    held: Option<Held>,
    /// Number of waiting requests.
    waiting: usize,
}

impl Gate {
    fn new() -> Self {
        let gate = Self {
            memory: MemoryDevice::new(SIZE),
            state: Mutex::default(),
            changed: Condvar::new(),
        };
        make_device(&gate, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        gate
    }

    /// Starts to hold requests of one kind back.
    pub fn hold(&self, held: Held) {
        self.state.lock().unwrap().held = Some(held);
    }

    /// Releases all requests.
    pub fn open(&self) {
        self.state.lock().unwrap().held = None;
        self.changed.notify_all();
    }

    /// Waits until `count` requests wait at the gate.
    pub fn wait_for(&self, count: usize) {
        let mut state = self.state.lock().unwrap();
        while state.waiting < count {
            state = self.changed.wait(state).unwrap();
        }
    }

    fn pass(&self, kind: Held) {
        let mut state = self.state.lock().unwrap();
        while state.held == Some(kind) {
            state.waiting += 1;
            self.changed.notify_all();
            state = self.changed.wait(state).unwrap();
            state.waiting -= 1;
        }
    }
}

impl Device for Gate {
    fn size(&self) -> u64 {
        self.memory.size()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> cairnfs::Result<()> {
        self.pass(Held::Reads);
        self.memory.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: &[u8]) -> cairnfs::Result<()> {
        self.pass(Held::Writes);
        self.memory.write(offset, buf)
    }
    fn flush(&self) -> cairnfs::Result<()> {
        self.pass(Held::Flushes);
        self.memory.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> cairnfs::Result<()> {
        self.memory.discard(offset, len)
    }
}

/// A mount served by [`EVENT_LOOPS`] event loops of this process.
pub struct Mount {
    pub gate: Arc<Gate>,
    pub fs: Arc<FileSystem>,
    pub serving: Option<Serving>,
    folder: TempDir,
}

impl Mount {
    /// Mounts an empty volume.
    pub fn new() -> Self {
        Self::filled(|_| {})
    }

    /// Mounts a volume that `fill` has filled. None of its contents are cached.
    pub fn filled(fill: impl FnOnce(&FileSystem)) -> Self {
        Self::over(Transport::default(), fill)
    }

    /// Mounts an empty volume whose daemon reports `path` as the path of the volume.
    pub fn telling(path: &Path) -> Self {
        Self::of(|_| {}, path, MountOptions::default())
    }

    /// As [`Mount::filled`], over this transport.
    pub fn over(transport: Transport, fill: impl FnOnce(&FileSystem)) -> Self {
        let options = MountOptions {
            transport,
            ..MountOptions::default()
        };
        Self::with(options, fill)
    }

    /// As [`Mount::filled`], with these options.
    pub fn with(options: MountOptions, fill: impl FnOnce(&FileSystem)) -> Self {
        Self::of(fill, Path::new("cairnfs-test"), options)
    }

    fn of(fill: impl FnOnce(&FileSystem), name: &Path, mount: MountOptions) -> Self {
        let gate = Arc::new(Gate::new());
        let options = Options {
            durability_interval: None,
            keep_written: false,
            ..Options::default()
        };
        let fs = FileSystem::open_device(gate.clone(), &options).unwrap();
        fill(&fs);
        fs.close().unwrap();
        let fs = FileSystem::open_device(gate.clone(), &options).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().canonicalize().unwrap();
        let options = MountOptions {
            threads: Some(EVENT_LOOPS),
            ..mount
        };
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

    /// The mountpoint.
    pub fn dir(&self) -> &Path {
        self.folder.path()
    }

    /// A path in the mount.
    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir().join(name)
    }

    /// The value of one of the engine's counters.
    pub fn counter(&self, name: &str) -> u64 {
        let counters = self.fs.counters();
        counters.iter().find(|(n, _)| *n == name).unwrap().1
    }

    /// Writes a file; the data stays in the kernel's page cache.
    pub fn written(&self, name: &str) -> File {
        let mut file = File::create(self.at(name)).unwrap();
        file.write_all(&pattern(7, 20_000)).unwrap();
        file
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.gate.open();
        if let Some(serving) = self.serving.take() {
            let _ = serving.end();
        }
    }
}
