//! The root object: which volume this is a backup of, and how contents are encrypted. Written once.

use serde::{Deserialize, Serialize};

use super::{FORMAT, MAX_UNPACKED};
use crate::error::{Error, Result};

/// Its name.
pub const NAME: &str = "cairnfs-backup.json";

/// What the object says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Root {
    /// The version of the format.
    pub format: u32,
    /// The backup's own random name.
    pub backup: String,
    /// The volume.
    pub volume: String,
    /// How frames are encrypted; `None`: not at all.
    pub encryption: Option<Encryption>,
}

/// Who can read an encrypted backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Encryption {
    /// The age recipient of every frame.
    pub recipient: String,
    /// Its identity, as an age file with a passphrase, in hexadecimal digits; `None` if only the owner
    /// has it.
    pub identity: Option<String>,
}

impl Root {
    /// The object.
    pub fn encode(&self) -> Result<Vec<u8>> {
        serde_json::to_vec_pretty(self).map_err(|e| Error::host("root object")(e.into()))
    }

    /// Reads an object.
    ///
    /// # Errors
    /// It is none of these, or of a newer format.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        if bytes.len() > MAX_UNPACKED {
            return Err(Error::damaged(NAME, "larger than it can be"));
        }
        let wrong = |e| {
            let what_to_do = "all else is read by it: put back an older version or a copy of it, or begin a \
                              new backup under another prefix";
            Error::damaged(NAME, format_args!("{e}; {what_to_do}"))
        };
        let version: Version = serde_json::from_slice(bytes).map_err(wrong)?;
        if version.format != FORMAT {
            return Err(Error::Format {
                object: NAME.into(),
                found: version.format,
                known: FORMAT,
            });
        }
        serde_json::from_slice(bytes).map_err(wrong)
    }
}
