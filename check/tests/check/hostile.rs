//! Arbitrary bytes: the check terminates, does not panic, and its report stays small.

use cairnfs::Error;
use cairnfs_check::MAX_FINDINGS;
use cairnfs_disk::format::NODE_SIZE;
use cairnfs_disk::format::key::Key;
use proptest::prelude::*;
use zerocopy::little_endian::{U32, U64};

use super::plan::*;

#[test]
fn number_of_findings_is_limited() {
    let mut plan = Plan::base();
    for chunk in 0..24u64 {
        let ghosts = (0..500).map(|i| put(Key::orphan(1000 + chunk * 500 + i), vec![1]));
        plan.context(ghosts.collect());
    }
    let report = plan.build().check(false).unwrap();
    assert_eq!(report.findings.len(), MAX_FINDINGS + 1);
    let last = report.findings.last().unwrap();
    assert_eq!(last.code, "too-many");
    assert!(last.message.starts_with("2000 "), "{}", last.message);
}

/// Offsets in a node, most of them in its header and its cells.
fn any_offset() -> impl Strategy<Value = usize> {
    prop_oneof![0usize..100, 15_500usize..NODE_SIZE, 0usize..NODE_SIZE]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arbitrary_item_values_are_survived(
        values in proptest::collection::vec(
            (any::<prop::sample::Index>(), proptest::collection::vec(any::<u8>(), 0..200)), 1..4),
        bits in proptest::collection::vec(
            (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0u8..8), 0..4),
    ) {
        let mut plan = Plan::base();
        let keys: Vec<_> = plan.items.keys().copied().collect();
        for (at, value) in values {
            plan.items.insert(keys[at.index(keys.len())], value);
        }
        for (at, byte, bit) in bits {
            let value = plan.items.get_mut(&keys[at.index(keys.len())]).unwrap();
            let len = value.len();
            if len > 0 {
                value[byte.index(len)] ^= 1 << bit;
            }
        }
        plan.build().check(true).unwrap();
    }

    /// Contract: hostile
    #[test]
    fn arbitrary_nodes_with_valid_checksums_are_survived(
        flips in proptest::collection::vec((0u8..3, 0usize..4, any_offset(), any::<u8>()), 1..5)
    ) {
        let mut plan = Plan::base();
        plan.node_hook = Some(Box::new(move |level, nth, bytes, _| {
            for (_, _, at, value) in flips.iter().filter(|f| (f.0, f.1) == (level, nth)) {
                bytes[*at] = *value;
            }
        }));
        plan.build().check(true).unwrap();
    }

    #[test]
    fn arbitrary_superblock_with_valid_checksum_is_survived(
        tail in prop_oneof![any::<u64>(), Just(u64::MAX), Just(u64::MAX - 3)],
        required in any::<u64>(),
        root in any::<u64>(),
        height in 0u32..13,
        free in any::<u64>(),
        next in any::<u64>(),
        merged in any::<u64>(),
    ) {
        let mut image = Plan::base().build();
        image.edit_superblock(|s| {
            s.tail_lsn = U64::new(tail);
            s.required_lsn = U64::new(required);
            s.root.block = U64::new(root);
            s.root_height = U32::new(height);
            s.free_blocks = U64::new(free);
            s.next_ino = U64::new(next);
            s.merged_seq = U64::new(merged);
        });
        let result = image.check(true);
        prop_assert!(matches!(result, Ok(_) | Err(Error::NotAVolume(_))), "{result:?}");
    }

    #[test]
    fn arbitrary_log_entries_are_survived(
        entries in proptest::collection::vec(
            (0u64..30, 1u8..=9, prop_oneof![0u64..12, any::<u64>()], any::<bool>(),
             proptest::collection::vec(any::<u8>(), 0..130)), 0..20)
    ) {
        let mut plan = Plan::base();
        plan.context(entries.into_iter().map(|(object, kind, offset, is_delete, value)| {
            let kind = cairnfs_disk::format::key::Kind::from_u8(kind).unwrap();
            let key = Key::new(object, kind, offset);
            if is_delete { delete(key, value) } else { put(key, value) }
        }).collect());
        plan.build().check(true).unwrap();
    }
}
