//! Random batches of edits, compared with a `BTreeMap`.

use proptest::prelude::*;

use crate::index::testing::{Bench, Changes, scan};
use cairnfs_disk::format::NODE_SIZE;
use cairnfs_disk::format::key::{Key, Kind};
use cairnfs_disk::format::node::MAX_CELL_VALUE;
use cairnfs_tier::size;

pub fn any_key() -> impl Strategy<Value = Key> {
    let clustered = (0u64..40, 0u64..60);
    let random = (any::<u64>(), any::<u64>());
    let kind = prop_oneof![
        Just(Kind::Inode),
        Just(Kind::DirIndex),
        Just(Kind::Extent),
        Just(Kind::Root)
    ];
    (prop_oneof![4 => clustered, 1 => random], kind)
        .prop_map(|((object, offset), kind)| Key::new(object, kind, offset))
}

pub fn any_value() -> impl Strategy<Value = Option<Vec<u8>>> {
    let len = prop_oneof![
        40 => 0usize..200,
        10 => 0usize..4097,
        1 => 4097usize..131_073,
    ];
    let value = (len, any::<u8>()).prop_map(|(len, b)| {
        let byte = |i: usize| b.wrapping_add((i / 7) as u8);
        Some((0..len).map(byte).collect::<Vec<u8>>())
    });
    prop_oneof![3 => value, 2 => Just(None)]
}

fn batch() -> impl Strategy<Value = (Changes, usize)> {
    let few = proptest::collection::btree_map(any_key(), any_value(), 0..12);
    let many = proptest::collection::btree_map(any_key(), any_value(), 0..600);
    (
        prop_oneof![few, many],
        prop_oneof![Just(usize::MAX), 1usize..300],
    )
}

/// A scan from the last key up to `upto` on, with any lower limit, has everything from that key on,
/// if it is not below the limit.
fn check_from_last(bench: &Bench, limits: &[Key], upto: &Key) -> Result<(), TestCaseError> {
    for least in limits.iter().filter(|least| *least <= upto) {
        let mut got = Vec::new();
        let each = &mut |key: &Key, value: &[u8]| {
            got.push((*key, value.to_vec()));
            Ok(true)
        };
        let scanned = bench.index.scan_from_last(&bench.tree, (least, upto), each);
        scanned.unwrap();
        let last = bench.model.range(..=upto).next_back().map(|(key, _)| key);
        let needed = bench.model.range(least.max(last.unwrap_or(least))..).next();
        let first = got.first().map(|(key, _)| *key);
        prop_assert!(needed.is_none_or(|(key, _)| first.is_some_and(|first| first <= *key)));
        let want = bench.model.range(first.unwrap_or(*upto)..);
        prop_assert!(got.iter().map(|(key, value)| (key, value)).eq(want));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(size(20, 60)))]
    #[test]
    fn tree_agrees_with_map(
        batches in proptest::collection::vec(batch(), 1..8),
        probes in proptest::collection::vec(any_key(), 20),
        cache in prop_oneof![Just(0usize), Just(1 << 19), Just(64 << 20)],
        purge in any::<bool>(),
    ) {
        let mut bench = Bench::new(cache);
        for (mut changes, most) in batches {
            while !changes.is_empty() {
                changes = bench.step(changes, most).unwrap();
                bench.check();
                bench.space.reuse();
            }
            for probe in &probes {
                let got = bench.index.get(&bench.tree, probe).unwrap();
                prop_assert_eq!(got.as_ref(), bench.model.get(probe));
                let want = bench.model.range(probe..).map(|(k, v)| (*k, v.clone())).collect();
                prop_assert_eq!(scan(&bench.index, &bench.tree, probe), want);
                check_from_last(&bench, &probes, probe)?;
            }
        }
        if purge {
            let all: Vec<Key> = bench.model.keys().copied().collect();
            let (most, few) = all.split_at(all.len() - all.len().min(3));
            bench.delete(most.iter().copied());
            bench.check();
            // A new node is joined with a small neighbour only if it is small itself, and a single
            // large value may prevent that.
            let left: usize = bench.model.values().map(|v| v.len().min(MAX_CELL_VALUE)).sum();
            prop_assert!(bench.tree.height <= 1 || left > NODE_SIZE / 5);
            bench.delete(few.iter().copied());
            prop_assert_eq!(bench.tree, Default::default());
            prop_assert!(bench.space.live().is_empty());
        }
    }
}
