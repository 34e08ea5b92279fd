//! Calls of [`Volume`] on its snapshots and branches as a whole. Uses [`cairnfs_history::operations`].

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::PathBuf;

use super::Volume;
use cairnfs_disk::error::Result;
use cairnfs_disk::types::{DropProgress, RootInfo};
use cairnfs_history::operations::{self, Diff, PublishOptions, Published};

/// # Snapshots and branches as a whole
/// A *reference* is the name of a snapshot or branch; `BRANCH@SNAPSHOT`, if the snapshot is in the
/// history of the branch; or `BRANCH@TIME`, the newest snapshot in that history which is as old.
/// A time is `10:30` or `10:30:05` (local time, today or yesterday), `2026-01-31` (the end of that
/// day), `2026-01-31T10:30` (local time), `2026-01-31T10:30:00Z`, or `-5m`, `-1h30m`, `-2d`, `-1w`
/// (before now). A reference that leads nowhere is
/// [`Error::NoRoot`](cairnfs_disk::Error::NoRoot), whose text lists what there is.
impl Volume {
    /// The snapshot or branch of a reference.
    ///
    /// # Errors
    /// [`Error::NoRoot`](cairnfs_disk::Error::NoRoot).
    pub fn find_root(&self, reference: &str) -> Result<RootInfo> {
        operations::find(self.file_system(), reference)
    }

    /// The snapshot or branch of a reference whose times are those of a time zone, for a program that
    /// works for a user elsewhere. `zone` is a name such as `Europe/Berlin`, or the POSIX form such as
    /// `CET-1CEST`.
    ///
    /// # Errors
    /// As [`Self::find_root`]; [`Error::Invalid`](cairnfs_disk::Error::Invalid) for an unknown zone.
    pub fn find_root_in_zone(&self, reference: &str, zone: &str) -> Result<RootInfo> {
        operations::find_in_zone(self.file_system(), reference, Some(zone))
    }

    /// Bytes that belong to a branch or snapshot alone, given by its [id](RootInfo::id): what
    /// dropping it frees, with all calls that have returned. 0 if others were forked from it. It takes
    /// as long as it differs from its neighbours in the history, and as long as a merge of what was
    /// changed since the last one: with many small changes in a large log, seconds. A volume that is
    /// open read-only, has stopped or is full is counted as its last merge left it.
    ///
    /// # Errors
    /// [`Error::NotFound`](cairnfs_disk::Error::NotFound); a damaged volume, the device's failure.
    pub fn space_of(&self, id: u32) -> Result<u64> {
        self.file_system().space_of(id)
    }

    /// As [`Self::space_of`], of all branches and snapshots by id, with one merge for all. One that goes
    /// meanwhile is left out.
    ///
    /// # Errors
    /// A damaged volume, the device's failure.
    pub fn spaces(&self) -> Result<BTreeMap<u32, u64>> {
        self.file_system().spaces()
    }

    /// Compares the states of two references: which files were added, removed, renamed and changed
    /// from `old` to `new`. It takes as long as the differences are large, not the trees. A branch
    /// is compared as it is now.
    ///
    /// ```
    /// use cairnfs::{Status, Volume};
    ///
    /// # fn main() -> cairnfs::Result<()> {
    /// let volume = Volume::in_memory(64 << 20)?;
    /// volume.write("notes", "water the plants\n")?;
    /// volume.snapshot("monday")?;
    /// volume.rename("notes", "done")?;
    /// let diff = volume.diff("monday", "main")?;
    /// let [file] = &diff.report().files[..] else { panic!() };
    /// assert_eq!((file.status, &file.path.path[..]), (Status::Renamed, "done"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoRoot`](cairnfs_disk::Error::NoRoot); [`Error::ReadOnly`](cairnfs_disk::Error::ReadOnly) for a
    /// branch of a volume that is open read-only and was not closed properly before; a damaged
    /// volume, the device's failure.
    pub fn diff(&self, old: &str, new: &str) -> Result<Diff> {
        Diff::new(self.file_system(), old, new)
    }

    /// Compares the state of `branch` with that in which it has parted from `other`: what was done in
    /// the branch since it was forked, and nothing of what was done in `other`.
    ///
    /// # Errors
    /// As [`Self::diff`]; [`Error::Invalid`](cairnfs_disk::Error::Invalid) if the two have no state in common.
    pub fn diff_since_fork(&self, other: &str, branch: &str) -> Result<Diff> {
        Diff::since_parting(self.file_system(), other, branch)
    }

