//! Schedules of commits, pushes, forces and merge points, and of waits for log space and for work.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex as Plain};

use smallvec::smallvec;

use crate::journal::cil::{Context, Filled};
use crate::journal::fsync_record::{FsyncRecord, Gathered};
use crate::journal::log::{NewLog, Values};
use crate::journal::position::LogPosition;
use crate::journal::ring::{CONTEXT_BASE, Ring};
use crate::journal::signals::{LogWork, MergeWork, Signals};
use crate::journal::vector::{Change, LogVector, charge_for};
use crate::journal::{Journal, LogSpaceReclaimer};
use cairnfs_disk::device::Device;
use cairnfs_disk::device::disk::{Disk, Image};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::BLOCK_SIZE;
use cairnfs_disk::format::key::Key;
use cairnfs_disk::sync::atomic::{AtomicU64, Ordering};
use cairnfs_disk::sync::explore::{Cost, explore};
use cairnfs_disk::sync::{Mutex, thread, wait_for_ever};

const LOG: NewLog = NewLog::of_blocks(128);
const BLOCK: i64 = BLOCK_SIZE as i64;
/// More log bytes than the largest vector here is charged.
const WORST: i64 = 1024;

impl<F: Fn() -> Result<()>> LogSpaceReclaimer for F {
    fn sweep(&self) {}
    fn merge(&self) -> Result<()> {
        self()
    }

    fn is_starved(&self) -> bool {
        false
    }
}

fn no_merge() -> Result<()> {
    Err(Error::Invalid("the log has room enough"))
}

struct Log {
    disk: Arc<Disk>,
    journal: Journal,
    /// The last value of each object in each context.
    expected: Plain<Values>,
    commits: AtomicU64,
}

impl Log {
    fn new() -> Arc<Self> {
        let disk = Disk::new(LOG.device_bytes(), &Image::new());
        Arc::new(Self {
            journal: LOG.journal(disk.clone()),
            disk,
            expected: Plain::default(),
            commits: AtomicU64::new(0),
        })
    }

    /// Commits a value as transactions do; `slot` is the object's vector, if there is one.
    fn commit(&self, object: u64, value: &[u8], slot: &mut Option<Arc<LogVector>>) -> u64 {
        self.journal.reserve(WORST, &no_merge).unwrap();
        let hold = self.journal.cil().hold();
        let change = Change::Put(value);
        let (mut vectors, mut freed) = (smallvec![], smallvec![]);
        let mut delta = 0;
        let overwritten = slot.as_ref().filter(|v| v.seq() == hold.seq).map(|v| {
            delta -= v.charge();
            let fits = v.overwrite(&change).1.is_some();
            if !fits {
                v.kill();
            }
            fits
        });
        if overwritten != Some(true) {
            let vector = LogVector::new(1, Key::inode(object), hold.seq, &change);
            vectors.push(vector.clone());
            *slot = Some(vector);
        }
        delta += slot.as_ref().unwrap().charge();
        hold.insert(&mut vectors, &mut freed, delta);
        self.journal.ring().give(WORST - delta);
        self.commits.fetch_add(1, Ordering::Relaxed);
        let seq = hold.seq;
        let mut expected = self.expected.lock().unwrap();
        expected.insert((seq, object), value.to_vec());
        seq
    }

    fn found(&self, image: &Image) -> (Values, LogPosition) {
        LOG.found(&*Disk::new(self.disk.size(), image))
    }

    /// Checks that each commit is in the log in its context, and that no byte of log space is lost.
    fn check(&self) {
        let seq = self.journal.cil().seq();
        self.journal.force(seq, &no_merge).unwrap();
        let (found, end) = self.found(&self.disk.durable());
        assert_eq!(found, *self.expected.lock().unwrap());
        LOG.check_space(&self.journal, end);
    }
}

fn committer(log: &Arc<Log>, object: u64, force: bool) -> thread::JoinHandle<()> {
    let log = log.clone();
    thread::spawn(move || {
        let mut slot = None;
        for (round, len) in [(1, 20), (2, 24), (3, 100)] {
            let value = vec![round; len];
            let seq = log.commit(object, &value, &mut slot);
            if force && round == 2 {
                log.journal.force(seq, &no_merge).unwrap();
                let (found, _) = log.found(&log.disk.durable());
                assert_eq!(found.get(&(seq, object)), Some(&value));
            }
        }
    })
}

/// Pushes open contexts as the workers do.
fn pusher(log: &Arc<Log>) -> thread::JoinHandle<()> {
    let log = log.clone();
    thread::spawn(move || {
        for _ in 0..2 {
            let seq = log.journal.cil().seq();
            log.journal.push(seq, &no_merge).unwrap();
        }
    })
}

