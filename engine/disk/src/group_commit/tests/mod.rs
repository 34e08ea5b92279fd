//! Unit tests of group commit: marks, results, errors and panics of leaders.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::channel;
use std::thread;

use super::*;
use crate::sync::Mutex;

/// Unwinds like a panic, but prints nothing.
fn panics() -> ! {
    resume_unwind(Box::new("on purpose"))
}

#[test]
fn waiter_returns_only_after_its_mark() {
    let mark = Watermark::default();
    let (begin, begun) = channel();
    let (go_on, goes_on) = channel();
    let goes_on = Mutex::new(goes_on);
    let reach = |target: u64| {
        let begin = begin.clone();
        let (mark, goes_on) = (&mark, &goes_on);
        move || {
            mark.reach(target, || {
                begin.send(target).unwrap();
                mark.raise(goes_on.lock().recv().unwrap());
                Ok::<_, ()>(())
            })
        }
    };
    thread::scope(|scope| {
        let first = scope.spawn(reach(1));
        assert_eq!(begun.recv(), Ok(1));
        let second = scope.spawn(reach(2));
        go_on.send(1).unwrap();
        first.join().unwrap().unwrap();
        assert_eq!(begun.recv(), Ok(2), "1 was not enough");
        go_on.send(7).unwrap();
        second.join().unwrap().unwrap();
    });
    assert!(mark.has_reached(7) && !mark.has_reached(8));
    mark.reach(7, || Err("was reached")).unwrap();
    mark.raise(3);
    assert_eq!(mark.reached(), 7, "never falls");
}

#[test]
fn one_leader_serves_all_followers_up_to_its_mark() {
    let mark = Watermark::default();
    let (begin, begun) = channel();
    let (go_on, goes_on) = channel::<()>();
    thread::scope(|scope| {
        let mark = &mark;
        let leader = scope.spawn(move || {
            mark.reach(1, || {
                begin.send(()).unwrap();
                goes_on.recv().unwrap();
                mark.raise(9);
                Ok::<_, ()>(())
            })
        });
        begun.recv().unwrap();
        let follow = |target| move || mark.reach(target, || Err("leads"));
        let followers = [2, 5, 9].map(|target| scope.spawn(follow(target)));
        go_on.send(()).unwrap();
        leader.join().unwrap().unwrap();
        for follower in followers {
            follower.join().unwrap().unwrap();
        }
    });
}

#[test]
fn error_or_panic_of_watermark_leader_is_its_own() {
    let mark = Watermark::default();
    let failed: [fn() -> Result<(), &'static str>; 2] = [|| Err("failed"), || panics()];
    for fails in failed {
        let (begin, begun) = channel();
        let (go_on, goes_on) = channel::<()>();
        let next = mark.reached() + 1;
        thread::scope(|scope| {
            let mark = &mark;
            let leader = scope.spawn(move || {
                let lead = || {
                    begin.send(()).unwrap();
                    goes_on.recv().unwrap();
                    fails()
                };
                catch_unwind(AssertUnwindSafe(|| mark.reach(next, lead)))
            });
            begun.recv().unwrap();
            let follower = scope.spawn(move || {
                mark.reach(next, || {
                    mark.raise(next);
                    Ok::<_, ()>(())
                })
            });
            go_on.send(()).unwrap();
            assert!(!matches!(leader.join().unwrap(), Ok(Ok(()))));
            follower.join().unwrap().unwrap();
        });
        assert!(mark.has_reached(next));
    }
}

type Numbers = Batches<u64, &'static str>;

fn lead(batches: &Numbers, request: u64) -> BatchLeader<'_, u64, &'static str> {
    match batches.join(&[request]) {
        Joined::Leader(leader) => leader,
        Joined::Follower(_) => panic!("a batch is open"),
    }
}

/// Results of two callers that join a batch before `then` runs.
fn joined<'a>(
    batches: &'a Numbers,
    leader: BatchLeader<'a, u64, &'static str>,
    then: impl FnOnce(BatchLeader<'a, u64, &'static str>),
) -> Vec<Option<&'static str>> {
    thread::scope(|scope| {
        let follow = |request| {
            move || match batches.join(&[request]) {
                Joined::Leader(_) => panic!("no batch is open"),
                Joined::Follower(result) => result,
            }
        };
        let threads = [8, 9].map(|request| scope.spawn(follow(request)));
        while batches.waiting() < 3 {
            thread::yield_now();
        }
        then(leader);
        threads.map(|t| t.join().unwrap()).into()
    })
}

#[test]
fn joined_requests_get_result_of_their_batch() {
    let batches = Numbers::default();
    let results = joined(&batches, lead(&batches, 7), |leader| {
        let mut requests = leader.close().into_vec();
        requests.sort_unstable();
        assert_eq!(requests, [7, 8, 9]);
        assert!(leader.close().is_empty());
        // A later request does not join this batch, but opens the next.
        let next = lead(&batches, 10);
        assert_eq!(leader.end("first"), "first");
        assert_eq!(next.close().into_vec(), [10]);
        assert_eq!(next.end("second"), "second");
    });
    assert_eq!(results, [Some("first"); 2]);
}

#[test]
fn batch_given_up_frees_its_followers() {
    let batches = Numbers::default();
    assert_eq!(joined(&batches, lead(&batches, 7), drop), [None; 2]);
    let results = joined(&batches, lead(&batches, 7), |leader| {
        let breaks = || {
            leader.close();
            let _leader = leader;
            panics();
        };
        catch_unwind(AssertUnwindSafe(breaks)).unwrap_err();
    });
    assert_eq!(results, [None; 2]);
    lead(&batches, 7).end("a later batch");
}

#[test]
fn queue_has_few_leaders_who_serve_until_it_is_empty() {
    let queue = BatchQueue::new(2);
    assert!(queue.push(1) && queue.push(2));
    assert!(!queue.push(3), "two lead");
    let over = queue.serve(|batch| {
        assert_eq!(batch, [1, 2, 3]);
        assert!(!queue.push(4));
    });
    assert!(!over, "4 arrived meanwhile");
    assert_eq!(queue.waiting(), 1);
    assert!(queue.serve(|batch| assert_eq!(batch, [4])));
    assert!(queue.serve(|batch| panic!("{batch:?} is left")));
    assert!(queue.push(5), "no thread leads");
}

#[test]
fn panic_of_queue_leader_ends_its_turn() {
    let queue = BatchQueue::new(1);
    for request in 0..3 {
        assert!(queue.push(request));
        let breaks = || queue.serve(|_| panics());
        catch_unwind(AssertUnwindSafe(breaks)).unwrap_err();
    }
    assert!(queue.push(3));
    assert!(queue.serve(|batch| assert_eq!(batch, [3])));
}
