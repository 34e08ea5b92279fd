//! CairnFS: a crash-safe POSIX file system in one file or block device.
pub mod device;
pub mod error;
pub mod format;
pub mod fs;
pub mod types;
pub use error::{Error, Result};
