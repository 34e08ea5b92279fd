//! Decoding of arbitrary bytes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use cairnfs_tier::size;
use cairnfs_transport::abi::Opcode;
use cairnfs_transport::request::Operation;
use proptest::collection::vec;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(size(4_000, 20_000)))]

    #[test]
    fn any_bytes_decode_or_are_refused(
        opcode in 0_u32..60,
        op in vec(prop_oneof![4 => Just(0_u8), 1 => any::<u8>()], 0..130),
        payload in vec(prop_oneof![Just(0_u8), Just(b'a'), any::<u8>()], 0..80),
    ) {
        if let Ok(Operation::BatchForget(all)) =
            Operation::decode(Opcode(opcode), &op, &payload)
        {
            prop_assert!(all.iter().count() * 16 <= payload.len());
        }
    }

    /// What a transport passes behind the structure of an operation does not matter.
    #[test]
    fn bytes_behind_the_structure_are_ignored(
        opcode in 0_u32..60,
        op in vec(any::<u8>(), 128..=128),
        behind in vec(any::<u8>(), 0..64),
        payload in vec(prop_oneof![Just(0_u8), Just(b'a')], 0..80),
    ) {
        let opcode = Opcode(opcode);
        let mut area = op.get(..opcode.fixed_size()).unwrap().to_vec();
        let exact = area.clone();
        area.extend(behind);
        prop_assert_eq!(
            Operation::decode(opcode, &exact, &payload),
            Operation::decode(opcode, &area, &payload)
        );
    }
}
