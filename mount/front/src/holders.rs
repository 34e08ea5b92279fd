//! Finds the processes that use a mount, for messages; a part of what fuser(1) shows.
//!
//! Reads only links in `/proc`, so no file system receives a request. Processes of other users are
//! visible to the superuser only. Mappings without an open descriptor are not found.

use std::fmt;
use std::path::Path;

/// Maximum number of processes named in a message.
const SHOWN: usize = 8;

/// The processes that use a mount.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// Name, process id.
    processes: Vec<(String, u32)>,
    /// Number of open files of all these processes.
    files: usize,
}

/// Finds the processes that use files under `dir`, which must be absolute and without symlinks.
pub fn of(dir: &Path) -> Holders {
    let mut holders = Holders::default();
    for (pid, proc) in numbers(Path::new("/proc")) {
        let files = numbers(&proc.join("fd"));
        let files = files.filter(|(_, link)| leads_into(link, dir)).count();
        let links = ["cwd", "root", "exe"];
        let used = || links.iter().any(|link| leads_into(&proc.join(link), dir));
        if files > 0 || used() {
            holders.processes.push((name(&proc), pid));
            holders.files += files;
        }
    }
    holders
}

impl Holders {
    /// Whether none was found.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// Adds a process that is not among them and uses no files that can be counted.
    pub(crate) fn add(&mut self, pid: u32, name: String) {
        if self.processes.iter().all(|(_, known)| *known != pid) {
            self.processes.push((name, pid));
        }
    }
}

/// Returns the name of a process, given its directory in `/proc`; empty if it has ended.
pub(crate) fn name(proc: &Path) -> String {
    let name = std::fs::read(proc.join("comm")).unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end().to_owned()
}

/// Returns the entries whose names are numbers; none if the directory cannot be read.
pub(crate) fn numbers(dir: &Path) -> impl Iterator<Item = (u32, std::path::PathBuf)> + use<> {
    let found = std::fs::read_dir(dir).into_iter().flatten().flatten();
    found.filter_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        Some((number, entry.path()))
    })
}

fn leads_into(link: &Path, dir: &Path) -> bool {
    std::fs::read_link(link).is_ok_and(|path| path.starts_with(dir))
}

impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.processes.is_empty() {
            return f.write_str("processes that cannot be seen from here");
        }
        if self.files > 0 {
            write!(f, "{} open files of ", self.files)?;
        }
        for (n, (name, pid)) in self.processes.iter().take(SHOWN).enumerate() {
            let comma = if n > 0 { ", " } else { "" };
            write!(f, "{comma}{name} (pid {pid})")?;
        }
        match self.processes.len().checked_sub(SHOWN) {
            None | Some(0) => Ok(()),
            Some(more) => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn open_files_are_counted_for_their_process() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().canonicalize().unwrap();
        assert_eq!(of(&dir), Holders::default());
        let _open = [dir.join("a"), dir.join("b")].map(|path| File::create(path).unwrap());
        let text = of(&dir).to_string();
        let own = format!("(pid {})", std::process::id());
        assert!(
            text.starts_with("2 open files of ") && text.ends_with(&own),
            "{text}"
        );
        assert_eq!(of(&dir.join("c")), Holders::default());
    }

    #[test]
    fn long_process_list_is_truncated() {
        let processes = (0..11).map(|pid| ("sh".to_owned(), pid)).collect();
        let text = Holders {
            processes,
            files: 0,
        }
        .to_string();
        assert!(text.ends_with("sh (pid 7) and 3 more"), "{text}");
    }
}
