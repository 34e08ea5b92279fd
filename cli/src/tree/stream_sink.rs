//! A byte stream as a sink: the contents of single files, concatenated.
//!
//! Holes and unreadable ranges are written as zeros. Only regular files have contents.

use std::io::{self, Read, Write};

use cairnfs_daemon::failure::{Explain, Failure};

use super::{Meta, Segment, Sink};

/// The sink for a byte stream.
pub struct StreamSink<W: Write> {
    out: W,
    name: String,
    /// Bytes of the current file already written.
    written: u64,
}

impl<W: Write> StreamSink<W> {
    /// Writes to `out`, called `name` in messages.
    pub fn new(out: W, name: String) -> Self {
        Self {
            out,
            name,
            written: 0,
        }
    }

    fn zeros(&mut self, until: u64) -> Result<(), Failure> {
        let missing = until.saturating_sub(self.written);
        io::copy(&mut io::repeat(0).take(missing), &mut self.out)
            .explain(&self.name)
            .map_err(Failure::fatal)?;
        self.written += missing;
        Ok(())
    }

    fn no_contents(&self) -> Result<(), Failure> {
        Err(Failure::new(&self.name, "only regular files have contents"))
    }
}

impl<W: Write> Sink for StreamSink<W> {
    fn begin_directory(&mut self, _path: &[u8], _meta: &Meta) -> Result<(), Failure> {
        self.no_contents()
    }

    fn end_directory(&mut self, _path: &[u8], _meta: &Meta) -> Result<(), Failure> {
        self.no_contents()
    }

    fn begin_file(&mut self, _path: &[u8], _meta: &Meta, _data: &[Segment]) -> Result<(), Failure> {
        self.written = 0;
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        self.zeros(offset)?;
        self.out
            .write_all(bytes)
            .explain(&self.name)
            .map_err(Failure::fatal)?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    fn end_file(&mut self, _path: &[u8], meta: &Meta) -> Result<(), Failure> {
        self.zeros(meta.size)?;
        self.out.flush().explain(&self.name).map_err(Failure::fatal)
    }

    /// Bytes already written to the stream cannot be removed.
    fn abandon_file(&mut self) {}

    fn symlink(&mut self, _path: &[u8], _target: &[u8], _meta: &Meta) -> Result<(), Failure> {
        self.no_contents()
    }

    fn special(&mut self, _path: &[u8], _meta: &Meta) -> Result<(), Failure> {
        self.no_contents()
    }

    fn hard_link(&mut self, _path: &[u8], _original: &[u8]) -> Result<(), Failure> {
        self.no_contents()
    }
}
