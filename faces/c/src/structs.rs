//! The structs of the header, and how those of another version of it are read and written.
//!
//! A struct that may grow begins with `struct_size`, which the caller sets to `sizeof` of what it
//! was compiled with. As with openat2(2): of a struct to read, missing fields are 0, and fields that
//! the library does not know must be 0 (`E2BIG`); of a struct to write, known fields are written,
//! and the rest is zeroed. Fields are only added at the end.

use std::ffi::c_char;
use std::mem::MaybeUninit;

use cairnfs::{Metadata, RootInfo, StatFs, Time};

use crate::boundary::Place;
use crate::error::{Failure, Outcome};

/// A point in time.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct cairnfs_timespec {
    /// Seconds since the epoch, negative before it.
    pub sec: i64,
    /// Nanoseconds after that second; as a time to set also UTIME_NOW and UTIME_OMIT of sys/stat.h.
    pub nsec: i64,
}

/// How to open or create a volume. Zeroed except for struct_size it means: an existing volume, for
/// reading and writing, with the defaults of the library.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct cairnfs_volume_options {
    /// sizeof (struct cairnfs_volume_options).
    pub struct_size: u32,
    /// Flags: CAIRNFS_READ_ONLY and others.
    pub flags: u32,
    /// Bytes of a new volume.
    pub size: u64,
    /// Bytes of memory for caches and unwritten changes; 0 for the default.
    pub cache_budget: u64,
    /// Milliseconds from one sync of the whole volume to the next; 0 for the default of 5 seconds,
    /// negative for none.
    pub durability_interval_ms: i64,
    /// With CAIRNFS_OWNER, the owner of new files.
    pub uid: u32,
    /// With CAIRNFS_OWNER, the group of new files.
    pub gid: u32,
    /// The label of a new volume in UTF-8, 64 bytes at most; or null.
    pub label: *const c_char,
    /// The name of the snapshot to open, which needs CAIRNFS_READ_ONLY; or null. Others, and branches,
    /// are opened by cairnfs_open_branch().
    pub root: *const c_char,
}

/// Attributes of a file, as in stat(2).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct cairnfs_stat {
    /// sizeof (struct cairnfs_stat).
    pub struct_size: u32,
    /// Type bits and permissions.
    pub mode: u32,
    /// Inode number.
    pub ino: u64,
    /// Number of links.
    pub nlink: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a special file, as made by makedev(3).
    pub rdev: u64,
    /// Size in bytes; of a directory, the number of its entries.
    pub size: u64,
    /// Space used, in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: cairnfs_timespec,
    /// Last change of the contents.
    pub mtime: cairnfs_timespec,
    /// Last change of contents, attributes or names.
    pub ctime: cairnfs_timespec,
    /// Creation.
    pub btime: cairnfs_timespec,
    /// Inode flags, as FS_IOC_GETFLAGS returns them.
    pub flags: u32,
    /// 0.
    pub reserved: u32,
}

/// Space and inodes of a volume.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct cairnfs_statfs {
    /// sizeof (struct cairnfs_statfs).
    pub struct_size: u32,
    /// Bytes per block.
    pub block_size: u32,
    /// Blocks usable by files and index.
    pub blocks: u64,
    /// Free blocks.
    pub free_blocks: u64,
    /// Blocks that can still be allocated to files.
    pub available_blocks: u64,
    /// Inodes that fit into an empty volume.
    pub files: u64,
    /// Empty files that fit into the available space.
    pub free_files: u64,
    /// Longest name in bytes.
    pub name_max: u32,
    /// 0.
    pub reserved: u32,
}

/// An entry of a directory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct cairnfs_dirent {
    /// sizeof (struct cairnfs_dirent).
    pub struct_size: u32,
    /// The type bits of its mode.
    pub mode: u32,
    /// Inode number.
    pub ino: u64,
    /// Length of the name, without its zero byte.
    pub name_len: u32,
    /// 0.
    pub reserved: u32,
    /// The name, ended by a zero byte.
    pub name: [c_char; 256],
}

/// A branch or snapshot of a volume.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct cairnfs_root {
    /// sizeof (struct cairnfs_root).
    pub struct_size: u32,
    /// Its id, which no other root ever gets.
    pub id: u32,
    /// 1 if its files can be changed, 0 for a snapshot.
    pub writable: u32,
    /// Length of the name, without its zero byte; 0 if it has none.
    pub name_len: u32,
    /// Creation.
    pub created: cairnfs_timespec,
    /// The name in UTF-8, ended by a zero byte.
    pub name: [c_char; 256],
    /// The id of the root that it was forked from, or that was frozen when it was forked; 0 if there
    /// is none.
    pub parent: u32,
    /// 1 if it has no name and goes as soon as nobody reads it, else 0.
    pub being_dropped: u32,
}

