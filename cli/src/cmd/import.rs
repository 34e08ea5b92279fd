//! `cairnfs import`: copies whole trees into a volume, from a directory or a tar archive.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cairnfs::fs::MakeOptions;
use cairnfs_daemon::failure::{AnyError, Explain, Failure, shown};
use cairnfs_fuse::mountinfo;

use crate::cmd::mkfs;
use crate::copied::{finish, tell_lost};
use crate::interrupt;
use crate::output::Progress;
use crate::spec::{VolumePath, meant_volume};
use crate::tree::host::HostSource;
use crate::tree::packed::unpacked;
use crate::tree::tar_in::TarReader;
use crate::tree::volume_sink::VolumeSink;
use crate::tree::{Copier, Keep, Summary, umask};
use crate::volume_by_path::{Access, Volume};

const EXAMPLES: &str = "\
Examples:
  cairnfs import photos/ disk.img:/photos
  cairnfs import rootfs.tar disk.img
  cairnfs import backup.tar.zst disk.img
  xz -dc rootfs.tar.xz | cairnfs import - disk.img
  cairnfs import --create --size 2G site/ site.img

The contents of the directory or archive go into PATH (the root without one),
which is made if it is missing; files of the same names are replaced. Modes,
times to the nanosecond, symbolic and hard links, holes, special files and
extended attributes are kept. Owners are kept, by number, if you are root or
with --same-owner; otherwise everything is yours. Archive members with absolute
names or with '..' are refused. An archive may be compressed by gzip or zstd,
whatever its name.

A failure is reported, and the import continues; nothing is left of an entry that
failed, and the file that it would replace stays. A broken or hostile archive
or a signal (SIGINT, SIGTERM, SIGHUP) ends the import; what was imported before
stays. A volume made by --create is removed again if the import ends in this
way, or if nothing could be imported.

Exit codes: 0 all was imported, 1 something was not, 2 wrong arguments, 74 all
was imported, but that could not be printed (--json).";

/// Copy a tree into a volume from a directory or tar archive
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A directory, a tar archive, or - for an archive on standard input
    #[arg(value_name = "DIR|TAR|-")]
    source: PathBuf,
    /// Where to, as `VOLUME[:PATH]`, or `VOLUME@NAME[:PATH]` in a branch
    #[arg(value_name = "VOLUME[@NAME][:PATH]")]
    place: OsString,
    /// Make the volume if it does not exist
    #[arg(long)]
    create: bool,
    /// Size of a volume made by --create [default: 64G, sparse]
    #[arg(long, requires = "create", value_parser = crate::size::parse)]
    size: Option<u64>,
    /// Name of a volume made by --create
    #[arg(short = 'L', long, requires = "create", default_value = "", value_parser = mkfs::label)]
    label: String,
    /// Keep owners (default for root)
    #[arg(long, overrides_with = "no_same_owner")]
    same_owner: bool,
    /// Make everything yours (default for others)
    #[arg(long)]
    no_same_owner: bool,
    /// Show no progress and no summary
    #[arg(short, long)]
    quiet: bool,
    /// Print a summary as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode, AnyError> {
    let from = Origin::of(&args.source)?;
    interrupt::defer()?;
    let (place, created) = place(&args)?;
    let summary = fill(&args, from, place)?;
    match created {
        Some(created) if summary.failed > 0 && summary.is_empty() => drop(created),
        Some(created) => created.keep(),
        None => {}
    }
    finish(&summary, "Imported", args.quiet, args.json, false)
}

/// Fills the volume and returns the summary.
fn fill(args: &Args, from: Origin, place: VolumePath) -> Result<Summary, Failure> {
    let volume = Volume::open(&place, Access::Write)?;
    let root = rustix::process::geteuid().is_root();
    let keep = Keep {
        owner: args.same_owner || (root && !args.no_same_owner),
        ..Keep::ALL
    };
    let sink = || {
        let base = volume.make_dirs(&place.inside, 0o777 & !umask())?;
        let inside = place.inside.clone();
        Ok(VolumeSink::new(volume.clone(), base, inside, keep))
    };
    let total = match &from {
        Origin::Archive(archive) => archive.size,
        Origin::Directory(_) => 0,
    };
    let progress = Progress::bytes("importing", total, args.quiet || args.json);
    let mut copier = Copier::new(keep, &progress);
    let done = take(from, &mut copier, &progress, sink);
    let summary = copier.summary;
    drop(progress);
    // Entries imported before a failure remain, and the volume must be closed properly.
    let closed = volume.close();
    done.and(closed)?;
    Ok(summary)
}

