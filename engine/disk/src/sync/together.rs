//! Work that several threads share.

#[cfg(not(shuttle))]
use std::thread;

use crate::sync::Mutex;
#[cfg(shuttle)]
use crate::sync::thread;

/// Number of processors that this process may use.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The name of the threads.
#[cfg(not(shuttle))]
const NAME: &str = "cairnfs-part";

/// Calls `one` with each of `items`, in up to `threads` threads; with one thread, or if no thread can
/// be started, in the caller. Returns the results in the order of the items.
///
/// # Panics
/// If `one` panicked in one of the threads.
pub fn in_threads<T: Send, R: Send>(
    threads: usize,
    items: impl Iterator<Item = T> + Send,
    one: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    if threads <= 1 {
        return items.map(one).collect();
    }
    let todo = Mutex::new(items.enumerate());
    let done = Mutex::new(Vec::new());
    let work = || {
        loop {
            let next = todo.lock().next();
            let Some((i, item)) = next else { return };
            let result = one(item);
            done.lock().push((i, result));
        }
    };
    if run(threads, &work) == 0 {
        work();
    }
    let mut done = done.into_inner();
    done.sort_unstable_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Runs `work` in threads and waits for all of them. Returns how many were started.
fn run(threads: usize, work: &(impl Fn() + Sync)) -> usize {
    thread::scope(|scope| {
        #[cfg(not(shuttle))]
        let start = |_: &usize| {
            let named = thread::Builder::new().name(NAME.into());
            named.spawn_scoped(scope, work).is_ok()
        };
        #[cfg(shuttle)]
        let start = |_: &usize| {
            scope.spawn(work);
            true
        };
        (0..threads).take_while(start).count()
    })
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use std::collections::HashSet;
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn results_are_in_order_and_items_are_shared_by_the_threads() {
        for threads in [0, 1, 3] {
            let count = threads.max(1);
            let all_begin = Barrier::new(count);
            let results = in_threads(threads, 0..100_usize, |item| {
                if item < count {
                    all_begin.wait();
                }
                (item, thread::current().id())
            });
            let items: Vec<usize> = results.iter().map(|(item, _)| *item).collect();
            assert_eq!(items, (0..100).collect::<Vec<_>>());
            let ids: HashSet<_> = results.iter().map(|(_, id)| *id).collect();
            assert_eq!(ids.len(), count);
            assert_eq!(ids.contains(&thread::current().id()), threads <= 1);
        }
    }
}
