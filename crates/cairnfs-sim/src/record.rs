//! Recording a run: what the disk was asked, what the calls promised, and how these lie in time.
//!
//! A [`Recorder`] watches a volume on a simulated disk, for as long as a [`Run`] lasts. The
//! [`Recording`] it leaves tells for each moment at which the power may fail what the disk may hold, and what must be recovered from it.

use std::fmt;
use std::sync::Arc;

use cairnfs::fs::{Call, FileSystem, MakeOptions, Observer, Options, Outcome, make_device};
use cairnfs::{Result, Volume};
use parking_lot::Mutex;

use crate::disk::{Event, SimDisk};
use crate::image::Image;
use crate::model::{Model, Moment};
use crate::states::{Cursor, StateId};
use crate::tree::Tree;

/// Bytes of the volumes that are simulated: the least there is.
pub const VOLUME_SIZE: u64 = 16 << 20;

/// A call on the axis of events.
#[derive(Debug, Clone, Copy)]
struct Mark {
    /// Events before it began.
    began: usize,
    /// Events when it returned.
    ended: usize,
    /// What may survive from its begin on, and must from its end.
    after: Moment,
}

struct Watched {
    model: Model,
    marks: Vec<Mark>,
    began: usize,
}

/// Watches the calls on a volume.
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

    fn end(&self, call: &Call<'_>, outcome: &Outcome<'_>) {
        let mut watched = self.watched.lock();
        watched.model.apply(call, outcome);
        let mark = Mark {
            began: watched.began,
            ended: self.disk.recorded(),
            after: watched.model.moment(),
        };
        watched.marks.push(mark);
    }

    fn interval_ends(&self) -> bool {
        let calls = self.watched.lock().marks.len() as u64;
        self.interval > 0 && calls.is_multiple_of(self.interval)
    }
}

/// How simulated volumes are opened: nothing happens but in the calls, and the same each time.
pub fn options(seed: u64) -> Options {
    Options {
        cache_budget: 8 << 20,
        durability_interval: None,
        workers: false,
        seed: Some(seed),
        ..Options::default()
    }
}

/// A fresh, empty volume of `size` bytes; the same each time.
///
/// # Errors
/// A size that makes no volume.
pub fn fresh_volume(size: u64) -> Result<Image> {
    fresh_volume_of(size, (0, 0))
}

/// The same, its root directory owned by this user and group.
///
/// # Errors
/// A size that makes no volume.
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

/// How far a program had come when the power failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Returned {
    /// Calls that had returned, those that change nothing not counted.
    pub calls: usize,
    /// Of them, successful calls of fsync and sync.
    pub syncs: usize,
}

/// A run while it is recorded.
pub struct Run {
    start: Image,
    disk: Arc<SimDisk>,
    recorder: Arc<Recorder>,
    fs: Arc<FileSystem>,
}

impl Run {
    /// Opens the volume in `start` with `options`. After every `interval` calls everything becomes
    /// durable without being promised, as it does in time on a volume in use; 0 for never.
    ///
    /// # Errors
    /// The volume cannot be opened or read.
    pub fn begin(start: Image, options: &Options, interval: u64) -> Result<Self> {
        let disk = Arc::new(SimDisk::new(start.clone(), true));
        let tree = read_only(SimDisk::new(start.clone(), false))?;
        let recorder = Arc::new(Recorder {
            disk: disk.clone(),
            interval,
            watched: Mutex::new(Watched {
                model: Model::of(&tree),
                marks: Vec::new(),
                began: 0,
            }),
        });
        let watched = Options {
            observer: Some(recorder.clone()),
            ..options.clone()
        };
        let fs = FileSystem::open_device(disk.clone(), &watched)?;
        Ok(Self {
            start,
            disk,
            recorder,
            fs,
        })
    }

    /// The volume.
    pub fn fs(&self) -> &Arc<FileSystem> {
        &self.fs
    }

