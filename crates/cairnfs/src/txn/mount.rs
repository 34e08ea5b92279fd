//! Opening a volume: superblock, log, replay, and the mount record.
//!
//! When a volume is opened for changes, the device is flushed before its content is trusted, and
//! the mount record is durable before anything else is written. So the data that a killed
//! predecessor left in the device's cache is in a known state. When it is opened read-only, the
//! device is never written: the log is replayed in memory, and if that needs more memory than the
//! budget, the merges write to an [`Overlay`].

use std::sync::Arc;

use arc_swap::ArcSwap;
use crossbeam_utils::CachePadded;
use zerocopy::little_endian::U64;

use crate::data::DataStore;
use crate::device::{AlignedBuf, Device, Overlay, Storage};
use crate::error::{Corruption, Error, Result};
use crate::fault::{self, InjectedFault};
use crate::format::geometry::SUPERBLOCK_SLOTS;
use crate::format::item::decode_root;
use crate::format::key::{Key, Kind, MAIN_ROOT};
use crate::format::superblock::{
    KNOWN_INCOMPATIBLE, KNOWN_RO_COMPATIBLE, MAGIC, RENAMED_ENTRIES, RawSuperblock, Superblock,
    absent,
};
use crate::format::{BLOCK_SIZE, NODE_BLOCKS, ROOT_INO};
use crate::index::{Index, Tree};
use crate::inode::table::InodeTable;
use crate::journal::Journal;
use crate::journal::recover::{Scan, scan};
use crate::journal::signals::Signals;
use crate::mechanism::Mechanism;
use crate::shard::Sharded;
use crate::source::Source;
use crate::space::{Space, TableState};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use crate::txn::fsync::Batches;
use crate::txn::reservation_cache::{Credit, ReservationCaches};
use crate::txn::{Core, Limits, Trees};
use crate::values::Values;

/// How a volume is opened.
#[derive(Debug, Clone, Copy)]
pub struct OpenMode {
    /// Whether the device must not be written.
    pub read_only: bool,
    /// Whether the log is replayed. Otherwise the volume is in the state of its last merge, and
    /// must be read-only.
    pub recovery: bool,
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
            discard: false,
            limits,
            seed: Some(1),
            kernel_clock: false,
            ablated: None,
        }
    }
}

/// The newest superblock, and whether the other slot is invalid.
#[derive(Debug, Clone, Copy)]
pub struct Identity {
    /// The newest valid superblock.
    pub superblock: Superblock,
    /// Whether the other slot holds no valid superblock.
    pub other_lost: bool,
}

/// Reads the superblocks.
///
/// # Errors
/// [`Error::NotAVolume`] if neither slot looks like a superblock; [`Error::Corrupt`] if one does
/// but none is valid; [`Error::Incompatible`] for unknown incompatible features; the device's
/// failure.
pub fn read_superblock(device: &dyn Device) -> Result<Identity> {
    let mut newest: Option<Superblock> = None;
    let mut damage: Option<Corruption> = None;
    let mut lost = false;
    for block in SUPERBLOCK_SLOTS {
        let offset = block * BLOCK_SIZE as u64;
        let mut bytes = AlignedBuf::zeroed(BLOCK_SIZE);
        if offset + BLOCK_SIZE as u64 > device.size() {
            return Err(absent(device.size()));
        }
        device.read(offset, &mut bytes)?;
        match RawSuperblock::decode(block, &bytes) {
            Ok(s) => {
                if newest.is_none_or(|n| n.generation.get() < s.generation.get()) {
                    newest = Some(s);
                }
            }
            Err(c) => {
                lost = true;
                if bytes.get(..MAGIC.len()) == Some(&MAGIC) {
                    damage = Some(c);
                }
            }
        }
    }
    let superblock = match (newest, damage) {
        (Some(s), _) => s,
        (None, Some(c)) => return Err(c.into()),
        (None, None) => {
            return Err(absent(device.size()));
        }
    };
    check_features(&superblock)?;
    Ok(Identity {
        superblock,
        other_lost: lost,
    })
}

/// The error for a device that is shorter than its volume, if it is; `next` is the advice to give.
fn cut_off(superblock: &Superblock, device: &dyn Device, next: &'static str) -> Option<Error> {
    let size = superblock.total_blocks.get() * BLOCK_SIZE as u64;
    let left = device.size();
    (left < size).then_some(Error::CutOff { size, left, next })
}

/// Advice for a volume that was cut off and whose log and roots are readable.
const READ_THE_REST: &str = "`cairnfs export` and `cairnfs mount -o ro` read what is left";
/// Advice for one whose log or roots are not.
const NOTHING_LEFT: &str = "what is left is too little to find any file";

