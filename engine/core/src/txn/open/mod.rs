//! Opening a volume: superblock, log, replay, and the mount record.
//!
//! When a volume is opened for changes, the device is flushed before its content is trusted, and
//! the mount record is durable before anything else is written. So the data that a killed
//! predecessor left in the device's cache is in a known state. When it is opened read-only, the
//! device is never written: the log is replayed in memory, and if that needs more memory than the
//! budget, the merges write to an [`Overlay`].
//!
//! What the device holds is found by [`identity`]; the parts are built here; [`replay`] fills them
//! through their interfaces; [`copies`] reserves space for what that changes.
//!
//! # The life of an opening
//!
//! One thread opens, and no other has the volume. *For changes* each step is durable before the next;
//! *read-only* the steps marked with ° are left out, and merges write to the overlay.
//!
//! | From | To | Step | Durable then |
//! |---|---|---|---|
//! | closed | flushed ° | `Storage::flush_now` | all that the device took before |
//! | flushed | identified | [`read_superblock`]: the newest valid one of any place | |
//! | identified | scanned | [`scan`]: where the log ends; without recovery, at its tail | |
//! | scanned | mended ° | `Identity::mend`, then a flush | the newest superblock, in every place |
//! | mended | recorded ° | `Journal::write_mount_record` | a mount record: what was behind it never counts |
//! | recorded | replayed | [`Replay::run`]: dirty sets, and merges at changes of roots and between passes | their superblocks, with the old tail |
//! | replayed | marked ° | `Core::mark_features` | a superblock with the features that the log will use |
//! | marked | open | a merge, if the log is half full ° | its superblock, with the new tail |
//! | open | closed | the last handle, or a kill | what was forced |
//! | any | refused | damage, an unknown feature, a failed device: nothing is written before *mended* | |
//!
//! 1. A volume is opened for changes only if its whole log is replayed.
//! 2. The log continues at or behind the tail, and with a sequence after the merged one.
//! 3. Before the mount record is durable, only copies of the newest superblock are written.
//! 4. A crash in any state leads to the same files: the next opening finds the old log or its merge.

mod copies;
mod identity;
mod older;
mod replay;
mod unapplied;

use std::sync::Arc;

use zerocopy::little_endian::U64;

use crate::data::DataStore;
use crate::index::Index;
use crate::journal::Journal;
use crate::journal::recover::{Scan, scan};
use crate::journal::signals::Signals;
use crate::source::Source;
use crate::space::{Class, Space, TableState};
use crate::txn::ablation::LoggedWhole;
use crate::txn::checkpoint::Checkpoints;
use crate::txn::damage::Cuts;
use crate::txn::drop::Drops;
use crate::txn::fsync::Fsyncs;
use crate::txn::heads::Heads;
use crate::txn::items::SharedByTrees;
use crate::txn::mark::DurableMark;
use crate::txn::merge::Merger;
use crate::txn::reservations::{Credit, Reservations};
use crate::txn::roots::Roots;
use crate::txn::superblocks::{Superblocks, volume_tree};
use crate::txn::{Core, Limits};
use crate::values::Values;
use cairnfs_disk::device::{Device, Overlay, Storage};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::fault::{self, InjectedFault};
use cairnfs_disk::format::geometry::Geometry;
use cairnfs_disk::format::superblock::{COPIES, KNOWN_RO_COMPATIBLE, RENAMED_ENTRIES, Superblock};
use cairnfs_disk::format::{BLOCK_SIZE, NODE_BLOCKS, ROOT_INO};
use cairnfs_disk::mechanism::Mechanism;
use cairnfs_disk::sync::atomic::AtomicU64;

use self::identity::{Identity, NOTHING_LEFT, READ_THE_REST, cut_off};
use self::replay::Replay;
pub use identity::{find_copies, newest_at_front, read_superblock};

/// How a volume is opened.
#[derive(Debug, Clone, Copy)]
pub struct OpenMode {
    /// Whether the device must not be written.
    pub read_only: bool,
    /// Whether the log is replayed. Otherwise the volume is in the state of its last merge, and
    /// must be read-only.
    pub recovery: bool,
    /// Whether a damaged log is replayed up to the damage; the volume must be read-only.
    pub damaged_log: bool,
    /// Whether damaged nodes that must be changed are cut out of the index. Only for
    /// [`Core::remove_damage`]; other changes of the volume fail or are wrong.
    pub cuts_damaged: bool,
    /// Whether freed space is discarded on the device.
    pub discard: bool,
    /// How the memory budget is divided.
    pub limits: Limits,
    /// Seed from which times and random numbers are derived; `None` for the system's.
    pub seed: Option<u64>,
    /// Whether times are taken from the kernel's clock for files.
    pub kernel_clock: bool,
    /// A mechanism to ablate.
    pub ablated: Option<Mechanism>,
}

#[cfg(test)]
impl OpenMode {
    /// Mode for tests of the engine: reproducible, for changes.
    pub fn seeded(limits: Limits) -> Self {
        Self {
            read_only: false,
            recovery: true,
            damaged_log: false,
            cuts_damaged: false,
            discard: false,
            limits,
            seed: Some(1),
            kernel_clock: false,
            ablated: None,
        }
    }
}

