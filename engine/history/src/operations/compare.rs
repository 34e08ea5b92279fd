//! The comparison of two roots.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::diff::{FilePath, Patches, Paths, Report, name_at};
use crate::operations::frozen::Frozen;
use crate::operations::named::with_roots;
use crate::operations::names_of;
use crate::operations::region::Region;
use cairnfs_core::fs::FileSystem;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::types::RootInfo;

/// How two states of the files of a volume differ, from [`Volume::diff`](crate::Volume::diff).
pub struct Diff {
    fs: Arc<FileSystem>,
    old: Frozen,
    new: Frozen,
    report: Report,
}

impl Diff {
    /// Compares the roots of two references.
    #[doc(hidden)]
    pub fn new(fs: &Arc<FileSystem>, old: &str, new: &str) -> Result<Self> {
        with_roots(fs, [old, new], |[old, new]| {
            Self::between(fs, Frozen::of(fs, old.clone())?, new)
        })
    }

    /// Compares the root of the reference `new` with the state in which it has parted from `other`.
    #[doc(hidden)]
    pub fn since_parting(fs: &Arc<FileSystem>, other: &str, new: &str) -> Result<Self> {
        with_roots(fs, [other, new], |[other, new]| {
            let parted = Frozen::parted(fs, other.id, new.id)?;
            let parted = parted.ok_or(Error::Invalid("the two have no state in common"))?;
            Self::between(fs, parted, new)
        })
    }

    fn between(fs: &Arc<FileSystem>, old: Frozen, new: &RootInfo) -> Result<Self> {
        let new = Frozen::of(fs, new.clone())?;
        let report = Report::new(old.files(fs), new.files(fs), fs.core().data())?;
        Ok(Self {
            fs: fs.clone(),
            old,
            new,
            report,
        })
    }

    /// The files that differ.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Whether one of the two states has a file at a path. Symbolic links are not followed.
    pub fn has_path(&self, path: &Path) -> Result<bool> {
        let names = names_of(path);
        let found = |state: &Frozen| state.files(&self.fs).find(&names);
        Ok(found(&self.old)?.is_some() || found(&self.new)?.is_some())
    }

    /// A path at or below one of `paths` of each of the files, given by inode number, that has one in the
    /// new state. [`Self::report`] has one path only of a file that changed and keeps all of its names.
    pub fn paths_below(
        &self,
        paths: &[PathBuf],
        files: &BTreeSet<u64>,
    ) -> Result<BTreeMap<u64, FilePath>> {
        let tree = self.new.files(&self.fs);
        let mut tops = BTreeMap::new();
        for path in paths {
            tops.extend(name_at(&tree, &names_of(path))?);
        }
        let mut region = Region::new(tree, tops)?;
        let mut ways = Paths::new(tree);
        let mut found = BTreeMap::new();
        for (ino, name) in region.names(files)? {
            found.insert(ino, ways.of(&name)?.into());
        }
        Ok(found)
    }

    /// Differences of contents as patches, file by file.
    pub fn patches(&self) -> Result<Patches<'_>> {
        let trees = (self.old.files(&self.fs), self.new.files(&self.fs));
        Patches::new(&self.report, trees, self.fs.core().data())
    }
}

impl fmt::Debug for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Diff")
            .field("old", &self.old.root)
            .field("new", &self.new.root)
            .field("report", &self.report)
            .finish_non_exhaustive()
    }
}
