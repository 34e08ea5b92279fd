//! `cairnfs mount --at`: opens a moment of a backup, read-only, straight from its store.
//!
//! What was read is kept in a temporary file of bounded size. Uses the backup's commands and the engine.

use std::path::Path;
use std::sync::Arc;

use cairnfs::fs::FileSystem;
use cairnfs_backup::{Cache, Ended, Fetch, Image, MomentDevice};
use cairnfs_daemon::exit::{Failure, failed, in_line};
use cairnfs_daemon::failure::shown;
use cairnfs_daemon::opening::engine_options;
use cairnfs_fuse::MountOptions;
use cairnfs_fuse::options::parse_size;

use crate::cmd::backup::{AtArgs, KeyArgs, Opened, failure};

/// A moment of a backup.
#[derive(Debug, clap::Args)]
pub(super) struct MomentArgs {
    #[command(flatten)]
    at: AtArgs,
    /// Bytes of the temporary file, in TMPDIR, for what was read of the backup
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1G", requires = "at")]
    store_cache: u64,
    #[command(flatten)]
    key: KeyArgs,
}

impl MomentArgs {
    /// Whether a moment is to be mounted, read-only, from a backup, whose URL stands for the volume.
    pub fn is_given(&self) -> bool {
        self.at.is_given()
    }

    /// The options again, for the daemon.
    pub fn words(&self) -> std::io::Result<Vec<std::ffi::OsString>> {
        let mut words: Vec<std::ffi::OsString> = self.at.words().collect();
        if words.is_empty() {
            return Ok(words);
        }
        words.extend(["--store-cache".into(), self.store_cache.to_string().into()]);
        words.extend(self.key.words()?);
        Ok(words)
    }

    /// Opens it.
    pub fn open(&self, url: &Path, options: &MountOptions) -> Result<Arc<FileSystem>, Failure> {
        let told = |f: cairnfs_daemon::failure::Failure| failed(in_line(&f));
        let name = shown(url);
        let Some(url) = url.to_str() else {
            return Err(failed(format_args!("{name}: not UTF-8")));
        };
        let opened = Opened::open(url, &self.key, &Ended::default()).map_err(told)?;
        if !opened.seal.opens() {
            return Err(told(failure(url, &cairnfs_backup::Error::Sealed)));
        }
        let moment = self.at.moment(&opened, url).map_err(told)?;
        let (store, seal) = (Arc::clone(&opened.store), Arc::clone(&opened.seal));
        let image = Image::open(store, seal, &opened.catalogue, &moment);
        let cache = Cache::new(self.store_cache, None);
        let (image, cache) = image
            .and_then(|image| Ok((image, cache?)))
            .map_err(|e| told(failure(url, &e)))?;
        let device = Arc::new(MomentDevice::new(image, cache, Fetch::Frame));
        let opened = FileSystem::open_device(device, &engine_options(options));
        opened.map_err(|e| told(cairnfs_daemon::failure::Failure::engine(url, &e)))
    }
}
