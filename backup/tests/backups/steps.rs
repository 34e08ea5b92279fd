//! Random changes, backups, prunes and forgotten checkpoints.

use std::sync::Arc;
use std::time::Duration;

use cairnfs_backup::{Keep, PruneOptions, Shipper, Unwatched, WriterOptions, prune};
use cairnfs_tier::size;
use jiff::tz::TimeZone;
use proptest::prelude::*;

use crate::store::{Objects, Trouble};
use crate::volume::Volume;

#[derive(Debug, Clone)]
enum Step {
    Write(u64, u64),
    Free(u64, u64),
    Ship,
    Tidy,
    Restart,
    Forget,
    Prune(u32, u32, bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_u64..300, 1_u64..80).prop_map(|(at, count)| Step::Write(at, count)),
        2 => (0_u64..300, 1_u64..80).prop_map(|(at, count)| Step::Free(at, count)),
        6 => Just(Step::Ship),
        2 => Just(Step::Tidy),
        1 => Just(Step::Restart),
        1 => Just(Step::Forget),
        1 => (0_u32..3, 0_u32..4, any::<bool>())
            .prop_map(|(last, daily, waits)| Step::Prune(last, daily, waits)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(size(8, 24)))]
    #[test]
    fn every_moment_is_what_it_was_made_of(steps in proptest::collection::vec(step(), 1..60)) {
        let (objects, volume) = (Objects::default(), Volume::new("v", 380));
        let store = objects.client(Trouble::None);
        let open = || {
            let options = WriterOptions { name: "here".into(), ..WriterOptions::default() };
            Shipper::open(Arc::clone(&store), &volume, options).unwrap()
        };
        let mut shipper = open();
        for (seed, step) in (1..).zip(steps) {
            match step {
                Step::Write(at, count) => volume.write(at, count, seed),
                Step::Free(at, count) => volume.free(at, count),
                Step::Ship => drop(shipper.ship(&volume, &Unwatched).unwrap()),
                Step::Tidy => shipper.tidy(&Unwatched).unwrap(),
                Step::Restart => shipper = open(),
                Step::Forget => volume.forget(),
                Step::Prune(last, daily, waits) => {
                    let keep = Keep { last, daily, ..Keep::default() };
                    let grace = Duration::from_secs(if waits { 3600 } else { 0 });
                    let options = PruneOptions { keep, grace, ..PruneOptions::default() };
                    let pruned = prune(&store, &options, &TimeZone::UTC, &Unwatched).unwrap();
                    prop_assert_eq!(objects.verify(&volume).len() as u64, pruned.kept);
                }
            }
        }
        objects.verify(&volume);
    }
}
