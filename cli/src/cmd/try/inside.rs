//! The process that shows a fork under the path of its base, and becomes the program.
//!
//! It has a mount namespace of its own, and unless it is the superuser's a user namespace, in which it
//! keeps its user and group. Runs before any thread is started: a process with threads cannot enter a
//! user namespace. Where this is not possible, the program runs in the directory of the fork.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use cairnfs_daemon::failure::{Failure, io_text, shown};
use cairnfs_fuse::mountinfo::{self, MountEntry};
use nix::sched::{CloneFlags, unshare};
use rustix::fs::CWD;
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_change, unmount};
use rustix::process::{getegid, geteuid};

use super::follower::OWN_TABLE;
use super::{PREFIX, note};
use crate::cmd::run;

/// Executes a program in `below` of the directory `part` of the fork, which it finds under the path of
/// `base` if that is possible. Returns the exit code if it cannot be executed.
pub(super) fn execute(
    (base, fork): (&Path, &Path),
    (part, below): (&Path, &Path),
    (command, preload): (&[OsString], bool),
) -> u8 {
    let dir = match show(base, fork) {
        Ok(()) => within(base, below),
        Err(e) => {
            let dir = within(&fork.join(part), below);
            note(format_args!(
                "note: the fork cannot be shown under the path of its branch ({}); it is at {}",
                io_text(&e),
                shown(&dir)
            ));
            dir
        }
    };
    let mut program = words(command, preload);
    let error = program.current_dir(&dir).env("PWD", &dir).exec();
    not_executed(command, &error)
}

/// A path without dots.
fn within(dir: &Path, below: &Path) -> PathBuf {
    dir.join(below).components().collect()
}

/// The program and its arguments. With `preload` it asks the daemons of mounts, as with `cairnfs run`, where
/// the library for that is there.
pub(super) fn words(command: &[OsString], preload: bool) -> Command {
    let mut words = command.iter();
    let mut program = Command::new(words.next().map_or_else(OsString::new, OsString::clone));
    program.args(words);
    if let Some(environment) = preload.then(run::environment).flatten() {
        program.envs(environment);
    }
    program
}

/// Tells that the program could not be executed; returns the exit code.
pub(super) fn not_executed(command: &[OsString], error: &io::Error) -> u8 {
    let name = command.first().map_or(Path::new(""), Path::new);
    Failure::new(shown(name), io_text(error)).tell();
    match error.kind() {
        io::ErrorKind::NotFound => 127,
        _ => 126,
    }
}

/// What is mounted of the base somewhere: a directory or file, or all of it.
struct Shown {
    dir: PathBuf,
    /// The same in the fork.
    part: PathBuf,
}

/// All mounts of the base: at `base`, and what others have bound elsewhere. Those that another mount
/// hides are left out.
fn all_of(base: &Path, fork: &Path) -> io::Result<Vec<Shown>> {
    let gone = || io::Error::other("the branch is not mounted there any more");
    let own = mountinfo::at(base)?.ok_or_else(gone)?;
    let is_seen = |mount: &MountEntry| {
        let seen = mountinfo::holding(&mount.mountpoint);
        seen.is_ok_and(|seen| seen.is_some_and(|seen| seen.id == mount.id))
    };
    let mounts = mountinfo::list(Path::new(OWN_TABLE)).into_iter();
    let of_base = mounts.filter(|mount| mount.device == own.device && is_seen(mount));
    let shown = |mount: MountEntry| {
        let part = fork.join(mount.part()?);
        Some(Shown {
            dir: mount.mountpoint,
            part,
        })
    };
    Ok(of_base.filter_map(shown).collect())
}

/// Mounts the fork over the path of its base, and its parts over what is mounted of the base elsewhere,
/// so that no path leads into the base. Visible to this process and its children only.
fn show(base: &Path, fork: &Path) -> io::Result<()> {
    let mounts = all_of(base, fork)?;
    let (user, group) = (geteuid(), getegid());
    if user.is_root() {
        unshare(CloneFlags::CLONE_NEWNS)?;
    } else {
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUSER)?;
        std::fs::write("/proc/self/setgroups", "deny")?;
        let (user, group) = (user.as_raw(), group.as_raw());
        std::fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
        std::fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    }
    // What is unmounted outside goes here, too, where the system propagates mounts; nothing that is
    // mounted here is seen outside.
    let all = MountPropagationFlags::REC | MountPropagationFlags::DOWNSTREAM;
    mount_change("/", all)?;
    leave_unneeded(&mounts, fork);
    for mount in &mounts {
        mount_bind(&mount.part, &mount.dir)?;
    }
    // A process that stays in the directory below goes on in the base.
    rustix::fs::accessat(
        CWD,
        base,
        rustix::fs::Access::EXISTS,
        rustix::fs::AtFlags::empty(),
    )?;
    Ok(())
}

/// Gives up the copies that this namespace has of other forks' mounts, and of mounts below the base,
/// which the fork hides. The copies would keep the mounts in use.
fn leave_unneeded(bases: &[Shown], fork: &Path) {
    let mounts = mountinfo::list(Path::new(OWN_TABLE)).into_iter();
    let is_fork = |dir: &Path| {
        let name = dir.file_name().map(OsStrExt::as_bytes);
        name.is_some_and(|name| name.starts_with(PREFIX.as_bytes()))
    };
    let is_below = |dir: &Path, base: &Path| dir.starts_with(base) && dir != base;
    let is_unneeded = |dir: &Path| {
        let is_hidden = bases.iter().any(|base| is_below(dir, &base.dir));
        (is_fork(dir) || is_hidden) && dir != fork
    };
    // Those that were mounted later are on those before.
    for mount in mounts
        .filter(|m| m.is_ours() && is_unneeded(&m.mountpoint))
        .rev()
    {
        // Not permitted in a user namespace. It is unmounted outside, then, or this program is waited for.
        let _ = unmount(&mount.mountpoint, UnmountFlags::DETACH);
    }
}
