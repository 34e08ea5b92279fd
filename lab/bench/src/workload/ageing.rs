//! How a file system ages: files of many sizes fill a part of it, and are then overwritten, removed
//! and replaced by files of other sizes, round after round, while the fill stays the same.
//!
//! A round writes as many bytes as all files have. Rates and latencies of the rounds are comparable,
//! since each draws from the same distribution: sizes from 1 KiB to 1 MiB, each doubling as likely as
//! any other; of ten operations five replace a file, three overwrite up to 64 KiB of one, and two do
//! that and sync it. Before and after the rounds all files are read.

use std::collections::VecDeque;

use parking_lot::Mutex;

use super::{Description, Phases, Worker, Workload, at_least_one, contents, file_name};
use crate::Result;
use crate::random::Random;
use crate::settings::parse_size;
use crate::target::{Dir, Open};

/// Replace and overwrite files of many sizes, round after round, at one fill.
#[derive(Debug, Clone, clap::Args)]
pub struct Ageing {
    /// Threads, each in a directory of its own.
    #[arg(long, short = 't', value_name = "N", default_value_t = 4)]
    pub threads: usize,

    /// Bytes of all files at a time: choose this for the fill; suffixes K, M, G, T.
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = parse_size)]
    pub bytes: u64,

    /// Rounds; each writes as many bytes.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub rounds: usize,

    /// Close and open the target before files are read, so that they come from the device. For
    /// the library and `bench compare`
    #[arg(long)]
    pub cold: bool,

    /// Seed of sizes, and of the order of operations.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// The smallest file is of 2^10 bytes, the largest of 2^20.
const SMALLEST: u32 = 10;
const LARGEST: u32 = 20;

/// Bytes of the largest overwrite.
const PART: u64 = 64 << 10;

/// Names of the rounds, and so how many there can be.
const ROUNDS: [&str; 20] = [
    "round 1", "round 2", "round 3", "round 4", "round 5", "round 6", "round 7", "round 8",
    "round 9", "round 10", "round 11", "round 12", "round 13", "round 14", "round 15", "round 16",
    "round 17", "round 18", "round 19", "round 20",
];

impl Workload for Ageing {
    fn describe(&self) -> Description {
        Description {
            name: "ageing",
            unit: "operations",
            threads: self.threads,
            settings: vec![
                ("threads", self.threads as u64),
                ("bytes", self.bytes),
                ("rounds", self.rounds as u64),
                ("cold", u64::from(self.cold)),
                ("seed", self.seed),
            ],
        }
    }

    fn check(&self) -> Result<()> {
        at_least_one(&[("--threads", self.threads as u64)])?;
        if !(1..=ROUNDS.len()).contains(&self.rounds) {
            return Err(format!("--rounds must be from 1 to {}", ROUNDS.len()).into());
        }
        if self.share() < 2 << LARGEST {
            Err("--bytes must be at least 2M for each thread".into())
        } else {
            Ok(())
        }
    }

    fn measure(&self, phases: &mut Phases<'_>) -> Result<()> {
        let data = contents(1 << LARGEST);
        let all: Vec<_> = (0..self.threads)
            .map(|thread| Mutex::new(Files::new(self.seed, thread)))
            .collect();
        let files = |worker: &Worker<'_>| {
            let files = all.get(worker.number);
            files.ok_or("a thread without files").map(Mutex::lock)
        };
        phases.run("fill", |worker| {
            files(worker)?.fill(worker, &data, self.share())
        })?;
        phases.meter.sync()?;
        let read = |worker: &mut Worker<'_>| files(worker)?.read(worker);
        self.reopen(phases)?;
        phases.run("read", read)?;
        for name in ROUNDS.into_iter().take(self.rounds) {
            phases.run(name, |worker| {
                files(worker)?.round(worker, &data, self.share())
            })?;
        }
        phases.meter.sync()?;
        self.reopen(phases)?;
        phases.run("read aged", read)?;
        let meter = &mut phases.meter;
        let last = ROUNDS.get(self.rounds - 1).copied().unwrap_or_default();
        meter.ratio_of_rates("last_round_to_first", last, "round 1");
        meter.ratio_of_rates("read_aged_to_fresh", "read aged", "read");
        phases.run("remove", |worker| files(worker)?.remove(worker))?;
        phases.meter.sync()
    }

    fn reopens(&self) -> bool {
        self.cold
    }
}

impl Ageing {
    /// Bytes of the files of one thread.
    fn share(&self) -> u64 {
        self.bytes / self.threads.max(1) as u64
    }

