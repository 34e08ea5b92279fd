//! What a backup has: its moments and layers, from the newest head and the whole one that it adds to.
//!
//! The newest head is the one with the greatest number; a listing that does not show the last ones yet is
//! completed by asking for the next numbers. Reading needs no key. Uses the store and the format.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::format::head::{Base, Head, Layer, Moment, Writer};
use crate::format::root::{self, Root};
use crate::format::{
    FORMAT, HEAD_ROOM, HEADS_TOGETHER, Hash, MAX_OBJECT, MAX_UNPACKED, head_name, head_number,
};
use crate::store::Store;

/// How often a head that a prune has deleted meanwhile is looked for again.
const ATTEMPTS: u32 = 4;

/// The newest head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Newest {
    /// Its number.
    pub number: u64,
    /// The hash of its object.
    pub hash: Hash,
    /// The epoch of its writer.
    pub epoch: u64,
    /// Who wrote it.
    pub writer: Writer,
}

/// The root object with the hash of its bytes, which all heads tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Anchor {
    pub root: Root,
    pub hash: Hash,
}

/// A head that was read.
pub(crate) struct Found {
    pub head: Head,
    /// The hash of its object.
    pub hash: Hash,
    /// How much text it has.
    size: usize,
}

/// All that is kept.
#[derive(Debug, Clone)]
pub struct Catalogue {
    anchor: Anchor,
    newest: Option<Newest>,
    base: Option<Base>,
    /// The text of the base, and of the newest head if that is another one: together at least what a
    /// whole head would have.
    size: (usize, usize),
    /// The greatest number of a layer in the base.
    base_layer: u64,
    layers: BTreeMap<u64, Layer>,
    moments: Vec<Moment>,
}

/// The root object.
///
/// # Errors
/// There is none, it cannot be read, or it is damaged.
pub(crate) fn read_root(store: &Store) -> Result<Anchor> {
    let bytes = store.get(root::NAME, MAX_OBJECT)?.ok_or(Error::NoBackup)?;
    Ok(Anchor {
        root: Root::decode(&bytes)?,
        hash: Hash::of(&bytes),
    })
}

/// A head, if it is there. It must be one that was written with this root object.
pub(crate) fn read_head(store: &Store, anchor: &Anchor, number: u64) -> Result<Option<Found>> {
    let name = head_name(number);
    let Some(bytes) = store.get(&name, MAX_OBJECT)? else {
        return Ok(None);
    };
    let head = Head::decode(&name, &bytes)?;
    if head.number != number || head.backup != anchor.root.backup {
        return Err(Error::damaged(name, "it is the head of something else"));
    }
    if head.root != anchor.hash {
        return Err(Error::damaged(
            root::NAME,
            "it is not the one that this backup was begun with: it was changed or exchanged",
        ));
    }
    Ok(Some(Found {
        head,
        hash: Hash::of(&bytes),
        size: Head::size(&bytes),
    }))
}

impl Catalogue {
    /// Reads it.
    ///
    /// # Errors
    /// There is no backup, it is damaged, or the store fails.
    pub fn open(store: &Store) -> Result<Self> {
        let anchor = read_root(store)?;
        for _ in 1..ATTEMPTS {
            match Self::try_open(store, &anchor) {
                // A prune may have gone on while the heads were read.
                Err(Error::Missing(_)) => {}
                found => return found,
            }
        }
        Self::try_open(store, &anchor)
    }

