//! The daemon: opens a volume, serves its mounts, and closes it when the last one has ended.
//!
//! Runs in the process that `cairnfs mount` starts, or in the command itself with `--foreground`.
//! Everything that fails before the mount is live is told to the caller; later messages go to the
//! log.
//!
//! # The life of a daemon
//!
//! | From | To | Caused by | A command that calls then |
//! |---|---|---|---|
//! | | open | `opening::open`, which locks the volume file | finds no socket, or that of a killed daemon |
//! | | refused | the volume is in use: the caller is told [`IN_USE`] and decides | is served by the other daemon |
//! | open | reachable | `ControlSocket::open`; without a socket the daemon goes on with its one mount | waits for its answer |
//! | reachable | mounted | `MountService::mount_first` | waits for its answer |
//! | reachable | closing | the mount fails: `Callers` is dropped | finds that there is no daemon |
//! | mounted | serving | `Callers::answer`, then the worker of backups, then [`READY`] is told | is answered |
//! | mounted | closing | no thread for the worker of backups: the mount is broken off | is answered, until the process ends |
//! | serving | serving | a command hands a mount over (`MountService::serve`), or a mount ends | is answered |
//! | serving | ending | the last mount ends, or a signal ends all (`Sessions`): no mount is accepted from then on | is told that the volume is being closed |
//! | ending | closing | commands that it performs have ended, or took too long; the last moment of a backup is stored, or is not, which is told | the same |
//! | closing | closed | `FileSystem::close_with`: everything is durable, the socket's name goes, then the lock | waits, and tries again |
//! | any | killed | | the next daemon replaces the socket and replays the log |
//!
//! 1. From the first mount on there is a socket, unless none could be made, which is told.
//! 2. Callers are answered only after the first mount. If it fails, none is answered.
//! 3. The registry of mounts closes with the last one, in the same moment: what was handed over before
//!    is served, what comes later is refused.
//! 4. The socket's name goes before the lock of the volume: it is never that of the next daemon.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use cairnfs::fs::FileSystem;
use cairnfs_fuse::apart::Apart;
use cairnfs_fuse::{MountOptions, Sessions, status};

use crate::backup_worker::{BackupWorker, Orders};
use crate::commands::Commands;
use crate::damage::{left_out, unknown_space};
use crate::exit::{Failure, failed};
use crate::failure::shown;
use crate::handover::control_socket::{Callers, ControlSocket, MountPolicy};
use crate::mount_service::MountService;
use crate::notify;
use crate::opening;
use crate::opening::OpenVolume;
use crate::shell::{word, word_of_path};
use crate::syslog::Syslog;
use crate::times::utc_time;

/// The daemon's message when the mount is live.
pub const READY: &str = "ready";

/// Prefix of the daemon's message if the volume is in use; the reason follows.
pub const IN_USE: &str = "in use: ";

/// Opens what is mounted in place of a volume of this machine.
pub type Opener<'a> = &'a dyn Fn() -> Result<Arc<FileSystem>, Failure>;

/// How a volume is served.
pub struct Service<'a> {
    /// Its path, or the URL of a backup.
    pub volume: &'a Path,
    /// The directory of the first mount.
    pub dir: &'a Path,
    /// The options of the first mount.
    pub options: &'a MountOptions,
    /// Opens the moment of a backup that is mounted, read-only.
    pub moment: Option<Opener<'a>>,
    /// Whether messages go to the terminal if there is no log.
    pub foreground: bool,
    /// Whether this process was started for it, and leaves the terminal once the mount is live.
    pub detached: bool,
    /// Whether messages on a terminal are all of them, not warnings only.
    pub verbose: bool,
    /// A file that messages go to.
    pub log: Option<&'a Path>,
    /// The commands that it performs for other processes.
    pub commands: Commands,
    /// The arguments of this program that make a call for it, before those of the call.
    pub apart: &'static [&'static str],
}

/// Opens the volume, serves its mounts until the last one has ended, and closes it.
///
/// # Errors
/// It was not mounted, or could not be closed; which is told where messages go, too.
pub fn serve(service: &Service<'_>) -> Result<(), Failure> {
    let (volume, options) = (service.volume, service.options);
    start_log(service).map_err(failed)?;
    if service.detached {
        // Fails only for the leader of a process group, which has no terminal to lose here.
        let _ = rustix::process::setsid();
        std::env::set_current_dir("/").map_err(failed)?;
        std::panic::set_hook(Box::new(|info| tracing::error!("{info}")));
    }
    let name = volume.display();
    let opened = match service.moment {
        Some(open) => Ok(open()?),
        None => opening::open(volume, options),
    };
    let fs = match opened {
        Err(opening::Unopened::InUse(why)) if service.detached => {
            // The command that has started this process decides what follows.
            let _ = writeln!(io::stdout(), "{IN_USE}{why}");
            return Err(failed(""));
        }
        other => other?,
    };
    warn_of_damage(&fs);
    let open = Arc::new(OpenVolume::new(fs));
    let mut socket = None;
    let served = serve_all(service, &open, &mut socket);
    let fs = open.get();
    // Until the next daemon can have the socket, commands are told to wait.
    let closed = fs.close_with(|| drop(socket));
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
    if !logs_to_terminal(service) {
        tracing::error!("{last_words}");
    }
    Err(failed(last_words))
}

