//! `cairnfs receive`: makes a snapshot of a stream.

use std::fs::File;
use std::io::{self, BufReader, IsTerminal, Read};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;

use cairnfs::Error;

use crate::failure::{AnyError, Explain, Failure, io_text, shown};
use crate::interrupt;
use crate::output::Progress;
use crate::roots::{JsonRoot, Roots, Telling, change_failure, root_failure, show_name};
use crate::tree::CHUNK;
use crate::volume::Access;

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

Exit codes: 0 received, 1 not received, 2 wrong arguments.";

/// Make a snapshot of a stream
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// File or block device
    volume: PathBuf,
    /// The stream [default: standard input]
    file: Option<PathBuf>,
    /// Name of the snapshot
    #[arg(short, long)]
    name: Option<String>,
    #[command(flatten)]
    telling: Telling,
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode, AnyError> {
    let (input, from, size) = match args.file.as_deref() {
        Some(path) if path.as_os_str() != "-" => {
            let file = File::open(path).explain(shown(path))?;
            let size = file.metadata().explain(shown(path))?.len();
            (file, shown(path), size)
        }
        _ => {
            let input = io::stdin().as_fd().try_clone_to_owned();
            let input = File::from(input.explain("standard input")?);
            (input, "standard input".to_owned(), 0)
        }
    };
    if input.is_terminal() {
        return Err(Failure::new(from, "is a terminal, not a stream")
            .hint("name a FILE, or pipe the output of `cairnfs send` into this command")
            .into());
    }
    interrupt::defer()?;
    let roots = Roots::open(&args.volume, Access::Write)?;
    let progress = Progress::bytes("receiving", size, args.telling.quiet);
    let input = Watched {
        input,
        progress: &progress,
    };
    let input = BufReader::with_capacity(CHUNK, input);
    let received = roots.volume().receive(input, args.name.as_deref());
    let received = received.map_err(|e| match &e {
        Error::Other(source) => Failure::new(&from, io_text(source)),
        Error::Stream(_) | Error::NoBase { .. } => Failure::new(&from, &e),
        _ => change_failure(&args.volume, args.name.as_deref().unwrap_or_default(), &e),
    });
    let received = received.and_then(|name| {
        let root = roots.volume().find_root(&name);
        root.map_err(|e| root_failure(&args.volume, &name, &e))
    });
    let closed = roots.close();
    let root = received?;
    closed?;
    let line = format!("Received the snapshot {}", show_name(&root));
    args.telling.tell(&JsonRoot::from(&root), &[line])?;
    Ok(ExitCode::SUCCESS)
}

/// A reader that adds the bytes read to the progress, and ends on a signal that was deferred.
struct Watched<'a> {
    input: File,
    progress: &'a Progress,
}

impl Read for Watched<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        interrupt::check().map_err(|e| io::Error::other(e.to_string()))?;
        interrupt::wait(&self.input)?;
        let read = self.input.read(buf)?;
        self.progress.add(read as u64);
        Ok(read)
    }
}
