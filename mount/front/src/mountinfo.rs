//! The table of mounts, from `/proc/self/mountinfo`.
//!
//! Only reads such tables. Paths are compared as bytes, so callers must pass absolute paths without
//! symlinks.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Statx, StatxFlags, statx};

/// The type under which volumes are mounted.
pub const FS_TYPE: &str = "fuse.cairnfs";

/// One mount, that is, one line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// Mount id, unique across mount namespaces while the mount exists.
    pub id: u64,
    /// Device number, `MAJOR:MINOR`; each FUSE connection has its own.
    pub device: String,
    /// The path in the file system that is mounted: `/`, or that of a part of it (`mount --bind`).
    pub root: PathBuf,
    /// Absolute path of the mountpoint.
    pub mountpoint: PathBuf,
    /// For example `ext4`, or [`FS_TYPE`].
    pub fs_type: String,
    /// The mount's source: for a volume its path, for a branch that of [`branch_source`].
    pub source: PathBuf,
    /// Options of the mount and of the file system, separated by commas.
    pub options: String,
}

impl MountEntry {
    /// Whether it is a CairnFS volume.
    pub fn is_ours(&self) -> bool {
        self.fs_type == FS_TYPE
    }

    /// Whether it is a moment of a backup, whose source is a URL.
    pub fn is_moment(&self) -> bool {
        self.is_ours() && bytes(&self.source).windows(3).any(|part| part == b"://")
    }

    /// Whether an option without a value is set.
    pub fn has(&self, option: &str) -> bool {
        self.options.split(',').any(|word| word == option)
    }

    /// The value of an option.
    pub fn value(&self, option: &str) -> Option<&str> {
        let mut words = self.options.split(',');
        words.find_map(|word| word.strip_prefix(option)?.strip_prefix('='))
    }

    /// The path of the mounted part in its file system, from the root on; `None` if that was removed.
    pub fn part(&self) -> Option<&Path> {
        let is_removed = bytes(&self.root).ends_with(b"//deleted");
        self.root.strip_prefix("/").ok().filter(|_| !is_removed)
    }

    /// Whether it is served by a daemon through FUSE.
    pub fn is_fuse(&self) -> bool {
        self.fs_type == "fuse" || self.fs_type.starts_with("fuse.")
    }
}

/// Returns the mount at exactly this path: the topmost, if several are stacked.
pub fn at(path: &Path) -> io::Result<Option<MountEntry>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(find(&table, path))
}

/// Returns all mounts of a table, such as that of another process; none if it cannot be read.
pub fn list(table: &Path) -> Vec<MountEntry> {
    let table = std::fs::read(table).unwrap_or_default();
    let entries = table.split(|&b| b == b'\n');
    entries.filter_map(parse).collect()
}

/// Returns the mount that a path leads into: of several mounts of one file system that one. If its
/// daemon is dead, the path must be the mountpoint.
///
/// # Errors
/// The path cannot be looked up, or the table cannot be read.
pub fn holding(path: &Path) -> io::Result<Option<MountEntry>> {
    match look(path) {
        Ok(found) => {
            let table = std::fs::read("/proc/self/mountinfo")?;
            let mut entries = table.split(|&b| b == b'\n').filter_map(parse);
            Ok(entries.rfind(|entry| is_mount_of(&found, entry)))
        }
        Err(e) if is_dead(&e) => at(&resolve(path)?),
        Err(e) => Err(e),
    }
}

/// Whether a path is a directory, or cannot be asked because the daemon of its mount is gone.
pub fn is_directory(path: &Path) -> bool {
    match look(path) {
        Ok(found) => FileType::from_raw_mode(found.stx_mode.into()).is_dir(),
        Err(e) => is_dead(&e),
    }
}

/// What the kernel knows of a file. A daemon is not asked about its mountpoint, so one that does not
/// answer delays nobody.
fn look(path: &Path) -> io::Result<Statx> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
    let (path, flags) = if path == Path::new(".") {
        // To look up a name in a directory, the kernel asks whether that is permitted.
        (Path::new(""), AtFlags::EMPTY_PATH)
    } else {
        (path, AtFlags::empty())
    };
    Ok(statx(CWD, path, flags | AtFlags::STATX_DONT_SYNC, wanted)?)
}

