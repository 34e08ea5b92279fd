//! A file system in memory, and a real mount of it.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard};
use std::thread::{self, JoinHandle};

use cairnfs_transport::abi::{Attr, AttrOut, EntryOut, StatfsOut};
use cairnfs_transport::reply::{
    Errno, ReplyAttr, ReplyData, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyStatfs,
    ReplyWrite,
};
use cairnfs_transport::request::{NewNode, Setattr, Write};
use cairnfs_transport::session::Traffic;
use cairnfs_transport::{Config, Features, Header, Server, Session, Transport, Wanted};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

type Job = Box<dyn FnOnce() + Send>;

/// Files in one directory, in memory. Fsyncs are answered from another thread; that of a file
/// `stuck` is announced and waits for the end of `release`.
struct Memory {
    files: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
    later: Sender<Job>,
    stuck: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

const DIR: u32 = libc::S_IFDIR | 0o755;
const FILE: u32 = libc::S_IFREG | 0o644;

impl Memory {
    fn new(held: Sender<()>, released: Receiver<()>) -> Self {
        let (later, jobs) = channel::<Job>();
        thread::spawn(move || jobs.iter().for_each(|job| job()));
        Self {
            files: Mutex::default(),
            later,
            stuck: Mutex::new(Some((held, released))),
        }
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Vec<u8>>> {
        self.files.lock().unwrap()
    }

    /// Files are numbered by a hash of their name.
    fn number(name: &[u8]) -> u64 {
        name.iter().fold(2, |n: u64, byte| {
            n.wrapping_mul(31).wrapping_add(u64::from(*byte)) | 2
        })
    }

    fn with<T>(&self, ino: u64, then: impl FnOnce(&mut Vec<u8>) -> T) -> Result<T, Errno> {
        let mut files = self.files();
        let mut found = files
            .iter_mut()
            .filter(|(name, _)| Self::number(name) == ino);
        found
            .next()
            .map(|(_, file)| then(file))
            .ok_or(Errno::ENOENT)
    }

    fn attr(ino: u64, mode: u32, size: u64) -> Attr {
        Attr {
            ino,
            mode,
            size,
            nlink: 1,
            blksize: 4096,
            ..Attr::default()
        }
    }

    fn entry(name: &[u8], size: usize) -> EntryOut {
        let nodeid = Self::number(name);
        EntryOut {
            nodeid,
            attr: Self::attr(nodeid, FILE, size as u64),
            ..EntryOut::default()
        }
    }

    fn get(&self, ino: u64) -> Result<AttrOut, Errno> {
        let attr = match ino {
            1 => Self::attr(1, DIR, 0),
            _ => Self::attr(ino, FILE, self.with(ino, |file| file.len() as u64)?),
        };
        Ok(AttrOut {
            attr,
            ..AttrOut::default()
        })
    }
}

impl Server for Memory {
    fn negotiate(&self, _: &cairnfs_transport::Offer) -> Result<Wanted, String> {
        Ok(Wanted {
            features: Features::NO_OPEN_SUPPORT
                .union(Features::BIG_WRITES)
                .union(Features::DO_READDIRPLUS)
                .union(Features::NO_OPENDIR_SUPPORT),
            max_request: 1 << 20,
            max_background: 64,
            time_granularity: 1,
        })
    }

