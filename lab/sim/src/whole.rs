//! Power cuts during calls on whole roots: publish, restore, rename of a root, receive, and those
//! that snapshots, branches and drops are made of.
//!
//! The model is a list of states, each the named roots with their trees after a durable call. A cut
//! leaves the state before or after the call in progress, never one between; after a call has
//! returned, its state. Nothing half made is left by the next opening, and all its space returns.
//! Every change of files must be followed by a step that makes it durable in one record. A publish
//! takes the branch's state in a conflict.
//!
//! Checkpoints of the volume may be stored meanwhile ([`crate::shipped`]): with what was stored before
//! the cut, the next one restores what was recovered.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use cairnfs::fs::{FileSystem, Options};
use cairnfs::{Error, PublishOptions, Volume};

use crate::disk::{Event, SimDisk};
use crate::explore::{Failure, Tally, dissolved, recover, sound};
use crate::image::Image;
use crate::record::{VOLUME_SIZE, fresh_volume, options, pressed};
use crate::shipped::{Store, Stored, restored};
use crate::states::{Cursor, StateId, mix};
use crate::tree::Tree;
use crate::workload::{Runner, Step};

/// A named root: whether it may be changed, its tree, and the id of the root in which it has parted from
/// each of the others.
type Seen = (bool, Tree, BTreeMap<String, Option<u32>>);

/// The named roots of a volume.
type Named = BTreeMap<String, Seen>;

/// One of this many states has its recovery interrupted.
const INTERRUPTED: u64 = 8;
/// Number of states tried of each interrupted recovery.
const WITHIN: usize = 6;

/// A durable call: the events during it.
type Call = Range<usize>;

/// A recorded history of calls on whole roots.
pub struct History {
    start: Image,
    events: Vec<Event>,
    calls: Vec<Call>,
    /// The state before the first call, and after each.
    states: Vec<Named>,
    stored: Vec<Stored>,
    /// How many publishes merged changes of both sides.
    pub merged: usize,
}

/// A front end that runs the steps which begin with `mounted`.
pub trait Mounted {
    /// Runs a step of these words, without the first. Returns whether its changes are durable.
    ///
    /// # Errors
    /// The step was refused.
    fn run(&mut self, fs: &Arc<FileSystem>, words: &str) -> Result<bool, String>;
}

/// Nothing is mounted.
#[derive(Default)]
pub struct Unmounted;

impl Mounted for Unmounted {
    fn run(&mut self, _fs: &Arc<FileSystem>, words: &str) -> Result<bool, String> {
        Err(format!("{words}: nothing is mounted"))
    }
}

/// Runs steps, each on the root whose name the last `on` step gave.
struct Driver<'m> {
    mounted: &'m mut dyn Mounted,
    disk: Arc<SimDisk>,
    fs: Arc<FileSystem>,
    on: String,
    store: Store,
    /// The state in which the newest checkpoint was begun.
    captured: Named,
    /// Publishes that merged changes of both sides.
    merged: usize,
}

impl Driver<'_> {
    /// Runs a step of this text. Returns whether its changes are durable.
    fn run(&mut self, text: &str) -> Result<bool, String> {
        if let Some(words) = text.strip_prefix("mounted ") {
            return self.mounted.run(&self.fs, words);
        }
        let words: Vec<&str> = text.split_whitespace().collect();
        let volume = Volume::from(self.fs.clone());
        let done = match words.as_slice() {
            ["on", name] => {
                self.on = (*name).to_owned();
                return Ok(false);
            }
            ["publish", branch] => {
                let options = PublishOptions {
                    theirs: vec!["/".into()],
                    ..PublishOptions::default()
                };
                let published = volume.publish(branch, &options);
                published.map(|published| self.merged += usize::from(published.merged))
            }
            ["restore", branch, from, paths @ ..] => {
                let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
                volume.restore(from, branch, &paths).map(drop)
            }
            ["rename-root", old, new] => volume.rename_root(old, new),
            ["receive", from, name] => {
                let stream = volume.send(Vec::new(), from, None);
                stream.and_then(|stream| volume.receive(&stream[..], Some(name)).map(drop))
            }
            ["checkpoint"] => {
                self.captured = named(&self.fs)?;
                self.store.begin(&volume, self.disk.recorded())
            }
            ["ship"] => return self.store(true).map(|()| false),
            ["lose"] => return self.store(false).map(|()| false),
            ["free"] => volume.free_drops(|_| true),
            ["drop-replaced", branch] => {
                let begin = format!("{branch}.undo-");
                let names = volume.roots().into_iter().filter_map(|root| root.name);
                let replaced = names.filter(|name| name.starts_with(&begin));
                // The root that the volume was opened with is in use.
                let mut dropped = replaced.map(|name| volume.drop_root(&name));
                let first = dropped.find(|dropped| !matches!(dropped, Err(Error::Busy(_))));
                first.unwrap_or(Err(Error::NotFound))
            }
            _ => return self.step(text),
        };
        done.map(|()| true).map_err(|e| format!("{text}: {e}"))
    }

    /// Stores a checkpoint, which restores the state in which it was begun.
    fn store(&mut self, told: bool) -> Result<(), String> {
        let image = self.store.store(self.disk.recorded(), told)?;
        sound(&image, "as it was stored")?;
        let restored = recover(image, false)?;
        let found = named(&restored.fs)?;
        restored.disk.cut();
        if found == self.captured {
            Ok(())
        } else {
            Err("what was stored restores another state".into())
        }
    }

    fn step(&self, text: &str) -> Result<bool, String> {
        let step: Step = text.parse()?;
        let shown = |e: cairnfs::Error| format!("{text}: {e}");
        if let Step::Drop(name) = &step {
            // Through a handle of the root itself it would be in use.
            self.fs.drop_root(name).map_err(shown)?;
            return Ok(true);
        }
        let root = self.fs.open_named(&self.on).map_err(shown)?;
        Runner::new(&root).run(&step).map_err(shown)?;
        Ok(matches!(
            step,
            Step::Fsync(_) | Step::Sync | Step::Snapshot(_) | Step::Branch(_) | Step::Drop(_)
        ))
    }
}

