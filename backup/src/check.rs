//! Checking a backup: that everything that is kept is there, and is what was stored.
//!
//! Heads and their chain, the index of each layer, and for each moment that its layers have the blocks
//! it should have. With contents, all objects are read and every hash is compared; frames are decoded as
//! well, if they can be. Damage is collected; a store that fails ends the check. Uses the catalogue,
//! images and the store.

use std::collections::{BTreeMap, BTreeSet};

use crate::catalogue::Catalogue;
use crate::error::{Error, Result};
use crate::format::head::Layer;
use crate::format::layer::Index;
use crate::format::{Hash, MAX_OBJECT, layer_of, object_name};
use crate::image::{check_layers, read_index, verify_object};
use crate::losses::{DamagedMoment, Losses};
use crate::runs::Blocks;
use crate::seal::Seal;
use crate::search::for_each_pair;
use crate::store::Store;
use crate::watch::Watch;

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Damage, in words.
    pub problems: Vec<String>,
    /// Heads that were checked, each with its copy.
    pub heads: u64,
    /// Moments that are kept.
    pub moments: u64,
    /// Layers that they need.
    pub layers: u64,
    /// Objects of these layers.
    pub objects: u64,
    /// Bytes of these objects.
    pub bytes: u64,
    /// Objects that nothing needs.
    pub garbage_objects: u64,
    /// Bytes of these objects.
    pub garbage_bytes: u64,
    /// The moments of which not everything can be read, as far as that was looked at.
    pub damaged: Vec<DamagedMoment>,
    /// The parts of their layers that cannot be read.
    pub losses: Losses,
    /// Damage of layers, in words, that takes nothing of any moment: later layers cover it.
    pub covered: Vec<String>,
}

/// Checks a backup whose catalogue could be opened; `contents`: reads all objects, too.
///
/// # Errors
/// The store fails, or the check was interrupted.
pub fn check(
    store: &Store,
    catalogue: &Catalogue,
    seal: &Seal,
    contents: bool,
    watch: &dyn Watch,
) -> Result<Report> {
    look((store, catalogue, seal), contents, Losses::default(), watch)
}

/// The same without contents, of which it is known what cannot be read.
pub fn check_without(
    store: &Store,
    catalogue: &Catalogue,
    losses: Losses,
    watch: &dyn Watch,
) -> Result<Report> {
    look((store, catalogue, &Seal::default()), false, losses, watch)
}

fn look(
    (store, catalogue, seal): (&Store, &Catalogue, &Seal),
    contents: bool,
    losses: Losses,
    watch: &dyn Watch,
) -> Result<Report> {
    let moments = catalogue.moments().iter();
    let used = moments.flat_map(|moment| catalogue.layers_of(moment));
    let used: BTreeMap<u64, &Layer> = used.map(|layer| (layer.number, layer)).collect();
    let mut check = Check {
        store,
        catalogue,
        report: Report {
            losses,
            ..Report::default()
        },
    };
    check.heads(watch)?;
    check.presence(&used, contents)?;
    if contents {
        watch.expect(used.values().map(|layer| layer.bytes).sum());
    }
    let mut indexes = BTreeMap::new();
    for (number, layer) in &used {
        watch.go_on()?;
        let index = read_index(store, layer);
        let Some(index) = check.found(index)? else {
            check.report.losses.lose_index(*number);
            continue;
        };
        if contents {
            check.read_layer((layer, &index), seal, watch)?;
        }
        indexes.insert(*number, index);
    }
    check.moments(&indexes)?;
    let mut report = check.report;
    if !report.damaged.is_empty() {
        report.problems.append(&mut report.covered);
    }
    Ok(report)
}

struct Check<'a> {
    store: &'a Store,
    catalogue: &'a Catalogue,
    report: Report,
}

