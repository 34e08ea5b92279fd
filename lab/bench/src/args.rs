//! The command line: a workload with its settings, and where it runs.
//!
//! Plain values; nothing here opens files.

use cairnfs::Mechanism;

use crate::Result;
use crate::compare::Compare;
use crate::noop::Noop;
use crate::workload::{
    Ageing, Branches, Dirfsync, Fsmark, Fsync, Maildir, Mixed, Neighbour, Xattr,
};

const EXAMPLES: &str = "\
Examples:
  cairnfs-bench fsmark --threads 8            the library, on a temporary volume
  cairnfs-bench fsync --target lib:disk.img   the library, on that volume
  cairnfs-bench fsync --target /mnt           any mounted file system, by system calls
  cairnfs-bench compare --device /var/tmp/image     file systems side by side
  cairnfs-bench maildir --target /mnt --json | jq '.phases[0].latency_ns'

`cairnfs-bench WORKLOAD --help` shows each workload's options and examples.";

/// Measure what a file system does per second, and what it writes for it.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES, subcommand_value_name = "WORKLOAD", subcommand_help_heading = "Workloads")]
pub struct Args {
    /// The workload or command.
    #[command(subcommand)]
    pub command: Command,
}

/// The workloads.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Command {
    /// Make many files, list and stat them all, remove them all
    #[command(after_help = "\
Examples:
  cairnfs-bench fsmark --threads 8 --files 50000
  cairnfs-bench fsmark --size 4K --sync --target /mnt")]
    Fsmark(Run<Fsmark>),
    /// Set attributes whose values are equal for many files, and read them
    #[command(after_help = "\
Examples:
  cairnfs-bench xattr --threads 8 --values 10
  cairnfs-bench xattr --threads 64 --files 1000 --values 100000 --target /mnt")]
    Xattr(Run<Xattr>),
    /// Sync a directory after many names were added, and after some were deleted
    #[command(after_help = "\
Examples:
  cairnfs-bench dirfsync --adds 1000000 --deletes 10000
  cairnfs-bench dirfsync --target /mnt")]
    Dirfsync(Run<Dirfsync>),
    /// Write files block by block, and sync each again and again
    #[command(after_help = "\
Examples:
  cairnfs-bench fsync --jobs 16
  cairnfs-bench fsync --jobs 16 --random --block 4K --total 16M
  cairnfs-bench fsync --jobs 4 --without one-flush
  cairnfs-bench fsync --append --block 4K --every 8 --target /mnt")]
    Fsync(Run<Fsync>),
    /// Append and sync, alone and while other threads make and remove small files
    #[command(after_help = "\
Examples:
  cairnfs-bench mixed --load 4
  cairnfs-bench mixed --appends 5000 --target /mnt")]
    Mixed(Run<Mixed>),
    /// Deliver messages as a mail server does
    #[command(after_help = "\
Examples:
  cairnfs-bench maildir --jobs 16
  cairnfs-bench maildir --size 64K --target /mnt")]
    Maildir(Run<Maildir>),
    /// Create files, and count what a computation on another processor loses
    #[command(after_help = "\
Examples:
  cairnfs-bench neighbour --target /mnt
  cairnfs-bench compare --device /var/tmp/image --with cairnfs-mount,noop,xfs neighbour")]
    Neighbour(Run<Neighbour>),
    /// Replace and overwrite files of many sizes, round after round, at one fill
    #[command(after_help = "\
Examples:
  cairnfs-bench ageing --volume-size 1200M --bytes 1G
  cairnfs-bench compare --device /var/tmp/image --size 4G --with cairnfs-mount,xfs,ext4 'ageing --bytes 3500M --cold'")]
    Ageing(Run<Ageing>),
    /// Fork a whole tree of files, change forks, compare and remove them
    #[command(after_help = "\
Examples:
  cairnfs-bench branches --files 1000000 --size 0
  cairnfs-bench branches --target /mnt --many 0
  cairnfs-bench compare --device /var/tmp/image --with cairnfs,xfs,ext4,btrfs branches")]
    Branches(Run<Branches>),
    /// Measure several file systems in turn on one device, and compare them
    #[command(after_help = "\
