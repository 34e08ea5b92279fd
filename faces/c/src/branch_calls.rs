//! Calls on the roots of a volume, branches and snapshots: making, opening, naming, listing them.

use std::ffi::{c_char, c_int};

use crate::boundary::{self, Place, call};
use crate::handles::{self, OpenVolume, cairnfs_volume};
use crate::structs::{Out, cairnfs_root};

/// Makes a durable snapshot of all files under a name in UTF-8. It is read through
/// cairnfs_open_branch(), or by opening the volume with this name as root.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_snapshot(volume: cairnfs_volume, name: *const c_char) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let volume = handles::volume(volume)?;
        Ok(volume.volume.snapshot(boundary::text(name)?)?)
    })
}

/// Makes a durable branch under a name in UTF-8, and opens it: a tree of files that begins as this
/// one is now, and is changed independently of it. The branch is a volume for all other calls;
/// cairnfs_sync(), cairnfs_sync_through() and cairnfs_trim() are those of the whole volume.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_branch(
    volume: cairnfs_volume,
    name: *const c_char,
    branch: *mut cairnfs_volume,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let place = Place::new(branch)?;
        let volume = handles::volume(volume)?;
        let made = volume.volume.branch(boundary::text(name)?)?;
        place.put(handles::insert(OpenVolume::branch(made, &volume))?);
        Ok(())
    })
}

/// Opens a branch or snapshot of an open volume by its name. The files of a snapshot cannot be
/// changed (EROFS). All handles of one branch lead to the same tree.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_open_branch(
    volume: cairnfs_volume,
    name: *const c_char,
    branch: *mut cairnfs_volume,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let place = Place::new(branch)?;
        let volume = handles::volume(volume)?;
        let opened = volume.volume.open_branch(boundary::text(name)?)?;
        place.put(handles::insert(OpenVolume::branch(opened, &volume))?);
        Ok(())
    })
}

/// Gives a branch or snapshot another name. It stays open under it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_rename_root(
    volume: cairnfs_volume,
    old: *const c_char,
    new: *const c_char,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let volume = handles::volume(volume)?;
        let (old, new) = (boundary::text(old)?, boundary::text(new)?);
        Ok(volume.volume.rename_root(old, new)?)
    })
}

/// Gets all branches and snapshots of the volume, in order of their ids. Sets *count to their number;
/// with a capacity of 0 only that, ERANGE if the capacity is too small. struct_size of the first
/// element holds for all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_roots(
    volume: cairnfs_volume,
    roots: *mut cairnfs_root,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let place = Place::new(count)?;
        let found = handles::volume(volume)?.volume.roots();
        place.put(found.len());
        if capacity == 0 {
            return Ok(());
        }
        if capacity < found.len() {
            return Err(boundary::too_small());
        }
        let out = Out::new(roots)?;
        for (index, root) in found.iter().enumerate() {
            out.put_at(index, &root.into());
        }
        Ok(())
    })
}

/// Gets the branch or snapshot of a reference: its name, BRANCH@SNAPSHOT, or BRANCH@TIME, the newest
/// snapshot in the history of the branch that is as old (10:30, 2026-01-31T10:30, -5m).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_find_root(
    volume: cairnfs_volume,
    reference: *const c_char,
    root: *mut cairnfs_root,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let out = Out::new(root)?;
        let volume = handles::volume(volume)?;
        let found = volume.volume.find_root(boundary::text(reference)?)?;
        out.put(&(&found).into());
        Ok(())
    })
}

/// Gets the bytes that belong to a branch or snapshot alone, given by its id: what dropping it frees;
/// 0 if others were forked from it. Changes that are not merged yet are
/// merged first. It takes as long as that, and as it differs from its neighbours.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_space_of(
    volume: cairnfs_volume,
    id: u32,
    bytes: *mut u64,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let place = Place::new(bytes)?;
        place.put(handles::volume(volume)?.volume.space_of(id)?);
        Ok(())
    })
}
