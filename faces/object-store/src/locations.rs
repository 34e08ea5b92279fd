//! Locations and paths: which locations can be objects, and what errors mean for an object.

use std::path::{Path as FilePath, PathBuf};

use object_store::Error;
use object_store::path::Path;

use crate::STORE;

/// The directory of files on their way to replace an object. Its name is not a location.
pub(crate) const STAGING: &str = ".cairnfs-staging";

/// Longest segment in bytes.
const NAME_MAX: usize = 255;

/// Why a location cannot be an object. The source of an [`Error::Generic`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The root of the store.
    #[error("the root of the store is not an object: name one below it")]
    Root,
    /// A segment has more bytes than a name of a file.
    #[error("{0}: a segment is longer than 255 bytes: choose a shorter one")]
    TooLong(String),
    /// The first segment is the store's own directory.
    #[error("{0}: {STAGING} is the store's own: choose another name")]
    Reserved(String),
    /// There is an object above the location.
    #[error("{0}: a part of the path is an object: delete it, or choose another name")]
    Below(String),
    /// There are objects below the location.
    #[error("{0}: there are objects below it: delete them, or choose another name")]
    Above(String),
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        Error::Generic {
            store: STORE,
            source: Box::new(refused),
        }
    }
}

/// Whether a location can be that of an object.
pub(crate) fn check(location: &Path) -> Result<(), Refused> {
    let text = || location.to_string();
    let mut segments = location.as_ref().split('/');
    match segments.clone().next() {
        None | Some("") => Err(Refused::Root),
        Some(STAGING) => Err(Refused::Reserved(text())),
        Some(_) if segments.any(|s| s.len() > NAME_MAX) => Err(Refused::TooLong(text())),
        Some(_) => Ok(()),
    }
}

/// The path of a location below a directory.
pub(crate) fn path_of(root: &FilePath, location: &Path) -> PathBuf {
    root.join(location.as_ref())
}

/// An error that says that there is no object at a location.
pub(crate) fn not_found(location: &Path) -> Error {
    error_at(location, cairnfs::Error::NotFound)
}

/// The error of a call of the library on a location.
pub(crate) fn error_at(location: &Path, error: cairnfs::Error) -> Error {
    use cairnfs::Error::{Exists, NameTooLong, NotDirectory, NotFound, NotPermitted};
    let path = location.to_string();
    match error.cause() {
        NotFound | NotDirectory | NameTooLong => Error::NotFound {
            path,
            source: Box::new(error),
        },
        Exists => Error::AlreadyExists {
            path,
            source: Box::new(error),
        },
        NotPermitted(_) => Error::PermissionDenied {
            path,
            source: Box::new(error),
        },
        _ => error_of(error),
    }
}

/// The error of a call that has no location.
pub(crate) fn error_of(error: cairnfs::Error) -> Error {
    Error::Generic {
        store: STORE,
        source: Box::new(error),
    }
}
