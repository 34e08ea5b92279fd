//! The command line. Plain values; nothing here opens files.

use std::path::PathBuf;

use cairnfs_bench::Result;
use cairnfs_bench::parts::parse_size;

use crate::load::{Durability, Load};
use crate::store::Peer;

const EXAMPLES: &str = "\
Examples:
  cargo run --release -p cairnfs-peers --features all -- --dir /mnt/test
  cargo run --release -p cairnfs-peers --features all -- --dir /mnt/test --with cairnfs,sqlite --sizes 4K --durability each
  scripts/peers /var/tmp/image --rounds 5 --json peers.json

What the steps and figures are, and what is durable when, is in docs/figures/README.md.";

/// What is measured, and where.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Directory for the stores' files; the device of its file system is the one whose writes and
    /// flushes are counted.
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,

    /// The stores [default: all that were built].
    #[arg(long, value_name = "STORES", value_delimiter = ',')]
    pub with: Vec<Peer>,

    /// Sizes of a blob; suffixes K, M.
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "100,4K,64K", value_parser = parse_size)]
    pub sizes: Vec<u64>,

    /// When changes are durable.
    #[arg(
        long,
        value_name = "WHEN",
        value_delimiter = ',',
        default_value = "each,batch,none"
    )]
    pub durability: Vec<Durability>,

    /// Number of blobs, if they are not durable each by each.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub blobs: u64,

    /// Number of blobs, if each is made durable.
    #[arg(long, value_name = "N", default_value_t = 5_000)]
    pub blobs_each: u64,

    /// Most bytes of all blobs; fewer large blobs are used.
    #[arg(long, value_name = "BYTES", default_value = "512M", value_parser = parse_size)]
    pub most: u64,

    /// Number of threads that share the blobs.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: u64,

    /// Bytes of the stores' own caches; suffixes K, M, G.
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = parse_size)]
    pub cache: u64,

    /// Number of rounds, each with all stores.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub rounds: usize,

    /// Write every figure of every round to a file, which `scripts/plot FILE` draws.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Run one load on one store, and print its figures.
    #[arg(long, hide = true)]
    pub child: Option<String>,
}

impl Args {
    /// Refuses invalid settings.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(peer) = self.with.iter().find(|peer| !peer.is_built()) {
            return Err(peer.not_built().into());
        }
        for (name, value) in [
            ("--blobs", self.blobs),
            ("--blobs-each", self.blobs_each),
            ("--threads", self.threads),
            ("--rounds", self.rounds as u64),
        ] {
            if value == 0 {
                return Err(format!("{name} must be at least 1").into());
            }
        }
        if self.sizes.iter().any(|size| *size == 0 || *size > 1 << 30) {
            return Err("--sizes must be from 1 to 1G".into());
        }
        Ok(())
    }

    /// The stores.
    pub(crate) fn stores(&self) -> Vec<Peer> {
        if self.with.is_empty() {
            Peer::built()
        } else {
            self.with.clone()
        }
    }

    /// What is done to each store.
    pub(crate) fn loads(&self) -> Vec<Load> {
        let sizes = self.sizes.iter();
        let pairs = sizes.flat_map(|size| self.durability.iter().map(move |when| (*size, *when)));
        pairs
            .map(|(size, durability)| {
                let blobs = match durability {
                    Durability::Each => self.blobs_each,
                    Durability::Batch | Durability::None => self.blobs,
                };
                let most = self.most / size;
                Load {
                    durability,
                    size,
                    blobs: blobs.min(most).max(self.threads),
                    threads: self.threads,
                    cache: self.cache,
                }
            })
            .collect()
    }
}
