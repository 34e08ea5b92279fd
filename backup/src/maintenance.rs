//! Work on a backup beside its shipments: merging layers, and deleting what no moment needs.
//!
//! A [`Job`] is handed to another thread, so that a moment never waits for it. It uses no writer: what it
//! stores has the epoch of the writer, what it deletes was named by that one's heads, or is of an earlier
//! epoch, so that nobody can name it any longer. Contents are deleted only some time after no head names
//! them, for the sake of programs that still read them. A prune has the same deleted in its own thread
//! ([`Maintenance::settle`]). What earlier programs have left is as old as the heads in the store say, by the
//! store's own clock. Uses the writer, the store and compaction.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::compact::{self, Merge};
use crate::error::Result;
use crate::format::head::Layer;
use crate::format::{MAX_HEADS, head_number, layer_of};
use crate::search::{Anchor, named_by};
use crate::store::{Listed, Store};
use crate::watch::Watch;
use crate::writer::{Writer, layer_path, unnamed};

/// Objects that are deleted before it is asked again whether to go on.
const TOGETHER: usize = 1000;

/// Objects that no head names.
#[derive(Debug, Clone, Default)]
pub(crate) struct Waste {
    names: Vec<String>,
    bytes: u64,
}

impl Waste {
    fn of_layers(layers: &[Layer]) -> Self {
        Self {
            names: layers.iter().flat_map(Layer::object_names).collect(),
            bytes: layers.iter().map(|layer| layer.bytes).sum(),
        }
    }

    fn listed<'a>(objects: impl Iterator<Item = &'a Listed>) -> Self {
        let mut waste = Self::default();
        for found in objects {
            waste.names.push(layer_path(found));
            waste.bytes += found.size;
        }
        waste
    }

    /// Their bytes, and how many there are.
    pub fn size(&self) -> (u64, u64) {
        (self.bytes, self.names.len() as u64)
    }
}

/// What a shipper knows of the work that is left.
#[derive(Default)]
pub(crate) struct Maintenance {
    /// The epoch that it is about.
    epoch: Option<u64>,
    /// Whether it was looked for what earlier ones have left.
    has_looked: bool,
    /// Objects that no head names, and since when; without a time for so long that they can go.
    waste: VecDeque<(Option<Instant>, Waste)>,
}

/// Work that needs no writer.
pub struct Job {
    epoch: u64,
    work: Work,
}

enum Work {
    Merge(Merge),
    /// Finds the layers that no head names, and that no writer can name any longer.
    Look {
        store: Arc<Store>,
        anchor: Anchor,
        named: BTreeSet<String>,
        grace: Duration,
    },
    Delete {
        store: Arc<Store>,
        waste: Waste,
    },
}

/// What a job has done.
pub struct Done {
    epoch: u64,
    result: Outcome,
}

enum Outcome {
    Merged {
        old: Vec<Layer>,
        new: Vec<Layer>,
    },
    /// Waste that can go, and younger waste.
    Found(Waste, Waste),
    Deleted(Waste),
}

impl Job {
    /// A merge of layers of the newest moment, if it has too many.
    pub(crate) fn merge(writer: &Writer) -> Option<Self> {
        let work = Work::Merge(Merge::due(writer)?);
        let epoch = writer.epoch()?;
        Some(Self { epoch, work })
    }

    /// Does it.
    ///
    /// # Errors
    /// The store fails, or `watch` ends it. It can be done again.
    pub fn run(&self, watch: &dyn Watch) -> Result<Done> {
        let result = match &self.work {
            Work::Merge(merge) => Outcome::Merged {
                old: merge.layers().to_vec(),
                new: merge.run(watch)?,
            },
            Work::Look {
                store,
                anchor,
                named,
                grace,
            } => {
                let listed = store.list("layers", usize::MAX)?;
                let left = unnamed(&listed, self.epoch.saturating_sub(1), |name| {
                    named.contains(name)
                });
                let old = Old::find(store, anchor, *grace)?;
                let (old, young): (Vec<_>, Vec<_>) = left.partition(|found| old.has(found));
                for folder in ["layers", "gone", ""] {
                    store.sweep(folder);
                }
                Outcome::Found(
                    Waste::listed(old.into_iter()),
                    Waste::listed(young.into_iter()),
                )
            }
            Work::Delete { store, waste } => {
                for some in waste.names.chunks(TOGETHER) {
                    watch.go_on()?;
                    store.delete(some)?;
                }
                Outcome::Deleted(waste.clone())
            }
        };
        Ok(Done {
            epoch: self.epoch,
            result,
        })
    }
}

/// Which objects that no head names now were named by none for some time either.
enum Old {
    All,
    None,
    /// Those of earlier epochs than this one that are not among these layers.
    Before(u64, BTreeSet<String>),
}

impl Old {
    /// Those that were named by none for `grace`.
    ///
    /// The newest head that is so old tells what was named then. What it does not name, and what is of an
    /// earlier epoch than the head behind it, has been named by none since: a head names only layers of its
    /// own epoch anew, and once there is the head of a later epoch, there are none of an earlier one. Ages
    /// are those of heads, as the store tells them, compared with the newest one, which is not older than
    /// now. If all heads are younger, or the old one cannot be read, nothing is old.
    fn find(store: &Store, anchor: &Anchor, grace: Duration) -> Result<Self> {
        if grace.is_zero() {
            return Ok(Self::All);
        }
        let listed = store.list("heads", MAX_HEADS)?;
        let heads = listed
            .iter()
            .filter_map(|found| Some((head_number(&found.name)?, found.stored)));
        let newest = heads.clone().max_by_key(|(number, _)| *number);
        let Some(limit) = newest.and_then(|(_, stored)| stored.checked_sub(grace)) else {
            return Ok(Self::None);
        };
        let old = heads.filter(|(_, stored)| *stored <= limit);
        let Some((number, _)) = old.max_by_key(|(number, _)| *number) else {
            return Ok(Self::None);
        };
        let then = named_by(store, anchor, number)?;
        let behind = named_by(store, anchor, number + 1)?;
        Ok(match (then, behind) {
            (Some(then), Some(behind)) => Self::Before(behind.epoch, then.layers),
            _ => Self::None,
        })
    }

