//! The one writer of a backup: how it begins, stores heads, and notices that another one has begun.
//!
//! Heads are numbered, and each is stored only if there is none of its number; so of two writers one is
//! refused, whatever their clocks say. A writer begins by a head of its own with the next epoch. From
//! then on an older one fails at its next head, and stops; what it has stored besides is garbage that
//! nobody refers to. Objects are deleted only by a writer whose head came after the last use of them.
//! Before a head is deleted, a mark is stored that its number is used up (`docs/backup-format.md`).
//! Uses the catalogue, the store and the format.
//!
//! # The life of a writer
//!
//! One thread at a time has a writer; of writers in several processes the store decides, by heads.
//!
//! | From | To | Caused by | Stored then |
//! |---|---|---|---|
//! | | open | [`Writer::open`], [`Writer::open_for_care`]: what is kept is read | the root object |
//! | | refused | another volume; a writer of another name, unless it is taken over | the root object |
//! | open | begun | [`Writer::begin`]: a head with the next epoch; from then on an older writer is refused | that head |
//! | begun | begun | layers are stored | garbage, until a head names them |
//! | begun | begun | `Writer::publish`: the next head, then its copy | what the head names |
//! | begun | begun | a whole head: marks, then the heads and copies before it go | as before |
//! | open, begun | lost | the number of its next head is used or used up by another writer | its heads so far |
//! | open, begun | unclear | the store fails: a head may be stored or not | at least its heads so far |
//! | lost, unclear | open | [`Writer::reopen`], if no writer of another name has begun | as found |
//! | any | ended | the process ends; the next run of the same name goes on | its heads so far |
//!
//! 1. A head names only objects that are stored, and its number is the last one plus one.
//! 2. Nothing but a beginning is published before it: each later head has the writer's epoch.
//! 3. Of all writers one stores the head of a number, and a number that was deleted is not used again.
//! 4. A copy is stored after its head; heads are deleted after their marks.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use crate::catalogue::{Catalogue, read_root};
use crate::error::{Error, Result, is_full};
use crate::format::head::{Head, Writer as Name};
use crate::format::root::{self, Root};
use crate::format::{
    FORMAT, HEADS_TOGETHER, Hash, MAX_HEADS, MAX_OBJECT, copy_name, gone_name, head_name,
    head_number, layer_of, new_layer, random_name,
};
use crate::seal::{Key, NewKey, Seal};
use crate::search::{Anchor, listed};
use crate::store::{Listed, Put, Store};

/// What a writer is and wants.
#[derive(Clone, Default)]
pub struct WriterOptions {
    /// Its name: machine and path. The next run of the same name goes on without being asked.
    pub name: String,
    /// Goes on where a writer of another name has ended.
    pub take_over: bool,
    /// How a backup that is made now is encrypted.
    pub new_key: Option<NewKey>,
    /// What opens an encrypted backup; only compaction needs it.
    pub key: Option<Key>,
    /// Marks its moments as those that nobody has asked for.
    pub automatic: bool,
}

/// A writer, with all that is kept.
pub struct Writer {
    store: Arc<Store>,
    catalogue: Catalogue,
    seal: Arc<Seal>,
    options: WriterOptions,
    /// Its name in heads.
    name: Name,
    /// Its epoch, once it has begun.
    epoch: Option<u64>,
}

impl Writer {
    /// Opens the backup of a volume, or makes it. Nothing but the root object is stored yet.
    ///
    /// # Errors
    /// It is the backup of another volume, another writer has it, or the store fails.
    pub fn open(store: Arc<Store>, volume: &str, options: WriterOptions) -> Result<Self> {
        let anchor = make_root(&store, volume, &options)?;
        if anchor.root.volume != volume {
            return Err(Error::OtherVolume {
                theirs: anchor.root.volume,
                ours: volume.to_owned(),
            });
        }
        let name = Name {
            name: options.name.clone(),
            run: random_name()?,
        };
        let catalogue = same_root(Catalogue::open(&store)?, &anchor)?;
        catalogue.check_sound()?;
        let other = catalogue.newest().map(|newest| newest.writer.name.clone());
        match other.filter(|other| *other != name.name && !options.take_over) {
            Some(writer) => Err(Error::OtherWriter { writer }),
            None => Self::with(store, catalogue, options, name),
        }
    }

