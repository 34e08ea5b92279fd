//! Processors of the machine: which ones this process may use, pinning a thread to one of them, and
//! the processor time of a thread.

use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use crate::Result;

/// Returns the numbers of the processors that the calling thread may use, ascending.
pub fn allowed() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&n| set.is_set(n)).collect())
}

/// Restricts the calling thread to one processor.
pub fn pin(processor: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(processor);
    Ok(sched_setaffinity(None, &set)?)
}

/// Returns the user and system time of the calling thread.
pub fn thread_cpu() -> Duration {
    cpu_by(ClockId::ThreadCPUTime)
}

/// Returns the user and system time of this process, including all its threads.
pub fn process_cpu() -> Duration {
    cpu_by(ClockId::ProcessCPUTime)
}

fn cpu_by(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_nanos(time.tv_nsec.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_thread_may_use_one_processor() {
        let last = *allowed().unwrap().last().unwrap();
        let pinned = std::thread::spawn(move || {
            pin(last).unwrap();
            allowed().unwrap()
        });
        assert_eq!(pinned.join().unwrap(), [last]);
        assert!(process_cpu() >= thread_cpu());
    }
}
