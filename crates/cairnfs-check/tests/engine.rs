//! The engine against the check: whatever a workload does, the volume it leaves is sound, when it
//! was closed, when the process was killed at any moment, and when it was mounted again after that.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cairnfs::device::{Device, MemoryDevice};
use cairnfs::fs::{FileSystem, MakeOptions, Options, make_device};
use cairnfs::types::{Attr, Creds, Fallocate, FileKind, RenameMode, SetAttr, XattrMode};
use cairnfs::{Error, Result};
use cairnfs_check::{CheckOptions, check};
use parking_lot::Mutex;
use proptest::prelude::*;

/// A device that copies its state aside after a given number of writes, as a kill leaves it.
struct Killed {
    device: MemoryDevice,
    left: AtomicU64,
    image: Mutex<Option<Arc<MemoryDevice>>>,
}

impl Killed {
    fn new(size: u64, after: u64) -> Self {
        Self {
            device: MemoryDevice::new(size),
            left: AtomicU64::new(after),
            image: Mutex::new(None),
        }
    }

    fn copy(&self) -> Arc<MemoryDevice> {
        let copy = MemoryDevice::new(self.device.size());
        let mut chunk = vec![0; 1 << 20];
        for at in (0..self.device.size()).step_by(chunk.len()) {
            self.device.read(at, &mut chunk).unwrap();
            if chunk.iter().any(|b| *b != 0) {
                copy.write(at, &chunk).unwrap();
            }
        }
        Arc::new(copy)
    }
}

impl Device for Killed {
    fn size(&self) -> u64 {
        self.device.size()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.device.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.device.write(offset, buf)?;
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            *self.image.lock() = Some(self.copy());
        }
        Ok(())
    }
    fn flush(&self) -> Result<()> {
        self.device.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.device.discard(offset, len)
    }
}

fn assert_sound(device: &dyn Device, when: &str) {
    let report = check(device, &CheckOptions { data: true }, &mut |_| {}).unwrap();
    assert!(
        report.is_clean(),
        "{when}: {:#?} {:?}",
        report.findings,
        report.unchecked
    );
}

#[derive(Debug, Clone)]
enum Op {
    Create(u8, u8),
    Mkdir(u8, u8),
    Symlink(u8, u8, u16),
    Unlink(u8, u8),
    Rmdir(u8, u8),
    Link(u8, u8, u8, u8),
    Rename(u8, u8, u8, u8, u8),
    Write(u8, u8, u32, u32),
    Truncate(u8, u8, u32),
    Punch(u8, u8, u32, u32),
    Allocate(u8, u8, u32, u32),
    Xattr(u8, u8, u8, u32),
    NoXattr(u8, u8, u8),
    Chmod(u8, u8),
    Hold(u8, u8),
    Release,
    Fsync(u8, u8),
    Sync,
    Merge,
}

fn op() -> impl Strategy<Value = Op> {
    let d = 0u8..4;
    let n = 0u8..7;
    let at = prop_oneof![Just(0u32), 0u32..5000, 0u32..400_000];
    let len = prop_oneof![1u32..100, 1u32..5000, 1u32..300_000];
    prop_oneof![
        4 => (d.clone(), n.clone()).prop_map(|(a, b)| Op::Create(a, b)),
        2 => (d.clone(), n.clone()).prop_map(|(a, b)| Op::Mkdir(a, b)),
        1 => (d.clone(), n.clone(), 1u16..4000).prop_map(|(a, b, c)| Op::Symlink(a, b, c)),
        3 => (d.clone(), n.clone()).prop_map(|(a, b)| Op::Unlink(a, b)),
        1 => (d.clone(), n.clone()).prop_map(|(a, b)| Op::Rmdir(a, b)),
        1 => (d.clone(), n.clone(), d.clone(), n.clone()).prop_map(|(a, b, c, e)| Op::Link(a, b, c, e)),
        3 => (d.clone(), n.clone(), d.clone(), n.clone(), 0u8..3).prop_map(|(a, b, c, e, f)| Op::Rename(a, b, c, e, f)),
        6 => (d.clone(), n.clone(), at.clone(), len.clone()).prop_map(|(a, b, c, e)| Op::Write(a, b, c, e)),
        2 => (d.clone(), n.clone(), at.clone()).prop_map(|(a, b, c)| Op::Truncate(a, b, c)),
        1 => (d.clone(), n.clone(), at.clone(), len.clone()).prop_map(|(a, b, c, e)| Op::Punch(a, b, c, e)),
        1 => (d.clone(), n.clone(), at.clone(), len.clone()).prop_map(|(a, b, c, e)| Op::Allocate(a, b, c, e)),
        2 => (d.clone(), n.clone(), 0u8..4, prop_oneof![0u32..50, 0u32..65_000]).prop_map(|(a, b, c, e)| Op::Xattr(a, b, c, e)),
        1 => (d.clone(), n.clone(), 0u8..4).prop_map(|(a, b, c)| Op::NoXattr(a, b, c)),
        1 => (d.clone(), n.clone()).prop_map(|(a, b)| Op::Chmod(a, b)),
        1 => (d.clone(), n.clone()).prop_map(|(a, b)| Op::Hold(a, b)),
        1 => Just(Op::Release),
        2 => (d, n).prop_map(|(a, b)| Op::Fsync(a, b)),
        1 => Just(Op::Sync),
        2 => Just(Op::Merge),
    ]
}

