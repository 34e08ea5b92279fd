//! Shipping: a moment of a volume becomes a layer and a head.
//!
//! The volume is seen through [`Source`] and [`Checkpoint`], so that nothing here knows of the engine's
//! trees. A backup runs in the caller's thread; a daemon calls it again and again with the same
//! [`Shipper`], which then needs a layer, a head and one look per moment. Merging layers is a call of its
//! own, so that a moment counts as soon as it is stored. Uses the writer, layers and compaction.
//!
//! # The life of a moment
//!
//! | From | To | Caused by | Stored then |
//! |---|---|---|---|
//! | | captured | [`Source::checkpoint`], compared with the newest moment that the volume knows | nothing of it |
//! | captured | ended, unchanged | nothing has changed since the newest moment, and nothing is to be mended | nothing more |
//! | captured | planned | the writer has begun; gained, live and dropped blocks are told | nothing of it |
//! | planned | stored in part | layers are written | garbage, as no head names them |
//! | stored in part | whole | `Writer::publish` | the moment, with all that it needs |
//! | whole | shipped | [`Checkpoint::shipped`]: the volume compares later bitmaps with it | the same |
//! | captured, planned, stored in part | broken off | the store, the volume or another writer; the checkpoint gave way | the moments before |
//! | broken off | captured | the next attempt, up to `ATTEMPTS`; or the next call, when the writer has read anew | the same |
//! | shipped | merged | [`Shipper::tidy`], [`Shipper::job_done`]: it consists of fewer layers | the same contents |
//! | shipped | removed | [`Shipper::thin`]: a head without it | the other moments |
//!
//! 1. A moment is in a head only if all layers that it names are stored.
//! 2. What a moment adds is told by a comparison with a moment that is stored, or it is whole.
//! 3. After a failure nothing is published before the writer has read anew what is kept.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jiff::tz::TimeZone;

use crate::catalogue::since_epoch;
use crate::compact;
use crate::error::{Error, Result};
use crate::format::head::{Layer, Moment};
use crate::format::{BLOCK, MAX_RUNS};
use crate::image::Image;
use crate::keep::Rules;
use crate::losses::Losses;
use crate::maintenance::{Done, Job, Maintenance};
use crate::pack::Packer;
use crate::runs::{Blocks, layer_runs};
use crate::store::Store;
use crate::watch::Watch;
use crate::writer::{Writer, WriterOptions};

/// How often a backup is begun that its own maintenance, or the volume's want of space, interrupts.
const ATTEMPTS: u32 = 3;

/// Told of runs: first block and number of blocks.
pub type EachRun<'a> = dyn FnMut(u64, u64) -> Result<()> + 'a;

/// A volume that is backed up.
pub trait Source {
    /// Its name, which never changes.
    fn volume(&self) -> String;

    /// The names of checkpoints that another one can be compared with.
    fn known(&self) -> Vec<String>;

    /// A state of the whole volume as it is now. If `since` is not known any longer, it is whole.
    fn checkpoint(&self, since: Option<&str>) -> Result<Box<dyn Checkpoint + '_>>;
}

/// A state of a volume, which stays as long as this does.
pub trait Checkpoint {
    /// Its name.
    fn id(&self) -> String;

    /// Whether it tells all blocks as changed.
    fn is_whole(&self) -> bool;

    /// When it was made.
    fn time(&self) -> SystemTime;

    /// Blocks of the image.
    fn blocks(&self) -> u64;

    /// Whether nothing has changed.
    fn is_unchanged(&self) -> bool;

    /// The runs of blocks, ascending, that each checkpoint makes for itself: two of them may have others
    /// there although nothing has changed.
    fn own_blocks(&self) -> Vec<(u64, u64)>;

