//! Streams with valid checksums that ask for what no tree can be.

use zerocopy::IntoBytes;

use super::target::{MemoryTree, inode, sound};
use crate::stream::{MOST_LEVELS, StreamWriter};
use cairnfs_disk::error::Error;
use cairnfs_disk::format::frames::Chain;
use cairnfs_disk::format::item::{S_IFCHR, S_IFDIR, S_IFLNK, S_IFREG};
use cairnfs_disk::format::stream::{MAX_PAYLOAD, RawBegin, RawOrigin, Record, STREAM_VERSION};
use cairnfs_disk::format::{MAX_COUNTER, MAX_FILE_SIZE, ROOT_INO};

fn receive(records: &[Record<'_>]) -> Result<MemoryTree, Error> {
    let mut writer = StreamWriter::new(Vec::new(), RawBegin::default(), &[]).unwrap();
    for record in records {
        writer.put(record)?;
    }
    MemoryTree::received(&writer.finish().unwrap(), &MemoryTree::default())
}

/// Sends a payload as it is.
fn receive_raw(kind: u8, payload: &[u8]) -> String {
    let (preamble, mut chain) = Chain::begin(STREAM_VERSION);
    let mut bytes = preamble.to_vec();
    chain
        .frame(&Record::Begin(RawBegin::default()), &mut bytes)
        .unwrap();
    chain.seal(kind, payload, &mut bytes);
    let end = chain.end();
    chain.frame(&end, &mut bytes).unwrap();
    match MemoryTree::received(&bytes, &MemoryTree::default()) {
        Err(Error::Stream(why)) => why,
        other => panic!("{other:?}"),
    }
}

fn link(dir: u64, ino: u64, name: &'static [u8]) -> Record<'static> {
    Record::Link { dir, ino, name }
}

fn file(ino: u64) -> Record<'static> {
    Record::Create(inode(ino, S_IFREG | 0o644, 10))
}

fn dir(ino: u64) -> Record<'static> {
    Record::Create(inode(ino, S_IFDIR | 0o755, 0))
}

fn data(ino: u64, offset: u64, bytes: &'static [u8]) -> Record<'static> {
    Record::Data { ino, offset, bytes }
}

#[test]
fn sound_records_are_received() {
    let tree = receive(&sound()).unwrap();
    assert_eq!(tree.nodes[&21].contents, b"four\0\0\0\0\0");
    assert_eq!(tree.names.len(), 4);
}

#[test]
fn names_that_no_entry_can_have_are_refused() {
    let long = [b'x'; 256];
    for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0", &long] {
        for kind in [8, 9] {
            let payload = [&1_u64.to_le_bytes()[..], &20_u64.to_le_bytes(), name].concat();
            assert!(receive_raw(kind, &payload).contains("name"));
        }
        let record = Record::Link {
            dir: 1,
            ino: 20,
            name,
        };
        assert!(receive(&[record]).is_err(), "sent {name:?}");
    }
}

#[test]
fn payloads_that_do_not_decode_are_refused() {
    let number = |n: u64| n.to_le_bytes().to_vec();
    let data_of = |len| [number(20), number(0), vec![1; len]].concat();
    for (kind, payload) in [
        (0, Vec::new()),
        (12, Vec::new()),
        (1, vec![0; 39]),
        (2, vec![0; 87]),
        (2, vec![0; 88]),
        (3, vec![0xff; 88]),
        (4, [number(20), vec![0]].concat()),
        (4, [number(20), vec![5, b'a']].concat()),
        (4, [number(20), vec![2, b'a', 0]].concat()),
        (4, [number(20), vec![1, b'a'], vec![0; 65537]].concat()),
        (5, [number(20), vec![1, b'a', 1]].concat()),
        (6, data_of(0)),
        (6, data_of(65537)),
        (6, [number(20), number(MAX_FILE_SIZE), vec![1]].concat()),
        (7, [number(20), number(0), number(0)].concat()),
        (7, [number(20), number(u64::MAX), number(2)].concat()),
        (7, [number(20), number(0), number(1), vec![0]].concat()),
        (10, [number(20), vec![0]].concat()),
        (10, number(2)),
        (10, number(u64::MAX)),
        (11, vec![0; 16]),
        (9, vec![0; MAX_PAYLOAD + 1]),
    ] {
        receive_raw(kind, &payload);
    }
}

