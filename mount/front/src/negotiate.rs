//! Negotiation with the kernel when a connection begins (FUSE_INIT).
//!
//! Holds only the list of features and sizes, and refuses kernels that lack features on which the
//! operations depend.

use cairnfs_transport::{Features, Offer, Wanted};

use crate::options::WriteMode;

/// Largest read or write of one request, in bytes.
pub const MAX_REQUEST: u32 = 1 << 20;

/// Maximum number of readahead and writeback requests in flight. With fewer, written data can wait
/// in the kernel behind a sync that was requested later.
const MAX_BACKGROUND: u16 = 4096;

/// Features requested if the kernel has them. ASYNC_DIO is left out: with it the kernel would not
/// drop the pages that a direct write makes stale; without it the kernel may wait for that write.
/// ALLOW_IDMAP is left out: with it, requests that create nothing do not carry their caller's ids,
/// on which trusted attributes and set-id bits depend. File locks are left to the kernel. Every
/// listing comes with attributes: the kernel's heuristic (READDIRPLUS_AUTO) misses programs that
/// list first and stat later, and a lookup costs ten times as much as an entry with its attributes.
/// EXPORT_SUPPORT makes the kernel resolve file handles by lookups of "." and "..".
const WANTED: Features = Features::ASYNC_READ
    .union(Features::BIG_WRITES)
    .union(Features::MAX_PAGES)
    .union(Features::PARALLEL_DIROPS)
    .union(Features::DO_READDIRPLUS)
    .union(Features::HANDLE_KILLPRIV_V2)
    .union(Features::CACHE_SYMLINKS)
    .union(Features::EXPLICIT_INVAL_DATA)
    .union(Features::ABORT_ERROR)
    .union(Features::POSIX_ACL)
    .union(Features::DONT_MASK)
    .union(Features::EXPORT_SUPPORT)
    .union(Features::NO_OPEN_SUPPORT)
    .union(Features::NO_OPENDIR_SUPPORT);

/// Required features: without them the kernel's requests have another meaning than `Ops` expects.
/// SETXATTR_EXT was introduced with the kernel (5.13) that checks itself which caller may set inode
/// flags; an earlier kernel passes such an ioctl through from any caller.
const NEEDED: Features = Features::HANDLE_KILLPRIV_V2
    .union(Features::POSIX_ACL)
    .union(Features::DONT_MASK)
    .union(Features::NO_OPEN_SUPPORT)
    .union(Features::NO_OPENDIR_SUPPORT)
    .union(Features::SETXATTR_EXT);

/// Returns the features and sizes for write mode `write`.
///
/// # Errors
/// The kernel is too old; the text names what it lacks.
pub fn ask(offer: &Offer, write: WriteMode) -> Result<Wanted, String> {
    let cache = match write {
        WriteMode::Through => Features::default(),
        WriteMode::Back => Features::WRITEBACK_CACHE,
    };
    let missing = NEEDED.union(cache).difference(offer.features);
    if !missing.is_empty() {
        return Err(format!("the kernel is too old: its FUSE lacks {missing:?}"));
    }
    Ok(Wanted {
        features: WANTED.union(cache),
        max_request: MAX_REQUEST,
        max_background: MAX_BACKGROUND,
        time_granularity: 1,
    })
}
