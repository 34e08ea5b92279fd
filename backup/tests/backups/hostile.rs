//! Objects that were damaged, exchanged, rolled back or made up: told, and never read as something else.

use std::sync::Arc;

use bytes::Bytes;
use cairnfs_backup::format::head::Head;
use cairnfs_backup::format::layer::{Index, Object, decode_table};
use cairnfs_backup::format::root::Root;
use cairnfs_backup::format::{Hash, packed};
use cairnfs_backup::{
    Cache, Catalogue, Error, Fetch, Image, MomentDevice, Seal, Shipper, Store, Unwatched,
    WriterOptions, check,
};
use proptest::prelude::*;

use crate::store::{Objects, Trouble};
use crate::volume::{BLOCK, Blocks, Volume, contents};

/// A backup of three moments.
fn backup() -> (Objects, Volume) {
    let (objects, volume) = (Objects::default(), Volume::new("v", 300));
    let store = objects.client(Trouble::None);
    let options = WriterOptions {
        name: "here".into(),
        ..WriterOptions::default()
    };
    let mut shipper = Shipper::open(store, &volume, options).unwrap();
    for round in 0..3 {
        volume.write(round * 40, 150, round + 1);
        volume.free(10, 5 * round);
        shipper.ship(&volume, &Unwatched).unwrap();
    }
    (objects, volume)
}

/// Reads everything: what is read is right, or an error. Returns whether all was right.
fn read_all(store: &Arc<Store>, volume: &Volume) -> bool {
    let Ok(catalogue) = Catalogue::open(store) else {
        return false;
    };
    let seal = Arc::<Seal>::default();
    let report = check(store, &catalogue, &seal, true, &Unwatched).unwrap();
    let mut is_right = catalogue.moments().len() == 3 && report.problems.is_empty();
    for moment in catalogue.moments() {
        let image = Image::open(Arc::clone(store), Arc::clone(&seal), &catalogue, moment);
        let Ok(image) = image else {
            is_right = false;
            continue;
        };
        let cache = Cache::new(1 << 20, None).unwrap();
        let device = MomentDevice::new(image, cache, Fetch::Frame);
        is_right &= reads_right(&device, &volume.image(&moment.checkpoint));
    }
    if !is_right {
        assert!(
            !report.problems.is_empty() || catalogue.moments().len() < 3,
            "the check found nothing"
        );
    }
    is_right
}

fn reads_right(device: &MomentDevice, expected: &Blocks) -> bool {
    (0..300).all(|block| {
        let mut read = [0; BLOCK];
        match device.read_blocks(block, &mut read) {
            Err(_) => false,
            Ok(()) => {
                let wanted = expected
                    .get(&block)
                    .map_or([0; BLOCK], |seed| contents(*seed));
                assert!(read == wanted, "block {block} has other contents");
                true
            }
        }
    })
}

#[test]
fn a_changed_cut_or_missing_object_is_found() {
    let (objects, volume) = backup();
    assert!(read_all(&objects.client(Trouble::None), &volume));
    for name in objects.names() {
        let whole = objects.bytes(&name);
        let mut wrong = vec![
            Bytes::new(),
            whole.slice(..whole.len() / 2),
            whole.slice(1..),
        ];
        for at in (0..whole.len()).step_by(whole.len() / 9 + 1) {
            let mut bytes = whole.to_vec();
            bytes[at] ^= 0x10;
            wrong.push(bytes.into());
        }
        for bytes in wrong {
            objects.set(&name, bytes);
            let is_right = read_all(&objects.client(Trouble::None), &volume);
            assert!(!is_right, "{name}");
        }
        // A copy that is missing is none that was changed.
        if name.as_ref().contains("copies/") {
            objects.set(&name, whole);
            continue;
        }
        objects.remove(&name);
        let is_right = read_all(&objects.client(Trouble::None), &volume);
        assert!(!is_right, "{name}");
        objects.set(&name, whole);
    }
    assert!(read_all(&objects.client(Trouble::None), &volume));
}

#[test]
fn exchanged_objects_are_found() {
    let (objects, volume) = backup();
    let names = objects.names();
    let folder =
        |name: &object_store::path::Path| name.parts().nth(1).map(|p| p.as_ref().to_owned());
    let mut tried = 0;
    for (one, other) in names.iter().zip(&names[1..]) {
        if folder(one) != folder(other) {
            continue;
        }
        let (a, b) = (objects.bytes(one), objects.bytes(other));
        objects.set(one, b.clone());
        objects.set(other, a.clone());
        assert!(
            !read_all(&objects.client(Trouble::None), &volume),
            "{one} and {other}"
        );
        objects.set(one, a);
        objects.set(other, b);
        tried += 1;
    }
    assert!(tried >= 4);
}

