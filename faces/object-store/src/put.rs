//! Giving a file its name: how an object appears, is replaced, and disappears.
//!
//! A new object is a file without a name until it is complete. Where no object is, a link creates
//! its name, and nothing else; where one is, the file gets a name in the staging directory, and a
//! rename over the old name. Replacing and removing a name happen under a lock of the path, which
//! all stores of the process share: so the ETag that a conditional put compares is that of the
//! object which it replaces.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path as FilePath, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use cairnfs::{Error as FsError, File, RenameMode, Volume};
use object_store::path::Path;
use object_store::{Error, PutMode, PutResult, Result, UpdateVersion};
use parking_lot::{Mutex, MutexGuard};

use crate::attributes::e_tag;
use crate::locations::{Refused, STAGING, error_at, error_of, path_of};
use crate::{STORE, locations};

/// Retries of a call that races with threads that create and remove its directory.
const RACES: u32 = 1000;

const LOCKS: usize = 256;

/// Locks of paths, by hash: two paths may share one.
static PATHS: [Mutex<()>; LOCKS] = [const { Mutex::new(()) }; LOCKS];

/// A number that no other process has had: what is in the staging directory with another one was
/// left by a process that ended.
fn process() -> u64 {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    *PROCESS.get_or_init(|| RandomState::new().build_hasher().finish())
}

fn hash(path: &FilePath) -> usize {
    static STATE: OnceLock<RandomState> = OnceLock::new();
    STATE.get_or_init(RandomState::new).hash_one(path) as usize % LOCKS
}

/// Locks a path.
fn lock(path: &FilePath) -> Option<MutexGuard<'static, ()>> {
    PATHS.get(hash(path)).map(Mutex::lock)
}

/// Locks two paths, in the order of their locks.
fn lock_both(one: &FilePath, other: &FilePath) -> [Option<MutexGuard<'static, ()>>; 2] {
    let (low, high) = (hash(one).min(hash(other)), hash(one).max(hash(other)));
    let first = PATHS.get(low).map(Mutex::lock);
    let second = PATHS.get(high).filter(|_| high != low).map(Mutex::lock);
    [first, second]
}

/// The directory of a volume that is a store.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub volume: Volume,
    /// Its absolute path, without symbolic links.
    pub root: PathBuf,
    /// Whether calls return only when they are durable.
    pub durable: bool,
}

impl Place {
    /// Removes what an earlier process left behind.
    pub(crate) fn clean(&self) -> cairnfs::Result<()> {
        let staging = self.root.join(STAGING);
        let entries = match self.volume.read_dir(&staging) {
            Ok(entries) => entries,
            Err(e) if matches!(e.cause(), FsError::NotFound) => return Ok(()),
            Err(e) => return Err(e),
        };
        let ours = format!("{:016x}-", process());
        for entry in entries {
            let entry = entry?;
            if !entry.file_name().to_string_lossy().starts_with(&ours) {
                absent_is_fine(self.volume.remove_file(entry.path()))?;
            }
        }
        Ok(())
    }

    /// A file that will be an object.
    pub(crate) fn unnamed(&self) -> cairnfs::Result<File> {
        use std::fs::Permissions;
        use std::os::unix::fs::PermissionsExt;
        let file = self.volume.tempfile(&self.root)?;
        file.set_permissions(Permissions::from_mode(0o644))?;
        Ok(file)
    }

    /// Makes a complete file the object at a location.
    pub(crate) fn publish(&self, file: &File, location: &Path, mode: PutMode) -> Result<PutResult> {
        match mode {
            PutMode::Create => self.create(file, location)?,
            PutMode::Overwrite => {
                if let Err(e) = self.create(file, location) {
                    match e {
                        Error::AlreadyExists { .. } => self.replace(file, location, None)?,
                        other => return Err(other),
                    }
                }
            }
            PutMode::Update(version) => {
                let expected = expected(version)?;
                self.replace(file, location, Some(&expected))?;
            }
        }
        if self.durable {
            file.sync_all().map_err(error_of)?;
        }
        let metadata = file.metadata().map_err(error_of)?;
        Ok(PutResult {
            e_tag: Some(e_tag(&metadata)),
            version: None,
            extensions: Default::default(),
        })
    }

    /// Gives a file its name, where nothing has it.
    fn create(&self, file: &File, location: &Path) -> Result<()> {
        let path = path_of(&self.root, location);
        self.with_directory(location, &path, || self.volume.link_file(file, &path))
    }

    /// Calls `name`, which creates the name `path`, in a directory that it may have to create, and
    /// that deletes of other threads may remove again.
    fn with_directory(
        &self,
        location: &Path,
        path: &FilePath,
        mut name: impl FnMut() -> cairnfs::Result<()>,
    ) -> Result<()> {
        let mut races = 0;
        loop {
            let error = match name() {
                Ok(()) => return Ok(()),
                Err(e) => e,
            };
            match error.cause() {
                FsError::NotFound if races < RACES => {
                    let parent = path.parent().unwrap_or(&self.root);
                    match self.volume.create_dir_all(parent) {
                        Err(e) if is_race(e.cause()) && !self.is_below_file(path) => {}
                        Err(e) if is_race(e.cause()) => {
                            return Err(Refused::Below(location.to_string()).into());
                        }
                        made => made.map_err(error_of)?,
                    }
                }
                FsError::NotDirectory => return Err(Refused::Below(location.to_string()).into()),
                FsError::Exists | FsError::IsDirectory if self.is_dir(path) => {
                    // Without objects in it, it does not exist for the store.
                    if self.has_objects(path)? || races >= RACES {
                        return Err(Refused::Above(location.to_string()).into());
                    }
                    self.remove_empty_below(path);
                }
                _ => return Err(error_at(location, error)),
            }
            races += 1;
        }
    }