    /// Opens a backup that is there, for its maintenance. The name of its writer stays, so that this goes on
    /// afterwards.
    ///
    /// # Errors
    /// There is no backup, its newest head is damaged, or the store fails.
    pub fn open_for_care(store: Arc<Store>, key: Option<Key>) -> Result<Self> {
        let catalogue = Catalogue::open(&store)?;
        catalogue.check_sound()?;
        Self::of_last(store, catalogue, key)
    }

    /// One that goes on from what could be read, under the name of the last writer.
    pub(crate) fn of_last(
        store: Arc<Store>,
        catalogue: Catalogue,
        key: Option<Key>,
    ) -> Result<Self> {
        let writer = catalogue.newest().map(|newest| newest.writer.name.clone());
        let options = WriterOptions {
            name: writer.unwrap_or_default(),
            key,
            ..WriterOptions::default()
        };
        let name = Name {
            name: options.name.clone(),
            run: random_name()?,
        };
        Self::with(store, catalogue, options, name)
    }

    fn with(
        store: Arc<Store>,
        catalogue: Catalogue,
        options: WriterOptions,
        name: Name,
    ) -> Result<Self> {
        let seal = Seal::of(catalogue.root().encryption.as_ref(), options.key.as_ref())?;
        Ok(Self {
            store,
            catalogue,
            seal: Arc::new(seal),
            options,
            name,
            epoch: None,
        })
    }

    /// Reads anew what is kept, to begin again: for a writer that was interrupted by the maintenance of its
    /// backup.
    ///
    /// # Errors
    /// A writer of another name has begun, or the store fails.
    pub fn reopen(&mut self) -> Result<()> {
        let catalogue = same_root(Catalogue::open(&self.store)?, self.catalogue.anchor())?;
        catalogue.check_sound()?;
        let other = catalogue.newest().map(|newest| newest.writer.name.clone());
        if let Some(writer) = other.filter(|other| *other != self.name.name) {
            return Err(Error::Lost { writer });
        }
        self.catalogue = catalogue;
        self.name.run = random_name()?;
        self.epoch = None;
        Ok(())
    }

    /// What is kept.
    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// What is kept, to be changed for the next head.
    pub(crate) fn catalogue_mut(&mut self) -> &mut Catalogue {
        &mut self.catalogue
    }

    /// How frames are written and read.
    pub fn seal(&self) -> &Arc<Seal> {
        &self.seal
    }

    /// The store.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// What this writer is and wants.
    pub fn options(&self) -> &WriterOptions {
        &self.options
    }

    /// Begins: from now on every older writer is refused.
    ///
    /// # Errors
    /// Another one has begun at the same time, or the store fails.
    pub fn begin(&mut self) -> Result<()> {
        if self.epoch.is_none() {
            let epoch = self.catalogue.next_epoch();
            self.store_head(epoch, false)?;
            self.epoch = Some(epoch);
        }
        Ok(())
    }

    /// Whether the newest head is one of another name, and this writer may go on there.
    pub(crate) fn takes_over(&self) -> bool {
        let newest = self.catalogue.newest();
        newest.is_some_and(|newest| newest.writer.name != self.name.name)
    }

    /// Its epoch, once it has begun.
    pub(crate) fn epoch(&self) -> Option<u64> {
        self.epoch
    }

    /// The name and the number of a new layer.
    pub(crate) fn new_layer(&self) -> Result<(u64, String)> {
        let name = new_layer(self.epoch.unwrap_or(0))?;
        Ok((self.catalogue.last_layer() + 1, name))
    }

