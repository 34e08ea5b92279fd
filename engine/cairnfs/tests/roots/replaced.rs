//! Restores of a whole branch beside branches that were made before: what a restore has taken back
//! stays taken back when such a branch is published, and the branch's own changes arrive.
//!
//! Contract: roots.whole

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use cairnfs::{ConflictKind, Error, PublishOptions, Volume};

use crate::{conflicts, roots, volume};

/// What happens to a volume between two calls.
#[derive(Debug, Clone, Copy)]
enum Between {
    Nothing,
    /// The replaced states are dropped, and their space is freed.
    Dropped,
    /// The volume is opened again.
    Reopened,
    Both,
}

use Between::{Both, Dropped, Nothing, Reopened};

/// A volume in a file.
struct Kept {
    dir: tempfile::TempDir,
    volume: Option<Volume>,
}

impl Kept {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let volume = Volume::create(dir.path().join("v"), crate::SIZE).unwrap();
        Self {
            dir,
            volume: Some(volume),
        }
    }

    fn volume(&self) -> &Volume {
        self.volume.as_ref().unwrap()
    }

    fn main(&self) -> Volume {
        self.volume().open_branch("main").unwrap()
    }

    fn pass(&mut self, between: Between) {
        // The root that it was opened with may be replaced by now.
        self.volume = Some(self.main());
        if matches!(between, Dropped | Both) {
            drop_replaced(self.volume());
        }
        if matches!(between, Reopened | Both) {
            self.volume.take().unwrap().close().unwrap();
            self.volume = Some(Volume::open(self.dir.path().join("v")).unwrap());
        }
    }
}

/// Drops the replaced states that are not in use.
fn drop_replaced(volume: &Volume) {
    let names = roots(volume).into_iter();
    for name in names.filter(|name| name.contains(".undo-")) {
        match volume.drop_root(&name) {
            Ok(()) | Err(Error::Busy(_) | Error::NoRoot { .. }) => {}
            Err(error) => panic!("{name}: {error}"),
        }
    }
    volume.free_drops(|_| true).unwrap();
}

fn names(volume: &Volume) -> BTreeSet<String> {
    let entries = volume.read_dir("/").unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

fn publish(volume: &Volume, branch: &str) {
    let published = volume.publish(branch, &PublishOptions::default());
    published.unwrap_or_else(|e| panic!("{branch}: {e}"));
}

/// The branch from before a restore brings its own changes only, also if there was nothing else to merge,
/// and if the base was restored more than once.
#[test]
fn what_was_taken_back_stays_so() {
    for between in [Nothing, Dropped, Reopened, Both] {
        let mut kept = Kept::new();
        let main = kept.main();
        main.write("f", "first").unwrap();
        main.snapshot("first").unwrap();
        main.write("f", "second").unwrap();
        main.write("taken", "back").unwrap();
        for name in ["a", "b", "c", "edited"] {
            main.branch(name).unwrap().write(name, name).unwrap();
            main.write(format!("after-{name}"), "back, too").unwrap();
        }
        let edited = kept.volume().open_branch("edited").unwrap();
        edited.write("f", "third").unwrap();
        drop((main, edited));
        let restore = |kept: &Kept| kept.volume().restore("first", "main", &[]).unwrap();
        restore(&kept);
        kept.pass(between);
        publish(kept.volume(), "a");
        assert_eq!(names(&kept.main()), ["a", "f"].map(String::from).into());
        assert_eq!(kept.main().read("f").unwrap(), b"first", "{between:?}");
        kept.pass(between);
        publish(kept.volume(), "b");
        assert_eq!(
            names(&kept.main()),
            ["a", "b", "f"].map(String::from).into()
        );
        restore(&kept);
        restore(&kept);
        kept.pass(between);
        publish(kept.volume(), "c");
        assert_eq!(names(&kept.main()), ["c", "f"].map(String::from).into());
        // Both have changed it since they parted.
        let published = kept.volume().publish("edited", &PublishOptions::default());
        let found = conflicts(published);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].kind, ConflictKind::Contents);
        let diff = kept.volume().diff_since_fork("main", "edited").unwrap();
        let changed = diff.report().files.iter();
        let changed: Vec<_> = changed.map(|f| f.path.path.to_string()).collect();
        assert_eq!(changed, ["edited", "f"]);
        drop(diff);
        // Without the branches nothing is held for them.
        kept.volume().drop_root("edited").unwrap();
        kept.pass(Dropped);
        let left = kept.volume().roots();
        let left: Vec<_> = left.iter().map(|root| root.name.as_deref()).collect();
        assert_eq!(left.len(), 2, "{left:?}");
    }
}