    fn try_open(store: &Store, anchor: &Anchor) -> Result<Self> {
        let listed = store.list("heads")?;
        let numbers = listed.iter().filter_map(|found| head_number(&found.name));
        let mut number = numbers.max().unwrap_or(0);
        let mut newest = match number {
            0 => None,
            _ => Some(
                read_head(store, anchor, number)?
                    .ok_or_else(|| Error::Missing(head_name(number)))?,
            ),
        };
        while let Some(later) = read_head(store, anchor, number + 1)? {
            number += 1;
            newest = Some(later);
        }
        let mut catalogue = Self::empty(anchor.clone());
        let Some(Found { head, hash, size }) = newest else {
            return Ok(catalogue);
        };
        if let Some(base) = head.base {
            let name = head_name(base.number);
            let found = read_head(store, anchor, base.number)?;
            let found = found.ok_or_else(|| Error::Missing(name.clone()))?;
            let whole = found.head;
            if found.hash != base.hash || whole.base.is_some() {
                return Err(Error::damaged(
                    name,
                    "it is not the head that a later one adds to",
                ));
            }
            catalogue.begin(whole.layers, whole.moments);
            catalogue.base = Some(base);
            catalogue.size = (found.size, size);
            catalogue.add(head.layers, head.moments, number)?;
        } else {
            catalogue.begin(head.layers, head.moments);
            catalogue.base = Some(Base { number, hash });
            catalogue.size = (size, 0);
        }
        catalogue.newest = Some(Newest {
            number,
            hash,
            epoch: head.epoch,
            writer: head.writer,
        });
        catalogue.check(&head_name(number))?;
        Ok(catalogue)
    }

    /// One without heads.
    pub(crate) fn empty(anchor: Anchor) -> Self {
        Self {
            anchor,
            size: (0, 0),
            newest: None,
            base: None,
            base_layer: 0,
            layers: BTreeMap::new(),
            moments: Vec::new(),
        }
    }

    fn begin(&mut self, layers: Vec<Layer>, moments: Vec<Moment>) {
        self.layers = layers
            .into_iter()
            .map(|layer| (layer.number, layer))
            .collect();
        self.moments = moments;
        self.base_layer = self.last_layer();
    }

    fn add(&mut self, layers: Vec<Layer>, moments: Vec<Moment>, number: u64) -> Result<()> {
        let last = self.moments.last().map_or(0, |moment| moment.number);
        let later = layers.iter().all(|layer| layer.number > self.base_layer)
            && moments.iter().all(|moment| moment.number > last);
        if !later {
            return Err(Error::damaged(
                head_name(number),
                "it changes what the whole head before it has",
            ));
        }
        self.layers
            .extend(layers.into_iter().map(|layer| (layer.number, layer)));
        self.moments.extend(moments);
        Ok(())
    }

    /// Every moment has its layers.
    fn check(&self, object: &str) -> Result<()> {
        let mut numbers = self.moments.iter().flat_map(|moment| &moment.layers);
        match numbers.all(|number| self.layers.contains_key(number)) {
            true => Ok(()),
            false => Err(Error::damaged(
                object,
                "a moment has a layer that is not told",
            )),
        }
    }

    /// The root object.
    pub fn root(&self) -> &Root {
        &self.anchor.root
    }

    /// The root object and its hash.
    pub(crate) fn anchor(&self) -> &Anchor {
        &self.anchor
    }

    /// Whether one more moment can be named, such that a prune has room for its heads.
    pub(crate) fn has_room(&self) -> bool {
        self.size.0 + self.size.1 <= MAX_UNPACKED - HEAD_ROOM
    }

    /// The newest head; `None` if there is none yet.
    pub fn newest(&self) -> Option<&Newest> {
        self.newest.as_ref()
    }

    /// The moments, in the order in which they were stored.
    pub fn moments(&self) -> &[Moment] {
        &self.moments
    }

    /// All layers by their numbers.
    pub fn layers(&self) -> &BTreeMap<u64, Layer> {
        &self.layers
    }

    /// The layers of a moment, what counts last.
    pub fn layers_of<'a>(&'a self, moment: &'a Moment) -> impl Iterator<Item = &'a Layer> {
        let numbers = moment.layers.iter();
        numbers.filter_map(|number| self.layers.get(number))
    }

    /// The greatest number of a layer.
    pub(crate) fn last_layer(&self) -> u64 {
        self.layers
            .last_key_value()
            .map_or(0, |(number, _)| *number)
    }

