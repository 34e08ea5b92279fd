//! The channel of this process to each mount. It is made at the first call that needs it, and lasts until
//! the process ends or forks; if it cannot be made, or breaks, the mount is left to the kernel.
//!
//! | From | To | By |
//! |---|---|---|
//! | none | starting | the first call in the mount; other calls meanwhile go to the kernel |
//! | starting | ready | the daemon has given a channel |
//! | starting, ready | off | no daemon, another version, an end of the daemon; or the program closes what it does not know |
//! | any | none | the child after a fork |
//!
//! What is ready stays in its place, so it can be used without a lock.

use std::cell::UnsafeCell;
use std::fmt::Write;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};

use cairnfs_channel::call::{self, ANSWER, Lease, Location, Op, Request, Status, VERSION, Why};
use cairnfs_channel::{Client, Deferred, Gone};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, SeekFrom, openat, seek};
use rustix::io::{Errno, fcntl_dupfd_cloexec, read, retry_on_intr};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, recvmsg, send, socket_with,
};
use rustix::process::{Resource, getpid, getrlimit};

use crate::counters;
use crate::mounts::{self, MOST, Mount, Seen, Text};

const NONE: u32 = 0;
const STARTING: u32 = 1;
const READY: u32 = 2;
const OFF: u32 = 3;

/// Time that the daemon has to give a channel.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(1);

/// Bytes of the longest reply.
const REPLY: usize = (1 + ANSWER) * 8;

/// Bytes of the longest reply with a path that can be opened.
const PATH: usize = 4096;

/// Descriptors of this library have numbers above those of most programs.
const HIGH: i32 = 960;

/// A channel to a mount.
pub struct Session {
    client: Client,
    /// The name of the door in the root of the mount.
    pub door: Text<64>,
    /// The root of the mount.
    pub root: Seen,
    /// The attributes of statx(2) that the kernel tells of inodes in the mount.
    pub attributes: u64,
    /// The table of mounts, and whether it is being looked at.
    table: OwnedFd,
    looks: AtomicBool,
    /// Whether the mount can be written to and has no mounts inside, as the table said last.
    whole: AtomicBool,
    /// Descriptors of this library.
    own: [i32; 3],
}

struct Place {
    state: AtomicU32,
    session: UnsafeCell<MaybeUninit<Session>>,
}

// SAFETY: the session is written by the one that has put the state from none to starting, and read only
// when it is ready, by shared references.
unsafe impl Sync for Place {}

static PLACES: [Place; MOST] = [const {
    Place {
        state: AtomicU32::new(NONE),
        session: UnsafeCell::new(MaybeUninit::uninit()),
    }
}; MOST];

/// The process that is served; 0 if none is any more.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// A word in a page that the kernel empties in a forked child; 1 in the process that is served.
static KEPT: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// Whether another process may have had the memory of this one.
static SHARED: AtomicBool = AtomicBool::new(false);

/// Whether this process is served. One that was forked behind the back of libc is not, nor is one that
/// borrows the memory of its parent.
pub fn is_here() -> bool {
    let process = PROCESS.load(Ordering::Acquire);
    if process == 0 {
        return false;
    }
    // SAFETY: null, or mapped for the rest of the process.
    let kept = unsafe { KEPT.load(Ordering::Acquire).as_ref() };
    match kept {
        Some(kept) if !SHARED.load(Ordering::Acquire) => kept.load(Ordering::Relaxed) == 1,
        _ => process == getpid().as_raw_nonzero().get(),
    }
}

/// The process whose calls are served; 0: none.
fn process() -> u64 {
    let process = PROCESS.load(Ordering::Acquire);
    if is_here() { process as u64 } else { 0 }
}

/// A process is about to be made that borrows the memory of this one.
pub fn is_shared() {
    SHARED.store(true, Ordering::Release);
}

/// Maps the page of [`KEPT`]; without it the kernel is asked for the process.
fn keep() -> Option<()> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let len = size_of::<AtomicU32>();
    // SAFETY: a new mapping, which is never unmapped, and which only its own process has.
    let at = unsafe {
        let at = mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE).ok()?;
        madvise(at, len, Advice::LinuxWipeOnFork).ok()?;
        at
    };
    KEPT.store(at.cast(), Ordering::Release);
    Some(())
}

