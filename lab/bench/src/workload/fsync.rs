//! Fsync of files that are written block by block: sequentially from the start, or at random offsets
//! of an existing file.
//!
//! Each job has its own file and thread. A latency covers an fsync and the writes since the
//! previous one.

use super::{Description, Phases, Worker, Workload, at_least_one, at_most_1g, contents, file_name};
use crate::Result;
use crate::random::Random;
use crate::settings::parse_size;
use crate::target::{Open, OpenFile};

/// Write files block by block, and sync each again and again.
#[derive(Debug, Clone, clap::Args)]
pub struct Fsync {
    /// Jobs, each a thread with a file of its own.
    #[arg(long, short = 'j', value_name = "N", default_value_t = 1)]
    pub jobs: usize,

    /// Bytes that each job writes; suffixes K, M, G, T.
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = parse_size)]
    pub total: u64,

    /// Bytes of each write; suffixes K, M, G.
    #[arg(long, value_name = "BYTES", default_value = "64K", value_parser = parse_size)]
    pub block: u64,

    /// Blocks from one sync to the next.
    #[arg(long, value_name = "K", default_value_t = 1)]
    pub every: u64,

    /// Overwrite blocks of a file of that size, at random.
    #[arg(long)]
    pub random: bool,

    /// Files of each job, synced in turn, which share its bytes; for --random.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "random")]
    pub files: u64,

    /// Syncs of each job; by default until it has written all its bytes.
    #[arg(long, value_name = "N")]
    pub syncs: Option<u64>,

    /// Give each file an extent for each block before: every other block is written again after a
    /// sync; for --random.
    #[arg(long, requires = "random")]
    pub scattered: bool,

    /// Close and open the target before, so that no file is in memory; for --random.
    #[arg(long, requires = "random")]
    pub cold: bool,

    /// Seed that selects the overwritten blocks.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

impl Workload for Fsync {
    fn describe(&self) -> Description {
        Description {
            name: "fsync",
            unit: "fsyncs",
            threads: self.jobs,
            settings: vec![
                ("jobs", self.jobs as u64),
                ("total_bytes", self.total),
                ("block_bytes", self.block),
                ("blocks_per_fsync", self.every),
                ("random", u64::from(self.random)),
                ("files", self.files),
                ("syncs", self.written_blocks().div_ceil(self.every)),
                ("scattered", u64::from(self.scattered)),
                ("cold", u64::from(self.cold)),
                ("seed", self.seed),
            ],
        }
    }

    fn check(&self) -> Result<()> {
        at_least_one(&[
            ("--jobs", self.jobs as u64),
            ("--block", self.block),
            ("--every", self.every),
            ("--files", self.files),
            ("--syncs", self.syncs.unwrap_or(1)),
        ])?;
        if self.total < self.block || !self.total.is_multiple_of(self.block) {
            return Err("--total must be a multiple of --block".into());
        }
        if !self.random && (self.files > 1 || self.cold || self.scattered) {
            return Err("--files, --scattered and --cold are for --random".into());
        }
        if !self.blocks().is_multiple_of(self.files) {
            return Err("--files must divide the number of blocks".into());
        }
        at_most_1g("--block", self.block)
    }

    fn prepare(&self, worker: &Worker<'_>) -> Result<()> {
        if !self.random {
            return Ok(());
        }
        let block = contents(self.block);
        let dir = worker.dir()?;
        (0..self.files).try_for_each(|n| {
            let file = dir.open(&file_name(n), Open::New)?;
            let write = |n| file.write_at(&block, n * self.block);
            (0..self.file_blocks()).try_for_each(write)?;
            if self.scattered {
                file.sync()?;
                (0..self.file_blocks()).step_by(2).try_for_each(write)?;
            }
            Ok(())
        })
    }

    fn measure(&self, phases: &mut Phases<'_>) -> Result<()> {
        let block = contents(self.block);
        let name = if self.random {
            "random write + fsync"
        } else {
            "write + fsync"
        };
        if self.cold {
            phases.meter.reopen()?;
        }
        phases.run(name, |worker| self.work(worker, &block))?;
        phases.meter.sync()
    }

    fn reopens(&self) -> bool {
        self.cold
    }
}

impl Fsync {
    fn blocks(&self) -> u64 {
        self.total / self.block
    }

    /// Blocks that each job writes while it is measured.
    fn written_blocks(&self) -> u64 {
        let most = self.syncs.map(|syncs| syncs.saturating_mul(self.every));
        most.map_or(self.blocks(), |most| most.min(self.blocks()))
    }

    /// Blocks of each file.
    fn file_blocks(&self) -> u64 {
        self.blocks() / self.files
    }

    fn how(&self) -> Open {
        if self.random {
            Open::Existing
        } else {
            Open::New
        }
    }

    fn work(&self, worker: &mut Worker<'_>, block: &[u8]) -> Result<()> {
        let dir = worker.dir()?;
        let mut file = dir.open(&file_name(0), self.how())?;
        let mut turns = (1..self.files).chain([0]).cycle();
        let mut random = Random::new(self.seed, worker.number as u64);
        let mut blocks = 0..self.written_blocks();
        while !blocks.is_empty() {
            // A write may defer work to the sync, so only the time of both is comparable.
            let written = worker.tally.timed(|| {
                let mut written = 0;
                for n in blocks.by_ref().take(self.every as usize) {
                    self.write(&*file, n, block, &mut random)?;
                    written += self.block;
                }
                file.sync().map(|()| written)
            })?;
            worker.tally.bytes += written;
            if let Some(next) = turns.next().filter(|_| self.files > 1) {
                file = dir.open(&file_name(next), self.how())?;
            }
        }
        Ok(())
    }

    fn write(&self, file: &dyn OpenFile, n: u64, block: &[u8], random: &mut Random) -> Result<()> {
        let n = if self.random {
            random.below(self.file_blocks())
        } else {
            n
        };
        file.write_at(block, n * self.block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Fsync {
        let fsync: Fsync = crate::parse(words).unwrap();
        fsync.check().unwrap();
        fsync
    }

    #[test]
    fn syncs_limit_what_is_written_and_not_the_files() {
        let all = parsed(&["--block", "4K", "--total", "64K", "--every", "3"]);
        assert_eq!(all.written_blocks(), 16);
        let few = parsed(&[
            "--block", "4K", "--total", "64K", "--every", "3", "--syncs", "2",
        ]);
        assert_eq!((few.written_blocks(), few.file_blocks()), (6, 16));
        let more = parsed(&["--block", "4K", "--total", "64K", "--syncs", "17"]);
        assert_eq!(more.written_blocks(), 16);
        let none: Fsync = crate::parse(&["--syncs", "0"]).unwrap();
        assert!(none.check().is_err());
    }

    #[test]
    fn only_files_that_are_overwritten_can_be_scattered() {
        assert!(parsed(&["--random", "--scattered"]).scattered);
        let sequential = Fsync {
            random: false,
            ..parsed(&["--random", "--scattered"])
        };
        assert!(sequential.check().is_err());
    }
}
