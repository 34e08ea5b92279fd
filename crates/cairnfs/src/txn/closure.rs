//! The dependency closure of an fsync: what must be durable with an inode, and nothing else.
//!
//! Commits note dependencies as they come ([`Commit::name`], [`Commit::join`]); an fsync follows them from
//! its inode while nobody commits, takes what the log does not hold yet, and has it written as one
//! record. Closed transitively: the directories of each entry with their own names up to the root,
//! whatever shared a transaction, who had the name before, and the entries of a removed directory.
//! Every directory that was moved is taken along, for its way to the root may be anybody's.
//!
//! Of a directory that keeps entries that the log does not have the inode item is logged as if these did not exist:
//! it counts exactly the entries that are in the log with it.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::device::Stamps;
use crate::error::Result;
use crate::fault::{InjectedFault, is_injected};
use crate::format::item::RawInode;
use crate::format::key::{Kind, MAIN_ROOT};
use crate::format::record::push_check;
use crate::inode::log_deps::{Children, MOST_CHECKED, NameChange, Written};
use crate::inode::{Inode, InodeState};
use crate::journal::cil::Context;
use crate::journal::fsync_record::{FsyncRecord, Gathered};
use crate::journal::vector::{Change, LogVector, charge_for};
use crate::mechanism::Mechanism;
use crate::shard::IntHash;
use crate::sync::atomic::Ordering;
use crate::txn::{Commit, Core};

/// Most inodes of a record: commits wait while it is followed. A larger one is most of its context,
/// which is written instead.
const MOST: usize = 1024;

/// So many entries of a directory are followed quickly, whatever else there is.
const FEW: usize = 64;

/// A directory entry that a transaction adds or takes away.
pub struct NameAt {
    /// Its index.
    pub index: u64,
    /// Hash of its name.
    pub hash: u64,
    /// Whether it names a directory.
    pub subdir: bool,
}

/// An inode to be made durable.
#[derive(Debug, Clone, Copy)]
pub struct FsyncRequest {
    /// Its number.
    pub ino: u64,
    /// Times alone need not be.
    pub data_only: bool,
}

impl Commit<'_> {
    /// Notes that an entry of `dir` begins, or ceases, to name `child`.
    pub fn name(&mut self, dir: &Inode, state: &InodeState, child: &Inode, at: &NameAt, put: bool) {
        let seq = self.seq();
        let by = if put { 1 } else { -1 };
        let slot = state.current.get(Kind::DirIndex, at.index);
        let change = NameChange {
            dir: dir.ino,
            vector: slot.map(|s| s.vector.clone()),
            size: by,
            links: if at.subdir { by } else { 0 },
        };
        let before = {
            let mut log_deps = dir.log_deps();
            let children = log_deps.enter(seq).children();
            children.inodes.push(child.ino);
            children.pending += 1;
            children.size += i64::from(change.size);
            children.links += i64::from(change.links);
            // A name's new holder depends on its loss by the old one; so does who loses it next.
            match put {
                true if children.vacated.is_empty() => None,
                true => children.vacated.get(&at.hash).copied(),
                false => children.vacated.insert(at.hash, child.ino),
            }
        };
        let mut log_deps = child.log_deps();
        log_deps.enter(seq).names.push(change);
        let before = before.filter(|b| *b != child.ino);
        if let Some(before) = before
            && !is_injected(InjectedFault::NameDependencyLost)
        {
            log_deps.more_mut().joined.push(before);
        }
    }

    /// Notes that two inodes were changed by one transaction.
    pub fn join(&mut self, a: &Inode, b: &Inode) {
        if is_injected(InjectedFault::PartnerDependencyLost) {
            return;
        }
        let seq = self.seq();
        a.log_deps().enter(seq).more_mut().joined.push(b.ino);
        b.log_deps().enter(seq).more_mut().joined.push(a.ino);
    }

    /// Notes that a directory was removed: that depends on all changes of its entries.
    pub fn removed(&mut self, dir: &Inode) {
        dir.log_deps().enter(self.seq()).children().removed =
            !is_injected(InjectedFault::RemovalDependencyLost);
    }

    /// Notes that a directory has another place.
    pub fn moved(&mut self, dir: &Inode) {
        if !is_injected(InjectedFault::PlaceDependencyLost) {
            self.hold().moved(dir.ino);
        }
    }
}

