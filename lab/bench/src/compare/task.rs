//! The tasks on each file system: a workload with its settings, or an external program. Written on
//! the command line with the same words as after `cairnfs-bench`.

use std::sync::Arc;

use cairnfs::Mechanism;

use super::external::External;
use super::system::System;
use crate::Result;
use crate::settings::parse;
use crate::target::raw;
use crate::workload::{
    Ageing, Branches, Dirfsync, Fsmark, Fsync, Maildir, Mixed, Neighbour, Workload, Xattr,
};

/// A task to measure.
#[derive(Debug, Clone)]
pub struct Task {
    /// The words of the task.
    pub title: String,
    /// The workload or program.
    pub work: Work,
    /// The sweep over thread counts to which it belongs, and its count.
    pub sweep: Option<(String, usize)>,
    /// The mechanism that it shows: it runs only with all mechanisms and without this one.
    pub shows: Option<Mechanism>,
}

/// A workload or a program.
#[derive(Debug, Clone)]
pub enum Work {
    /// Many files.
    Fsmark(Fsmark),
    /// Extended attributes.
    Xattr(Xattr),
    /// Syncs of directories.
    Dirfsync(Dirfsync),
    /// Syncs of files.
    Fsync(Fsync),
    /// Syncs beside a load.
    Mixed(Mixed),
    /// Mail delivery.
    Maildir(Maildir),
    /// A computation beside one client.
    Neighbour(Neighbour),
    /// Files that are replaced again and again.
    Ageing(Ageing),
    /// Forks of a tree.
    Branches(Branches),
    /// An external program.
    External(Arc<dyn External>),
}

/// The default workload: 8 threads create 400,000 empty files.
pub const DEFAULT: &str = "fsmark --threads 8 --files 50000 --sync-create --walk-again --cold";

impl Task {
    /// Parses a workload from words separated by spaces.
    pub fn parse(title: &str) -> Result<Self> {
        let words: Vec<&str> = title.split_whitespace().collect();
        let with_title = |e: crate::Failure| format!("workload `{title}`: {e}");
        let (name, rest) = words.split_first().ok_or("a workload has a name")?;
        let work = Work::parse(name, rest).map_err(with_title)?;
        if let Some(workload) = work.on(System::Ext4) {
            workload.check().map_err(with_title)?;
        }
        Ok(Self {
            title: words.join(" "),
            work,
            sweep: None,
            shows: None,
        })
    }

    /// Parses a workload that shows what a mechanism saves.
    pub fn showing(title: &str, mechanism: Mechanism) -> Result<Self> {
        Ok(Self {
            shows: Some(mechanism),
            ..Self::parse(title)?
        })
    }

    /// Creates a task for a program.
    pub fn external(load: Arc<dyn External>) -> Self {
        Self {
            title: load.title(),
            work: Work::External(load),
            sweep: None,
            shows: None,
        }
    }

    /// Returns the same task with other numbers of threads: with the same total number of files for
    /// fsmark, whose threads share the work; with the same number per thread for xattr.
    pub fn with_threads(&self, counts: &[usize]) -> Result<Vec<Task>> {
        counts.iter().map(|&threads| self.with(threads)).collect()
    }

    fn with(&self, threads: usize) -> Result<Task> {
        let (work, each) = match &self.work {
            Work::Fsmark(fsmark) => {
                let files = fsmark.files * fsmark.threads as u64 / (threads as u64).max(1);
                let fsmark = fsmark.clone();
                let set = Fsmark {
                    threads,
                    files,
                    ..fsmark
                };
                (Work::Fsmark(set), files)
            }
            Work::Xattr(xattr) => {
                let xattr = xattr.clone();
                let files = xattr.files;
                (Work::Xattr(Xattr { threads, ..xattr }), files)
            }
            _ => {
                return Err(format!(
                    "--threads is for fsmark and xattr: the threads of `{}` are among its own words",
                    self.title
                )
                .into());
            }
        };
        if let Some(workload) = work.on(System::Ext4) {
            workload.check()?;
        }
        let plural = if threads == 1 { "" } else { "s" };
        Ok(Task {
            title: format!(
                "{}; {threads} thread{plural}, {each} files each",
                self.title
            ),
            work,
            sweep: Some((self.title.clone(), threads)),
            shows: None,
        })
    }

    /// Whether the task can run on a system.
    pub fn fits(&self, system: System) -> bool {
        let others = |m: Mechanism| ![System::Cairnfs, System::CairnfsWithout(m)].contains(&system);
        if self.shows.is_some_and(others) {
            return false;
        }
        match &self.work {
            Work::Fsync(fsync) if system == System::Raw => fsync.block.is_multiple_of(raw::BLOCK),
            Work::Mixed(mixed) if system == System::Raw => mixed.size.is_multiple_of(raw::BLOCK),
            Work::Fsync(_) | Work::Mixed(_) => system != System::CairnfsRun,
            _ if system == System::Raw => false,
            Work::External(load) if system == System::Noop => load.only_writes(),
            Work::External(_) => !system.in_process(),
            // Only programs have its library loaded.
            _ if system == System::CairnfsRun => false,
            Work::Branches(branches) if branches.git => !system.is_ours() && system != System::Noop,
            Work::Branches(_) | Work::Ageing(_) => system != System::Noop,
            _ => true,
        }
    }
}

