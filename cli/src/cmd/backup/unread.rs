//! What cannot be read of a moment of which blocks are missing: by the paths of files, and ranges of them.
//!
//! Every branch and snapshot is read as programs read it, so that whatever they could not read is told.
//! Uses trees, the offline check and the engine.

use std::path::Path;
use std::sync::Arc;

use cairnfs::fs::{FileSystem, Options};
use cairnfs_daemon::failure::Failure;
use cairnfs_disk::device::Device;
use cairnfs_disk::format::root::MAIN_NAME;

use crate::cmd::check;
use crate::output::Progress;
use crate::tree::nowhere::Nowhere;
use crate::tree::volume_source::VolumeSource;
use crate::tree::{Copier, Summary};
use crate::volume_by_path::{Access, LastLink, Volume};

/// Findings about the volume itself that are told.
const FINDINGS: usize = 20;

/// What cannot be read.
#[derive(Default)]
pub struct Unread {
    /// Files, and ranges of them.
    pub files: Summary,
    /// Damage of the volume itself, in words.
    pub volume: Vec<String>,
}

/// Reads the volume on a device, which `name` is shown for. Each failure is told as it is met.
///
/// # Errors
/// The volume cannot be opened, so that nothing of it can be read: why. Or the command was interrupted.
pub fn read_all(
    device: Arc<dyn Device>,
    name: &Path,
    quiet: bool,
) -> Result<Result<Unread, cairnfs::Error>, Failure> {
    let progress = Progress::bytes("reading files", 0, quiet);
    let options = Options {
        read_only: true,
        kernel_clock: true,
        ..Options::default()
    };
    let fs = match FileSystem::open_device(Arc::clone(&device), &options) {
        Ok(fs) => fs,
        Err(why) => return Ok(Err(why)),
    };
    let main = Volume::opened(Arc::clone(&fs), name.to_path_buf());
    let mut copier = Copier::reading(&progress);
    for root in fs.roots() {
        let Some(root) = root.name.as_deref() else {
            continue;
        };
        // The main tree is shown without its name, as everywhere.
        let reference = Some(root).filter(|root| *root != MAIN_NAME);
        let opened = main.at(reference, Access::Read);
        let opened = opened.and_then(|tree| Ok((tree.find(b"", LastLink::Follow)?, tree)));
        if let Some((node, tree)) = copier.done(opened)? {
            let mut source = VolumeSource::new(tree, 0, node, Vec::new());
            copier.copy_counted(&mut source, &mut Nowhere, Vec::new())?;
        }
    }
    let files = copier.summary;
    drop(progress);
    Ok(Ok(Unread {
        files,
        volume: findings(device.as_ref(), quiet),
    }))
}

/// What the offline check finds that is about no file.
fn findings(device: &dyn Device, quiet: bool) -> Vec<String> {
    let report = match check::check_device(device, false, quiet) {
        Ok(report) => report,
        Err(why) => return vec![why.to_string()],
    };
    let about = report.findings.iter().filter(|found| found.ino.is_none());
    about.take(FINDINGS).map(ToString::to_string).collect()
}