/// This process is served from now on; 0: none is.
pub fn serve(process: i32) {
    if KEPT.load(Ordering::Acquire).is_null() && process != 0 {
        // Otherwise it is asked for each time.
        let _ = keep();
    }
    // SAFETY: null, or mapped for the rest of the process.
    if let Some(kept) = unsafe { KEPT.load(Ordering::Acquire).as_ref() } {
        kept.store(1, Ordering::Relaxed);
    }
    PROCESS.store(process, Ordering::Release);
}

/// Whether any process with this memory is served.
pub fn is_begun() -> bool {
    PROCESS.load(Ordering::Acquire) != 0
}

/// Ends all channels of this process.
pub fn turn_off() {
    for place in &PLACES {
        place.state.store(OFF, Ordering::Release);
    }
}

/// Forgets the channels of the parent in a child that was forked, and closes their descriptors there, so that
/// the daemon sees the parent's end. Their memory stays: a signal handler may have forked, and return into a call.
///
/// # Safety
/// No other thread uses a channel.
pub unsafe fn forget_all() {
    for place in &PLACES {
        if place.state.swap(NONE, Ordering::AcqRel) == READY {
            // SAFETY: it was ready, and nobody else uses it.
            let session = unsafe { (*place.session.get()).assume_init_ref() };
            session.client.cut_off();
            // SAFETY: they are this library's.
            session
                .own
                .iter()
                .for_each(|fd| unsafe { rustix::io::close(*fd) });
        }
    }
}

/// Whether a descriptor belongs to this library.
pub fn is_own(fd: i32) -> bool {
    fd >= 0
        && is_here()
        && PLACES
            .iter()
            .filter_map(Place::get)
            .any(|s| s.own.contains(&fd))
}

impl Place {
    fn get(&self) -> Option<&Session> {
        if self.state.load(Ordering::Acquire) != READY {
            return None;
        }
        // SAFETY: it is ready.
        Some(unsafe { (*self.session.get()).assume_init_ref() })
    }
}

/// Whether any channel is ready.
pub fn is_any_ready() -> bool {
    let mut states = PLACES.iter().map(|place| &place.state);
    states.any(|state| state.load(Ordering::Acquire) == READY)
}

/// The channel to a mount with this number, if it is ready.
pub fn get(number: usize) -> Option<&'static Session> {
    PLACES.get(number)?.get()
}

/// The channel to a mount, which is made if there has been none.
pub fn get_or_start(number: usize, mount: &Mount) -> Option<&'static Session> {
    let place = PLACES.get(number)?;
    if place.state.load(Ordering::Acquire) == READY {
        return place.get();
    }
    let order = (Ordering::AcqRel, Ordering::Acquire);
    place
        .state
        .compare_exchange(NONE, STARTING, order.0, order.1)
        .ok()?;
    match start(mount) {
        Some(session) => {
            // SAFETY: nobody else has the place while it is starting.
            unsafe { (*place.session.get()).write(session) };
            place.state.store(READY, Ordering::Release);
            place.get()
        }
        None => {
            place.state.store(OFF, Ordering::Release);
            None
        }
    }
}

/// Moves a descriptor away from the numbers that programs use.
fn high(fd: OwnedFd) -> OwnedFd {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let from = HIGH.min(i32::try_from(limit).unwrap_or(HIGH).saturating_sub(32));
    fcntl_dupfd_cloexec(&fd, from.max(3)).unwrap_or(fd)
}

fn open_table() -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let table = openat(CWD, c"/proc/self/mountinfo", flags, Mode::empty());
    table.ok().map(high)
}

fn start(mount: &Mount) -> Option<Session> {
    let mut dir = Text::<4096>::new();
    if !dir.push(mount.dir) {
        return None;
    }
    let (root, attributes) = mounts::see_all(libc::AT_FDCWD, dir.c_str())?;
    if root.device != mount.device {
        return None;
    }
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    for which in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&socket, which, Some(PATIENCE)).ok()?;
    }
    connect(&socket, &SocketAddrUnix::new(mount.socket).ok()?).ok()?;
    ask(&socket, mount)?;
    let (door, memory, doorbell) = hear(&socket)?;
    let (socket, doorbell, table) = (high(socket), high(doorbell), open_table()?);
    let own = [&socket, &doorbell, &table].map(AsRawFd::as_raw_fd);
    let session = Session {
        client: Client::new(memory, doorbell, socket)
            .ok()?
            .of_process(process),
        door,
        root,
        attributes,
        table,
        looks: AtomicBool::new(false),
        whole: AtomicBool::new(false),
        own,
    };
    session.look();
    Some(session)
}

