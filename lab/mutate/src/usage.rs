//! Uses a writable volume as programs do, on the files that it shows.
//!
//! The errors of the operations are collected, not judged.

use cairnfs::fs::FileSystem;
use cairnfs::{Error, Result};
use cairnfs_disk::types::{Creds, Fallocate, FileKind, RenameMode, SetAttr, XattrMode};

const WHO: Creds = Creds { uid: 3, gid: 4 };
/// Maximum number of existing files that are changed.
const MOST_FILES: usize = 24;

struct Found {
    dir: u64,
    name: Vec<u8>,
    ino: u64,
    kind: FileKind,
}

/// Changes the volume; returns the errors.
pub(crate) fn exercise(fs: &FileSystem) -> Vec<Error> {
    let mut run = UsageRun {
        fs,
        errors: Vec::new(),
    };
    let found = run.find();
    let new = run.make();
    for (i, file) in found.iter().enumerate() {
        run.change(i, file, new);
    }
    let merged = fs.merge();
    run.note(merged);
    for file in found.iter().rev() {
        let removed = match file.kind {
            FileKind::Directory => fs.rmdir(file.dir, &file.name),
            _ => fs.unlink(file.dir, &file.name),
        };
        run.note(removed);
    }
    let synced = fs.sync();
    run.note(synced);
    fs.statfs();
    fs.info();
    let merged = fs.merge();
    run.note(merged);
    run.errors
}

struct UsageRun<'a> {
    fs: &'a FileSystem,
    errors: Vec<Error>,
}

impl UsageRun<'_> {
    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(e) => {
                self.errors.push(e);
                None
            }
        }
    }

    /// A few files of each directory in the tree.
    fn find(&mut self) -> Vec<Found> {
        let mut found: Vec<Found> = Vec::new();
        let mut dirs = vec![1];
        while let Some(dir) = dirs.pop() {
            let mut few = 6;
            let listed = self.fs.readdir(dir, 2, &mut |e| {
                few -= 1;
                found.push(Found {
                    dir,
                    name: e.name.to_vec(),
                    ino: e.ino,
                    kind: e.kind,
                });
                few > 0
            });
            self.note(listed);
            if found.len() > MOST_FILES {
                break;
            }
            let of = found.iter().filter(|f| f.dir == dir);
            dirs.extend(of.filter(|f| f.kind == FileKind::Directory).map(|f| f.ino));
        }
        found
    }

    /// Creates a directory with some files; returns it, or the root if that fails.
    fn make(&mut self) -> u64 {
        let fs = self.fs;
        let Some(dir) = self.note(fs.mkdir(1, b"made", 0o755, WHO)) else {
            return 1;
        };
        fs.forget(dir.ino, 1);
        let dir = dir.ino;
        if let Some(file) = self.note(fs.mknod(dir, b"file", 0o100_600, 0, WHO)) {
            let written = fs.write(file.ino, 3000, &[7; 9000], false);
            self.note(written);
            let set = fs.setxattr(file.ino, b"user.x", &[1; 6000], XattrMode::Set);
            self.note(set);
            let synced = fs.fsync(file.ino, false);
            self.note(synced);
            let linked = fs.link(file.ino, 1, b"made-link");
            if self.note(linked).is_some() {
                fs.forget(file.ino, 1);
            }
            fs.forget(file.ino, 1);
        }
        if let Some(link) = self.note(fs.symlink(dir, b"link", b"to", WHO)) {
            fs.forget(link.ino, 1);
        }
        dir
    }

    fn change(&mut self, i: usize, file: &Found, new: u64) {
        let fs = self.fs;
        if file.kind == FileKind::File {
            let written = fs.write(file.ino, (i * 1500) as u64, &[9; 5000], false);
            self.note(written);
            let shorter = SetAttr {
                size: Some((i * 700) as u64),
                ..SetAttr::default()
            };
            let what = match i % 3 {
                0 => fs.setattr(file.ino, &shorter).map(|_| ()),
                1 => fs.fallocate(file.ino, 4096, 20_000, Fallocate::PunchHole, false),
                _ => fs.fsync(file.ino, false),
            };
            self.note(what);
        }
        let set = match i % 2 {
            0 => fs.setxattr(file.ino, b"user.more", b"1", XattrMode::Set),
            _ => fs.removexattr(file.ino, b"user.small"),
        };
        self.note(set);
        match i % 4 {
            0 => {
                let to = format!("moved-{i}");
                let moved = fs.rename(
                    file.dir,
                    &file.name,
                    new,
                    to.as_bytes(),
                    RenameMode::Replace,
                );
                self.note(moved);
            }
            1 => {
                let moved = fs.rename(1, b"made", file.ino, b"made", RenameMode::Replace);
                self.note(moved);
            }
            2 => {
                let (dir, name) = (file.dir, &file.name);
                let moved = fs.rename(1, b"made-link", dir, name, RenameMode::Exchange);
                self.note(moved);
            }
            _ => {}
        }
    }
}
