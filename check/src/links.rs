//! Compares entries with the inodes that they refer to: types, link counts, parents, reachability.
//!
//! Entries and inodes are both sorted by inode number and compared in one pass.

use std::collections::{BTreeSet, HashMap};

use cairnfs_disk::format::ROOT_INO;
use cairnfs_disk::format::item::{ORPHAN_REMOVE, S_IFDIR};
use cairnfs_disk::format::key::Key;

use crate::codes;
use crate::context::{Claims, Found, InodeRecord, Link};
use crate::report::{Finding, Ledger};
use crate::structure::Structure;

/// Number of inodes between two progress reports.
const PROGRESS_STEP: u64 = 4096;

/// Makes the checks across objects; an `unfinished` tree may have nothing in it. Returns the blocks
/// in use and all entries, sorted.
pub(crate) fn check(
    structure: Structure<'_>,
    unfinished: bool,
    ledger: &mut Ledger<'_>,
) -> (Claims, Vec<Link>) {
    let mut found = structure.into_found();
    let mut links = std::mem::take(&mut found.links);
    links.sort_unstable();
    let mut checker = Checker {
        found: &found,
        unfinished: unfinished && found.inodes.is_empty(),
        ledger,
        places: HashMap::new(),
        doubtful: BTreeSet::new(),
    };
    checker.check_types(&links);
    checker.check_inodes(&links);
    checker.check_orphans();
    checker.check_cycles();
    if found.links_incomplete {
        ledger.unchecked("links and directories that lead to what cannot be read");
    }
    (found.claims, links)
}

/// The parent of a directory, and what is known of the path from there to the root.
#[derive(Clone, Copy)]
struct Place {
    /// The directory that has an entry for it, if any.
    holder: Option<u64>,
    way: Way,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Unknown,
    /// On the path that is being followed.
    Open,
    Known,
}

struct Checker<'a, 'l, 'p> {
    found: &'a Found,
    /// The tree may be without a root directory.
    unfinished: bool,
    ledger: &'l mut Ledger<'p>,
    /// By inode number of the directory.
    places: HashMap<u64, Place>,
    /// Directories with an entry of the wrong type, whose link count is uncertain.
    doubtful: BTreeSet<u64>,
}

