//! `cairnfs-bench scaling`: the processor time of the sections of the engine that only one thread
//! can be in, and what they allow at most on more processors than the machine has.
//!
//! Each step runs twice, on new volumes in memory: once as it is, for its processor time, and once
//! with locks that measure how long they are held (`cairnfs::sections`, only with the feature
//! `sections`). A step ends with the merge of what it changed, so the bounds hold for operations
//! that last, and the volume has the threads that it has with [`FITTED`] processors. The bounds say
//! nothing of the cost of cache lines that processors take from each other, which a machine must
//! have the processors for.

use std::io::Write;
use std::sync::{Arc, Barrier};
use std::time::Instant;

use cairnfs::sections::{self, Section};
use cairnfs::{OpenOptions, Volume};
use cairnfs_disk::device::{Device, MemoryDevice};
use serde_json::{Value, json};

use crate::Result;
use crate::compare::table::readable;
use crate::processor::process_cpu;
use crate::settings::parse_size;

/// Measure the sections that only one thread can be in, and what they allow on more processors.
#[derive(Debug, Clone, clap::Args)]
pub struct Scaling {
    /// Numbers of threads.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "1,2,4,8,16,32,64"
    )]
    pub threads: Vec<usize>,

    /// Operations of each step, of all threads; a twentieth as many fsyncs.
    #[arg(long, value_name = "N", default_value_t = 400_000)]
    pub operations: usize,

    /// Memory that the library may use; suffixes K, M, G.
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = parse_size)]
    pub cache: u64,

    /// Print JSON instead of tables.
    #[arg(long)]
    pub json: bool,
}

/// Numbers of processors for which the bound is computed.
const PROCESSORS: [usize; 4] = [8, 16, 32, 64];

/// Processors for which the volumes have threads.
const FITTED: usize = 16;

/// Size of a volume, in bytes.
const VOLUME: u64 = 16 << 30;

/// Bytes at its start, where the log is, that have memory before a step begins.
const TOUCHED: u64 = 1 << 30;

/// Sections that the tables show for each step.
const SHOWN: usize = 6;

#[derive(Debug, Clone, Copy)]
enum Step {
    Create,
    WriteFsync,
    Xattr,
    Walk,
    Unlink,
}

const STEPS: [Step; 5] = [
    Step::Create,
    Step::WriteFsync,
    Step::Xattr,
    Step::Walk,
    Step::Unlink,
];

impl Step {
    fn name(self) -> &'static str {
        match self {
            Step::Create => "create",
            Step::WriteFsync => "write + fsync",
            Step::Xattr => "set attribute",
            Step::Walk => "walk",
            Step::Unlink => "unlink",
        }
    }

    /// Whether its files exist before.
    fn needs_files(self) -> bool {
        !matches!(self, Step::Create | Step::WriteFsync)
    }
}

/// The figures of a step with one number of threads.
struct Measured {
    step: Step,
    threads: usize,
    operations: usize,
    /// Operations per second on this machine, without measuring locks.
    rate: f64,
    /// Nanoseconds of processor time of an operation, without measuring locks.
    cpu: f64,
    sections: Vec<Section>,
}

impl Measured {
    /// Nanoseconds per operation in the lock that was held longest.
    fn longest(&self) -> f64 {
        self.sections.first().map_or(0.0, |s| self.each(s.longest))
    }

    /// Nanoseconds per operation in all locks of which the volume has only one. The time in one of
    /// them within another one is counted once.
    fn single(&self) -> f64 {
        let single = || self.sections.iter().filter(|s| s.locks == 1);
        let within = |s: &Section| {
            let outer = single().filter(|outer| outer.name != s.name);
            let outer = outer.filter_map(|outer| s.within.get(outer.name));
            outer.max().copied().unwrap_or(0)
        };
        single()
            .map(|s| self.each(s.total.saturating_sub(within(s))))
            .sum()
    }

    fn each(&self, nanos: u64) -> f64 {
        nanos as f64 / self.operations as f64
    }

    /// Operations per second that `processors` allow, if different locks are held at the same time.
    fn bound(&self, processors: usize) -> f64 {
        let work = self.cpu / processors as f64;
        1e9 / work.max(self.longest()).max(f64::MIN_POSITIVE)
    }

    /// The same by Amdahl's law: as if one thread could be in all single locks together.
    fn amdahl(&self, processors: usize) -> f64 {
        let serial = self.single().min(self.cpu);
        1e9 / (serial + (self.cpu - serial) / processors as f64).max(f64::MIN_POSITIVE)
    }

