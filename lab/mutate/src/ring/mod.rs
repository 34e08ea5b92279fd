//! Programs that share memory with the daemon of a mount: one writes into its own what arbitrary bytes say, at any
//! moment, and an honest one is served beside it. There is no kernel; the run looks names up in its place.
//!
//! What must hold: no panic, no endless loop, no more open files than a program may have, nothing left in
//! use when the programs have ended; the calls of the honest program are right, nothing of it or of the
//! directories of others has changed, and the volume passes its check.

mod honest;
mod hostile;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Once};
use std::thread;
use std::time::{Duration, Instant};

use cairnfs::fs::{FileSystem, MakeOptions, Options, make_device};
use cairnfs_check::{CheckOptions, check};
use cairnfs_disk::device::MemoryDevice;
use cairnfs_disk::types::{Creds, SetAttr};
use cairnfs_fuse::ops::Ops;
use cairnfs_fuse::options::WriteMode;
use cairnfs_fuse::person::Person;
use cairnfs_fuse::programs::{Durable, Programs};

use self::honest::Honest;
use self::hostile::{Hostile, Script};

const ROOT: u64 = 1;
/// Bytes of the volume.
const SIZE: u64 = 64 << 20;
/// A run that lasts longer does not end.
const LIMIT: Duration = Duration::from_secs(60);
/// Most files that a program may have open.
const MOST_FILES: usize = 1024;
/// The thread that answers programs.
const ANSWERING: &str = "cairnfs-programs";
/// Names of the two directories: the honest program's, which is closed to the other one, and one of all.
const OURS: &[u8] = b"ours";
const THEIRS: &[u8] = b"theirs";

/// What came of the calls of the honest program, and of those that the other one has made.
#[derive(Debug, Default, Clone, Copy)]
pub struct Outcome {
    /// Calls that were done, or will be.
    pub done: u64,
    /// Calls that were left to the kernel.
    pub left: u64,
    /// Entries that the other program has left in its directory.
    pub made: u64,
}

type Result<T> = std::result::Result<T, String>;

/// Panics in threads that answer programs, also those that are caught there.
static PANICS: AtomicUsize = AtomicUsize::new(0);

fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if thread::current().name() == Some(ANSWERING) {
                PANICS.fetch_add(1, Ordering::SeqCst);
            }
            before(info);
        }));
    });
}

/// A mount without a kernel, and its volume.
struct Mount {
    device: Arc<MemoryDevice>,
    fs: Arc<FileSystem>,
    ops: Arc<Ops>,
    programs: Programs,
    ours: u64,
    theirs: u64,
}

/// The ends of a channel that a program has, and those of its connection.
struct Joined {
    memory: OwnedFd,
    doorbell: OwnedFd,
    channel: u64,
    theirs: UnixStream,
}

fn failed(what: &str) -> impl Fn(cairnfs::Error) -> String {
    move |error| format!("{what}: {error}")
}

impl Mount {
    fn new() -> Result<Self> {
        let device = Arc::new(MemoryDevice::new(SIZE));
        let made = make_device(&*device, &MakeOptions::default(), &mut |_, _| {});
        made.map_err(failed("making the volume"))?;
        let options = Options {
            workers: false,
            durability_interval: None,
            ..Options::default()
        };
        let fs = FileSystem::open_device(device.clone(), &options).map_err(failed("opening"))?;
        let dir = |name: &[u8], mode: u32| {
            let dir = fs.mkdir(ROOT, name, 0o755, Creds { uid: 0, gid: 0 })?;
            let mode = SetAttr {
                mode: Some(mode),
                ..SetAttr::default()
            };
            fs.setattr(dir.ino, &mode)?;
            fs.forget(dir.ino, 1);
            Ok(dir.ino)
        };
        let ours = dir(OURS, 0o700).map_err(failed("a directory"))?;
        let theirs = dir(THEIRS, 0o777).map_err(failed("a directory"))?;
        let ops = Arc::new(Ops::new(
            fs.clone(),
            Path::new("hostile"),
            WriteMode::Through,
        ));
        Ok(Self {
            programs: Programs::new(Arc::clone(&ops), Durable::alone(&ops), false),
            device,
            fs,
            ops,
            ours,
            theirs,
        })
    }

