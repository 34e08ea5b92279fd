//! `cairnfs backup`: stores moments of a volume in an object store, and takes care of them.
//!
//! Here is what its parts, `restore-from` and `mount --at` have in common: the URL, the key, progress
//! and failures; [`at`] has which moment is meant.

mod at;
mod check;
mod list;
mod moments;
pub mod now;
mod prune;
mod repair;
pub mod unread;

use std::fmt::Display;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use cairnfs_backup::{
    Catalogue, Damage, Ended, Error, Key, Place, Seal, Store, Watch, can_encrypt, environment,
};
use cairnfs_daemon::failure::{AnyError, Failure, io_text, shown};
use serde::Serialize;

pub use self::at::AtArgs;

use crate::output::Progress;
use crate::stage::Stage;
use crate::verbs::{self, Verb};

const EXAMPLES: &str = "\
Examples:
  cairnfs backup disk.img file:///mnt/other/disk     what has changed since the last time
  cairnfs backup ~/disk s3://bucket/disk             of a mounted volume
  cairnfs backup list s3://bucket/disk
  cairnfs backup check s3://bucket/disk
  cairnfs backup prune s3://bucket/disk --keep-daily 7 --keep-weekly 5
  cairnfs backup repair s3://bucket/disk             if its newest head is damaged
  cairnfs backup repair s3://bucket/disk --from disk.img      if contents are
  cairnfs restore-from s3://bucket/disk new.img --at 10:30
  cairnfs mount --at 10:30 s3://bucket/disk ~/then   look into it without restoring

URL is file:///directory (or just a directory), s3://bucket/prefix,
gs://bucket/prefix or az://container/prefix; the last three need a program that
was built with `--features cloud`. Encrypted backups need one that was built with
`--features encryption`: another one lists their moments, and refuses all else;
`cairnfs --version` tells what it has. Credentials and endpoints come from the
environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN,
AWS_REGION, AWS_ENDPOINT; GOOGLE_APPLICATION_CREDENTIALS;
AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY.

The first backup stores the whole volume, with all branches and snapshots; each
further one what has changed. A mounted volume goes on meanwhile. A backup that
is interrupted leaves no moment, and what it has stored is removed by the next
prune. A backup has one writer: another machine or path is refused without
--take-over. A volume that is called list, check, prune or repair is
./list and so on.

Exit codes: 0 stored, or nothing has changed; 1 not stored; 2 wrong arguments;
74 stored, but that could not be printed.";

/// Store what has changed in a volume in an object store
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
#[command(subcommand_negates_reqs = true)]
pub struct Args {
    #[command(subcommand)]
    maintenance: Option<Maintenance>,
    #[command(flatten)]
    now: Option<now::Args>,
}

#[derive(Debug, clap::Subcommand)]
enum Maintenance {
    List(list::Args),
    Check(check::Args),
    Prune(prune::Args),
    Repair(repair::Args),
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode, AnyError> {
    match (args.maintenance, args.now) {
        (Some(Maintenance::List(args)), _) => list::run(&args),
        (Some(Maintenance::Check(args)), _) => check::run(&args),
        (Some(Maintenance::Prune(args)), _) => prune::run(&args),
        (Some(Maintenance::Repair(args)), _) => repair::run(&args),
        (None, Some(mut now)) => {
            now.prepare()?;
            verbs::run(&Verb::Backup(now))
        }
        (None, None) => Ok(ExitCode::from(2)),
    }
}

/// Exit code: something stays damaged.
const LEFT: u8 = 4;

/// What opens an encrypted backup.
#[derive(Debug, Default, clap::Args)]
pub struct KeyArgs {
    /// File with the passphrase of an encrypted backup (built with `--features encryption`)
    #[arg(long, value_name = "FILE", conflicts_with = "identity")]
    passphrase_file: Option<PathBuf>,
    /// File with the age identity of an encrypted backup (built with `--features encryption`)
    #[arg(long, value_name = "FILE")]
    identity: Option<PathBuf>,
}

impl KeyArgs {
    /// The key, if one is given.
    ///
    /// # Errors
    /// A file cannot be read, or this program does not decrypt.
    pub fn key(&self) -> Result<Option<Key>, Failure> {
        if let Some(path) = self.passphrase_file.as_ref().or(self.identity.as_ref()) {
            can_encrypt().map_err(|e| failure(shown(path), &e))?;
        }
        if let Some(path) = &self.passphrase_file {
            return Ok(Some(Key::Passphrase(passphrase(path)?)));
        }
        self.identity
            .as_ref()
            .map(|path| Ok(Key::Identity(read(path)?)))
            .transpose()
    }

    /// The options again, for another process with another working directory.
    ///
    /// # Errors
    /// There is no working directory.
    pub fn words(&self) -> std::io::Result<Vec<std::ffi::OsString>> {
        let mut words = Vec::new();
        for (option, path) in [
            ("--passphrase-file", &self.passphrase_file),
            ("--identity", &self.identity),
        ] {
            if let Some(path) = path {
                words.extend([option.into(), std::path::absolute(path)?.into_os_string()]);
            }
        }
        Ok(words)
    }
}

fn read(path: &std::path::Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|e| Failure::new(shown(path), io_text(&e)))
}

