//! Measures one step of a workload: time, operations, and the increase of the target's counters.
//!
//! All threads start together; the time ends when the last one is finished.

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
    /// Name of the step.
    pub name: &'static str,
    /// Operations of all threads; 0 if the step does not count operations.
    pub operations: u64,
    /// Bytes written to files by all threads; 0 if the step does not count bytes.
    pub bytes: u64,
    /// Time from the first thread's start to the last one's end.
    pub time: Duration,
    /// Latencies of single operations, if they were timed.
    pub latency: Option<Latency>,
    /// Increase of each counter of the target; for gauges (`LEVELS`) their value at the end.
    pub counters: Vec<(&'static str, u64)>,
    /// Whether it is the sum of earlier phases, and is therefore left out of other sums.
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

    /// Returns the increase of the named counter; `None` if the target does not report it.
    pub fn counter(&self, name: &str) -> Option<u64> {
        let found = self.counters.iter().find(|(n, _)| *n == name);
        found.map(|(_, value)| *value)
    }

    fn per_second(&self, amount: f64) -> f64 {
        let seconds = self.time.as_secs_f64();
        if seconds > 0.0 { amount / seconds } else { 0.0 }
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

/// The figures that an external program reports of its run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Outcome {
    /// Number of operations.
    pub operations: u64,
    /// Bytes written to files.
    pub bytes: u64,
    /// Time of all operations.
    pub time: Duration,
    /// Latencies of single operations.
    pub latency: Option<Latency>,
    /// Processor time of the program.
    pub cpu: Duration,
}

/// Measures phases one after the other, and collects them.
pub struct Meter<'t> {
    target: &'t dyn Target,
    sync_phases: bool,
    phases: Vec<Phase>,
    ratios: Vec<(&'static str, f64)>,
}

impl<'t> Meter<'t> {
    /// Creates a meter for `target`.
    pub fn new(target: &'t dyn Target) -> Self {
        Self {
            target,
            sync_phases: false,
            phases: Vec::new(),
            ratios: Vec::new(),
        }
    }

    /// From then on each phase of [`Meter::threads`] ends with a sync, within its time.
    pub fn sync_phases(&mut self) {
        self.sync_phases = true;
    }

    /// Runs `work(thread number, its tally)` in so many threads.
    pub fn threads(
        &mut self,
        name: &'static str,
        threads: usize,
        work: impl Fn(usize, &mut Tally) -> Result<()> + Sync,
    ) -> Result<()> {
        let (target, sync) = (self.target, self.sync_phases);
        self.measure(name, |watch| {
            let tally = side_by_side(threads, || watch.start(), work)?;
            if sync {
                target.sync()?;
            }
            Ok(tally)
        })
    }

    /// Runs `work` in this thread; it counts as no operation.
    pub fn once(&mut self, name: &'static str, work: impl FnOnce() -> Result<()>) -> Result<()> {
        self.measure(name, |_| work().map(|()| Tally::default()))
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

    /// Makes the last phase's changes durable, and measures that; adds the sum of both.
    pub fn sync_last(&mut self, sync: &'static str, both: &'static str) -> Result<()> {
        let target = self.target;
        self.once(sync, || target.sync())?;
        self.both(both);
        Ok(())
    }

    /// Adds the sum of the last two phases, with the operations of the first.
    pub fn both(&mut self, name: &'static str) {
        if let [.., first, second] = self.phases.as_slice() {
            let sum = total(name, first.operations, &[first.clone(), second.clone()]);
            self.phases.push(sum);
        }
    }

    /// Adds a phase for operations done concurrently with those of the last phase.
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

    /// Subtracts processor time from that of the last phase: time of a thread that is not a part of
    /// the measured work.
    pub fn less_cpu(&mut self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let counters = self.phases.last_mut().map(|phase| &mut phase.counters);
        for (name, value) in counters.into_iter().flatten() {
            if ["cpu_us", "machine_cpu_us"].contains(name) {
                *value = value.saturating_sub(micros);
            }
        }
    }

    fn phase(&self, name: &str) -> Option<&Phase> {
        self.phases.iter().find(|phase| phase.name == name)
    }

    /// Makes everything durable, outside of any phase.
    pub fn settle(&self) -> Result<()> {
        self.target.sync()
    }

    /// Adds the ratio of the rates of two phases, if both have one.
    pub fn ratio_of_rates(&mut self, name: &'static str, one: &str, other: &str) {
        let rate = |name| Some(self.phase(name)?.rate()).filter(|rate| *rate > 0.0);
        let ratio = rate(one).zip(rate(other));
        self.ratios.extend(ratio.map(|(a, b)| (name, a / b)));
    }

    /// Adds the ratio of a percentile of two phases, if operations of both were timed.
    pub fn ratio_of_latencies(
        &mut self,
        name: &'static str,
        (one, other): (&str, &str),
        of: fn(&Latency) -> u64,
    ) {
        let latency = |name| self.phase(name)?.latency.as_ref().map(of);
        let ratio = latency(one).zip(latency(other));
        self.ratios
            .extend(ratio.map(|(a, b)| (name, a as f64 / b.max(1) as f64)));
    }

    /// Runs a program that reports its own figures; only the counters are measured here.
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
    ) -> Result<()> {
        let mut watch = Watch::new(self.target);
        let mut tally = work(&mut watch)?;
        let (time, counters) = watch.stop();
        self.phases.push(Phase {
            name,
            operations: tally.operations,
            bytes: tally.bytes,
            time,
            latency: tally.latency(),
            counters,
            sum: false,
        });
        Ok(())
    }

    /// Returns all phases in order, and the ratios.
    pub fn finish(self) -> (Vec<Phase>, Vec<(&'static str, f64)>) {
        (self.phases, self.ratios)
    }
}

/// Start time and counters of a phase.
struct Watch<'t> {
    target: &'t dyn Target,
    before: Vec<(&'static str, u64)>,
    start: Instant,
}

impl<'t> Watch<'t> {
    /// Creates a started watch.
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

/// Runs the threads and adds up their counts; returns the first failure. Calls `begin` when all
/// threads are ready, so that thread creation is not measured.
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
                    // First all threads are ready, then all start.
                    gate.wait();
                    gate.wait();
                    work(thread, &mut tally).map(|()| tally)
                })
            })
            .collect();
        gate.wait();
        begin();
        gate.wait();
        // All threads are joined before a failure is returned.
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
        .map(|(name, value)| {
            if LEVELS.contains(name) {
                (*name, *value)
            } else {
                (*name, value.saturating_sub(was(*name)))
            }
        })
        .collect()
}

