//! What a busy neighbour loses: a thread that only computes, pinned to one processor, and a client
//! that creates files, pinned to another. Each is measured alone, then both together.
//!
//! The neighbour counts its loops. It loses them to whatever serves the client on its processor: a
//! daemon that polls there, or threads of the kernel. Its own processor time is subtracted from
//! that of the phases.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{Description, End, Phases, Worker, Workload, at_least_one, file_name};
use crate::random::Random;
use crate::{Result, processor};

/// Create files while another processor computes, and count what the computation loses.
#[derive(Debug, Clone, clap::Args)]
pub struct Neighbour {
    /// Files that the client creates, alone and again beside the neighbour.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 10_000)]
    pub files: u64,

    /// Time for which the neighbour computes alone, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 500)]
    pub alone: u64,
}

/// Numbers of the threads.
const CLIENT: usize = 0;
const NEIGHBOUR: usize = 1;

/// Pseudo-random numbers of one loop, about a microsecond.
const STEPS: u32 = 1000;

impl Workload for Neighbour {
    fn describe(&self) -> Description {
        Description {
            name: "neighbour",
            unit: "operations",
            threads: 2,
            settings: vec![("files", self.files), ("alone_ms", self.alone)],
        }
    }

    fn check(&self) -> Result<()> {
        at_least_one(&[("--files", self.files), ("--alone", self.alone)])?;
        processors().map(drop)
    }

    fn prepare(&self, worker: &Worker<'_>) -> Result<()> {
        match worker.number {
            CLIENT => ["alone", "beside"]
                .map(|dir| worker.make_subdir(dir))
                .into_iter()
                .collect(),
            _ => Ok(()),
        }
    }

    fn measure(&self, phases: &mut Phases<'_>) -> Result<()> {
        let (first, last) = processors()?;
        let spun = Spun::default();
        phases.run_first(1, "neighbour alone", |worker| {
            let end = Instant::now() + Duration::from_millis(self.alone);
            processor::pin(last)?;
            worker.tally.operations = spun.spin(|| Instant::now() >= end);
            Ok(())
        })?;
        phases.meter.less_cpu(spun.cpu());
        phases.run_first(1, "create alone", |worker| {
            processor::pin(first)?;
            self.create(worker, "alone")
        })?;
        let (over, spun) = (AtomicBool::new(false), Spun::default());
        phases.run("create beside neighbour", |worker| {
            if worker.number == NEIGHBOUR {
                processor::pin(last)?;
                spun.spin(|| over.load(Ordering::Relaxed));
                return Ok(());
            }
            let _end = End(&over);
            processor::pin(first)?;
            self.create(worker, "beside")
        })?;
        let meter = &mut phases.meter;
        meter.less_cpu(spun.cpu());
        meter.beside("neighbour beside create", spun.loops(), 0);
        for (ratio, beside, alone) in RATIOS {
            meter.ratio_of_rates(ratio, beside, alone);
        }
        meter.sync()
    }
}

/// Names of the ratios, and the phases whose rates they divide.
const RATIOS: [(&str, &str, &str); 2] = [
    (
        "neighbour_beside_to_alone",
        "neighbour beside create",
        "neighbour alone",
    ),
    (
        "create_beside_to_alone",
        "create beside neighbour",
        "create alone",
    ),
];

impl Neighbour {
    fn create(&self, worker: &mut Worker<'_>, dir: &str) -> Result<()> {
        let dir = worker.subdir(dir)?;
        worker.each(0..self.files, |file| {
            dir.create(&file_name(file), &[], false)
        })
    }
}

/// The loops of a neighbour, and the processor time that they took.
#[derive(Default)]
struct Spun {
    loops: AtomicU64,
    nanos: AtomicU64,
}

impl Spun {
    /// Computes until `over`, at least one loop; returns the number of loops.
    fn spin(&self, over: impl Fn() -> bool) -> u64 {
        let before = processor::thread_cpu();
        let (mut random, mut loops) = (Random::new(0, 0), 0);
        loop {
            for _ in 0..STEPS {
                black_box(random.any());
            }
            loops += 1;
            if over() {
                break;
            }
        }
        let spent = processor::thread_cpu().saturating_sub(before);
        let nanos = u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX);
        self.loops.store(loops, Ordering::Relaxed);
        self.nanos.store(nanos, Ordering::Relaxed);
        loops
    }

    fn loops(&self) -> u64 {
        self.loops.load(Ordering::Relaxed)
    }

    fn cpu(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }
}

/// Returns the first and the last processor that may be used.
fn processors() -> Result<(usize, usize)> {
    match processor::allowed()?.as_slice() {
        [first, .., last] => Ok((*first, *last)),
        _ => {
            Err("neighbour needs two processors: one for the client, one for the neighbour".into())
        }
    }
}
