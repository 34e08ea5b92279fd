//! What programs ask by a channel, beside the kernel, in the same tree.
//!
//! 1. A request is served only if the kernel knows none of the inodes that it changes, except the
//!    directories of the names: so nothing that the kernel has cached of a file becomes stale.
//! 2. In a directory that the kernel knows, nothing is changed of which it may have cached the absence or
//!    a listing ([`crate::known_dirs`]), and it drops its attributes before the program is answered.
//! 3. References of the kernel are excluded meanwhile, so what was found out about them holds.
//! 4. Only that a name does not exist, or does already, is told here. All else that would fail, what is not
//!    certain, and what has to wait for the device is left to the kernel, as nothing was done.
//! 5. What a program has deferred on a file cannot be left to the kernel any more. It waits for the device, and
//!    has space that was set aside ([`crate::deferrals`]). If it fails all the same, a write counts as lost.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cairnfs::Error;
use cairnfs::fs::FileSystem;
use cairnfs_channel::call::{self, Lease, NONE, Op, Request, Why};
use cairnfs_disk::acl;
use cairnfs_disk::format::ROOT_INO;
use cairnfs_disk::types::{Attr, FileKind, RenameMode, SetAttr, SetTime, Time};

use crate::admission::Purpose;
use crate::convert::Refusal;
use crate::fault::{InjectedFault, is_injected};
use crate::ops::entries::{inherit, make};
use crate::ops::{Found, NewEntry, Ops, Outcome, caught};
use crate::person::{Person, SEARCH, WRITE};
use crate::program_files::{DOOR, ProgramFile, door_attr};
use crate::trees::{Place, STALE};

/// How often, and how long each time, it is waited for a reply that brings a directory to the kernel and is
/// on its way. Only its attributes are at stake.
const ARRIVALS: u32 = 200;
const ARRIVAL: Duration = Duration::from_micros(50);

/// Longest target of a symbolic link.
const TARGET_MAX: usize = 4095;

/// Why a request is not done.
pub(super) enum Not {
    /// The kernel is asked.
    Mine(Why),
    /// It fails.
    Failed(i32),
}

impl From<Error> for Not {
    fn from(_: Error) -> Self {
        Self::Mine(Why::Trouble)
    }
}

impl From<Refusal> for Not {
    fn from(_: Refusal) -> Self {
        Self::Mine(Why::Trouble)
    }
}

pub(super) type Done<T> = Result<T, Not>;

pub(super) fn not<T>(why: Why) -> Done<T> {
    Err(Not::Mine(why))
}

/// A program with a channel.
#[derive(Debug)]
pub struct Program {
    /// Its user.
    pub person: Person,
    /// The number of its channel.
    pub channel: u64,
    /// Whether the mount shows times of birth.
    pub birth_times: bool,
}

/// A directory, and a name in it.
pub(super) struct At<'p> {
    pub(super) dir: Place,
    pub(super) attr: Attr,
    pub(super) name: &'p [u8],
}

/// A request that is under way.
pub(super) struct Serving<'o> {
    pub(super) ops: &'o Ops,
    pub(super) program: &'o Program,
    /// Directories that the kernel knows and whose attributes have changed.
    changed: Vec<u64>,
    /// Files whose use is given back at the end.
    pub(super) unused: Vec<ProgramFile>,
}

impl Ops {
    /// Does what a program asks for.
    pub(super) fn served(&self, program: &Program, request: &Request<'_>) -> Done<Vec<u64>> {
        self.serving(program, request, |serving| serving.serve(request))
    }

