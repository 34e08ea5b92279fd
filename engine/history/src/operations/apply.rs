//! Applying a plan to a staged tree: files are copied from the tree that is published or restored.
//!
//! Uses the plan, the tree that is copied from, and a graft. Memory grows with the number of changed inodes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::diff::{Blocks, FileTree};
use crate::operations::graft::{Graft, record_of};
use crate::publish::{Attribute, Operation};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::item::{S_IFLNK, S_IFMT, S_IFREG};
use cairnfs_disk::format::received::RECEIVED;
use cairnfs_disk::format::stream::RawStreamInode;
use cairnfs_disk::types::Time;

/// Bytes copied at a time.
const STEP: usize = 1 << 20;

/// A frozen tree that files are copied from.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub files: FileTree<'a>,
    pub blocks: &'a dyn Blocks,
}

impl Source<'_> {
    /// Copies the inode `ino` to the graft, as the inode `to` without names or entries.
    pub fn copy(&self, graft: &mut Graft, ino: u64, to: u64) -> Result<()> {
        let raw = self.files.inode(ino)?.ok_or(Error::NotFound)?;
        let record = RawStreamInode {
            ino: to.into(),
            ..RawStreamInode::of(ino, &raw)
        };
        let size = record.size.get();
        match record.mode.get() & S_IFMT {
            S_IFLNK => {
                let mut target = vec![0; usize::try_from(size).unwrap_or_default()];
                self.files.read(self.blocks, ino, 0, &mut target)?;
                graft.create(&record, Some(&target))?;
            }
            S_IFREG => {
                graft.create(&record, None)?;
                graft.resize(to, size)?;
                self.copy_range(graft, (ino, to), 0..size, false)?;
            }
            _ => graft.create(&record, None)?,
        }
        let mut xattrs = Vec::new();
        self.files.xattrs(ino, &mut |name, value| {
            // Earlier versions let it be copied to any directory.
            if name != RECEIVED {
                xattrs.push((name, value));
            }
            Ok(())
        })?;
        for (name, value) in xattrs {
            graft.set_xattr(to, &name, Some(&value))?;
        }
        Ok(())
    }

    /// Copies a range of contents; with `holes` it also makes the holes of the range.
    pub fn copy_range(
        &self,
        graft: &Graft,
        (ino, to): (u64, u64),
        range: Range<u64>,
        holes: bool,
    ) -> Result<()> {
        let mut buffer =
            vec![0; STEP.min(usize::try_from(range.end - range.start).unwrap_or(STEP))];
        let mut at = range.start;
        while at < range.end {
            let written = self.files.next_written(ino, at..range.end)?;
            if holes && at < written.start {
                graft.zero(to, at, written.start - at)?;
            }
            let mut from = written.start;
            while from < written.end {
                let len = usize::try_from(written.end - from)
                    .unwrap_or(STEP)
                    .min(STEP);
                let bytes = buffer.get_mut(..len).unwrap_or_default();
                self.files.read(self.blocks, ino, from, bytes)?;
                graft.write(to, from, bytes)?;
                from += len as u64;
            }
            at = written.end;
        }
        Ok(())
    }
}

/// Applies the operations of a plan. Of the inodes that it makes, `copies` has the numbers that those
/// with another one have in the source.
pub(super) fn apply(
    graft: &mut Graft,
    source: Source<'_>,
    operations: &[Operation],
    copies: &BTreeMap<u64, u64>,
    now: Time,
) -> Result<()> {
    let mut applier = Applier {
        graft,
        source,
        copies,
        now,
        created: BTreeSet::new(),
        changed: BTreeMap::new(),
    };
    for operation in operations {
        applier.apply(operation)?;
    }
    let changed = applier.changed;
    changed.values().try_for_each(|record| graft.settle(record))
}

struct Applier<'g, 's> {
    graft: &'g mut Graft,
    source: Source<'s>,
    copies: &'s BTreeMap<u64, u64>,
    now: Time,
    created: BTreeSet<u64>,
    /// The final attributes of inodes that were there.
    changed: BTreeMap<u64, RawStreamInode>,
}

impl Applier<'_, '_> {
    fn apply(&mut self, operation: &Operation) -> Result<()> {
        match operation {
            Operation::Create { ino } => {
                self.created.insert(*ino);
                let from = self.copies.get(ino).unwrap_or(ino);
                self.source.copy(self.graft, *from, *ino)
            }
            Operation::Unlink { name, ino } => {
                self.note(name.dir)?;
                self.note(*ino)?;
                self.graft.unlink(name.dir, &name.name, *ino)
            }
            Operation::Link { name, ino } => {
                self.note(name.dir)?;
                self.note(*ino)?;
                self.graft.link(name.dir, &name.name, *ino)
            }
            Operation::Contents { ino, ranges, size } => {
                self.note(*ino)?;
                self.graft.resize(*ino, *size)?;
                for range in ranges {
                    let range = range.start..range.end.min(*size);
                    if !range.is_empty() {
                        self.source
                            .copy_range(self.graft, (*ino, *ino), range, true)?;
                    }
                }
                Ok(())
            }
            Operation::Xattr { ino, name, value } => {
                self.note(*ino)?;
                self.graft.set_xattr(*ino, name, value.as_deref())
            }
            Operation::Attribute { ino, attribute } => {
                self.note(*ino)?;
                if let Some(record) = self.changed.get_mut(ino) {
                    set(record, *attribute);
                }
                Ok(())
            }
            Operation::Remove { ino } => {
                self.changed.remove(ino);
                self.graft.remove(*ino)
            }
        }
    }

    /// Records the attributes of an inode before its first change, and removes flags that forbid
    /// changes.
    fn note(&mut self, ino: u64) -> Result<()> {
        if self.created.contains(&ino) || self.changed.contains_key(&ino) {
            return Ok(());
        }
        let attr = self.graft.attr(ino)?.ok_or(Error::NotFound)?;
        let record = RawStreamInode {
            ctime: self.now.into(),
            ..record_of(&attr)
        };
        self.graft.loosen(ino)?;
        self.changed.insert(ino, record);
        Ok(())
    }
}

fn set(record: &mut RawStreamInode, attribute: Attribute) {
    match attribute {
        Attribute::Mode(mode) => record.mode = (record.mode.get() & S_IFMT | mode).into(),
        Attribute::Uid(uid) => record.uid = uid.into(),
        Attribute::Gid(gid) => record.gid = gid.into(),
        Attribute::Flags(flags) => record.flags = flags.into(),
        Attribute::Mtime(time) => record.mtime = time.into(),
    }
}