#[test]
fn streams_that_no_tree_can_be_are_refused() {
    let unlink = |ino, name| Record::Unlink {
        dir: ROOT_INO,
        ino,
        name,
    };
    let with_size = |mode, size| Record::Create(inode(20, mode, size));
    let root = ROOT_INO;
    let cases: &[(&str, Vec<Record<'_>>)] = &[
        (
            "duplicate name",
            vec![
                file(20),
                file(21),
                link(root, 20, b"a"),
                link(root, 21, b"a"),
            ],
        ),
        (
            "second link to a directory",
            vec![dir(20), link(root, 20, b"a"), link(root, 20, b"b")],
        ),
        (
            "link to the root",
            vec![dir(20), link(root, 20, b"a"), link(20, root, b"r")],
        ),
        ("directory in itself", vec![dir(20), link(20, 20, b"a")]),
        (
            "circle",
            vec![dir(20), dir(21), link(20, 21, b"a"), link(21, 20, b"b")],
        ),
        (
            "entry in a file",
            vec![file(20), file(21), link(root, 20, b"a"), link(20, 21, b"b")],
        ),
        ("entry in nothing", vec![file(20), link(77, 20, b"a")]),
        ("link to nothing", vec![link(root, 20, b"a")]),
        ("no name", vec![file(20)]),
        ("created twice", vec![file(20), file(20)]),
        ("numbers descend", vec![file(21), file(20)]),
        ("root created", vec![dir(root)]),
        (
            "changed and not there",
            vec![Record::Change(inode(20, S_IFREG, 0))],
        ),
        (
            "another type",
            vec![Record::Change(inode(root, S_IFREG, 0))],
        ),
        (
            "data behind the size",
            vec![file(20), data(20, 9, b"ab"), link(root, 20, b"a")],
        ),
        (
            "data backwards",
            vec![
                file(20),
                data(20, 4, b"ab"),
                data(20, 3, b"c"),
                link(root, 20, b"a"),
            ],
        ),
        (
            "data of a directory",
            vec![dir(20), data(20, 0, b"a"), link(root, 20, b"a")],
        ),
        ("data of nothing", vec![data(20, 0, b"a")]),
        (
            "no target",
            vec![with_size(S_IFLNK, 1), link(root, 20, b"a")],
        ),
        (
            "short target",
            vec![
                with_size(S_IFLNK, 2),
                data(20, 0, b"a"),
                link(root, 20, b"a"),
            ],
        ),
        (
            "target with NUL",
            vec![
                with_size(S_IFLNK, 1),
                data(20, 0, b"\0"),
                link(root, 20, b"a"),
            ],
        ),
        ("long target", vec![with_size(S_IFLNK, 4096)]),
        (
            "size of a device",
            vec![with_size(S_IFCHR, 5), link(root, 20, b"a")],
        ),
        ("unlink of nothing", vec![unlink(20, b"a")]),
        (
            "unlink in the wrong order",
            vec![file(20), link(root, 20, b"a"), unlink(20, b"a")],
        ),
        (
            "inode after names",
            vec![file(20), link(root, 20, b"a"), file(21)],
        ),
        (
            "removed and named",
            vec![file(20), link(root, 20, b"a"), Record::Remove { ino: 20 }],
        ),
        ("root removed", vec![Record::Remove { ino: root }]),
        (
            "removed and full",
            vec![
                dir(20),
                file(21),
                link(20, 21, b"a"),
                Record::Remove { ino: 20 },
            ],
        ),
        ("begins twice", vec![Record::Begin(RawBegin::default())]),
    ];
    for (what, records) in cases {
        let refused = receive(records);
        assert!(
            matches!(refused, Err(Error::Stream(_))),
            "{what}: {refused:?}"
        );
    }
    // The same records, well-formed, are received.
    let fine = vec![
        file(20),
        data(20, 3, b"c"),
        data(20, 4, b"ab"),
        link(root, 20, b"a"),
    ];
    assert!(receive(&fine).is_ok());
    assert!(receive(&[file(20), Record::Remove { ino: 20 }]).is_ok());
}

/// Origins are of streams of the second version, come before inodes, and have numbers that volumes
/// can have.
#[test]
fn origins_out_of_place_are_refused() {
    let origin = |first: u64, len: u64| RawOrigin {
        uuid: [7; 16],
        first: first.into(),
        sent: 20.into(),
        len: len.into(),
    };
    let sound = origin(16, 10);
    let refused = receive_raw(12, sound.as_bytes());
    assert!(refused.contains("later version"), "{refused}");
    for (first, len) in [(16, 0), (MAX_COUNTER, 1), (16, u64::MAX)] {
        let refused = receive_raw(12, origin(first, len).as_bytes());
        assert!(refused.contains("made as"), "{refused}");
    }
    let after = |records: &[Record<'_>]| {
        let begin = RawBegin::default();
        let mut writer = StreamWriter::new(Vec::new(), begin, &[sound]).unwrap();
        for record in records {
            writer.put(record).unwrap();
        }
        MemoryTree::received(&writer.finish().unwrap(), &MemoryTree::default())
    };
    assert!(after(&[Record::Origin(sound), file(20), link(ROOT_INO, 20, b"a")]).is_ok());
    let late = after(&[file(20), Record::Origin(sound), link(ROOT_INO, 20, b"a")]);
    assert!(matches!(late, Err(Error::Stream(_))), "{late:?}");
}

/// The way up is bounded, so a chain of directories cannot make each of its links more expensive.
#[test]
fn directories_are_not_deeper_than_the_limit() {
    let chain = |levels: u64| {
        let inodes = 20..20 + levels;
        let mut records: Vec<Record<'_>> = inodes.clone().map(dir).collect();
        let above = |ino| if ino == 20 { ROOT_INO } else { ino - 1 };
        records.extend(inodes.map(|ino| link(above(ino), ino, b"d")));
        receive(&records)
    };
    // The target in memory searches all names for each step, so it starts at the limit.
    assert!(chain(100).is_ok());
    let mut base = MemoryTree::default();
    let levels = MOST_LEVELS as u64;
    for ino in 20..20 + levels {
        let above = if ino == 20 { ROOT_INO } else { ino - 1 };
        base.nodes.insert(
            ino,
            super::target::Node {
                raw: inode(ino, S_IFDIR | 0o755, 0),
                ..Default::default()
            },
        );
        base.names.insert((above, b"d".to_vec()), ino);
    }
    let put = |at: u64| {
        let mut writer = StreamWriter::new(Vec::new(), RawBegin::default(), &[]).unwrap();
        writer.put(&dir(1 << 20)).unwrap();
        writer.put(&link(at, 1 << 20, b"new")).unwrap();
        MemoryTree::received(&writer.finish().unwrap(), &base)
    };
    assert!(put(20 + levels - 2).is_ok());
    assert!(matches!(put(20 + levels - 1), Err(Error::Stream(_))));
}
