//! LMDB, built from its source: one unnamed database in a memory map.
//!
//! Durable: the default, which syncs at each commit. Not durable: `MDB_NOSYNC`; a power failure may
//! damage the database. LMDB has no cache of its own: it uses the kernel's page cache.

use std::path::Path;

use cairnfs_bench::Result;
use heed::types::{Bytes, Str};
use heed::{Database, Env, EnvFlags, EnvOpenOptions, WithoutTls};

use super::{Session, Setup, Store};

struct Lmdb {
    env: Env<WithoutTls>,
    blobs: Database<Str, Bytes>,
}

pub fn create(dir: &Path, setup: Setup) -> Result<Box<dyn Store>> {
    let env = open(dir, setup)?;
    let mut all = env.write_txn()?;
    let blobs = env.create_database(&mut all, None)?;
    all.commit()?;
    Ok(Box::new(Lmdb { env, blobs }))
}

/// Opening is unsafe because another process could truncate or write the mapped file; the directory
/// is new and private to this process.
#[allow(unsafe_code)]
fn open(dir: &Path, setup: Setup) -> Result<Env<WithoutTls>> {
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    let map = (setup.payload * 3).max(1 << 30);
    options.map_size(usize::try_from(map)?);
    if !setup.durable {
        // SAFETY: the flag affects only what survives a power failure.
        unsafe { options.flags(EnvFlags::NO_SYNC) };
    }
    // SAFETY: only this process opens the new directory, and only once.
    Ok(unsafe { options.open(dir) }?)
}

impl Store for Lmdb {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(self))
    }

    fn sync(&self) -> Result<()> {
        Ok(self.env.force_sync()?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.env.prepare_for_closing().wait();
        Ok(())
    }
}

impl Session for &Lmdb {
    fn put(&mut self, blobs: &[(&str, &[u8])]) -> Result<()> {
        let mut all = self.env.write_txn()?;
        for (name, blob) in blobs {
            self.blobs.put(&mut all, name, blob)?;
        }
        Ok(all.commit()?)
    }

    fn get(&mut self, name: &str, blob: &mut Vec<u8>) -> Result<bool> {
        blob.clear();
        let all = self.env.read_txn()?;
        let found = self.blobs.get(&all, name)?;
        blob.extend_from_slice(found.unwrap_or_default());
        Ok(found.is_some())
    }

    fn list(&mut self, each: &mut dyn FnMut(&[u8])) -> Result<()> {
        let all = self.env.read_txn()?;
        for found in self.blobs.lazily_decode_data().iter(&all)? {
            each(found?.0.as_bytes());
        }
        Ok(())
    }

    fn delete(&mut self, names: &[&str]) -> Result<()> {
        let mut all = self.env.write_txn()?;
        for name in names {
            self.blobs.delete(&mut all, name)?;
        }
        Ok(all.commit()?)
    }
}
