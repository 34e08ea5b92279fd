//! Schedules of forks, and of calls on several roots, against commits, fsyncs and merges.

use super::*;
use cairnfs_disk::format::BLOCK_SIZE;
use cairnfs_disk::sync::atomic::{AtomicBool, Ordering};

impl Volume {
    /// The same volume, seen through another root.
    fn on(&self, fs: Arc<FileSystem>) -> Volume {
        let disk = self.disk.clone();
        Volume { disk, fs }
    }

    fn named(&self, name: &str) -> Volume {
        self.on(self.fs.open_named(name).unwrap())
    }
}

/// A fork has every call that had returned, is durable when it returns, and has nothing half.
#[test]
fn fork_against_commit_merge_and_fsync() {
    explore("fs: fork, commits, merge, fsync", Cost::Large, || {
        wait_for_ever(true);
        let volume = open(fresh());
        let created = Arc::new(AtomicBool::new(false));
        let (committer, done) = (volume.clone(), created.clone());
        let (forker, seen) = (volume.clone(), created);
        let threads = [
            thread::spawn(move || {
                let ino = committer.create("a").unwrap();
                committer.write(ino, b"all of it");
                done.store(true, Ordering::SeqCst);
                committer.fs.fsync(ino, false).unwrap();
                committer.rename("a", "b");
            }),
            thread::spawn(move || {
                let complete = seen.load(Ordering::SeqCst);
                forker.fs.branch("x").unwrap();
                let kept = forker.cut();
                let branch = kept.named("x");
                let names = branch.names();
                assert!(names.len() <= 1, "{names:?}");
                assert!(
                    !complete || names.len() == 1,
                    "a call that had returned is missing"
                );
                if let Some(name) = names.first().filter(|_| complete) {
                    assert_eq!(branch.contents(name), b"all of it");
                }
                let branch = forker.named("x");
                assert_eq!(branch.names(), names, "in memory as after a power cut");
                branch.create("c").unwrap();
            }),
            start(&volume, |volume| volume.fs.merge().unwrap()),
        ];
        join(threads);
        let branch = volume.named("x");
        assert!(branch.names().contains("c") && branch.names().len() <= 2);
        drop(branch);
        assert_eq!(volume.names(), BTreeSet::from(["b".to_owned()]));
        volume.fs.sync().unwrap();
        let kept = volume.cut();
        assert!(kept.named("x").names().contains("c"));
        assert_eq!(kept.contents("b"), b"all of it");
    });
}

/// Fsyncs of two roots in one context keep what each of them promised.
#[test]
fn fsyncs_of_two_roots_with_a_merge() {
    explore("fs: fsyncs of two roots, merge", Cost::Large, || {
        wait_for_ever(true);
        let volume = open(fresh());
        let branch = volume.fs.branch("x").unwrap();
        let branch = Arc::new(volume.on(volume.fs.open_root(branch).unwrap()));
        let work = |volume: &Volume| {
            let ino = volume.create("f").unwrap();
            volume.write(ino, &volume.fs.root_id().to_le_bytes());
            volume.fs.fsync(ino, false).unwrap();
        };
        let threads = [
            start(&volume, work),
            start(&branch, work),
            start(&volume, |volume| volume.fs.merge().unwrap()),
        ];
        join(threads);
        let kept = volume.cut();
        for root in [&kept, &kept.named("x")] {
            assert_eq!(root.contents("f"), root.fs.root_id().to_le_bytes());
        }
    });
}

/// A change of a branch that is being replaced is in the state before, or is refused.
#[test]
fn replacement_against_commits() {
    explore("fs: replacement of a branch, commits", Cost::Large, || {
        wait_for_ever(true);
        let volume = open(fresh());
        let staged = volume.fs.stage().unwrap();
        let staged = volume.on(staged);
        staged.create("new").unwrap();
        let committer = volume.clone();
        let base = volume.clone();
        let threads = [
            thread::spawn(move || {
                let mut made = BTreeSet::new();
                for name in ["a", "b", "c"] {
                    match committer.create(name) {
                        Ok(_) => assert!(made.insert(name.to_owned())),
                        Err(Error::Stale) => break,
                        Err(e) => panic!("{e}"),
                    }
                }
                made
            }),
            thread::spawn(move || {
                base.fs.replace_by(&staged.fs, "before", None).unwrap();
                BTreeSet::new()
            }),
        ];
        let made = threads.map(|thread| thread.join().unwrap());
        let new = BTreeSet::from(["new".to_owned()]);
        for seen in [&*volume, &*volume.cut()] {
            assert_eq!(seen.named("main").names(), new);
            assert_eq!(seen.named("before").names(), made[0]);
        }
    });
}

