//! Dropped snapshots give back what they alone had, whatever happens meanwhile, and nothing else.

use std::sync::Arc;
use std::time::Duration;

use cairnfs::fs::{FileSystem, Options};
use cairnfs::{Error, PublishOptions, Volume};
use cairnfs_disk::device::MemoryDevice;
use cairnfs_disk::format::BLOCK_SIZE;
use cairnfs_tier::size_from;

use super::seen::{Seen, assert_sound, options, pressed_options, tree};
use super::snapshots::{
    Changing, Numbers, fresh, kill, of_snapshot, open, open_with, random_change, volume,
};

const MIB: u64 = 1 << 20;

fn free_dropped(fs: &FileSystem) {
    while fs.drop_step().unwrap() {}
}

fn names(fs: &FileSystem) -> Vec<String> {
    let roots = fs.roots().into_iter();
    roots.map(|root| root.name.unwrap_or_default()).collect()
}

/// What a drop frees is what was told before, and what was in use only by the snapshot.
#[test]
fn drop_frees_what_was_told() {
    let device = fresh(64 * MIB);
    let fs = open(&device);
    let v = volume(&fs);
    v.write("kept", vec![1; 40 * BLOCK_SIZE]).unwrap();
    v.write("gone", vec![2; 30 * BLOCK_SIZE]).unwrap();
    v.set_xattr("kept", "user.long", [7; 50_000]).unwrap();
    v.snapshot("first").unwrap();
    v.remove_file("gone").unwrap();
    v.remove_xattr("kept", "user.long").unwrap();
    v.write("more", vec![3; 20 * BLOCK_SIZE]).unwrap();
    v.snapshot("second").unwrap();
    v.remove_file("more").unwrap();
    fs.merge().unwrap();
    for (name, least) in [("first", 33), ("second", 20)] {
        fs.merge().unwrap();
        let id = v.find_root(name).unwrap().id;
        let told = fs.space_of(id).unwrap() / BLOCK_SIZE as u64;
        assert!((least..least + 30).contains(&told), "{name}: {told}");
        let before = fs.statfs().free;
        fs.drop_root(name).unwrap();
        assert!(!names(&fs).contains(&name.to_owned()));
        free_dropped(&fs);
        let freed = fs.statfs().free - before;
        // The item of the root may have been the last of its leaf.
        assert!(
            freed.abs_diff(told) <= 4,
            "{name}: {told} told, {freed} freed"
        );
    }
    assert_eq!(names(&fs), ["main"]);
    fs.close().unwrap();
    assert_sound(&*device, "closed");
}

#[test]
fn changes_that_wait_for_a_merge_are_counted() {
    let device = fresh(64 * MIB);
    let fs = open(&device);
    let v = volume(&fs);
    v.write("kept", vec![1; 40 * BLOCK_SIZE]).unwrap();
    let b = v.branch("b").unwrap();
    let ids = ["main", "b"].map(|name| v.find_root(name).unwrap().id);
    let own = |id| fs.space_of(id).unwrap() / BLOCK_SIZE as u64;
    let before = ids.map(own);
    b.write("new", vec![2; 300 * BLOCK_SIZE]).unwrap();
    let with_new = own(ids[1]) - before[1];
    assert!((300..330).contains(&with_new), "{with_new}");
    b.remove_file("new").unwrap();
    v.write("other", vec![3; 200 * BLOCK_SIZE]).unwrap();
    let spaces = fs.spaces().unwrap();
    let [main, b] = ids.map(|id| spaces[&id] / BLOCK_SIZE as u64);
    assert!((200..240).contains(&(main - before[0])), "{main}");
    assert!(b < before[1] + 30, "{b}");
    fs.close().unwrap();
}

#[test]
fn drop_is_refused() {
    let device = fresh(64 * MIB);
    let fs = open(&device);
    fs.snapshot("s").unwrap();
    assert!(matches!(fs.drop_root("t"), Err(Error::NoSnapshot(_))));
    assert!(matches!(fs.drop_root("main"), Err(Error::NotPermitted(_))));
    fs.drop_root("s").unwrap();
    assert!(matches!(fs.drop_root("s"), Err(Error::NoSnapshot(_))));
    assert!(matches!(fs.drop_root(""), Err(Error::NoSnapshot(_))));
    // Its name is free before its space is.
    fs.snapshot("s").unwrap();
    free_dropped(&fs);
    assert_eq!(names(&fs), ["main", "s"]);
    fs.close().unwrap();
    let read_only = Options {
        read_only: true,
        ..options(false)
    };
    let fs = open_with(&device, &read_only);
    assert!(matches!(fs.drop_root("s"), Err(Error::ReadOnly)));
    assert!(!fs.drop_step().unwrap());
}

