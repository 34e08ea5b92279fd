//! A database on a volume, killed in the middle of writing, again and again.
//!
//!     cargo run --manifest-path examples/slatedb/Cargo.toml
//!
//! SlateDB keeps its data in an object store; here that is a CairnFS volume. The program starts
//! itself as a child, which opens the volume and the database, and puts keys from several tasks. It
//! prints each one when SlateDB says that it is durable. At some point the parent kills it with
//! SIGKILL, opens the volume and the database again, and checks that each acknowledged key is there
//! with its value, and that every value is whole. At the end it forks the whole database, empties the
//! fork, and shows that the original has everything.

use std::collections::BTreeSet;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use cairnfs::Volume;
use cairnfs_object_store::CairnStore;
use slatedb::Db;
use slatedb::config::Settings;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const CHILD: &str = "CAIRNFS_SLATEDB_CHILD";
const ROUNDS: usize = 5;
const WRITERS: usize = 8;

/// The value of a key: its length and its bytes follow from the key.
fn value(key: &str) -> Vec<u8> {
    let sum: usize = key.bytes().map(usize::from).sum();
    key.bytes().cycle().take(100 + sum % 3000).collect()
}

/// Opens the database that a tree of files has.
async fn open(files: &Volume) -> Result<Db> {
    let store = CairnStore::in_directory(files.clone(), "database")?;
    let settings = Settings {
        flush_interval: Some(Duration::from_millis(5)),
        // Small, so that tables are written and compacted in each round.
        l0_sst_size_bytes: 256 << 10,
        ..Settings::default()
    };
    let database = Db::builder("orders", Arc::new(store)).with_settings(settings);
    Ok(database.build().await?)
}

/// The child: puts keys without end, and prints each that is durable.
async fn write_until_killed(volume: Volume, round: String) -> Result<()> {
    let database = Arc::new(open(&volume).await?);
    let writers = (0..WRITERS).map(|writer| {
        let (database, round) = (Arc::clone(&database), round.clone());
        tokio::spawn(async move {
            for number in 0.. {
                let key = format!("{round}/{writer}/{number:06}");
                let written = database.put(&key, value(&key)).await?;
                written.await_durable().await?;
                writeln!(std::io::stdout().lock(), "{key}")?;
            }
            Result::Ok(())
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await??;
    }
    Ok(())
}

/// Runs the child until it has acknowledged some keys, and kills it; the keys.
fn run_and_kill(image: &Path, round: usize) -> Result<Vec<String>> {
    let mut child = Command::new(std::env::current_exe()?)
        .args([image.as_os_str(), round.to_string().as_ref()])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()?;
    let enough = 300 + 217 * round;
    let mut acknowledged = Vec::new();
    let lines = child.stdout.take().map(BufReader::new);
    for line in lines.into_iter().flat_map(BufRead::lines) {
        acknowledged.push(line?);
        if acknowledged.len() == enough {
            // What the pipe still has was acknowledged, too, and is read to its end.
            child.kill()?;
        }
    }
    child.wait()?;
    if acknowledged.len() < enough {
Err("the child ended by itself".into())
} else {
Ok(acknowledged)
}
}

/// All keys of a database, each with its right value.
async fn keys_of(database: &Db) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    let mut rows = database.scan::<std::ops::RangeFull>(..).await?;
    while let Some(row) = rows.next().await? {
        let key = String::from_utf8(row.key.to_vec())?;
        if row.value != value(&key) {
            return Err(format!("{key} has another value").into());
        }
        found.insert(key);
    }
    Ok(found)
}

async fn check(image: &Path, acknowledged: &BTreeSet<String>) -> Result<BTreeSet<String>> {
    let volume = Volume::open(image)?;
    let database = open(&volume).await?;
    let found = keys_of(&database).await?;
    database.close().await?;
    drop(database);
    volume.close()?;
    match acknowledged.difference(&found).next() {
        Some(lost) => Err(format!("{lost} was acknowledged, and is lost").into()),
        None => Ok(found),
    }
}

/// Empties a fork of the database; how many keys the fork and the original have.
async fn fork(image: &Path) -> Result<(usize, usize)> {
    let volume = Volume::open(image)?;
    let database = open(&volume.branch("trial")?).await?;
    for key in keys_of(&database).await? {
        database.delete(&key).await?;
    }
    database.flush().await?;
    let left = keys_of(&database).await?.len();
    database.close().await?;
    drop(database);
    let original = open(&volume).await?;
    let kept = keys_of(&original).await?.len();
    original.close().await?;
    drop(original);
    volume.close()?;
    Ok((left, kept))
}

#[tokio::main]
async fn main() -> Result<()> {
    if std::env::var_os(CHILD).is_some() {
        let mut arguments = std::env::args().skip(1);
        let (Some(image), Some(round)) = (arguments.next(), arguments.next()) else {
            return Err("the parent gives image and round".into());
        };
        return write_until_killed(Volume::open(image)?, round).await;
    }
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("orders.cairn");
    Volume::create(&image, 1 << 30)?.close()?;
    let mut acknowledged = BTreeSet::new();
    for round in 0..ROUNDS {
        let new = run_and_kill(&image, round)?;
        let count = new.len();
        acknowledged.extend(new);
        let found = check(&image, &acknowledged).await?;
        println!(
            "killed after {count} acknowledged keys: {} of {} are there, and {} that were on their way",
            acknowledged.len(),
            acknowledged.len(),
            found.len() - acknowledged.len()
        );
    }
    let (left, kept) = fork(&image).await?;
    println!("a fork was emptied: it has {left} keys, the original {kept}");
    Ok(())
}