Examples:
  cairnfs-bench compare --device /var/tmp/image
  cairnfs-bench compare --device /var/tmp/image --with cairnfs-mount,ext4 'maildir --jobs 16' 'fsync --jobs 4'
  cairnfs-bench compare --device /var/tmp/image --threads 1,2,4,8,16,64 --json figures.json --plot plots
  cairnfs-bench compare --device /var/tmp/image --mechanisms
  cairnfs-bench compare --device /var/tmp/image --single-client -o write=back
  cairnfs-bench compare --device /var/tmp/image --everyday --rounds 2 --require-programs
  cairnfs-bench compare --device /dev/sdX --force --external dbench,fio,fs_mark --markdown

Only root can do this. What each column means is in docs/benchmarks.md.")]
    Compare(Box<Compare>),
    /// Serve a mount that does nothing, to run workloads on: the ceiling of FUSE
    #[command(after_help = "\
Examples:
  cairnfs-bench noop /mnt
  cairnfs-bench noop -o threads=4 /mnt")]
    Noop(Noop),
    /// Measure the sections that only one thread can be in, and what they allow on more processors
    #[cfg(feature = "sections")]
    Scaling(crate::scaling::Scaling),
}

/// One run of a workload.
#[derive(Debug, Clone, clap::Args)]
pub struct Run<W: clap::Args> {
    /// The workload with its settings.
    #[command(flatten)]
    pub workload: W,

    /// Where it runs.
    #[command(flatten)]
    pub place: Place,

    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// Where a workload runs.
#[derive(Debug, Clone, clap::Args)]
pub struct Place {
    /// The target: `lib:VOLUME` is the library on a volume (created if it does not exist), `lib:`
    /// the library on a temporary volume, anything else a directory of any file system.
    #[arg(long, value_name = "TARGET", default_value = "lib:")]
    pub target: String,

    /// Call the library by inode, as a FUSE daemon does, instead of by path.
    #[arg(long)]
    pub by_inode: bool,

    /// Size of a created volume; suffixes K, M, G, T.
    #[arg(long, value_name = "BYTES", default_value = "4G", value_parser = parse_size)]
    pub volume_size: u64,

    /// Memory that the library may use [default: an eighth of what the process may use]; suffixes K,
    /// M, G, T.
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub cache: Option<u64>,

    /// Run the library without a mechanism, to see what it saves: one-flush, fsync-closure,
    /// entries-once, attributes-known, relogging, values-once, changes-only or reservation-caches.
    #[arg(long, value_name = "MECHANISM", value_parser = parse_mechanism)]
    pub without: Option<Mechanism>,

    /// Keep the files; only remove those whose removal the workload measures.
    #[arg(long)]
    pub keep: bool,
}

impl Place {
    /// Refuses options that do not apply to the target.
    pub(crate) fn check(&self) -> Result<()> {
        if self.by_inode && !self.target.starts_with(LIBRARY) {
            return Err("--by-inode is for the library: --target lib:...".into());
        }
        if self.cache.is_some() && !self.target.starts_with(LIBRARY) {
            return Err("--cache is for the library; a mount has its option cache=SIZE".into());
        }
        if self.without.is_some() && !self.target.starts_with(LIBRARY) {
            return Err("--without is for the library: --target lib:...".into());
        }
        Ok(())
    }

    /// Returns the volume's path if the target is the library; an empty path means a temporary
    /// volume.
    pub(crate) fn volume(&self) -> Option<&str> {
        self.target.strip_prefix(LIBRARY)
    }
}

/// Parses settings from words as on the command line, with its defaults for the rest. Programs
/// create a workload or a place by this.
///
/// # Errors
/// Words that are not options of the type.
pub fn parse<T: clap::Args>(words: &[&str]) -> Result<T> {
    let command = T::augment_args(clap::Command::new("cairnfs-bench").no_binary_name(true));
    let matches = command.try_get_matches_from(words)?;
    Ok(T::from_arg_matches(&matches)?)
}

const LIBRARY: &str = "lib:";

fn parse_mechanism(name: &str) -> std::result::Result<Mechanism, String> {
    let known = || Mechanism::ALL.map(Mechanism::name).join(", ");
    Mechanism::named(name).ok_or_else(|| format!("`{name}` is none of {}", known()))
}

/// Parses a number of bytes with an optional suffix for a power of 1024.
///
/// # Errors
/// A text that says what was wrong.
pub fn parse_size(text: &str) -> std::result::Result<u64, String> {
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
    fn sizes_are_parsed_with_suffixes() {
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