/// The inodes of a record while it is followed.
struct ClosureWalk<'a> {
    core: &'a Core,
    seq: u64,
    inodes: SmallVec<[Arc<Inode>; 8]>,
    /// Which these are, and whether their entries are wanted.
    seen: HashMap<u64, bool, IntHash>,
    todo: SmallVec<[(u64, bool); 8]>,
    context: &'a Context,
    /// Directories that may keep entries that the log does not have.
    dirs: usize,
    /// Files whose times nobody asked for.
    data_only: Vec<u64>,
}

impl ClosureWalk<'_> {
    /// Follows all causes; `false` if there are too many.
    fn close(&mut self) -> bool {
        while let Some((ino, whole)) = self.todo.pop() {
            if !self.visit(ino, whole) || self.inodes.len() > MOST {
                return false;
            }
        }
        true
    }

    /// Adds an inode and what leads on from it; `false` if that is too much.
    fn visit(&mut self, ino: u64, whole: bool) -> bool {
        if self.seen.get(&ino).is_some_and(|w| *w || !whole) {
            return true;
        }
        let inode = self.core.table.get_or_new(ino);
        let log_deps = inode.log_deps();
        if !log_deps.is_of(self.seq) {
            return true;
        }
        let children = log_deps.children.as_deref();
        let whole = whole || children.is_some_and(|c| c.removed);
        let first = self.seen.insert(ino, whole).is_none();
        if first {
            let dirs = log_deps.names.iter().map(|n| n.dir);
            if !is_injected(InjectedFault::DirectoryDependencyLost) {
                self.todo.extend(dirs.map(|dir| (dir, false)));
            }
            let joined = log_deps.more().map_or(&[][..], |more| &more.joined);
            self.todo.extend(joined.iter().map(|other| (*other, false)));
        }
        if let Some(children) = children {
            self.dirs += usize::from(first);
            if whole && self.has_too_many(children) {
                return false;
            }
            if whole {
                let inodes = children.inodes.iter();
                self.todo.extend(inodes.map(|child| (*child, false)));
            }
        }
        drop(log_deps);
        if first {
            self.inodes.push(inode);
        }
        true
    }

    /// Whether a directory's entries are so much of the context that writing all of it costs less than
    /// to follow them. Data that is not durable would be flushed first: then it does not.
    fn has_too_many(&self, children: &Children) -> bool {
        if children.pending <= FEW || children.pending > MOST {
            return children.pending > MOST;
        }
        let context = self.context;
        let storage = &self.core.storage;
        let durable = storage.is_flushed(context.data_stamp()) && !context.has_staged();
        // With most entries an inode item is logged: these would be half of the context.
        durable && children.pending > context.len() / 4
    }

    /// Log bytes for the inode items of directories that keep entries that the log does not have.
    fn copies(&self) -> i64 {
        self.dirs as i64 * charge_for(size_of::<RawInode>())
    }

    /// Takes out of the context all that the record holds.
    fn take(&self, context: &Context, record: &mut FsyncRecord) {
        let mut written: SmallVec<[Written; 2]> = SmallVec::new();
        let mut stale = Vec::new();
        for inode in &self.inodes {
            let names = {
                let mut log_deps = inode.log_deps();
                if !is_injected(InjectedFault::ItemsNotSynced) {
                    let others = log_deps.take_others();
                    others.for_each(|vector| record.take(context, &vector));
                }
                let mut more = log_deps.take_more();
                record.data.join(more.unlisted);
                written.extend(more.written.drain(..));
                match is_injected(InjectedFault::NamesNotSynced) {
                    true => SmallVec::new(),
                    false => std::mem::take(&mut log_deps.names),
                }
            };
            for change in names {
                if let Some(vector) = &change.vector {
                    record.take(context, vector);
                }
                let dir = self.core.table.get_or_new(change.dir);
                let mut log_deps = dir.log_deps();
                let children = log_deps.enter(self.seq).children();
                children.logged(&change);
                if children.is_stale() {
                    stale.push(dir.clone());
                }
            }
        }
        stale.iter().for_each(|dir| self.unlist(dir));
        for inode in &self.inodes {
            if !(self.data_only.contains(&inode.ino) && inode.log_deps().times_only) {
                take_inode(inode, context, record);
            }
        }
        self.core.check_data(&written, record);
    }

    /// Takes children off a directory's list whose entries were logged without it.
    fn unlist(&self, dir: &Inode) {
        let mut inodes = {
            let mut log_deps = dir.log_deps();
            match log_deps.enter(self.seq).children() {
                children if children.is_stale() => std::mem::take(&mut children.inodes),
                _ => return,
            }
        };
        inodes.retain(|child| {
            let child = self.core.table.get_or_new(*child);
            let log_deps = child.log_deps();
            log_deps.is_of(self.seq) && log_deps.names.iter().any(|name| name.dir == dir.ino)
        });
        dir.log_deps().enter(self.seq).children().inodes = inodes;
    }
}

