//! What is agreed with the kernel when a connection begins.
//!
//! Only the list of features and sizes, and the refusal of kernels that lack what the operations
//! build on.

use std::io;
use std::time::Duration;

use fuser::{InitFlags, KernelConfig};

use crate::options::WriteMode;

/// Largest read or write of one request, in bytes.
pub const MAX_REQUEST: u32 = 1 << 20;

/// Readahead and writeback requests under way at a time. With fewer, written data can wait in the
/// kernel behind a sync that was asked for later.
const MAX_BACKGROUND: u16 = 4096;

/// Features asked for where the kernel has them. With ASYNC_DIO the kernel would not drop the pages
/// that a direct write makes stale; it may wait for that write itself. File locks are left to the kernel, SETXATTR_EXT
/// and ALLOW_IDMAP to a transport that can decode what they change. Listings come with attributes
/// whenever they are asked for: the kernel's guess (READDIRPLUS_AUTO) misses programs that list
/// first and stat later, and a look-up costs ten times as much as an entry with its attributes.
/// EXPORT_SUPPORT has the kernel resolve file handles by look-ups of "." and "..".
const WANTED: InitFlags = InitFlags::FUSE_ASYNC_READ
    .union(InitFlags::FUSE_BIG_WRITES)
    .union(InitFlags::FUSE_MAX_PAGES)
    .union(InitFlags::FUSE_PARALLEL_DIROPS)
    .union(InitFlags::FUSE_DO_READDIRPLUS)
    .union(InitFlags::FUSE_HANDLE_KILLPRIV_V2)
    .union(InitFlags::FUSE_CACHE_SYMLINKS)
    .union(InitFlags::FUSE_EXPLICIT_INVAL_DATA)
    .union(InitFlags::FUSE_ABORT_ERROR)
    .union(InitFlags::FUSE_POSIX_ACL)
    .union(InitFlags::FUSE_DONT_MASK)
    .union(InitFlags::FUSE_EXPORT_SUPPORT)
    .union(InitFlags::FUSE_NO_OPEN_SUPPORT)
    .union(InitFlags::FUSE_NO_OPENDIR_SUPPORT);

/// Without these the kernel's requests mean something else than [`Ops`] takes them for.
const NEEDED: InitFlags = InitFlags::FUSE_HANDLE_KILLPRIV_V2
    .union(InitFlags::FUSE_POSIX_ACL)
    .union(InitFlags::FUSE_DONT_MASK)
    .union(InitFlags::FUSE_NO_OPEN_SUPPORT)
    .union(InitFlags::FUSE_NO_OPENDIR_SUPPORT)
    .union(CHECKS_FLAGS);

/// Only offered, never taken up: it came with the kernel (5.13) that checks itself who may set inode
/// flags. An earlier one passes such an ioctl on from anybody.
const CHECKS_FLAGS: InitFlags = InitFlags::FUSE_SETXATTR_EXT;

/// Asks the kernel.
///
/// # Errors
/// It is too old, or the transport has other limits than it is known for.
pub fn ask(config: &mut KernelConfig, write: WriteMode) -> io::Result<()> {
    let offered = config.capabilities();
    let cache = match write {
        WriteMode::Through => InitFlags::empty(),
        WriteMode::Back => InitFlags::FUSE_WRITEBACK_CACHE,
    };
    let missing = (NEEDED | cache) - offered;
    if !missing.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("the kernel is too old: its FUSE lacks {missing:?}"),
        ));
    }
    let refused = |what: &str| io::Error::other(format!("FUSE refuses {what}"));
    config
        .add_capabilities((WANTED | cache) & offered)
        .map_err(|_| refused("features it offers"))?;
    config
        .set_max_write(MAX_REQUEST)
        .map_err(|_| refused("requests of 1 MiB"))?;
    config
        .set_max_background(MAX_BACKGROUND)
        .map_err(|_| refused("its queue length"))?;
    config
        .set_time_granularity(Duration::from_nanos(1))
        .map_err(|_| refused("nanoseconds"))?;
    Ok(())
}