    /// Receives a stream as a snapshot: under `name`, or under a name made of the current time. It
    /// returns the name. The snapshot is durable when this returns, and nothing of it is seen
    /// before; if this fails, nothing is left of it. A stream that has only changes needs the
    /// snapshot that it builds on, which this volume has sent or received. Nothing in a stream is
    /// trusted, and memory is bounded.
    ///
    /// ```
    /// # use cairnfs::Volume;
    /// # fn main() -> cairnfs::Result<()> {
    /// let (volume, backup) = (Volume::in_memory(64 << 20)?, Volume::in_memory(64 << 20)?);
    /// volume.write("notes", "water the plants")?;
    /// volume.snapshot("monday")?;
    /// let stream = volume.send(Vec::new(), "monday", None)?;
    /// backup.receive(&stream[..], Some("monday"))?;
    /// volume.write("notes", "done")?;
    /// volume.snapshot("tuesday")?;
    /// let changes = volume.send(Vec::new(), "tuesday", Some("monday"))?;
    /// backup.receive(&changes[..], Some("tuesday"))?;
    /// assert_eq!(backup.open_branch("tuesday")?.read("notes")?, b"done");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Stream`](cairnfs_disk::Error::Stream) for a stream that is damaged, cut off, or asks for
    /// what no tree can be; [`Error::NoBase`](cairnfs_disk::Error::NoBase);
    /// [`Error::Exists`](cairnfs_disk::Error::Exists) and [`Error::Invalid`](cairnfs_disk::Error::Invalid) for
    /// the name; [`Error::NoSpaceForStream`](cairnfs_disk::Error::NoSpaceForStream); the device or the
    /// input failed.
    pub fn receive(&self, from: impl Read, name: Option<&str>) -> Result<String> {
        let received = self.receive_root(from, name)?;
        Ok(received.name.unwrap_or_default())
    }

    /// As [`Self::receive`]; returns what [`Volume::roots`] says about the snapshot, as it was made: others
    /// may rename or drop it at any time.
    ///
    /// # Errors
    /// As [`Self::receive`].
    pub fn receive_root(&self, from: impl Read, name: Option<&str>) -> Result<RootInfo> {
        operations::receive(self.file_system(), from, name)
    }

    /// Makes a snapshot, as [`Volume::snapshot`], of the branch of a reference: of the root that has the
    /// name of the branch when the snapshot is made, also if others publish onto it or restore it at the
    /// same time. Returns what [`Volume::roots`] says about the snapshot.
    ///
    /// # Errors
    /// [`Error::NoRoot`](cairnfs_disk::Error::NoRoot); [`Error::Invalid`](cairnfs_disk::Error::Invalid) for a snapshot;
    /// as [`Volume::snapshot`].
    pub fn snapshot_of(&self, branch: &str, name: &str) -> Result<RootInfo> {
        operations::snapshot(self.file_system(), branch, name)
    }

    /// Makes a branch, as [`Volume::branch`], that begins as the snapshot or branch of a reference, and
    /// does not open it; as [`Self::snapshot_of`] beside others who replace that.
    ///
    /// # Errors
    /// [`Error::NoRoot`](cairnfs_disk::Error::NoRoot); as [`Volume::branch`].
    pub fn branch_of(&self, reference: &str, name: &str) -> Result<RootInfo> {
        operations::branch(self.file_system(), reference, name)
    }

    /// Writes the snapshot of a reference to `out`, as a stream that another volume, or this one,
    /// can receive: as a whole, or as the changes from the snapshot `base`, which the receiver must
    /// have. Memory is bounded. Returns `out`, flushed.
    ///
    /// # Errors
    /// [`Error::NoRoot`](cairnfs_disk::Error::NoRoot); [`Error::Invalid`](cairnfs_disk::Error::Invalid) for a
    /// branch; a damaged volume; the device or the output failed.
    pub fn send<W: Write>(&self, out: W, snapshot: &str, base: Option<&str>) -> Result<W> {
        operations::send(self.file_system(), out, snapshot, base)
    }

