//! The committed item list (CIL): the open context, how commits add to it, and a context's life.
//!
//! A commit holds the context lock shared from its first vector to its last. A push and the
//! collection of a dependency closure take it exclusively: a push just long enough to swap in a new
//! context, the collection until it has followed all dependencies. Each committer adds its new
//! vectors to one shard of the list with one lock acquisition.
//!
//! # The life of a context
//!
//! | From | To | Caused by, under | Durable then |
//! |---|---|---|---|
//! | | open | opening a volume ([`Cil::new`]), or the swap that closes the context before | nothing of it |
//! | open | open, fuller | a commit, under a shared hold | nothing of it |
//! | open | open, partly logged | an fsync record: gathered under [`Cil::still`], written in a turn | the record, after its flush |
//! | open | closed | a push, a merge, a change of roots, a mount record: [`Cil::try_swap`] under all locks of the list, and a turn at the head with it | nothing more |
//! | open | open | the caller's part of the swap fails | nothing more |
//! | closed | placed | `write_apart` in its turn's order, under the head's lock; or record by record, with the head held | data that it refers to, unless it is staged |
//! | closed | written, without a record | all items were cancelled or are logged | nothing more |
//! | placed | written | all its records and all earlier turns' are written; `note_written` with the head held | data that it refers to |
//! | written | durable | any flush that begins later ([`super::Journal::flush`]) | all its records |
//! | durable | merged | the superblock of the merge whose boundary includes it; then the tail moves | in the index |
//! | closed, placed | lost | a write fails or panics: the volume fails, and nothing is written after it | what was before |
//!
//! 1. One context is open, the same under every lock, and the next one's sequence is one more.
//! 2. Places are given in the order of the turns, so records stand in the order of sequences.
//! 3. Contexts become written in the same order: [`super::Written`] never goes back.
//! 4. The records of a context or fsync take no more log space than was reserved for them.
//! 5. No record lies over the part of the log from the tail on.
//! 6. A vector is in one record at most: an fsync takes over its charge once, and its context leaves
//!    it out.
//! 7. The contents are taken only when the context is closed: no commit holds it any more.

use std::convert::Infallible;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use smallvec::SmallVec;

use crate::journal::vector::LogVector;
use crate::space::BlockRun;
use cairnfs_disk::device::DataStamp;
use cairnfs_disk::shard::{Pruned, Unsummed, thread_shard};
use cairnfs_disk::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use cairnfs_disk::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

const SHARDS: usize = if cfg!(shuttle) { 2 } else { 16 };

/// Log bytes that a shard accumulates before it adds them to the context's sum.
const STEP: i64 = 4096;

#[derive(Default)]
struct Shard {
    vectors: Pruned<Arc<LogVector>>,
    freed: Vec<BlockRun>,
    /// Log bytes of its entries.
    charged: i64,
    /// The part of `charged` that is not yet in the context's sum.
    unsummed: Unsummed,
    /// Vectors added so far, dead ones included.
    added: u64,
    /// Vectors that died and were dropped from the list.
    died: u64,
}

/// An open set of committed changes.
pub struct Context {
    /// Its sequence number.
    pub seq: u64,
    /// The newest merge takes all contexts up to this sequence, and no later change.
    pub boundary: u64,
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    /// Sum of the shards' charges in log bytes; each shard may hold back up to [`STEP`].
    charged: CachePadded<AtomicI64>,
    data_stamp: CachePadded<AtomicU64>,
    staged: AtomicBool,
    moved: Mutex<Vec<(u32, u64)>>,
}

impl Context {
    fn new(seq: u64, boundary: u64) -> Self {
        Self {
            seq,
            boundary,
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            charged: CachePadded::new(AtomicI64::new(0)),
            data_stamp: CachePadded::new(AtomicU64::new(0)),
            staged: AtomicBool::new(false),
            moved: Mutex::default(),
        }
    }

    /// Adds a transaction's new vectors and freed runs, and accounts `charge`, the log bytes of its
    /// changes. Takes one lock.
    pub fn insert(
        &self,
        vectors: &mut SmallVec<[Arc<LogVector>; 8]>,
        freed: &mut SmallVec<[BlockRun; 4]>,
        charge: i64,
    ) -> Filled {
        let (mut due, mut changes) = (charge, 0);
        if let Some(shard) = self.shards.get(thread_shard(SHARDS)) {
            let mut shard = shard.lock();
            shard.added += vectors.len() as u64;
            changes = shard.added;
            let useless = shard.vectors.extend(vectors.drain(..), |v| !v.is_live());
            shard.died += useless.iter().filter(|v| !v.is_logged()).count() as u64;
            shard.freed.extend(freed.drain(..));
            shard.charged += charge;
            due = shard.unsummed.add(charge, STEP);
        }
        let charged = match due {
            0 => self.charged.load(Ordering::Relaxed),
            more => self.charged.fetch_add(more, Ordering::AcqRel) + more,
        };
        Filled { charged, changes }
    }

    /// Requires data written up to `stamp` to be durable before this context is logged.
    pub fn needs_data(&self, stamp: u64) {
        if stamp == DataStamp::WAITING {
            self.staged.store(true, Ordering::Release);
        } else {
            self.data_stamp.fetch_max(stamp, Ordering::AcqRel);
        }
    }

    /// Whether an entry of this context refers to staged data.
    pub fn has_staged(&self) -> bool {
        self.staged.load(Ordering::Acquire)
    }

    /// The stamp of the newest data that an entry of this context refers to.
    pub fn data_stamp(&self) -> u64 {
        self.data_stamp.load(Ordering::Acquire)
    }

