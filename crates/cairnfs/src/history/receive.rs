//! Receiving a stream as a snapshot.
//!
//! Uses the stream's receiver, a staged head, and a graft on it. Inode numbers of the sender become
//! numbers of this volume by adding a *shift*: 0 if this volume sent the stream, otherwise a range of
//! numbers that is taken once for each sender. So the same file of several streams of one sender has
//! the same number here, and they can be compared. What was received is recorded in an attribute of
//! its root directory.

use std::io::Read;
use std::sync::Arc;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::error::{Error, Result};
use crate::format::ROOT_INO;
use crate::format::stream::{RECEIVED, RawBegin, RawReceived, RawStreamInode, Record};
use crate::fs::FileSystem;
use crate::history::frozen::Frozen;
use crate::history::graft::Graft;
use crate::history::stage::Staged;
use crate::refs;
use crate::stream::Target;
use crate::types::{FileKind, RootInfo, uuid_text};

/// Inode numbers that a sender may have given: a thousand per second for 34 years.
const NUMBERS: u64 = 1 << 40;

/// Receives a stream as the snapshot `name`, or under a name made of the time. Returns the name.
///
/// # Errors
/// [`Error::Stream`], [`Error::NoBase`]; [`Error::Exists`] and [`Error::Invalid`] for the name;
/// [`Error::NoSpaceForStream`]; the device or the input failed. Nothing is left of a stream that was not received.
pub fn receive(fs: &Arc<FileSystem>, from: impl Read, name: Option<&str>) -> Result<String> {
    let roots = fs.roots();
    let name = match name {
        Some(name) => name.to_owned(),
        None => refs::received_name(&roots, fs.core().now()),
    };
    refs::check_given(&name)?;
    // Refused before anything is read; decided again at the end.
    if roots.iter().any(|root| root.name.as_ref() == Some(&name)) {
        return Err(Error::Exists);
    }
    let mut receiver = Receiver {
        fs: fs.clone(),
        state: None,
    };
    crate::stream::receive(from, &mut receiver)?;
    let state = receiver.state.ok_or(Error::UnexpectedEnd)?;
    state.finish(&name).map_err(|e| at_inode(e, ROOT_INO))?;
    Ok(name)
}

/// Tells which inode of the stream had no space.
fn at_inode(error: Error, ino: u64) -> Error {
    match error {
        // What holds space may be what was received.
        Error::NoSpace | Error::HeldByRoots => Error::NoSpaceForStream { ino },
        other => other,
    }
}

/// The inode that a record is about.
fn inode_of(record: &Record<'_>) -> u64 {
    match record {
        Record::Begin(_) | Record::End(_) => ROOT_INO,
        Record::Create(raw) | Record::Change(raw) => raw.ino.get(),
        Record::Xattr { ino, .. }
        | Record::Data { ino, .. }
        | Record::Zero { ino, .. }
        | Record::Unlink { ino, .. }
        | Record::Link { ino, .. }
        | Record::Remove { ino } => *ino,
    }
}

/// How numbers of a sender become numbers here.
#[derive(Clone, Copy)]
struct Numbers {
    shift: u64,
    /// Numbers of the sender are below this.
    end: u64,
}

impl Numbers {
    fn here(&self, ino: u64) -> Option<u64> {
        match ino {
            ROOT_INO => Some(ino),
            _ => ino.checked_add(self.shift).filter(|_| ino < self.end),
        }
    }

    fn there(&self, ino: u64) -> u64 {
        match ino {
            ROOT_INO => ino,
            _ => ino.saturating_sub(self.shift),
        }
    }
}

/// A stream that has begun.
struct Receiving {
    graft: Graft,
    staged: Staged,
    numbers: Numbers,
    received: RawReceived,
    /// A new symbolic link, which is made when its target has come.
    link: Option<RawStreamInode>,
}

struct Receiver {
    fs: Arc<FileSystem>,
    state: Option<Receiving>,
}