/// What an fsync covers is in the state before, or the fsync is refused: never lost with what had
/// no time to be committed.
#[test]
fn replacement_against_fsync() {
    explore("fs: replacement of a branch, fsync", Cost::Large, || {
        wait_for_ever(true);
        let volume = open(fresh());
        let ino = volume.create("a").unwrap();
        volume.fs.sync().unwrap();
        let staged = volume.fs.stage().unwrap();
        let staged = volume.on(staged);
        let (writer, base) = (volume.clone(), volume.clone());
        let threads = [
            thread::spawn(move || {
                let written = writer.fs.write(ino, 0, b"kept", true);
                written.and_then(|_| writer.fs.fsync(ino, false)).is_ok()
            }),
            thread::spawn(move || {
                base.fs.replace_by(&staged.fs, "before", None).unwrap();
                false
            }),
        ];
        let promised = threads.map(|thread| thread.join().unwrap());
        for seen in [&*volume, &*volume.cut()] {
            let kept = seen.named("before").contents("a");
            assert!(!promised[0] || kept == b"kept", "lost: {kept:?}");
        }
    });
}

/// A call that leaves unwritten data, beside a replacement of its branch: its change is in the state
/// before, or it is refused; never accepted and lost.
fn replacement_beside(change: fn(&FileSystem, u64) -> Result<(), Error>, after: &[u8]) {
    wait_for_ever(true);
    let volume = open(fresh());
    let ino = volume.create("a").unwrap();
    volume.write(ino, b"old");
    volume.fs.sync().unwrap();
    let staged = volume.on(volume.fs.stage().unwrap());
    let (writer, base) = (volume.clone(), volume.clone());
    let writing = thread::spawn(move || match change(&writer.fs, ino) {
        Ok(()) => true,
        Err(Error::Stale) => false,
        Err(e) => panic!("{e}"),
    });
    let replacing = thread::spawn(move || {
        base.fs.replace_by(&staged.fs, "before", None).unwrap();
    });
    let accepted = writing.join().unwrap();
    replacing.join().unwrap();
    for seen in [&*volume, &*volume.cut()] {
        let kept = seen.named("before").contents("a");
        assert!(!accepted || kept == after, "lost: {kept:?}");
    }
}

#[test]
fn replacement_against_write() {
    explore("fs: replacement of a branch, write", Cost::Large, || {
        let write = |fs: &FileSystem, ino| fs.write(ino, 0, b"new", true).map(|_| ());
        replacement_beside(write, b"new");
    });
}

#[test]
fn replacement_against_append() {
    explore("fs: replacement of a branch, append", Cost::Large, || {
        let append = |fs: &FileSystem, ino| fs.append(ino, b"+", true).map(|_| ());
        replacement_beside(append, b"old+");
    });
}

#[test]
fn replacement_against_truncate() {
    explore("fs: replacement of a branch, truncate", Cost::Large, || {
        let truncate = |fs: &FileSystem, ino| {
            let set = SetAttr {
                size: Some(5),
                ..SetAttr::default()
            };
            fs.setattr(ino, &set).map(|_| ())
        };
        replacement_beside(truncate, b"old\0\0");
    });
}

/// Writers that are held beside each other's holders: all go on, in any order of the holders' ends.
#[test]
fn held_writers_against_holders() {
    explore("fs: writers held by two, create", Cost::Large, || {
        wait_for_ever(true);
        let volume = open(fresh());
        let hold = |volume: &Arc<Volume>| {
            start(volume, |volume| {
                let held = volume.fs.hold_writers();
                volume.fs.sync().unwrap();
                drop(held);
            })
        };
        let threads = [
            hold(&volume),
            hold(&volume),
            start(&volume, |volume| {
                volume.create("a").unwrap();
            }),
        ];
        join(threads);
        assert_eq!(volume.names(), BTreeSet::from(["a".to_owned()]));
    });
}

/// A volume with merges and walks in small steps, and a snapshot of a file that was changed since.
fn with_snapshot() -> (Arc<Volume>, u64, u64) {
    wait_for_ever(true);
    let volume = open_with(fresh(), Some(Pressure::steps(i64::MAX, 4)));
    let free = free_when_empty(&volume);
    let ino = volume.create("a").unwrap();
    volume.write(ino, &OLD);
    volume.create("other").unwrap();
    volume.fs.snapshot("s").unwrap();
    volume.write(ino, &[2; 6000]);
    volume.fs.merge().unwrap();
    (volume, ino, free)
}

const OLD: [u8; 20_000] = [1; 20_000];

fn free_dropped(volume: &Volume) {
    while volume.fs.drop_step().unwrap() {}
}

/// Free blocks once all files of the main branch are removed.
fn free_when_empty(volume: &Volume) -> u64 {
    for name in volume.names() {
        volume.unlink(&name);
    }
    // The second merge frees what the first one has replaced.
    for _ in 0..2 {
        volume.fs.sync().unwrap();
        volume.fs.merge().unwrap();
    }
    volume.fs.core().reservations().sweep();
    volume.fs.core().space().free_blocks()
}

/// Checks that the main branch is the only root, has these contents of a file, also after a power
/// cut, and nothing is in use without it.
fn assert_only_main(volume: &Volume, contents: &[u8], free: u64) {
    free_dropped(volume);
    let names = volume.fs.roots().into_iter().map(|root| root.name);
    assert_eq!(names.collect::<Vec<_>>(), [Some("main".to_owned())]);
    // Freed blocks would be used again.
    let more = volume.create("more").unwrap();
    volume.write(more, &[9; 40_000]);
    volume.fs.sync().unwrap();
    assert!(volume.contents("a") == contents);
    assert!(volume.cut().contents("a") == contents);
    assert_eq!(free_when_empty(volume), free);
}

