//! Pruning: moments that no rule keeps go, then what nothing needs any longer.
//!
//! In this order: a head without the moments, then the objects. So a crash leaves garbage that the next
//! prune removes, and never a moment that lacks something. Where there is no space for the head, what is
//! needed neither by a moment nor by a writer goes before. Uses the writer, rules and compaction.

use std::sync::Arc;

use jiff::tz::TimeZone;

use crate::compact;
use crate::error::{Error, Result};
use crate::format::head::Moment;
use crate::keep::Keep;
use crate::seal::Key;
use crate::store::Store;
use crate::watch::Watch;
use crate::writer::Writer;

/// What a prune does.
#[derive(Clone, Default)]
pub struct PruneOptions {
    /// Which moments are kept.
    pub keep: Keep,
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
    for _ in 0..ROUNDS {
        match prune_once(store, options, (zone, watch), &mut pruned) {
            Err(why) if why.is_full() => make_room(store, options, &mut pruned)?,
            Err(why) => return Err(why),
            Ok(()) => return Ok(pruned),
        }
    }
    prune_once(store, options, (zone, watch), &mut pruned)?;
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
    if !removed.is_empty() {
        writer.catalogue_mut().set_moments(moments);
        writer.publish(true)?;
        pruned.removed.extend(removed);
    }
    add(pruned, writer.delete_garbage()?);
    watch.go_on()?;
    if !writer.seal().opens() {
        return Ok(());
    }
    match merge(&mut writer, watch, pruned) {
        Err(why) if why.is_full() => {
            // What had to go has gone; a merge would only save more space.
            pruned.has_no_space = true;
            remove_begun(&mut writer, pruned)
        }
        merged => merged,
    }
}

fn merge(writer: &mut Writer, watch: &dyn Watch, pruned: &mut Pruned) -> Result<()> {
    let merged = compact::merge_groups(writer, watch)?;
    if merged > 0 {
        writer.publish(true)?;
        pruned.merged += merged;
        add(pruned, writer.delete_garbage()?);
    }
    Ok(())
}

/// Removes what a merge has stored that found no space for the rest, if that can be done without any.
fn remove_begun(writer: &mut Writer, pruned: &mut Pruned) -> Result<()> {
    writer.reopen()?;
    match writer.begin() {
        Ok(()) => add(pruned, writer.delete_garbage()?),
        Err(why) if why.is_full() => {}
        Err(why) => return Err(why),
    }
    Ok(())
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
