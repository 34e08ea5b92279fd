//! Contexts that need many records, that are on their way to the log at the same time, or that do not
//! reach it.

use std::collections::BTreeMap;
use std::sync::{Arc, Barrier};

use smallvec::smallvec;

use crate::journal::log::NewLog;
use crate::journal::position::{FLUSH_EVERY, LogPosition};
use crate::journal::vector::{Change, LogVector};
use crate::journal::{Journal, LogSpaceReclaimer};
use cairnfs_disk::device::{Device, MemoryDevice};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::BLOCK_SIZE;
use cairnfs_disk::format::geometry::LOG_START;
use cairnfs_disk::format::key::Key;
use cairnfs_disk::sync::Mutex;
use cairnfs_disk::sync::atomic::{AtomicU64, Ordering};

const LOG: NewLog = NewLog::of_blocks(16 << 10);

struct NoMerge;

impl LogSpaceReclaimer for NoMerge {
    fn sweep(&self) {}
    fn merge(&self) -> Result<()> {
        Err(Error::Invalid("the log has room enough"))
    }
    fn is_starved(&self) -> bool {
        false
    }
}

/// Commits one value of 1000 bytes for an object of its own. Returns its context.
fn commit(journal: &Journal, object: u64) -> u64 {
    let hold = journal.cil().hold();
    let value = value(object);
    let vector = LogVector::new(1, Key::inode(object), hold.seq, &Change::Put(&value));
    let charge = vector.charge();
    journal.ring().take(charge);
    hold.insert(&mut smallvec![vector], &mut smallvec![], charge);
    hold.seq
}

/// Value of an object.
fn value(object: u64) -> [u8; 1000] {
    [object as u8; 1000]
}

/// The log's objects with their contexts; no object is in it twice.
fn logged(device: &MemoryDevice) -> (BTreeMap<u64, u64>, LogPosition) {
    logged_in(LOG, device)
}

fn logged_in(log: NewLog, device: &MemoryDevice) -> (BTreeMap<u64, u64>, LogPosition) {
    let (values, end) = log.found(device);
    let mut found = BTreeMap::new();
    for ((seq, object), logged) in values {
        assert_eq!(logged, value(object));
        assert_eq!(found.insert(object, seq), None);
    }
    (found, end)
}

fn device() -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::new(LOG.device_bytes()))
}

#[test]
fn context_of_many_records_is_written_whole() {
    let device = device();
    let journal = LOG.journal(device.clone());
    let expected: BTreeMap<u64, u64> = (20..5000).map(|o| (o, commit(&journal, o))).collect();
    journal.write_through(1, &NoMerge).unwrap();
    assert!(journal.counters().records.load(Ordering::Relaxed) >= 5);
    assert_eq!(logged(&device), (expected, journal.end()));
}

#[test]
fn contexts_pushed_at_the_same_time_are_written_in_their_order() {
    let device = device();
    let journal = LOG.journal(device.clone());
    let expected: BTreeMap<u64, u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..5u64)
            .map(|thread| {
                let journal = &journal;
                scope.spawn(move || {
                    let objects = thread * 10_000..thread * 10_000 + 3000;
                    let commits = objects.map(|object| {
                        let seq = commit(journal, object);
                        if object % 700 == 0 {
                            journal.push(seq, &NoMerge).unwrap();
                        }
                        if object % 700 == 350 {
                            journal.write_through(seq, &NoMerge).unwrap();
                            assert!(journal.written.lock().seq >= seq);
                        }
                        (object, seq)
                    });
                    commits.collect::<Vec<_>>()
                })
            })
            .collect();
        let threads = threads.into_iter();
        threads.flat_map(|t| t.join().unwrap()).collect()
    });
    journal.force(journal.cil().seq(), &NoMerge).unwrap();
    let (found, end) = logged(&device);
    assert_eq!(found, expected);
    LOG.check_space(&journal, end);
}

/// What becomes of the write that waits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Succeeds,
    Fails,
    Panics,
    /// The host is full, once.
    FindsNoSpace,
}

/// What a device has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Done {
    /// A write at this offset.
    Write(u64),
    Flush,
}

/// A device that keeps one of its writes waiting until it is told to go on.
struct Waiting {
    memory: MemoryDevice,
    /// Writes that have begun.
    writes: AtomicU64,
    /// The write that waits; the first one is 1.
    waits: u64,
    then: Then,
    go_on: Barrier,
    done: Mutex<Vec<Done>>,
}

