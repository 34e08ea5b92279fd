//! `cairnfs receive`: makes a snapshot of a stream.

use std::fs::File;
use std::io::{self, BufReader, IsTerminal, Read};
use std::path::PathBuf;

use cairnfs::Error;
use cairnfs_daemon::failure::{AnyError, Explain, Failure, io_text, shown};
use cairnfs_daemon::raw_path;
use cairnfs_daemon::reference::change_failure;
use serde::{Deserialize, Serialize};

use crate::opened_roots::{JsonRoot, Roots, Telling, show_name};
use crate::output::Progress;
use crate::stage::Stage;
use crate::tree::CHUNK;

const EXAMPLES: &str = "\
Examples:
  cairnfs receive backup.img monday.stream
  cairnfs send disk.img monday | cairnfs receive backup.img --name monday
  zstd -dc tuesday.zst | cairnfs receive backup.img

What `cairnfs send` wrote becomes a snapshot; other files of the volume stay as
they are. Without --name it is called after the time (received-...). It is
there, and durable, when all of the stream was read and its checksums were
right. A stream that is damaged, cut off or hostile, a full volume, a signal or
a power cut leave nothing. Memory is bounded.

A stream of changes (send --from) needs the snapshot that it builds on: one that
this volume has received from the same sender, or has sent itself.

Exit codes: 0 received, 1 not received, 2 wrong arguments, 74 received, but that
could not be printed.";

/// Make a snapshot of a stream
#[derive(Debug, clap::Args, Serialize, Deserialize)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The volume, or where it is mounted
    #[serde(with = "raw_path")]
    pub volume: PathBuf,
    /// The stream [default: standard input]
    #[serde(with = "raw_path::option")]
    file: Option<PathBuf>,
    /// Name of the snapshot
    // What begins like an option is refused with the rules for names.
    #[arg(short, long, allow_hyphen_values = true)]
    name: Option<String>,
    #[command(flatten)]
    telling: Telling,
}

/// The file of the arguments, which replaces standard input.
fn file(args: &Args) -> Option<&PathBuf> {
    args.file.as_ref().filter(|path| path.as_os_str() != "-")
}

/// The name of the input in messages.
fn name(args: &Args) -> String {
    file(args).map_or_else(|| "standard input".to_owned(), |path| shown(path))
}

/// Opens what replaces standard input.
///
/// # Errors
/// It cannot be opened, or the input is a terminal.
pub fn open(args: &Args, stage: &Stage) -> Result<Option<File>, Failure> {
    let input = match file(args) {
        Some(path) => Some(File::open(path).explain(shown(path))?),
        None => None,
    };
    if input.as_ref().unwrap_or(stage.input()).is_terminal() {
        return Err(Failure::new(name(args), "is a terminal, not a stream")
            .hint("name a FILE, or pipe the output of `cairnfs send` into this command"));
    }
    stage.defer_interrupts()?;
    Ok(input)
}

/// Performs the command: reads from standard input, whatever the arguments say.
pub fn perform(args: &Args, roots: &Roots<'_>) -> Result<u8, AnyError> {
    let (from, stage) = (name(args), roots.stage());
    let size = stage.input().metadata().explain(&from)?.len();
    let progress = stage.bytes("receiving", size, args.telling.quiet);
    let input = Watched {
        stage,
        progress: &progress,
    };
    let input = BufReader::with_capacity(CHUNK, input);
    let received = roots.volume().receive_root(input, args.name.as_deref());
    let root = received.map_err(|e| match (&e, &args.name) {
        (Error::Other(source), _) => Failure::new(&from, io_text(source)),
        (Error::Stream(_) | Error::NoBase { .. }, _) => Failure::new(&from, &e),
        (Error::NoSpaceForStream { .. }, _) | (_, None) => Failure::engine(shown(&args.volume), &e),
        (_, Some(name)) => change_failure(&args.volume, name, &e),
    })?;
    drop(progress);
    let line = format!("Received the snapshot {}", show_name(&root));
    args.telling.tell(stage, &JsonRoot::from(&root), &[line])?;
    Ok(0)
}

/// A reader that adds the bytes read to the progress, and ends on a signal that was deferred.
struct Watched<'a> {
    stage: &'a Stage,
    progress: &'a Progress,
}

impl Read for Watched<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let checked = self.stage.check();
        checked.map_err(|e| io::Error::other(e.to_string()))?;
        self.stage.wait_for_input()?;
        let read = self.stage.input().read(buf)?;
        self.progress.add(read as u64);
        Ok(read)
    }
}
