//! A small file system on a real mount, over both transports.
//!
//! Needs root, `/dev/fuse`, and for the ring a kernel that has FUSE over io_uring; a test that lacks
//! one of them says so and ends, or fails with `CAIRNFS_REQUIRE_FUSE=1`.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    unsafe_code,
    reason = "a test fails by panicking; seccomp(2) has no wrapper"
)]

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, Write as _};
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

struct Mounted {
    dir: tempfile::TempDir,
    traffic: Traffic,
    session: Option<JoinHandle<io::Result<()>>>,
    held: Receiver<()>,
    release: Option<Sender<()>>,
}

/// Says what is missing; fails if it is required.
fn skip(what: &str) {
    assert!(
        std::env::var_os("CAIRNFS_REQUIRE_FUSE").is_none(),
        "{what} is required"
    );
    eprintln!("skipped: {what} is missing");
}

/// Permits FUSE over io_uring to mounts that are made from now on. Nothing else changes for them or
/// others.
fn permit_rings() -> bool {
    let parameter = Path::new("/sys/module/fuse/parameters/enable_uring");
    fs::write(parameter, "Y").is_ok()
}

impl Mounted {
    fn new(transport: Transport) -> Option<Self> {
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
            skip("FUSE over io_uring");
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

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn end(&mut self) -> io::Result<()> {
        let _ = unmount(self.dir.path(), UnmountFlags::DETACH);
        self.session.take().map_or(Ok(()), |s| s.join().unwrap())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + n / 251 + seed) as u8).collect()
}

/// Files of many sizes, written, synced, read and listed by several threads.
fn use_files(mounted: &Mounted) {
    let dir = mounted.dir.path();
    thread::scope(|scope| {
        for t in 0..4usize {
            scope.spawn(move || {
                for n in 0..60usize {
                    let bytes = pattern(n * t, n * n * 700);
                    let path = dir.join(format!("file {t} {n}"));
                    fs::write(&path, &bytes).unwrap();
                    File::open(&path).unwrap().sync_all().unwrap();
                    let file = File::open(&path).unwrap();
                    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
                    assert!(fs::read(&path).unwrap() == bytes, "{}", path.display());
                    if n % 3 == 0 {
                        fs::remove_file(&path).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(fs::read_dir(mounted.dir.path()).unwrap().count(), 4 * 40);
}

/// Makes io_uring_setup(2) fail for this thread and the threads that it starts.
fn forbid_io_uring() {
    let statement = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let mut filter = [
        // The number of the system call is the first field of `struct seccomp_data`.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            libc::SYS_io_uring_setup as u32,
            0,
            1,
        ),
        statement(
            libc::BPF_RET | libc::BPF_K,
            libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
            0,
            0,
        ),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: prctl(2) reads the program, which lives during the call.
    let (promised, filtered) = unsafe {
        (
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program),
        )
    };
    assert_eq!(
        (promised, filtered),
        (0, 0),
        "{}",
        io::Error::last_os_error()
    );
}

#[test]
fn files_over_device_where_io_uring_is_forbidden() {
    let tested = thread::spawn(|| {
        forbid_io_uring();
        let Some(mut mounted) = Mounted::new(Transport::Ring) else {
            return;
        };
        use_files(&mounted);
        assert_eq!(mounted.traffic.transport(), "dev");
        mounted.end().unwrap();
    });
    tested.join().unwrap();
}

#[test]
fn lazy_unmount_ends_rings_with_the_last_file() {
    let Some(mut mounted) = Mounted::new(Transport::Ring) else {
        return;
    };
    fs::write(mounted.path("f"), "before").unwrap();
    let mut options = OpenOptions::new();
    let mut file = options
        .read(true)
        .append(true)
        .open(mounted.path("f"))
        .unwrap();
    unmount(mounted.dir.path(), UnmountFlags::DETACH).unwrap();
    file.write_all(b" and after").unwrap();
    file.seek(io::SeekFrom::Start(0)).unwrap();
    assert_eq!(io::read_to_string(&file).unwrap(), "before and after");
    assert!(!mounted.session.as_ref().unwrap().is_finished());
    drop(file);
    mounted.end().unwrap();
}

#[test]
fn forced_unmount_ends_rings_with_requests_in_service() {
    let Some(mut mounted) = Mounted::new(Transport::Ring) else {
        return;
    };
    let file = File::create(mounted.path("stuck")).unwrap();
    let syncing = thread::spawn(move || file.sync_all());
    mounted.held.recv().unwrap();
    unmount(
        mounted.dir.path(),
        UnmountFlags::FORCE | UnmountFlags::DETACH,
    )
    .unwrap();
    let error = syncing.join().unwrap().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ECONNABORTED));
    drop(mounted.release.take());
    mounted.end().unwrap();
}

#[test]
fn files_over_device() {
    let Some(mut mounted) = Mounted::new(Transport::Dev) else {
        return;
    };
    use_files(&mounted);
    assert_eq!(mounted.traffic.transport(), "dev");
    mounted.end().unwrap();
}

#[test]
fn files_over_ring() {
    let Some(mut mounted) = Mounted::new(Transport::Ring) else {
        return;
    };
    use_files(&mounted);
    assert_eq!(mounted.traffic.transport(), "ring");
    mounted.end().unwrap();
}