    /// A program of this user joins.
    fn join(&self, id: u32, capabilities: &str) -> Result<Joined> {
        let ids = [id; 4].map(|id| id.to_string()).join(" ");
        let status = format!("Uid:\t{ids}\nGid:\t{ids}\nGroups:\t\nCapEff:\t{capabilities}\n");
        let person = Person::of_status(1, &status).ok_or("no person")?;
        let failed = |error: std::io::Error| format!("joining: {error}");
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let joined = self.programs.join(person, ours).map_err(failed)?;
        Ok(Joined {
            memory: joined.memory,
            doorbell: joined.doorbell,
            channel: joined.channel,
            theirs,
        })
    }

    /// The kernel gives a reference back.
    fn forget(&self, node: u64) {
        if let Some(unused) = self.ops.forget(node, 1) {
            self.ops.remove_unused(unused);
        }
    }

    /// The names in a directory, in order.
    fn names(&self, dir: u64) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        let listed = self.fs.readdir(dir, 0, &mut |entry| {
            if !entry.is_dots() {
                names.push(entry.name.to_vec());
            }
            true
        });
        listed.map_err(failed("a listing"))?;
        names.sort();
        Ok(names)
    }

    /// Ends the mount and checks the volume.
    fn end(self) -> Result<()> {
        self.programs.end();
        self.ops.end();
        self.fs.close().map_err(failed("closing"))?;
        let options = CheckOptions { data: true };
        let report = check(&*self.device, &options, &mut |_| {});
        let report = report.map_err(failed("the check fails"))?;
        if report.is_clean() {
            Ok(())
        } else {
            Err(format!("the check finds {:?}", report.findings))
        }
    }
}

fn run(input: &[u8]) -> Result<Outcome> {
    let mount = Mount::new()?;
    let mut honest = Honest::join(&mount)?;
    let mut hostile = Hostile::join(&mount)?;
    let mut script = Script(input);
    while let Some(step) = script.byte() {
        match step >> 4 {
            0..3 => honest.step(&mount, step & 15)?,
            step => hostile.step(&mount, step, &mut script)?,
        }
        let open = mount.fs.inodes_in_use().len();
        if open > 2 * MOST_FILES + 8 {
            return Err(format!("{open} inodes are in use"));
        }
    }
    honest.step(&mount, 0)?;
    hostile.leave(&mount);
    let mut outcome = honest.end(&mount)?;
    // A large file without names is removed by a thread.
    let begin = Instant::now();
    while let in_use = mount.fs.inodes_in_use()
        && !in_use.is_empty()
    {
        if begin.elapsed() > LIMIT / 4 {
            return Err(format!("inodes {in_use:?} are in use when all have ended"));
        }
        thread::yield_now();
    }
    if mount.names(ROOT)? != [OURS, THEIRS] {
        return Err(format!("the root has {:?}", mount.names(ROOT)?));
    }
    outcome.made = mount.names(mount.theirs)?.len() as u64;
    mount.end()?;
    Ok(outcome)
}

/// Runs what the bytes say.
///
/// # Errors
/// What does not hold.
pub fn survives(input: &[u8]) -> Result<Outcome> {
    count_panics();
    let before = PANICS.load(Ordering::SeqCst);
    let (sender, receiver) = channel();
    let input = input.to_vec();
    let started = thread::Builder::new()
        .name("ring".into())
        .spawn(move || sender.send(run(&input)));
    started.map_err(|error| format!("no thread: {error}"))?;
    let outcome = match receiver.recv_timeout(LIMIT) {
        Ok(outcome) => outcome?,
        Err(RecvTimeoutError::Timeout) => return Err("no end within a minute".into()),
        Err(RecvTimeoutError::Disconnected) => return Err("the run has panicked".into()),
    };
    match PANICS.load(Ordering::SeqCst) - before {
        0 => Ok(outcome),
        panics => Err(format!("{panics} panics while programs were answered")),
    }
}