/// How to publish a branch. Zeroed except for struct_size it means: onto main, and conflicts change
/// nothing.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct cairnfs_publish_options {
    /// sizeof (struct cairnfs_publish_options).
    pub struct_size: u32,
    /// Flags: 0 or CAIRNFS_DRY_RUN.
    pub flags: u32,
    /// The base: the name of the branch that gets the changes; or null for main.
    pub onto: *const c_char,
    /// Paths at and below which what is in conflict is taken from the base. Of several paths above a
    /// conflict the deepest decides, and this list before the other.
    pub ours: *const *const c_char,
    /// Their number.
    pub ours_count: usize,
    /// Paths at and below which it is taken from the branch, likewise.
    pub theirs: *const *const c_char,
    /// Their number.
    pub theirs_count: usize,
}

/// What a publish did.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct cairnfs_published {
    /// sizeof (struct cairnfs_published).
    pub struct_size: u32,
    /// 1 if the base had changed since the branch began, so that changes were merged, or would be by a
    /// dry run; else 0, also if there are conflicts.
    pub merged: u32,
    /// Number of conflicts; if there are any, nothing was changed.
    pub conflicts: u64,
    /// Length of the name in kept, without its zero byte; 0 if nothing was changed.
    pub kept_len: u32,
    /// 0.
    pub reserved: u32,
    /// The snapshot of the base's state before, ended by a zero byte.
    pub kept: [c_char; 256],
}

/// How far the work is that dropped snapshots and branches have left.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct cairnfs_drop_progress {
    /// sizeof (struct cairnfs_drop_progress).
    pub struct_size: u32,
    /// How many of them are left.
    pub left: u32,
    /// The part of the first one that is done, in thousandths, as far as that is known.
    pub permille: u32,
    /// 1 if nothing is left, or only what somebody still reads; 0 if the time was up before.
    pub finished: u32,
}

/// A file that differs between two states.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct cairnfs_change {
    /// sizeof (struct cairnfs_change).
    pub struct_size: u32,
    /// CAIRNFS_ADDED, CAIRNFS_REMOVED, CAIRNFS_RENAMED or CAIRNFS_CHANGED; 0 at the end of a report.
    pub status: u32,
    /// Inode number; of a removed file in the old state, else in the new one.
    pub ino: u64,
    /// Inode number in the old state, if another file has replaced the one of this path; else 0.
    pub old_ino: u64,
    /// The type bits of its mode.
    pub mode: u32,
    /// What changed: sums of CAIRNFS_CHANGED_CONTENTS and others; 0 of an added or removed file.
    pub changed: u32,
    /// Bytes of the file, or of a symbolic link's target; of a removed file in the old state.
    pub size: u64,
    /// Bytes that were written of what changed: no holes, nothing that was cut off.
    pub written: u64,
    /// Length of its path in the new state, or in the old one if it is not in the new one.
    pub path_len: u64,
    /// Length of a path that only the old state has; 0 if there is none.
    pub old_path_len: u64,
    /// Paths that only the old state has.
    pub old_names: u32,
    /// Paths that only the new state has.
    pub new_names: u32,
}

/// Changes of a branch and its base that exclude each other.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct cairnfs_conflict {
    /// sizeof (struct cairnfs_conflict).
    pub struct_size: u32,
    /// CAIRNFS_CONFLICT_CONTENTS or another one; 0 at the end of a report.
    pub kind: u32,
    /// Length of its path: that in the base if there is one.
    pub path_len: u64,
    /// Length of the text that says what is in conflict.
    pub why_len: u64,
}

/// A struct that begins with its size.
///
/// # Safety
/// It is `repr(C)`, its first field is the `u32` of its size, it has no padding, and all its bytes
/// may be 0.
pub(crate) unsafe trait Extensible: Copy {
    /// Its size in the first version of the header.
    const FIRST: usize;
}

/// Structs with their sizes in the first version, which do not change, and what was added behind.
macro_rules! extensible {
    ($($name:ident: $first:literal $(+ $added:literal)?,)*) => {
        $(
            // SAFETY: integers, pointers and arrays of them; their order leaves no padding.
            unsafe impl Extensible for $name {
                const FIRST: usize = $first;
            }

            const _: () = assert!(size_of::<$name>() == $first $(+ $added)?);
        )*
    };
}

extensible! {
    cairnfs_volume_options: 56,
    cairnfs_stat: 128,
    cairnfs_statfs: 56,
    cairnfs_dirent: 280,
    cairnfs_root: 288 + 8,
    cairnfs_publish_options: 48,
    cairnfs_published: 280,
    cairnfs_drop_progress: 16,
    cairnfs_change: 72,
    cairnfs_conflict: 24,
}

/// Largest size that a caller may give: a larger one was not set.
const LARGEST: usize = 4096;

