//! Pruning: moments that no rule keeps go, then what nothing needs any longer.
//!
//! In this order: a head without the moments, then the objects. So a crash leaves garbage that the next
//! prune removes, and never a moment that lacks something. Uses the writer, rules and compaction.

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
}

/// Prunes a backup.
///
/// # Errors
/// A writer has begun meanwhile: then it is to be run again; or the store fails.
pub fn prune(
    store: &Arc<Store>,
    options: &PruneOptions,
    zone: &TimeZone,
    watch: &dyn Watch,
) -> Result<Pruned> {
    let mut writer = Writer::open_for_care(Arc::clone(store), options.key.clone())?;
    let kept = options.keep.kept(writer.catalogue().moments(), zone);
    let moments = writer.catalogue().moments().to_vec();
    let stays = |moment: &Moment| kept.contains(&moment.number);
    let (moments, removed): (Vec<_>, Vec<_>) = moments.into_iter().partition(stays);
    let mut pruned = Pruned {
        kept: moments.len() as u64,
        removed,
        ..Pruned::default()
    };
    if options.dry_run || writer.catalogue().newest().is_none() {
        return Ok(pruned);
    }
    writer.begin()?;
    if !pruned.removed.is_empty() {
        writer.catalogue_mut().set_moments(moments);
        writer.publish(true)?;
    }
    add(&mut pruned, writer.delete_garbage()?);
    watch.go_on()?;
    if writer.seal().opens() {
        pruned.merged = compact::merge_groups(&mut writer, watch)?;
    }
    if pruned.merged > 0 {
        writer.publish(true)?;
        add(&mut pruned, writer.delete_garbage()?);
    }
    Ok(pruned)
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
