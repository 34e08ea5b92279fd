//! External programs on the mounted file systems: each as a load with its phases.
//!
//! `reporting` has the benchmarks that print their own figures; the other modules run ordinary
//! programs, and measure their time here. What a load reads is generated from a seed (`tree`), in a
//! directory outside of the measured file system, once for a comparison. Before the clock starts
//! everything is durable, and the inputs are in the page cache.

mod archive;
mod cargo;
mod git;
mod npm;
mod pgbench;
mod reporting;
mod sqlite;
mod tree;

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

pub use archive::Archive;
pub use git::Git;

use super::sizes::Sizes;
use super::stats::cpu_of_children;
use super::system::needs;
use super::undo::Undo;
use crate::phase::{Meter, Outcome};
use crate::{Failure, Result};

use reporting::Reporting;

/// A load of an external program.
pub trait External: fmt::Debug + Send + Sync {
    /// Returns its title for tables.
    fn title(&self) -> String;

    /// Returns the program's name, and the unit of its operations, in the plural.
    fn program(&self) -> (&'static str, &'static str);

    /// Whether it can run on a system that stores nothing.
    fn only_writes(&self) -> bool {
        false
    }

    /// Creates its inputs, before the file system is made.
    ///
    /// # Errors
    /// A failure of the file system of the inputs, or of a program.
    fn prepare(&self, _inputs: &Inputs<'_>) -> Result<()> {
        Ok(())
    }

    /// Runs it on the mounted file system, phase by phase.
    ///
    /// # Errors
    /// The first failure of a program, or a wrong result of it.
    fn measure(&self, site: &Site<'_>, meter: &mut Meter<'_>) -> Result<()>;
}

/// The programs, each with one or more loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Program {
    /// File server load by 40 clients
    Dbench,
    /// Writes with an fsync after each, by several numbers of jobs
    Fio,
    /// Empty files, made by 8 processes
    #[value(name = "fs_mark")]
    FsMark,
    /// git: clone of a local repository, and status
    Git,
    /// cargo: build of a generated workspace, and the same again
    Cargo,
    /// npm: `npm ci` of generated packages, offline
    Npm,
    /// tar x of small files, grep -r in them, and rm -rf
    Tar,
    /// SQLite with a write-ahead log: transactions of one insert, and of 1,000
    Sqlite,
    /// PostgreSQL's pgbench, 4 clients
    Pgbench,
}

impl Program {
    /// Programs of everyday work.
    pub const EVERYDAY: [Program; 6] = [
        Program::Git,
        Program::Cargo,
        Program::Npm,
        Program::Tar,
        Program::Sqlite,
        Program::Pgbench,
    ];

    /// Fails if the program is not installed.
    pub fn check(self) -> Result<()> {
        match self {
            Program::Dbench => needs("dbench", "dbench"),
            Program::Fio => needs("fio", "fio"),
            Program::FsMark => needs("fs_mark", "fsmark"),
            Program::Git => needs("git", "git"),
            Program::Cargo => needs("cargo", "cargo").and_then(|()| needs("cc", "gcc")),
            Program::Npm => needs("npm", "npm"),
            Program::Tar => ["tar", "grep", "rm"]
                .iter()
                .try_for_each(|name| needs(name, name)),
            Program::Sqlite => needs("sqlite3", "sqlite3"),
            Program::Pgbench => pgbench::programs().map(drop),
        }
    }

    /// Returns the loads of the program in a comparison.
    pub fn loads(self, sizes: &Sizes) -> Vec<Arc<dyn External>> {
        vec![match self {
            Program::Dbench => Arc::new(Reporting::Dbench {
                seconds: sizes.dbench_seconds,
            }),
            Program::Fio => {
                let loads = Reporting::fio().into_iter();
                return loads.map(|load| Arc::new(load) as _).collect();
            }
            Program::FsMark => Arc::new(Reporting::FsMark),
            Program::Git => Arc::new(Git {
                clients: 1,
                files: sizes.source_files,
                cold: true,
            }),
            Program::Cargo => Arc::new(cargo::Cargo {
                crates: sizes.crates,
            }),
            Program::Npm => Arc::new(npm::Npm {
                files: sizes.source_files,
            }),
            Program::Tar => Arc::new(Archive {
                clients: 1,
                files: sizes.tree_files,
                search: true,
            }),
            Program::Sqlite => Arc::new(sqlite::Sqlite {
                transactions: sizes.transactions,
            }),
            Program::Pgbench => Arc::new(pgbench::Pgbench {
                seconds: sizes.pgbench_seconds,
            }),
        }]
    }
}

/// Where the inputs of loads are.
pub struct Inputs<'a> {
    /// A directory outside of the measured file systems, which lasts as long as the comparison.
    pub dir: &'a Path,
    /// Starts programs.
    pub undo: &'a Undo,
}

impl Inputs<'_> {
    /// Returns the path of an input.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Makes an input at its path, unless it exists.
    fn once(&self, name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        let path = self.path(name);
        if path.exists() { Ok(()) } else { make(&path) }
    }
}

/// Where a load runs.
pub struct Site<'a> {
    /// The root directory of the mounted file system.
    pub dir: &'a Path,
    /// The inputs.
    pub inputs: Inputs<'a>,
    /// Whether the file system stores files.
    pub stores: bool,
    /// The command `cairnfs`, if programs are run by its `run`.
    pub run_by: Option<&'a PathBuf>,
}

