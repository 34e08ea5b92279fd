//! Recording a run: what the disk was asked, what the calls promised, and how these lie in time.
//!
//! A [`Recorder`] watches a volume on a simulated disk. The [`Recording`] it leaves tells for each
//! moment at which the power may fail what the disk may hold, and what must be recovered from it.

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
    let disk = SimDisk::new(Image::new(size), false);
    let make = MakeOptions {
        seed: Some(1),
        ..MakeOptions::default()
    };
    make_device(&disk, &make, &mut |_, _| {})?;
    Ok(disk.image())
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
        let disk = Arc::new(SimDisk::new(start, true));
        let (recording, result) = Self::on(&disk, options, run)?;
        result.map(|()| recording)
    }

    /// As [`Recording::of`], on a disk that records and may have a fault planned. Whatever `run`
    /// meets, the recording holds what happened until then, and what `run` returns comes with it.
    ///
    /// # Errors
    /// The volume cannot be opened or read.
    pub fn on<R>(
        disk: &Arc<SimDisk>,
        options: &Options,
        run: impl FnOnce(&Arc<FileSystem>) -> R,
    ) -> Result<(Self, R)> {
        let start = disk.image();
        let tree = read_only(SimDisk::new(start.clone(), false))?;
        let recorder = Arc::new(Recorder {
            disk: disk.clone(),
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
        let result = run(&fs);
        disk.cut();
        drop(fs);
        let mut watched = recorder.watched.lock();
        let recording = Self {
            start,
            events: disk.take_events(),
            model: std::mem::take(&mut watched.model),
            marks: std::mem::take(&mut watched.marks),
        };
        Ok((recording, result))
    }

    /// Records what `run` does to an empty volume through the calls on paths.
    ///
    /// # Errors
    /// As [`Recording::of`].
    pub fn of_volume(run: impl FnOnce(&Volume) -> Result<()>) -> Result<Self> {
        let start = fresh_volume(VOLUME_SIZE)?;
        Self::of(start, &options(2), |fs| run(&Volume::from(fs.clone())))
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
