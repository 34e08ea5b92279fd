//! Finding the newest head that can be read, with the whole one that it adds to.
//!
//! Each head is stored twice. The copy is read where the head is damaged or missing. Where neither can be
//! read, the search goes down to the newest head that can, and collects which objects are damaged. It
//! ends, whatever a store answers: it reads a bounded number of heads behind those that are listed, and
//! goes down over a bounded number of heads that cannot be read. Uses the store and the format.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::format::head::Head;
use crate::format::root::{self, Root};
use crate::format::{
    HEADS_TOGETHER, Hash, MAX_HEADS, MAX_OBJECT, copy_name, gone_name, head_name, head_number,
};
use crate::store::Store;

/// Most heads that are looked for behind those that are listed: so far a listing may lag behind.
const MOST_UNLISTED: u64 = HEADS_TOGETHER;
/// Most heads, one below the other, that cannot be read: not more are kept beside each other.
const MOST_UNREADABLE: usize = 2 * HEADS_TOGETHER as usize;

/// Why a head that is not there is damaged.
const MISSING: &str = "it is missing";

/// The root object with the hash of its bytes, which each head has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Anchor {
    pub root: Root,
    pub hash: Hash,
}

/// Which of the two objects of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Twin {
    Head,
    Copy,
}

impl Twin {
    /// The name of the object.
    pub fn name(self, number: u64) -> String {
        match self {
            Self::Head => head_name(number),
            Self::Copy => copy_name(number),
        }
    }
}

/// A head that was read.
#[derive(Clone)]
pub(crate) struct Found {
    pub head: Head,
    /// The object.
    pub bytes: Bytes,
    /// Its hash.
    pub hash: Hash,
    /// Which of the two was read.
    pub twin: Twin,
}

/// What one of the two objects of a head is.
pub(crate) enum Side {
    /// It can be read.
    Good(Box<Found>),
    /// It is damaged, or not the one that is looked for.
    Wrong(String),
    /// There is none.
    Missing,
}

/// A head or a copy that is damaged or missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The name of the object.
    pub object: String,
    /// What is wrong.
    pub why: String,
    /// Whether the other one of the two was read in its place.
    pub is_covered: bool,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is damaged: {}", self.object, self.why)
    }
}

/// What a search found.
pub(crate) struct Search<T> {
    /// What was made of the newest head that can be read.
    pub newest: Option<T>,
    /// The greatest number of a head, whether it can be read or not.
    pub last: u64,
    /// Damage of the newest heads.
    pub damage: Vec<Damage>,
}

/// Reads one of the two objects of a head. An object that does not have the hash `expected` is wrong.
///
/// # Errors
/// The store fails, the format is a newer one, or the root object was exchanged.
pub(crate) fn side(
    store: &Store,
    anchor: &Anchor,
    (number, twin): (u64, Twin),
    expected: Option<Hash>,
) -> Result<Side> {
    let name = twin.name(number);
    let wrong = |why: &str| Ok(Side::Wrong(why.to_owned()));
    let bytes = match store.get(&name, MAX_OBJECT) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Ok(Side::Missing),
        Err(Error::Damaged { why, .. }) => return wrong(&why),
        Err(why) => return Err(why),
    };
    let head = match Head::decode(&name, &bytes) {
        Ok(head) => head,
        Err(Error::Damaged { why, .. }) => return wrong(&why),
        Err(why) => return Err(why),
    };
    if head.number != number || head.backup != anchor.root.backup {
        return wrong("it is the head of something else");
    }
    if head.root != anchor.hash {
        return Err(Error::damaged(
            root::NAME,
            "it is not the one that this backup was begun with: it was changed or exchanged",
        ));
    }
    let hash = Hash::of(&bytes);
    if let Some(expected) = expected.filter(|expected| *expected != hash) {
        return wrong(&format!(
            "it should have the hash {expected}, and has {hash}"
        ));
    }
    Ok(Side::Good(Box::new(Found {
        head,
        bytes,
        hash,
        twin,
    })))
}

/// The layers that an older head names: its own, and those of the whole one that it adds to. `None` if one
/// of the two cannot be read any longer.
pub(crate) fn named_by(store: &Store, anchor: &Anchor, number: u64) -> Result<Option<Named>> {
    let Side::Good(found) = side(store, anchor, (number, Twin::Head), None)? else {
        return Ok(None);
    };
    let epoch = found.head.epoch;
    let mut layers: BTreeSet<String> = names(&found.head).collect();
    if let Some(base) = found.head.base {
        let whole = (base.number, Twin::Head);
        let Side::Good(whole) = side(store, anchor, whole, Some(base.hash))? else {
            return Ok(None);
        };
        layers.extend(names(&whole.head));
    }
    Ok(Some(Named { epoch, layers }))
}

