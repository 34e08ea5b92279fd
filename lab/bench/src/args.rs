//! The command line: a workload with its settings, and where it runs. Plain values; nothing here
//! opens files.

use crate::channel::{Channel, ClientArgs};
use crate::compare::options::Compare;
use crate::help;
use crate::noop::Noop;
use crate::settings::Place;
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
    ///
    /// Each thread has a directory with --dirs subdirectories. The walk checks that all files
    /// exist.
    #[command(after_help = help::FSMARK)]
    Fsmark(Run<Fsmark>),
    /// Set attributes whose values are equal for many files, and read them
    ///
    /// Each thread sets one attribute on each of its files, reads it back, and reads one that does
    /// not exist. Sweeps (compare --threads) end with tables by values, files and threads.
    #[command(after_help = "\
Examples:
  cairnfs-bench xattr --threads 8 --values 10
  cairnfs-bench xattr --threads 64 --files 1000 --values 100000 --target /mnt")]
    Xattr(Run<Xattr>),
    /// Sync a directory after many names were added, and after some were deleted
    ///
    /// Measures the fsync after the additions, and after deletions that are evenly spread.
    #[command(after_help = "\
Examples:
  cairnfs-bench dirfsync --adds 1000000 --deletes 10000
  cairnfs-bench dirfsync --target /mnt")]
    Dirfsync(Run<Dirfsync>),
    /// Write files block by block, and sync each again and again
    ///
    /// Each job has a file and a thread: sequential or --random, an fsync every --every blocks;
    /// with --files N files in turn; with --cold nothing in memory before. A latency covers an fsync
    /// and the writes since the last one.
    #[command(after_help = "\
Examples:
  cairnfs-bench fsync --jobs 16
  cairnfs-bench fsync --jobs 16 --random --block 4K --total 16M
  cairnfs-bench fsync --jobs 4 --without one-flush
  cairnfs-bench fsync --block 4K --every 8 --target /mnt")]
    Fsync(Run<Fsync>),
    /// Append and sync, alone and while other threads make and remove small files
    ///
    /// The load continues until the last append is done.
    #[command(after_help = "\
Examples:
  cairnfs-bench mixed --load 4
  cairnfs-bench mixed --appends 5000 --target /mnt")]
    Mixed(Run<Mixed>),
    /// Deliver messages as a mail server does
    ///
    /// A message is created in `tmp`, written, synced and renamed into `new`, which is synced.
    #[command(after_help = "\
Examples:
  cairnfs-bench maildir --jobs 16
  cairnfs-bench maildir --size 64K --target /mnt")]
    Maildir(Run<Maildir>),
    /// Create files, and count what a computation on another processor loses
    ///
    /// The computation is pinned to the last processor, the client to the first: each alone, then
    /// both. `neighbour beside to alone` is the part of its loops that the computation keeps; its
    /// processor time is subtracted from that of the phases. Two processors are needed.
    #[command(after_help = "\
Examples:
  cairnfs-bench neighbour --target /mnt
  cairnfs-bench compare --device /var/tmp/image --with cairnfs-mount,noop,xfs neighbour")]
    Neighbour(Run<Neighbour>),
    /// Replace and overwrite files of many sizes, round after round, at one fill
    ///
    /// Files have 1 KiB to 1 MiB. Each round writes as many bytes as all files have: rates and
    /// latencies of each round, and reading before and after.
    #[command(after_help = "\
Examples:
  cairnfs-bench ageing --volume-size 1200M --bytes 1G
  cairnfs-bench compare --device /var/tmp/image --size 4G --with cairnfs-mount,xfs,ext4 'ageing --bytes 3500M --cold'")]
    Ageing(Run<Ageing>),
    /// Fork a whole tree of files, change forks, compare and remove them
    ///
    /// Forks alone and beside a thread that creates files, the first write into a fork, the
    /// difference to its origin, its publication, work beside many forks, and their removal.
    #[command(after_help = "\
Examples:
  cairnfs-bench branches --files 1000000 --size 0
  cairnfs-bench branches --target /mnt --many 0
  cairnfs-bench compare --device /var/tmp/image --with cairnfs,xfs,ext4,btrfs branches")]
    Branches(Run<Branches>),
    /// Measure several file systems in turn on one device, and compare them
    #[command(after_help = help::COMPARE)]
    Compare(Box<Compare>),
    /// Make files through shared memory, and by system calls, by several processes
    ///
    /// What a library that is preloaded into programs can reach: each client is a process, which makes
    /// files as tar does through a channel to one serving thread.
    #[command(after_help = "\
Examples:
  cairnfs-bench channel
  cairnfs-bench channel --beside /mnt/xfs --at /mnt/xfs
  cairnfs-bench channel --beside /mnt/xfs --one-processor
  cairnfs-bench channel --beside /mnt/xfs --busy 2")]
    Channel(Channel),
    /// A client of it
    #[command(hide = true)]
    ChannelClient(ClientArgs),
    /// Serve a mount that does nothing, to run workloads on: the ceiling of FUSE
    #[command(after_help = "\
Examples:
  cairnfs-bench noop /mnt
  cairnfs-bench noop -o threads=4 /mnt")]
    Noop(Noop),
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
