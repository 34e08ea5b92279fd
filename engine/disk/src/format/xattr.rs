//! Extended attributes: their encoding in the log and in the index, and shared values.
//!
//! Pure, as all of `format`: bytes in, checked values out. In the log an attribute contains its
//! value, so that a record is self-contained. In the index a value of more than [`MAX_OWN_VALUE`]
//! bytes has its own item, keyed by its hash, and attributes refer to it. A reference contains the
//! exact key of the item, so hash collisions matter only when a value is looked up by its bytes.
//! Sets of attributes are not shared: a merge would read the whole old set to change one.
//! The item contains the value and its use count; a long value has a separate item, so that a
//! change of the use count does not rewrite the value.

use xxhash_rust::const_xxh3::const_custom_default_secret;
use xxhash_rust::xxh3::xxh3_64_with_secret;

use crate::format::key::{Key, Kind, SHARED_BYTES, SHARED_VALUES};
use crate::format::node::MAX_CELL_VALUE;
use crate::format::{MAX_COUNTER, MAX_OWN_VALUE, MAX_XATTR_VALUE, checksum};

/// Maximum number of shared values with the same hash; further values are stored with their names.
pub const SLOTS: u8 = 8;

/// Size of the use count in a shared value's item, in bytes.
const USES: usize = 8;

/// Maximum size in bytes of a shared value that is stored with its use count.
pub const MAX_WITH_USES: usize = MAX_CELL_VALUE - USES;

/// Size of an attribute's header in the log, in bytes; the name and the value follow it.
pub const XATTR_HEAD: usize = 5;

/// An attribute with its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XattrRef<'a> {
    /// Full name with its namespace, for example `user.mime`.
    pub name: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

/// The header of an attribute in the log.
pub fn xattr_head(name: &[u8], value_len: usize) -> [u8; XATTR_HEAD] {
    let [a, b, c, d] = (value_len as u32).to_le_bytes();
    [name.len() as u8, a, b, c, d]
}

/// Appends an attribute to the value of an attribute item in the log.
pub fn encode_xattr(out: &mut Vec<u8>, xattr: &XattrRef<'_>) {
    out.reserve(XATTR_HEAD + xattr.name.len() + xattr.value.len());
    out.extend_from_slice(&xattr_head(xattr.name, xattr.value.len()));
    out.extend_from_slice(xattr.name);
    out.extend_from_slice(xattr.value);
}

/// Decodes the value of an attribute item in the log: the attributes with equal name hash, in
/// order.
pub fn decode_xattrs(value: &[u8]) -> Result<Vec<XattrRef<'_>>, String> {
    let mut rest = value;
    let mut out = Vec::new();
    while !rest.is_empty() {
        let short = || format!("attribute item cut off after {} bytes", value.len());
        let (name_len, tail) = rest.split_first().ok_or_else(short)?;
        let (value_len, tail) = tail.split_first_chunk::<4>().ok_or_else(short)?;
        let value_len = u32::from_le_bytes(*value_len) as usize;
        let (name, tail) = tail
            .split_at_checked(usize::from(*name_len))
            .ok_or_else(short)?;
        let (value, tail) = tail.split_at_checked(value_len).ok_or_else(short)?;
        if name.is_empty() || value.len() > MAX_XATTR_VALUE {
            return Err(format!(
                "attribute of {} + {} bytes",
                name.len(),
                value.len()
            ));
        }
        out.push(XattrRef { name, value });
        rest = tail;
    }
    if out.is_empty() {
        return Err("empty attribute item".into());
    }
    Ok(out)
}

/// Namespaces, by their number in the index.
const NAMESPACES: [&[u8]; 5] = [b"", b"user.", b"trusted.", b"security.", b"system."];

/// Form of a stored value (bits 3 and 4 of the second byte): inline, with a length of one byte.
const OWN: u8 = 0;
/// Form of a stored value: a reference to a shared value.
const SHARED: u8 = 1;
/// Form of a stored value: inline, with a length of four bytes.
const LONG: u8 = 2;

/// Reference to a shared value: its hash, and its slot among the values with that hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SharedRef {
    /// Hash of the value.
    pub hash: u64,
    /// Slot among the values with this hash, below [`SLOTS`].
    pub slot: u8,
}

impl SharedRef {
    /// The reference for a key's offset and a value of this hash, if the offset is one of the slots
    /// of the hash.
    pub fn of(hash: u64, offset: u64) -> Option<Self> {
        let slot = u8::try_from(offset.wrapping_sub(hash)).ok()?;
        (slot < SLOTS).then_some(Self { hash, slot })
    }