/// Warns of damage of the volume, although it can be read.
fn warn_of_damage(fs: &FileSystem) {
    let info = fs.info();
    if let Some(damage) = &info.space {
        say!("cairnfs mount: warning: {}", unknown_space(damage));
    }
    if info.left_out > 0 {
        say!("cairnfs mount: warning: {}", left_out(info.left_out));
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

/// Serves the first mount, and those that commands hand over at `socket`, until the last one has ended.
fn serve_all(
    service: &Service<'_>,
    open: &Arc<OpenVolume>,
    socket: &mut Option<ControlSocket>,
) -> Result<(), Failure> {
    let (volume, options) = (service.volume, service.options);
    let sessions = Arc::new(Sessions::with(Apart::by_program(service.apart)));
    sessions.watch_signals(!service.detached).map_err(failed)?;
    let (orders, taken) = Orders::of(options).map_err(failed)?.unzip();
    let first = (options, service.commands);
    let mounts = MountService::new(Arc::clone(open), volume, first, &sessions);
    let mounts = Arc::new(mounts.with_backup(orders.clone()));
    // There is no moment at which the volume is mounted and nobody could be asked.
    let (opened, callers) = open_socket(service, &open.get()).unzip();
    *socket = opened;
    mounts.mount_first(service.dir)?;
    if let Some(Err(error)) = callers.map(|callers| callers.answer(Arc::clone(&mounts))) {
        *socket = None;
        warn_of_no_socket(&error);
    }
    let worker = orders.zip(taken).map(|orders| {
        let begun = BackupWorker::begin(orders, (open, volume, &sessions), options);
        begun.map_err(failed)
    });
    let worker = worker.transpose()?;
    announce(service);
    let served = sessions.wait().map_err(failed);
    if let Some(unshipped) = worker.and_then(BackupWorker::finish) {
        let text = unshipped_text(options, volume, &unshipped);
        tracing::error!("{text}");
        mounts.end_notice().say(&text);
    }
    served
}

/// Opens the socket at which commands call, if there is to be one.
fn open_socket(service: &Service<'_>, fs: &FileSystem) -> Option<(ControlSocket, Callers)> {
    if service.moment.is_some() {
        return None;
    }
    let opened = ControlSocket::open(service.volume, !fs.is_read_only());
    opened.inspect_err(warn_of_no_socket).ok()
}

fn warn_of_no_socket(error: &io::Error) {
    tracing::warn!("no other branch can be mounted beside this one: no socket: {error}");
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

fn logs_to_terminal(service: &Service<'_>) -> bool {
    service.foreground && service.log.is_none()
}

/// Messages go to the log file; without one, to the terminal in the foreground, else to syslog.
fn start_log(service: &Service<'_>) -> Result<(), String> {
    let level = if logs_to_terminal(service) && !service.verbose {
        tracing::Level::WARN
    } else {
        tracing::Level::INFO
    };
    let log = tracing_subscriber::fmt().with_max_level(level);
    // It would panic if standard error cannot be written either.
    let log = log.log_internal_errors(false);
    match service.log {
        Some(path) => {
            let file = OpenOptions::new()
                .create(true)
                .append(true)
                .open(path)
                .map_err(|e| format!("{}: {e}", path.display()))?;
            log.with_ansi(false).with_writer(Mutex::new(file)).init();
        }
        None if service.foreground => {
            let colours = io::stderr().is_terminal();
            log.with_ansi(colours).with_writer(io::stderr).init();
        }
        None => {
            let syslog = Syslog::about(service.volume).map_err(|e| format!("syslog: {e}"))?;
            // The system's log has a time, a level and a name for each message itself.
            let bare = log.without_time().with_level(false).with_target(false);
            bare.with_ansi(false).with_writer(syslog).init();
        }
    }
    Ok(())
}

/// Reports that the mount is live, and leaves the terminal if in the background.
fn announce(service: &Service<'_>) {
    let (volume, dir) = (service.volume.display(), service.dir.display());
    tracing::info!("mounted {volume} on {dir}");
    if let Err(e) = notify::ready() {
        tracing::warn!("cannot tell the service manager that the mount is live: {e}");
    }
    if !service.detached {
        say!("mounted {volume} on {dir}; Ctrl-C unmounts");
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