/// What is recorded of a received snapshot.
fn received_of(fs: &FileSystem, root: &RootInfo) -> Result<Option<RawReceived>> {
    let frozen = Frozen::of(fs, root.clone())?;
    let mut found = None;
    frozen.files(fs).xattrs(ROOT_INO, &mut |name, value| {
        if name == RECEIVED {
            found = RawReceived::read_from_bytes(&value).ok();
        }
        Ok(())
    })?;
    Ok(found.filter(|received| received.own_root.get() == root.id))
}

/// The root that a stream builds on, and how its numbers become numbers here.
struct Place {
    base: Option<u32>,
    numbers: Numbers,
}

impl Place {
    fn find(fs: &FileSystem, begin: &RawBegin) -> Result<Self> {
        let core = fs.core();
        let wanted = (begin.base_root.get(), begin.base_boundary.get());
        let roots = fs.roots();
        let snapshots = || roots.iter().filter(|r| !r.writable && r.name.is_some());
        let missing = || Error::NoBase {
            volume: uuid_text(&begin.uuid),
            root: wanted.0,
        };
        if fs.info().uuid == begin.uuid {
            let here = snapshots().find(|root| (root.id, root.boundary) == wanted);
            let numbers = Numbers {
                shift: 0,
                end: core.superblocks().next_ino(),
            };
            let base = here.map(|root| root.id);
            return match wanted.0 > 0 && base.is_none() {
                true => Err(missing()),
                false => Ok(Self { base, numbers }),
            };
        }
        let mut shift = None;
        let mut base = None;
        for root in snapshots() {
            let Some(received) = received_of(fs, root)?.filter(|r| r.uuid == begin.uuid) else {
                continue;
            };
            shift = Some(received.shift.get());
            if (received.root.get(), received.boundary.get()) == wanted {
                base = Some((root.id, received.shift.get()));
            }
        }
        let (base, shift) = match (wanted.0, base) {
            (0, _) => (None, shift),
            (_, Some((base, shift))) => (Some(base), Some(shift)),
            (_, None) => return Err(missing()),
        };
        let shift = match shift {
            Some(shift) => shift,
            None => core.superblocks().take_numbers(NUMBERS)?,
        };
        let end = NUMBERS;
        Ok(Self {
            base,
            numbers: Numbers { shift, end },
        })
    }
}

impl Receiving {
    fn begin(fs: &Arc<FileSystem>, begin: &RawBegin) -> Result<Self> {
        let place = Place::find(fs, begin)?;
        let staged = match place.base {
            Some(base) => Staged::fork(fs, base)?,
            None => Staged::empty(fs)?,
        };
        let graft = Graft::new(staged.open()?)?;
        let received = RawReceived {
            uuid: begin.uuid,
            root: begin.root,
            boundary: begin.boundary,
            shift: U64::new(place.numbers.shift),
            own_root: U32::new(staged.id),
        };
        Ok(Self {
            graft,
            staged,
            numbers: place.numbers,
            received,
            link: None,
        })
    }

    fn here(&self, ino: u64) -> Result<u64> {
        self.numbers.here(ino).ok_or_else(|| {
            let why = format!("inode {ino} is not one that its volume can have had");
            Error::Stream(why)
        })
    }

    /// The type and size of an inode.
    fn look(&self, ino: u64) -> Result<Option<(FileKind, u64)>> {
        if let Some(link) = self.link.filter(|link| link.ino.get() == ino) {
            return Ok(Some((FileKind::Symlink, link.size.get())));
        }
        let Some(here) = self.numbers.here(ino) else {
            return Ok(None);
        };
        let attr = self.graft.attr(here)?;
        Ok(attr.map(|attr| (attr.kind, attr.size)))
    }

