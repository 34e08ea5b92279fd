//! Embedded stores under one interface: named blobs that are put, read, listed and deleted.
//!
//! Each store is opened in an empty directory. Its module sets it up as its documentation
//! recommends for the requested durability; all other settings are the store's defaults, except the
//! size of its cache, which is equal for all stores that have one.

mod cairn;
mod files;
#[cfg(feature = "fjall")]
mod fjall;
#[cfg(feature = "lmdb")]
mod lmdb;
#[cfg(feature = "redb")]
mod redb;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::path::Path;

use cairnfs_bench::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Peer {
    /// The CairnFS library: a file for each blob, in one directory of a volume
    Cairnfs,
    /// No store: a file for each blob in a directory of the host's file system
    Files,
    /// SQLite: a table with the name as its key, write-ahead log
    Sqlite,
    /// LMDB: a memory-mapped B-tree that is copied on write
    Lmdb,
    /// redb: a B-tree that is copied on write
    Redb,
    /// fjall: a log-structured merge tree
    Fjall,
}

impl Peer {
    /// All stores that this program was built with.
    pub fn built() -> Vec<Self> {
        let all = Self::value_variants().iter().copied();
        all.filter(|peer| peer.is_built()).collect()
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Peer::Cairnfs => "cairnfs",
            Peer::Files => "files",
            Peer::Sqlite => "sqlite",
            Peer::Lmdb => "lmdb",
            Peer::Redb => "redb",
            Peer::Fjall => "fjall",
        }
    }

    /// Whether this program was built with the store.
    pub fn is_built(self) -> bool {
        match self {
            Peer::Cairnfs | Peer::Files => true,
            Peer::Sqlite => cfg!(feature = "sqlite"),
            Peer::Lmdb => cfg!(feature = "lmdb"),
            Peer::Redb => cfg!(feature = "redb"),
            Peer::Fjall => cfg!(feature = "fjall"),
        }
    }

    /// Creates the store in an empty directory.
    ///
    /// # Errors
    /// Errors of the store, or that this program was built without it.
    pub fn create(self, dir: &Path, setup: Setup) -> Result<Box<dyn Store>> {
        match self {
            Peer::Cairnfs => cairn::create(dir, setup),
            Peer::Files => files::create(dir, setup),
            #[cfg(feature = "sqlite")]
            Peer::Sqlite => sqlite::create(dir, setup),
            #[cfg(feature = "lmdb")]
            Peer::Lmdb => lmdb::create(dir, setup),
            #[cfg(feature = "redb")]
            Peer::Redb => redb::create(dir, setup),
            #[cfg(feature = "fjall")]
            Peer::Fjall => fjall::create(dir, setup),
            #[cfg(not(all(
                feature = "sqlite",
                feature = "lmdb",
                feature = "redb",
                feature = "fjall"
            )))]
            _ => Err(self.not_built().into()),
        }
    }

    /// Says how to build the store.
    pub fn not_built(self) -> String {
        let name = self.name();
        format!("built without {name}: cargo run --release -p cairnfs-peers --features {name}")
    }
}

/// What a store is set up for.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// Whether each put and delete is durable when it returns.
    pub durable: bool,
    /// Bytes of the store's own cache, if it has one.
    pub cache: usize,
    /// Bytes of all blobs that will be put.
    pub payload: u64,
}

/// A store of named blobs, used by several threads.
pub trait Store: Sync {
    /// Opens what one thread needs to use the store.
    fn session(&self) -> Result<Box<dyn Session + '_>>;

    /// Makes everything durable.
    fn sync(&self) -> Result<()>;

    /// Closes the store, with all deferred work.
    fn close(self: Box<Self>) -> Result<()>;
}

/// A thread's use of a store. Changes of one call are made together: durable when the call returns
/// if the store was set up so, and in one transaction if the store has transactions.
pub trait Session {
    /// Puts new blobs.
    fn put(&mut self, blobs: &[(&str, &[u8])]) -> Result<()>;

    /// Reads a blob into `blob`, replacing what it holds; returns whether there is one.
    fn get(&mut self, name: &str, blob: &mut Vec<u8>) -> Result<bool>;

    /// Calls `each` with the name of each blob.
    fn list(&mut self, each: &mut dyn FnMut(&[u8])) -> Result<()>;

    /// Deletes blobs that exist.
    fn delete(&mut self, names: &[&str]) -> Result<()>;
}
