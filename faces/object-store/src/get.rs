//! Reading objects: metadata, ranges, streams.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use cairnfs::{File, Metadata};
use chrono::{DateTime, Utc};
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use object_store::path::Path;
use object_store::{
    Attributes, Error, GetOptions, GetRange, GetResult, GetResultPayload, ObjectMeta, Result,
};

use crate::blocking::blocking;
use crate::locations::{error_at, error_of, not_found, path_of};
use crate::put::Place;
use crate::{STORE, attributes, locations};

/// Most bytes that one call of the library reads.
const STEP: u64 = 1 << 20;

/// The metadata of an object.
pub(crate) fn meta_of(location: Path, metadata: &Metadata) -> Result<ObjectMeta> {
    let modified = metadata.modified().map_err(error_of)?;
    Ok(ObjectMeta {
        location,
        last_modified: DateTime::<Utc>::from(modified),
        size: metadata.len(),
        e_tag: Some(attributes::e_tag(metadata)),
        version: None,
    })
}

/// An object, opened for reading: its bytes stay the same when it is replaced or deleted.
struct Opened {
    file: Arc<File>,
    meta: ObjectMeta,
}

impl Place {
    fn open(&self, location: &Path) -> Result<Opened> {
        let path = path_of(&self.root, location);
        if locations::check(location).is_err() || !self.is_object(&path) {
            return Err(not_found(location));
        }
        let file = self.volume.open_file(&path);
        let file = file.map_err(|e| error_at(location, e))?;
        let metadata = file.metadata().map_err(|e| error_at(location, e))?;
        if !metadata.is_file() {
            return Err(not_found(location));
        }
        Ok(Opened {
            meta: meta_of(location.clone(), &metadata)?,
            file: Arc::new(file),
        })
    }

    /// What the options ask for; the bytes already, if they are few.
    fn get(&self, location: &Path, options: &GetOptions) -> Result<Got> {
        if options.version.is_some() {
            return Err(Error::NotSupported {
                source: "a volume keeps no versions of an object".into(),
            });
        }
        let Opened { file, meta } = self.open(location)?;
        options.check_preconditions(&meta)?;
        let range = match &options.range {
            Some(range) => range.as_range(meta.size).map_err(generic)?,
            None => 0..meta.size,
        };
        let attributes = attributes::get(&file).map_err(|e| error_at(location, e))?;
        let first = match range.end - range.start {
            _ if options.head => Some(Bytes::new()),
            len if len <= STEP => Some(read(&file, location, &range)?),
            _ => None,
        };
        Ok(Got {
            file,
            meta,
            range,
            attributes,
            first,
        })
    }
}

struct Got {
    file: Arc<File>,
    meta: ObjectMeta,
    range: Range<u64>,
    attributes: Attributes,
    first: Option<Bytes>,
}

fn generic(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Generic {
        store: STORE,
        source: Box::new(error),
    }
}

/// Reads a range, which is within the object.
fn read(file: &File, location: &Path, range: &Range<u64>) -> Result<Bytes> {
    let len = usize::try_from(range.end - range.start).map_err(generic)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(generic)?;
    bytes.resize(len, 0);
    let filled = file.read_exact_at(&mut bytes, range.start);
    filled.map_err(|e| error_at(location, e))?;
    Ok(bytes.into())
}

/// The bytes of a range in steps.
fn stream(file: Arc<File>, location: Path, range: Range<u64>) -> BoxStream<'static, Result<Bytes>> {
    let begin = range.start;
    let steps = stream::try_unfold(begin, move |at| {
        let (file, location) = (Arc::clone(&file), location.clone());
        let step = at..range.end.min(at.saturating_add(STEP));
        async move {
            if step.is_empty() {
                return Ok(None);
            }
            let end = step.end;
            let bytes = blocking(move || read(&file, &location, &step)).await?;
            Ok(Some((bytes, end)))
        }
    });
    steps.boxed()
}

/// Answers a get.
pub(crate) async fn get(place: &Place, location: &Path, options: GetOptions) -> Result<GetResult> {
    let (place, at) = (place.clone(), location.clone());
    let got = blocking(move || place.get(&at, &options)).await?;
    let payload = match got.first {
        Some(bytes) => stream::iter([Ok(bytes)]).boxed(),
        None => stream(got.file, location.clone(), got.range.clone()),
    };
    Ok(GetResult {
        payload: GetResultPayload::Stream(payload),
        meta: got.meta,
        range: got.range,
        attributes: got.attributes,
        extensions: Default::default(),
    })
}

/// Reads several ranges of one object, all of the same bytes although it is replaced meanwhile.
pub(crate) async fn get_ranges(
    place: &Place,
    location: &Path,
    ranges: &[Range<u64>],
) -> Result<Vec<Bytes>> {
    let (place, location, ranges) = (place.clone(), location.clone(), ranges.to_vec());
    blocking(move || {
        let opened = place.open(&location)?;
        let read_one = |range: Range<u64>| {
            let range = GetRange::Bounded(range).as_range(opened.meta.size);
            read(&opened.file, &location, &range.map_err(generic)?)
        };
        ranges.into_iter().map(read_one).collect()
    })
    .await
}
