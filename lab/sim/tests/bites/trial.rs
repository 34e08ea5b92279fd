//! Trials: run a workload with an injected fault, and count the states until one is wrong.

use std::collections::HashSet;
use std::sync::Arc;

use cairnfs::fs::{FileSystem, MakeOptions, Options, Pressure, make_device};
use cairnfs_check::{CheckOptions, check};
use cairnfs_disk::fault::{InjectedFault, made, within};
use cairnfs_sim::disk::{Event, Fault, Kind, SimDisk};
use cairnfs_sim::explore::replay;
use cairnfs_sim::image::{BLOCK, Image};
use cairnfs_sim::record::{Recording, VOLUME_SIZE, fresh_volume, options};
use cairnfs_sim::states::{Cursor, Fate, StateId, mix};
use cairnfs_sim::tree::Tree;
use cairnfs_sim::whole::History;
use cairnfs_sim::workload::{
    Runner, Step, after, base_steps, base_volume, record, record_as, steps,
};
use cairnfs_tier::size;

/// When an injected fault is active.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum During {
    /// While the run is recorded.
    Run,
    /// While states are recovered.
    Recovery,
    /// All the time.
    Both,
}

/// The result of a trial.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Number of states tried.
    pub tried: u64,
    /// How often the fault was injected.
    pub made: u64,
    /// The first problem found.
    pub caught: Option<String>,
}

/// The injected faults, and when they are active.
#[derive(Clone, Copy)]
pub struct Faults<'a>(pub &'a [InjectedFault], pub During);

impl Faults<'_> {
    /// Runs `f` as the recorded run.
    fn run<R>(&self, f: impl FnOnce() -> R) -> R {
        within(
            if self.1 == During::Recovery {
                &[]
            } else {
                self.0
            },
            f,
        )
    }

    /// One of this many states is tried. Until a fault shows, all are; of the correct engine the
    /// short tier tries some, because `crash` tries it with more.
    fn one_in(&self) -> u64 {
        if self.0.is_empty() { size(4, 1) } else { 1 }
    }

    /// Runs `f` as a recovery.
    fn recover<R>(&self, f: impl FnOnce() -> R) -> R {
        within(if self.1 == During::Run { &[] } else { self.0 }, f)
    }
}

/// Runs a trial, and counts how often the fault was injected.
fn trial(f: impl FnOnce(&mut u64) -> Result<(), String>) -> Outcome {
    let before = made();
    let mut tried = 0;
    let caught = f(&mut tried).err();
    Outcome {
        tried,
        made: made() - before,
        caught,
    }
}

/// A volume whose log has room for a context of more than one record.
pub fn long_log() -> Image {
    let disk = SimDisk::new(Image::new(48 << 20), false);
    let make = MakeOptions {
        seed: Some(1),
        log_size: Some(16 << 20),
        ..MakeOptions::default()
    };
    make_device(&disk, &make, &mut |_, _| {}).unwrap();
    after(disk.image(), &base_steps()).unwrap()
}

/// A volume so full that a merge needs several steps.
pub fn full() -> Image {
    let mut all = base_steps();
    all.push(Step::Create("full".into()));
    let room = |image: &Image| read_only(image).unwrap().statfs().available;
    let blocks = room(&base()) - FREE;
    all.push(Step::Reserve("full".into(), 0, blocks * BLOCK as u64));
    after(fresh_volume(VOLUME_SIZE).unwrap(), &all).unwrap()
}

/// Records steps, none of which may be refused, with a cache large enough for contexts of several
/// records.
fn recorded(volume: Image, steps: &[Step]) -> cairnfs::Result<Recording> {
    let roomy = Options {
        cache_budget: 64 << 20,
        ..options(4)
    };
    Recording::of(volume, &roomy, |fs| {
        let mut runner = Runner::new(fs);
        steps.iter().try_for_each(|step| runner.run(step))
    })
}

/// Tries the states that a power failure may leave of these steps, until one is wrong.
pub fn cuts(faults: Faults<'_>, volume: Image, steps: &[Step]) -> Outcome {
    trial(|tried| {
        let recording = faults.run(|| recorded(volume, steps));
        let recording = recording.map_err(|e| format!("the run stops: {e}"))?;
        cut(faults, &recording, faults.one_in(), tried)
    })
}

/// As [`cuts`], with merges that handle one key at a time.
pub fn key_by_key(faults: Faults<'_>, volume: Image, steps: &[Step]) -> Outcome {
    let pressure = Some(Pressure::steps(0, 1));
    let options = Options {
        pressure,
        ..options(4)
    };
    trial(|tried| {
        let recording = faults.run(|| record_as(volume, steps, &options, 0));
        let recording = recording.map_err(|e| format!("the run stops: {e}"))?;
        cut(faults, &recording, faults.one_in(), tried)
    })
}

