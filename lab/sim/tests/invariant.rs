//! The caller's invariant runs in every state, gets the progress of the program, and can fail; a
//! failing state can be replayed by its id.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use cairnfs::Volume;
use cairnfs_sim::explore::{Crash, Depth, Tally, explore_with, replay_with};
use cairnfs_sim::record::Recording;

fn in_place(volume: &Volume) -> cairnfs::Result<()> {
    volume.write("f", vec![b'a'; 6000])?;
    volume.sync()?;
    volume.write("f", vec![b'b'; 6000])
}

/// After the first sync the file has either contents, complete.
fn file_is_complete(volume: &Volume, crash: &Crash<'_>) -> Result<(), String> {
    if crash.returned.syncs == 0 {
        return Ok(());
    }
    let bytes = volume.read("f").map_err(|e| e.to_string())?;
    if bytes.len() == 6000 && bytes.iter().all(|b| *b == bytes[0]) {
        Ok(())
    } else {
        Err(format!("{} bytes", bytes.len()))
    }
}

fn tried(recording: &Recording, depth: &Depth) -> Tally {
    explore_with(recording, depth, &mut file_is_complete, &mut |_| {
        ControlFlow::Continue(())
    })
}

#[test]
fn write_in_place_fails_invariant_and_replays() {
    let recording = Recording::of_volume(in_place).unwrap();
    let tally = tried(&recording, &Depth::default());
    assert!(!tally.failures.is_empty());
    for failure in &tally.failures {
        let again = replay_with(&recording, &failure.id, &mut file_is_complete);
        assert_eq!(again.unwrap_err(), failure.message);
        assert!(failure.message.contains("your own check"), "{failure}");
    }
}

#[test]
fn replace_by_rename_passes_invariant() {
    let recording = Recording::of_volume(|volume| {
        volume.write("f", vec![b'a'; 6000])?;
        volume.sync()?;
        volume.write("f.new", vec![b'b'; 6000])?;
        volume.rename("f.new", "f")
    })
    .unwrap();
    let tally = tried(&recording, &Depth::default());
    assert!(tally.failures.is_empty(), "{}", tally.failures[0]);
}

#[test]
fn invariant_sees_every_prefix_of_the_calls() {
    let names = ["a", "b", "c", "d"];
    let recording =
        Recording::of_volume(|volume| names.iter().try_for_each(|name| volume.create_dir(name)))
            .unwrap();
    let mut seen = BTreeSet::new();
    let mut count = |volume: &Volume, _: &Crash<'_>| {
        seen.insert(
            names
                .iter()
                .filter(|name| volume.exists(name).unwrap())
                .count(),
        );
        Ok(())
    };
    explore_with(&recording, &Depth::default(), &mut count, &mut |_| {
        ControlFlow::Continue(())
    });
    assert_eq!(seen, (0..=4).collect());
}

#[test]
fn progress_callback_can_stop_exploration() {
    let recording = Recording::of_volume(in_place).unwrap();
    let all = tried(&recording, &Depth::default()).states;
    let mut nothing = |_: &Volume, _: &Crash<'_>| Ok(());
    let some = explore_with(&recording, &Depth::default(), &mut nothing, &mut |at| {
        if at.events < 3 {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    });
    assert!(some.states > 0 && some.states < all);
}

#[test]
fn panic_in_invariant_is_a_failure() {
    let recording = Recording::of_volume(in_place).unwrap();
    let mut panics = |_: &Volume, _: &Crash<'_>| std::panic::resume_unwind(Box::new("no"));
    let tally = explore_with(&recording, &Depth::default(), &mut panics, &mut |_| {
        ControlFlow::Continue(())
    });
    assert!(!tally.failures.is_empty());
    assert!(
        tally
            .failures
            .iter()
            .all(|f| f.message.contains("panicked: no"))
    );
}
