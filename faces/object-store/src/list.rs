//! Listing objects, in the order of their locations.
//!
//! A listing holds the entries of one directory for each level of the tree. Directories are sorted
//! as if a slash ended their names, which gives the order of whole locations.

use std::vec::IntoIter;

use cairnfs::{DirEntry, Error as FsError};
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ListResult, ObjectMeta, Result};

use crate::blocking::blocking;
use crate::get::meta_of;
use crate::locations::{self, STAGING, error_of, path_of};
use crate::put::Place;

/// Objects of one step of a stream.
const BATCH: usize = 1000;

/// A file or directory that a location can name.
struct Entry {
    location: Path,
    /// The location, with a slash behind a directory.
    key: String,
    is_dir: bool,
    entry: DirEntry,
}

impl Place {
    /// The files and directories of a directory, in order; none if it does not exist.
    fn entries(&self, location: &Path) -> Result<Vec<Entry>> {
        let root = location.as_ref().is_empty();
        if !root && locations::check(location).is_err() {
            return Ok(Vec::new());
        }
        let listing = match self.volume.read_dir(path_of(&self.root, location)) {
            Ok(listing) => listing,
            Err(e) if is_absent(e.cause()) => return Ok(Vec::new()),
            Err(e) => return Err(error_of(e)),
        };
        let mut entries = Vec::new();
        for entry in listing {
            let entry = entry.map_err(error_of)?;
            entries.extend(entry_of(location, entry));
        }
        if root {
            entries.retain(|e| e.location.as_ref() != STAGING);
        }
        entries.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(entries)
    }

    /// Whether there is an object below a directory.
    pub(crate) fn has_objects(&self, directory: &std::path::Path) -> Result<bool> {
        let walk = match self.volume.walk(directory) {
            Ok(walk) => walk,
            Err(e) if is_absent(e.cause()) => return Ok(false),
            Err(e) => return Err(error_of(e)),
        };
        for entry in walk {
            let kind = entry.and_then(|e| e.file_type()).map_err(error_of)?;
            if !kind.is_dir() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The objects and prefixes directly below a location.
    fn level(&self, prefix: &Path) -> Result<ListResult> {
        let mut result = ListResult {
            common_prefixes: Vec::new(),
            objects: Vec::new(),
            extensions: Default::default(),
        };
        for entry in self.entries(prefix)? {
            if !entry.is_dir {
                result.objects.extend(object_of(&entry)?);
            } else if Walk::below(self, entry.location.clone(), None)
                .next()
                .is_some()
            {
                result.common_prefixes.push(entry.location);
            }
        }
        Ok(result)
    }
}

fn is_absent(error: &FsError) -> bool {
    matches!(
        error,
        FsError::NotFound | FsError::NotDirectory | FsError::NameTooLong
    )
}

/// The entry, if it is a file or directory whose name can be a part of a location.
fn entry_of(directory: &Path, entry: DirEntry) -> Option<Entry> {
    let kind = entry.file_type().ok()?;
    if !kind.is_dir() && !kind.is_file() {
        return None;
    }
    let name = entry.file_name().into_string().ok()?;
    let key = match directory.as_ref() {
        "" => name,
        above => format!("{above}/{name}"),
    };
    let location = Path::parse(&key).ok()?;
    let key = if kind.is_dir() { key + "/" } else { key };
    Some(Entry {
        location,
        key,
        is_dir: kind.is_dir(),
        entry,
    })
}

/// The metadata of a file; `None` if it was removed meanwhile.
fn object_of(entry: &Entry) -> Result<Option<ObjectMeta>> {
    match entry.entry.metadata() {
        Ok(metadata) => meta_of(entry.location.clone(), &metadata).map(Some),
        Err(e) if matches!(e.cause(), FsError::NotFound) => Ok(None),
        Err(e) => Err(error_of(e)),
    }
}

/// All objects below a prefix, and behind an offset.
struct Walk {
    place: Place,
    offset: Option<Path>,
    levels: Vec<IntoIter<Entry>>,
    /// A directory that comes next.
    enter: Option<Path>,
}

impl Walk {
    fn below(place: &Place, prefix: Path, offset: Option<Path>) -> Self {
        Self {
            place: place.clone(),
            offset,
            levels: Vec::new(),
            enter: Some(prefix),
        }
    }

    /// Whether an object, or any below a directory, is behind the offset.
    fn is_behind(&self, entry: &Entry) -> bool {
        let Some(offset) = &self.offset else {
            return true;
        };
        let offset = offset.as_ref();
        entry.key.as_str() > offset || entry.is_dir && offset.starts_with(&entry.key)
    }

    fn step(&mut self) -> Result<Option<ObjectMeta>> {
        loop {
            if let Some(directory) = self.enter.take() {
                let entries = self.place.entries(&directory)?;
                self.levels.push(entries.into_iter());
            }
            let Some(level) = self.levels.last_mut() else {
                return Ok(None);
            };
            let Some(entry) = level.next() else {
                self.levels.pop();
                continue;
            };
            if !self.is_behind(&entry) {
                continue;
            }
            if entry.is_dir {
                self.enter = Some(entry.location);
            } else if let Some(object) = object_of(&entry)? {
                return Ok(Some(object));
            }
        }
    }
}

impl Iterator for Walk {
    type Item = Result<ObjectMeta>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step();
        if step.is_err() {
            self.levels.clear();
        }
        step.transpose()
    }
}

/// Lists objects.
pub(crate) fn list(
    place: &Place,
    prefix: Option<&Path>,
    offset: Option<&Path>,
) -> BoxStream<'static, Result<ObjectMeta>> {
    let prefix = prefix.cloned().unwrap_or_default();
    let walk = Walk::below(place, prefix, offset.cloned());
    let batches = stream::try_unfold(walk, |mut walk| async move {
        let step = blocking(move || {
            let batch: Vec<_> = walk.by_ref().take(BATCH).collect();
            Ok((batch, walk))
        });
        let (batch, walk) = step.await?;
        let batch = (!batch.is_empty()).then_some((stream::iter(batch), walk));
        Result::<_>::Ok(batch)
    });
    batches.try_flatten().boxed()
}

/// Lists one level.
pub(crate) async fn list_level(place: &Place, prefix: Option<&Path>) -> Result<ListResult> {
    let (place, prefix) = (place.clone(), prefix.cloned().unwrap_or_default());
    blocking(move || place.level(&prefix)).await
}
