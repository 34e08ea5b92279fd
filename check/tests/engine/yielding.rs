//! Snapshots that give way before a call fails for want of space.
//!
//! Contract: snapshot.yield

use cairnfs::{Error, Fallocate, PublishOptions, Volume};
use cairnfs_core::refs::{self, REPLACED_KEPT};

use super::seen::assert_sound;
use super::snapshots::{fresh, kill, open, volume};

const MIB: usize = 1 << 20;

fn names(v: &Volume) -> Vec<String> {
    let roots = v.roots().into_iter();
    roots.filter_map(|root| root.name).collect()
}

/// Ids of the snapshots with `auto` in their names, in order of their ids.
fn automatic(roots: &[cairnfs::RootInfo]) -> Vec<u32> {
    let is_one = |root: &&cairnfs::RootInfo| root.name.as_ref().is_some_and(|n| n.contains("auto"));
    roots.iter().filter(is_one).map(|root| root.id).collect()
}

#[test]
fn snapshots_give_way_one_after_another_and_others_never() {
    let device = fresh(64 << 20);
    let fs = open(&device);
    let v = volume(&fs);
    let fill = |byte: u8| v.write("f", vec![byte; 13 * MIB]);
    fill(0).unwrap();
    v.snapshot("mine").unwrap();
    for n in 1..4_u8 {
        fill(n).unwrap();
        v.snapshot(&format!("auto{n}")).unwrap();
    }
    // Without a choice nothing gives way.
    assert!((4..8).any(|n| fill(n).is_err()));
    assert_eq!(names(&v), ["main", "mine", "auto1", "auto2", "auto3"]);
    fs.set_yielding(automatic);
    // One that is in use stays, and the next one goes.
    let used = v.open_branch("auto1").unwrap();
    fill(4).unwrap();
    let left = names(&v);
    assert!(
        left.contains(&"auto1".to_owned()) && left.len() < 5,
        "{left:?}"
    );
    assert_eq!(used.read("f").unwrap(), vec![1; 13 * MIB]);
    drop(used);
    v.write("g", vec![5; 22 * MIB]).unwrap();
    assert_eq!(names(&v), ["main", "mine"]);
    // When none is left, the error says what holds the space.
    let full = v.write("h", vec![6; 40 * MIB]).unwrap_err();
    assert!(matches!(full.cause(), Error::HeldByRoots), "{full}");
    let mine = v.open_branch("mine").unwrap();
    assert_eq!(mine.read("f").unwrap(), vec![0; 13 * MIB]);
    drop(mine);
    v.sync().unwrap();
    kill(fs);
    let fs = open(&device);
    let v = volume(&fs);
    assert_eq!(names(&v), ["main", "mine"]);
    assert_eq!(v.read("f").unwrap(), vec![4; 13 * MIB]);
    drop(v);
    fs.close().unwrap();
    assert_sound(&*device, "at the end");
}

#[test]
fn nothing_gives_way_for_what_the_volume_can_never_hold() {
    let device = fresh(64 << 20);
    let fs = open(&device);
    let v = volume(&fs);
    for n in 0..3_u8 {
        v.write("f", vec![n; 4 * MIB]).unwrap();
        v.snapshot(&format!("auto{n}")).unwrap();
    }
    fs.set_yielding(automatic);
    let kept = names(&v);
    let file = v.create_new_file("large").unwrap();
    for what in [
        Fallocate::Allocate { keep_size: false },
        Fallocate::Allocate { keep_size: true },
        Fallocate::ZeroRange { keep_size: false },
    ] {
        let refused = file.fallocate(0, 65 << 20, what).unwrap_err();
        assert!(matches!(refused.cause(), Error::NoSpace), "{refused}");
        assert_eq!(names(&v), kept);
    }
    assert_eq!(v.metadata("large").unwrap().len(), 0);
    // What fits when they have given way is made.
    let whole = Fallocate::Allocate { keep_size: false };
    file.fallocate(0, 50 << 20, whole).unwrap();
    assert!(names(&v).len() < kept.len());
    drop((file, v));
    fs.close().unwrap();
    assert_sound(&*device, "at the end");
}

