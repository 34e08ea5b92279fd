//! Reports: the files that differ between two states, and the conflicts of a publish, one by one.
//!
//! A report is made as a whole when it is opened, and needs neither state any more. An entry stays
//! the next one until the caller's buffer has had place for it.

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use cairnfs::{AttributeChange, Conflict, ConflictKind, FileChange, Status};
use parking_lot::Mutex;

use crate::boundary::{self, Place, call};
use crate::entries::Entries;
use crate::error::{Failure, Outcome};
use crate::handles::{self, OpenReport, OpenVolume, Part, cairnfs_report, cairnfs_volume};
use crate::structs::{Out, cairnfs_change, cairnfs_conflict};

/// cairnfs_diff(): compares the new state with that in which it has parted from the old one.
pub const CAIRNFS_SINCE_FORK: u32 = 1;

/// Of a change: the file is in the new state only.
pub const CAIRNFS_ADDED: u32 = 1;
/// Of a change: the file is in the old state only.
pub const CAIRNFS_REMOVED: u32 = 2;
/// Of a change: the file has another name, and perhaps other changes.
pub const CAIRNFS_RENAMED: u32 = 3;
/// Of a change: the file changed under the same name, got or lost further names, or was replaced by
/// another file of its type.
pub const CAIRNFS_CHANGED: u32 = 4;

/// Of a change: contents.
pub const CAIRNFS_CHANGED_CONTENTS: u32 = 1;
/// Of a change: size.
pub const CAIRNFS_CHANGED_SIZE: u32 = 2;
/// Of a change: permissions.
pub const CAIRNFS_CHANGED_MODE: u32 = 4;
/// Of a change: owner or group.
pub const CAIRNFS_CHANGED_OWNER: u32 = 8;
/// Of a change: time of the last change of the contents.
pub const CAIRNFS_CHANGED_MTIME: u32 = 16;
/// Of a change: inode flags, or the device number of a special file.
pub const CAIRNFS_CHANGED_FLAGS: u32 = 32;
/// Of a change: extended attributes.
pub const CAIRNFS_CHANGED_XATTRS: u32 = 64;

/// Of a conflict: both changed the contents.
pub const CAIRNFS_CONFLICT_CONTENTS: u32 = 1;
/// Of a conflict: both set an attribute.
pub const CAIRNFS_CONFLICT_ATTRIBUTE: u32 = 2;
/// Of a conflict: both set an extended attribute.
pub const CAIRNFS_CONFLICT_XATTR: u32 = 3;
/// Of a conflict: one removed what the other changed.
pub const CAIRNFS_CONFLICT_REMOVED: u32 = 4;
/// Of a conflict: both renamed it.
pub const CAIRNFS_CONFLICT_RENAMED: u32 = 5;
/// Of a conflict: each removed the name that the other kept.
pub const CAIRNFS_CONFLICT_NAMELESS: u32 = 6;
/// Of a conflict: both put a different file there.
pub const CAIRNFS_CONFLICT_NAME_TAKEN: u32 = 7;
/// Of a conflict: one removed the directory that the other uses.
pub const CAIRNFS_CONFLICT_DIRECTORY_REMOVED: u32 = 8;
/// Of a conflict: both moved directories, which would hold each other.
pub const CAIRNFS_CONFLICT_CIRCLE: u32 = 9;

/// A handle of a report of conflicts.
pub(crate) fn of_conflicts(
    conflicts: Vec<Conflict>,
    of: &Arc<OpenVolume>,
) -> Outcome<cairnfs_report> {
    handles::insert(Part {
        part: Entries::Conflicts(Mutex::new(conflicts.into())),
        of: Arc::clone(of),
    })
}

/// What is in conflict, in words.
pub(crate) fn why(conflict: &Conflict) -> String {
    let show = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    conflict.kind.why("the base", show)
}

fn number_of(kind: &ConflictKind) -> u32 {
    match kind {
        ConflictKind::Contents => CAIRNFS_CONFLICT_CONTENTS,
        ConflictKind::Attribute(_) => CAIRNFS_CONFLICT_ATTRIBUTE,
        ConflictKind::Xattr(_) => CAIRNFS_CONFLICT_XATTR,
        ConflictKind::Removed(_) => CAIRNFS_CONFLICT_REMOVED,
        ConflictKind::Renamed { .. } => CAIRNFS_CONFLICT_RENAMED,
        ConflictKind::Nameless => CAIRNFS_CONFLICT_NAMELESS,
        ConflictKind::NameTaken => CAIRNFS_CONFLICT_NAME_TAKEN,
        ConflictKind::DirectoryRemoved(_) => CAIRNFS_CONFLICT_DIRECTORY_REMOVED,
        ConflictKind::Circle => CAIRNFS_CONFLICT_CIRCLE,
    }
}

fn bit_of(attribute: &AttributeChange) -> u32 {
    match attribute.name {
        "size" => CAIRNFS_CHANGED_SIZE,
        "mode" => CAIRNFS_CHANGED_MODE,
        "uid" | "gid" => CAIRNFS_CHANGED_OWNER,
        "mtime" => CAIRNFS_CHANGED_MTIME,
        _ => CAIRNFS_CHANGED_FLAGS,
    }
}