    /// Makes the files of a branch those of `main`, or of another branch, in one atomic step: a
    /// power failure leaves the files before or after it. The branch is gone then; the state before
    /// stays as a snapshot, whose name is in the result. To take it back, [`restore`](Self::restore)
    /// that snapshot. Of the states that were replaced on one branch, the newest
    /// [`REPLACED_KEPT`](cairnfs_core::refs::REPLACED_KEPT) stay, and before a call fails for want of space
    /// they go, the oldest first; one that gets another name stays.
    ///
    /// If the base has not changed since the branch began, this takes as long as a sync. Otherwise
    /// the changes of both are merged by files; it takes as long as there are changes, and the data
    /// of the branch's changes is copied. Conflicts are an error, and nothing was changed then, unless
    /// the options say which side to take; only a dry run returns them. Several publishes and restores
    /// of one branch, by several threads, are done one after the other. Volumes that are open on the base before
    /// keep their files, and refuse changes with [`Error::Stale`](cairnfs_disk::Error::Stale): open the
    /// branch again.
    ///
    /// ```
    /// use cairnfs::{PublishOptions, Volume};
    ///
    /// # fn main() -> cairnfs::Result<()> {
    /// let volume = Volume::in_memory(64 << 20)?;
    /// volume.write("notes", "water the plants")?;
    /// let trial = volume.branch("trial")?;
    /// trial.write("notes", "done")?;
    /// volume.write("other", "changed meanwhile")?;
    /// let published = volume.publish("trial", &PublishOptions::default())?;
    /// assert!(published.merged);
    /// let main = volume.open_branch("main")?;
    /// assert_eq!(main.read("notes")?, b"done");
    /// assert_eq!(main.read("other")?, b"changed meanwhile");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Conflicts`](cairnfs_disk::Error::Conflicts), which has all of them;
    /// [`Error::NoRoot`](cairnfs_disk::Error::NoRoot); [`Error::Invalid`](cairnfs_disk::Error::Invalid) for a
    /// snapshot; [`Error::NotFound`](cairnfs_disk::Error::NotFound) for a path in the options that neither
    /// has nor had; [`Error::Unsettled`](cairnfs_disk::Error::Unsettled) if the base or the branch does not
    /// stop changing; [`Error::NoSpace`](cairnfs_disk::Error::NoSpace), or as [`sync`](Self::sync).
    pub fn publish(&self, branch: &str, options: &PublishOptions) -> Result<Published> {
        let published = operations::publish(self.file_system(), branch, options)?;
        if let Some(kept) = &published.kept {
            operations::drop_oldest(self.file_system(), kept);
        }
        Ok(published)
    }

    /// Makes the files of `branch` those of a reference, in one atomic step; with `paths`, only the
    /// files at and below these. Returns the name of the snapshot of the state before, so that this
    /// can be taken back, too; it stays as one of [`publish`](Self::publish) does. Volumes that are open on the branch before keep their files, as after
    /// [`publish`](Self::publish).
    ///
    /// # Errors
    /// [`Error::NoRoot`](cairnfs_disk::Error::NoRoot); [`Error::NotFound`](cairnfs_disk::Error::NotFound) for a
    /// path that the reference does not have; else as [`publish`](Self::publish).
    pub fn restore(&self, reference: &str, branch: &str, paths: &[PathBuf]) -> Result<String> {
        let kept = operations::restore(self.file_system(), reference, branch, paths)?;
        operations::drop_oldest(self.file_system(), &kept);
        Ok(kept)
    }

    /// Drops a snapshot or branch. Its name is gone when this returns, and that is durable. What
    /// belongs to it alone is freed in the background.
    ///
    /// # Errors
    /// [`Error::NoRoot`](cairnfs_disk::Error::NoRoot); [`Error::NotPermitted`](cairnfs_disk::Error::NotPermitted)
    /// for `main`; [`Error::Busy`](cairnfs_disk::Error::Busy) if it is open; or as [`sync`](Self::sync).
    pub fn drop_root(&self, reference: &str) -> Result<()> {
        operations::drop_root(self.file_system(), reference)
    }

    /// Frees what everything that was dropped has left, and returns when that is done: after it, the
    /// space can be used, but for what somebody still reads. `go_on` is called often, with the
    /// progress; when it returns false, the rest is left to the background.
    ///
    /// ```
    /// # fn main() -> cairnfs::Result<()> {
    /// let volume = cairnfs::Volume::in_memory(64 << 20)?;
    /// volume.write("large", vec![1; 8 << 20])?;
    /// volume.snapshot("monday")?;
    /// volume.remove_file("large")?;
    /// volume.drop_root("monday")?;
    /// volume.free_drops(|progress| {
    ///     println!("{} left", progress.left);
    ///     true
    /// })?;
    /// assert!(volume.roots().iter().all(|root| !root.being_dropped));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSpace`](cairnfs_disk::Error::NoSpace) without space for a merge; a damaged volume, the
    /// device's failure.
    pub fn free_drops(&self, go_on: impl FnMut(DropProgress) -> bool) -> Result<()> {
        self.file_system().free_drops(go_on)
    }
}
