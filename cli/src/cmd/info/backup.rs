//! What is known of the backup of a volume: from the daemon that ships it, or from the volume itself.
//!
//! A volume names the checkpoint that was stored last, so that the next backup needs only what has changed
//! since. It knows neither the place nor the time; a daemon with `-o backup=` knows both.

use std::path::Path;
use std::time::Duration;

use cairnfs::Volume;
use cairnfs_core::refs::local_zone;
use cairnfs_daemon::failure::show_bytes;
use cairnfs_daemon::holder;
use cairnfs_disk::types::Time;
use cairnfs_fuse::status;
use serde::Serialize;

use crate::daemon;
use crate::output::{local_time, utc_time};

/// How long a daemon has for an answer: what else is known must not wait for it.
const WAIT: Duration = Duration::from_secs(5);

/// The backup of a volume.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Backup {
    /// Where it is, without credentials, if the volume is mounted with it.
    url: Option<String>,
    /// The number of the newest moment.
    moment: Option<u64>,
    /// Its time.
    time: Option<String>,
    /// The checkpoint that was stored last, of a volume that is not in use.
    checkpoint: Option<String>,
    #[serde(skip)]
    seconds: Option<u64>,
}

impl Backup {
    /// What an open volume knows.
    pub fn of_volume(volume: &Volume) -> Option<Self> {
        let checkpoint = volume.known_checkpoints().into_iter().next()?;
        Some(Self {
            checkpoint: Some(checkpoint.to_string()),
            ..Self::default()
        })
    }

    /// What the daemon knows that has a volume mounted.
    pub fn of_daemon(volume: &Path) -> Option<Self> {
        let mountpoint = holder::mountpoint(volume)?;
        let answer = daemon::status(&mountpoint, WAIT).ok()?;
        answer.status.backup.map(Self::of_status)
    }

    fn of_status(backup: status::Backup) -> Self {
        Self {
            url: Some(backup.url),
            moment: backup.moment,
            time: backup.time.map(|seconds| utc_time(time(seconds))),
            checkpoint: None,
            seconds: backup.time,
        }
    }

    /// The same for people.
    pub fn words(&self) -> String {
        match (&self.url, &self.checkpoint) {
            (Some(url), _) => format!("{}, {}", show_bytes(url.as_bytes()), self.newest()),
            (None, Some(checkpoint)) => format!(
                "stored last as checkpoint {checkpoint}; `cairnfs backup list --json URL` has its moment"
            ),
            (None, None) => "none".into(),
        }
    }

    fn newest(&self) -> String {
        match (self.moment, self.seconds) {
            (Some(moment), Some(seconds)) => {
                let time = local_time(time(seconds), &local_zone());
                format!("newest moment {moment} of {time}")
            }
            _ => "no moment since it was mounted".into(),
        }
    }
}

fn time(seconds: u64) -> Time {
    let secs = i64::try_from(seconds).unwrap_or(i64::MAX);
    Time { secs, nanos: 0 }
}
