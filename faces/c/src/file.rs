//! Calls on the contents and the space of files.

use std::ffi::{c_char, c_int, c_void};
use std::io::{Read, Seek, SeekFrom, Write};

use cairnfs::{Fallocate, File, OpenOptions};

use crate::boundary::{self, Place, call};
use crate::error::{Failure, Outcome};
use crate::handles::{self, OpenFile, OpenVolume, Part, cairnfs_file, cairnfs_volume};

/// Bits of the flags of open(2) with a meaning here.
const KNOWN: c_int = libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_TRUNC
    | libc::O_SYNC
    | libc::O_DSYNC
    | libc::O_DIRECTORY
    | libc::O_CLOEXEC
    | libc::O_NOCTTY
    | libc::O_NONBLOCK
    | libc::O_LARGEFILE;

fn options_of(flags: c_int, mode: u32) -> Outcome<OpenOptions> {
    let has = |flag| flags & flag == flag;
    if flags & !KNOWN != 0 {
        return Err(Failure::invalid("flags of open that have no meaning here"));
    }
    let access = flags & libc::O_ACCMODE;
    let writes = matches!(access, libc::O_WRONLY | libc::O_RDWR);
    if !writes && access != libc::O_RDONLY {
        return Err(Failure::invalid("an access mode that does not exist"));
    }
    if !writes && flags & (libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND) != 0 {
        return Err(Failure::invalid(
            "O_CREAT, O_TRUNC and O_APPEND need O_WRONLY or O_RDWR",
        ));
    }
    let mut options = OpenOptions::new();
    options
        .read(access != libc::O_WRONLY)
        .write(writes)
        .append(has(libc::O_APPEND))
        .truncate(has(libc::O_TRUNC))
        .create(has(libc::O_CREAT))
        .create_new(has(libc::O_CREAT | libc::O_EXCL))
        .mode(mode & 0o7777);
    if has(libc::O_SYNC) {
        options.sync_all(true);
    } else if has(libc::O_DSYNC) {
        options.sync_data(true);
    }
    Ok(options)
}

fn keep(volume: std::sync::Arc<OpenVolume>, file: File, place: Place<cairnfs_file>) -> Outcome<()> {
    let open: OpenFile = Part {
        part: file,
        of: volume,
    };
    place.put(handles::insert(open)?);
    Ok(())
}

/// Opens a file with the flags of open(2): O_RDONLY, O_WRONLY or O_RDWR, and O_APPEND, O_CREAT,
/// O_EXCL, O_TRUNC, O_SYNC, O_DSYNC, O_DIRECTORY. O_CREAT, O_TRUNC and O_APPEND need O_WRONLY or
/// O_RDWR. The mode of a new file is used as it is: there is no umask. A directory can be opened to
/// be synced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_open(
    volume: cairnfs_volume,
    path: *const c_char,
    flags: c_int,
    mode: u32,
    file: *mut cairnfs_file,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let place = Place::new(file)?;
        let volume = handles::volume(volume)?;
        let options = options_of(flags, mode)?;
        let path = boundary::path(path)?;
        let file = volume.volume.open_with(path, &options)?;
        if flags & libc::O_DIRECTORY != 0 && !file.metadata()?.is_dir() {
            return Err(Failure::new(libc::ENOTDIR, "not a directory"));
        }
        keep(volume, file, place)
    })
}

/// Creates a file without a name for reading and writing, with the mode 0600. It inherits from a
/// directory as a new entry would; it is removed when it is closed, unless cairnfs_link_file() gave
/// it a name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_tmpfile(
    volume: cairnfs_volume,
    dir: *const c_char,
    file: *mut cairnfs_file,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let place = Place::new(file)?;
        let volume = handles::volume(volume)?;
        let file = volume.volume.tempfile(boundary::path(dir)?)?;
        keep(volume, file, place)
    })
}

/// Closes a file. Nothing is buffered, and nothing becomes durable by it.
#[unsafe(no_mangle)]
pub extern "C" fn cairnfs_close(file: cairnfs_file) -> c_int {
    call(|| handles::remove::<OpenFile>(file).map(drop))
}

/// Reads at the position of the file, and moves it; sets *done to the bytes read, 0 at the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_read(
    file: cairnfs_file,
    buffer: *mut c_void,
    length: usize,
    done: *mut usize,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let place = Place::new(done)?;
        let file = handles::file(file)?;
        place.put((&file.part).read(boundary::buffer(buffer.cast(), length)?)?);
        Ok(())
    })
}

/// Writes at the position of the file, or at its end with O_APPEND, and moves the position; sets
/// *done to the bytes written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_write(
    file: cairnfs_file,
    bytes: *const c_void,
    length: usize,
    done: *mut usize,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let place = Place::new(done)?;
        let file = handles::file(file)?;
        place.put((&file.part).write(boundary::slice(bytes.cast::<u8>(), length)?)?);
        Ok(())
    })
}