/// Runs operations; what POSIX refuses is refused.
struct Run {
    fs: Arc<FileSystem>,
    held: Vec<u64>,
}

impl Run {
    fn lookup(&self, dir: u64, name: &str) -> Result<u64> {
        let ino = self.fs.lookup(dir, name.as_bytes())?.ino;
        self.fs.forget(ino, 1);
        Ok(ino)
    }

    /// Directory 0 is the root; others are wherever a walk of that name leads.
    fn dir(&self, dir: u8) -> u64 {
        match dir {
            0 => 1,
            d => self.lookup(1, &format!("n{d}")).unwrap_or(1),
        }
    }

    fn file(&self, dir: u8, name: u8) -> Result<u64> {
        self.lookup(self.dir(dir), &format!("n{name}"))
    }

    fn apply(&mut self, op: &Op) -> Result<()> {
        let fs = self.fs.clone();
        let name = |n: u8| format!("n{n}").into_bytes();
        let creds = Creds { uid: 1, gid: 1 };
        match *op {
            Op::Create(d, n) => {
                let a = fs.mknod(self.dir(d), &name(n), 0o100_644, 0, creds)?;
                fs.forget(a.ino, 1);
            }
            Op::Mkdir(d, n) => {
                let a = fs.mkdir(self.dir(d), &name(n), 0o755, creds)?;
                fs.forget(a.ino, 1);
            }
            Op::Symlink(d, n, len) => {
                let a = fs.symlink(self.dir(d), &name(n), &vec![b'x'; len.into()], creds)?;
                fs.forget(a.ino, 1);
            }
            Op::Unlink(d, n) => fs.unlink(self.dir(d), &name(n))?,
            Op::Rmdir(d, n) => fs.rmdir(self.dir(d), &name(n))?,
            Op::Link(d, n, e, m) => {
                let a = fs.link(self.file(d, n)?, self.dir(e), &name(m))?;
                fs.forget(a.ino, 1);
            }
            Op::Rename(d, n, e, m, how) => {
                let mode = [
                    RenameMode::Replace,
                    RenameMode::NoReplace,
                    RenameMode::Exchange,
                ][usize::from(how)];
                fs.rename(self.dir(d), &name(n), self.dir(e), &name(m), mode)?;
            }
            Op::Write(d, n, at, len) => {
                let data: Vec<u8> = (0..len).map(|i| (i / 7 + at) as u8).collect();
                fs.write(self.file(d, n)?, at.into(), &data, false)?;
            }
            Op::Truncate(d, n, size) => {
                let set = SetAttr {
                    size: Some(size.into()),
                    ..SetAttr::default()
                };
                fs.setattr(self.file(d, n)?, &set)?;
            }
            Op::Punch(d, n, at, len) => {
                fs.fallocate(
                    self.file(d, n)?,
                    at.into(),
                    len.into(),
                    Fallocate::PunchHole,
                )?;
            }
            Op::Allocate(d, n, at, len) => {
                let how = match len % 4 {
                    0 => Fallocate::Allocate { keep_size: true },
                    1 => Fallocate::Allocate { keep_size: false },
                    2 => Fallocate::ZeroRange { keep_size: true },
                    _ => Fallocate::ZeroRange { keep_size: false },
                };
                fs.fallocate(self.file(d, n)?, at.into(), len.into(), how)?;
            }
            Op::Xattr(d, n, x, len) => {
                let value = vec![x; len as usize];
                let key = format!("user.x{x}");
                fs.setxattr(self.file(d, n)?, key.as_bytes(), &value, XattrMode::Set)?;
            }
            Op::NoXattr(d, n, x) => {
                fs.removexattr(self.file(d, n)?, format!("user.x{x}").as_bytes())?;
            }
            Op::Chmod(d, n) => {
                let set = SetAttr {
                    mode: Some(0o600),
                    ..SetAttr::default()
                };
                fs.setattr(self.file(d, n)?, &set)?;
            }
            Op::Hold(d, n) => {
                let a = fs.lookup(self.dir(d), &name(n))?;
                self.held.push(a.ino);
            }
            Op::Release => {
                if let Some(ino) = self.held.pop() {
                    fs.forget(ino, 1);
                }
            }
            Op::Fsync(d, n) => fs.fsync(self.file(d, n)?, false)?,
            Op::Sync => fs.sync()?,
            Op::Merge => fs.merge()?,
        }
        Ok(())
    }
}

