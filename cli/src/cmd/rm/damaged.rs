//! `cairnfs rm --damaged`: removes what is damaged in the index of a volume, and says what was lost.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use cairnfs::Loss;
use cairnfs::fs::{FileSystem, Options};
use cairnfs_daemon::failure::{Explain, Failure, io_text, shown};
use cairnfs_daemon::shell::{word, word_of_path};
use cairnfs_disk::device::{Access, FileDevice};
use cairnfs_disk::format::root::MAIN_NAME;
use cairnfs_disk::format::{BLOCK_SIZE, ROOT_INO};
use cairnfs_disk::types::SetAttr;
use rustix::process::{getegid, geteuid};

use crate::output::counted;
use crate::size::human;
use crate::spec::{VolumePath, place};

/// Removes what is damaged in a volume that is not mounted.
pub fn remove(at: &VolumePath) -> Result<(), Failure> {
    if at.reference.is_some() || !at.inside.is_empty() {
        return Err(
            Failure::new(at.shown(), "damage is removed from a whole volume")
                .hint("name the volume alone: cairnfs rm --damaged VOLUME"),
        );
    }
    let path = &at.volume;
    let opening = |e: cairnfs::Error| Failure::opening(path, &e);
    let device = FileDevice::open(path, Access::ReadWrite).map_err(opening)?;
    let device = Arc::new(device);
    let removed =
        FileSystem::remove_damage(device.clone(), &Options::default()).map_err(opening)?;
    // The first opening removes files that have no names left.
    let fs = FileSystem::open_device(device, &Options::default()).map_err(opening)?;
    let mut lines = Vec::new();
    for (branch, loss) in &removed.losses {
        let tree = match branch.as_str() {
            MAIN_NAME => None,
            name => fs.open_named(name).ok(),
        };
        let reference = tree.is_some().then_some(branch.as_str());
        let files = tree.as_ref().unwrap_or(&fs);
        if *loss == (Loss::Directory { ino: ROOT_INO }) {
            own_root(files).explain(shown(path))?;
        }
        let shown_at = |inode: u64, name: &[u8]| {
            let mut inside = files.path_hint(inode).as_os_str().as_bytes().to_vec();
            if !name.is_empty() {
                inside.push(b'/');
                inside.extend(name);
            }
            place(path, reference, &inside)
        };
        lines.push(text(loss, &shown_at));
    }
    let roots = fs.roots();
    fs.close().explain(shown(path))?;
    lines.push(format!(
        "{}: {} removed, {} freed",
        shown(path),
        counted(removed.nodes.len() as u64, "damaged part", "damaged parts"),
        human(removed.freed * BLOCK_SIZE as u64)
    ));
    let mut out = io::stdout().lock();
    let mut written = lines.iter().map(|line| writeln!(out, "{line}"));
    let written = written.try_for_each(|line| line);
    written.map_err(|e| Failure::new("standard output", io_text(&e)))?;
    let is_branch = |name: &str| {
        let mut named = roots.iter().filter(|root| root.writable);
        named.any(|root| root.name.as_deref() == Some(name))
    };
    let mut left = removed.still_damaged.iter().map(|(name, damage)| {
        let volume = word_of_path(path);
        let (what, next) = match name.as_str() {
            "" => (
                format!("{}: a state that branches have in common", shown(path)),
                format!(
                    "it goes when all but one of the snapshots and branches that were forked from \
                     it are dropped; to see them: cairnfs log {volume}"
                ),
            ),
            name if is_branch(name) => (
                place(path, Some(name), b""),
                format!(
                    "dropping it ends the damage: cairnfs drop --wait {volume} {}",
                    word(name)
                ),
            ),
            name => (
                place(path, Some(name), b""),
                format!(
                    "save what can be read of it: cairnfs export {volume}@{name} DIR; dropping it \
                     then ends the damage: cairnfs drop --wait {volume} {}",
                    word(name)
                ),
            ),
        };
        let why = if is_branch(name) {
            format!("nothing of it can be found: {damage}")
        } else {
            format!("stays damaged, because it never changes: {damage}")
        };
        Failure::new(what, why).hint(next)
    });
    let last = left.next_back();
    left.for_each(|failure| failure.tell());
    last.map_or(Ok(()), Err)
}

/// Gives a root directory that was made anew to the caller, as that of a new volume.
fn own_root(files: &FileSystem) -> Result<(), cairnfs::Error> {
    let owner = SetAttr {
        uid: Some(geteuid().as_raw()),
        gid: Some(getegid().as_raw()),
        ..SetAttr::default()
    };
    files.setattr(ROOT_INO, &owner).map(drop)
}

/// A line about a loss.
fn text(loss: &Loss, at: &dyn Fn(u64, &[u8]) -> String) -> String {
    match loss {
        Loss::Tree => format!(
            "{}: everything is lost but what the log had",
            at(ROOT_INO, b"")
        ),
        Loss::Names { dir, count } => {
            let names = counted(*count, "name", "names");
            format!("{}: {names} lost", at(*dir, b""))
        }
        Loss::Inode { dir, name, .. } => format!("{}: lost", at(*dir, name)),
        Loss::Contents { dir, name, ino } => format!(
            "{}: lost a part of its contents, which reads as zeros now; it is inode {ino}",
            at(*dir, name)
        ),
        Loss::Attributes { ino, count } => {
            let attributes = counted(*count, "attribute", "attributes");
            format!("{}: {attributes} lost", at(*ino, b""))
        }
        Loss::Directory { ino } => {
            format!("{}: lost its owner, permissions and times", at(*ino, b""))
        }
        Loss::Saved { dir, name, .. } => format!("{}: had lost its name", at(*dir, name)),
    }
}
