//! A directory of an open volume, by path or by inode.

use cairnfs::Volume;

use super::{Dir, engine, library};
use crate::Result;

/// Opens a directory of a volume.
pub fn opened_dir<'a>(volume: Volume, by_inode: bool, path: &str) -> Result<Box<dyn Dir + 'a>> {
    Ok(if by_inode {
        Box::new(engine::dir(&volume, path)?)
    } else {
        Box::new(library::dir(volume, path))
    })
}
