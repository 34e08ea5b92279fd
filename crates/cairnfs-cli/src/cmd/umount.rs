//! `cairnfs umount`: makes everything durable, unmounts, and waits until the volume is closed; also
//! as the helper of umount(8).
//!
//! Plain umount(8) works too, but returns while the daemon is still writing. That the daemon is
//! done is told by the volume's lock, which it holds as long as the volume is open. Where the volume
//! lies is said by the daemon, or by who mounted it, and this may run as root: nothing is opened but
//! a regular file or a block device, and without waiting.

use std::error::Error;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cairnfs_fuse::mounter::{self, Way};
use cairnfs_fuse::{control, mountinfo, opening};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::daemon;
use crate::failure::shown;

/// umount(8): unmounting failed.
const EXIT_UMOUNT: u8 = 32;

/// Unmount a volume and wait until it is closed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Unmount even if it is in use: it disappears now, and is closed, unwatched, when its last
    /// file is. Asks the daemon for nothing, so it works even if that does not answer
    #[arg(long, short)]
    lazy: bool,
    /// Have the kernel give up the requests that wait for a daemon that does not answer, and unmount.
    /// What the daemon has not made durable is lost
    #[arg(long, short)]
    force: bool,
    /// As umount(8) calls its helpers: leave /etc/mtab alone
    #[arg(short, hide = true)]
    n: bool,
    /// As umount(8) calls its helpers: say what is done
    #[arg(short, hide = true)]
    verbose: bool,
    /// As umount(8) calls its helpers: the type of the mount
    #[arg(short = 't', hide = true)]
    fs_type: Option<String>,
    /// Directory on which the volume is mounted
    dir: PathBuf,
}

/// Runs the command.
///
/// # Errors
/// None: failures are told here, with the exit code umount(8) uses.
pub fn run(args: Args) -> Result<ExitCode, Box<dyn Error>> {
    match umount(&args) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(text) => {
            eprintln!("cairnfs umount: {text}");
            Ok(ExitCode::from(EXIT_UMOUNT))
        }
    }
}

fn umount(args: &Args) -> Result<(), String> {
    let wrong = |e: io::Error| format!("{}: {e}", args.dir.display());
    let dir = mountinfo::resolve(&args.dir).map_err(wrong)?;
    let entry = match mountinfo::at(&dir).map_err(wrong)? {
        Some(entry) if entry.is_ours() => entry,
        Some(entry) => {
            return Err(format!(
                "{} holds no CairnFS volume, but {} ({}): use umount(8)",
                dir.display(),
                shown(&entry.source),
                entry.fs_type
            ));
        }
        None => return Err(format!("{} is not a mountpoint", dir.display())),
    };
    if args.force {
        return mounter::unmount(&dir, Way::Force).map_err(|e| told(&dir, e));
    }
    if args.lazy || mountinfo::probe(&dir).is_err_and(|e| mountinfo::is_dead(&e)) {
        return mounter::unmount(&dir, Way::Lazy).map_err(|e| told(&dir, e));
    }
    let volume = control::volume(&dir).unwrap_or(entry.source);
    // An image inside its own mountpoint is covered by the mount.
    let covered = volume.starts_with(&dir);
    let lock = (!covered).then(|| opening::volume(&volume));
    let synced = sync(&dir);
    let status = || control::status(&dir).ok();
    let full = synced.as_ref().err();
    if let Some(full) = full.and_then(|e| daemon::host_full(&status()?, e)) {
        return Err(format!(
            "{} stays mounted: {full}; free some there, or lose what waits with --lazy",
            dir.display()
        ));
    }
    // Only a mount can be asked why.
    let synced = synced.map_err(|e| daemon::because(&dir, &e));
    mounter::unmount(&dir, Way::Plain).map_err(|e| told(&dir, e))?;
    let lock = lock.unwrap_or_else(|| opening::volume(&volume));
    let closed = match lock {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            eprintln!(
                "cairnfs umount: note: {} was deleted, or cannot be seen from here: not waited for",
                shown(&volume)
            );
            Ok(())
        }
        lock => wait_until_closed(lock),
    };
    closed.map_err(|e| {
        format!(
            "{} is unmounted; cannot tell when {} is closed: {e}",
            dir.display(),
            volume.display()
        )
    })?;
    synced.map_err(|e| {
        format!(
            "{} is unmounted, but {} could not be made durable: {e}",
            dir.display(),
            volume.display()
        )
    })
}

/// Who may not read the directory leaves it to the daemon, which writes everything at its end.
fn sync(dir: &Path) -> io::Result<()> {
    match control::sync(dir) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        other => other,
    }
}

/// A shared lock waits for a daemon that may write, and not for those that only read.
fn wait_until_closed(volume: io::Result<File>) -> io::Result<()> {
    let volume = volume?;
    loop {
        match flock(&volume, FlockOperation::LockShared) {
            Err(Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

fn told(dir: &Path, error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ResourceBusy => format!(
            "{} is busy: close the files in use there (`fuser -vm` lists them), or use --lazy",
            dir.display()
        ),
        _ => format!("{}: {error}", dir.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(dir: &Path) -> String {
        let dir = dir.to_path_buf();
        umount(&Args {
            lazy: false,
            force: false,
            n: false,
            verbose: false,
            fs_type: None,
            dir,
        })
        .unwrap_err()
    }

    #[test]
    fn only_our_mounts_are_touched() {
        let dir = tempfile::tempdir().unwrap();
        assert!(refused(dir.path()).contains("not a mountpoint"));
        assert!(refused(Path::new("/proc")).contains("holds no CairnFS volume"));
        assert!(refused(&dir.path().join("no")).contains("No such file"));
    }

    #[test]
    fn busy_is_told_clearly() {
        let text = told(
            Path::new("/m"),
            io::Error::from(io::ErrorKind::ResourceBusy),
        );
        assert!(text.contains("/m is busy") && text.contains("--lazy"));
    }
}