/// The bytes before each message on the socket.
fn head(len: usize) -> [u8; 8] {
    let [a, b, c, d] = (len as u32).to_le_bytes();
    [b'c', b'r', b'n', 1, a, b, c, d]
}

/// Asks for a channel.
fn ask(socket: &OwnedFd, mount: &Mount) -> Option<()> {
    let mut body = Text::<128>::new();
    let (major, minor) = mount.device;
    let request =
        format_args!("{{\"Channel\":{{\"device\":\"{major}:{minor}\",\"version\":{VERSION}}}}}");
    body.write_fmt(request).ok()?;
    let mut frame = Text::<160>::new();
    let fits = frame.push(&head(body.bytes().len())) && frame.push(body.bytes());
    let sent = fits.then(|| send(socket, frame.bytes(), SendFlags::NOSIGNAL));
    (sent?.ok()? == frame.bytes().len()).then_some(())
}

/// Hears the answer: the name of the door, the memory and the doorbell.
fn hear(socket: &OwnedFd) -> Option<(Text<64>, OwnedFd, OwnedFd)> {
    const BEFORE: &[u8] = b"{\"Channel\":{\"door\":\"";
    const BEHIND: &[u8] = b"\"}}";
    let mut bytes = [0; 256];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
    let received = recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC).ok()?;
    let mut descriptors = [None, None];
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(given) = message {
            descriptors
                .iter_mut()
                .zip(given)
                .for_each(|(to, fd)| *to = Some(fd));
        }
    }
    let message = bytes.get(..received.bytes)?;
    let body = message.get(8..)?;
    let door = body.strip_prefix(BEFORE)?.strip_suffix(BEHIND)?;
    let mut name = Text::new();
    let is_whole = message.starts_with(&head(body.len())) && name.push(door);
    let [Some(memory), Some(doorbell)] = descriptors else {
        return None;
    };
    is_whole.then_some((name, memory, doorbell))
}

/// What the daemon has answered.
fn answer(request: &Request<'_>, reply: Option<&[u8]>) -> Result<[u64; ANSWER], Not> {
    match reply.and_then(call::parse_reply) {
        Some((Status::Done, words)) => {
            counters::served(request.op);
            Ok(words)
        }
        Some((Status::NotMine, [why, ..])) => {
            counters::left(Why::of(why).unwrap_or(Why::Call));
            Err(Not::Mine)
        }
        Some((Status::Failed, [errno, ..])) => {
            // Whether a name is there is all that was found out.
            counters::served(Op::StatAt);
            Err(Not::Failed(i32::try_from(errno).unwrap_or(libc::EIO)))
        }
        None => Err(Not::Mine),
    }
}

impl Session {
    /// Asks the daemon. `None`: the kernel is to be asked.
    pub fn call(&self, request: &Request<'_>) -> Result<[u64; ANSWER], Not> {
        let mut reply = [0; REPLY];
        let parts = [&request.head()[..], request.text, request.other];
        let len = self.answered(self.client.call(&parts, &mut reply))?;
        answer(request, reply.get(..len))
    }

