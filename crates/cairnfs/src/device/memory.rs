//! SKELETON
#![allow(missing_docs, clippy::todo)]
use crate::error::Result;
pub struct MemoryDevice {}
impl MemoryDevice {
    pub fn new(_size: u64) -> Self {
        todo!()
    }
}
impl super::Device for MemoryDevice {
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
