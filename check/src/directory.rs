//! Checks the entries of one directory against its name items.

use std::collections::{BTreeSet, HashMap};

use cairnfs_disk::format::checksum::name_hash;
use cairnfs_disk::format::item::{
    FIRST_DIR_INDEX, RawInode, S_IFDIR, decode_dir_entry, decode_dir_name,
};
use cairnfs_disk::format::key::{Key, Kind};

use crate::codes;
use crate::context::{Context, Link};
use crate::report::{Finding, Ledger};
use crate::visit::Item;

/// The state of a directory while its items arrive: all entries first, then all name items.
pub(crate) struct Directory {
    ino: u64,
    /// Entries not yet found in a name item, by index, with the hash of the name; none if the hash
    /// is unknown.
    unnamed: HashMap<u64, Option<u64>>,
    names: BTreeSet<Box<[u8]>>,
    entries: u64,
    subdirs: u32,
    greatest: u64,
    /// Whether an entry is missing or invalid.
    lost: bool,
}

impl Directory {
    pub(crate) fn new(ino: u64) -> Self {
        Self {
            ino,
            unnamed: HashMap::new(),
            names: BTreeSet::new(),
            entries: 0,
            subdirs: 0,
            greatest: 0,
            lost: false,
        }
    }

    /// Number of entries that are directories.
    pub(crate) fn subdirs(&self) -> u32 {
        self.subdirs
    }

    /// Whether there is any entry.
    pub(crate) fn occupied(&self) -> bool {
        self.entries > 0
    }

    /// Whether not all entries are known.
    pub(crate) fn lost(&self) -> bool {
        self.lost
    }

    /// Takes an entry.
    pub(crate) fn entry(
        &mut self,
        item: &Item<'_>,
        context: &mut Context<'_>,
        ledger: &mut Ledger<'_>,
    ) -> Result<(), (&'static str, String)> {
        let index = item.key.offset;
        self.entries += 1;
        self.greatest = self.greatest.max(index);
        ledger.stats().entries += 1;
        let entry = match decode_dir_entry(item.value) {
            Ok(entry) => entry,
            Err(why) => {
                self.unnamed.insert(index, None);
                self.lost = true;
                return Err((codes::DIR_ENTRY, why));
            }
        };
        if index < FIRST_DIR_INDEX {
            let message = format!("an entry with index {index}");
            let finding = Finding::new(codes::DIR_INDEX, message).of(self.ino);
            ledger.add(finding.at(item.block));
        }
        if !self.names.insert(entry.name.into()) {
            let name = String::from_utf8_lossy(entry.name);
            let message = format!("two entries with name {name:?}");
            let finding = Finding::new(codes::NAME_DUPLICATE, message).of(self.ino);
            ledger.add(finding.at(item.block));
        }
        let hash = name_hash(context.hash_seed, entry.name);
        self.unnamed.insert(index, Some(hash));
        self.subdirs += u32::from(entry.kind == S_IFDIR);
        context.found.links.push(Link {
            child: entry.ino,
            dir: self.ino,
            index,
            kind: entry.kind,
        });
        Ok(())
    }

    /// Takes a name item.
    pub(crate) fn name(
        &mut self,
        item: &Item<'_>,
        context: &mut Context<'_>,
        ledger: &mut Ledger<'_>,
    ) -> Result<(), (&'static str, String)> {
        let hash = item.key.offset;
        for index in decode_dir_name(item.value).map_err(|why| (codes::DIR_NAME, why))? {
            let message = match self.unnamed.remove(&index) {
                Some(None) => continue,
                Some(Some(found)) if found == hash => continue,
                Some(Some(found)) => {
                    format!("entry {index} under hash {hash:016x}, its name has {found:016x}")
                }
                None if context.found.holes.hides(&self.entry_key(index)) => continue,
                None => {
                    self.lost = true;
                    context.found.links_incomplete = true;
                    format!("hash {hash:016x} leads to entry {index}, which does not exist")
                }
            };
            let finding = Finding::new(codes::DIR_NAME, message).of(self.ino);
            ledger.add(finding.at(item.block));
        }
        Ok(())
    }

    fn entry_key(&self, index: u64) -> Key {
        Key::new(self.ino, Kind::DirIndex, index)
    }

    /// Checks that each entry can be looked up by its name.
    pub(crate) fn finish(&mut self, context: &Context<'_>, ledger: &mut Ledger<'_>) {
        self.names.clear();
        let mut unnamed: Vec<_> = self.unnamed.drain().collect();
        unnamed.sort_unstable();
        for (index, hash) in unnamed {
            let Some(hash) = hash else { continue };
            let key = Key::new(self.ino, Kind::DirName, hash);
            if !context.found.holes.hides(&key) {
                let message = format!("entry {index} cannot be found by its name");
                ledger.add(Finding::new(codes::DIR_NAME, message).of(self.ino));
            }
        }
    }

    /// Compares the entries with the counts in the inode.
    pub(crate) fn check_counts(
        &self,
        inode: &RawInode,
        report: &dyn Fn(&'static str, String, &mut Ledger<'_>),
        ledger: &mut Ledger<'_>,
    ) {
        let (size, next) = (inode.size.get(), inode.next_index.get());
        if size != self.entries && !self.lost {
            let message = format!("inode tells {size}, {} were found", self.entries);
            report(codes::DIR_SIZE, message, ledger);
        }
        if self.greatest >= next {
            let message = format!("an entry with index {}, the next is {next}", self.greatest);
            report(codes::DIR_INDEX, message, ledger);
        }
    }
}