    /// As [`Self::call`], with a reply of any length. Returns the words behind the status, as bytes.
    pub fn call_into<'r>(
        &self,
        request: &Request<'_>,
        reply: &'r mut [u8],
    ) -> Result<&'r [u8], Not> {
        let parts = [&request.head()[..], request.text, request.other];
        let len = self.answered(self.client.call(&parts, reply))?;
        let reply = reply.get(..len).unwrap_or_default();
        answer(request, Some(reply))?;
        Ok(reply.get(8..).unwrap_or_default())
    }

    /// As [`Self::call`], for a call that takes long.
    pub fn call_long(&self, request: &Request<'_>) -> Result<[u64; ANSWER], Not> {
        let mut reply = [0; REPLY];
        let called = self.client.call_long(&[&request.head()[..]], &mut reply);
        let len = self.answered(called)?;
        answer(request, reply.get(..len))
    }

    /// As [`Self::call`], for a reply of bytes; returns how many there are.
    pub fn call_for_bytes(&self, request: &Request<'_>, to: &mut [u8]) -> Result<usize, Not> {
        let mut words = [[0; 8]; 2];
        let called = self
            .client
            .call_for_bytes(&[&request.head()[..]], &mut words, to);
        let (len, bytes) = self.answered(called)?;
        let [count, ..] = answer(request, words.as_flattened().get(..len))?;
        Ok(usize::try_from(count).map_or(0, |count| count.min(bytes)))
    }

    /// As [`Self::call`], for a call that cannot fail: it may be carried out later. `done` is what it
    /// returns then.
    pub fn defer(
        &self,
        lease: Lease,
        request: &Request<'_>,
        done: u64,
    ) -> Result<[u64; ANSWER], Not> {
        let mut reply = [0; REPLY];
        let parts = [&request.head()[..], request.text];
        match self.client.defer(lease.epoch, &parts, &mut reply) {
            Ok(Deferred::Accepted) => {
                counters::served(request.op);
                let mut words = [0; ANSWER];
                let [first, ..] = &mut words;
                *first = done;
                Ok(words)
            }
            Ok(Deferred::Answered(len)) => answer(request, reply.get(..len)),
            Err(Gone::NotAsked) => self.call(request),
            Err(Gone::Unanswered) => {
                self.breaks();
                Err(Not::Mine)
            }
        }
    }

    /// Asks the daemon for something of which nobody needs the answer.
    pub fn post(&self, request: &Request<'_>) {
        if self.client.post(&[&request.head(), request.text]) {
            counters::served(request.op);
        } else {
            // There are many deferred calls before it.
            let _ = self.call(request);
        }
    }

    /// What came of a call, if it was answered.
    fn answered<T>(&self, called: Result<T, Gone>) -> Result<T, Not> {
        called.map_err(|_| {
            self.breaks();
            Not::Mine
        })
    }

    /// The daemon does not answer any more, or all slots are taken for a moment.
    fn breaks(&self) {
        let [socket, ..] = self.own;
        // SAFETY: only looked at; if it was closed, that is seen.
        let socket = unsafe { BorrowedFd::borrow_raw(socket) };
        let mut fds = [PollFd::new(&socket, PollFlags::RDHUP)];
        let now = rustix::time::Timespec::default();
        let gone = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR | PollFlags::NVAL;
        if poll(&mut fds, Some(&now)).is_ok() && fds.iter().any(|fd| fd.revents().intersects(gone))
        {
            for place in &PLACES {
                if place.get().is_some_and(|session| ptr::eq(session, self)) {
                    place.state.store(OFF, Ordering::Release);
                }
            }
        }
    }

    /// Whether paths in the mount can be resolved by the daemon: it can be written to, and nothing is
    /// mounted inside.
    pub fn is_whole(&self) -> bool {
        if self.looks.swap(true, Ordering::Acquire) {
            return false;
        }
        let mut fds = [PollFd::new(&self.table, PollFlags::PRI)];
        let now = rustix::time::Timespec::default();
        match retry_on_intr(|| poll(&mut fds, Some(&now))) {
            Ok(0) => {}
            Ok(_) => self.look(),
            Err(_) => self.whole.store(false, Ordering::Relaxed),
        }
        let whole = self.whole.load(Ordering::Relaxed);
        self.looks.store(false, Ordering::Release);
        whole
    }

    /// Reads the table of mounts.
    fn look(&self) {
        let whole = self.read_table().unwrap_or(false);
        self.whole.store(whole, Ordering::Relaxed);
    }

    /// `ID PARENT MAJOR:MINOR ROOT MOUNTPOINT OPTIONS [FIELD...] - TYPE SOURCE SUPEROPTIONS`
    fn read_table(&self) -> Result<bool, Errno> {
        seek(&self.table, SeekFrom::Start(0))?;
        let mut found = false;
        let mut line = Line::default();
        let mut bytes = [0; 2048];
        loop {
            let len = read(&self.table, &mut bytes)?;
            if len == 0 {
                return Ok(found);
            }
            for byte in bytes.get(..len).unwrap_or_default() {
                if *byte != b'\n' {
                    line.add(*byte);
                    continue;
                }
                let Line { id, parent, .. } = line;
                if parent == self.root.mount && id != parent {
                    return Ok(false);
                }
                found |= id == self.root.mount && line.options == *b"rw" && line.begin == *b"rw";
                line = Line::default();
            }
        }
    }
}