/// Largest batch of log bytes and index units that a reservation cache takes at once.
const BATCH_LOG: i64 = 64 << 10;
const BATCH_UNITS: u64 = 16;

impl Core {
    /// Opens a volume and replays its log.
    ///
    /// # Errors
    /// Errors of [`read_superblock`]; [`Error::CutOff`], unless opened read-only; damage in the log
    /// or the index; the device's failure.
    pub fn open(device: Arc<dyn Device>, mode: OpenMode) -> Result<Self> {
        assert!(
            mode.read_only || mode.recovery && !mode.damaged_log,
            "opening invariant 1: changes to a volume whose log was not replayed"
        );
        let base_device = device.clone();
        let device = if mode.read_only {
            Arc::new(Overlay::new(device))
        } else {
            device
        };
        let storage = Arc::new(Storage::new(device));
        if !mode.read_only {
            fault::unless(InjectedFault::MountWithoutFlush, || storage.flush_now())?;
        }
        let identity = read_superblock(&*storage)?;
        let superblock = identity.superblock;
        if !mode.read_only {
            identity.refuse_foreign()?;
        }
        if let Some(cut) = cut_off(&superblock, &*storage, READ_THE_REST) {
            if mode.read_only {
                // Reads beyond the end fail like any other failed read.
                tracing::warn!("{cut}")
            } else {
                return Err(Self::cut_off_for_changes(base_device, mode, cut));
            }
        }
        let lost = cut_off(&superblock, &*storage, NOTHING_LEFT);
        let opened = Self::open_newest(storage, identity, mode).and_then(|core| match &lost {
            Some(_) => core
                .open_root(core.main_root())?
                .inode(ROOT_INO)
                .map(|_| core),
            None => Ok(core),
        });
        opened.map_err(|e| lost.filter(|_| matches!(e, Error::Io { .. })).unwrap_or(e))
    }

    /// The error for opening a cut-off volume for changes: `cut` if the volume can be opened
    /// read-only, which is tried.
    fn cut_off_for_changes(device: Arc<dyn Device>, mode: OpenMode, cut: Error) -> Error {
        let read_only = OpenMode {
            read_only: true,
            ..mode
        };
        match Self::open(device, read_only) {
            Err(lost @ Error::CutOff { .. }) => lost,
            _ => cut,
        }
    }

    /// Opens the volume of a superblock.
    fn open_found(
        storage: Arc<Storage>,
        mut identity: Identity,
        mut mode: OpenMode,
    ) -> Result<Self> {
        let superblock = identity.superblock;
        let unknown = superblock.ro_compatible.get() & !KNOWN_RO_COMPATIBLE;
        if unknown != 0 {
            if !mode.read_only {
                return Err(Error::Incompatible(format!(
                    "features {unknown:#x} that allow reading only; open it read-only, or update CairnFS"
                )));
            }
            // An unknown feature may record the free space differently, so no merge may allocate,
            // not even in an overlay.
            mode.limits.replay = i64::MAX;
        }
        let found = if mode.recovery {
            scan(
                &*storage,
                &superblock,
                identity.other_lost,
                mode.damaged_log,
            )?
        } else {
            Scan::skipped(&superblock)
        };
        let mut core = Self::assemble(storage, superblock, &found, mode)?;
        if !mode.read_only {
            // Before a record names the generation: otherwise a front that is lost then would be
            // missed, although the copies have the state before.
            if identity.mend(&*core.storage)? {
                core.storage.flush_now()?;
            }
        }
        core.front = identity.front;
        if let Some(front) = &core.front {
            tracing::warn!("{front}");
        }
        if !mode.read_only {
            let journal = &core.journal;
            fault::unless(InjectedFault::MountRecordMissing, || {
                journal.write_mount_record()
            })?;
        }
        Replay::new(&core).run(&found)?;
        if !mode.read_only && !mode.cuts_damaged {
            copies::reserve_copies(&core)?;
        }
        if !mode.read_only && core.roots.are_several() {
            core.drops.keep_units(&core.space, Class::Merge)?;
        }
        core.mark_features()?;
        let ring = core.journal.ring();
        if !mode.read_only && ring.free() < ring.capacity() / 2 {
            // Mounts that are killed before their own first merge must not fill the log. A merge
            // that finds no space is repeated later, when deletions have freed some.
            match core.merge() {
                Err(Error::NoSpace | Error::HostFull { .. }) => {}
                done => done?,
            }
        }
        Ok(core)
    }