    /// Turns the power off: nothing is written any more.
    pub fn end(self) -> Recording {
        self.disk.cut();
        drop(self.fs);
        let mut watched = self.recorder.watched.lock();
        Recording {
            start: self.start,
            events: self.disk.take_events(),
            model: std::mem::take(&mut watched.model),
            marks: std::mem::take(&mut watched.marks),
        }
    }
}

/// A run as it was recorded.
pub struct Recording {
    start: Image,
    events: Vec<Event>,
    model: Model,
    marks: Vec<Mark>,
}

impl Recording {
    /// Records what `run` does to the volume in `start`, which is opened with `options`. When `run`
    /// returns, the power is off: nothing is written any more.
    ///
    /// # Errors
    /// The volume cannot be opened or read, or what `run` says.
    pub fn of(
        start: Image,
        options: &Options,
        run: impl FnOnce(&Arc<FileSystem>) -> Result<()>,
    ) -> Result<Self> {
        let recorded = Run::begin(start, options, 0)?;
        let result = run(recorded.fs());
        let recording = recorded.end();
        result.map(|()| recording)
    }

    /// Records what `run` does to an empty volume through the calls on paths. After each call
    /// everything becomes durable, promised or not, so that each prefix of the calls is among the
    /// states; in the end all is synced and the volume closed.
    ///
    /// # Errors
    /// As [`Recording::of`].
    pub fn of_volume(run: impl FnOnce(&Volume) -> Result<()>) -> Result<Self> {
        let start = fresh_volume(VOLUME_SIZE)?;
        let recorded = Run::begin(start, &options(2), 1)?;
        let volume = Volume::from(recorded.fs().clone());
        let result = run(&volume)
            .and_then(|()| volume.sync())
            .and_then(|()| volume.close());
        let recording = recorded.end();
        result.map(|()| recording)
    }

    /// What had returned when so many events had happened.
    pub fn returned(&self, event: usize) -> Returned {
        let calls = self.marks.partition_point(|m| m.ended <= event);
        Returned {
            calls,
            syncs: self.moment(event).promises,
        }
    }

    /// Events recorded.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// What must survive.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The begin of the axis of events.
    pub fn cursor(&self) -> Cursor<'_> {
        Cursor::new(self.start.clone(), &self.events)
    }

    /// What may and must survive when so many events had happened.
    pub fn moment(&self, event: usize) -> Moment {
        let begun = self.marks.partition_point(|m| m.began <= event);
        let ended = self.marks.partition_point(|m| m.ended <= event);
        let after = |n: usize| {
            let last = n.checked_sub(1).and_then(|n| self.marks.get(n));
            last.map_or(Moment::default(), |m| m.after)
        };
        Moment {
            ops: after(begun).ops,
            promises: after(ended).promises,
        }
    }

    /// The disk in a state, if there is such a state.
    pub fn image(&self, id: StateId) -> Option<Image> {
        let mut cursor = self.cursor();
        cursor.step_to(id.event as usize);
        let choices = cursor.choices(self.promises_more(id.event as usize));
        let fates = choices.get(id.choice as usize)?;
        (cursor.at() == id.event as usize).then(|| cursor.image(fates))
    }

    /// Whether more is promised when `event` events have happened than when one less had.
    pub fn promises_more(&self, event: usize) -> bool {
        let before = event.checked_sub(1).map_or(0, |e| self.moment(e).promises);
        self.moment(event).promises > before
    }
}

/// The tree of a volume that nobody changes.
fn read_only(disk: SimDisk) -> Result<Tree> {
    let options = Options {
        read_only: true,
        ..options(0)
    };
    let fs = FileSystem::open_device(Arc::new(disk), &options)?;
    Tree::read(&fs).map_err(|e| match e {
        crate::tree::Unreadable::Failed(_, error) => error,
        crate::tree::Unreadable::Contradiction(_) => {
            cairnfs::Error::Invalid("the volume to begin with contradicts itself")
        }
    })
}
