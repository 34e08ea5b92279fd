//! What a mounted volume tells of itself: its state and why, how full it is, errors, counters.
//!
//! The daemon fills in a [`Status`] from the engine, commands read it; between the two it is JSON.
//! Nothing here changes the volume, and nothing waits for it: a volume that has stopped answers, too.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::UNIX_EPOCH;

use cairnfs::Error;
use cairnfs::device::Fault;
use cairnfs::fs::FileSystem;
use serde::{Deserialize, Serialize};

/// What a volume can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It reads and writes.
    Running,
    /// It only reads, as it was asked to.
    ReadOnly,
    /// A failure stopped all changes. What was durable can be read.
    Stopped,
}

/// Space of the volume, in bytes, and inodes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Space {
    /// What files and index can use.
    pub total: u64,
    /// What is not in use.
    pub free: u64,
    /// What can still be given to files, here and on the host.
    pub available: u64,
    /// Inodes that the empty volume has space for.
    pub inodes: u64,
    /// Inodes that there is space for.
    pub inodes_free: u64,
    /// Size of the log.
    pub log: u64,
    /// Bytes of the log that a crash would leave to be replayed.
    pub log_used: u64,
}

/// The file system that holds the volume's file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Host {
    /// Bytes that it has left.
    pub free: u64,
    /// Bytes of the volume's file that have no space yet.
    pub unallocated: u64,
    /// Whether the file may need more than is left.
    pub may_outgrow: bool,
}

/// The file that holds the volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeFile {
    /// Number of the file system that holds it (`st_dev`).
    pub dev: u64,
    /// Its inode number there.
    pub ino: u64,
    /// Its path now, if it has one that the daemon can see.
    pub path: Option<String>,
    /// That it was moved, replaced or deleted while it was open, in words.
    pub displaced: Option<String>,
}

/// An error that was met.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LastError {
    /// Its kind, one of those of [`Status::errors`].
    pub kind: String,
    /// When, in seconds since 1970.
    pub time: u64,
    /// Its text.
    pub text: String,
}

/// All that is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    /// The path of the volume.
    pub volume: String,
    /// The daemon's process.
    pub pid: u32,
    /// What it can do.
    pub state: State,
    /// Why it does not run.
    pub reason: Option<String>,
    /// What to do about that.
    pub next_step: Option<String>,
    /// How full it is.
    pub space: Space,
    /// What lies below; `None` for a block device.
    pub host: Option<Host>,
    /// The file that holds the volume; `None` for a block device.
    pub file: Option<VolumeFile>,
    /// Errors since the volume was mounted, by kind.
    pub errors: BTreeMap<String, u64>,
    /// The last of them.
    pub last_error: Option<LastError>,
    /// The engine's counters; [`cairnfs::fs::LEVELS`] names those that are no sums.
    #[serde(flatten)]
    pub counters: BTreeMap<String, u64>,
}

/// The kind of error of data that the kernel had accepted for a program and the volume refused.
pub const LOST: &str = "lost";

impl Status {
    /// The status of an open volume. `lost` is how often data that the kernel had accepted was refused.
    pub fn of(fs: &FileSystem, volume: &Path, lost: u64) -> Self {
        let failure = fs.failure();
        let faults = fs.faults();
        let kinds = faults.counts.iter().map(|(kind, n)| (kind.name(), *n));
        let errors = kinds.chain([(LOST, lost)]);
        let counters = fs.counters().into_iter();
        Self {
            volume: volume.to_string_lossy().into_owned(),
            pid: std::process::id(),
            state: match (&failure, fs.is_read_only()) {
                (Some(_), _) => State::Stopped,
                (None, true) => State::ReadOnly,
                (None, false) => State::Running,
            },
            reason: match &failure {
                Some(failure) => Some(failure.to_string()),
                None => fs.is_read_only().then(|| "it was mounted with ro".into()),
            },
            next_step: failure.as_ref().map(|e| e.next_step().to_owned()),
            space: space(fs),
            host: fs.host_room().map(|room| Host {
                free: room.free,
                unallocated: room.holes,
                may_outgrow: room.shortfall() > 0,
            }),
            file: fs.host_file().map(|file| VolumeFile {
                dev: file.dev,
                ino: file.ino,
                path: file.path.map(|p| p.to_string_lossy().into_owned()),
                displaced: file.displaced,
            }),
            errors: errors.map(|(kind, n)| (kind.to_owned(), n)).collect(),
            last_error: faults.last.map(last_error),
            counters: counters.map(|(name, n)| (name.to_owned(), n)).collect(),
        }
    }

    /// A counter, 0 if there is none of that name.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    /// That the volume's file was moved, replaced or deleted while it was open, in words.
    pub fn displaced(&self) -> Option<&str> {
        self.file.as_ref()?.displaced.as_deref()
    }

    /// Errors of all kinds.
    pub fn error_count(&self) -> u64 {
        self.errors.values().sum()
    }

    /// That a volume has stopped, with the reason and what to do; `None` for one that has not.
    pub fn stopped(&self) -> Option<String> {
        let reason = self
            .reason
            .as_ref()
            .filter(|_| self.state == State::Stopped)?;
        let next_step = self.next_step.as_deref().unwrap_or_default();
        Some(stopped(&self.volume, reason, next_step))
    }
}

/// That a volume has stopped because of `failure`, with what to do.
pub fn stopped_by(volume: &Path, failure: &Error) -> String {
    let volume = volume.to_string_lossy();
    stopped(&volume, &failure.to_string(), failure.next_step())
}

fn stopped(volume: &str, reason: &str, next_step: &str) -> String {
    format!(
        "{volume} has stopped: {reason}. What was not durable before that is lost. To do: {next_step}"
    )
}

fn space(fs: &FileSystem) -> Space {
    let (stat, info) = (fs.statfs(), fs.info());
    let bytes = |blocks: u64| blocks.saturating_mul(stat.block_size.into());
    Space {
        total: bytes(stat.blocks),
        free: bytes(stat.free),
        available: bytes(stat.available),
        inodes: stat.files,
        inodes_free: stat.files_free,
        log: info.log_size,
        log_used: info.log_used,
    }
}

fn last_error(fault: Fault) -> LastError {
    let time = fault.time.duration_since(UNIX_EPOCH);
    LastError {
        kind: fault.kind.name().to_owned(),
        time: time.map(|t| t.as_secs()).unwrap_or(0),
        text: fault.error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairnfs::device::MemoryDevice;
    use cairnfs::fs::{MakeOptions, Options, make_device};
    use std::sync::Arc;

    #[test]
    fn a_status_comes_through_json() {
        let device = MemoryDevice::new(64 << 20);
        make_device(&device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        let fs = FileSystem::open_device(Arc::new(device), &Options::default()).unwrap();
        let status = Status::of(&fs, Path::new("/a \"b\"\n.cairn"), 3);
        let json = serde_json::to_vec(&status).unwrap();
        let read: Status = serde_json::from_slice(&json).unwrap();
        assert_eq!(read.volume, "/a \"b\"\n.cairn");
        assert_eq!((read.state, read.stopped()), (State::Running, None));
        assert_eq!((read.error_count(), read.errors[LOST]), (3, 3));
        assert_eq!(read.counters, status.counters);
        assert!(read.counters.contains_key("commits") && read.space.available > 0);
    }

    #[test]
    fn a_failure_is_told_with_what_to_do() {
        let text = stopped_by(Path::new("/v"), &Error::Invalid("a worker thread panicked"));
        assert!(
            text.starts_with("/v has stopped: invalid argument"),
            "{text}"
        );
        assert!(text.contains("To do: unmount it"), "{text}");
    }
}