    fn lookup(&self, _: &Header, name: &[u8], reply: ReplyEntry) {
        match self.files().get(name) {
            Some(file) => reply.entry(&Self::entry(name, file.len())),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, from: &Header, _: bool, reply: ReplyAttr) {
        match self.get(from.ino) {
            Ok(attr) => reply.attr(&attr),
            Err(e) => reply.error(e),
        }
    }

    fn setattr(&self, from: &Header, set: &Setattr, reply: ReplyAttr) {
        if let Some(size) = set.size {
            let _ = self.with(from.ino, |file| file.resize(size as usize, 0));
        }
        self.getattr(from, false, reply);
    }

    fn mknod(&self, _: &Header, new: &NewNode<'_>, reply: ReplyEntry) {
        self.files().insert(new.name.to_vec(), Vec::new());
        reply.entry(&Self::entry(new.name, 0));
    }

    fn unlink(&self, _: &Header, name: &[u8], reply: ReplyEmpty) {
        self.files().remove(name);
        reply.ok();
    }

    fn read(&self, from: &Header, offset: u64, size: u32, reply: ReplyData) {
        reply.fill(size as usize, |room| {
            self.with(from.ino, |file| {
                let rest = file.get(offset as usize..).unwrap_or_default();
                let len = rest.len().min(room.len());
                room[..len].copy_from_slice(&rest[..len]);
                len
            })
        });
    }

    fn write(&self, from: &Header, write: &Write<'_>, reply: ReplyWrite) {
        let written = self.with(from.ino, |file| {
            let begin = write.offset as usize;
            file.resize(file.len().max(begin + write.data.len()), 0);
            file[begin..begin + write.data.len()].copy_from_slice(write.data);
        });
        match written {
            Ok(()) => reply.written(write.data.len() as u32),
            Err(e) => reply.error(e),
        }
    }

    fn fsync(&self, from: &Header, _: bool, reply: ReplyEmpty) {
        if from.ino == Self::number(b"stuck")
            && let Some((held, released)) = self.stuck.lock().unwrap().take()
        {
            let waits = move || {
                held.send(()).unwrap();
                let _ = released.recv();
                reply.ok();
            };
            return self.later.send(Box::new(waits)).unwrap();
        }
        self.later.send(Box::new(|| reply.ok())).unwrap();
    }

    fn readdirplus(&self, _: &Header, offset: u64, mut reply: ReplyDirectoryPlus) {
        for (n, (name, file)) in self.files().iter().enumerate().skip(offset as usize) {
            if !reply.add(n as u64 + 1, name, &Self::entry(name, file.len())) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Header, reply: ReplyStatfs) {
        reply.statfs(&StatfsOut::default());
    }
}

/// A mount in a directory of its own, unmounted when it is dropped.
pub struct Mounted {
    pub dir: tempfile::TempDir,
    pub traffic: Traffic,
    pub session: Option<JoinHandle<io::Result<()>>>,
    pub held: Receiver<()>,
    pub release: Option<Sender<()>>,
}

/// Says what is missing; fails if it is required.
fn skip(what: &str) {
    assert!(
        std::env::var_os("CAIRNFS_REQUIRE_FUSE").is_none(),
        "{what} is required"
    );
    eprintln!("skipped: {what} is missing");
}

/// Permits FUSE over io_uring to mounts that are made from now on, if the kernel has it.
fn permit_rings() -> bool {
    let parameter = Path::new("/sys/module/fuse/parameters/enable_uring");
    parameter.exists() && fs::write(parameter, "Y").is_ok()
}

impl Mounted {
    pub fn new(transport: Transport) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip("root");
            return None;
        }
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        let Ok(device) = device else {
            skip("/dev/fuse");
            return None;
        };
        if transport == Transport::Ring && !permit_rings() {
            eprintln!("skipped: the kernel has no FUSE over io_uring");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let data = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0",
            device.as_raw_fd()
        );
        let data = std::ffi::CString::new(data).unwrap();
        mount("memory", dir.path(), "fuse", MountFlags::empty(), &*data).unwrap();
        let config = Config {
            loops: 2,
            clone_device: true,
            transport,
        };
        let ((holds, held), (release, released)) = (channel(), channel());
        let memory = Memory::new(holds, released);
        let session = Session::new(memory, device.into(), config).unwrap();
        let traffic = session.traffic();
        let session = Some(thread::spawn(move || session.run()));
        Some(Self {
            dir,
            traffic,
            session,
            held,
            release: Some(release),
        })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn end(&mut self) -> io::Result<()> {
        let _ = unmount(self.dir.path(), UnmountFlags::DETACH);
        self.session.take().map_or(Ok(()), |s| s.join().unwrap())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