/// Tries states of a history of calls on whole roots.
pub fn roots(faults: Faults<'_>, text: &str) -> Outcome {
    trial(|tried| {
        let start = fresh_volume(VOLUME_SIZE).map_err(|e| e.to_string())?;
        let history = faults.run(|| History::record(start, &options(4), text))?;
        let tally = faults.recover(|| history.explore(1000 / faults.one_in()));
        *tried = tally.states;
        match tally.failures.first() {
            Some(failure) => Err(failure.to_string()),
            None => Ok(()),
        }
    })
}

/// As [`cuts`], with about `most` of the states; refused steps are skipped.
pub fn sampled(faults: Faults<'_>, volume: Image, steps: &[Step], most: u64) -> Outcome {
    trial(|tried| {
        let recording = faults.run(|| record(volume, steps));
        let recording = recording.map_err(|e| format!("the run stops: {e}"))?;
        let mut all = 0;
        each_choice(
            recording.cursor(),
            &|e| recording.promises_more(e),
            |_, _| {
                all += 1;
                Ok(())
            },
        )?;
        cut(faults, &recording, all / most, tried)
    })
}

/// Tries one of this many states.
fn cut(
    faults: Faults<'_>,
    recording: &Recording,
    one_in: u64,
    tried: &mut u64,
) -> Result<(), String> {
    let mut seen = HashSet::new();
    let more = |event| recording.promises_more(event);
    each_choice(recording.cursor(), &more, |id, image| {
        let chance = mix(id.event.into(), id.choice.into());
        if !chance.is_multiple_of(one_in.max(1)) {
            return Ok(());
        }
        let moment = recording.moment(id.event as usize);
        if !seen.insert((image().digest(), moment)) {
            return Ok(());
        }
        *tried += 1;
        let judged = faults.recover(|| replay(recording, &[id]));
        judged.map_err(|what| format!("state {id}: {what}"))
    })
}

/// Calls the function with every choice at every event.
fn each_choice(
    mut cursor: Cursor<'_>,
    more: &dyn Fn(usize) -> bool,
    mut each: impl FnMut(StateId, &dyn Fn() -> Image) -> Result<(), String>,
) -> Result<(), String> {
    loop {
        let event = cursor.at();
        for (choice, fates) in cursor.choices(more(event)).iter().enumerate() {
            let id = StateId {
                event: event as u32,
                choice: choice as u32,
            };
            each(id, &|| cursor.image(fates))?;
        }
        if !cursor.step() {
            return Ok(());
        }
    }
}

/// The steps of a process until it is killed; the disk's cache survives.
#[derive(Clone, Copy)]
pub struct Life {
    /// Its steps.
    pub steps: &'static str,
    /// Whether it is killed in the first flush of the last step instead of after the step.
    pub killed_in_flush: bool,
}

/// Runs several processes one after another on one disk; then the power fails. Each state must be
/// sound, must open, and must show the same tree when it is opened again.
pub fn lives(faults: Faults<'_>, volume: Image, all: &[Life]) -> Outcome {
    trial(|tried| {
        let events = faults.run(|| live(volume.clone(), all))?;
        let mut seen = HashSet::new();
        let cursor = Cursor::new(volume, &events);
        each_choice(cursor, &|_| false, |id, image| {
            let image = image();
            if !seen.insert(image.digest()) {
                return Ok(());
            }
            *tried += 1;
            let settled = faults.recover(|| settles(image));
            settled.map_err(|what| format!("state {id}: {what}"))
        })
    })
}

fn live(volume: Image, lives: &[Life]) -> Result<Vec<Event>, String> {
    let disk = Arc::new(SimDisk::new(volume, true));
    for (n, life) in (10..).zip(lives) {
        let stops = |e| format!("the run stops: {e}");
        let fs = FileSystem::open_device(disk.clone(), &options(n)).map_err(stops)?;
        let all = steps(life.steps).unwrap();
        let mut runner = Runner::new(&fs);
        for (i, step) in all.iter().enumerate() {
            let last = life.killed_in_flush && i + 1 == all.len();
            if last {
                disk.plan(Kind::Flush, 0, Fault::Gone);
            }
            assert_eq!(runner.run(step).is_err(), last, "{step}");
        }
        disk.cut();
        drop(fs);
        disk.mend();
    }
    Ok(disk.take_events())
}

