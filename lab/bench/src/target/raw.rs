//! A bare block device without a file system: the limit that the device itself sets.
//!
//! Each directory of a workload is a part of the device, and every file in it is that same part.
//! Writes bypass the page cache (`O_DIRECT`); a sync flushes the device's write cache.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use cairnfs_disk::device::AlignedBuf;
use rustix::fs::OFlags;

use super::{Dir, Open, OpenFile, Target, at};
use crate::Result;

/// Write granularity in bytes, sufficient for direct I/O.
pub const BLOCK: u64 = 4096;

/// A block device, divided into parts of the same size.
pub struct Raw {
    device: File,
    name: String,
    /// Bytes of a part.
    part: u64,
    parts: u64,
    /// The part of each directory, by path.
    taken: Mutex<HashMap<String, u64>>,
}

impl Raw {
    /// Opens a device and divides it into `parts` parts.
    pub fn open(path: &Path, parts: usize) -> Result<Self> {
        let direct = OFlags::DIRECT.bits().cast_signed();
        let device = File::options().write(true).custom_flags(direct).open(path);
        let mut device = device.map_err(|e| at(path.display(), e))?;
        let size = device.seek(SeekFrom::End(0))?;
        let parts = parts.max(1) as u64;
        Ok(Self {
            device,
            name: path.display().to_string(),
            part: size / parts / BLOCK * BLOCK,
            parts,
            taken: Mutex::default(),
        })
    }
}

impl Target for Raw {
    fn name(&self) -> &str {
        &self.name
    }

    fn interface(&self) -> &'static str {
        "system calls"
    }

    fn make_dir(&self, _path: &str) -> Result<()> {
        Ok(())
    }

    fn remove_tree(&self, _path: &str) -> Result<()> {
        Ok(())
    }

    fn dir<'a>(&'a self, path: &str) -> Result<Box<dyn Dir + 'a>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let next = taken.len() as u64;
        let part = *taken.entry(path.to_owned()).or_insert(next);
        if part >= self.parts {
            return Err(NO_FILES.into());
        }
        Ok(Box::new(Part {
            raw: self,
            start: part * self.part,
        }))
    }

    fn sync(&self) -> Result<()> {
        Ok(self.device.sync_data()?)
    }
}

const NO_FILES: &str = "the bare device has one file for each thread, and nothing else";

/// A directory, with its only file.
struct Part<'a> {
    raw: &'a Raw,
    start: u64,
}

impl Dir for Part<'_> {
    fn open<'a>(&'a self, _name: &str, _how: Open) -> Result<Box<dyn OpenFile + 'a>> {
        Ok(Box::new(Blocks {
            part: self,
            buffer: RefCell::default(),
            end: Cell::new(0),
        }))
    }

    fn walk(&self) -> Result<(u64, u64)> {
        Err(NO_FILES.into())
    }

    fn stat(&self, _name: &str) -> Result<u64> {
        Err(NO_FILES.into())
    }

    fn read(&self, _name: &str, _into: &mut [u8]) -> Result<usize> {
        Err(NO_FILES.into())
    }

    fn rename(&self, _name: &str, _to: &dyn Dir, _to_name: &str) -> Result<()> {
        Err(NO_FILES.into())
    }

    fn remove(&self, _name: &str) -> Result<()> {
        Err(NO_FILES.into())
    }

    fn set_xattr(&self, _name: &str, _attribute: &str, _value: &[u8]) -> Result<()> {
        Err(NO_FILES.into())
    }

    fn get_xattr(&self, _name: &str, _attribute: &str, _value: &mut [u8]) -> Result<Option<usize>> {
        Err(NO_FILES.into())
    }

    fn sync(&self) -> Result<()> {
        self.raw.sync()
    }

    fn path(&self) -> &Path {
        Path::new("")
    }
}

/// The file of a part.
struct Blocks<'a> {
    part: &'a Part<'a>,
    /// Buffer aligned for direct I/O.
    buffer: RefCell<AlignedBuf>,
    /// Offset of the next append in the part, in bytes.
    end: Cell<u64>,
}

impl OpenFile for Blocks<'_> {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let length = bytes.len() as u64;
        if !length.is_multiple_of(BLOCK) || !offset.is_multiple_of(BLOCK) {
            return Err("the bare device takes whole blocks of 4 KiB".into());
        }
        if offset + length > self.part.raw.part {
            return Err("the device is too small for what all threads write".into());
        }
        let mut buffer = self.buffer.borrow_mut();
        buffer.ensure(bytes.len());
        let Some(place) = buffer.get_mut(..bytes.len()) else {
            return Ok(());
        };
        place.copy_from_slice(bytes);
        let device = &self.part.raw.device;
        Ok(device.write_all_at(place, self.part.start + offset)?)
    }

    fn append(&self, bytes: &[u8]) -> Result<()> {
        self.write_at(bytes, self.end.get())?;
        self.end.set(self.end.get() + bytes.len() as u64);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(self.part.raw.device.sync_data()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Direct I/O needs a file system that supports it, which that of temporary files may not.
    fn device(size: u64) -> Option<tempfile::NamedTempFile> {
        let file = tempfile::NamedTempFile::new_in(".").ok()?;
        file.as_file().set_len(size).ok()?;
        Raw::open(file.path(), 1).ok().map(|_| file)
    }

    #[test]
    fn directories_map_to_parts_of_device() {
        let Some(file) = device(3 * 8192) else {
            return;
        };
        let raw = Raw::open(file.path(), 3).unwrap();
        for (name, byte) in [("a", 1), ("b", 2), ("a", 3)] {
            let dir = raw.dir(name).unwrap();
            let open = dir.open("file", Open::Append).unwrap();
            open.append(&[byte; 4096]).unwrap();
            open.append(&[byte + 10; 4096]).unwrap();
            assert!(open.append(&[0; 4096]).is_err(), "beyond its part");
            open.sync().unwrap();
        }
        let found = std::fs::read(file.path()).unwrap();
        let blocks: Vec<u8> = found.iter().step_by(4096).copied().collect();
        assert_eq!(blocks, [3, 13, 2, 12, 0, 0]);
    }

    #[test]
    fn unaligned_writes_and_file_operations_are_refused() {
        let Some(file) = device(1 << 20) else {
            return;
        };
        let raw = Raw::open(file.path(), 1).unwrap();
        let dir = raw.dir("a").unwrap();
        let open = dir.open("file", Open::New).unwrap();
        assert!(open.write_at(&[0; 100], 0).is_err());
        assert!(dir.walk().is_err() && dir.remove("file").is_err());
        assert!(raw.dir("b").is_err());
    }
}
