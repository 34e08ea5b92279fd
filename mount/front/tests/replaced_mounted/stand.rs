//! A branch that is mounted by the test's process, a shell in it, and what is asked of both.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cairnfs::{PublishOptions, Published, Volume};
use cairnfs_fuse::adapter::Adapter;
use cairnfs_fuse::ops::Ops;
use cairnfs_fuse::options::WriteMode;
use cairnfs_fuse::{MountOptions, Sessions, Transport, session};
use tempfile::TempDir;

/// Whether this machine can mount, over the wanted transport.
pub fn able(transport: Transport) -> bool {
    let required = std::env::var_os("CAIRNFS_REQUIRE_FUSE").is_some_and(|v| v == "1");
    let device = File::options().read(true).write(true).open("/dev/fuse");
    let can = rustix::process::geteuid().is_root() && device.is_ok();
    assert!(can || !required, "root or /dev/fuse is missing");
    let rings = "/sys/module/fuse/parameters/enable_uring";
    can && (transport != Transport::Ring || fs::write(rings, "Y").is_ok())
}

/// Calls `test` with each way of mounting that this machine has.
pub fn each_way(test: impl Fn(WriteMode, Transport)) {
    for transport in [Transport::Dev, Transport::Ring] {
        for write in [WriteMode::Through, WriteMode::Back] {
            if able(transport) {
                test(write, transport);
            }
        }
    }
}

/// The branch `main` of a volume, mounted by this process.
pub struct Mount {
    pub volume: Volume,
    pub sessions: Arc<Sessions>,
    pub ops: Arc<Ops>,
    pub folder: TempDir,
}

impl Mount {
    pub fn new((write, transport): (WriteMode, Transport), fill: impl FnOnce(&Volume)) -> Self {
        let main = Volume::in_memory(256 << 20).unwrap();
        fill(&main);
        let volume = main.branch("aside").unwrap();
        drop(main);
        let fs = volume.file_system().open_named("main").unwrap();
        let tree = Some(u64::from(fs.root_id()));
        let options = MountOptions {
            threads: Some(2),
            transport,
            write,
            ..MountOptions::default()
        };
        let ops = Arc::new(Ops::new(fs, Path::new("cairnfs-test"), write));
        let adapter = Adapter::new(Arc::clone(&ops), &options);
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().canonicalize().unwrap();
        let sessions = Arc::<Sessions>::default();
        let source = Path::new("cairnfs-test");
        session::begin(&sessions, adapter, source, &dir, &options, tree).unwrap();
        Self {
            volume,
            sessions,
            ops,
            folder,
        }
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    pub fn open(&self, path: &str) -> File {
        let mut options = File::options();
        options.read(true).write(true).open(self.at(path)).unwrap()
    }

    pub fn main(&self) -> Volume {
        self.volume.open_branch("main").unwrap()
    }

    pub fn work(&self, name: &str) -> Volume {
        self.sessions.fetch("main").unwrap();
        self.main().branch(name).unwrap()
    }

    pub fn replacing<R>(&self, change: impl FnOnce() -> R) -> R {
        self.sessions.fetch("main").unwrap();
        let (result, followed) = self.sessions.replacing("main", &[], change);
        followed.unwrap();
        result
    }

    pub fn publish(&self, work: Volume) -> Published {
        self.try_publish(work).unwrap()
    }

    pub fn try_publish(&self, work: Volume) -> cairnfs::Result<Published> {
        let name = work.name().unwrap();
        drop(work);
        let options = PublishOptions::default();
        self.replacing(|| self.volume.publish(&name, &options))
    }

    pub fn restore(&self, reference: &str) -> String {
        self.replacing(|| self.volume.restore(reference, "main", &[]).unwrap())
    }

    /// Makes the kernel forget what is not in use, until no node is bound to a replaced tree and none
    /// has an id apart.
    pub fn forget_all(&self) {
        for _ in 0..200 {
            fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
            if self.ops.bound_nodes() == 0 {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        panic!("{} nodes are left", self.ops.bound_nodes());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.sessions.end_all();
        let _ = self.sessions.wait();
    }
}

/// A shell in a directory.
pub struct Shell {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Shell {
    pub fn new(dir: &Path) -> Self {
        let mut child = Command::new("sh")
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, answers }
    }

    /// Runs a command that writes one line.
    pub fn run(&mut self, command: &str) -> String {
        let stdin = self.child.stdin.as_mut().unwrap();
        writeln!(stdin, "{command}").unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

pub fn is_missing(path: &Path) -> bool {
    fs::metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// Whether a change was refused through what is open of a file of before. With `write=back` another call
/// may have met the error first.
pub fn is_refused(result: std::io::Result<()>) -> bool {
    let errors = [Some(libc::ESTALE), Some(libc::EIO)];
    result.is_err_and(|error| errors.contains(&error.raw_os_error()))
}

pub fn is_stale<T>(result: std::io::Result<T>) -> bool {
    result.is_err_and(|error| error.raw_os_error() == Some(libc::ESTALE))
}
