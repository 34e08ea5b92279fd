//! Receiving a stream as a snapshot.
//!
//! Uses the stream's receiver, a staged head, a graft on it, and the numbers of the stream's inodes
//! here. What was received is recorded in an attribute of its root directory.

use std::io::Read;
use std::sync::Arc;

use zerocopy::little_endian::{U32, U64};

use crate::operations::graft::{Graft, record_of};
use crate::operations::numbers::{Known, Numbers};
use crate::operations::received::mark_of;
use crate::operations::stage::Staged;
use crate::stream::Target;
use cairnfs_core::fs::FileSystem;
use cairnfs_core::refs;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::ROOT_INO;
use cairnfs_disk::format::received::{RawReceived, Received};
use cairnfs_disk::format::stream::{RawBegin, RawStreamInode, Record};
use cairnfs_disk::types::{FileKind, RootInfo, uuid_text};

/// Why there is no base, if nothing is known of it.
const NO_BASE: &str = "which was not received here";
/// Why there is none, if there is a snapshot of its number.
const NO_BASE_BUT_OTHER: &str = "and the snapshot of that number here is another one, as it is if \
                                 both come from copies of one volume that were used by themselves";

/// Receives a stream as the snapshot `name`, or under a name made of the time. Returns what the list of
/// roots says about it, with this name.
///
/// # Errors
/// [`Error::Stream`], [`Error::NoBase`]; [`Error::Exists`] and [`Error::Invalid`] for the name;
/// [`Error::NoSpaceForStream`]; the device or the input failed. Nothing is left of a stream that was not received.
pub fn receive(fs: &Arc<FileSystem>, from: impl Read, name: Option<&str>) -> Result<RootInfo> {
    // Refused before anything is read; decided again at the end.
    if let Some(name) = name {
        refs::check_given(name)?;
        if fs.core().roots().named(name).is_some() {
            return Err(Error::Exists);
        }
    }
    let mut receiver = Receiver {
        fs: fs.clone(),
        state: None,
    };
    crate::stream::receive(from, &mut receiver)?;
    let state = receiver.state.ok_or(Error::UnexpectedEnd)?;
    state.finish(name).map_err(|e| at_inode(e, ROOT_INO))
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
        Record::Begin(_) | Record::Origin(_) | Record::End(_) => ROOT_INO,
        Record::Create(raw) | Record::Change(raw) => raw.ino.get(),
        Record::Xattr { ino, .. }
        | Record::Data { ino, .. }
        | Record::Zero { ino, .. }
        | Record::Unlink { ino, .. }
        | Record::Link { ino, .. }
        | Record::Remove { ino } => *ino,
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
    /// The inode of the last records, whose final attributes are settled.
    settled: u64,
}

struct Receiver {
    fs: Arc<FileSystem>,
    state: Option<Receiving>,
}

/// The root that a stream builds on, and what its numbers are here.
struct Place {
    base: Option<u32>,
    numbers: Numbers,
}

