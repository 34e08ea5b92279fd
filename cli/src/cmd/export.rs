//! `cairnfs export`: copies whole trees out of a volume, into a directory or a tar archive.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cairnfs::fs::Lost;
use cairnfs_daemon::failure::{AnyError, Explain, Failure, shown};
use cairnfs_disk::types::OlderState;

use crate::copied::{finish, tell_lost};
use crate::interrupt;
use crate::output::{self, Progress, counted};
use crate::spec::VolumePath;
use crate::tree::host_sink::HostSink;
use crate::tree::packed::{Method, Packer};
use crate::tree::tar_out::TarSink;
use crate::tree::typed::Typed;
use crate::tree::volume_source::VolumeSource;
use crate::tree::whole_file::WholeFile;
use crate::tree::{CHUNK, Copier, Keep};
use crate::volume_by_path::{Access, LastLink, Volume, split_last};

const EXAMPLES: &str = "\
Examples:
  cairnfs export disk.img backup.tar
  cairnfs export disk.img:/home home/       into a directory, made if missing
  cairnfs export disk.img backup.tar.zst
  cairnfs export disk.img@monday monday.tar    a snapshot
  cairnfs export disk.img - | xz > disk.tar.xz

A destination that ends in .tar becomes an archive (pax format), one that ends
in .tar.gz, .tgz, .tar.zst or .tzst a compressed one, anything else a directory.
A symbolic link as the archive is followed, also to a pipe. Modes, times to the
nanosecond, symbolic and hard links, holes, special files and extended
attributes are kept; owners in archives always, in directories if you are root.
An existing directory is filled and keeps its own owner and mode. An existing
archive, or file or link of the same name, is kept and reported, unless --force
is given.

This also saves the readable part of a damaged volume, block by block:
unreadable ranges of a file are zeros in the copy (holes, where the target has
them), and are reported with path and range, on standard error and under
\"unreadable\" of --json. A failure is reported, and the export continues. With
--force, a file is kept if its copy would have such ranges, and an archive if
anything would be missing in the new one: export to a new name then. With
--no-recovery it does not need the log, nor the newer of the two superblocks;
changes since the last merge are missing then. If the top of the newest trees is
lost, the state of the merge before is exported, if that is left: the report says
of which time it is.

SIGINT, SIGTERM and SIGHUP end the export, and an incomplete archive or file is
removed.

Exit codes: 0 all was exported, 1 something was not, 2 wrong arguments, 74 all
was exported, but that could not be printed (--json).";

/// What to do if an archive cannot be made under its name.
const OTHERWISE: &str =
    "use --force to overwrite it; to write an archive to a device: cairnfs export VOLUME - > FILE";

