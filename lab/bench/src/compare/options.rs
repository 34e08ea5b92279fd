//! The options of a comparison.

use std::path::PathBuf;

use super::external::Program;
use super::sizes::Sizes;
use super::system::System;
use crate::settings::parse_size;

/// Measure several file systems in turn on one device, and compare them.
#[derive(Debug, Clone, clap::Args)]
pub struct Compare {
    /// What to measure, each with its options as one word: 'fsmark --threads 4'.
    #[arg(value_name = "WORKLOAD")]
    pub workloads: Vec<String>,

    /// An image file to create, which is removed at the end; or a block device, with --force.
    #[arg(long, value_name = "FILE")]
    pub device: PathBuf,

    /// Size of the image; suffixes M, G, T.
    #[arg(long, value_name = "BYTES", default_value = "8G", value_parser = parse_size)]
    pub size: u64,

    /// Overwrite FILE if it exists. An image is removed at the end even then.
    #[arg(long)]
    pub force: bool,

    /// The file systems [default: cairnfs,cairnfs-mount,noop,xfs,ext4,btrfs; of --single-client and
    /// --everyday, those that are mounted].
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub with: Vec<System>,

    /// Instead of these, measure what each mechanism of CairnFS saves: in-process, with and without
    /// each, by workloads that show it.
    #[arg(long, conflicts_with_all = ["workloads", "with", "threads", "external", "single_client", "everyday"])]
    pub mechanisms: bool,

    /// Measure what one client gets, beside eight: calls one by one, tar, rm, git; and what a busy
    /// neighbour loses.
    #[arg(long, conflicts_with = "threads")]
    pub single_client: bool,

    /// Measure everyday work: git, cargo, npm, tar, grep, rm, SQLite, pgbench, mail.
    #[arg(long, conflicts_with = "threads")]
    pub everyday: bool,

    /// Fail if a program of --single-client or --everyday is not installed, instead of leaving out
    /// its rows.
    #[arg(long)]
    pub require_programs: bool,

    /// Number of rounds; fewer than 3 give no information about the spread.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub rounds: usize,

    /// Run each fsmark and xattr with these numbers of threads: fsmark makes the same number of
    /// files in all, xattr as many for each thread.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub threads: Vec<usize>,

    /// Also run these programs on the mounted file systems.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    pub external: Vec<Program>,

    /// Memory that CairnFS may use, in-process and mounted [default: an eighth of what the process
    /// may use]; the kernel's file systems have no such limit.
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub cache: Option<u64>,

    /// Files that ext4 has room for (`mkfs.ext4 -N`) [default: what it chooses for the size].
    #[arg(long, value_name = "N")]
    pub ext4_inodes: Option<u64>,

    /// Mount options for cairnfs-mount and noop, as for `cairnfs mount`.
    #[arg(short = 'o', long, value_name = "OPTIONS")]
    pub mount_options: Option<String>,

    /// Write all figures of all rounds to FILE, which `scripts/plot FILE` draws; `-` is standard
    /// output, instead of tables.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Print tables as GitHub markdown.
    #[arg(long)]
    pub markdown: bool,

    /// Sizes of the programs' loads.
    #[command(flatten)]
    pub sizes: Sizes,
}