fn names(head: &Head) -> impl Iterator<Item = String> + '_ {
    head.layers.iter().map(|layer| layer.name.clone())
}

/// What a head names.
pub(crate) struct Named {
    /// The epoch of its writer.
    pub epoch: u64,
    /// The names of layers.
    pub layers: BTreeSet<String>,
}

/// The numbers of the heads, or of the copies, that a store lists.
pub(crate) fn listed(store: &Store, folder: &str) -> Result<BTreeSet<u64>> {
    let listed = store.list(folder, MAX_HEADS)?;
    let numbers = listed.iter().filter_map(|found| head_number(&found.name));
    Ok(numbers.collect())
}

/// The numbers of heads of which the head or the copy is there. Copies of heads that were deleted may be
/// left, and do not count.
fn listed_twins(store: &Store) -> Result<BTreeSet<u64>> {
    let mut numbers = listed(store, "heads")?;
    let first = numbers.first().copied().unwrap_or(0);
    numbers.extend(listed(store, "copies")?.range(first..));
    Ok(numbers)
}

/// Searches for the newest head that `accept` makes something of, with the whole one that it adds to.
/// Without `is_final` a head that is listed and missing is an error, for a prune may have gone on
/// meanwhile; with it, that head counts as damaged.
pub(crate) fn search<T>(
    store: &Store,
    anchor: &Anchor,
    is_final: bool,
    accept: impl Fn(&Found, Option<&Found>) -> Result<T>,
) -> Result<Search<T>> {
    let mut numbers = listed_twins(store)?;
    let mut search = Searching {
        store,
        anchor,
        is_final,
        damage: Vec::new(),
    };
    let mut last = numbers.last().copied().unwrap_or(0);
    let unlisted = search.unlisted(last)?;
    last += unlisted.len() as u64;
    numbers.extend(unlisted.iter().map(|(number, _)| *number));
    // What was read behind the list is not read again.
    let mut read: BTreeMap<u64, Option<Found>> = unlisted.into_iter().collect();
    let (mut newest, mut unreadable, mut below) = (None, 0, u64::MAX);
    while let Some(&number) = numbers.range(..below).next_back() {
        below = number;
        let found = match read.remove(&number) {
            Some(found) => found,
            None => search.either(number, None)?,
        };
        if let Some(found) = found {
            match search.accepted(&found, &accept)? {
                Ok(made) => {
                    newest = Some(made);
                    break;
                }
                // All heads behind that one add to it, and none of them can be read.
                Err(base) => below = base,
            }
        }
        unreadable += 1;
        if unreadable == MOST_UNREADABLE {
            break;
        }
    }
    Ok(Search {
        newest,
        last,
        damage: search.damage,
    })
}

struct Searching<'a> {
    store: &'a Store,
    anchor: &'a Anchor,
    is_final: bool,
    damage: Vec<Damage>,
}

