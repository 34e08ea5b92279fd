//! `cairnfs cat`: contents of files in volumes, on standard output.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use crate::failure::{AnyError, Explain, Failure};
use crate::spec::VolumePath;
use crate::tree::CHUNK;
use crate::volume::{Access, LastLink, Volume};

const EXAMPLES: &str = "\
Examples:
  cairnfs cat disk.img:/etc/hosts
  cairnfs cat disk.img:/log/a disk.img:/log/b | sort

Exit codes: 0 all was written, 1 something was not.";

/// Write files of a volume to standard output
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Files, as VOLUME:PATH
    #[arg(required = true, value_name = "VOLUME:PATH")]
    files: Vec<OsString>,
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode, AnyError> {
    let mut open: Option<Volume> = None;
    for arg in &args.files {
        let place = VolumePath::parse(arg)?;
        let volume = match open.take() {
            Some(volume) if volume.path() == place.volume => volume,
            _ => Volume::open(&place.volume, Access::Read)?,
        };
        one(&volume, &place)?;
        open = Some(volume);
    }
    Ok(ExitCode::SUCCESS)
}

fn one(volume: &Volume, place: &VolumePath) -> Result<(), Failure> {
    let node = volume.find(&place.inside, LastLink::Follow)?;
    if node.is_dir() {
        return Err(Failure::new(place.shown(), "is a directory")
            .hint(format!("to list it: cairnfs ls {}", place.shown())));
    }
    let mut out = io::stdout().lock();
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    loop {
        let got = volume
            .fs()
            .read(node.ino(), at, &mut buffer)
            .explain(place.shown())?;
        if got == 0 {
            break;
        }
        out.write_all(buffer.get(..got).unwrap_or_default())
            .explain("standard output")?;
        at += got as u64;
    }
    out.flush().explain("standard output")
}