/// Copies everything into the sink, which is made when it is known that there is something to copy.
fn take(
    from: Origin,
    copier: &mut Copier<'_>,
    progress: &Progress,
    sink: impl FnOnce() -> Result<VolumeSink, Failure>,
) -> Result<(), Failure> {
    let (done, lost) = match from {
        Origin::Archive(Archive { input, name, .. }) => {
            let (input, compressed) = unpacked(Watched { input, progress }, &name)?;
            let reader = TarReader::new(input, name)
                .reading_all(compressed)
                .begun()?;
            let mut sink = sink()?.replacing_kinds();
            (reader.import(copier, &mut sink), sink.lost_xattrs())
        }
        Origin::Directory(mut source) => {
            let mut sink = sink()?;
            let done = copier.copy_counted(source.as_mut(), &mut sink, Vec::new());
            (done, sink.lost_xattrs())
        }
    };
    tell_lost(progress, lost);
    done
}

/// A volume that this run has made; removed on drop unless it is kept.
struct Created {
    path: PathBuf,
    kept: bool,
}

impl Created {
    fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Created {
    fn drop(&mut self) {
        if !self.kept && std::fs::remove_file(&self.path).is_ok() {
            say!("cairnfs: {}: removed again", shown(&self.path));
        }
    }
}

/// The destination in the volume. Makes the volume first with `--create`.
fn place(args: &Args) -> Result<(VolumePath, Option<Created>), Failure> {
    let parsed = VolumePath::parse(&args.place);
    let whole = Path::new(&args.place);
    // In the place of a directory no volume can be made.
    if parsed.is_ok() || mountinfo::is_directory(whole) {
        return parsed.map(|place| (place, None));
    }
    if !args.create {
        let hint = "to make the volume on the way: cairnfs import --create";
        return parsed.map(|place| (place, None)).map_err(|f| f.hint(hint));
    }
    let meant = meant_volume(whole);
    let name = meant.as_deref().and_then(Path::file_name);
    if name.is_some_and(|name| name.as_bytes().contains(&b'@')) {
        return Err(
            Failure::new(shown(whole), "a new volume has no branches or snapshots")
                .hint("write VOLUME:/PATH; to make a volume with @ in its name: cairnfs mkfs"),
        );
    }
    let volume = meant.unwrap_or_else(|| whole.to_owned());
    let options = MakeOptions {
        size: args.size,
        label: args.label.clone(),
        ..MakeOptions::default()
    };
    let (_, chosen) = mkfs::make_volume(&volume, options, args.quiet || args.json)?;
    mkfs::warn_of_little_room("import", &volume, chosen);
    let created = Created {
        path: volume,
        kept: false,
    };
    Ok((VolumePath::parse(&args.place)?, Some(created)))
}

/// The source of an import.
enum Origin {
    Archive(Archive),
    Directory(Box<HostSource>),
}

/// A tar archive to read.
struct Archive {
    input: File,
    name: String,
    /// Size in bytes, 0 if not known.
    size: u64,
}

impl Origin {
    fn of(source: &Path) -> Result<Self, Failure> {
        if source.as_os_str() == "-" {
            let input = io::stdin().as_fd().try_clone_to_owned();
            return Ok(Origin::Archive(Archive {
                input: File::from(input.explain("standard input")?),
                name: "standard input".into(),
                size: 0,
            }));
        }
        let meta = source.metadata().explain(shown(source))?;
        if meta.is_dir() {
            let source = HostSource::open(source, true)?;
            return Ok(Origin::Directory(Box::new(source)));
        }
        let file = File::open(source).explain(shown(source))?;
        Ok(Origin::Archive(Archive {
            input: file,
            name: shown(source),
            size: meta.len(),
        }))
    }
}

/// A reader that adds the bytes read to the progress.
struct Watched<'a> {
    input: File,
    progress: &'a Progress,
}

impl Read for Watched<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        interrupt::wait(&self.input)?;
        let got = self.input.read(buf)?;
        self.progress.add(got as u64);
        Ok(got)
    }
}