impl Place {
    fn find(fs: &FileSystem, begin: &RawBegin) -> Result<Self> {
        let wanted = (begin.base_root.get(), begin.base_mark.get());
        let own = fs.info().uuid;
        let mut known = Known::default();
        let (mut base, mut has_other) = (None, false);
        for root in fs.roots().into_iter().filter(|root| root.name.is_some()) {
            let received = match fs.received_by(root.id) {
                // It was dropped meanwhile.
                Err(Error::NotFound) => continue,
                value => value?.and_then(|value| Received::decode(&value)),
            };
            let received = received.unwrap_or_default();
            known.add(&received.ranges);
            if root.writable {
                continue;
            }
            let raw = &received.raw;
            let sent = raw.uuid == begin.uuid && raw.own_root.get() == root.id;
            // A volume knows what it has sent itself by its own numbers.
            let found = match own == begin.uuid {
                true => (root.id, mark_of(&root)),
                false if sent => (raw.root.get(), raw.mark.get()),
                false => continue,
            };
            has_other |= found.0 == wanted.0;
            if found == wanted {
                base = Some((root.id, received.ranges));
            }
        }
        let (base, ranges) = match (wanted.0, base) {
            (0, _) => (None, Vec::new()),
            (_, Some((base, ranges))) => (Some(base), ranges),
            (root, None) => {
                let volume = uuid_text(&begin.uuid);
                let why = if has_other {
                    NO_BASE_BUT_OTHER
                } else {
                    NO_BASE
                };
                return Err(Error::NoBase { volume, root, why });
            }
        };
        // Before anything is made here for the stream: it must not name that.
        let given = fs.core().superblocks().given();
        Ok(Self {
            base,
            numbers: Numbers::new((own, begin.uuid), given, &ranges, known),
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
            mark: begin.mark,
            shift: U64::new(0),
            own_root: U32::new(staged.id),
        };
        Ok(Self {
            graft,
            staged,
            numbers: place.numbers,
            received,
            link: None,
            settled: 0,
        })
    }

    fn here(&self, ino: u64) -> Result<u64> {
        let missing = || Error::Stream(format!("inode {ino} is not there"));
        self.numbers.here(ino).ok_or_else(missing)
    }

    /// The number that an inode here has in the stream.
    fn sent(&self, here: u64) -> Result<u64> {
        self.numbers.sent(here).ok_or_else(|| {
            Error::Stream(format!("its base has inode {here}, which was not received"))
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
            Record::Origin(origin) => self.numbers.tell(&origin),
            Record::Create(raw) => self.create(&raw),
            Record::Change(raw) => self.change(&raw),
            Record::Xattr { ino, name, value } => {
                let here = self.filling(ino)?;
                self.graft.set_xattr(here, name, value)
            }
            Record::Data { ino, offset, bytes } => match self.link.take() {
                Some(link) => self
                    .graft
                    .create(&link_here(&link, self.here(ino)?), Some(bytes)),
                None => {
                    let here = self.filling(ino)?;
                    self.graft.write(here, offset, bytes)
                }
            },
            Record::Zero { ino, offset, len } => {
                let here = self.filling(ino)?;
                self.graft.zero(here, offset, len)
            }
            Record::Unlink { dir, ino, name } => {
                self.graft.unlink(self.here(dir)?, name, self.here(ino)?)
            }
            Record::Link { dir, ino, name } => {
                self.graft.link(self.here(dir)?, name, self.here(ino)?)
            }
            Record::Remove { ino } => self.graft.remove(self.here(ino)?),
        }
    }

    /// The number here of an inode whose contents or extended attributes follow. Changes of contents
    /// set times; so if the stream has no Change of the inode, its attributes are noted first, and are
    /// set again at the end.
    fn filling(&mut self, ino: u64) -> Result<u64> {
        let here = self.here(ino)?;
        // The attributes of the root directory were noted before anything was done.
        if self.settled != ino && ino != ROOT_INO {
            self.settled = ino;
            let attr = self.graft.attr(here)?.ok_or(Error::NotFound)?;
            self.graft.settle(&record_of(&attr))?;
        }
        Ok(here)
    }

    fn create(&mut self, raw: &RawStreamInode) -> Result<()> {
        let core = self.graft.fs().core();
        let take = |part, new| core.take_range(part, new);
        let ino = self.numbers.make(raw.ino.get(), take)?;
        let here = link_here(raw, ino);
        self.settled = raw.ino.get();
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
        self.settled = raw.ino.get();
        let kind = FileKind::from_mode(raw.mode.get());
        let size = self.look(raw.ino.get())?.map(|(_, size)| size);
        if kind == Some(FileKind::File) && size != Some(raw.size.get()) {
            self.graft.resize(here.ino.get(), raw.size.get())
        } else {
            Ok(())
        }
    }

    /// Shows what was received as a snapshot.
    fn finish(self, name: Option<&str>) -> Result<RootInfo> {
        // It changes the time of the root directory, which is set after it.
        let received = Received {
            raw: self.received,
            ranges: self.numbers.ranges(),
        };
        self.graft.set_received(&received)?;
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
        parent.map(|ino| state.sent(ino)).transpose()
    }

    fn holder(&self, dir: u64, name: &[u8]) -> Result<Option<u64>> {
        let state = self.state()?;
        let holder = state.graft.holder(state.here(dir)?, name)?;
        holder.map(|ino| state.sent(ino)).transpose()
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
