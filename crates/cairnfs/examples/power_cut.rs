//! A device of one's own: a disk with a volatile cache, whose power fails at each write in turn.
//!
//! After each power cut the volume is recovered from what was flushed. The settings, which are
//! replaced by a rename, must be whole, and no older than those of the last sync that returned.
//! For a program of yours, `cairnfs crashtest` and the crate `cairnfs-sim` do this with many more
//! states of the disk.
//!
//! Prints:
//!
//! ```text
//! the power failed at each write until the program ended
//! settings torn: 0
//! settings older than the last sync: 0
//! ```

use std::error::Error;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cairnfs::{Result, Volume, VolumeOptions};
use cairnfs_disk::device::{Device, MemoryDevice};

const SIZE: u64 = 16 << 20;

/// A disk that loses its cache with the power.
struct Disk {
    /// What reads see.
    now: MemoryDevice,
    /// What a power cut leaves.
    durable: Arc<MemoryDevice>,
    cache: Mutex<Cache>,
}

struct Cache {
    unflushed: Vec<(u64, Vec<u8>)>,
    /// Writes until the power fails.
    power: usize,
}

impl Disk {
    fn new() -> Self {
        Self {
            now: MemoryDevice::new(SIZE),
            durable: Arc::new(MemoryDevice::new(SIZE)),
            cache: Mutex::new(Cache {
                unflushed: Vec::new(),
                power: usize::MAX,
            }),
        }
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets after how many writes the power fails.
    fn fail_after(&self, writes: usize) {
        self.cache().power = writes;
    }
}

impl Device for Disk {
    fn size(&self) -> u64 {
        SIZE
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.now.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        let mut cache = self.cache();
        cache.power = cache.power.checked_sub(1).ok_or_else(no_power)?;
        cache.unflushed.push((offset, buf.to_vec()));
        self.now.write(offset, buf)
    }

    fn flush(&self) -> Result<()> {
        let mut cache = self.cache();
        if cache.power == 0 {
            return Err(no_power());
        }
        for (offset, bytes) in cache.unflushed.drain(..) {
            self.durable.write(offset, &bytes)?;
        }
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<()> {
        Ok(())
    }
}

/// An error of `std::io` is one of the library by `?` and `into`.
fn no_power() -> cairnfs::Error {
    io::Error::other("the power is off").into()
}

fn options() -> VolumeOptions {
    // Without a sync of everything by the interval, each run makes the same writes.
    Volume::options().size(SIZE).durability_interval(None)
}

fn settings(n: usize) -> String {
    format!("volume = {n}\n").repeat(1000)
}

/// The program: it replaces its settings five times. `synced` tells which are durable.
fn program(volume: &Volume, synced: &mut usize) -> Result<()> {
    for n in 1..=5 {
        let text = settings(n);
        let (half, rest) = text.split_at(text.len() / 2);
        let mut file = volume.create_file("settings.new")?;
        file.write_all(half.as_bytes())?;
        // Others sync at any time, as the interval does: written in place, this would be torn.
        volume.sync()?;
        file.write_all(rest.as_bytes())?;
        volume.rename("settings.new", "settings")?;
        volume.sync()?;
        *synced = n;
    }
    Ok(())
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let (mut torn, mut older) = (0, 0);
    for moment in 0.. {
        let disk = Arc::new(Disk::new());
        let volume = options().create_device(disk.clone())?;
        volume.write("settings", settings(0))?;
        volume.sync()?;

        disk.fail_after(moment);
        let mut synced = 0;
        let ended = program(&volume, &mut synced).is_ok();
        drop(volume);

        let recovered = options().open_device(disk.durable.clone())?;
        let found = recovered.read_to_string("settings")?;
        match (0..=5).find(|n| settings(*n) == found) {
            None => torn += 1,
            Some(n) if n < synced => older += 1,
            Some(_) => {}
        }
        if ended {
            assert!(moment > 10, "the program made {moment} writes");
            break;
        }
    }
    println!("the power failed at each write until the program ended");
    println!("settings torn: {torn}");
    println!("settings older than the last sync: {older}");
    Ok(())
}