    fn reopen(&self, phases: &mut Phases<'_>) -> Result<()> {
        if self.cold {
            phases.meter.reopen()
        } else {
            Ok(())
        }
    }
}

/// The files of a thread.
struct Files {
    random: Random,
    /// Numbers and sizes, in no order.
    live: VecDeque<(u64, u64)>,
    bytes: u64,
    made: u64,
}

impl Files {
    fn new(seed: u64, thread: usize) -> Self {
        Self {
            random: Random::new(seed, thread as u64),
            live: VecDeque::new(),
            bytes: 0,
            made: 0,
        }
    }

    /// A size whose logarithm is evenly distributed.
    fn size(&mut self) -> u64 {
        let doublings = self.random.below(u64::from(LARGEST - SMALLEST));
        let least = 1 << (u64::from(SMALLEST) + doublings);
        least + self.random.below(least)
    }

    fn fill(&mut self, worker: &mut Worker<'_>, data: &[u8], share: u64) -> Result<()> {
        let dir = worker.dir()?;
        loop {
            let size = self.size();
            if self.bytes + size > share {
                return Ok(());
            }
            self.create(worker, &*dir, data, size)?;
        }
    }

    /// Creates a file.
    fn create(
        &mut self,
        worker: &mut Worker<'_>,
        dir: &dyn Dir,
        data: &[u8],
        size: u64,
    ) -> Result<()> {
        let data = data.get(..size as usize).unwrap_or_default();
        let (number, name) = (self.made, file_name(self.made));
        worker.tally.timed(|| dir.create(&name, data, false))?;
        worker.tally.bytes += size;
        self.live.push_back((number, size));
        self.bytes += size;
        self.made += 1;
        Ok(())
    }

    /// Creates a file, for which others are removed that are drawn at random. The size is drawn
    /// before: if only files that fit were made, there would be more small ones with each round.
    fn replace(
        &mut self,
        worker: &mut Worker<'_>,
        dir: &dyn Dir,
        data: &[u8],
        share: u64,
    ) -> Result<()> {
        let size = self.size();
        while self.bytes + size > share
            && let Some((number, freed)) = self.draw()
        {
            worker.tally.timed(|| dir.remove(&file_name(number)))?;
            self.live.pop_back();
            self.bytes -= freed;
        }
        self.create(worker, dir, data, size)
    }

    /// One of the files, drawn at random; it is the last one of the list then.
    fn draw(&mut self) -> Option<(u64, u64)> {
        let count = self.live.len();
        let at = self.random.below(count.max(1) as u64) as usize;
        self.live.swap(at, count.checked_sub(1)?);
        self.live.back().copied()
    }

    /// Operations until as many bytes were written as the files have.
    fn round(&mut self, worker: &mut Worker<'_>, data: &[u8], share: u64) -> Result<()> {
        let dir = worker.dir()?;
        let end = worker.tally.bytes + share;
        while worker.tally.bytes < end {
            match self.random.below(10) {
                0..5 => self.replace(worker, &*dir, data, share)?,
                what => {
                    let file = self.draw().ok_or("there are no files")?;
                    self.overwrite(worker, &*dir, data, file, what >= 8)?;
                }
            }
        }
        Ok(())
    }

    fn overwrite(
        &mut self,
        worker: &mut Worker<'_>,
        dir: &dyn Dir,
        data: &[u8],
        (number, size): (u64, u64),
        sync: bool,
    ) -> Result<()> {
        let len = 1 + self.random.below(size.min(PART));
        let at = self.random.below(size - len + 1);
        let part = data.get(..len as usize).unwrap_or_default();
        worker.tally.timed(|| {
            let file = dir.open(&file_name(number), Open::Existing)?;
            file.write_at(part, at)?;
            if sync { file.sync() } else { Ok(()) }
        })?;
        worker.tally.bytes += len;
        Ok(())
    }

    fn read(&mut self, worker: &mut Worker<'_>) -> Result<()> {
        let dir = worker.dir()?;
        let mut into = vec![0; 1 << LARGEST];
        for (number, size) in &self.live {
            let read = worker
                .tally
                .timed(|| dir.read(&file_name(*number), &mut into))?;
            if read as u64 != *size {
                return Err(format!("file {number} has {read} bytes, not {size}").into());
            }
        }
        Ok(())
    }

    fn remove(&mut self, worker: &mut Worker<'_>) -> Result<()> {
        let dir = worker.dir()?;
        let live = self.live.drain(..);
        worker.each(live, |(number, _)| dir.remove(&file_name(number)))
    }
}
