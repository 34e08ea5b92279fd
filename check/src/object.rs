//! Checks the items of one inode against each other.

use cairnfs_disk::format::checksum::name_hash;
use cairnfs_disk::format::item::{
    RawInode, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, decode_extent, decode_inode,
};
use cairnfs_disk::format::key::{Key, Kind};
use cairnfs_disk::format::xattr::{decode_stored_xattrs, decode_xattrs};
use cairnfs_disk::format::{BLOCK_SIZE, MAX_FILE_SIZE, MAX_INLINE, MAX_SYMLINK, ROOT_INO};

use crate::codes;
use crate::context::{Context, InodeRecord};
use crate::directory::Directory;
use crate::given_up::Mapped;
use crate::holes::KeyRange;
use crate::report::{Finding, Ledger};
use crate::visit::Item;

/// The state of an object while its items arrive.
pub(crate) struct Object {
    ino: u64,
    inode: Option<RawInode>,
    /// Whether an item was reported that is not allowed for the inode's type.
    unexpected: bool,
    inline: Option<Inline>,
    extents: Extents,
    xattrs: u64,
    directory: Directory,
}

struct Inline {
    len: u64,
    has_nul: bool,
}

#[derive(Default)]
struct Extents {
    count: u64,
    blocks: u64,
    /// The file block after the last extent.
    end: u64,
    /// The file block after the last written extent.
    written_end: u64,
}

impl Object {
    pub(crate) fn new(ino: u64) -> Self {
        Self {
            ino,
            inode: None,
            unexpected: false,
            inline: None,
            extents: Extents::default(),
            xattrs: 0,
            directory: Directory::new(ino),
        }
    }

    pub(crate) fn ino(&self) -> u64 {
        self.ino
    }

    fn kind(&self) -> Option<u32> {
        self.inode.map(|inode| inode.mode.get() & S_IFMT)
    }

    /// Takes the next item. Items arrive in key order, so the inode item is the first.
    pub(crate) fn item(
        &mut self,
        item: &Item<'_>,
        context: &mut Context<'_>,
        ledger: &mut Ledger<'_>,
    ) {
        if !self.allows(&item.key) {
            if !self.unexpected {
                let message = format!("{:?} of an inode of type {:?}", item.key, self.kind());
                let finding = Finding::new(codes::UNEXPECTED_ITEM, message).of(self.ino);
                ledger.add(finding.at(item.block));
            }
            self.unexpected = true;
            return;
        }
        let result = match item.key.kind {
            Kind::Inode => decode_inode(item.value)
                .map(|inode| self.inode = Some(inode))
                .map_err(|why| (codes::INODE_ITEM, why)),
            Kind::Inline => {
                self.inline = Some(Inline {
                    len: item.value.len() as u64,
                    has_nul: item.value.contains(&0),
                });
                Ok(())
            }
            Kind::DirIndex => self.directory.entry(item, context, ledger),
            Kind::DirName => self.directory.name(item, context, ledger),
            Kind::Xattr => self.attributes(item, context, ledger),
            Kind::Extent => self.extent(item, context, ledger),
            Kind::SharedValue | Kind::Orphan | Kind::Root => Ok(()),
        };
        if let Err((code, why)) = result {
            ledger.add(Finding::new(code, why).of(self.ino).at(item.block));
            context.found.holes.push(KeyRange::one(item.key));
        }
    }

    /// Whether the inode may have an item with that key; always true if the inode's type is
    /// unknown.
    fn allows(&self, key: &Key) -> bool {
        let kind = self.kind();
        let of = |kinds: &[u32]| kind.is_none_or(|k| kinds.contains(&k));
        match key.kind {
            Kind::Inode => key.offset == 0,
            Kind::Inline => key.offset == 0 && of(&[S_IFREG, S_IFLNK]),
            Kind::DirIndex | Kind::DirName => of(&[S_IFDIR]),
            Kind::Xattr => true,
            Kind::Extent => of(&[S_IFREG]),
            Kind::SharedValue | Kind::Orphan | Kind::Root => false,
        }
    }