/// The first line of a file.
fn passphrase(path: &std::path::Path) -> Result<String, Failure> {
    let text = read(path)?;
    match text.lines().next().filter(|line| !line.is_empty()) {
        Some(line) => Ok(line.to_owned()),
        None => Err(Failure::new(
            shown(path),
            "its first line has no passphrase",
        )),
    }
}

/// A failure that concerns the backup at a URL, or the engine.
pub fn failure(url: impl Display, why: &Error) -> Failure {
    match why {
        Error::Engine(error) => Failure::engine(url, error),
        Error::Interrupted => crate::interrupt::interrupted(),
        other => Failure::new(url, other),
    }
}

/// A backup that was opened for reading.
pub struct Opened {
    /// Its store.
    pub store: Arc<Store>,
    /// What it has.
    pub catalogue: Catalogue,
    /// How its frames are read.
    pub seal: Arc<Seal>,
}

impl Opened {
    /// Opens the backup at a URL. Warns of damaged heads, and of moments that cannot be reached.
    ///
    /// # Errors
    /// There is none, the key does not fit, or the store fails.
    pub fn open(url: &str, key: &KeyArgs, ended: &Ended) -> Result<Self, Failure> {
        let (store, catalogue) = catalogue_at(url, ended)?;
        let seal = Seal::of(catalogue.root().encryption.as_ref(), key.key()?.as_ref());
        let seal = seal.map_err(|e| failure(url, &e))?;
        Ok(Self {
            store,
            catalogue,
            seal: Arc::new(seal),
        })
    }
}

/// What the backup at a URL has, whether contents can be read or not. Warns of damaged heads, and of
/// moments that cannot be reached.
///
/// # Errors
/// There is none, or the store fails.
fn catalogue_at(url: &str, ended: &Ended) -> Result<(Arc<Store>, Catalogue), Failure> {
    let store = open_store(url, ended)?;
    let catalogue = Catalogue::open(&store).map_err(|e| failure(url, &e))?;
    for damage in catalogue.damage() {
        warn(&format!("{url}: {damage}{}", covered(damage)));
    }
    if let Some((first, last)) = catalogue.unreachable() {
        warn(&format!("{url}: {}", unreachable(first, last)));
    }
    Ok((store, catalogue))
}

/// A damaged head or copy, as JSON.
#[derive(Serialize)]
struct Damaged<'a> {
    object: &'a str,
    why: &'a str,
    /// Whether the other one of the two was read in its place.
    covered: bool,
}

impl<'a> Damaged<'a> {
    fn of(damage: &'a Damage) -> Self {
        Self {
            object: &damage.object,
            why: &damage.why,
            covered: damage.is_covered,
        }
    }
}

/// What covers the damage.
fn covered(damage: &Damage) -> &'static str {
    if damage.is_covered {
        "; the other one of the two was read (`cairnfs backup repair` puts it back)"
    } else {
        ""
    }
}

/// Which moments cannot be reached.
fn unreachable(first: u64, last: u64) -> String {
    let which = if first == last {
        format!("what head {first} has added")
    } else {
        format!("what the heads {first} to {last} have added")
    };
    format!(
        "moments with numbers from {first} on cannot be reached: {which} cannot be read; older moments can (`cairnfs backup list`), and `cairnfs backup repair` goes on from them"
    )
}

/// Tells a warning.
pub fn warn(text: &str) {
    // Nobody is left to be told that standard error failed.
    let _ = writeln!(io::stderr(), "cairnfs: warning: {text}");
}

/// Ends the waits of a store when the command is interrupted, which is deferred.
///
/// # Errors
/// There is no descriptor left.
pub fn interruption(stage: &Stage) -> Result<Ended, Failure> {
    stage.defer_interrupts()?;
    Ok(Ended::when(stage.interruption()?))
}

/// The store at a URL that must have a backup.
///
/// # Errors
/// The URL cannot be used.
fn open_store(url: &str, ended: &Ended) -> Result<Arc<Store>, Failure> {
    let store = cairnfs_backup::open(url, Place::Find, &environment(), ended);
    store.map(Arc::new).map_err(|e| failure(url, &e))
}

/// Work that is shown as a bar, and ends when the command is interrupted.
pub struct Shown<'a> {
    stage: &'a Stage,
    progress: Progress,
}

impl<'a> Shown<'a> {
    /// A bar of bytes.
    pub fn new(stage: &'a Stage, what: &'static str, quiet: bool) -> Self {
        // A total of one byte, so that the bar has a length from the beginning.
        let progress = stage.bytes(what, 1, quiet);
        Self { stage, progress }
    }
}

impl Watch for Shown<'_> {
    fn expect(&self, bytes: u64) {
        self.progress.expect_more(bytes);
    }

    fn done(&self, bytes: u64) {
        self.progress.add(bytes);
    }

    fn go_on(&self) -> cairnfs_backup::Result<()> {
        self.stage.check().map_err(|_| Error::Interrupted)
    }
}

/// Bytes in a second, for people.
pub fn rate(bytes: u64, since: std::time::Instant) -> String {
    let seconds = since.elapsed().as_secs_f64().max(0.001);
    format!("{}/s", crate::size::human((bytes as f64 / seconds) as u64))
}