    fn has(&self, found: &Listed) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Before(before, named) => layer_of(&found.name)
                .is_some_and(|(layer, epoch)| epoch < *before && !named.contains(layer)),
        }
    }
}

impl Done {
    /// Whether it was done for what this writer is now.
    pub(crate) fn is_of(&self, writer: &Writer) -> bool {
        writer.epoch() == Some(self.epoch)
    }

    /// Has a merge count.
    pub(crate) fn adopt(self, writer: &mut Writer) -> Result<()> {
        match self.result {
            Outcome::Merged { old, new } => compact::adopt(writer, &old, new),
            Outcome::Found(..) | Outcome::Deleted(_) => Ok(()),
        }
    }

    /// Bytes and objects that it has deleted.
    fn deleted(&self) -> (u64, u64) {
        match &self.result {
            Outcome::Deleted(waste) => waste.size(),
            Outcome::Merged { .. } | Outcome::Found(..) => (0, 0),
        }
    }
}

impl Maintenance {
    /// The next job, if there is any and the writer has begun.
    pub fn next(&mut self, writer: &mut Writer, grace: Duration) -> Result<Option<Job>> {
        self.note_dropped(writer);
        match Job::merge(writer) {
            Some(merge) => Ok(Some(merge)),
            None => self.next_of_waste(writer, grace),
        }
    }

    /// Has what can go deleted in this thread; returns its bytes and objects. What is younger is left.
    ///
    /// # Errors
    /// Another writer has begun, the store fails, or `watch` ends it.
    pub fn settle(
        &mut self,
        writer: &mut Writer,
        grace: Duration,
        watch: &dyn Watch,
    ) -> Result<(u64, u64)> {
        let (mut bytes, mut objects) = (0, 0);
        self.note_dropped(writer);
        while let Some(job) = self.next_of_waste(writer, grace)? {
            let done = job.run(watch)?;
            let deleted = done.deleted();
            bytes += deleted.0;
            objects += deleted.1;
            self.take(done, writer)?;
        }
        Ok((bytes, objects))
    }

    /// Bytes and objects of what is not old enough yet.
    pub fn left(&self) -> (u64, u64) {
        let sizes = self.waste.iter().map(|(_, waste)| waste.size());
        sizes.fold((0, 0), |sum, size| (sum.0 + size.0, sum.1 + size.1))
    }

    /// What the heads of this writer do not name any longer is waste from now on.
    fn note_dropped(&mut self, writer: &mut Writer) {
        let Some(epoch) = writer.epoch() else {
            return;
        };
        if self.epoch != Some(epoch) {
            // What an earlier epoch's heads have dropped may be named again by that of a repair.
            *self = Self {
                epoch: Some(epoch),
                ..Self::default()
            };
        }
        let dropped = writer.catalogue_mut().take_dropped();
        self.add(Some(Instant::now()), Waste::of_layers(&dropped));
    }

    fn next_of_waste(&self, writer: &Writer, grace: Duration) -> Result<Option<Job>> {
        let Some(epoch) = writer.epoch() else {
            return Ok(None);
        };
        let store = Arc::clone(writer.store());
        let can_go = |since: &Option<Instant>| since.is_none_or(|since| since.elapsed() >= grace);
        let work = if !self.has_looked {
            Work::Look {
                store,
                anchor: writer.catalogue().anchor().clone(),
                named: writer.catalogue().layer_names(),
                grace,
            }
        } else if let Some((_, waste)) = self.waste.front().filter(|(since, _)| can_go(since)) {
            writer.check()?;
            let waste = waste.clone();
            Work::Delete { store, waste }
        } else {
            return Ok(None);
        };
        Ok(Some(Job { epoch, work }))
    }

    /// Deletes at once what no head names; returns how many objects these were.
    pub fn delete_waste(&mut self, writer: &Writer) -> Result<u64> {
        let named = writer.catalogue().layer_names();
        let waste = self.waste.drain(..).flat_map(|(_, waste)| waste.names);
        let is_named = |name: &String| {
            let object = name.strip_prefix("layers/").and_then(layer_of);
            object.is_some_and(|(layer, _)| named.contains(layer))
        };
        let names: Vec<String> = waste.filter(|name| !is_named(name)).collect();
        writer.store().delete(&names)?;
        Ok(names.len() as u64)
    }

    /// In the order in which it can go.
    fn add(&mut self, since: Option<Instant>, waste: Waste) {
        if waste.names.is_empty() {
            return;
        }
        match since {
            Some(_) => self.waste.push_back((since, waste)),
            None => self.waste.push_front((since, waste)),
        }
    }

    /// Takes over what a job has done.
    pub fn take(&mut self, done: Done, writer: &mut Writer) -> Result<()> {
        match done.result {
            Outcome::Found(old, young) => {
                self.has_looked = true;
                self.add(None, old);
                self.add(Some(Instant::now()), young);
            }
            Outcome::Deleted(_) => drop(self.waste.pop_front()),
            Outcome::Merged { .. } => done.adopt(writer)?,
        }
        Ok(())
    }
}
