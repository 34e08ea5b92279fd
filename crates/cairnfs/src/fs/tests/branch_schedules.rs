//! Schedules of forks, and of calls on several roots, against commits, fsyncs and merges.

use super::*;
use crate::sync::atomic::{AtomicBool, Ordering};

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
