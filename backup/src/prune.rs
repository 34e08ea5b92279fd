//! Pruning: moments that no rule keeps go, then what nothing needs any longer.
//!
//! In this order: a head without the moments, then the objects, some time later for the sake of programs
//! that read them ([`Maintenance`] knows which). So a crash leaves garbage that the next prune removes, and never a
//! moment that lacks something. Where there is no space for the head, what is needed neither by a moment nor
//! by a writer goes before. Uses the writer, rules, maintenance and compaction.

use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;

use crate::compact;
use crate::error::{Error, Result};
use crate::format::head::Moment;
use crate::keep::Keep;
use crate::maintenance::Maintenance;
use crate::seal::Key;
use crate::store::Store;
use crate::watch::Watch;
use crate::writer::Writer;

/// What a prune does.
#[derive(Clone, Default)]
pub struct PruneOptions {
    /// Which moments are kept.
    pub keep: Keep,
    /// How long the contents of removed moments stay for programs that read them. In a store without space
    /// they do not.
    pub grace: Duration,
    /// Only tells what would go.
    pub dry_run: bool,
    /// Opens an encrypted backup; without it its layers are not merged.
    pub key: Option<Key>,
}

/// What a prune did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Moments that went.
    pub removed: Vec<Moment>,
    /// Moments that are left.
    pub kept: u64,
    /// Bytes of deleted objects.
    pub bytes: u64,
    /// Deleted objects.
    pub objects: u64,
    /// Bytes of objects that nothing needs, and that were needed less than the grace ago.
    pub left_bytes: u64,
    /// Those objects.
    pub left_objects: u64,
    /// Layers that became others.
    pub merged: u64,
    /// Whether there was no space to merge more of them.
    pub has_no_space: bool,
}

/// How often space is made for a prune that has none to begin or to go on.
const ROUNDS: u32 = 3;

/// Prunes a backup. In a store without space, what can go without a new head goes before.
///
/// # Errors
/// A writer has begun meanwhile: then it is to be run again; or the store fails.
pub fn prune(
    store: &Arc<Store>,
    options: &PruneOptions,
    zone: &TimeZone,
    watch: &dyn Watch,
) -> Result<Pruned> {
    let mut pruned = Pruned::default();
    let mut options = options.clone();
    for _ in 0..ROUNDS {
        match prune_once(store, &options, (zone, watch), &mut pruned) {
            Err(why) if why.is_full() => {
                options.grace = Duration::ZERO;
                make_room(store, &options, &mut pruned)?;
            }
            Err(why) => return Err(why),
            Ok(()) => return Ok(pruned),
        }
    }
    prune_once(store, &options, (zone, watch), &mut pruned)?;
    Ok(pruned)
}

/// Deletes what can go before anything is stored.
fn make_room(store: &Arc<Store>, options: &PruneOptions, pruned: &mut Pruned) -> Result<()> {
    let mut writer = Writer::open_for_care(Arc::clone(store), options.key.clone())?;
    let (bytes, objects) = writer.make_room()?;
    add(pruned, (bytes, objects));
    match objects {
        0 => Err(Error::NoRoom {
            bytes: writer.head_size()?,
        }),
        _ => Ok(()),
    }
}

fn prune_once(
    store: &Arc<Store>,
    options: &PruneOptions,
    (zone, watch): (&TimeZone, &dyn Watch),
    pruned: &mut Pruned,
) -> Result<()> {
    let mut writer = Writer::open_for_care(Arc::clone(store), options.key.clone())?;
    let kept = options.keep.kept(writer.catalogue().moments(), zone);
    let moments = writer.catalogue().moments().to_vec();
    let stays = |moment: &Moment| kept.contains(&moment.number);
    let (moments, removed): (Vec<_>, Vec<_>) = moments.into_iter().partition(stays);
    pruned.kept = moments.len() as u64;
    if options.dry_run || writer.catalogue().newest().is_none() {
        pruned.removed = removed;
        return Ok(());
    }
    writer.begin()?;
    let mut maintenance = Maintenance::default();
    // What earlier programs have left is told by heads that the next whole one may remove.
    add(
        pruned,
        maintenance.settle(&mut writer, options.grace, watch)?,
    );
    if !removed.is_empty() {
        writer.catalogue_mut().set_moments(moments);
        writer.publish(true)?;
        pruned.removed.extend(removed);
        add(
            pruned,
            maintenance.settle(&mut writer, options.grace, watch)?,
        );
    }
    watch.go_on()?;
    if writer.seal().opens() {
        merge(&mut writer, &mut maintenance, (options, watch), pruned)?;
    }
    (pruned.left_bytes, pruned.left_objects) = maintenance.left();
    Ok(())
}

/// Merges layers. In a store without space for that, what stays for readers goes, and then it is tried once
/// more; what had to go has gone in any case, and a merge would only save more space.
fn merge(
    writer: &mut Writer,
    maintenance: &mut Maintenance,
    (options, watch): (&PruneOptions, &dyn Watch),
    pruned: &mut Pruned,
) -> Result<()> {
    if fitting(try_merge(writer, maintenance, (options, watch), pruned))?.is_some() {
        return Ok(());
    }
    // Without space there is nothing that can be begun again.
    let gone = fitting(make_room_again(writer, maintenance, watch, pruned))?.unwrap_or(0);
    pruned.has_no_space =
        gone == 0 || fitting(try_merge(writer, maintenance, (options, watch), pruned))?.is_none();
    Ok(())
}

/// What was done, if the store had space for it.
fn fitting<T>(done: Result<T>) -> Result<Option<T>> {
    match done {
        Err(why) if why.is_full() => Ok(None),
        other => other.map(Some),
    }
}

fn try_merge(
    writer: &mut Writer,
    maintenance: &mut Maintenance,
    (options, watch): (&PruneOptions, &dyn Watch),
    pruned: &mut Pruned,
) -> Result<()> {
    let merged = compact::merge_groups(writer, watch)?;
    if merged > 0 {
        writer.publish(true)?;
        pruned.merged += merged;
        add(pruned, maintenance.settle(writer, options.grace, watch)?);
    }
    Ok(())
}

/// Begins again, and removes what a merge has stored that found no space for the rest, with all that waits
/// for readers; returns how many objects these were.
fn make_room_again(
    writer: &mut Writer,
    maintenance: &mut Maintenance,
    watch: &dyn Watch,
    pruned: &mut Pruned,
) -> Result<u64> {
    writer.reopen()?;
    writer.begin()?;
    let (bytes, objects) = maintenance.settle(writer, Duration::ZERO, watch)?;
    add(pruned, (bytes, objects));
    Ok(objects)
}

fn add(pruned: &mut Pruned, (bytes, objects): (u64, u64)) {
    pruned.bytes += bytes;
    pruned.objects += objects;
}

impl Error {
    /// Whether the same may succeed when it is begun anew: a writer was active meanwhile.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }
}
