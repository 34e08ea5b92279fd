//! The honest program: its calls, what must come of them, and the kernel's view of its files.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use cairnfs_channel::call::{ANSWER, Lease, NONE, Op, Request, Stat, Status, Why, parse_reply};
use cairnfs_channel::{Client, Deferred};

use super::{Joined, Mount, OURS, Outcome, Result, failed};

/// Most files that it has open.
const OPEN: usize = 6;

/// A file that it has made: what it must be.
struct Made {
    name: Vec<u8>,
    number: u64,
    lease: Option<Lease>,
    contents: Vec<u8>,
    mode: u64,
}

pub(super) struct Honest {
    client: Client,
    channel: u64,
    open: Vec<Made>,
    /// Names and contents of those that it has closed.
    closed: BTreeMap<Vec<u8>, (Vec<u8>, u64)>,
    names: u64,
    outcome: Outcome,
}

/// A file by its name in the directory.
fn path(name: &[u8]) -> Vec<u8> {
    [OURS, b"/", name].concat()
}

impl Honest {
    pub fn join(mount: &Mount) -> Result<Self> {
        let Joined {
            memory,
            doorbell,
            channel,
            theirs,
        } = mount.join(0, "1f")?;
        let client = Client::new(memory, doorbell, OwnedFd::from(theirs));
        Ok(Self {
            client: client.map_err(|error| error.to_string())?,
            channel,
            open: Vec::new(),
            closed: BTreeMap::new(),
            names: 0,
            outcome: Outcome::default(),
        })
    }

    /// Makes a call, deferred with a lease if possible. `None`: it is the kernel's, which is not asked.
    fn call(
        &mut self,
        request: &Request<'_>,
        lease: Option<Lease>,
    ) -> Result<Option<[u64; ANSWER]>> {
        let padding = vec![0; request.text.len().next_multiple_of(8) - request.text.len()];
        let text = [request.text, &padding].concat();
        let head = request.head();
        let parts = [&head[..], &text, request.other];
        let mut reply = [0; 200];
        let deferred = lease.map(|lease| self.client.defer(lease.epoch, &parts, &mut reply));
        let len = match deferred {
            Some(Ok(Deferred::Accepted)) => {
                self.outcome.done += 1;
                return Ok(Some([request.text.len() as u64; ANSWER]));
            }
            Some(Ok(Deferred::Answered(len))) => len,
            None | Some(Err(_)) => {
                let called = self.client.call(&parts, &mut reply);
                called.map_err(|gone| format!("{:?}: {gone}", request.op))?
            }
        };
        match parse_reply(reply.get(..len).unwrap_or_default()) {
            Some((Status::Done, words)) => {
                self.outcome.done += 1;
                Ok(Some(words))
            }
            // The volume may be full.
            Some((Status::NotMine, [why, ..])) if why == Why::Trouble as u64 => {
                self.outcome.left += 1;
                Ok(None)
            }
            other => Err(format!("{:?} is answered by {other:?}", request.op)),
        }
    }

    fn ask(&mut self, op: Op, args: [u64; 5], text: &[u8]) -> Result<Option<[u64; ANSWER]>> {
        let other = &[];
        let request = Request {
            op,
            args,
            text,
            other,
        };
        self.call(&request, None)
    }

    /// Makes the next call.
    pub fn step(&mut self, mount: &Mount, what: u8) -> Result<()> {
        let at = usize::from(what) % self.open.len().max(1);
        match what {
            _ if self.open.is_empty() => self.create(),
            0..2 if self.open.len() < OPEN => self.create(),
            2..8 => self.write(at, what),
            8..10 => self.stat(at),
            10..12 => self.chmod(at, what),
            12 => self.rename(at),
            13 => self.truncate(at),
            _ => self.close(mount, at),
        }
    }

    fn new_name(&mut self) -> Vec<u8> {
        self.names += 1;
        format!("f{}", self.names).into_bytes()
    }

    fn create(&mut self) -> Result<()> {
        let name = self.new_name();
        let args = [super::ROOT, libc::O_RDWR as u64, 0o666, 0o022, 0];
        if let Some([number, lease, ..]) = self.ask(Op::Create, args, &path(&name))? {
            self.open.push(Made {
                name,
                number,
                lease: Lease::of(lease),
                contents: Vec::new(),
                mode: 0o644,
            });
        }
        Ok(())
    }

    /// A change of an open file that may be deferred.
    fn change(&mut self, at: usize, op: Op, arg: u64, text: &[u8]) -> Result<Option<u64>> {
        let (number, lease) = (self.open[at].number, self.open[at].lease);
        let other = &[];
        let args = [number, arg, 0, 0, 0];
        let request = Request {
            op,
            args,
            text,
            other,
        };
        Ok(self.call(&request, lease)?.map(|[first, ..]| first))
    }

