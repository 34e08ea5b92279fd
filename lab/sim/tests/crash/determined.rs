//! A workload produces the same disk events in every run, byte for byte, so the id of a state stays
//! valid, and what the recovery of a disk showed is the same in every exploration.

use cairnfs_disk::fault::{InjectedFault, within};
use cairnfs_sim::disk::Event;
use cairnfs_sim::explore::{Depth, Failure, Recoveries, Tally, explore, explore_beside};
use cairnfs_sim::record::{VOLUME_SIZE, fresh_volume};
use cairnfs_sim::workload::{random_steps, record, steps};

use crate::support::replay;

/// The events in a form that can be compared.
fn trace(seed: u64) -> Vec<Option<(u64, Vec<u8>)>> {
    let start = fresh_volume(VOLUME_SIZE).unwrap();
    let recording = record(start, &random_steps(seed, 300)).unwrap();
    let events = recording.events().iter().map(|event| match event {
        Event::Write { offset, data } => Some((*offset, data.to_vec())),
        Event::Flush => None,
    });
    events.collect()
}

#[test]
fn same_seed_gives_same_trace() {
    for seed in 0..6 {
        let first = trace(seed);
        assert!(first.len() > 20);
        let other = std::thread::spawn(move || trace(seed)).join().unwrap();
        let same = first.iter().zip(&other).take_while(|(a, b)| a == b).count();
        assert_eq!(same, first.len().max(other.len()), "seed {seed}");
    }
    assert_ne!(trace(1), trace(2));
}

#[test]
fn fresh_volume_is_deterministic() {
    let digest = || fresh_volume(VOLUME_SIZE).unwrap().digest();
    assert_eq!(digest(), digest());
}

#[test]
fn state_id_replays_its_state() {
    let text = "create f; write f 0 9000; fsync f; rename f g; sync";
    for id in ["0.0", "4.2", "5.1", "5.1/2.3", "5.1/2.0/2.2"] {
        assert_eq!(replay(text, id), Ok(()), "{id}");
    }
    for id in ["1000.0", "5.1000", "5.1/1000.0"] {
        assert!(
            replay(text, id).unwrap_err().contains("no such state"),
            "{id}"
        );
    }
}

/// A disk may be allowed before a call has returned, and not after it.
#[test]
fn shared_recoveries_are_compared_with_each_model() {
    let start = fresh_volume(VOLUME_SIZE).unwrap();
    let steps = steps("create a; write a 0 5000; fsync a; create b; fsync b; sync").unwrap();
    let record = || record(start, &steps).unwrap();
    let recording = within(&[InjectedFault::FsyncWithoutFlush], record);
    let depth = Depth::default();
    let told = |tally: &Tally| -> Vec<String> {
        let failures = tally.failures.iter();
        failures.map(Failure::to_string).collect()
    };
    let apart = explore(&recording, &depth, &mut |_| {});
    assert!(!apart.failures.is_empty());
    let recoveries = Recoveries::default();
    for _ in 0..2 {
        let beside = explore_beside(&recording, &depth, &recoveries);
        assert_eq!(told(&beside), told(&apart));
        assert_eq!(beside.states, apart.states);
    }
}