    fn json(&self) -> Value {
        let bounds = PROCESSORS.map(
            |n| json!({"processors": n, "longest_lock": self.bound(n), "amdahl": self.amdahl(n)}),
        );
        let sections = self.sections.iter().map(|s| {
            json!({
                "name": s.name, "locks": s.locks, "holds_each": self.each(s.holds),
                "ns_each": self.each(s.total), "longest_lock_ns_each": self.each(s.longest),
            })
        });
        json!({
            "step": self.step.name(), "threads": self.threads, "operations": self.operations,
            "per_second": self.rate, "cpu_ns_each": self.cpu,
            "longest_lock_ns_each": self.longest(), "single_locks_ns_each": self.single(),
            "bounds_per_second": bounds, "sections": sections.collect::<Vec<_>>(),
        })
    }
}

impl Scaling {
    /// Measures, and prints the figures to `out`.
    ///
    /// # Errors
    /// Invalid settings, errors of the library or of `out`.
    pub fn run(&self, out: &mut dyn Write) -> Result<()> {
        let most = self.threads.iter().max().copied().unwrap_or(0);
        if self.threads.contains(&0) || most == 0 || self.operations / 20 < most {
            return Err("--threads must be at least 1, with 20 --operations for each".into());
        }
        let mut all = Vec::new();
        sections::assume_processors(FITTED);
        for step in STEPS {
            for threads in &self.threads {
                eprintln!("{}, {threads} threads", step.name());
                all.push(self.measure(step, *threads)?);
            }
        }
        if self.json {
            let all: Vec<Value> = all.iter().map(Measured::json).collect();
            serde_json::to_writer_pretty(&mut *out, &all)?;
            return Ok(writeln!(out)?);
        }
        print(&all, most, out)
    }

    fn measure(&self, step: Step, threads: usize) -> Result<Measured> {
        let plain = self.once(step, threads)?;
        sections::enable(true);
        let measured = self.once(step, threads);
        sections::enable(false);
        let measured = measured?;
        Ok(Measured {
            step,
            threads,
            operations: plain.operations,
            rate: plain.operations as f64 / plain.seconds,
            cpu: plain.cpu * 1e9 / plain.operations as f64,
            sections: measured.sections,
        })
    }

    /// Runs a step on a new volume.
    fn once(&self, step: Step, threads: usize) -> Result<Once> {
        let each = match step {
            Step::WriteFsync => self.operations / 20 / threads,
            _ => self.operations / threads,
        };
        let volume = Volume::options()
            .cache_budget(usize::try_from(self.cache)?)
            .create_device(device()?)?;
        for thread in 0..threads {
            volume.create_dir(dir(thread))?;
            for file in 0..if step.needs_files() { each } else { 0 } {
                volume.create_new_file(path(thread, file))?;
            }
        }
        volume.sync()?;
        volume.file_system().merge()?;
        drop(sections::take());
        let (begin, cpu) = (Barrier::new(threads + 1), process_cpu);
        let (start, before) = std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads)
                .map(|thread| {
                    let (volume, begin) = (&volume, &begin);
                    scope.spawn(move || {
                        begin.wait();
                        work(volume, step, thread, each)
                    })
                })
                .collect();
            let started = (Instant::now(), cpu());
            begin.wait();
            for thread in running {
                thread.join().map_err(|_| "a thread panicked")??;
            }
            Result::Ok(started)
        })?;
        // What the operations still owe the log and the index belongs to them.
        volume.sync()?;
        let seconds = start.elapsed().as_secs_f64();
        volume.file_system().merge()?;
        let once = Once {
            operations: each * threads,
            seconds,
            cpu: cpu().saturating_sub(before).as_secs_f64(),
            sections: sections::take(),
        };
        volume.close()?;
        Ok(once)
    }
}

struct Once {
    operations: usize,
    seconds: f64,
    cpu: f64,
    sections: Vec<Section>,
}

/// A device in memory. A disk has all its blocks; here the first write of each would make it, in
/// the writer's lock.
fn device() -> Result<Arc<MemoryDevice>> {
    let device = MemoryDevice::new(VOLUME);
    let some = vec![0; 1 << 20];
    for offset in (0..TOUCHED).step_by(some.len()) {
        device.write(offset, &some)?;
    }
    Ok(Arc::new(device))
}

fn dir(thread: usize) -> String {
    format!("t{thread}")
}

