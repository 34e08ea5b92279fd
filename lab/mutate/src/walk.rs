//! Reads everything that a volume shows.
//!
//! The amount is limited whatever the volume contains: a directory is listed once, holes are
//! skipped, and only a part of a large file is read.

use std::collections::BTreeSet;

use cairnfs::fs::FileSystem;
use cairnfs::{Error, Result};
use cairnfs_disk::format::checksum::hash64;
use cairnfs_disk::types::{Attr, FileKind, SeekTo};

/// Bytes per read.
const CHUNK: usize = 64 << 10;
/// Maximum number of bytes read of a file.
const MOST_BYTES: u64 = 4 << 20;
/// Maximum number of entries read in total.
const MOST_ENTRIES: usize = 20_000;

/// The result of a walk.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Sorted lines, one per path: the path, and a hash of everything at it.
    pub(crate) lines: Vec<(String, u64)>,
    /// Failed reads: what was read, and the error.
    pub(crate) errors: Vec<(String, Error)>,
}

/// Reads the files' tree.
pub(crate) fn walk(fs: &FileSystem) -> Seen {
    let mut seen = Seen::default();
    let mut listed = BTreeSet::new();
    let mut todo = vec![(String::new(), 1)];
    while let Some((path, ino)) = todo.pop() {
        if seen.lines.len() + seen.errors.len() > MOST_ENTRIES {
            break;
        }
        let attr = match fs.getattr(ino) {
            Ok(attr) => attr,
            Err(e) => {
                seen.errors.push((path, e));
                continue;
            }
        };
        let mut bytes = Vec::new();
        describe(&attr, &mut bytes);
        if let Err(e) =
            attributes(fs, ino, &mut bytes).and_then(|()| contents(fs, &attr, &mut bytes))
        {
            seen.errors.push((path.clone(), e));
        }
        if attr.kind == FileKind::Directory && listed.insert(ino) {
            let room = MOST_ENTRIES.saturating_sub(todo.len());
            if let Err(e) = list(fs, &path, ino, room, &mut todo) {
                seen.errors.push((path.clone(), e));
            }
        }
        seen.lines.push((path, hash64(&bytes)));
    }
    seen.lines.sort();
    seen
}

/// Adds the attributes of an inode. The block count is left out, because unwritten data has no
/// blocks yet.
fn describe(attr: &Attr, out: &mut Vec<u8>) {
    let attr = Attr { blocks: 0, ..*attr };
    out.extend_from_slice(format!("{attr:?}").as_bytes());
}

fn attributes(fs: &FileSystem, ino: u64, out: &mut Vec<u8>) -> Result<()> {
    let names = fs.listxattr(ino)?;
    let mut all = Vec::new();
    for name in names.split(|b| *b == 0).filter(|n| !n.is_empty()) {
        all.push([name, b"=", &fs.getxattr(ino, name)?].concat());
    }
    all.sort();
    for one in all {
        out.extend_from_slice(&one);
    }
    Ok(())
}

fn contents(fs: &FileSystem, attr: &Attr, out: &mut Vec<u8>) -> Result<()> {
    match attr.kind {
        FileKind::Symlink => out.extend_from_slice(&fs.readlink(attr.ino)?),
        FileKind::File => {
            let mut at = 0;
            let mut left = MOST_BYTES;
            let mut buf = vec![0; CHUNK];
            while at < attr.size && left > 0 {
                let n = fs.read(attr.ino, at, &mut buf)?;
                if n == 0 {
                    break;
                }
                if buf[..n].iter().any(|b| *b != 0) {
                    out.extend_from_slice(&at.to_le_bytes());
                    out.extend_from_slice(&hash64(&buf[..n]).to_le_bytes());
                }
                left = left.saturating_sub(n as u64);
                at = match fs.seek(attr.ino, at + n as u64, SeekTo::Data) {
                    Ok(next) => next - next % CHUNK as u64,
                    Err(Error::NoSuchOffset) => break,
                    Err(e) => return Err(e),
                }
                .max(at + n as u64);
            }
        }
        _ => {}
    }
    Ok(())
}

fn list(
    fs: &FileSystem,
    path: &str,
    dir: u64,
    room: usize,
    todo: &mut Vec<(String, u64)>,
) -> Result<()> {
    let mut left = room;
    let mut names = Vec::new();
    let result = fs.readdir(dir, 0, &mut |entry| {
        if !entry.is_dots() {
            let name = String::from_utf8_lossy(entry.name).into_owned();
            todo.push((format!("{path}/{name}"), entry.ino));
            names.push((entry.name.to_vec(), entry.ino));
            left = left.saturating_sub(1);
        }
        left > 0
    });
    result?;
    for (name, ino) in names {
        let found = fs.lookup(dir, &name)?;
        fs.forget(found.ino, 1);
        if found.ino != ino {
            return Err(Error::NotFound);
        }
    }
    Ok(())
}
