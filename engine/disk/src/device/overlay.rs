//! A copy-on-write overlay over a read-only device; writes go to a temporary file.
//!
//! Uses the devices below it and an unlinked file in the system's directory for temporary
//! files. The device below is never written, flushed or discarded. The first write creates the
//! file, and the kernel frees it when the overlay is dropped or the process ends. A written block
//! is read from the file, any other block from the device below. Blocks beyond the end of the
//! device below can be written, because that device may have been truncated.
//!
//! The map of written blocks takes about 16 bytes of memory per block, which is 1/256 of the
//! written data. Log recovery is the only writer: it writes the index leaves and parents of the
//! keys in the log, the bitmaps and the superblocks. So the size of the log bounds the number of
//! blocks, and the volume's size bounds it in any case.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use super::{Device, HostFile, HostRoom, SECTOR, check_range};
use crate::error::{Error, Result};
use crate::sync::RwLock;

/// Bytes that 32-bit block numbers can address: the maximum volume size.
const MAX_SIZE: u64 = (u32::MAX as u64 + 1) * SECTOR;

/// A read-only device with an overlay of written blocks.
pub struct Overlay {
    below: Arc<dyn Device>,
    dir: PathBuf,
    written: OnceLock<Written>,
}

/// The temporary file, and the map from block numbers to positions in it.
struct Written {
    file: File,
    /// From the block number on the device to the block's index in the file.
    places: RwLock<BTreeMap<u32, u32>>,
}

/// Consecutive blocks, and their first block index in the file; `None` if the device below has
/// them.
#[derive(Debug, PartialEq)]
struct Part {
    place: Option<u32>,
    blocks: u64,
}

impl Part {
    fn bytes(&self) -> usize {
        (self.blocks * SECTOR) as usize
    }
}

impl Overlay {
    /// An empty overlay. The temporary file will be created in [`std::env::temp_dir`].
    pub fn new(below: Arc<dyn Device>) -> Self {
        Self::in_dir(below, std::env::temp_dir())
    }

    fn in_dir(below: Arc<dyn Device>, dir: PathBuf) -> Self {
        Self {
            below,
            dir,
            written: OnceLock::new(),
        }
    }

    /// The temporary file, created if necessary.
    fn written(&self) -> Result<&Written> {
        if let Some(written) = self.written.get() {
            return Ok(written);
        }
        let file = tempfile::tempfile_in(&self.dir).map_err(|e| self.error(e))?;
        tracing::info!(
            "the log needs more memory than the budget: it is recovered into a temporary file in {}",
            self.dir.display()
        );
        Ok(self.written.get_or_init(|| Written {
            file,
            places: RwLock::default(),
        }))
    }

    fn error(&self, source: io::Error) -> Error {
        Error::Temporary {
            dir: self.dir.display().to_string(),
            source: Arc::new(source),
        }
    }
}

/// The block numbers of a byte range.
fn blocks_of(op: &'static str, offset: u64, len: usize) -> Result<Range<u64>> {
    check_range(op, offset, len as u64, MAX_SIZE)?;
    let first = offset / SECTOR;
    Ok(first..first + len as u64 / SECTOR)
}

/// Appends a part, or extends the last part if this one continues it.
fn append(parts: &mut Vec<Part>, part: Part) {
    let continued = |last: &Part| match (last.place, part.place) {
        (Some(last_place), Some(place)) => u64::from(last_place) + last.blocks == u64::from(place),
        (None, None) => true,
        _ => false,
    };
    match parts.last_mut() {
        Some(last) if continued(last) => last.blocks += part.blocks,
        _ => parts.push(part),
    }
}

