//! Many files in many directories: creates them, lists and stats them, removes them.
//!
//! Each thread has a directory with `--dirs` subdirectories, which it fills one after the other.
//! The walk checks that all files exist, so a target that loses files fails. Writes that are still
//! outstanding after the last removal are measured as separate phases, and the last line is the
//! sum, so that a target gains nothing by delaying work.

use super::{Description, Phases, Worker, Workload, at_least_one, at_most_1g, contents, file_name};
use crate::Result;
use crate::settings::parse_size;

/// Make many files, list and stat them all, remove them all.
#[derive(Debug, Clone, clap::Args)]
pub struct Fsmark {
    /// Threads, each in a directory of its own.
    #[arg(long, short = 't', value_name = "N", default_value_t = 1)]
    pub threads: usize,

    /// Files of each thread.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 10_000)]
    pub files: u64,

    /// Directories of each thread; they are filled one after the other.
    #[arg(long, short = 'd', value_name = "N", default_value_t = 10)]
    pub dirs: u64,

    /// Bytes of each file; suffixes K, M, G, T.
    #[arg(long, short = 's', value_name = "BYTES", default_value = "0", value_parser = parse_size)]
    pub size: u64,

    /// Sync each file after it is written.
    #[arg(long)]
    pub sync: bool,

    /// Sync the file system at the end of each phase, within its time, so that each phase includes
    /// its own log bytes; without it, all outstanding writes are in the last phases.
    #[arg(long)]
    pub sync_phases: bool,

    /// Sync after creating, and show creating and syncing together as `create synced`.
    #[arg(long)]
    pub sync_create: bool,

    /// List and stat all a second time: a cache above the target, such as the kernel's above a
    /// mount, may answer that.
    #[arg(long, conflicts_with = "no_walk")]
    pub walk_again: bool,

    /// List and stat all once more after the volume was closed and opened again, with empty caches.
    /// For the library and `bench compare`.
    #[arg(long)]
    pub cold: bool,

    /// Do not list and stat the files: for a file system that does not store any.
    #[arg(long, conflicts_with = "cold")]
    pub no_walk: bool,

    /// Stat each file by its path, one call at a time.
    #[arg(long)]
    pub stat: bool,

    /// Open, read and close each file, one file at a time.
    #[arg(long)]
    pub read: bool,
}

impl Workload for Fsmark {
    fn describe(&self) -> Description {
        Description {
            name: "fsmark",
            unit: "files",
            threads: self.threads,
            settings: vec![
                ("threads", self.threads as u64),
                ("files_per_thread", self.files),
                ("dirs_per_thread", self.dirs),
                ("file_bytes", self.size),
                ("fsync_each", u64::from(self.sync)),
                ("sync_each_phase", u64::from(self.sync_phases)),
                ("sync_after_create", u64::from(self.sync_create)),
                ("walk_again", u64::from(self.walk_again)),
                ("cold_walk", u64::from(self.cold)),
                ("no_walk", u64::from(self.no_walk)),
                ("stat_each", u64::from(self.stat)),
                ("read_each", u64::from(self.read)),
            ],
        }
    }

    fn check(&self) -> Result<()> {
        at_least_one(&[
            ("--threads", self.threads as u64),
            ("--files", self.files),
            ("--dirs", self.dirs),
        ])?;
        at_most_1g("--size", self.size)
    }

    fn reopens(&self) -> bool {
        self.cold
    }

    fn prepare(&self, worker: &Worker<'_>) -> Result<()> {
        (0..self.dirs()).try_for_each(|dir| worker.make_subdir(&dir_name(dir)))
    }

    fn measure(&self, phases: &mut Phases<'_>) -> Result<()> {
        if self.sync_phases {
            phases.meter.sync_phases();
        }
        let bytes = contents(self.size);
        phases.run("create", |worker| self.create(worker, &bytes))?;
        if self.sync_create {
            phases.meter.sync_last("sync created", "create synced")?;
        }
        self.walks(phases)?;
        if self.stat {
            phases.run("stat", |worker| self.stat(worker))?;
        }
        if self.read {
            phases.run("open + read + close", |worker| self.read(worker))?;
        }
        if !phases.keeps() {
            phases.run("unlink", |worker| self.unlink(worker))?;
        }
        phases.meter.sync()
    }

