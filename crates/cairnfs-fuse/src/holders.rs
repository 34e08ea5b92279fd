//! Which processes use a mount, for messages; what fuser(1) shows of it.
//!
//! Reads links in `/proc` and nothing else, so no file system is asked for anything. Processes of
//! other users are seen by the superuser only, and mappings without a descriptor are not seen.

use std::fmt;
use std::path::Path;

/// Processes named in a message.
const SHOWN: usize = 8;

/// The processes that use a mount.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// Name, process id.
    processes: Vec<(String, u32)>,
    /// Open files of all of them.
    files: usize,
}

/// Finds the processes that use what lies under `dir`, which is absolute and without symlinks.
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

/// The name of a process, given its directory in `/proc`; empty if it has ended.
pub(crate) fn name(proc: &Path) -> String {
    let name = std::fs::read(proc.join("comm")).unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end().to_owned()
}

/// Entries whose names are numbers; none where nothing may be seen.
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
        write!(f, "{} open files of ", self.files)?;
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
    fn an_open_file_is_found_with_its_process() {
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
    fn long_lists_are_cut() {
        let processes = (0..11).map(|pid| ("sh".to_owned(), pid)).collect();
        let text = Holders {
            processes,
            files: 0,
        }
        .to_string();
        assert!(text.ends_with("sh (pid 7) and 3 more"), "{text}");
    }
}
