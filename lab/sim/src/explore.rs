//! Recovers the states that a power failure may leave of a recorded run, and judges the results.
//!
//! Each state is checked offline, opened, read, and compared with the model. For some states the
//! recovery itself is recorded, and the power fails again during it, and again during the recovery
//! from that. Some states are also opened read-only, which must show the same tree and write
//! nothing. Some are used further: everything in them is removed, and the volume must then be sound
//! and empty. A caller may add a check of its own to each state ([`Invariant`]). Explorations of many
//! workloads may share what recoveries showed ([`Recoveries`]).

use std::collections::HashSet;
use std::fmt;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cairnfs::fs::{FileSystem, Options};
use cairnfs::{RootInfo, Volume};
use cairnfs_check::{CheckOptions, check};
use cairnfs_disk::format::geometry::LOG_START;

use crate::disk::{Event, SimDisk};
use crate::exercise::exercise;
use crate::image::{BLOCK, Image};
use crate::model::Moment;
use crate::record::{Recording, Returned, pressed};
pub use crate::shown::Recoveries;
use crate::shown::{Asked, Shown};
use crate::states::{Cursor, StateId, mix};
use crate::tree::Tree;

/// How thoroughly states are tried.
#[derive(Debug, Clone, Copy)]
pub struct Depth {
    /// Maximum number of states of a recording; beyond it, an even sample is tried.
    pub states: usize,
    /// In one of this many states the recovery is interrupted; 0 for none.
    pub interrupted: u64,
    /// Number of states tried of each interrupted recovery.
    pub within: usize,
    /// One of this many states is used further; 0 for none.
    pub used: u64,
}

/// One of this many states is also opened without its front.
const NO_FRONT: u64 = 8;
/// One of this many states is also opened read-only. It is a fraction because this takes as long as
/// a recovery.
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
    /// The id of the state: several parts if recoveries were interrupted.
    pub id: Vec<StateId>,
    /// What is wrong.
    pub message: String,
}

impl Failure {
    /// The id as text, for a replay: the parts joined by slashes.
    pub fn id(&self) -> String {
        joined(&self.id)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "state {}: {}", self.id(), self.message)
    }
}

/// The results of an exploration.
#[derive(Debug, Default)]
pub struct Tally {
    /// Number of states recovered, including those of interrupted recoveries.
    pub states: u64,
    /// Number of them that are states of interrupted recoveries.
    pub interrupted: u64,
    /// Number of them that were used further.
    pub used: u64,
    /// Digests of the disks, to count the distinct ones.
    pub disks: HashSet<u64>,
    /// The states that break the contract.
    pub failures: Vec<Failure>,
}

impl Tally {
    /// Adds the results of another exploration.
    pub fn add(&mut self, other: Tally) {
        self.states += other.states;
        self.interrupted += other.interrupted;
        self.used += other.used;
        self.disks.extend(other.disks);
        self.failures.extend(other.failures);
    }
}

/// A crash state, as an [`Invariant`] sees it.
#[derive(Debug, Clone, Copy)]
pub struct Crash<'a> {
    /// The id of the state, as [`Failure::id`] gives it.
    pub id: &'a str,
    /// How far the program had got.
    pub returned: Returned,
}

/// A check of the program under test: gets a recovered volume, and returns an error if it is wrong.
/// The volume is a copy; the check may change it as the program does when it starts again.
pub type Invariant<'a> = &'a mut dyn FnMut(&Volume, &Crash<'_>) -> Result<(), String>;

/// Progress of an exploration.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Number of events done.
    pub events: usize,
    /// Number of failures found.
    pub failures: usize,
}

/// Tries the states of a recording. `progress` gets the number of events done after each event.
pub fn explore(recording: &Recording, depth: &Depth, progress: &mut dyn FnMut(usize)) -> Tally {
    let explorer = Explorer::new(recording, depth);
    all_states(explorer, &mut |at| {
        progress(at.events);
        ControlFlow::Continue(())
    })
}

/// As [`explore`], one of many explorations of this depth that share `recoveries`: a disk that was
/// recovered for one of them is only compared with the model for the others.
pub fn explore_beside(recording: &Recording, depth: &Depth, recoveries: &Recoveries) -> Tally {
    let explorer = Explorer {
        // The branches and snapshots of a recovery are compared in the open volume.
        recoveries: recording.has_one_root().then_some(recoveries),
        ..Explorer::new(recording, depth)
    };
    all_states(explorer, &mut |_| ControlFlow::Continue(()))
}

/// As [`explore`], and `invariant` must hold in each state that the contract allows. `progress` may
/// stop the exploration early.
pub fn explore_with<'a>(
    recording: &'a Recording,
    depth: &'a Depth,
    invariant: Invariant<'a>,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Tally {
    let explorer = Explorer {
        invariant: Some(invariant),
        ..Explorer::new(recording, depth)
    };
    all_states(explorer, progress)
}