    /// Sets the features that the log will use in the superblock, before any change, and gives a
    /// volume of an earlier version copies of its superblock, if it has space for them.
    fn mark_features(&self) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        let found = self.superblocks.newest();
        let marked = found.incompatible.get() & RENAMED_ENTRIES != 0;
        let copies = self.superblocks.claim_copies(&self.geometry)?;
        if marked && copies.is_none() {
            return Ok(());
        }
        if let Some(units) = copies {
            self.mark_units(units)?;
        }
        self.superblocks.flip(|superblock| {
            superblock.incompatible |= U64::new(RENAMED_ENTRIES);
            if let Some(units) = copies {
                superblock.ro_compatible |= U64::new(COPIES);
                superblock.copies = units.map(U64::new);
            }
        })?;
        match copies {
            Some(_) => self.superblocks.fill_copies(),
            None => Ok(()),
        }
    }

    /// Builds the parts of a volume from its superblock and the end of its log.
    fn assemble(
        storage: Arc<Storage>,
        superblock: Superblock,
        found: &Scan,
        mode: OpenMode,
    ) -> Result<Self> {
        let mut limits = mode.limits;
        let geometry = superblock.geometry();
        let merges = found.contexts.iter().any(|context| context.roots);
        let space = open_space(storage.clone(), &superblock, mode.read_only, merges)?;
        let blocks = geometry.data_start()..space.end();
        let index = Index::new(storage.clone(), id_of(&superblock), blocks, limits.nodes);
        let index = Arc::new(index);
        let volume = volume_tree(&superblock);
        let roots = Roots::read(&index, &volume, superblock.root.block.get());
        let roots = roots.map_err(older::no_roots)?;
        if mode.read_only && space.is_unread() {
            // No merge finds a free block.
            limits.replay = i64::MAX;
        }
        let space = Arc::new(space);
        let signals = Arc::new(Signals::default());
        let mut source = Source::new(mode.seed);
        if mode.kernel_clock {
            source = source.with_kernel_clock()?;
        }
        let nonce = fault::or(InjectedFault::SameNonce, || source.random(), || Ok(1))?;
        let (end, next) = (found.end, found.last_seq + 1);
        assert!(
            end.lsn >= superblock.tail_lsn.get() && next > superblock.merged_seq.get(),
            "opening invariant 2: the log continues behind what is merged"
        );
        let journal = Journal::new(
            storage.clone(),
            &superblock,
            nonce,
            end,
            next,
            (limits.pushes, signals.clone()),
        );
        let journal = Arc::new(journal.ablate(mode.ablated));
        let hash_seed = superblock.hash_seed.get();
        let once = mode.ablated != Some(Mechanism::ValuesOnce);
        let values = Arc::new(Values::new(hash_seed, limits.values).once(once));
        let shared = SharedByTrees {
            storage: storage.clone(),
            geometry,
            hash_seed,
            index: index.clone(),
            values: values.clone(),
        };
        let held_back = limits.dirty_soft / 64;
        let reservations = Reservations::new(
            space.clone(),
            journal.clone(),
            batch_of(&geometry),
            held_back,
        );
        let superblocks =
            Superblocks::new(storage.clone(), space.clone(), journal.clone(), superblock);
        Ok(Self {
            heads: Heads::new(shared, &limits),
            roots,
            reservations,
            merger: Merger::default(),
            drops: Drops::default(),
            checkpoints: Checkpoints::found(&superblock),
            fsyncs: Fsyncs::default(),
            logged_whole: LoggedWhole::default(),
            superblocks,
            mark: DurableMark::found(found.marked),
            lost: found.lost.clone(),
            data: DataStore::new(storage.clone(), limits.data),
            storage,
            geometry,
            read_only: mode.read_only,
            cuts_damaged: mode.cuts_damaged,
            cuts: Cuts::default(),
            merged_before: superblock.merged_seq.get(),
            left_out: AtomicU64::new(0),
            discard: mode.discard,
            limits,
            index,
            space,
            values,
            source,
            journal,
            signals,
            replayed: (end.lsn - superblock.tail_lsn.get()) * BLOCK_SIZE as u64,
            front: None,
            older: None,
        })
    }
}

/// The part of a volume's UUID that its nodes have.
fn id_of(superblock: &Superblock) -> u64 {
    superblock
        .uuid
        .first_chunk::<8>()
        .map_or(0, |c| u64::from_le_bytes(*c))
}

/// The allocator, from the group table that belongs to the superblock. If the log has changes of roots
/// it `merges`: then all bitmaps are verified.
fn open_space(
    device: Arc<dyn Device>,
    superblock: &Superblock,
    read_only: bool,
    merges: bool,
) -> Result<Space> {
    let table = TableState {
        copy: superblock.table_copy.get() as u8,
        crc: superblock.table_crc.get(),
        free_blocks: superblock.free_blocks.get(),
    };
    let geometry = superblock.geometry();
    if read_only {
        return Space::open_for_reading(device, geometry, table, merges);
    }
    let space = Space::open(device, geometry, table)?;
    if merges {
        space.verify_all()?;
    } else {
        space.verify_first()?;
    }
    Ok(space)
}

/// What a reservation cache takes at once.
fn batch_of(geometry: &Geometry) -> Credit {
    Credit {
        log: (geometry.log_blocks as i64 * BLOCK_SIZE as i64 / 1024).min(BATCH_LOG),
        units: (geometry.total_blocks / NODE_BLOCKS / 4096).clamp(1, BATCH_UNITS),
    }
}
