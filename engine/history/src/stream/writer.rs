//! Writes frames.
//!
//! Uses the codec. The sum at the end is written by [`StreamWriter::finish`] only, so a stream whose
//! writer failed is not complete.

use std::io::Write;

use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::frames::Chain;
use cairnfs_disk::format::stream::{
    RawBegin, RawOrigin, Record, STREAM_VERSION, STREAM_VERSION_ORIGINS,
};

/// A stream that is being written.
pub struct StreamWriter<W> {
    out: W,
    chain: Chain,
    frame: Vec<u8>,
}

impl<W: Write> StreamWriter<W> {
    /// Writes the beginning of a stream that has files of the `origins`.
    pub fn new(mut out: W, begin: RawBegin, origins: &[RawOrigin]) -> Result<Self> {
        let (preamble, chain) = Chain::begin(if origins.is_empty() {
            STREAM_VERSION
        } else {
            STREAM_VERSION_ORIGINS
        });
        out.write_all(&preamble)?;
        let mut writer = Self {
            out,
            chain,
            frame: Vec::new(),
        };
        writer.put(&Record::Begin(begin))?;
        for origin in origins {
            writer.put(&Record::Origin(*origin))?;
        }
        Ok(writer)
    }

    /// Writes a record.
    ///
    /// # Errors
    /// The output failed, or the record breaks a limit of the format.
    pub fn put(&mut self, record: &Record<'_>) -> Result<()> {
        self.frame.clear();
        self.chain
            .frame(record, &mut self.frame)
            .map_err(Error::Stream)?;
        Ok(self.out.write_all(&self.frame)?)
    }

    /// Writes the end, and flushes the output.
    pub fn finish(mut self) -> Result<W> {
        let end = self.chain.end();
        self.put(&end)?;
        self.out.flush()?;
        Ok(self.out)
    }
}
