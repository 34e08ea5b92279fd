//! Recovers the states that a power cut may leave of a recorded run, and judges what comes back.
//!
//! Each state is checked offline, opened, read, and compared with the model. Of some the recovery
//! itself is recorded: the power fails again in the middle of it, and again in the recovery of that.
//! Some are opened read-only, too, which must show the same and write nothing.
//! Some are used on afterwards: everything in them is removed, and the volume must be sound and empty.
//! A caller may demand more of each state: what its own program relies on ([`Invariant`]).

use std::collections::HashSet;
use std::fmt;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cairnfs::Volume;
use cairnfs::fs::{FileSystem, Options};
use cairnfs_check::{CheckOptions, check};

use crate::disk::{Event, SimDisk};
use crate::exercise::exercise;
use crate::image::Image;
use crate::model::Moment;
use crate::record::{Recording, Returned, pressed};
use crate::states::{Cursor, StateId, mix};
use crate::tree::Tree;

/// How thoroughly states are tried.
#[derive(Debug, Clone, Copy)]
pub struct Depth {
    /// States of a recording at most; beyond, states are left out evenly.
    pub states: usize,
    /// Of one state in so many the recovery is interrupted; 0 for none.
    pub interrupted: u64,
    /// States tried of each interrupted recovery.
    pub within: usize,
    /// One state in so many is used on; 0 for none.
    pub used: u64,
}

/// One state in so many is opened read-only, too, which takes as long as a recovery.
const READ_ONLY: u64 = 4;

impl Default for Depth {
    fn default() -> Self {
        Self {
            states: usize::MAX,
            interrupted: 16,
            within: 6,
            used: 8,
        }
    }
}

/// A state whose recovery breaks the contract.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The state; more than one when recoveries were interrupted.
    pub id: Vec<StateId>,
    /// What is wrong.
    pub message: String,
}

impl Failure {
    /// The id that replays it: states joined by slashes.
    pub fn id(&self) -> String {
        joined(&self.id)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "state {}: {}", self.id(), self.message)
    }
}

/// What was tried.
#[derive(Debug, Default)]
pub struct Tally {
    /// States recovered, those of interrupted recoveries included.
    pub states: u64,
    /// Of them, states of interrupted recoveries.
    pub interrupted: u64,
    /// Of them, states that were used on.
    pub used: u64,
    /// Digests of the disks, to count those that differ.
    pub disks: HashSet<u64>,
    /// What went wrong.
    pub failures: Vec<Failure>,
}

impl Tally {
    /// Adds what another has tried.
    pub fn add(&mut self, other: Tally) {
        self.states += other.states;
        self.interrupted += other.interrupted;
        self.used += other.used;
        self.disks.extend(other.disks);
        self.failures.extend(other.failures);
    }
}

/// A crash state, as an [`Invariant`] is told of it.
#[derive(Debug, Clone, Copy)]
pub struct Crash<'a> {
    /// The id of the state, as [`Failure::id`] gives it.
    pub id: &'a str,
    /// How far the program had come.
    pub returned: Returned,
}

/// What a program relies on: told a recovered volume, it says what is wrong with it. The volume is
/// a copy, to be changed as the program does when it starts again.
pub type Invariant<'a> = &'a mut dyn FnMut(&Volume, &Crash<'_>) -> Result<(), String>;

/// How far an exploration has come.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Events done.
    pub events: usize,
    /// Failures found.
    pub failures: usize,
}

/// Tries the states of a recording. `progress` is told after each place how many places are done.
pub fn explore(recording: &Recording, depth: &Depth, progress: &mut dyn FnMut(usize)) -> Tally {
    all_states(recording, depth, None, &mut |at| {
        progress(at.events);
        ControlFlow::Continue(())
    })
}

/// The same, and `invariant` holds in each state that the contract allows. `progress` may end it
/// early.
pub fn explore_with<'a>(
    recording: &'a Recording,
    depth: &'a Depth,
    invariant: Invariant<'a>,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Tally {
    all_states(recording, depth, Some(invariant), progress)
}

fn all_states<'a>(
    recording: &'a Recording,
    depth: &'a Depth,
    invariant: Option<Invariant<'a>>,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Tally {
    let mut explorer = Explorer {
        recording,
        depth,
        invariant,
        tally: Tally::default(),
        seen: HashSet::new(),
    };
    let keep = keep_one_in(recording, depth.states);
    let mut cursor = recording.cursor();
    loop {
        let event = cursor.at();
        let choices = cursor.choices(recording.promises_more(event));
        for (choice, fates) in choices.iter().enumerate() {
            let id = StateId {
                event: event as u32,
                choice: choice as u32,
            };
            if keep == 1 || mix(event as u64, choice as u64).is_multiple_of(keep) {
                explorer.state(id, || cursor.image(fates));
            }
        }
        let at = Progress {
            events: event,
            failures: explorer.tally.failures.len(),
        };
        if progress(at).is_break() || !cursor.step() {
            return explorer.tally;
        }
    }
}

