//! Counts of what programs have asked for by channels.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use cairnfs_channel::call::{Op, REASONS, Why};

use crate::status::Programs;

/// Counts since the mount. Shared by all threads, without a lock.
#[derive(Debug)]
pub(crate) struct ProgramCounts {
    answered: [AtomicU64; Op::ALL.len()],
    left: [AtomicU64; REASONS],
    deferred: AtomicU64,
}

impl Default for ProgramCounts {
    fn default() -> Self {
        Self {
            answered: [const { AtomicU64::new(0) }; Op::ALL.len()],
            left: [const { AtomicU64::new(0) }; REASONS],
            deferred: AtomicU64::new(0),
        }
    }
}

/// One more, of what only the thread that answers programs counts.
fn add(count: Option<&AtomicU64>) {
    if let Some(count) = count {
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

impl ProgramCounts {
    /// A call was answered.
    pub fn answered(&self, op: Op, deferred: bool) {
        add((op as usize)
            .checked_sub(1)
            .and_then(|at| self.answered.get(at)));
        if deferred {
            add(Some(&self.deferred));
        }
    }

    /// A call was answered by another thread than the one that answers programs.
    pub fn answered_by_any(&self, op: Op) {
        let count = (op as usize).checked_sub(1);
        if let Some(count) = count.and_then(|at| self.answered.get(at)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A call was left to the kernel.
    pub fn left(&self, why: Why) {
        add(self.left.get(why as usize));
    }

    /// What commands are told.
    pub fn shown(&self, connected: usize) -> Programs {
        let value = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let mut answered = BTreeMap::new();
        for (op, count) in Op::ALL.iter().zip(&self.answered) {
            *answered.entry(op.name().to_owned()).or_default() += value(count);
        }
        let left = Why::ALL.iter().zip(&self.left);
        let left = left.map(|(why, count)| (why.name().to_owned(), value(count)));
        Programs {
            connected: connected as u64,
            deferred: value(&self.deferred),
            answered,
            left: left.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_name_and_reason() {
        let counts = ProgramCounts::default();
        counts.answered(Op::Write, true);
        counts.answered(Op::Chmod, false);
        counts.answered(Op::FileChmod, true);
        counts.left(Why::Path);
        let shown = counts.shown(2);
        assert_eq!((shown.connected, shown.deferred), (2, 2));
        assert_eq!((shown.answered["write"], shown.answered["chmod"]), (1, 2));
        assert_eq!((shown.left["path"], shown.left["known"]), (1, 0));
        assert_eq!(shown.left.len(), REASONS);
    }
}