/// Returns the sum of the phases that are not sums themselves.
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
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use super::*;
    use crate::target::Dir;

    #[test]
    fn side_by_side_starts_together_sums_and_returns_failure() {
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

    /// A target with counters of processor time that rise by 50 us at each look.
    #[derive(Default)]
    struct Busy(AtomicU64);

    impl Target for Busy {
        fn name(&self) -> &str {
            "busy"
        }

        fn interface(&self) -> &'static str {
            "none"
        }

        fn make_dir(&self, _path: &str) -> Result<()> {
            Ok(())
        }

        fn remove_tree(&self, _path: &str) -> Result<()> {
            Ok(())
        }

        fn dir<'a>(&'a self, _path: &str) -> Result<Box<dyn Dir + 'a>> {
            Err("no directories".into())
        }

        fn sync(&self) -> Result<()> {
            Ok(())
        }

        fn counters(&self) -> Vec<(&'static str, u64)> {
            let now = self.0.fetch_add(50, Ordering::SeqCst);
            ["cpu_us", "machine_cpu_us", "commits"]
                .map(|name| (name, now))
                .to_vec()
        }
    }

    #[test]
    fn processor_time_of_others_is_subtracted_from_last_phase() {
        let busy = Busy::default();
        let mut meter = Meter::new(&busy);
        meter.once("first", || Ok(())).unwrap();
        meter.once("last", || Ok(())).unwrap();
        meter.less_cpu(Duration::from_micros(30));
        meter.ratio_of_rates("without operations", "last", "last");
        meter.ratio_of_rates("without a phase", "last", "other");
        let (phases, ratios) = meter.finish();
        assert_eq!(ratios, []);
        let of = |phase: usize, name: &str| phases[phase].counter(name);
        assert_eq!((of(0, "cpu_us"), of(0, "commits")), (Some(50), Some(50)));
        assert_eq!(
            (of(1, "cpu_us"), of(1, "machine_cpu_us")),
            (Some(20), Some(20))
        );
        assert_eq!(of(1, "commits"), Some(50));
    }

    #[test]
    fn counters_are_subtracted_and_summed() {
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
