//! Operations for threads that must not wait for the device, because they serve a queue alone.

use crate::fs::FileSystem;
use cairnfs_disk::device::waiting::{self, Waits};
use cairnfs_disk::error::Result;

impl FileSystem {
    /// Runs operations of this file system without waiting for the device: one that would have to
    /// wait fails with [`Error::WouldWait`](cairnfs_disk::error::Error::WouldWait), and is to be repeated in
    /// a thread that may. It may still wait for another operation on the same inode. Calls of an
    /// observed volume wait, because each is observed once.
    pub fn without_waiting<T>(&self, op: impl FnOnce() -> T) -> (T, Waits) {
        if self.engine.watch.is_some() {
            (op(), Waits::default())
        } else {
            waiting::without(op)
        }
    }

    /// Waits for what operations without waiting have left out.
    ///
    /// # Errors
    /// The volume has failed. The operation's changes may not become durable.
    pub fn settle(&self, waits: Waits) -> Result<()> {
        let Some(seq) = waits.owed else {
            return Ok(());
        };
        if self.engine.pages.is_full() {
            // As after a write: what a file's error keeps from being written stays accepted.
            let _ = self.write_back_until(|| self.engine.pages.has_room());
        }
        self.core().settle(seq)
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use crate::fs::{FileSystem, MakeOptions, Options, make_device};
    use cairnfs_disk::device::{Device, MemoryDevice};
    use cairnfs_disk::error::{Error, Result};
    use cairnfs_disk::format::ROOT_INO;
    use cairnfs_disk::types::{Creds, KillPrivileges, RenameMode, SetAttr, XattrMode};

    const CREDS: Creds = Creds { uid: 0, gid: 0 };
    const FILES: u64 = 400;

    fn name(n: u64) -> Vec<u8> {
        format!("file number {n:060}").into_bytes()
    }

    fn open(device: &Arc<MemoryDevice>) -> Arc<FileSystem> {
        let device: Arc<dyn Device> = Arc::clone(device) as _;
        FileSystem::open_device(device, &Options::default()).unwrap()
    }

    /// A volume whose index has several levels, and none of it in memory.
    fn cold() -> Arc<FileSystem> {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        let fs = open(&device);
        for n in 0..FILES {
            let made = fs.mknod(ROOT_INO, &name(n), 0o100_644, 0, CREDS).unwrap();
            fs.write(made.ino, 0, &vec![n as u8; 9000], false).unwrap();
            fs.setxattr(made.ino, b"user.text", &[7; 300], XattrMode::Set)
                .unwrap();
        }
        fs.close().unwrap();
        open(&device)
    }

    type Names = BTreeMap<Vec<u8>, u64>;

    fn names(fs: &FileSystem) -> Names {
        let mut found = Names::new();
        let each = &mut |entry: cairnfs_disk::types::EntryRef<'_>| {
            found.insert(entry.name.to_vec(), entry.ino);
            true
        };
        fs.readdir(ROOT_INO, 0, each).unwrap();
        found
    }

    /// Size, mode, number of names and contents of a file.
    type Contents = (u64, u32, u32, Vec<u8>);

    /// What an operation may change, read in a thread that may wait.
    fn state(fs: &FileSystem, ino: u64) -> (Names, Option<Contents>) {
        let attr = fs.getattr(ino).ok().map(|attr| {
            let mut bytes = vec![0; 20_000];
            let len = fs.read(ino, 0, &mut bytes).unwrap();
            bytes.truncate(len);
            (attr.size, attr.mode, attr.nlink, bytes)
        });
        (names(fs), attr)
    }

    type Op = fn(&FileSystem, u64) -> Result<()>;

    const OPERATIONS: [Op; 14] = [
        |fs, ino| fs.getattr(ino).map(drop),
        |fs, _| fs.lookup(ROOT_INO, &name(200)).map(drop),
        |fs, ino| fs.read(ino, 5000, &mut [0; 3000]).map(drop),
        |fs, ino| fs.write(ino, 100, b"part of a block", false).map(drop),
        |fs, ino| fs.write(ino, 12_345, &[1; 5000], false).map(drop),
        |fs, _| fs.mknod(ROOT_INO, b"new", 0o100_600, 0, CREDS).map(drop),
        |fs, _| fs.mkdir(ROOT_INO, b"new", 0o40_700, CREDS).map(drop),
        |fs, ino| fs.link(ino, ROOT_INO, b"second").map(drop),
        |fs, _| fs.unlink(ROOT_INO, &name(200)),
        |fs, _| {
            let to = name(17);
            fs.rename(ROOT_INO, &name(200), ROOT_INO, &to, RenameMode::Replace)
                .map(drop)
        },
        |fs, ino| {
            let set = SetAttr {
                mode: Some(0o600),
                size: Some(4321),
                kill_privileges: KillPrivileges::No,
                ..SetAttr::default()
            };
            fs.setattr(ino, &set).map(drop)
        },
        |fs, ino| fs.getxattr(ino, b"user.text").map(drop),
        |fs, ino| fs.setxattr(ino, b"user.text", &[8; 500], XattrMode::Replace),
        |fs, ino| fs.removexattr(ino, b"user.text"),
    ];

