//! Everything that a program can see of a volume, read through the public calls.
//!
//! What two calls can report is read with both, and the results must agree: listed names are looked
//! up, the size of a directory is the number of its entries, links are counted.

use std::collections::{BTreeMap, HashMap};

use cairnfs::fs::FileSystem;
use cairnfs::{Error, Result};
use cairnfs_disk::acl::{ACCESS, Acl};
use cairnfs_disk::types::{Attr, FileKind, Flags, SeekTo, Time};

use crate::image::BLOCK;

/// The inode number of the root directory.
pub const ROOT: u64 = 1;
/// In a file larger than this number of bytes, holes are skipped with `seek` instead of being read.
const WHOLE: u64 = 4 << 20;

/// The attributes that every kind of inode has, except times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Type of the inode.
    pub kind: FileKind,
    /// Permission bits, without the type bits.
    pub mode: u32,
    /// Owning user.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Device number.
    pub rdev: u64,
    /// Target of a symbolic link; empty for other kinds.
    pub target: Vec<u8>,
    /// Birth time.
    pub born: Time,
    /// Inode flags.
    pub flags: Flags,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Facts {
    /// The attributes in `attr`, without extended attributes.
    pub fn of(attr: &Attr, target: &[u8]) -> Self {
        Self {
            kind: attr.kind,
            mode: attr.mode & 0o7777,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            target: target.to_vec(),
            born: attr.btime,
            flags: attr.flags,
            xattrs: BTreeMap::new(),
        }
    }
}

/// The times of an inode that calls change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// Last access.
    pub accessed: Time,
    /// Last change of the contents.
    pub modified: Time,
    /// Last change of the contents or attributes.
    pub changed: Time,
}

impl Times {
    /// The times in `attr`.
    pub fn of(attr: &Attr) -> Self {
        Self {
            accessed: attr.atime,
            modified: attr.mtime,
            changed: attr.ctime,
        }
    }
}

/// An inode as the calls report it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Attributes except times.
    pub facts: Facts,
    /// Times.
    pub times: Times,
    /// Link count that the inode reports.
    pub nlink: u32,
    /// Size of a file in bytes; 0 for other kinds.
    pub size: u64,
    /// Blocks of a file that are not all zeros, by block number; the last one ends at the end of
    /// the file.
    pub blocks: BTreeMap<u64, Vec<u8>>,
    /// Entries of a directory: name and inode number.
    pub entries: BTreeMap<Vec<u8>, u64>,
}

/// All reachable inodes, by inode number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    /// The inodes.
    pub nodes: HashMap<u64, Node>,
}

/// Why a tree could not be read.
#[derive(Debug)]
pub enum Unreadable {
    /// A call failed; the text names the call.
    Failed(String, Error),
    /// Two calls contradict each other.
    Contradiction(String),
}

impl std::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unreadable::Failed(what, error) => write!(f, "{what}: {error}"),
            Unreadable::Contradiction(what) => f.write_str(what),
        }
    }
}

impl Tree {
    /// Reads all inodes from the root down.
    ///
    /// # Errors
    /// A call fails, or contradicts another.
    pub fn read(fs: &FileSystem) -> Result<Tree, Unreadable> {
        let mut tree = Tree::default();
        let mut names: HashMap<u64, u32> = HashMap::new();
        let mut todo = vec![ROOT];
        while let Some(ino) = todo.pop() {
            if tree.nodes.contains_key(&ino) {
                continue;
            }
            let node = read_node(fs, ino).map_err(|e| match e {
                Unreadable::Failed(what, e) => {
                    Unreadable::Failed(format!("{what} of {}", tree.path(ino)), e)
                }
                other => other,
            })?;
            for (name, child) in &node.entries {
                look_up(fs, ino, name, *child)?;
                *names.entry(*child).or_default() += 1;
                todo.push(*child);
            }
            tree.nodes.insert(ino, node);
        }
        tree.check_links(&names)?;
        Ok(tree)
    }

    fn check_links(&self, names: &HashMap<u64, u32>) -> Result<(), Unreadable> {
        for (ino, node) in &self.nodes {
            let links = match node.facts.kind {
                FileKind::Directory => {
                    let subdirs = node.entries.values().filter(|c| {
                        let child = self.nodes.get(c);
                        child.is_some_and(|c| c.facts.kind == FileKind::Directory)
                    });
                    2 + subdirs.count() as u32
                }
                _ => names.get(ino).copied().unwrap_or(0),
            };
            if node.nlink != links {
                return Err(Unreadable::Contradiction(format!(
                    "{} has {links} links and says {}",
                    self.path(*ino),
                    node.nlink
                )));
            }
        }
        Ok(())
    }

    /// Whether the trees are equal except for times: a failed call of several steps may have set
    /// some.
    pub fn is_but_for_times(&self, other: &Tree) -> bool {
        let without_times = |tree: &Tree| {
            let mut tree = tree.clone();
            let nodes = tree.nodes.values_mut();
            nodes.for_each(|node| node.times = Times::default());
            tree
        };
        without_times(self) == without_times(other)
    }

