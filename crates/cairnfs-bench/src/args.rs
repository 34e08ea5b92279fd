//! What can be asked for on the command line.
//!
//! Plain values; nothing is opened here.

use crate::Result;

/// Measure what a file system does per second, and what it writes for it.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// What to do.
    #[arg(value_enum, default_value_t = Workload::Fsmark)]
    pub workload: Workload,

    /// What to measure: `lib:VOLUME` the library on a volume (made if it does not exist), `lib:`
    /// the library on a temporary volume, or a directory of any file system.
    #[arg(long, value_name = "TARGET", default_value = "lib:")]
    pub target: String,

    /// Call the library by inode, as a FUSE daemon does, instead of by path.
    #[arg(long)]
    pub by_inode: bool,

    /// Size of a volume that is made; suffixes K, M, G, T.
    #[arg(long, value_name = "BYTES", default_value = "4G", value_parser = parse_size)]
    pub volume_size: u64,

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

    /// Sync the file system at the end of each phase, within its time, so that each bears its
    /// own log bytes; without it, all that was left to write is in the last phases.
    #[arg(long)]
    pub sync_phases: bool,

    /// Leave the files, and remove nothing.
    #[arg(long)]
    pub keep: bool,

    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// What is done to the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Workload {
    /// Make many files, list and stat them all, remove them all.
    Fsmark,
}

impl Args {
    /// Refuses what makes no sense.
    pub(crate) fn check(&self) -> Result<()> {
        if self.threads == 0 || self.files == 0 || self.dirs == 0 {
            return Err("threads, files and dirs must be at least 1".into());
        }
        if self.size > MAX_FILE {
            return Err("a file of this workload holds at most 1G".into());
        }
        if self.by_inode && !self.target.starts_with(LIBRARY) {
            return Err("--by-inode is for the library: --target lib:...".into());
        }
        Ok(())
    }

    /// The volume's path, if the target is the library; an empty one means a temporary volume.
    pub(crate) fn volume(&self) -> Option<&str> {
        self.target.strip_prefix(LIBRARY)
    }
}

const LIBRARY: &str = "lib:";

/// A file's bytes are held in memory, once.
const MAX_FILE: u64 = 1 << 30;

/// Bytes, with a suffix of a power of 1024.
fn parse_size(text: &str) -> std::result::Result<u64, String> {
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (text.get(..at), 10),
        Some((at, 'm' | 'M')) => (text.get(..at), 20),
        Some((at, 'g' | 'G')) => (text.get(..at), 30),
        Some((at, 't' | 'T')) => (text.get(..at), 40),
        _ => (Some(text), 0),
    };
    digits
        .and_then(|digits| digits.parse::<u64>().ok())
        .and_then(|n| n.checked_mul(1 << shift))
        .ok_or_else(|| format!("`{text}` is no size such as 4096, 64K or 2G"))
}

#[cfg(test)]
mod tests {
    use super::parse_size;

    #[test]
    fn sizes_have_suffixes() {
        assert_eq!(parse_size("0"), Ok(0));
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("64K"), Ok(65536));
        assert_eq!(parse_size("3m"), Ok(3 << 20));
        assert_eq!(parse_size("2G"), Ok(2 << 30));
        assert_eq!(parse_size("1T"), Ok(1 << 40));
        for bad in ["", "K", "-1", "1.5G", "1KB", "99999999999T", "é"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