/// Whether a file is in a mount. Kernels before 5.8 tell only the file system of a file.
fn is_mount_of(file: &Statx, entry: &MountEntry) -> bool {
    let has_id = StatxFlags::from_bits_retain(file.stx_mask).contains(StatxFlags::MNT_ID);
    if has_id {
        entry.id == file.stx_mnt_id
    } else {
        entry.device == format!("{}:{}", file.stx_dev_major, file.stx_dev_minor)
    }
}

/// The source of a mount of a branch or snapshot: `VOLUME@NAME`. Names contain no `@` and no `/`.
pub fn branch_source(volume: &Path, name: &str) -> OsString {
    let mut source = volume.as_os_str().to_owned();
    source.push("@");
    source.push(name);
    source
}

/// The path of the volume in the source of a mount of it, or of a branch of it.
pub fn volume_of(source: &Path) -> &Path {
    let volume = without_branch(source);
    volume.filter(|v| is_branch_of(source, v)).unwrap_or(source)
}

/// The name in the source of a mount of a branch or snapshot of this volume; `None` for other sources.
pub fn branch_of<'s>(source: &'s Path, volume: &Path) -> Option<&'s str> {
    let name = bytes(source).strip_prefix(bytes(volume))?;
    let name = std::str::from_utf8(name.strip_prefix(b"@")?).ok()?;
    (!name.contains(['@', '/'])).then_some(name)
}

/// Whether the source is that of a branch of this volume. One that is itself the path of a file
/// names that file. The file system is asked only about a source in the volume's directory.
fn is_branch_of(source: &Path, volume: &Path) -> bool {
    branch_of(source, volume).is_some() && !source.exists()
}

/// What is before the `@NAME` of a source that has the form of [`branch_source`].
fn without_branch(source: &Path) -> Option<&Path> {
    let bytes = source.as_os_str().as_bytes();
    let at = bytes.iter().rposition(|b| matches!(b, b'@' | b'/'))?;
    let (volume, rest) = bytes.split_at_checked(at)?;
    rest.starts_with(b"@")
        .then(|| Path::new(OsStr::from_bytes(volume)))
}

/// Returns all mounts of the volume at this path, and of branches of it, in the order of the table.
pub fn all_of(volume: &Path) -> io::Result<Vec<MountEntry>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    let entries = table.split(|&b| b == b'\n').filter_map(parse);
    let ours = entries.filter(MountEntry::is_ours);
    let of_volume = ours.filter(|m| m.source == volume || is_branch_of(&m.source, volume));
    Ok(of_volume.collect())
}

/// Returns all mounts of the volume in this file or device, and of branches of it, whatever names it had when
/// it was mounted. Compares it with each mounted volume.
///
/// # Errors
/// The file cannot be looked up, or the table cannot be read.
pub fn all_of_file(file: &Path) -> io::Result<Vec<MountEntry>> {
    let wanted = identity(file)?;
    let table = std::fs::read("/proc/self/mountinfo")?;
    let entries = table.split(|&b| b == b'\n').filter_map(parse);
    let ours = entries.filter(|entry| entry.is_ours() && !entry.is_moment());
    let of_file = ours.filter(|m| identity(volume_of(&m.source)).is_ok_and(|id| id == wanted));
    Ok(of_file.collect())
}

/// What a file is, whatever its name: its device and inode number, of a block device its own number.
fn identity(path: &Path) -> io::Result<(u64, Option<u64>)> {
    let found = path.metadata()?;
    Ok(if found.file_type().is_block_device() {
        (found.rdev(), None)
    } else {
        (found.dev(), Some(found.ino()))
    })
}

fn find(table: &[u8], path: &Path) -> Option<MountEntry> {
    table
        .split(|&b| b == b'\n')
        .filter_map(parse)
        .rfind(|entry| entry.mountpoint == path)
}

/// `ID PARENT MAJOR:MINOR ROOT MOUNTPOINT OPTIONS [FIELD...] - TYPE SOURCE SUPEROPTIONS`
fn parse(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&b| b == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let device = fields.nth(1)?;
    let (root, mountpoint) = (fields.next()?, fields.next()?);
    let options = fields.next()?;
    let mut rest = fields.skip_while(|f| *f != b"-").skip(1);
    let (fs_type, source) = (rest.next()?, rest.next()?);
    let super_options = rest.next().unwrap_or_default();
    let options = [options, super_options].join(&b',');
    Some(MountEntry {
        id,
        device: String::from_utf8_lossy(device).into_owned(),
        root: unescape(root).into(),
        mountpoint: unescape(mountpoint).into(),
        fs_type: String::from_utf8_lossy(fs_type).into_owned(),
        source: unescape(source).into(),
        options: String::from_utf8_lossy(&options).into_owned(),
    })
}