/// A killed drop is taken up by the next opening, with workers.
#[test]
fn workers_free_what_a_killed_process_left() {
    let device = fresh(64 * MIB);
    let fs = open(&device);
    let v = volume(&fs);
    v.write("a", vec![1; 100 * BLOCK_SIZE]).unwrap();
    fs.merge().unwrap();
    let free = fs.statfs().free;
    v.snapshot("s").unwrap();
    v.remove_file("a").unwrap();
    fs.drop_root("s").unwrap();
    kill(fs);
    assert_sound(&*device, "killed");
    let fs = open_with(&device, &options(true));
    // The file's blocks get free with the merge that follows, as they were removed while shared.
    while names(&fs).len() > 1 || fs.statfs().free < free + 90 {
        std::thread::yield_now();
    }
    fs.close().unwrap();
    assert_sound(&*device, "closed");
}

/// A state that a publish has replaced is read for longer than that, and goes soon after its last
/// reader, although nothing else happens on the volume.
#[test]
fn nameless_root_goes_after_its_last_reader() {
    let device = fresh(64 * MIB);
    let often = Options {
        durability_interval: Some(Duration::from_millis(20)),
        ..options(true)
    };
    let fs = open_with(&device, &often);
    let v = volume(&fs);
    v.write("a", vec![1; 10 * BLOCK_SIZE]).unwrap();
    let reader = v.branch("b").unwrap();
    reader.write("b", vec![2; 10 * BLOCK_SIZE]).unwrap();
    v.write("c", vec![3; 10 * BLOCK_SIZE]).unwrap();
    v.publish("b", &PublishOptions::default()).unwrap();
    fs.sync().unwrap();
    fs.merge().unwrap();
    let left = || fs.roots().into_iter().any(|root| root.being_dropped);
    assert!(left());
    drop(reader);
    while left() {
        std::thread::yield_now();
    }
    fs.close().unwrap();
    assert_sound(&*device, "closed");
}

fn fill(fs: &FileSystem, v: &Volume) -> Error {
    let name = format!("rest{}", fs.statfs().free);
    let mut rest = v.create_file(name).unwrap();
    let refused = loop {
        match std::io::Write::write_all(&mut rest, &[9; 65_536]) {
            Ok(()) => {}
            Err(e) => break Error::from(e),
        }
    };
    fs.sync().unwrap();
    refused
}

/// On a full volume removals free nothing that a snapshot has, and are accepted; then a drop frees
/// it. The refusal says so.
#[test]
fn drop_works_on_a_full_volume() {
    let device = fresh(64 * MIB);
    let fs = open(&device);
    let v = volume(&fs);
    (0..3000).for_each(|n| v.write(format!("small{n}"), "x").unwrap());
    v.write("large", vec![1; 20 << 20]).unwrap();
    fs.merge().unwrap();
    v.snapshot("s").unwrap();
    let refused = fill(&fs, &v);
    assert!(matches!(refused.cause(), Error::HeldByRoots), "{refused:?}");
    assert!(refused.to_string().contains("cairnfs drop"), "{refused}");
    (0..3000).for_each(|n| v.remove_file(format!("small{n}")).unwrap());
    v.remove_file("large").unwrap();
    fs.merge().unwrap();
    let before = fs.statfs().free;
    fs.drop_root("s").unwrap();
    // The next call that finds no space frees it.
    v.write("again", vec![2; 19 << 20]).unwrap();
    assert!(fs.statfs().free + (19 << 8) >= before + (20 << 8));
    fs.close().unwrap();
    assert_sound(&*device, "closed");
}

