//! The dependency closure of an fsync: the changes that must be durable with an inode, and no
//! others.
//!
//! Commits record dependencies ([`super::deps`]). An fsync follows them from its
//! inode while no thread commits, takes the changes that the log does not hold yet, and writes them
//! as one record. The closure is transitive: the directories of each entry with their own names up
//! to the root, all inodes that shared a transaction, the previous inode of each name, and the
//! entries of a removed directory. Every moved directory is included, because it may be on any
//! inode's path to the root.
//!
//! If a directory has entries that are not logged, its inode item is logged as if these did not
//! exist: its counts match exactly the entries that are in the log.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::inode::Inode;
use crate::inode::log_deps::{Children, MOST_CHECKED, Written};
use crate::journal::Journal;
use crate::journal::cil::Context;
use crate::journal::fsync_record::{FsyncRecord, Gathered};
use crate::journal::vector::{Change, LogVector, charge_for};
use crate::txn::fsync::{Place, Request};
use crate::txn::{Core, ItemStore};
use cairnfs_disk::device::{Stamps, Storage};
use cairnfs_disk::fault::{self, InjectedFault, is_injected};
use cairnfs_disk::format::item::RawInode;
use cairnfs_disk::format::record::push_check;
use cairnfs_disk::hash::IntHash;
use cairnfs_disk::mechanism::Mechanism;
use cairnfs_disk::sync::atomic::Ordering;

/// Largest number of inodes of a record: commits wait while the closure is followed. A larger
/// closure is most of its context, which is written instead.
const MAX_INODES: usize = 1024;

/// Up to this many pending entries of a directory are followed in any case, because that is quick.
const FEW: usize = 64;

/// The closure of a record while it is followed.
struct ClosureWalk<'a> {
    /// The roots of the requests and of moved directories. No dependency leads to another one.
    roots: SmallVec<[Arc<ItemStore>; 2]>,
    storage: &'a Storage,
    journal: &'a Journal,
    seq: u64,
    inodes: SmallVec<[(u32, Arc<Inode>); 8]>,
    /// Inodes visited, and whether their entries are included.
    seen: HashMap<Place, bool, IntHash>,
    todo: SmallVec<[(Place, bool); 8]>,
    context: &'a Context,
    /// Directories that may have entries that are not logged.
    dirs: usize,
    /// Files whose times were not requested.
    data_only: Vec<Place>,
}

