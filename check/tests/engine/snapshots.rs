//! Snapshots keep what they were made of, whatever happens to the files, and nothing else stays in
//! use.

use std::sync::Arc;

use cairnfs::fs::{FileSystem, Options};
use cairnfs::{Error, OpenOptions, Volume};
use cairnfs_disk::device::MemoryDevice;
use cairnfs_disk::format::BLOCK_SIZE;
use cairnfs_disk::types::Fallocate;

use super::seen::{Seen, assert_sound, options, pressed_options, tree};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = BLOCK_SIZE as u64;

pub fn fresh(size: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(size));
    let make = cairnfs::fs::MakeOptions::default();
    cairnfs::fs::make_device(&*device, &make, &mut |_, _| {}).unwrap();
    device
}

pub fn open_with(device: &Arc<MemoryDevice>, options: &Options) -> Arc<FileSystem> {
    FileSystem::open_device(device.clone(), options).unwrap()
}

pub fn open(device: &Arc<MemoryDevice>) -> Arc<FileSystem> {
    open_with(device, &options(false))
}

pub fn volume(fs: &Arc<FileSystem>) -> Volume {
    Volume::from(fs.clone())
}

/// The files of a snapshot of a closed or killed volume.
pub fn of_snapshot(device: &Arc<MemoryDevice>, name: &str) -> Result<Vec<Seen>, Error> {
    let options = Options {
        read_only: true,
        root: Some(name.into()),
        ..options(false)
    };
    let fs = FileSystem::open_device(device.clone(), &options)?;
    Ok(tree(&fs))
}

/// The contents of one file of a snapshot.
fn file_of(device: &Arc<MemoryDevice>, name: &str, path: &str) -> Vec<u8> {
    let state = of_snapshot(device, name).unwrap();
    let found = state.into_iter().find(|(at, ..)| at == path);
    found.unwrap().2
}

fn set_len(v: &Volume, path: &str, len: u64) -> Result<(), Error> {
    v.open_with(path, OpenOptions::new().write(true))?
        .set_len(len)
}

/// Drops a volume without closing it, as a kill does.
pub fn kill(fs: Arc<FileSystem>) {
    std::mem::forget(fs);
}

/// A read-only opening shows the roots that only the log has, too.
#[test]
fn snapshot_keeps_files_through_changes_kill_and_merge() {
    let device = fresh(64 * MIB);
    let fs = open(&device);
    let v = volume(&fs);
    v.write("kept", vec![1; 20_000]).unwrap();
    v.write("small", "inline").unwrap();
    v.set_xattr("small", "user.long", [7; 5000]).unwrap();
    let before = tree(&fs);
    v.snapshot("first").unwrap();
    v.write("kept", vec![2; 20_000]).unwrap();
    v.write("new", "later").unwrap();
    v.remove_file("small").unwrap();
    let after = tree(&fs);
    fs.sync().unwrap();
    assert_sound(&*device, "pending in the log");
    assert_eq!(of_snapshot(&device, "first").unwrap(), before);
    kill(fs);
    let fs = open(&device);
    assert_eq!(tree(&fs), after);
    assert_sound(&*device, "after replay");
    fs.merge().unwrap();
    assert_sound(&*device, "after the merge");
    fs.close().unwrap();
    assert_eq!(of_snapshot(&device, "first").unwrap(), before);
}

#[test]
fn names_are_checked_and_unique() {
    let device = fresh(64 * MIB);
    let fs = open(&device);
    for name in ["", "a/b", "a@b", "-a", "a\nb"] {
        assert!(
            matches!(fs.snapshot(name), Err(Error::Invalid(_))),
            "{name}"
        );
    }
    assert!(matches!(fs.snapshot("main"), Err(Error::Exists)));
    fs.snapshot("a").unwrap();
    assert!(matches!(fs.snapshot("a"), Err(Error::Exists)), "pending");
    fs.merge().unwrap();
    assert!(matches!(fs.snapshot("a"), Err(Error::Exists)), "merged");
    let infos = fs.roots();
    let told: Vec<_> = infos
        .iter()
        .map(|root| (root.id, root.name.as_deref(), root.parent, root.writable))
        .collect();
    assert_eq!(
        told,
        [
            (1, Some("main"), Some(2), true),
            (2, Some("a"), None, false)
        ]
    );
    fs.close().unwrap();
    assert!(matches!(
        of_snapshot(&device, "b"),
        Err(Error::NoSnapshot(_))
    ));
}

