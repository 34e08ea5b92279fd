//! `cairnfs cp`: copies files and trees between the host and volumes, in any direction.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cairnfs_daemon::failure::{AnyError, Explain, Failure, shown};
use cairnfs_disk::types::FileKind;

use crate::copied::tell_lost;
use crate::interrupt;
use crate::output::Progress;
use crate::spec::{self, Spec, VolumePath, meant_volume};
use crate::tree::host::HostSource;
use crate::tree::host_sink::HostSink;
use crate::tree::stream_sink::StreamSink;
use crate::tree::typed::{self, Typed};
use crate::tree::volume_sink::VolumeSink;
use crate::tree::volume_source::VolumeSource;
use crate::tree::{Copier, Keep, Sink, Source, join};
use crate::volume_by_path::{Access, LastLink, Volume, split_last};

const EXAMPLES: &str = "\
Examples:
  cairnfs cp notes.txt disk.img:/               into a volume
  cairnfs cp disk.img:/etc/hosts .              out of it
  cairnfs cp -a disk.img:/home other.img:/      from one to another
  cairnfs cp -r disk.img:/a disk.img:/b         within one
  cairnfs cp disk.img@monday:/notes .           out of a snapshot

Which arguments are inside a volume: one that names something existing on the
host is that. Otherwise the first colon behind the name of an existing file or
device ends the volume's name, and without one the first @: the name of a branch
or snapshot follows, and ends at :/. Anything else is a host path: ./a:b is one
unless ./a is a file and ./a:b does not exist.

If the destination is a directory, sources go into it under their own names.
A link as the destination is followed, and a pipe or character device is written
to. Existing files are replaced when their copy is complete. Holes stay holes. A
failure is reported, and the copy continues; unreadable ranges of a file are
zeros in the copy, and are reported with path and range. An existing file is kept
if its copy would have such ranges: copy to a new name then.

Exit codes: 0 all was copied, 1 something was not, 2 wrong arguments.";

/// Copy files to, from, between and within volumes
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, override_usage = "cairnfs cp [OPTIONS] SOURCE... DESTINATION")]
pub struct Args {
    /// Copy directories with everything in them; symbolic links stay links
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Keep all mode bits, times, extended attributes, hard links, and owners if you are root
    #[arg(short, long)]
    preserve: bool,
    /// The same as -r -p
    #[arg(short, long)]
    archive: bool,
    /// Show no progress
    #[arg(short, long)]
    quiet: bool,
    /// Sources and destination, each a host path, VOLUME:PATH or VOLUME@NAME:/PATH
    #[arg(required = true, num_args = 2.., value_name = "PATH")]
    paths: Vec<OsString>,
}

/// Trees opened by this run: each is opened once, even if it is given under several names.
#[derive(Default)]
struct Open {
    volumes: Vec<((u64, u64), Volume)>,
}

impl Open {
    /// The tree, and a number that is distinct from the device numbers of the host.
    fn get(&mut self, place: &VolumePath, access: Access) -> Result<(Volume, u64), Failure> {
        let path = &place.volume;
        let meta = path.metadata().explain(shown(path))?;
        let id = (meta.dev(), meta.ino());
        let of_volume = self.volumes.iter().find(|(known, _)| *known == id);
        let volume = match of_volume {
            Some((_, open)) => open.at(place.reference.as_deref(), access)?,
            None => Volume::open(place, access)?,
        };
        let root = volume.fs().root_id();
        let is_it = |known, open: &Volume| known == id && open.fs().root_id() == root;
        let at = self
            .volumes
            .iter()
            .position(|(known, open)| is_it(*known, open));
        let at = at.unwrap_or_else(|| {
            self.volumes.push((id, volume.clone()));
            self.volumes.len() - 1
        });
        let open = self.volumes.get(at).map(|(_, open)| open.clone());
        Ok((open.unwrap_or(volume), u64::MAX - at as u64))
    }
}

/// The destination of copies. `typed` is the destination as typed, if it is not a directory: it
/// is resolved when the kind of the source is known.
enum Target {
    Host {
        sink: Box<HostSink>,
        typed: Option<PathBuf>,
    },
    Volume {
        sink: Box<VolumeSink>,
        volume: Volume,
        base: Vec<u8>,
        typed: Option<Vec<u8>>,
    },
    Stream(StreamSink<File>),
}

impl Target {
    fn sink(&mut self) -> &mut dyn Sink {
        match self {
            Target::Host { sink, .. } => sink.as_mut(),
            Target::Volume { sink, .. } => sink.as_mut(),
            Target::Stream(sink) => sink,
        }
    }

    /// Closes the target. Files already copied remain, also after a failure.
    fn close(self) -> Result<(), Failure> {
        match self {
            Target::Host { .. } | Target::Stream(_) => Ok(()),
            Target::Volume { sink, volume, .. } => {
                drop(sink);
                volume.close()
            }
        }
    }

