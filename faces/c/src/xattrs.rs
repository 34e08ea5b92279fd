//! Calls on extended attributes.

use std::ffi::{OsString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;

use cairnfs::{Error, XattrMode};

use crate::boundary::{self, Place, call};
use crate::error::{Failure, Outcome};
use crate::handles::{self, cairnfs_file, cairnfs_volume};

/// cairnfs_setxattr(): fail with EEXIST if the attribute exists.
pub const CAIRNFS_XATTR_CREATE: u32 = 1;
/// cairnfs_setxattr(): fail with ENODATA if it does not exist.
pub const CAIRNFS_XATTR_REPLACE: u32 = 2;

fn mode_of(flags: u32) -> Outcome<XattrMode> {
    match flags {
        0 => Ok(XattrMode::Set),
        CAIRNFS_XATTR_CREATE => Ok(XattrMode::Create),
        CAIRNFS_XATTR_REPLACE => Ok(XattrMode::Replace),
        _ => Err(Failure::invalid("unknown flags of setxattr")),
    }
}

/// The names as listxattr(2) gives them, each ended by a zero byte.
fn list_of(names: &[OsString]) -> Vec<u8> {
    let ended = names.iter().map(|name| [name.as_bytes(), b"\0"].concat());
    ended.collect::<Vec<_>>().concat()
}

/// Gets the value of an extended attribute; follows a symbolic link. Sets *length to its length;
/// with a capacity of 0 only that, ERANGE if the capacity is too small. ENODATA if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_getxattr(
    volume: cairnfs_volume,
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    capacity: usize,
    length: *mut usize,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let place = Place::new(length)?;
        let volume = handles::volume(volume)?;
        let (path, name) = (boundary::path(path)?, boundary::string(name)?);
        let found = volume.volume.get_xattr(path, name)?;
        let found = found.ok_or(Error::NoAttribute)?;
        boundary::give(&found, value.cast(), capacity, place)
    })
}

/// Gets the value of an extended attribute of an open file, as cairnfs_getxattr().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_fgetxattr(
    file: cairnfs_file,
    name: *const c_char,
    value: *mut c_void,
    capacity: usize,
    length: *mut usize,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let place = Place::new(length)?;
        let file = handles::file(file)?;
        let found = file.part.get_xattr(boundary::string(name)?)?;
        let found = found.ok_or(Error::NoAttribute)?;
        boundary::give(&found, value.cast(), capacity, place)
    })
}

/// Sets an extended attribute; follows a symbolic link. Flags: 0, CAIRNFS_XATTR_CREATE or
/// CAIRNFS_XATTR_REPLACE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_setxattr(
    volume: cairnfs_volume,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    length: usize,
    flags: u32,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let volume = handles::volume(volume)?;
        let (path, name) = (boundary::path(path)?, boundary::string(name)?);
        let value = boundary::slice(value.cast::<u8>(), length)?;
        let mode = mode_of(flags)?;
        Ok(volume.volume.set_xattr_with(path, name, value, mode)?)
    })
}

/// Sets an extended attribute of an open file, as cairnfs_setxattr().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_fsetxattr(
    file: cairnfs_file,
    name: *const c_char,
    value: *const c_void,
    length: usize,
    flags: u32,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let file = handles::file(file)?;
        let name = boundary::string(name)?;
        let value = boundary::slice(value.cast::<u8>(), length)?;
        let mode = mode_of(flags)?;
        Ok(file.part.set_xattr_with(name, value, mode)?)
    })
}

/// Gets the names of all extended attributes, each ended by a zero byte; follows a symbolic link.
/// Length and capacity as with cairnfs_getxattr().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_listxattr(
    volume: cairnfs_volume,
    path: *const c_char,
    names: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let place = Place::new(length)?;
        let volume = handles::volume(volume)?;
        let found = volume.volume.list_xattrs(boundary::path(path)?)?;
        boundary::give(&list_of(&found), names.cast(), capacity, place)
    })
}

/// Gets the names of all extended attributes of an open file, as cairnfs_listxattr().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_flistxattr(
    file: cairnfs_file,
    names: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let place = Place::new(length)?;
        let found = handles::file(file)?.part.list_xattrs()?;
        boundary::give(&list_of(&found), names.cast(), capacity, place)
    })
}

/// Removes an extended attribute; follows a symbolic link.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_removexattr(
    volume: cairnfs_volume,
    path: *const c_char,
    name: *const c_char,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let volume = handles::volume(volume)?;
        let (path, name) = (boundary::path(path)?, boundary::string(name)?);
        Ok(volume.volume.remove_xattr(path, name)?)
    })
}

/// Removes an extended attribute of an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_fremovexattr(file: cairnfs_file, name: *const c_char) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let file = handles::file(file)?;
        Ok(file.part.remove_xattr(boundary::string(name)?)?)
    })
}