    #[test]
    fn refused_operations_change_nothing_and_succeed_when_repeated() {
        for (n, op) in OPERATIONS.iter().enumerate() {
            let fs = cold();
            let (first, waits) = fs.without_waiting(|| op(&fs, 200 + 2));
            assert!(waits.refused, "operation {n} read nothing");
            assert!(matches!(first, Err(Error::WouldWait)), "{n}: {first:?}");
            let other = cold();
            let ino = names(&other)[&name(200)];
            assert_eq!(state(&fs, ino), state(&other, ino), "operation {n}");
            let fs = cold();
            // Each attempt is made with a little more of the volume in memory.
            let (ino, mut refused) = (ino, 0);
            loop {
                let (done, waits) = fs.without_waiting(|| op(&fs, ino));
                match done {
                    Err(Error::WouldWait) => refused += 1,
                    done => {
                        done.unwrap();
                        break;
                    }
                }
                assert!(waits.refused && refused < 20, "operation {n}");
                match refused {
                    1 => drop(fs.lookup(ROOT_INO, &name(3)).unwrap()),
                    2 => drop(fs.getattr(ino).unwrap()),
                    3 => drop(names(&fs)),
                    4 => drop(fs.lookup(ROOT_INO, b"new").is_ok()),
                    5 => drop(fs.lookup(ROOT_INO, b"second").is_ok()),
                    6 => drop(fs.lookup(ROOT_INO, &name(200)).unwrap()),
                    7 => drop(fs.lookup(ROOT_INO, &name(17)).unwrap()),
                    8 => drop(fs.getxattr(ino, b"user.text").unwrap()),
                    9 => drop(fs.read(ino, 0, &mut [0; 9000]).unwrap()),
                    _ => drop(state(&fs, ino)),
                }
            }
            assert!(refused > 0);
            op(&other, ino).unwrap();
            assert_eq!(state(&fs, ino), state(&other, ino), "operation {n}");
        }
    }

    #[test]
    fn writer_owes_the_wait_for_log_and_memory() {
        let device = Arc::new(MemoryDevice::new(256 << 20));
        make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        let options = Options {
            workers: false,
            ..Options::default()
        };
        let fs = FileSystem::open_device(device, &options).unwrap();
        let mut owed = 0;
        for n in 0..20_000 {
            let made = || fs.mknod(ROOT_INO, &name(n), 0o100_644, 0, CREDS);
            let (made, waits) = fs.without_waiting(made);
            match made {
                Ok(_) if waits.owed.is_some() => {
                    owed += 1;
                    fs.settle(waits).unwrap();
                    let again = fs.without_waiting(|| fs.getattr(ROOT_INO)).1;
                    assert_eq!(again.owed, None);
                }
                Ok(_) => {}
                // The log is full: a merge is to be waited for.
                Err(Error::WouldWait) => fs.merge().unwrap(),
                Err(e) => panic!("{e}"),
            }
        }
        assert!(owed > 0);
    }

    #[test]
    fn waits_for_the_device_are_announced() {
        use std::cell::Cell;
        use std::rc::Rc;
        let fs = cold();
        let calls = Rc::new(Cell::new(0));
        let counted = Rc::clone(&calls);
        cairnfs_disk::device::waiting::announce(move || counted.set(counted.get() + 1));
        let announced = |what: &str, op: &dyn Fn()| {
            let before = calls.get();
            op();
            assert!(calls.get() > before, "{what}");
        };
        let ino = Cell::new(0);
        let look_up = || ino.set(fs.lookup(ROOT_INO, &name(7)).unwrap().ino);
        announced("a cold lookup", &look_up);
        announced("a cold read", &|| {
            fs.read(ino.get(), 0, &mut [0; 100]).unwrap();
        });
        fs.write(ino.get(), 0, b"new", false).unwrap();
        announced("an fsync", &|| fs.fsync(ino.get(), false).unwrap());
        let before = calls.get();
        look_up();
        fs.read(ino.get(), 0, &mut [0; 100]).unwrap();
        assert_eq!(calls.get(), before, "all is in memory");
    }
}