/// Records a history on a new volume, without and with memory pressure, each with a front end of its
/// own, and tries about `most` of the states that a power cut may leave.
///
/// # Errors
/// A step fails, there are too few states, or one of them breaks the contract.
pub fn check<M: Mounted + Default>(steps: &str, most: u64) -> Result<(), String> {
    let mut failures = Vec::new();
    for options in [options(2), pressed(6)] {
        let start = fresh_volume(VOLUME_SIZE).map_err(|e| e.to_string())?;
        let history = History::record_mounted(start, &options, steps, &mut M::default())?;
        let tally = history.explore(most);
        if tally.states <= 20 {
            return Err(format!("{steps}: only {} states", tally.states));
        }
        failures.extend(tally.failures);
    }
    match failures.first() {
        None => Ok(()),
        Some(first) => Err(format!(
            "{steps}: {} failures, first {first}",
            failures.len()
        )),
    }
}

impl History {
    /// Records what the steps, separated by semicolons, do to the volume in `start`.
    ///
    /// # Errors
    /// A step fails.
    pub fn record(start: Image, options: &Options, steps: &str) -> Result<Self, String> {
        Self::record_mounted(start, options, steps, &mut Unmounted)
    }

    /// As [`Self::record`], with some steps run by a front end.
    ///
    /// # Errors
    /// A step fails.
    pub fn record_mounted(
        start: Image,
        options: &Options,
        steps: &str,
        mounted: &mut dyn Mounted,
    ) -> Result<Self, String> {
        let disk = Arc::new(SimDisk::new(start.clone(), true));
        let fs = FileSystem::open_device(disk.clone(), options).map_err(|e| e.to_string())?;
        let mut driver = Driver {
            mounted,
            disk: disk.clone(),
            fs,
            on: "main".to_owned(),
            store: Store::default(),
            captured: Named::new(),
            merged: 0,
        };
        let mut states = vec![named(&recover(start.clone(), false)?.fs)?];
        let (mut calls, mut began) = (Vec::new(), disk.recorded());
        for step in steps.split(';').map(str::trim).filter(|s| !s.is_empty()) {
            if driver.run(step)? {
                calls.push(began..disk.recorded());
                let killed = recover(disk.image(), false)?;
                let state = named(&killed.fs)?;
                killed.disk.cut();
                if state != named(&driver.fs)? {
                    return Err(format!("{step}: not all that was done is durable"));
                }
                states.push(state);
                began = disk.recorded();
            }
        }
        let stored = driver.store.into_stored();
        disk.cut();
        let events = disk.take_events();
        Ok(Self {
            start,
            events,
            calls,
            states,
            stored,
            merged: driver.merged,
        })
    }

    /// The states that a cut after so many events may leave.
    fn allowed(&self, events: usize) -> &[Named] {
        let returned = self.calls.partition_point(|call| call.end <= events);
        let begun = self.calls.partition_point(|call| call.start <= events);
        self.states
            .get(returned..=begun.max(returned))
            .unwrap_or_default()
    }

