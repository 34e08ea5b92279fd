//! Trials: a workload, a mistake of the engine, and how many states until something shows.

use std::collections::HashSet;
use std::sync::Arc;

use cairnfs::deliberate::{Deliberate, made, within};
use cairnfs::fs::{FileSystem, MakeOptions, make_device};
use cairnfs_check::{CheckOptions, check};
use cairnfs_sim::disk::{Event, Fault, Kind, SimDisk};
use cairnfs_sim::explore::replay;
use cairnfs_sim::image::Image;
use cairnfs_sim::record::{Recording, options};
use cairnfs_sim::states::{Cursor, Fate, StateId};
use cairnfs_sim::tree::Tree;
use cairnfs_sim::workload::{Runner, Step, base_volume, record, steps};

/// When the engine makes a mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum During {
    /// While the run is recorded.
    Run,
    /// While states are recovered.
    Recovery,
    /// All the time.
    Both,
}

/// How a trial ended.
#[derive(Debug, Default)]
pub struct Outcome {
    /// States tried.
    pub tried: u64,
    /// How often the mistake was made.
    pub made: u64,
    /// What showed first.
    pub caught: Option<String>,
}

/// Mistakes, and when they are made.
#[derive(Clone, Copy)]
pub struct Faults<'a>(pub &'a [Deliberate], pub During);

impl Faults<'_> {
    /// Runs what is recorded.
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

    /// Recovers and judges.
    fn recover<R>(&self, f: impl FnOnce() -> R) -> R {
        within(if self.1 == During::Run { &[] } else { self.0 }, f)
    }
}

/// Counts and keeps what a trial finds.
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

/// A volume with a log in which a context of more than one record has room.
pub fn long_log() -> Image {
    let disk = SimDisk::new(Image::new(48 << 20), false);
    let make = MakeOptions {
        seed: Some(1),
        log_size: Some(16 << 20),
        ..MakeOptions::default()
    };
    make_device(&disk, &make, &mut |_, _| {}).unwrap();
    disk.image()
}

/// Tries the states that a power cut may leave of these steps, until one is wrong.
pub fn cuts(faults: Faults<'_>, volume: Image, steps: &[Step]) -> Outcome {
    trial(|tried| {
        let recorded = faults.run(|| record(volume, steps));
        let recording = recorded.map_err(|e| format!("the run stops: {e}"))?;
        let mut seen = HashSet::new();
        each_choice(
            recording.cursor(),
            &|e| recording.promises_more(e),
            |id, image| {
                let moment = recording.moment(id.event as usize);
                if !seen.insert((image().digest(), moment)) {
                    return Ok(());
                }
                *tried += 1;
                let judged = faults.recover(|| replay(&recording, &[id]));
                judged.map_err(|what| format!("state {id}: {what}"))
            },
        )
    })
}

/// Every choice at every place.
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

/// What a process does until it is killed, the disk's cache staying as it is.
#[derive(Clone, Copy)]
pub struct Life {
    /// Its steps.
    pub steps: &'static str,
    /// It is killed in the first flush of the last step, not behind it.
    pub killed_in_flush: bool,
}

/// Lives one after another on one disk; then the power fails. States must be sound and must open,
/// and must be the same when they are opened again.
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

/// Opens a volume and leaves it as a kill does; its tree, and the disk.
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
    let (second, _) = opened(after)?;
    match first == second {
        true => Ok(()),
        false => Err("opened again, it holds something else".into()),
    }
}

/// Changes each data block and each block of the index that these steps leave, one at a time: what
/// is read must be an error or the same.
pub fn rot(faults: Faults<'_>, volume: Image, steps: &[Step]) -> Outcome {
    trial(|tried| {
        let recording = faults.run(|| record(volume, steps)).unwrap();
        let mut cursor = recording.cursor();
        while cursor.step() {}
        let image = cursor.image(&[Fate::Kept; 64]);
        let (sound, _) = opened(image.clone())?;
        let info = data_start(&image);
        for block in info..image.size() / 4096 {
            let mut bytes = [0; 4096];
            image.read(block * 4096, &mut bytes);
            if bytes.iter().all(|b| *b == 0) {
                continue;
            }
            *tried += 1;
            let mut rotten = image.clone();
            rotten.alter(block, |bytes| bytes[17] ^= 1);
            let found = faults.recover(|| opened(rotten));
            if found.is_ok_and(|(tree, _)| tree != sound) {
                return Err(format!(
                    "block {block} is rotten, and was read as if it were not"
                ));
            }
        }
        Ok(())
    })
}

fn data_start(image: &Image) -> u64 {
    let disk = Arc::new(SimDisk::new(image.clone(), false));
    let fs = FileSystem::open_device(disk.clone(), &options(1)).unwrap();
    disk.cut();
    16 + fs.info().log_size / 4096
}

/// A record is lost behind which another is kept; the next mount writes until its log ends where the
/// kept one begins. That one must not count again.
pub fn grafted(faults: Faults<'_>, volume: Image, steps: &[Step]) -> Outcome {
    trial(|tried| {
        let recording = record(volume, steps).unwrap();
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

/// The disk where of two unflushed records the first is lost, and the blocks where they begin.
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

/// The volume that most trials begin with.
pub fn base() -> Image {
    base_volume().unwrap()
}
