//! References by name, history and time, and what their errors list.

use jiff::civil::date;

use super::*;

fn zone() -> TimeZone {
    // Two hours east of UTC, and a change to summer time: on 2026-03-29 clocks skip 02:00.
    TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap()
}

fn at(hour: i8, minute: i8) -> Time {
    let local = date(2026, 11, 23).at(hour, minute, 0, 0);
    let stamp = zone().to_timestamp(local).unwrap();
    std::time::SystemTime::from(stamp).into()
}

fn root(id: u32, name: &str, parent: u32, created: Time) -> RootInfo {
    RootInfo {
        id,
        name: Some(name.to_owned()).filter(|n| !n.is_empty()),
        parent: Some(parent).filter(|p| *p != 0),
        writable: id < 10,
        boundary: if id < 10 { 0 } else { u64::from(id) * 100 },
        created,
        being_dropped: false,
    }
}

/// main's snapshots `early` and `late`, with a nameless fork point between them where the branch
/// `work` began, which has the snapshot `half`.
fn roots() -> Vec<RootInfo> {
    vec![
        root(1, "main", 12, Time::default()),
        root(2, "work", 13, at(10, 0)),
        root(10, "early", 0, at(9, 0)),
        root(11, "", 10, at(10, 0)),
        root(12, "late", 11, at(11, 0)),
        root(13, "half", 11, at(10, 30)),
    ]
}

fn found(reference: &str, now: Time) -> Result<u32> {
    let roots = roots();
    resolve_in(reference, &roots, now, || Ok(zone())).map(|r| r.id)
}

fn why(reference: &str, now: Time) -> String {
    found(reference, now).unwrap_err().to_string()
}

#[test]
fn names_lead_to_branches_and_snapshots() {
    let now = at(12, 0);
    for (name, id) in [("main", 1), ("work", 2), ("late", 12), ("half", 13)] {
        assert_eq!(found(name, now).unwrap(), id);
    }
    assert_eq!(found("main@early", now).unwrap(), 10);
    assert_eq!(found("work@half", now).unwrap(), 13);
    assert_eq!(found("work@early", now).unwrap(), 10);
}

#[test]
fn unknown_names_list_what_there_is() {
    let now = at(12, 0);
    let all = "there are: late, half, work, early, main";
    assert!(why("nightly", now).contains(all), "{}", why("nightly", now));
    assert!(why("", now).contains(all));
    assert!(why("nightly@10:30", now).contains("no branch \"nightly\""));
    assert!(why("main@never", now).contains("its snapshots are: late, early"));
    assert!(why("main@", now).contains("neither a snapshot of main nor a time"));
    assert!(why("main@half", now).contains("not in the history of main"));
    assert_eq!(found("nightly", now).unwrap_err().errno(), libc::ENOENT);
}

#[test]
fn times_lead_to_the_newest_snapshot_that_is_as_old() {
    let now = at(12, 0);
    let cases = [
        ("main@11:00", 12),
        ("main@10:59:59", 10),
        ("main@09:00", 10),
        ("work@11:30", 13),
        ("work@10:29", 10),
        ("main@-5m", 12),
        ("main@-1h1m", 10),
        ("main@-90s", 12),
        ("main@2026-11-23", 12),
        ("main@2026-11-23T10:30", 10),
        ("main@2026-11-23 10:30", 10),
        ("main@2026-11-23T09:59:00Z", 10),
        ("main@2026-11-23T10:00:00Z", 12),
    ];
    for (reference, id) in cases {
        assert_eq!(found(reference, now).unwrap(), id, "{reference}");
    }
    let old = why("main@-1d", now);
    assert!(
        old.contains("no snapshot as old as 2026-11-22 12:00:00"),
        "{old}"
    );
    assert!(why("main@2026-11-22", now).contains("as old as 2026-11-22 23:59:59"));
}

/// Lists show times in seconds; what was made within such a second is found by it.
#[test]
fn a_time_with_seconds_is_the_end_of_the_second() {
    let mut roots = roots();
    let noon = at(12, 0);
    let within = Time {
        nanos: 900_000_000,
        ..noon
    };
    roots.push(root(14, "noon", 12, within));
    roots[0].parent = Some(14);
    let cases = [
        ("main@12:00:00", 14),
        ("main@2026-11-23 12:00:00", 14),
        ("main@2026-11-23T12:00:00+01:00", 14),
        ("main@2026-11-23T11:00:00Z", 14),
        ("main@2026-11-23T11:00:00.5Z", 12),
        ("main@12:00", 12),
        ("main@2026-11-23T11:00Z", 12),
        ("main@11:59:59", 12),
    ];
    for now in [within, at(12, 5)] {
        for (reference, id) in cases {
            let found = resolve_in(reference, &roots, now, || Ok(zone())).unwrap();
            assert_eq!(found.id, id, "{reference}");
        }
    }
}

/// A clock time that is still to come today is yesterday's.
#[test]
fn clock_times_are_in_the_past() {
    assert_eq!(found("main@11:30", at(12, 0)).unwrap(), 12);
    assert!(why("main@11:30", at(11, 15)).contains("as old as 2026-11-22 11:30:00"));
}

#[test]
fn what_is_no_time_is_refused() {
    let now = at(12, 0);
    let wrong = [
        "25:00",
        "10",
        "-",
        "-5",
        "-m",
        "-5x",
        "-5m3",
        "--5m",
        "-99999999999999999999s",
        "2026-13-01",
        "2026-11",
        "noon",
        "-9223372036854775807w",
    ];
    for text in wrong {
        let why = why(&format!("main@{text}"), now);
        assert!(why.contains("nor a time"), "{text}: {why}");
    }
}

