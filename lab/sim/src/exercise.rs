//! Uses a recovered volume further: nothing that a crash left may prevent later work.

use cairnfs::Error;
use cairnfs::fs::FileSystem;
use cairnfs_disk::types::{Creds, FileKind, Flags, SetAttr};

use crate::image::BLOCK;
use crate::tree::{Node, ROOT, Tree};

/// Data appended to each file.
const ADDED: [u8; 5000] = [1; 5000];

/// Creates a file in each directory, appends to each file, removes everything, and merges.
///
/// # Errors
/// A required call fails, a file lost data, or entries are left after all were removed.
pub fn exercise(fs: &FileSystem, tree: &Tree) -> Result<(), String> {
    let failed = |what: &'static str| move |e: Error| format!("{what} after recovery: {e}");
    let mut inodes: Vec<_> = tree.nodes.iter().collect();
    inodes.sort_by_key(|(ino, _)| **ino);
    for (ino, node) in &inodes {
        if node.facts.flags != Flags::NONE {
            clear_flags(fs, **ino).map_err(failed("clearing flags"))?;
        }
    }
    let mut grown = Vec::new();
    for (ino, node) in &inodes {
        match add(fs, **ino, node.facts.kind) {
            Ok(()) => grown.push((**ino, *node)),
            Err(Error::NoSpace) => {}
            Err(e) => return Err(failed("adding")(e)),
        }
    }
    fs.sync().map_err(failed("sync"))?;
    for (ino, node) in grown {
        if node.facts.kind == FileKind::File && !holds(fs, ino, node).map_err(failed("reading"))? {
            return Err(format!(
                "{} does not hold what it held before others were written to",
                tree.path(ino)
            ));
        }
    }
    remove_all(fs, ROOT).map_err(failed("removing"))?;
    fs.merge().map_err(failed("merging"))?;
    let root = fs.getattr(ROOT).map_err(failed("looking at the root"))?;
    match root.size {
        0 => Ok(()),
        n => Err(format!("{n} entries are left after all were removed")),
    }
}

/// Whether a file holds its earlier contents followed by the appended data.
fn holds(fs: &FileSystem, ino: u64, before: &Node) -> Result<bool, Error> {
    for (block, bytes) in &before.blocks {
        let mut found = vec![0; bytes.len()];
        let n = fs.read(ino, block * BLOCK as u64, &mut found)?;
        if n != bytes.len() || found != *bytes {
            return Ok(false);
        }
    }
    let mut found = [0; ADDED.len()];
    let n = fs.read(ino, before.size, &mut found)?;
    Ok(n == ADDED.len() && found == ADDED)
}

/// Clears append-only and immutable, which would prevent the other calls.
fn clear_flags(fs: &FileSystem, ino: u64) -> Result<(), Error> {
    let set = SetAttr {
        flags: Some(Flags::NONE),
        ..SetAttr::default()
    };
    fs.setattr(ino, &set).map(|_| ())
}

/// Creates a file in a directory, or appends to a file.
fn add(fs: &FileSystem, ino: u64, kind: FileKind) -> Result<(), Error> {
    match kind {
        FileKind::Directory => {
            let made = fs.mknod(ino, b"\xffnew", 0o100_600, 0, Creds::default())?;
            fs.forget(made.ino, 1);
            fs.write(made.ino, 0, b"new", false).map(|_| ())
        }
        FileKind::File => fs.append(ino, &ADDED, false).map(|_| ()),
        _ => Ok(()),
    }
}

fn remove_all(fs: &FileSystem, dir: u64) -> Result<(), Error> {
    let mut entries = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            entries.push((entry.name.to_vec(), entry.ino, entry.kind));
        }
        true
    })?;
    for (name, ino, kind) in entries {
        if kind == FileKind::Directory {
            remove_all(fs, ino)?;
            fs.rmdir(dir, &name)?;
        } else {
            fs.unlink(dir, &name)?;
        }
    }
    Ok(())
}
