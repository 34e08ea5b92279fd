//! Calls that programs defer, by real channels and without a kernel: the test looks names up in its place.
//! Whoever looks at a file or at the whole tree finds every call there that had returned.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use cairnfs::fs::{FileSystem, MakeOptions, Options, make_device};
use cairnfs_channel::call::{
    ANSWER, Lease, NONE, Op, Request, Status, WORDS, WRITE_MAX, Why, parse_reply,
};
use cairnfs_channel::{Client, Deferred, Gone};
use cairnfs_disk::device::MemoryDevice;
use cairnfs_fuse::ops::{self, NewEntry, Ops};
use cairnfs_fuse::options::WriteMode;
use cairnfs_fuse::person::Person;
use cairnfs_fuse::programs::{Durable, Programs};

const ROOT: u64 = 1;
const SUPER: ops::Caller = ops::Caller {
    uid: 0,
    gid: 0,
    pid: 0,
};

struct Stand {
    fs: Arc<FileSystem>,
    ops: Arc<Ops>,
    programs: Programs,
}

/// A program with a channel.
struct Caller {
    client: Client,
    channel: u64,
    _socket: UnixStream,
}

impl Stand {
    fn new(size: u64) -> Self {
        let device = MemoryDevice::new(size);
        make_device(&device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        let fs = FileSystem::open_device(Arc::new(device), &Options::default()).unwrap();
        let ops = Arc::new(Ops::new(
            Arc::clone(&fs),
            Path::new("test"),
            WriteMode::Through,
        ));
        let programs = Programs::new(Arc::clone(&ops), Durable::alone(&ops), false);
        Self { fs, ops, programs }
    }

    fn join(&self) -> Caller {
        let status = "Uid:\t0 0 0 0\nGid:\t0 0 0 0\nGroups:\t\nCapEff:\t1f\n";
        let person = Person::of_status(1, status).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let joined = self.programs.join(person, ours).unwrap();
        let socket = theirs.try_clone().unwrap();
        let client = Client::new(joined.memory, joined.doorbell, OwnedFd::from(theirs)).unwrap();
        Caller {
            client,
            channel: joined.channel,
            _socket: socket,
        }
    }

    /// As the kernel does.
    fn look_up(&self, dir: u64, name: &str) -> u64 {
        let found = self.ops.lookup(dir, name.as_bytes()).unwrap();
        found.unwrap().node
    }

    fn len(&self, node: u64) -> u64 {
        self.ops.getattr(node, false).unwrap().size
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        self.programs.end();
    }
}

/// A file that a program has made.
#[derive(Clone, Copy)]
struct Made {
    number: u64,
    lease: Option<Lease>,
}

/// The head of a request with one text.
fn head(op: Op, args: [u64; 5], text: &[u8]) -> [u8; WORDS * 8] {
    let other: &[u8] = &[];
    let request = Request {
        op,
        args,
        text,
        other,
    };
    request.head()
}

impl Caller {
    fn call(&self, op: Op, args: [u64; 5], text: &[u8]) -> Result<[u64; ANSWER], Why> {
        let mut reply = [0; 200];
        let parts = [&head(op, args, text)[..], text];
        let len = self.client.call(&parts, &mut reply);
        answer(&reply[..len.unwrap()])
    }

    /// Makes a file or directory durable.
    fn sync(&self, number: u64) -> Result<(), Why> {
        let mut reply = [0; 200];
        let request = head(Op::Sync, [number, 0, 0, 0, 0], &[]);
        let len = self.client.call_long(&[&request], &mut reply).unwrap();
        answer(&reply[..len]).map(drop)
    }

    fn create(&self, name: &str) -> Made {
        let args = [ROOT, libc::O_RDWR as u64, 0o666, 0o022, 0];
        let [number, lease, ..] = self.call(Op::Create, args, name.as_bytes()).unwrap();
        let lease = Lease::of(lease);
        Made { number, lease }
    }

    /// As a program does: deferred if possible. False if the kernel is to be asked.
    fn write(&self, file: Made, bytes: &[u8]) -> bool {
        match self.change(file, Op::Write, NONE, bytes) {
            Ok(None) => true,
            Ok(Some(len)) => {
                assert_eq!(len, bytes.len() as u64);
                true
            }
            Err(why) => {
                assert_eq!(why, Why::Known);
                false
            }
        }
    }