    /// Whether something else than a directory is above a path.
    fn is_below_file(&self, path: &FilePath) -> bool {
        let mut above = path.ancestors().skip(1).take_while(|d| *d != self.root);
        above.any(|d| self.volume.metadata(d).is_ok_and(|m| !m.is_dir()))
    }

    fn is_dir(&self, path: &FilePath) -> bool {
        let found = self.volume.symlink_metadata(path);
        found.is_ok_and(|m| m.is_dir())
    }

    /// Replaces the object at a location, if it has the expected ETag; without one, also nothing.
    fn replace(&self, file: &File, location: &Path, expected: Option<&str>) -> Result<()> {
        let path = path_of(&self.root, location);
        let staged = self.stage(file)?;
        let renamed = self.rename_staged(&staged, location, &path, expected);
        if renamed.is_err() {
            // What is left is removed when the store is opened next.
            let _ = self.volume.remove_file(&staged);
        }
        renamed
    }

    fn rename_staged(
        &self,
        staged: &FilePath,
        location: &Path,
        path: &FilePath,
        expected: Option<&str>,
    ) -> Result<()> {
        let _locked = lock(path);
        if let Some(expected) = expected {
            let found = self.volume.symlink_metadata(path);
            let found = found.ok().filter(|m| m.is_file()).map(|m| e_tag(&m));
            if found.as_deref() != Some(expected) {
                let found = found.as_deref().unwrap_or("no object");
                return Err(Error::Precondition {
                    path: location.to_string(),
                    source: format!("{found} does not match {expected}").into(),
                });
            }
        }
        self.with_directory(location, path, || self.volume.rename(staged, path))
    }

    /// Gives a file a name in the staging directory.
    fn stage(&self, file: &File) -> Result<PathBuf> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = self.root.join(STAGING);
        let staged = directory.join(format!("{:016x}-{number:x}", process()));
        match self.volume.link_file(file, &staged) {
            Err(e) if matches!(e.cause(), FsError::NotFound) => {
                self.volume.create_dir_all(&directory).map_err(error_of)?;
                self.volume.link_file(file, &staged).map_err(error_of)?;
            }
            linked => linked.map_err(error_of)?,
        }
        Ok(staged)
    }

    /// Moves an object.
    pub(crate) fn rename(&self, from: &Path, to: &Path, mode: RenameMode) -> Result<()> {
        let (source, target) = (path_of(&self.root, from), path_of(&self.root, to));
        let locked = lock_both(&source, &target);
        if !self.is_object(&source) {
            return Err(locations::not_found(from));
        }
        self.with_directory(to, &target, || {
            self.volume.rename_with(&source, &target, mode)
        })?;
        drop(locked);
        if source != target {
            self.remove_empty_above(&source);
        }
        self.sync()
    }

    /// Whether there is an object at a path.
    pub(crate) fn is_object(&self, path: &FilePath) -> bool {
        let found = self.volume.symlink_metadata(path);
        found.is_ok_and(|m| m.is_file())
    }

    /// Removes the object at a location, and the directories that it leaves empty. Where there is
    /// none, there is nothing to do.
    pub(crate) fn delete(&self, location: &Path) -> Result<()> {
        if locations::check(location).is_err() {
            return Ok(());
        }
        let path = path_of(&self.root, location);
        {
            let _locked = lock(&path);
            if !self.is_object(&path) {
                return Ok(());
            }
            let removed = absent_is_fine(self.volume.remove_file(&path));
            removed.map_err(|e| error_at(location, e))?;
        }
        self.remove_empty_above(&path);
        Ok(())
    }

    /// Removes directories above a path that are empty, up to the root of the store.
    fn remove_empty_above(&self, path: &FilePath) {
        let above = path.ancestors().skip(1);
        for directory in above.take_while(|d| *d != self.root) {
            if self.volume.remove_dir(directory).is_err() {
                return;
            }
        }
    }

    /// Removes a directory with the directories in it, as far as they are empty: what another
    /// thread puts there meanwhile stays.
    fn remove_empty_below(&self, path: &FilePath) {
        let below = self.volume.walk(path).into_iter().flatten().flatten();
        let below = below.map(|entry| entry.path());
        let mut directories = vec![path.to_path_buf()];
        directories.extend(below);
        for directory in directories.iter().rev() {
            // One that is not empty, or no directory, decides what the caller tries next.
            let _ = self.volume.remove_dir(directory);
        }
    }

    /// Makes all calls durable that have returned.
    pub(crate) fn sync(&self) -> Result<()> {
        if !self.durable {
            return Ok(());
        }
        let synced = self.volume.sync_through(self.volume.sequence());
        synced.map_err(error_of)
    }
}

/// Whether a directory could not be made because another thread made or removed one on its path, or
/// because a file is there.
fn is_race(error: &FsError) -> bool {
    matches!(
        error,
        FsError::NotFound | FsError::NotDirectory | FsError::Exists
    )
}

fn absent_is_fine(removed: cairnfs::Result<()>) -> cairnfs::Result<()> {
    match removed {
        Err(e) if matches!(e.cause(), FsError::NotFound) => Ok(()),
        other => other,
    }
}

/// The ETag of a conditional put.
fn expected(version: UpdateVersion) -> Result<String> {
    version.e_tag.ok_or_else(|| Error::Generic {
        store: STORE,
        source: "a conditional put needs the ETag of the object that it replaces".into(),
    })
}