    /// Serves a request without waiting for the device and without references of the kernel meanwhile.
    pub(super) fn serving<T>(
        &self,
        program: &Program,
        request: &Request<'_>,
        serve: impl FnOnce(&mut Serving<'_>) -> Done<T>,
    ) -> Done<T> {
        let _inside = self.admission.enter(Purpose::New)?;
        let mut serving = Serving::new(self, program);
        let mounted = self.trees.mounted();
        let (done, waits) = mounted.without_waiting(|| {
            let _exclusive = self.trees.exclude_references();
            let [ino, ..] = request.args;
            caught("a request of a program", ino, || Ok(serve(&mut serving)))
        });
        let Serving {
            changed, unused, ..
        } = serving;
        unused.into_iter().for_each(give_back);
        let done = done??;
        if let Err(Refusal(errno)) = self.settle(waits) {
            return Err(Not::Failed(errno));
        }
        changed.into_iter().for_each(|dir| self.has_changed(dir));
        Ok(done)
    }

    /// Whether the kernel has, or is about to get, an inode of the mounted tree.
    pub(super) fn is_known(&self, ino: u64) -> bool {
        ino == ROOT_INO || self.trees.has_references(self.trees.known(ino))
    }

    /// Has the kernel drop the attributes of a directory that has changed.
    fn has_changed(&self, dir: u64) {
        let Some(kernel) = self.kernel.get() else {
            return;
        };
        if is_injected(InjectedFault::AttributesKept) {
            return;
        }
        if !self.dirs.attributes_dropped(dir) {
            return;
        }
        for _ in 0..ARRIVALS {
            if kernel.drops_attributes(dir) || !self.trees.has_references(dir) {
                return;
            }
            // It was evicted, and a reply that brings it again is on its way.
            self.dirs.seen(dir, false);
            thread::sleep(ARRIVAL);
        }
        self.dirs.attributes_told(dir);
        tracing::warn!("the kernel may keep attributes of directory {dir} that have changed");
    }

    /// The name of the door, which programs of the mount's user are told.
    pub fn door(&self) -> &str {
        self.files.door()
    }

    /// The door, if that is what is looked up.
    pub(super) fn door_at(&self, dir: u64, name: &[u8]) -> Option<Found> {
        (dir == ROOT_INO && self.files.is_door(name)).then(|| Found {
            node: DOOR,
            attr: door_attr(),
        })
    }

    /// The kernel gets the file, or the removed directory, that a program has left. Takes a lookup reference.
    pub(super) fn through_door(&self, name: &[u8], is_dir: bool) -> Outcome<Found> {
        loop {
            let held = self.trees.hold_references();
            let file = self.files.behind(name).filter(|file| file.is_dir == is_dir);
            let file = file.ok_or(Refusal(libc::ENOENT))?;
            if !Arc::ptr_eq(&file.fs, &self.trees.mounted()) {
                return Err(STALE);
            }
            // Another program may have made it, and this one has only opened it.
            if let Some(channel) = self.leased(&file.fs, file.ino) {
                drop(held);
                self.deferrals.end_leases(channel);
                continue;
            }
            return Ok(self.found(file.fs.lookup_number(file.ino)?));
        }
    }

    /// Has the kernel drop the name of a file in the door. Waits for the kernel.
    pub fn forget_in_door(&self, name: &[u8]) {
        if let Some(kernel) = self.kernel.get() {
            kernel.forget_name(DOOR, name);
        }
    }

    /// Closes what a program has open that has ended.
    pub fn program_ended(&self, channel: u64) {
        if is_injected(InjectedFault::FilesStayOpen) {
            return;
        }
        self.files
            .take(Some(channel))
            .into_iter()
            .for_each(give_back);
    }

    /// Closes what all programs have open.
    pub(super) fn programs_end(&self) {
        self.files.take(None).into_iter().for_each(give_back);
    }
}

/// Gives the use of a file back. The removal of a large one is left to a thread.
pub(super) fn give_back(file: ProgramFile) {
    if file.fs.forget_at_once(file.ino, 1) {
        let remove = move || file.fs.remove_unused(file.ino);
        let thread = thread::Builder::new().name("cairnfs-remove".into());
        if let Err(error) = thread.spawn(remove) {
            tracing::warn!("a file without names is removed by the next mount: no thread: {error}");
        }
    }
}

impl<'o> Serving<'o> {
    pub(super) fn new(ops: &'o Ops, program: &'o Program) -> Self {
        Self {
            ops,
            program,
            changed: Vec::new(),
            unused: Vec::new(),
        }
    }

