//! Times: which calls set them, and with which operations they survive.
//!
//! The values are those that the volume reported when the call had returned; the model decides when
//! they must be there. The times of an inode are one chain. A change of attributes and its times
//! are one operation. The times of a directory whose entries change and those of written data are
//! operations of their own, which the entry and the data need: they may survive alone. A call that
//! sets times in several steps leaves unknown versions in between.

use cairnfs::fs::{Call, Outcome};

use super::Model;
use super::chain::{OpId, Operation, Part, Value, Version};
use crate::tree::Times;

/// A write of more bytes than this may set times more than once.
const LONG: usize = 64 << 10;

impl Model {
    /// Reads the current times of the inodes of a call.
    pub(super) fn look(
        &mut self,
        call: &Call<'_>,
        outcome: &Outcome<'_>,
        seen: &dyn Fn(u64) -> Option<Times>,
    ) {
        let mut inodes = match *call {
            Call::Make { dir, .. } => vec![dir],
            Call::Link { ino, dir, .. } => vec![ino, dir],
            Call::Remove { dir, name } => {
                let gone = self.entry(dir, name);
                gone.into_iter().chain([dir]).collect()
            }
            Call::Rename { from, to, .. } => {
                let ends = [from, to].map(|(dir, name)| self.entry(dir, name));
                ends.into_iter().flatten().chain([from.0, to.0]).collect()
            }
            Call::Write { ino, .. }
            | Call::SetAttr { ino, .. }
            | Call::Fallocate { ino, .. }
            | Call::SetAccessList { ino, .. }
            | Call::SetXattr { ino, .. }
            | Call::RemoveXattr { ino, .. } => vec![ino],
            Call::Tmpfile
            | Call::Fsync { .. }
            | Call::FsyncAll { .. }
            | Call::Sync
            | Call::Snapshot { .. }
            | Call::DropRoot { .. }
            | Call::Branch { .. }
            | Call::Replace { .. }
            | Call::RenameRoot { .. } => Vec::new(),
        };
        if let Outcome::Inode(attr) = outcome {
            inodes.push(attr.ino);
        }
        let times = |ino: u64| Some((ino, seen(ino)?));
        self.seen = inodes.into_iter().filter_map(times).collect();
    }

    /// The times of an inode after the call, as a value of the operation that changes it.
    pub(super) fn times_now(&self, ino: u64) -> Option<(Part, Value)> {
        let times = *self.seen.get(&ino)?;
        Some((Part::Times(ino), Value::Times(Some(times))))
    }

    /// Whether the call changed the times of an inode.
    pub(super) fn is_newer(&self, ino: u64) -> bool {
        let now = self.times_now(ino).map(|(_, value)| value);
        now.is_some() && now.as_ref() != self.value(&Part::Times(ino))
    }

    /// The unknown times of an inode between the steps of a call.
    pub(super) fn times_between(ino: u64) -> (Part, Value) {
        (Part::Times(ino), Value::Times(None))
    }

    /// Adds an operation that sets only the times of an inode, to those after the call.
    pub(super) fn date(&mut self, ino: u64) -> Version {
        if let Some(now) = self.times_now(ino).filter(|_| self.is_newer(ino)) {
            self.add_apart(Operation::default(), vec![now]);
        }
        self.newest(Part::Times(ino))
    }

    /// Adds unknown times for contents that a call changes in steps.
    pub(super) fn date_in_steps(&mut self, ino: u64) -> Version {
        self.add_apart(Operation::default(), vec![Self::times_between(ino)]);
        self.newest(Part::Times(ino))
    }

    /// Adds the times that a write of `len` bytes needs.
    pub(super) fn date_write(&mut self, ino: u64, len: usize) -> Version {
        let between = (len > LONG).then(|| self.date_in_steps(ino));
        let times = self.date(ino);
        between.unwrap_or(times)
    }

    /// From here on earlier changes of a file may survive without their times.
    pub(super) fn leave_times(&mut self, ino: u64) {
        // An operation of its own marks the point: it has begun when the call has.
        self.add_apart(Operation::default(), Vec::new());
        let ops = self.times_only.entry(ino).or_default();
        ops.push(self.ops.len() - 1);
    }

    /// Whether the changes of `op` may survive without their times after `begun` operations have
    /// begun.
    pub(super) fn is_times_only(&self, ino: u64, op: OpId, begun: OpId) -> bool {
        let since = self.times_only.get(&ino).map(Vec::as_slice);
        let mut since = since.unwrap_or_default().iter();
        since.any(|at| *at > op && *at < begun)
    }
}
