//! Commands on snapshots and branches, as the daemon of a volume performs them for other processes.
//!
//! What a command does is decided by [`crate::verbs`].

use std::path::Path;

use cairnfs::Error;
use cairnfs_daemon::commands::{Caller, Command, Place};
use cairnfs_daemon::failure::{self, AnyError, Failure, shown};
use serde_json::Value;

use crate::opened_roots::Roots;
use crate::stage::{Manner, Stage};
use crate::verbs::Verb;
use crate::volume_by_path::Access;

/// A command, and how the process that was called wants output.
struct Served {
    verb: Verb,
    manner: Manner,
}

/// Reads a command.
pub fn read(verb: Value, manner: Value) -> Option<Box<dyn Command>> {
    let verb = serde_json::from_value(verb).ok()?;
    let manner = serde_json::from_value(manner).ok()?;
    Some(Box::new(Served { verb, manner }))
}

impl Command for Served {
    fn perform(self: Box<Self>, place: Place<'_>, caller: Caller) -> u8 {
        let Self { verb, manner } = *self;
        let stage = Stage::of_caller(caller.streams, manner, caller.connection);
        let read_only = place.fs.is_read_only();
        let mounts = (place.mounts, place.mount);
        let roots = Roots::of_daemon(verb.volume(), place.fs, mounts, &stage);
        let done = if read_only && verb.access() == Access::Write {
            Err(Error::ReadOnly.into())
        } else {
            verb.perform(&roots)
        };
        done.unwrap_or_else(|error| {
            let error = verb.failed(explained(place.volume, error));
            failure::report(error.as_ref(), &mut stage.errors())
        })
    }
}

/// The volume cannot be changed if its first mount was read-only.
fn explained(volume: &Path, error: AnyError) -> AnyError {
    match error.downcast_ref::<Error>() {
        Some(Error::ReadOnly) => Failure::new(
            shown(volume),
            "is mounted read-only, and this needs to write",
        )
        .hint("unmount all of its mounts first")
        .into(),
        _ => error,
    }
}