/// Random changes, snapshots, drops in the middle of which merges and kills come: the snapshots
/// left keep their states, and an independent count finds every block in use, in the end those of
/// the main root alone.
#[test]
fn random_drops_leave_exactly_what_roots_have() {
    for seed in 1..=16 {
        let mut run = Changing::new(seed);
        let mut dropped = 0;
        for step in 0..400 {
            match run.numbers.below(40) {
                0..=2 => run.snapshot(step),
                3 | 4 if !run.states.is_empty() => {
                    let nth = run.numbers.below(run.states.len() as u64) as usize;
                    let (name, _) = run.states.remove(nth);
                    run.fs.drop_root(&name).unwrap();
                    dropped += 1;
                }
                5..=8 => {
                    for _ in 0..run.numbers.below(30) {
                        run.fs.drop_step().unwrap();
                    }
                }
                9 | 10 => run.fs.merge().unwrap(),
                11 => run = run.kill(step),
                _ => run.change(),
            }
        }
        free_dropped(&run.fs);
        let kept: Vec<&String> = run.states.iter().map(|(name, _)| name).collect();
        let mut left = names(&run.fs);
        left.retain(|name| name != "main");
        assert_eq!(left.iter().collect::<Vec<_>>(), kept);
        run.fs.sync().unwrap();
        assert_sound(&*run.device, "all walks ended");
        assert!(dropped > 5, "seed {seed}");
        let last = tree(&run.fs);
        run.fs.close().unwrap();
        run.assert_states();
        let fs = open_with(&run.device, &run.options);
        kept.iter().for_each(|name| fs.drop_root(name).unwrap());
        free_dropped(&fs);
        assert_eq!(names(&fs), ["main"]);
        assert!(tree(&fs) == last);
        fs.close().unwrap();
        assert_sound(&*run.device, "one root left");
    }
}

/// A walk goes on while another thread changes files and merges.
#[test]
fn drops_beside_commits_and_merges() {
    let device: Arc<MemoryDevice> = fresh(64 * MIB);
    let fs = open(&device);
    let v = volume(&fs);
    for n in 0..2000 {
        v.write(format!("file{n}"), vec![n as u8; 5000]).unwrap();
    }
    for round in 0..6_u8 {
        let name = format!("s{round}");
        v.snapshot(&name).unwrap();
        std::thread::scope(|threads| {
            let (fs, v) = (&fs, &v);
            threads.spawn(move || {
                for n in (usize::from(round)..2000).step_by(3) {
                    v.write(format!("file{n}"), vec![round; 6000]).unwrap();
                    if n % 100 == 0 {
                        fs.merge().unwrap();
                    }
                }
            });
            fs.drop_root(&name).unwrap();
            free_dropped(fs);
        });
        free_dropped(&fs);
        assert_eq!(names(&fs), ["main"]);
        fs.merge().unwrap();
        assert_sound(&*device, &name);
    }
    fs.close().unwrap();
}

/// A branch that is dropped gives back what it alone had; the fork point goes with it. One that is
/// open is not dropped.
#[test]
fn dropped_branch_and_its_fork_point_go() {
    let device = fresh(64 * MIB);
    let fs = open(&device);
    let v = volume(&fs);
    v.write("a", vec![1; 60 * BLOCK_SIZE]).unwrap();
    fs.merge().unwrap();
    let free = fs.statfs().free;
    fs.branch("b").unwrap();
    let b = fs.open_named("b").unwrap();
    volume(&b).write("a", vec![2; 50 * BLOCK_SIZE]).unwrap();
    volume(&b).snapshot("of b").unwrap();
    volume(&b).write("c", vec![3; 40 * BLOCK_SIZE]).unwrap();
    v.remove_file("a").unwrap();
    assert!(matches!(fs.drop_root("b"), Err(Error::Busy(_))));
    assert_eq!(names(&fs), ["main", "", "b", "of b"]);
    drop(b);
    fs.drop_root("b").unwrap();
    free_dropped(&fs);
    assert_eq!(names(&fs), ["main", "", "of b"]);
    fs.sync().unwrap();
    assert_sound(&*device, "without the branch");
    fs.drop_root("of b").unwrap();
    free_dropped(&fs);
    assert_eq!(names(&fs), ["main"]);
    fs.merge().unwrap();
    assert!(fs.statfs().free + 8 >= free + 60);
    fs.close().unwrap();
    assert_sound(&*device, "closed");
}

/// The trees of all heads of these names.
fn trees(fs: &FileSystem, heads: &[String]) -> Vec<Vec<Seen>> {
    let of_head = |name: &String| tree(&fs.open_named(name).unwrap());
    heads.iter().map(of_head).collect()
}

