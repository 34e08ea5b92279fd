//! Fuzzes what is read of backups: root objects, heads, indexes and tables, as they are and with valid
//! hashes.

#![no_main]

use cairnfs_backup::format::head::Head;
use cairnfs_backup::format::layer::{Index, Object, decode_table};
use cairnfs_backup::format::root::Root;
use cairnfs_backup::format::{Hash, packed};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let _ = Root::decode(input);
    let body = packed(input).unwrap();
    for body in [input, &body] {
        let _ = Head::decode("head", &[&Hash::of(body).0, body].concat());
    }
    let [blocks, rest @ ..] = input else {
        return;
    };
    let object = Object {
        table_offset: u64::from(*blocks) * 100,
        table_hash: Hash::of(rest),
    };
    let _ = decode_table("table", rest, &object);
    let stored = packed(rest).unwrap();
    let layer = format!(
        r#"{{"number":1,"name":"{:020}-x","blocks":{blocks},"bytes":1,"index_offset":0,
            "index_length":{},"index_hash":"{}","hash":"{}"}}"#,
        1,
        stored.len(),
        Hash::of(&stored),
        Hash::of(b""),
    );
    let _ = Index::decode("index", &stored, &serde_json::from_str(&layer).unwrap());
});