    fn attributes(
        &mut self,
        item: &Item<'_>,
        context: &Context<'_>,
        ledger: &mut Ledger<'_>,
    ) -> Result<(), (&'static str, String)> {
        let names = names_of(item).map_err(|why| (codes::XATTR_ITEM, why))?;
        for (i, full) in names.iter().enumerate() {
            let name = String::from_utf8_lossy(full);
            let hash = name_hash(context.hash_seed, full);
            let finding = if hash != item.key.offset {
                let message = format!(
                    "attribute {name:?} has hash {hash:016x}, but lies under {:016x}",
                    item.key.offset
                );
                Finding::new(codes::XATTR_HASH, message)
            } else if names.iter().take(i).any(|other| other == full) {
                Finding::new(codes::XATTR_ITEM, format!("attribute {name:?} comes twice"))
            } else {
                continue;
            };
            ledger.add(finding.of(self.ino).at(item.block));
        }
        self.xattrs += names.len() as u64;
        ledger.stats().xattrs += names.len() as u64;
        Ok(())
    }

    fn extent(
        &mut self,
        item: &Item<'_>,
        context: &mut Context<'_>,
        ledger: &mut Ledger<'_>,
    ) -> Result<(), (&'static str, String)> {
        let (raw, _) = decode_extent(item.value).map_err(|why| (codes::EXTENT_ITEM, why))?;
        let (at, len) = (item.key.offset, u64::from(raw.len.get()));
        let block = raw.block.get();
        let end = at.saturating_add(len);
        if end > MAX_FILE_SIZE / BLOCK_SIZE as u64 {
            let message = format!("extent at file block {at} beyond the largest file");
            return Err((codes::EXTENT_ITEM, message));
        }
        let extent = Mapped::new(self.ino, at, &raw);
        let shared_leaf = item.birth.is_some_and(|birth| context.inherited.has(birth));
        let mut report = |code, message: String| {
            ledger.add(Finding::new(code, message).of(self.ino).at(block));
        };
        // One in the log was checked there.
        if raw.birth.get() > context.seq && !item.logged {
            let (birth, seq) = (raw.birth, context.seq);
            let message = format!("born in context {birth}, the newest is {seq}");
            report(codes::EXTENT_BIRTH, message);
        }
        if at < self.extents.end {
            let message = format!(
                "extent at file block {at}, the one before it ends at {}",
                self.extents.end
            );
            report(codes::EXTENT_OVERLAP, message);
        }
        if !context.geometry.in_data(block, len) {
            let message = format!("{len} blocks of file block {at} outside the data area");
            report(codes::EXTENT_RANGE, message);
            context.found.claims.incomplete = true;
        } else if let Some((first, count)) = context.found.claims.live.insert(block, len) {
            let message = format!(
                "file block {}: {count} blocks belong to another extent, too",
                at + (first - block)
            );
            ledger.add(
                Finding::new(codes::BLOCK_SHARED, message)
                    .of(self.ino)
                    .at(first),
            );
            context.found.claims.incomplete = true;
        } else if let Some((code, why)) = context.wrongly_held(&extent, shared_leaf) {
            ledger.add(Finding::new(code, why).of(self.ino).at(block));
        } else {
            context.bequeath(&extent);
        }
        context.given_up.live(extent);
        self.extents.count += 1;
        self.extents.blocks += len;
        self.extents.end = self.extents.end.max(end);
        if extent.written {
            context.found.claims.written.insert(block, len);
            self.extents.written_end = end;
        }
        ledger.stats().extents += 1;
        ledger.stats().data_blocks += len;
        Ok(())
    }