    /// The number of the next head.
    pub(crate) fn next_number(&self) -> u64 {
        self.catalogue.last() + 1
    }

    /// Stores what the catalogue has become.
    ///
    /// # Errors
    /// Another writer has begun: [`Error::Lost`]. After any error this writer has to be opened anew.
    pub(crate) fn publish(&mut self, whole: bool) -> Result<()> {
        assert!(
            self.epoch.is_some(),
            "writer invariant 2: it has begun when it publishes"
        );
        let epoch = self.epoch.unwrap_or(0);
        self.store_head(epoch, whole)?;
        if self.catalogue.base_number() == self.next_number() - 1 {
            self.delete_heads()?;
        }
        Ok(())
    }

    fn store_head(&mut self, epoch: u64, whole: bool) -> Result<()> {
        let (head, bytes) = self.catalogue.next_head((epoch, &self.name), whole)?;
        let number = head.number;
        match self.store.put_new(&head_name(number), &bytes) {
            Put::Stored => {}
            Put::Exists => self.is_own(&head, &bytes)?,
            Put::Unclear(source) => {
                return Err(Error::Unclear {
                    number,
                    source: Arc::new(source),
                });
            }
        }
        // A number that was deleted meanwhile is free again, but it is not the next one any longer.
        if self.store.size(&gone_name(number))?.is_some() {
            return Err(self.lost());
        }
        self.catalogue.stored(head, &bytes);
        let copy = copy_name(number);
        match self.store.put_new(&copy, &bytes) {
            Put::Stored | Put::Exists => Ok(()),
            // A prune, which makes space, must be able to go on.
            Put::Unclear(why) if is_full(&why) => Ok(()),
            Put::Unclear(_) if self.store.has_ended() => Err(Error::Interrupted),
            Put::Unclear(why) => Err(Error::store("cannot store", copy, why)),
        }
    }

    /// Whether the head that is there is the one that was to be stored: the store may have done it
    /// without saying so.
    fn is_own(&self, head: &Head, bytes: &Bytes) -> Result<()> {
        let found = self.store.get(&head_name(head.number), MAX_OBJECT)?;
        match found {
            Some(found) if found == *bytes => Ok(()),
            _ => Err(self.lost()),
        }
    }

    /// Who has begun meanwhile.
    fn lost(&self) -> Error {
        let newest = Catalogue::open(&self.store);
        let newest = newest.ok().and_then(|other| other.newest().cloned());
        let writer = newest.map_or_else(|| "another writer".into(), |newest| newest.writer.name);
        Error::Lost { writer }
    }

    /// Deletes heads that are told by a later whole one: all with the same mark, but not the last ones.
    fn delete_heads(&self) -> Result<()> {
        let first = self.catalogue.base_number() / HEADS_TOGETHER * HEADS_TOGETHER;
        let old = |folder| -> Result<Vec<u64>> {
            Ok(listed(&self.store, folder)?
                .range(..first)
                .copied()
                .collect())
        };
        let (heads, copies) = (old("heads")?, old("copies")?);
        let numbers = heads.iter().chain(&copies);
        let marks: BTreeSet<String> = numbers.map(|number| gone_name(*number)).collect();
        for mark in marks {
            self.store.put(&mark, Bytes::new())?;
        }
        let heads = heads.into_iter().map(head_name);
        let names: Vec<String> = heads.chain(copies.into_iter().map(copy_name)).collect();
        self.store.delete(&names)?;
        self.store.sweep("heads");
        self.store.sweep("copies");
        Ok(())
    }

    /// Bytes of a whole head with what is kept.
    pub(crate) fn head_size(&mut self) -> Result<u64> {
        let epoch = self.epoch.unwrap_or(0);
        let (_, bytes) = self.catalogue.next_head((epoch, &self.name), true)?;
        Ok(bytes.len() as u64)
    }