#[test]
fn threads_that_find_no_space_share_what_gives_way() {
    let device = fresh(64 << 20);
    let fs = open(&device);
    let v = volume(&fs);
    for n in 0..6_u8 {
        v.write("f", vec![n; 6 * MIB]).unwrap();
        v.snapshot(&format!("auto{n}")).unwrap();
    }
    fs.set_yielding(automatic);
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let v = &v;
            scope.spawn(move || {
                for round in 0..3 {
                    let name = format!("w{worker}-{round}");
                    v.write(&name, vec![worker; 3 * MIB]).unwrap();
                }
            });
        }
    });
    assert!(names(&v).len() < 7);
    drop(v);
    fs.close().unwrap();
    assert_sound(&*device, "at the end");
}

/// Only what was made by itself, and still has its name, gives way.
#[test]
fn snapshots_of_users_stay_whatever_they_are_called() {
    let device = fresh(64 << 20);
    let fs = open(&device);
    let v = volume(&fs);
    fs.set_yielding(|roots| refs::yielding(roots).iter().map(|root| root.id).collect());
    let fill = |byte: u8| v.write("f", vec![byte; 9 * MIB]);
    fill(0).unwrap();
    v.snapshot("main.auto-mine").unwrap();
    fill(1).unwrap();
    let renamed = fs.snapshot_by_itself().unwrap();
    fill(2).unwrap();
    // Another one of the same second would have the same name.
    v.rename_root(&renamed, "kept").unwrap();
    let made = fs.snapshot_by_itself().unwrap();
    for wrong in [&renamed, &made] {
        let refused = v.rename_root("kept", wrong);
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    }
    // With all three there is no space for this.
    fill(3).unwrap();
    v.write("g", vec![4; 24 * MIB]).unwrap();
    assert_eq!(names(&v), ["main", "main.auto-mine", "kept"]);
    for (name, byte) in [("main.auto-mine", 0), ("kept", 1)] {
        let snapshot = v.open_branch(name).unwrap();
        assert_eq!(snapshot.read("f").unwrap(), vec![byte; 9 * MIB]);
    }
    drop(v);
    fs.close().unwrap();
    assert_sound(&*device, "at the end");
}

/// Of what publishes and restores have replaced, the newest ones stay, and all of it gives way.
#[test]
fn replaced_states_are_bounded_and_give_way() {
    let device = fresh(64 << 20);
    // A handle to main would keep in use what it opened.
    let fs = {
        let fs = open(&device);
        volume(&fs).write("f", "first").unwrap();
        fs.snapshot("first").unwrap();
        fs.open_named("first").unwrap()
    };
    let v = volume(&fs);
    v.branch("trial").unwrap();
    v.restore("first", "trial", &[]).unwrap();
    let mut replaced: Vec<String> = Vec::new();
    for n in 0..REPLACED_KEPT + 4 {
        if n == 2 {
            v.rename_root(&replaced[1], "main.undo-mine").unwrap();
        }
        let main = v.open_branch("main").unwrap();
        main.write("f", n.to_string()).unwrap();
        let kept = match n % 3 {
            0 => v.restore("first", "main", &[]).unwrap(),
            1 => v.restore("first", "main", &["f".into()]).unwrap(),
            _ => {
                drop(main.branch("b").unwrap());
                let published = v.publish("b", &PublishOptions::default());
                published.unwrap().kept.unwrap()
            }
        };
        replaced.push(kept);
    }
    let of_main = |v: &Volume| {
        let mut names = names(v);
        names.retain(|name| name.starts_with("main.undo-2"));
        names
    };
    let mut left = of_main(&v);
    let mut newest = replaced.split_off(4);
    let oldest = newest[0].clone();
    left.sort();
    newest.sort();
    assert_eq!(left, newest);
    let stay = ["first", "trial", "main.undo-mine"].map(str::to_owned);
    assert!(stay.iter().all(|name| names(&v).contains(name)));
    // One that is in use stays until another one is made.
    let used = v.open_branch(&oldest).unwrap();
    v.restore("first", "main", &[]).unwrap();
    assert_eq!(of_main(&v).len(), REPLACED_KEPT + 1);
    drop(used);
    v.restore("first", "main", &[]).unwrap();
    assert_eq!(of_main(&v).len(), REPLACED_KEPT);
    // All of them together do not fit.
    let fill = |byte: u8| {
        let main = v.open_branch("main").unwrap();
        main.write("large", vec![byte; 20 * MIB]).unwrap();
        v.restore("first", "main", &[]).unwrap();
    };
    (0..6).for_each(fill);
    let left = names(&v);
    assert!(of_main(&v).len() < 4, "{left:?}");
    assert!(stay.iter().all(|name| left.contains(name)), "{left:?}");
    drop(v);
    fs.close().unwrap();
    assert_sound(&*device, "at the end");
}
