//! The error type of this crate, and its words.
//!
//! Every module returns it. A message says what to do next where something can be done. Uses nothing
//! of the crate but names of objects.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a backup, or a use of one, failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no backup at the URL.
    #[error(
        "there is no backup here: is the place right, and its disk mounted? `cairnfs backup VOLUME URL` \
         makes the first one"
    )]
    NoBackup,
    /// The backup has no moment yet, or none that is as old.
    #[error("no moment is kept {0}; `cairnfs backup list` shows them")]
    NoMoment(String),
    /// The object belongs to a format that this version does not know.
    #[error("{object} has format {found}, and this program knows {known}: use a newer version")]
    Format {
        /// Its name.
        object: String,
        /// The format's number.
        found: u32,
        /// The newest one that is known.
        known: u32,
    },
    /// The bytes of an object are not those that were stored.
    #[error("{object} is damaged: {why}")]
    Damaged {
        /// Its name.
        object: String,
        /// What is wrong.
        why: String,
    },
    /// The newest head, or the one that it adds to, cannot be read as it was stored.
    #[error(
        "{damage}; nothing is stored behind it: run `cairnfs backup repair URL`, which puts it back \
         or goes on with the moments that can be reached"
    )]
    NeedsRepair {
        /// The first damaged object.
        damage: String,
    },
    /// An object that a moment needs is not there.
    #[error(
        "{0} is missing: a prune has removed it since the backup was opened, so that it is to be opened \
         anew, or something else than CairnFS has deleted it"
    )]
    Missing(String),
    /// The backup is one of another volume.
    #[error("the backup is one of the volume {theirs}, this is {ours}: give another prefix for it")]
    OtherVolume {
        /// The volume that is backed up there.
        theirs: String,
        /// The one that was given.
        ours: String,
    },
    /// The last writer has another name.
    #[error(
        "{writer} writes this backup, and there can be one writer only; if it has ended for good, \
         take the backup over with --take-over"
    )]
    OtherWriter {
        /// The other one.
        writer: String,
    },
    /// Another writer has taken the backup over.
    #[error(
        "{writer} has taken this backup over; nothing more is written from here, and what is stored \
         is whole; if that one has ended for good, `cairnfs backup --take-over` goes on from here, and so \
         does a mount afterwards"
    )]
    Lost {
        /// The other one.
        writer: String,
    },
    /// It is not known whether a head was stored.
    #[error("{}", unclear(*number, source))]
    Unclear {
        /// The number of the head.
        number: u64,
        /// The last answer.
        source: Arc<object_store::Error>,
    },
    /// No further moment can be named.
    #[error(
        "this backup names as many moments as it can, and what is stored is whole: remove some with \
         `cairnfs backup prune URL`, such as with --keep-daily 30"
    )]
    Full,
    /// A store without space, in which nothing can go before something was stored.
    #[error(
        "the store has no space for the {bytes} bytes with which a prune begins, and nothing that can go \
         before: make so much space, by removing something else that is there, and run it again"
    )]
    NoRoom {
        /// How much is needed.
        bytes: u64,
    },
    /// Contents are encrypted, and the identity is not there.
    #[error(
        "the contents of this backup are encrypted: give its identity with --identity FILE, or its \
         passphrase"
    )]
    Sealed,
    /// The identity or the passphrase does not fit.
    #[error("{0}")]
    Unsealing(String),
    /// An encrypted backup, in a program that was built for others only.
    #[error(
        "this program was built without encryption, which an encrypted backup needs; `cargo install \
         --path cli --features encryption` builds one that has it"
    )]
    NoEncryption,
    /// The store refused or failed.
    #[error("{what} {object}: {}", words(source))]
    Store {
        /// What was tried.
        what: &'static str,
        /// The object.
        object: String,
        /// The answer.
        source: Arc<object_store::Error>,
    },
    /// The URL cannot be used.
    #[error("{0}")]
    Url(String),
    /// The engine, or a file or device on this machine, failed.
    #[error(transparent)]
    Engine(#[from] cairnfs::Error),
    /// Something on this machine failed.
    #[error("{what}: {source}")]
    Host {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: Arc<io::Error>,
    },
    /// A signal, or the caller, has ended it.
    #[error("interrupted")]
    Interrupted,
    /// More than this program holds in memory.
    #[error("{0}")]
    TooLarge(String),
}

impl Error {
    /// Damage of an object.
    pub(crate) fn damaged(object: impl ToString, why: impl ToString) -> Self {
        Self::Damaged {
            object: object.to_string(),
            why: why.to_string(),
        }
    }

    /// An answer of the store.
    pub(crate) fn store(
        what: &'static str,
        object: impl ToString,
        source: object_store::Error,
    ) -> Self {
        Self::Store {
            what,
            object: object.to_string(),
            source: Arc::new(source),
        }
    }

    /// A failure on this machine.
    pub(crate) fn host(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Host {
            what,
            source: Arc::new(source),
        }
    }

    /// The error for code that reads the moment as a device.
    pub(crate) fn of_device(self, offset: u64, len: usize) -> cairnfs::Error {
        match self {
            Self::Engine(error) => error,
            other => cairnfs::Error::Io {
                op: "read",
                offset,
                len,
                source: Arc::new(io::Error::other(other)),
            },
        }
    }

    /// Whether a file on this machine found no space, as opposed to the store.
    pub fn is_full_here(&self) -> bool {
        matches!(self, Self::Host { source, .. } if has_no_space(source))
    }

    /// Whether the store had no space left.
    pub fn is_full(&self) -> bool {
        match self {
            Self::NoRoom { .. } => true,
            Self::Store { source, .. } | Self::Unclear { source, .. } => is_full(source),
            _ => false,
        }
    }

    /// Whether the bytes in the store are wrong, as opposed to a store that does not answer.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Damaged { .. }
                | Self::NeedsRepair { .. }
                | Self::Missing(_)
                | Self::Format { .. }
        )
    }
}

/// What the store said, and what can be done.
fn words(error: &object_store::Error) -> String {
    use object_store::Error as E;
    let next = match error {
        E::Unauthenticated { .. } => {
            "; the credentials are missing, wrong or expired: see docs/backup.md"
        }
        E::PermissionDenied { .. } => {
            "; the credentials do not permit this: list, get, put and delete are needed"
        }
        E::NotFound { .. } => "; does the bucket exist?",
        _ if is_full(error) => MAKE_SPACE,
        _ => "",
    };
    format!("{}{next}", innermost(error))
}

/// What can be done where a store has no space.
const MAKE_SPACE: &str = "; the store is full, and what was stored before is whole: make space, and run it \
                          again (`cairnfs backup prune URL --grace 0` removes what nothing needs, and with \
                          --keep-last N moments; a mount tries again by itself)";

/// What is to be said of a head without an answer.
fn unclear(number: u64, source: &object_store::Error) -> String {
    if is_full(source) {
        format!(
            "cannot store head {number}, with which a moment or a prune counts: {}{MAKE_SPACE}",
            innermost(source)
        )
    } else {
        format!(
            "the store does not say whether head {number} was stored ({source}); the next backup finds \
             out"
        )
    }
}

/// Whether the store has no space left.
pub(crate) fn is_full(error: &object_store::Error) -> bool {
    let mut at: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = at {
        if error.downcast_ref().is_some_and(has_no_space) {
            return true;
        }
        at = error.source();
    }
    false
}

fn has_no_space(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// The whole text, without the layers of words around it that repeat it.
fn innermost(error: &object_store::Error) -> String {
    match error {
        object_store::Error::Generic { source, .. } => source.to_string(),
        other => other.to_string(),
    }
}
