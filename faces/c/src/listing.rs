//! Listings of directories, in batches of the caller's size, with attributes on request.

use std::ffi::{c_char, c_int};
use std::os::unix::ffi::OsStrExt;

use cairnfs::DirEntry;
use parking_lot::Mutex;

use crate::boundary::{self, Place, call};
use crate::entries::{Listing, Progress};
use crate::error::{Failure, Outcome};
use crate::handles::{self, OpenListing, Part, cairnfs_dir, cairnfs_volume};
use crate::structs::{Out, cairnfs_dirent, cairnfs_stat, name_of};

fn dirent_of(entry: &DirEntry) -> Outcome<cairnfs_dirent> {
    let (name, name_len) = name_of(entry.file_name().as_bytes());
    Ok(cairnfs_dirent {
        struct_size: 0,
        mode: entry.file_type()?.mode_bits(),
        ino: entry.ino(),
        name_len,
        reserved: 0,
        name,
    })
}

/// Opens a listing of a directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_opendir(
    volume: cairnfs_volume,
    path: *const c_char,
    dir: *mut cairnfs_dir,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let place = Place::new(dir)?;
        let volume = handles::volume(volume)?;
        let progress = Progress {
            entries: volume.volume.read_dir(boundary::path(path)?)?,
            failure: None,
        };
        let open: OpenListing = Part {
            part: Listing(Mutex::new(progress)),
            of: volume,
        };
        place.put(handles::insert(open)?);
        Ok(())
    })
}

/// Gets the next entries of a directory, `capacity` at most, without "." and "..", in the order of
/// their creation. Sets *count to their number: 0 at the end. If stats is not null, it has
/// `capacity` elements, and gets the attributes of each entry; symbolic links are not followed.
/// struct_size of the first element of an array holds for all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_readdir(
    dir: cairnfs_dir,
    entries: *mut cairnfs_dirent,
    stats: *mut cairnfs_stat,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let place = Place::new(count)?;
        let listing = handles::get::<OpenListing>(dir)?;
        if capacity == 0 {
            return Err(Failure::invalid("no place for an entry"));
        }
        let out = Out::new(entries)?;
        let stats = if stats.is_null() {
            None
        } else {
            Some(Out::new(stats)?)
        };
        let mut progress = listing.part.0.lock();
        if let Some(failure) = progress.failure.take() {
            return Err(failure);
        }
        let mut index = 0;
        while index < capacity {
            let next = progress.next(stats.is_some());
            let next = next.and_then(|n| n.map(|(e, m)| Ok((dirent_of(&e)?, m))).transpose());
            match next {
                Ok(Some((entry, metadata))) => {
                    out.put_at(index, &entry);
                    if let (Some(stats), Some(metadata)) = (&stats, metadata) {
                        stats.put_at(index, &(&metadata).into());
                    }
                    index += 1;
                }
                Ok(None) => break,
                Err(failure) if index == 0 => return Err(failure),
                Err(failure) => {
                    progress.failure = Some(failure);
                    break;
                }
            }
        }
        place.put(index);
        Ok(())
    })
}

/// Closes a listing.
#[unsafe(no_mangle)]
pub extern "C" fn cairnfs_closedir(dir: cairnfs_dir) -> c_int {
    call(|| handles::remove::<OpenListing>(dir).map(drop))
}
