//! Calls on names: directories, links, renaming, removing.

use std::ffi::{c_char, c_int};
use std::os::unix::ffi::OsStrExt;

use cairnfs::RenameMode;

use crate::boundary::{self, Place, call};
use crate::error::Failure;
use crate::handles::{self, cairnfs_file, cairnfs_volume};

/// cairnfs_rename(): fail with EEXIST if the new name exists.
pub const CAIRNFS_RENAME_NOREPLACE: u32 = 1;
/// cairnfs_rename(): exchange the two names.
pub const CAIRNFS_RENAME_EXCHANGE: u32 = 2;

/// Creates an empty directory. The mode is used as it is: there is no umask.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_mkdir(
    volume: cairnfs_volume,
    path: *const c_char,
    mode: u32,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let volume = handles::volume(volume)?;
        Ok(volume.volume.mkdir(boundary::path(path)?, mode)?)
    })
}

/// Creates a directory and all that are missing on its path, with the mode 0755. Not an error if it
/// exists.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_mkdir_all(volume: cairnfs_volume, path: *const c_char) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let volume = handles::volume(volume)?;
        Ok(volume.volume.create_dir_all(boundary::path(path)?)?)
    })
}

/// Creates an empty file, FIFO, socket or device node, as mknod(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_mknod(
    volume: cairnfs_volume,
    path: *const c_char,
    mode: u32,
    rdev: u64,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let volume = handles::volume(volume)?;
        Ok(volume.volume.mknod(boundary::path(path)?, mode, rdev)?)
    })
}

/// Removes an empty directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_rmdir(volume: cairnfs_volume, path: *const c_char) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let volume = handles::volume(volume)?;
        Ok(volume.volume.remove_dir(boundary::path(path)?)?)
    })
}

/// Removes a name of anything but a directory. An open file stays usable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_unlink(volume: cairnfs_volume, path: *const c_char) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let volume = handles::volume(volume)?;
        Ok(volume.volume.remove_file(boundary::path(path)?)?)
    })
}

/// Removes a directory with everything in it, in many steps; symbolic links are not followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_remove_all(volume: cairnfs_volume, path: *const c_char) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let volume = handles::volume(volume)?;
        Ok(volume.volume.remove_dir_all(boundary::path(path)?)?)
    })
}

/// Renames a file or directory, and replaces what has the new name, as rename(2). Flags: 0,
/// CAIRNFS_RENAME_NOREPLACE or CAIRNFS_RENAME_EXCHANGE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_rename(
    volume: cairnfs_volume,
    from: *const c_char,
    to: *const c_char,
    flags: u32,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let volume = handles::volume(volume)?;
        let mode = match flags {
            0 => RenameMode::Replace,
            CAIRNFS_RENAME_NOREPLACE => RenameMode::NoReplace,
            CAIRNFS_RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return Err(Failure::invalid("unknown flags of rename")),
        };
        let (from, to) = (boundary::path(from)?, boundary::path(to)?);
        Ok(volume.volume.rename_with(from, to, mode)?)
    })
}

/// Adds a name to a file. A symbolic link at the end of the old path is not followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_link(
    volume: cairnfs_volume,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let volume = handles::volume(volume)?;
        let (from, to) = (boundary::path(from)?, boundary::path(to)?);
        Ok(volume.volume.hard_link(from, to)?)
    })
}

/// Adds a name to an open file of the volume, also to one of cairnfs_tmpfile(). After a crash the
/// name leads to all bytes written before, or does not exist.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_link_file(
    volume: cairnfs_volume,
    file: cairnfs_file,
    path: *const c_char,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let volume = handles::volume(volume)?;
        let file = handles::file(file)?;
        let path = boundary::path(path)?;
        Ok(volume.volume.link_file(&file.part, path)?)
    })
}

/// Creates a symbolic link.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_symlink(
    volume: cairnfs_volume,
    target: *const c_char,
    path: *const c_char,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let volume = handles::volume(volume)?;
        let (target, path) = (boundary::path(target)?, boundary::path(path)?);
        Ok(volume.volume.symlink(target, path)?)
    })
}

/// Gets the target of a symbolic link, without a zero byte. Sets *length to its length; with a
/// capacity of 0 only that, ERANGE if the capacity is too small.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_readlink(
    volume: cairnfs_volume,
    path: *const c_char,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let place = Place::new(length)?;
        let volume = handles::volume(volume)?;
        let target = volume.volume.read_link(boundary::path(path)?)?;
        let bytes = target.as_os_str().as_bytes();
        boundary::give(bytes, buffer.cast(), capacity, place)
    })
}

/// Gets the absolute path of an existing file, without symbolic links, "." and "..", and without a
/// zero byte. Length and capacity as with cairnfs_readlink().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_realpath(
    volume: cairnfs_volume,
    path: *const c_char,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let place = Place::new(length)?;
        let volume = handles::volume(volume)?;
        let real = volume.volume.canonicalize(boundary::path(path)?)?;
        let bytes = real.as_os_str().as_bytes();
        boundary::give(bytes, buffer.cast(), capacity, place)
    })
}