    fn lost_xattrs(&self) -> u64 {
        match self {
            Target::Host { sink, .. } => sink.lost_xattrs(),
            Target::Volume { sink, .. } => sink.lost_xattrs(),
            Target::Stream(_) => 0,
        }
    }
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode, AnyError> {
    let recursive = args.recursive || args.archive;
    let keep = if args.preserve || args.archive {
        Keep {
            owner: rustix::process::geteuid().is_root(),
            ..Keep::ALL
        }
    } else {
        Keep::PLAIN
    };
    let specs = args.paths.iter().map(|arg| Spec::parse(arg).checked());
    let mut specs = specs.collect::<Result<Vec<Spec>, Failure>>()?;
    if !specs.iter().any(|s| matches!(s, Spec::Volume(_))) {
        return Err(no_volume(&args.paths).into());
    }
    let destination = specs
        .pop()
        .ok_or_else(|| Failure::new("cp", "no destination"))?;
    let mut open = Open::default();
    let several = specs.len() > 1;
    // A stream may block, and leaves nothing to remove.
    let streams = matches!(&destination, Spec::Host(path)
        if path.metadata().is_ok_and(|meta| !meta.is_dir() && !meta.is_file()));
    if !streams {
        interrupt::defer()?;
    }
    let (mut target, name) = target(&destination, &mut open, keep, several)?;
    let progress = Progress::bytes("copying", 0, args.quiet);
    let mut copier = Copier::new(keep, &progress);
    let mut job = Job {
        copier: &mut copier,
        target: &mut target,
        name,
        recursive,
        keep,
    };
    let done = specs.iter().try_for_each(|source| {
        let taken = match source {
            Spec::Host(path) => job.take_host(path),
            Spec::Volume(place) => job.take_volume(place, &mut open),
        };
        job.copier.done(taken).map(drop)
    });
    tell_lost(&progress, target.lost_xattrs());
    let failed = copier.summary.failed > 0;
    drop(progress);
    let closed = target.close();
    done.and(closed)?;
    Ok(ExitCode::from(u8::from(failed)))
}

fn no_volume(paths: &[OsString]) -> Failure {
    let failure = Failure::new("cp", "neither side is inside a volume");
    let guess = paths.iter().find_map(|p| meant_volume(Path::new(p)));
    match guess {
        Some(volume) if !volume.exists() => spec::no_volume(&volume),
        _ => failure.hint("write VOLUME:PATH or VOLUME@NAME:/PATH, for example disk.img:/"),
    }
}

/// The target, and the new name unless the destination is a directory that the sources are copied
/// into.
fn target(
    destination: &Spec,
    open: &mut Open,
    keep: Keep,
    several: bool,
) -> Result<(Target, Option<Vec<u8>>), Failure> {
    let not_directory = || {
        if several {
            Failure::new(destination.shown(), "is not a directory")
                .hint("several sources need an existing directory to go into")
        } else {
            typed::not_directory(destination.shown())
        }
    };
    match destination {
        Spec::Host(path) if path.is_dir() => {
            let sink = Box::new(HostSink::open(path, keep)?);
            Ok((Target::Host { sink, typed: None }, None))
        }
        Spec::Host(path) => {
            let name = path
                .file_name()
                .filter(|_| !several)
                .ok_or_else(not_directory)?;
            let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
            let base = parent.map_or_else(|| PathBuf::from("."), Path::to_owned);
            if !base.is_dir() {
                return Err(Failure::new(shown(&base), "no such directory")
                    .hint("make it first, or name an existing one"));
            }
            let target = Target::Host {
                sink: Box::new(HostSink::open(&base, keep)?),
                typed: Some(path.clone()),
            };
            Ok((target, Some(name.as_bytes().to_vec())))
        }
        Spec::Volume(place) => {
            let (volume, _) = open.get(place, Access::Write)?;
            let there = volume.find(&place.inside, LastLink::Follow);
            let (base, base_path, name) = match there {
                Ok(node) if node.is_dir() => (node, place.inside.clone(), None),
                _ if several || asks_for_directory(&place.inside) => return Err(not_directory()),
                _ => {
                    let (above, name) = split_last(&place.inside).ok_or_else(not_directory)?;
                    let node = volume
                        .find(&above, LastLink::Follow)
                        .map_err(|f| f.hint("make it first: cairnfs mkdir -p"))?;
                    (node, above, Some(name))
                }
            };
            if !base.is_dir() {
                return Err(Failure::new(volume.shown(&base_path), "is not a directory"));
            }
            let target = Target::Volume {
                sink: Box::new(VolumeSink::new(
                    volume.clone(),
                    base,
                    base_path.clone(),
                    keep,
                )),
                volume,
                base: base_path,
                typed: name.is_some().then(|| place.inside.clone()),
            };
            Ok((target, name))
        }
    }
}

/// One run of cp.
struct Job<'j, 'p> {
    copier: &'j mut Copier<'p>,
    target: &'j mut Target,
    name: Option<Vec<u8>>,
    recursive: bool,
    keep: Keep,
}

impl Job<'_, '_> {
    /// For a regular file, resolves the typed destination, so that the contents go to the file it
    /// refers to. Entries of other kinds get the name that was typed.
    fn resolve_typed(&mut self, kind: FileKind) -> Result<(), Failure> {
        if kind != FileKind::File {
            return Ok(());
        }
        match self.target {
            Target::Host { sink, typed } => {
                let Some(typed) = typed.take() else {
                    return Ok(());
                };
                match Typed::find(&typed)? {
                    Typed::Stream(file) => {
                        *self.target = Target::Stream(StreamSink::new(file, shown(&typed)));
                    }
                    Typed::Entry(path) => {
                        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
                            return Err(typed::not_directory(shown(&typed)));
                        };
                        **sink = HostSink::open(above, self.keep)?;
                        self.name = Some(name.as_bytes().to_vec());
                    }
                }
            }
            Target::Volume {
                sink,
                volume,
                base,
                typed,
            } => {
                let Some(typed) = typed.take() else {
                    return Ok(());
                };
                let path = volume.resolve(&typed)?;
                let (above, name) =
                    split_last(&path).ok_or_else(|| typed::not_directory(volume.shown(&typed)))?;
                let node = volume.find(&above, LastLink::Follow)?;
                **sink = VolumeSink::new(volume.clone(), node, above.clone(), self.keep);
                *base = above;
                self.name = Some(name);
            }
            Target::Stream(_) => {}
        }
        Ok(())
    }

