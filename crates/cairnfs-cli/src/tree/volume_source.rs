//! A volume as a source.

use cairnfs::Error;
use cairnfs::types::{FileKind, SeekTo};

use super::{Meta, Segment, Source, Xattr};
use crate::failure::{Explain, Failure};
use crate::volume::{Node, Volume};

/// An open volume to read from.
pub struct VolumeSource {
    volume: Volume,
    id: u64,
}

/// Something in the volume, with the path it was found by.
pub struct VolumeNode {
    node: Node,
    path: Vec<u8>,
}

impl VolumeNode {
    /// `node`, found at `path` from the root.
    pub fn new(node: Node, path: Vec<u8>) -> Self {
        Self { node, path }
    }
}

impl VolumeSource {
    /// Reads `volume`, told apart from other sources of one copy by `id`.
    pub fn new(volume: Volume, id: u64) -> Self {
        Self { volume, id }
    }

    fn seek(&self, node: &VolumeNode, from: u64, to: SeekTo) -> Result<Option<u64>, Failure> {
        match self.volume.fs().seek(node.node.ino(), from, to) {
            Ok(at) => Ok(Some(at)),
            Err(Error::NoSuchOffset) => Ok(None),
            Err(e) => Err(e).explain(self.volume.shown(&node.path)),
        }
    }
}

impl Source for VolumeSource {
    type Node = VolumeNode;

    const TREE: bool = true;

    fn meta(&self, node: &VolumeNode) -> Result<Meta, Failure> {
        let a = &node.node.attr;
        Ok(Meta {
            kind: a.kind,
            mode: a.mode & 0o7777,
            uid: a.uid,
            gid: a.gid,
            rdev: a.rdev,
            size: if a.kind == FileKind::File { a.size } else { 0 },
            nlink: a.nlink.into(),
            id: (self.id, a.ino),
            atime: a.atime,
            mtime: a.mtime,
            xattrs: Vec::new(),
        })
    }

    fn xattrs(&self, node: &VolumeNode) -> Result<Vec<Xattr>, Failure> {
        let fs = self.volume.fs();
        let ino = node.node.ino();
        let what = || format!("{}: extended attributes", self.volume.shown(&node.path));
        let names = fs.listxattr(ino).explain(what())?;
        let names = names.split(|b| *b == 0).filter(|name| !name.is_empty());
        names
            .map(|name| {
                let value = fs.getxattr(ino, name).explain(what())?;
                Ok((name.to_vec(), value))
            })
            .collect()
    }

    fn names(&self, node: &VolumeNode) -> Result<Vec<Vec<u8>>, Failure> {
        self.volume
            .names(node.node.ino())
            .explain(self.volume.shown(&node.path))
    }

    fn child(&self, node: &VolumeNode, name: &[u8]) -> Result<VolumeNode, Failure> {
        let path = super::join(&node.path, name);
        match self.volume.lookup(&node.node, name) {
            Ok(node) => Ok(VolumeNode { node, path }),
            Err(e) => Err(e).explain(self.volume.shown(&path)),
        }
    }

    fn target(&self, node: &VolumeNode) -> Result<Vec<u8>, Failure> {
        self.volume
            .fs()
            .readlink(node.node.ino())
            .explain(self.volume.shown(&node.path))
    }

    fn segments(&self, node: &VolumeNode, size: u64) -> Result<Vec<Segment>, Failure> {
        let mut found = Vec::new();
        let mut at = 0;
        while at < size {
            let Some(start) = self.seek(node, at, SeekTo::Data)? else {
                break;
            };
            let end = self.seek(node, start, SeekTo::Hole)?.unwrap_or(size);
            let end = end.min(size);
            if start < at || end <= start {
                break;
            }
            found.push(Segment { start, end });
            at = end;
        }
        Ok(found)
    }

    fn read(&self, node: &VolumeNode, offset: u64, buf: &mut [u8]) -> Result<usize, Failure> {
        self.volume
            .fs()
            .read(node.node.ino(), offset, buf)
            .explain(self.volume.shown(&node.path))
    }
}