/// The size in a struct of the caller.
unsafe fn size_of_callers<T: Extensible>(pointer: *const T) -> Outcome<usize> {
    // SAFETY: by the contract of the callers it is valid for its first field.
    let size = unsafe { pointer.cast::<u32>().read_unaligned() } as usize;
    match size {
        _ if size < T::FIRST => Err(Failure::invalid("struct_size is not set to the size")),
        _ if size > LARGEST => Err(Failure::new(libc::E2BIG, "struct_size is too large")),
        _ => Ok(size),
    }
}

/// Reads a struct of any version.
///
/// # Safety
/// The pointer is valid for as many bytes as the first field says.
pub(crate) unsafe fn read<T: Extensible>(pointer: *const T) -> Outcome<T> {
    // SAFETY: it is valid for its first field.
    let size = unsafe { size_of_callers(pointer) }?;
    let bytes = pointer.cast::<u8>();
    // SAFETY: it is valid for `size` bytes, also from the end of what is known.
    let unknown = |at: usize| unsafe { bytes.add(at).read() } != 0;
    if (size_of::<T>()..size).any(unknown) {
        return Err(Failure::new(
            libc::E2BIG,
            "a struct has fields that this version of the library does not know",
        ));
    }
    let mut value = MaybeUninit::<T>::zeroed();
    let known = size.min(size_of::<T>());
    // SAFETY: both are valid for `known` bytes, and do not overlap; zeros are a value.
    unsafe {
        value
            .as_mut_ptr()
            .cast::<u8>()
            .copy_from_nonoverlapping(bytes, known);
        Ok(value.assume_init())
    }
}

/// A struct of the caller to write, of any version, and those behind it in an array.
pub(crate) struct Out<T> {
    pointer: *mut T,
    size: usize,
}

impl<T: Extensible> Out<T> {
    /// # Safety
    /// The pointer is null, or valid for as many bytes as the first field says; as an array, for as
    /// many as are written times the size in the first one.
    pub(crate) unsafe fn new(pointer: *mut T) -> Outcome<Self> {
        // SAFETY: the same contract; it is not used.
        unsafe { Place::new(pointer) }?;
        // SAFETY: it is not null, so it is valid for its first field.
        let size = unsafe { size_of_callers(pointer) }?;
        Ok(Self { pointer, size })
    }

    /// Writes a value.
    pub(crate) fn put(&self, value: &T) {
        self.put_at(0, value);
    }

    /// Writes a value to an element of the array, whose index the caller of [`Out::new`] allows.
    pub(crate) fn put_at(&self, index: usize, value: &T) {
        let known = self.size.min(size_of::<T>());
        // SAFETY: by the contract of `new` the element is valid for `size` bytes. The value has
        // `known` bytes without padding.
        unsafe {
            let to = self.pointer.cast::<u8>().add(index * self.size);
            to.write_bytes(0, self.size);
            to.copy_from_nonoverlapping((&raw const *value).cast(), known);
            to.cast::<u32>().write_unaligned(self.size as u32);
        }
    }
}

impl From<Time> for cairnfs_timespec {
    fn from(time: Time) -> Self {
        Self {
            sec: time.secs,
            nsec: time.nanos.into(),
        }
    }
}

impl From<&Metadata> for cairnfs_stat {
    fn from(metadata: &Metadata) -> Self {
        let attr = metadata.attr();
        Self {
            struct_size: 0,
            mode: attr.mode,
            ino: attr.ino,
            nlink: attr.nlink.into(),
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            size: attr.size,
            blocks: attr.blocks,
            atime: attr.atime.into(),
            mtime: attr.mtime.into(),
            ctime: attr.ctime.into(),
            btime: attr.btime.into(),
            flags: attr.flags.bits(),
            reserved: 0,
        }
    }
}

impl From<StatFs> for cairnfs_statfs {
    fn from(space: StatFs) -> Self {
        Self {
            struct_size: 0,
            block_size: space.block_size,
            blocks: space.blocks,
            free_blocks: space.free,
            available_blocks: space.available,
            files: space.files,
            free_files: space.files_free,
            name_max: space.name_max,
            reserved: 0,
        }
    }
}

impl From<&RootInfo> for cairnfs_root {
    fn from(root: &RootInfo) -> Self {
        let (name, name_len) = name_of(root.name.as_deref().unwrap_or_default().as_bytes());
        Self {
            struct_size: 0,
            id: root.id,
            writable: root.writable.into(),
            name_len,
            created: root.created.into(),
            name,
            parent: root.parent.unwrap_or(0),
            being_dropped: root.being_dropped.into(),
        }
    }
}

/// A name in an array of the header, ended by a zero byte, and its length.
pub(crate) fn name_of(bytes: &[u8]) -> ([c_char; 256], u32) {
    let mut name = [0; 256];
    let fits = bytes.iter().take(name.len() - 1);
    let len = fits.len() as u32;
    name.iter_mut()
        .zip(fits)
        .for_each(|(to, from)| *to = *from as c_char);
    (name, len)
}
