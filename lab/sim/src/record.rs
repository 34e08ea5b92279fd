//! Records a run: the disk events, the promises of the calls, and the order of both.
//!
//! A [`Recorder`] observes a volume on a simulated disk during a [`Run`]. The resulting
//! [`Recording`] gives, for each event at which the power may fail, what the disk may hold and what
//! must be recovered from it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use cairnfs::fs::{
    Call, FileSystem, MakeOptions, Observer, Options, Outcome, Pressure, make_device,
};
use cairnfs::{Error, Result, RootInfo, Volume};
use cairnfs_disk::format::geometry::SUPERBLOCK_SLOTS;
use cairnfs_disk::format::key::MAIN_ROOT;
use cairnfs_disk::format::superblock::RawSuperblock;
use parking_lot::Mutex;

use crate::disk::{Event, SimDisk};
use crate::image::{BLOCK, Image};
use crate::model::{Model, Moment, Snapshot, Violation};
use crate::states::{Cursor, StateId};
use crate::tree::{Times, Tree, Unreadable};

/// Size in bytes of the simulated volumes: the minimum.
pub const VOLUME_SIZE: u64 = 16 << 20;

/// The position of a call among the events.
#[derive(Debug, Clone)]
struct Mark {
    /// Number of events before the call began.
    began: usize,
    /// Number of events when the call returned.
    ended: usize,
    /// The model after the call: its operations may survive once the call has begun, its promises
    /// hold once it has returned.
    after: Moment,
    /// The models of the branches after the call.
    branches: BTreeMap<u32, Moment>,
}

/// The models of the branches, by the id of their root.
type Branches = BTreeMap<u32, Branch>;

/// A branch: it is made with the files that its origin has, all of them durable.
struct Branch {
    name: String,
    model: Model,
    /// Whether it existed when the volume was opened.
    old: bool,
    /// The number of the call that dropped it.
    dropped: Option<usize>,
}

struct Watched {
    /// The main root, in which no call is on a branch.
    model: Model,
    branches: Branches,
    marks: Vec<Mark>,
    began: usize,
}

impl Watched {
    /// Follows a call on a root.
    fn apply(&mut self, fs: &FileSystem, call: &Call<'_>, outcome: &Outcome<'_>) {
        let times = |ino| fs.getattr(ino).ok().map(|attr| Times::of(&attr));
        let root = fs.root_id();
        let branches = self.branches.iter_mut();
        let models = branches.map(|(id, branch)| (*id, &mut branch.model));
        for (id, model) in std::iter::once((MAIN_ROOT, &mut self.model)).chain(models) {
            // A sync concerns all roots; the main root's model has the snapshots of all.
            let of_all = matches!(call, Call::DropRoot { .. }) && id == MAIN_ROOT;
            if id == root || of_all || matches!(call, Call::Sync) {
                model.apply(call, outcome, &times);
            }
        }
        if root != MAIN_ROOT && matches!((call, outcome), (Call::Snapshot { .. }, Outcome::Done)) {
            self.model.promise_snapshot();
        }
        if let (Call::Branch { name }, Outcome::Number(id)) = (call, outcome)
            && let Ok(tree) = Tree::read(fs)
        {
            let branch = Branch {
                name: (*name).to_owned(),
                model: Model::of(&tree),
                old: false,
                dropped: None,
            };
            self.branches.insert(*id as u32, branch);
        }
        if let (Call::DropRoot { name }, Outcome::Done) = (call, outcome) {
            let calls = self.marks.len();
            let mut known = self.branches.values_mut();
            let known = known.find(|branch| branch.name == *name && branch.dropped.is_none());
            known.into_iter().for_each(|b| b.dropped = Some(calls));
        }
    }
}

/// Observes the calls on a volume.
pub struct Recorder {
    disk: Arc<SimDisk>,
    interval: u64,
    watched: Mutex<Watched>,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

impl Observer for Recorder {
    fn begin(&self, _call: &Call<'_>) {
        self.watched.lock().began = self.disk.recorded();
    }

    fn end(&self, fs: &FileSystem, call: &Call<'_>, outcome: &Outcome<'_>) {
        let mut watched = self.watched.lock();
        watched.apply(fs, call, outcome);
        if let (Call::Snapshot { name }, Outcome::Done) = (call, outcome)
            && let Ok(tree) = Tree::read(fs)
        {
            watched.model.made_snapshot(name, tree);
        }
        let mark = Mark {
            began: watched.began,
            ended: self.disk.recorded(),
            after: watched.model.moment(),
            branches: moments(&watched.branches),
        };
        watched.marks.push(mark);
    }