/// How many states there are for each that is to be tried.
fn keep_one_in(recording: &Recording, most: usize) -> u64 {
    match most {
        usize::MAX => 1,
        most => count_states(recording).div_ceil(most.max(1)).max(1) as u64,
    }
}

/// States that a recording has, without those of interrupted recoveries.
pub fn count_states(recording: &Recording) -> usize {
    let mut cursor = recording.cursor();
    let mut all = 0;
    loop {
        all += cursor.choices(recording.promises_more(cursor.at())).len();
        if !cursor.step() {
            return all;
        }
    }
}

/// Tries one state, told by its id.
///
/// # Errors
/// What is wrong with it, or that there is no such state.
pub fn replay(recording: &Recording, id: &[StateId]) -> Result<(), String> {
    let image = image_of(recording, id)?;
    let event = id.first().map_or(0, |first| first.event as usize);
    let moment = recording.moment(event);
    judge(recording, image, moment, false, true).map(|_| ())
}

/// The same, and `invariant` holds in it.
///
/// # Errors
/// As [`replay`].
pub fn replay_with(
    recording: &Recording,
    id: &[StateId],
    invariant: Invariant<'_>,
) -> Result<(), String> {
    replay(recording, id)?;
    demand(recording, id, image_of(recording, id)?, invariant)
}

/// The disk in a state, told by its id, before it is recovered.
///
/// # Errors
/// There is no such state, or a recovery that it interrupts fails.
pub fn image_of(recording: &Recording, id: &[StateId]) -> Result<Image, String> {
    let none = || "the recording has no such state".to_owned();
    let (first, within) = id.split_first().ok_or_else(none)?;
    let mut image = recording.image(*first).ok_or_else(none)?;
    for id in within {
        let start = image.clone();
        let recovered = recover(image, true)?;
        recovered.disk.cut();
        let mut cursor = Cursor::new(start, &recovered.events);
        cursor.step_to(id.event as usize);
        let choices = cursor.choices(false);
        let fates = choices.get(id.choice as usize);
        let there = fates.filter(|_| cursor.at() == id.event as usize);
        image = cursor.image(there.ok_or_else(none)?);
    }
    Ok(image)
}

/// Reads an id as [`Failure::id`] gives it.
///
/// # Errors
/// It is none.
pub fn parse_id(text: &str) -> Result<Vec<StateId>, String> {
    text.split('/').map(str::parse).collect()
}

/// An id as text: its states joined by slashes.
pub fn joined(id: &[StateId]) -> String {
    let ids: Vec<String> = id.iter().map(StateId::to_string).collect();
    ids.join("/")
}

/// Recovers a copy of a state for the caller's own check.
fn demand(
    recording: &Recording,
    id: &[StateId],
    image: Image,
    invariant: Invariant<'_>,
) -> Result<(), String> {
    let event = id.first().map_or(0, |first| first.event as usize);
    let recovered = recover(image, false)?;
    let text = joined(id);
    let crash = Crash {
        id: &text,
        returned: recording.returned(event),
    };
    let volume = Volume::from(recovered.fs);
    let told = catch_unwind(AssertUnwindSafe(|| invariant(&volume, &crash)));
    recovered.disk.cut();
    told.unwrap_or_else(|panic| Err(format!("panicked: {}", panic_text(&*panic))))
        .map_err(|e| format!("your own check: {e}"))
}

struct Explorer<'a> {
    recording: &'a Recording,
    depth: &'a Depth,
    invariant: Option<Invariant<'a>>,
    tally: Tally,
    seen: HashSet<(u64, Moment)>,
}

fn one_in(n: u64, digest: u64, salt: u64) -> bool {
    n > 0 && mix(digest, salt).is_multiple_of(n)
}

impl Explorer<'_> {
    fn state(&mut self, id: StateId, image: impl FnOnce() -> Image) {
        let image = image();
        let moment = self.recording.moment(id.event as usize);
        let digest = image.digest();
        if !self.seen.insert((digest, moment)) {
            return;
        }
        self.tally.states += 1;
        self.tally.disks.insert(digest);
        let interrupted = one_in(self.depth.interrupted, digest, 1);
        let used = one_in(self.depth.used, digest, 2);
        self.tally.used += u64::from(used);
        let start = image.clone();
        match self.judge(&[id], image, moment, interrupted, used) {
            Some(events) if interrupted => self.within(&[id], start, &events, moment),
            _ => {}
        }
    }

    /// Judges a state, by the caller's check too; what its recovery asked of the disk if all is well.
    fn judge(
        &mut self,
        id: &[StateId],
        image: Image,
        moment: Moment,
        record: bool,
        used: bool,
    ) -> Option<Vec<Event>> {
        let judged =
            judge(self.recording, image.clone(), moment, record, used).and_then(|events| {
                if let Some(invariant) = self.invariant.as_mut() {
                    demand(self.recording, id, image, *invariant)?;
                }
                Ok(events)
            });
        match judged {
            Ok(events) => Some(events),
            Err(message) => {
                self.tally.failures.push(Failure {
                    id: id.to_vec(),
                    message,
                });
                None
            }
        }
    }

    /// Interrupts a recovery.
    fn within(&mut self, outer: &[StateId], start: Image, events: &[Event], moment: Moment) {
        let mut places = Vec::new();
        let mut cursor = Cursor::new(start.clone(), events);
        loop {
            let n = cursor.choices(false).len();
            places.extend((0..n).map(|choice| (cursor.at(), choice)));
            if !cursor.step() {
                break;
            }
        }
        let step = places.len().div_ceil(self.depth.within.max(1)).max(1);
        let mut cursor = Cursor::new(start, events);
        for (event, choice) in places.into_iter().step_by(step) {
            cursor.step_to(event);
            let choices = cursor.choices(false);
            let Some(image) = choices.get(choice).map(|f| cursor.image(f)) else {
                continue;
            };
            let mut id = outer.to_vec();
            id.push(StateId {
                event: event as u32,
                choice: choice as u32,
            });
            self.interrupted(id, image, moment);
        }
    }

    fn interrupted(&mut self, id: Vec<StateId>, image: Image, moment: Moment) {
        let digest = image.digest();
        if !self.seen.insert((digest, moment)) {
            return;
        }
        self.tally.states += 1;
        self.tally.interrupted += 1;
        self.tally.disks.insert(digest);
        let again = id.len() < 3;
        let start = image.clone();
        match self.judge(&id, image, moment, again, false) {
            Some(events) if again => self.within(&id, start, &events, moment),
            _ => {}
        }
    }
}

