//! A CairnFS volume as an [object store](object_store::ObjectStore), for SlateDB and other programs
//! that use this version of the `object_store` crate.
//!
//! An object is a regular file, and its location is the file's path, so that a mount, the commands
//! and the library show the same objects. Every put is atomic, also across a crash: it writes a
//! file without a name, and gives it its name when it is complete.
//!
//! ```
//! use cairnfs::Volume;
//! use cairnfs_object_store::CairnStore;
//! use object_store::{ObjectStore, ObjectStoreExt, PutMode, path::Path};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = CairnStore::new(Volume::in_memory(64 << 20)?)?;
//! let location = Path::from("tables/a/part-0.parquet");
//! let first = store.put(&location, "first".into()).await?;
//! store.put(&location, "second".into()).await?;
//! assert_eq!(store.get(&location).await?.bytes().await?, "second");
//!
//! let only_over_the_first = PutMode::Update(first.into());
//! let refused = store.put_opts(&location, "third".into(), only_over_the_first.into()).await;
//! assert!(matches!(refused, Err(object_store::Error::Precondition { .. })));
//! # Ok(())
//! # }
//! ```
//!
//! # Names
//! A location is the path of a file, segment by segment, without any encoding. So not everything
//! can be a location that some other store accepts:
//!
//! - An object cannot be below another one: `a` and `a/b` exclude each other. The later put fails
//!   with [`Refused::Below`] or [`Refused::Above`].
//! - A segment has 255 bytes at most ([`Refused::TooLong`]).
//! - The first segment `.cairnfs-staging` is the store's own ([`Refused::Reserved`]).
//! - The root is not an object ([`Refused::Root`]). `.` and `..` are not possible in a
//!   [`Path`](object_store::path::Path).
//!
//! To read, copy or delete such a location is to find nothing there. Files whose names are no
//! location (not UTF-8, or with control characters), symbolic links and special files are not
//! objects, and are not listed. Neither are directories: an empty one does not exist for the store,
//! and a delete removes the directories that it leaves empty.
//!
//! # Durability
//! When a put, copy, rename or delete returns, it is durable, unless
//! [`with_durable_calls`](CairnStore::with_durable_calls) says otherwise; concurrent calls share
//! flushes of the device. Without it, objects are still whole after a crash, and nothing survives
//! without what it depends on, but the last seconds may be missing.
//!
//! # ETags
//! An ETag consists of the number of the file's inode and the time of its last change. A put always
//! makes a new inode, so the ETag changes with each put, also within one tick of the clock.
//!
//! # What does not apply
//! Versions and tags ([`Error::NotSupported`](object_store::Error::NotSupported)); signed URLs: a
//! volume has no server. The order of a listing is that of the locations.

#![deny(missing_docs)]

mod attributes;
mod blocking;
mod get;
mod list;
mod locations;
mod put;
mod store;
mod upload;

pub use locations::Refused;
pub use store::CairnStore;

/// The name of the store in errors.
const STORE: &str = "CairnFS";
