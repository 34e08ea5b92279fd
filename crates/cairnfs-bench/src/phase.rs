//! One step of a workload, measured: time, operations, and what the target's counters rose by.
//!
//! All threads begin together; the time ends when the last is done.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use cairnfs::fs::LEVELS;
use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::Result;
use crate::tally::{Latency, Tally};
use crate::target::Target;

/// The figures of one step.
#[derive(Debug, Clone)]
pub struct Phase {
    /// What was done.
    pub name: &'static str,
    /// Operations, of all threads; none if it is no matter of operations.
    pub operations: u64,
    /// Bytes written to files, of all threads; none if it is no matter of bytes.
    pub bytes: u64,
    /// Time from the first thread's start to the last one's end.
    pub time: Duration,
    /// How long single operations took, where each was timed.
    pub latency: Option<Latency>,
    /// What each counter of the target rose by.
    pub counters: Vec<(&'static str, u64)>,
    /// Whether it is the sum of phases before it, and so to be left out of other sums.
    pub sum: bool,
}

impl Phase {
    /// Operations per second; 0 if there were none, or no time.
    pub fn rate(&self) -> f64 {
        self.per_second(self.operations as f64)
    }

    /// MiB per second; 0 if there were none, or no time.
    pub fn mebibytes_per_second(&self) -> f64 {
        self.per_second(self.bytes as f64 / (1 << 20) as f64)
    }

    /// What a counter of the target rose by, if it has that one.
    pub fn counter(&self, name: &str) -> Option<u64> {
        let found = self.counters.iter().find(|(n, _)| *n == name);
        found.map(|(_, value)| *value)
    }

    fn per_second(&self, amount: f64) -> f64 {
        let seconds = self.time.as_secs_f64();
        match seconds > 0.0 {
            true => amount / seconds,
            false => 0.0,
        }
    }
}

impl Serialize for Phase {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        let mut phase = to.serialize_struct("Phase", 8)?;
        phase.serialize_field("phase", self.name)?;
        phase.serialize_field("operations", &self.operations)?;
        phase.serialize_field("bytes", &self.bytes)?;
        phase.serialize_field("seconds", &self.time.as_secs_f64())?;
        phase.serialize_field("per_second", &self.rate())?;
        phase.serialize_field("mib_per_second", &self.mebibytes_per_second())?;
        phase.serialize_field("latency_ns", &self.latency)?;
        phase.serialize_field("counters", &Pairs(&self.counters))?;
        phase.end()
    }
}