    fn take_host(&mut self, path: &Path) -> Result<(), Failure> {
        if !matches!(self.target, Target::Volume { .. }) {
            return Err(
                Failure::new(shown(path), "is on the host, and so is the destination")
                    .hint("use cp(1), or write VOLUME:PATH for a place inside a volume"),
            );
        }
        let meant = meant_volume(path).filter(|volume| !volume.exists());
        let from = HostSource::open(path, !self.recursive);
        let mut from = from.map_err(|failure| match meant {
            Some(volume) => spec::no_volume(&volume),
            None => failure,
        })?;
        self.resolve_typed(from.start()?.kind)?;
        let contents = path.as_os_str().as_bytes().ends_with(b"/.");
        let own = path.file_name().filter(|_| !contents).map(OsStr::as_bytes);
        let to = self
            .name
            .clone()
            .unwrap_or_else(|| own.unwrap_or_default().to_vec());
        self.copy(from, to, shown(path))
    }

    fn take_volume(&mut self, place: &VolumePath, open: &mut Open) -> Result<(), Failure> {
        let (volume, id) = open.get(place, Access::Read)?;
        let last = if self.recursive {
            LastLink::Keep
        } else {
            LastLink::Follow
        };
        let node = volume.find(&place.inside, last)?;
        let contents = place.inside.ends_with(b"/.");
        let own = split_last(&place.inside).filter(|_| !contents);
        let own = own.map(|(_, name)| name).unwrap_or_default();
        self.resolve_typed(node.attr.kind)?;
        let to = self.name.clone().unwrap_or(own);
        if let Target::Volume {
            volume: into, base, ..
        } = &self.target
            && std::sync::Arc::ptr_eq(into.fs(), volume.fs())
        {
            apart(into, base, &to, node.ino(), node.is_dir(), &place.shown())?;
        }
        let source = VolumeSource::new(volume, id, node, place.inside.clone());
        self.copy(source, to, place.shown())
    }

    fn copy<S: Source>(
        &mut self,
        mut source: S,
        to: Vec<u8>,
        shown: String,
    ) -> Result<(), Failure> {
        let kind = source.start()?.kind;
        match kind {
            FileKind::Directory if !self.recursive => {
                return Err(Failure::new(shown, "is a directory")
                    .hint("to copy it with everything in it: cairnfs cp -r"));
            }
            FileKind::File | FileKind::Directory | FileKind::Symlink => {}
            _ if !self.recursive => {
                return Err(Failure::new(shown, "is a device, FIFO or socket")
                    .hint("to make one of the same kind: cairnfs cp -r"));
            }
            _ => {}
        }
        if to.is_empty() && kind != FileKind::Directory {
            return Err(Failure::new(shown, "has no name to copy it under")
                .hint("name the copy: cairnfs cp SOURCE DIRECTORY/NAME"));
        }
        self.copier
            .copy_counted(&mut source, self.target.sink(), to)
    }
}

/// Whether a path can only name a directory.
fn asks_for_directory(path: &[u8]) -> bool {
    path.ends_with(b"/") || path.ends_with(b"/.")
}

/// Refuses to copy a file or tree within a volume onto or into itself.
fn apart(
    volume: &Volume,
    base: &[u8],
    name: &[u8],
    source: u64,
    is_dir: bool,
    shown: &str,
) -> Result<(), Failure> {
    if is_dir && volume.lineage(base)?.contains(&source) {
        return Err(Failure::new(shown, "cannot be copied into itself"));
    }
    let there = volume.find(&join(base, name), LastLink::Keep);
    if there.is_ok_and(|node| node.ino() == source) {
        return Err(Failure::new(
            shown,
            "source and destination are the same file",
        ));
    }
    Ok(())
}
