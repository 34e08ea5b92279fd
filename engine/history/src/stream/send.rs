//! Sends the changes from one tree to another.
//!
//! Uses the comparison of trees, which is run once for each phase of the stream: what it reads a
//! second time is in the cache. A whole tree has only new inodes and names, and so two phases.

use std::io::Write;
use std::ops::Range;

use crate::diff::{Blocks, Change, Changes, Entry, FileTree};
use crate::stream::writer::StreamWriter;
use cairnfs_disk::error::Result;
use cairnfs_disk::format::ROOT_INO;
use cairnfs_disk::format::item::{S_IFLNK, S_IFMT};
use cairnfs_disk::format::stream::{MAX_DATA, RawStreamInode, Record};

/// Writes the changes from `old` to `new`, two frozen trees of one volume; `old` is the empty tree
/// to send `new` as a whole. Data is read through `blocks`. The caller finishes the stream.
///
/// # Errors
/// A damaged volume; the device or the output failed.
pub fn send<W: Write>(
    writer: &mut StreamWriter<W>,
    (old, new): (FileTree<'_>, FileTree<'_>),
    blocks: &dyn Blocks,
) -> Result<()> {
    let mut sender = Sender {
        writer,
        old,
        new,
        blocks,
        buffer: vec![0; MAX_DATA],
        object: Object::default(),
    };
    sender.inodes()?;
    if !old.is_empty() {
        sender.unlinks()?;
    }
    sender.links()?;
    if old.is_empty() {
        Ok(())
    } else {
        sender.removals()
    }
}

/// Whether a tree has an entry with this name and inode, at whatever place in its directory. Trees
/// that were received separately may have the same entries at different places, and a receiver that
/// removed and added them would change times that no record sets.
fn holds(tree: &FileTree<'_>, dir: u64, entry: &Entry) -> Result<bool> {
    Ok(tree.child(dir, &entry.name)? == Some(entry.ino))
}

/// The inode whose contents are sent.
#[derive(Default)]
struct Object {
    ino: u64,
    is_new: bool,
    is_link: bool,
    size: u64,
}

struct Sender<'a, 'w, W> {
    writer: &'w mut StreamWriter<W>,
    old: FileTree<'a>,
    new: FileTree<'a>,
    blocks: &'a dyn Blocks,
    buffer: Vec<u8>,
    object: Object,
}

impl<W: Write> Sender<'_, '_, W> {
    fn each(&mut self, take: impl Fn(&mut Self, Change) -> Result<()>) -> Result<()> {
        let mut changes = Changes::new(self.old, self.new)?;
        while let Some(change) = changes.next_change()? {
            take(self, change)?;
        }
        Ok(())
    }

    fn inodes(&mut self) -> Result<()> {
        self.each(|sender, change| match change {
            Change::Inode {
                ino,
                old,
                new: Some(new),
            } => {
                let raw = RawStreamInode::of(ino, &new);
                sender.object = Object {
                    ino,
                    is_new: old.is_none(),
                    is_link: new.mode.get() & S_IFMT == S_IFLNK,
                    size: new.size.get(),
                };
                // The root directory is in every tree, also in the empty one.
                let is_new = old.is_none() && ino != ROOT_INO;
                sender.writer.put(&if is_new {
                    Record::Create(raw)
                } else {
                    Record::Change(raw)
                })
            }
            Change::Xattr { ino, name, new, .. } => sender.writer.put(&Record::Xattr {
                ino,
                name: &name,
                value: new.as_deref(),
            }),
            Change::Contents { ino, range } => sender.contents(ino, range),
            Change::Inode { .. } | Change::Entry { .. } => Ok(()),
        })
    }

    fn unlinks(&mut self) -> Result<()> {
        self.each(|sender, change| match change {
            Change::Entry {
                dir,
                old: Some(old),
                ..
            } if !holds(&sender.new, dir, &old)? => sender.writer.put(&Record::Unlink {
                dir,
                ino: old.ino,
                name: &old.name,
            }),
            _ => Ok(()),
        })
    }

    fn links(&mut self) -> Result<()> {
        self.each(|sender, change| match change {
            Change::Entry {
                dir,
                new: Some(new),
                ..
            } if !holds(&sender.old, dir, &new)? => sender.writer.put(&Record::Link {
                dir,
                ino: new.ino,
                name: &new.name,
            }),
            _ => Ok(()),
        })
    }

    fn removals(&mut self) -> Result<()> {
        self.each(|sender, change| match change {
            Change::Inode { ino, new: None, .. } => sender.writer.put(&Record::Remove { ino }),
            _ => Ok(()),
        })
    }

    fn contents(&mut self, ino: u64, range: Range<u64>) -> Result<()> {
        if self.object.ino != ino {
            let size = self.new.inode(ino)?.map_or(0, |inode| inode.size.get());
            self.object = Object {
                ino,
                is_new: false,
                is_link: false,
                size,
            };
        }
        let range = range.start..range.end.min(self.object.size);
        let mut at = range.start;
        // A symbolic link of the old tree has its target.
        while at < range.end && (self.object.is_new || !self.object.is_link) {
            let written = self.new.next_written(ino, at..range.end)?;
            self.zeros(ino, at..written.start)?;
            self.data(ino, written.clone())?;
            at = written.end;
        }
        Ok(())
    }

    fn zeros(&mut self, ino: u64, range: Range<u64>) -> Result<()> {
        if range.is_empty() || self.object.is_new {
            return Ok(());
        }
        self.writer.put(&Record::Zero {
            ino,
            offset: range.start,
            len: range.end - range.start,
        })
    }

    fn data(&mut self, ino: u64, range: Range<u64>) -> Result<()> {
        let mut offset = range.start;
        while offset < range.end {
            let len = usize::try_from(range.end - offset)
                .unwrap_or(MAX_DATA)
                .min(MAX_DATA);
            let bytes = self.buffer.get_mut(..len).unwrap_or_default();
            self.new.read(self.blocks, ino, offset, bytes)?;
            self.writer.put(&Record::Data { ino, offset, bytes })?;
            offset += len as u64;
        }
        Ok(())
    }
}
