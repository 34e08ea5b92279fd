//! Calls on branches and snapshots as a whole: publishing, restoring, dropping, sending, receiving.
//!
//! Streams go through descriptors, and progress comes in steps of the caller's length, because
//! nothing here calls back.

use std::ffi::{c_char, c_int};
use std::io::{BufReader, BufWriter};
use std::time::{Duration, Instant};

use cairnfs::{Error, PublishOptions, Published};
use cairnfs_disk::format::root::MAIN_NAME;

use crate::boundary::{self, Place, call};
use crate::error::{Failure, Outcome};
use crate::handles::{self, cairnfs_report, cairnfs_volume};
use crate::report;
use crate::structs::{
    self, Out, cairnfs_drop_progress, cairnfs_publish_options, cairnfs_published, name_of,
};

/// Bytes of a buffer for the name of a branch or snapshot, with its zero byte.
pub const CAIRNFS_NAME_SIZE: usize = 256;

/// cairnfs_publish(): changes nothing, only looks for conflicts.
pub const CAIRNFS_DRY_RUN: u32 = 1;

/// Bytes of a stream that are written or read together.
const STEP: usize = 64 << 10;

/// A place for a name of `CAIRNFS_NAME_SIZE` bytes, which the caller may not want.
unsafe fn place_of_name(pointer: *mut c_char) -> Option<Place<[c_char; CAIRNFS_NAME_SIZE]>> {
    // SAFETY: the contract of the callers.
    unsafe { Place::new(pointer.cast()) }.ok()
}

/// Text, unless the pointer is null.
unsafe fn optional<'a>(pointer: *const c_char) -> Outcome<Option<&'a str>> {
    if pointer.is_null() {
        Ok(None)
    } else {
        // SAFETY: the contract of the callers.
        unsafe { boundary::text(pointer) }.map(Some)
    }
}

unsafe fn options_of(pointer: *const cairnfs_publish_options) -> Outcome<PublishOptions> {
    if pointer.is_null() {
        return Ok(PublishOptions::default());
    }
    // SAFETY: the contract of the callers.
    unsafe {
        let given = structs::read(pointer)?;
        if given.flags & !CAIRNFS_DRY_RUN != 0 {
            return Err(Failure::invalid("unknown flags of publish"));
        }
        Ok(PublishOptions {
            onto: optional(given.onto)?.map(str::to_owned),
            ours: boundary::paths(given.ours, given.ours_count)?,
            theirs: boundary::paths(given.theirs, given.theirs_count)?,
            dry_run: given.flags & CAIRNFS_DRY_RUN != 0,
        })
    }
}

/// Makes the files of a branch those of main, or of the branch in the options, in one atomic step. The
/// branch is gone then, and the state before is kept as a snapshot, whose name is in *published. If
/// both sides changed, the changes are merged by files. ECANCELED if that meets conflicts: nothing was
/// changed, *published has their number, and unless conflicts is null, *conflicts is a report of them
/// for cairnfs_next_conflict(), else 0. With CAIRNFS_DRY_RUN conflicts are no failure. The options may
/// be null. Handles that were opened on the base before keep its files of then, and refuse changes
/// with ESTALE: open the branch again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_publish(
    volume: cairnfs_volume,
    branch: *const c_char,
    options: *const cairnfs_publish_options,
    published: *mut cairnfs_published,
    conflicts: *mut cairnfs_report,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let out = Out::new(published)?;
        let place = Place::new(conflicts).ok();
        let volume = handles::volume(volume)?;
        let options = options_of(options)?;
        let (done, failure) = match volume.volume.publish(boundary::text(branch)?, &options) {
            Err(error @ Error::Conflicts(_)) => {
                let failure = Err(error.clone().into());
                let Error::Conflicts(conflicts) = error else {
                    return failure;
                };
                let done = Published {
                    conflicts,
                    ..Published::default()
                };
                (done, failure)
            }
            done => (done?, Ok(())),
        };
        let (kept, kept_len) = name_of(done.kept.as_deref().unwrap_or_default().as_bytes());
        out.put(&cairnfs_published {
            struct_size: 0,
            merged: done.merged.into(),
            conflicts: done.conflicts.len() as u64,
            kept_len,
            reserved: 0,
            kept,
        });
        if let Some(place) = place {
            place.put(if done.conflicts.is_empty() {
                0
            } else {
                report::of_conflicts(done.conflicts, &volume)?
            });
        }
        failure
    })
}

