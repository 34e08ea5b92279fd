//! Performs commands on snapshots and branches of the open volume, for the processes that were called.
//!
//! Knows the mounts by the trees that they show. What a command does is decided by its [`Command`].

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use cairnfs_fuse::Sessions;

use crate::backup_worker::{Orders, Stored};
use crate::commands::{Caller, Command, Place};
use crate::failure::Failure;
use crate::handover::frames::{Answer, NamedMount};
use crate::mounts::{Mounts, Shipping};
use crate::opening::OpenVolume;

/// How often a command that waits for a backup looks whether it was interrupted.
const GLANCE: Duration = Duration::from_millis(100);

/// An open volume and its mounts.
pub(crate) struct Open<'a> {
    pub handle: &'a OpenVolume,
    pub volume: &'a Path,
    pub sessions: &'a Arc<Sessions>,
    pub backup: Option<&'a Orders>,
}

impl Mounts for Open<'_> {
    fn fetch(&self, branch: &str) -> io::Result<()> {
        self.sessions.fetch(branch)
    }

    fn replacing(
        &self,
        branch: &str,
        others: &[&str],
        change: &mut dyn FnMut(),
    ) -> cairnfs::Result<()> {
        let ((), followed) = self.sessions.replacing(branch, others, change);
        followed.and(self.handle.follow())
    }

    fn name_of(&self, mount: &NamedMount) -> Option<String> {
        let root = self.sessions.shown_by(&mount.device);
        root.and_then(|root| root.name)
            .or_else(|| mount.name.clone())
    }

    fn serves(&self, device: &str) -> bool {
        self.sessions.serves(device)
    }

    fn mounted_on(&self, root: u32) -> Option<PathBuf> {
        self.sessions.mounted_on(root.into())
    }

    fn ship(&self, check: &dyn Fn() -> Result<(), Failure>) -> Result<Shipping, Failure> {
        let Some(backup) = self.backup else {
            return Ok(Shipping::No);
        };
        let stored = backup.ship();
        loop {
            match stored.recv_timeout(GLANCE) {
                Ok(Ok(Stored { lacking: None })) => return Ok(Shipping::Stored),
                Ok(Ok(Stored { lacking: Some(why) })) => return Ok(Shipping::Failed(why)),
                Ok(Err(why)) => return Ok(Shipping::Failed(why.to_string())),
                Err(RecvTimeoutError::Timeout) => check()?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Ok(Shipping::Failed(backup.why_ended()));
                }
            }
        }
    }
}

/// Performs a command, whose failures are told to its caller; returns its exit code.
pub(crate) fn perform(
    open: &Open<'_>,
    (command, mount): (Option<Box<dyn Command>>, Option<NamedMount>),
    caller: Caller,
    begin: &mut dyn FnMut(),
) -> Result<u8, Answer> {
    let Some(command) = command else {
        return Err(Answer::Refused(
            "the daemon does not know this command".into(),
        ));
    };
    let is_other = |mount: &NamedMount| !open.sessions.serves(&mount.device);
    if mount.as_ref().is_some_and(is_other) {
        return Err(Answer::Unknown);
    }
    begin();
    if caller.has_left() {
        // This process may have been stopped meanwhile, and its caller has given up.
        return Err(Answer::Refused("interrupted before it was begun".into()));
    }
    let place = Place {
        volume: open.volume,
        fs: open.handle.get(),
        mounts: open,
        mount,
    };
    Ok(command.perform(place, caller))
}
