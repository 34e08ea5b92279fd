//! The effect of unrelated work on a sync: the latency of append and fsync in one thread, first
//! alone, then while other threads create, write and remove small files.
//!
//! The other threads continue until the last append is done, so the amount of their work depends on
//! the time. The increase of the target's counters meanwhile includes their work.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{
    Description, End, Phases, Worker, Workload, at_least_one, at_most_1g, contents, file_name,
};
use crate::Result;
use crate::settings::parse_size;
use crate::target::Open;

/// Append and sync, alone and while other threads make and remove small files.
#[derive(Debug, Clone, clap::Args)]
pub struct Mixed {
    /// Threads of the load, each in a directory of its own.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub load: usize,

    /// Only append, with no load: for a target that has no files to create and remove.
    #[arg(long)]
    pub alone: bool,

    /// Appends, alone and again beside the load.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub appends: u64,

    /// Bytes of each append, and of each file of the load; suffixes K, M.
    #[arg(long, short = 's', value_name = "BYTES", default_value = "4K", value_parser = parse_size)]
    pub size: u64,
}

/// Number of files that a thread of the load keeps at a time.
const LIVE: u64 = 16;

/// Number of the appending thread and its directory; those of the load follow.
const APPENDS: usize = 0;

/// Names of the phases in which it appends.
const ALONE: &str = "append + fsync, alone";
const BESIDE: &str = "append + fsync, beside load";

impl Workload for Mixed {
    fn describe(&self) -> Description {
        Description {
            name: "mixed",
            unit: "operations",
            threads: self.load + 1,
            settings: vec![
                ("load_threads", self.load as u64),
                ("alone", u64::from(self.alone)),
                ("appends", self.appends),
                ("append_bytes", self.size),
                ("load_file_bytes", self.size),
            ],
        }
    }

    fn check(&self) -> Result<()> {
        at_least_one(&[
            ("--load", self.load as u64),
            ("--appends", self.appends),
            ("--size", self.size),
        ])?;
        at_most_1g("--size", self.size)
    }

    fn prepare(&self, worker: &Worker<'_>) -> Result<()> {
        match worker.number {
            APPENDS => worker.dir()?.create(FILE, &[], false),
            _ => Ok(()),
        }
    }

    fn measure(&self, phases: &mut Phases<'_>) -> Result<()> {
        let bytes = contents(self.size);
        let append = |worker: &mut Worker<'_>| self.append(worker, &bytes);
        phases.run_first(1, ALONE, append)?;
        phases.meter.sync()?;
        if self.alone {
            return Ok(());
        }
        let load = Load::default();
        phases.run(BESIDE, |worker| match worker.number {
            APPENDS => {
                let _end = End(&load.over);
                append(worker)
            }
            _ => load.work(worker, &bytes),
        })?;
        let meter = &mut phases.meter;
        let files = load.files.into_inner();
        meter.beside("the load: create, write, delete", files, files * self.size);
        let both = (BESIDE, ALONE);
        meter.ratio_of_latencies("p50_beside_load_to_alone", both, |l| l.p50);
        meter.ratio_of_latencies("p99_beside_load_to_alone", both, |l| l.p99);
        meter.sync()
    }
}

const FILE: &str = "appended";

impl Mixed {
    fn append(&self, worker: &mut Worker<'_>, bytes: &[u8]) -> Result<()> {
        let dir = worker.dir()?;
        let file = dir.open(FILE, Open::Append)?;
        for _ in 0..self.appends {
            worker.tally.timed(|| {
                file.append(bytes)?;
                file.sync()
            })?;
            worker.tally.bytes += self.size;
        }
        Ok(())
    }
}

/// State shared by the threads of the load.
#[derive(Default)]
struct Load {
    over: AtomicBool,
    files: AtomicU64,
}

impl Load {
    /// Creates and writes files, and removes each one after `LIVE` later ones; at the end removes
    /// the rest.
    fn work(&self, worker: &Worker<'_>, bytes: &[u8]) -> Result<()> {
        let dir = worker.dir()?;
        let mut made = 0;
        loop {
            dir.create(&file_name(made), bytes, false)?;
            made += 1;
            if let Some(old) = made.checked_sub(LIVE + 1) {
                dir.remove(&file_name(old))?;
            }
            if self.over.load(Ordering::Relaxed) {
                break;
            }
        }
        self.files.fetch_add(made, Ordering::Relaxed);
        (made.saturating_sub(LIVE)..made).try_for_each(|file| dir.remove(&file_name(file)))
    }
}