fn path(thread: usize, file: usize) -> String {
    format!("t{thread}/file{file:08}")
}

/// One thread's part of a step, in its own directory.
fn work(volume: &Volume, step: Step, thread: usize, each: usize) -> Result<()> {
    match step {
        Step::Create => {
            (0..each).try_for_each(|n| volume.create_new_file(path(thread, n)).map(drop))?;
        }
        Step::WriteFsync => {
            let new = OpenOptions::new().write(true).create_new(true).clone();
            let file = volume.open_with(path(thread, 0), &new)?;
            for n in 0..each {
                file.write_all_at(&[7; 4096], n as u64 * 4096)?;
                file.sync_all()?;
            }
        }
        Step::Xattr => {
            let values: Vec<[u8; 400]> = (0..10).map(|n| [n; 400]).collect();
            for (n, value) in (0..each).zip(values.iter().cycle()) {
                volume.set_xattr(path(thread, n), "user.scaling", value)?;
            }
        }
        Step::Walk => {
            for entry in volume.read_dir(dir(thread))? {
                entry?.metadata()?;
            }
        }
        Step::Unlink => {
            (0..each).try_for_each(|n| volume.remove_file(path(thread, n)))?;
        }
    }
    Ok(())
}

fn print(all: &[Measured], most: usize, out: &mut dyn Write) -> Result<()> {
    writeln!(
        out,
        "Processor time per operation with its part of a merge, in it the lock held longest and all locks of \
         which there is only one; and operations/s that follow for 8, 16, 32, 64 processors, by the lock held \
         longest and by Amdahl's law. The volumes have the threads that they have with {FITTED} processors. \
         Cache lines that processors take from each other are not in it.\n"
    )?;
    writeln!(
        out,
        "| step | threads | here, op/s | CPU ns | longest lock ns | single locks ns | by longest lock | by Amdahl |"
    )?;
    writeln!(out, "|---|--:|--:|--:|--:|--:|---|---|")?;
    for m in all {
        let list = |of: &dyn Fn(usize) -> f64| PROCESSORS.map(|n| readable(of(n))).join(", ");
        writeln!(
            out,
            "| {} | {} | {} | {:.0} | {:.1} | {:.1} | {} | {} |",
            m.step.name(),
            m.threads,
            readable(m.rate),
            m.cpu,
            m.longest(),
            m.single(),
            list(&|n| m.bound(n)),
            list(&|n| m.amdahl(n)),
        )?;
    }
    writeln!(
        out,
        "\nThe sections of {most} threads, per operation:\n\n\
         | step | protected value | locks | holds | ns | ns, lock held longest |\n|---|---|--:|--:|--:|--:|"
    )?;
    for m in all.iter().filter(|m| m.threads == most) {
        for section in m.sections.iter().take(SHOWN) {
            writeln!(
                out,
                "| {} | `{}` | {} | {:.2} | {:.1} | {:.1} |",
                m.step.name(),
                section.name,
                section.locks,
                m.each(section.holds),
                m.each(section.total),
                m.each(section.longest),
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_follow_from_processor_time_and_locks() {
        let section = |name, locks, total, longest| Section {
            name,
            locks,
            holds: 10,
            total,
            longest,
            within: [("outer", 400)].into(),
        };
        let m = Measured {
            step: Step::Create,
            threads: 2,
            operations: 10,
            rate: 1.0,
            cpu: 1000.0,
            sections: vec![
                section("outer", 1, 600, 1000),
                section("inner", 1, 800, 10),
                section("many", 16, 3200, 200),
            ],
        };
        // A microsecond of work, a tenth of it under one lock.
        assert_eq!((m.longest(), m.single()), (100.0, 100.0));
        assert_eq!(m.bound(8), 8e6);
        assert_eq!(m.bound(64), 1e7);
        assert_eq!(m.amdahl(9), 5e6);
    }

    #[test]
    fn every_step_has_sections_and_bounds() {
        let scaling = Scaling {
            threads: vec![1, 3],
            operations: 3000,
            cache: 64 << 20,
            json: true,
        };
        let mut out = Vec::new();
        scaling.run(&mut out).unwrap();
        let found: Value = serde_json::from_slice(&out).unwrap();
        let found = found.as_array().unwrap();
        assert_eq!(found.len(), 2 * STEPS.len());
        for step in found {
            let serial = step["longest_lock_ns_each"].as_f64().unwrap();
            assert!(serial > 0.0, "{step}");
        }
    }
}
