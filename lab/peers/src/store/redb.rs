//! redb: one table in a database file.
//!
//! Durable: `Durability::Immediate`, the default. Not durable: `Durability::None`; a power failure
//! loses what was committed since the last sync, and damages nothing.

use std::path::Path;

use cairnfs_bench::Result;
use redb::{
    Database, Durability, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction,
};

use super::{Session, Setup, Store};

const BLOBS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("blobs");

struct Redb {
    database: Database,
    durable: bool,
}

pub fn create(dir: &Path, setup: Setup) -> Result<Box<dyn Store>> {
    let database = Database::builder()
        .set_cache_size(setup.cache)
        .create(dir.join("blobs.redb"))?;
    let all = database.begin_write()?;
    all.open_table(BLOBS)?;
    all.commit()?;
    let durable = setup.durable;
    Ok(Box::new(Redb { database, durable }))
}

impl Redb {
    fn begin(&self) -> Result<WriteTransaction> {
        let mut all = self.database.begin_write()?;
        if !self.durable {
            all.set_durability(Durability::None)?;
        }
        Ok(all)
    }
}

impl Store for Redb {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(self))
    }

    /// An empty durable transaction, which persists all earlier ones.
    fn sync(&self) -> Result<()> {
        Ok(self.database.begin_write()?.commit()?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl Session for &Redb {
    fn put(&mut self, blobs: &[(&str, &[u8])]) -> Result<()> {
        let all = self.begin()?;
        let mut table = all.open_table(BLOBS)?;
        for (name, blob) in blobs {
            table.insert(name, blob)?;
        }
        drop(table);
        Ok(all.commit()?)
    }

    fn get(&mut self, name: &str, blob: &mut Vec<u8>) -> Result<bool> {
        blob.clear();
        let table = self.database.begin_read()?.open_table(BLOBS)?;
        let found = table.get(name)?;
        if let Some(found) = &found {
            blob.extend_from_slice(found.value());
        }
        Ok(found.is_some())
    }

    fn list(&mut self, each: &mut dyn FnMut(&[u8])) -> Result<()> {
        let table = self.database.begin_read()?.open_table(BLOBS)?;
        for found in table.iter()? {
            each(found?.0.value().as_bytes());
        }
        Ok(())
    }

    fn delete(&mut self, names: &[&str]) -> Result<()> {
        let all = self.begin()?;
        let mut table = all.open_table(BLOBS)?;
        for name in names {
            table.remove(name)?;
        }
        drop(table);
        Ok(all.commit()?)
    }
}