    pub(super) fn serve(&mut self, request: &Request<'_>) -> Done<Vec<u64>> {
        let [a, b, c, d, _] = request.args;
        let (path, other) = (request.text, request.other);
        let nothing = |()| Vec::new();
        match request.op {
            Op::Create => self.create((a, path), b, c, d),
            Op::Mkdir => self.mkdir((a, path), b, c).map(nothing),
            Op::Symlink => self.symlink((a, path), other).map(nothing),
            Op::Remove => self.remove((a, path), b != 0).map(nothing),
            Op::Rename => self.rename((a, path), (b, other), c).map(nothing),
            Op::Chmod | Op::Chown | Op::Utimens => {
                let inode = self.inode((a, path))?;
                self.set(&inode, request).map(nothing)
            }
            Op::Write => self.write(a, b, path).map(|len| vec![len]),
            Op::Truncate => self.truncate(a, b).map(nothing),
            Op::Seek => self.seek(a, b.cast_signed(), c).map(|offset| vec![offset]),
            Op::Stat => self.stat(a).map(|stat| stat.words().to_vec()),
            Op::FileChmod | Op::FileChown | Op::FileUtimens => {
                let inode = self.attr_of(a)?;
                self.set(&inode, request).map(nothing)
            }
            Op::Leave => self.leave(a).map(|offset| vec![offset]),
            Op::OpenDir => self.open_dir((a, path)).map(|file| vec![file]),
            Op::List => self.list(a, b, c),
            Op::Locate => self.locate(a),
            Op::StatAt => {
                let stat = self.stat_at((a, path), b != 0, c)?;
                Ok(stat.words().to_vec())
            }
            Op::Open => self.open((a, path), b).map(|file| vec![file]),
            // Their answers are none of words, or come later.
            Op::Read | Op::Sync => not(Why::Call),
            Op::Close => {
                let closed = self.ops.files.close(self.program.channel, a);
                self.unused.extend(closed);
                Ok(Vec::new())
            }
        }
    }

    /// Whether a mode decides what the user may do.
    fn without_list(&self, fs: &FileSystem, attr: &Attr) -> Done<()> {
        if self.program.person.needs_no_list(attr) {
            return Ok(());
        }
        without_attribute(fs, attr, acl::ACCESS)
    }

    pub(super) fn permits(&self, fs: &FileSystem, attr: &Attr, wanted: u32) -> Done<()> {
        self.without_list(fs, attr)?;
        if self.program.person.permits(attr, wanted) {
            Ok(())
        } else {
            not(Why::Permission)
        }
    }

    /// The directory where a path begins: one that the kernel has for the program, or an open one.
    fn base(&self, base: u64) -> Done<Place> {
        if let Some(number) = call::opened(base) {
            let ProgramFile { fs, ino, .. } = self.dir(number)?;
            return Ok(Place {
                fs,
                ino,
                mounted: true,
                bound: false,
            });
        }
        let dir = self.ops.trees.place(base)?.of_mounted()?;
        if self.ops.is_known(dir.ino) {
            Ok(dir)
        } else {
            not(Why::Path)
        }
    }

