//! `cairnfs umount`: makes all changes durable, unmounts, and waits until the volume is closed;
//! also the helper of umount(8).
//!
//! Plain umount(8) works too, but returns while the daemon is still writing. A daemon may serve
//! several mounts of a volume. So this command asks it, before it unmounts, to tell the end of this
//! mount. If it was the last one, the end of the daemon is recognised by the volume's lock, which it
//! holds while the volume is open: until the last mount of it is gone, in all mount namespaces. This
//! command does not wait if it sees another mount of the same file system in its own namespace;
//! otherwise it waits for a bounded time.
//!
//! The path of the volume comes from the daemon or from the user that mounted it, and this
//! program may run as root. So it opens only a regular file or a block device, and opens it
//! without blocking. If the path refers to another file by then, that file's lock is not the
//! volume's: device and inode number must be those that the daemon has open.

use std::error::Error;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use cairnfs_daemon::failure::{io_text, show_bytes, shown};
use cairnfs_daemon::handover::folder::SocketName;
use cairnfs_daemon::holder;
use cairnfs_fuse::elsewhere::{self, Elsewhere};
use cairnfs_fuse::mounter::{self, Way};
use cairnfs_fuse::mountinfo::MountEntry;
use cairnfs_fuse::status::{Status, VolumeFile};
use cairnfs_fuse::{mountinfo, opening};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::daemon::{self, Cause, Refusal, Synced};
use crate::handover::caller::{Call, End, Watch};

/// umount(8): unmounting failed.
const EXIT_UMOUNT: u8 = 32;

/// Time after which a message reports what the command waits for.
const PATIENCE: Duration = Duration::from_secs(2);

/// Time between two attempts to unmount what nobody is seen to use.
const PAUSE: Duration = Duration::from_millis(20);

const NOTES: &str = "\
A volume is closed when its last mount is gone; of several branches that are mounted at once each
is made durable and ended by itself. If the same mount is also on another directory, the command
prints that and does not wait. Another mount namespace, such as a container's, may hold a
copy of the mount, and so may a file that is open in a detached mount: the command waits for both.

If the volume is shipped to a backup, the end of its last mount stores a last moment of it, for
which it waits as long as the mount option backup-wait= says. A warning tells if it was not stored.

Making changes durable may take as long as the daemon needs. One that does not answer for --timeout
seconds stays mounted: --lazy and --force send it no request.

Exit codes, as in umount(8): 0 unmounted, and durable or mounted elsewhere; 32 not unmounted, not
durable, or not closed in time. The last line on standard error has the reason.";

/// Unmount a volume or branch and wait until it is durable.
#[derive(Debug, clap::Args)]
#[command(after_help = NOTES)]
pub struct Args {
    /// Unmount even if it is in use: it disappears at once, and is closed, unwatched, when its
    /// last file is. Sends the daemon no request, so it works even if the daemon does not answer
    #[arg(long, short)]
    lazy: bool,
    /// Make the kernel abort the requests that wait for a daemon that does not answer, and
    /// unmount. What the daemon has not made durable is lost
    #[arg(long, short)]
    force: bool,
    /// Time to wait for a daemon that does not answer, and until the volume is closed, all together
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = super::stats::seconds)]
    timeout: Duration,
    /// As `cairnfs try` calls it for a mount that nobody uses: fail, and leave the mount, if its daemon
    /// is dead; try again shortly if it is busy
    #[arg(long, hide = true)]
    served: bool,
    /// As umount(8) calls its helpers: leave /etc/mtab alone
    #[arg(short, hide = true)]
    n: bool,
    /// As umount(8) calls its helpers: print what is done
    #[arg(short, hide = true)]
    verbose: bool,
    /// As umount(8) calls its helpers: the type of the mount
    #[arg(short = 't', hide = true)]
    fs_type: Option<String>,
    /// Directory on which the volume is mounted, or the volume
    dir: PathBuf,
}

/// Runs the command.
///
/// # Errors
/// None: failures are printed here, and returned as exit codes of umount(8).
pub fn run(args: Args) -> Result<ExitCode, Box<dyn Error>> {
    match umount(&args) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(text) => {
            if !text.is_empty() {
                say!("cairnfs umount: {text}");
            }
            Ok(ExitCode::from(EXIT_UMOUNT))
        }
    }
}

/// The end of all that the command waits for.
struct Deadline(Instant);

impl Deadline {
    fn in_time(time: Duration) -> Self {
        Self(Instant::now() + time)
    }

