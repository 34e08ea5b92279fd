//! Work on a backup beside its shipments: merging layers, and deleting what no moment needs.
//!
//! A [`Job`] is handed to another thread, so that a moment never waits for it. It uses no writer: what it
//! stores has the epoch of the writer, what it deletes was named by that one's heads, or is of an earlier
//! epoch, so that nobody can name it any longer. Contents are deleted only some time after no head names
//! them, for the sake of programs that still read them. Uses the writer, the store and compaction.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::compact::{self, Merge};
use crate::error::Result;
use crate::format::head::Layer;
use crate::format::{layer_of, object_name};
use crate::store::Store;
use crate::watch::Watch;
use crate::writer::{Writer, layer_path, unnamed};

/// Objects that are deleted before it is asked again whether to go on.
const TOGETHER: usize = 1000;

/// What a shipper knows of the work that is left.
#[derive(Default)]
pub(crate) struct Care {
    /// The epoch that it is about.
    epoch: Option<u64>,
    /// Whether it was looked for what earlier ones have left.
    has_looked: bool,
    /// Objects that no head names, and since when.
    waste: VecDeque<(Instant, Vec<String>)>,
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
        named: BTreeSet<String>,
    },
    Delete {
        store: Arc<Store>,
        names: Vec<String>,
    },
}

/// What a job has done.
pub struct Done {
    epoch: u64,
    result: Outcome,
}

enum Outcome {
    Merged { old: Vec<Layer>, new: Vec<Layer> },
    Found(Vec<String>),
    Deleted,
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
            Work::Look { store, named } => {
                let listed = store.list("layers", usize::MAX)?;
                let left = unnamed(&listed, self.epoch.saturating_sub(1), |name| {
                    named.contains(name)
                });
                for folder in ["layers", "gone", ""] {
                    store.sweep(folder);
                }
                Outcome::Found(left.map(layer_path).collect())
            }
            Work::Delete { store, names } => {
                for some in names.chunks(TOGETHER) {
                    watch.go_on()?;
                    store.delete(some)?;
                }
                Outcome::Deleted
            }
        };
        Ok(Done {
            epoch: self.epoch,
            result,
        })
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
            Outcome::Found(_) | Outcome::Deleted => Ok(()),
        }
    }
}

impl Care {
    /// The next job, if there is any and the writer has begun.
    pub fn next(&mut self, writer: &mut Writer, grace: Duration) -> Result<Option<Job>> {
        let Some(epoch) = writer.epoch() else {
            return Ok(None);
        };
        if self.epoch != Some(epoch) {
            // What an earlier epoch's heads have dropped may be named again by that of a repair.
            *self = Self {
                epoch: Some(epoch),
                ..Self::default()
            };
        }
        let dropped = writer.catalogue_mut().take_dropped();
        self.add(dropped.iter().flat_map(objects).collect());
        if let Some(merge) = Job::merge(writer) {
            return Ok(Some(merge));
        }
        let store = Arc::clone(writer.store());
        let work = if !self.has_looked {
            let named = writer.catalogue().layer_names();
            Work::Look { store, named }
        } else if let Some((_, names)) = self.waste.front().filter(|(at, _)| at.elapsed() >= grace)
        {
            writer.check()?;
            let names = names.clone();
            Work::Delete { store, names }
        } else {
            return Ok(None);
        };
        Ok(Some(Job { epoch, work }))
    }

    /// Deletes at once what no head names; returns whether there was anything.
    pub fn delete_waste(&mut self, writer: &Writer) -> Result<bool> {
        let named = writer.catalogue().layer_names();
        let waste = self.waste.drain(..).flat_map(|(_, names)| names);
        let is_named = |name: &String| {
            let object = name.strip_prefix("layers/").and_then(layer_of);
            object.is_some_and(|(layer, _)| named.contains(layer))
        };
        let names: Vec<String> = waste.filter(|name| !is_named(name)).collect();
        writer.store().delete(&names)?;
        Ok(!names.is_empty())
    }

    fn add(&mut self, names: Vec<String>) {
        if !names.is_empty() {
            self.waste.push_back((Instant::now(), names));
        }
    }

    /// Takes over what a job has done.
    pub fn take(&mut self, done: Done, writer: &mut Writer) -> Result<()> {
        match done.result {
            Outcome::Found(names) => {
                self.has_looked = true;
                self.add(names);
            }
            Outcome::Deleted => drop(self.waste.pop_front()),
            Outcome::Merged { .. } => done.adopt(writer)?,
        }
        Ok(())
    }
}

fn objects(layer: &Layer) -> impl Iterator<Item = String> + '_ {
    (0..layer.objects()).map(|object| object_name(&layer.name, object))
}
