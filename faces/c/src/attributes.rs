//! Calls on attributes: stat, permissions, owner, inode flags.

use std::ffi::{c_char, c_int};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use cairnfs::Flags;

use crate::boundary::{self, call};
use crate::error::Failure;
use crate::handles::{self, cairnfs_file, cairnfs_volume};
use crate::is_true;
use crate::structs::{Out, cairnfs_stat};

/// An owner or group that stays as it is.
pub const CAIRNFS_KEEP: u32 = u32::MAX;

fn chosen(id: u32) -> Option<u32> {
    (id != CAIRNFS_KEEP).then_some(id)
}

/// Gets the attributes of a file. If follow is 0, a symbolic link at the end of the path is not
/// followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_stat(
    volume: cairnfs_volume,
    path: *const c_char,
    follow: c_int,
    stat: *mut cairnfs_stat,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let out = Out::new(stat)?;
        let volume = handles::volume(volume)?;
        let path = boundary::path(path)?;
        let metadata = if is_true(follow) {
            volume.volume.metadata(path)?
        } else {
            volume.volume.symlink_metadata(path)?
        };
        out.put(&(&metadata).into());
        Ok(())
    })
}

/// Gets the attributes of an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_fstat(file: cairnfs_file, stat: *mut cairnfs_stat) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let out = Out::new(stat)?;
        out.put(&(&handles::file(file)?.part.metadata()?).into());
        Ok(())
    })
}

/// Sets the permissions of a file, including set-id and sticky bits; follows a symbolic link.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_chmod(
    volume: cairnfs_volume,
    path: *const c_char,
    mode: u32,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let volume = handles::volume(volume)?;
        let permissions = Permissions::from_mode(mode);
        Ok(volume
            .volume
            .set_permissions(boundary::path(path)?, permissions)?)
    })
}

/// Sets the permissions of an open file.
#[unsafe(no_mangle)]
pub extern "C" fn cairnfs_fchmod(file: cairnfs_file, mode: u32) -> c_int {
    let permissions = Permissions::from_mode(mode);
    call(|| Ok(handles::file(file)?.part.set_permissions(permissions)?))
}

/// Sets owner and group of a file; CAIRNFS_KEEP leaves one as it is. If follow is 0, a symbolic link
/// at the end of the path is not followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_chown(
    volume: cairnfs_volume,
    path: *const c_char,
    uid: u32,
    gid: u32,
    follow: c_int,
) -> c_int {
    let (uid, gid) = (chosen(uid), chosen(gid));
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let volume = handles::volume(volume)?;
        let path = boundary::path(path)?;
        let done = if is_true(follow) {
            volume.volume.chown(path, uid, gid)
        } else {
            volume.volume.lchown(path, uid, gid)
        };
        Ok(done?)
    })
}

/// Sets owner and group of an open file; CAIRNFS_KEEP leaves one as it is.
#[unsafe(no_mangle)]
pub extern "C" fn cairnfs_fchown(file: cairnfs_file, uid: u32, gid: u32) -> c_int {
    call(|| Ok(handles::file(file)?.part.chown(chosen(uid), chosen(gid))?))
}

/// Sets the inode flags of a file or directory, with the bits of FS_IOC_SETFLAGS; follows a symbolic
/// link.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_set_flags(
    volume: cairnfs_volume,
    path: *const c_char,
    flags: u32,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let volume = handles::volume(volume)?;
        let unknown = Failure::new(libc::EOPNOTSUPP, "inode flags that are not supported");
        let flags = Flags::from_bits(flags).ok_or(unknown)?;
        Ok(volume.volume.set_flags(boundary::path(path)?, flags)?)
    })
}