impl Written {
    fn parts(&self, blocks: Range<u64>) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut next = blocks.start;
        let below = |from: u64, to: u64| Part {
            place: None,
            blocks: to - from,
        };
        // `blocks` is below `MAX_SIZE`, so it fits.
        let first = u32::try_from(blocks.start).unwrap_or(u32::MAX);
        let places = self.places.read();
        let found = places
            .range(first..)
            .map(|(b, place)| (u64::from(*b), *place));
        for (block, place) in found.take_while(|(block, _)| *block < blocks.end) {
            if block > next {
                append(&mut parts, below(next, block));
            }
            let place = Some(place);
            append(&mut parts, Part { place, blocks: 1 });
            next = block + 1;
        }
        if next < blocks.end {
            append(&mut parts, below(next, blocks.end));
        }
        parts
    }

    /// Writes blocks to their existing positions, or to new ones at the end of the file. A new
    /// position enters the map only after the write, so readers never find unwritten bytes.
    fn write(&self, blocks: Range<u64>, mut buf: &[u8]) -> io::Result<()> {
        let full = || io::Error::from(io::ErrorKind::FileTooLarge);
        let mut places = self.places.write();
        let mut end = u32::try_from(places.len()).map_err(|_| full())?;
        let mut parts = Vec::new();
        let mut new = Vec::new();
        for block in blocks {
            let block = u32::try_from(block).map_err(|_| full())?;
            let place = match places.get(&block) {
                Some(place) => *place,
                None => {
                    new.push((block, end));
                    end = end.checked_add(1).ok_or_else(full)?;
                    end - 1
                }
            };
            let place = Some(place);
            append(&mut parts, Part { place, blocks: 1 });
        }
        for part in parts {
            let (bytes, rest) = buf.split_at_checked(part.bytes()).unwrap_or((buf, &[]));
            let place = part.place.unwrap_or_default();
            self.file.write_all_at(bytes, u64::from(place) * SECTOR)?;
            buf = rest;
        }
        places.extend(new);
        Ok(())
    }
}