/// What changed of a file that both states have.
fn changed(file: &FileChange) -> u32 {
    if matches!(file.status, Status::Added | Status::Removed) {
        return 0;
    }
    let attributes = file.attributes.iter().map(bit_of);
    let contents = (!file.contents.is_empty()).then_some(CAIRNFS_CHANGED_CONTENTS);
    let xattrs = (!file.xattrs.is_empty()).then_some(CAIRNFS_CHANGED_XATTRS);
    attributes
        .chain(contents)
        .chain(xattrs)
        .fold(0, |bits, bit| bits | bit)
}

fn change_of(file: &FileChange, old_path: &[u8]) -> cairnfs_change {
    cairnfs_change {
        struct_size: 0,
        status: match file.status {
            Status::Added => CAIRNFS_ADDED,
            Status::Removed => CAIRNFS_REMOVED,
            Status::Renamed => CAIRNFS_RENAMED,
            Status::Changed => CAIRNFS_CHANGED,
        },
        ino: file.ino,
        old_ino: file.old_ino.unwrap_or(0),
        mode: file.kind.mode_bits(),
        changed: changed(file),
        size: file.size,
        written: file.written,
        path_len: file.path.bytes.len() as u64,
        old_path_len: old_path.len() as u64,
        old_names: u32::try_from(file.old_paths.len()).unwrap_or(u32::MAX),
        new_names: u32::try_from(file.new_paths.len()).unwrap_or(u32::MAX),
    }
}

/// Compares the states of two references (cairnfs_find_root()), a branch as it is now: opens a report
/// of the files that differ from the old one to the new one, in order of their paths. It takes as
/// long as there are differences, not files. Flags: 0 or CAIRNFS_SINCE_FORK.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_diff(
    volume: cairnfs_volume,
    old: *const c_char,
    new: *const c_char,
    flags: u32,
    report: *mut cairnfs_report,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let place = Place::new(report)?;
        let volume = handles::volume(volume)?;
        let (old, new) = (boundary::text(old)?, boundary::text(new)?);
        let diff = match flags {
            0 => volume.volume.diff(old, new)?,
            CAIRNFS_SINCE_FORK => volume.volume.diff_since_fork(old, new)?,
            _ => return Err(Failure::invalid("unknown flags of diff")),
        };
        let open: OpenReport = Part {
            part: Entries::Changes(Mutex::new(diff.report().files.clone().into())),
            of: volume,
        };
        place.put(handles::insert(open)?);
        Ok(())
    })
}

/// Gets the next change of a report of cairnfs_diff(); its status is 0 at the end. The buffer gets its
/// path, and behind that, if old_path_len is not 0, a path that only the old state has, each ended by
/// a zero byte. ERANGE if the capacity is below path_len + old_path_len + 2: the struct was filled, and
/// the change stays the next one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_next_change(
    report: cairnfs_report,
    change: *mut cairnfs_change,
    buffer: *mut c_char,
    capacity: usize,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let out = Out::new(change)?;
        let report = handles::get::<OpenReport>(report)?;
        let mut left = report.part.changes()?;
        let Some(file) = left.front() else {
            out.put(&cairnfs_change::default());
            return Ok(());
        };
        let old_path = file.old_paths.first().map_or(&[][..], |path| &path.bytes);
        out.put(&change_of(file, old_path));
        boundary::give_strings(&[&file.path.bytes, old_path], buffer, capacity)?;
        left.pop_front();
        Ok(())
    })
}

/// Gets the next conflict of a report of cairnfs_publish(); its kind is 0 at the end. The buffer gets
/// its path, and behind that a text that says what is in conflict, each ended by a zero byte. ERANGE if
/// the capacity is below path_len + why_len + 2: the struct was filled, and the conflict stays the
/// next one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cairnfs_next_conflict(
    report: cairnfs_report,
    conflict: *mut cairnfs_conflict,
    buffer: *mut c_char,
    capacity: usize,
) -> c_int {
    // SAFETY: the contract of the crate.
    call(|| unsafe {
        let out = Out::new(conflict)?;
        let report = handles::get::<OpenReport>(report)?;
        let mut left = report.part.conflicts()?;
        let Some(next) = left.front() else {
            out.put(&cairnfs_conflict::default());
            return Ok(());
        };
        let why = why(next);
        out.put(&cairnfs_conflict {
            struct_size: 0,
            kind: number_of(&next.kind),
            path_len: next.path.len() as u64,
            why_len: why.len() as u64,
        });
        boundary::give_strings(&[&next.path, why.as_bytes()], buffer, capacity)?;
        left.pop_front();
        Ok(())
    })
}

/// Closes a report.
#[unsafe(no_mangle)]
pub extern "C" fn cairnfs_close_report(report: cairnfs_report) -> c_int {
    call(|| handles::remove::<OpenReport>(report).map(drop))
}