/// A refused snapshot uses an id up at most; no later root gets one again.
#[test]
fn ids_are_not_reused() {
    let device = fresh(64 * MIB);
    let mut last = 1;
    for round in 0..4 {
        let fs = open(&device);
        fs.snapshot(&format!("s{round}")).unwrap();
        let id = fs.roots().last().unwrap().id;
        assert!(id > last, "{id} after {last}");
        last = id;
        match round % 2 {
            0 => kill(fs),
            _ => fs.close().unwrap(),
        }
    }
}

/// Changes of roots with commits between them are boundaries of their own, although one merge brings
/// them into the index.
#[test]
fn two_snapshots_one_merge() {
    let device = fresh(64 * MIB);
    let fs = open(&device);
    let v = volume(&fs);
    let mut states = Vec::new();
    for round in 0..3_u8 {
        v.write("file", vec![round; 9000]).unwrap();
        v.write(format!("file{round}"), vec![round; 5000]).unwrap();
        v.snapshot(&format!("s{round}")).unwrap();
        states.push(tree(&fs));
    }
    fs.merge().unwrap();
    kill(fs);
    assert_sound(&*device, "killed");
    for (round, state) in states.iter().enumerate() {
        assert_eq!(of_snapshot(&device, &format!("s{round}")).unwrap(), *state);
    }
}

#[test]
fn snapshot_of_empty_context() {
    let device = fresh(64 * MIB);
    let fs = open(&device);
    let v = volume(&fs);
    v.write("a", vec![1; 9000]).unwrap();
    fs.merge().unwrap();
    for name in ["one", "two"] {
        v.snapshot(name).unwrap();
    }
    v.write("a", vec![2; 9000]).unwrap();
    fs.merge().unwrap();
    assert_sound(&*device, "merged");
    fs.close().unwrap();
    for name in ["one", "two"] {
        assert_eq!(file_of(&device, name, "/a"), [1; 9000], "{name}");
    }
}

/// Nothing that was used only after the last snapshot stays in use.
#[test]
fn blocks_born_after_a_snapshot_are_freed() {
    let device = fresh(64 * MIB);
    let fs = open(&device);
    let v = volume(&fs);
    v.write("kept", vec![1; 40 * BLOCK_SIZE]).unwrap();
    v.snapshot("s").unwrap();
    fs.merge().unwrap();
    let free = fs.statfs().free;
    v.write("kept", vec![2; 40 * BLOCK_SIZE]).unwrap();
    v.write("more", vec![3; 40 * BLOCK_SIZE]).unwrap();
    fs.merge().unwrap();
    assert!(fs.statfs().free <= free - 80);
    v.remove_file("kept").unwrap();
    v.remove_file("more").unwrap();
    fs.merge().unwrap();
    fs.merge().unwrap();
    let lost = free - fs.statfs().free;
    // The leaf and the root of the tree that the snapshot does not have.
    assert!(lost <= 8, "{lost} blocks");
    fs.close().unwrap();
    assert_sound(&*device, "closed");
    assert!(file_of(&device, "s", "/kept") == [1; 40 * BLOCK_SIZE]);
}

/// Appends make new extents of their own behind what a snapshot has.
#[test]
fn join_across_boundary() {
    let device = fresh(64 * MIB);
    let fs = open(&device);
    let v = volume(&fs);
    let append = |byte: u8| {
        let mut file = v
            .open_with("log", OpenOptions::new().append(true).create(true))
            .unwrap();
        std::io::Write::write_all(&mut file, &[byte; BLOCK_SIZE]).unwrap();
        file.sync_all().unwrap();
    };
    (0..3).for_each(append);
    v.snapshot("s").unwrap();
    (3..6).for_each(append);
    fs.merge().unwrap();
    assert_sound(&*device, "merged");
    let free = fs.statfs().free;
    set_len(&v, "log", 0).unwrap();
    fs.merge().unwrap();
    fs.merge().unwrap();
    assert_eq!(fs.statfs().free, free + 3, "the blocks appended since");
    fs.close().unwrap();
    assert_sound(&*device, "truncated");
    let log = file_of(&device, "s", "/log");
    let expected: Vec<u8> = (0..3).flat_map(|byte| [byte; BLOCK_SIZE]).collect();
    assert!(log == expected);
}

/// Preallocated blocks of a snapshot are not written.
#[test]
fn unwritten_blocks_of_a_snapshot_are_not_written() {
    let device = fresh(64 * MIB);
    let fs = open(&device);
    let v = volume(&fs);
    let file = v.create_file("file").unwrap();
    let ino = fs.lookup(1, b"file").unwrap().ino;
    let what = Fallocate::Allocate { keep_size: false };
    fs.fallocate(ino, 0, 8 * BLOCK, what, false).unwrap();
    fs.write(ino, 0, &[1; 4096], false).unwrap();
    v.snapshot("s").unwrap();
    fs.write(ino, BLOCK, &[2; 4096], false).unwrap();
    fs.sync().unwrap();
    fs.merge().unwrap();
    assert_sound(&*device, "merged");
    drop(file);
    kill(fs);
    let of_file = |byte: u8| [vec![1; 4096], vec![byte; 4096], vec![0; 6 * 4096]].concat();
    assert!(file_of(&device, "s", "/file") == of_file(0));
    let fs = open(&device);
    assert!(volume(&fs).read("file").unwrap() == of_file(2));
    fs.close().unwrap();
    assert_sound(&*device, "closed");
}