    /// Offset of the item's key.
    pub fn offset(&self) -> u64 {
        self.hash.wrapping_add(self.slot.into())
    }

    /// Key of the item.
    pub fn key(&self) -> Key {
        shared_key(self.offset())
    }

    /// Key of the item with the bytes of a long value.
    pub fn bytes_key(&self) -> Key {
        bytes_key(self.offset())
    }
}

/// Key of a shared value's item.
pub const fn shared_key(offset: u64) -> Key {
    Key::new(SHARED_VALUES, Kind::SharedValue, offset)
}

/// Key of the item with the bytes of a long shared value.
pub const fn bytes_key(offset: u64) -> Key {
    Key::new(SHARED_BYTES, Kind::SharedValue, offset)
}

/// Hashes values with a fixed seed; the XXH3 secret for long values is computed once.
pub struct ValueHash {
    seed: u64,
    secret: [u8; 192],
}

impl ValueHash {
    /// A hasher that returns the same hashes as [`value_hash`] with this seed.
    pub fn new(seed: u64) -> Self {
        let secret = const_custom_default_secret(seed);
        Self { seed, secret }
    }

    /// The hash of a value.
    pub fn of(&self, value: &[u8]) -> u64 {
        if value.len() > SHORT {
            xxh3_64_with_secret(value, &self.secret)
        } else {
            value_hash(self.seed, value)
        }
    }
}

/// Maximum input length, in bytes, for which XXH3 uses the seed directly and not a derived secret.
const SHORT: usize = 240;

/// The hash of a value: XXH3-64 with the volume's `seed`.
pub fn value_hash(seed: u64, value: &[u8]) -> u64 {
    checksum::name_hash(seed, value)
}

/// The value of an attribute in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredValue<'a> {
    /// Stored in the attribute.
    Own(&'a [u8]),
    /// Stored in a shared value's item.
    Shared(SharedRef),
}

/// An attribute in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredXattr<'a> {
    namespace: &'static [u8],
    bare: &'a [u8],
    /// The value, or the reference to it.
    pub value: StoredValue<'a>,
}

impl StoredXattr<'_> {
    /// The full name.
    pub fn name(&self) -> Vec<u8> {
        [self.namespace, self.bare].concat()
    }

    /// Whether `name` is its full name.
    pub fn is_named(&self, name: &[u8]) -> bool {
        name.strip_prefix(self.namespace) == Some(self.bare)
    }
}

/// Appends an attribute to the value of an attribute item in the index.
pub fn encode_stored_xattr(out: &mut Vec<u8>, name: &[u8], value: &StoredValue<'_>) {
    let spaces = (1u8..).zip(NAMESPACES.iter().skip(1));
    let (space, bare) = spaces
        .filter_map(|(number, space)| Some((number, name.strip_prefix(*space)?)))
        .find(|(_, bare)| !bare.is_empty())
        .unwrap_or((0, name));
    let (form, slot) = match value {
        StoredValue::Own(value) if value.len() <= MAX_OWN_VALUE => (OWN, 0),
        StoredValue::Own(_) => (LONG, 0),
        StoredValue::Shared(place) => (SHARED, place.slot),
    };
    out.push(bare.len() as u8);
    out.push(space | form << 3 | slot << 5);
    out.extend_from_slice(bare);
    match value {
        StoredValue::Shared(place) => out.extend_from_slice(&place.hash.to_le_bytes()),
        StoredValue::Own(value) => {
            let len = (value.len() as u32).to_le_bytes();
            let width = if form == OWN { 1 } else { 4 };
            out.extend_from_slice(len.get(..width).unwrap_or_default());
            out.extend_from_slice(value);
        }
    }
}

/// Decodes the value of an attribute item in the index: the attributes with equal name hash, in
/// order.
pub fn decode_stored_xattrs(item: &[u8]) -> Result<Vec<StoredXattr<'_>>, String> {
    let mut rest = item;
    let mut out = Vec::new();
    while !rest.is_empty() {
        let (xattr, tail) = decode_one(rest)
            .ok_or_else(|| format!("attribute item cut off after {} bytes", item.len()))??;
        out.push(xattr);
        rest = tail;
    }
    if out.is_empty() {
        return Err("empty attribute item".into());
    }
    Ok(out)
}

