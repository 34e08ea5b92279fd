//! `cairnfs cat`: writes the contents of files in volumes to standard output.

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use cairnfs_daemon::failure::{AnyError, Failure};
use cairnfs_daemon::shell::word;
use cairnfs_disk::types::FileKind;

use crate::output::Progress;
use crate::spec::VolumePath;
use crate::tree::stream_sink::StreamSink;
use crate::tree::volume_source::VolumeSource;
use crate::tree::{Copier, Keep};
use crate::volume_by_path::{Access, LastLink, Volume};

const EXAMPLES: &str = "\
Examples:
  cairnfs cat disk.img:/etc/hosts
  cairnfs cat disk.img:/log/a disk.img:/log/b | sort
  cairnfs cat disk.img@monday:/notes          as a snapshot has it

Unreadable ranges of a file are written as zeros, and reported with path and
range. The files after one that fails are written all the same.

Exit codes: 0 all was written, 1 something was not, 2 wrong arguments.";

/// Write files of a volume to standard output
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Files, as VOLUME:PATH, or VOLUME@NAME:/PATH in a branch or snapshot
    #[arg(required = true, value_name = "VOLUME[@NAME]:PATH")]
    files: Vec<OsString>,
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode, AnyError> {
    let mut open: Option<Volume> = None;
    let progress = Progress::bytes("", 0, true);
    let mut copier = Copier::new(Keep::PLAIN, &progress);
    let mut sink = StreamSink::new(io::stdout().lock(), "standard output".into());
    for arg in &args.files {
        if let Some(mut source) = copier.done(file(arg, &mut open))? {
            copier.copy(&mut source, &mut sink, Vec::new())?;
        }
    }
    Ok(ExitCode::from(u8::from(copier.summary.failed > 0)))
}

/// A file of a volume. The volume is opened unless it is the last one used.
fn file(arg: &OsString, open: &mut Option<Volume>) -> Result<VolumeSource, Failure> {
    let place = VolumePath::parse(arg)?;
    let same = match open.take() {
        Some(last) => last.of(&place, Access::Read)?,
        None => None,
    };
    let volume = match same {
        Some(tree) => tree,
        None => Volume::open(&place, Access::Read)?,
    };
    let volume = open.insert(volume).clone();
    let node = volume.find(&place.inside, LastLink::Follow)?;
    if node.is_dir() {
        return Err(Failure::new(place.shown(), "is a directory")
            .hint(format!("to list it: cairnfs ls {}", word(&place.shown()))));
    }
    if node.attr.kind != FileKind::File {
        return Err(Failure::new(place.shown(), "is no regular file")
            .hint("only regular files have contents; to see what it is: cairnfs ls -l"));
    }
    Ok(VolumeSource::new(volume, 0, node, place.inside))
}