    /// The blocks to be stored, ascending: those that differ from the image that it is compared with.
    ///
    /// # Errors
    /// Those of the volume, and of `each`.
    fn for_each_gained(&self, each: &mut EachRun<'_>) -> Result<()>;

    /// The blocks that the image needs, ascending; all others are zeros when it is restored.
    ///
    /// # Errors
    /// Those of the volume, and of `each`.
    fn for_each_live(&self, each: &mut EachRun<'_>) -> Result<()>;

    /// Reads blocks of the image.
    fn read(&self, block: u64, buf: &mut [u8]) -> Result<()>;

    /// It is stored.
    ///
    /// # Errors
    /// Those of the volume; then it is shipped again later.
    fn shipped(self: Box<Self>) -> Result<()>;
}

/// What a backup did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shipped {
    /// A moment was stored.
    Moment {
        /// The moment.
        moment: Moment,
        /// Whether all blocks were stored.
        is_whole: bool,
        /// Blocks that were stored.
        blocks: u64,
        /// Bytes of the objects.
        bytes: u64,
    },
    /// Nothing has changed since the newest moment.
    Unchanged,
}

/// What was stored again of what a store has lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mended {
    /// Blocks that earlier moments have, too.
    pub blocks: u64,
    /// Blocks that describe the newest moment, which was stored for that.
    pub own_blocks: u64,
}

/// Backs up one volume.
pub struct Shipper {
    writer: Writer,
    /// The blocks of the moment of this name, which was stored last.
    last: Option<(String, Blocks)>,
    /// Whether the writer must read anew what is kept: something has failed.
    is_stale: bool,
    maintenance: Maintenance,
}

impl Shipper {
    /// Opens the backup of a volume, or makes it.
    pub fn open(store: Arc<Store>, source: &dyn Source, options: WriterOptions) -> Result<Self> {
        Ok(Self {
            writer: Writer::open(store, &source.volume(), options)?,
            last: None,
            is_stale: false,
            maintenance: Maintenance::default(),
        })
    }

    /// The writer.
    pub fn writer(&self) -> &Writer {
        &self.writer
    }

    /// Stores the volume's present state. When this returns, the moment is complete in the store. Call
    /// [`Self::tidy`] afterwards; callers that wait for the moment do not have to wait for that.
    ///
    /// # Errors
    /// Another writer has begun, the store fails, or the volume does. What was stored before is whole.
    pub fn ship(&mut self, source: &dyn Source, watch: &dyn Watch) -> Result<Shipped> {
        let shipped = self.ship_again(source, None, watch)?;
        Ok(shipped.0)
    }

    /// The same, and stores again what the store has lost of the moments before, where the volume still has
    /// it: blocks that have not been written since. Each moment that had them has them again, and what is
    /// stored now can be read wholly.
    pub fn mend(
        &mut self,
        source: &dyn Source,
        losses: &Losses,
        watch: &dyn Watch,
    ) -> Result<(Shipped, Mended)> {
        self.ship_again(source, Some(losses), watch)
    }

    fn ship_again(
        &mut self,
        source: &dyn Source,
        losses: Option<&Losses>,
        watch: &dyn Watch,
    ) -> Result<(Shipped, Mended)> {
        for _ in 1..ATTEMPTS {
            match self.try_ship(source, losses, watch) {
                // A prune, perhaps; if it was somebody else, opening anew tells.
                Err(Error::Lost { .. } | Error::Unclear { .. }) => {}
                // The volume needed the space of the checkpoint; a new one tells the same.
                Err(Error::Engine(cairnfs::Error::GaveWay)) => watch.go_on()?,
                other => return other,
            }
        }
        self.try_ship(source, losses, watch)
    }

    /// Merges layers of the newest moment if it has too many. Moments are whole whether it succeeds or
    /// not; until it does, each further one has a layer more. For programs that do nothing meanwhile; others
    /// have [`Self::next_job`].
    ///
    /// # Errors
    /// Another writer has begun, or the store fails.
    pub fn tidy(&mut self, watch: &dyn Watch) -> Result<()> {
        self.fresh(|this| {
            if this.is_long() {
                this.writer.begin()?;
            }
            match Job::merge(&this.writer) {
                Some(job) => job.run(watch)?.adopt(&mut this.writer),
                None => Ok(()),
            }
        })
    }