    fn left(&self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Calls `work` with the time that is left for a daemon that does not answer. What the work of one
    /// that does takes is not counted.
    fn beside<T>(&mut self, work: impl FnOnce(Duration) -> T) -> T {
        let began = Instant::now();
        let done = work(self.left());
        self.0 += began.elapsed();
        done
    }
}

fn umount(args: &Args) -> Result<(), String> {
    let mut deadline = Deadline::in_time(args.timeout);
    let wrong = |e: io::Error| match e.kind() {
        io::ErrorKind::NotFound => format!(
            "{}: there is no such file or directory: name the directory of a mount, or its volume",
            shown(&args.dir)
        ),
        _ => format!("{}: {}", shown(&args.dir), io_text(&e)),
    };
    let given = mountinfo::resolve(&args.dir).map_err(wrong)?;
    let entry = find(&given)?;
    let dir = match &entry {
        Some(entry) => entry.mountpoint.clone(),
        None => given,
    };
    let entry = match entry {
        Some(entry) if entry.is_ours() => entry,
        Some(entry) => {
            return Err(format!(
                "{} holds no CairnFS volume, but {} ({}): use umount(8)",
                dir.display(),
                shown(&entry.source),
                entry.fs_type
            ));
        }
        None if dir.is_dir() => return Err(format!("{} is not a mountpoint", dir.display())),
        None => return Err(format!("{} is not mounted", dir.display())),
    };
    if args.force {
        return mounter::unmount(&dir, Way::Force).map_err(|e| describe(&dir, &entry, e));
    }
    if args.lazy {
        return mounter::unmount(&dir, Way::Lazy).map_err(|e| describe(&dir, &entry, e));
    }
    let (answer, synced) = match deadline.beside(|left| daemon::leave(&dir, left)) {
        Err(refusal) if refusal.cause == Cause::Gone && args.served => {
            // The caller takes it away, and tells.
            return Err(String::new());
        }
        Err(refusal) if refusal.cause == Cause::Gone => {
            return mounter::unmount(&dir, Way::Lazy).map_err(|e| describe(&dir, &entry, e));
        }
        Err(refusal) if refusal.cause == Cause::Silent => return Err(stays(&dir, &refusal)),
        Err(refusal) => (None, Err(refusal)),
        Ok(leaving) => (leaving.before, leaving.synced),
    };
    // Without its root directory nothing of a mount can be asked.
    let unanswered = answer.is_none() && entry.has("ro");
    let (synced, refused) = durable(&dir, synced, unanswered)?;
    let volume = match &answer {
        Some(answer) => answer.volume.clone(),
        None => mountinfo::volume_of(&entry.source).to_path_buf(),
    };
    // An image inside its own mountpoint is hidden by the mount, and can be opened only after the
    // unmount.
    let covered = volume.starts_with(&dir);
    let before = answer.map(|answer| answer.status);
    let file = before.as_ref().and_then(|status| status.file.as_ref());
    let lock = (!covered).then(|| open(&volume, file));
    let locked = lock.as_ref().and_then(|lock| lock.as_ref().ok());
    let watch = watch(&entry, file, locked, deadline.left());
    detach(&dir, args.served).map_err(|e| describe(&dir, &entry, e))?;
    let displaced = before.as_ref().and_then(Status::displaced);
    let displaced = displaced.map(|text| show_bytes(text.as_bytes()));
    for text in [refused, displaced].into_iter().flatten() {
        say!("cairnfs umount: warning: {text}");
    }
    let lock = lock.unwrap_or_else(|| open(&volume, file));
    let closed = match lock {
        // A moment is only read, so there is nothing to close.
        _ if entry.is_moment() || stays_open(&dir, &entry) => Ok(()),
        _ if watch.is_none() && serves_another(&dir, &volume) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            say!(
                "cairnfs umount: note: {} was deleted or replaced, or cannot be seen from here: not \
                 waited for",
                shown(&volume)
            );
            Ok(())
        }
        Err(e) => Err(Open::Unknown(format!(
            "cannot tell when {} is closed: {e}",
            shown(&volume)
        ))),
        Ok(lock) => wait_until_closed(
            (watch, lock),
            &volume,
            &entry,
            (args.timeout, deadline.left()),
        ),
    };
    let not_durable = |why: String| format!("{} could not be made durable: {why}", shown(&volume));
    let (durable, closed) = match closed {
        Err(Open::NotDurable(why)) => (synced.and(Err(why)), Ok(())),
        Err(Open::Unknown(why)) => (synced, Err(why)),
        Ok(()) => (synced, Ok(())),
    };
    let wrong: Vec<String> = [durable.map_err(not_durable), closed]
        .into_iter()
        .filter_map(Result::err)
        .collect();
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "{} is unmounted; {}",
            shown(&dir),
            wrong.join("; ")
        ))
    }
}