    /// Deletes what is in nobody's way before this writer has begun: what killed programs have left,
    /// layers of earlier epochs that nothing names, and copies of heads that lie between the newest one and
    /// its base, which would be read only if both of these were damaged. Returns bytes and objects.
    pub(crate) fn make_room(&self) -> Result<(u64, u64)> {
        for folder in ["", "heads", "copies", "layers", "gone"] {
            self.store.sweep(folder);
        }
        let Some(newest) = self.catalogue.newest() else {
            return Ok((0, 0));
        };
        let named = self.catalogue.layer_names();
        let layers = self.store.list("layers", usize::MAX)?;
        let before = newest.epoch.saturating_sub(1);
        let layers = unnamed(&layers, before, |layer| named.contains(layer));
        let layers = layers.map(|found| (layer_path(found), found.size));
        let needed = [Some(newest.number), Some(self.catalogue.base_number())];
        let copies = self.store.list("copies", MAX_HEADS)?;
        let copies = copies.iter().filter(|found| {
            let number = head_number(&found.name);
            number.is_some() && !needed.contains(&number)
        });
        let copies = copies.map(|found| (format!("copies/{}", found.name), found.size));
        let (names, sizes): (Vec<String>, Vec<u64>) = layers.chain(copies).unzip();
        self.store.delete(&names)?;
        Ok((sizes.iter().sum(), names.len() as u64))
    }

    /// Whether the newest head is still the own one.
    ///
    /// # Errors
    /// It is not: [`Error::Lost`].
    pub fn check(&self) -> Result<()> {
        match self.store.size(&head_name(self.next_number()))? {
            None => Ok(()),
            Some(_) => Err(self.lost()),
        }
    }
}

/// The objects of layers of no later epoch than `last` that are not named.
pub(crate) fn unnamed<'a>(
    listed: &'a [Listed],
    last: u64,
    is_named: impl Fn(&str) -> bool + 'a,
) -> impl Iterator<Item = &'a Listed> {
    let is_garbage = move |found: &&Listed| {
        layer_of(&found.name).is_some_and(|(layer, epoch)| epoch <= last && !is_named(layer))
    };
    listed.iter().filter(is_garbage)
}

/// The name of an object that a list of `layers` has.
pub(crate) fn layer_path(found: &Listed) -> String {
    format!("layers/{}", found.name)
}

/// A catalogue whose root object is the one that was read before: what this writer encrypts for must not
/// change while it runs.
fn same_root(catalogue: Catalogue, anchor: &Anchor) -> Result<Catalogue> {
    if catalogue.anchor() == anchor {
        Ok(catalogue)
    } else {
        Err(Error::damaged(root::NAME, "it has changed meanwhile"))
    }
}

/// The root object; makes it if there is none.
fn make_root(store: &Store, volume: &str, options: &WriterOptions) -> Result<Anchor> {
    let new_key = options.new_key.as_ref();
    match read_root(store) {
        Err(Error::NoBackup) => {}
        found => return fitting(found?, new_key),
    }
    let encryption = new_key.map(NewKey::encryption).transpose()?;
    let root = Root {
        format: FORMAT,
        backup: random_name()?,
        volume: volume.to_owned(),
        encryption,
    };
    let bytes = Bytes::from(root.encode()?);
    match store.put_new(root::NAME, &bytes) {
        Put::Stored => Ok(Anchor {
            root,
            hash: Hash::of(&bytes),
        }),
        Put::Exists => fitting(read_root(store)?, new_key),
        Put::Unclear(source) => Err(Error::store("cannot store", root::NAME, source)),
    }
}

/// The root object that is there, if it says of encryption what was asked for.
fn fitting(anchor: Anchor, new_key: Option<&NewKey>) -> Result<Anchor> {
    if let Some(key) = new_key {
        key.check(anchor.root.encryption.as_ref())?;
    }
    Ok(anchor)
}
