//! Repairing heads: each is put back from the one of its two objects that can be read; where neither can,
//! the backup goes on from the newest head that can be read.
//!
//! Nothing is deleted. What is put back has the bytes that were stored before, so that no writer is
//! disturbed. A head that goes on behind damaged ones is stored as every other head is, only if there is
//! none of its number. Uses the search and the writer.

use std::sync::Arc;

use crate::catalogue::Catalogue;
use crate::error::{Error, Result};
use crate::seal::Seal;
use crate::search::{Damage, Side, Twin, for_each_pair};
use crate::store::Store;
use crate::watch::Watch;
use crate::writer::Writer;

/// What a repair did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Objects that were put back.
    pub restored: Vec<String>,
    /// Objects that stay damaged.
    pub left: Vec<Damage>,
    /// The first and the last head whose moments are lost.
    pub lost: Option<(u64, u64)>,
    /// The head that goes on behind them.
    pub head: Option<u64>,
    /// Moments that are kept.
    pub moments: u64,
}

/// Repairs the heads of a backup.
///
/// # Errors
/// No head can be read, a writer has begun meanwhile, or the store fails.
pub fn repair(store: &Arc<Store>, watch: &dyn Watch) -> Result<Repaired> {
    let catalogue = Catalogue::open(store)?;
    // What this program cannot use it does not change.
    Seal::of(catalogue.root().encryption.as_ref(), None)?;
    let Some(newest) = catalogue.newest() else {
        return Err(Error::NoMoment("yet".into()));
    };
    let mut repaired = Repaired {
        moments: catalogue.moments().len() as u64,
        ..Repaired::default()
    };
    let place = (newest.number, newest.hash);
    for_each_pair(store, catalogue.anchor(), place, |pair| {
        watch.go_on()?;
        let (twin, found) = match (&pair.head, &pair.copy) {
            (Side::Good(_), Side::Good(_)) => return Ok(()),
            (Side::Good(found), _) => (Twin::Copy, found),
            (_, Side::Good(found)) => (Twin::Head, found),
            _ => {
                repaired.left.extend(pair.damage());
                return Ok(());
            }
        };
        let name = twin.name(pair.number);
        store.put(&name, found.bytes.clone())?;
        repaired.restored.push(name);
        Ok(())
    })?;
    repaired.lost = catalogue.unreachable();
    if repaired.lost.is_some() {
        watch.go_on()?;
        let known = |damage: &&Damage| !damage.is_covered && !repaired.left.contains(damage);
        let more: Vec<Damage> = catalogue.damage().iter().filter(known).cloned().collect();
        repaired.left.extend(more);
        let mut writer = Writer::of_last(Arc::clone(store), catalogue, None)?;
        writer.begin()?;
        repaired.head = Some(writer.catalogue().last());
    }
    Ok(repaired)
}
