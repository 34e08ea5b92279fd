//! A member of a tar archive, and the rules for its name, type and ranges.
//!
//! Pure: the reader in `tar_in` supplies the bytes.

use std::collections::BTreeMap;

use cairnfs_disk::types::FileKind;

use super::acl_text::{self, Names};
use super::{Meta, Segment, Xattr, pax};

/// Maximum number of bytes of keys and values for one member: long names and attributes.
pub const MAX_MEMBER: usize = 16 << 20;
/// Maximum number of records for one member.
pub const MAX_MEMBER_COUNT: usize = 65_536;
/// Maximum number of bytes of keys and values that apply to all members.
pub const MAX_GLOBAL: usize = 1 << 20;
/// Maximum number of records that apply to all members.
pub const MAX_GLOBAL_COUNT: usize = 1024;

/// Keys of the names that GNU tar writes as members of their own. No record has such a key, and a record
/// with a name goes before them, whatever their order, as in GNU tar.
pub const LONG_NAME: &[u8] = b"=name";
/// As [`LONG_NAME`], of the target of a link.
pub const LONG_LINK: &[u8] = b"=link";

/// Extended records by key; their number and bytes are bounded.
pub struct Records {
    map: BTreeMap<Vec<u8>, Vec<u8>>,
    bytes: usize,
    max_bytes: usize,
    max_count: usize,
    too_much: &'static str,
}

impl Records {
    /// An empty set of records for one member.
    pub fn member() -> Self {
        Self {
            map: BTreeMap::new(),
            bytes: 0,
            max_bytes: MAX_MEMBER,
            max_count: MAX_MEMBER_COUNT,
            too_much: "the extended headers of a member hold more than 16 MiB or 65,536 records",
        }
    }

    /// An empty set of records that apply to all members.
    pub fn global() -> Self {
        Self {
            map: BTreeMap::new(),
            bytes: 0,
            max_bytes: MAX_GLOBAL,
            max_count: MAX_GLOBAL_COUNT,
            too_much: "the global headers hold more than 1 MiB or 1,024 records",
        }
    }

    /// A value.
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.map.get(key).map(Vec::as_slice)
    }

    /// All records that are extended attributes or access lists. A list that is there as an
    /// attribute is taken from it, because that has numbers. A list that cannot be kept is added
    /// to `lost`.
    pub fn xattrs(&self, names: &Names, lost: &mut Vec<LostList>) -> Vec<Xattr> {
        let attributes = self.map.iter();
        let attributes =
            attributes.filter_map(|(key, value)| Some((pax::xattr_name(key)?, value.clone())));
        let mut found: Vec<Xattr> = attributes.collect();
        for (key, name) in acl_text::LISTS {
            let text = self.get(key.as_bytes()).filter(|text| !text.is_empty());
            let Some(text) = text.filter(|_| found.iter().all(|(given, _)| given != name)) else {
                continue;
            };
            match acl_text::parse(text, names) {
                Ok(value) => found.push((name.to_vec(), value)),
                Err(why) => lost.push(LostList { name, why }),
            }
        }
        found
    }

    /// Sets a record.
    ///
    /// # Errors
    /// The bound would be exceeded.
    pub fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), &'static str> {
        let replaced = self.map.get(key).map_or(0, |old| key.len() + old.len());
        let bytes = self.bytes - replaced + key.len() + value.len();
        let count = self.map.len() + usize::from(replaced == 0);
        if bytes > self.max_bytes || count > self.max_count {
            return Err(self.too_much);
        }
        self.bytes = bytes;
        self.map.insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    /// Adds the records of an extended header.
    ///
    /// # Errors
    /// A malformed header, or the bound would be exceeded.
    pub fn merge(&mut self, header: &[u8]) -> Result<(), &'static str> {
        pax::parse(header, |key, value| self.set(key, value))
    }
}