fn all_states(
    mut explorer: Explorer<'_>,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Tally {
    let recording = explorer.recording;
    let keep = keep_one_in(recording, explorer.depth.states);
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
                let moment = recording.moment(event);
                explorer.state(vec![id], cursor.image(fates), moment);
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

/// One of this many states is tried so that at most `most` are.
fn keep_one_in(recording: &Recording, most: usize) -> u64 {
    match most {
        usize::MAX => 1,
        most => count_states(recording).div_ceil(most.max(1)).max(1) as u64,
    }
}

/// Number of states of a recording, without those of interrupted recoveries.
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

/// Tries the state with this id.
///
/// # Errors
/// What is wrong with the state, or that it does not exist.
pub fn replay(recording: &Recording, id: &[StateId]) -> Result<(), String> {
    let image = image_of(recording, id)?;
    let event = id.first().map_or(0, |first| first.event as usize);
    let moment = recording.moment(event);
    let asked = Asked {
        record: false,
        used: true,
    };
    judge(recording, image, moment, asked).map(|_| ())
}

/// As [`replay`], and `invariant` must hold in the state.
pub fn replay_with(
    recording: &Recording,
    id: &[StateId],
    invariant: Invariant<'_>,
) -> Result<(), String> {
    replay(recording, id)?;
    demand(recording, id, image_of(recording, id)?, invariant)
}

/// The disk in the state with this id, before recovery.
///
/// # Errors
/// The state does not exist, or a recovery that it interrupts fails.
pub fn image_of(recording: &Recording, id: &[StateId]) -> Result<Image, String> {
    let none = || "the recording has no such state".to_owned();
    let (first, within) = id.split_first().ok_or_else(none)?;
    let mut image = recording.image(*first).ok_or_else(none)?;
    for id in within {
        let start = image.clone();
        let recovered = recover(image, true)?;
        recovered.disk.cut();
        let mut cursor = Cursor::new(start, &recovered.events);
        image = cursor.image_in(*id, false).ok_or_else(none)?;
    }
    Ok(image)
}

/// Parses an id in the format of [`Failure::id`].
///
/// # Errors
/// The text is not an id.
pub fn parse_id(text: &str) -> Result<Vec<StateId>, String> {
    text.split('/').map(str::parse).collect()
}

/// An id as text: its parts joined by slashes.
pub fn joined(id: &[StateId]) -> String {
    let ids: Vec<String> = id.iter().map(StateId::to_string).collect();
    ids.join("/")
}

/// Recovers a copy of a state and runs the caller's check on it.
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
    let verdict = catch_unwind(AssertUnwindSafe(|| invariant(&volume, &crash)));
    recovered.disk.cut();
    verdict
        .unwrap_or_else(|panic| Err(format!("panicked: {}", panic_text(&*panic))))
        .map_err(|e| format!("your own check: {e}"))
}

struct Explorer<'a> {
    recording: &'a Recording,
    depth: &'a Depth,
    invariant: Option<Invariant<'a>>,
    recoveries: Option<&'a Recoveries>,
    tally: Tally,
    seen: HashSet<(u64, Moment)>,
}

fn one_in(n: u64, digest: u64, salt: u64) -> bool {
    n > 0 && mix(digest, salt).is_multiple_of(n)
}

impl<'a> Explorer<'a> {
    fn new(recording: &'a Recording, depth: &'a Depth) -> Self {
        Self {
            recording,
            depth,
            invariant: None,
            recoveries: None,
            tally: Tally::default(),
            seen: HashSet::new(),
        }
    }

    fn state(&mut self, id: Vec<StateId>, image: Image, moment: Moment) {
        let digest = image.digest();
        if !self.seen.insert((digest, moment)) {
            return;
        }
        let in_recovery = id.len() > 1;
        let asked = Asked {
            record: match in_recovery {
                true => id.len() < 3,
                false => one_in(self.depth.interrupted, digest, 1),
            },
            used: !in_recovery && one_in(self.depth.used, digest, 2),
        };
        self.tally.states += 1;
        self.tally.interrupted += u64::from(in_recovery);
        self.tally.used += u64::from(asked.used);
        self.tally.disks.insert(digest);
        let start = image.clone();
        match self.judge(&id, image, moment, asked) {
            Some(shown) if asked.record => self.within(&id, start, &shown.events, moment),
            _ => {}
        }
    }

    /// Judges a state, including the caller's check. Returns what its recovery showed if all is
    /// well.
    fn judge(
        &mut self,
        id: &[StateId],
        image: Image,
        moment: Moment,
        asked: Asked,
    ) -> Option<Arc<Shown>> {
        let judged = self.compare(&image, moment, asked).and_then(|shown| {
            if let Some(invariant) = self.invariant.as_mut() {
                demand(self.recording, id, image, *invariant)?;
            }
            Ok(shown)
        });
        match judged {
            Ok(shown) => Some(shown),
            Err(message) => {
                self.tally.failures.push(Failure {
                    id: id.to_vec(),
                    message,
                });
                None
            }
        }
    }