    fn interval_ends(&self) -> bool {
        let calls = self.watched.lock().marks.len() as u64;
        self.interval > 0 && calls.is_multiple_of(self.interval)
    }
}

fn moments(branches: &Branches) -> BTreeMap<u32, Moment> {
    let moment = |(id, branch): (&u32, &Branch)| (*id, branch.model.moment());
    branches.iter().map(moment).collect()
}

/// The branches that a volume has now, without the main root.
fn branches_of(fs: &FileSystem) -> Result<Branches> {
    let heads = fs.roots().into_iter();
    let heads = heads.filter(|root| root.writable && root.id != MAIN_ROOT);
    let branch = |root: RootInfo| {
        let tree = read(&*fs.open_root(root.id)?)?;
        let branch = Branch {
            name: root.name.unwrap_or_default(),
            model: Model::of(&tree),
            old: true,
            dropped: None,
        };
        Ok((root.id, branch))
    };
    heads.map(branch).collect()
}

/// Options of simulated volumes: no background work, so that a run is deterministic.
pub fn options(seed: u64) -> Options {
    // Made once: it asks the system for the limits of this process.
    static DEFAULT: LazyLock<Options> = LazyLock::new(Options::default);
    Options {
        cache_budget: 8 << 20,
        durability_interval: None,
        workers: false,
        seed: Some(seed),
        ..DEFAULT.clone()
    }
}

/// As [`options`]; for every even seed with limits so tight that a merge handles a few keys at a
/// time or in each part, and replay brings the items it has read into the index several times.
pub fn pressed(seed: u64) -> Options {
    let (replay, keys) = ((seed / 2 % 3) as i64 * 400, 1 + seed / 6 % 4);
    Options {
        pressure: match seed % 4 {
            0 => Some(Pressure::steps(replay, keys)),
            2 => Some(Pressure::parts(replay, keys)),
            _ => None,
        },
        ..options(seed)
    }
}

/// As [`options`], with worker threads as a machine with many processors has them, and limits so
/// tight that each call makes a push and few calls a merge: pushes write records beside each other,
/// and merges have parts in several threads.
pub fn crowded(seed: u64) -> Options {
    Options {
        workers: true,
        durability_interval: Some(Duration::from_millis(1)),
        pressure: Some(Pressure::parts(i64::MAX, 1).early(1, 2000)),
        ..options(seed)
    }
}

/// An empty volume of `size` bytes, with the same contents each time.
///
/// # Errors
/// The size is not valid for a volume.
pub fn fresh_volume(size: u64) -> Result<Image> {
    fresh_volume_of(size, (0, 0))
}

/// The hash seed of a fresh volume; `None` if none can be made.
pub(crate) fn fresh_hash_seed() -> Option<u64> {
    static SEED: OnceLock<Option<u64>> = OnceLock::new();
    *SEED.get_or_init(|| {
        let image = fresh_volume(VOLUME_SIZE).ok()?;
        let [block, _] = SUPERBLOCK_SLOTS;
        let mut bytes = [0; BLOCK];
        image.read(block * BLOCK as u64, &mut bytes);
        let superblock = RawSuperblock::decode(block, &bytes).ok()?;
        Some(superblock.hash_seed.get())
    })
}

/// As [`fresh_volume`], with the root directory owned by this user and group.
///
/// # Errors
/// The size is not valid for a volume.
pub fn fresh_volume_of(size: u64, root_owner: (u32, u32)) -> Result<Image> {
    let disk = SimDisk::new(Image::new(size), false);
    let make = MakeOptions {
        seed: Some(1),
        root_owner,
        ..MakeOptions::default()
    };
    make_device(&disk, &make, &mut |_, _| {})?;
    Ok(disk.image())
}

/// How far a program had got when the power failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Returned {
    /// Number of calls that had returned, without calls that change nothing.
    pub calls: usize,
    /// Number of successful calls of fsync and sync among them.
    pub syncs: usize,
}

/// The time from one open of the volume to the next.
struct Phase {
    /// Number of events when the volume was open.
    opened: usize,
    model: Model,
    branches: Branches,
    marks: Vec<Mark>,
}

/// A run in progress: a volume on a recording disk, and the promises of its calls.
pub struct Run {
    start: Image,
    disk: Arc<SimDisk>,
    recorder: Arc<Recorder>,
    /// Number of events when the volume was opened last.
    opened: usize,
    phases: Vec<Phase>,
    fs: Arc<FileSystem>,
}

