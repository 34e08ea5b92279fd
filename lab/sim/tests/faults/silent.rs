//! Silent faults: a write is lost, misdirected or corrupted, a flush does nothing, a read is
//! corrupted.
//!
//! After each fault the volume is correct, or damage is reported: by a call, by the next open, or
//! to a reader. The module documentation of `main.rs` describes the one undetectable case.
//!
//! Contract: rot, failure.write

use std::sync::Arc;

use cairnfs::fs::FileSystem;
use cairnfs_sim::disk::{Event, Fault, Hit, Kind, SimDisk};
use cairnfs_sim::image::{BLOCK, Image};
use cairnfs_sim::model::Moment;
use cairnfs_sim::record::{Recording, options};
use cairnfs_sim::tree::{Tree, Unreadable};
use cairnfs_sim::workload::{Runner, record};
use cairnfs_tier::size;

use crate::support::{
    Count, Told, Workload, every_step, is_failure, long_truncations, random, reopen, seeds, sound,
    trees, used,
};

/// Number of crash states tried after a fault.
const STATES: usize = 4;

/// The consequence of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Harmless,
    Detected,
    /// Undetectable: what the last flush covered is lost.
    Unknowable,
}

/// The areas in which a fault may leave a volume that looks like an older one.
struct Layout {
    log: std::ops::Range<u64>,
}

impl Layout {
    fn of(image: &Image) -> Self {
        let disk = Arc::new(SimDisk::new(image.clone(), false));
        let info = FileSystem::open_device(disk, &options(5)).unwrap().info();
        let start = cairnfs_disk::format::geometry::LOG_START * BLOCK as u64;
        Self {
            log: start..start + info.log_size,
        }
    }

    /// Whether the offset is in the log, or in a superblock before it.
    fn tells_of_time(&self, offset: u64) -> bool {
        offset < self.log.end
    }
}

/// Whether a log record was written after the affected write and before the next flush. If the
/// write is data that the record covers, recovery takes the record for one of an unfinished fsync.
fn covered(recording: &Recording, layout: &Layout, hit: &Hit) -> bool {
    let until_flush = recording.events().iter().skip(hit.event);
    let mut writes = until_flush.map_while(|event| match event {
        Event::Write { offset, .. } => Some(*offset),
        Event::Flush => None,
    });
    writes.any(|offset| layout.tells_of_time(offset))
}

/// What must survive in spite of the fault: everything promised before the last write of a log
/// record or superblock, because that write records it.
fn known(recording: &Recording, layout: &Layout, hit: &Hit, until: usize) -> Moment {
    let mut last = 0;
    for (i, event) in recording.events().iter().enumerate().take(until) {
        let lie = i == hit.event && hit.kind == Kind::Write;
        if let Event::Write { offset, .. } = event
            && layout.tells_of_time(*offset)
            && !lie
        {
            last = i;
        }
    }
    Moment {
        promises: recording.moment(last).promises,
        ..recording.moment(until)
    }
}

/// Whether a recovered volume is correct, or reports damage. The offline check may find damage that
/// no reader meets, but no reader may depend on the check.
fn judge(
    recording: &Recording,
    image: &Image,
    moments: (Moment, Option<Moment>),
) -> Result<End, String> {
    let Some(tree) = open_and_read(Arc::new(SimDisk::new(image.clone(), false)))? else {
        return Ok(End::Detected);
    };
    match (verify(recording, &tree, moments)?, sound(image)) {
        (End::Harmless, Err(_)) => Ok(End::Detected),
        (end, _) => Ok(end),
    }
}

fn verify(
    recording: &Recording,
    tree: &Tree,
    (end, known): (Moment, Option<Moment>),
) -> Result<End, String> {
    match (recording.verify(tree, end), known) {
        (Ok(()), _) => Ok(End::Harmless),
        (Err(v), None) => Err(format!("silent: {v}")),
        (Err(_), Some(known)) => match recording.verify(tree, known) {
            Ok(()) => Ok(End::Unknowable),
            Err(v) => Err(format!("silent, and knowable: {v}")),
        },
    }
}

/// The tree; `None` if damage was reported.
fn open_and_read(disk: Arc<SimDisk>) -> Result<Option<Tree>, String> {
    let fs = match FileSystem::open_device(disk.clone(), &options(77)) {
        Ok(fs) => fs,
        Err(e) if is_failure(&e) => return Ok(None),
        Err(e) => return Err(format!("opening: {e}")),
    };
    let tree = Tree::read(&fs);
    disk.cut();
    match tree {
        Ok(tree) => Ok(Some(tree)),
        Err(Unreadable::Failed(_, e)) if is_failure(&e) => Ok(None),
        Err(e) => Err(format!("reading: {e}")),
    }
}

