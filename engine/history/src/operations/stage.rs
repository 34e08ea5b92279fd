//! A staged head: made without a name, changed while nobody sees it, and then named by one change of
//! roots. Until that it is garbage: after a crash the next opening drops it.
//!
//! Uses the file system.

use std::sync::Arc;

use cairnfs_core::fs::FileSystem;
use cairnfs_core::refs;
use cairnfs_core::txn::{ForkKind, RootPin};
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::root::RootState;
use cairnfs_disk::types::RootInfo;

/// A staged head. Dropped without a name, it is dropped from the volume too.
pub(super) struct Staged {
    fs: Arc<FileSystem>,
    /// Its root id.
    pub id: u32,
    /// Keeps it in the volume; gone once it has a name.
    pin: Option<RootPin>,
}

impl Staged {
    /// A fork of the root `from`.
    pub fn fork(fs: &Arc<FileSystem>, from: u32) -> Result<Self> {
        let pin = fs.fork_unnamed(from, ForkKind::Head)?;
        Ok(Self::of(fs, pin))
    }

    /// A tree with nothing but a root directory.
    pub fn empty(fs: &Arc<FileSystem>) -> Result<Self> {
        let pin = fs.empty_unnamed()?;
        Ok(Self::of(fs, pin))
    }

    fn of(fs: &Arc<FileSystem>, pin: RootPin) -> Self {
        Self {
            fs: fs.clone(),
            id: pin.id(),
            pin: Some(pin),
        }
    }

    /// Opens it.
    pub fn open(&self) -> Result<Arc<FileSystem>> {
        self.fs.open_root(self.id)
    }

    /// Makes it the snapshot `name`, or one with a name made of the time; returns what the list of roots
    /// says about it, with this name.
    pub fn freeze(mut self, name: Option<&str>) -> Result<RootInfo> {
        self.fs.sync()?;
        let core = self.fs.core();
        loop {
            let made = || refs::received_name(&self.fs.roots(), core.now());
            let given = name.map_or_else(made, str::to_owned);
            match core.freeze_head(self.id, &given) {
                // Another one of this second has taken the name since.
                Err(Error::Exists) if name.is_none() => {}
                done => {
                    done?;
                    // Others may have renamed it by now. Nobody drops it before the pin.
                    let made = self.fs.roots().into_iter().find(|root| root.id == self.id);
                    self.pin = None;
                    return made.map_or(Err(Error::Stale), |made| {
                        let name = Some(given);
                        Ok(RootInfo { name, ..made })
                    });
                }
            }
        }
    }

    /// Gives it the name of the head `base`, which becomes a snapshot, whose name this returns; with
    /// `since` only if the base has exactly the files of that root.
    pub fn publish(self, base: u32, since: Option<u32>) -> Result<String> {
        self.publish_retiring(base, since, (None, None))
    }

    /// As [`Self::publish`]; the same step drops a branch that has exactly the files of a snapshot, and
    /// the name that is `taken`.
    pub fn publish_retiring(
        mut self,
        base: u32,
        since: Option<u32>,
        (retired, taken): (Option<(u32, u32)>, Option<&str>),
    ) -> Result<String> {
        let (old, new) = (self.fs.open_root(base)?, self.open()?);
        let branch = retired.map(|(id, _)| self.fs.open_root(id)).transpose()?;
        let retired = branch.as_deref().zip(retired.map(|(_, equal)| equal));
        let kept = replace_kept(&old, &new, since, (retired, taken))?;
        self.pin = None;
        Ok(kept)
    }
}

/// Times that a replacement is tried before the writers of what it replaces are held.
const UNHELD: usize = 3;
/// Times that it is tried in all. With its writers held, a root is changed only by calls that had
/// begun before, and by what earlier calls have left.
const ATTEMPTS: usize = 64;