impl Run {
    /// Opens the volume in `start` with `options`. After every `interval` calls everything is made
    /// durable without being promised, as a periodic push does on a volume in use; 0 for never.
    ///
    /// # Errors
    /// The volume cannot be opened or read.
    pub fn begin(start: Image, options: &Options, interval: u64) -> Result<Self> {
        Self::on(Arc::new(SimDisk::new(start, true)), options, interval)
    }

    /// As [`Run::begin`], on a disk that records and holds the volume.
    ///
    /// # Errors
    /// The volume cannot be opened or read.
    pub fn on(disk: Arc<SimDisk>, options: &Options, interval: u64) -> Result<Self> {
        let start = disk.image();
        let before = read_only(&start)?;
        let (tree, branches) = (read(&before)?, branches_of(&before)?);
        let recorder = Arc::new(Recorder {
            disk: disk.clone(),
            interval,
            watched: Mutex::new(Watched {
                model: Model::of(&tree),
                branches,
                marks: Vec::new(),
                began: 0,
            }),
        });
        let fs = open(&disk, &recorder, options)?;
        Ok(Self {
            start,
            disk,
            recorder,
            opened: 0,
            phases: Vec::new(),
            fs,
        })
    }

    /// The volume.
    pub fn fs(&self) -> &Arc<FileSystem> {
        &self.fs
    }

    /// The disk.
    pub fn disk(&self) -> &Arc<SimDisk> {
        &self.disk
    }

    /// Kills the process and opens the volume again. What was written is still in the disk's cache,
    /// though it may not be durable; what was in memory is lost. Once the volume is open,
    /// everything visible in it is promised.
    ///
    /// # Errors
    /// The volume cannot be opened or read, or its tree is not allowed by the calls.
    pub fn kill(&mut self, options: &Options) -> Result<(), String> {
        let shown = |e: cairnfs::Error| format!("after a kill: {e}");
        self.disk.cut();
        // Its workers end; they would go on when the disk works again.
        let _ = self.fs.close();
        self.fs = read_only(&self.disk.image()).map_err(shown)?;
        let tree = read(&self.fs).map_err(shown)?;
        {
            let watched = self.recorder.watched.lock();
            let verdict = watched.model.verify(&tree, watched.model.moment());
            verdict.map_err(|v| format!("after a kill: {v}"))?;
            for (id, branch) in &watched.branches {
                let tree = self.fs.open_root(*id).and_then(|fs| read(&fs));
                let verdict = branch
                    .model
                    .verify(&tree.map_err(shown)?, branch.model.moment());
                verdict.map_err(|v| format!("branch {}, after a kill: {v}", branch.name))?;
            }
        }
        let branches = branches_of(&self.fs).map_err(shown)?;
        self.disk.mend();
        self.fs = open(&self.disk, &self.recorder, options).map_err(shown)?;
        self.end_phase(Model::of(&tree), branches);
        Ok(())
    }

    /// Runs a front end's request, which may make several calls: their changes survive all together
    /// or not at all. File contents are still written block by block.
    pub fn request<R>(&self, request: impl FnOnce() -> R) -> R {
        self.recorder.watched.lock().model.begin_request();
        let result = request();
        self.recorder.watched.lock().model.end_request();
        result
    }

    fn end_phase(&mut self, next: Model, branches: Branches) {
        let mut watched = self.recorder.watched.lock();
        self.phases.push(Phase {
            opened: self.opened,
            model: std::mem::replace(&mut watched.model, next),
            branches: std::mem::replace(&mut watched.branches, branches),
            marks: std::mem::take(&mut watched.marks),
        });
        self.opened = self.disk.recorded();
    }

    /// Ends the run with a power failure: nothing is written after it.
    pub fn end(mut self) -> Recording {
        self.disk.cut();
        self.end_phase(Model::default(), Branches::new());
        Recording {
            start: self.start.clone(),
            events: self.disk.take_events(),
            phases: std::mem::take(&mut self.phases),
        }
    }
}

/// A recorded run.
pub struct Recording {
    start: Image,
    events: Vec<Event>,
    phases: Vec<Phase>,
}

impl Recording {
    /// Records what `run` does to the volume in `start`, which is opened with `options`.
    ///
    /// # Errors
    /// The volume cannot be opened or read, or `run` returns an error.
    pub fn of(
        start: Image,
        options: &Options,
        run: impl FnOnce(&Arc<FileSystem>) -> Result<()>,
    ) -> Result<Self> {
        let disk = Arc::new(SimDisk::new(start, true));
        let (recording, result) = Self::on(&disk, options, run)?;
        result.map(|()| recording)
    }

