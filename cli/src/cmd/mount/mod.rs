//! `cairnfs mount`: mounts a volume on a directory, or changes the flags of a mount.
//!
//! The command prepares the volume and the directory. If a daemon has the volume open, it hands the
//! mount over to that one (`joining`); otherwise it starts its own program again as the daemon
//! ([`serving`]) and waits until that reports that the mount is live. (A process with threads cannot
//! fork safely; a new program can be started at any time.) Exit codes are those of mount(8).

mod joining;
mod moment;

use std::error::Error;
use std::io::{self, IsTerminal};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use cairnfs::fs::{MakeOptions, inspect, is_unmade};
use cairnfs_daemon::backup_worker;
use cairnfs_daemon::exit::{EXIT_USAGE, Failure, failed};
use cairnfs_daemon::failure::shown;
use cairnfs_daemon::say;
use cairnfs_daemon::serving::{self, Service};
use cairnfs_fuse::mounter::Way;
use cairnfs_fuse::options::{self, parse_size};
use cairnfs_fuse::{MountOptions, mounter, mountinfo};
use rustix::process::{getegid, geteuid};

use crate::cmd::{mkfs, sync};
use crate::daemon::{self, Cause, Refusal};
use crate::inherited;
use crate::served;
use crate::size::human;

/// Time that the daemon of what is mounted on the directory already has to show that it is alive.
const TAKEN_WAIT: Duration = Duration::from_secs(2);

/// Size in bytes of an image that `--create` makes. The image is sparse.
const DEFAULT_SIZE: u64 = 64 << 30;

/// Prefix of a mount option that only the kernel adds, to FUSE mounts.
const KERNELS_WORD: &str = "user_id=";

/// What the help says after the mount options.
const AFTER_OPTIONS: &str = "\
Options of fstab(5) without a meaning here, such as nofail, are accepted, and those of ext4 that
are always on: acl, user_xattr, errors=remount-ro. Reading does not change
access times, and the mount shows noatime: relatime, strictatime and atime print a note about it.

Exit codes, as in mount(8): 0 mounted, and with --foreground also ended without errors; 1 wrong
arguments; 2 a system resource is missing; 32 not mounted, or with --foreground: data could not
be made durable, or the volume stopped. The last line on standard error has the reason.

For mount(8): mount.cairnfs VOLUME DIR [-sfnv] [-o OPTIONS], a link to this program.";

/// Mount a volume on a directory.
#[derive(Debug, clap::Args)]
#[command(after_help = options::help() + AFTER_OPTIONS)]
pub struct Args {
    /// Make the volume (an image file) and the directory if they do not exist. A file whose first
    /// megabyte is zeros counts as missing
    #[arg(long)]
    create: bool,
    /// Size of an image that --create makes, for example 500M or 2T [default: the file's; 64G for
    /// a new one]
    #[arg(long, value_parser = parse_size, requires = "create")]
    size: Option<u64>,
    /// Mount options, separated by commas
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Serve the mount from this process, not in the background; Ctrl-C unmounts
    #[arg(long)]
    foreground: bool,
    /// Append messages of the daemon to this file. Without this they go to syslog, and so to the
    /// journal; with --foreground to standard error
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Print what is done
    #[arg(long, short)]
    verbose: bool,
    /// Ignore unknown mount options
    #[arg(long, hide = true)]
    sloppy: bool,
    /// Check everything, but do not mount
    #[arg(long, hide = true)]
    fake: bool,
    /// Called by mount(8), which leaves out the words that name its defaults
    #[arg(long, hide = true)]
    helper: bool,
    /// Act as the daemon: leave the terminal once the mount is live
    #[arg(long, hide = true)]
    detached: bool,
    /// Mount a branch of the volume that the daemon of the mount on this directory has open
    #[arg(long, hide = true, value_name = "DIR")]
    beside: Option<PathBuf>,
    #[command(flatten)]
    moment: moment::MomentArgs,
    /// Image file or block device; with --at, the URL of a backup, of which that moment is mounted
    /// read-only; not needed with -o remount
    volume: PathBuf,
    /// Directory to mount on
    dir: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// None: failures are printed here, and returned as exit codes of mount(8).
pub fn run(args: Args) -> Result<ExitCode, Box<dyn Error>> {
    match mount(&args) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(Failure(code, text)) => {
            if !text.is_empty() {
                say!("cairnfs mount: {text}");
            }
            Ok(ExitCode::from(code))
        }
    }
}

