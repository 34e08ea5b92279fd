//! Reads frames: lengths, checksums, and the record in each.
//!
//! Uses the codec. One frame is in memory at a time, and memory is taken as its bytes arrive, not
//! by the length that it claims.

use std::io::{self, Read};

use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::frames::{Chain, FRAME_HEADER, FrameHeader, PREAMBLE};
use cairnfs_disk::format::stream::{RawBegin, Record};

/// A stream that is being read.
pub struct StreamReader<R> {
    from: R,
    chain: Chain,
    payload: Vec<u8>,
    begin: RawBegin,
    ended: bool,
}

impl<R: Read> StreamReader<R> {
    /// Reads the beginning of a stream.
    ///
    /// # Errors
    /// [`Error::Stream`] if it is not one that this version knows; the input failed.
    pub fn new(mut from: R) -> Result<Self> {
        let mut preamble = [0; PREAMBLE];
        fill(&mut from, &mut preamble)?;
        let mut chain = Chain::check(&preamble).map_err(Error::Stream)?;
        let mut payload = Vec::new();
        let header = read_frame(&mut from, &mut payload)?;
        let first = chain.verify(&header, &payload).map_err(Error::Stream)?;
        let Record::Begin(begin) = first else {
            return Err(Error::Stream("it has no first record".into()));
        };
        Ok(Self {
            from,
            chain,
            payload,
            begin,
            ended: false,
        })
    }

    /// What the stream is about.
    pub fn begin(&self) -> &RawBegin {
        &self.begin
    }

    /// The next record; `None` once the end has been read and checked. Nothing of a stream may be
    /// used before that.
    ///
    /// # Errors
    /// [`Error::Stream`] if the stream is damaged, cut off, or has bytes behind its end; the input
    /// failed.
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>> {
        if self.ended {
            return Ok(None);
        }
        let header = read_frame(&mut self.from, &mut self.payload)?;
        let record = self.chain.verify(&header, &self.payload);
        let record = record.map_err(Error::Stream)?;
        match record {
            Record::Begin(_) => Err(Error::Stream("it begins twice".into())),
            Record::End(_) => {
                self.ended = true;
                match self.from.by_ref().take(1).read_to_end(&mut Vec::new())? {
                    0 => Ok(None),
                    _ => Err(Error::Stream("it has bytes behind its end".into())),
                }
            }
            record => Ok(Some(record)),
        }
    }
}

/// Reads a frame. The buffer grows with what arrives.
fn read_frame(from: &mut impl Read, frame: &mut Vec<u8>) -> Result<FrameHeader> {
    let mut header = [0; FRAME_HEADER];
    fill(from, &mut header)?;
    let header = FrameHeader::decode(header).map_err(Error::Stream)?;
    let len = header.payload_len();
    frame.clear();
    let read = from.by_ref().take(len as u64).read_to_end(frame)?;
    if read == len {
        Ok(header)
    } else {
        Err(cut_off())
    }
}

fn fill(from: &mut impl Read, bytes: &mut [u8]) -> Result<()> {
    from.read_exact(bytes).map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => cut_off(),
        _ => e.into(),
    })
}

fn cut_off() -> Error {
    Error::Stream("it is cut off".into())
}
