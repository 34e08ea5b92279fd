//! `cairnfs run`: runs a program that asks the daemons of mounted volumes by shared memory, beside the
//! kernel, for what they can do without it.
//!
//! The program gets a library loaded that does it (`mount/preload`), and is told in its environment which
//! mounts there are. Nothing is mounted, opened or changed here.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use cairnfs_channel::call::{COUNTERS, LEFT, Op, Why};
use cairnfs_daemon::failure::{AnyError, Explain, Failure, io_text, shown};
use cairnfs_daemon::shell::{word, word_of_path};
use cairnfs_fuse::mountinfo;
use rustix::process::geteuid;
use tempfile::NamedTempFile;

use crate::handover::caller::Call;
use crate::interrupt;

const EXAMPLES: &str = "\
Examples:
  cairnfs run tar xf sources.tar          unpack in a mounted volume
  cairnfs run --stats -- cp -a src dst    with a count of what it has saved
  eval \"$(cairnfs run --env)\"             for all that this shell starts

CMD sees the same files, and does the same to them, as without this command. What
makes, renames and removes new files in volumes that you have mounted, and sets
their attributes, is asked of their daemons directly; everything else goes through
the mounts. So do programs that are linked statically, that have the set-user-id
bit, or that call the kernel without libc.

Who watches a directory (inotify) is not told of what CMD makes in it so.
Volumes that are mounted after CMD was started are served by their mounts alone.

Exit codes: that of CMD; 125 if this command fails itself; 126 CMD cannot be
executed, 127 it was not found; 128 and the number of the signal that ended CMD.";

/// The library, beside the command.
const LIBRARY: &str = "libcairnfs_preload.so";

/// Exit code if this command fails itself.
const FAILED: u8 = 125;

/// Run a program faster in mounted volumes
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Print how many calls were answered without the kernel, and why others were not
    #[arg(long)]
    stats: bool,
    /// Print commands for a shell whose programs shall run so
    #[arg(long, conflicts_with_all = ["stats", "command"])]
    env: bool,
    /// The program and its arguments
    #[arg(
        required_unless_present = "env",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    command: Vec<OsString>,
}

/// Runs the command.
///
/// # Errors
/// The library is missing; the counters cannot be made or read.
pub fn run(args: &Args) -> Result<ExitCode, AnyError> {
    Ok(attempt(args).map_err(|failure| failure.code(FAILED))?)
}