fn mount(args: &Args) -> Result<(), Failure> {
    if args.detached {
        inherited::close().map_err(failed)?;
    }
    let options = parse_options(args).map_err(|text| Failure(EXIT_USAGE, text))?;
    if options.remount {
        return remount(args, args.dir.as_deref().unwrap_or(&args.volume));
    }
    let Some(dir) = &args.dir else {
        let text = "the directory to mount on is missing: cairnfs mount VOLUME DIR";
        return Err(Failure(EXIT_USAGE, text.into()));
    };
    check_cache(&options).map_err(|text| Failure(EXIT_USAGE, text))?;
    backup_worker::check(&options).map_err(|text| Failure(EXIT_USAGE, text))?;
    if args.moment.is_given() {
        return mount_moment(args, dir, options);
    }
    if let Some(base) = &args.beside {
        return joining::join(args, base, &find_dir(args, dir)?, &options);
    }
    let volume = find_volume(args)?;
    let dir = find_dir(args, dir)?;
    backup_worker::check_place(&options, &dir).map_err(failed)?;
    if args.fake {
        return Ok(());
    }
    if args.foreground || args.detached {
        serving::serve(&service(args, &volume, &dir, &options))
    } else {
        if let Some(warning) = mkfs::outgrows(&volume).filter(|_| !options.read_only) {
            say!("cairnfs mount: warning: {warning}");
        }
        if let Some(warning) = backup_worker::doubt(&options) {
            say!("cairnfs mount: warning: {warning}");
        }
        if let Some(front) = inspect(&volume).ok().and_then(|info| info.front) {
            say!("cairnfs mount: warning: {front}");
        }
        note_access_times(&options);
        note_privileges(args, &options);
        note_snapshots(args, &options);
        joining::join_or_start(args, &volume, &dir, &options)
    }
}

/// Mounts a moment of a backup; each such mount has a daemon of its own.
fn mount_moment(args: &Args, dir: &Path, mut options: MountOptions) -> Result<(), Failure> {
    let url = args.volume.to_string_lossy();
    let url = cairnfs_backup::absolute(&url).map_err(|e| failed(format_args!("{url}: {e}")))?;
    // The source of the mount tells by its form that it is no volume.
    let url = if url.contains("://") {
        url
    } else {
        format!("file://{url}")
    };
    let (url, dir) = (PathBuf::from(url), find_dir(args, dir)?);
    options.read_only = true;
    options.check().map_err(|text| Failure(EXIT_USAGE, text))?;
    match (args.fake, args.foreground || args.detached) {
        (true, _) => Ok(()),
        (false, true) => serving::serve(&Service {
            moment: Some(&|| args.moment.open(&url, &options)),
            ..service(args, &url, &dir, &options)
        }),
        (false, false) => joining::start_alone(args, &url, &dir),
    }
}

/// How this process serves a mount.
fn service<'a>(
    args: &'a Args,
    volume: &'a Path,
    dir: &'a Path,
    options: &'a MountOptions,
) -> Service<'a> {
    Service {
        volume,
        dir,
        options,
        moment: None,
        foreground: args.foreground,
        detached: args.detached,
        verbose: args.verbose,
        log: args.log.as_deref(),
        commands: served::read,
        apart: sync::APART,
    }
}

/// Warns a caller that asks for access times: they are not kept.
fn note_access_times(options: &MountOptions) {
    if options.access_times {
        say!(
            "cairnfs mount: note: reading does not change access times: the mount is noatime, \
             whatever its options"
        );
    }
}

