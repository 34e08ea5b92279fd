//! The device on which file systems are created: a loop device over an image file created for it,
//! or an existing block device.
//!
//! The image is written completely beforehand, so that no file system pays for first allocations in
//! the host, and the loop device refuses discards, which would punch holes into it. Both are
//! removed at the end.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::stats::Block;
use super::undo::{Made, Trace, Undo, loops_of};
use crate::Result;

/// The device for all file systems.
pub struct Device {
    /// The block device.
    pub path: PathBuf,
    /// Description for reports.
    pub description: String,
    /// Its statistics.
    pub block: Block,
    made: Made,
}

/// Size of a write, in bytes.
const CHUNK: usize = 4 << 20;

impl Device {
    /// Uses the block device at `path`, or creates an image of `size` bytes there. `progress` is
    /// called with the number of bytes written so far.
    pub fn new(
        path: &Path,
        size: u64,
        force: bool,
        undo: &Undo,
        progress: &dyn Fn(u64),
    ) -> Result<Self> {
        match fs::metadata(path) {
            Ok(found) if found.file_type().is_block_device() => Self::existing(path, force, undo),
            Ok(found) if !found.is_file() => {
                Err(format!("{} is no file and no block device", path.display()).into())
            }
            Ok(_) if !force => Err(format!(
                "{} exists: give another path, or --force to overwrite and remove it",
                path.display()
            )
            .into()),
            _ => Self::image(path, size, undo, progress),
        }
    }

    fn existing(path: &Path, force: bool, undo: &Undo) -> Result<Self> {
        if !force {
            return Err(format!(
                "{} is a block device: --force, if all that is on it may be lost",
                path.display()
            )
            .into());
        }
        // O_EXCL fails for a block device that is mounted or otherwise in use.
        let exclusive = rustix::fs::OFlags::EXCL.bits().cast_signed();
        File::options()
            .write(true)
            .custom_flags(exclusive)
            .open(path)
            .map_err(|e| format!("{}: {e}; is it mounted?", path.display()))?;
        Ok(Self {
            path: path.to_owned(),
            description: format!("{}, a block device", path.display()),
            block: Block::of(path)?,
            made: Made::new(undo),
        })
    }

    fn image(path: &Path, size: u64, undo: &Undo, progress: &dyn Fn(u64)) -> Result<Self> {
        let path = std::path::absolute(path)?;
        if let Some(device) = loops_of(&path)?.first() {
            return Err(format!(
                "{} is attached to {device}, perhaps by a run that was killed: `losetup -d {device}`",
                path.display()
            )
            .into());
        }
        let mut made = Made::new(undo);
        let written = made
            .make(Trace::File(path.clone()), || File::create(&path))
            .and_then(|file| write_zeros(file, size, progress));
        written.map_err(|e| format!("{}: {e}", path.display()))?;
        made.make(Trace::Loops(path.clone()), || Ok(()))?;
        let device = attach(&path, undo)?;
        Ok(Self {
            description: format!(
                "{}, a loop device with direct I/O and without discards over {}, {} MiB, written before",
                device.display(),
                path.display(),
                size >> 20
            ),
            block: Block::of(&device)?,
            path: device,
            made,
        })
    }

    /// Overwrites the start of the device, where tools look for signatures of file systems.
    pub fn wipe(&self) -> Result<()> {
        let mut device = File::options().write(true).open(&self.path)?;
        device.write_all(&vec![0; CHUNK])?;
        Ok(device.sync_all()?)
    }

    /// Detaches the loop device and removes the image, if they were created.
    pub fn finish(mut self) -> Result<()> {
        self.made.take_away()
    }
}

fn write_zeros(mut file: File, size: u64, progress: &dyn Fn(u64)) -> io::Result<()> {
    let zeros = vec![0; CHUNK];
    let mut left = size;
    while left > 0 {
        let part = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
        file.write_all(zeros.get(..part).unwrap_or_default())?;
        left -= part as u64;
        progress(size - left);
    }
    file.sync_all()
}

fn attach(image: &Path, undo: &Undo) -> Result<PathBuf> {
    let mut losetup = Command::new("losetup");
    let printed = undo.run(
        losetup
            .args(["--find", "--show", "--direct-io=on"])
            .arg(image),
    )?;
    let device = PathBuf::from(printed.trim());
    let name = device.file_name().unwrap_or_default().to_owned();
    let sys = Path::new("/sys/block").join(name);
    if fs::read_to_string(sys.join("loop/dio"))?.trim() != "1" {
        return Err(format!(
            "{} cannot be used with direct I/O: give a path on a file system that allows it, not tmpfs",
            image.display()
        )
        .into());
    }
    fs::write(sys.join("queue/discard_max_bytes"), "0")?;
    Ok(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(path: &Path, force: bool) -> String {
        let made = Device::new(path, 1 << 20, force, &Undo::default(), &|_| {});
        made.err().unwrap().to_string()
    }

    #[test]
    fn existing_file_is_not_overwritten_without_force() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("precious");
        fs::write(&file, "precious").unwrap();
        assert!(refused(&file, false).contains("--force"));
        assert!(refused(dir.path(), true).contains("no file"));
        assert_eq!(fs::read(&file).unwrap(), b"precious");
    }

    #[test]
    fn image_is_written_completely() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("image");
        let done = std::cell::Cell::new(0);
        let size = CHUNK as u64 + 4096;
        write_zeros(File::create(&file).unwrap(), size, &|bytes| done.set(bytes)).unwrap();
        let found = fs::metadata(&file).unwrap();
        assert_eq!((found.len(), done.get()), (size, size));
        assert!(std::os::unix::fs::MetadataExt::blocks(&found) * 512 >= size);
    }
}