/// Errors that a random operation may meet.
fn refused(e: &Error) -> bool {
    matches!(
        e,
        Error::NotFound
            | Error::Exists
            | Error::NotDirectory
            | Error::IsDirectory
            | Error::NotEmpty
            | Error::NoAttribute
            | Error::Invalid(_)
            | Error::NotPermitted(_)
            | Error::NoSpace
    )
}

/// A path, its attributes, its contents, its extended attributes.
type Seen = (String, Attr, Vec<u8>, Vec<Vec<u8>>);

/// Everything a program can see of a volume, by path.
fn tree(fs: &FileSystem) -> Vec<Seen> {
    let mut seen = Vec::new();
    let mut todo = vec![(String::new(), 1)];
    while let Some((path, ino)) = todo.pop() {
        let attr = fs.getattr(ino).unwrap();
        let contents = match attr.kind {
            FileKind::File => {
                let mut bytes = vec![0; attr.size as usize];
                assert_eq!(fs.read(ino, 0, &mut bytes).unwrap(), bytes.len());
                bytes
            }
            FileKind::Symlink => fs.readlink(ino).unwrap(),
            _ => Vec::new(),
        };
        let names = fs.listxattr(ino).unwrap();
        let mut xattrs: Vec<Vec<u8>> = names
            .split(|b| *b == 0)
            .filter(|n| !n.is_empty())
            .map(|n| [n, b"=", &fs.getxattr(ino, n).unwrap()].concat())
            .collect();
        xattrs.sort();
        if attr.kind == FileKind::Directory {
            let mut cookie = 0;
            fs.readdir(ino, 0, &mut |e| {
                assert!(e.cookie > cookie);
                cookie = e.cookie;
                if e.cookie > 2 {
                    let name = String::from_utf8_lossy(e.name);
                    todo.push((format!("{path}/{name}"), e.ino));
                }
                true
            })
            .unwrap();
        }
        // Blocks of unwritten data are known only once it is written.
        let attr = Attr { blocks: 0, ..attr };
        seen.push((path, attr, contents, xattrs));
    }
    seen.sort_by(|a, b| a.0.cmp(&b.0));
    seen
}

fn options(workers: bool) -> Options {
    Options {
        cache_budget: 8 << 20,
        durability_interval: None,
        workers,
        ..Options::default()
    }
}