    /// The last moment that was stored and is not later than `time`; the last one of all without it.
    ///
    /// # Errors
    /// There is none.
    pub fn moment_at(&self, time: Option<SystemTime>) -> Result<&Moment> {
        let fits = |moment: &&Moment| time.is_none_or(|time| moment.time() <= time);
        self.moments.iter().rev().find(fits).ok_or_else(|| {
            Error::NoMoment(match time {
                Some(_) => "that is as old as this time".into(),
                None => "yet".into(),
            })
        })
    }

    /// The number of the whole head that the newest one adds to, or of that itself.
    pub(crate) fn base_number(&self) -> u64 {
        self.base.map_or(0, |base| base.number)
    }

    /// Adds a layer, for the next head.
    pub(crate) fn add_layer(&mut self, layer: Layer) {
        self.layers.insert(layer.number, layer);
    }

    /// Adds a moment, for the next head.
    pub(crate) fn add_moment(&mut self, moment: Moment) {
        self.moments.push(moment);
    }

    /// Replaces moments; the next head must be whole if that changes one of a base.
    pub(crate) fn set_moments(&mut self, moments: Vec<Moment>) {
        self.moments = moments;
    }

    /// Forgets layers that no moment has.
    fn forget_unused(&mut self) {
        let moments = self.moments.iter();
        let used: BTreeSet<u64> = moments.flat_map(|m| m.layers.iter().copied()).collect();
        self.layers.retain(|number, _| used.contains(number));
    }

    /// The next head, and its object.
    pub(crate) fn next_head(
        &mut self,
        (epoch, writer): (u64, &Writer),
        whole: bool,
    ) -> Result<(Head, Bytes)> {
        let number = self.newest.as_ref().map_or(0, |newest| newest.number) + 1;
        let whole = whole || number.is_multiple_of(HEADS_TOGETHER);
        let base = self.base.filter(|_| !whole);
        if base.is_none() {
            self.forget_unused();
        }
        let (layer, moment) = match base {
            Some(base) => (self.base_layer, base.number),
            None => (0, 0),
        };
        let layers = self.layers.values().filter(|other| other.number > layer);
        let moments = self.moments.iter().filter(|other| other.number > moment);
        let head = Head {
            format: FORMAT,
            backup: self.root().backup.clone(),
            root: self.anchor.hash,
            number,
            previous: self.newest.as_ref().map(|newest| newest.hash),
            epoch,
            writer: writer.clone(),
            base,
            layers: layers.cloned().collect(),
            moments: moments.cloned().collect(),
        };
        let bytes = Bytes::from(head.encode()?);
        Ok((head, bytes))
    }

    /// Takes over a head that was stored.
    pub(crate) fn stored(&mut self, head: Head, bytes: &Bytes) {
        let (hash, size) = (Hash::of(bytes), Head::size(bytes));
        self.size.1 = size;
        if head.base.is_none() {
            self.size = (size, 0);
            self.base = Some(Base {
                number: head.number,
                hash,
            });
            self.base_layer = self.last_layer();
        }
        self.newest = Some(Newest {
            number: head.number,
            hash,
            epoch: head.epoch,
            writer: head.writer,
        });
    }
}

impl Moment {
    /// When it was, by the clock of its machine.
    pub fn time(&self) -> SystemTime {
        let seconds = Duration::from_secs(self.seconds.unsigned_abs());
        let whole = match self.seconds < 0 {
            true => SystemTime::UNIX_EPOCH.checked_sub(seconds),
            false => SystemTime::UNIX_EPOCH.checked_add(seconds),
        };
        let part = Duration::from_nanos(self.nanoseconds.into());
        let time = whole.and_then(|time| time.checked_add(part));
        time.unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

/// A time as seconds and nanoseconds since 1970.
pub(crate) fn since_epoch(time: SystemTime) -> (i64, u32) {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => (
            i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            since.subsec_nanos(),
        ),
        Err(before) => {
            let before = before.duration();
            let seconds = i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
            match before.subsec_nanos() {
                0 => (-seconds, 0),
                nanoseconds => (-seconds - 1, 1_000_000_000 - nanoseconds),
            }
        }
    }
}
