//! `cairnfs send`: writes a snapshot as a stream.

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cairnfs::Error;

use crate::cmd::export::ArchiveFile;
use crate::failure::{AnyError, BROKEN_PIPE, Explain, Failure, shown};
use crate::interrupt;
use crate::output::Progress;
use crate::roots::{Roots, root_failure};
use crate::tree::CHUNK;
use crate::tree::typed::Typed;
use crate::volume::Access;

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
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// File or block device
    volume: PathBuf,
    /// The snapshot to send
    snapshot: String,
    /// Send only the changes since this snapshot
    #[arg(long, value_name = "SNAPSHOT")]
    from: Option<String>,
    /// Write to a file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace an existing FILE
    #[arg(short, long, requires = "output")]
    force: bool,
    /// Show no progress
    #[arg(short, long)]
    quiet: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode, AnyError> {
    match args.output.as_deref() {
        None => {
            let out = io::stdout().as_fd().try_clone_to_owned();
            let out = File::from(out.explain("standard output")?);
            to_stream(&args, out, "standard output")?;
        }
        Some(path) => match Typed::find(path)? {
            Typed::Stream(out) => to_stream(&args, out, &shown(path))?,
            Typed::Entry(place) => {
                interrupt::defer()?;
                let file = ArchiveFile::make(&place, shown(path), args.force)?;
                send(&args, file.file(), &shown(path))?;
                file.complete()?;
            }
        },
    }
    Ok(ExitCode::SUCCESS)
}

fn to_stream(args: &Args, out: File, name: &str) -> Result<(), Failure> {
    match out.is_terminal() {
        true => Err(
            Failure::new(name, "is a terminal; a stream is not for reading")
                .hint("write it to a file with -o FILE, or pipe it into `cairnfs receive VOLUME`"),
        ),
        false => send(args, &out, name),
    }
}

fn send(args: &Args, out: &File, name: &str) -> Result<(), Failure> {
    let roots = Roots::open(&args.volume, Access::Read)?;
    let progress = Progress::bytes("sending", 0, args.quiet);
    let out = Watched {
        out,
        progress: &progress,
    };
    let out = BufWriter::with_capacity(CHUNK, out);
    let sent = roots
        .volume()
        .send(out, &args.snapshot, args.from.as_deref());
    let sent = sent.map(drop).map_err(|e| failure(args, name, &e));
    sent.and(roots.close())
}

fn failure(args: &Args, name: &str, why: &Error) -> Failure {
    let path: &Path = &args.volume;
    match why {
        // Only the output is not the volume's.
        Error::Other(source) => {
            let failure = Failure::new(name, crate::failure::io_text(source));
            match source.kind() {
                ErrorKind::BrokenPipe => failure.code(BROKEN_PIPE),
                _ => failure,
            }
        }
        Error::NoSpace => Failure::new(name, why),
        Error::NoRoot { reference, .. } => root_failure(path, reference, why),
        Error::Invalid(why) => Failure::new(shown(path), why).hint(format_args!(
            "to make one: cairnfs snapshot {} NAME",
            shown(path)
        )),
        other => Failure::engine(shown(path), other),
    }
}

/// A writer that adds the bytes written to the progress, and ends on a signal that was deferred.
struct Watched<'a> {
    out: &'a File,
    progress: &'a Progress,
}

impl Write for Watched<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        interrupt::check().map_err(|e| io::Error::other(e.to_string()))?;
        let written = self.out.write(bytes)?;
        self.progress.add(written as u64);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
