//! `cairnfs rm`: removes files and trees from volumes.

mod damaged;

use std::ffi::OsString;
use std::process::ExitCode;

use cairnfs::Error;
use cairnfs_daemon::failure::{AnyError, Explain, Failure};

use crate::cmd::each;
use crate::spec::VolumePath;
use crate::volume_by_path::{Access, LastLink, Node, Volume, ends_in_dots, split_last};

const EXAMPLES: &str = "\
Examples:
  cairnfs rm disk.img:/tmp/log
  cairnfs rm -r disk.img:/old
  cairnfs rm --damaged disk.img    what `cairnfs check` finds damaged in the index

The damaged parts of an index are removed from all branches of a volume that is
not mounted. What they took with them is listed. Files that lost their names,
or a part of their contents, are found in /lost+found. Save what you need
first: cairnfs export.

Exit codes: 0 all was removed, 1 something was not, 2 wrong arguments.";

/// Remove files from a volume
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Remove directories and everything in them
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// No error if a file does not exist
    #[arg(short, long)]
    force: bool,
    /// Remove what is damaged in the index of whole volumes, and free what it held
    #[arg(long, conflicts_with_all = ["recursive", "force"])]
    damaged: bool,
    /// Files, as VOLUME:PATH, or VOLUME@NAME:/PATH in a branch
    #[arg(required = true, value_name = "VOLUME[@NAME]:PATH")]
    files: Vec<OsString>,
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode, AnyError> {
    Ok(each(&args.files, |arg| {
        let place = VolumePath::parse(arg)?;
        if args.damaged {
            return damaged::remove(&place);
        }
        let volume = Volume::open(&place, Access::Write)?;
        let done = one(&args, &volume, &place);
        done.and(volume.close())
    }))
}

fn one(args: &Args, volume: &Volume, place: &VolumePath) -> Result<(), Failure> {
    if ends_in_dots(&place.inside) {
        return Err(Failure::new(place.shown(), "'.' and '..' are not removed")
            .hint("name the directory itself"));
    }
    let Some((above, name)) = split_last(&place.inside) else {
        let hint = match place.reference {
            Some(_) => "to remove a branch or snapshot: cairnfs drop VOLUME NAME",
            None => "to empty the volume: cairnfs mkfs --force",
        };
        return Err(Failure::new(place.shown(), "the root directory cannot be removed").hint(hint));
    };
    let dir = volume.find(&above, LastLink::Follow)?;
    let found = volume.lookup_opt(&dir, &name).explain(place.shown())?;
    match found {
        None if args.force => Ok(()),
        None => Err(Error::NotFound).explain(place.shown()),
        Some(node) if !node.is_dir() && place.inside.ends_with(b"/") => {
            Err(Error::NotDirectory).explain(place.shown())
        }
        Some(node) if !node.is_dir() => volume.fs().unlink(dir.ino(), &name).explain(place.shown()),
        Some(_) if !args.recursive => Err(Failure::new(place.shown(), "is a directory")
            .hint("to remove it with everything in it: cairnfs rm -r")),
        Some(node) => remove_tree(volume, dir.ino(), name, node).explain(place.shown()),
    }
}

/// A directory being emptied.
struct Frame {
    above: u64,
    name: Vec<u8>,
    node: Node,
    names: Vec<Vec<u8>>,
    /// Whether something in it could not be removed.
    stays: bool,
}

/// Removes a directory and all in it that is not hidden by damage; the first damage is the error.
fn remove_tree(volume: &Volume, above: u64, name: Vec<u8>, node: Node) -> cairnfs::Result<()> {
    let mut damage = None;
    let enter = |above, name, node: Node, damage: &mut Option<Error>| {
        let (names, lost) = volume.names_found(node.ino());
        let stays = lost.is_some();
        *damage = damage.take().or(lost);
        Frame {
            above,
            name,
            node,
            names,
            stays,
        }
    };
    let mut stack = vec![enter(above, name, node, &mut damage)];
    while let Some(frame) = stack.last_mut() {
        let dir = frame.node.ino();
        let Some(name) = frame.names.pop() else {
            let stays = frame.stays;
            if !stays {
                volume.fs().rmdir(frame.above, &frame.name)?;
            }
            stack.pop();
            if let Some(above) = stack.last_mut() {
                above.stays |= stays;
            }
            continue;
        };
        let removed = match volume.lookup(&frame.node, &name) {
            Ok(node) if node.is_dir() => {
                if stack.iter().any(|above| above.node.ino() == node.ino()) {
                    return Err(Error::Invalid("a directory contains itself"));
                }
                stack.push(enter(dir, name, node, &mut damage));
                continue;
            }
            // A name can be removed without its inode.
            Ok(_) | Err(Error::Corrupt(_) | Error::NotFound) => volume.fs().unlink(dir, &name),
            Err(error) => Err(error),
        };
        match removed {
            Err(error @ (Error::Corrupt(_) | Error::IsDirectory)) => {
                frame.stays = true;
                damage.get_or_insert(error);
            }
            removed => removed?,
        }
    }
    damage.map_or(Ok(()), Err)
}
