//! Workloads to record: all short sequences of steps, and long random ones.

mod bounded;
mod random;
mod step;

use cairnfs::fs::{FileSystem, Options};
use cairnfs::{Error, Result};

pub use bounded::{Bounded, base_steps};
pub use random::{random_names, random_step, random_steps, random_values};
pub use step::{Runner, Step, steps};

use crate::image::Image;
use crate::record::{Recording, Run, VOLUME_SIZE, fresh_volume, options};

/// The initial volume of short workloads: a few files and directories, all merged into the index.
///
/// # Errors
/// A step or the close fails.
pub fn base_volume() -> Result<Image> {
    after(fresh_volume(VOLUME_SIZE)?, &base_steps())
}

/// The volume after running these steps and closing it.
///
/// # Errors
/// A step or the close fails.
pub fn after(image: Image, steps: &[Step]) -> Result<Image> {
    let disk = std::sync::Arc::new(crate::disk::SimDisk::new(image, false));
    let fs = FileSystem::open_device(disk.clone(), &options(3))?;
    let mut runner = Runner::new(&fs);
    for step in steps {
        runner.run(step)?;
    }
    fs.close()?;
    Ok(disk.image())
}

/// Records steps on a volume; a refused step is skipped.
///
/// # Errors
/// The volume cannot be opened, or a step finds the disk failed or the volume damaged or stopped.
pub fn record(start: Image, steps: &[Step]) -> Result<Recording> {
    record_with(start, steps, 0)
}

/// As [`record`]. After every `interval` calls everything is made durable without being promised; 0
/// for never.
pub fn record_with(start: Image, steps: &[Step], interval: u64) -> Result<Recording> {
    record_as(start, steps, &options(4), interval)
}

/// As [`record_with`], on a volume opened with these options.
pub fn record_as(
    start: Image,
    steps: &[Step],
    options: &Options,
    interval: u64,
) -> Result<Recording> {
    let run = Run::begin(start, options, interval)?;
    let result = do_steps(run.fs(), steps);
    let recording = run.end();
    result.map(|()| recording)
}

fn do_steps(fs: &FileSystem, steps: &[Step]) -> Result<()> {
    let mut runner = Runner::new(fs);
    for step in steps {
        if let Err(e) = runner.run(step)
            && matches!(e, Error::Io { .. } | Error::Corrupt(_) | Error::Stopped(_))
        {
            return Err(e);
        }
    }
    Ok(())
}
