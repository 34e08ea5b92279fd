//! The text of access control lists in archives: `SCHILY.acl.access` and `SCHILY.acl.default`, in
//! the format of acl(5), as star(1), GNU tar and bsdtar write it.
//!
//! Lists are written with numbers, since a volume has no names. Names of users and groups are
//! looked up in `/etc/passwd` and `/etc/group` only; a list with any other name is refused as a
//! whole. Text comes from archives and may be hostile.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::fmt::Write;

use cairnfs_daemon::failure::show_bytes;
use cairnfs_disk::acl::{self, Acl, AclEntry};

/// The record of each list, and the attribute that holds the same list.
pub const LISTS: [(&str, &[u8]); 2] = [
    ("SCHILY.acl.access", acl::ACCESS),
    ("SCHILY.acl.default", acl::DEFAULT),
];

/// The id of an entry without a name.
const NO_ID: u32 = u32::MAX;

/// The text of the attribute `value`; `None` if it is not a list.
pub fn format(value: &[u8]) -> Option<String> {
    let mut text = String::new();
    for entry in Acl::parse(value)?.entries() {
        let (word, named) = match entry.tag {
            acl::USER_OBJ => ("user", false),
            acl::USER => ("user", true),
            acl::GROUP_OBJ => ("group", false),
            acl::GROUP => ("group", true),
            acl::MASK => ("mask", false),
            _ => ("other", false),
        };
        let separator = if text.is_empty() { "" } else { "," };
        let bit = |bit, letter| if entry.perm & bit != 0 { letter } else { '-' };
        let (r, w, x) = (bit(4, 'r'), bit(2, 'w'), bit(1, 'x'));
        // Formatting into a string cannot fail.
        let _ = if named {
            write!(text, "{separator}{word}:{}:{r}{w}{x}", entry.id)
        } else {
            write!(text, "{separator}{word}::{r}{w}{x}")
        };
    }
    Some(text)
}

/// The attribute's value for a list in text form.
///
/// # Errors
/// The violated rule, or a name that is not known here.
pub fn parse(text: &[u8], names: &Names) -> Result<Vec<u8>, String> {
    let mut entries = Vec::new();
    for line in text.split(|b| *b == b'\n') {
        let line = line.split(|b| *b == b'#').next().unwrap_or_default();
        for item in line.split(|b| *b == b',').map(<[u8]>::trim_ascii) {
            if !item.is_empty() {
                entries.push(entry(item, names)?);
            }
        }
    }
    entries.sort_by_key(|e| (e.tag, e.id));
    let twice = entries
        .windows(2)
        .any(|pair| matches!(pair, [a, b] if (a.tag, a.id) == (b.tag, b.id)));
    match Acl::new(entries) {
        Some(list) if !twice => Ok(list.to_bytes()),
        _ => Err("an entry is missing, or a duplicate of another".into()),
    }
}

/// Parses `TAG:NAME:PERMISSIONS` or, as star(1) writes it, `TAG:NAME:PERMISSIONS:NUMBER`.
fn entry(item: &[u8], names: &Names) -> Result<AclEntry, String> {
    let bad = || format!("'{}' is no entry", show_bytes(item));
    let mut fields = item.split(|b| *b == b':').map(<[u8]>::trim_ascii);
    let mut field = || fields.next();
    let (tag, name) = (field().ok_or_else(bad)?, field().ok_or_else(bad)?);
    let (perm, number) = match field() {
        Some(perm) => (perm, field().unwrap_or_default()),
        // POSIX 1003.1e allows one colon where there is no name.
        None => (name, &b""[..]),
    };
    let perm = permissions(perm).ok_or_else(bad)?;
    let name = if number.is_empty() { name } else { number };
    let (own, other, known) = match tag {
        b"user" | b"u" => (acl::USER_OBJ, acl::USER, &names.users),
        b"group" | b"g" => (acl::GROUP_OBJ, acl::GROUP, &names.groups),
        b"mask" | b"m" => return Ok(unnamed(acl::MASK, perm)),
        b"other" | b"o" => return Ok(unnamed(acl::OTHER, perm)),
        _ => return Err(bad()),
    };
    if name.is_empty() {
        return Ok(unnamed(own, perm));
    }
    let id = known.id(name)?;
    let tag = other;
    Ok(AclEntry { tag, perm, id })
}

fn unnamed(tag: u16, perm: u16) -> AclEntry {
    let id = NO_ID;
    AclEntry { tag, perm, id }
}

fn permissions(text: &[u8]) -> Option<u16> {
    let mut perm = 0;
    for letter in text {
        perm |= match letter {
            b'r' => 4,
            b'w' => 2,
            b'x' => 1,
            b'-' => 0,
            _ => return None,
        };
    }
    (!text.is_empty() && text.len() <= 3).then_some(perm)
}

/// The users and groups of this host.
pub struct Names {
    users: Table,
    groups: Table,
}

impl Names {
    /// Reads the host's files when the first name is looked up.
    pub fn of_host() -> Self {
        let table = |path| Table {
            path,
            ids: OnceCell::new(),
        };
        Self {
            users: table("/etc/passwd"),
            groups: table("/etc/group"),
        }
    }
}

/// One of the files of passwd(5) and group(5).
struct Table {
    path: &'static str,
    ids: OnceCell<HashMap<Vec<u8>, u32>>,
}

impl Table {
    fn id(&self, name: &[u8]) -> Result<u32, String> {
        if name.iter().all(u8::is_ascii_digit) {
            let id = number(name).filter(|id| *id != NO_ID);
            return id.ok_or_else(|| format!("'{}' is out of range", show_bytes(name)));
        }
        let ids = self
            .ids
            .get_or_init(|| ids(&std::fs::read(self.path).unwrap_or_default()));
        let id = ids.get(name).copied();
        id.ok_or_else(|| format!("'{}' is not in {}", show_bytes(name), self.path))
    }
}

/// Names and numbers in a file of the format `NAME:PASSWORD:NUMBER:...`.
fn ids(file: &[u8]) -> HashMap<Vec<u8>, u32> {
    let mut ids = HashMap::new();
    for line in file.split(|b| *b == b'\n') {
        let mut fields = line.split(|b| *b == b':');
        if let (Some(name), Some(id)) = (fields.next(), fields.nth(1).and_then(number)) {
            // The first line of a name counts, as for getpwnam(3).
            ids.entry(name.to_vec()).or_insert(id);
        }
    }
    ids
}

fn number(text: &[u8]) -> Option<u32> {
    super::pax::number(text).and_then(|id| u32::try_from(id).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_lists_round_trip_as_text() {
        let text = "user::rwx,user:0:---,user:4294967294:r-x,group::-w-,group:7:--x,mask::rw-,\
                    other::r--";
        let value = parse(text.as_bytes(), &Names::of_host()).unwrap();
        assert_eq!(format(&value).as_deref(), Some(text));
        assert_eq!(format(&value[1..]), None);
    }

    #[test]
    fn first_line_of_a_name_counts() {
        let ids = ids(b"a:x:5:6\nbad\n:\na:x:7:8\nb:x:4294967296:1\nc::9");
        assert_eq!(ids.get(&b"a"[..]), Some(&5));
        assert_eq!(ids.get(&b"c"[..]), Some(&9));
        assert_eq!(ids.len(), 2);
    }
}