fn check_features(superblock: &Superblock) -> Result<()> {
    let unknown = superblock.incompatible.get() & !KNOWN_INCOMPATIBLE;
    if unknown != 0 {
        return Err(Error::Incompatible(format!(
            "incompatible features {unknown:#x}; update CairnFS to open it"
        )));
    }
    Ok(())
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
            mode.recovery || mode.read_only,
            "changes to a volume whose log was not replayed"
        );
        let base_device = device.clone();
        let device = match mode.read_only {
            true => Arc::new(Overlay::new(device)),
            false => device,
        };
        let storage = Arc::new(Storage::new(device));
        if !mode.read_only {
            fault::unless(InjectedFault::MountWithoutFlush, || storage.flush_now())?;
        }
        let identity = read_superblock(&*storage)?;
        let superblock = identity.superblock;
        if let Some(cut) = cut_off(&superblock, &*storage, READ_THE_REST) {
            match mode.read_only {
                // Reads beyond the end fail like any other failed read.
                true => tracing::warn!("{cut}"),
                false => return Err(Self::cut_off_for_changes(base_device, mode, cut)),
            }
        }
        let lost = cut_off(&superblock, &*storage, NOTHING_LEFT);
        let opened = Self::open_found(storage, &identity, mode).and_then(|core| match &lost {
            Some(_) => core.inode(ROOT_INO).map(|_| core),
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
    fn open_found(storage: Arc<Storage>, identity: &Identity, mut mode: OpenMode) -> Result<Self> {
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
        let found = match mode.recovery {
            true => scan(&*storage, &superblock, identity.other_lost)?,
            false => Scan::skipped(&superblock),
        };
        let core = Self::assemble(storage, superblock, &found, mode)?;
        if !mode.read_only {
            let journal = &core.journal;
            fault::unless(InjectedFault::MountRecordMissing, || {
                journal.write_mount_record()
            })?;
        }
        core.replay(&found)?;
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

    /// Sets the features that the log will use in the superblock, before any change.
    fn mark_features(&self) -> Result<()> {
        let marked = self.superblock().incompatible.get() & RENAMED_ENTRIES != 0;
        match marked || self.read_only {
            true => Ok(()),
            false => self.flip(|superblock| superblock.incompatible |= U64::new(RENAMED_ENTRIES)),
        }
    }

    fn assemble(
        storage: Arc<Storage>,
        superblock: Superblock,
        found: &Scan,
        mode: OpenMode,
    ) -> Result<Self> {
        let geometry = superblock.geometry();
        let device: Arc<dyn Device> = storage.clone();
        let volume_id = superblock
            .uuid
            .first_chunk::<8>()
            .map_or(0, |c| u64::from_le_bytes(*c));
        let data_blocks = geometry.data_start()..geometry.total_blocks;
        let index = Index::new(device.clone(), volume_id, data_blocks, mode.limits.nodes);
        let volume = Tree {
            ptr: superblock.root,
            height: superblock.root_height.get(),
        };
        let main = main_tree(&index, &volume, superblock.root.block.get())?;
        let space = Space::open(
            device,
            geometry,
            TableState {
                copy: superblock.table_copy.get() as u8,
                crc: superblock.table_crc.get(),
                free_blocks: superblock.free_blocks.get(),
            },
        )?;
        let batch = Credit {
            log: (geometry.log_blocks as i64 * BLOCK_SIZE as i64 / 1024).min(BATCH_LOG),
            units: (geometry.total_blocks / NODE_BLOCKS / 4096).clamp(1, BATCH_UNITS),
        };
        let tail = superblock.tail_lsn.get();
        let signals = Arc::new(Signals::default());
        let mut source = Source::new(mode.seed);
        if mode.kernel_clock {
            source = source.with_kernel_clock()?;
        }
        let journal = Journal::new(
            storage.clone(),
            &superblock,
            fault::or(InjectedFault::SameNonce, || source.random(), || Ok(1))?,
            found.end,
            found.last_seq + 1,
            signals.clone(),
        )
        .ablate(mode.ablated);
        Ok(Self {
            data: DataStore::new(storage.clone(), mode.limits.data),
            values: Values::new(superblock.hash_seed.get(), mode.limits.values),
            storage,
            geometry,
            source,
            hash_seed: superblock.hash_seed.get(),
            read_only: mode.read_only,
            discard: mode.discard,
            limits: mode.limits,
            next_ino: AtomicU64::new(superblock.next_ino.get()),
            superblock: Mutex::new(superblock),
            trees: ArcSwap::from_pointee(Trees { volume, main }),
            index,
            space,
            journal,
            signals,
            table: InodeTable::new(mode.limits.inodes),
            name_memory: Default::default(),
            named: Default::default(),
            dirty: Sharded::default(),
            orphaned: AtomicBool::new(false),
            fsyncs_in_progress: CachePadded::default(),
            dirty_bytes: CachePadded::new(AtomicI64::new(0)),
            sealed_bytes: AtomicI64::new(0),
            reservation_caches: ReservationCaches::new(batch, mode.limits.dirty_soft / 64),
            pending_free: CachePadded::new(AtomicI64::new(0)),
            shrinking: AtomicU64::new(0),
            batches: Batches::default(),
            replayed: (found.end.lsn - tail) * BLOCK_SIZE as u64,
            merging: Mutex::default(),
            starved: AtomicBool::new(false),
            made: AtomicU64::new(0),
            packed_to: Mutex::default(),
            pack_after: AtomicU64::new(0),
            merge_times: Default::default(),
        })
    }
}

/// The main tree, read from the volume's root.
fn main_tree(index: &Index, volume: &Tree, block: u64) -> Result<Tree> {
    let key = Key::new(u64::from(MAIN_ROOT), Kind::Root, 0);
    let bad = |found: String| Error::corrupt(block, "root item", "the tree of the files", found);
    let value = index
        .get(volume, &key)?
        .ok_or_else(|| bad("nothing".into()))?;
    let root = decode_root(&value).map_err(bad)?;
    Ok(Tree {
        ptr: root.ptr,
        height: root.height.get(),
    })
}
