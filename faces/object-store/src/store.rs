//! The store: each call of the trait is one piece of blocking work on the volume.

use std::fmt;
use std::ops::Range;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use cairnfs::{RenameMode, Volume};
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    CopyMode, CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartId, MultipartUpload,
    ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    RenameOptions, RenameTargetMode, Result,
};

use crate::blocking::blocking;
use crate::locations::{self, error_at, error_of, not_found, path_of};
use crate::put::Place;
use crate::upload::{Upload, Uploads, write};
use crate::{attributes, get, list};

/// Most deletes that are made durable together.
const DELETES: usize = 256;

/// A directory of a CairnFS volume as an [`ObjectStore`]; see the [crate] for its rules.
///
/// Cheap to clone; clones are the same store, also for uploads by id. Several stores may be in one
/// volume, also beside other users of its files: conditional puts hold among all stores of the
/// process, but a file that is changed in place by others changes its ETag only with its time of
/// change.
///
/// The volume is closed with its last handle: keep a clone of it, and call
/// [`Volume::close`] to see whether closing failed.
#[derive(Debug, Clone)]
pub struct CairnStore {
    place: Place,
    uploads: Arc<Uploads>,
}

impl CairnStore {
    /// The whole volume as a store.
    ///
    /// # Errors
    /// As [`in_directory`](Self::in_directory).
    pub fn new(volume: Volume) -> cairnfs::Result<Self> {
        Self::in_directory(volume, "/")
    }

    /// A directory of a volume as a store; it is created if it does not exist. Removes what a put
    /// left behind that a crash interrupted while it replaced an object.
    ///
    /// # Errors
    /// An error of the volume, [`cairnfs::Error::NotDirectory`] for a file.
    pub fn in_directory(volume: Volume, path: impl AsRef<FilePath>) -> cairnfs::Result<Self> {
        if !volume.exists(&path)? {
            volume.create_dir_all(&path)?;
        }
        volume.read_dir(&path)?;
        let place = Place {
            root: volume.canonicalize(&path)?,
            volume,
            durable: true,
        };
        if !place.volume.is_read_only() {
            place.clean()?;
        }
        Ok(Self {
            place,
            uploads: Arc::default(),
        })
    }

    /// Whether calls that change objects return only when they are durable. Default: yes. If not,
    /// [`Volume::sync`] and the volume's durability interval make them durable.
    #[must_use]
    pub fn with_durable_calls(mut self, durable: bool) -> Self {
        self.place.durable = durable;
        self
    }

    /// The volume.
    pub fn volume(&self) -> &Volume {
        &self.place.volume
    }

    /// The path of the store's directory in the volume.
    pub fn directory(&self) -> PathBuf {
        self.place.root.clone()
    }

    /// Calls `work` with the place, where it may wait.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Place) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let place = self.place.clone();
        blocking(move || work(&place)).await
    }
}

impl fmt::Display for CairnStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CairnFS({})", self.place.root.display())
    }
}

/// Refuses tags, which would be lost.
fn no_tags(tags: &object_store::TagSet) -> Result<()> {
    match tags.encoded() {
        "" => Ok(()),
        _ => Err(Error::NotSupported {
            source: "a volume keeps no tags of objects: use attributes".into(),
        }),
    }
}

#[async_trait]
impl ObjectStore for CairnStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        no_tags(&opts.tags)?;
        locations::check(location)?;
        let location = location.clone();
        self.run(move |place| {
            let file = place.unnamed().map_err(error_of)?;
            attributes::set(&file, &opts.attributes).map_err(|e| error_at(&location, e))?;
            write(&file, &payload, 0)?;
            place.publish(&file, &location, opts.mode)
        })
        .await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        no_tags(&opts.tags)?;
        let upload = Upload::begin(&self.place, location, opts.attributes).await?;
        Ok(Box::new(upload))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        get::get(&self.place, location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        get::get_ranges(&self.place, location, ranges).await
    }

    /// Deletes what is there already of the stream together: each batch is durable before its
    /// first location comes out.
    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        let batches = locations.ready_chunks(DELETES).then(move |batch| {
            let store = store.clone();
            async move {
                let deleted = store.run(move |place| {
                    let delete = |location: Result<Path>| {
                        let location = location?;
                        place.delete(&location).map(|()| location)
                    };
                    let deleted: Vec<_> = batch.into_iter().map(delete).collect();
                    place.sync()?;
                    Ok(deleted)
                });
                stream::iter(deleted.await.unwrap_or_else(|e| vec![Err(e)]))
            }
        });
        batches.flatten().boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        list::list(&self.place, prefix, None)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        list::list(&self.place, prefix, Some(offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        list::list_level(&self.place, prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        locations::check(to)?;
        let (from, to) = (from.clone(), to.clone());
        self.run(move |place| {
            let source = path_of(&place.root, &from);
            if locations::check(&from).is_err() || !place.is_object(&source) {
                return Err(not_found(&from));
            }
            let source = place.volume.open_file(&source);
            let source = source.map_err(|e| error_at(&from, e))?;
            let file = place.unnamed().map_err(error_of)?;
            let copied = || {
                attributes::set(&file, &attributes::get(&source)?)?;
                source.copy_range(0, &file, 0, u64::MAX)
            };
            copied().map_err(error_of)?;
            let mode = match options.mode {
                CopyMode::Overwrite => PutMode::Overwrite,
                CopyMode::Create => PutMode::Create,
            };
            place.publish(&file, &to, mode)?;
            Ok(())
        })
        .await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        locations::check(to)?;
        if locations::check(from).is_err() {
            return Err(not_found(from));
        }
        let mode = match options.target_mode {
            RenameTargetMode::Overwrite => RenameMode::Replace,
            RenameTargetMode::Create => RenameMode::NoReplace,
        };
        let (from, to) = (from.clone(), to.clone());
        self.run(move |place| place.rename(&from, &to, mode)).await
    }
}

/// Uploads by id belong to the store and its clones: after a restart of the program, none is open.
#[async_trait]
impl MultipartStore for CairnStore {
    async fn create_multipart(&self, path: &Path) -> Result<MultipartId> {
        let options = PutMultipartOptions::default();
        self.create_multipart_opts(path, options).await
    }

    async fn create_multipart_opts(
        &self,
        path: &Path,
        opts: PutMultipartOptions,
    ) -> Result<MultipartId> {
        no_tags(&opts.tags)?;
        self.uploads.begin(path, opts.attributes)
    }

    async fn put_part(
        &self,
        _path: &Path,
        id: &MultipartId,
        part_idx: usize,
        data: PutPayload,
    ) -> Result<PartId> {
        let uploads = &self.uploads;
        uploads.put_part(&self.place, id, part_idx, data).await
    }

    async fn complete_multipart(
        &self,
        path: &Path,
        id: &MultipartId,
        _parts: Vec<PartId>,
    ) -> Result<PutResult> {
        self.uploads.complete(&self.place, path, id).await
    }

    async fn abort_multipart(&self, _path: &Path, id: &MultipartId) -> Result<()> {
        self.uploads.abort(id).await
    }
}