fn run(ops: &[Op], size: u64, kill_after: u64, workers: bool) {
    let device = Arc::new(Killed::new(size, u64::MAX));
    make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    device.left.store(kill_after, Ordering::SeqCst);
    let fs = FileSystem::open_device(device.clone(), &options(workers)).unwrap();
    let mut run = Run {
        fs: fs.clone(),
        held: Vec::new(),
    };
    for (i, op) in ops.iter().enumerate() {
        if let Err(e) = run.apply(op) {
            assert!(refused(&e), "{i}: {op:?}: {e}");
        }
    }
    for ino in run.held.drain(..) {
        fs.forget(ino, 1);
    }
    let before = tree(&fs);
    fs.close().unwrap();
    assert_sound(&*device, "closed");
    let reopened = FileSystem::open_device(device.clone(), &options(false)).unwrap();
    assert_eq!(tree(&reopened), before);
    reopened.close().unwrap();
    let Some(image) = device.image.lock().take() else {
        return;
    };
    assert_sound(&*image, "killed");
    let seen = {
        let read_only = Options {
            read_only: true,
            ..options(false)
        };
        let fs = FileSystem::open_device(image.clone(), &read_only).unwrap();
        tree(&fs)
    };
    let again = FileSystem::open_device(image.clone(), &options(false)).unwrap();
    assert_sound(&*image, "mounted again");
    assert_eq!(tree(&again), seen);
    again.merge().unwrap();
    assert_eq!(tree(&again), seen);
    again.close().unwrap();
    assert_sound(&*image, "closed again");
    let last = FileSystem::open_device(image, &options(false)).unwrap();
    assert_eq!(tree(&last), seen);
}

