//! The status report of a mounted volume: its state and the reason, space, errors, counters.
//!
//! The daemon fills in a [`Status`] from the engine, and commands read it as JSON. Nothing here
//! changes the volume or waits for the device, so a volume that has stopped also reports its
//! status.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::UNIX_EPOCH;

use cairnfs::fs::FileSystem;
use cairnfs::{Error, RootInfo};
use cairnfs_disk::device::Fault;
use serde::{Deserialize, Serialize};

use crate::messages::Messages;

/// The operational state of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Reads and writes.
    Running,
    /// Reads only, as requested at mount.
    ReadOnly,
    /// A failure stopped all changes. What was durable can be read.
    Stopped,
}

/// Space of the volume, in bytes, and inodes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Space {
    /// Total space for files and index.
    pub total: u64,
    /// Space that is not in use.
    pub free: u64,
    /// Space that can be allocated to files, limited by the volume and the host.
    pub available: u64,
    /// Number of inodes for which the empty volume has space.
    pub inodes: u64,
    /// Number of inodes for which there is space left.
    pub inodes_free: u64,
    /// Size of the log.
    pub log: u64,
    /// Bytes of the log that would be replayed after a crash.
    pub log_used: u64,
}

/// The file system that holds the volume's file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Host {
    /// Free bytes.
    pub free: u64,
    /// Bytes of the volume's file for which the host has not allocated space.
    pub unallocated: u64,
    /// Whether the file may need more space than the host has left.
    pub may_outgrow: bool,
}

/// The file that holds the volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeFile {
    /// Number of the file system that holds it (`st_dev`).
    pub dev: u64,
    /// Its inode number there.
    pub ino: u64,
    /// Its current path, if it has one that is visible to the daemon.
    pub path: Option<String>,
    /// Message if the file was moved, replaced or deleted while it was open.
    pub displaced: Option<String>,
}

/// The branch or snapshot that a mount shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    /// Its name now, which may not be the one that it was mounted by.
    pub name: String,
    /// Whether it is a snapshot.
    pub is_snapshot: bool,
}

/// The last error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastError {
    /// Its kind, one of those of [`Status::errors`], or `backup`.
    pub kind: String,
    /// Time of the error, in seconds since 1970.
    pub time: u64,
    /// Its text.
    pub text: String,
}

/// The transport of the kernel's messages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transport {
    /// Its name, as for the mount option `transport`.
    pub name: String,
    /// Messages since the volume was mounted that an event loop found by polling, before it slept.
    pub polled: u64,
    /// Messages that an event loop served on the processor of the only client.
    #[serde(default)]
    pub followed: u64,
}

/// The backup to which a volume is shipped while it is mounted. Numbers are those since it was mounted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backup {
    /// Its URL, without credentials.
    pub url: String,
    /// Number of the newest moment that was stored, or found to be there with nothing changed.
    pub moment: Option<u64>,
    /// The time of that moment, in seconds since 1970.
    pub time: Option<u64>,
    /// Seconds since everything in the volume was in the store.
    pub age: Option<u64>,
    /// Moments that were stored.
    pub moments: u64,
    /// Bytes of their objects.
    pub bytes: u64,
    /// Attempts that failed.
    pub failures: u64,
    /// Whether the last attempt failed.
    pub failing: bool,
    /// Whether no further attempt is made.
    pub ended: bool,
    /// The last failure.
    pub last_error: Option<LastError>,
    /// Moments that were removed, by the rules of the mount.
    #[serde(default)]
    pub removed: u64,
    /// Attempts to remove moments, or to merge or delete layers, that failed.
    #[serde(default)]
    pub care_failures: u64,
    /// Whether the last of these attempts failed.
    #[serde(default)]
    pub care_failing: bool,
    /// The last of these failures.
    #[serde(default)]
    pub last_care_error: Option<LastError>,
    /// Seconds since the attempt to store a moment began that goes on now.
    #[serde(default)]
    pub attempt: Option<u64>,
    /// What has no answer for the longest time.
    #[serde(default)]
    pub in_flight: Option<InFlight>,
}

/// A request of a backup to its store that has no answer yet: the oldest one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InFlight {
    /// What it is about, such as `store heads/7`.
    pub what: String,
    /// Seconds since it was first made.
    pub seconds: u64,
    /// How many have no answer.
    pub requests: u64,
    /// Whether it has been without an answer for so long that the backup counts as one that hangs.
    pub overdue: bool,
}

/// Programs that ask by channels (`cairnfs run`), and their calls since the volume was mounted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Programs {
    /// How many there are now.
    pub connected: u64,
    /// Calls that were answered, by operation.
    pub answered: BTreeMap<String, u64>,
    /// Those among them that their programs did not wait for.
    pub deferred: u64,
    /// Calls that were left to the kernel, by reason.
    pub left: BTreeMap<String, u64>,
}

