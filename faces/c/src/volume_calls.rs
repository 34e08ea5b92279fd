//! Calls on a volume as a whole: opening, closing, syncing, space.

use std::ffi::{c_char, c_int};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cairnfs::{Sequence, Volume, VolumeOptions};

use crate::boundary::{self, Place, call};
use crate::error::{Failure, Outcome};
use crate::fork;
use crate::handles::{self, OpenFile, OpenVolume, cairnfs_file, cairnfs_volume};
use crate::structs::{self, Out, cairnfs_statfs, cairnfs_volume_options};

/// All changes are refused, and the volume is not written. Several processes may have it open so.
pub const CAIRNFS_READ_ONLY: u32 = 1;
/// A volume is created if there is no file; this needs a size.
pub const CAIRNFS_CREATE: u32 = 2;
/// With CAIRNFS_CREATE: fails if the file exists.
pub const CAIRNFS_EXCLUSIVE: u32 = 4;
/// The log is not replayed: read-only, as the last merge left the volume. For salvage.
pub const CAIRNFS_NO_RECOVERY: u32 = 8;
/// Freed space is not discarded.
pub const CAIRNFS_NO_DISCARD: u32 = 16;
/// New files belong to uid and gid instead of the effective user and group of the process.
pub const CAIRNFS_OWNER: u32 = 32;
/// A new volume in memory, which is freed when it is closed; the path must be null.
pub const CAIRNFS_IN_MEMORY: u32 = 64;

const KNOWN: u32 = CAIRNFS_READ_ONLY
    | CAIRNFS_CREATE
    | CAIRNFS_EXCLUSIVE
    | CAIRNFS_NO_RECOVERY
    | CAIRNFS_NO_DISCARD
    | CAIRNFS_OWNER
    | CAIRNFS_IN_MEMORY;

/// The library's options for those of a caller.
unsafe fn options_of(given: &cairnfs_volume_options) -> Outcome<VolumeOptions> {
    let has = |flag| given.flags & flag != 0;
    if given.flags & !KNOWN != 0 {
        return Err(Failure::invalid("unknown flags of a volume"));
    }
    if has(CAIRNFS_EXCLUSIVE) && !has(CAIRNFS_CREATE) {
        return Err(Failure::invalid("CAIRNFS_EXCLUSIVE needs CAIRNFS_CREATE"));
    }
    let mut options = Volume::options()
        .read_only(has(CAIRNFS_READ_ONLY))
        .create(has(CAIRNFS_CREATE))
        .recovery(!has(CAIRNFS_NO_RECOVERY))
        .discard(!has(CAIRNFS_NO_DISCARD));
    if given.size != 0 {
        options = options.size(given.size);
    }
    if given.cache_budget != 0 {
        let most = usize::try_from(given.cache_budget);
        options = options.cache_budget(most.unwrap_or(usize::MAX));
    }
    options = match given.durability_interval_ms {
        0 => options,
        ..0 => options.durability_interval(None),
        ms => options.durability_interval(Some(Duration::from_millis(ms.unsigned_abs()))),
    };
    if has(CAIRNFS_OWNER) {
        options = options.owner(given.uid, given.gid);
    }
    if !given.label.is_null() {
        // SAFETY: the contract of the crate.
        options = options.label(unsafe { boundary::text(given.label) }?);
    }
    if !given.root.is_null() {
        // SAFETY: the contract of the crate.
        options = options.root(unsafe { boundary::text(given.root) }?);
    }
    Ok(options)
}

fn open(path: Option<&Path>, options: &VolumeOptions, flags: u32) -> Outcome<Volume> {
    let Some(path) = path else {
        return Ok(options.in_memory()?);
    };
    Ok(match flags & CAIRNFS_EXCLUSIVE {
        0 => options.open(path)?,
        _ => options.create_new(path)?,
    })
}