/// The object of a head with the right hash.
fn head(body: &[u8]) -> Vec<u8> {
    [&Hash::of(body).0, body].concat()
}

#[test]
fn a_layer_that_claims_much_needs_little_memory() {
    let claims = |layers: &str| {
        let body = packed(
            format!(
                r#"{{"format":1,"backup":"b","root":"{}","number":1,"previous":null,"epoch":1,
                "writer":{{"name":"n","run":"r"}},"base":null,"layers":[{layers}],"moments":[]}}"#,
                Hash::of(b"")
            )
            .as_bytes(),
        )
        .unwrap();
        head(&body)
    };
    let layer = |blocks: u64, offset: u64, length: u64| {
        let (name, zeros) = (format!("{:020}-x", 1), "0".repeat(64));
        format!(
            r#"{{"number":1,"name":"{name}","blocks":{blocks},"bytes":1,"index_offset":{offset},
                "index_length":{length},"index_hash":"{zeros}","hash":"{zeros}"}}"#
        )
    };
    assert!(Head::decode("h", &claims(&layer(1, 10, 10))).is_ok());
    for layer in [
        layer(u64::MAX, 0, 0),
        layer(1, u64::MAX, 1),
        layer(1, 0, u64::MAX),
        layer(1, 1 << 40, 1 << 40),
    ] {
        assert!(Head::decode("h", &claims(&layer)).is_err(), "{layer}");
    }
    // A gigabyte of zeros in a few bytes.
    let bomb = zstd::bulk::compress(&vec![0; 1 << 30], 1).unwrap();
    assert!(matches!(
        Head::decode("h", &bomb),
        Err(Error::Damaged { .. })
    ));
}

/// The index of a layer with these bytes, under the right hash.
fn index(bytes: &[u8], blocks: u64) -> Result<Index, Error> {
    let stored = packed(bytes).unwrap();
    let head = format!(
        r#"{{"number":1,"name":"{:020}-x","blocks":{blocks},"bytes":1,"index_offset":0,
            "index_length":{},"index_hash":"{}","hash":"{}"}}"#,
        1,
        stored.len(),
        Hash::of(&stored),
        Hash::of(b""),
    );
    let layer = serde_json::from_str(&head).unwrap();
    Index::decode("x", &stored, &layer)
}

/// Decodes an input of the fuzzer's corpus as what its name says.
fn decode(name: &str, input: &[u8]) -> Result<(), Error> {
    let (first, rest) = (u64::from(input[0]), &input[1..]);
    match name.split('-').next() {
        Some("root") => Root::decode(input).map(drop),
        Some("head") => Head::decode("h", &head(&packed(input)?)).map(drop),
        Some("index") => index(rest, first).map(drop),
        Some("table") => {
            let table_hash = Hash::of(rest);
            let table_offset = first * 100;
            let object = Object {
                table_offset,
                table_hash,
            };
            decode_table("x", rest, &object).map(drop)
        }
        _ => panic!("{name} is none of these"),
    }
}

#[test]
fn the_fuzzers_corpus_is_valid_and_each_change_of_a_byte_is_survived() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../lab/fuzz/corpus/backup");
    let mut refused = 0;
    for entry in std::fs::read_dir(corpus).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let input = std::fs::read(&path).unwrap();
        let valid = decode(name, &input);
        assert!(valid.is_ok(), "{name}: {valid:?}");
        for at in 0..input.len() {
            for bits in [1, 0x80, 0xff] {
                let mut changed = input.clone();
                changed[at] ^= bits;
                refused += u64::from(decode(name, &changed).is_err());
            }
        }
    }
    assert!(refused > 1000, "only {refused} were refused");
}

proptest! {
    #[test]
    fn made_up_bytes_are_decoded_or_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
        blocks in 0_u64..5000,
    ) {
        let _ = Root::decode(&bytes);
        let _ = Head::decode("h", &bytes);
        let _ = Head::decode("h", &head(&bytes));
        let _ = Head::decode("h", &head(&packed(&bytes).unwrap()));
        if let Ok(index) = index(&bytes, blocks) {
            let data: u64 = index.runs.iter().filter(|r| r.has_data).map(|r| r.count).sum();
            prop_assert_eq!(data, blocks);
            prop_assert!(index.runs.is_sorted_by(|a, b| a.end() <= b.start));
        }
        let object = Object { table_offset: 8 + 300, table_hash: Hash::of(&bytes) };
        if let Ok(frames) = decode_table("x", &bytes, &object) {
            prop_assert_eq!(frames.iter().map(|f| f.length).sum::<u64>(), 300);
        }
    }
}
