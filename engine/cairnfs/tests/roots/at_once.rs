//! Calls on whole branches by several threads at once: what one moves, another one has just found.

use std::thread;

use cairnfs::{Error, PublishOptions, Volume};

use crate::{roots, volume};

const THREADS: usize = 4;
const ROUNDS: usize = 12;

/// Each thread forks what the name `main` means, makes a file of its own, and publishes it. Beside them
/// the branch is restored to what it is, as a whole and by paths, snapshot, forked and compared.
#[test]
fn names_that_move_meanwhile_fail_no_call() {
    let volume = volume();
    volume.create_dir("d").unwrap();
    volume.write("d/f", "of the first state").unwrap();
    volume.snapshot("first").unwrap();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let volume = &volume;
            scope.spawn(move || (0..ROUNDS).for_each(|n| publish_own(volume, thread, n)));
            scope.spawn(move || (0..ROUNDS).for_each(|n| use_name(volume, thread, n)));
        }
    });
    let main = volume.open_branch("main").unwrap();
    for (thread, n) in (0..THREADS).flat_map(|t| (0..ROUNDS).map(move |n| (t, n))) {
        let own = main.read_to_string(format!("own-{thread}-{n}")).unwrap();
        assert_eq!(own, format!("{thread} {n}"));
    }
    let left = roots(&volume);
    let left: Vec<_> = left
        .iter()
        .filter(|name| !name.contains(".undo-"))
        .collect();
    assert_eq!(left, ["first", "main"]);
}

fn publish_own(volume: &Volume, thread: usize, n: usize) {
    let name = format!("work-{thread}");
    let made = volume.branch_of("main", &name).unwrap();
    assert_eq!(made.name.as_deref(), Some(&name[..]));
    let work = volume.open_branch(&name).unwrap();
    let own = format!("own-{thread}-{n}");
    work.write(&own, format!("{thread} {n}")).unwrap();
    drop(work);
    let published = volume.publish(&name, &PublishOptions::default());
    published.unwrap_or_else(|e| panic!("{own}: {e}"));
}

fn use_name(volume: &Volume, thread: usize, n: usize) {
    let name = format!("seen-{thread}");
    let done = match n % 4 {
        0 => volume.snapshot_of("main", &name).map(drop),
        1 => volume.branch_of("main", &name).map(drop),
        2 => volume.restore("first", "main", &["d/f".into()]).map(drop),
        _ => volume.restore("main", "main", &["d".into()]).map(drop),
    };
    done.unwrap_or_else(|e| panic!("{}: {e}", n % 4));
    volume.diff("first", "main").unwrap();
    if n % 4 < 2 {
        volume.rename_root(&name, &format!("{name}-again")).unwrap();
        volume.drop_root(&format!("{name}-again")).unwrap();
    }
}

/// Whole restores of one second have different names for what they replace.
#[test]
fn restores_at_once_keep_every_state() {
    let volume = volume();
    volume.snapshot("first").unwrap();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..4 {
                    volume.restore("first", "main", &[]).unwrap();
                }
            });
        }
    });
    let kept = roots(&volume)
        .iter()
        .filter(|name| name.contains(".undo-"))
        .count();
    assert_eq!(kept, THREADS * 4);
}

/// A branch is published once, and what comes second is told that it is gone.
#[test]
fn branch_is_published_by_one_of_two() {
    for _ in 0..8 {
        let volume = volume();
        volume.branch("work").unwrap().write("f", "new").unwrap();
        volume.write("own", "of main").unwrap();
        let done = thread::scope(|scope| {
            let publish = || volume.publish("work", &PublishOptions::default());
            let both = [scope.spawn(publish), scope.spawn(publish)];
            both.map(|thread| thread.join().unwrap())
        });
        let refused = done.iter().filter_map(|done| done.as_ref().err());
        let refused: Vec<_> = refused.collect();
        assert!(matches!(refused[..], [Error::NoRoot { .. }]), "{done:?}");
    }
}
