//! Many files in many directories: make them, list and stat them all, remove them all.
//!
//! Each thread has a directory with `--dirs` directories in it, which it fills one after the
//! other. The walk checks that everything is there, so a target that loses files fails. What was
//! still to be written after the last removal is measured as phases of their own, and the last
//! line holds all of it: a target cannot win by putting work off.

use crate::Result;
use crate::args::Args;
use crate::phase::{Meter, Phase, total};
use crate::report::Report;
use crate::target::Target;

/// Runs the workload.
pub fn run(args: &Args, target: &dyn Target) -> Result<Report> {
    let tree = Tree::new(args);
    tree.make_dirs(target)?;
    target.sync()?;
    let mut meter = Meter::new(target, args.threads, args.sync_phases);
    let contents: Vec<u8> = (0..args.size).map(|i| (i % 251) as u8).collect();
    meter.threads("create", |thread| {
        tree.create(target, thread, &contents, args.sync)
    })?;
    meter.threads("walk", |thread| tree.walk(target, thread, args.size))?;
    if !args.keep {
        meter.threads("unlink", |thread| tree.unlink(target, thread))?;
    }
    meter.once("sync", || target.sync())?;
    if !args.keep {
        tree.remove_dirs(target)?;
    }
    meter.once("close", || target.close())?;
    Ok(report(args, target, meter.finish()))
}

fn report(args: &Args, target: &dyn Target, mut phases: Vec<Phase>) -> Report {
    if target.counters().is_empty() {
        // What is not opened by the benchmark is not closed by it either.
        phases.retain(|p| p.name != "close");
    }
    // A file's whole life is one operation here.
    let files = args.files * args.threads as u64;
    let all = total("all, until synced", files, &phases);
    phases.push(all);
    Report {
        workload: "fsmark",
        target: target.name().to_owned(),
        interface: target.interface(),
        settings: vec![
            ("threads", args.threads as u64),
            ("files_per_thread", args.files),
            ("dirs_per_thread", args.dirs),
            ("file_bytes", args.size),
            ("fsync_each", u64::from(args.sync)),
            ("sync_each_phase", u64::from(args.sync_phases)),
        ],
        unit: "files",
        phases,
    }
}

/// The names of the workload's directories and files.
struct Tree {
    top: String,
    threads: usize,
    files: u64,
    dirs: u64,
}

impl Tree {
    fn new(args: &Args) -> Self {
        Self {
            top: format!("cairnfs-bench-{}", std::process::id()),
            threads: args.threads,
            files: args.files,
            // A directory without files would only be listed.
            dirs: args.dirs.min(args.files),
        }
    }

    fn thread_dir(&self, thread: usize) -> String {
        format!("{}/t{thread}", self.top)
    }

    fn dir(&self, thread: usize, dir: u64) -> String {
        format!("{}/t{thread}/d{dir}", self.top)
    }

    /// The files of a directory, by number.
    fn files_of(&self, dir: u64) -> std::ops::Range<u64> {
        let start =
            |d: u64| (u128::from(self.files) * u128::from(d) / u128::from(self.dirs)) as u64;
        start(dir)..start(dir + 1)
    }

    fn make_dirs(&self, target: &dyn Target) -> Result<()> {
        target.make_dir(&self.top)?;
        for thread in 0..self.threads {
            target.make_dir(&self.thread_dir(thread))?;
            for dir in 0..self.dirs {
                target.make_dir(&self.dir(thread, dir))?;
            }
        }
        Ok(())
    }

    fn remove_dirs(&self, target: &dyn Target) -> Result<()> {
        for thread in 0..self.threads {
            for dir in 0..self.dirs {
                target.remove_dir(&self.dir(thread, dir))?;
            }
            target.remove_dir(&self.thread_dir(thread))?;
        }
        target.remove_dir(&self.top)
    }

    fn create(
        &self,
        target: &dyn Target,
        thread: usize,
        contents: &[u8],
        sync: bool,
    ) -> Result<u64> {
        for dir in 0..self.dirs {
            let place = target.dir(&self.dir(thread, dir))?;
            for file in self.files_of(dir) {
                place.create(&name(file), contents, sync)?;
            }
        }
        Ok(self.files)
    }

    fn walk(&self, target: &dyn Target, thread: usize, size: u64) -> Result<u64> {
        for dir in 0..self.dirs {
            let path = self.dir(thread, dir);
            let files = self.files_of(dir);
            let expected = files.end - files.start;
            let (found, bytes) = target.dir(&path)?.walk()?;
            if (found, bytes) != (expected, expected * size) {
                return Err(format!(
                    "{path} should hold {expected} files of {size} bytes, but has {found} with {bytes} bytes"
                )
                .into());
            }
        }
        Ok(self.files)
    }

    fn unlink(&self, target: &dyn Target, thread: usize) -> Result<u64> {
        for dir in 0..self.dirs {
            let place = target.dir(&self.dir(thread, dir))?;
            for file in self.files_of(dir) {
                place.remove(&name(file))?;
            }
        }
        Ok(self.files)
    }
}

fn name(file: u64) -> String {
    format!("file{file:08}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_has_one_directory() {
        for (files, dirs) in [(10, 3), (1, 1), (7, 7), (1000, 13), (5, 4)] {
            let tree = Tree {
                top: String::new(),
                threads: 1,
                files,
                dirs,
            };
            let all: Vec<u64> = (0..dirs).flat_map(|d| tree.files_of(d)).collect();
            assert_eq!(all, (0..files).collect::<Vec<_>>());
            assert!((0..dirs).all(|d| !tree.files_of(d).is_empty()));
        }
    }
}
