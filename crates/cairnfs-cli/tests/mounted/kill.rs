//! `kill -9` of the daemon at random moments under load, repeatedly on one volume.
//!
//! After each kill: the check finds nothing, the volume mounts, and all data that was reported
//! durable is intact. Each mount has a random write mode. `CAIRNFS_KILL_ROUNDS` sets the number
//! of kills (10), `CAIRNFS_KILL_SEED` repeats a run's moments and modes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::kill_load::{Load, workers};
use crate::place::{Place, Random, able, arg, succeed, tell};

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| {
        let number = text.parse();
        number.unwrap_or_else(|_| panic!("{name}={text} is not a number"))
    })
}

#[test]
fn kills_lose_no_durable_data() {
    if !able(&["fusermount3", "sqlite3"]) {
        return;
    }
    let rounds = setting("CAIRNFS_KILL_ROUNDS").unwrap_or(10);
    let seed = setting("CAIRNFS_KILL_SEED").unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        now.as_nanos() as u64 >> 10 | 1
    });
    tell(&format!("{rounds} kills with CAIRNFS_KILL_SEED={seed}"));
    let mut random = Random(seed | 1);
    let mut place = Place::mounted("8G", "durability=1");
    let mut before: Vec<Box<dyn Load>> = Vec::new();
    for round in 0..rounds {
        let place_of_round = place.at(format!("round{round}"));
        let old = round.checked_sub(2).map(|r| place.at(format!("round{r}")));
        let delay = Duration::from_millis(random.below(1500));
        let now = load_until_killed(
            &mut place,
            &place_of_round,
            old.as_deref(),
            &mut random,
            delay,
        );
        let what = format!("round {round}, seed {seed}, killed after {delay:?}");
        println!("{what}");
        place.check();
        // Every other round leaves the dead mount, so that `mount` must replace it.
        if round % 2 == 0 {
            succeed(std::process::Command::new("fusermount3").args([
                "-u",
                "-z",
                arg(&place.dir()),
            ]));
        }
        place.mount(match random.below(2) {
            0 => "durability=1,write=through",
            _ => "durability=1,write=back",
        });
        for load in before.iter().chain(&now) {
            load.verify(&what);
        }
        before = now;
    }
    place.finish();
}

/// Runs all workers in `dir` and the removal of `old`, and kills the daemon after `delay`.
fn load_until_killed(
    place: &mut Place,
    dir: &Path,
    old: Option<&Path>,
    random: &mut Random,
    delay: Duration,
) -> Vec<Box<dyn Load>> {
    std::fs::create_dir(dir).unwrap();
    let mut loads = workers(dir, random);
    let stop = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        for load in &mut loads {
            let stop = Arc::clone(&stop);
            scope.spawn(move || while !stop.load(Ordering::Relaxed) && load.step().is_ok() {});
        }
        if let Some(old) = old {
            // Ends with an error if the kill comes first.
            scope.spawn(move || drop(std::fs::remove_dir_all(old)));
        }
        thread::sleep(delay);
        place.kill();
        stop.store(true, Ordering::Relaxed);
    });
    loads
}