    /// As [`Recording::of`], on a disk that records and may have a planned fault. If `run` fails,
    /// the recording holds what happened until then; the result of `run` is returned with it.
    ///
    /// # Errors
    /// The volume cannot be opened or read.
    pub fn on<R>(
        disk: &Arc<SimDisk>,
        options: &Options,
        run: impl FnOnce(&Arc<FileSystem>) -> R,
    ) -> Result<(Self, R)> {
        let under_way = Run::on(disk.clone(), options, 0)?;
        let result = run(under_way.fs());
        Ok((under_way.end(), result))
    }

    /// Records what `run` does to an empty volume through calls on paths. After each call
    /// everything is made durable, promised or not, so that the states include each prefix of the
    /// calls. At the end the volume is synced and closed.
    pub fn of_volume(run: impl FnOnce(&Volume) -> Result<()>) -> Result<Self> {
        let start = fresh_volume(VOLUME_SIZE)?;
        let under_way = Run::begin(start, &options(2), 1)?;
        let volume = Volume::from(under_way.fs().clone());
        let result = run(&volume)
            .and_then(|()| volume.sync())
            .and_then(|()| volume.close());
        let recording = under_way.end();
        result.map(|()| recording)
    }

    /// The calls that had returned after `event` events.
    pub fn returned(&self, event: usize) -> Returned {
        let before = self.moment(event).phase;
        let over = self.phases.iter().take(before).map(|p| Returned {
            calls: p.marks.len(),
            syncs: p.marks.last().map_or(0, |m| m.after.promises),
        });
        let marks = self.phases.get(before).map(|p| p.marks.as_slice());
        let ended = marks.map_or(0, |m| m.partition_point(|m| m.ended <= event));
        let now = Returned {
            calls: ended,
            syncs: self.moment(event).promises,
        };
        over.fold(now, |sum, phase| Returned {
            calls: sum.calls + phase.calls,
            syncs: sum.syncs + phase.syncs,
        })
    }

    /// The recorded events.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The calls as text, those on a branch after those on the main root.
    pub fn calls(&self) -> impl Iterator<Item = &str> {
        let models = self.phases.iter().flat_map(|phase| {
            let branches = phase.branches.values().map(|branch| &branch.model);
            std::iter::once(&phase.model).chain(branches)
        });
        models.flat_map(Model::calls).map(String::as_str)
    }