/// Takes an inode item; if entries are left to count, as it is without them.
fn take_inode(inode: &Inode, context: &Context, record: &mut FsyncRecord) {
    let mut log_deps = inode.log_deps();
    let Some(vector) = log_deps.inode.clone().filter(|v| !v.is_logged()) else {
        return;
    };
    let left = log_deps.children.as_deref().filter(|c| c.pending > 0);
    let copy = left.and_then(|children| omit_children(&vector, children));
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

/// Files whose requests all do without their times.
fn data_only(requests: &[FsyncRequest]) -> Vec<u64> {
    let without = is_injected(InjectedFault::TimesNotSynced);
    let full = |ino: u64| {
        requests
            .iter()
            .any(|w| w.ino == ino && !w.data_only && !without)
    };
    let files = requests.iter().map(|w| w.ino);
    files.filter(|ino| !full(*ino)).collect()
}

/// A directory's inode item as it is without the entries that are not logged.
fn omit_children(vector: &LogVector, children: &Children) -> Option<Arc<LogVector>> {
    let mut raw = vector.with(|value| RawInode::read_from_bytes(value?).ok())?;
    if !is_injected(InjectedFault::CountsAhead) {
        raw.size = U64::new(raw.size.get().saturating_add_signed(-children.size));
        let links = i64::from(raw.nlink.get()) - children.links;
        raw.nlink = U32::new(links.max(0) as u32);
    }
    let change = Change::Put(raw.as_bytes());
    Some(LogVector::new(
        MAIN_ROOT,
        vector.key(),
        vector.seq(),
        &change,
    ))
}

impl Core {
    /// Has data that is not durable checked with the record, if that is little enough.
    fn check_data(&self, written: &[Written], record: &mut FsyncRecord) {
        if is_injected(InjectedFault::DataUntold) {
            return;
        }
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

    /// Makes inodes durable, with all they depend on, and of directories also their entries. What
    /// others changed meanwhile stays where it is.
    ///
    /// # Errors
    /// The device's failure, now or earlier.
    pub fn force_inodes(&self, inodes: &[FsyncRequest]) -> Result<()> {
        let counters = self.journal.counters();
        let requests = inodes.len() as u64;
        counters.fsyncs.fetch_add(requests, Ordering::Relaxed);
        let apart = self.journal.is_ablated(Mechanism::OneFlush);
        for request in inodes {
            let inode = self.table.get_or_new(request.ino);
            if self.journal.is_ablated(Mechanism::AttributesKnown) {
                self.search(&inode, &inode.read(), Kind::Xattr)?;
            }
            let stamp = match apart {
                true => self.storage.stamp(),
                false => inode.log_deps().more().map_or(0, |m| m.unlisted.made),
            };
            // Holding no lock, so that others go on and share the flush.
            self.journal.data_first(stamp)?;
        }
        let result = match self.batches.join(inodes) {
            Ok(result) => result,
            Err(batch) => {
                let journal = &self.journal;
                let gather = |context: &Context| self.gather(&batch.close(), context);
                let written = journal.write_fsync_record(self, gather);
                batch.end(written.and_then(|written| journal.flush_written(&written)))
            }
        };
        Self::has_waited();
        result
    }

    /// Takes what is to be made durable out of the context.
    fn gather(&self, requests: &[FsyncRequest], context: &Context) -> Gathered {
        if self.journal.is_ablated(Mechanism::FsyncClosure) {
            return Gathered::Context;
        }
        let entries = !is_injected(InjectedFault::EntriesNotSynced);
        let moved = context.take_moved().into_iter().map(|ino| (ino, false));
        let mut followed = ClosureWalk {
            core: self,
            seq: context.seq,
            inodes: SmallVec::new(),
            seen: HashMap::default(),
            todo: requests
                .iter()
                .map(|w| (w.ino, entries))
                .chain(moved)
                .collect(),
            data_only: data_only(requests),
            dirs: 0,
            context,
        };
        let copies = match followed.close() {
            true => followed.copies(),
            false => return Gathered::Context,
        };
        if !self.journal.ring().try_take(copies) {
            return Gathered::Context;
        }
        let mut record = FsyncRecord {
            seq: context.seq,
            paid: copies,
            ..FsyncRecord::default()
        };
        followed.take(context, &mut record);
        let inodes = followed.inodes.len() as u64;
        let counted = &self.journal.counters().fsync_inodes;
        counted.fetch_add(inodes, Ordering::Relaxed);
        Gathered::FsyncRecord(record)
    }
}
