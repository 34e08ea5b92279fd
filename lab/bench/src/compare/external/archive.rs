//! Unpacking an archive of small files by `tar x`, searching them by `grep -r`, and removing them by
//! `rm -rf`: by one process, or several, each in a directory of its own.

use std::fs;
use std::process::Command;

use super::tree::{NEEDLE, Tree};
use super::{External, Inputs, Site, command, expect, processes, warm};
use crate::Result;
use crate::phase::Meter;

/// The load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Archive {
    /// Number of processes at a time.
    pub clients: u64,
    /// Number of files of all of them.
    pub files: u64,
    /// Whether the files are searched, too: with nothing in memory, and again.
    pub search: bool,
}

impl Archive {
    fn tree(&self) -> Tree {
        Tree {
            files: (self.files / self.clients).max(1),
        }
    }

    fn input(&self) -> String {
        format!("tree-{}.tar", self.tree().files)
    }

    /// Returns a command for each client, made from its directory.
    fn each(&self, site: &Site<'_>, one: impl Fn(&str) -> Command) -> Vec<Vec<Command>> {
        let of = |client| vec![one(&site.path(&format!("c{client}")).to_string_lossy())];
        (0..self.clients).map(of).collect()
    }

    fn search(&self, site: &Site<'_>, meter: &mut Meter<'_>, phase: &'static str) -> Result<()> {
        let grep = self.each(site, |dir| command("grep", ["-r", NEEDLE, dir]));
        let printed = site.timed(meter, phase, self.all(), grep)?;
        let expected = self.tree().needles() * self.clients;
        let lines = printed.lines().count() as u64;
        let what = format!("grep -r should find {expected} lines, but found {lines}");
        expect(lines == expected, &what, &printed)
    }

    fn all(&self) -> u64 {
        self.tree().files * self.clients
    }
}

impl External for Archive {
    fn title(&self) -> String {
        let search = if self.search { ", grep -r" } else { "" };
        let clients = processes(self.clients);
        format!("tar x{search}, rm -rf: {} files, {clients}", self.all())
    }

    fn program(&self) -> (&'static str, &'static str) {
        ("tar", "files")
    }

    fn only_writes(&self) -> bool {
        !self.search
    }

    fn prepare(&self, inputs: &Inputs<'_>) -> Result<()> {
        inputs.once(&self.input(), |path| self.tree().pack(path))
    }

    fn measure(&self, site: &Site<'_>, meter: &mut Meter<'_>) -> Result<()> {
        let input = site.inputs.path(&self.input());
        warm(&input)?;
        site.run(&mut command("tar", ["--version"]))?;
        for client in 0..self.clients {
            fs::create_dir(site.path(&format!("c{client}")))?;
        }
        meter.settle()?;
        let input = input.to_string_lossy();
        let tar = self.each(site, |dir| command("tar", ["-x", "-f", &input, "-C", dir]));
        site.timed(meter, "tar x", self.all(), tar)?;
        meter.sync_last("sync unpacked", "tar x synced")?;
        if !site.stores {
            return Ok(());
        }
        if self.search {
            meter.reopen()?;
            site.run(&mut command("grep", ["--version"]))?;
            self.search(site, meter, "grep -r cold")?;
            self.search(site, meter, "grep -r")?;
        }
        site.run(&mut command("rm", ["--version"]))?;
        let rm = self.each(site, |dir| command("rm", ["-rf", dir]));
        site.timed(meter, "rm -rf", self.all(), rm)?;
        meter.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_share_the_files() {
        let archive = Archive {
            clients: 8,
            files: 4000,
            search: false,
        };
        assert_eq!(archive.title(), "tar x, rm -rf: 4000 files, 8 processes");
        assert_eq!((archive.tree().files, archive.all()), (500, 4000));
        assert!(archive.only_writes());
        let one = Archive {
            clients: 1,
            files: 100_000,
            search: true,
        };
        assert_eq!(
            one.title(),
            "tar x, grep -r, rm -rf: 100000 files, 1 process"
        );
        assert!(!one.only_writes() && one.input() != archive.input());
    }
}
