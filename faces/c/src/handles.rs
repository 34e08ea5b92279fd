//! Handles: numbers that stand for open objects.
//!
//! A number has the index of a slot in its lower half, and the generation of that slot in its upper
//! half. A slot changes its generation when its object is closed, so an old number never reaches a
//! new object; 0 is never a handle. Slots are spread over shards with a lock each, held only while
//! a reference is copied: a call in progress keeps its object when another thread closes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cairnfs::{File, Volume};
use parking_lot::RwLock;

use crate::entries::{Entries, Listing};
use crate::error::{Failure, Outcome};

/// An open volume, or a branch or snapshot of one, by its number; 0 is none.
pub type cairnfs_volume = u64;

/// An open file, by its number; 0 is none.
pub type cairnfs_file = u64;

/// An open listing of a directory, by its number; 0 is none.
pub type cairnfs_dir = u64;

/// A report of changes or conflicts, by its number; 0 is none.
pub type cairnfs_report = u64;

const CLOSED: Failure = Failure::new(
    libc::EBADF,
    "the handle is closed, of another kind, or was never opened",
);
const VOLUME_CLOSED: Failure = Failure::new(libc::EBADF, "the volume of the handle is closed");

/// An open volume, or a branch of one.
pub(crate) struct OpenVolume {
    pub volume: Volume,
    closed: AtomicBool,
    /// Of a branch, the volume that was opened first; its end is that of the branch.
    main: Option<Arc<OpenVolume>>,
}

impl OpenVolume {
    pub(crate) fn new(volume: Volume) -> Self {
        Self {
            volume,
            closed: AtomicBool::new(false),
            main: None,
        }
    }

    /// A branch or snapshot of an open volume.
    pub(crate) fn branch(volume: Volume, of: &Arc<Self>) -> Self {
        let main = of.main.as_ref().unwrap_or(of);
        Self {
            volume,
            closed: AtomicBool::new(false),
            main: Some(Arc::clone(main)),
        }
    }

    /// Ends the handle: closes the volume, but a branch only for itself.
    pub(crate) fn close(&self) -> cairnfs::Result<()> {
        self.closed.store(true, Ordering::Release);
        match &self.main {
            None => self.volume.clone().close(),
            Some(_) => Ok(()),
        }
    }

    fn check(&self) -> Outcome<()> {
        let main = self.main.as_ref();
        let mut ends = main
            .into_iter()
            .map(|main| &main.closed)
            .chain([&self.closed]);
        if ends.any(|closed| closed.load(Ordering::Acquire)) {
            Err(VOLUME_CLOSED)
        } else {
            Ok(())
        }
    }
}

/// Something of an open volume: a file, a listing or a report.
pub(crate) struct Part<T> {
    pub part: T,
    pub of: Arc<OpenVolume>,
}

/// An open file.
pub(crate) type OpenFile = Part<File>;

/// An open listing.
pub(crate) type OpenListing = Part<Listing>;

/// An open report.
pub(crate) type OpenReport = Part<Entries>;

/// The kinds of objects.
pub(crate) trait Kind: Sized {
    /// The object, if it is of this kind.
    fn of(object: &Stored) -> Option<&Arc<Self>>;
    /// The object in its slot.
    fn store(self) -> Stored;
    /// Refuses an object whose volume is closed.
    fn check(&self) -> Outcome<()>;
}

/// The object in a slot: one variant for each kind, with what checks its volume.
macro_rules! kinds {
    ($($variant:ident($kind:ident): |$object:ident| $check:expr,)*) => {
        pub(crate) enum Stored {
            $($variant(Arc<$kind>),)*
        }

        $(impl Kind for $kind {
            fn of(object: &Stored) -> Option<&Arc<Self>> {
                match object {
                    Stored::$variant(object) => Some(object),
                    _ => None,
                }
            }

            fn store(self) -> Stored {
                Stored::$variant(Arc::new(self))
            }

            fn check(&self) -> Outcome<()> {
                let $object = self;
                $check
            }
        })*
    };
}

kinds! {
    Volume(OpenVolume): |volume| OpenVolume::check(volume),
    File(OpenFile): |file| file.of.check(),
    Listing(OpenListing): |listing| listing.of.check(),
    Report(OpenReport): |report| report.of.check(),
}

const SHARDS: usize = 64;

/// The slots of a shard. Each lock has a cache line of its own.
#[repr(align(64))]
struct Shard(RwLock<Slots>);

struct Slots {
    slots: Vec<Slot>,
    free: Vec<usize>,
}

struct Slot {
    generation: u32,
    object: Option<Stored>,
}

/// All open objects of the process.
struct Table {
    shards: [Shard; SHARDS],
    /// The shard of the next object.
    next: AtomicUsize,
}

static TABLE: Table = Table::new();

impl Table {
    const fn new() -> Self {
        Self {
            shards: [const {
                Shard(RwLock::new(Slots {
                    slots: Vec::new(),
                    free: Vec::new(),
                }))
            }; SHARDS],
            next: AtomicUsize::new(0),
        }
    }