/// Reads at a byte offset; sets *done to the bytes read, fewer than asked for only at the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_pread(
    file: cairnfs_file,
    buffer: *mut c_void,
    length: usize,
    offset: u64,
    done: *mut usize,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let place = Place::new(done)?;
        let file = handles::file(file)?;
        let buffer = boundary::buffer(buffer.cast(), length)?;
        place.put(file.part.read_at(buffer, offset)?);
        Ok(())
    })
}

/// Writes at a byte offset, also in a file with O_APPEND; sets *done to the bytes written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_pwrite(
    file: cairnfs_file,
    bytes: *const c_void,
    length: usize,
    offset: u64,
    done: *mut usize,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let place = Place::new(done)?;
        let file = handles::file(file)?;
        let bytes = boundary::slice(bytes.cast::<u8>(), length)?;
        place.put(file.part.write_at(bytes, offset)?);
        Ok(())
    })
}

fn seek(file: &File, offset: i64, whence: c_int) -> Outcome<u64> {
    let refused = || Failure::invalid("a position before the start");
    let forward = || u64::try_from(offset).map_err(|_| refused());
    let nothing = || Failure::new(libc::ENXIO, "no such offset");
    let target = match whence {
        libc::SEEK_SET => SeekFrom::Start(forward()?),
        libc::SEEK_CUR => SeekFrom::Current(offset),
        libc::SEEK_END => SeekFrom::End(offset),
        libc::SEEK_DATA => SeekFrom::Start(file.seek_data(forward()?)?.ok_or_else(nothing)?),
        libc::SEEK_HOLE => SeekFrom::Start(file.seek_hole(forward()?)?.ok_or_else(nothing)?),
        _ => return Err(Failure::invalid("whence is not one of SEEK_SET and others")),
    };
    let mut file = file;
    Ok(file.seek(target)?)
}

/// Moves the position of a file as lseek(2): SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA, SEEK_HOLE;
/// sets *position, unless it is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_lseek(
    file: cairnfs_file,
    offset: i64,
    whence: c_int,
    position: *mut u64,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let reached = seek(&handles::file(file)?.part, offset, whence)?;
        if let Ok(place) = Place::new(position) {
            place.put(reached);
        }
        Ok(())
    })
}

/// Makes a file durable with data, attributes, all its names and the directories on their paths; a
/// directory also with all its entries.
#[unsafe(no_mangle)]
pub extern "C" fn cairnfs_fsync(file: cairnfs_file) -> c_int {
    call(|| Ok(handles::file(file)?.part.sync_all()?))
}

/// Makes the data of a file durable, and the attributes needed to read it.
#[unsafe(no_mangle)]
pub extern "C" fn cairnfs_fdatasync(file: cairnfs_file) -> c_int {
    call(|| Ok(handles::file(file)?.part.sync_data()?))
}

/// Cuts or extends an open file.
#[unsafe(no_mangle)]
pub extern "C" fn cairnfs_ftruncate(file: cairnfs_file, size: u64) -> c_int {
    call(|| Ok(handles::file(file)?.part.set_len(size)?))
}

/// Cuts or extends a file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_truncate(
    volume: cairnfs_volume,
    path: *const c_char,
    size: u64,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let volume = handles::volume(volume)?;
        let path = boundary::path(path)?;
        let file = volume
            .volume
            .open_with(path, OpenOptions::new().write(true))?;
        Ok(file.set_len(size)?)
    })
}

/// Changes the space of a range, with the modes of fallocate(2): 0 or FALLOC_FL_KEEP_SIZE to
/// allocate, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, FALLOC_FL_ZERO_RANGE with or without
/// FALLOC_FL_KEEP_SIZE; EOPNOTSUPP for others.
#[unsafe(no_mangle)]
pub extern "C" fn cairnfs_fallocate(
    file: cairnfs_file,
    mode: c_int,
    offset: u64,
    length: u64,
) -> c_int {
    const HOLE: c_int = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    call(|| {
        let file = handles::file(file)?;
        let what = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => Fallocate::Allocate { keep_size },
            _ if mode == HOLE => Fallocate::PunchHole,
            libc::FALLOC_FL_ZERO_RANGE => Fallocate::ZeroRange { keep_size },
            _ => {
                let message = "a mode of fallocate that is not supported";
                return Err(Failure::new(libc::EOPNOTSUPP, message));
            }
        };
        Ok(file.part.fallocate(offset, length, what)?)
    })
}

/// Copies contents and permissions of a file within the volume, in several steps; holes stay holes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_copy_file(
    volume: cairnfs_volume,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let volume = handles::volume(volume)?;
        let (from, to) = (boundary::path(from)?, boundary::path(to)?);
        volume.volume.copy(from, to)?;
        Ok(())
    })
}

/// Copies up to `length` bytes from a range of a file to one of another file of the volume, or of
/// the same; sets *done to the bytes copied, fewer only at the end of the first file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_copy_range(
    from: cairnfs_file,
    from_offset: u64,
    to: cairnfs_file,
    to_offset: u64,
    length: u64,
    done: *mut u64,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let place = Place::new(done)?;
        let (from, to) = (handles::file(from)?, handles::file(to)?);
        let copied = (from.part).copy_range(from_offset, &to.part, to_offset, length)?;
        place.put(copied);
        Ok(())
    })
}
