//! Which queues there are, and which thread serves which.
//!
//! The kernel has a queue for each processor that may ever be there, sends a request to the queue of
//! the processor that the caller runs on, and uses none of them before all are registered. Queues
//! of processors on which this process may run have a thread of their own, bound to that processor,
//! so that a request is served where it was made. All others (processors that are off, or not ours)
//! are shared out among these threads.

use std::fs;
use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Processors that may ever be there.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// What one thread serves.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// The processor to which the thread is bound.
    pub(super) processor: usize,
    /// The queues that it serves; its own is the first.
    pub(super) queues: Vec<u16>,
}

/// Returns the shares of all threads.
///
/// # Errors
/// The processors are unknown.
pub(super) fn shares() -> io::Result<Vec<Share>> {
    let text = fs::read_to_string(POSSIBLE)
        .map_err(|e| io::Error::new(e.kind(), format!("{POSSIBLE}: {e}")))?;
    let unknown = || io::Error::other(format!("{POSSIBLE} says {:?}", text.trim()));
    let possible = count(text.trim()).ok_or_else(unknown)?;
    let ours = sched_getaffinity(None)?;
    let ours = (0..CpuSet::MAX_CPU).filter(|n| ours.is_set(*n));
    Ok(share_out(possible, &ours.collect::<Vec<_>>()))
}

/// The number of processors in a list such as `0-3,8`.
fn count(list: &str) -> Option<u16> {
    let mut count = 0u16;
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

/// Shares `queues` queues out among the threads of the processors `ours`.
fn share_out(queues: u16, ours: &[usize]) -> Vec<Share> {
    let own = |processor: &usize| u16::try_from(*processor).is_ok_and(|n| n < queues);
    let mut shares: Vec<Share> = ours
        .iter()
        .copied()
        .filter(own)
        .map(|processor| Share {
            processor,
            queues: vec![processor as u16],
        })
        .collect();
    if shares.is_empty() {
        shares.push(Share {
            processor: 0,
            queues: Vec::new(),
        });
    }
    let threads = shares.len();
    let others = (0..queues).filter(|queue| !ours.contains(&usize::from(*queue)));
    for (n, queue) in others.enumerate() {
        if let Some(share) = shares.get_mut(n % threads) {
            share.queues.push(queue);
        }
    }
    shares
}

/// Binds the calling thread to a processor. If that is not permitted, it stays where it may run:
/// requests are served then, only not where they were made.
pub(super) fn bind(processor: usize) {
    if processor >= CpuSet::MAX_CPU {
        return;
    }
    let mut only = CpuSet::new();
    only.set(processor);
    if let Err(e) = sched_setaffinity(None, &only) {
        tracing::debug!("the thread of processor {processor} is not bound to it: {e}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_of_processors_are_counted() {
        for (list, n) in [("0", 1), ("0-1", 2), ("0-127", 128), ("0-3,8,10-11", 7)] {
            assert_eq!(count(list), Some(n), "{list}");
        }
        for list in ["", "x", "3-1", "0-65535", "0-", "1,,2"] {
            assert_eq!(count(list), None, "{list}");
        }
    }

    #[test]
    fn processors_that_are_off_are_served_by_the_others() {
        let share = |processor, queues: &[u16]| Share {
            processor,
            queues: queues.to_vec(),
        };
        assert_eq!(share_out(2, &[0, 1]), [share(0, &[0]), share(1, &[1])]);
        assert_eq!(
            share_out(6, &[1, 3]),
            [share(1, &[1, 0, 4]), share(3, &[3, 2, 5])]
        );
        assert_eq!(share_out(2, &[7]), [share(0, &[0, 1])]);
    }

    proptest! {
        #[test]
        fn every_queue_is_served_once(
            queues in 1u16..300,
            ours in prop::collection::btree_set(0usize..320, 0..64),
        ) {
            let ours: Vec<_> = ours.into_iter().collect();
            let shares = share_out(queues, &ours);
            let mut served: Vec<_> = shares.iter().flat_map(|s| s.queues.clone()).collect();
            served.sort_unstable();
            prop_assert_eq!(served, (0..queues).collect::<Vec<_>>());
        }
    }
}