    /// Resolves a path up to its last name.
    pub(super) fn walk<'p>(&self, (base, path): (u64, &'p [u8])) -> Done<At<'p>> {
        let dir = self.base(base)?;
        let mut attr = dir.fs.getattr(dir.ino)?;
        let mut names = path
            .split(|byte| *byte == b'/')
            .filter(|name| !name.is_empty())
            .peekable();
        if path.first() == Some(&b'/') || path.last() == Some(&b'/') || path.contains(&0) {
            return not(Why::Path);
        }
        loop {
            let name = match names.next() {
                None | Some(b"..") => return not(Why::Path),
                Some(b".") if names.peek().is_none() => return not(Why::Path),
                Some(b".") => continue,
                Some(name) => name,
            };
            match attr.kind {
                FileKind::Directory => {}
                FileKind::Symlink => return not(Why::Path),
                _ => return Err(Not::Failed(libc::ENOTDIR)),
            }
            self.permits(&dir.fs, &attr, SEARCH)?;
            if names.peek().is_none() {
                let dir = Place {
                    ino: attr.ino,
                    ..dir
                };
                return Ok(At { dir, attr, name });
            }
            attr = look_up(&dir.fs, attr.ino, name)?;
        }
    }

    /// Before entries of a directory change: `made` if the name is made, otherwise it is removed.
    fn enters(&mut self, at: &At<'_>, made: bool) -> Done<()> {
        self.permits(&at.dir.fs, &at.attr, WRITE | SEARCH)?;
        if !self.ops.is_known(at.dir.ino) {
            return Ok(());
        }
        let node = self.ops.trees.known(at.dir.ino);
        let dirs = &self.ops.dirs;
        if dirs.refuses(node, made.then_some(at.name)) {
            return not(Why::Cached);
        }
        if let Some(kernel) = self.ops.kernel.get()
            && node != ROOT_INO
            && !dirs.has_arrived(node)
        {
            if !kernel.drops_attributes(node) {
                return not(Why::Cached);
            }
            dirs.seen(node, true);
        }
        self.changed.push(node);
        Ok(())
    }

    /// An inode of which attributes or names may be changed here.
    pub(super) fn unknown(&self, attr: Attr) -> Done<Attr> {
        if !is_injected(InjectedFault::KnownNameServed) && self.ops.is_known(attr.ino) {
            not(Why::Known)
        } else {
            Ok(attr)
        }
    }

    fn new_entry<'p>(&self, at: &At<'p>, mode: u32, umask: u64) -> NewEntry<'p> {
        NewEntry {
            caller: self.program.person.caller(),
            dir: at.dir.ino,
            name: at.name,
            mode,
            umask: umask as u32 & 0o777,
        }
    }

    /// Whether the program may have another file open.
    pub(super) fn has_room(&self) -> Done<()> {
        if self.ops.files.has_room(self.program.channel) {
            Ok(())
        } else {
            not(Why::Trouble)
        }
    }

    fn create(&mut self, at: (u64, &[u8]), flags: u64, mode: u64, umask: u64) -> Done<Vec<u64>> {
        if mode & 0o7000 != 0 {
            return not(Why::Permission);
        }
        self.has_room()?;
        let at = self.walk(at)?;
        self.enters(&at, true)?;
        let new = self.new_entry(&at, libc::S_IFREG | mode as u32 & 0o777, umask);
        let (mode, lists) = inherit(&at.dir, &new)?;
        let made = match make(&at.dir, &new, (mode, 0), &lists) {
            Err(Refusal(libc::EEXIST)) => {
                // Nothing has changed.
                self.changed.clear();
                return self.open_existing(&at, flags).map(|file| vec![file, 0]);
            }
            made => made?,
        };
        let Program {
            person, channel, ..
        } = self.program;
        let lease = self.ops.deferrals.lease(*channel, &at.dir.fs);
        let fs = Arc::clone(&at.dir.fs);
        let file = self.ops.files.add(ProgramFile {
            lease,
            ..ProgramFile::opened(fs, made.ino, *channel, flags as i32 & !libc::O_DIRECTORY)
        });
        let owner = person.is_super();
        let lease = lease.map(|epoch| Lease { epoch, owner });
        Ok(vec![file, Lease::word(lease)])
    }

    /// A descriptor of the kernel takes the place of a file. Another thread of the program may just have
    /// deferred a write: the offset is known when that is done, and no further one is deferred.
    fn leave(&self, number: u64) -> Done<u64> {
        let (ops, channel) = (self.ops, self.program.channel);
        let lease = ops.files.get(channel, number).and_then(|file| file.lease);
        if lease.is_some_and(|epoch| ops.deferrals.end_epoch(channel, epoch)) {
            return Ok(NONE);
        }
        let offset = ops.files.leave(channel, number);
        offset.ok_or(Not::Failed(libc::EBADF))
    }

    fn mkdir(&mut self, (base, path): (u64, &[u8]), mode: u64, umask: u64) -> Done<()> {
        let end = path
            .iter()
            .rposition(|byte| *byte != b'/')
            .map_or(0, |last| last + 1);
        let at = self.walk((base, path.get(..end).unwrap_or_default()))?;
        self.enters(&at, true)?;
        let new = self.new_entry(&at, libc::S_IFDIR | mode as u32 & 0o1777, umask);
        let (mode, lists) = inherit(&at.dir, &new)?;
        let mode = libc::S_IFDIR | mode & !libc::S_IFMT;
        let made = make(&at.dir, &new, (mode, 0), &lists).map_err(told)?;
        at.dir.fs.forget(made.ino, 1);
        Ok(())
    }

    fn symlink(&mut self, at: (u64, &[u8]), target: &[u8]) -> Done<()> {
        if target.is_empty() || target.len() > TARGET_MAX || target.contains(&0) {
            return not(Why::Path);
        }
        let at = self.walk(at)?;
        self.enters(&at, true)?;
        let creds = self.program.person.caller().creds();
        let made = at.dir.fs.symlink(at.dir.ino, at.name, target, creds);
        let made = made.map_err(|error| told(error.into()))?;
        at.dir.fs.forget(made.ino, 1);
        Ok(())
    }

    /// The inode of a name that is about to be removed.
    fn removable(&self, at: &At<'_>, inode: Attr) -> Done<Attr> {
        let inode = self.unknown(inode)?;
        if self.program.person.may_remove(&at.attr, &inode) {
            Ok(inode)
        } else {
            not(Why::Permission)
        }
    }

    fn remove(&mut self, at: (u64, &[u8]), is_dir: bool) -> Done<()> {
        let at = self.walk(at)?;
        let inode = self.removable(&at, look_up(&at.dir.fs, at.dir.ino, at.name)?)?;
        if (inode.kind == FileKind::Directory) != is_dir {
            return not(Why::Trouble);
        }
        self.enters(&at, false)?;
        let (fs, dir) = (&at.dir.fs, at.dir.ino);
        let removed = if is_dir {
            fs.rmdir(dir, at.name)
        } else {
            fs.unlink(dir, at.name)
        };
        Ok(removed?)
    }

    fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), flags: u64) -> Done<()> {
        let mode = match u32::try_from(flags) {
            Ok(0) => RenameMode::Replace,
            Ok(libc::RENAME_NOREPLACE) => RenameMode::NoReplace,
            _ => return not(Why::Call),
        };
        let (from, to) = (self.walk(from)?, self.walk(to)?);
        if !Arc::ptr_eq(&from.dir.fs, &to.dir.fs) {
            return not(Why::Trouble);
        }
        let moved = look_up(&from.dir.fs, from.dir.ino, from.name)?;
        let moved = self.removable(&from, moved)?;
        if moved.kind == FileKind::Directory && from.dir.ino != to.dir.ino {
            self.permits(&from.dir.fs, &moved, WRITE)?;
        }
        match child(&to.dir.fs, to.dir.ino, to.name) {
            Ok(replaced) if replaced.ino == moved.ino => return not(Why::Trouble),
            Ok(replaced) => drop(self.removable(&to, replaced)?),
            Err(Error::NotFound) => {}
            Err(error) => return Err(error.into()),
        }
        self.enters(&from, false)?;
        self.enters(&to, true)?;
        let (fs, dirs) = (&from.dir.fs, (from.dir.ino, to.dir.ino));
        Ok(fs.rename(dirs.0, from.name, dirs.1, to.name, mode)?)
    }

    /// The inode of a path, whose attributes are to change.
    fn inode(&self, at: (u64, &[u8])) -> Done<Attr> {
        let at = self.walk(at)?;
        let inode = look_up(&at.dir.fs, at.dir.ino, at.name)?;
        match inode.kind {
            FileKind::Symlink => not(Why::Path),
            _ => self.unknown(inode),
        }
    }

    fn set(&self, inode: &Attr, request: &Request<'_>) -> Done<()> {
        let set = self.file_set(inode, request)?;
        self.set_as(inode, set)
    }

    pub(super) fn set_as(&self, inode: &Attr, set: SetAttr) -> Done<()> {
        let caller = self.program.person.caller();
        self.ops.setattr(caller, inode.ino, set)?;
        Ok(())
    }

    /// What a request sets of an inode, by path or by file.
    pub(super) fn file_set(&self, inode: &Attr, request: &Request<'_>) -> Done<SetAttr> {
        let [_, b, c, d, e] = request.args;
        match request.op {
            Op::Chmod | Op::FileChmod => self.mode_set(inode, b),
            Op::Chown | Op::FileChown => self.owner_set(inode, b, c),
            Op::Utimens | Op::FileUtimens => self.times_set(inode, [(b, c), (d, e)]),
            _ => not(Why::Call),
        }
    }

    fn mode_set(&self, inode: &Attr, mode: u64) -> Done<SetAttr> {
        if (mode | u64::from(inode.mode)) & 0o6000 != 0 || !self.program.person.owns(inode) {
            return not(Why::Permission);
        }
        let mode = Some(mode as u32 & 0o1777);
        Ok(SetAttr {
            mode,
            ..SetAttr::default()
        })
    }

    /// The kernel takes capabilities from a file whose contents or owner change.
    pub(super) fn without_capabilities(&self, inode: &Attr) -> Done<()> {
        without_attribute(&self.ops.trees.mounted(), inode, b"security.capability")
    }

    fn owner_set(&self, inode: &Attr, uid: u64, gid: u64) -> Done<SetAttr> {
        self.without_capabilities(inode)?;
        let id = |id: u64| match id {
            NONE => Ok(None),
            id => u32::try_from(id).map(Some).or(not(Why::Call)),
        };
        let (uid, gid) = (id(uid)?, id(gid)?);
        let none = uid.is_none() && gid.is_none();
        if none || inode.mode & 0o6000 != 0 || !self.program.person.is_super() {
            return not(Why::Permission);
        }
        Ok(SetAttr {
            uid,
            gid,
            ..SetAttr::default()
        })
    }

    fn times_set(&self, inode: &Attr, [access, change]: [(u64, u64); 2]) -> Done<SetAttr> {
        let time = |(secs, nanos): (u64, u64)| match nanos {
            call::OMIT => Ok(None),
            call::NOW => Ok(Some(SetTime::Now)),
            nanos if nanos < 1_000_000_000 => Ok(Some(SetTime::At(Time {
                secs: secs.cast_signed(),
                nanos: nanos as u32,
            }))),
            _ => not(Why::Call),
        };
        let (atime, mtime) = (time(access)?, time(change)?);
        if atime.is_none() && mtime.is_none() || !self.program.person.owns(inode) {
            return not(Why::Permission);
        }
        Ok(SetAttr {
            atime,
            mtime,
            ..SetAttr::default()
        })
    }
}