/// A volume that came back.
struct Recovered {
    disk: Arc<SimDisk>,
    fs: Arc<FileSystem>,
    events: Vec<Event>,
}

fn recover(image: Image, recording: bool) -> Result<Recovered, String> {
    let seed = image.digest();
    let disk = Arc::new(SimDisk::new(image, recording));
    let fs = FileSystem::open_device(disk.clone(), &pressed(seed))
        .map_err(|e| format!("does not open: {e}"))?;
    let events = disk.take_events();
    Ok(Recovered { disk, fs, events })
}

/// Recovers a state and compares; returns what the recovery asked of the disk.
fn judge(
    recording: &Recording,
    image: Image,
    moment: Moment,
    record: bool,
    used: bool,
) -> Result<Vec<Event>, String> {
    let judged = catch_unwind(AssertUnwindSafe(|| {
        sound(&image, "as the crash left it")?;
        let recovered = recover(image.clone(), record)?;
        let tree = Tree::read(&recovered.fs).map_err(|e| e.to_string())?;
        recording.verify(&tree, moment).map_err(|v| v.to_string())?;
        if one_in(READ_ONLY, image.digest(), 3) {
            readable(image, &tree)?;
        }
        if used {
            lasting(&recovered, &tree)?;
            exercise(&recovered.fs, &tree)?;
            recovered.fs.close().map_err(|e| format!("close: {e}"))?;
            sound(&recovered.disk.image(), "after it was used")?;
        }
        recovered.disk.cut();
        Ok(recovered.events)
    }));
    judged.unwrap_or_else(|panic| Err(format!("panicked: {}", panic_text(&*panic))))
}

/// Opened read-only with hardly any memory for the log, it shows the same, and is not written.
fn readable(image: Image, tree: &Tree) -> Result<(), String> {
    let options = Options {
        read_only: true,
        ..pressed(image.digest() & !1)
    };
    let disk = Arc::new(SimDisk::new(image, true));
    let fs = FileSystem::open_device(disk.clone(), &options)
        .map_err(|e| format!("does not open read-only: {e}"))?;
    match Tree::read(&fs) {
        Ok(seen) if seen == *tree => {}
        Ok(_) => return Err("shows another tree read-only".into()),
        Err(e) => return Err(format!("{e} when it is open read-only")),
    }
    drop(fs);
    match disk.take_events().is_empty() {
        true => Ok(()),
        false => Err("is changed by a read-only opening".into()),
    }
}

/// What was recovered is there again when the volume is opened again, and after a merge.
fn lasting(recovered: &Recovered, tree: &Tree) -> Result<(), String> {
    let same = |fs: &FileSystem, when: &str| match Tree::read(fs) {
        Ok(again) if again == *tree => Ok(()),
        Ok(_) => Err(format!("is another tree {when}")),
        Err(e) => Err(format!("{e} {when}")),
    };
    let again = recover(recovered.disk.image(), false)?;
    same(&again.fs, "when it is opened again")?;
    again.disk.cut();
    recovered.fs.merge().map_err(|e| format!("merge: {e}"))?;
    same(&recovered.fs, "after a merge")?;
    sound(&recovered.disk.image(), "after a merge")
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("for an unknown reason").to_owned()
}

/// The offline check finds nothing.
pub(crate) fn sound(image: &Image, when: &str) -> Result<(), String> {
    let disk = SimDisk::new(image.clone(), false);
    let report = check(&disk, &CheckOptions { data: true }, &mut |_| {})
        .map_err(|e| format!("cannot be checked {when}: {e}"))?;
    match report.findings.first() {
        None => Ok(()),
        Some(first) => Err(format!(
            "unsound {when}: {} ({} findings)",
            first.message,
            report.findings.len()
        )),
    }
}