    fn apply(&mut self, record: &Record<'_>) -> Result<()> {
        match *record {
            Record::Begin(_) | Record::End(_) => Ok(()),
            Record::Create(raw) => self.create(&raw),
            Record::Change(raw) => self.change(&raw),
            Record::Xattr { ino, name, value } => {
                self.graft.set_xattr(self.here(ino)?, name, value)
            }
            Record::Data { ino, offset, bytes } => match self.link.take() {
                Some(link) => self
                    .graft
                    .create(&link_here(&link, self.here(ino)?), Some(bytes)),
                None => self.graft.write(self.here(ino)?, offset, bytes),
            },
            Record::Zero { ino, offset, len } => self.graft.zero(self.here(ino)?, offset, len),
            Record::Unlink { dir, ino, name } => {
                self.graft.unlink(self.here(dir)?, name, self.here(ino)?)
            }
            Record::Link { dir, ino, name } => {
                self.graft.link(self.here(dir)?, name, self.here(ino)?)
            }
            Record::Remove { ino } => self.graft.remove(self.here(ino)?),
        }
    }

    fn create(&mut self, raw: &RawStreamInode) -> Result<()> {
        let here = link_here(raw, self.here(raw.ino.get())?);
        match FileKind::from_mode(raw.mode.get()) {
            Some(FileKind::Symlink) => {
                self.link = Some(*raw);
                Ok(())
            }
            Some(FileKind::File) => {
                self.graft.create(&here, None)?;
                self.graft.resize(here.ino.get(), raw.size.get())
            }
            _ => self.graft.create(&here, None),
        }
    }

    fn change(&mut self, raw: &RawStreamInode) -> Result<()> {
        let here = link_here(raw, self.here(raw.ino.get())?);
        self.graft.settle(&here)?;
        let kind = FileKind::from_mode(raw.mode.get());
        let size = self.look(raw.ino.get())?.map(|(_, size)| size);
        match kind == Some(FileKind::File) && size != Some(raw.size.get()) {
            true => self.graft.resize(here.ino.get(), raw.size.get()),
            false => Ok(()),
        }
    }

    /// Shows what was received as a snapshot.
    fn finish(self, name: &str) -> Result<()> {
        // The attribute changes the time of the root directory, which is set after it.
        let value = self.received.as_bytes();
        self.graft.set_xattr(ROOT_INO, RECEIVED, Some(value))?;
        drop(self.graft.finish()?);
        self.staged.freeze(name)
    }
}

/// The same inode with its number here.
fn link_here(raw: &RawStreamInode, ino: u64) -> RawStreamInode {
    RawStreamInode {
        ino: U64::new(ino),
        ..*raw
    }
}

impl Receiver {
    fn state(&self) -> Result<&Receiving> {
        self.state.as_ref().ok_or(Error::UnexpectedEnd)
    }
}

impl Target for Receiver {
    fn kind(&self, ino: u64) -> Result<Option<FileKind>> {
        Ok(self.state()?.look(ino)?.map(|(kind, _)| kind))
    }

    fn size(&self, ino: u64) -> Result<u64> {
        Ok(self.state()?.look(ino)?.map_or(0, |(_, size)| size))
    }

    fn names(&self, ino: u64) -> Result<u64> {
        let state = self.state()?;
        match state.graft.attr(state.here(ino)?)? {
            Some(attr) => state.graft.names(&attr),
            None => Ok(0),
        }
    }

    fn parent(&self, dir: u64) -> Result<Option<u64>> {
        let state = self.state()?;
        let parent = state.graft.parent(state.here(dir)?)?;
        Ok(parent.map(|ino| state.numbers.there(ino)))
    }

    fn holder(&self, dir: u64, name: &[u8]) -> Result<Option<u64>> {
        let state = self.state()?;
        let holder = state.graft.holder(state.here(dir)?, name)?;
        Ok(holder.map(|ino| state.numbers.there(ino)))
    }

    fn is_empty(&self, dir: u64) -> Result<bool> {
        let state = self.state()?;
        state.graft.is_empty(state.here(dir)?)
    }

    fn begin(&mut self, begin: &RawBegin) -> Result<()> {
        self.state = Some(Receiving::begin(&self.fs, begin)?);
        Ok(())
    }

    fn apply(&mut self, record: &Record<'_>) -> Result<()> {
        match &mut self.state {
            Some(state) => {
                let applied = state.apply(record);
                applied.map_err(|e| at_inode(e, inode_of(record)))
            }
            None => Err(Error::UnexpectedEnd),
        }
    }
}