/// The status of a mounted volume.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    /// The path of the volume.
    pub volume: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// The operational state.
    pub state: State,
    /// The reason if the state is not [`State::Running`].
    pub reason: Option<String>,
    /// The recommended action if the volume has stopped.
    pub next_step: Option<String>,
    /// Space and inodes.
    pub space: Space,
    /// The host file system; `None` for a block device.
    pub host: Option<Host>,
    /// The file that holds the volume; `None` for a block device.
    pub file: Option<VolumeFile>,
    /// What is mounted; `None` if it has no name any more.
    #[serde(default)]
    pub tree: Option<Tree>,
    /// Errors since the volume was mounted, by kind.
    pub errors: BTreeMap<String, u64>,
    /// The last of them.
    pub last_error: Option<LastError>,
    /// Messages from the kernel since the volume was mounted, by operation.
    #[serde(default)]
    pub messages: BTreeMap<String, u64>,
    /// What carries them.
    #[serde(default)]
    pub transport: Transport,
    /// Programs that ask beside the kernel.
    #[serde(default)]
    pub programs: Programs,
    /// Its backup; `None` without the mount option `backup=`.
    #[serde(default)]
    pub backup: Option<Backup>,
    /// The engine's counters; [`cairnfs::fs::LEVELS`] names those that are gauges, not sums.
    #[serde(flatten)]
    pub counters: BTreeMap<String, u64>,
}

/// Error kind of data that the kernel had accepted from a program and the volume refused.
pub const LOST: &str = "lost";

impl Status {
    /// Collects the status of an open volume. `lost` is the number of refused writes that the
    /// kernel had accepted.
    pub fn of(
        fs: &FileSystem,
        volume: &Path,
        lost: u64,
        messages: &Messages,
        transport: Transport,
    ) -> Self {
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
            tree: fs.root_info().and_then(tree),
            errors: errors.map(|(kind, n)| (kind.to_owned(), n)).collect(),
            last_error: faults.last.map(last_error),
            messages: messages.counts(),
            transport,
            programs: Programs::default(),
            backup: None,
            counters: counters.map(|(name, n)| (name.to_owned(), n)).collect(),
        }
    }

    /// The same of a mount that shows this root.
    #[must_use]
    pub fn showing(self, root: Option<RootInfo>) -> Self {
        let tree = root.and_then(tree);
        Self { tree, ..self }
    }

    /// Returns the value of the named counter, or 0 if the daemon does not report it.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    /// Returns a message if the volume's file was moved, replaced or deleted while it was open.
    pub fn displaced(&self) -> Option<&str> {
        self.file.as_ref()?.displaced.as_deref()
    }

    /// Number of errors of all kinds.
    pub fn error_count(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Returns a message with reason and recommended action if the volume has stopped.
    pub fn stopped(&self) -> Option<String> {
        let reason = self
            .reason
            .as_ref()
            .filter(|_| self.state == State::Stopped)?;
        let next_step = self.next_step.as_deref().unwrap_or_default();
        Some(stopped(&self.volume, reason, next_step))
    }
}

/// Formats the message that a volume has stopped because of `failure`, with the recommended action.
pub fn stopped_by(volume: &Path, failure: &Error) -> String {
    let volume = volume.to_string_lossy();
    stopped(&volume, &failure.to_string(), failure.next_step())
}

fn stopped(volume: &str, reason: &str, next_step: &str) -> String {
    format!(
        "{volume} has stopped: {reason}. What was not durable before that is lost. To do: {next_step}"
    )
}

fn tree(root: RootInfo) -> Option<Tree> {
    Some(Tree {
        name: root.name?,
        is_snapshot: !root.writable,
    })
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
    use crate::messages::Operation;
    use cairnfs::fs::{MakeOptions, Options, make_device};
    use cairnfs_disk::device::MemoryDevice;
    use std::sync::Arc;

    #[test]
    fn status_survives_json_round_trip() {
        let device = MemoryDevice::new(64 << 20);
        make_device(&device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        let fs = FileSystem::open_device(Arc::new(device), &Options::default()).unwrap();
        let messages = Messages::default();
        messages.count(Operation::Lookup);
        let transport = Transport {
            name: "dev".into(),
            polled: 7,
            followed: 9,
        };
        let path = Path::new("/a \"b\"\n.cairn");
        let status = Status::of(&fs, path, 3, &messages, transport);
        let json = serde_json::to_vec(&status).unwrap();
        let read: Status = serde_json::from_slice(&json).unwrap();
        assert_eq!(read.volume, "/a \"b\"\n.cairn");
        assert_eq!((read.state, read.stopped()), (State::Running, None));
        let main = Tree {
            name: "main".into(),
            is_snapshot: false,
        };
        assert_eq!(read.tree, Some(main));
        assert_eq!((read.error_count(), read.errors[LOST]), (3, 3));
        assert_eq!(read.counters, status.counters);
        assert_eq!(read.messages, status.messages);
        assert_eq!(read.transport, status.transport);
        assert_eq!((read.messages["lookup"], read.messages["write"]), (1, 0));
        assert!(read.counters.contains_key("commits") && read.space.available > 0);
    }

    #[test]
    fn stopped_message_names_reason_and_next_step() {
        let text = stopped_by(Path::new("/v"), &Error::Invalid("a worker thread panicked"));
        assert!(
            text.starts_with("/v has stopped: invalid argument"),
            "{text}"
        );
        assert!(text.contains("To do: unmount it"), "{text}");
    }
}
