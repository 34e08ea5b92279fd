//! `-o snapshots=`: snapshots that the daemon makes by itself.
//!
//! Contract: snapshot.yield

use std::fs;
use std::thread;

use crate::place::{Place, able, nap, said};
use crate::verbs::names;

/// The snapshots that were made by themselves, in the order of their times.
fn automatic(place: &Place) -> Vec<String> {
    let mut names = names(place);
    names.retain(|name| name.contains(".auto-"));
    names
}

/// Waits until `is` holds for them.
fn wait(place: &Place, is: impl Fn(&[String]) -> bool) -> Vec<String> {
    loop {
        let found = automatic(place);
        if is(&found) {
            return found;
        }
        nap(50);
    }
}

#[test]
fn snapshots_are_made_of_changes_and_the_oldest_dropped() {
    if !able(&[]) {
        return;
    }
    // Both wait most of the time.
    thread::scope(|scope| {
        for write in ["through", "back"] {
            scope.spawn(move || made_and_dropped(write));
        }
    });
}

fn made_and_dropped(write: &str) {
    let options = format!("snapshots=1s,keep=2,write={write}");
    let mut place = Place::mounted("64M", &options);
    fs::write(place.at("f"), "0").unwrap();
    let first = wait(&place, |found| !found.is_empty());
    // Each has the state of its time, with what was not synced.
    for round in 1..4 {
        let last = automatic(&place).pop();
        fs::write(place.at("f"), round.to_string()).unwrap();
        wait(&place, |found| found.last() != last.as_ref());
    }
    let kept = wait(&place, |found| found.len() == 2);
    assert!(!kept.contains(&first[0]));
    place.mount_beside(&format!("branch={}", kept[1]), "s");
    assert_eq!(fs::read(place.beside("s/f")).unwrap(), b"3");
    // That one is in use, and stays longer than the others.
    for round in 4..7 {
        let last = automatic(&place).pop();
        fs::write(place.at("f"), round.to_string()).unwrap();
        wait(&place, |found| found.last() != last.as_ref());
    }
    assert!(automatic(&place).contains(&kept[1]));
    place.umount_beside("s");
    place.ok(&["restore", "m", &kept[1], "f"]);
    assert_eq!(fs::read(place.at("f")).unwrap(), b"3");
    // Those of an earlier mount count, too.
    place.remount(&options);
    fs::write(place.at("f"), "7").unwrap();
    let last = automatic(&place).pop();
    wait(&place, |found| {
        found.last() != last.as_ref() && found.len() == 2
    });
    place.finish();
}

#[test]
fn nothing_is_made_of_what_has_not_changed() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("64M", "");
    fs::write(place.at("f"), "0").unwrap();
    place.ok(&["branch", "m", "other"]);
    place.umount();
    place.mount("snapshots=1s");
    let first = wait(&place, |found| !found.is_empty());
    // Changes of another branch are none of this one, whose time has passed as often.
    place.mount_beside("branch=other,snapshots=1s", "o");
    for round in 0..4 {
        let last = automatic(&place).pop();
        fs::write(place.beside("o/f"), round.to_string()).unwrap();
        wait(&place, |found| found.last() != last.as_ref());
    }
    let (of_main, of_other): (Vec<String>, Vec<String>) = automatic(&place)
        .into_iter()
        .partition(|name| name.starts_with("main."));
    assert_eq!(of_main, first);
    assert!(of_other.len() >= 4);
    place.umount_beside("o");
    place.finish();
}

#[test]
fn snapshots_give_way_before_there_is_no_space() {
    if !able(&[]) {
        return;
    }
    let place = Place::mounted("64M", "snapshots=1s,keep=100");
    let content = vec![1; 12 << 20];
    place.ok(&["snapshot", "m", "mine"]);
    // Each state holds its own blocks; all of them do not fit.
    for round in 0..8 {
        let last = automatic(&place).pop();
        fs::write(place.at("f"), &content).unwrap();
        fs::write(place.at("round"), round.to_string()).unwrap();
        if round < 3 {
            wait(&place, |found| found.last() != last.as_ref());
        }
    }
    assert!(names(&place).contains(&"mine".to_owned()));
    place.finish();
}

#[test]
fn words_without_effect_are_told() {
    if !able(&[]) {
        return;
    }
    for (options, note) in [
        (
            "ro,snapshots=5m",
            Some("snapshots= has no effect on a read-only"),
        ),
        ("keep=3", Some("keep= has no effect without snapshots=")),
        (
            "snapshots=0,keep=3",
            Some("keep= has no effect without snapshots="),
        ),
        ("snapshots=300,keep=3", None),
    ] {
        let mut place = Place::new("16M");
        let text = said(&place.run(&["mount", "-o", options, "v.cairn", "m"]));
        place.adopt();
        match note {
            Some(note) => assert!(text.contains(note), "{options}: {text}"),
            None => assert!(!text.contains("note"), "{options}: {text}"),
        }
        place.finish();
    }
}

/// A snapshot of a user stays, whatever its name is like, and so does one that a user has renamed.
#[test]
fn snapshots_of_users_are_not_taken_for_automatic_ones() {
    if !able(&[]) {
        return;
    }
    let place = Place::mounted("64M", "snapshots=1s,keep=1");
    place.ok(&["snapshot", "m", "main.auto-mine"]);
    fs::write(place.at("f"), "0").unwrap();
    let made = |found: &[String]| found.iter().find(|name| name.contains(".auto-2")).cloned();
    let first = made(&wait(&place, |found| made(found).is_some())).unwrap();
    place.ok(&["rename", "m", &first, "main.auto-kept"]);
    for round in 1..4 {
        let last = made(&automatic(&place));
        fs::write(place.at("f"), round.to_string()).unwrap();
        wait(&place, |found| made(found).is_some() && made(found) != last);
    }
    let left = names(&place);
    for name in ["main.auto-mine", "main.auto-kept"] {
        assert!(left.contains(&name.to_owned()), "{left:?}");
    }
    let refused = place.run(&["snapshot", "m", &first]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        said(&refused).contains("choose another name"),
        "{}",
        said(&refused)
    );
    place.finish();
}
