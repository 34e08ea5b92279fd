//! `cairnfs send`: writes a snapshot as a stream.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};

use cairnfs::Error;
use cairnfs_daemon::failure::{AnyError, BROKEN_PIPE, Explain, Failure, shown};
use cairnfs_daemon::raw_path;
use cairnfs_daemon::reference::name_of;
use cairnfs_daemon::shell::word_of_path;
use serde::{Deserialize, Serialize};

use crate::opened_roots::Roots;
use crate::output::Progress;
use crate::stage::Stage;
use crate::tree::CHUNK;
use crate::tree::typed::Typed;
use crate::tree::whole_file::WholeFile;

const EXAMPLES: &str = "\
Examples:
  cairnfs send disk.img monday -o monday.stream
  cairnfs send disk.img monday | cairnfs receive backup.img
  cairnfs send disk.img tuesday --from monday | ssh host cairnfs receive disk.img
  cairnfs send disk.img tuesday | zstd > tuesday.zst

A stream has everything: contents with their holes, names, hard links, modes,
owners, times to the nanosecond, extended attributes and access lists. It has
checksums, and its format is documented (docs/stream-format.md). With --from it
has only what has changed since that snapshot, which the receiving volume must
have received before (or be the same volume); it takes as long as there are
changes. Memory is bounded.

A snapshot is NAME, BRANCH@SNAPSHOT or BRANCH@TIME. A branch changes while it is
sent, and is refused: send a snapshot of it.

An existing FILE is replaced when the stream is complete; a send that is killed
outright can leave a part of a new one. A FILE that is a volume is refused.

Exit codes: 0 sent, 1 not sent, or not all of it, 2 wrong arguments.";

/// Write a snapshot as a stream, whole or as changes
#[derive(Debug, clap::Args, Serialize, Deserialize)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The volume, or where it is mounted
    #[serde(with = "raw_path")]
    pub volume: PathBuf,
    /// The snapshot to send
    snapshot: String,
    /// Send only the changes since this snapshot
    #[arg(long, value_name = "SNAPSHOT")]
    from: Option<String>,
    /// Write to a file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    #[serde(with = "raw_path::option")]
    output: Option<PathBuf>,
    /// Replace an existing FILE
    #[arg(short, long, requires = "output")]
    force: bool,
    /// Show no progress
    #[arg(short, long)]
    quiet: bool,
}

/// What to do if the stream cannot be made under its name.
const OTHERWISE: &str =
    "use --force to overwrite it; to write to a device: cairnfs send VOLUME REF > FILE";

/// Where the stream goes.
pub struct Target {
    /// Instead of standard output.
    stream: Option<File>,
    /// A file that gets its name when it is complete.
    file: Option<WholeFile>,
}

impl Target {
    /// Opens it.
    ///
    /// # Errors
    /// A file that exists, or cannot be made; a terminal.
    pub fn open(args: &Args, stage: &Stage) -> Result<Self, Failure> {
        let (mut stream, mut file) = (None, None);
        let name = name(args);
        match args.output.as_deref().map(Typed::find).transpose()? {
            Some(Typed::Stream(out)) => stream = Some(out),
            Some(Typed::Entry(place)) => {
                stage.defer_interrupts()?;
                file = Some(WholeFile::make(
                    &place,
                    name.clone(),
                    args.force,
                    OTHERWISE,
                )?);
            }
            None => {}
        }
        if file.is_none() && stream.as_ref().unwrap_or(stage.output()).is_terminal() {
            return Err(
                Failure::new(name, "is a terminal; a stream is not for reading").hint(
                    "write it to a file with -o FILE, or pipe it into `cairnfs receive VOLUME`",
                ),
            );
        }
        Ok(Self { stream, file })
    }

    /// What replaces standard output.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn output(&mut self) -> Result<Option<File>, Failure> {
        let file = self.file.as_ref().map(|file| file.file().try_clone());
        let file = file.transpose().explain("descriptors")?;
        Ok(file.or(self.stream.take()))
    }

    /// Gives a file its name, when everything was sent.
    ///
    /// # Errors
    /// It cannot be made durable or named.
    pub fn complete(self) -> Result<(), Failure> {
        self.file.map_or(Ok(()), WholeFile::complete)
    }
}

fn name(args: &Args) -> String {
    match &args.output {
        Some(path) => shown(path),
        None => "standard output".to_owned(),
    }
}

/// Performs the command: writes to standard output, whatever the arguments say.
pub fn perform(args: &Args, roots: &Roots<'_>) -> Result<u8, AnyError> {
    let stage = roots.stage();
    let progress = stage.bytes("sending", 0, args.quiet);
    let begun = Cell::new(false);
    let send = || {
        let snapshot = roots.find(&args.snapshot)?;
        let from = args.from.as_deref().map(|from| roots.find(from));
        let from = from.transpose()?;
        let out = Watched {
            stage,
            progress: &progress,
            begun: &begun,
        };
        let out = BufWriter::with_capacity(CHUNK, out);
        let sent = roots
            .volume()
            .send(out, name_of(&snapshot), from.as_ref().map(name_of));
        let failed = |e| failure(args, &name(args), &e);
        match sent {
            // What was written already cannot be taken back.
            Err(e) if begun.get() => Ok(Err(failed(e))),
            sent => sent.map(|_| Ok(())).map_err(failed),
        }
    };
    let references: Vec<&str> = std::iter::once(&args.snapshot)
        .chain(&args.from)
        .map(String::as_str)
        .collect();
    roots.with(&references, send)??;
    Ok(0)
}

fn failure(args: &Args, name: &str, why: &Error) -> Failure {
    let path: &Path = &args.volume;
    match why {
        // Only the output is not the volume's.
        Error::Other(source) => {
            let failure = Failure::new(name, cairnfs_daemon::failure::io_text(source));
            match source.kind() {
                ErrorKind::BrokenPipe => failure.code(BROKEN_PIPE),
                _ => failure,
            }
        }
        Error::NoSpace => Failure::new(name, why),
        Error::Invalid(why) => Failure::new(shown(path), why).hint(format_args!(
            "to make one: cairnfs snapshot {} NAME",
            word_of_path(path)
        )),
        other => Failure::engine(shown(path), other),
    }
}

/// A writer that adds the bytes written to the progress, and ends on a signal that was deferred.
struct Watched<'a> {
    stage: &'a Stage,
    progress: &'a Progress,
    /// Whether anything was written.
    begun: &'a Cell<bool>,
}

impl Write for Watched<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let checked = self.stage.check();
        checked.map_err(|e| io::Error::other(e.to_string()))?;
        self.begun.set(true);
        let written = self.stage.output().write(bytes)?;
        self.progress.add(written as u64);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stage.output().flush()
    }
}