#[test]
fn snapshots_precede_times() {
    let mut roots = roots();
    roots.push(root(14, "10:30", 10, at(9, 30)));
    roots[0].parent = Some(14);
    let found = resolve_in("main@10:30", &roots, at(12, 0), || Ok(zone())).unwrap();
    assert_eq!(found.id, 14);
}

#[test]
fn local_times_are_refused_in_an_unknown_zone() {
    let roots = roots();
    let found = |point: &str| {
        let reference = format!("main@{point}");
        resolve_in(&reference, &roots, at(12, 0), || Ok(TimeZone::unknown())).map(|r| r.id)
    };
    for local in ["10:30", "2026-11-23", "2026-11-23T10:30"] {
        let why = found(local).unwrap_err().to_string();
        assert!(why.contains("set TZ"), "{why}");
    }
    assert_eq!(found("2026-11-23T09:30:00Z").unwrap(), 10);
    assert_eq!(found("-30m").unwrap(), 12);
    assert_eq!(found("late").unwrap(), 12);
}

/// What a publish has replaced belongs to the history of the branch, with its ancestors.
#[test]
fn replaced_states_are_in_the_history() {
    let now = at(12, 0);
    let undo = undo_name("main", &roots(), now);
    assert_eq!(undo, "main.undo-20261123T110000Z");
    let mut roots = vec![
        root(2, "main", 13, at(10, 0)),
        root(20, &undo, 12, at(11, 45)),
    ];
    roots.extend(self::roots().into_iter().skip(2));
    let found = |reference| resolve_in(reference, &roots, now, || Ok(zone())).map(|r| r.id);
    assert_eq!(found("main@-5m").unwrap(), 20);
    assert_eq!(found("main@11:10").unwrap(), 12);
    assert_eq!(found("main@late").unwrap(), 12);
    assert_eq!(found("main@half").unwrap(), 13);
    assert_eq!(undo_name("main", &roots, now), format!("{undo}-2"));
    assert_eq!(undo_name(&undo, &roots, now), format!("{undo}-2"));
}

#[test]
fn replaced_states_beyond_the_newest_ones_are_found_by_their_names() {
    let mut roots = Vec::new();
    for n in 10..REPLACED_KEPT as u32 + 13 {
        let name = undo_name("main", &roots, at(12, 0));
        roots.push(root(n, &name, n, at(12, 0)));
    }
    let newest = roots.last().and_then(|root| root.name.clone()).unwrap();
    let others = [
        "main.undo-mine",
        "main.auto-20261123T110000Z",
        "main.undo-20261123T110000Z-",
        "main.undo-20261123",
        "trial.undo-20261123T110000Z",
        "before",
    ];
    let others = (100..).zip(others);
    roots.extend(others.map(|(n, name)| root(n, name, n, at(11, 0))));
    let ids = |list: Vec<&RootInfo>| list.iter().map(|root| root.id).collect::<Vec<_>>();
    assert_eq!(ids(replaced_before(&newest, &roots)), [10, 11, 12]);
    assert_eq!(ids(replaced_before("main.undo-mine", &roots)), [0; 0]);
    let all = ids(replaced(&roots));
    assert_eq!((all.first(), all.len()), (Some(&104), REPLACED_KEPT + 4));
}

#[test]
fn automatic_snapshots_are_found_by_their_names() {
    let name = |branch| auto_name(branch, at(12, 0));
    assert_eq!(name("main"), "main.auto-20261123T110000Z");
    let mut roots = Vec::new();
    let names = [
        &*name("trial"),
        &name("main"),
        "main.auto-mine",
        "main.auto-",
        "main.auto-20261123T110000Z.kept",
        "main.undo-20261123T110000Z",
        "a",
    ];
    for (n, name) in (10..).zip(names) {
        roots.push(root(n, name, 0, at(12, 0)));
    }
    // A branch is none, whatever it is called.
    roots.push(root(2, "main.auto-20261123T110001Z", 0, at(12, 0)));
    let ids = |list: Vec<&RootInfo>| list.iter().map(|root| root.id).collect::<Vec<_>>();
    assert_eq!(ids(automatic("main", &roots)), [11]);
    assert_eq!(ids(automatic("trial", &roots)), [10]);
    assert_eq!(ids(automatic("main.auto-mine", &roots)), [0; 0]);
    assert_eq!(ids(yielding(&roots)), [10, 11, 15]);
}

#[test]
fn made_names_cannot_be_given() {
    let made = [
        auto_name("main", at(12, 0)),
        undo_name("main", &[], at(12, 0)),
        "x.auto-20261123T110000Z-7".into(),
        ".undo-20261123T110000Z".into(),
    ];
    for name in made {
        let why = check_given(&name).unwrap_err().to_string();
        assert!(why.contains("choose another name"), "{name}: {why}");
    }
    for name in [
        "main.auto-mine",
        "main.undo-1",
        "auto-20261123T110000Z",
        "received-1",
    ] {
        check_given(name).unwrap();
    }
}

#[test]
fn made_names_are_names_of_roots() {
    let long = "é".repeat(127);
    let names = [
        (undo_name(&long, &[], at(12, 0)), UNDO),
        (auto_name(&long, at(12, 0)), ".auto-"),
    ];
    for (name, mark) in names {
        assert!(cairnfs_disk::format::root::is_root_name(&name), "{name}");
        assert!(name.contains(mark));
        assert!(check_given(&name).is_err());
    }
}

/// A damaged volume may have parents that form a circle.
#[test]
fn circles_of_parents_end() {
    let mut roots = roots();
    roots[2].parent = Some(12);
    assert_eq!(
        resolve_in("main@early", &roots, at(12, 0), || Ok(zone()))
            .unwrap()
            .id,
        10
    );
}