    /// The shard of a handle, its slot in that shard, and its generation.
    fn place(&self, handle: u64) -> Outcome<(&Shard, usize, u32)> {
        let index = (handle & u64::from(u32::MAX)) as usize;
        let shard = self.shards.get(index % SHARDS).ok_or(CLOSED)?;
        Ok((shard, index / SHARDS, (handle >> 32) as u32))
    }

    fn insert(&self, object: Stored) -> Outcome<u64> {
        let number = self.next.fetch_add(1, Ordering::Relaxed) % SHARDS;
        let shard = self.shards.get(number).ok_or(CLOSED)?;
        let mut slots = shard.0.write();
        let at = match slots.free.pop() {
            Some(at) => at,
            None => {
                slots.slots.push(Slot {
                    generation: 1,
                    object: None,
                });
                slots.slots.len() - 1
            }
        };
        let index = u32::try_from(at * SHARDS + number);
        let index = index.map_err(|_| Failure::new(libc::EMFILE, "too many open handles"))?;
        let slot = slots.slots.get_mut(at).ok_or(CLOSED)?;
        slot.object = Some(object);
        Ok(u64::from(slot.generation) << 32 | u64::from(index))
    }

    fn get<T: Kind>(&self, handle: u64) -> Outcome<Arc<T>> {
        let (shard, at, generation) = self.place(handle)?;
        let slots = shard.0.read();
        let slot = slots.slots.get(at).filter(|s| s.generation == generation);
        let object = slot.and_then(|s| s.object.as_ref()).ok_or(CLOSED)?;
        T::of(object).cloned().ok_or(CLOSED)
    }

    fn remove<T: Kind>(&self, handle: u64) -> Outcome<Arc<T>> {
        let (shard, at, generation) = self.place(handle)?;
        let mut slots = shard.0.write();
        let slot = slots.slots.get_mut(at).ok_or(CLOSED)?;
        let found = slot.object.as_ref().and_then(T::of).cloned();
        let found = found.filter(|_| slot.generation == generation);
        let found = found.ok_or(CLOSED)?;
        let object = slot.object.take();
        // After the last generation a slot is not used again.
        if let Some(generation) = slot.generation.checked_add(1) {
            slot.generation = generation;
            slots.free.push(at);
        }
        drop(slots);
        drop(object);
        Ok(found)
    }
}

/// A handle for a new object.
pub(crate) fn insert(object: impl Kind) -> Outcome<u64> {
    TABLE.insert(object.store())
}

/// The open object of a handle.
pub(crate) fn get<T: Kind>(handle: u64) -> Outcome<Arc<T>> {
    let object: Arc<T> = TABLE.get(handle)?;
    object.check()?;
    Ok(object)
}

/// An open volume.
pub(crate) fn volume(handle: cairnfs_volume) -> Outcome<Arc<OpenVolume>> {
    get(handle)
}

/// An open file.
pub(crate) fn file(handle: cairnfs_file) -> Outcome<Arc<OpenFile>> {
    get(handle)
}

/// Closes a handle; its object is dropped with the last call in progress.
pub(crate) fn remove<T: Kind>(handle: u64) -> Outcome<Arc<T>> {
    TABLE.remove(handle)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object() -> Stored {
        OpenVolume::new(Volume::in_memory(16 << 20).unwrap()).store()
    }

    #[test]
    fn closed_handles_and_handles_of_other_kinds_are_refused() {
        let table = Table::new();
        let handle = table.insert(object()).unwrap();
        assert_ne!(handle, 0);
        assert!(table.get::<OpenVolume>(handle).is_ok());
        assert!(table.get::<OpenFile>(handle).is_err());
        assert!(table.remove::<OpenFile>(handle).is_err());
        table.remove::<OpenVolume>(handle).unwrap();
        assert!(table.get::<OpenVolume>(handle).is_err());
        assert!(table.remove::<OpenVolume>(handle).is_err());
        for wild in [0, 1, u64::MAX, handle + 1, handle ^ 1 << 40] {
            assert!(table.get::<OpenVolume>(wild).is_err());
            assert!(table.remove::<OpenVolume>(wild).is_err());
        }
    }

    #[test]
    fn slot_is_used_again_with_another_generation_until_the_last() {
        let table = Table::new();
        let first = table.insert(object()).unwrap();
        table.remove::<OpenVolume>(first).unwrap();
        table.next.store(0, Ordering::Relaxed);
        let second = table.insert(object()).unwrap();
        assert_eq!(first as u32, second as u32, "the same slot");
        assert!(table.get::<OpenVolume>(first).is_err());
        assert!(table.get::<OpenVolume>(second).is_ok());

        table.shards[0].0.write().slots[0].generation = u32::MAX;
        let last = u64::from(u32::MAX) << 32 | u64::from(second as u32);
        table.remove::<OpenVolume>(last).unwrap();
        table.next.store(0, Ordering::Relaxed);
        let third = table.insert(object()).unwrap();
        assert_ne!(first as u32, third as u32, "a slot beyond its generations");
        assert!(table.get::<OpenVolume>(last).is_err());
    }
}
