//! Ablated mechanisms, and what the log does only because one is ablated.
//!
//! A volume has at most one ablated mechanism; all code asks the journal for it. What other modules
//! do only for an ablation is in `txn/ablation.rs`.

use std::collections::HashSet;
use std::sync::Arc;

use crate::journal::Journal;
use crate::journal::vector::LogVector;
use cairnfs_disk::format::key::Kind;
use cairnfs_disk::mechanism::Mechanism;

impl Journal {
    /// The same journal with a mechanism ablated.
    pub fn ablate(mut self, mechanism: Option<Mechanism>) -> Self {
        self.ablated = mechanism;
        self
    }

    /// Whether a mechanism is ablated.
    pub fn is_ablated(&self, mechanism: Mechanism) -> bool {
        self.ablated == Some(mechanism)
    }

    /// The items to write, with those that are written again only because a mechanism is ablated;
    /// and the log bytes taken for the latter.
    pub(super) fn with_copies(&self, vectors: Vec<Arc<LogVector>>) -> (Vec<Arc<LogVector>>, i64) {
        match self.ablated {
            Some(Mechanism::EntriesOnce) => self.entries_again(vectors),
            Some(Mechanism::Relogging) => self.changes_again(vectors),
            _ => (vectors, 0),
        }
    }

    /// Items that changed several times are listed as often. Keeps them so if the log has space for
    /// that, otherwise once each. Their charges were accounted once.
    fn changes_again(&self, mut vectors: Vec<Arc<LogVector>>) -> (Vec<Arc<LogVector>>, i64) {
        let mut first = HashSet::new();
        let mut is_first = |v: &Arc<LogVector>| first.insert(Arc::as_ptr(v).cast::<()>());
        let again = vectors.iter().filter(|v| !is_first(v));
        let paid = again.filter(|v| v.is_live()).map(|v| v.charge()).sum();
        if self.ring.try_take(paid) {
            return (vectors, paid);
        }
        let mut first = HashSet::new();
        vectors.retain(|v| first.insert(Arc::as_ptr(v).cast::<()>()));
        (vectors, 0)
    }

    /// The same items with each directory entry twice in a row, if the log has space for it; and the
    /// log bytes taken for that.
    fn entries_again(&self, vectors: Vec<Arc<LogVector>>) -> (Vec<Arc<LogVector>>, i64) {
        let is_entry = |v: &Arc<LogVector>| v.key().kind == Kind::DirIndex && !v.is_logged();
        let charges = vectors.iter().filter(|v| is_entry(v)).map(|v| v.charge());
        let paid = charges.sum();
        if !self.ring.try_take(paid) {
            return (vectors, 0);
        }
        let times = |v: &Arc<LogVector>| if is_entry(v) { 2 } else { 1 };
        let again = |v: Arc<LogVector>| {
            let times = times(&v);
            std::iter::repeat_n(v, times)
        };
        (vectors.into_iter().flat_map(again).collect(), paid)
    }
}
