//! SQLite, built from its source: one table, whose key is the name, with a write-ahead log.
//!
//! Durable: `synchronous=FULL`, which syncs the log at each commit. Not durable:
//! `synchronous=OFF`, which syncs nothing; a power failure may damage the database.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cairnfs_bench::Result;
use rusqlite::{Connection, OptionalExtension, Row, TransactionBehavior, params};

use super::{Session, Setup, Store};

struct Sqlite {
    path: PathBuf,
    setup: Setup,
}

pub fn create(dir: &Path, setup: Setup) -> Result<Box<dyn Store>> {
    let path = dir.join("blobs.sqlite");
    let store = Sqlite { path, setup };
    let made = store.connect()?;
    made.execute_batch("CREATE TABLE blobs (name TEXT NOT NULL PRIMARY KEY, blob BLOB NOT NULL)")?;
    Ok(Box::new(store))
}

impl Sqlite {
    fn connect(&self) -> Result<Connection> {
        let connection = Connection::open(&self.path)?;
        connection.busy_timeout(Duration::from_secs(60))?;
        let synchronous = if self.setup.durable { "FULL" } else { "OFF" };
        let kibibytes = self.setup.cache >> 10;
        connection.execute_batch(&format!(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous={synchronous}; PRAGMA cache_size=-{kibibytes}"
        ))?;
        Ok(connection)
    }
}

impl Store for Sqlite {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Connected(self.connect()?)))
    }

    /// A checkpoint with syncs: the log and the database.
    fn sync(&self) -> Result<()> {
        let connection = self.connect()?;
        connection.execute_batch("PRAGMA synchronous=FULL")?;
        let busy: i64 =
            connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
        match busy {
            0 => Ok(()),
            _ => Err("SQLite's checkpoint was blocked".into()),
        }
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

struct Connected(Connection);

impl Session for Connected {
    fn put(&mut self, blobs: &[(&str, &[u8])]) -> Result<()> {
        let all = self
            .0
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        for (name, blob) in blobs {
            all.prepare_cached("INSERT INTO blobs VALUES (?1, ?2)")?
                .execute(params![name, blob])?;
        }
        Ok(all.commit()?)
    }

    fn get(&mut self, name: &str, blob: &mut Vec<u8>) -> Result<bool> {
        blob.clear();
        let mut select = self
            .0
            .prepare_cached("SELECT blob FROM blobs WHERE name = ?1")?;
        let copy = |row: &Row<'_>| {
            blob.extend_from_slice(row.get_ref(0)?.as_blob()?);
            Ok(())
        };
        Ok(select.query_row([name], copy).optional()?.is_some())
    }

    fn list(&mut self, each: &mut dyn FnMut(&[u8])) -> Result<()> {
        let mut select = self.0.prepare_cached("SELECT name FROM blobs")?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            each(row.get_ref(0)?.as_bytes()?);
        }
        Ok(())
    }

    fn delete(&mut self, names: &[&str]) -> Result<()> {
        let all = self
            .0
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        for name in names {
            all.prepare_cached("DELETE FROM blobs WHERE name = ?1")?
                .execute([name])?;
        }
        Ok(all.commit()?)
    }
}
