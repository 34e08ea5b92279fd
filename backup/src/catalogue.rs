//! What a backup has: its moments and layers, from the newest head and the whole one that it adds to.
//!
//! The newest head is the one with the greatest number that can be read. What is damaged behind it is
//! known, and nothing is stored behind that. Reading needs no key. Uses the search, the store and the
//! format.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::format::head::{Base, Head, Layer, Moment, Writer};
use crate::format::root::{self, Root};
use crate::format::{FORMAT, HEAD_ROOM, HEADS_TOGETHER, Hash, MAX_OBJECT, MAX_UNPACKED, head_name};
use crate::search::{Anchor, Damage, Found, search};
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

/// All that is kept.
#[derive(Debug, Clone)]
pub struct Catalogue {
    anchor: Anchor,
    newest: Option<Newest>,
    /// The greatest number of a head, whether it can be read or not.
    last: u64,
    /// Damage of the newest heads.
    damage: Vec<Damage>,
    base: Option<Base>,
    /// The text of the base, and of the newest head if that is another one: together at least what a
    /// whole head would have.
    size: (usize, usize),
    /// The greatest number of a layer in the base.
    base_layer: u64,
    layers: BTreeMap<u64, Layer>,
    moments: Vec<Moment>,
    /// Layers that were named, and are not any longer by the heads that were stored since this was read.
    dropped: Vec<Layer>,
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

impl Catalogue {
    /// Reads it.
    ///
    /// # Errors
    /// There is no backup, it is damaged, or the store fails.
    pub fn open(store: &Store) -> Result<Self> {
        let anchor = read_root(store)?;
        for _ in 1..ATTEMPTS {
            match Self::try_open(store, &anchor, false) {
                // A prune may have gone on while the heads were read.
                Err(Error::Missing(_)) => {}
                found => return found,
            }
        }
        Self::try_open(store, &anchor, true)
    }

    fn try_open(store: &Store, anchor: &Anchor, is_final: bool) -> Result<Self> {
        let search = search(store, anchor, is_final, |newest, whole| {
            Self::of(anchor, newest, whole)
        })?;
        let mut catalogue = match (search.newest, search.damage.first()) {
            (Some(catalogue), _) => catalogue,
            (None, None) => Self::empty(anchor.clone()),
            (None, Some(first)) => {
                let why = format!("{}; no other head can be read either", first.why);
                return Err(Error::damaged(&first.object, why));
            }
        };
        catalogue.last = search.last;
        catalogue.damage = search.damage;
        Ok(catalogue)
    }

    /// What a head tells, with the whole one that it adds to.
    fn of(anchor: &Anchor, newest: &Found, whole: Option<&Found>) -> Result<Self> {
        let (head, size) = (newest.head.clone(), Head::size(&newest.bytes));
        let (number, hash) = (head.number, newest.hash);
        let mut catalogue = Self::empty(anchor.clone());
        catalogue.last = number;
        if let (Some(base), Some(found)) = (head.base, whole) {
            let whole = found.head.clone();
            if whole.base.is_some() {
                return Err(Error::damaged(
                    found.twin.name(base.number),
                    "it is not whole, and a later head adds to it",
                ));
            }
            catalogue.begin(whole.layers, whole.moments);
            catalogue.base = Some(base);
            catalogue.size = (Head::size(&found.bytes), size);
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
        catalogue.check(&newest.twin.name(number))?;
        Ok(catalogue)
    }

    /// One without heads.
    pub(crate) fn empty(anchor: Anchor) -> Self {
        Self {
            anchor,
            size: (0, 0),
            newest: None,
            last: 0,
            damage: Vec::new(),
            base: None,
            base_layer: 0,
            layers: BTreeMap::new(),
            moments: Vec::new(),
            dropped: Vec::new(),
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
        if numbers.all(|number| self.layers.contains_key(number)) {
            Ok(())
        } else {
            Err(Error::damaged(
                object,
                "a moment has a layer that is not told",
            ))
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

    /// The greatest number of a head, whether it can be read or not.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// The next epoch. Each head that cannot be read has raised it by one at most.
    pub(crate) fn next_epoch(&self) -> u64 {
        let newest = self.newest.as_ref();
        newest.map_or(1, |newest| newest.epoch + (self.last - newest.number) + 1)
    }

    /// Damage of the newest heads; a copy may have been read in place of a damaged one.
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// The numbers of the first and the last head behind the newest one that can be read: the moments
    /// that they added cannot be reached. `None` if there are none.
    pub fn unreachable(&self) -> Option<(u64, u64)> {
        let newest = self.newest.as_ref().map_or(0, |newest| newest.number);
        (self.last > newest).then_some((newest + 1, self.last))
    }

    /// Fails if one of the newest heads is damaged: nothing may be stored behind it.
    pub(crate) fn check_sound(&self) -> Result<()> {
        self.damage.first().map_or(Ok(()), |first| {
            Err(Error::NeedsRepair {
                damage: first.to_string(),
            })
        })
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

    /// The moment with a number.
    ///
    /// # Errors
    /// There is none.
    pub fn moment_numbered(&self, number: u64) -> Result<&Moment> {
        let found = self.moments.iter().find(|moment| moment.number == number);
        found.ok_or_else(|| Error::NoMoment(format!("with the number {number}")))
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
        let mut layers = moment.layers.iter();
        assert!(
            layers.all(|number| self.layers.contains_key(number)),
            "moment invariant 1: its layers are stored before it is named"
        );
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
        let unused = self
            .layers
            .extract_if(.., |number, _| !used.contains(number));
        self.dropped.extend(unused.map(|(_, layer)| layer));
    }

    /// The layers that the heads which were stored do not name any longer; each is told once.
    pub(crate) fn take_dropped(&mut self) -> Vec<Layer> {
        std::mem::take(&mut self.dropped)
    }

    /// The names of all layers.
    pub(crate) fn layer_names(&self) -> BTreeSet<String> {
        let layers = self.layers.values();
        layers.map(|layer| layer.name.clone()).collect()
    }

    /// The next head, and its object.
    pub(crate) fn next_head(
        &mut self,
        (epoch, writer): (u64, &Writer),
        whole: bool,
    ) -> Result<(Head, Bytes)> {
        let number = self.last + 1;
        let after = self.unreachable().and(self.newest.as_ref());
        let after = after.map(|newest| newest.number);
        let whole = whole || after.is_some() || number.is_multiple_of(HEADS_TOGETHER);
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
            after,
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
        let epoch = self.newest.as_ref().map_or(0, |newest| newest.epoch);
        assert!(
            head.number == self.last + 1 && head.epoch >= epoch,
            "writer invariants 1, 2: numbers follow each other, epochs never fall"
        );
        let (hash, size) = (Hash::of(bytes), Head::size(bytes));
        self.size.1 = size;
        self.last = head.number;
        self.damage.clear();
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
        let whole = if self.seconds < 0 {
            SystemTime::UNIX_EPOCH.checked_sub(seconds)
        } else {
            SystemTime::UNIX_EPOCH.checked_add(seconds)
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
