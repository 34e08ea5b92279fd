//! fjall: one keyspace, a log-structured merge tree. Blobs from 1 KiB are separated from their
//! names, as its documentation recommends for large values.
//!
//! Durable: each batch is committed with `PersistMode::SyncData`. Not durable: the default, which
//! writes to the page cache; a power failure loses the end of the journal, and damages nothing.

use std::path::Path;

use cairnfs_bench::Result;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode};

use super::{Session, Setup, Store};

struct Fjall {
    database: Database,
    blobs: Keyspace,
    durable: bool,
}

pub fn create(dir: &Path, setup: Setup) -> Result<Box<dyn Store>> {
    let database = Database::builder(dir)
        .cache_size(setup.cache as u64)
        .open()?;
    let options = || {
        KeyspaceCreateOptions::default().with_kv_separation(Some(KvSeparationOptions::default()))
    };
    let blobs = database.keyspace("blobs", options)?;
    Ok(Box::new(Fjall {
        database,
        blobs,
        durable: setup.durable,
    }))
}

impl Fjall {
    fn mode(&self) -> Option<PersistMode> {
        self.durable.then_some(PersistMode::SyncData)
    }
}

impl Store for Fjall {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(self))
    }

    fn sync(&self) -> Result<()> {
        Ok(self.database.persist(PersistMode::SyncAll)?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.database.persist(PersistMode::SyncAll)?)
    }
}

impl Session for &Fjall {
    fn put(&mut self, blobs: &[(&str, &[u8])]) -> Result<()> {
        let mut batch = self.database.batch().durability(self.mode());
        for (name, blob) in blobs {
            batch.insert(&self.blobs, *name, *blob);
        }
        Ok(batch.commit()?)
    }

    fn get(&mut self, name: &str, blob: &mut Vec<u8>) -> Result<bool> {
        blob.clear();
        let found = self.blobs.get(name)?;
        blob.extend_from_slice(found.as_deref().unwrap_or_default());
        Ok(found.is_some())
    }

    fn list(&mut self, each: &mut dyn FnMut(&[u8])) -> Result<()> {
        for found in self.blobs.iter() {
            each(&found.key()?);
        }
        Ok(())
    }

    fn delete(&mut self, names: &[&str]) -> Result<()> {
        let mut batch = self.database.batch().durability(self.mode());
        for name in names {
            batch.remove(&self.blobs, *name);
        }
        Ok(batch.commit()?)
    }
}