impl ClosureWalk<'_> {
    /// Follows all dependencies. Returns `false` if there are too many.
    fn close(&mut self) -> bool {
        while let Some((place, with_entries)) = self.todo.pop() {
            if !self.visit(place, with_entries) || self.inodes.len() > MAX_INODES {
                return false;
            }
        }
        true
    }

    /// The inode; none of a root without requests and moved directories.
    fn inode(&self, (root, ino): Place) -> Option<Arc<Inode>> {
        let items = self.roots.iter().find(|items| items.root() == root)?;
        Some(items.table().get_or_new(ino))
    }

    /// Adds an inode and its dependencies, which are inodes of the same root. Returns `false` if
    /// there are too many.
    fn visit(&mut self, (root, ino): Place, with_entries: bool) -> bool {
        if self
            .seen
            .get(&(root, ino))
            .is_some_and(|w| *w || !with_entries)
        {
            return true;
        }
        let Some(inode) = self.inode((root, ino)) else {
            return true;
        };
        let log_deps = inode.log_deps();
        if !log_deps.is_of(self.seq) {
            return true;
        }
        let children = log_deps.children.as_deref();
        let with_entries = with_entries || children.is_some_and(|c| c.removed);
        let first = self.seen.insert((root, ino), with_entries).is_none();
        if first {
            let dirs = log_deps.names.iter().map(|n| n.dir);
            fault::unless(InjectedFault::DirectoryDependencyLost, || {
                self.todo.extend(dirs.map(|dir| ((root, dir), false)));
            });
            let joined = log_deps.more().map_or(&[][..], |more| &more.joined);
            let joined = joined.iter().map(|other| ((root, *other), false));
            self.todo.extend(joined);
        }
        if let Some(children) = children {
            self.dirs += usize::from(first);
            if with_entries && self.has_too_many(children) {
                return false;
            }
            if with_entries {
                let inodes = children.inodes.iter();
                self.todo
                    .extend(inodes.map(|child| ((root, *child), false)));
            }
        }
        drop(log_deps);
        if first {
            self.inodes.push((root, inode));
        }
        true
    }

    /// Whether a directory has so many pending entries that writing the whole context costs less
    /// than following them. If data is not durable yet, writing the context would flush that data
    /// first and cost more.
    fn has_too_many(&self, children: &Children) -> bool {
        if children.pending <= FEW || children.pending > MAX_INODES {
            return children.pending > MAX_INODES;
        }
        let context = self.context;
        let durable = self.storage.is_flushed(context.data_stamp()) && !context.has_staged();
        // Most entries are logged with an inode item, so a quarter of the vectors means half of the
        // context.
        durable && children.pending > context.len() / 4
    }

    /// Log bytes for the inode items of directories that may have entries that are not logged.
    fn copies(&self) -> i64 {
        self.dirs as i64 * charge_for(size_of::<RawInode>())
    }

    /// Moves all items of the closure from the context to the record.
    fn take(&self, context: &Context, record: &mut FsyncRecord) {
        let mut written: SmallVec<[Written; 2]> = SmallVec::new();
        let mut stale = Vec::new();
        for (root, inode) in &self.inodes {
            let names = {
                let mut log_deps = inode.log_deps();
                fault::unless(InjectedFault::ItemsNotSynced, || {
                    let others = log_deps.take_others();
                    others.for_each(|vector| record.take(context, &vector));
                });
                let mut more = log_deps.take_more();
                record.data.join(more.unlisted);
                written.extend(more.written.drain(..));
                let names = || std::mem::take(&mut log_deps.names);
                fault::or(InjectedFault::NamesNotSynced, names, SmallVec::new)
            };
            for change in names {
                if let Some(vector) = &change.vector {
                    record.take(context, vector);
                }
                let Some(dir) = self.inode((*root, change.dir)) else {
                    continue;
                };
                let mut log_deps = dir.log_deps();
                let children = log_deps.enter(self.seq).children();
                children.logged(&change);
                if children.is_stale() {
                    stale.push((*root, dir.clone()));
                }
            }
        }
        stale.iter().for_each(|(root, dir)| self.unlist(*root, dir));
        for (root, inode) in &self.inodes {
            if !(self.data_only.contains(&(*root, inode.ino)) && inode.log_deps().times_only) {
                take_inode(*root, inode, context, record);
            }
        }
        fault::unless(InjectedFault::DataUntold, || {
            self.check_data(&written, record);
        });
    }

    /// Removes those children from a directory's list whose entries are logged already.
    fn unlist(&self, root: u32, dir: &Inode) {
        let mut inodes = {
            let mut log_deps = dir.log_deps();
            match log_deps.enter(self.seq).children() {
                children if children.is_stale() => std::mem::take(&mut children.inodes),
                _ => return,
            }
        };
        inodes.retain(|child| {
            let is_named = |child: Arc<Inode>| {
                let log_deps = child.log_deps();
                log_deps.is_of(self.seq) && log_deps.names.iter().any(|name| name.dir == dir.ino)
            };
            self.inode((root, *child)).is_some_and(is_named)
        });
        dir.log_deps().enter(self.seq).children().inodes = inodes;
    }

    /// Adds checksums of data that is not durable to the record, if there is little of it.
    /// Otherwise the data must be durable before the record.
    fn check_data(&self, written: &[Written], record: &mut FsyncRecord) {
        let lost = |w: &&Written| !self.storage.is_flushed(w.stamp.get());
        let mut checks = Vec::new();
        let (mut stamps, mut blocks) = (Stamps::default(), 0);
        for run in written.iter().filter(lost) {
            push_check(&mut checks, run.block, &run.crcs);
            stamps.add(run.stamp.get());
            blocks += run.crcs.len();
        }
        let charge = charge_for(checks.len());
        let together = blocks <= MOST_CHECKED && !self.journal.is_ablated(Mechanism::OneFlush);
        if together && self.journal.ring().try_take(charge) {
            record.paid += charge;
            record.checks = checks;
        } else {
            record.data.join(stamps);
        }
    }
}