    /// A path of an inode, for messages.
    pub fn path(&self, ino: u64) -> String {
        let mut parts = Vec::new();
        let mut at = ino;
        while at != ROOT && parts.len() < 64 {
            let found = self.nodes.iter().find_map(|(dir, node)| {
                let name = node.entries.iter().find(|(_, child)| **child == at)?.0;
                Some((*dir, String::from_utf8_lossy(name).into_owned()))
            });
            let Some((dir, name)) = found else {
                return format!("inode {ino}");
            };
            parts.push(name);
            at = dir;
        }
        parts.reverse();
        format!("/{}", parts.join("/"))
    }
}

fn look_up(fs: &FileSystem, dir: u64, name: &[u8], listed: u64) -> Result<(), Unreadable> {
    let shown = String::from_utf8_lossy(name);
    let found = fs
        .lookup(dir, name)
        .map_err(|e| Unreadable::Failed(format!("look-up of the listed name {shown}"), e))?
        .ino;
    fs.forget(found, 1);
    if found != listed {
        return Err(Unreadable::Contradiction(format!(
            "{shown} is inode {listed} in the listing and inode {found} when looked up"
        )));
    }
    Ok(())
}

fn read_node(fs: &FileSystem, ino: u64) -> Result<Node, Unreadable> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |e| Unreadable::Failed(what, e)
    };
    let attr = fs.getattr(ino).map_err(failed("attributes"))?;
    let target = match attr.kind {
        FileKind::Symlink => fs.readlink(ino).map_err(failed("target"))?,
        _ => Vec::new(),
    };
    let mut facts = Facts::of(&attr, &target);
    facts.xattrs = read_xattrs(fs, ino).map_err(failed("extended attributes"))?;
    if let Some(list) = facts.xattrs.get(ACCESS).and_then(|list| Acl::parse(list))
        && list.permissions() != attr.mode & 0o777
    {
        return Err(Unreadable::Contradiction(format!(
            "inode {ino} has mode {:o}, and an access list of {:o}",
            attr.mode,
            list.permissions()
        )));
    }
    let mut node = Node {
        facts,
        times: Times::of(&attr),
        nlink: attr.nlink,
        size: 0,
        blocks: BTreeMap::new(),
        entries: BTreeMap::new(),
    };
    match attr.kind {
        FileKind::File => {
            node.size = attr.size;
            node.blocks = read_blocks(fs, ino, attr.size).map_err(failed("contents"))?;
        }
        FileKind::Directory => {
            node.entries = read_entries(fs, ino)?;
            if attr.size != node.entries.len() as u64 {
                return Err(Unreadable::Contradiction(format!(
                    "directory {ino} has {} entries and says {}",
                    node.entries.len(),
                    attr.size
                )));
            }
        }
        _ => {}
    }
    Ok(node)
}

fn read_xattrs(fs: &FileSystem, ino: u64) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let names = fs.listxattr(ino)?;
    names
        .split(|b| *b == 0)
        .filter(|name| !name.is_empty())
        .map(|name| Ok((name.to_vec(), fs.getxattr(ino, name)?)))
        .collect()
}

fn read_entries(fs: &FileSystem, ino: u64) -> Result<BTreeMap<Vec<u8>, u64>, Unreadable> {
    let mut entries = BTreeMap::new();
    let mut twice = None;
    fs.readdir(ino, 0, &mut |entry| {
        if !entry.is_dots() && entries.insert(entry.name.to_vec(), entry.ino).is_some() {
            twice = Some(String::from_utf8_lossy(entry.name).into_owned());
        }
        true
    })
    .map_err(|e| Unreadable::Failed("listing".into(), e))?;
    match twice {
        Some(name) => Err(Unreadable::Contradiction(format!(
            "directory {ino} has two entries named {name}"
        ))),
        None => Ok(entries),
    }
}

fn read_blocks(fs: &FileSystem, ino: u64, size: u64) -> Result<BTreeMap<u64, Vec<u8>>> {
    let mut blocks = BTreeMap::new();
    let mut at = 0;
    let mut bytes = vec![0; BLOCK];
    while at < size {
        if size > WHOLE {
            match fs.seek(ino, at, SeekTo::Data) {
                Ok(data) => at = data - data % BLOCK as u64,
                Err(Error::NoSuchOffset) => break,
                Err(e) => return Err(e),
            }
        }
        let want = (size - at).min(BLOCK as u64) as usize;
        let part = bytes.get_mut(..want).unwrap_or_default();
        let n = fs.read(ino, at, part)?;
        if n < want {
            return Err(Error::UnexpectedEnd);
        }
        if part.iter().any(|b| *b != 0) {
            blocks.insert(at / BLOCK as u64, part.to_vec());
        }
        at += BLOCK as u64;
    }
    Ok(blocks)
}