/// What depends on an extended attribute is the kernel's.
fn without_attribute(fs: &FileSystem, inode: &Attr, name: &[u8]) -> Done<()> {
    match fs.getxattr(inode.ino, name) {
        Err(Error::NoAttribute | Error::Unsupported(_)) => Ok(()),
        Ok(_) => not(Why::Permission),
        Err(error) => Err(error.into()),
    }
}

/// What a program is told that makes a name: that it exists.
fn told(refusal: Refusal) -> Not {
    match refusal {
        Refusal(libc::EEXIST) => Not::Failed(libc::EEXIST),
        other => other.into(),
    }
}

/// As [`child`], for a name that must exist.
pub(super) fn look_up(fs: &FileSystem, dir: u64, name: &[u8]) -> Done<Attr> {
    child(fs, dir, name).map_err(|error| match error {
        Error::NotFound => Not::Failed(libc::ENOENT),
        other => other.into(),
    })
}

/// The attributes of a name's inode. No use is taken: references are excluded.
pub(super) fn child(fs: &FileSystem, dir: u64, name: &[u8]) -> Result<Attr, Error> {
    let dir = fs.inode(dir)?;
    let ino = fs.with_child(&dir, name, |child, _| Ok(child.ino))?;
    fs.getattr(ino)
}