/// Copy a tree out of a volume into a directory or tar archive
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What to export, as `VOLUME[:PATH]`, or `VOLUME@NAME[:PATH]` of a branch or snapshot
    #[arg(value_name = "VOLUME[@NAME][:PATH]")]
    place: OsString,
    /// A directory, an archive, or - for an archive on standard output
    #[arg(value_name = "DIR|FILE.tar[.gz|.zst]|-")]
    destination: PathBuf,
    /// Replace an existing archive, or files and links that exist in the directory
    #[arg(short, long)]
    force: bool,
    /// Do not replay the log: save the state of the last merge, if the log or the newest superblock
    /// is damaged
    #[arg(long)]
    no_recovery: bool,
    /// Show no progress and no summary
    #[arg(short, long)]
    quiet: bool,
    /// Print a summary as JSON (on standard error with "-")
    #[arg(long)]
    json: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Destination {
    Stdout,
    Archive(Method),
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
    if let Some(method) = Method::of_name(&name) {
        return Ok(Destination::Archive(method));
    }
    let packed = [".txz", ".tbz2", ".tlz"];
    if name.contains(".tar.") || packed.iter().any(|end| name.ends_with(end)) {
        return Err(Failure::new(
            shown(path),
            "archives are compressed by gzip (.tar.gz) or zstd (.tar.zst) only",
        )
        .hint("compress on the way: cairnfs export VOLUME - | xz > FILE.tar.xz"));
    }
    Ok(Destination::Directory)
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode, AnyError> {
    let place = VolumePath::parse(&args.place)?;
    let to = destination(&args.destination, args.destination.is_dir())?;
    let out = match to {
        Destination::Directory => None,
        Destination::Archive(method) => Some((Typed::find(&args.destination)?, method)),
        Destination::Stdout => {
            let out = io::stdout().as_fd().try_clone_to_owned();
            let out = File::from(out.explain("standard output")?);
            Some((Typed::Stream(out), Method::Plain))
        }
    };
    let name = match to {
        Destination::Stdout => "standard output".to_owned(),
        _ => shown(&args.destination),
    };
    let streams = match &out {
        Some((Typed::Stream(out), _)) if out.is_terminal() => {
            return Err(
                Failure::new(name, "is a terminal; an archive is not for reading")
                    .hint("redirect it to a file or into another program")
                    .into(),
            );
        }
        Some((Typed::Stream(_), _)) => true,
        _ => false,
    };
    // A stream may block, and leaves nothing to remove.
    if !streams {
        interrupt::defer()?;
    }
    let access = if args.no_recovery {
        Access::Unrecovered
    } else {
        Access::Salvage
    };
    let volume = Volume::open(&place, access)?;
    if args.no_recovery && volume.fs().info().older.is_none() {
        tell_unapplied(&volume);
    }
    let lost = volume.fs().lost_log().explain(volume.shown(b""))?;
    let lost = lost.map(|lost| LostPaths::of(&volume, &lost));
    let info = volume.fs().info();
    let older = info.older.map(|older| is_older(&volume, &older));
    let left_out = (info.left_out > 0).then(|| {
        let missing = "what the log has for damaged parts of the index is missing";
        Failure::new(volume.shown(b""), missing)
    });
    let node = volume.find(&place.inside, LastLink::Follow);
    // It may be among what is lost.
    let node = node.inspect_err(|_| {
        let failures = lost.iter().flat_map(|lost| &lost.failures);
        failures.for_each(Failure::tell);
    })?;
    let path = if node.is_dir() {
        Vec::new()
    } else {
        split_last(&place.inside)
            .map(|(_, name)| name)
            .unwrap_or_default()
    };
    let mut source = VolumeSource::new(volume, 0, node, place.inside);
    let progress = Progress::bytes("exporting", 0, args.quiet || args.json);
    let mut copier = Copier::new(Keep::ALL, &progress);
    let failures = lost.iter().flat_map(|lost| &lost.failures);
    for failure in older.iter().chain(&left_out).chain(failures) {
        copier.tell(failure);
    }
    let mut done = "Exported";
    match out {
        None => {
            let mut sink = HostSink::make(&args.destination, Keep::ALL)?.replacing(args.force);
            copier.copy_counted(&mut source, &mut sink, path)?;
            tell_lost(&progress, sink.lost_xattrs());
        }
        Some((Typed::Entry(place), method)) => {
            let file = WholeFile::make(&place, name.clone(), args.force, OTHERWISE)?;
            let out = (file.file(), method, name.as_str());
            archive(&mut copier, &mut source, path, out, &progress)?;
            // It may be the last whole one.
            if file.replaces() && copier.summary.failed > 0 {
                copier.tell(&kept(&name));
                done = "Read";
            } else {
                file.complete()?;
            }
        }
        Some((Typed::Stream(out), method)) => {
            let out = (out, method, name.as_str());
            archive(&mut copier, &mut source, path, out, &progress)?;
        }
    }
    let mut summary = copier.summary;
    summary.lost = lost.map(|lost| lost.paths).unwrap_or_default();
    drop(progress);
    finish(&summary, done, args.quiet, args.json, streams)
}

/// An archive that an incomplete one does not replace.
fn kept(name: &str) -> Failure {
    Failure::new(
        name,
        "was kept, because the new archive would lack something",
    )
    .hint("to get what can be read, give a new archive another name")
}

/// What is missing, because the newest state cannot be found.
fn is_older(volume: &Volume, older: &OlderState) -> Failure {
    let changed = match older.changed {
        Some(time) => format!("its newest file changed at {}", output::utc_time(time)),
        None => "no file of it can be read".to_owned(),
    };
    let OlderState {
        damage, generation, ..
    } = older;
    Failure::new(
        volume.shown(b""),
        format_args!(
            "the newest state (generation {}) is lost: {damage}",
            generation + 1
        ),
    )
    .hint(format_args!(
        "what is exported is the state before (generation {generation}): {changed}, and everything \
         later is missing; a backup may be newer (cairnfs restore-from)"
    ))
}

/// Tells how many log records the export leaves out, if there are any.
fn tell_unapplied(volume: &Volume) {
    let name = volume.shown(b"");
    let log = match volume.fs().unapplied_log() {
        Ok(log) => log,
        Err(error) => {
            say!("cairnfs: {name}: what its log has is not exported, and cannot be read: {error}");
            return;
        }
    };
    let records = counted(log.records, "record", "records");
    let until = match log.changed {
        Some(time) => format!(", with changes of files up to {}", output::utc_time(time)),
        None => String::new(),
    };
    if log.damaged {
        say!("cairnfs: {name}: its log is not exported: {records} before its damage{until}");
    } else if log.records > 0 {
        say!("cairnfs: {name}: its log is not exported: {records}{until}");
    }
}

/// What is lost with the damaged part of the log.
struct LostPaths {
    paths: Vec<String>,
    failures: Vec<Failure>,
}

impl LostPaths {
    fn of(volume: &Volume, lost: &Lost) -> Self {
        let top = volume.shown(b"");
        let named = if lost.items.is_empty() {
            "what is exported is the state before the damage; the log names nothing of what is lost"
        } else {
            "what is exported is the state before the damage; what the log still names follows"
        };
        let damage = format!("changes are lost with its log: {}", lost.damage);
        let mut failures = vec![Failure::new(&top, damage).hint(named)];
        let mut paths = Vec::new();
        for item in &lost.items {
            let path = volume.shown(item.path.as_os_str().as_bytes());
            let why = format!("its newest state is lost (inode {})", item.ino);
            failures.push(Failure::new(&path, why));
            paths.push(path);
        }
        if lost.more {
            failures.push(Failure::new(&top, "the state of more files is lost"));
        }
        if lost.others {
            let others = "changes of other branches, or of the list of branches, are lost";
            failures.push(Failure::new(&top, others));
        }
        Self { paths, failures }
    }
}

fn archive(
    copier: &mut Copier<'_>,
    source: &mut VolumeSource,
    path: Vec<u8>,
    (out, method, name): (impl Write, Method, &str),
    progress: &Progress,
) -> Result<(), Failure> {
    let out = BufWriter::with_capacity(CHUNK, out);
    let out = Packer::new(out, method).explain(name)?;
    let mut sink = TarSink::new(out, name.to_owned());
    copier.copy_counted(source, &mut sink, path)?;
    if sink.left_out() > 0 {
        progress.note(&format!(
            "{} sockets left out: tar has no place for them",
            sink.left_out()
        ));
    }
    let out = sink.finish()?.finish().explain(name)?;
    let flushed = out.into_inner().map_err(|e| e.into_error());
    flushed.map(drop).explain(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destination_name_selects_archive_format() {
        let of = |name: &str, is_dir| destination(Path::new(name), is_dir);
        assert_eq!(of("-", false).unwrap(), Destination::Stdout);
        assert_eq!(
            of("a.tar", false).unwrap(),
            Destination::Archive(Method::Plain)
        );
        assert_eq!(of("a.tar", true).unwrap(), Destination::Directory);
        assert_eq!(of("a", false).unwrap(), Destination::Directory);
        assert_eq!(
            of("a.tgz", false).unwrap(),
            Destination::Archive(Method::Gzip)
        );
        assert!(of("a.tar.xz", false).is_err());
        assert!(of("a.tbz2", false).is_err());
    }
}
