//! Compares `docs/format.md` with the code: the sizes and offsets of each structure.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's helpers"
)]

use std::collections::BTreeMap;
use std::mem::offset_of;

use cairnfs_disk::format::group::GroupEntry;
use cairnfs_disk::format::item::{DIR_ENTRY_HEADER, RawExtent, RawInode, RawTime};
use cairnfs_disk::format::mark::RawMark;
use cairnfs_disk::format::node::{
    MAX_CELL_VALUE, MAX_HEIGHT, NODE_HEADER, NodeHeader, RawOverflow,
};
use cairnfs_disk::format::pointer::RawPtr;
use cairnfs_disk::format::record::{
    ENTRY_HEADER_SIZE, HEADER_SIZE, MAX_PAYLOAD, MAX_RECORD_BLOCKS, RecordHeader,
};
use cairnfs_disk::format::root::{RawLineage, RawRoot};
use cairnfs_disk::format::superblock::{RawCheckpoint, RawSuperblock};
use cairnfs_disk::format::{MAX_VALUE, NODE_SIZE};

const DOCUMENT: &str = include_str!("../../docs/format.md");

type Fields = BTreeMap<String, usize>;

struct Layout {
    size: usize,
    fields: Fields,
}

macro_rules! layout {
    ($type:ident: $($field:ident)*) => {
        (
            stringify!($type),
            Layout {
                size: size_of::<$type>(),
                fields: [$((stringify!($field).to_string(), offset_of!($type, $field))),*].into(),
            },
        )
    };
}

fn of_the_code() -> Vec<(&'static str, Layout)> {
    vec![
        layout!(RawSuperblock: magic checksum compatible ro_compatible incompatible uuid hash_seed
            label created block_size node_size total_blocks log_blocks generation merged_seq
            tail_lsn tail_chain required_lsn next_ino next_root table_copy table_crc root_height
            root free_blocks checkpoint checkpoint_before ranges copies place),
        layout!(RawCheckpoint: seq number),
        layout!(RawPtr: block birth crc),
        layout!(GroupEntry: crc free copy reserved),
        layout!(NodeHeader: magic level prefix_len count block birth volume cells_start prefix
            reserved),
        layout!(RawOverflow: block birth len crc),
        layout!(RawRoot: ptr height birth),
        layout!(RawLineage: parent state replaced boundary created origin nodes),
        layout!(RawInode: mode uid gid nlink flags xattrs rdev size blocks atime mtime ctime btime
            next_index parent),
        layout!(RawTime: secs nanos),
        layout!(RawExtent: block birth len flags),
        layout!(RawMark: magic checksum uuid durable_lsn place reserved),
        layout!(RecordHeader: checksum magic flags uuid nonce lsn chain seq durable_lsn generation
            part entries payload_len payload_crc checks_len
            reserved),
    ]
}

/// The structures of the document, found by the headings that contain a name and a size.
fn of_the_document() -> BTreeMap<String, Layout> {
    let mut found = BTreeMap::new();
    for section in DOCUMENT.split("\n### ").skip(1) {
        let (heading, body) = section.split_once('\n').unwrap();
        let Some((name, size)) = heading.split_once("`: ") else {
            continue;
        };
        let size = size.trim_end_matches(" bytes").parse().unwrap();
        let mut fields = Fields::new();
        let mut end = 0;
        let rows = body.lines().filter(|line| line.starts_with("| "));
        for row in rows.take_while(|row| !row.starts_with("| First")) {
            let cells: Vec<_> = row.split('|').map(str::trim).collect();
            let [_, bytes, field, ..] = cells[..] else {
                panic!("{row}")
            };
            let (first, last) = bytes.split_once('-').unwrap_or((bytes, bytes));
            let (Ok(offset), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else {
                continue;
            };
            if !field.starts_with('`') || end == size {
                break;
            }
            assert_eq!(offset, end, "fields of {name} follow each other: {field}");
            end = last + 1;
            fields.insert(field.trim_matches('`').to_string(), offset);
        }
        assert_eq!(end, size, "the fields of {name} fill it");
        found.insert(name.trim_matches('`').to_string(), Layout { size, fields });
    }
    found
}

#[test]
fn structures_match_the_document() {
    let mut document = of_the_document();
    for (name, code) in of_the_code() {
        let described = document.remove(name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(described.size, code.size, "{name}");
        assert_eq!(described.fields, code.fields, "{name}");
    }
    assert!(document.is_empty(), "{:?}", document.keys());
}

#[test]
fn numbers_in_the_document_match_the_code() {
    assert_eq!((HEADER_SIZE, ENTRY_HEADER_SIZE, NODE_HEADER), (128, 24, 64));
    assert_eq!(
        (DIR_ENTRY_HEADER, MAX_RECORD_BLOCKS, MAX_HEIGHT),
        (9, 256, 12)
    );
    assert_eq!((MAX_CELL_VALUE, NODE_SIZE - 8), (4096, 16376));
    for number in [MAX_VALUE, MAX_PAYLOAD, NODE_SIZE - 8, MAX_CELL_VALUE] {
        assert!(DOCUMENT.contains(&number.to_string()), "{number}");
    }
}
