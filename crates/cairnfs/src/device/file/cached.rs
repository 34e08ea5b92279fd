//! Reads through the page cache of the host, beside writes that bypass it.
//!
//! A program that embeds a volume bounds the memory that its process takes. The page cache is the
//! memory that nobody else needs, so reads of a file may use it; the kernel gives it up by itself.
//! Writes stay direct: they are not copied, and nothing has to be written back at a flush. For this
//! a direct write must drop the pages of its range before it returns, also those that are being read
//! meanwhile. The file systems named here do that; on others, and on block devices, reads are
//! direct too.

use std::os::fd::OwnedFd;

use rustix::fs::{Advice, Mode, OFlags, fadvise, fstat, fstatfs};

use super::{FileDevice, retry};

/// Magic numbers (statfs(2)) of file systems on which a read through the page cache that begins
/// after a direct write has returned finds what was written: ext4, XFS, btrfs.
const AGREE: [u64; 3] = [0xef53, 0x5846_5342, 0x9123_683e];

/// Whether reads through the page cache agree with direct writes.
pub(super) fn agrees(file: &OwnedFd) -> bool {
    fstatfs(file).is_ok_and(|of| AGREE.contains(&of.f_type.cast_unsigned()))
}

impl FileDevice {
    /// Lets reads use the page cache, where that is known to agree with direct writes.
    #[must_use]
    pub fn cache_reads(mut self) -> Self {
        if !self.direct || self.block_device {
            return self;
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let open = || retry(|| rustix::fs::open(&self.path, flags, Mode::empty())).ok();
        self.cached = agrees(&self.file).then(open).flatten().filter(|cached| {
            let (cached, own) = (fstat(cached), fstat(&*self.file));
            let place = |of: rustix::fs::Stat| (of.st_dev, of.st_ino);
            // The path may lead to another file meanwhile.
            cached.is_ok_and(|cached| own.is_ok_and(|own| place(cached) == place(own)))
        });
        if let Some(cached) = &self.cached {
            // What is near a node or a block is seldom wanted next, and what is wanted next is known.
            let _ = fadvise(cached, 0, None, Advice::Random);
        }
        self
    }
}
