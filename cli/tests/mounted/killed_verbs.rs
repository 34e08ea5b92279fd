//! `kill -9` of the daemon in the middle of each verb on snapshots and branches, after a varied number
//! of its writes, beside writers that sync; and the same for hours, with kills now and then.
//!
//! `CAIRNFS_VERB_ROUNDS` is the number of kills in each verb (1), `CAIRNFS_VERB_SEED` varies them.
//! The long run takes `CAIRNFS_SOAK_SECONDS`.

use std::time::{Duration, Instant};

use cairnfs_tier::size_from;

use crate::place::{able, tell};
use crate::turmoil::{Turmoil, Verb};

/// Varies the moments of kills.
const SEED: u64 = 0x7665_7262;

#[test]
fn killed_daemon_has_done_a_verb_or_not() {
    if !able(&["git", "sqlite3"]) {
        return;
    }
    let rounds = size_from("CAIRNFS_VERB_ROUNDS", 1, 1);
    let seed = size_from("CAIRNFS_VERB_SEED", SEED, SEED);
    let mut turmoil = Turmoil::new(seed);
    // Each is done once without a kill, which tells how many writes it takes.
    let mut all = Verb::ALL.into_iter();
    turmoil.live(&mut |_| all.next().map(|verb| (verb, false)));
    for _ in 0..rounds {
        for verb in Verb::ALL {
            turmoil.live(&mut |_| Some((verb, true)));
        }
    }
    println!("{}", turmoil.tally());
    turmoil.finish();
}

#[test]
#[ignore = "deep: takes as long as one wants"]
fn soak() {
    if !able(&["git", "sqlite3"]) {
        return;
    }
    let seconds = size_from("CAIRNFS_SOAK_SECONDS", 60, 60);
    let now = u64::from(std::process::id());
    let seed = size_from("CAIRNFS_VERB_SEED", now, now);
    tell(&format!("{seconds} s with CAIRNFS_VERB_SEED={seed}"));
    let (began, end) = (Instant::now(), Duration::from_secs(seconds));
    let mut turmoil = Turmoil::new(seed);
    while began.elapsed() < end {
        // How many verbs before a kill; without a kill, the volume is unmounted.
        let mut left = None;
        turmoil.live(&mut |random| {
            let left = left.get_or_insert_with(|| 1 + random.below(12));
            let kills = *left == 1 && random.below(4) > 0;
            *left = left.checked_sub(1)?;
            let verb = Verb::ALL[random.below(Verb::ALL.len() as u64) as usize];
            Some((verb, kills))
        });
        tell(&format!(
            "{:5} s: {}",
            began.elapsed().as_secs(),
            turmoil.tally()
        ));
    }
    turmoil.finish();
}
