//! Performs commands on snapshots and branches of the open volume, for the processes that were called.
//!
//! Knows the mounts by the trees that they show. What a command does is decided by [`crate::verbs`].

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use cairnfs::Error;
use cairnfs_daemon::failure::{self, AnyError, Failure, shown};
use cairnfs_fuse::Sessions;
use serde_json::Value;

use super::carrier::{Orders, Stored};
use super::opening::OpenVolume;
use crate::handover::frames::{Answer, NamedMount};
use crate::roots::{Mounts, Roots, Shipping};
use crate::stage::Stage;
use crate::verbs::Verb;
use crate::volume::Access;

/// How often a command that waits for a backup looks whether it was interrupted.
const GLANCE: Duration = Duration::from_millis(100);

/// An open volume and its mounts.
pub(super) struct Open<'a> {
    pub handle: &'a OpenVolume,
    pub volume: &'a Path,
    pub sessions: &'a Arc<Sessions>,
    pub backup: Option<&'a Orders>,
}

impl Mounts for Open<'_> {
    fn fetch(&self, branch: &str) -> io::Result<()> {
        self.sessions.fetch(branch)
    }

    fn replacing(&self, branch: &str, change: &mut dyn FnMut()) -> cairnfs::Result<()> {
        let ((), followed) = self.sessions.replacing(branch, change);
        followed.and(self.handle.follow())
    }

    fn serves(&self, device: &str) -> bool {
        self.sessions.serves(device)
    }

    fn mounted_on(&self, root: u32) -> Option<PathBuf> {
        self.sessions.mounted_on(root.into())
    }

    fn ship(&self, stage: &Stage) -> Result<Shipping, Failure> {
        let Some(backup) = self.backup else {
            return Ok(Shipping::No);
        };
        let stored = backup.ship();
        loop {
            match stored.recv_timeout(GLANCE) {
                Ok(Ok(Stored { lacking: None })) => return Ok(Shipping::Stored),
                Ok(Ok(Stored { lacking: Some(why) })) => return Ok(Shipping::Failed(why)),
                Ok(Err(why)) => return Ok(Shipping::Failed(why.to_string())),
                Err(RecvTimeoutError::Timeout) => stage.check()?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Ok(Shipping::Failed(backup.why_ended()));
                }
            }
        }
    }
}

impl Open<'_> {
    /// The branch or snapshot that a mount shows.
    fn name_of(&self, mount: NamedMount) -> Option<String> {
        let root = self.sessions.shown_by(&mount.device);
        root.and_then(|root| root.name).or(mount.name)
    }
}

/// Performs a command, whose failures are told on the stage; returns its exit code.
pub(super) fn perform(
    open: &Open<'_>,
    (verb, mount): (Value, Option<NamedMount>),
    stage: &Stage,
    begin: &mut dyn FnMut(),
) -> Result<u8, Answer> {
    let unknown = |_| Answer::Refused("the daemon does not know this command".into());
    let verb: Verb = serde_json::from_value(verb).map_err(unknown)?;
    let is_other = |mount: &NamedMount| !open.sessions.serves(&mount.device);
    if mount.as_ref().is_some_and(is_other) {
        return Err(Answer::Unknown);
    }
    begin();
    if stage.check().is_err() {
        // This process may have been stopped meanwhile, and its caller has given up.
        return Err(Answer::Refused("interrupted before it was begun".into()));
    }
    let named = mount.and_then(|mount| open.name_of(mount));
    let fs = open.handle.get();
    let read_only = fs.is_read_only();
    let roots = Roots::of_daemon(verb.volume(), fs, (open, named), stage);
    let done = match read_only && verb.access() == Access::Write {
        true => Err(Error::ReadOnly.into()),
        false => verb.perform(&roots),
    };
    let done = done.map_err(|error| {
        let error = verb.failed(explained(open, error));
        failure::report(error.as_ref(), &mut stage.errors())
    });
    Ok(done.unwrap_or_else(|code| code))
}

/// The volume cannot be changed if its first mount was read-only.
fn explained(open: &Open<'_>, error: AnyError) -> AnyError {
    match error.downcast_ref::<Error>() {
        Some(Error::ReadOnly) => Failure::new(
            shown(open.volume),
            "is mounted read-only, and this needs to write",
        )
        .hint("unmount all of its mounts first")
        .into(),
        _ => error,
    }
}