    fn is_long(&self) -> bool {
        let newest = self.writer.catalogue().moments().last();
        newest.is_some_and(|moment| moment.layers.len() > compact::MOST_LAYERS)
    }

    /// Removes the moments that rules do not keep; returns how many. Their contents go later, by
    /// [`Self::next_job`].
    ///
    /// # Errors
    /// Another writer has begun, or the store fails. Then nothing is removed, or all of it.
    pub fn thin(&mut self, rules: &Rules, zone: &TimeZone) -> Result<u64> {
        for _ in 1..ATTEMPTS {
            match self.fresh(|this| this.thin_once(rules, zone)) {
                // A prune, perhaps; if it was somebody else, opening anew tells.
                Err(Error::Lost { .. } | Error::Unclear { .. }) => {}
                other => return other,
            }
        }
        self.fresh(|this| this.thin_once(rules, zone))
    }

    fn thin_once(&mut self, rules: &Rules, zone: &TimeZone) -> Result<u64> {
        let moments = self.writer.catalogue().moments();
        let kept = rules.kept(moments, zone);
        let left = moments
            .iter()
            .filter(|moment| kept.contains(&moment.number));
        let left: Vec<Moment> = left.cloned().collect();
        let removed = moments.len() - left.len();
        if removed > 0 {
            self.writer.begin()?;
            self.writer.catalogue_mut().set_moments(left);
            self.writer.publish(true)?;
        }
        Ok(removed as u64)
    }

    /// Deletes what nothing needs in a store without space, also what stays for readers otherwise; returns
    /// whether there was anything.
    ///
    /// # Errors
    /// Another writer has begun, or the store fails.
    pub fn make_room(&mut self) -> Result<bool> {
        self.fresh(|this| {
            let (_, objects) = this.writer.make_room()?;
            let waste = this.maintenance.delete_waste(&this.writer)?;
            Ok(objects + waste > 0)
        })
    }

    /// What is to be done beside shipments, by another thread: merging layers, and deleting what no moment
    /// has needed for `grace`. There is at most one at a time; give it to [`Self::job_done`].
    ///
    /// # Errors
    /// Another writer has begun, or the store fails.
    pub fn next_job(&mut self, grace: Duration) -> Result<Option<Job>> {
        if self.is_stale {
            // It is not known what is kept; the next shipment reads that.
            Ok(None)
        } else {
            self.maintenance.next(&mut self.writer, grace)
        }
    }

    /// Takes over what a job of [`Self::next_job`] has done.
    ///
    /// # Errors
    /// Another writer has begun, or the store fails.
    pub fn job_done(&mut self, done: Done) -> Result<()> {
        if self.is_stale || !done.is_of(&self.writer) {
            // What it has stored is garbage, what it has found may not be any longer.
            Ok(())
        } else {
            self.fresh(|this| this.maintenance.take(done, &mut this.writer))
        }
    }

    fn try_ship(
        &mut self,
        source: &dyn Source,
        losses: Option<&Losses>,
        watch: &dyn Watch,
    ) -> Result<(Shipped, Mended)> {
        self.fresh(|this| this.ship_once(source, losses, watch))
    }