/// Random trees of forks, of branches and of snapshots, with random changes of all branches,
/// publishes, rollbacks, drops, merges and kills: each root that is left keeps its files, and an
/// independent count finds every block in use. `CAIRNFS_FORK_SEEDS=N` sets the number of trees.
/// Contract: snapshot.drop
#[test]
fn random_trees_of_forks_leave_exactly_what_roots_have() {
    let seeds: u64 = size_from("CAIRNFS_FORK_SEEDS", 2, 16);
    for seed in 1..=seeds {
        let mut numbers = Numbers(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let device = fresh(64 * MIB);
        let pressed = pressed_options(seed);
        let mut fs = open_with(&device, &pressed);
        for dir in 0..3 {
            volume(&fs).create_dir(format!("d{dir}")).unwrap();
        }
        let mut heads = vec!["main".to_owned()];
        let mut frozen: Vec<(String, Vec<Seen>)> = Vec::new();
        for step in 0..300 {
            let nth = numbers.below(heads.len() as u64) as usize;
            let on = fs.open_named(&heads[nth]).unwrap();
            match numbers.below(40) {
                0 | 1 => {
                    let name = format!("s{step}");
                    on.snapshot(&name).unwrap();
                    frozen.push((name, tree(&on)));
                }
                2 | 3 if heads.len() < 6 => {
                    let name = format!("b{step}");
                    on.branch(&name).unwrap();
                    heads.push(name);
                }
                4 if heads.len() < 6 && !frozen.is_empty() => {
                    let (from, _) = &frozen[numbers.below(frozen.len() as u64) as usize];
                    let name = format!("b{step}");
                    fs.open_named(from).unwrap().branch(&name).unwrap();
                    heads.push(name);
                }
                5 | 6 if !frozen.is_empty() => {
                    let (name, _) = frozen.remove(numbers.below(frozen.len() as u64) as usize);
                    fs.drop_root(&name).unwrap();
                }
                7 | 8 if nth > 0 => {
                    drop(on);
                    fs.drop_root(&heads.remove(nth)).unwrap();
                }
                9..=12 => {
                    for _ in 0..numbers.below(30) {
                        fs.drop_step().unwrap();
                    }
                }
                13 | 14 => fs.merge().unwrap(),
                16 if nth > 0 => {
                    let onto = &heads[numbers.below(nth as u64) as usize];
                    let base = fs.open_named(onto).unwrap();
                    let kept = format!("k{step}");
                    frozen.push((kept.clone(), tree(&base)));
                    base.replace_by(&on, &kept, None).unwrap();
                    heads.remove(nth);
                    fs = fs.open_named("main").unwrap();
                }
                17 if !frozen.is_empty() => {
                    let (from, _) = &frozen[numbers.below(frozen.len() as u64) as usize];
                    let before = tree(&on);
                    let kept = volume(&fs).restore(from, &heads[nth], &[]).unwrap();
                    frozen.push((kept, before));
                    drop(on);
                    fs = fs.open_named("main").unwrap();
                }
                15 => {
                    drop(on);
                    fs.sync().unwrap();
                    let before = trees(&fs, &heads);
                    kill(fs);
                    assert_sound(&*device, &format!("killed, seed {seed}, step {step}"));
                    fs = open_with(&device, &pressed);
                    assert!(trees(&fs, &heads) == before, "seed {seed}, step {step}");
                }
                _ => random_change(&volume(&on), &on, &mut numbers),
            }
        }
        free_dropped(&fs);
        fs.sync().unwrap();
        let before = trees(&fs, &heads);
        assert_sound(&*device, "all walks ended");
        fs.close().unwrap();
        for (name, state) in &frozen {
            let found = of_snapshot(&device, name).unwrap();
            assert!(found == *state, "seed {seed}, snapshot {name}");
        }
        let fs = open_with(&device, &pressed);
        assert!(trees(&fs, &heads) == before, "seed {seed}, at the end");
        let snapshots = frozen.iter().map(|(name, _)| name);
        let all = snapshots.chain(heads.iter().filter(|name| *name != "main"));
        all.for_each(|name| fs.drop_root(name).unwrap());
        free_dropped(&fs);
        assert_eq!(names(&fs), ["main"]);
        fs.close().unwrap();
        assert_sound(&*device, "one root left");
    }
}