/// An access list that cannot be kept.
pub struct LostList {
    /// The attribute that would hold it.
    pub name: &'static [u8],
    /// The reason.
    pub why: String,
}

/// A member of an archive, before its contents.
#[derive(Debug)]
pub struct Member {
    pub path: Vec<u8>,
    pub link: Vec<u8>,
    pub kind: Kind,
    pub meta: Meta,
    pub segments: Vec<Segment>,
    /// Bytes of data not yet read from the archive.
    pub stored: u64,
    /// What cannot be kept as it is in the archive, each with the reason.
    pub lost: Vec<String>,
}

/// Owner for an id that cannot be represented: the kernel's overflow id.
const NOBODY: u32 = 65_534;

/// The user or group id from its record, or else from the field of the header. The second result
/// is whether a given value cannot be kept.
pub fn id(record: Option<&[u8]>, field: std::io::Result<u64>) -> (u32, bool) {
    let record = record.map(|text| pax::number(text).and_then(|id| u32::try_from(id).ok()));
    let lost = record == Some(None);
    match (record.flatten(), field.map(u32::try_from)) {
        (Some(id), _) => (id, false),
        (None, Ok(Ok(id))) => (id, lost),
        (None, Ok(Err(_))) => (NOBODY, true),
        (None, Err(_)) if lost => (NOBODY, true),
        // Old archives leave the field blank.
        (None, Err(_)) => (0, false),
    }
}

/// The type of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file of this kind.
    Node(FileKind),
    /// Another name of an earlier member.
    HardLink,
    /// Reported and skipped.
    Unknown(u8),
    /// Skipped.
    Label,
}

/// Decodes a type flag; old archives mark directories by a trailing slash.
pub fn kind(flag: u8, path: &[u8]) -> Kind {
    Kind::Node(match flag {
        b'0' | 0 if path.ends_with(b"/") => FileKind::Directory,
        b'0' | 0 | b'7' | b'S' => FileKind::File,
        b'1' => return Kind::HardLink,
        b'2' => FileKind::Symlink,
        b'3' => FileKind::CharDevice,
        b'4' => FileKind::BlockDevice,
        b'5' | b'D' => FileKind::Directory,
        b'6' => FileKind::Fifo,
        b'V' => return Kind::Label,
        other => return Kind::Unknown(other),
    })
}

/// Converts pairs of offset and length to ranges.
pub fn pairs(numbers: &[u64]) -> Result<Vec<Segment>, &'static str> {
    let mut found = Vec::with_capacity(numbers.len() / 2);
    for pair in numbers.chunks(2) {
        let [start, len] = *pair else {
            return Err("malformed sparse map");
        };
        let end = start.checked_add(len).ok_or("malformed sparse map")?;
        // A range of length 0 only marks the end of the file.
        if len > 0 {
            found.push(Segment { start, end });
        }
    }
    Ok(found)
}

/// Checks that ranges ascend, are within the size and need no more data than the archive has.
///
/// # Errors
/// The violated rule.
pub fn check_segments(member: &Member) -> Result<(), &'static str> {
    let mut behind = 0;
    let mut total: u64 = 0;
    for s in &member.segments {
        if s.start < behind || s.end > member.meta.size {
            return Err("the ranges of a sparse member do not fit");
        }
        behind = s.end;
        total += s.end - s.start;
    }
    if total > member.stored {
        return Err("a sparse member promises more data than it has");
    }
    Ok(())
}

/// Converts a member's name to a path below the target; refuses a name that leads out of it.
pub fn clean(raw: &[u8]) -> Result<Vec<u8>, &'static str> {
    if raw.starts_with(b"/") {
        return Err("the name is absolute");
    }
    if raw.contains(&0) {
        return Err("the name holds a NUL");
    }
    let names = crate::volume_by_path::components(raw);
    if names.iter().any(|name| name == b"..") {
        return Err("the name leads upwards");
    }
    Ok(names.join(&b'/'))
}