/// What matters of a line of the table of mounts.
#[derive(Debug, Default, Clone, Copy)]
struct Line {
    field: usize,
    id: u64,
    parent: u64,
    /// How the options of the mount begin, and the last field.
    options: [u8; 2],
    begin: [u8; 2],
    len: usize,
}

impl Line {
    fn add(&mut self, byte: u8) {
        if byte == b' ' {
            self.field += 1;
            self.len = 0;
            self.begin = [0; 2];
            return;
        }
        let digit = |number: u64| number.wrapping_mul(10).wrapping_add(u64::from(byte & 15));
        match self.field {
            0 => self.id = digit(self.id),
            1 => self.parent = digit(self.parent),
            _ => {}
        }
        if let Some(to) = self.begin.get_mut(self.len) {
            *to = byte;
        }
        self.len += 1;
        if self.field == 5 {
            self.options = self.begin;
        }
    }
}

/// Why a call was not done by the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Not {
    /// The kernel is to be asked.
    Mine,
    /// It fails.
    Failed(i32),
}

/// Asks the daemon of the mount with this number.
pub fn call(number: usize, op: Op, args: [u64; 5], text: &[u8]) -> Result<[u64; ANSWER], Not> {
    let session = get(number).ok_or(Not::Mine)?;
    session.call(&Request::of(op, args, text))
}

/// The path of an open directory, its inode and its offset, by the number of its mount and its own.
pub fn locate(at: usize, dir: u64, to: &mut Text<4096>) -> Result<(u64, u64), Errno> {
    let session = get(at).ok_or(Errno::NOTCONN)?;
    let found = mounts::all().find(|(number, _)| *number == at);
    let (_, mount) = found.ok_or(Errno::NOTCONN)?;
    let request = Request::of(Op::Locate, [dir, 0, 0, 0, 0], &[]);
    let mut reply = [0; PATH];
    let answer = session.call_into(&request, &mut reply);
    let answer = answer.map_err(|_| Errno::STALE)?;
    let found = Location::of(answer).ok_or(Errno::NAMETOOLONG)?;
    let fits = to.push(mount.dir) && to.push(found.path);
    fits.then_some((found.ino, found.offset))
        .ok_or(Errno::NAMETOOLONG)
}

/// Whether a descriptor is of this inode of a mount.
pub fn is_at(number: usize, fd: &OwnedFd, ino: u64) -> bool {
    let root = get(number).map(|session| session.root);
    root.is_some_and(|root| mounts::see(fd.as_raw_fd(), c"") == Some(Seen { ino, ..root }))
}

/// Without a spare descriptor number, that of the table is given up for the time of `what`.
pub fn with_spare<R>(number: usize, what: impl FnOnce() -> R) -> Option<R> {
    let session = get(number)?;
    if session.looks.swap(true, Ordering::Acquire) {
        return None;
    }
    let [.., table] = session.own;
    // SAFETY: it is this library's, and nobody looks at it meanwhile.
    unsafe { rustix::io::close(table) };
    let done = what();
    let again = open_table().map(|new| {
        // SAFETY: the number is free, or the program has just taken it, which is then kept.
        let old = unsafe { BorrowedFd::borrow_raw(table) };
        let free = rustix::io::fcntl_getfd(old).is_err();
        if new.as_raw_fd() == table {
            std::mem::forget(new);
            return true;
        }
        if !free {
            return false;
        }
        // SAFETY: nobody owns the number.
        let mut to = unsafe { <OwnedFd as rustix::fd::FromRawFd>::from_raw_fd(table) };
        let made = rustix::io::dup3(&new, &mut to, rustix::io::DupFlags::CLOEXEC).is_ok();
        std::mem::forget(to);
        made
    });
    let whole = again == Some(true) && session.read_table() == Ok(true);
    session.whole.store(whole, Ordering::Relaxed);
    if again == Some(true) {
        session.looks.store(false, Ordering::Release);
    }
    Some(done)
}
