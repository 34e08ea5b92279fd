//! Receives a stream into a tree that nobody sees yet.
//!
//! Uses the reader and the checks.

use std::io::Read;

use crate::stream::check::Checker;
use crate::stream::reader::StreamReader;
use crate::stream::target::Target;
use cairnfs_disk::error::Result;
use cairnfs_disk::format::stream::RawBegin;

/// Applies a stream to `target`. If this fails, the target must be thrown away; if it succeeds, the
/// whole stream has been read and checked, and the target has a sound tree.
///
/// # Errors
/// [`Error::Stream`](cairnfs_disk::Error::Stream) if the stream is damaged, cut off, or asks for what no
/// tree can be; the input or the target failed.
pub fn receive(from: impl Read, target: &mut dyn Target) -> Result<RawBegin> {
    let mut reader = StreamReader::new(from)?;
    let begin = *reader.begin();
    target.begin(&begin)?;
    let mut checker = Checker::default();
    while let Some(record) = reader.next_record()? {
        checker.check(&record, target)?;
        target.apply(&record)?;
    }
    checker.end(target)?;
    Ok(begin)
}