/// The environment of a program that asks the daemons of this user's mounts, as they are now; `None` without
/// the library.
pub fn environment() -> Option<[(&'static str, OsString); 2]> {
    library().ok().map(|library| variables(&library))
}

fn variables(library: &Path) -> [(&'static str, OsString); 2] {
    [("LD_PRELOAD", preload(library)), ("CAIRNFS_RUN", mounts())]
}

fn attempt(args: &Args) -> Result<ExitCode, Failure> {
    let variables = variables(&library()?);
    if args.env {
        for (name, value) in variables {
            let value = word(&value.to_string_lossy()).to_string();
            println(&format!("export {name}={value}"))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let [program, words @ ..] = &args.command[..] else {
        return Err(Failure::new("cairnfs run", "no program is given"));
    };
    let mut command = Command::new(program);
    command.args(words).envs(variables);
    if !args.stats {
        let error = command.env_remove(STATS).exec();
        return Ok(not_executed(program, &error));
    }
    let counters = counters().explain("a file for the counters")?;
    command.env(STATS, counters.path());
    // Signals of a terminal are the program's, too.
    interrupt::defer()?;
    let status = match command.spawn().and_then(|mut child| child.wait()) {
        Ok(status) => status,
        Err(error) => return Ok(not_executed(program, &error)),
    };
    say!("{}", report(&read(&counters)?));
    let signalled = || status.signal().map(|signal| signal + 128);
    let code = status
        .code()
        .or_else(signalled)
        .and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(FAILED)))
}

/// The variable with the path of the counters.
const STATS: &str = "CAIRNFS_RUN_STATS";

fn println(line: &str) -> Result<(), Failure> {
    use std::io::Write;
    writeln!(std::io::stdout(), "{line}").explain("standard output")
}

fn not_executed(program: &OsStr, error: &std::io::Error) -> ExitCode {
    Failure::new(shown(Path::new(program)), io_text(error)).tell();
    ExitCode::from(match error.kind() {
        std::io::ErrorKind::NotFound => 127,
        _ => 126,
    })
}

/// The path of the library: beside this program, or where packages put it.
fn library() -> Result<PathBuf, Failure> {
    let program = std::env::current_exe().explain("this program")?;
    let dir = program.parent().unwrap_or(Path::new("/"));
    let beside = dir.join(LIBRARY);
    let installed = dir.join("../lib/cairnfs").join(LIBRARY);
    let found = [&beside, &installed]
        .into_iter()
        .find(|path| path.is_file());
    found.cloned().ok_or_else(|| {
        let hint = format!(
            "build it (cargo build --release -p cairnfs-preload), and put it beside {}",
            word_of_path(&program)
        );
        Failure::new(shown(&beside), "the library for programs is missing").hint(hint)
    })
}

/// What is to be loaded: the library, and what was to be loaded before.
fn preload(library: &Path) -> OsString {
    let mut value = library.as_os_str().to_owned();
    let before = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let bytes = before.as_bytes();
    let others = bytes.split(|byte| matches!(byte, b':' | b' '));
    for other in others.filter(|other| !other.is_empty() && !other.ends_with(LIBRARY.as_bytes())) {
        value.push(":");
        value.push(OsStr::from_bytes(other));
    }
    value
}

/// The mounts of this user with a daemon that can be asked, for the library, which takes the first one of a
/// device: the latest, which may have been mounted over another one. Of one that is hidden by another mount it
/// finds that out itself.
fn mounts() -> OsString {
    let user = geteuid().as_raw();
    let of_user = user.to_string();
    let table = mountinfo::list(Path::new("/proc/self/mountinfo"));
    let mut value = OsString::new();
    for entry in table.into_iter().rev() {
        let is_served = entry.is_ours()
            && !entry.is_moment()
            && entry.root == Path::new("/")
            && entry.value("user_id") == Some(&of_user);
        let ask = || Call::socket_of_mount(&entry.device, user, WAIT);
        let Some(socket) = is_served.then(ask).flatten() else {
            continue;
        };
        let fields = [
            socket.as_os_str(),
            OsStr::new(&entry.device),
            entry.mountpoint.as_os_str(),
        ];
        if fields
            .iter()
            .any(|field| field.as_bytes().iter().any(|b| b"\t\n".contains(b)))
        {
            continue;
        }
        if !value.is_empty() {
            value.push("\n");
        }
        value.push(fields.join(OsStr::new("\t")));
    }
    value
}

/// Time for a daemon to say which mounts it has.
const WAIT: Duration = Duration::from_secs(1);

/// A file of counters, all 0.
fn counters() -> std::io::Result<NamedTempFile> {
    let file = NamedTempFile::new()?;
    file.as_file().set_len((COUNTERS * 8) as u64)?;
    Ok(file)
}

fn read(file: &NamedTempFile) -> Result<[u64; COUNTERS], Failure> {
    let mut bytes = [0; COUNTERS * 8];
    let read = file
        .reopen()
        .and_then(|mut file| file.read_exact(&mut bytes));
    read.explain("the counters")?;
    let mut counters = [0; COUNTERS];
    for (counter, bytes) in counters.iter_mut().zip(bytes.chunks_exact(8)) {
        *counter = bytes.try_into().map_or(0, u64::from_ne_bytes);
    }
    Ok(counters)
}

/// The name of a kind of calls in the report.
fn kind(op: Op) -> &'static str {
    match op {
        Op::Create => "files made",
        Op::Mkdir => "directories made",
        Op::Symlink => "symbolic links made",
        Op::Remove => "names removed",
        Op::Rename => "names changed",
        Op::Chmod | Op::FileChmod => "permissions set",
        Op::Chown | Op::FileChown => "owners set",
        Op::Utimens | Op::FileUtimens => "times set",
        Op::Write => "writes",
        Op::Truncate => "sizes set",
        Op::Seek | Op::Stat | Op::StatAt => "offsets, attributes, and names that are there or not",
        Op::Leave => "files handed to the kernel",
        Op::Locate => "directories handed to the kernel",
        Op::Close => "files and directories closed",
        Op::OpenDir => "directories opened",
        Op::List => "parts of listings",
        Op::Open => "files opened",
        Op::Read => "reads",
        Op::Sync => "files made durable",
    }
}

/// The reason for which calls were left to the kernel.
fn reason(why: Why) -> &'static str {
    match why {
        Why::Known => "the kernel knows the file",
        Why::Cached => "the kernel has cached names or a listing of the directory",
        Why::Permission => "permissions that only the kernel decides",
        Why::Path => "a path that only the kernel resolves",
        Why::Trouble => "it would fail, or wait for the device",
        Why::Call => "a call that is not served",
    }
}

/// What is printed behind the output of the program.
fn report(counters: &[u64; COUNTERS]) -> String {
    let mut answered: Vec<(&str, u64)> = Vec::new();
    for op in Op::ALL {
        let count = counters.get(op as usize).copied().unwrap_or_default();
        match answered.iter_mut().find(|(name, _)| *name == kind(op)) {
            Some((_, sum)) => *sum += count,
            None => answered.push((kind(op), count)),
        }
    }
    let left = Why::ALL.map(|why| {
        let count = counters.get(LEFT + why as usize).copied();
        (reason(why), count.unwrap_or_default())
    });
    let mut text = "cairnfs run: calls answered without the kernel:".to_owned();
    add(&mut text, &answered);
    text.push_str("\nleft to the kernel:");
    add(&mut text, &left);
    text
}

fn add(text: &mut String, rows: &[(&str, u64)]) {
    let rows: Vec<_> = rows.iter().filter(|(_, count)| *count > 0).collect();
    for (name, count) in &rows {
        let _ = write!(text, "\n  {count:>10}  {name}");
    }
    if rows.is_empty() {
        text.push_str(" none");
    }
}