/// Names with their values, as one JSON object.
pub struct Pairs<'a, T>(pub &'a [(&'static str, T)]);

impl<T: Serialize> Serialize for Pairs<'_, T> {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// What a program tells of its run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Outcome {
    /// Operations.
    pub operations: u64,
    /// Bytes written to files.
    pub bytes: u64,
    /// How long they took.
    pub time: Duration,
    /// How long single ones took.
    pub latency: Option<Latency>,
    /// Processor time that it used.
    pub cpu: Duration,
}

/// Measures phases one after the other.
pub struct Meter<'t> {
    target: &'t dyn Target,
    sync_phases: bool,
    phases: Vec<Phase>,
    ratios: Vec<(&'static str, f64)>,
}

impl<'t> Meter<'t> {
    /// Measures on `target`.
    pub fn new(target: &'t dyn Target) -> Self {
        Self {
            target,
            sync_phases: false,
            phases: Vec::new(),
            ratios: Vec::new(),
        }
    }

    /// From now on each phase of threads ends with a sync, within its time.
    pub fn sync_phases(&mut self) {
        self.sync_phases = true;
    }

    /// Lets so many threads do `work(its number, its count)`; gives how long timed operations took.
    pub fn threads(
        &mut self,
        name: &'static str,
        threads: usize,
        work: impl Fn(usize, &mut Tally) -> Result<()> + Sync,
    ) -> Result<Option<Latency>> {
        let (target, sync) = (self.target, self.sync_phases);
        self.measure(name, |watch| {
            let tally = side_by_side(threads, || watch.start(), work)?;
            if sync {
                target.sync()?;
            }
            Ok(tally)
        })
    }

    /// Does one thing in this thread, which counts as no operation.
    pub fn once(&mut self, name: &'static str, work: impl FnOnce() -> Result<()>) -> Result<()> {
        self.measure(name, |_| work().map(|()| Tally::default()))?;
        Ok(())
    }

    /// Makes everything durable, and measures that.
    pub fn sync(&mut self) -> Result<()> {
        let target = self.target;
        self.once("sync", || target.sync())
    }

    /// Closes the target and opens it again, and measures that.
    pub fn reopen(&mut self) -> Result<()> {
        let target = self.target;
        self.once("reopen", || target.reopen())
    }

    /// Makes what the last phase did durable; a sum of both follows.
    pub fn sync_last(&mut self, sync: &'static str, both: &'static str) -> Result<()> {
        let target = self.target;
        self.once(sync, || target.sync())?;
        self.both(both);
        Ok(())
    }

    /// Adds up the last two phases; what counts are the operations of the first.
    pub fn both(&mut self, name: &'static str) {
        if let [.., first, second] = self.phases.as_slice() {
            let sum = total(name, first.operations, &[first.clone(), second.clone()]);
            self.phases.push(sum);
        }
    }

    /// Tells of operations that went on beside those of the last phase.
    pub fn beside(&mut self, name: &'static str, operations: u64, bytes: u64) {
        let time = self.phases.last().map_or(Duration::ZERO, |p| p.time);
        self.phases.push(Phase {
            name,
            operations,
            bytes,
            time,
            latency: None,
            counters: Vec::new(),
            sum: false,
        });
    }

    /// Tells how two figures compare.
    pub fn ratio(&mut self, name: &'static str, value: f64) {
        self.ratios.push((name, value));
    }

    /// Runs a program that tells its own figures; only the counters are taken here.
    pub fn program(
        &mut self,
        name: &'static str,
        run: impl FnOnce() -> Result<Outcome>,
    ) -> Result<()> {
        let before = self.target.counters();
        let found = run()?;
        let mut counters = difference(&before, &self.target.counters());
        if let Some((_, cpu)) = counters.iter_mut().find(|(name, _)| *name == "cpu_us") {
            *cpu += u64::try_from(found.cpu.as_micros()).unwrap_or(0);
        }
        self.phases.push(Phase {
            name,
            operations: found.operations,
            bytes: found.bytes,
            time: found.time,
            latency: found.latency,
            counters,
            sum: false,
        });
        Ok(())
    }

    fn measure(
        &mut self,
        name: &'static str,
        work: impl FnOnce(&mut Watch<'t>) -> Result<Tally>,
    ) -> Result<Option<Latency>> {
        let mut watch = Watch::new(self.target);
        let mut tally = work(&mut watch)?;
        let (time, counters) = watch.stop();
        let latency = tally.latency();
        self.phases.push(Phase {
            name,
            operations: tally.operations,
            bytes: tally.bytes,
            time,
            latency,
            counters,
            sum: false,
        });
        Ok(latency)
    }

    /// All phases in their order, and the ratios.
    pub fn finish(self) -> (Vec<Phase>, Vec<(&'static str, f64)>) {
        (self.phases, self.ratios)
    }
}

/// Time and counters of a phase, from when it was last started.
struct Watch<'t> {
    target: &'t dyn Target,
    before: Vec<(&'static str, u64)>,
    start: Instant,
}

impl<'t> Watch<'t> {
    /// Started.
    fn new(target: &'t dyn Target) -> Self {
        Self {
            before: target.counters(),
            target,
            start: Instant::now(),
        }
    }

    fn start(&mut self) {
        *self = Self::new(self.target);
    }

    fn stop(self) -> (Duration, Vec<(&'static str, u64)>) {
        let time = self.start.elapsed();
        (time, difference(&self.before, &self.target.counters()))
    }
}

/// Runs the threads and adds up what they counted; the first failure is the answer. When all stand
/// ready it calls `begin`, so that making threads is no part of what is measured.
fn side_by_side(
    threads: usize,
    begin: impl FnOnce(),
    work: impl Fn(usize, &mut Tally) -> Result<()> + Sync,
) -> Result<Tally> {
    let gate = Barrier::new(threads + 1);
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| {
                let (gate, work) = (&gate, &work);
                scope.spawn(move || {
                    let mut tally = Tally::default();
                    // Ready; and then, begun.
                    gate.wait();
                    gate.wait();
                    work(thread, &mut tally).map(|()| tally)
                })
            })
            .collect();
        gate.wait();
        begin();
        gate.wait();
        // All are waited for before a failure is told.
        let done: Vec<_> = running.into_iter().map(|thread| thread.join()).collect();
        let mut all = Tally::default();
        for thread in done {
            all.add(thread.map_err(|_| "a thread of the workload panicked")??);
        }
        Ok(all)
    })
}

fn difference(
    before: &[(&'static str, u64)],
    after: &[(&'static str, u64)],
) -> Vec<(&'static str, u64)> {
    let was = |name| before.iter().find(|(n, _)| *n == name).map_or(0, |c| c.1);
    after
        .iter()
        .map(|(name, value)| match LEVELS.contains(name) {
            true => (*name, *value),
            false => (*name, value.saturating_sub(was(*name))),
        })
        .collect()
}

/// The sum of phases that are no sums themselves, as one.
pub fn total(name: &'static str, operations: u64, phases: &[Phase]) -> Phase {
    let parts = || phases.iter().filter(|p| !p.sum);
    let mut counters: Vec<(&'static str, u64)> = Vec::new();
    for (name, value) in parts().flat_map(|p| &p.counters) {
        match counters.iter_mut().find(|(n, _)| n == name) {
            Some((_, sum)) => *sum += value,
            None => counters.push((name, *value)),
        }
    }
    Phase {
        name,
        operations,
        bytes: parts().map(|p| p.bytes).sum(),
        latency: None,
        time: parts().map(|p| p.time).sum(),
        counters,
        sum: true,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn threads_begin_together_and_add_up_and_failures_come_out() {
        let begin = AtomicBool::new(false);
        let all = side_by_side(
            4,
            || begin.store(true, Ordering::SeqCst),
            |thread, tally| {
                assert!(begin.load(Ordering::SeqCst));
                tally.operations += thread as u64;
                tally.timed(|| Ok(()))
            },
        );
        assert_eq!(all.unwrap().operations, 10);
        let failed = side_by_side(
            4,
            || {},
            |thread, _| match thread {
                2 => Err("two".into()),
                _ => Ok(()),
            },
        );
        assert_eq!(failed.unwrap_err().to_string(), "two");
    }

    #[test]
    fn counters_are_differences_and_sums() {
        let phase = |counters| Phase {
            name: "p",
            operations: 1,
            bytes: 5,
            latency: None,
            time: Duration::from_secs(1),
            counters,
            sum: false,
        };
        let rose = difference(&[("a", 2)], &[("a", 5), ("b", 7)]);
        assert_eq!(rose, [("a", 3), ("b", 7)]);
        let parts = [phase(rose), phase(vec![("b", 1)])];
        let sum = total("both", 2, &parts);
        let all = total("all", 9, &[&parts[..], &[sum]].concat());
        assert_eq!(all.counters, [("a", 3), ("b", 8)]);
        assert_eq!((all.operations, all.bytes, all.time.as_secs()), (9, 10, 2));
    }
}
