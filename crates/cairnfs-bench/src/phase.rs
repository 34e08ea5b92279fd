//! One step of a workload, measured: time, operations, and what the target's counters rose by.
//!
//! All threads begin together; the time ends when the last is done.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use crate::Result;
use crate::target::Target;

/// The figures of one step.
#[derive(Debug, Clone)]
pub struct Phase {
    /// What was done.
    pub name: &'static str,
    /// Operations, of all threads; none if it is no matter of operations.
    pub operations: u64,
    /// Time from the first thread's start to the last one's end.
    pub time: Duration,
    /// What each counter of the target rose by.
    pub counters: Vec<(&'static str, u64)>,
}

/// Measures phases one after the other.
pub struct Meter<'t> {
    target: &'t dyn Target,
    threads: usize,
    sync_phases: bool,
    phases: Vec<Phase>,
}

impl<'t> Meter<'t> {
    /// Measures on `target`, with so many threads; each phase of them ends with a sync if told.
    pub fn new(target: &'t dyn Target, threads: usize, sync_phases: bool) -> Self {
        Self {
            target,
            threads,
            sync_phases,
            phases: Vec::new(),
        }
    }

    /// Lets every thread do `work(its number)`, which gives the number of its operations.
    pub fn threads(
        &mut self,
        name: &'static str,
        work: impl Fn(usize) -> Result<u64> + Sync,
    ) -> Result<()> {
        let target = self.target;
        let (threads, sync) = (self.threads, self.sync_phases);
        self.measure(name, || {
            let operations = side_by_side(threads, work)?;
            if sync {
                target.sync()?;
            }
            Ok(operations)
        })
    }

    /// Does one thing in this thread, which counts as no operation.
    pub fn once(&mut self, name: &'static str, work: impl FnOnce() -> Result<()>) -> Result<()> {
        self.measure(name, || work().map(|()| 0))
    }

    fn measure(&mut self, name: &'static str, work: impl FnOnce() -> Result<u64>) -> Result<()> {
        let before = self.target.counters();
        let start = Instant::now();
        let operations = work()?;
        self.phases.push(Phase {
            name,
            operations,
            time: start.elapsed(),
            counters: difference(&before, &self.target.counters()),
        });
        Ok(())
    }

    /// All phases, in their order.
    pub fn finish(self) -> Vec<Phase> {
        self.phases
    }
}

/// Runs the threads and adds up their operations; the first failure is the answer.
fn side_by_side(threads: usize, work: impl Fn(usize) -> Result<u64> + Sync) -> Result<u64> {
    let start = Barrier::new(threads);
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| {
                let (start, work) = (&start, &work);
                scope.spawn(move || {
                    start.wait();
                    work(thread)
                })
            })
            .collect();
        // All are waited for before a failure is told.
        let done: Vec<_> = running.into_iter().map(|thread| thread.join()).collect();
        let mut operations = 0;
        for thread in done {
            operations += thread.map_err(|_| "a thread of the workload panicked")??;
        }
        Ok(operations)
    })
}

fn difference(
    before: &[(&'static str, u64)],
    after: &[(&'static str, u64)],
) -> Vec<(&'static str, u64)> {
    let was = |name| before.iter().find(|(n, _)| *n == name).map_or(0, |c| c.1);
    after
        .iter()
        .map(|(name, value)| (*name, value.saturating_sub(was(*name))))
        .collect()
}

/// The sum of phases, as one.
pub fn total(name: &'static str, operations: u64, phases: &[Phase]) -> Phase {
    let mut counters: Vec<(&'static str, u64)> = Vec::new();
    for (name, value) in phases.iter().flat_map(|p| &p.counters) {
        match counters.iter_mut().find(|(n, _)| n == name) {
            Some((_, sum)) => *sum += value,
            None => counters.push((name, *value)),
        }
    }
    Phase {
        name,
        operations,
        time: phases.iter().map(|p| p.time).sum(),
        counters,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_add_up_and_failures_come_out() {
        assert_eq!(side_by_side(4, |t| Ok(t as u64)).unwrap(), 6);
        let failed = side_by_side(4, |t| match t {
            2 => Err("two".into()),
            _ => Ok(1),
        });
        assert_eq!(failed.unwrap_err().to_string(), "two");
    }

    #[test]
    fn counters_are_differences_and_sums() {
        let phase = |counters| Phase {
            name: "p",
            operations: 1,
            time: Duration::from_secs(1),
            counters,
        };
        let rose = difference(&[("a", 2)], &[("a", 5), ("b", 7)]);
        assert_eq!(rose, [("a", 3), ("b", 7)]);
        let all = total("all", 9, &[phase(rose), phase(vec![("b", 1)])]);
        assert_eq!(all.counters, [("a", 3), ("b", 8)]);
        assert_eq!((all.operations, all.time.as_secs()), (9, 2));
    }
}