/// Replaces the heads `replaced`, which messages call `names`: calls `once` until none of them was
/// changed meanwhile. If programs write to them without pause, their next calls wait until this
/// returns.
///
/// # Errors
/// [`Error::Stale`] if one is not a head any more; [`Error::Unsettled`] if they do not stop
/// changing; the others of `once`.
pub(super) fn until_unchanged<T>(
    fs: &FileSystem,
    (replaced, names): (&[u32], &str),
    mut once: impl FnMut() -> Result<T>,
) -> Result<T> {
    let is_head = |id: &u32| {
        fs.core()
            .roots()
            .get(*id)
            .is_some_and(|root| root.state == RootState::Head)
    };
    let mut held = Vec::new();
    for attempt in 0..ATTEMPTS {
        if attempt == UNHELD {
            for id in replaced {
                held.push(fs.open_root(*id)?.hold_writers());
            }
        }
        match once() {
            Err(Error::Stale) if replaced.iter().all(is_head) => {}
            done => return done,
        }
    }
    Err(Error::Unsettled(names.into()))
}

impl Drop for Staged {
    fn drop(&mut self) {
        let unnamed = self.pin.take().map(drop).is_some();
        // What is left of it after a failure is dropped after the next opening. While it is pinned, it
        // cannot be dropped.
        if unnamed && let Err(error) = self.fs.drop_id(self.id, "") {
            tracing::debug!(root = self.id, %error, "a staged branch was not dropped");
        }
    }
}

/// Gives the name of the head `base` to the head `new`, which has the name `taken`; the base becomes a
/// snapshot, whose name this returns.
pub(super) fn replace(
    fs: &FileSystem,
    base: u32,
    (new, taken): (u32, &str),
    since: Option<u32>,
) -> Result<String> {
    let (base, new) = (fs.open_root(base)?, fs.open_root(new)?);
    replace_kept(&base, &new, since, (None, Some(taken)))
}

