//! git: a clone of a repository outside of the measured file system, and `git status` in the clone.

use std::fs::{self, File, FileTimes};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use super::tree::Tree;
use super::{External, Inputs, Site, expect, processes};
use crate::Result;
use crate::phase::Meter;

/// The load: each client has a clone of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Git {
    /// Number of processes at a time.
    pub clients: u64,
    /// Number of files in all clones together.
    pub files: u64,
    /// Whether the status is also measured with nothing in memory.
    pub cold: bool,
}

/// Number of times that each client runs `git status`.
const RUNS: u64 = 10;

/// How far in the future an index is dated, see [`Git::date_index`].
const AHEAD: Duration = Duration::from_secs(3600);

impl Git {
    fn tree(&self) -> Tree {
        Tree {
            files: (self.files / self.clients).max(1),
        }
    }

    fn input(&self) -> String {
        format!("repository-{}", self.tree().files)
    }

    fn clone_of(site: &Site<'_>, client: u64) -> String {
        site.path(&format!("c{client}"))
            .to_string_lossy()
            .into_owned()
    }

    fn each(&self, one: impl Fn(u64) -> Vec<Command>) -> Vec<Vec<Command>> {
        (0..self.clients).map(one).collect()
    }

    /// Runs `git status` so many times by each client; it must find no changes.
    fn status(
        &self,
        site: &Site<'_>,
        meter: &mut Meter<'_>,
        phase: &'static str,
        runs: u64,
    ) -> Result<()> {
        let clients = self.each(|client| {
            let dir = Self::clone_of(site, client);
            let run = |_| git(["-C", dir.as_str(), "status", "--porcelain"]);
            (0..runs).map(run).collect()
        });
        let printed = site.timed(meter, phase, runs * self.clients, clients)?;
        expect(
            printed.is_empty(),
            "git status should find no changes",
            &printed,
        )
    }

    /// Dates an index in the future. git reads the contents of files that were modified in the
    /// second of the index, or later, at each status; those of a fresh clone are.
    fn date_index(clone: &str) -> Result<()> {
        let index = File::options()
            .write(true)
            .open(Path::new(clone).join(".git/index"))?;
        let times = FileTimes::new().set_modified(SystemTime::now() + AHEAD);
        Ok(index.set_times(times)?)
    }
}

/// Creates a command of git that does not depend on the user's configuration or environment.
fn git<'a>(args: impl IntoIterator<Item = &'a str>) -> Command {
    let mut git = super::command("git", args);
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        git.env_remove(name);
    }
    git.env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null");
    for person in ["AUTHOR", "COMMITTER"] {
        git.env(format!("GIT_{person}_NAME"), "bench")
            .env(format!("GIT_{person}_EMAIL"), "bench@localhost")
            .env(format!("GIT_{person}_DATE"), "1000000000 +0000");
    }
    git
}

impl External for Git {
    fn title(&self) -> String {
        let all = self.tree().files * self.clients;
        format!(
            "git clone, git status: {all} files, {}",
            processes(self.clients)
        )
    }

    fn program(&self) -> (&'static str, &'static str) {
        ("git", "runs")
    }

    fn prepare(&self, inputs: &Inputs<'_>) -> Result<()> {
        inputs.once(&self.input(), |path| {
            fs::create_dir(path)?;
            self.tree().write(path)?;
            let dir = path.to_string_lossy();
            for args in [
                &["init", "--quiet"][..],
                &["add", "--all"],
                &["commit", "--quiet", "--message", "all"],
                &["repack", "-a", "-d", "--quiet"],
            ] {
                let args = ["-C", &dir].into_iter().chain(args.iter().copied());
                inputs.undo.run(&mut git(args))?;
            }
            Ok(())
        })
    }

    fn measure(&self, site: &Site<'_>, meter: &mut Meter<'_>) -> Result<()> {
        let input = site.inputs.path(&self.input());
        let input = input.to_string_lossy();
        // Reads the objects, and the program itself.
        site.run(&mut git(["-C", &input, "fsck", "--full", "--no-progress"]))?;
        let clone = |client| {
            let to = Self::clone_of(site, client);
            vec![git(["clone", "--quiet", "--no-hardlinks", &input, &to])]
        };
        site.timed(meter, "git clone", self.clients, self.each(clone))?;
        meter.sync_last("sync cloned", "git clone synced")?;
        (0..self.clients).try_for_each(|client| Self::date_index(&Self::clone_of(site, client)))?;
        if self.cold {
            meter.settle()?;
            meter.reopen()?;
            site.run(&mut git(["-C", &input, "status", "--porcelain"]))?;
            self.status(site, meter, "git status cold", 1)?;
        }
        self.status(site, meter, "git status", RUNS)?;
        meter.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_share_the_files() {
        let git = Git {
            clients: 8,
            files: 1000,
            cold: false,
        };
        assert_eq!(
            git.title(),
            "git clone, git status: 1000 files, 8 processes"
        );
        assert_eq!(git.tree().files, 125);
        assert_eq!(git.input(), "repository-125");
    }

    #[test]
    fn index_is_dated_in_the_future() {
        let clone = tempfile::tempdir().unwrap();
        let index = clone.path().join(".git/index");
        fs::create_dir(clone.path().join(".git")).unwrap();
        fs::write(&index, "").unwrap();
        Git::date_index(clone.path().to_str().unwrap()).unwrap();
        assert!(fs::metadata(&index).unwrap().modified().unwrap() > SystemTime::now());
    }
}
