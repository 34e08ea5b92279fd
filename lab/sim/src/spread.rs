//! Work on all processors.
//!
//! Uses nothing of the crate. Faults are injected in one thread, so each piece of work is done by one
//! thread from its beginning to its end.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{available_parallelism, scope};

use parking_lot::Mutex;

/// Calls `work` with 0, 1, 2, and so on, in as many threads as there are processors, until it has
/// no more work: then it returns `None`. Returns the results in the order of the numbers.
pub fn spread<T: Send>(work: impl Fn(usize) -> Option<T> + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let thread = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(result) = work(number) else { return };
            done.lock().push((number, result));
        }
    };
    scope(|scope| {
        let threads = available_parallelism().map_or(1, usize::from);
        for _ in 0..threads {
            scope.spawn(thread);
        }
    });
    let mut done = done.into_inner();
    done.sort_unstable_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_complete_and_in_order() {
        let squares = spread(|n| (n < 1000).then_some(n * n));
        assert_eq!(squares, (0..1000).map(|n| n * n).collect::<Vec<_>>());
        assert_eq!(spread(|_| None::<()>), []);
    }
}