impl Work {
    fn parse(name: &str, words: &[&str]) -> Result<Self> {
        Ok(match name {
            "fsmark" => Work::Fsmark(parse(words)?),
            "xattr" => Work::Xattr(parse(words)?),
            "dirfsync" => Work::Dirfsync(parse(words)?),
            "fsync" => Work::Fsync(parse(words)?),
            "mixed" => Work::Mixed(parse(words)?),
            "maildir" => Work::Maildir(parse(words)?),
            "neighbour" => Work::Neighbour(parse(words)?),
            "ageing" => Work::Ageing(parse(words)?),
            "branches" => Work::Branches(parse(words)?),
            _ => {
                let known = "fsmark, xattr, dirfsync, fsync, mixed, maildir, neighbour, ageing or \
                             branches";
                return Err(format!("`{name}` is none of {known}").into());
            }
        })
    }

    /// Returns the workload, adapted to the system; `None` if it is a program.
    pub fn on(&self, system: System) -> Option<Box<dyn Workload>> {
        Some(match self {
            Work::Fsmark(fsmark) if system == System::Noop => Box::new(Fsmark {
                cold: false,
                walk_again: false,
                no_walk: true,
                stat: false,
                read: false,
                ..fsmark.clone()
            }),
            Work::Fsmark(workload) => Box::new(workload.clone()),
            Work::Xattr(xattr) if system == System::Noop => Box::new(Xattr {
                only_absent: true,
                ..xattr.clone()
            }),
            Work::Xattr(workload) => Box::new(workload.clone()),
            Work::Dirfsync(workload) => Box::new(workload.clone()),
            Work::Fsync(workload) => Box::new(workload.clone()),
            Work::Mixed(mixed) if system == System::Raw => Box::new(Mixed {
                alone: true,
                ..mixed.clone()
            }),
            Work::Mixed(workload) => Box::new(workload.clone()),
            Work::Maildir(workload) => Box::new(workload.clone()),
            Work::Neighbour(workload) => Box::new(workload.clone()),
            Work::Ageing(workload) => Box::new(workload.clone()),
            Work::Branches(workload) => Box::new(workload.clone()),
            Work::External(_) => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::external::Program;
    use super::*;

    #[test]
    fn words_are_parsed_to_workload() {
        let task = Task::parse(" maildir  --jobs 3 ").unwrap();
        assert_eq!(task.title, "maildir --jobs 3");
        assert_eq!(task.work.on(System::Xfs).unwrap().describe().threads, 3);
        for (words, expected) in [
            ("", "name"),
            ("juggling", "juggling"),
            ("fsmark --jobs 3", "--jobs"),
            ("fsmark --threads 0", "--threads"),
        ] {
            let refused = Task::parse(words).unwrap_err().to_string();
            assert!(refused.contains(expected), "{words}: {refused}");
        }
        assert!(Task::parse(DEFAULT).is_ok());
    }

    #[test]
    fn thread_sweep_keeps_total_files_of_fsmark() {
        let task = Task::parse("fsmark --threads 8 --files 100").unwrap();
        let tasks = task.with_threads(&[1, 16]).unwrap();
        let set: Vec<_> = tasks
            .iter()
            .map(|task| match &task.work {
                Work::Fsmark(fsmark) => (fsmark.threads, fsmark.files),
                _ => (0, 0),
            })
            .collect();
        assert_eq!(set, [(1, 800), (16, 50)]);
        assert!(task.with_threads(&[0]).is_err());
        assert!(task.with_threads(&[10_000]).is_err());
        let xattr = Task::parse("xattr --files 10").unwrap();
        let tasks = xattr.with_threads(&[2, 64]).unwrap();
        let set = |task: &Task| match &task.work {
            Work::Xattr(xattr) => (xattr.threads, xattr.files),
            _ => (0, 0),
        };
        assert_eq!((set(&tasks[0]), set(&tasks[1])), ((2, 10), (64, 10)));
        let maildir = Task::parse("maildir").unwrap();
        assert!(maildir.with_threads(&[1]).is_err());
    }

    #[test]
    fn noop_workloads_do_not_read_back() {
        let fsmark = Task::parse(DEFAULT).unwrap();
        let settings = fsmark.work.on(System::Noop).unwrap().describe().settings;
        assert!(settings.contains(&("no_walk", 1)) && settings.contains(&("cold_walk", 0)));
        assert!(fsmark.fits(System::Noop));
        let xattr = Task::parse("xattr").unwrap();
        let settings = xattr.work.on(System::Noop).unwrap().describe().settings;
        assert!(settings.contains(&("only_absent", 1)));
        let sizes = parse(&[]).unwrap();
        for load in Program::Tar.loads(&sizes) {
            let task = Task::external(load);
            assert!(!task.fits(System::Noop) && !task.fits(System::Cairnfs));
            assert!(task.fits(System::CairnfsMount) && task.fits(System::Ext4));
        }
    }

    #[test]
    fn raw_device_runs_only_block_aligned_syncs() {
        for (words, fits) in [
            ("fsync --random --block 4K", true),
            ("fsync --block 6K --total 12K", false),
            ("mixed", true),
            ("mixed --size 1K", false),
            ("maildir", false),
            ("dirfsync", false),
            (DEFAULT, false),
        ] {
            assert_eq!(
                Task::parse(words).unwrap().fits(System::Raw),
                fits,
                "{words}"
            );
        }
        let mixed = Task::parse("mixed").unwrap();
        let settings = |system| mixed.work.on(system).unwrap().describe().settings;
        assert!(settings(System::Raw).contains(&("alone", 1)));
        assert!(settings(System::Xfs).contains(&("alone", 0)));
    }
}