/// Makes the files of a branch, or of main at a null pointer, those of a reference (cairnfs_find_root())
/// in one atomic step; with paths, only the files at and below these. The state before is kept as a
/// snapshot; unless kept is null, it has CAIRNFS_NAME_SIZE bytes, and gets its name. Handles that were
/// opened before are as after cairnfs_publish().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_restore(
    volume: cairnfs_volume,
    reference: *const c_char,
    branch: *const c_char,
    paths: *const *const c_char,
    count: usize,
    kept: *mut c_char,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let place = place_of_name(kept);
        let volume = handles::volume(volume)?;
        let (reference, branch) = (boundary::text(reference)?, optional(branch)?);
        let paths = boundary::paths(paths, count)?;
        let kept = volume
            .volume
            .restore(reference, branch.unwrap_or(MAIN_NAME), &paths)?;
        if let Some(place) = place {
            place.put(name_of(kept.as_bytes()).0);
        }
        Ok(())
    })
}

/// Drops the snapshot or branch of a reference. Its name is gone when this returns, and its space is
/// freed in the background, or by cairnfs_free_drops(). EBUSY if it is open: close its handles, files
/// and listings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_drop_root(
    volume: cairnfs_volume,
    reference: *const c_char,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let volume = handles::volume(volume)?;
        Ok(volume.volume.drop_root(boundary::text(reference)?)?)
    })
}

/// Frees what everything that was dropped has left, for about timeout_ms milliseconds at most, or to
/// the end if that is negative. Unless progress is null, it gets how far this is. What is not done
/// then, is done in the background.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_free_drops(
    volume: cairnfs_volume,
    timeout_ms: i64,
    progress: *mut cairnfs_drop_progress,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let out = if progress.is_null() {
            None
        } else {
            Some(Out::new(progress)?)
        };
        let volume = handles::volume(volume)?;
        let time = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        let end = time.and_then(|time| Instant::now().checked_add(time));
        let mut told = cairnfs_drop_progress::default();
        volume.volume.free_drops(|now| {
            let go_on = end.is_none_or(|end| Instant::now() < end);
            told.left = u32::try_from(now.left).unwrap_or(u32::MAX);
            told.permille = (now.part * 1000.0) as u32;
            told.finished = go_on.into();
            go_on
        })?;
        if told.finished != 0 {
            let dropped = |root: &cairnfs::RootInfo| root.being_dropped;
            let left = volume.volume.roots().iter().filter(|r| dropped(r)).count();
            told.left = u32::try_from(left).unwrap_or(u32::MAX);
        }
        if let Some(out) = out {
            out.put(&told);
        }
        Ok(())
    })
}

/// Writes a snapshot to a descriptor, as a stream that cairnfs_receive() of another volume, or
/// `cairnfs receive`, reads: as a whole, or unless base is null, as the changes from that snapshot,
/// which the receiver must have. A descriptor that cannot be written fails as with write(2), also with
/// SIGPIPE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_send(
    volume: cairnfs_volume,
    snapshot: *const c_char,
    base: *const c_char,
    fd: c_int,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let volume = handles::volume(volume)?;
        let (snapshot, base) = (boundary::text(snapshot)?, optional(base)?);
        let out = BufWriter::with_capacity(STEP, boundary::descriptor(fd)?);
        volume.volume.send(out, snapshot, base)?;
        Ok(())
    })
}

/// Reads a stream from a descriptor, and makes a durable snapshot of it: under a name in UTF-8, or at a
/// null pointer under one made of the time. Unless received is null, it has CAIRNFS_NAME_SIZE bytes,
/// and gets the name. If this fails, nothing is left of the stream. Nothing in it is trusted. The
/// descriptor must end with the stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_receive(
    volume: cairnfs_volume,
    fd: c_int,
    name: *const c_char,
    received: *mut c_char,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let place = place_of_name(received);
        let volume = handles::volume(volume)?;
        let name = optional(name)?;
        let stream = BufReader::with_capacity(STEP, boundary::descriptor(fd)?);
        let name = volume.volume.receive(stream, name)?;
        if let Some(place) = place {
            place.put(name_of(name.as_bytes()).0);
        }
        Ok(())
    })
}
