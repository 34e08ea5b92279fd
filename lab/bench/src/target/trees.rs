//! Trees in a directory that are forked whole: by the snapshots or shared blocks of the file system
//! where it has them, by git, or by a copy.
//!
//! A fork is durable when it is made, like that of a volume: `syncfs` follows each program. After
//! the last removal, btrfs is waited for until it has the space back: its cleaner begins up to half a
//! minute later.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Dir, Directory, Target, Tree, at};
use crate::Result;

/// Types of file systems, as in statfs(2).
const BTRFS: i64 = 0x9123_683E;
const XFS: i64 = 0x5846_5342;

/// How a tree is forked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// A snapshot of a subvolume.
    Subvolume,
    /// A copy of the names, with shared blocks.
    Reflink,
    /// A copy.
    Copy,
    /// A working tree of a repository.
    Worktree,
}

/// A tree in a directory of a mounted file system.
pub struct DirectoryTree<'t> {
    target: &'t Directory,
    /// The directory of the tree and its forks.
    parent: PathBuf,
    way: Way,
}

impl<'t> DirectoryTree<'t> {
    /// Makes an empty tree in the directory `parent`; with `git` it is forked by git.
    pub fn make(target: &'t Directory, parent: PathBuf, git: bool) -> Result<Self> {
        let found = rustix::fs::statfs(&parent).map_err(|e| at(parent.display(), e))?;
        let way = match (git, found.f_type) {
            (true, _) => Way::Worktree,
            (false, BTRFS) => Way::Subvolume,
            (false, XFS) => Way::Reflink,
            _ => Way::Copy,
        };
        let tree = Self {
            target,
            parent,
            way,
        };
        match way {
            Way::Subvolume => run("btrfs", &["subvolume", "create"], &[&tree.origin()])?,
            _ => fs::create_dir(tree.origin()).map_err(|e| at(tree.origin().display(), e))?,
        }
        Ok(tree)
    }

    fn origin(&self) -> PathBuf {
        self.parent.join("tree")
    }

    fn path(&self, fork: Option<u64>) -> PathBuf {
        fork.map_or_else(|| self.origin(), |n| self.parent.join(format!("fork{n}")))
    }

    fn git(&self, words: &[&str], paths: &[&Path]) -> Result<()> {
        let of_tree = self.origin();
        let tree = of_tree.to_str().ok_or("a path that is not UTF-8")?;
        let settings = [
            "-C",
            tree,
            "-c",
            "user.name=bench",
            "-c",
            "user.email=bench",
        ];
        run("git", &[&settings, words].concat(), paths)
    }

    fn sync(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(&File::open(&self.parent)?)?)
    }
}

impl Tree for DirectoryTree<'_> {
    fn is_constant(&self) -> bool {
        self.way == Way::Subvolume
    }

    fn filled(&self) -> Result<()> {
        if self.way != Way::Worktree {
            return Ok(());
        }
        self.git(&["init", "--quiet"], &[])?;
        self.git(&["add", "--all"], &[])?;
        self.git(&["commit", "--quiet", "--message=files"], &[])
    }

    fn dir<'a>(&'a self, fork: Option<u64>) -> Result<Box<dyn Dir + 'a>> {
        let path = self.path(fork);
        self.target
            .dir(path.to_str().ok_or("a path that is not UTF-8")?)
    }

    fn fork(&self, number: u64) -> Result<()> {
        let (tree, fork) = (self.origin(), self.path(Some(number)));
        let paths = [tree.as_path(), fork.as_path()];
        match self.way {
            Way::Subvolume => run("btrfs", &["subvolume", "snapshot"], &paths)?,
            Way::Reflink => run("cp", &["-a", "--reflink=always"], &paths)?,
            Way::Copy => run("cp", &["-a"], &paths)?,
            Way::Worktree => self.git(&["worktree", "add", "--quiet", "--detach"], &[&fork])?,
        }
        self.sync()
    }

    fn remove(&self, number: u64) -> Result<()> {
        let fork = self.path(Some(number));
        match self.way {
            Way::Subvolume => run("btrfs", &["subvolume", "delete"], &[&fork]),
            Way::Reflink | Way::Copy => {
                run("rm", &["-r"], &[&fork])?;
                self.sync()
            }
            Way::Worktree => {
                self.git(&["worktree", "remove", "--force"], &[&fork])?;
                self.sync()
            }
        }
    }

    fn freed(&self) -> Result<()> {
        match self.way {
            Way::Subvolume => run("btrfs", &["subvolume", "sync"], &[&self.parent]),
            _ => Ok(()),
        }
    }
}

/// Lines of a program's messages that a failure shows: it may have one for each file.
const SHOWN: usize = 3;

/// Runs a program; the first of its messages are the text of a failure.
fn run(program: &str, words: &[&str], paths: &[&Path]) -> Result<()> {
    let mut command = Command::new(program);
    let done = command.args(words).args(paths).output();
    let done = done.map_err(|e| at(program, e))?;
    if done.status.success() {
        Ok(())
    } else {
        let messages = String::from_utf8_lossy(&done.stderr);
        let first: Vec<&str> = messages.trim().lines().take(SHOWN).collect();
        Err(at(program, first.join("\n")))
    }
}
