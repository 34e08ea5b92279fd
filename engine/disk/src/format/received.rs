//! What a received snapshot is: an extended attribute of its root directory.
//!
//! Pure, as all of `format`. docs/stream-format.md has the layout. A root that was forked from the
//! snapshot has the attribute, too: it is another tree, but its numbers are the same files.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::MAX_COUNTER;
use crate::format::stream::{MAX_ORIGINS, RawOrigin};

/// The attribute. It is neither sent nor compared; no stream and no program sets it or sees it.
pub const RECEIVED: &[u8] = b"trusted.cairnfs.received";
/// How many numbers followed each other when there was one range for each sender.
const SHIFTED: u64 = 1 << 40;

/// The beginning of the value of [`RECEIVED`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct RawReceived {
    /// UUID of the volume that sent it.
    pub uuid: [u8; 16],
    /// Root id of the tree on that volume.
    pub root: U32,
    /// The mark of the tree in the stream.
    pub mark: U64,
    /// What was added to all inode numbers of the sender; 0 if ranges tell.
    pub shift: U64,
    /// Root id of the tree here.
    pub own_root: U32,
}

/// Numbers of a received snapshot. An array of these follows [`RawReceived`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct RawRange {
    /// Whose files they are, and their numbers for the sender.
    pub origin: RawOrigin,
    /// The first number here.
    pub here: U64,
}

impl RawRange {
    fn is_sound(&self) -> bool {
        let here = self.here.get().checked_add(self.origin.len.get());
        self.origin.check().is_ok() && here.is_some_and(|end| end <= MAX_COUNTER)
    }
}

/// The value of [`RECEIVED`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Received {
    /// What was received, and as which root.
    pub raw: RawReceived,
    /// What its inode numbers are.
    pub ranges: Vec<RawRange>,
}

impl Received {
    /// The bytes of the value.
    pub fn encode(&self) -> Vec<u8> {
        [self.raw.as_bytes(), self.ranges.as_bytes()].concat()
    }

    /// Decodes a value; `None` if it is none. An earlier one has a shift in place of ranges.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (raw, rest) = RawReceived::read_from_prefix(bytes).ok()?;
        let ranges = <[RawRange]>::ref_from_bytes(rest).ok()?;
        if ranges.len() > MAX_ORIGINS || !ranges.iter().all(RawRange::is_sound) {
            return None;
        }
        let shifted = RawRange {
            origin: RawOrigin {
                uuid: raw.uuid,
                len: U64::new(SHIFTED),
                ..RawOrigin::default()
            },
            here: raw.shift,
        };
        let ranges = match raw.shift.get() {
            0 => ranges.to_vec(),
            _ if ranges.is_empty() && shifted.is_sound() => vec![shifted],
            _ => return None,
        };
        Some(Self { raw, ranges })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u64) -> RawRange {
        RawRange {
            origin: RawOrigin {
                uuid: [7; 16],
                first: U64::new(first),
                sent: U64::new(90),
                len: U64::new(10),
            },
            here: U64::new(1 << 59),
        }
    }

    #[test]
    fn values_are_decoded_as_they_were_encoded() {
        for ranges in [vec![], vec![range(16)], vec![range(16), range(80)]] {
            let received = Received {
                raw: RawReceived::default(),
                ranges,
            };
            assert_eq!(Received::decode(&received.encode()), Some(received));
        }
    }

    #[test]
    fn shift_of_an_earlier_value_is_one_range() {
        let raw = RawReceived {
            uuid: [3; 16],
            shift: U64::new(80),
            ..RawReceived::default()
        };
        let found = Received::decode(raw.as_bytes()).unwrap();
        let origin = RawOrigin {
            uuid: [3; 16],
            len: U64::new(1 << 40),
            ..RawOrigin::default()
        };
        let here = U64::new(80);
        assert_eq!(found.ranges, [RawRange { origin, here }]);
    }

    #[test]
    fn values_that_no_receiver_writes_are_none() {
        let encoded = |raw: RawReceived, ranges: Vec<RawRange>| Received { raw, ranges }.encode();
        let shift = |shift: u64| RawReceived {
            shift: U64::new(shift),
            ..RawReceived::default()
        };
        for bytes in [
            vec![0; 39],
            vec![0; 41],
            encoded(shift(u64::MAX), vec![]),
            encoded(shift(80), vec![range(16)]),
            encoded(shift(0), vec![range(MAX_COUNTER)]),
            encoded(shift(0), vec![range(16); MAX_ORIGINS + 1]),
        ] {
            assert_eq!(Received::decode(&bytes), None, "{}", bytes.len());
        }
    }
}
