//! Prepared sets of tasks: one client beside eight, and everyday work.

use std::sync::Arc;

use super::external::{Archive, External, Git, Program};
use super::sizes::Sizes;
use super::task::Task;
use crate::Result;

/// A task of a set.
pub struct Entry {
    /// The task.
    pub task: Task,
    /// The program that it runs, if it runs one.
    pub program: Option<Program>,
}

/// Numbers of clients of `--single-client`: threads, or processes.
const CLIENTS: [u64; 2] = [1, 8];

impl Entry {
    fn workload(title: &str) -> Result<Self> {
        Ok(Self {
            task: Task::parse(title)?,
            program: None,
        })
    }

    fn external(program: Program, load: Arc<dyn External>) -> Self {
        Self {
            task: Task::external(load),
            program: Some(program),
        }
    }
}

/// Returns what a single client gets, beside what eight get; and what a busy neighbour loses.
pub fn single_client(sizes: &Sizes) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let share = |files: u64, clients: u64| (files / clients).max(1);
    let (all, written) = (sizes.client_files, sizes.client_files / 2);
    for clients in CLIENTS {
        let files = share(all, clients);
        entries.push(Entry::workload(&format!(
            "fsmark --threads {clients} --files {files} --no-walk --stat"
        ))?);
    }
    for clients in CLIENTS {
        let files = share(written, clients);
        entries.push(Entry::workload(&format!(
            "fsmark --threads {clients} --files {files} --size 4K --no-walk --read"
        ))?);
    }
    for clients in CLIENTS {
        let archive = Archive {
            clients,
            files: written,
            search: false,
        };
        entries.push(Entry::external(Program::Tar, Arc::new(archive)));
    }
    for clients in CLIENTS {
        let git = Git {
            clients,
            files: all / 8,
            cold: false,
        };
        entries.push(Entry::external(Program::Git, Arc::new(git)));
    }
    entries.push(Entry::workload(&format!("neighbour --files {all}"))?);
    Ok(entries)
}

/// Returns everyday work: the programs, and mail delivery.
pub fn everyday(sizes: &Sizes) -> Result<Vec<Entry>> {
    let of = |program: Program| {
        let loads = program.loads(sizes).into_iter();
        loads.map(move |load| Entry::external(program, load))
    };
    let mut entries: Vec<_> = Program::EVERYDAY.into_iter().flat_map(of).collect();
    let each = sizes.messages.div_ceil(5);
    entries.push(Entry::workload(&format!(
        "maildir --jobs 1 --messages {}",
        sizes.messages
    ))?);
    entries.push(Entry::workload(&format!(
        "maildir --jobs 16 --messages {each}"
    ))?);
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    fn titles(entries: Result<Vec<Entry>>) -> Vec<String> {
        let entries = entries.unwrap().into_iter();
        entries.map(|entry| entry.task.title).collect()
    }

    #[test]
    fn single_client_has_each_load_for_one_and_for_eight() {
        let sizes = parse(&["--client-files", "800"]).unwrap();
        assert_eq!(
            titles(single_client(&sizes)),
            [
                "fsmark --threads 1 --files 800 --no-walk --stat",
                "fsmark --threads 8 --files 100 --no-walk --stat",
                "fsmark --threads 1 --files 400 --size 4K --no-walk --read",
                "fsmark --threads 8 --files 50 --size 4K --no-walk --read",
                "tar x, rm -rf: 400 files, 1 process",
                "tar x, rm -rf: 400 files, 8 processes",
                "git clone, git status: 100 files, 1 process",
                "git clone, git status: 96 files, 8 processes",
                "neighbour --files 800",
            ]
        );
        let few = parse(&["--client-files", "1"]).unwrap();
        assert_eq!(titles(single_client(&few)).len(), 9);
    }

    #[test]
    fn everyday_has_programs_and_mail() {
        let sizes = parse(&["--messages", "30", "--tree-files", "500"]).unwrap();
        let titles = titles(everyday(&sizes));
        assert_eq!(titles.len(), Program::EVERYDAY.len() + 2);
        let expected = [
            "maildir --jobs 1 --messages 30",
            "maildir --jobs 16 --messages 6",
            "tar x, grep -r, rm -rf: 500 files, 1 process",
        ];
        for title in expected {
            assert!(titles.iter().any(|found| found == title), "{titles:?}");
        }
    }
}
