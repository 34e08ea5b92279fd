//! What open listings and reports have left to give.

use std::collections::VecDeque;

use cairnfs::{Conflict, DirEntry, Error, FileChange, Metadata, ReadDir};
use parking_lot::{Mutex, MutexGuard};

use crate::error::{Failure, Outcome};

/// An open listing.
pub(crate) struct Listing(pub Mutex<Progress>);

/// How far a listing is.
pub(crate) struct Progress {
    pub entries: ReadDir,
    /// A failure behind entries that were still returned.
    pub failure: Option<Failure>,
}

impl Progress {
    /// The next entry, with its attributes if they are wanted; one that was removed meanwhile has
    /// none, and is left out.
    pub fn next(&mut self, with_metadata: bool) -> Outcome<Option<(DirEntry, Option<Metadata>)>> {
        loop {
            let Some(entry) = self.entries.next() else {
                return Ok(None);
            };
            let entry = entry?;
            if !with_metadata {
                return Ok(Some((entry, None)));
            }
            match entry.metadata() {
                Ok(metadata) => return Ok(Some((entry, Some(metadata)))),
                Err(e) if matches!(e.cause(), Error::NotFound) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// The rest of a report.
pub(crate) enum Entries {
    Changes(Mutex<VecDeque<FileChange>>),
    Conflicts(Mutex<VecDeque<Conflict>>),
}

impl Entries {
    pub fn changes(&self) -> Outcome<MutexGuard<'_, VecDeque<FileChange>>> {
        match self {
            Self::Changes(changes) => Ok(changes.lock()),
            Self::Conflicts(_) => Err(Failure::invalid("a report of conflicts has no changes")),
        }
    }

    pub fn conflicts(&self) -> Outcome<MutexGuard<'_, VecDeque<Conflict>>> {
        match self {
            Self::Conflicts(conflicts) => Ok(conflicts.lock()),
            Self::Changes(_) => Err(Failure::invalid("a report of changes has no conflicts")),
        }
    }
}
