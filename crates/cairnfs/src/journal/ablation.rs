//! Ablated mechanisms, and what the log does only because one is ablated.
//!
//! A volume has at most one ablated mechanism; all code asks the journal for it. What other modules
//! do only for an ablation is in `txn/ablation.rs`.

use std::sync::Arc;

use crate::format::key::Kind;
use crate::journal::Journal;
use crate::journal::vector::LogVector;
use crate::mechanism::Mechanism;

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

    /// The same items with each directory entry twice in a row, if [`Mechanism::EntriesOnce`] is
    /// ablated and the log has space for it; and the log bytes taken for that.
    pub(super) fn entries_again(&self, vectors: Vec<Arc<LogVector>>) -> (Vec<Arc<LogVector>>, i64) {
        let is_entry = |v: &Arc<LogVector>| v.key().kind == Kind::DirIndex && !v.is_logged();
        if !self.is_ablated(Mechanism::EntriesOnce) {
            return (vectors, 0);
        }
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