/// Warns an ordinary user that asks for device files or set-id bits: only root's mounts have them.
fn note_privileges(args: &Args, options: &MountOptions) {
    let wanted = [("dev", options.dev), ("suid", options.suid)];
    let asked: Vec<&str> = wanted
        .into_iter()
        .filter(|(word, on)| *on && words(args).any(|given| given == *word))
        .map(|(word, _)| word)
        .collect();
    if !asked.is_empty() && !geteuid().is_root() {
        say!(
            "cairnfs mount: note: {} is for root only: the mount is nosuid,nodev",
            asked.join(",")
        );
    }
}

/// Tells a caller which words about snapshots have no effect.
fn note_snapshots(args: &Args, options: &MountOptions) {
    if options.snapshots.is_some() && options.read_only {
        say!("cairnfs mount: note: snapshots= has no effect on a read-only mount");
    }
    if options.snapshots.is_none() && words(args).any(|word| word.starts_with("keep=")) {
        say!("cairnfs mount: note: keep= has no effect without snapshots=: no snapshots are made");
    }
}

/// The words of all lists of mount options.
fn words(args: &Args) -> impl Iterator<Item = &str> {
    let words = args.options.iter().flat_map(|list| list.split(','));
    words.map(str::trim)
}

fn parse_options(args: &Args) -> Result<MountOptions, String> {
    parse_onto(
        args,
        MountOptions {
            sloppy: args.sloppy,
            dev: args.helper,
            suid: args.helper,
            ..MountOptions::default()
        },
    )
}

fn parse_onto(args: &Args, mut options: MountOptions) -> Result<MountOptions, String> {
    for list in &args.options {
        options.apply(list)?;
    }
    options.check()?;
    Ok(options)
}

/// Refuses a cache that is larger than this machine's memory.
fn check_cache(options: &MountOptions) -> Result<(), String> {
    let info = rustix::system::sysinfo();
    let memory = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit));
    match options.cache {
        Some(bytes) if bytes as u64 > memory => Err(format!(
            "mount option cache: {} is more than the memory of this machine, {}",
            human(bytes as u64),
            human(memory)
        )),
        _ => Ok(()),
    }
}

/// Changes the flags of the mount on `path`. The daemon keeps the options with which it was
/// started.
fn remount(args: &Args, path: &Path) -> Result<(), Failure> {
    let given = path.display();
    let wrong = |e: io::Error| failed(format_args!("{given}: {e}"));
    let dir = mountinfo::resolve(path).map_err(wrong)?;
    let entry = mountinfo::at(&dir).map_err(wrong)?;
    let Some(entry) = entry.filter(mountinfo::MountEntry::is_ours) else {
        return Err(failed(format_args!("no volume is mounted on {given}")));
    };
    // An option of the kernel shows that mount(8) has merged the mount's options with those of the
    // caller, and has left out its defaults. The current flags of the mount must then be ignored:
    // an option that is left out has its default.
    let by_mount8 = args.helper && words(args).any(|word| word.starts_with(KERNELS_WORD));
    let is_set = |word: &str| !by_mount8 && entry.has(word);
    let now = MountOptions {
        sloppy: args.sloppy,
        read_only: is_set("ro"),
        dev: !is_set("nodev"),
        suid: !is_set("nosuid"),
        exec: !is_set("noexec"),
        sync: is_set("sync"),
        ..MountOptions::default()
    };
    let wanted = parse_onto(args, now).map_err(|text| Failure(EXIT_USAGE, text))?;
    let refused = |refusal: Refusal| failed(refusal.about(path));
    let writable = daemon::is_writable(&dir, daemon::WAIT).map_err(refused)?;
    if !wanted.read_only && !writable {
        return Err(failed(format_args!(
            "{given} was mounted read-only, and its daemon cannot write: unmount it, and mount it with rw"
        )));
    }
    // What the mount has already is no change. Of these words the table of mounts shows only one.
    let is_new = |word: &&str| *word != "allow_other" || !entry.has(word);
    let kept = words(args).filter(|word| MountOptions::is_kept_by_remount(word));
    for word in kept.filter(is_new) {
        say!("cairnfs mount: note: a remount does not change {word}");
    }
    note_access_times(&wanted);
    if args.fake {
        return Ok(());
    }
    mounter::remount(&dir, &wanted).map_err(|e| match e.kind() {
        io::ErrorKind::ResourceBusy => failed(format_args!(
            "{given} is busy: files are open for writing there (`fuser -vm` lists them)"
        )),
        io::ErrorKind::PermissionDenied => failed(format_args!("{given}: only root can remount")),
        _ => wrong(e),
    })?;
    if wanted.read_only {
        match daemon::sync(&dir, daemon::WAIT) {
            Ok(synced) => {
                if let Some(text) = synced.refused {
                    say!("cairnfs mount: warning: {text}");
                }
                Ok(())
            }
            Err(refusal) => Err(failed(format_args!(
                "{given} is read-only now, but could not be made durable: {}",
                refusal.text
            ))),
        }
    } else {
        Ok(())
    }
}