    /// Tries at most about `most` of the states that a power cut may leave, and interrupts some of
    /// the recoveries.
    pub fn explore(&self, most: u64) -> Tally {
        let mut tally = Tally::default();
        let places = Cursor::new(self.start.clone(), &self.events).states();
        let keep = (places.len() as u64).div_ceil(most.max(1)).max(1);
        let mut cursor = Cursor::new(self.start.clone(), &self.events);
        for id in places {
            let kept = mix(u64::from(id.event), u64::from(id.choice)).is_multiple_of(keep);
            let Some(image) = kept.then(|| cursor.image_in(id, false)).flatten() else {
                continue;
            };
            if tally
                .disks
                .insert(image.digest() ^ mix(0, u64::from(id.event)))
            {
                self.state(vec![id], image, &mut tally);
            }
        }
        tally
    }

    fn state(&self, id: Vec<StateId>, image: Image, tally: &mut Tally) {
        let event = id.first().map_or(0, |first| first.event as usize);
        let (inner, again) = (id.len() > 1, id.len() < 3);
        tally.states += 1;
        tally.interrupted += u64::from(inner);
        match self.judge(image.clone(), event) {
            Err(message) => tally.failures.push(Failure { id, message }),
            Ok(events)
                if again && (inner || mix(image.digest(), 1).is_multiple_of(INTERRUPTED)) =>
            {
                let places = Cursor::new(image.clone(), &events).states();
                let apart = places.len().div_ceil(WITHIN).max(1);
                let mut cursor = Cursor::new(image, &events);
                for place in places.into_iter().step_by(apart) {
                    let Some(image) = cursor.image_in(place, false) else {
                        continue;
                    };
                    if tally.disks.insert(image.digest() ^ mix(0, event as u64)) {
                        self.state([&id[..], &[place]].concat(), image, tally);
                    }
                }
            }
            Ok(_) => {}
        }
    }

    /// Recovers a state after so many events: it must be one of those allowed, nothing half made may
    /// be left, and what was stored must restore it with the next checkpoint. Returns the disk events
    /// of the recovery.
    fn judge(&self, image: Image, event: usize) -> Result<Vec<Event>, String> {
        sound(&image, "as the crash left it")?;
        self.restores(&image, event)?;
        let recovered = recover(image, true)?;
        let found = named(&recovered.fs)?;
        let allowed = self.allowed(event);
        if !allowed.contains(&found) {
            return Err(between(&found, allowed));
        }
        dissolved(&recovered)?;
        if named(&recovered.fs)? != found {
            return Err("other named roots when what was dropped is free".into());
        }
        recovered.disk.cut();
        Ok(recovered.events)
    }

    /// Restores a recovered state from what was stored before the cut, also without the newest
    /// checkpoint: that may be stored or not when it was not known to be.
    fn restores(&self, image: &Image, event: usize) -> Result<(), String> {
        let begun = self.stored.partition_point(|stored| stored.begun < event);
        let known = self.stored.partition_point(|stored| stored.stored <= event);
        for count in known.max(1)..=begun {
            let recovered = recover(image.clone(), false)?;
            let stored = self.stored.get(..count).unwrap_or_default();
            let volume = Volume::from(recovered.fs.clone());
            let of_checkpoint = |e: String| format!("with {count} checkpoints stored: {e}");
            if let Some(image) = restored(&volume, stored, event).map_err(of_checkpoint)? {
                sound(&image, "as it was restored")?;
                let again = recover(image, false)?;
                if named(&again.fs)? != named(&recovered.fs)? {
                    return Err(of_checkpoint(
                        "other named roots when it is restored".into(),
                    ));
                }
                again.disk.cut();
            }
            recovered.disk.cut();
        }
        Ok(())
    }
}

/// Says which roots are those of which allowed state.
fn between(found: &Named, allowed: &[Named]) -> String {
    let differs = |state: &Named| {
        let names = state.keys().chain(found.keys());
        let names = names.filter(|name| state.get(*name) != found.get(*name));
        let names: std::collections::BTreeSet<&String> = names.collect();
        format!("{names:?}")
    };
    let each: Vec<String> = allowed.iter().map(differs).collect();
    format!(
        "named roots are of no allowed state: other than before and after are {}",
        each.join(" and ")
    )
}

fn named(fs: &FileSystem) -> Result<Named, String> {
    let mut all = Named::new();
    let roots = fs.roots();
    for root in &roots {
        let Some(name) = root.name.clone() else {
            continue;
        };
        let shown = |e: cairnfs::Error| format!("root {name}: {e}");
        let opened = fs.open_root(root.id).map_err(shown)?;
        let tree = Tree::read(&opened).map_err(|e| format!("root {name}: {e}"))?;
        let others = roots.iter().filter_map(|other| {
            let parted = fs.core().roots().parted(root.id, other.id);
            Some((other.name.clone()?, parted))
        });
        all.insert(name, (root.writable, tree, others.collect()));
    }
    Ok(all)
}