/// Adds an inode item to the record. If entries of a directory are not logged, a copy that does not
/// count them is added instead.
fn take_inode(root: u32, inode: &Inode, context: &Context, record: &mut FsyncRecord) {
    let mut log_deps = inode.log_deps();
    let Some(vector) = log_deps.inode.clone().filter(|v| !v.is_logged()) else {
        return;
    };
    let left = log_deps.children.as_deref().filter(|c| c.pending > 0);
    let copy = left.and_then(|children| omit_children(root, &vector, children));
    match copy {
        Some(copy) => {
            vector.set_known();
            record.vectors.push(copy);
        }
        None => {
            record.take(context, &vector);
            log_deps.inode = None;
        }
    }
}

/// The roots of requests and of moved directories, which have changes and so are open.
fn roots_of(core: &Core, requests: &[Request], moved: &[Place]) -> SmallVec<[Arc<ItemStore>; 2]> {
    let mut roots: SmallVec<[Arc<ItemStore>; 2]> = SmallVec::new();
    for request in requests {
        if roots
            .iter()
            .all(|items| items.root() != request.items.root())
        {
            roots.push(request.items.clone());
        }
    }
    for (root, _) in moved {
        if roots.iter().all(|items| items.root() != *root) {
            roots.extend(core.items_of(*root));
        }
    }
    roots
}

/// Files for which every request is data-only.
fn data_only(requests: &[Request]) -> Vec<Place> {
    let full = |place: Place| {
        let mut of_inode = requests.iter().filter(|w| w.place() == place);
        of_inode.any(|w| !w.data_only && !is_injected(InjectedFault::TimesNotSynced))
    };
    let files = requests.iter().map(Request::place);
    files.filter(|place| !full(*place)).collect()
}

/// A directory's inode item as it would be without the entries that are not logged.
fn omit_children(root: u32, vector: &LogVector, children: &Children) -> Option<Arc<LogVector>> {
    let mut raw = vector.with(|value| RawInode::read_from_bytes(value?).ok())?;
    if !is_injected(InjectedFault::CountsAhead) {
        raw.size = U64::new(raw.size.get().saturating_add_signed(-children.size));
        let links = i64::from(raw.nlink.get()) - children.links;
        raw.nlink = U32::new(links.max(0) as u32);
    }
    let change = Change::Put(raw.as_bytes());
    Some(LogVector::new(root, vector.key(), vector.seq(), &change))
}

/// Takes the closure of `requests` out of the context, or asks for the whole context if the
/// closure is too large or the log has no space for it.
pub(super) fn gather(core: &Core, requests: &[Request], context: &Context) -> Gathered {
    let journal = &*core.journal;
    if journal.is_ablated(Mechanism::FsyncClosure) {
        return Gathered::Context;
    }
    let entries = !is_injected(InjectedFault::EntriesNotSynced);
    let moved = context.take_moved();
    let mut followed = ClosureWalk {
        roots: roots_of(core, requests, &moved),
        storage: &core.storage,
        journal,
        seq: context.seq,
        inodes: SmallVec::new(),
        seen: HashMap::default(),
        todo: requests
            .iter()
            .map(|w| (w.place(), entries))
            .chain(moved.into_iter().map(|place| (place, false)))
            .collect(),
        data_only: data_only(requests),
        dirs: 0,
        context,
    };
    let copies = if followed.close() {
        followed.copies()
    } else {
        return Gathered::Context;
    };
    if !journal.ring().try_take(copies) {
        return Gathered::Context;
    }
    let mut record = FsyncRecord {
        seq: context.seq,
        paid: copies,
        ..FsyncRecord::default()
    };
    followed.take(context, &mut record);
    let inodes = followed.inodes.len() as u64;
    let counted = &journal.counters().fsync_inodes;
    counted.fetch_add(inodes, Ordering::Relaxed);
    Gathered::FsyncRecord(record)
}
