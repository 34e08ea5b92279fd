//! Adds paths to findings about inodes.
//!
//! The check does not keep the names of entries. If there are findings, the tree is walked once
//! more for the entries that lead from their inodes to the root, at most [`MAX_ENTRIES`] of them.
//! An inode with several names gets one path and the number of the others; of a long path only the
//! end is given.

use std::collections::{BTreeMap, HashMap};

use cairnfs_disk::error::Result;
use cairnfs_disk::format::ROOT_INO;
use cairnfs_disk::format::item::decode_dir_entry;
use cairnfs_disk::format::key::Kind;

use crate::checked::Checked;
use crate::checked_volume::Volume;
use crate::context::Link;
use crate::holes::KeyRange;
use crate::log::Replay;
use crate::overlay::Sink;
use crate::report::Ledger;
use crate::visit::Item;

/// Maximum number of entries whose names are looked up.
const MAX_ENTRIES: usize = 1 << 20;
/// Maximum length of a path in bytes.
const MAX_PATH: usize = 4096;

/// Adds paths to the findings of `ledger` from number `first` on, which are those of this root.
/// `links` are all its entries, sorted.
pub(crate) fn name(
    volume: &Volume<'_>,
    replay: &Replay,
    root: &Checked<'_>,
    links: &[Link],
    first: usize,
    ledger: &mut Ledger<'_>,
) -> Result<()> {
    let mut names = Names::default();
    let found = || ledger.findings().iter().skip(first);
    for ino in found().filter_map(|f| f.ino) {
        names.want(ino, links);
    }
    if !names.ways.is_empty() {
        root.walk_again(volume, replay, &mut names)?;
    }
    for finding in ledger.findings_mut().iter_mut().skip(first) {
        let Some(ino) = finding.ino else { continue };
        finding.path = names.path(ino);
        let first = links.partition_point(|link| link.child < ino);
        let end = links.partition_point(|link| link.child <= ino);
        let others = match (end - first).saturating_sub(1) {
            0 => continue,
            1 => "1 other name leads".to_owned(),
            more => format!("{more} other names lead"),
        };
        let more = format!("; its path and {others} to it");
        finding.message.push_str(&more);
    }
    Ok(())
}

/// Entries by directory and index, and the names found for them.
#[derive(Default)]
struct Names {
    /// Per inode, an entry that refers to it: the directory and the index in it.
    ways: HashMap<u64, (u64, u64)>,
    found: BTreeMap<(u64, u64), Option<Box<[u8]>>>,
}

impl Names {
    /// Marks the names on the path from an inode to the root as needed.
    fn want(&mut self, ino: u64, links: &[Link]) {
        let mut at = ino;
        while at != ROOT_INO && !self.ways.contains_key(&at) && self.ways.len() < MAX_ENTRIES {
            let first = links.partition_point(|link| link.child < at);
            let Some(link) = links.get(first).filter(|link| link.child == at) else {
                break;
            };
            self.ways.insert(at, (link.dir, link.index));
            self.found.insert((link.dir, link.index), None);
            at = link.dir;
        }
    }

    /// The path of an inode; `None` if no entry refers to it.
    fn path(&self, ino: u64) -> Option<Vec<u8>> {
        if ino == ROOT_INO {
            return Some(b"/".to_vec());
        }
        let mut names: Vec<&[u8]> = Vec::new();
        let mut len = 0;
        let mut at = ino;
        while at != ROOT_INO && len < MAX_PATH {
            let Some(entry) = self.ways.get(&at) else {
                break;
            };
            let name = self.found.get(entry).and_then(Option::as_deref);
            let name = name.unwrap_or(b"?");
            names.push(name);
            len += name.len() + 1;
            at = entry.0;
        }
        if names.is_empty() {
            return None;
        }
        let mut path = match at {
            ROOT_INO => Vec::new(),
            _ => b"...".to_vec(),
        };
        for name in names.into_iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        Some(path)
    }
}

/// Reads the names marked by `want`.
impl Sink for Names {
    fn indexed(&mut self, _: &Item<'_>, _: bool, _: &mut Ledger<'_>) {}

    fn item(&mut self, item: &Item<'_>, _: &mut Ledger<'_>) -> Result<()> {
        if item.key.kind == Kind::DirIndex
            && let Some(name) = self.found.get_mut(&(item.key.object, item.key.offset))
            && let Ok(entry) = decode_dir_entry(item.value)
        {
            *name = Some(entry.name.into());
        }
        Ok(())
    }

    fn hole(&mut self, _: KeyRange) {}
}
