//! Reads through the page cache of the host, beside writes that bypass it.
//!
//! A program that embeds a volume bounds the memory that its process takes. The page cache is memory
//! that the kernel gives up by itself when it is needed, so index nodes and file data may be read
//! through it; everything else, such as the log at an opening, is read directly. Writes stay direct:
//! they are not copied, and nothing has to be written back at a flush. For this a direct write must
//! drop the pages of its range before it returns. ext4 and XFS do; if they cannot, they let the next
//! flush fail, and the volume stops. btrfs does not in all versions: pages that were read ahead
//! beside a direct write could stay stale. On others, and on block devices, all reads are direct.

use std::num::NonZeroU64;
use std::os::fd::OwnedFd;

use rustix::fs::{Advice, Mode, OFlags, fadvise, fstat, fstatfs, major};

use super::{FileDevice, retry};

/// Magic numbers (statfs(2)) of file systems on which a read through the page cache that begins
/// after a direct write has returned finds what was written: ext4, which drives ext2 and ext3 too,
/// and XFS.
const AGREE: [u64; 2] = [0xef53, 0x5846_5342];

/// Whether reads through the page cache agree with direct writes. Both file systems are on block
/// devices; one that is a view of another (9p) may tell the number of the other, and has a device
/// of no kind.
pub(super) fn agrees(file: &OwnedFd) -> bool {
    let on_device = fstat(file).is_ok_and(|stat| major(stat.st_dev) != 0);
    on_device && fstatfs(file).is_ok_and(|of| AGREE.contains(&of.f_type.cast_unsigned()))
}

impl FileDevice {
    /// Lets the page cache forget a range. What is read directly although it may be cached was read
    /// wrongly before.
    pub(super) fn drop_cached(&self, offset: u64, len: u64) {
        if let Some(cached) = &self.cached {
            let _ = fadvise(cached, offset, NonZeroU64::new(len), Advice::DontNeed);
        }
    }

    /// Lets [`read_cached`](crate::device::Device::read_cached) use the page cache, where that is known
    /// to agree with direct writes.
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