/// What the log replaced and a snapshot holds is not freed by a replay.
#[test]
fn replaced_in_log_held_by_snapshot() {
    let device = fresh(64 * MIB);
    let fs = open(&device);
    let v = volume(&fs);
    v.write("file", vec![1; 8 * BLOCK_SIZE]).unwrap();
    v.snapshot("s").unwrap();
    fs.merge().unwrap();
    let ino = fs.lookup(1, b"file").unwrap().ino;
    // Parts of the snapshot's extent are put, and replaced later in the same log.
    for block in [2, 5, 3] {
        fs.write(ino, block * BLOCK, &[9; 4096], false).unwrap();
        fs.fsync(ino, false).unwrap();
    }
    kill(fs);
    let fs = open(&device);
    fs.merge().unwrap();
    let v = volume(&fs);
    // Freed blocks would be used again.
    v.write("other", vec![7; 4 << 20]).unwrap();
    fs.merge().unwrap();
    fs.close().unwrap();
    assert_sound(&*device, "closed");
    assert!(file_of(&device, "s", "/file") == [1; 8 * BLOCK_SIZE]);
}

/// A snapshot takes the space that later changes of the index may need, or is refused; so a full
/// volume accepts every removal and merges it.
#[test]
fn full_volume_with_snapshot_allows_removals() {
    let device = fresh(64 * MIB);
    let fs = open(&device);
    let v = volume(&fs);
    let name = |n: u32| format!("d{}/file-with-a-long-name-{n}", n % 7);
    for dir in 0..7 {
        v.create_dir(format!("d{dir}")).unwrap();
    }
    let files = 24_000;
    (0..files).for_each(|n| v.write(name(n), "small").unwrap());
    v.write("spare", vec![1; 12 << 20]).unwrap();
    fs.merge().unwrap();
    let fill = || {
        let mut rest = v.create_file(format!("rest{}", fs.statfs().free)).unwrap();
        while std::io::Write::write_all(&mut rest, &[9; 65_536]).is_ok() {}
        fs.sync().unwrap();
    };
    fill();
    let refused = v.snapshot("s").unwrap_err();
    assert!(matches!(refused, Error::NoSpace), "{refused:?}");
    v.remove_file("spare").unwrap();
    v.snapshot("s").unwrap();
    fill();
    // Each leaf changes, and none of those that the snapshot has is freed.
    for n in (0..files).step_by(3) {
        v.remove_file(name(n)).unwrap();
        if n % 6000 == 0 {
            fs.merge().unwrap();
        }
    }
    fs.merge().unwrap();
    (0..files)
        .filter(|n| n % 3 > 0)
        .for_each(|n| v.remove_file(name(n)).unwrap());
    fs.close().unwrap();
    assert_sound(&*device, "closed");
    let kept = of_snapshot(&device, "s").unwrap();
    assert!(kept.len() > files as usize);
}

/// What a head keeps for copies of nodes that it inherits is the same after an opening: nodes that
/// were copied before are its own. So files can be removed on a full volume then, too.
/// Contract: failure.removal
#[test]
fn full_volume_with_snapshot_allows_removals_when_opened_again() {
    for (kills, files) in [(false, 2000), (true, 2000), (true, 5000)] {
        let device = fresh(64 * MIB);
        let fs = open(&device);
        let v = volume(&fs);
        let name = |n: u32| format!("file-{n}");
        (0..files).for_each(|n| v.write(name(n), "small").unwrap());
        v.snapshot("s").unwrap();
        // Each leaf is copied.
        (0..files).for_each(|n| v.write(name(n), "other").unwrap());
        fs.merge().unwrap();
        for (rest, len) in [("rest", 65_536), ("more", 4096), ("last", 1)] {
            // The volume may be too full for its name by then.
            let Ok(mut rest) = v.create_file(rest) else {
                break;
            };
            while std::io::Write::write_all(&mut rest, &vec![9; len]).is_ok() {}
        }
        fs.sync().unwrap();
        v.remove_file(name(1)).unwrap();
        let open_file = v.open_with(name(2), OpenOptions::new().read(true)).unwrap();
        v.remove_file(name(2)).unwrap();
        fs.sync().unwrap();
        if kills {
            std::mem::forget((v, open_file));
            kill(fs);
        } else {
            drop(open_file);
            fs.close().unwrap();
        }
        let fs = open(&device);
        let v = volume(&fs);
        v.remove_file("rest").unwrap();
        (3..files).for_each(|n| v.remove_file(name(n)).unwrap());
        fs.close().unwrap();
        assert_sound(&*device, "closed");
        assert!(of_snapshot(&device, "s").unwrap().len() >= files as usize);
    }
}

