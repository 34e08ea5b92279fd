//! A path as the array of its bytes, in JSON, which has no strings that are not UTF-8. For
//! `#[serde(with)]`.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Writes the bytes.
pub fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    path.as_os_str().as_bytes().serialize(to)
}

/// Reads them.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
    Ok(OsString::from_vec(Vec::deserialize(from)?).into())
}

/// The same for several paths.
pub mod list {
    use super::*;

    /// Writes the bytes of each.
    pub fn serialize<S: Serializer>(paths: &[PathBuf], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(paths.iter().map(|path| path.as_os_str().as_bytes()))
    }

    /// Reads them.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<PathBuf>, D::Error> {
        let paths = Vec::<Vec<u8>>::deserialize(from)?.into_iter();
        Ok(paths.map(|path| OsString::from_vec(path).into()).collect())
    }
}

/// The same for a path that may be missing.
pub mod option {
    use super::*;

    /// Writes the bytes.
    pub fn serialize<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
        let bytes = path.as_ref().map(|path| path.as_os_str().as_bytes());
        bytes.serialize(to)
    }

    /// Reads them.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PathBuf>, D::Error> {
        let path = Option::<Vec<u8>>::deserialize(from)?;
        Ok(path.map(|path| OsString::from_vec(path).into()))
    }
}
