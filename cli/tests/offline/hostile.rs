//! Archives made to exhaust memory are imported with a memory limit.
//!
//! Contract: copies.failed

use crate::place::Place;

/// Address space of the command in KiB; the archive is larger.
const LIMIT: &str = "3000000";
const PIECES: u64 = 4096;

/// A header of type `flag` with a record of 1 MiB under a unique key.
fn header(flag: u8, n: u64) -> Vec<u8> {
    let body = format!("key{n:08}={}\n", "v".repeat((1 << 20) - 30));
    let record = format!("{} {body}", body.len() + 8);
    let record = format!("{} {body}", record.len());
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::new(flag));
    header.set_size(record.len() as u64);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend(record.as_bytes());
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn refused(flag: u8, says: &str) {
    let p = Place::with_volume();
    let line = format!("ulimit -v {LIMIT}; exec \"$cairnfs\" import - v.img");
    let out = p.shell(&line, |stdin| {
        let _ = (0..PIECES).try_for_each(|n| stdin.write_all(&header(flag, n)));
    });
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(text.contains(says), "{text}");
    p.ok(&["check", "v.img"]);
}

#[test]
fn endless_extended_headers_are_refused() {
    refused(b'x', "16 MiB");
}

#[test]
fn endless_global_headers_are_refused() {
    refused(b'g', "1 MiB");
}