/// A generator of numbers that are the same in each run.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

pub fn random_change(v: &Volume, fs: &FileSystem, numbers: &mut Numbers) {
    let name = format!("d{}/f{}", numbers.below(3), numbers.below(12));
    let byte = numbers.below(256) as u8;
    let _ = match numbers.below(9) {
        0..=2 => {
            let len = [10, 2000, 5000, 70_000][numbers.below(4) as usize];
            v.write(&name, vec![byte; len])
        }
        3 => v.remove_file(&name),
        4 => set_len(v, &name, numbers.below(40_000)),
        5 => {
            let value = vec![byte % 4; 3000 + 3000 * usize::from(byte % 2)];
            v.set_xattr(&name, format!("user.{}", byte % 3), &value)
        }
        6 => v.rename(&name, format!("d{}/f{}", byte % 3, byte % 12)),
        7 => {
            let mut options = OpenOptions::new();
            let file = v.open_with(&name, options.append(true).create(true));
            file.and_then(|mut file| {
                std::io::Write::write_all(&mut file, &vec![byte; 6000])?;
                Ok(())
            })
        }
        _ => match v.metadata(&name) {
            Ok(found) => {
                let (from, len) = (numbers.below(8) * BLOCK, (1 + numbers.below(4)) * BLOCK);
                let what = match byte % 2 {
                    0 => Fallocate::Allocate { keep_size: true },
                    _ => Fallocate::PunchHole,
                };
                fs.fallocate(found.ino(), from, len, what, false)
            }
            Err(e) => Err(e),
        },
    };
}

/// A volume under random changes, with small caches, and merges in small steps for odd seeds.
pub struct Changing {
    pub seed: u64,
    pub numbers: Numbers,
    pub device: Arc<MemoryDevice>,
    pub options: Options,
    pub fs: Arc<FileSystem>,
    /// The snapshots, and what they must show.
    pub states: Vec<(String, Vec<Seen>)>,
}

impl Changing {
    pub fn new(seed: u64) -> Self {
        let (device, options) = (fresh(64 * MIB), pressed_options(seed));
        let fs = open_with(&device, &options);
        for dir in 0..3 {
            volume(&fs).create_dir(format!("d{dir}")).unwrap();
        }
        Self {
            seed,
            numbers: Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            device,
            options,
            fs,
            states: Vec::new(),
        }
    }

    pub fn snapshot(&mut self, step: u32) {
        let name = format!("s{step}");
        volume(&self.fs).snapshot(&name).unwrap();
        self.states.push((name, tree(&self.fs)));
    }

    /// Syncs, kills, and opens again what must be sound and as before.
    pub fn kill(mut self, step: u32) -> Self {
        self.fs.sync().unwrap();
        let before = tree(&self.fs);
        kill(self.fs);
        assert_sound(&*self.device, "killed");
        self.fs = open_with(&self.device, &self.options);
        assert!(tree(&self.fs) == before, "seed {}, step {step}", self.seed);
        self
    }

    pub fn change(&mut self) {
        random_change(&volume(&self.fs), &self.fs, &mut self.numbers);
    }

    /// Asserts that the closed volume has the snapshots as they were made.
    pub fn assert_states(&self) {
        for (name, state) in &self.states {
            let found = of_snapshot(&self.device, name).unwrap();
            assert!(found == *state, "seed {}, snapshot {name}", self.seed);
        }
    }
}

/// Random changes, snapshots, merges and kills, with merges in small steps for odd seeds: each
/// snapshot keeps its state, and an independent count finds every block in use.
/// Contract: snapshot
#[test]
fn random_histories_keep_snapshots() {
    for seed in 1..=12 {
        let mut run = Changing::new(seed);
        for step in 0..400 {
            match run.numbers.below(40) {
                0 | 1 => run.snapshot(step),
                2 => run.fs.merge().unwrap(),
                3 => run.fs.sync().unwrap(),
                4 => run = run.kill(step),
                _ => run.change(),
            }
        }
        run.fs.close().unwrap();
        assert_sound(&*run.device, "closed");
        run.assert_states();
        assert!(run.states.len() > 5, "seed {seed}");
    }
}