impl Waiting {
    fn new(waits: u64, then: Then) -> Arc<Self> {
        Arc::new(Self {
            memory: MemoryDevice::new(LOG.device_bytes()),
            writes: AtomicU64::new(0),
            waits,
            then,
            go_on: Barrier::new(2),
            done: Mutex::default(),
        })
    }

    /// Waits until so many writes have begun, and all of them but `waiting` are done.
    fn begun(&self, writes: u64, waiting: u64) {
        let done = || self.done.lock().len() as u64 + waiting;
        while self.writes.load(Ordering::SeqCst) < writes || done() < writes {
            std::thread::yield_now();
        }
    }
}

impl Device for Waiting {
    fn size(&self) -> u64 {
        self.memory.size()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.memory.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        if self.writes.fetch_add(1, Ordering::SeqCst) + 1 == self.waits {
            self.go_on.wait();
            match self.then {
                Then::Succeeds => {}
                Then::Panics => panic!("a write that panics"),
                Then::Fails => {
                    return Err(Error::Io {
                        op: "write",
                        offset,
                        len: buf.len(),
                        source: Arc::new(std::io::Error::other("refused")),
                    });
                }
                Then::FindsNoSpace => {
                    return Err(Error::HostFull {
                        path: "image".into(),
                        missing: buf.len() as u64,
                    });
                }
            }
        }
        self.memory.write(offset, buf)?;
        self.done.lock().push(Done::Write(offset));
        Ok(())
    }
    fn flush(&self) -> Result<()> {
        self.done.lock().push(Done::Flush);
        self.memory.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.memory.discard(offset, len)
    }
}

/// Pushes the contexts 1 to 3 at the same time. The device has written 2 and 3 before it goes on with
/// the first write, which is that of 1.
fn push_three(then: Then) -> (Arc<Waiting>, Journal, [std::thread::Result<Result<()>>; 3]) {
    let device = Waiting::new(1, then);
    let journal = LOG.journal(device.clone());
    let results = std::thread::scope(|scope| {
        let pushes = [1, 2, 3].map(|seq| {
            commit(&journal, 20 + seq);
            let pushes = scope.spawn({
                let journal = &journal;
                move || journal.push(seq, &NoMerge)
            });
            device.begun(seq, 1);
            pushes
        });
        assert_eq!(journal.written.lock().seq, 0);
        device.go_on.wait();
        pushes.map(|thread| thread.join())
    });
    (device, journal, results)
}

/// The contexts that [`push_three`] pushes.
fn three() -> BTreeMap<u64, u64> {
    BTreeMap::from([(21, 1), (22, 2), (23, 3)])
}

#[test]
fn contexts_are_written_beside_each_other_and_count_in_their_order() {
    let (device, journal, results) = push_three(Then::Succeeds);
    let all = results.iter().all(|result| matches!(result, Ok(Ok(()))));
    assert!(all, "{results:?}");
    assert_eq!(journal.written.lock().seq, 3);
    assert_eq!(logged(&device.memory), (three(), journal.end()));
}

#[test]
fn contexts_behind_one_that_failed_do_not_count() {
    for then in [Then::Fails, Then::Panics] {
        let (device, journal, results) = push_three(then);
        let [first, others @ ..] = &results;
        assert_eq!(first.is_err(), then == Then::Panics, "{results:?}");
        assert!(!matches!(first, Ok(Ok(()))), "{results:?}");
        let failed = others.iter().all(|result| matches!(result, Ok(Err(_))));
        assert!(failed, "{results:?}");
        assert_eq!(journal.written.lock().seq, 0);
        assert!(journal.write_through(4, &NoMerge).is_err());
        assert!(journal.flush().is_err());
        let (found, end) = logged(&device.memory);
        assert_eq!((found, end), (BTreeMap::new(), journal.end()));
    }
}

#[test]
fn contexts_behind_one_that_found_no_space_are_durable_with_it() {
    let (device, journal, results) = push_three(Then::FindsNoSpace);
    let all = results.iter().all(|result| matches!(result, Ok(Ok(()))));
    assert!(all, "{results:?}");
    // The first one is held; the others wait behind it in the log, though they are on the device.
    assert_eq!(logged(&device.memory).0, BTreeMap::new());
    journal.flush().unwrap();
    assert_eq!(logged(&device.memory), (three(), journal.end()));
    // Written behind the others, and nothing was durable before.
    let at = |lsn| Done::Write((LOG_START + lsn) * BLOCK_SIZE as u64);
    assert_eq!(device.done.lock().last(), Some(&Done::Flush));
    let written = device.done.lock()[..3].to_vec();
    assert_eq!(written, [at(1), at(2), at(0)]);
}

