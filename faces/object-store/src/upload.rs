//! Uploads in parts. What is uploaded is in files without names, so it is gone after a crash, and
//! when an upload is dropped or aborted.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use cairnfs::File;
use object_store::multipart::PartId;
use object_store::path::Path;
use object_store::{
    Attributes, Error, MultipartId, MultipartUpload, PutMode, PutPayload, PutResult, Result,
    UploadPart,
};
use parking_lot::Mutex;

use crate::blocking::blocking;
use crate::locations::{self, error_of};
use crate::put::Place;
use crate::{STORE, attributes};

fn wrong(message: &'static str) -> Error {
    Error::Generic {
        store: STORE,
        source: message.into(),
    }
}

/// Writes a payload at an offset.
pub(crate) fn write(file: &File, payload: &PutPayload, mut offset: u64) -> Result<()> {
    for bytes in payload {
        file.write_all_at(bytes, offset).map_err(error_of)?;
        offset += bytes.len() as u64;
    }
    Ok(())
}

/// An upload whose parts come in order: each is written to its place in one file.
pub(crate) struct Upload {
    place: Place,
    location: Path,
    /// `None` after its end.
    file: Option<Arc<File>>,
    /// Bytes of the parts so far.
    size: u64,
    /// Parts that are not written, or failed.
    missing: Arc<AtomicU64>,
}

impl Upload {
    pub(crate) async fn begin(
        place: &Place,
        location: &Path,
        attributes: Attributes,
    ) -> Result<Self> {
        locations::check(location)?;
        let (place, location) = (place.clone(), location.clone());
        blocking(move || {
            let file = place.unnamed().map_err(error_of)?;
            attributes::set(&file, &attributes).map_err(error_of)?;
            Ok(Self {
                place,
                location,
                file: Some(Arc::new(file)),
                size: 0,
                missing: Arc::default(),
            })
        })
        .await
    }
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload")
            .field("location", &self.location)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

const OVER: &str = "the upload was completed or aborted";

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let Some(file) = self.file.clone() else {
            return Box::pin(async { Err(wrong(OVER)) });
        };
        let offset = self.size;
        self.size += data.content_length() as u64;
        let missing = Arc::clone(&self.missing);
        missing.fetch_add(1, Ordering::AcqRel);
        Box::pin(blocking(move || {
            write(&file, &data, offset)?;
            missing.fetch_sub(1, Ordering::AcqRel);
            Ok(())
        }))
    }

    async fn complete(&mut self) -> Result<PutResult> {
        if self.missing.load(Ordering::Acquire) > 0 {
            return Err(wrong("a part of the upload failed, or was not awaited"));
        }
        let file = self.file.take().ok_or_else(|| wrong(OVER))?;
        let (place, location) = (self.place.clone(), self.location.clone());
        blocking(move || place.publish(&file, &location, PutMode::Overwrite)).await
    }

    async fn abort(&mut self) -> Result<()> {
        let file = self.file.take();
        blocking(move || {
            drop(file);
            Ok(())
        })
        .await
    }
}

/// An upload whose parts come in any order: each is a file until all are joined.
struct Parts {
    attributes: Attributes,
    parts: BTreeMap<usize, (Arc<File>, u64)>,
}

/// The uploads of a store by their ids. They end with the store.
#[derive(Default)]
pub(crate) struct Uploads {
    next: AtomicU64,
    open: Mutex<HashMap<u64, Parts>>,
}

impl fmt::Debug for Uploads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.open.lock().len();
        f.debug_struct("Uploads").field("open", &open).finish()
    }
}

impl Uploads {
    pub(crate) fn begin(&self, location: &Path, attributes: Attributes) -> Result<MultipartId> {
        locations::check(location)?;
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let parts = Parts {
            attributes,
            parts: BTreeMap::new(),
        };
        self.open.lock().insert(id, parts);
        Ok(id.to_string())
    }

    fn number(id: &MultipartId) -> Result<u64> {
        id.parse().map_err(|_| wrong(UNKNOWN))
    }

    /// Uploads a part; replaces an earlier one with the same number.
    pub(crate) async fn put_part(
        self: &Arc<Self>,
        place: &Place,
        id: &MultipartId,
        number: usize,
        data: PutPayload,
    ) -> Result<PartId> {
        let id = Self::number(id)?;
        let (uploads, place) = (Arc::clone(self), place.clone());
        blocking(move || {
            let file = place.unnamed().map_err(error_of)?;
            write(&file, &data, 0)?;
            let part = (Arc::new(file), data.content_length() as u64);
            let mut open = uploads.open.lock();
            let upload = open.get_mut(&id).ok_or_else(|| wrong(UNKNOWN))?;
            let replaced = upload.parts.insert(number, part);
            drop(open);
            drop(replaced);
            Ok(PartId {
                content_id: number.to_string(),
            })
        })
        .await
    }

    fn end(&self, id: &MultipartId) -> Result<Parts> {
        let ended = self.open.lock().remove(&Self::number(id)?);
        ended.ok_or_else(|| wrong(UNKNOWN))
    }

    /// Joins the parts to an object.
    pub(crate) async fn complete(
        &self,
        place: &Place,
        location: &Path,
        id: &MultipartId,
    ) -> Result<PutResult> {
        locations::check(location)?;
        let upload = self.end(id)?;
        let (place, location) = (place.clone(), location.clone());
        blocking(move || {
            let file = place.unnamed().map_err(error_of)?;
            attributes::set(&file, &upload.attributes).map_err(error_of)?;
            let mut size = 0;
            for (index, (number, (part, len))) in upload.parts.iter().enumerate() {
                if index != *number {
                    return Err(wrong("a part of the upload is missing"));
                }
                let copied = part.copy_range(0, &file, size, *len).map_err(error_of)?;
                size += copied;
            }
            place.publish(&file, &location, PutMode::Overwrite)
        })
        .await
    }

    /// Forgets an upload.
    pub(crate) async fn abort(&self, id: &MultipartId) -> Result<()> {
        let upload = self.end(id)?;
        blocking(move || {
            drop(upload);
            Ok(())
        })
        .await
    }
}

const UNKNOWN: &str = "no upload with this id is open in this store";
