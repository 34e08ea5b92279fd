//! Contexts that need many records, that are on their way to the log at the same time, or that do not
//! reach it.

use std::collections::BTreeMap;
use std::sync::{Arc, Barrier};

use smallvec::smallvec;

use crate::device::{Device, MemoryDevice};
use crate::error::{Error, Result};
use crate::format::key::Key;
use crate::journal::log::NewLog;
use crate::journal::position::LogPosition;
use crate::journal::vector::{Change, LogVector};
use crate::journal::{Journal, LogSpaceReclaimer};
use crate::sync::atomic::{AtomicU64, Ordering};

const LOG: NewLog = NewLog { blocks: 16 << 10 };

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
    let (values, end) = LOG.found(device);
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

/// A device that keeps its first write waiting until it is told to go on.
struct Waiting {
    memory: MemoryDevice,
    writes: AtomicU64,
    go_on: Barrier,
    /// Whether it refuses the first write.
    refuses: bool,
}

impl Device for Waiting {
    fn size(&self) -> u64 {
        self.memory.size()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.memory.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        let first = self.writes.fetch_add(1, Ordering::SeqCst) == 0;
        if first {
            self.go_on.wait();
        }
        match first && self.refuses {
            false => self.memory.write(offset, buf),
            true => Err(Error::Io {
                op: "write",
                offset,
                len: buf.len(),
                source: Arc::new(std::io::Error::other("refused")),
            }),
        }
    }
    fn flush(&self) -> Result<()> {
        self.memory.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.memory.discard(offset, len)
    }
}

/// Pushes the contexts 1 to 3 at the same time. The device has written 2 and 3 before it goes on with
/// the first write, which is that of 1.
fn push_three(refuses: bool) -> (Arc<Waiting>, Journal, [Result<()>; 3]) {
    let device = Arc::new(Waiting {
        memory: MemoryDevice::new(LOG.device_bytes()),
        writes: AtomicU64::new(0),
        go_on: Barrier::new(2),
        refuses,
    });
    let journal = LOG.journal(device.clone());
    let results = std::thread::scope(|scope| {
        let pushes = [1, 2, 3].map(|seq| {
            commit(&journal, 20 + seq);
            let pushes = scope.spawn({
                let journal = &journal;
                move || journal.push(seq, &NoMerge)
            });
            while device.writes.load(Ordering::SeqCst) < seq {
                std::thread::yield_now();
            }
            pushes
        });
        assert_eq!(journal.written.lock().seq, 0);
        device.go_on.wait();
        pushes.map(|thread| thread.join().unwrap())
    });
    (device, journal, results)
}

#[test]
fn contexts_are_written_beside_each_other_and_count_in_their_order() {
    let (device, journal, results) = push_three(false);
    assert!(matches!(results, [Ok(()), Ok(()), Ok(())]), "{results:?}");
    assert_eq!(journal.written.lock().seq, 3);
    let expected = BTreeMap::from([(21, 1), (22, 2), (23, 3)]);
    assert_eq!(logged(&device.memory), (expected, journal.end()));
}

#[test]
fn contexts_behind_one_that_failed_do_not_count() {
    let (device, journal, results) = push_three(true);
    assert!(matches!(results, [Err(_), Err(_), Err(_)]), "{results:?}");
    assert_eq!(journal.written.lock().seq, 0);
    assert!(journal.write_through(4, &NoMerge).is_err());
    assert!(journal.flush().is_err());
    let (found, end) = logged(&device.memory);
    assert_eq!((found, end), (BTreeMap::new(), journal.end()));
}

#[test]
fn records_behind_a_gap_are_no_damage_and_stay_invalid_for_later_mounts() {
    // The new log ends before, at and behind the records of the contexts 2 and 3.
    for contexts in 0..4 {
        let (device, failed, _) = push_three(true);
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