/// Decodes one attribute, and returns the bytes behind it; `None` if the bytes end too early.
fn decode_one(bytes: &[u8]) -> Option<Result<(StoredXattr<'_>, &[u8]), String>> {
    let ([bare_len, tag], rest) = bytes.split_first_chunk::<2>()?;
    let (bare, rest) = rest.split_at_checked(usize::from(*bare_len))?;
    let (space, form, slot) = (tag & 7, tag >> 3 & 3, tag >> 5);
    let namespace = NAMESPACES.get(usize::from(space)).copied();
    let (namespace, true) = (namespace.unwrap_or_default(), namespace.is_some()) else {
        return Some(Err(format!("attribute in namespace {space}")));
    };
    if bare.is_empty() || form > LONG || (slot > 0 && form != SHARED) {
        let name_len = bare.len();
        return Some(Err(format!(
            "attribute of form {tag:#04x}, name of {name_len}"
        )));
    }
    if form == SHARED {
        let (hash, rest) = rest.split_first_chunk::<8>()?;
        let hash = u64::from_le_bytes(*hash);
        let value = StoredValue::Shared(SharedRef { hash, slot });
        return Some(Ok((
            StoredXattr {
                namespace,
                bare,
                value,
            },
            rest,
        )));
    }
    let (len, rest) = match form {
        OWN => rest
            .split_first()
            .map(|(len, rest)| (usize::from(*len), rest))?,
        _ => {
            let (len, rest) = rest.split_first_chunk::<4>()?;
            (u32::from_le_bytes(*len) as usize, rest)
        }
    };
    if (len > MAX_OWN_VALUE) != (form == LONG) || len > MAX_XATTR_VALUE {
        return Some(Err(format!(
            "attribute of form {tag:#04x} with {len} bytes"
        )));
    }
    let (value, rest) = rest.split_at_checked(len)?;
    let value = StoredValue::Own(value);
    Some(Ok((
        StoredXattr {
            namespace,
            bare,
            value,
        },
        rest,
    )))
}

/// Encodes the item of a shared value with its use count (the number of attributes in the index
/// that refer to it). A long value is not included; it has a separate item.
pub fn encode_shared_value(uses: u64, value: &[u8]) -> Vec<u8> {
    let with_uses = if is_apart(value.len()) { &[] } else { value };
    [&uses.to_le_bytes(), with_uses].concat()
}

/// Whether a shared value of `len` bytes has a separate item for its bytes.
pub fn is_apart(len: usize) -> bool {
    len > MAX_WITH_USES
}

/// Decodes the item of a shared value: the use count, and the value unless it has a separate item.
pub fn decode_shared_value(item: &[u8]) -> Result<(u64, Option<&[u8]>), String> {
    let (uses, value) = item
        .split_first_chunk::<USES>()
        .ok_or_else(|| format!("shared value of {} bytes", item.len()))?;
    let uses = u64::from_le_bytes(*uses);
    if uses == 0 || uses > MAX_COUNTER {
        return Err(format!("shared value with {uses} uses"));
    }
    if value.is_empty() {
        return Ok((uses, None));
    }
    if value.len() <= MAX_OWN_VALUE || is_apart(value.len()) {
        return Err(format!("shared value of {} bytes", value.len()));
    }
    Ok((uses, Some(value)))
}

/// Decodes the separate item of a long shared value.
pub fn decode_shared_bytes(item: &[u8]) -> Result<&[u8], String> {
    if is_apart(item.len()) && item.len() <= MAX_XATTR_VALUE {
        Ok(item)
    } else {
        Err(format!("shared value of {} bytes, apart", item.len()))
    }
}