    /// Does something with a writer that knows what is kept; after a failure it may not any longer.
    fn fresh<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.is_stale {
            self.writer.reopen()?;
        }
        self.is_stale = true;
        let done = work(self)?;
        self.is_stale = false;
        Ok(done)
    }

    fn ship_once(
        &mut self,
        source: &dyn Source,
        losses: Option<&Losses>,
        watch: &dyn Watch,
    ) -> Result<(Shipped, Mended)> {
        let moments = self.writer.catalogue().moments();
        let known = source.known();
        let mut newest = moments.iter().rev();
        let before = newest.find(|moment| known.contains(&moment.checkpoint));
        let before = before.cloned();
        let is_newest = moments.last() == before.as_ref();
        let since = before.as_ref().map(|moment| moment.checkpoint.as_str());
        let mut checkpoint = source.checkpoint(since)?;
        let is_stored = checkpoint.is_unchanged() && before.is_some() && is_newest;
        if is_stored && losses.is_none_or(Losses::is_none) {
            // A process that takes a backup over is its writer from now on, also if there is nothing to store.
            if self.writer.takes_over() {
                self.writer.begin()?;
            }
            self.writer.check()?;
            return Ok((Shipped::Unchanged, Mended::default()));
        }
        if !self.writer.catalogue().has_room() {
            return Err(Error::Full);
        }
        self.writer.begin()?;
        let before = before.filter(|_| !checkpoint.is_whole());
        let before = match before.map(|before| Ok((self.blocks_of(&before)?, before))) {
            // Which blocks it has cannot be told any longer, so that all of them are stored.
            Some(Err(why)) if Error::is_damage(&why) => {
                drop(checkpoint);
                checkpoint = source.checkpoint(None)?;
                None
            }
            before => before.transpose()?,
        };
        let mut next = self.plan(checkpoint.as_ref(), before)?;
        let mut mended = Mended::default();
        if let Some(losses) = losses {
            mended = self.store_again(checkpoint.as_ref(), &mut next, losses, watch)?;
        }
        if is_stored && next.is_empty() {
            match mended.blocks {
                0 => self.writer.check()?,
                _ => self.writer.publish(true)?,
            }
            return Ok((Shipped::Unchanged, mended));
        }
        let (shipped, blocks) = self.store(checkpoint.as_ref(), next, mended, watch)?;
        let id = checkpoint.id();
        checkpoint.shipped()?;
        self.last = Some((id, blocks));
        Ok((shipped, mended))
    }

    /// What a checkpoint adds to the moment before, of which the blocks are told as well.
    fn plan(&self, checkpoint: &dyn Checkpoint, before: Option<(Blocks, Moment)>) -> Result<Next> {
        let (old, before) = before.unzip();
        let old = old.unwrap_or_default();
        let gained = collect(|each| checkpoint.for_each_gained(each))?;
        let live = collect(|each| checkpoint.for_each_live(each))?;
        let dropped = old.without(&live).without(&gained);
        Ok(Next {
            before: before.map(|before| before.number),
            blocks: old.without(&dropped).with(&gained),
            gained,
            dropped,
            live,
        })
    }

    /// Stores what was lost of layers of the moment before and has not been written since. Every moment has
    /// it right on top of the layer that had it, and so it has what that one had. What each checkpoint makes
    /// for itself becomes a part of the next moment instead.
    fn store_again(
        &mut self,
        checkpoint: &dyn Checkpoint,
        next: &mut Next,
        losses: &Losses,
        watch: &dyn Watch,
    ) -> Result<Mended> {
        let mut mended = Mended::default();
        let Some(before) = self.moment_before(next) else {
            return Ok(mended);
        };
        let store = Arc::clone(self.writer.store());
        let image = Image::open(store, Arc::default(), self.writer.catalogue(), &before)?;
        let mut own = Blocks::default();
        if checkpoint.is_unchanged() {
            for (start, count) in checkpoint.own_blocks() {
                own.push(start, count)?;
            }
        }
        let steady = next.blocks.without(&next.gained).without(&own);
        let lost = losses.in_image(&before.layers, image.extents());
        drop(image);
        for (layer, lost) in lost {
            let again = lost.and(&steady);
            if !lost.and(&own).is_empty() {
                next.gained = next.gained.with(&next.live.and(&own));
                next.blocks = next.blocks.with(&next.gained);
                mended.own_blocks = next.gained.count();
            }
            if again.is_empty() {
                continue;
            }
            watch.expect(again.count() * BLOCK as u64);
            let stored = self.write_layers(checkpoint, &again, &Blocks::default(), watch)?;
            let numbers: Vec<u64> = stored.iter().map(|layer| layer.number).collect();
            let mut moments = self.writer.catalogue().moments().to_vec();
            for moment in &mut moments {
                if let Some(at) = moment.layers.iter().position(|number| *number == layer) {
                    moment
                        .layers
                        .splice(at + 1..at + 1, numbers.iter().copied());
                }
            }
            self.writer.catalogue_mut().set_moments(moments);
            mended.blocks += again.count();
        }
        Ok(mended)
    }

    /// The moment that a next one adds to, as it is now.
    fn moment_before(&self, next: &Next) -> Option<Moment> {
        let mut moments = self.writer.catalogue().moments().iter();
        let before = moments.find(|moment| Some(moment.number) == next.before);
        before.cloned()
    }

    /// Stores blocks of a checkpoint as layers.
    fn write_layers(
        &mut self,
        checkpoint: &dyn Checkpoint,
        gained: &Blocks,
        dropped: &Blocks,
        watch: &dyn Watch,
    ) -> Result<Vec<Layer>> {
        let mut layers = Vec::new();
        for runs in layer_runs(gained, dropped)?.chunks(MAX_RUNS) {
            let packer = Packer {
                store: self.writer.store(),
                seal: self.writer.seal(),
                watch,
            };
            let name = self.writer.new_layer()?;
            let mut read = |block, buf: &mut [u8]| checkpoint.read(block, buf);
            let layer = packer.write(name, runs.to_vec(), &mut read)?;
            layers.push(layer.clone());
            self.writer.catalogue_mut().add_layer(layer);
        }
        Ok(layers)
    }

    /// Stores the layers and the head of a checkpoint; returns the blocks that they have as well.
    fn store(
        &mut self,
        checkpoint: &dyn Checkpoint,
        next: Next,
        mended: Mended,
        watch: &dyn Watch,
    ) -> Result<(Shipped, Blocks)> {
        let before = self.moment_before(&next);
        watch.expect(next.gained.count() * BLOCK as u64);
        let added = self.write_layers(checkpoint, &next.gained, &next.dropped, watch)?;
        let is_whole = before.is_none();
        let mut layers = before.map_or_else(Vec::new, |before| before.layers);
        layers.extend(added.iter().map(|layer| layer.number));
        let (seconds, nanoseconds) = since_epoch(checkpoint.time());
        let moment = Moment {
            number: self.writer.next_number(),
            checkpoint: checkpoint.id(),
            seconds,
            nanoseconds,
            blocks: checkpoint.blocks(),
            live: next.blocks.count(),
            layers,
            automatic: self.writer.options().automatic,
        };
        self.writer.catalogue_mut().add_moment(moment.clone());
        // Layers of moments that a base has are told by a whole head only.
        self.writer.publish(mended.blocks > 0)?;
        let shipped = Shipped::Moment {
            moment,
            is_whole,
            blocks: added.iter().map(|layer| layer.blocks).sum(),
            bytes: added.iter().map(|layer| layer.bytes).sum(),
        };
        Ok((shipped, next.blocks))
    }

    /// The blocks of a moment.
    fn blocks_of(&self, moment: &Moment) -> Result<Blocks> {
        if let Some((id, blocks)) = &self.last
            && *id == moment.checkpoint
        {
            return Ok(blocks.clone());
        }
        // Which blocks there are is told without a key.
        let seal = Arc::default();
        let store = Arc::clone(self.writer.store());
        Image::open(store, seal, self.writer.catalogue(), moment)?.live()
    }
}

/// What the next moment adds to the one before.
struct Next {
    /// The number of the moment before.
    before: Option<u64>,
    /// Blocks that are stored.
    gained: Blocks,
    /// Blocks that have no contents any longer.
    dropped: Blocks,
    /// Blocks that the checkpoint needs.
    live: Blocks,
    /// All that the moment has then.
    blocks: Blocks,
}

impl Next {
    /// Whether it adds nothing.
    fn is_empty(&self) -> bool {
        self.gained.is_empty() && self.dropped.is_empty()
    }
}

/// The runs that a call tells.
fn collect(tell: impl FnOnce(&mut EachRun<'_>) -> Result<()>) -> Result<Blocks> {
    let mut blocks = Blocks::default();
    tell(&mut |start, count| blocks.push(start, count))?;
    Ok(blocks)
}