#[test]
fn pushes_beside_each_other_are_durable_in_their_order() {
    explore("journal: several pushes", Cost::Small, || {
        wait_for_ever(true);
        let log = Log::new();
        let threads = [
            committer(&log, 20, true),
            committer(&log, 30, false),
            pusher(&log),
            pusher(&log),
            pusher(&log),
        ];
        for thread in threads {
            thread.join().unwrap();
        }
        log.check();
    });
}

#[test]
fn commits_are_logged_once_in_the_context_they_hold() {
    explore("journal: commits and pushes", Cost::Small, || {
        wait_for_ever(true);
        let log = Log::new();
        let threads = [
            committer(&log, 20, true),
            committer(&log, 30, true),
            thread::spawn({
                let log = log.clone();
                move || {
                    for _ in 0..2 {
                        let seq = log.journal.cil().seq();
                        log.journal.write_through(seq, &no_merge).unwrap();
                    }
                }
            }),
        ];
        for thread in threads {
            thread.join().unwrap();
        }
        log.check();
    });
}

/// Commits values of an object that is new each time, and logs each ahead of its context.
fn fsyncer(log: &Arc<Log>, objects: std::ops::Range<u64>) -> thread::JoinHandle<()> {
    let log = log.clone();
    thread::spawn(move || {
        for object in objects {
            let mut slot = None;
            log.commit(object, &[7; 30], &mut slot);
            let vector = slot.unwrap();
            let gather = |context: &Context| {
                let mut record = FsyncRecord {
                    seq: context.seq,
                    ..FsyncRecord::default()
                };
                if vector.seq() == context.seq {
                    record.take(context, &vector);
                }
                Gathered::FsyncRecord(record)
            };
            let written = log.journal.write_fsync_record(&no_merge, gather).unwrap();
            log.journal.flush_written(&written).unwrap();
            let (found, _) = log.found(&log.disk.durable());
            assert_eq!(found.get(&(vector.seq(), object)), Some(&vec![7; 30]));
        }
    })
}

#[test]
fn fsync_records_are_logged_once_beside_pushes_and_merge_points() {
    explore("journal: fsyncs, pushes, merges", Cost::Small, || {
        wait_for_ever(true);
        let log = Log::new();
        let threads = [
            fsyncer(&log, 20..22),
            fsyncer(&log, 30..31),
            committer(&log, 40, true),
            pusher(&log),
            thread::spawn({
                let log = log.clone();
                move || {
                    let point = log.journal.push_for_merge(0, |_| Ok(((), Vec::new())));
                    let point = point.unwrap();
                    let (found, _) = log.found(&log.disk.seen());
                    let expected = log.expected.lock().unwrap().clone();
                    let upto = |values: &Values| values.range(..=(point.seq, u64::MAX)).count();
                    assert_eq!(upto(&found), upto(&expected));
                    log.journal.merged(LOG.blocks, true);
                }
            }),
        ];
        for thread in threads {
            thread.join().unwrap();
        }
        log.check();
    });
}

#[test]
fn merge_takes_exactly_commits_up_to_its_boundary() {
    explore("journal: commits and merge points", Cost::Small, || {
        wait_for_ever(true);
        let log = Log::new();
        let merges = thread::spawn({
            let log = log.clone();
            move || {
                for _ in 0..2 {
                    let commits = |_| Ok((log.commits.load(Ordering::Relaxed), Vec::new()));
                    let point = log.journal.push_for_merge(0, commits).unwrap();
                    let (found, _) = log.found(&log.disk.seen());
                    let expected = log.expected.lock().unwrap().clone();
                    let upto = |values: &Values| values.range(..=(point.seq, u64::MAX)).count();
                    assert_eq!(upto(&found), upto(&expected));
                    assert_eq!(log.journal.cil().hold().boundary, point.seq);
                    log.journal.merged(LOG.blocks, true);
                }
            }
        });
        let threads = [
            committer(&log, 20, false),
            committer(&log, 30, true),
            merges,
        ];
        for thread in threads {
            thread.join().unwrap();
        }
        log.check();
    });
}

