//! The memory of a channel as the kernel gives it: made, sealed and mapped. The only unsafe code of the crate.

use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use super::Shared;

/// A mapped region.
pub struct Region(NonNull<Shared>);

// SAFETY: everything in the region is an atomic.
#[allow(unsafe_code, reason = "the region is memory that was mapped")]
unsafe impl Send for Region {}
// SAFETY: as above.
#[allow(unsafe_code, reason = "the region is memory that was mapped")]
unsafe impl Sync for Region {}

/// Makes the memory of a channel. Its size is sealed, so no access to a mapping of it can fail.
pub fn make() -> io::Result<OwnedFd> {
    let memory = memfd_create(
        "cairnfs-channel",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )?;
    ftruncate(&memory, size_of::<Shared>() as u64)?;
    fcntl_add_seals(
        &memory,
        SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
    )?;
    Region::map(&memory)?.begin();
    Ok(memory)
}

impl Region {
    /// Maps the memory of a channel.
    ///
    /// # Errors
    /// It has another size or layout; the kernel's.
    #[allow(unsafe_code, reason = "mapping memory is unsafe")]
    pub fn map(memory: impl AsFd) -> io::Result<Self> {
        if fstat(&memory)?.st_size != size_of::<Shared>() as i64 {
            return Err(io::Error::other("a channel of another version"));
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, which is not placed over another one.
        let at = unsafe {
            mmap(
                std::ptr::null_mut(),
                size_of::<Shared>(),
                access,
                MapFlags::SHARED,
                memory,
                0,
            )?
        };
        let mapped = NonNull::new(at.cast::<Shared>());
        Ok(Self(mapped.ok_or_else(|| {
            io::Error::other("memory was mapped at zero")
        })?))
    }

    /// Puts memory of this process alone in the place of the region, which it is cut off from.
    #[allow(unsafe_code, reason = "mapping memory is unsafe")]
    pub fn cut_off(&self) {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: it replaces this mapping, by one of the same size, in which any bytes are a value.
        let _ =
            unsafe { mmap_anonymous(self.0.as_ptr().cast(), size_of::<Shared>(), access, flags) };
    }
}

impl Deref for Region {
    type Target = Shared;

    #[allow(unsafe_code, reason = "the region is memory that was mapped")]
    fn deref(&self) -> &Shared {
        // SAFETY: mapped until drop with this size, which is sealed; a page is aligned for it, and any
        // bytes are a value of it.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Region {
    #[allow(unsafe_code, reason = "unmapping memory is unsafe")]
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and nothing refers to it any more.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), size_of::<Shared>()) };
    }
}