    /// Checks the object once all its items have arrived.
    pub(crate) fn finish(mut self, context: &mut Context<'_>, ledger: &mut Ledger<'_>) {
        let hidden = context.found.holes.hides_some_of(self.ino);
        self.directory.finish(context, ledger);
        let Some(inode) = self.inode else {
            if !context.found.holes.hides(&Key::inode(self.ino)) && !self.unexpected {
                let message = "items without an inode item";
                ledger.add(Finding::new(codes::INODE_MISSING, message).of(self.ino));
                context.found.missing.insert(self.ino);
            }
            return;
        };
        let report = |code, message: String, ledger: &mut Ledger<'_>| {
            ledger.add(Finding::new(code, message).of(self.ino));
        };
        if let Err(why) = self.check_inode(&inode) {
            report(codes::INODE_ITEM, why, ledger);
        }
        if !hidden {
            self.check_counts(&inode, &report, ledger);
            if let Err(why) = self.check_inline(&inode) {
                report(codes::INLINE_ITEM, why, ledger);
            }
        }
        let shrinking = context.found.orphans.contains_key(&self.ino)
            || context.found.holes.hides(&Key::orphan(self.ino));
        let file_end = inode.size.get().div_ceil(BLOCK_SIZE as u64);
        if self.extents.written_end > file_end && !shrinking {
            let message = format!(
                "extents up to file block {}, the file has {file_end}",
                self.extents.written_end
            );
            report(codes::EXTENT_BEYOND_END, message, ledger);
        }
        self.record(&inode, hidden, context, ledger);
    }

    fn check_inode(&self, inode: &RawInode) -> Result<(), String> {
        let kind = inode.mode.get() & S_IFMT;
        if self.ino == ROOT_INO && kind != S_IFDIR {
            return Err("the root is no directory".into());
        }
        Ok(())
    }

    fn check_counts(
        &self,
        inode: &RawInode,
        report: &dyn Fn(&'static str, String, &mut Ledger<'_>),
        ledger: &mut Ledger<'_>,
    ) {
        let (blocks, xattrs) = (inode.blocks.get(), u64::from(inode.xattrs.get()));
        if blocks != self.extents.blocks && !self.unexpected {
            let message = format!("inode tells {blocks}, extents have {}", self.extents.blocks);
            report(codes::INODE_BLOCKS, message, ledger);
        }
        if xattrs != self.xattrs {
            let message = format!("inode tells {xattrs}, {} were found", self.xattrs);
            report(codes::XATTR_COUNT, message, ledger);
        }
        if self.kind() == Some(S_IFDIR) {
            self.directory.check_counts(inode, report, ledger);
        }
    }

    fn check_inline(&self, inode: &RawInode) -> Result<(), String> {
        let size = inode.size.get();
        match (self.kind(), &self.inline) {
            (Some(S_IFLNK), None) => Err("a symbolic link without target".into()),
            (Some(S_IFLNK), Some(inline)) => {
                if inline.len != size || size == 0 || size > MAX_SYMLINK as u64 {
                    return Err(format!("a target of {} bytes, size {size}", inline.len));
                }
                if inline.has_nul {
                    return Err("a target with a NUL byte".into());
                }
                Ok(())
            }
            (_, Some(inline)) => {
                if inline.len != size || size > MAX_INLINE as u64 {
                    return Err(format!("{} bytes inline, size {size}", inline.len));
                }
                if self.extents.count > 0 {
                    return Err("contents inline and in extents".into());
                }
                Ok(())
            }
            (_, None) => Ok(()),
        }
    }

    fn record(
        &self,
        inode: &RawInode,
        hidden: bool,
        context: &mut Context<'_>,
        ledger: &mut Ledger<'_>,
    ) {
        let kind = inode.mode.get() & S_IFMT;
        let stats = ledger.stats();
        match kind {
            S_IFREG => stats.files += 1,
            S_IFDIR => stats.directories += 1,
            S_IFLNK => stats.symlinks += 1,
            _ => stats.other += 1,
        }
        context.found.inodes.push(InodeRecord {
            ino: self.ino,
            kind,
            nlink: inode.nlink.get(),
            parent: inode.parent.get(),
            subdirs: self.directory.subdirs(),
            occupied: self.directory.occupied(),
            whole: !hidden && !self.directory.lost(),
        });
    }
}

/// The attribute names in an attribute item.
fn names_of(item: &Item<'_>) -> Result<Vec<Vec<u8>>, String> {
    if item.logged {
        let list = decode_xattrs(item.value)?;
        return Ok(list.iter().map(|x| x.name.to_vec()).collect());
    }
    let list = decode_stored_xattrs(item.value)?;
    Ok(list.iter().map(|x| x.name()).collect())
}