/// The reference to a value that was read at a key's offset; an error if the offset is not one of
/// the slots of the value's hash.
pub fn shared_place(offset: u64, value: &[u8], seed: u64) -> Result<SharedRef, String> {
    let hash = value_hash(seed, value);
    SharedRef::of(hash, offset)
        .ok_or_else(|| format!("shared value with hash {hash:016x} under {offset:016x}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLACE: SharedRef = SharedRef {
        hash: u64::MAX - 2,
        slot: 5,
    };

    #[test]
    fn value_hash_with_prepared_secret_is_identical() {
        for seed in [0, 9, u64::MAX] {
            let hash = ValueHash::new(seed);
            for len in [0, 64, 239, 240, 241, 400, 1024, 1025, 5000] {
                let value: Vec<u8> = (0..len).map(|n| (n * 7) as u8).collect();
                assert_eq!(hash.of(&value), value_hash(seed, &value), "{len}");
            }
        }
    }

    #[test]
    fn stored_attributes_round_trip() {
        let long = vec![7; 70_000];
        let values = [
            StoredValue::Own(b""),
            StoredValue::Own(long.get(..64).unwrap()),
            StoredValue::Own(long.get(..65).unwrap()),
            StoredValue::Own(long.get(..65536).unwrap()),
            StoredValue::Shared(PLACE),
        ];
        let names = [
            "user.a",
            "system.posix_acl_access",
            "user.",
            "other",
            "trusted.x",
        ];
        for value in values {
            let mut item = Vec::new();
            for name in names {
                encode_stored_xattr(&mut item, name.as_bytes(), &value);
            }
            let got = decode_stored_xattrs(&item).unwrap();
            assert!(got.iter().all(|x| x.is_named(&x.name())));
            assert!(
                !got.iter()
                    .any(|x| x.is_named(b"user.b") || x.is_named(b"a"))
            );
            let found: Vec<_> = got.iter().map(|x| (x.name(), x.value)).collect();
            assert_eq!(found, names.map(|n| (n.as_bytes().to_vec(), value)));
            assert!(decode_stored_xattrs(item.get(..item.len() - 1).unwrap()).is_err());
        }
        let mut item = Vec::new();
        encode_stored_xattr(
            &mut item,
            b"user.cairnfs-bench",
            &StoredValue::Shared(PLACE),
        );
        assert_eq!(item.len(), 2 + 13 + 8, "a reference is short");
    }

    #[test]
    fn stored_attribute_fields_out_of_range_are_refused() {
        let item = |tag: u8, rest: &[u8]| [&[1, tag, b'a'], rest].concat();
        let sound = |item: Vec<u8>| decode_stored_xattrs(&item).is_ok();
        assert!(sound(item(1, &[0])) && sound(item(1 | SHARED << 3 | 7 << 5, &[0; 8])));
        assert!(!sound(item(5, &[0])), "namespace");
        assert!(!sound(item(1 | 3 << 3, &[0; 8])), "form");
        assert!(!sound(item(1 | 1 << 5, &[0])), "slot without reference");
        assert!(
            !sound(item(1, &[[65].as_slice(), &[0; 65]].concat())),
            "length"
        );
        assert!(!sound(item(1 | LONG << 3, &[64, 0, 0, 0])), "length");
        assert!(!sound(item(1 | LONG << 3, &[0, 0, 0, 1])), "length");
        assert!(!sound(vec![0, 1, 0]), "no name");
        assert!(!sound(Vec::new()), "nothing");
    }

    #[test]
    fn shared_value_offset_must_match_its_hash() {
        let (seed, value) = (3, [9; 65]);
        let hash = value_hash(seed, &value);
        for slot in 0..SLOTS {
            let place = SharedRef { hash, slot };
            assert_eq!(shared_place(place.offset(), &value, seed), Ok(place));
        }
        let behind = hash.wrapping_add(SLOTS.into());
        assert!(shared_place(behind, &value, seed).is_err());
        assert!(shared_place(hash.wrapping_sub(1), &value, seed).is_err());
        assert_eq!(PLACE.offset(), 2, "places wrap");
        assert_eq!(SharedRef::of(PLACE.hash, 2), Some(PLACE));
    }

    #[test]
    fn long_shared_values_have_separate_item() {
        let long = [9; MAX_XATTR_VALUE + 1];
        let uses_of = |len: usize| {
            let item = encode_shared_value(12, long.get(..len).unwrap());
            decode_shared_value(&item).map(|(uses, value)| (uses, value.map(<[u8]>::len)))
        };
        assert_eq!(uses_of(65), Ok((12, Some(65))));
        assert_eq!(uses_of(MAX_WITH_USES), Ok((12, Some(MAX_WITH_USES))));
        assert_eq!(uses_of(MAX_WITH_USES + 1), Ok((12, None)));
        assert!(uses_of(64).is_err());
        let apart = |len: usize| decode_shared_bytes(long.get(..len).unwrap()).is_ok();
        assert!(apart(MAX_WITH_USES + 1) && apart(MAX_XATTR_VALUE));
        assert!(!apart(MAX_WITH_USES) && !apart(MAX_XATTR_VALUE + 1));
        for uses in [0, u64::MAX] {
            assert!(decode_shared_value(&encode_shared_value(uses, &[9; 65])).is_err());
        }
        assert!(decode_shared_value(&[1, 2, 3]).is_err());
        assert!(decode_shared_value(&[1; MAX_WITH_USES + 9]).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode_xattrs(&bytes);
            let _ = decode_shared_value(&bytes);
            let _ = decode_shared_bytes(&bytes);
            if let Ok(list) = decode_stored_xattrs(&bytes) {
                let mut again = Vec::new();
                for xattr in &list {
                    encode_stored_xattr(&mut again, &xattr.name(), &xattr.value);
                }
                prop_assert_eq!(decode_stored_xattrs(&again).unwrap().len(), list.len());
            }
        }
    }
}