/// Opens a volume and leaves it as a kill does; returns its tree and the disk.
fn opened(image: Image) -> Result<(Tree, Image), String> {
    let disk = Arc::new(SimDisk::new(image, false));
    let seed = disk.image().digest();
    let fs = FileSystem::open_device(disk.clone(), &options(seed))
        .map_err(|e| format!("does not open: {e}"))?;
    let tree = Tree::read(&fs).map_err(|e| e.to_string())?;
    disk.cut();
    Ok((tree, disk.image()))
}

fn settles(image: Image) -> Result<(), String> {
    let disk = SimDisk::new(image.clone(), false);
    let report = check(&disk, &CheckOptions { data: true }, &mut |_| {})
        .map_err(|e| format!("cannot be checked: {e}"))?;
    if let Some(first) = report.findings.first() {
        return Err(format!("unsound: {}", first.message));
    }
    let (first, after) = opened(image)?;
    if first == tree_of(&after)? {
        Ok(())
    } else {
        Err("opened again, it holds something else".into())
    }
}

/// Where bits are flipped.
#[derive(Clone, Copy)]
pub enum Rot {
    /// In contents of files and in index nodes.
    Data,
    /// In the log except its newest record: damage to that cannot be distinguished from a write
    /// that was lost.
    Log,
    /// In the log, after a sync that has stated that it is durable.
    StatedLog,
    /// The same, when everything before the log is lost as well.
    LogWithoutFront,
}

/// Flips a bit in a few bytes of each block that these steps leave, one at a time: reading must
/// return an error or the same tree.
pub fn rot(faults: Faults<'_>, volume: Image, steps: &[Step], place: Rot) -> Outcome {
    trial(|tried| {
        let recording = faults.run(|| recorded(volume, steps)).unwrap();
        let mut cursor = recording.cursor();
        while cursor.step() {}
        let image = cursor.image(&vec![Fate::Kept; cursor.pending()]);
        let sound = tree_of(&image)?;
        for block in used_blocks(&image, place) {
            for byte in used_bytes(&image, block) {
                *tried += 1;
                let mut rotten = image.clone();
                rotten.alter(block, |bytes| bytes[byte] ^= 1);
                if matches!(place, Rot::LogWithoutFront) {
                    (0..16).for_each(|block| rotten.alter(block, |bytes| bytes.fill(0)));
                }
                let found = faults.recover(|| tree_of(&rotten));
                if found.is_ok_and(|tree| tree != sound) {
                    return Err(format!(
                        "byte {byte} of block {block} is rotten, and was read as if it were not"
                    ));
                }
            }
        }
        Ok(())
    })
}

/// The offsets of a few nonzero bytes of a block.
fn used_bytes(image: &Image, block: u64) -> Vec<usize> {
    let mut bytes = [0; BLOCK];
    image.read(block * BLOCK as u64, &mut bytes);
    let used: Vec<usize> = (0..BLOCK).filter(|i| bytes[*i] != 0).collect();
    used.iter()
        .copied()
        .step_by(used.len().div_ceil(24).max(1))
        .collect()
}

/// The blocks that are not all zeros.
fn used_blocks(image: &Image, place: Rot) -> Vec<u64> {
    let fs = read_only(image).unwrap();
    let behind_log = 16 + fs.info().log_size / BLOCK as u64;
    let range = match place {
        Rot::Data => behind_log..image.size() / BLOCK as u64,
        Rot::Log | Rot::StatedLog | Rot::LogWithoutFront => 16..behind_log,
    };
    let used = |block: &u64| {
        let mut bytes = [0; BLOCK];
        image.read(block * BLOCK as u64, &mut bytes);
        bytes.iter().any(|b| *b != 0)
    };
    let mut blocks: Vec<u64> = range.filter(used).collect();
    if matches!(place, Rot::Log) {
        blocks.pop();
    }
    blocks
}

fn read_only(image: &Image) -> cairnfs::Result<Arc<FileSystem>> {
    let read_only = Options {
        read_only: true,
        ..options(1)
    };
    FileSystem::open_device(Arc::new(SimDisk::new(image.clone(), false)), &read_only)
}

fn tree_of(image: &Image) -> Result<Tree, String> {
    let fs = read_only(image).map_err(|e| e.to_string())?;
    Tree::read(&fs).map_err(|e| e.to_string())
}

/// Loses a log record while a later one is kept; the next mount then writes until its log ends
/// where the kept record begins. That record must not be replayed.
pub fn grafted(faults: Faults<'_>, volume: Image, steps: &[Step]) -> Outcome {
    trial(|tried| {
        let recording = recorded(volume, steps).unwrap();
        let image =
            without_first_record(&recording).ok_or("no two records are unflushed at once")?;
        let (lost_at, kept_at, image) = image;
        let disk = Arc::new(SimDisk::new(image, false));
        let fs = FileSystem::open_device(disk.clone(), &options(20)).unwrap();
        let mut runner = Runner::new(&fs);
        // The mount record took the first block.
        for n in 0..kept_at - lost_at - 1 {
            runner
                .run(&Step::Chmod(".".into(), 0o700 + n as u32 % 8))
                .unwrap();
            runner.run(&Step::Fsync(".".into())).unwrap();
        }
        disk.cut();
        drop(fs);
        *tried += 1;
        faults.recover(|| settles(disk.image()))
    })
}