    fn write(&mut self, at: usize, what: u8) -> Result<()> {
        let count = [1, 8, 100, 5000, 70, 9][usize::from(what) % 6];
        let first = self.open[at].contents.len() as u8;
        let bytes: Vec<u8> = (0..count)
            .map(|n: u32| first.wrapping_add(n as u8))
            .collect();
        let written = self.change(at, Op::Write, NONE, &bytes)?.unwrap_or(0);
        let written = bytes
            .get(..written as usize)
            .ok_or("more was written than asked")?;
        self.open[at].contents.extend_from_slice(written);
        Ok(())
    }

    fn stat(&mut self, at: usize) -> Result<()> {
        let args = [self.open[at].number, 0, 0, 0, 0];
        let Some(words) = self.ask(Op::Stat, args, &[])? else {
            return Ok(());
        };
        let (stat, file) = (Stat::of(&words), &self.open[at]);
        let wanted = (file.contents.len() as u64, file.mode, 0);
        if (stat.size, stat.mode & 0o7777, stat.uid) == wanted {
            Ok(())
        } else {
            Err(format!("{stat:?} instead of {wanted:?}"))
        }
    }

    fn chmod(&mut self, at: usize, what: u8) -> Result<()> {
        let mode = [0o600, 0o640][usize::from(what) % 2];
        if self.change(at, Op::FileChmod, mode, &[])?.is_some() {
            self.open[at].mode = mode;
        }
        Ok(())
    }

    fn rename(&mut self, at: usize) -> Result<()> {
        let to = self.new_name();
        let request = Request {
            op: Op::Rename,
            args: [super::ROOT, super::ROOT, 0, 0, 0],
            text: &path(&self.open[at].name),
            other: &path(&to),
        };
        if self.call(&request, None)?.is_some() {
            self.open[at].name = to;
        }
        Ok(())
    }

    fn truncate(&mut self, at: usize) -> Result<()> {
        let size = self.open[at].contents.len() / 2;
        let args = [self.open[at].number, size as u64, 0, 0, 0];
        if self.ask(Op::Truncate, args, &[])?.is_some() {
            self.open[at].contents.truncate(size);
        }
        let args = [self.open[at].number, 0, libc::SEEK_END as u64, 0, 0];
        match self.ask(Op::Seek, args, &[])? {
            Some([offset, ..]) if offset != self.open[at].contents.len() as u64 => {
                Err(format!("the end is at {offset}"))
            }
            Some(_) => Ok(()),
            None => Err("the end of a file is not found".into()),
        }
    }

    /// Closes a file, and has the kernel look at it.
    fn close(&mut self, mount: &Mount, at: usize) -> Result<()> {
        let file = self.open.swap_remove(at);
        let args = [file.number, 0, 0, 0, 0];
        self.ask(Op::Close, args, &[])?.ok_or("no close")?;
        let found = mount.ops.lookup(mount.ours, &file.name);
        let found = found.map_err(|refusal| format!("{refusal:?}"))?;
        let node = found.ok_or("a file is lost")?.node;
        mount.forget(node);
        self.closed.insert(file.name, (file.contents, file.mode));
        self.check(mount)
    }

    /// What it has closed is as it was.
    fn check(&self, mount: &Mount) -> Result<()> {
        for (name, (contents, mode)) in &self.closed {
            let attr = mount
                .fs
                .lookup(mount.ours, name)
                .map_err(failed("a name"))?;
            let mut bytes = vec![0; contents.len() + 1];
            let len = mount.fs.read(attr.ino, 0, &mut bytes);
            mount.fs.forget(attr.ino, 1);
            let len = len.map_err(failed("a read"))?;
            if bytes.get(..len) != Some(contents) || u64::from(attr.mode & 0o7777) != *mode {
                return Err(format!(
                    "{attr:?} is not the file with {} bytes and mode {mode:o}",
                    contents.len()
                ));
            }
        }
        Ok(())
    }

    /// Closes all and ends; nothing else is in its directory.
    pub fn end(mut self, mount: &Mount) -> Result<Outcome> {
        while !self.open.is_empty() {
            self.close(mount, 0)?;
        }
        self.check(mount)?;
        mount.programs.leave(self.channel);
        let names = mount.names(mount.ours)?;
        let mut wanted: Vec<&Vec<u8>> = self.closed.keys().collect();
        wanted.sort();
        if names.iter().eq(wanted) {
            Ok(self.outcome)
        } else {
            Err(format!("{names:?} in the directory of the program"))
        }
    }
}
