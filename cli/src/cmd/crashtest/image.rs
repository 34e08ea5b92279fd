//! Loads and saves simulated disks. Files are sparse where the disk holds zeros.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use cairnfs_disk::device::{Access, Device, FileDevice};
use cairnfs_sim::image::{BLOCK, Image};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// Bytes copied at a time.
const PIECE: u64 = 1 << 20;

/// Copies a volume, which must not change during the copy.
pub fn load(path: &Path) -> cairnfs::Result<Image> {
    let device = FileDevice::open(path, Access::ReadOnly)?;
    let holes = File::open(path).ok();
    let mut image = Image::new(device.size());
    let mut bytes = vec![0; PIECE as usize];
    let mut at = 0;
    while at < image.size() {
        match holes.as_ref().map(|file| seek(file, SeekFrom::Data(at))) {
            Some(Ok(data)) => at = data - data % BLOCK as u64,
            Some(Err(Errno::NXIO)) => break,
            _ => {}
        }
        let len = PIECE.min(image.size() - at) as usize;
        let piece = bytes.get_mut(..len).unwrap_or_default();
        device.read(at, piece)?;
        image.write(at, piece);
        at += len as u64;
    }
    Ok(image)
}

/// Writes a disk to a file. A new file is accessible to its owner only.
pub fn save(image: &Image, path: &Path) -> io::Result<()> {
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    file.set_len(image.size())?;
    let mut block = [0; BLOCK];
    for at in (0..image.size()).step_by(BLOCK) {
        image.read(at, &mut block);
        if block.iter().any(|b| *b != 0) {
            file.write_all_at(&block, at)?;
        }
    }
    Ok(())
}
