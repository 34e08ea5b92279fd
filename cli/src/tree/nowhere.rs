//! A sink that keeps nothing: copying to it reads everything, and tells what cannot be read.

use cairnfs_daemon::failure::Failure;

use super::{Meta, Segment, Sink};

/// Takes everything.
pub struct Nowhere;

impl Sink for Nowhere {
    fn begin_directory(&mut self, _: &[u8], _: &Meta) -> Result<(), Failure> {
        Ok(())
    }

    fn end_directory(&mut self, _: &[u8], _: &Meta) -> Result<(), Failure> {
        Ok(())
    }

    fn begin_file(&mut self, _: &[u8], _: &Meta, _: &[Segment]) -> Result<(), Failure> {
        Ok(())
    }

    fn write(&mut self, _: u64, _: &[u8]) -> Result<(), Failure> {
        Ok(())
    }

    fn end_file(&mut self, _: &[u8], _: &Meta) -> Result<(), Failure> {
        Ok(())
    }

    fn abandon_file(&mut self) {}

    fn symlink(&mut self, _: &[u8], _: &[u8], _: &Meta) -> Result<(), Failure> {
        Ok(())
    }

    fn special(&mut self, _: &[u8], _: &Meta) -> Result<(), Failure> {
        Ok(())
    }

    fn hard_link(&mut self, _: &[u8], _: &[u8]) -> Result<(), Failure> {
        Ok(())
    }
}