/// A disk on which the first of two unflushed records is lost, and the blocks where both begin.
fn without_first_record(recording: &Recording) -> Option<(u64, u64, Image)> {
    let begins = |event: &Event| match event {
        Event::Write { offset, data } if data.get(8..12) == Some(b"CLog") => Some(offset / 4096),
        _ => None,
    };
    let mut cursor = recording.cursor();
    let mut pending: Vec<Option<u64>> = Vec::new();
    for event in recording.events() {
        cursor.step();
        match event {
            Event::Flush => pending.clear(),
            write => pending.push(begins(write)),
        }
        let records: Vec<usize> = (0..pending.len())
            .filter(|i| pending[*i].is_some())
            .collect();
        if let [first, second] = records[..] {
            let mut fates = vec![Fate::Kept; pending.len()];
            fates[first] = Fate::Dropped;
            return Some((pending[first]?, pending[second]?, cursor.image(&fates)));
        }
    }
    None
}

/// Makes each write and flush of the steps fail once; nothing may be acknowledged afterwards.
pub fn failing(faults: Faults<'_>, volume: Image, steps: &[Step]) -> Outcome {
    trial(|tried| {
        for kind in [Kind::Write, Kind::Flush] {
            for n in 0.. {
                let disk = Arc::new(SimDisk::new(volume.clone(), false));
                let fs = FileSystem::open_device(disk.clone(), &options(5)).unwrap();
                disk.plan(kind, n, Fault::Error);
                let acknowledged = faults.run(|| {
                    let mut runner = Runner::new(&fs);
                    // A step that meets the failure, or follows it, returns an error.
                    steps.iter().for_each(|step| drop(runner.run(step)));
                    fs.sync().is_ok()
                });
                if disk.hit().is_none() {
                    break;
                }
                *tried += 1;
                disk.cut();
                if acknowledged {
                    return Err(format!("{kind:?} {n} failed, and a later sync succeeded"));
                }
            }
        }
        Ok(())
    })
}

/// Makes each read of a step fail once; then the volume is synced, and the power fails.
pub fn unread(faults: Faults<'_>, volume: &Image, step: &Step) -> Outcome {
    trial(|tried| {
        for n in 0.. {
            let disk = Arc::new(SimDisk::new(volume.clone(), false));
            let fs = FileSystem::open_device(disk.clone(), &options(5)).unwrap();
            disk.plan(Kind::Read, n, Fault::Error);
            faults.run(|| {
                // The step may fail or continue.
                drop(Runner::new(&fs).run(step));
                fs.sync().unwrap();
            });
            if disk.hit().is_none() {
                break;
            }
            *tried += 1;
            disk.cut();
            settles(disk.image()).map_err(|e| format!("read {n} failed: {e}"))?;
        }
        Ok(())
    })
}

/// Creates files of `size` bytes until there is no space, and syncs; each file must be removable.
pub fn filled(faults: Faults<'_>, volume: Image, size: u32) -> Outcome {
    trial(|tried| {
        let disk = Arc::new(SimDisk::new(volume, false));
        let fs = FileSystem::open_device(disk.clone(), &options(5)).unwrap();
        let result = faults.run(|| {
            let mut runner = Runner::new(&fs);
            let names = (0..).map(|i| format!("{i}{}", "x".repeat(200)));
            let made = |runner: &mut Runner<'_>, name: &String| {
                let create = Step::Create(name.clone());
                let write = Step::Write(name.clone(), 0, size);
                runner.run(&create).is_ok() && (size == 0 || runner.run(&write).is_ok())
            };
            let made: Vec<String> = names.take_while(|name| made(&mut runner, name)).collect();
            runner.run(&Step::Sync).unwrap();
            made.iter().try_for_each(|name| {
                *tried += 1;
                let removed = runner.run(&Step::Unlink(name.clone()));
                removed.map_err(|e| format!("of {} files one is not removed: {e}", made.len()))
            })
        });
        disk.cut();
        result
    })
}

/// Number of blocks that [`full`] leaves for ordinary requests.
const FREE: u64 = 560;

/// The initial volume of most trials.
pub fn base() -> Image {
    base_volume().unwrap()
}