    fn lives(&self) -> Option<u64> {
        Some(self.files * self.threads as u64)
    }
}

impl Fsmark {
    /// Directories of each thread, at most one per file: a directory without files would only be
    /// listed.
    fn dirs(&self) -> u64 {
        self.dirs.min(self.files)
    }

    /// Returns the numbers of the files of a directory.
    fn files_of(&self, dir: u64) -> std::ops::Range<u64> {
        let (files, dirs) = (u128::from(self.files), u128::from(self.dirs()));
        let start = |d: u64| (files * u128::from(d) / dirs) as u64;
        start(dir)..start(dir + 1)
    }

    fn create(&self, worker: &mut Worker<'_>, bytes: &[u8]) -> Result<()> {
        for dir in 0..self.dirs() {
            let place = worker.subdir(&dir_name(dir))?;
            let create = |file| place.create(&file_name(file), bytes, self.sync);
            worker.each(self.files_of(dir), create)?;
        }
        worker.tally.bytes += self.files * self.size;
        Ok(())
    }

    fn walks(&self, phases: &mut Phases<'_>) -> Result<()> {
        if self.no_walk {
            return Ok(());
        }
        phases.run("walk", |worker| self.walk(worker))?;
        if self.walk_again {
            phases.run("walk again", |worker| self.walk(worker))?;
        }
        if self.cold {
            phases.meter.reopen()?;
            phases.run("walk cold", |worker| self.walk(worker))?;
        }
        Ok(())
    }

    fn walk(&self, worker: &mut Worker<'_>) -> Result<()> {
        for dir in 0..self.dirs() {
            let files = self.files_of(dir);
            let expected = files.end - files.start;
            let (found, bytes) = worker.subdir(&dir_name(dir))?.walk()?;
            if (found, bytes) != (expected, expected * self.size) {
                return Err(format!(
                    "directory {dir} of thread {} should hold {expected} files of {} bytes, but has {found} with {bytes} bytes",
                    worker.number, self.size
                )
                .into());
            }
        }
        worker.tally.operations += self.files;
        Ok(())
    }

    fn stat(&self, worker: &mut Worker<'_>) -> Result<()> {
        for dir in 0..self.dirs() {
            let place = worker.subdir(&dir_name(dir))?;
            let stat = |file| self.has_size(file, place.stat(&file_name(file))?);
            worker.each(self.files_of(dir), stat)?;
        }
        Ok(())
    }

    fn read(&self, worker: &mut Worker<'_>) -> Result<()> {
        // One byte more than a file has, so that a longer file is noticed.
        let mut buffer = vec![0; usize::try_from(self.size)? + 1];
        for dir in 0..self.dirs() {
            let place = worker.subdir(&dir_name(dir))?;
            worker.each(self.files_of(dir), |file| {
                let read = place.read(&file_name(file), &mut buffer)?;
                self.has_size(file, read as u64)
            })?;
        }
        Ok(())
    }

    fn has_size(&self, file: u64, found: u64) -> Result<()> {
        if found == self.size {
            Ok(())
        } else {
            Err(format!(
                "{} should have {} bytes, but has {found}",
                file_name(file),
                self.size
            )
            .into())
        }
    }

    fn unlink(&self, worker: &mut Worker<'_>) -> Result<()> {
        for dir in 0..self.dirs() {
            let place = worker.subdir(&dir_name(dir))?;
            worker.each(self.files_of(dir), |file| place.remove(&file_name(file)))?;
        }
        Ok(())
    }
}

fn dir_name(dir: u64) -> String {
    format!("d{dir}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_is_in_exactly_one_directory() {
        for (files, dirs) in [(10, 3), (1, 1), (7, 7), (1000, 13), (5, 4)] {
            let (files_word, dirs_word) = (files.to_string(), dirs.to_string());
            let words = ["--files", &files_word, "--dirs", &dirs_word];
            let tree: Fsmark = crate::parse(&words).unwrap();
            let all: Vec<u64> = (0..dirs).flat_map(|d| tree.files_of(d)).collect();
            assert_eq!(all, (0..files).collect::<Vec<_>>());
            assert!((0..dirs).all(|d| !tree.files_of(d).is_empty()));
        }
    }
}
