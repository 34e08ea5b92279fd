//! POSIX access control lists: their relation to the mode, and inheritance.
//!
//! The kernel checks access and caches lists. The file system has to keep the mode and the list of
//! an inode consistent, and to give new inodes their directory's default list. Lists are the values
//! of the two `system.posix_acl_*` attributes: a version and entries of tag, permissions and id.
//! Pure functions; malformed values are refused, never trusted.

/// Attribute with the access list of an inode.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// Attribute of a directory with the list that new inodes in it inherit.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const HEADER_LEN: usize = 4;
const ENTRY_LEN: usize = 8;

/// Tag of the owner's entry.
pub const USER_OBJ: u16 = 0x01;
/// Tag of the entry of a named user.
pub const USER: u16 = 0x02;
/// Tag of the owning group's entry.
pub const GROUP_OBJ: u16 = 0x04;
/// Tag of the entry of a named group.
pub const GROUP: u16 = 0x08;
/// Tag of the limit of all entries but the owner's and that of others.
pub const MASK: u16 = 0x10;
/// Tag of the entry of all others.
pub const OTHER: u16 = 0x20;

/// An entry of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AclEntry {
    /// One of the tags.
    pub tag: u16,
    /// Read (4), write (2) and execute (1).
    pub perm: u16,
    /// User or group of a named entry; `u32::MAX` in the others.
    pub id: u32,
}

/// An access control list with its three required entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<AclEntry>,
}

impl Acl {
    /// Parses an attribute's value; `None` if it is malformed.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let (version, body) = value.split_first_chunk::<HEADER_LEN>()?;
        let (raw, rest) = body.as_chunks::<ENTRY_LEN>();
        if u32::from_le_bytes(*version) != VERSION || !rest.is_empty() {
            return None;
        }
        Self::new(raw.iter().map(entry).collect())
    }

    /// A list of entries; `None` if one is unknown, or a required one is missing.
    pub fn new(entries: Vec<AclEntry>) -> Option<Self> {
        let count = |tag| entries.iter().filter(|e| e.tag == tag).count();
        let known = USER_OBJ | USER | GROUP_OBJ | GROUP | MASK | OTHER;
        let sound = entries
            .iter()
            .all(|e| e.tag.is_power_of_two() && e.tag & known != 0 && e.perm <= 7);
        let named = count(USER) + count(GROUP) > 0;
        let complete = [USER_OBJ, GROUP_OBJ, OTHER].iter().all(|&t| count(t) == 1)
            && (count(MASK) == 1 || (count(MASK) == 0 && !named));
        (sound && complete).then_some(Self { entries })
    }

    /// The entries, in the order of the attribute's value.
    pub fn entries(&self) -> &[AclEntry] {
        &self.entries
    }

    /// The list that is equivalent to a mode.
    pub fn of_mode(mode: u32) -> Self {
        let entry = |(tag, shift): (u16, u32)| AclEntry {
            tag,
            perm: (mode >> shift) as u16 & 7,
            id: u32::MAX,
        };
        let classes = [(USER_OBJ, 6), (GROUP_OBJ, 3), (OTHER, 0)];
        Self {
            entries: classes.map(entry).to_vec(),
        }
    }

    /// The attribute's value.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_LEN + ENTRY_LEN * self.entries.len());
        out.extend_from_slice(&VERSION.to_le_bytes());
        for e in &self.entries {
            out.extend_from_slice(&e.tag.to_le_bytes());
            out.extend_from_slice(&e.perm.to_le_bytes());
            out.extend_from_slice(&e.id.to_le_bytes());
        }
        out
    }

    /// Whether the list is equivalent to a mode; such a list need not be stored.
    pub fn is_minimal(&self) -> bool {
        self.entries.len() == 3
    }

    /// The nine permission bits of the mode that correspond to the list.
    pub fn permissions(&self) -> u32 {
        self.entries.iter().fold(0, |mode, e| {
            mode | self
                .shift(e.tag)
                .map_or(0, |shift| u32::from(e.perm) << shift)
        })
    }

    /// Updates the list to agree with permissions set by `chmod`.
    pub fn set_permissions(&mut self, mode: u32) {
        self.each_class(mode, |_, given| given);
    }

    /// Turns a default list into the access list of an inode created with `mode`, and returns the
    /// inode's mode. Both are limited to what list and `mode` allow; the umask is not applied.
    pub fn restrict(&mut self, mode: u32) -> u32 {
        self.each_class(mode, |perm, given| perm & given);
        (mode & !0o777) | self.permissions()
    }

    fn each_class(&mut self, mode: u32, f: impl Fn(u16, u16) -> u16) {
        let shifts: Vec<_> = self.entries.iter().map(|e| self.shift(e.tag)).collect();
        for (e, shift) in self.entries.iter_mut().zip(shifts) {
            if let Some(shift) = shift {
                e.perm = f(e.perm, (mode >> shift) as u16 & 7);
            }
        }
    }

    /// The bit position of an entry in a mode. If there is a mask, it is shown as the group.
    fn shift(&self, tag: u16) -> Option<u32> {
        let masked = self.entries.iter().any(|e| e.tag == MASK);
        match tag {
            USER_OBJ => Some(6),
            MASK => Some(3),
            GROUP_OBJ if !masked => Some(3),
            OTHER => Some(0),
            _ => None,
        }
    }
}