    /// Accounts log bytes that [`Self::insert`] did not.
    pub fn charge(&self, bytes: i64) {
        if let Some(shard) = self.shards.first() {
            shard.lock().charged += bytes;
        }
        self.charged.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Records that the directory `ino` of a root was moved.
    pub fn moved(&self, root: u32, ino: u64) {
        self.moved.lock().push((root, ino));
    }

    /// Takes the directories that were moved since the last call: roots and inode numbers.
    pub fn take_moved(&self) -> Vec<(u32, u64)> {
        std::mem::take(&mut *self.moved.lock())
    }

    /// Number of vectors in it; some may be dead or already logged.
    pub fn len(&self) -> usize {
        let lengths = self.shards.iter().map(|s| s.lock().vectors.len());
        lengths.sum()
    }

    /// Whether nothing was committed to it.
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(|s| {
            let s = s.lock();
            s.vectors.is_empty() && s.freed.is_empty()
        })
    }

    /// Takes the contents; allowed only once the context is closed.
    pub fn drain(&self) -> Drained {
        let mut all = Drained::default();
        all.vectors.reserve_exact(self.len());
        for shard in &self.shards {
            let mut shard = shard.lock();
            all.vectors.append(&mut shard.vectors.take());
            all.freed.append(&mut shard.freed);
            all.charged += std::mem::take(&mut shard.charged);
            all.died += std::mem::take(&mut shard.died);
        }
        all
    }
}

/// Contents of a closed context.
#[derive(Default)]
pub struct Drained {
    /// Its vectors.
    pub vectors: Vec<Arc<LogVector>>,
    /// Block runs that its changes freed.
    pub freed: Vec<BlockRun>,
    /// Log bytes of its entries.
    pub charged: i64,
    /// Vectors that died in it and were dropped before.
    pub died: u64,
}

/// Approximate fill level of a context.
#[derive(Debug, Clone, Copy, Default)]
pub struct Filled {
    /// Log bytes charged in total.
    pub charged: i64,
    /// Vectors that the threads of the caller's shard added to it, dead ones included.
    pub changes: u64,
}

/// The committed item list.
pub struct Cil {
    /// The open context, the same under each lock. A commit takes the lock of its thread's shard;
    /// a push and the collection of a closure take all of them.
    first: CachePadded<RwLock<Arc<Context>>>,
    others: Box<[CachePadded<RwLock<Arc<Context>>>]>,
}

/// A shared hold of the open context, which is not closed meanwhile.
pub struct Hold<'a>(RwLockReadGuard<'a, Arc<Context>>);

impl std::ops::Deref for Hold<'_> {
    type Target = Context;
    fn deref(&self) -> &Context {
        &self.0
    }
}

/// The open context, held exclusively: no thread commits.
pub struct Still<'a> {
    first: RwLockWriteGuard<'a, Arc<Context>>,
    _others: SmallVec<[RwLockWriteGuard<'a, Arc<Context>>; SHARDS]>,
}

impl std::ops::Deref for Still<'_> {
    type Target = Context;
    fn deref(&self) -> &Context {
        &self.first
    }
}

impl Cil {
    /// A list whose open context has the sequence `seq`.
    pub fn new(seq: u64, boundary: u64) -> Self {
        let context = Arc::new(Context::new(seq, boundary));
        let lock = || CachePadded::new(RwLock::new(context.clone()));
        Self {
            first: lock(),
            others: (1..SHARDS).map(|_| lock()).collect(),
        }
    }

    /// Holds the open context for a commit.
    pub fn hold(&self) -> Hold<'_> {
        // The fair read lock would deadlock with a waiting push if a thread that holds the context
        // took it again. No commit nests, so the fair variant is safe.
        let own = self.others.get(thread_shard(SHARDS));
        Hold(own.unwrap_or(&self.first).read())
    }

    /// Holds the open context exclusively for a short time, so that no thread commits.
    pub fn still(&self) -> Still<'_> {
        Still {
            first: self.first.write(),
            _others: self.others.iter().map(|lock| lock.write()).collect(),
        }
    }

    /// Sequence of the open context.
    pub fn seq(&self) -> u64 {
        self.first.read().seq
    }

    /// Closes the open context and opens the next; `at_swap` gets the sequence of the closed one and
    /// runs while no thread commits. With `merge`, the closed context is the last one that the
    /// coming merge takes.
    pub fn swap<R>(&self, merge: bool, at_swap: impl FnOnce(u64) -> R) -> (Arc<Context>, R) {
        let swapped = self.try_swap(merge, |seq| Ok::<R, Infallible>(at_swap(seq)));
        match swapped {
            Ok(swapped) => swapped,
            Err(never) => match never {},
        }
    }

    /// The same, if `at_swap` succeeds. Otherwise the context stays open.
    pub fn try_swap<R, E>(
        &self,
        merge: bool,
        at_swap: impl FnOnce(u64) -> Result<R, E>,
    ) -> Result<(Arc<Context>, R), E> {
        let mut first = self.first.write();
        let mut others: SmallVec<[_; SHARDS]> = self.others.iter().map(|l| l.write()).collect();
        let seq = first.seq;
        let swapped = at_swap(seq)?;
        let boundary = if merge { seq } else { first.boundary };
        let next = Arc::new(Context::new(seq + 1, boundary));
        for other in &mut others {
            assert!(other.seq == seq, "context invariant 1: one is open");
            **other = next.clone();
        }
        let closed = std::mem::replace(&mut *first, next);
        Ok((closed, swapped))
    }
}