/// Decodes a field: space, tab, newline and backslash are written as backslash and three octal
/// digits.
fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|_| first == b'\\').and_then(|digits| {
            digits.iter().try_fold(0u8, |value, d| {
                let digit = d.checked_sub(b'0').filter(|d| *d < 8)?;
                value.checked_mul(8)?.checked_add(digit)
            })
        });
        match octal {
            Some(byte) => {
                out.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(out)
}

/// Returns the absolute form of a path whose last component may be the mountpoint of a dead daemon,
/// which cannot be looked up.
///
/// # Errors
/// The directory that holds it cannot be found.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(e) if is_dead(&e) => {
            let absolute = std::path::absolute(path)?;
            match (absolute.parent(), absolute.file_name()) {
                (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
                _ => Err(e),
            }
        }
        other => other,
    }
}

/// Whether an error means that the daemon behind a path is dead. The kernel cancels a request that is
/// for a ring whose thread has ended, until it notices that the connection has.
pub fn is_dead(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED)
    )
}

/// Returns the path as bytes, for messages to programs.
pub fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_a_dead_daemon_are_known() {
        let dead = |errno| is_dead(&io::Error::from_raw_os_error(errno));
        assert!([libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED].map(dead) == [true; 3]);
        assert!(!dead(libc::EIO) && !dead(libc::ENOENT));
    }

    const TABLE: &[u8] = b"22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/root rw\n\
        40 22 0:35 / /a\\040b rw,nosuid shared:7 master:2 - fuse.cairnfs /x\\134y.cairn rw,user_id=0\n\
        41 22 0:36 / /m rw - tmpfs none rw\n\
        42 41 0:37 / /m ro - fuse.other thing ro\n";

    #[test]
    fn finds_escaped_paths() {
        let entry = find(TABLE, Path::new("/a b")).expect("mounted");
        assert_eq!((entry.id, entry.device.as_str()), (40, "0:35"));
        assert_eq!(entry.source, Path::new("/x\\y.cairn"));
        assert_eq!(entry.root, Path::new("/"));
        assert!(entry.is_ours() && entry.is_fuse());
        assert!(entry.has("nosuid") && !entry.has("user_id") && !entry.has("ro"));
        assert_eq!(entry.value("user_id"), Some("0"));
        assert_eq!((entry.value("user"), entry.value("nosuid")), (None, None));
    }

    #[test]
    fn topmost_of_stacked_mounts_is_found() {
        let entry = find(TABLE, Path::new("/m")).expect("mounted");
        assert_eq!(entry.fs_type, "fuse.other");
        assert!(!entry.is_ours() && entry.is_fuse());
    }

    #[test]
    fn source_of_branch_leads_to_its_volume() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("a@b.cairn");
        let source = PathBuf::from(branch_source(&volume, "trial"));
        assert_eq!(volume_of(&source), volume);
        assert_eq!(branch_of(&source, &volume), Some("trial"));
        assert_eq!(branch_of(&volume, &volume), None);
        assert_eq!(branch_of(&source, Path::new("/no/b.cairn")), None);
        assert_eq!(branch_of(&volume, &dir.path().join("a")), Some("b.cairn"));
        assert_eq!(volume_of(Path::new("/no/a@b/c")), Path::new("/no/a@b/c"));
        assert_eq!(volume_of(Path::new("c")), Path::new("c"));
        std::fs::write(&source, b"").unwrap();
        assert_eq!(volume_of(&source), source);
    }

    #[test]
    fn other_paths_are_not_mounts() {
        assert_eq!(find(TABLE, Path::new("/a")), None);
        assert_eq!(find(b"garbage\n\n1 2 3", Path::new("/a")), None);
    }

    #[test]
    fn backslash_without_octal_digits_is_kept() {
        assert_eq!(unescape(b"a\\9xyz\\04"), "a\\9xyz\\04");
        assert_eq!(unescape(b"\\777"), "\\777");
    }
}