fn entry(raw: &[u8; ENTRY_LEN]) -> AclEntry {
    let [t0, t1, p0, p1, i0, i1, i2, i3] = *raw;
    AclEntry {
        tag: u16::from_le_bytes([t0, t1]),
        perm: u16::from_le_bytes([p0, p1]),
        id: u32::from_le_bytes([i0, i1, i2, i3]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: u32 = u32::MAX;

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        let entries = entries
            .iter()
            .map(|&(tag, perm, id)| AclEntry { tag, perm, id })
            .collect();
        let bytes = Acl { entries }.to_bytes();
        Acl::parse(&bytes).expect("a valid list")
    }

    fn named() -> Acl {
        acl(&[
            (USER_OBJ, 7, NOBODY),
            (USER, 6, 1000),
            (GROUP_OBJ, 5, NOBODY),
            (MASK, 7, NOBODY),
            (OTHER, 1, NOBODY),
        ])
    }

    #[test]
    fn minimal_acl_equals_mode() {
        let list = acl(&[
            (USER_OBJ, 6, NOBODY),
            (GROUP_OBJ, 4, NOBODY),
            (OTHER, 0, NOBODY),
        ]);
        assert!(list.is_minimal());
        assert_eq!(list.permissions(), 0o640);
        assert_eq!(Acl::of_mode(0o104_640), list);
    }

    #[test]
    fn acl_mask_is_shown_as_group_bits() {
        let mut list = named();
        assert!(!list.is_minimal());
        assert_eq!(list.permissions(), 0o771);
        list.set_permissions(0o104_640);
        assert_eq!(list.permissions(), 0o640);
        let group = list.entries.iter().find(|e| e.tag == GROUP_OBJ);
        assert_eq!(
            group.map(|e| e.perm),
            Some(5),
            "the mask changes, not the group"
        );
    }

    #[test]
    fn inherited_acl_is_limited_by_mode() {
        let mut list = named();
        assert_eq!(list.restrict(0o100_660), 0o100_660);
        assert_eq!(list.permissions(), 0o660);
        assert_eq!(named().restrict(0o040_777), 0o040_771);
    }

    #[test]
    fn malformed_acl_is_refused() {
        let good = named().to_bytes();
        assert!(Acl::parse(&good).is_some());
        assert!(Acl::parse(&[]).is_none());
        assert!(Acl::parse(&good[..good.len() - 1]).is_none());
        let mut version = good.clone();
        version[0] = 1;
        assert!(Acl::parse(&version).is_none());
        let mut tag = good.clone();
        tag[4] = 3;
        assert!(Acl::parse(&tag).is_none());
        let mut perm = good;
        perm[6] = 8;
        assert!(Acl::parse(&perm).is_none());
        let unmasked = Acl {
            entries: named()
                .entries
                .into_iter()
                .filter(|e| e.tag != MASK)
                .collect(),
        };
        assert!(Acl::parse(&unmasked.to_bytes()).is_none());
    }
}