/// Whether all is durable, and what was refused. Without the permission to ask, nothing is known: the
/// daemon writes everything when it ends. A read-only mount that cannot be asked has nothing to write:
/// what was written before it became read-only was made durable then.
///
/// # Errors
/// There is no space for what waits, so the volume must stay mounted.
fn durable(
    dir: &Path,
    synced: Result<Synced, Refusal>,
    unanswered: bool,
) -> Result<(Result<(), String>, Option<String>), String> {
    match synced {
        Ok(told) => Ok((Ok(()), told.refused)),
        Err(refusal) => match refusal.cause {
            Cause::HostFull => Err(format!(
                "{} stays mounted: {}; free some there, or lose what waits with --lazy",
                shown(dir),
                refusal.text
            )),
            Cause::Denied => Ok((Ok(()), None)),
            Cause::Other if unanswered => Ok((Ok(()), None)),
            _ => Ok((Err(refusal.text), None)),
        },
    }
}

/// Unmounts it. A caller that has seen nobody use it any more also waits for what the kernel gives back a
/// moment after a process has ended, such as the mounts of its namespace.
fn detach(dir: &Path, unused: bool) -> io::Result<()> {
    let began = Instant::now();
    loop {
        match mounter::unmount(dir, Way::Plain) {
            Err(e)
                if unused
                    && e.kind() == io::ErrorKind::ResourceBusy
                    && began.elapsed() < PATIENCE =>
            {
                std::thread::sleep(PAUSE);
            }
            done => return done,
        }
    }
}

/// The mount on a directory, or that of a volume if it has one.
fn find(given: &Path) -> Result<Option<MountEntry>, String> {
    let wrong = |e: io::Error| format!("{}: {e}", shown(given));
    if let Some(found) = mountinfo::at(given).map_err(wrong)? {
        return Ok(Some(found));
    }
    if given.is_dir() {
        return Ok(None);
    }
    let mut found = mountinfo::all_of(given).map_err(wrong)?;
    if found.is_empty() {
        // It may have been mounted by another name: a hard link, or one that it had before.
        found = mountinfo::all_of_file(given).map_err(wrong)?;
    }
    let last = found.pop();
    if found.is_empty() {
        return Ok(last);
    }
    let dirs: Vec<_> = found
        .iter()
        .chain(&last)
        .map(|m| shown(&m.mountpoint))
        .collect();
    Err(format!(
        "{} is mounted on {}: name one of these directories",
        shown(given),
        dirs.join(", ")
    ))
}

fn stays(dir: &Path, refusal: &Refusal) -> String {
    format!("{} stays mounted: {}", shown(dir), refusal.text)
}