impl Overlay {
    /// Reads what was written, and the rest by `below`.
    fn read_by(
        &self,
        offset: u64,
        buf: &mut [u8],
        below: impl Fn(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let Some(written) = self.written.get() else {
            return below(offset, buf);
        };
        let mut at = offset;
        let mut rest = buf;
        for part in written.parts(blocks_of("read", offset, rest.len())?) {
            let len = part.bytes().min(rest.len());
            let (to, tail) = rest.split_at_mut(len);
            match part.place {
                Some(place) => {
                    let from = u64::from(place) * SECTOR;
                    let read = written.file.read_exact_at(to, from);
                    read.map_err(|e| self.error(e))?;
                }
                None => below(at, to)?,
            }
            at += len as u64;
            rest = tail;
        }
        Ok(())
    }
}

impl Device for Overlay {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_by(offset, buf, |at, to| self.below.read(at, to))
    }

    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_by(offset, buf, |at, to| self.below.read_cached(at, to))
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        let blocks = blocks_of("write", offset, buf.len())?;
        let written = self.written()?;
        written.write(blocks, buf).map_err(|e| self.error(e))
    }

    /// Nothing to do: the temporary file need not outlive the process.
    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<()> {
        Ok(())
    }

    fn discards(&self) -> bool {
        false
    }

    fn host_file(&self) -> Option<HostFile> {
        self.below.host_file()
    }

    fn host_room(&self) -> Result<Option<HostRoom>> {
        self.below.host_room()
    }

    fn room(&self) -> Result<Option<u64>> {
        self.below.room()
    }

    fn no_room(&self, missing: u64) -> Error {
        self.below.no_room(missing)
    }

    fn check_length(&self) -> Result<()> {
        self.below.check_length()
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;
    use crate::device::MemoryDevice;

    const BLOCK: usize = SECTOR as usize;
    const BLOCKS: u64 = 64;

    fn filled(byte: u8) -> Arc<MemoryDevice> {
        let device = MemoryDevice::new(BLOCKS * SECTOR);
        device
            .write(0, &vec![byte; BLOCKS as usize * BLOCK])
            .unwrap();
        Arc::new(device)
    }

    fn part(place: Option<u32>, blocks: u64) -> Part {
        Part { place, blocks }
    }

    #[test]
    fn reads_merge_written_blocks_with_device_below() {
        let below = filled(7);
        let dir = tempfile::tempdir().unwrap();
        let overlay = Overlay::in_dir(below.clone(), dir.path().to_owned());
        let mut expected = vec![7; BLOCKS as usize * BLOCK];
        let mut random = 1_u64;
        for byte in 0..200 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let first = (random >> 33) % BLOCKS;
            let blocks = 1 + (random >> 43) % (BLOCKS - first).min(9);
            let (at, len) = (first as usize * BLOCK, blocks as usize * BLOCK);
            expected[at..at + len].fill(byte);
            overlay
                .write(first * SECTOR, &expected[at..at + len])
                .unwrap();
            let mut found = vec![0; (BLOCKS as usize - 2) * BLOCK];
            overlay.read(SECTOR, &mut found).unwrap();
            assert!(found == expected[BLOCK..BLOCK + found.len()]);
        }
        let mut found = vec![0; expected.len()];
        below.read(0, &mut found).unwrap();
        assert!(found.iter().all(|byte| *byte == 7));
        assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none());
    }

    #[test]
    fn rewritten_block_keeps_its_position_and_neighbours_join() {
        let overlay = Overlay::new(filled(0));
        overlay.write(10 * SECTOR, &[1; 4 * BLOCK]).unwrap();
        overlay.write(14 * SECTOR, &[2; 2 * BLOCK]).unwrap();
        overlay.write(11 * SECTOR, &[3; BLOCK]).unwrap();
        overlay.write(8 * SECTOR, &[4; 4 * BLOCK]).unwrap();
        let written = overlay.written().unwrap();
        let parts = [
            part(None, 1),
            part(Some(6), 2),
            part(Some(0), 6),
            part(None, 4),
        ];
        assert_eq!(written.parts(7..20), parts);
        let size = written.file.metadata().unwrap().len();
        assert_eq!(size, 8 * SECTOR);
    }

    #[test]
    fn writes_beyond_end_of_truncated_device_succeed() {
        let overlay = Overlay::new(filled(7));
        let last = MAX_SIZE - SECTOR;
        overlay.write(last, &[1; BLOCK]).unwrap();
        let mut found = [0; BLOCK];
        overlay.read(last, &mut found).unwrap();
        assert_eq!(found, [1; BLOCK]);
        assert!(overlay.read(last - SECTOR, &mut found).is_err());
        assert!(overlay.write(MAX_SIZE, &[1; BLOCK]).is_err());
        assert!(overlay.write(1, &[1; BLOCK]).is_err());
        assert_eq!(overlay.size(), BLOCKS * SECTOR);
    }

    /// Contract: readonly
    #[test]
    fn temporary_file_error_names_directory_and_tmpdir() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        let overlay = Overlay::in_dir(filled(7), missing.clone());
        let refused = overlay.write(0, &[1; BLOCK]).unwrap_err();
        let text = refused.to_string();
        assert!(matches!(refused, Error::Temporary { .. }));
        assert!(text.contains(missing.to_str().unwrap()) && text.contains("set TMPDIR"));
        let mut found = [0; BLOCK];
        overlay.read(0, &mut found).unwrap();
        assert_eq!(found, [7; BLOCK]);
        // The file may also fail later.
        let overlay = Overlay::in_dir(filled(7), dir.path().to_owned());
        overlay.write(0, &[1; BLOCK]).unwrap();
        overlay.written().unwrap().file.set_len(0).unwrap();
        let failed = overlay.read(0, &mut found).unwrap_err();
        assert!(matches!(failed, Error::Temporary { .. }), "{failed}");
        assert_eq!(failed.errno(), libc::EIO);
    }
}
