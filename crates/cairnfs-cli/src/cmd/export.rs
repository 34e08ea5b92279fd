//! `cairnfs export`: whole trees out of a volume, into a directory or a tar archive.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::cmd::import::finish;
use crate::failure::{AnyError, Explain, Failure, shown};
use crate::output::Progress;
use crate::spec::VolumePath;
use crate::tree::host_sink::HostSink;
use crate::tree::tar_out::TarSink;
use crate::tree::volume_source::{VolumeNode, VolumeSource};
use crate::tree::{CHUNK, Copier, Keep, Sink};
use crate::volume::{Access, LastLink, Volume, split_last};

const EXAMPLES: &str = "\
Examples:
  cairnfs export disk.img backup.tar
  cairnfs export disk.img:/home home/       into a directory, made if missing
  cairnfs export disk.img - | zstd > disk.tar.zst

A destination that ends in .tar becomes an archive (pax format), anything else
a directory. Modes, times to the nanosecond, symbolic and hard links, holes,
special files and extended attributes are kept; owners in archives always, in
directories if you are root. What cannot be read is told and left out, so this
also saves what is left of a damaged volume.

Exit codes: 0 all was exported, 1 something was not.";

/// Copy a tree out of a volume into a directory or tar archive
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What to export, as `VOLUME[:PATH]`
    #[arg(value_name = "VOLUME[:PATH]")]
    place: OsString,
    /// A directory, a FILE.tar, or - for an archive on standard output
    #[arg(value_name = "DIR|FILE.tar|-")]
    destination: PathBuf,
    /// Overwrite an existing archive
    #[arg(short, long)]
    force: bool,
    /// Show no progress and no summary
    #[arg(short, long)]
    quiet: bool,
    /// Tell a summary as JSON (on standard error with "-")
    #[arg(long)]
    json: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Destination {
    Stdout,
    Archive,
    Directory,
}

fn destination(path: &Path, is_dir: bool) -> Result<Destination, Failure> {
    let name = path.as_os_str().to_string_lossy();
    if name == "-" {
        return Ok(Destination::Stdout);
    }
    if is_dir {
        return Ok(Destination::Directory);
    }
    if name.ends_with(".tar") {
        return Ok(Destination::Archive);
    }
    let packed = [".tgz", ".txz", ".tbz2", ".tzst"];
    if name.contains(".tar.") || packed.iter().any(|end| name.ends_with(end)) {
        return Err(
            Failure::new(shown(path), "archives are not compressed here")
                .hint("compress on the way: cairnfs export VOLUME - | gzip > FILE.tar.gz"),
        );
    }
    Ok(Destination::Directory)
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode, AnyError> {
    let place = VolumePath::parse(&args.place)?;
    let to = destination(&args.destination, args.destination.is_dir())?;
    if to == Destination::Stdout && io::stdout().is_terminal() {
        return Err(Failure::new(
            "standard output",
            "is a terminal; an archive is not for reading",
        )
        .hint("redirect it to a file or into another program")
        .into());
    }
    let (volume, node) = Volume::open_at(&place, Access::Read, LastLink::Follow)?;
    let path = match node.is_dir() {
        true => Vec::new(),
        false => split_last(&place.inside)
            .map(|(_, name)| name)
            .unwrap_or_default(),
    };
    let source = VolumeSource::new(volume, 0);
    let node = VolumeNode::new(node, place.inside);
    let progress = Progress::bytes("exporting", 0, args.quiet || args.json);
    let mut copier = Copier::new(Keep::ALL, &progress);
    match to {
        Destination::Directory => {
            let mut sink = host_directory(&args.destination)?;
            copier.copy_counted(&source, node, &mut sink, path)?;
            tell_lost(&progress, sink.lost_xattrs());
        }
        Destination::Archive => {
            let file = archive_file(&args.destination, args.force)?;
            let name = shown(&args.destination);
            let file = archive(&mut copier, &source, node, path, file, &name, &progress)?;
            file.sync_all().explain(name)?;
        }
        Destination::Stdout => {
            let out = io::stdout().lock();
            let _out = archive(
                &mut copier,
                &source,
                node,
                path,
                out,
                "standard output",
                &progress,
            )?;
        }
    }
    let summary = copier.summary;
    drop(progress);
    finish(
        &summary,
        "Exported",
        args.quiet,
        args.json,
        to == Destination::Stdout,
    )
}

fn archive<W: Write>(
    copier: &mut Copier<'_>,
    source: &VolumeSource,
    node: VolumeNode,
    path: Vec<u8>,
    out: W,
    name: &str,
    progress: &Progress,
) -> Result<W, Failure> {
    let out = BufWriter::with_capacity(CHUNK, out);
    let mut sink = TarSink::new(out, name.to_owned());
    copier.copy_counted(source, node, &mut sink as &mut dyn Sink, path)?;
    if sink.left_out() > 0 {
        progress.note(&format!(
            "{} sockets left out: tar has no place for them",
            sink.left_out()
        ));
    }
    let out = sink.finish()?;
    out.into_inner().map_err(|e| e.into_error()).explain(name)
}

fn host_directory(path: &Path) -> Result<HostSink, Failure> {
    match fs::create_dir(path) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        Err(e) => return Err(e).explain(shown(path)),
    }
    Ok(HostSink::new(path.to_owned(), Keep::ALL))
}

fn archive_file(path: &Path, force: bool) -> Result<File, Failure> {
    let mut options = OpenOptions::new();
    options.write(true);
    if force {
        options.create(true).truncate(true);
    } else {
        options.create_new(true);
    }
    match options.open(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            Err(Failure::new(shown(path), "exists").hint("use --force to overwrite it"))
        }
        other => other.explain(shown(path)),
    }
}

/// Tells of attributes that could not be set.
pub fn tell_lost(progress: &Progress, lost: u64) {
    if lost > 0 {
        progress.note(&format!(
            "{lost} extended attributes were not kept: the destination does not take them"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_destination_is_told_by_its_name() {
        let of = |name: &str, is_dir| destination(Path::new(name), is_dir);
        assert_eq!(of("-", false).unwrap(), Destination::Stdout);
        assert_eq!(of("a.tar", false).unwrap(), Destination::Archive);
        assert_eq!(of("a.tar", true).unwrap(), Destination::Directory);
        assert_eq!(of("a", false).unwrap(), Destination::Directory);
        assert!(of("a.tar.gz", false).is_err());
        assert!(of("a.tgz", false).is_err());
    }
}