impl Site<'_> {
    /// Returns the path of a file of the load.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Runs a program, which must succeed, outside of any phase.
    fn run(&self, command: &mut Command) -> Result<String> {
        let undo = self.inputs.undo;
        let Some(cairnfs) = self.run_by else {
            return undo.run(command);
        };
        let mut run = Command::new(cairnfs);
        run.arg("run").arg(command.get_program());
        run.args(command.get_args());
        if let Some(dir) = command.get_current_dir() {
            run.current_dir(dir);
        }
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => run.env(name, value),
                None => run.env_remove(name),
            };
        }
        undo.run(&mut run)
    }

    /// Runs clients side by side, each with its commands in turn, and measures them as one phase
    /// of so many operations. Returns what all of them printed.
    fn timed(
        &self,
        meter: &mut Meter<'_>,
        phase: &'static str,
        operations: u64,
        clients: Vec<Vec<Command>>,
    ) -> Result<String> {
        let run = |commands: Vec<Command>| -> Result<String> {
            commands
                .into_iter()
                .map(|mut command| self.run(&mut command))
                .collect()
        };
        let mut printed = String::new();
        meter.program(phase, || {
            let (before, start) = (cpu_of_children(), Instant::now());
            printed = side_by_side(clients, run)?;
            Ok(Outcome {
                operations,
                time: start.elapsed(),
                cpu: cpu_of_children().saturating_sub(before),
                ..Outcome::default()
            })
        })?;
        Ok(printed)
    }

    /// The same for a single command.
    fn timed_one(
        &self,
        meter: &mut Meter<'_>,
        phase: &'static str,
        operations: u64,
        command: Command,
    ) -> Result<String> {
        self.timed(meter, phase, operations, vec![vec![command]])
    }
}

/// Does each part of the work in a thread of its own; returns all results in order, or the first
/// failure.
fn side_by_side<T: Send>(
    parts: Vec<T>,
    work: impl Fn(T) -> Result<String> + Sync,
) -> Result<String> {
    std::thread::scope(|scope| {
        let work = &work;
        let start = |part| scope.spawn(move || work(part));
        let running: Vec<_> = parts.into_iter().map(start).collect();
        let ended: Vec<_> = running.into_iter().map(|thread| thread.join()).collect();
        let ended = ended.into_iter().map(|end| match end {
            Ok(printed) => printed,
            Err(_) => Err(Failure::from("a thread that runs a program panicked")),
        });
        ended.collect()
    })
}

/// Creates a command with its arguments.
fn command<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    args: impl IntoIterator<Item = S>,
) -> Command {
    let mut command = Command::new(program);
    command.args(args);
    command
}

/// Reads a file, so that it is in the page cache.
fn warm(path: &Path) -> Result<()> {
    let at = |e: io::Error| format!("{}: {e}", path.display());
    let mut file = File::open(path).map_err(at)?;
    io::copy(&mut file, &mut io::sink()).map_err(at)?;
    Ok(())
}

/// Fails with the program's output if a result of it is wrong.
fn expect(holds: bool, what: &str, printed: &str) -> Result<()> {
    if holds {
        Ok(())
    } else {
        Err(format!("{what}; it printed: {}", printed.trim()).into())
    }
}

/// Returns `N process` or `N processes`.
fn processes(clients: u64) -> String {
    let plural = if clients == 1 { "" } else { "es" };
    format!("{clients} process{plural}")
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;
    use crate::parse;

    #[test]
    fn each_program_has_loads_with_distinct_titles() {
        let sizes: Sizes = parse(&["--tree-files", "700", "--crates", "3"]).unwrap();
        let all = Program::value_variants().iter();
        let loads: Vec<_> = all.flat_map(|program| program.loads(&sizes)).collect();
        let titles: Vec<_> = loads.iter().map(|load| load.title()).collect();
        for (n, title) in titles.iter().enumerate() {
            assert!(
                !titles.iter().skip(n + 1).any(|other| other == title),
                "{title}"
            );
        }
        assert!(
            titles.iter().any(|title| title.contains("700 files")),
            "{titles:?}"
        );
        assert!(
            titles.iter().any(|title| title.contains("3 crates")),
            "{titles:?}"
        );
    }

    #[test]
    fn clients_run_side_by_side_and_their_failure_is_returned() {
        let gate = std::sync::Barrier::new(2);
        let both = side_by_side(vec!["a", "b"], |name| {
            // Would wait for ever if one ran after the other.
            gate.wait();
            Ok(name.to_owned())
        });
        assert_eq!(both.unwrap(), "ab");
        let failed = side_by_side(vec![1, 2], |n| match n {
            2 => Err("two".into()),
            _ => Ok(String::new()),
        });
        assert_eq!(failed.unwrap_err().to_string(), "two");
    }

    #[test]
    fn input_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let undo = Undo::default();
        let inputs = Inputs {
            dir: dir.path(),
            undo: &undo,
        };
        for text in ["first", "second"] {
            let make = |path: &Path| Ok(std::fs::write(path, text)?);
            inputs.once("input", make).unwrap();
        }
        assert_eq!(std::fs::read(inputs.path("input")).unwrap(), b"first");
        assert!(warm(&inputs.path("input")).is_ok());
        assert!(
            warm(&inputs.path("other"))
                .unwrap_err()
                .to_string()
                .contains("other")
        );
    }
}