#[test]
fn alternating_commits_of_one_object_log_its_state_at_close() {
    explore("journal: one vector, two threads", Cost::Small, || {
        wait_for_ever(true);
        let log = Log::new();
        let slot = Arc::new(Mutex::new(None));
        let threads = [1, 10].map(|base| {
            let (log, slot) = (log.clone(), slot.clone());
            thread::spawn(move || {
                for round in 0..3 {
                    // Stands for the lock of an inode's state.
                    let mut slot = slot.lock();
                    let seq = log.commit(20, &[base + round; 24], &mut slot);
                    drop(slot);
                    if round == 1 {
                        log.journal.write_through(seq, &no_merge).unwrap();
                    }
                }
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
        log.check();
    });
}

#[test]
fn merge_counts_commits_before_its_swap() {
    explore("journal: what is taken at the swap", Cost::Small, || {
        wait_for_ever(true);
        let log = Log::new();
        let in_context = Arc::new(Plain::new(BTreeMap::<u64, u64>::new()));
        let threads = [20, 30].map(|object| {
            let (log, in_context) = (log.clone(), in_context.clone());
            thread::spawn(move || {
                for _ in 0..3 {
                    log.journal.reserve(WORST, &no_merge).unwrap();
                    let hold = log.journal.cil().hold();
                    log.commits.fetch_add(1, Ordering::Relaxed);
                    let vector =
                        LogVector::new(1, Key::inode(object), hold.seq, &Change::Put(&[1; 8]));
                    hold.insert(&mut smallvec![vector], &mut smallvec![], charge_for(8));
                    log.journal.ring().give(WORST - charge_for(8));
                    *in_context.lock().unwrap().entry(hold.seq).or_default() += 1;
                }
            })
        });
        let point = log
            .journal
            .push_for_merge(0, |_| {
                Ok((log.commits.swap(0, Ordering::Relaxed), Vec::new()))
            })
            .unwrap();
        log.journal.merged(LOG.blocks, true);
        for thread in threads {
            thread.join().unwrap();
        }
        let before: u64 = in_context
            .lock()
            .unwrap()
            .range(..=point.seq)
            .map(|c| c.1)
            .sum();
        assert_eq!(point.taken, before);
    });
}

#[test]
fn log_space_waiters_are_all_woken() {
    explore("journal: waiting for the log", Cost::Small, || {
        wait_for_ever(true);
        let ring = Arc::new(Ring::new(LOG.blocks, 0, 0));
        let signals = Arc::new(Signals::default());
        let used = Arc::new(AtomicU64::new(0));
        let large = ring.free() / BLOCK * 2 / 3;
        let takes = [1, 2].map(|_| {
            let (ring, signals, used) = (ring.clone(), signals.clone(), used.clone());
            thread::spawn(move || {
                for _ in 0..2 {
                    loop {
                        let seen = ring.wakes();
                        if ring.try_take(large * BLOCK) {
                            break;
                        }
                        signals.want_merge();
                        ring.wait(seen, || ring.free() >= large * BLOCK);
                        // A thread that took space cannot signal its use, so let it run.
                        thread::yield_now();
                    }
                    used.fetch_add(large as u64, Ordering::Relaxed);
                }
            })
        });
        let merges = thread::spawn({
            let (ring, signals, used) = (ring.clone(), signals.clone(), used.clone());
            move || {
                while signals.next_merge_work() == MergeWork::Merge {
                    signals.merging();
                    ring.move_tail(used.load(Ordering::Relaxed));
                    thread::yield_now();
                }
            }
        });
        for thread in takes {
            thread.join().unwrap();
        }
        signals.stop();
        merges.join().unwrap();
        ring.move_tail(used.load(Ordering::Relaxed));
        assert_eq!(ring.free(), Ring::new(LOG.blocks, 0, 0).free());
    });
}

#[test]
fn waiting_reservation_ends_when_workers_stop() {
    explore(
        "journal: waiting while the volume closes",
        Cost::Small,
        || {
            wait_for_ever(true);
            let log = Log::new();
            let signals = &log.journal.signals;
            signals.set_workers(true);
            let all = log.journal.ring().free();
            log.journal.ring().take(all);
            let waits = thread::spawn({
                let log = log.clone();
                move || {
                    let merge = || {
                        log.journal.ring().give(all);
                        Ok(())
                    };
                    log.journal.reserve(CONTEXT_BASE, &merge)
                }
            });
            signals.set_workers(false);
            signals.stop();
            log.journal.ring().wake();
            waits.join().unwrap().unwrap();
        },
    );
}

#[test]
fn push_request_is_served_despite_earlier_pushes() {
    explore("journal: requests to push", Cost::Small, || {
        wait_for_ever(true);
        let log = Log::new();
        log.journal.signals.set_workers(true);
        let full = Filled {
            charged: log.journal.soft_limit(),
            changes: 0,
        };
        let written = Arc::new(AtomicU64::new(0));
        let workers = [1, 2].map(|_| {
            let (log, written) = (log.clone(), written.clone());
            thread::spawn(move || {
                while let LogWork::Push(seq) = log.journal.signals.next_log_work(None) {
                    log.journal.push(seq, &no_merge).unwrap();
                    written.fetch_max(seq, Ordering::Relaxed);
                }
            })
        });
        let commits = [(20, false), (30, true)].map(|(object, force)| {
            let log = log.clone();
            thread::spawn(move || {
                let seq = log.commit(object, &[1; 20], &mut None);
                log.journal.throttle(full, seq, &no_merge).unwrap();
                if force {
                    log.journal.force(seq, &no_merge).unwrap();
                }
                seq
            })
        });
        let last = commits
            .map(|thread| thread.join().unwrap())
            .into_iter()
            .max();
        while Some(written.load(Ordering::Relaxed)) < last {
            thread::yield_now();
        }
        log.journal.signals.stop();
        for worker in workers {
            worker.join().unwrap();
        }
        log.check();
    });
}