/// What the branch gives up while a walk frees its snapshot is freed once, wherever the walk is.
#[test]
fn drop_against_commits_and_merges() {
    explore("fs: drop, commits, merges", Cost::Large, || {
        let (volume, ino, free) = with_snapshot();
        let committer = volume.clone();
        let threads = [
            start(&volume, |volume| {
                volume.fs.drop_root("s").unwrap();
                free_dropped(volume);
            }),
            thread::spawn(move || {
                committer.write(ino, &[3; 12_000]);
                committer.fs.fsync(ino, false).unwrap();
                committer.fs.merge().unwrap();
                committer.write(ino, &[4; 20_000]);
            }),
            start(&volume, |volume| volume.fs.merge().unwrap()),
        ];
        join(threads);
        assert_only_main(&volume, &[4; 20_000], free);
    });
}

/// Whether each block is one of two states of a file.
fn is_of_either(seen: &[u8], before: &[u8], after: &[u8]) -> bool {
    let blocks = |contents: &[u8]| {
        contents
            .chunks(BLOCK_SIZE)
            .map(<[u8]>::to_vec)
            .collect::<Vec<_>>()
    };
    let (before, after) = (blocks(before), blocks(after));
    let mut either = before.iter().zip(&after);
    let blocks = blocks(seen);
    blocks.len() == after.len()
        && blocks
            .iter()
            .all(|b| either.next().is_some_and(|(old, new)| b == old || b == new))
}

/// A fork that comes while its origin's snapshot is freed gets the snapshot's place. It has a write
/// that had returned; of one that goes on, any blocks.
#[test]
fn drop_against_fork_and_commit() {
    explore("fs: drop, fork, commit", Cost::Large, || {
        let (volume, ino, free) = with_snapshot();
        let (dropper, forker, committer) = (volume.clone(), volume.clone(), volume.clone());
        let written = Arc::new(AtomicBool::new(false));
        let seen = written.clone();
        let threads = [
            thread::spawn(move || {
                dropper.fs.drop_root("s").unwrap();
                free_dropped(&dropper);
                false
            }),
            thread::spawn(move || {
                let complete = seen.load(Ordering::SeqCst);
                forker.fs.snapshot("t").unwrap();
                forker.fs.branch("x").unwrap();
                forker.fs.merge().unwrap();
                complete
            }),
            thread::spawn(move || {
                committer.write(ino, &[3; 20_000]);
                written.store(true, Ordering::SeqCst);
                committer.fs.sync().unwrap();
                committer.fs.merge().unwrap();
                false
            }),
        ];
        let complete = threads.map(|thread| thread.join().unwrap()).contains(&true);
        free_dropped(&volume);
        let before = [&[2; 6000][..], &OLD[6000..]].concat();
        let after = vec![3; 20_000];
        let seen = ["t", "x"].map(|name| volume.named(name).contents("a"));
        for (name, seen) in ["t", "x"].iter().zip(&seen) {
            assert!(
                !complete || *seen == after,
                "{name}: a write that had returned is missing"
            );
            assert!(is_of_either(seen, &before, &after), "{name}");
        }
        let kept = volume.cut();
        for (name, seen) in ["t", "x"].into_iter().zip(seen) {
            assert!(kept.named(name).contents("a") == seen, "{name}");
            volume.fs.drop_root(name).unwrap();
        }
        assert_only_main(&volume, &after, free);
    });
}

/// A root is opened and stays whole, or it is dropped and cannot be opened.
#[test]
fn drop_against_opening_of_the_root() {
    explore("fs: drop, opening, merge", Cost::Large, || {
        let (volume, ino, free) = with_snapshot();
        let committer = volume.clone();
        let threads = [
            start(&volume, |volume| match volume.fs.drop_root("s") {
                Ok(()) => free_dropped(volume),
                Err(error) => assert!(matches!(error, Error::Busy(_)), "{error}"),
            }),
            start(&volume, |volume| match volume.fs.open_named("s") {
                Ok(snapshot) => assert!(volume.on(snapshot).contents("a") == OLD),
                Err(error) => {
                    let gone = matches!(error, Error::NoSnapshot(_) | Error::NotFound);
                    assert!(gone, "{error}");
                }
            }),
            thread::spawn(move || {
                committer.write(ino, &[3; 20_000]);
                committer.fs.sync().unwrap();
                committer.fs.merge().unwrap();
            }),
        ];
        join(threads);
        if volume
            .fs
            .roots()
            .iter()
            .any(|root| root.name.as_deref() == Some("s"))
        {
            assert!(volume.named("s").contents("a") == OLD);
            volume.fs.drop_root("s").unwrap();
        }
        assert_only_main(&volume, &[3; 20_000], free);
    });
}