impl Checker<'_, '_, '_> {
    fn report(&mut self, code: &'static str, ino: u64, message: String) {
        self.ledger.add(Finding::new(code, message).of(ino));
    }

    fn check_inodes(&mut self, links: &[Link]) {
        let found = self.found;
        let total = found.inodes.len() as u64;
        let mut rest = links;
        for (done, inode) in (0u64..).zip(&found.inodes) {
            if done % PROGRESS_STEP == 0 {
                self.ledger.progress("structure", done, total);
            }
            let (before, tail) = rest.split_at(rest.partition_point(|l| l.child < inode.ino));
            let (own, tail) = tail.split_at(tail.partition_point(|l| l.child == inode.ino));
            rest = tail;
            self.dangling(before);
            self.check_inode(inode, own);
        }
        self.dangling(rest);
        self.ledger.progress("structure", total, total);
        let no_root = found.inodes.first().is_none_or(|i| i.ino != ROOT_INO);
        if no_root && !self.unfinished && !self.excused(ROOT_INO) {
            let message = "the root directory does not exist".into();
            self.report(codes::INODE_MISSING, ROOT_INO, message);
        }
    }

    /// Whether a missing inode was reported already or may be in a hole.
    fn excused(&self, ino: u64) -> bool {
        self.found.missing.contains(&ino) || self.found.holes.hides(&Key::inode(ino))
    }

    fn dangling(&mut self, links: &[Link]) {
        for link in links {
            if !self.excused(link.child) {
                let message = format!(
                    "entry {} of directory {} refers to it, but it does not exist",
                    link.index, link.dir
                );
                self.report(codes::ENTRY_DANGLING, link.child, message);
            }
        }
    }

    fn check_types(&mut self, links: &[Link]) {
        let mut inodes = self.found.inodes.iter().peekable();
        for link in links {
            while inodes.next_if(|inode| inode.ino < link.child).is_some() {}
            if let Some(inode) = inodes.peek()
                && inode.ino == link.child
                && inode.kind != link.kind
            {
                let message = format!(
                    "type {:o}, but entry {} of directory {} tells {:o}",
                    inode.kind, link.index, link.dir, link.kind
                );
                self.doubtful.insert(link.dir);
                self.report(codes::ENTRY_TYPE, link.child, message);
            }
        }
    }

    fn check_inode(&mut self, inode: &InodeRecord, links: &[Link]) {
        if inode.kind == S_IFDIR {
            self.check_directory(inode, links);
        } else if links.is_empty() {
            self.check_unlinked(inode);
        } else {
            self.check_count(inode, links.len() as u64, self.found.links_incomplete);
        }
    }

    fn check_directory(&mut self, inode: &InodeRecord, links: &[Link]) {
        let root = inode.ino == ROOT_INO;
        let holder = if root {
            Some(ROOT_INO)
        } else {
            links.first().map(|link| link.dir)
        };
        let way = if root { Way::Known } else { Way::Unknown };
        self.places.insert(inode.ino, Place { holder, way });
        if links.len() > usize::from(!root) {
            let message = format!("{} entries refer to the directory", links.len());
            self.report(codes::DIR_LINKED_TWICE, inode.ino, message);
        }
        let Some(holder) = holder else {
            return self.check_unlinked(inode);
        };
        if links.len() <= 1 && inode.parent != holder {
            let message = format!("inode tells {}, directory {holder} holds it", inode.parent);
            self.report(codes::PARENT, inode.ino, message);
        }
        if inode.whole && !self.doubtful.contains(&inode.ino) {
            self.check_count(inode, 2 + u64::from(inode.subdirs), false);
        }
    }

    fn check_count(&mut self, inode: &InodeRecord, expected: u64, may_be_more: bool) {
        let told = u64::from(inode.nlink);
        if told < expected || (told > expected && !may_be_more) {
            let message = format!("inode tells {told}, {expected} were found");
            self.report(codes::LINK_COUNT, inode.ino, message);
        }
    }

    /// Checks that an inode without entries is an orphan.
    fn check_unlinked(&mut self, inode: &InodeRecord) {
        if inode.nlink > 0 {
            // An orphan item of the wrong kind is reported with the orphans.
            let orphan = self.found.orphans.get(&inode.ino) == Some(&ORPHAN_REMOVE);
            if !orphan && !self.found.links_incomplete {
                let message = format!("{} links, but no entry refers to it", inode.nlink);
                self.report(codes::UNREACHABLE, inode.ino, message);
            }
            return;
        }
        let listed = self.found.orphans.get(&inode.ino) == Some(&ORPHAN_REMOVE);
        if !listed && !self.found.holes.hides(&Key::orphan(inode.ino)) {
            let message = "no links, but not listed for removal".into();
            self.report(codes::ORPHAN_MISSING, inode.ino, message);
        }
        if inode.occupied {
            let message = "a directory without links that holds entries".into();
            self.report(codes::LINK_COUNT, inode.ino, message);
        }
    }

    fn check_orphans(&mut self) {
        let found = self.found;
        for (&ino, &what) in &found.orphans {
            let at = found.inodes.binary_search_by_key(&ino, |inode| inode.ino);
            let inode = at.ok().and_then(|i| found.inodes.get(i));
            match inode {
                None if self.excused(ino) => {}
                None => {
                    let message = "listed as orphan, but it does not exist".into();
                    self.report(codes::ORPHAN_ITEM, ino, message);
                }
                Some(inode) if what == ORPHAN_REMOVE && inode.nlink > 0 => {
                    let message = format!("listed for removal, but it has {} links", inode.nlink);
                    self.report(codes::ORPHAN_ITEM, ino, message);
                }
                Some(_) => {}
            }
        }
    }

    /// Follows the parents of each directory to the root, or to a directory known from an earlier
    /// walk.
    fn check_cycles(&mut self) {
        for inode in self.found.inodes.iter().filter(|i| i.kind == S_IFDIR) {
            let mut path = Vec::new();
            let mut at = inode.ino;
            while let Some(place) = self.places.get_mut(&at) {
                match place.way {
                    Way::Known => break,
                    Way::Open => {
                        let message = "the directory contains itself".into();
                        self.report(codes::DIR_CYCLE, at, message);
                        break;
                    }
                    Way::Unknown => {
                        place.way = Way::Open;
                        path.push(at);
                        let Some(holder) = place.holder else { break };
                        at = holder;
                    }
                }
            }
            for ino in path {
                if let Some(place) = self.places.get_mut(&ino) {
                    place.way = Way::Known;
                }
            }
        }
    }
}