    /// Changes a file. `None`: it is deferred; otherwise the first word of the answer.
    fn change(&self, file: Made, op: Op, arg: u64, text: &[u8]) -> Result<Option<u64>, Why> {
        let args = [file.number, arg, 0, 0, 0];
        let parts = [&head(op, args, text)[..], text];
        let mut reply = [0; 200];
        let deferred = match file.lease {
            Some(lease) => self.client.defer(lease.epoch, &parts, &mut reply),
            None => Err(Gone::NotAsked),
        };
        let [first, ..] = match deferred {
            Ok(Deferred::Accepted) => return Ok(None),
            Ok(Deferred::Answered(len)) => answer(&reply[..len])?,
            Err(_) => self.call(op, args, text)?,
        };
        Ok(Some(first))
    }
}

fn answer(reply: &[u8]) -> Result<[u64; ANSWER], Why> {
    match parse_reply(reply).unwrap() {
        (Status::Done, words) => Ok(words),
        (Status::NotMine, [why, ..]) => Err(Why::of(why).unwrap()),
        (Status::Failed, [errno, ..]) => panic!("failed with {errno}"),
    }
}

/// A program writes to file after file, each until `looks` has had the kernel look at it. Then the file has
/// as many bytes as writes have returned, and gets no further ones by the channel.
fn files_are_whole(stand: &Stand, looks: impl Fn(u64) -> Option<u64>) {
    let program = stand.join();
    for round in 0..200 {
        // The kernel keeps a listing, so files are made by it in a directory that was listed.
        let dir = format!("d{round}");
        let args = [ROOT, 0o777, 0, 0, 0];
        program.call(Op::Mkdir, args, dir.as_bytes()).unwrap();
        let dir_node = stand.look_up(ROOT, &dir);
        let file = program.create(&format!("{dir}/f"));
        assert!(file.lease.is_some());
        let returned = AtomicU64::new(0);
        let (returned, program) = (&returned, &program);
        let node = thread::scope(|scope| {
            scope.spawn(move || {
                for n in 1..=400 {
                    if !program.write(file, b"12345678") {
                        return;
                    }
                    returned.store(n, Ordering::SeqCst);
                }
            });
            while returned.load(Ordering::SeqCst) < round % 20 {
                thread::yield_now();
            }
            let before = returned.load(Ordering::SeqCst);
            let node = looks(dir_node);
            if let Some(node) = node {
                assert!(stand.len(node) >= before * 8);
            }
            node
        });
        let node = node.unwrap_or_else(|| stand.look_up(dir_node, "f"));
        let written = returned.load(Ordering::SeqCst) * 8;
        assert_eq!(stand.len(node), written, "{dir}");
        program
            .call(Op::Close, [file.number, 0, 0, 0, 0], &[])
            .unwrap();
        stand.ops.forget(node, 9);
    }
}

#[test]
pub(crate) fn a_file_that_is_looked_up_has_all_that_was_written() {
    let stand = Stand::new(64 << 20);
    files_are_whole(&stand, |dir| Some(stand.look_up(dir, "f")));
}

#[test]
pub(crate) fn a_file_that_is_listed_has_all_that_was_written() {
    let stand = Stand::new(64 << 20);
    files_are_whole(&stand, |dir| {
        let mut node = None;
        let listed = stand.ops.readdir_plus(dir, 0, &mut |entry, found| {
            if entry.name == b"f" {
                node = found.map(|found| found.node);
            }
            true
        });
        listed.unwrap();
        node
    });
}

/// What was deferred is done in the order of the calls, and before a call of another program.
#[test]
fn another_program_finds_what_was_deferred() {
    let stand = Stand::new(64 << 20);
    let programs = [stand.join(), stand.join()];
    for round in 0..300u64 {
        let [one, other] = &programs;
        let (one, other) = if round % 2 == 0 {
            (one, other)
        } else {
            (other, one)
        };
        let name = format!("f{round}");
        let file = one.create(&name);
        for n in 0..round % 30 {
            assert!(one.write(file, &n.to_le_bytes()));
        }
        one.change(file, Op::FileChmod, 0o640, &[]).unwrap();
        let mode = [ROOT, 0o600, 0, 0, 0];
        other.call(Op::Chmod, mode, name.as_bytes()).unwrap();
        let moved = format!("moved-{round}");
        let args = [ROOT, ROOT, 0, 0, 0];
        let request = Request {
            op: Op::Rename,
            args,
            text: name.as_bytes(),
            other: moved.as_bytes(),
        };
        let padding = vec![0; name.len().next_multiple_of(8) - name.len()];
        let text = [name.as_bytes(), &padding].concat();
        let mut reply = [0; 200];
        let parts = [&request.head()[..], &text, moved.as_bytes()];
        let len = other.client.call(&parts, &mut reply).unwrap();
        answer(&reply[..len]).unwrap();
        let found = stand.ops.lookup(ROOT, moved.as_bytes()).unwrap().unwrap();
        let mut bytes = vec![0; 1000];
        let len = stand.ops.read(found.node, 0, &mut bytes).unwrap();
        let written: Vec<u8> = (0..round % 30).flat_map(u64::to_le_bytes).collect();
        assert_eq!(&bytes[..len], written);
        assert_eq!(found.attr.mode & 0o777, 0o600);
        stand.ops.forget(found.node, 1);
    }
}

/// What a program has deferred that ends without a word is carried out.
#[test]
fn a_program_that_ends_leaves_what_had_returned() {
    let stand = Stand::new(64 << 20);
    for round in 0..100 {
        let name = format!("f{round}");
        let program = stand.join();
        let file = program.create(&name);
        for _ in 0..round % 20 {
            assert!(program.write(file, b"12345678"));
        }
        let channel = program.channel;
        drop(program);
        stand.programs.leave(channel);
        let found = stand.ops.lookup(ROOT, name.as_bytes()).unwrap().unwrap();
        assert_eq!(found.attr.size, round % 20 * 8);
    }
}

/// What looks at the whole tree without the kernel, as a fork does, finds all that had returned.
#[test]
pub(crate) fn what_had_returned_is_finished_before_the_tree_is_looked_at() {
    let stand = Stand::new(64 << 20);
    let program = stand.join();
    for round in 0..200 {
        let name = format!("f{round}");
        let file = program.create(&name);
        for _ in 0..round % 8 + 1 {
            assert!(program.write(file, b"12345678"));
        }
        stand.ops.finish_deferred();
        let found = stand.fs.lookup(ROOT, name.as_bytes()).unwrap();
        assert_eq!(found.size, (round % 8 + 1) * 8);
        stand.fs.forget(found.ino, 1);
        program
            .call(Op::Close, [file.number, 0, 0, 0, 0], &[])
            .unwrap();
    }
}

/// Writes are accepted only if there is space: none that had returned is missing from a full volume.
#[test]
pub(crate) fn a_full_volume_refuses_and_loses_nothing() {
    let stand = Stand::new(16 << 20);
    let program = stand.join();
    let (bytes, mut files) = (vec![7; WRITE_MAX], 0);
    'full: loop {
        let name = format!("f{files}");
        let args = [ROOT, libc::O_RDWR as u64, 0o666, 0o022, 0];
        let Ok([number, lease, ..]) = program.call(Op::Create, args, name.as_bytes()) else {
            break;
        };
        let lease = Lease::of(lease);
        let file = Made { number, lease };
        let mut written = 0;
        for _ in 0..4 {
            if file.lease.is_none() {
                let args = [number, NONE, 0, 0, 0];
                match program.call(Op::Write, args, &bytes) {
                    Ok([len, ..]) if len == bytes.len() as u64 => written += len,
                    _ => break 'full,
                }
            } else if program.write(file, &bytes) {
                written += bytes.len() as u64;
            }
        }
        let found = stand.ops.lookup(ROOT, name.as_bytes()).unwrap().unwrap();
        assert_eq!(found.attr.size, written);
        program.call(Op::Close, [number, 0, 0, 0, 0], &[]).unwrap();
        files += 1;
    }
    assert!(files > 20, "{files}");
    assert!(stand.ops.sync().is_ok());
}

