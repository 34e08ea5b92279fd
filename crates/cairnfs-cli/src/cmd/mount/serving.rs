//! The daemon: opens a volume, serves its mounts, and closes it when the last one has ended.
//!
//! Runs in the process that `cairnfs mount` starts, or in the command itself with `--foreground`.
//! Everything that fails before the mount is live is told to the caller; later messages go to the
//! log.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use cairnfs::fs::FileSystem;
use cairnfs_fuse::apart::Apart;
use cairnfs_fuse::{MountOptions, Sessions, status};

use super::carrier::{Carrier, Orders};
use super::clerk::House;
use super::opening::OpenVolume;
use super::{Args, Failure, IN_USE, READY, failed, opening};
use crate::cmd::sync;
use crate::failure::shown;
use crate::handover::desk::{Clerk, Desk};
use crate::notify;
use crate::output::{utc_time, word, word_of_path};
use crate::syslog::Syslog;
use crate::volume::unknown_space;

/// Opens the volume, serves its mounts until the last one has ended, and closes it.
pub(super) fn serve(
    args: &Args,
    volume: &Path,
    dir: &Path,
    options: &MountOptions,
) -> Result<(), Failure> {
    start_log(args, volume).map_err(failed)?;
    if args.detached {
        // Fails only for the leader of a process group, which has no terminal to lose here.
        let _ = rustix::process::setsid();
        std::env::set_current_dir("/").map_err(failed)?;
        std::panic::set_hook(Box::new(|info| tracing::error!("{info}")));
    }
    let name = volume.display();
    let opened = match args.moment.is_given() {
        true => Ok(args.moment.open(volume, options)?),
        false => opening::open(volume, options),
    };
    let fs = match opened {
        Err(opening::Unopened::InUse(why)) if args.detached => {
            // The command that has started this process decides what follows.
            let _ = writeln!(io::stdout(), "{IN_USE}{why}");
            return Err(failed(""));
        }
        other => other?,
    };
    warn_of_damage(&fs);
    let open = Arc::new(OpenVolume::new(fs));
    let mut desk = None;
    let served = serve_all(args, volume, dir, (&open, options), &mut desk);
    let fs = open.get();
    // Until the next daemon can have the socket, commands are told to wait.
    let closed = fs.close_with(|| drop(desk));
    let last_words = match (fs.failure(), served, closed) {
        (Some(failure), ..) => status::stopped_by(volume, &failure),
        (None, Err(Failure(_, why)), _) => why,
        (None, Ok(()), Err(cairnfs::Error::HostFull { missing, .. })) => format!(
            "closing {name}: the file system that holds it is full: {missing} bytes of changes that were \
             not durable are lost"
        ),
        (None, Ok(()), Err(e)) => format!("closing {name}: {e}"),
        (None, Ok(()), Ok(())) => {
            tracing::info!("closed {name}");
            return Ok(());
        }
    };
    // On a terminal, the caller prints the failure itself.
    if !logs_to_terminal(args) {
        tracing::error!("{last_words}");
    }
    Err(failed(last_words))
}

/// Says what of the volume is not as it should be, although it can be read.
fn warn_of_damage(fs: &FileSystem) {
    let info = fs.info();
    if let Some(damage) = &info.space {
        say!("cairnfs mount: warning: {}", unknown_space(damage));
    }
    if let Some(older) = &info.older {
        let changed = older.changed.map_or("unknown".to_owned(), utc_time);
        say!(
            "cairnfs mount: warning: the newest state is lost ({}): this is the one before, whose \
             newest file changed at {changed}; everything later is missing",
            older.damage
        );
    }
}

/// Serves the first mount, and those that commands hand over at `desk`, until the last one has ended.
fn serve_all(
    args: &Args,
    volume: &Path,
    dir: &Path,
    (open, options): (&Arc<OpenVolume>, &MountOptions),
    desk: &mut Option<Desk>,
) -> Result<(), Failure> {
    let sessions = Arc::new(Sessions::with(Apart::by_program(sync::APART)));
    sessions.watch_signals(!args.detached).map_err(failed)?;
    let (orders, taken) = Orders::of(options).map_err(failed)?.unzip();
    let house = House::new(Arc::clone(open), volume, options, &sessions);
    let house = Arc::new(house.with_backup(orders.clone()));
    house.mount_first(dir)?;
    let alone = !open.get().is_read_only();
    if !args.moment.is_given() {
        match Desk::open(volume, alone, Arc::clone(&house)) {
            Ok(open) => *desk = Some(open),
            Err(error) => {
                tracing::warn!(
                    "no other branch can be mounted beside this one: no socket: {error}"
                );
            }
        }
    }
    let carrier = orders.zip(taken).map(|orders| {
        let begun = Carrier::begin(orders, (open, volume, &sessions), options);
        begun.map_err(failed)
    });
    let carrier = carrier.transpose()?;
    announce(args, volume, dir);
    let served = sessions.wait().map_err(failed);
    if let Some(unshipped) = carrier.and_then(Carrier::finish) {
        let text = unshipped_text(options, volume, &unshipped);
        tracing::error!("{text}");
        house.farewell().say(&text);
    }
    served
}

/// What is said when the last moment of a backup was not stored.
fn unshipped_text(options: &MountOptions, volume: &Path, why: &str) -> String {
    let url = cairnfs_backup::shown(options.backup.as_deref().unwrap_or_default());
    format!(
        "the last moment of {name} was not stored in {url}, so that the newest changes are on this \
         machine only: {why}; to do: cairnfs backup {} {}",
        word_of_path(volume),
        word(&url),
        name = shown(volume),
    )
}

fn logs_to_terminal(args: &Args) -> bool {
    args.foreground && args.log.is_none()
}

/// Messages go to the log file; without one, to the terminal in the foreground, else to syslog.
fn start_log(args: &Args, volume: &Path) -> Result<(), String> {
    let level = match logs_to_terminal(args) && !args.verbose {
        true => tracing::Level::WARN,
        false => tracing::Level::INFO,
    };
    let log = tracing_subscriber::fmt().with_max_level(level);
    // It would panic if standard error cannot be written either.
    let log = log.log_internal_errors(false);
    match &args.log {
        Some(path) => {
            let file = OpenOptions::new()
                .create(true)
                .append(true)
                .open(path)
                .map_err(|e| format!("{}: {e}", path.display()))?;
            log.with_ansi(false).with_writer(Mutex::new(file)).init();
        }
        None if args.foreground => {
            let colours = io::stderr().is_terminal();
            log.with_ansi(colours).with_writer(io::stderr).init();
        }
        None => {
            let syslog = Syslog::about(volume).map_err(|e| format!("syslog: {e}"))?;
            // The system's log has a time, a level and a name for each message itself.
            let bare = log.without_time().with_level(false).with_target(false);
            bare.with_ansi(false).with_writer(syslog).init();
        }
    }
    Ok(())
}

/// Reports that the mount is live, and leaves the terminal if in the background.
fn announce(args: &Args, volume: &Path, dir: &Path) {
    tracing::info!("mounted {} on {}", volume.display(), dir.display());
    if let Err(e) = notify::ready() {
        tracing::warn!("cannot tell the service manager that the mount is live: {e}");
    }
    if !args.detached {
        say!(
            "mounted {} on {}; Ctrl-C unmounts",
            volume.display(),
            dir.display()
        );
        return;
    }
    if let Err(e) = leave_terminal() {
        tracing::warn!("cannot leave the terminal: {e}");
    }
}

fn leave_terminal() -> io::Result<()> {
    let mut stdout = io::stdout();
    writeln!(stdout, "{READY}")?;
    stdout.flush()?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}