    /// A cursor before the first event.
    pub fn cursor(&self) -> Cursor<'_> {
        Cursor::new(self.start.clone(), &self.events)
    }

    /// What may and must survive after `event` events.
    pub fn moment(&self, event: usize) -> Moment {
        let phases = self.phases.partition_point(|p| p.opened <= event);
        let phase = phases.saturating_sub(1);
        let marks = self.phases.get(phase).map(|p| p.marks.as_slice());
        let marks = marks.unwrap_or_default();
        let after = |n: usize| {
            let last = n.checked_sub(1).and_then(|n| marks.get(n));
            last.map_or(Moment::default(), |m| m.after)
        };
        let begun = marks.partition_point(|m| m.began <= event);
        let returned = marks.partition_point(|m| m.ended <= event);
        Moment {
            phase,
            ops: after(begun).ops,
            promises: after(returned).promises,
            begun,
            returned,
        }
    }

    /// Whether the run had no branch and made no snapshot.
    pub(crate) fn has_one_root(&self) -> bool {
        let one = |phase: &Phase| phase.branches.is_empty() && phase.model.snapshots().is_empty();
        self.phases.iter().all(one)
    }

    /// Checks whether a recovered tree is allowed at this moment.
    ///
    /// # Errors
    /// The promise that the tree breaks.
    pub fn verify(&self, tree: &Tree, moment: Moment) -> Result<(), Violation> {
        match self.phases.get(moment.phase) {
            Some(phase) => phase.model.verify(tree, moment),
            None => Ok(()),
        }
    }

    /// Checks whether the branches of a recovered volume are those that were made, each with files
    /// that are allowed at this moment. Opens them.
    ///
    /// # Errors
    /// The branch that is missing, or should not be there, or the promise that its tree breaks.
    pub fn verify_branches(&self, fs: &FileSystem, moment: Moment) -> Result<(), String> {
        let Some(phase) = self.phases.get(moment.phase) else {
            return Ok(());
        };
        let after = |calls: usize, id: &u32| {
            let last = calls.checked_sub(1).and_then(|n| phase.marks.get(n));
            last.and_then(|mark| mark.branches.get(id))
        };
        let named = fs.roots().into_iter().filter(|root| root.name.is_some());
        let found: BTreeSet<u32> = named.map(|root| root.id).collect();
        for (id, branch) in &phase.branches {
            let name = &branch.name;
            let shown = |e: Error| format!("branch {name}: {e}");
            let (begun, returned) = (after(moment.begun, id), after(moment.returned, id));
            let dropped = |calls: usize| branch.dropped.is_some_and(|call| call < calls);
            if dropped(moment.begun) {
                if dropped(moment.returned) && found.contains(id) {
                    return Err(format!("branch {name} is there after it was dropped"));
                } else {
                    continue;
                }
            }
            match found.contains(id) {
                false if branch.old || returned.is_some() => {
                    return Err(format!("branch {name} is missing"));
                }
                true if !branch.old && begun.is_none() => {
                    return Err(format!("branch {name} is there before it was made"));
                }
                false => continue,
                true => {}
            }
            let tree = fs.open_root(*id).and_then(|fs| read(&fs)).map_err(shown)?;
            let known = Moment {
                ops: begun.map_or(0, |after| after.ops),
                promises: returned.map_or(0, |after| after.promises),
                ..moment
            };
            let verdict = branch.model.verify(&tree, known);
            verdict.map_err(|v| format!("branch {name}: {v}"))?;
        }
        Ok(())
    }

    /// Checks whether the snapshots of a volume are those that were made, at this moment.
    ///
    /// # Errors
    /// The snapshot that is missing or has other files than when it was made.
    pub fn verify_snapshots(&self, image: &Image, moment: Moment) -> Result<(), String> {
        let phases = self.phases.iter().enumerate().take(moment.phase + 1);
        let mut named: BTreeMap<&str, Vec<(&Snapshot, Moment)>> = BTreeMap::new();
        for (n, phase) in phases {
            let moment = if n < moment.phase {
                phase.model.moment()
            } else {
                moment
            };
            for snapshot in phase.model.snapshots() {
                let same = named.entry(&snapshot.name).or_default();
                same.push((snapshot, moment));
            }
        }
        // A name may have been used again after it was dropped.
        for (name, snapshots) in named {
            let mut may = snapshots.iter().filter(|(s, at)| !s.must_be_gone(*at));
            let must = snapshots.iter().any(|(s, at)| s.must_exist(*at));
            match snapshot_of(image, name) {
                Ok(tree) if may.any(|(s, _)| s.tree == tree) => {}
                Ok(_) => return Err(format!("snapshot {name} has other files, or was dropped")),
                Err(Error::NoSnapshot(_)) if !must => {}
                Err(e) => return Err(format!("snapshot {name}: {e}")),
            }
        }
        Ok(())
    }

    /// The disk in a state; `None` if there is no such state.
    pub fn image(&self, id: StateId) -> Option<Image> {
        let again = self.promises_more(id.event as usize);
        self.cursor().image_in(id, again)
    }

    /// Whether event `event` added promises, so that more must survive after it than before.
    pub fn promises_more(&self, event: usize) -> bool {
        let promised = |event| {
            let moment = self.moment(event);
            let marks = self.phases.get(moment.phase).map(|p| &p.marks);
            let last = marks.and_then(|marks| marks.get(moment.returned.checked_sub(1)?));
            let branches = last.map(|mark| mark.branches.values().map(|m| m.promises));
            let branches = branches.into_iter().flatten().collect::<Vec<_>>();
            (moment.phase, moment.promises, branches)
        };
        event
            .checked_sub(1)
            .is_some_and(|e| promised(event) > promised(e))
    }
}

fn open(
    disk: &Arc<SimDisk>,
    recorder: &Arc<Recorder>,
    options: &Options,
) -> Result<Arc<FileSystem>> {
    let watched = Options {
        observer: Some(recorder.clone()),
        ..options.clone()
    };
    FileSystem::open_device(disk.clone(), &watched)
}

/// Opens the volume in an image read-only.
fn read_only(image: &Image) -> Result<Arc<FileSystem>> {
    let options = Options {
        read_only: true,
        ..options(0)
    };
    FileSystem::open_device(Arc::new(SimDisk::new(image.clone(), false)), &options)
}

/// The files of a snapshot of the volume in an image.
fn snapshot_of(image: &Image, name: &str) -> Result<Tree> {
    let options = Options {
        read_only: true,
        root: Some(name.to_owned()),
        ..pressed(image.digest())
    };
    let disk = Arc::new(SimDisk::new(image.clone(), false));
    read(&*FileSystem::open_device(disk, &options)?)
}

fn read(fs: &FileSystem) -> Result<Tree> {
    Tree::read(fs).map_err(|e| match e {
        Unreadable::Failed(_, error) => error,
        Unreadable::Contradiction(_) => Error::Invalid("a volume that contradicts itself"),
    })
}