/// Pushes a context of one record, whose write waits, and one of `objects` beside it, which has so
/// many writes.
fn push_beside(log: NewLog, objects: u64, writes: u64) {
    let device = Waiting::new(1, Then::Succeeds);
    let journal = log.journal(device.clone());
    let mut expected = BTreeMap::from([(20, commit(&journal, 20))]);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| journal.push(1, &NoMerge));
        device.begun(1, 1);
        let more = (21..21 + objects).map(|object| (object, commit(&journal, object)));
        expected.extend(more);
        let second = scope.spawn(|| journal.push(2, &NoMerge));
        device.begun(1 + writes, 1);
        assert_eq!(journal.written.lock().seq, 0);
        device.go_on.wait();
        first.join().unwrap().unwrap();
        second.join().unwrap().unwrap();
    });
    assert_eq!(journal.written.lock().seq, 2);
    let (found, end) = logged_in(log, &device.memory);
    assert_eq!((found, end), (expected, journal.end()));
    log.check_space(&journal, end);
}

#[test]
fn context_of_several_records_is_written_beside_others() {
    push_beside(NewLog { ahead: 4, ..LOG }, 2500, 3);
}

#[test]
fn context_that_continues_at_the_beginning_of_the_log_is_written_beside_others() {
    let blocks = 64;
    let log = NewLog {
        start: blocks * 5 - 3,
        ..NewLog::of_blocks(blocks)
    };
    push_beside(log, 12, 2);
}

/// Records that together take nearly all of the log that need not be durable.
#[test]
fn push_behind_which_the_log_is_flushed_waits_for_those_before_it() {
    const OBJECTS: u64 = 1000;
    const PUSHES: u64 = FLUSH_EVERY / 252;
    let device = Waiting::new(PUSHES, Then::Succeeds);
    let journal = &LOG.journal(device.clone());
    let mut expected = BTreeMap::new();
    let mut fill = |n: u64| {
        let objects = (1 + n) * 10_000..(1 + n) * 10_000 + OBJECTS;
        expected.extend(objects.map(|object| (object, commit(journal, object))));
        n + 1
    };
    let before = |n: u64| journal.push(n, &NoMerge).unwrap();
    (0..PUSHES - 1).for_each(|n| before(fill(n)));
    let writes = vec![true; PUSHES as usize - 1];
    let done: Vec<Done> = device.done.lock().clone();
    let written: Vec<bool> = done.iter().map(|done| *done != Done::Flush).collect();
    assert_eq!(written, writes, "one record each");
    std::thread::scope(|scope| {
        let first = fill(PUSHES - 1);
        let first = scope.spawn(move || journal.push(first, &NoMerge));
        device.begun(PUSHES, 1);
        let second = fill(PUSHES);
        let second_push = scope.spawn(move || journal.push(second, &NoMerge));
        while journal.cil().seq() <= second {
            std::thread::yield_now();
        }
        device.go_on.wait();
        first.join().unwrap().unwrap();
        second_push.join().unwrap().unwrap();
    });
    let done = device.done.lock().clone();
    let [.., first, second, flush] = done.as_slice() else {
        panic!("{done:?}");
    };
    assert!(matches!((first, second), (Done::Write(a), Done::Write(b)) if a < b));
    assert_eq!((*flush, done.len() as u64), (Done::Flush, PUSHES + 2));
    assert_eq!(logged(&device.memory), (expected, journal.end()));
}

#[test]
fn records_behind_a_gap_are_no_damage_and_stay_invalid_for_later_mounts() {
    // The new log ends before, at and behind the records of the contexts 2 and 3.
    for contexts in 0..4 {
        let (device, failed, _) = push_three(Then::Fails);
        let journal = LOG.mounted(device.clone(), 10, failed.end());
        journal.write_mount_record().unwrap();
        let objects = 40..40 + contexts;
        let expected = objects.map(|object| {
            let seq = commit(&journal, object);
            journal.push(seq, &NoMerge).unwrap();
            (object, seq)
        });
        let expected: BTreeMap<u64, u64> = expected.collect();
        assert_eq!(journal.end().lsn, failed.end().lsn + 1 + contexts);
        // The next mount record takes the place of one that has nothing behind it.
        let end = if contexts == 0 {
            failed.end()
        } else {
            journal.end()
        };
        assert_eq!(logged(&device.memory), (expected, end));
    }
}
