//! Sending a snapshot as a stream.

use std::io::Write;

use zerocopy::little_endian::{U32, U64};

use crate::operations::frozen::{Frozen, empty};
use crate::operations::named::with_roots;
use crate::operations::received::{mark_of, origins_of};
use crate::stream::StreamWriter;
use cairnfs_core::fs::FileSystem;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::stream::RawBegin;

/// Writes the snapshot of a reference to `out`, as the changes from the snapshot `base`, or as a
/// whole. Returns `out`.
///
/// # Errors
/// [`Error::NoRoot`]; [`Error::Invalid`] for a branch; the device or the output failed.
pub fn send<W: Write>(fs: &FileSystem, out: W, root: &str, base: Option<&str>) -> Result<W> {
    let new = snapshot(fs, root)?;
    let old = base.map(|base| snapshot(fs, base)).transpose()?;
    let id = |frozen: &Option<Frozen>| frozen.as_ref().map_or(0, |f| f.root.id);
    let base_mark = old.as_ref().map_or(0, |old| mark_of(&old.root));
    let begin = RawBegin {
        uuid: fs.info().uuid,
        base_root: U32::new(id(&old)),
        root: U32::new(new.root.id),
        base_mark: U64::new(base_mark),
        mark: U64::new(mark_of(&new.root)),
    };
    let before = old.as_ref().map_or_else(|| empty(fs), |old| old.files(fs));
    let files = new.files(fs);
    let origins = origins_of(files, fs.info().uuid)?;
    let mut writer = StreamWriter::new(out, begin, &origins)?;
    crate::stream::send(&mut writer, (before, files), fs.core().data())?;
    writer.finish()
}

fn snapshot(fs: &FileSystem, reference: &str) -> Result<Frozen> {
    with_roots(fs, [reference], |[root]| {
        if root.writable {
            Err(Error::Invalid(
                "a branch changes while it is sent: make a snapshot of it, and send that",
            ))
        } else {
            Frozen::of(fs, root.clone())
        }
    })
}