/// Runs a workload with a fault in the `n`-th call; `None` if there are fewer calls.
fn run(
    work: &Workload,
    trees: &[Tree],
    (kind, n, fault): (Kind, u64, Fault),
    count: &mut Count,
) -> Option<()> {
    let disk = Arc::new(SimDisk::new(work.start.clone(), true));
    let layout = Layout::of(&work.start);
    let mut closed = None;
    let (recording, told) = Recording::on(&disk, &options(4), |fs| {
        disk.plan(kind, n, fault);
        let mut runner = Runner::new(fs);
        for step in &work.steps {
            if let Err(e) = runner.run(step)
                && is_failure(&e)
            {
                return true;
            }
        }
        let kept = (disk.image(), disk.recorded());
        let live = Tree::read(fs);
        let told = match (&live, trees.last()) {
            (Ok(tree), Some(right)) => {
                assert_eq!(tree, right, "the running volume");
                false
            }
            _ => true,
        };
        closed = Some((kept, fs.close().is_err()));
        told
    })
    .unwrap();
    let hit = disk.hit()?;
    let what = (fault, kind);
    let Some(((killed, until), told_at_close)) = closed.filter(|_| !told) else {
        count.add((what, End::Detected, "by a call"), 1);
        let _ = reopen(&disk.image());
        return Some(());
    };
    let blind = match hit.kind {
        Kind::Flush => true,
        Kind::Write => layout.tells_of_time(hit.offset) || covered(&recording, &layout, &hit),
        _ => false,
    };
    let end = recording.moment(until);
    let least = blind.then(|| known(&recording, &layout, &hit, until));
    let moments = (end, least);
    let result = judge(&recording, &killed, moments)
        .map_err(|e| format!("killed: {e}"))
        .unwrap();
    count.add((what, result), 1);
    if !told_at_close {
        let result = judge(&recording, &disk.image(), (end, None));
        let result = result.map_err(|e| format!("closed: {e}")).unwrap();
        count.add((what, "closed", result), 1);
    }
    if kind == Kind::Flush {
        crash(&recording, &hit, count);
    }
    Some(())
}

/// Makes the power fail after the fault.
fn crash(recording: &Recording, hit: &Hit, count: &mut Count) {
    let events = recording.events();
    // Up to the next flush, which really makes durable what the faulty one claimed, or to the last
    // event.
    let later = events.iter().skip(hit.event);
    let reach = later
        .take_while(|e| matches!(e, Event::Write { .. }))
        .count();
    // A promise made since without an event may depend on the faulty call.
    let before = recording.moment(hit.event.saturating_sub(1)).promises;
    let mut cursor = recording.cursor();
    for event in hit.event..=hit.event + reach {
        cursor.step_to(event);
        let choices = cursor.choices(true);
        let step = choices.len().div_ceil(STATES).max(1);
        let moment = recording.moment(event);
        let known = Moment {
            promises: before.min(moment.promises),
            ..moment
        };
        for fates in choices.iter().step_by(step) {
            let image = cursor.image(fates);
            let result = judge(recording, &image, (moment, Some(known)));
            let result = result
                .map_err(|e| format!("power cut at {event}, {fates:?}: {e}"))
                .unwrap();
            count.add(("lost flush, power cut", result), 1);
        }
    }
}

const LIES: [(Kind, Fault); 5] = [
    (Kind::Read, Fault::Rot),
    (Kind::Write, Fault::Lost),
    (Kind::Write, Fault::Misdirected),
    (Kind::Write, Fault::Rot),
    (Kind::Flush, Fault::Lost),
];

fn all(work: &Workload, lies: &[(Kind, Fault)], step: usize, count: &mut Count) {
    let trees = trees(work);
    for (kind, fault) in lies.iter().copied() {
        for n in (0..).step_by(step) {
            let told = Told::new(format!("{}: {kind:?} {n} {fault:?}", work.name));
            let hit = run(work, &trees, (kind, n, fault), count);
            told.well();
            if hit.is_none() {
                break;
            }
        }
    }
}

#[test]
fn silent_disk_fault_never_returns_wrong_data() {
    let mut count = Count::default();
    all(&every_step(), &LIES, size(5, 1), &mut count);
    all(&long_truncations(), &LIES, size(15, 2), &mut count);
    for seed in seeds(1, 2) {
        all(&random(seed, 120), &LIES, size(17, 5), &mut count);
        all(&used(seed), &LIES[..1], size(9, 1), &mut count);
    }
    count.print("lies");
}

#[test]
fn corrupt_read_during_open_never_returns_wrong_data() {
    let mut count = Count::default();
    let mut work = vec![every_step()];
    work.extend(seeds(1, 2).map(|seed| random(seed, 150)));
    for work in &work {
        let recording = record(work.start.clone(), &work.steps).unwrap();
        let events = recording.events().len();
        let mut cursor = recording.cursor();
        cursor.step_to(events);
        let image = cursor.image(cursor.choices(true).last().unwrap());
        let end = recording.moment(events);
        let layout = Layout::of(&work.start);
        for n in 0.. {
            let told = Told::new(format!("{}: opening: read {n} rots", work.name));
            let disk = Arc::new(SimDisk::new(image.clone(), false));
            disk.plan(Kind::Read, n, Fault::Rot);
            let opened = open_and_read(disk.clone()).unwrap();
            let Some(hit) = disk.hit() else {
                told.well();
                break;
            };
            let blind = layout.tells_of_time(hit.offset);
            let least = blind.then(|| known(&recording, &layout, &hit, events));
            let result = match opened {
                None => End::Detected,
                Some(tree) => verify(&recording, &tree, (end, least)).unwrap(),
            };
            count.add(result, 1);
            told.well();
        }
    }
    count.print("rotten reads while opening");
}