/// Opens the volume by its path, or by the file's current path; `NotFound` if neither refers to
/// it.
fn open(volume: &Path, file: Option<&VolumeFile>) -> io::Result<File> {
    let Some(file) = file else {
        return opening::volume(volume);
    };
    let paths = [Some(volume), file.path.as_deref().map(Path::new)];
    for path in paths.into_iter().flatten() {
        match opening::volume(path) {
            Ok(found) => {
                let found_file = found.metadata()?;
                if (found_file.dev(), found_file.ino()) == (file.dev, file.ino) {
                    return Ok(found);
                }
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// Whether the file system has another mount in this namespace; prints a note if so.
fn stays_open(dir: &Path, entry: &MountEntry) -> bool {
    let Some(other @ Elsewhere { process: None, .. }) = elsewhere::of(entry) else {
        return false;
    };
    say!(
        "cairnfs umount: note: {} is unmounted; the volume stays open: it is mounted {other}, too",
        shown(dir)
    );
    true
}

/// Whether the daemon, which cannot be asked, serves another mount of the volume in this namespace;
/// prints a note if so.
fn serves_another(dir: &Path, volume: &Path) -> bool {
    let others = mountinfo::all_of(volume).unwrap_or_default();
    let Some(other) = others.first() else {
        return false;
    };
    say!(
        "cairnfs umount: note: {} is unmounted; the volume stays open: it is mounted on {}, too; the \
         daemon cannot be asked from here whether everything is durable",
        shown(dir),
        shown(&other.mountpoint)
    );
    true
}

/// Asks the daemon of a mount to tell its end; `None` if it has no socket that can be trusted.
fn watch(
    entry: &MountEntry,
    file: Option<&VolumeFile>,
    lock: Option<&File>,
    timeout: Duration,
) -> Option<Watch> {
    let name = match (file, lock) {
        (Some(file), _) => SocketName::of_file(file.dev, file.ino),
        (None, lock) => SocketName::of(&lock?.metadata().ok()?),
    };
    let user = entry.value("user_id")?.parse().ok()?;
    Call::begin(&name, user, timeout)?.watch(&entry.device)
}

/// Why a volume was not seen to be closed, nor the mount to be durable.
enum Open {
    /// The daemon says that it is not.
    NotDurable(String),
    /// Any other reason.
    Unknown(String),
}

/// What ended the wait.
enum Waited {
    /// The daemon has told that the mount has ended, and serves others.
    Apart(Result<(), String>),
    /// The volume was locked; with it what did not go well when the daemon ended.
    Locked(io::Result<()>, Option<String>),
}

/// Waits until the daemon tells the end of the mount, and if that was the last one, for a shared lock:
/// a daemon that may write excludes it, read-only daemons do not. A separate thread waits, and is left
/// behind when no time of `timeout` is `left`.
fn wait_until_closed(
    (watch, file): (Option<Watch>, File),
    volume: &Path,
    entry: &MountEntry,
    (timeout, left): (Duration, Duration),
) -> Result<(), Open> {
    let cannot_tell = |e: &dyn std::fmt::Display| {
        Open::Unknown(format!("cannot tell when {} is closed: {e}", shown(volume)))
    };
    let (ends, end) = channel();
    let waiting = std::thread::Builder::new().spawn(move || {
        let waited = match watch.map(Watch::wait) {
            Some(End::Apart(durable)) => Waited::Apart(durable),
            Some(End::Last(warning)) => Waited::Locked(lock_shared(&file), warning),
            None => Waited::Locked(lock_shared(&file), None),
        };
        // The receiver is gone after a timeout.
        let _ = ends.send(waited);
    });
    waiting.map_err(|e| cannot_tell(&e))?;
    let patience = PATIENCE.min(left);
    let mut closed = end.recv_timeout(patience);
    if closed.is_err() && patience < left {
        let daemon = match holder::process(volume) {
            Some((pid, _)) => format!("the daemon (pid {pid})"),
            None => "the daemon".into(),
        };
        say!(
            "cairnfs umount: waiting for {daemon} to close {}: {}",
            shown(volume),
            still_open(entry)
        );
        closed = end.recv_timeout(left.saturating_sub(patience));
    }
    match closed {
        Ok(Waited::Apart(durable)) => durable.map_err(Open::NotDurable),
        Ok(Waited::Locked(locked, warning)) => {
            if let Some(text) = warning {
                say!("cairnfs umount: warning: {}", show_bytes(text.as_bytes()));
            }
            locked.map_err(|e| cannot_tell(&e))
        }
        Err(_) => Err(Open::Unknown(format!(
            "{} is still open after {} seconds: {}",
            shown(volume),
            timeout.as_secs_f64(),
            still_open(entry)
        ))),
    }
}

fn lock_shared(file: &File) -> io::Result<()> {
    loop {
        match flock(file, FlockOperation::LockShared) {
            Err(Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

/// The reason why a volume is still open after its unmount.
fn still_open(entry: &MountEntry) -> String {
    match elsewhere::of(entry) {
        Some(other) => format!("the file system is still mounted {other}"),
        None => "the daemon is writing, or stores the last moment of a backup, or the file system is in use \
                 where it cannot be seen from here: by files open in a detached mount, or in another mount namespace"
            .into(),
    }
}

fn describe(dir: &Path, entry: &MountEntry, error: io::Error) -> String {
    let user = geteuid();
    let may = user.is_root() || entry.has(&format!("user_id={user}"));
    match error.kind() {
        io::ErrorKind::ResourceBusy => format!(
            "{} is busy: close the files in use there (`fuser -vm` lists them), or use --lazy",
            dir.display()
        ),
        _ if !may => format!(
            "{}: only root and the user who mounted it may unmount it",
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
            timeout: Duration::from_secs(1),
            served: false,
            n: false,
            verbose: false,
            fs_type: None,
            dir,
        })
        .unwrap_err()
    }

    #[test]
    fn work_of_a_daemon_takes_no_time_from_what_is_left() {
        let mut deadline = Deadline::in_time(Duration::ZERO);
        let end = deadline.0;
        let (given, took) = deadline.beside(|left| {
            let began = Instant::now();
            std::thread::sleep(Duration::from_millis(2));
            (left, began.elapsed())
        });
        assert_eq!(given, Duration::ZERO);
        assert!(deadline.0 >= end + took);
    }

    #[test]
    fn umount_touches_only_cairnfs_mounts() {
        let dir = tempfile::tempdir().unwrap();
        assert!(refused(dir.path()).contains("not a mountpoint"));
        assert!(refused(Path::new("/proc")).contains("holds no CairnFS volume"));
        assert!(refused(&dir.path().join("no")).contains("no such file"));
    }

    #[test]
    fn busy_mount_is_reported_clearly() {
        let entry = mountinfo::at(Path::new("/proc")).unwrap().unwrap();
        let text = describe(
            Path::new("/m"),
            &entry,
            io::Error::from(io::ErrorKind::ResourceBusy),
        );
        assert!(text.contains("/m is busy") && text.contains("--lazy"));
    }
}