/// A restore that is taken back by another one: what comes back counts.
#[test]
fn restore_of_a_replaced_state_counts() {
    for between in [Nothing, Reopened] {
        let mut kept = Kept::new();
        let main = kept.main();
        main.snapshot("first").unwrap();
        main.write("taken", "back").unwrap();
        main.branch("old").unwrap().write("old", "").unwrap();
        drop(main);
        let undo = kept.volume().restore("first", "main", &[]).unwrap();
        kept.main().branch("new").unwrap().write("new", "").unwrap();
        kept.pass(between);
        kept.volume().restore(&undo, "main", &[]).unwrap();
        kept.pass(between);
        for (branch, expected) in [("new", 2), ("old", 3)] {
            publish(kept.volume(), branch);
            let names = names(&kept.main());
            assert!(
                names.contains("taken") && names.len() == expected,
                "{names:?}"
            );
        }
        kept.pass(Dropped);
        assert_eq!(kept.volume().roots().len(), 2);
    }
}

/// A branch of the restored snapshot that is published by its name only comes after the restore, too.
#[test]
fn published_name_comes_after_the_restore() {
    for between in [Reopened, Both] {
        let mut kept = Kept::new();
        let main = kept.main();
        main.write("f", "").unwrap();
        main.snapshot("first").unwrap();
        main.write("taken", "back").unwrap();
        main.branch("late").unwrap().write("late", "").unwrap();
        drop(main);
        kept.volume().branch_of("first", "work").unwrap();
        let work = kept.volume().open_branch("work").unwrap();
        work.write("work", "").unwrap();
        drop(work);
        kept.volume().restore("first", "main", &[]).unwrap();
        kept.pass(between);
        let published = kept.volume().publish("work", &PublishOptions::default());
        assert!(!published.unwrap().merged);
        kept.pass(between);
        publish(kept.volume(), "late");
        let expected = ["f", "late", "work"].map(String::from).into();
        assert_eq!(names(&kept.main()), expected, "{between:?}");
    }
}

/// The space of a replaced state is free once it is dropped, though a branch from before needs the state
/// in which both have parted.
#[test]
fn replaced_state_is_freed_beside_a_branch() {
    const LENGTH: usize = 8 << 20;
    let volume = volume();
    volume.write("f", vec![1; LENGTH]).unwrap();
    volume.snapshot("first").unwrap();
    volume.branch("work").unwrap().write("work", "").unwrap();
    volume.write("f", vec![2; LENGTH]).unwrap();
    let undo = volume.restore("first", "main", &[]).unwrap();
    // The handle to what was replaced ends.
    let volume = { volume }.open_branch("main").unwrap();
    let of = |name: &str| {
        let id = volume.find_root(name).unwrap().id;
        volume.spaces().unwrap()[&id]
    };
    let free = || {
        let stat = volume.file_system().statfs();
        stat.free * u64::from(stat.block_size)
    };
    let (own, before) = (of(&undo), free());
    assert!(own >= LENGTH as u64, "{own}");
    drop_replaced(&volume);
    let freed = free() - before;
    assert!(freed >= LENGTH as u64, "{freed}");
    publish(&volume, "work");
    let main = volume.open_branch("main").unwrap();
    assert_eq!(main.read("f").unwrap(), vec![1; LENGTH]);
    assert_eq!(names(&main), ["f", "work"].map(String::from).into());
}

/// Each thread forks what `main` means, makes a file and publishes it, while others restore all of
/// `main`. No publish has a conflict, and what it brings is there unless a restore came after it.
#[test]
fn restores_beside_publishes_are_final() {
    const THREADS: usize = 3;
    const ROUNDS: usize = 16;
    let volume = volume();
    volume.write("f", "first").unwrap();
    volume.snapshot("first").unwrap();
    // A handle to what no call replaces.
    let volume = { volume }.open_branch("first").unwrap();
    let published = Mutex::new(Vec::new());
    let restored = Mutex::new(None);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (volume, published) = (&volume, &published);
            scope.spawn(move || {
                for n in 0..ROUNDS {
                    let own = format!("own-{thread}-{n}");
                    volume.branch_of("main", &own).unwrap();
                    let work = volume.open_branch(&own).unwrap();
                    work.write(&own, "").unwrap();
                    drop(work);
                    publish(volume, &own);
                    published.lock().unwrap().push((own, Instant::now()));
                }
            });
        }
        scope.spawn(|| {
            for n in 0..ROUNDS {
                let begun = Instant::now();
                volume.restore("first", "main", &[]).unwrap();
                *restored.lock().unwrap() = Some(begun);
                if n % 3 == 0 {
                    drop_replaced(&volume);
                }
            }
        });
    });
    let last = restored.into_inner().unwrap().unwrap();
    let later = published.into_inner().unwrap().into_iter();
    let later = later.filter(|(_, ended)| *ended > last);
    let later: BTreeSet<String> = later.map(|(own, _)| own).collect();
    let mut there = names(&volume.open_branch("main").unwrap());
    assert!(there.remove("f"));
    assert!(there.is_subset(&later), "{there:?}, {later:?}");
    drop_replaced(&volume);
    assert_eq!(roots(&volume), ["first", "main"]);
    assert_eq!(volume.roots().len(), 2);
}