    /// Recovers a state, unless that was done before, and compares it with the model.
    fn compare(&self, image: &Image, moment: Moment, asked: Asked) -> Result<Arc<Shown>, String> {
        let digest = image.digest();
        if let Some(shown) = self.recoveries.and_then(|r| r.get(digest, asked)) {
            let verdict = self.recording.verify(&shown.tree, moment);
            return verdict.map(|()| shown).map_err(|v| v.to_string());
        }
        let shown = Arc::new(judge(self.recording, image.clone(), moment, asked)?);
        if let Some(recoveries) = self.recoveries {
            recoveries.put(digest, asked, &shown);
        }
        Ok(shown)
    }

    /// Interrupts a recovery at some of its states.
    fn within(&mut self, outer: &[StateId], start: Image, events: &[Event], moment: Moment) {
        let places = Cursor::new(start.clone(), events).states();
        let step = places.len().div_ceil(self.depth.within.max(1)).max(1);
        let mut cursor = Cursor::new(start, events);
        for place in places.into_iter().step_by(step) {
            if let Some(image) = cursor.image_in(place, false) {
                self.state([outer, &[place]].concat(), image, moment);
            }
        }
    }
}

/// A recovered volume.
pub(crate) struct Recovered {
    /// Its disk.
    pub disk: Arc<SimDisk>,
    /// The volume, open.
    pub fs: Arc<FileSystem>,
    /// What the recovery did to the disk, if it was recorded.
    pub events: Vec<Event>,
}

pub(crate) fn recover(image: Image, recording: bool) -> Result<Recovered, String> {
    let seed = image.digest();
    let disk = Arc::new(SimDisk::new(image, recording));
    let fs = FileSystem::open_device(disk.clone(), &pressed(seed))
        .map_err(|e| format!("does not open: {e}"))?;
    let events = disk.take_events();
    Ok(Recovered { disk, fs, events })
}

/// Recovers a state and compares it with the model.
fn judge(
    recording: &Recording,
    image: Image,
    moment: Moment,
    asked: Asked,
) -> Result<Shown, String> {
    let judged = catch_unwind(AssertUnwindSafe(|| {
        sound(&image, "as the crash left it")?;
        let recovered = recover(image.clone(), asked.record)?;
        let tree = Tree::read(&recovered.fs).map_err(|e| e.to_string())?;
        recording.verify(&tree, moment).map_err(|v| v.to_string())?;
        recording.verify_snapshots(&image, moment)?;
        recording.verify_branches(&recovered.fs, moment)?;
        if one_in(NO_FRONT, image.digest(), 4) {
            let mut image = image.clone();
            image.write(0, &[0x5a; LOG_START as usize * BLOCK]);
            readable(image, &tree).map_err(|why| format!("without its front: {why}"))?;
        }
        if one_in(READ_ONLY, image.digest(), 3) {
            readable(image, &tree)?;
        }
        if asked.used {
            lasting(&recovered, &tree)?;
            dissolved(&recovered)?;
            exercise(&recovered.fs, &tree)?;
            recovered.fs.close().map_err(|e| format!("close: {e}"))?;
            let image = recovered.disk.image();
            sound(&image, "after it was used")?;
            recording.verify_snapshots(&image, moment)?;
            recording.verify_branches(&recover(image, false)?.fs, moment)?;
        }
        recovered.disk.cut();
        Ok(Shown {
            tree,
            events: recovered.events,
        })
    }));
    judged.unwrap_or_else(|panic| Err(format!("panicked: {}", panic_text(&*panic))))
}

/// Opens the state read-only with minimal memory for the log: it must show the same tree and write
/// nothing.
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
    if disk.take_events().is_empty() {
        Ok(())
    } else {
        Err("is changed by a read-only opening".into())
    }
}

/// Frees what dropped snapshots have left: then nothing is in use that no root has.
pub(crate) fn dissolved(recovered: &Recovered) -> Result<(), String> {
    let free = |e| format!("freeing dropped snapshots: {e}");
    while recovered.fs.drop_step().map_err(free)? {}
    let roots = recovered.fs.roots();
    let children = |id| roots.iter().filter(|root| root.parent == Some(id)).count();
    // Where branches meet, a root without a name holds what they share.
    let useless = |root: &RootInfo| root.name.is_none() && children(root.id) < 2;
    if let Some(root) = roots.iter().find(|root| useless(root)) {
        let kind = if root.writable { "head" } else { "snapshot" };
        return Err(format!("a dropped {kind} stays: root {}", root.id));
    }
    sound(&recovered.disk.image(), "without the dropped snapshots")
}

/// The recovered tree is the same after another open, and after a merge.
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

/// Checks that the offline check reports no finding.
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
