//! Negotiation with the kernel when a connection begins (FUSE_INIT).
//!
//! Holds only the list of features and sizes, and refuses kernels that lack features on which the
//! operations depend.

use std::io;
use std::time::Duration;

use fuser::{InitFlags, KernelConfig};

use crate::options::WriteMode;

/// Largest read or write of one request, in bytes.
pub const MAX_REQUEST: u32 = 1 << 20;

/// Maximum number of readahead and writeback requests in flight. With fewer, written data can wait
/// in the kernel behind a sync that was requested later.
const MAX_BACKGROUND: u16 = 4096;

/// Features requested if the kernel has them. ASYNC_DIO is left out: with it the kernel would not
/// drop the pages that a direct write makes stale; without it the kernel may wait for that write.
/// File locks are left to the kernel, SETXATTR_EXT and ALLOW_IDMAP to a transport that can decode
/// the changed messages. Every listing comes with attributes: the kernel's heuristic
/// (READDIRPLUS_AUTO) misses programs that list first and stat later, and a lookup costs ten times
/// as much as an entry with its attributes. EXPORT_SUPPORT makes the kernel resolve file handles by
/// lookups of "." and "..".
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

/// Required features: without them the kernel's requests have another meaning than `Ops` expects.
const NEEDED: InitFlags = InitFlags::FUSE_HANDLE_KILLPRIV_V2
    .union(InitFlags::FUSE_POSIX_ACL)
    .union(InitFlags::FUSE_DONT_MASK)
    .union(InitFlags::FUSE_NO_OPEN_SUPPORT)
    .union(InitFlags::FUSE_NO_OPENDIR_SUPPORT)
    .union(CHECKS_FLAGS);

/// Must be offered, but is never requested: it was introduced with the kernel (5.13) that checks
/// itself which caller may set inode flags. An earlier kernel passes such an ioctl through from any
/// caller.
const CHECKS_FLAGS: InitFlags = InitFlags::FUSE_SETXATTR_EXT;

/// Requests the features and sizes for write mode `write`.
///
/// # Errors
/// The kernel is too old (`Unsupported`), or the transport refuses a size that it is known to
/// allow.
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