impl Check<'_> {
    /// Takes damage down.
    fn found<T>(&mut self, result: Result<T>) -> Result<Option<T>> {
        match result {
            Ok(found) => Ok(Some(found)),
            Err(why) if why.is_damage() => {
                self.report.problems.push(why.to_string());
                Ok(None)
            }
            Err(why) => Err(why),
        }
    }

    /// Takes damage of a part of a layer down, which may turn out to be covered.
    fn lost<T>(&mut self, result: Result<T>, lose: impl FnOnce(&mut Losses)) -> Result<Option<T>> {
        match result {
            Ok(found) => Ok(Some(found)),
            Err(why) if why.is_damage() => {
                let text = why.to_string();
                // What is missing is met again when it is read.
                if !self.report.covered.contains(&text) {
                    self.report.covered.push(text);
                }
                lose(&mut self.report.losses);
                Ok(None)
            }
            Err(why) => Err(why),
        }
    }

    /// Reads all objects of a layer, and compares every hash.
    fn read_layer(
        &mut self,
        (layer, index): (&Layer, &Index),
        seal: &Seal,
        watch: &dyn Watch,
    ) -> Result<()> {
        let (mut hashes, mut is_whole) = (Vec::new(), true);
        for number in 0..layer.objects() {
            watch.go_on()?;
            let name = object_name(&layer.name, number);
            let found = self.store.get(&name, MAX_OBJECT);
            let found = found.and_then(|found| found.ok_or(Error::Missing(name)));
            let lose = |losses: &mut Losses| losses.lose_object(layer.number, number);
            let Some(bytes) = self.lost(found, lose)? else {
                is_whole = false;
                continue;
            };
            hashes.push(Hash::of(&bytes));
            watch.done(bytes.len() as u64);
            let verified = verify_object((layer, index), number, &bytes, seal);
            let Some((frames, why)) = self.lost(verified, lose)? else {
                is_whole = false;
                continue;
            };
            if let Some(why) = why {
                let more = match frames.len() as u64 - 1 {
                    0 => String::new(),
                    1 => ", and another frame".into(),
                    more => format!(", and {more} more frames"),
                };
                self.report.covered.push(format!("{why}{more}"));
                self.report.losses.lose_frames(layer.number, &frames);
                is_whole = false;
            }
        }
        if is_whole && Hash::of_all(&hashes) != layer.hash {
            self.report.problems.push(
                Error::damaged(
                    format!("layers/{}", layer.name),
                    "the objects have other hashes than they had",
                )
                .to_string(),
            );
        }
        Ok(())
    }

    /// Every head has the hash of the one before it, down to those that were deleted. Copies may be
    /// missing: earlier programs stored none.
    fn heads(&mut self, watch: &dyn Watch) -> Result<()> {
        let known = self.catalogue.damage().iter();
        let mut told: BTreeSet<String> = known.map(|damage| damage.object.clone()).collect();
        let problems = self.catalogue.damage().iter().map(ToString::to_string);
        self.report.problems.extend(problems);
        let Some(newest) = self.catalogue.newest() else {
            return Ok(());
        };
        let (store, anchor) = (self.store, self.catalogue.anchor());
        for_each_pair(store, anchor, (newest.number, newest.hash), |pair| {
            watch.go_on()?;
            self.report.heads += 1;
            for damage in pair.damage() {
                if told.insert(damage.object.clone()) {
                    self.report.problems.push(damage.to_string());
                }
            }
            Ok(())
        })
    }

    /// All objects are there with their sizes, which tell nothing if all are read; others are garbage.
    fn presence(&mut self, used: &BTreeMap<u64, &Layer>, are_read: bool) -> Result<()> {
        let mut sizes: BTreeMap<String, u64> = BTreeMap::new();
        let names: BTreeSet<&str> = used.values().map(|layer| layer.name.as_str()).collect();
        for found in self.store.list("layers", usize::MAX)? {
            if layer_of(&found.name).is_some_and(|(layer, _)| names.contains(layer)) {
                sizes.insert(format!("layers/{}", found.name), found.size);
            } else {
                self.report.garbage_objects += 1;
                self.report.garbage_bytes += found.size;
            }
        }
        for layer in used.values() {
            self.report.layers += 1;
            let (mut bytes, mut is_whole) = (0, true);
            for (number, name) in (0..).zip(layer.object_names()) {
                self.report.objects += 1;
                match sizes.get(&name) {
                    Some(size) => bytes += size,
                    None => {
                        is_whole = false;
                        let lose = |losses: &mut Losses| losses.lose_object(layer.number, number);
                        self.lost(Err::<(), _>(Error::Missing(name)), lose)?;
                    }
                }
            }
            self.report.bytes += bytes;
            if is_whole && !are_read && bytes != layer.bytes {
                let why = format!("its objects have {bytes} bytes, and had {}", layer.bytes);
                let damaged = Error::damaged(format!("layers/{}", layer.name), why);
                self.report.problems.push(damaged.to_string());
            }
        }
        Ok(())
    }

    fn moments(&mut self, indexes: &BTreeMap<u64, Index>) -> Result<()> {
        for moment in self.catalogue.moments() {
            self.report.moments += 1;
            let layers: Option<Vec<_>> = moment
                .layers
                .iter()
                .map(|number| indexes.get(number))
                .collect();
            let extents = match layers {
                Some(layers) => self.found(check_layers(layers, moment))?,
                None => {
                    self.report.problems.push(format!(
                        "moment {} of {} cannot be restored",
                        moment.number, moment.checkpoint
                    ));
                    None
                }
            };
            let blocks = extents.map(|extents| {
                let lost = self.report.losses.in_image(&moment.layers, &extents);
                lost.values().map(Blocks::count).sum::<u64>()
            });
            if blocks != Some(0) {
                self.report.damaged.push(DamagedMoment {
                    number: moment.number,
                    blocks,
                });
            }
        }
        Ok(())
    }
}
