//! The program that writes into its memory what a script says, and what the kernel does meanwhile.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread;

use cairnfs_channel::call::{NONE, NOW, OMIT, OPENED, Op, Request, WORDS, WRITE_MAX};
use cairnfs_channel::{Layout, SLOTS};

use super::{Joined, Mount, OURS, ROOT, Result, THEIRS};

/// States of a slot.
const ASKED: u32 = 1;
const ANSWERED: u32 = 3;
/// The user.
const ID: u32 = 5;
/// Numbers that are likely to matter.
const NUMBERS: [u64; 20] = [
    0,
    1,
    2,
    3,
    4,
    7,
    24,
    0o100,
    0o777,
    4095,
    65_536,
    1 << 31,
    1 << 40,
    i64::MAX as u64,
    1 << 63,
    OMIT,
    NOW,
    NONE,
    OPENED | 1,
    OPENED | 3,
];
/// Paths that it gives, from the root.
const PATHS: [&[u8]; 16] = [
    b"theirs/a",
    b"theirs/b",
    b"theirs/c",
    b"theirs/d/e",
    b"theirs/d",
    b"theirs/./a//",
    b"theirs",
    b"ours/f1",
    b"ours/f2",
    b"ours",
    b"new",
    b"",
    b"theirs/../ours/f1",
    b"theirs/a\0b",
    &[b'n'; 300],
    b"/",
];
/// The first of them are its own.
const OWN: usize = 6;
/// How often it looks whether a request is taken.
const LOOKS: usize = 20;
/// Lengths of what it writes.
const LENGTHS: [usize; 5] = [0, 1, 9, 5000, WRITE_MAX];

/// What is still to be done.
pub(super) struct Script<'s>(pub &'s [u8]);

impl Script<'_> {
    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte().unwrap_or(0)) % bound
    }

    /// A number: one that is likely to matter, a small one, or any.
    fn word(&mut self) -> u64 {
        match self.byte().unwrap_or(0) {
            byte @ 0..128 => NUMBERS[usize::from(byte) % NUMBERS.len()],
            byte @ 128..224 => u64::from(byte) - 128,
            _ => (0..8).fold(0, |word, _| word << 8 | u64::from(self.byte().unwrap_or(0))),
        }
    }
}

pub(super) struct Hostile {
    memory: OwnedFd,
    doorbell: OwnedFd,
    channel: u64,
    _socket: UnixStream,
    /// References that the kernel has.
    nodes: Vec<u64>,
}

impl Hostile {
    pub fn join(mount: &Mount) -> Result<Self> {
        let Joined {
            memory,
            doorbell,
            channel,
            theirs,
        } = mount.join(ID, "0")?;
        Ok(Self {
            memory,
            doorbell,
            channel,
            _socket: theirs,
            nodes: Vec::new(),
        })
    }

    /// Ends; the kernel forgets what it knows of it.
    pub fn leave(self, mount: &Mount) {
        mount.programs.leave(self.channel);
        self.nodes.into_iter().for_each(|node| mount.forget(node));
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        // The memory does not grow, so what is behind it is refused.
        let _ = rustix::io::pwrite(&self.memory, bytes, at as u64);
    }

    fn put_word(&self, at: usize, word: u64) {
        self.put(at, &word.to_le_bytes());
    }

    fn ring(&self) {
        self.put(Layout::ASLEEP, &[0; 4]);
        // It fails only if it has rung that often.
        let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
    }

    /// One step, which is at least 3 and below 16.
    pub fn step(&mut self, mount: &Mount, step: u8, script: &mut Script<'_>) -> Result<()> {
        match step {
            3 => self.put_word(Layout::PENDING, script.word()),
            4 => self.put_word(Layout::DEFERRED, script.word()),
            5 => self.spoil_slot(script),
            6 => self.spoil_anything(script),
            7..11 => self.request(mount, script),
            11 => {
                let at = [Layout::EPOCH, Layout::ASLEEP, Layout::CROWDED][script.below(3)];
                self.put_word(at, script.word());
            }
            12 => {
                self.put_word(Layout::PENDING, script.word());
                self.put_word(Layout::DEFERRED, script.word());
                self.ring();
            }
            13 => self.kernel(mount, script),
            14 => self.ring(),
            _ if script.below(4) == 0 => {
                let new = Self::join(mount)?;
                std::mem::replace(self, new).leave(mount);
            }
            _ => self.ring(),
        }
        Ok(())
    }