impl Searching<'_> {
    /// Heads behind the last one that is listed: a listing may lag behind. Those that cannot be read are
    /// there as well, and others may follow them.
    fn unlisted(&mut self, last: u64) -> Result<Vec<(u64, Option<Found>)>> {
        let mut found = Vec::new();
        for number in last + 1..=last.saturating_add(MOST_UNLISTED) {
            match side(self.store, self.anchor, (number, Twin::Head), None)? {
                Side::Missing => return Ok(found),
                Side::Good(head) => found.push((number, Some(*head))),
                Side::Wrong(why) => {
                    let copy = side(self.store, self.anchor, (number, Twin::Copy), None)?;
                    found.push((number, self.copy(number, why, copy)));
                }
            }
        }
        Err(Error::damaged(
            "heads",
            format!("{MOST_UNLISTED} of them are there and not listed, and no end is in sight"),
        ))
    }

    /// The head of this number, or its copy.
    fn either(&mut self, number: u64, expected: Option<Hash>) -> Result<Option<Found>> {
        let read = |twin| side(self.store, self.anchor, (number, twin), expected);
        let why = match read(Twin::Head)? {
            Side::Good(found) => return Ok(Some(*found)),
            Side::Wrong(why) => why,
            Side::Missing => MISSING.into(),
        };
        let copy = read(Twin::Copy)?;
        if matches!(copy, Side::Missing) && why == MISSING && !self.is_final {
            return Err(Error::Missing(head_name(number)));
        }
        Ok(self.copy(number, why, copy))
    }

    /// The copy in place of a head that cannot be read; collects what is damaged.
    fn copy(&mut self, number: u64, why: String, copy: Side) -> Option<Found> {
        let mut damaged = |twin: Twin, why, is_covered| {
            let object = twin.name(number);
            // A whole head can be read as itself, and as that to which another one adds.
            if self.damage.iter().all(|known| known.object != object) {
                self.damage.push(Damage {
                    object,
                    why,
                    is_covered,
                });
            }
        };
        damaged(Twin::Head, why, matches!(copy, Side::Good(_)));
        match copy {
            Side::Good(found) => Some(*found),
            Side::Missing => None,
            Side::Wrong(why) => {
                damaged(Twin::Copy, why, false);
                None
            }
        }
    }

    /// What `accept` makes of a head; otherwise the number below which the search goes on.
    fn accepted<T>(
        &mut self,
        found: &Found,
        accept: impl Fn(&Found, Option<&Found>) -> Result<T>,
    ) -> Result<Result<T, u64>> {
        let number = found.head.number;
        let whole = match found.head.base {
            None => None,
            Some(base) => match self.either(base.number, Some(base.hash))? {
                None => return Ok(Err(base.number)),
                whole => whole,
            },
        };
        match accept(found, whole.as_ref()) {
            Ok(made) => Ok(Ok(made)),
            Err(Error::Damaged { object, why }) => {
                self.damage.push(Damage {
                    object,
                    why,
                    is_covered: false,
                });
                Ok(Err(number))
            }
            Err(why) => Err(why),
        }
    }
}

/// What the two objects of a head are.
pub(crate) struct Pair {
    pub number: u64,
    /// The object that counts.
    pub head: Side,
    /// Its copy.
    pub copy: Side,
}

impl Pair {
    /// What is damaged. A head without a copy is not: earlier programs stored none.
    pub fn damage(&self) -> Vec<Damage> {
        let is_covered = self.either().is_some();
        let damaged = |twin: Twin, why: String| Damage {
            object: twin.name(self.number),
            why,
            is_covered,
        };
        let head = match &self.head {
            Side::Good(_) => None,
            Side::Wrong(why) => Some(damaged(Twin::Head, why.clone())),
            Side::Missing => Some(damaged(Twin::Head, MISSING.into())),
        };
        let copy = match &self.copy {
            Side::Wrong(why) => Some(damaged(Twin::Copy, why.clone())),
            Side::Good(_) | Side::Missing => None,
        };
        head.into_iter().chain(copy).collect()
    }

    /// The head, from whichever object can be read.
    pub fn either(&self) -> Option<&Found> {
        match (&self.head, &self.copy) {
            (Side::Good(found), _) | (_, Side::Good(found)) => Some(found),
            _ => None,
        }
    }
}

/// Reads both objects of each head from the newest one of a catalogue down to those that were deleted.
/// Each must have the hash that the one behind it names; heads that a repair has left out are passed.
///
/// # Errors
/// The store fails, or those of `each`.
pub(crate) fn for_each_pair(
    store: &Store,
    anchor: &Anchor,
    (newest, hash): (u64, Hash),
    mut each: impl FnMut(&Pair) -> Result<()>,
) -> Result<()> {
    let there = listed_twins(store)?;
    let (mut number, mut expected) = (newest, Some(hash));
    loop {
        let head = side(store, anchor, (number, Twin::Head), expected)?;
        // Without the hash, from a head that could not be read, the head itself has the one of its copy.
        let hash = match &head {
            Side::Good(found) => Some(found.hash),
            _ => expected,
        };
        let copy = side(store, anchor, (number, Twin::Copy), hash)?;
        let pair = Pair { number, head, copy };
        each(&pair)?;
        let before = match pair.either() {
            Some(found) => {
                expected = found.head.previous;
                expected.map(|_| found.head.before())
            }
            None => {
                expected = None;
                if there.contains(&number) {
                    number.checked_sub(1).filter(|before| *before > 0)
                } else {
                    there.range(..number).next_back().copied()
                }
            }
        };
        let Some(before) = before else {
            return Ok(());
        };
        if !there.contains(&before) && store.size(&gone_name(before))?.is_some() {
            return Ok(());
        }
        number = before;
    }
}
