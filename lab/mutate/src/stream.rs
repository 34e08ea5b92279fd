//! Streams from arbitrary bytes, received by a tree in memory, and what must hold of it.
//!
//! Uses the library's codec and its receiver. As they are, random bytes end at the first checksum;
//! [`sealed`] makes frames of them whose checksums are valid.

use std::collections::{BTreeMap, BTreeSet};

use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::frames::Chain;
use cairnfs_disk::format::stream::{RawBegin, Record, STREAM_VERSION_ORIGINS};
use cairnfs_disk::format::{MAX_NAME, ROOT_INO};
use cairnfs_disk::types::FileKind;
use cairnfs_history::stream::{Target, receive};

/// A stream with a payload for each part of the input: kind (1 byte), length (1), payload. Kinds
/// from 128 on have as payload an inode that is mostly valid, so that deep checks are reached:
/// number (1) and type (1).
pub fn sealed(input: &[u8]) -> Vec<u8> {
    let (preamble, mut chain) = Chain::begin(STREAM_VERSION_ORIGINS);
    let mut bytes = preamble.to_vec();
    let begin = Record::Begin(RawBegin::default());
    chain.frame(&begin, &mut bytes).unwrap();
    let mut rest = input;
    while let [kind, len, behind @ ..] = rest {
        let (payload, behind) = behind.split_at(usize::from(*len).min(behind.len()));
        match kind {
            0..128 => chain.seal(kind % 13, payload, &mut bytes),
            _ => chain.seal(2 + kind % 2, &inode(payload), &mut bytes),
        }
        rest = behind;
    }
    let end = chain.end();
    chain.frame(&end, &mut bytes).unwrap();
    bytes
}

/// The bytes of an inode.
fn inode(input: &[u8]) -> Vec<u8> {
    let byte = |i: usize| input.get(i).copied().unwrap_or(0);
    let types = [0o100_644_u32, 0o040_755, 0o120_777, 0o010_644, 0o020_600];
    let mode = types[usize::from(byte(1)) % types.len()];
    let mut out = u64::from(byte(0)).to_le_bytes().to_vec();
    out.extend_from_slice(&mode.to_le_bytes());
    out.resize(32, 0);
    out.extend_from_slice(&u64::from(byte(2)).to_le_bytes());
    out.resize(88, 0);
    out
}

/// A tree in memory, without attributes and contents.
#[derive(Debug, Default)]
struct Tree {
    inodes: BTreeMap<u64, (FileKind, u64)>,
    names: BTreeMap<(u64, Vec<u8>), u64>,
}

impl Target for Tree {
    fn kind(&self, ino: u64) -> Result<Option<FileKind>> {
        Ok(self.inodes.get(&ino).map(|(kind, _)| *kind))
    }

    fn size(&self, ino: u64) -> Result<u64> {
        Ok(self.inodes.get(&ino).map_or(0, |(_, size)| *size))
    }

    fn names(&self, ino: u64) -> Result<u64> {
        Ok(self.names.values().filter(|i| **i == ino).count() as u64)
    }

    fn parent(&self, dir: u64) -> Result<Option<u64>> {
        let mut names = self.names.iter().filter(|(_, ino)| **ino == dir);
        Ok(names.next().map(|((above, _), _)| *above))
    }

    fn holder(&self, dir: u64, name: &[u8]) -> Result<Option<u64>> {
        Ok(self.names.get(&(dir, name.to_vec())).copied())
    }

    fn is_empty(&self, dir: u64) -> Result<bool> {
        Ok(!self.names.keys().any(|(d, _)| *d == dir))
    }

    fn begin(&mut self, _: &RawBegin) -> Result<()> {
        self.inodes.insert(ROOT_INO, (FileKind::Directory, 0));
        Ok(())
    }

    fn apply(&mut self, record: &Record<'_>) -> Result<()> {
        match *record {
            Record::Create(raw) | Record::Change(raw) => {
                let kind = FileKind::from_mode(raw.mode.get()).ok_or(Error::NotFound)?;
                self.inodes.insert(raw.ino.get(), (kind, raw.size.get()));
            }
            Record::Unlink { dir, name, .. } => {
                self.names.remove(&(dir, name.to_vec()));
            }
            Record::Link { dir, ino, name } => {
                self.names.insert((dir, name.to_vec()), ino);
            }
            Record::Remove { ino } => {
                self.inodes.remove(&ino);
            }
            _ => {}
        }
        Ok(())
    }
}

impl Tree {
    /// Why this is no tree, if it is none.
    fn broken(&self) -> Option<String> {
        let mut reached = BTreeSet::from([ROOT_INO]);
        let mut dirs = vec![ROOT_INO];
        while let Some(dir) = dirs.pop() {
            let from = (dir, Vec::new())..(dir + 1, Vec::new());
            for ((_, name), ino) in self.names.range(from) {
                let fits =
                    !name.is_empty() && name.len() <= MAX_NAME && name != b"." && name != b"..";
                if !fits || name.iter().any(|b| matches!(b, 0 | b'/')) {
                    return Some(format!("name {name:?}"));
                }
                match self.inodes.get(ino) {
                    None => return Some(format!("inode {ino} is missing")),
                    Some((FileKind::Directory, _)) if !reached.insert(*ino) => {
                        return Some(format!("directory {ino} has two names"));
                    }
                    Some((FileKind::Directory, _)) => dirs.push(*ino),
                    Some(_) => drop(reached.insert(*ino)),
                }
            }
        }
        let lost = self.inodes.keys().find(|ino| !reached.contains(ino));
        lost.map(|ino| format!("inode {ino} has no way to the root"))
    }
}

/// Receives a stream. `Ok` tells whether it was accepted.
///
/// # Errors
/// An accepted stream made no sound tree, or it was refused with another error than that for
/// streams.
pub fn survives(bytes: &[u8]) -> Result<bool, String> {
    let mut tree = Tree::default();
    match receive(bytes, &mut tree) {
        Ok(_) => tree.broken().map_or(Ok(true), Err),
        Err(Error::Stream(_)) => Ok(false),
        Err(other) => Err(other.to_string()),
    }
}
