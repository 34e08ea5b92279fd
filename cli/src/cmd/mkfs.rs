//! `cairnfs mkfs`: makes a volume.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cairnfs::Error;
use cairnfs::fs::{MakeOptions, make};
use cairnfs_daemon::failure::{AnyError, Failure, shown, told};
use cairnfs_disk::device::HostRoom;
use cairnfs_disk::types::{VolumeInfo, uuid_text};
use serde::Serialize;

use crate::output::{self, Progress};
use crate::size;
use crate::volume_by_path::caller;

/// Default size of a new image file, in bytes.
pub const DEFAULT_SIZE: u64 = 64 << 30;

const EXAMPLES: &str = "\
Examples:
  cairnfs mkfs disk.img                       an image file of up to 64 GiB
  cairnfs mkfs --size 10G --label work a.img
  cairnfs mkfs /dev/sdb1                      all of a device

A file or device is empty if its first megabyte is zeros; --force overwrites
any other. An image file is sparse: it takes the space of its log (1/32 of the
size, 4 MiB to 256 MiB) at once, and the rest as files are stored. SIZE is
bytes, or a number with K, M, G or T (powers of 1024). A new image file is
accessible to its owner only (mode 0600), because it holds all files of the
volume; an existing one keeps its permissions.

Exit codes: 0 made, 1 not made, 74 made, but that could not be printed.";

/// Make a volume in a file or on a block device
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// File or block device; a file is created if it does not exist
    volume: PathBuf,
    /// Size of the volume [default: the device's or file's; 64G for a new file]
    #[arg(short, long, value_parser = size::parse)]
    size: Option<u64>,
    /// Name of the volume, up to 64 bytes
    #[arg(short = 'L', long, default_value = "", value_parser = label)]
    label: String,
    /// Size of the log, 4M to 1G [default: 1/32 of the volume, 4M to 256M]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    log_size: Option<u64>,
    /// Overwrite whatever is there
    #[arg(short, long)]
    force: bool,
    /// Print nothing except errors
    #[arg(short, long)]
    quiet: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The JSON output.
#[derive(Serialize)]
struct Made {
    volume: String,
    uuid: String,
    label: String,
    size: u64,
    log_size: u64,
}

/// Parses a label and checks that it fits into the superblock.
pub fn label(text: &str) -> Result<String, String> {
    const MAX: usize = cairnfs_disk::format::superblock::MAX_LABEL;
    if text.len() > MAX {
        return Err(format!("a label has at most {MAX} bytes"));
    }
    if text.chars().any(char::is_control) {
        return Err("a label has no control characters".into());
    }
    Ok(text.to_owned())
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode, AnyError> {
    let options = MakeOptions {
        size: args.size,
        label: args.label,
        log_size: args.log_size,
        force: args.force,
        root_owner: (0, 0),
        ..MakeOptions::default()
    };
    let (info, chosen) = make_volume(&args.volume, options, args.quiet || args.json)?;
    if !args.quiet {
        warn_of_little_room("mkfs", &args.volume, chosen);
    }
    if args.json {
        told(output::json(&Made {
            volume: shown(&args.volume),
            uuid: uuid_text(&info.uuid),
            label: info.label,
            size: info.size,
            log_size: info.log_size,
        }))?;
    } else if !args.quiet {
        told(print_result(&args.volume, &info, chosen))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print_result(volume: &Path, info: &VolumeInfo, chosen: bool) -> std::io::Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let size = size::human(info.size);
    let log = size::human(info.log_size);
    writeln!(out, "Made {}: {size} with a log of {log}", shown(volume))?;
    writeln!(out, "UUID {}", uuid_text(&info.uuid))?;
    if chosen {
        writeln!(
            out,
            "No --size was given, so it may grow to {size}; the file is sparse and takes space only as it is filled."
        )?;
    }
    Ok(())
}

/// The host file system's room for an image that can outgrow it.
fn too_little_room(volume: &Path) -> Option<HostRoom> {
    let room = HostRoom::of(volume).ok().flatten();
    room.filter(|room| room.shortfall() > 0)
}

/// A warning if the image can outgrow the host file system.
pub fn outgrows(volume: &Path) -> Option<String> {
    too_little_room(volume).map(|room| room.warning(&volume.display()))
}

/// Free space on the host with which a new volume holds hardly anything, in bytes.
const LITTLE: u64 = 64 << 20;

/// Warns about a host file system without room for a new volume of a size that the user gave. With
/// the default size, which most hosts do not have free, only if there is little room for anything.
pub fn warn_of_little_room(command: &str, volume: &Path, chosen: bool) {
    let room = too_little_room(volume).filter(|room| !chosen || room.free < LITTLE);
    if let Some(room) = room {
        let warning = room.warning(&volume.display());
        say!("cairnfs {command}: warning: {warning}");
    }
}

/// Makes a volume owned by the caller. Without a size, a new or empty file gets [`DEFAULT_SIZE`];
/// the second result is whether that happened.
///
/// # Errors
/// The engine's error, with the next step.
pub fn make_volume(
    volume: &Path,
    mut options: MakeOptions,
    quiet: bool,
) -> Result<(VolumeInfo, bool), Failure> {
    let empty = match volume.metadata() {
        Ok(there) => there.is_file() && there.len() == 0,
        Err(_) => true,
    };
    let chosen = options.size.is_none() && empty;
    if chosen {
        options.size = Some(DEFAULT_SIZE);
    }
    let me = caller();
    options.root_owner = (me.uid, me.gid);
    let progress = Progress::bytes("writing log", 1, quiet);
    let made = make(volume, &options, &mut |done, total| {
        progress.set(done, total)
    });
    drop(progress);
    let info = made.map_err(|e| make_failure(volume, &e, options.force))?;
    Ok((info, chosen))
}

fn make_failure(volume: &Path, error: &Error, forced: bool) -> Failure {
    const FORCE: &str = "use --force to overwrite it: all that is in it will be lost";
    let name = shown(volume);
    match error {
        // The volume does not exist yet; the hints for existing volumes would mislead.
        Error::Open { source, .. } => Failure::new(name, cairnfs_daemon::failure::io_text(source)),
        Error::Exists if !forced => {
            Failure::new(name, "is not empty; nothing was written").hint(FORCE)
        }
        Error::NotPermitted(_) if !forced => Failure::engine(name, error).hint(FORCE),
        _ => Failure::opening(volume, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_must_fit() {
        assert!(label("work").is_ok());
        assert!(label(&"x".repeat(64)).is_ok());
        assert!(label(&"x".repeat(65)).is_err());
        assert!(label("a\nb").is_err());
    }
}