/// Opens the volume in a file or block device of the host, or creates it. The options may be null.
/// EBUSY if another process, or this one, has it open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_open_volume(
    path: *const c_char,
    options: *const cairnfs_volume_options,
    volume: *mut cairnfs_volume,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let place = Place::new(volume)?;
        fork::watch();
        let (chosen, flags) = if options.is_null() {
            (Volume::options(), 0)
        } else {
            let given = structs::read(options)?;
            (options_of(&given)?, given.flags)
        };
        let path = match flags & CAIRNFS_IN_MEMORY {
            0 => Some(boundary::path(path)?),
            _ if path.is_null() => None,
            _ => return Err(Failure::invalid("a volume in memory has no path")),
        };
        let opened = OpenVolume::new(open(path, &chosen, flags)?);
        place.put(handles::insert(opened)?);
        Ok(())
    })
}

/// Writes everything and closes a volume with its branches. Its files, listings and branches must
/// still be closed, but every other call on them is EBADF. The handle is closed also if the call
/// fails: then changes may be lost. The handle of a branch is closed without closing the volume.
#[unsafe(no_mangle)]
pub extern "C" fn cairnfs_close_volume(volume: cairnfs_volume) -> c_int {
    call(|| {
        let closed: Arc<OpenVolume> = handles::remove(volume)?;
        Ok(closed.close()?)
    })
}

/// Makes all changes durable that returned before this call.
#[unsafe(no_mangle)]
pub extern "C" fn cairnfs_sync(volume: cairnfs_volume) -> c_int {
    call(|| Ok(handles::volume(volume)?.volume.sync()?))
}

/// Gets a point in the order of changes: after all changes of any thread that returned before this
/// call. For cairnfs_sync_through() of the same open volume.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_sequence(volume: cairnfs_volume, sequence: *mut u64) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let place = Place::new(sequence)?;
        place.put(handles::volume(volume)?.volume.sequence().as_u64());
        Ok(())
    })
}

/// Makes everything up to a sequence durable. Threads that call it at once share one sync; it
/// returns at once if the sequence is durable.
#[unsafe(no_mangle)]
pub extern "C" fn cairnfs_sync_through(volume: cairnfs_volume, sequence: u64) -> c_int {
    let sequence = Sequence::from_u64(sequence);
    call(|| Ok(handles::volume(volume)?.volume.sync_through(sequence)?))
}

/// Sets *durable to whether everything up to a sequence is known to be durable: 1 or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_is_durable(
    volume: cairnfs_volume,
    sequence: u64,
    durable: *mut c_int,
) -> c_int {
    let sequence = Sequence::from_u64(sequence);
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let place = Place::new(durable)?;
        place.put(handles::volume(volume)?.volume.is_durable(sequence).into());
        Ok(())
    })
}

/// Makes a directory durable with all its entries, and the directories on its path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_sync_dir(volume: cairnfs_volume, path: *const c_char) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let volume = handles::volume(volume)?;
        Ok(volume.volume.sync_dir(boundary::path(path)?)?)
    })
}

/// Makes several files of a volume durable, each as cairnfs_fsync(), with one flush of the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_sync_files(
    volume: cairnfs_volume,
    files: *const cairnfs_file,
    count: usize,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let volume = handles::volume(volume)?;
        let files = boundary::slice(files, count)?.iter();
        let files: Vec<Arc<OpenFile>> = files.map(|f| handles::file(*f)).collect::<Outcome<_>>()?;
        let files: Vec<_> = files.iter().map(|f| &f.part).collect();
        Ok(volume.volume.sync_files(&files)?)
    })
}

/// Gets space and inodes of a volume.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_statfs(
    volume: cairnfs_volume,
    space: *mut cairnfs_statfs,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let out = Out::new(space)?;
        out.put(&handles::volume(volume)?.volume.statfs().into());
        Ok(())
    })
}

/// Discards all free space of the volume in its file or device; sets *discarded, unless it is null,
/// to the bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_trim(volume: cairnfs_volume, discarded: *mut u64) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let bytes = handles::volume(volume)?.volume.trim()?;
        if let Ok(place) = Place::new(discarded) {
            place.put(bytes);
        }
        Ok(())
    })
}
