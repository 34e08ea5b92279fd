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
