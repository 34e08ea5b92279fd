//! SKELETON
#![allow(missing_docs, clippy::todo)]
use crate::error::Result;
use std::path::Path;
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    ReadOnly,
    ReadWrite,
}
pub struct FileDevice {}
impl FileDevice {
    /// Opens with an exclusive lock (shared lock if read-only); `Error::InUse` if taken.
    pub fn open(_path: &Path, _access: Access) -> Result<Self> {
        todo!()
    }
}
impl super::Device for FileDevice {
    fn size(&self) -> u64 {
        todo!()
    }
    fn read(&self, _o: u64, _b: &mut [u8]) -> Result<()> {
        todo!()
    }
    fn write(&self, _o: u64, _b: &[u8]) -> Result<()> {
        todo!()
    }
    fn flush(&self) -> Result<()> {
        todo!()
    }
    fn discard(&self, _o: u64, _l: u64) -> Result<()> {
        todo!()
    }
}
