//! Backups of volumes in an object store: layers of blocks, kept moments, restore.
//!
//! A backup knows nothing of files: it keeps the blocks of an image by their address. Each moment that is
//! stored adds a *layer* with the blocks that have changed; a moment is a list of layers. Numbered *heads*
//! name moments and layers, and each is stored only if there is none of its number, so that there is one
//! writer. Nothing that is stored is ever changed. `docs/backup-format.md` has the format,
//! `docs/backup.md` the use.
//!
//! [`Shipper`] stores moments of a [`Source`], [`Image`] and [`restore()`] get them back,
//! [`MomentDevice`] reads one from the store, [`check()`] and [`prune()`] take care, [`repair()`] goes on
//! where heads are damaged.

#![deny(missing_docs)]

mod cache;
mod catalogue;
mod check;
mod compact;
mod device;
mod directory;
mod ended;
mod error;
#[doc(hidden)]
pub mod format;
mod frame;
mod image;
mod in_flight;
mod keep;
mod losses;
mod maintenance;
mod pack;
mod parts;
mod prune;
mod repair;
mod restore;
mod runs;
mod seal;
mod search;
mod ship;
mod store;
mod url;
mod volume_source;
mod watch;
mod writer;

pub use cache::Cache;
pub use catalogue::{Catalogue, Newest};
pub use check::{Report, check, check_without};
pub use device::{Fetch, MomentDevice};
pub use ended::Ended;
pub use error::{Error, Result};
pub use image::Image;
pub use in_flight::Waiting;
pub use keep::{DENSE, Keep, Rules};
pub use losses::{DamagedMoment, Losses, Unreadable};
pub use maintenance::{Done, Job};
pub use parts::{Part, parts};
pub use prune::{PruneOptions, Pruned, prune};
pub use repair::{Repaired, repair};
pub use restore::{restore, restore_readable};
pub use runs::Blocks;
pub use seal::{Key, NewKey, Seal, can_encrypt};
pub use search::Damage;
pub use ship::{Checkpoint, EachRun, Mended, Shipped, Shipper, Source};
pub use store::{Asked, Store};
pub use url::{Place, absolute, directory_of, environment, open, shown, usable};
pub use volume_source::VolumeSource;
pub use watch::{Unwatched, Watch};
pub use writer::{Writer, WriterOptions};