    fn spoil_slot(&self, script: &mut Script<'_>) {
        let slot = Layout::slot(script.below(SLOTS));
        let word = script.word();
        match script.below(3) {
            0 => self.put(slot + Layout::STATE, &(word as u32).to_le_bytes()),
            1 => self.put(slot + Layout::LEN, &(word as u32).to_le_bytes()),
            _ => self.put_word(slot + Layout::TURN, word),
        }
    }

    fn spoil_anything(&self, script: &mut Script<'_>) {
        let at = script.word() as usize % Layout::SIZE;
        let count = script.below(64).min(script.0.len());
        let (bytes, rest) = script.0.split_at(count);
        self.put(at, bytes);
        script.0 = rest;
    }

    /// A request that is one, or nearly.
    fn request(&self, mount: &Mount, script: &mut Script<'_>) {
        let number = script.below(4);
        let slot = Layout::slot(number);
        let op = Op::ALL[script.below(Op::ALL.len())];
        let mut args = [0; 5].map(|_: u64| script.word());
        let by_file = matches!(
            op,
            Op::Write | Op::Truncate | Op::Seek | Op::Stat | Op::FileChmod
        ) || op as u64 > Op::FileChmod as u64;
        // Its own names mostly, from the root; of files, which have small numbers, any.
        let paths = match script.below(4) {
            0 => &PATHS[..],
            _ => &PATHS[..OWN],
        };
        if by_file && script.below(4) > 0 {
            args[0] = 1 + script.below(40) as u64;
        } else if paths.len() == OWN {
            args[0] = ROOT;
        } else if script.below(4) > 0 {
            args[0] = [ROOT, mount.theirs, mount.ours][script.below(3)];
        }
        let long = vec![7; LENGTHS[script.below(LENGTHS.len())]];
        let text = match op {
            Op::Write => &long,
            _ => paths[script.below(paths.len())],
        };
        let other = match op {
            Op::Rename | Op::Symlink => paths[script.below(paths.len())],
            _ => &[],
        };
        let request = Request {
            op,
            args,
            text,
            other,
        };
        let mut head = request.head();
        if script.below(16) == 0 {
            let word = script.below(WORDS);
            head[8 * word..][..8].copy_from_slice(&script.word().to_le_bytes());
        }
        let padding = vec![0; text.len().next_multiple_of(8) - text.len()];
        let bytes = [&head[..], text, &padding, other].concat();
        self.put(slot + Layout::PAYLOAD, &bytes);
        self.put(slot + Layout::LEN, &(bytes.len() as u32).to_le_bytes());
        self.put(slot + Layout::STATE, &ASKED.to_le_bytes());
        let told = match script.below(4) {
            0 => Layout::DEFERRED,
            1 => return,
            _ => Layout::PENDING,
        };
        self.put_word(told, 1 << number);
        self.ring();
        if script.below(2) == 0 {
            self.wait(slot);
        }
    }

    /// Waits for a while for the answer in a slot.
    fn wait(&self, slot: usize) {
        let mut state = [0; 4];
        for _ in 0..LOOKS {
            let read = rustix::io::pread(&self.memory, &mut state, (slot + Layout::STATE) as u64);
            if read != Ok(4) || u32::from_le_bytes(state) == ANSWERED {
                return;
            }
            thread::yield_now();
        }
    }

    /// The kernel looks at what the program has made, or forgets it.
    fn kernel(&mut self, mount: &Mount, script: &mut Script<'_>) {
        // What it may not find is refused.
        let name: &[u8] = [&b"a"[..], b"b", b"c", b"d"][script.below(4)];
        match script.below(6) {
            0 | 1 => {
                let found = mount.ops.lookup(mount.theirs, name).ok().flatten();
                self.nodes.extend(found.map(|found| found.node));
            }
            2 => {
                let found = mount.ops.lookup(ROOT, [THEIRS, OURS][script.below(2)]);
                self.nodes
                    .extend(found.ok().flatten().map(|found| found.node));
            }
            3 => {
                let mut nodes = Vec::new();
                let listed = mount
                    .ops
                    .readdir_plus(mount.theirs, 0, &mut |entry, found| {
                        nodes.extend(found.filter(|_| !entry.is_dots()).map(|found| found.node));
                        true
                    });
                // References were taken also if it has failed later.
                let _ = listed;
                self.nodes.extend(nodes);
            }
            4 => drop(mount.ops.unlink(mount.theirs, name)),
            _ => std::mem::take(&mut self.nodes)
                .into_iter()
                .for_each(|node| mount.forget(node)),
        }
    }
}