/// Several threads in the same few directories, with workers and little memory.
fn run_threads(scripts: Vec<Vec<Op>>, size: u64) {
    let device = Arc::new(MemoryDevice::new(size));
    make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
    let fs = FileSystem::open_device(device.clone(), &options(true)).unwrap();
    std::thread::scope(|scope| {
        for script in scripts {
            let mut run = Run {
                fs: fs.clone(),
                held: Vec::new(),
            };
            scope.spawn(move || {
                for op in &script {
                    if let Err(e) = run.apply(op) {
                        assert!(refused(&e), "{op:?}: {e}");
                    }
                }
                for ino in run.held.drain(..) {
                    run.fs.forget(ino, 1);
                }
            });
        }
    });
    let before = tree(&fs);
    fs.close().unwrap();
    assert_sound(&*device, "closed");
    let reopened = FileSystem::open_device(device, &options(false)).unwrap();
    assert_eq!(tree(&reopened), before);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn threads_leave_a_sound_volume(
        scripts in proptest::collection::vec(proptest::collection::vec(op(), 100..300), 2..6),
        small in any::<bool>(),
    ) {
        run_threads(scripts, if small { 16 << 20 } else { 128 << 20 });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn every_volume_is_sound(
        ops in proptest::collection::vec(op(), 1..250),
        kill_after in 1u64..400,
        workers in any::<bool>(),
    ) {
        run(&ops, 64 << 20, kill_after, workers);
    }

    #[test]
    fn a_volume_that_runs_full_is_sound(
        ops in proptest::collection::vec(op(), 100..400),
        kill_after in 1u64..2000,
    ) {
        run(&ops, 16 << 20, kill_after, false);
    }
}

/// What happens to one file's contents.
#[derive(Debug, Clone)]
enum Change {
    Write(u32, u32),
    Truncate(u32),
    Punch(u32, u32),
    Zero(u32, u32, bool),
    Allocate(u32, u32, bool),
    Copy(u32, u32, u32),
    Fsync,
    Merge,
    Reopen,
}

fn change() -> impl Strategy<Value = Change> {
    let at = prop_oneof![0u32..3000, 0u32..20_000, 0u32..3_000_000];
    let len = prop_oneof![1u32..100, 1u32..9000, 1u32..1_200_000];
    prop_oneof![
        8 => (at.clone(), len.clone()).prop_map(|(a, l)| Change::Write(a, l)),
        3 => at.clone().prop_map(Change::Truncate),
        2 => (at.clone(), len.clone()).prop_map(|(a, l)| Change::Punch(a, l)),
        2 => (at.clone(), len.clone(), any::<bool>()).prop_map(|(a, l, k)| Change::Zero(a, l, k)),
        2 => (at.clone(), len.clone(), any::<bool>()).prop_map(|(a, l, k)| Change::Allocate(a, l, k)),
        1 => (at.clone(), at, len).prop_map(|(a, b, l)| Change::Copy(a, b, l)),
        2 => Just(Change::Fsync),
        2 => Just(Change::Merge),
        1 => Just(Change::Reopen),
    ]
}

fn grow(model: &mut Vec<u8>, end: usize) {
    if model.len() < end {
        model.resize(end, 0);
    }
}

/// Makes the change in the file and in the bytes it should hold.
fn change_both(fs: &FileSystem, ino: u64, model: &mut Vec<u8>, change: &Change, salt: usize) {
    match *change {
        Change::Write(at, len) => {
            let data: Vec<u8> = (0..len as usize)
                .map(|i| (i * 13 + salt) as u8 | 1)
                .collect();
            assert_eq!(fs.write(ino, at.into(), &data, false).unwrap(), data.len());
            grow(model, at as usize + data.len());
            model[at as usize..at as usize + data.len()].copy_from_slice(&data);
        }
        Change::Truncate(size) => {
            let set = SetAttr {
                size: Some(size.into()),
                ..SetAttr::default()
            };
            fs.setattr(ino, &set).unwrap();
            model.resize(size as usize, 0);
        }
        Change::Punch(at, len) => {
            fs.fallocate(ino, at.into(), len.into(), Fallocate::PunchHole)
                .unwrap();
            let end = model.len().min((at + len) as usize);
            if let Some(range) = model.get_mut(at as usize..end) {
                range.fill(0);
            }
        }
        Change::Zero(at, len, keep_size) => {
            let what = Fallocate::ZeroRange { keep_size };
            fs.fallocate(ino, at.into(), len.into(), what).unwrap();
            if !keep_size {
                grow(model, (at + len) as usize);
            }
            let end = model.len().min((at + len) as usize);
            if let Some(range) = model.get_mut(at as usize..end) {
                range.fill(0);
            }
        }
        Change::Allocate(at, len, keep_size) => {
            let what = Fallocate::Allocate { keep_size };
            fs.fallocate(ino, at.into(), len.into(), what).unwrap();
            if !keep_size {
                grow(model, (at + len) as usize);
            }
        }
        Change::Copy(from, to, len) => {
            if from.abs_diff(to) < len {
                return;
            }
            let n = fs
                .copy_range(ino, from.into(), ino, to.into(), len.into())
                .unwrap() as usize;
            let data = match model.get(from as usize..) {
                Some(rest) => rest[..n].to_vec(),
                None => Vec::new(),
            };
            assert_eq!(data.len(), n);
            if n > 0 {
                grow(model, to as usize + n);
                model[to as usize..to as usize + n].copy_from_slice(&data);
            }
        }
        Change::Fsync => fs.fsync(ino, false).unwrap(),
        Change::Merge => fs.merge().unwrap(),
        Change::Reopen => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn a_file_holds_what_was_written(changes in proptest::collection::vec(change(), 1..60)) {
        let device = Arc::new(MemoryDevice::new(256 << 20));
        make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        let mut fs = FileSystem::open_device(device.clone(), &options(false)).unwrap();
        let ino = fs.mknod(1, b"f", 0o100_644, 0, Creds::default()).unwrap().ino;
        let mut model = Vec::new();
        for (i, change) in changes.iter().enumerate() {
            change_both(&fs, ino, &mut model, change, i);
            if matches!(change, Change::Reopen) {
                fs.close().unwrap();
                drop(fs);
                assert_sound(&*device, "reopened");
                fs = FileSystem::open_device(device.clone(), &options(false)).unwrap();
                fs.lookup(1, b"f").unwrap();
            }
            prop_assert_eq!(fs.getattr(ino).unwrap().size as usize, model.len());
            let mut got = vec![7; model.len() + 10];
            prop_assert_eq!(fs.read(ino, 0, &mut got).unwrap(), model.len());
            got.truncate(model.len());
            let differs = got.iter().zip(&model).position(|(a, b)| a != b);
            prop_assert_eq!(differs, None, "{:?}", change);
        }
        fs.forget(ino, 1);
        fs.close().unwrap();
        assert_sound(&*device, "closed");
    }
}
