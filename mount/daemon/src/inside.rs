//! Directories of backups that lie where they must not: in the volume that is backed up.
//!
//! What is lost with a volume would be lost with its backup, and each moment would change the volume and so
//! make another one. A directory is known by the file system that it is in, whatever path leads there; if
//! that is a volume or a loop device, by what its file is in as well. Uses the table of mounts.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cairnfs_backup::{Ended, Error, Result, directory_of};
use cairnfs_fuse::mountinfo;
use rustix::fs::{major, minor};

use crate::failure::{Failure, shown};

/// File systems within each other that are looked through.
const DEPTH: usize = 8;

/// Folders of a backup.
const FOLDERS: [&str; 4] = ["heads", "copies", "layers", "gone"];

/// Refuses a directory for a backup in a volume whose mounts have the devices that `serves` says.
///
/// # Errors
/// It lies there; or it does not answer, and `ended` says that it is not waited for.
pub fn refuse_within(url: &str, serves: impl Fn(&str) -> bool, ended: &Ended) -> Result<()> {
    let Some(dir) = directory_of(url)? else {
        return Ok(());
    };
    let devices = {
        let dir = dir.clone();
        ended.wait_for(move || devices(&dir))?
    };
    if devices.iter().any(|device| serves(device)) {
        Err(inside(&dir))
    } else {
        Ok(())
    }
}

/// Refuses a directory for a backup that lies below the directory on which the volume is to be mounted.
pub fn refuse_below(url: &str, mountpoint: &Path, ended: &Ended) -> Result<()> {
    let Some(dir) = directory_of(url)? else {
        return Ok(());
    };
    let is_below = {
        let (dir, mountpoint) = (dir.clone(), mountpoint.to_path_buf());
        ended.wait_for(move || {
            let above = existing(&dir).and_then(|dir| dir.canonicalize().ok());
            let mut above = above.iter().flat_map(|dir| dir.ancestors());
            above.any(|above| is_same(above, &mountpoint))
        })?
    };
    if is_below { Err(inside(&dir)) } else { Ok(()) }
}

/// Refuses a new file within the directory of a backup.
///
/// # Errors
/// It would lie there.
pub fn refuse_file(url: &str, file: &Path) -> std::result::Result<(), Failure> {
    let Ok(Some(dir)) = directory_of(url) else {
        return Ok(());
    };
    let above = match file.parent() {
        Some(above) if above.as_os_str().is_empty() => Path::new("."),
        Some(above) => above,
        None => return Ok(()),
    };
    let Ok(above) = above.canonicalize() else {
        return Ok(());
    };
    let folders = FOLDERS.map(|folder| dir.join(folder));
    let is_of =
        |above: &Path| is_same(above, &dir) || folders.iter().any(|folder| is_same(above, folder));
    if above.ancestors().any(is_of) {
        Err(Failure::new(
            shown(file),
            format_args!("lies in the backup itself, {}", shown(&dir)),
        )
        .hint("give the name of a file outside of it"))
    } else {
        Ok(())
    }
}

fn inside(dir: &Path) -> Error {
    Error::Url(format!(
        "{} lies in the volume itself: its backup would be lost with it, and each moment would make another \
         one; give a directory outside of the volume, on another disk, or the URL of a store",
        shown(dir)
    ))
}

/// Whether both paths lead to the same directory.
fn is_same(one: &Path, other: &Path) -> bool {
    let of = |path: &Path| path.metadata().ok().map(|found| (found.dev(), found.ino()));
    of(one).is_some_and(|one| Some(one) == of(other))
}

/// The path, or the nearest directory above it that exists.
fn existing(path: &Path) -> Option<PathBuf> {
    let above = path.ancestors().find(|above| above.exists());
    above.map(Path::to_path_buf)
}

/// The device of the file system that a path is in, or will be; then that of the one that holds the file of
/// this volume or loop device, and so on.
fn devices(path: &Path) -> Vec<String> {
    let (mut devices, mut next) = (Vec::new(), existing(path));
    while let Some(path) = next.filter(|_| devices.len() < DEPTH) {
        let Ok(found) = path.metadata() else {
            break;
        };
        let device = format!("{}:{}", major(found.dev()), minor(found.dev()));
        next = holder(&path, &device);
        devices.push(device);
    }
    devices
}

/// The file that the file system of a path is in.
fn holder(path: &Path, device: &str) -> Option<PathBuf> {
    let backing = fs::read(format!("/sys/dev/block/{device}/loop/backing_file"));
    if let Ok(backing) = backing {
        let file = backing.strip_suffix(b"\n").unwrap_or(&backing);
        return Some(OsString::from_vec(file.to_vec()).into());
    }
    let entry = mountinfo::holding(path).ok().flatten()?;
    let volume = mountinfo::volume_of(&entry.source);
    let is_file = entry.is_ours() && volume.as_os_str().as_bytes().starts_with(b"/");
    is_file.then(|| volume.to_path_buf())
}