/// The volume's canonical path. Creates the volume first with `--create`.
fn find_volume(args: &Args) -> Result<PathBuf, Failure> {
    let path = &args.volume;
    if args.create && is_unmade(path) {
        make_volume(args)?;
    }
    match path.canonicalize() {
        Err(e) if e.kind() == io::ErrorKind::NotFound && shown(path).contains("://") => {
            Err(failed(format_args!(
                "{} is no volume; if it is the URL of a backup, say which moment of it: --at now, or a time",
                shown(path)
            )))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(failed(format_args!(
            "{} does not exist: make it with `cairnfs mkfs`, or mount with --create",
            path.display()
        ))),
        other => other.map_err(|e| failed(format_args!("{}: {e}", path.display()))),
    }
}

fn make_volume(args: &Args) -> Result<(), Failure> {
    let is_sized = args.volume.metadata().is_ok_and(|file| file.len() > 0);
    let options = MakeOptions {
        size: args.size.or((!is_sized).then_some(DEFAULT_SIZE)),
        root_owner: (geteuid().as_raw(), getegid().as_raw()),
        ..MakeOptions::default()
    };
    let name = args.volume.display();
    let live = io::stderr().is_terminal();
    let mut last = u64::MAX;
    let mut progress = |done: u64, total: u64| {
        let percent = done.saturating_mul(100).checked_div(total).unwrap_or(100);
        if live && percent != last {
            last = percent;
            say::text(&format_args!("\rmaking volume {name}: {percent:3} %"));
        }
    };
    let made = cairnfs::fs::make(&args.volume, &options, &mut progress);
    if live {
        say::text(&"\r\x1b[K");
    }
    let made = made.map_err(|e| failed(format_args!("cannot make the volume {name}: {e}")))?;
    let file = std::fs::metadata(&args.volume).ok();
    let taken = file.filter(std::fs::Metadata::is_file).map(|file| {
        let taken = human(file.blocks() * 512);
        format!(" (it takes {taken} now, and more as it fills)")
    });
    let (size, taken) = (readable(made.size), taken.unwrap_or_default());
    say!("made volume {name} of {size}{taken}");
    Ok(())
}

fn readable(bytes: u64) -> String {
    let (shift, unit) = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")]
        .into_iter()
        .find(|(shift, _)| bytes >> shift > 0 && bytes.trailing_zeros() >= *shift)
        .unwrap_or((0, "bytes"));
    format!("{} {unit}", bytes >> shift)
}

/// The directory's canonical path, checked for use as a mountpoint.
fn find_dir(args: &Args, given: &Path) -> Result<PathBuf, Failure> {
    let wrong = |e: io::Error| failed(format_args!("{}: {e}", given.display()));
    let dir = match mountinfo::resolve(given) {
        Err(e) if e.kind() == io::ErrorKind::NotFound && args.create => {
            std::fs::create_dir_all(given).map_err(wrong)?;
            mountinfo::resolve(given).map_err(wrong)?
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(failed(format_args!(
                "{} does not exist: make the directory first, or mount with --create",
                given.display()
            )));
        }
        other => other.map_err(wrong)?,
    };
    clear_dead(&dir)?;
    if dir.is_dir() {
        Ok(dir)
    } else {
        Err(failed(format_args!("{} is not a directory", dir.display())))
    }
}

/// Unmounts what is mounted on `dir` if its daemon is dead. Anything else that is mounted there is
/// an error.
fn clear_dead(dir: &Path) -> Result<(), Failure> {
    let wrong = |e: io::Error| failed(format_args!("{}: {e}", dir.display()));
    while let Some(entry) = mountinfo::at(dir).map_err(wrong)? {
        let cause = match daemon::status(dir, TAKEN_WAIT) {
            Err(refusal) if refusal.cause == Cause::Gone && entry.is_fuse() => {
                mounter::unmount(dir, Way::Lazy).map_err(wrong)?;
                continue;
            }
            Err(refusal) if refusal.cause == Cause::Silent && entry.is_ours() => {
                format!(": {}", refusal.text)
            }
            _ => String::new(),
        };
        return Err(failed(format_args!(
            "{} is taken: {} ({}) is mounted there{cause}",
            shown(dir),
            shown(&entry.source),
            entry.fs_type
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use cairnfs_daemon::exit::EXIT_MOUNT;
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Whole {
        #[command(flatten)]
        args: Args,
    }

    fn parse(words: &[&str]) -> Args {
        let words = std::iter::once("mount").chain(words.iter().copied());
        Whole::try_parse_from(words).expect("valid arguments").args
    }

    #[test]
    fn size_option_requires_create() {
        assert!(Whole::try_parse_from(["mount", "--size", "1G", "v", "m"]).is_err());
        assert_eq!(
            parse(&["--create", "--size", "1G", "v", "m"]).size,
            Some(1 << 30)
        );
    }

    #[test]
    fn option_lists_are_merged() {
        let args = parse(&["-o", "ro,threads=3", "-o", "rw", "v", "m"]);
        let options = parse_options(&args).unwrap();
        assert!(!options.read_only);
        assert_eq!(options.threads, Some(3));
        let unknown = parse(&["-o", "colour=red", "v", "m"]);
        let Failure(code, text) = mount(&unknown).unwrap_err();
        assert_eq!(code, EXIT_USAGE);
        assert!(text.contains("colour=red"));
    }

    #[test]
    fn missing_volume_or_mountpoint_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("none.cairn");
        let args = parse(&[volume.to_str().unwrap(), dir.path().to_str().unwrap()]);
        let Failure(code, text) = mount(&args).unwrap_err();
        assert_eq!(code, EXIT_MOUNT);
        assert!(text.contains("mkfs") && text.contains("--create"), "{text}");

        std::fs::write(&volume, b"").unwrap();
        let missing = dir.path().join("no");
        let args = parse(&[volume.to_str().unwrap(), missing.to_str().unwrap()]);
        assert!(mount(&args).unwrap_err().1.contains("does not exist"));

        let args = parse(&[volume.to_str().unwrap(), volume.to_str().unwrap()]);
        assert!(mount(&args).unwrap_err().1.contains("not a directory"));

        let args = parse(&[volume.to_str().unwrap(), "/proc"]);
        assert!(mount(&args).unwrap_err().1.contains("is taken"));
    }

    #[test]
    fn sizes_are_readable() {
        assert_eq!(readable(64 << 30), "64 GiB");
        assert_eq!(readable(1536 << 20), "1536 MiB");
        assert_eq!(readable(1000), "1000 bytes");
    }
}
