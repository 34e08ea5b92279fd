//! Checking a backup: that everything that is kept is there, and is what was stored.
//!
//! Heads and their chain, the index of each layer, and for each moment that its layers have the blocks
//! it should have. With contents, all objects are read and every hash is compared; frames are decoded as
//! well, if they can be. Damage is collected; a store that fails ends the check. Uses the catalogue,
//! images and the store.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::catalogue::Catalogue;
use crate::error::{Error, Result};
use crate::format::head::Layer;
use crate::format::layer::Index;
use crate::format::{Hash, MAX_OBJECT, layer_of, object_name};
use crate::image::{check_layers, read_index, verify_object};
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
    /// Objects of these.
    pub objects: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Objects that nothing needs.
    pub garbage_objects: u64,
    /// Bytes of these.
    pub garbage_bytes: u64,
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
    let moments = catalogue.moments().iter();
    let used = moments.flat_map(|moment| catalogue.layers_of(moment));
    let used: BTreeMap<u64, &Layer> = used.map(|layer| (layer.number, layer)).collect();
    let mut check = Check {
        store,
        catalogue,
        report: Report::default(),
    };
    check.heads(watch)?;
    check.presence(&used)?;
    if contents {
        watch.expect(used.values().map(|layer| layer.bytes).sum());
    }
    let mut indexes = BTreeMap::new();
    for (number, layer) in &used {
        watch.go_on()?;
        let index = read_index(store, layer);
        let Some(index) = check.found(index)? else {
            continue;
        };
        if contents {
            let read = read_layer(store, (layer, &index), seal, watch);
            check.found(read)?;
        }
        indexes.insert(*number, index);
    }
    check.moments(&indexes)?;
    Ok(check.report)
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

    /// All objects are there with their sizes; others are garbage.
    fn presence(&mut self, used: &BTreeMap<u64, &Layer>) -> Result<()> {
        let mut sizes: BTreeMap<String, u64> = BTreeMap::new();
        let names: BTreeSet<&str> = used.values().map(|layer| layer.name.as_str()).collect();
        for found in self.store.list("layers", usize::MAX)? {
            match layer_of(&found.name).is_some_and(|(layer, _)| names.contains(layer)) {
                true => {
                    sizes.insert(format!("layers/{}", found.name), found.size);
                }
                false => {
                    self.report.garbage_objects += 1;
                    self.report.garbage_bytes += found.size;
                }
            }
        }
        for layer in used.values() {
            self.report.layers += 1;
            let mut bytes = 0;
            for name in layer.object_names() {
                self.report.objects += 1;
                match sizes.get(&name) {
                    Some(size) => bytes += size,
                    None => self.report.problems.push(Error::Missing(name).to_string()),
                }
            }
            self.report.bytes += bytes;
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
            match layers {
                Some(layers) => {
                    let checked = check_layers(layers, moment);
                    self.found(checked)?;
                }
                None => self.report.problems.push(format!(
                    "moment {} of {} cannot be restored",
                    moment.number, moment.checkpoint
                )),
            }
        }
        Ok(())
    }
}

/// Reads all objects of a layer, and compares every hash.
fn read_layer(
    store: &Store,
    (layer, index): (&Layer, &Index),
    seal: &Seal,
    watch: &dyn Watch,
) -> Result<()> {
    let mut hashes = Vec::new();
    for number in 0..layer.objects() {
        let name = object_name(&layer.name, number);
        let found = store.get(&name, MAX_OBJECT)?;
        let bytes: Bytes = found.ok_or_else(|| Error::Missing(name))?;
        hashes.push(Hash::of(&bytes));
        verify_object((layer, index), number, &bytes, seal)?;
        watch.done(bytes.len() as u64);
        watch.go_on()?;
    }
    match Hash::of_all(&hashes) == layer.hash {
        true => Ok(()),
        false => Err(Error::damaged(
            format!("layers/{}", layer.name),
            "the objects have other hashes than they had",
        )),
    }
}