/// Fsyncs of many threads are answered, each behind what was deferred on its file, and other calls meanwhile.
#[test]
fn files_are_made_durable_while_others_are_served() {
    let stand = Stand::new(64 << 20);
    let (caller, other) = (stand.join(), stand.join());
    thread::scope(|scope| {
        for thread in 0..6 {
            let caller = &caller;
            scope.spawn(move || {
                for n in 0..20 {
                    let file = caller.create(&format!("{thread}-{n}"));
                    assert!(caller.write(file, b"durable"));
                    caller.sync(file.number).unwrap();
                    let args = [file.number, 0, 0, 0, 0];
                    caller.call(Op::Close, args, &[]).unwrap();
                }
            });
        }
        for n in 0..200 {
            other.create(&format!("other {n}"));
        }
    });
    let dir = caller.call(Op::Mkdir, [ROOT, 0o777, 0, 0, 0], b"d");
    dir.unwrap();
    let [dir, ..] = caller.call(Op::OpenDir, [ROOT, 0, 0, 0, 0], b"d").unwrap();
    assert_eq!(caller.sync(dir), Ok(()));
    // The kernel may have data of a file that it knows.
    let file = caller.create("known");
    stand.look_up(ROOT, "known");
    assert_eq!(caller.sync(file.number), Err(Why::Known));
    assert_eq!(caller.sync(77), Err(Why::Call));
}

/// A file with deferred writes goes to the kernel by way of another program that has opened it: they are there,
/// and its maker asks the kernel from then on.
#[test]
fn a_lease_ends_when_another_program_hands_the_file_to_the_kernel() {
    let stand = Stand::new(64 << 20);
    let (maker, other) = (stand.join(), stand.join());
    for n in 0..50 {
        let name = format!("f{n}");
        let file = maker.create(&name);
        assert!(maker.write(file, b"before"));
        let args = [ROOT, libc::O_RDWR as u64, 0, 0, 0];
        let [opened, ..] = other.call(Op::Open, args, name.as_bytes()).unwrap();
        assert!(maker.write(file, b" and behind"));
        other.call(Op::Leave, [opened, 0, 0, 0, 0], &[]).unwrap();
        assert!(maker.write(file, b", left"));
        let door = stand.look_up(ROOT, stand.ops.door());
        let name = opened.to_string();
        let new = NewEntry {
            caller: SUPER,
            dir: door,
            name: name.as_bytes(),
            mode: 0o100_600,
            umask: 0,
        };
        let node = stand.ops.mknod(new, 0).unwrap().node;
        assert_eq!(stand.len(node), 23);
        assert!(!maker.write(file, b"lost"));
        assert_eq!(stand.len(node), 23);
    }
}