/// As [`FileSystem::replace_retiring`]; returns the name of the state before.
fn replace_kept(
    base: &FileSystem,
    new: &FileSystem,
    since: Option<u32>,
    gone: (Option<(&FileSystem, u32)>, Option<&str>),
) -> Result<String> {
    loop {
        let name = base.root_info().and_then(|root| root.name);
        let name = name.ok_or(Error::Stale)?;
        let kept = refs::undo_name(&name, &base.roots(), base.core().now());
        match base.replace_retiring(new, &kept, since, gone) {
            // Another replacement of this second has taken the name since.
            Err(Error::Exists) => {}
            done => return done.map(|()| kept),
        }
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::operations::frozen::Frozen;
    use crate::operations::publish::publish_onto;
    use crate::operations::restore::restore_paths;
    use crate::operations::{PublishOptions, drop_root, find, publish, restore};
    use cairnfs_core::fs::{MakeOptions, Options, make_device};
    use cairnfs_disk::device::MemoryDevice;
    use cairnfs_disk::format::root::{RawRoot, Root};
    use cairnfs_disk::types::Creds;

    const LENGTH: u64 = 4 << 20;

    fn open() -> Arc<FileSystem> {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        let options = Options {
            workers: false,
            durability_interval: None,
            ..Options::default()
        };
        FileSystem::open_device(device, &options).unwrap()
    }

    /// What does not stop changing is left as it is, with an error that says what to do; what is
    /// not a head any more is not tried again.
    #[test]
    fn branch_that_keeps_changing_is_given_up() {
        let fs = open();
        let main = fs.root_id();
        let mut calls = 0;
        let mut fail = |ids: &[u32]| {
            let stale = || {
                calls += 1;
                Err::<(), _>(Error::Stale)
            };
            let error = until_unchanged(&fs, (ids, "main"), stale).unwrap_err();
            (error, std::mem::take(&mut calls))
        };
        let (error, calls) = fail(&[main]);
        assert_eq!((error.errno(), calls), (libc::EBUSY, ATTEMPTS));
        assert_eq!(
            error.to_string(),
            "main is being written to without pause: stop the writers, then try again"
        );
        fs.snapshot("s").unwrap();
        let frozen = fs.core().roots().named("s").unwrap();
        let (error, calls) = fail(&[main, frozen]);
        assert!(
            matches!(error, Error::Stale) && calls == 1,
            "{error:?}, {calls}"
        );
    }

    /// Names that are refused now are on volumes from before: such roots are read, changed, renamed
    /// and dropped like others.
    #[test]
    fn names_from_before_can_be_used() {
        let fs = open();
        for old in [".", "..", " ", " x "] {
            let fs = fs.open_named("main").unwrap();
            let id = fs.branch("b").unwrap();
            let renamed = fs.core().change_roots(&[], |roots, _| {
                let root = roots.get(id).unwrap();
                let tree = RawRoot {
                    birth: root.tree.birth,
                    ..RawRoot::default()
                };
                let name = old.to_owned();
                Ok(((), [(id, Root { tree, name, ..root })].into()))
            });
            renamed.unwrap();
            assert_eq!(fs.open_named(old).unwrap().root_id(), id);
            let kept = restore(&fs, "main", old, &[]).unwrap();
            let renamed = fs.rename_root(&kept, old);
            assert!(matches!(renamed, Err(Error::Invalid(_))), "{renamed:?}");
            for (name, new) in [(&*kept, "good"), (old, "better")] {
                fs.rename_root(name, new).unwrap();
            }
            drop_root(&fs, "good").unwrap();
            publish(&fs, "better", &PublishOptions::default()).unwrap();
        }
    }

    /// A branch that is renamed in the middle of its publish, which had found it by its name, is there
    /// under the other one.
    #[test]
    fn renamed_branch_is_not_published() {
        let fs = open();
        for (old, new, is_merged) in [("a", "b", false), ("c", "d", true)] {
            let fs = fs.open_named("main").unwrap();
            fs.branch(old).unwrap();
            if is_merged {
                fs.mknod(1, b"f", 0o100_644, 0, Creds::default()).unwrap();
            }
            let (base, branch) = (find(&fs, "main").unwrap(), find(&fs, old).unwrap());
            fs.rename_root(old, new).unwrap();
            let options = PublishOptions::default();
            let refused = publish_onto(&fs, (&base, &branch), &options);
            assert!(matches!(refused, Err(Error::NotFound)), "{refused:?}");
            assert_eq!(find(&fs, new).unwrap().id, branch.id);
            let published = publish(&fs, new, &options).unwrap();
            assert_eq!(published.merged, is_merged);
        }
    }

    /// A branch that is dropped in the middle of a call which had found it by its name: what was read of
    /// it descends from where it did, and nothing is said of a branch whose descent is not known.
    #[test]
    fn descent_of_a_dropped_branch_is_not_forgotten() {
        let fs = open();
        let creds = Creds::default();
        let ino = fs.mknod(1, b"f", 0o100_644, 0, creds).unwrap().ino;
        fs.branch("work").unwrap();
        fs.write(ino, 0, b"main", false).unwrap();
        fs.forget(ino, 1);
        let (base, work) = (find(&fs, "main").unwrap(), find(&fs, "work").unwrap());
        let from = Frozen::of(&fs, work.clone()).unwrap();
        drop_root(&fs, "work").unwrap();
        while fs.drop_step().unwrap() {}
        assert!(fs.roots().iter().all(|root| root.id != work.id));
        let path = std::path::Path::new("f");
        restore_paths(&fs, &from, &[(path, vec![b"f"])], base.id).unwrap();
        let restored = fs.open_named("main").unwrap().lookup(1, b"f").unwrap();
        assert_eq!((restored.ino, restored.size), (ino, 0));
        let parted = Frozen::parted(&fs, base.id, work.id).map(|state| state.is_some());
        assert!(matches!(parted, Err(Error::NotFound)), "{parted:?}");
    }

    /// A merge reads the state from which it and another branch came, which may be a snapshot that its
    /// caller has not named: dropping that one is not refused, and the merge reads it to its end.
    #[test]
    fn snapshot_that_a_merge_reads_can_be_dropped() {
        let fs = open();
        let creds = Creds::default();
        let f = fs.mknod(1, b"f", 0o100_644, 0, creds).unwrap().ino;
        fs.forget(f, 1);
        fs.snapshot("s").unwrap();
        let branch = find(&fs, "s").unwrap();
        let from = fs.open_root(branch.id).unwrap();
        let work = from.new_branch("work").unwrap();
        drop(from);
        let common = Frozen::parted(&fs, fs.root_id(), work.id);
        let common = common.unwrap().unwrap();
        assert_eq!(common.id(), branch.id);
        drop_root(&fs, "s").unwrap();
        drop_root(&fs, "work").unwrap();
        while fs.drop_step().unwrap() {}
        let there = || fs.roots().iter().any(|root| root.id == branch.id);
        assert!(there() && find(&fs, "s").is_err());
        assert_eq!(common.files(&fs).child(1, b"f").unwrap(), Some(f));
        drop(common);
        while fs.drop_step().unwrap() {}
        assert!(!there());
    }

    /// A drop that is not decided yet: its root has the name still, and can be neither read nor dropped
    /// again. Those who want that wait, and find that there is none.
    #[test]
    fn root_that_is_being_dropped_is_gone_for_all_others() {
        use crate::operations::Diff;
        use std::thread::{self, JoinHandle};
        use std::time::Duration;

        let fs = open();
        fs.snapshot("s").unwrap();
        let id = find(&fs, "s").unwrap().id;
        let mut calls: Vec<JoinHandle<Result<()>>> = Vec::new();
        let refused = fs.core().change_roots(&[], |_, _| {
            // No other change of roots is made before this one has ended.
            let call = |call: fn(&Arc<FileSystem>) -> Result<()>| {
                let fs = fs.clone();
                thread::spawn(move || call(&fs))
            };
            calls.push(call(|fs| drop_root(fs, "s")));
            while fs.core().pin(id).is_ok() {
                thread::yield_now();
            }
            calls.push(call(|fs| Diff::new(fs, "s", "main").map(drop)));
            calls.push(call(|fs| drop_root(fs, "s")));
            thread::sleep(Duration::from_millis(200));
            assert!(calls.iter().all(|call| !call.is_finished()));
            Err::<((), _), _>(Error::Invalid("not to be made"))
        });
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
        let mut done = calls.into_iter().map(|call| call.join().unwrap());
        done.next().unwrap().unwrap();
        for done in done {
            assert!(matches!(done, Err(Error::NoRoot { .. })), "{done:?}");
        }
    }

    /// A branch that is opened by its name while it is replaced again and again: what has lost the name
    /// before it was opened is a snapshot, and is not returned.
    #[test]
    fn branch_that_is_replaced_is_opened_as_a_branch() {
        use std::sync::atomic::{AtomicBool, Ordering};

        let fs = open();
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !ended.load(Ordering::Relaxed) {
                        assert!(!fs.open_named("main").unwrap().is_read_only());
                    }
                });
            }
            for _ in 0..200 {
                restore(&fs, "main", "main", &[]).unwrap();
            }
            ended.store(true, Ordering::Relaxed);
        });
    }

    /// The root of a branch that was merged has no name, and is freed without another call.
    #[test]
    fn merged_branch_is_freed() {
        let fs = open();
        let id = fs.branch("work").unwrap();
        let work = fs.open_root(id).unwrap();
        let creds = Creds::default();
        let ino = work.mknod(1, b"f", 0o100_644, 0, creds).unwrap().ino;
        work.write(ino, 0, &vec![7; LENGTH as usize], false)
            .unwrap();
        work.forget(ino, 1);
        drop(work);
        let other = fs.mknod(1, b"other", 0o100_644, 0, creds).unwrap().ino;
        fs.forget(other, 1);
        let kept = publish(&fs, "work", &PublishOptions::default()).unwrap();
        assert!(kept.merged && kept.conflicts.is_empty());
        let roots = fs.roots();
        let names: Vec<_> = roots.iter().filter_map(|root| root.name.clone()).collect();
        assert_eq!(names, [kept.kept.clone().unwrap(), "main".into()]);
        let root = roots.iter().find(|root| root.id == id).unwrap();
        assert!(!root.writable);
        let used = |fs: &FileSystem| {
            let s = fs.statfs();
            (s.blocks - s.free) * u64::from(s.block_size)
        };
        let before = used(&fs);
        while fs.drop_step().unwrap() {}
        assert!(fs.roots().iter().all(|root| root.id != id));
        let freed = before - used(&fs);
        assert!(freed >= LENGTH, "freed {freed}");
    }
}
