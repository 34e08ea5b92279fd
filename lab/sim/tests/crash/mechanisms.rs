//! The contract holds without any one of the mechanisms that can be ablated.

use cairnfs::Mechanism;
use cairnfs::fs::Options;
use cairnfs_sim::explore::Depth;
use cairnfs_sim::record::{Recording, VOLUME_SIZE, fresh_volume, options};
use cairnfs_sim::workload::{Runner, Step, random_names, random_steps};
use cairnfs_tier::size;

use crate::support::try_recording;

const DEPTH: Depth = Depth {
    states: 300,
    interrupted: 8,
    within: 6,
    used: 8,
};

fn recorded(without: Mechanism, steps: &[Step]) -> Recording {
    let lacking = Options {
        ablated: Some(without),
        ..options(4)
    };
    Recording::of(fresh_volume(VOLUME_SIZE).unwrap(), &lacking, |fs| {
        let mut runner = Runner::new(fs);
        for step in steps {
            // A refused step is skipped.
            drop(runner.run(step));
        }
        Ok(())
    })
    .unwrap()
}

#[test]
fn contract_holds_without_any_one_mechanism() {
    for without in Mechanism::ALL {
        let states: u64 = (0..6)
            .map(|seed| {
                let steps = match seed % 2 {
                    0 => random_steps(seed, 100),
                    _ => random_names(seed, 100),
                };
                let what = format!("without {}, seed {seed}", without.name());
                try_recording(&what, &recorded(without, &steps), &DEPTH).states as u64
            })
            .sum();
        assert!(states > size(80, 500), "only {states} states");
    }
}
