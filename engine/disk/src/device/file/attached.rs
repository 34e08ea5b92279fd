//! Loop devices that are attached to a file or block device, and in use.
//!
//! The kernel locks neither against the other: a file system mounted from a loop device takes no
//! lock on the file below. So an opener for writing looks for such devices, in sysfs. A device is
//! in use if the kernel refuses to open it exclusively: a file system, swap or a device-mapper
//! target has claimed it or one of its partitions. Without permission to open it, the table of
//! mounts of this process decides.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat, major, minor};
use rustix::io::Errno;

use super::backing::attachment;
use super::retry;

/// A loop device.
struct Loop {
    /// Its directory in sysfs.
    sysfs: PathBuf,
    /// Its name in `/dev`.
    node: PathBuf,
}

/// A loop device that is in use and attached to the first `size` bytes of `file`. Those in `own`,
/// through which the caller itself uses the file, do not count.
pub(super) fn in_use(file: &Stat, size: u64, own: &[Stat]) -> Option<PathBuf> {
    let devices = fs::read_dir("/sys/block").ok()?;
    let names = devices.filter_map(|entry| Some(entry.ok()?.file_name()));
    let loops = names.filter_map(|name| Loop::named(&name));
    let mut attached = loops.filter(|device| device.is_attached_to(file, size));
    let found = attached.find(|device| !own.iter().any(|s| device.is(s)) && device.is_in_use())?;
    Some(found.node)
}

impl Loop {
    fn named(name: &OsStr) -> Option<Self> {
        name.to_str()?.strip_prefix("loop")?;
        Some(Self {
            sysfs: Path::new("/sys/block").join(name),
            node: Path::new("/dev").join(name),
        })
    }

    fn is(&self, stat: &Stat) -> bool {
        let is_block = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
        is_block && numbers_in(&self.sysfs) == Some(numbers(stat.st_rdev))
    }

    fn is_attached_to(&self, file: &Stat, size: u64) -> bool {
        let Some((offset, below)) = attachment(&self.sysfs) else {
            return false;
        };
        offset < size && rustix::fs::stat(below).is_ok_and(|below| is_same(&below, file))
    }

    fn is_in_use(&self) -> bool {
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match retry(|| rustix::fs::open(&self.node, flags, Mode::empty())) {
            Ok(_) => false,
            Err(Errno::BUSY) => true,
            Err(_) => self.is_mounted_here(),
        }
    }

    /// Whether it or one of its partitions is mounted in the mount namespace of this process.
    fn is_mounted_here(&self) -> bool {
        let entries = fs::read_dir(&self.sysfs).into_iter().flatten().flatten();
        let partitions = entries.filter_map(|entry| numbers_in(&entry.path()));
        let devices: Vec<String> = partitions.chain(numbers_in(&self.sysfs)).collect();
        let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
        let mounts = String::from_utf8_lossy(&mounts);
        let mut mounted = mounts.lines().filter_map(|line| line.split(' ').nth(2));
        mounted.any(|mount| devices.iter().any(|device| device == mount))
    }
}

/// Whether both are the same file, or the same block device under any name.
fn is_same(a: &Stat, b: &Stat) -> bool {
    let kind = |s: &Stat| FileType::from_raw_mode(s.st_mode);
    match (kind(a), kind(b)) {
        (FileType::BlockDevice, FileType::BlockDevice) => a.st_rdev == b.st_rdev,
        _ => (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino),
    }
}

/// Device numbers as text, `MAJOR:MINOR`.
fn numbers(device: u64) -> String {
    format!("{}:{}", major(device), minor(device))
}

/// The device numbers of the block device with this directory in sysfs.
fn numbers_in(sysfs: &Path) -> Option<String> {
    let text = fs::read_to_string(sysfs.join("dev")).ok()?;
    Some(text.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_that_cannot_be_opened_is_looked_up_in_the_table_of_mounts() {
        let root = rustix::fs::stat("/proc").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let device = Loop {
            sysfs: dir.path().to_owned(),
            node: dir.path().join("none"),
        };
        fs::write(dir.path().join("dev"), "7:4095\n").unwrap();
        assert!(!device.is_in_use());
        let partition = dir.path().join("loop4095p1");
        fs::create_dir(&partition).unwrap();
        fs::write(partition.join("dev"), numbers(root.st_dev) + "\n").unwrap();
        assert!(device.is_in_use());
    }
}
