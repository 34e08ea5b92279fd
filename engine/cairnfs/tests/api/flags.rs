//! Inode flags: the calls that append-only and immutable refuse, also for the superuser, and
//! durability of the flags.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use cairnfs::fs::FileSystem;
use cairnfs::{Error, FileTimes, Flags, OpenOptions, Result, Volume};
use cairnfs_disk::types::{Creds, Fallocate, RenameMode, SetAttr, SetTime, Time, XattrMode};

use crate::{fails_with, volume};

const SIZE: u64 = 10_000;

/// What would clear a set-id bit of an append-only file changes its mode, and is refused.
#[test]
fn append_only_file_keeps_its_set_id_bits() {
    let volume = volume();
    let fs = volume.file_system();
    volume.write("f", b"contents").unwrap();
    let mode = |bits| volume.set_permissions("f", Permissions::from_mode(bits));
    mode(0o6777).unwrap();
    volume.set_flags("f", Flags::APPEND).unwrap();
    let f = ino(&volume, "f");
    let allocate = |kill| {
        let keep_size = Fallocate::Allocate { keep_size: true };
        fs.fallocate(f, 0, 10_000, keep_size, kill)
    };
    let touch = |kill: bool| {
        let nothing = set(|set| set.kill_privileges = kill.into());
        fs.setattr(f, &nothing).map(drop)
    };
    let changes: [&dyn Fn(bool) -> Result<()>; 3] = [
        &|kill| fs.append(f, b"more", kill).map(drop),
        &allocate,
        &touch,
    ];
    for change in changes {
        assert!(matches!(change(true), Err(Error::NotPermitted(_))));
        change(false).unwrap();
        assert_eq!(volume.metadata("f").unwrap().mode() & 0o7777, 0o6777);
    }
    volume.set_flags("f", Flags::default()).unwrap();
    mode(0o777).unwrap();
    volume.set_flags("f", Flags::APPEND).unwrap();
    changes.iter().for_each(|change| change(true).unwrap());
}

fn set(change: impl FnOnce(&mut SetAttr)) -> SetAttr {
    let mut set = SetAttr::default();
    change(&mut set);
    set
}

fn ino(volume: &Volume, path: &str) -> u64 {
    volume.symlink_metadata(path).unwrap().ino()
}

/// A change of the file `d/f`, its directory `d`, or other files with the two. The numbers are the
/// inodes of `d` and `d/f`.
type Change = fn(&Volume, &FileSystem, (u64, u64)) -> Result<()>;

/// Whether the change is refused: for an append-only file, for an immutable file, in an append-only
/// directory, in an immutable directory.
type Refused = [bool; 4];

const NOT_IN_DIRS: Refused = [true, true, false, false];
const NOT_OF_IMMUTABLE: Refused = [false, true, false, false];

const CHANGES: &[(&str, Refused, Change)] = &[
    ("write", NOT_IN_DIRS, |_, fs, (_, f)| {
        fs.write(f, SIZE - 1, b"xy", false).map(drop)
    }),
    ("write at the end", NOT_OF_IMMUTABLE, |_, fs, (_, f)| {
        fs.write(f, SIZE, b"xy", false).map(drop)
    }),
    ("append", NOT_OF_IMMUTABLE, |_, fs, (_, f)| {
        fs.append(f, b"xy", false).map(drop)
    }),
    ("copy", NOT_IN_DIRS, |volume, fs, (_, f)| {
        fs.copy_range(ino(volume, "other"), 0, f, 0, 10, false)
            .map(drop)
    }),
    ("open for writing", NOT_IN_DIRS, |volume, _, _| {
        volume
            .open_with("d/f", OpenOptions::new().write(true))
            .map(drop)
    }),
    ("open for appending", NOT_OF_IMMUTABLE, |volume, _, _| {
        volume
            .open_with("d/f", OpenOptions::new().append(true))
            .map(drop)
    }),
    ("truncate", NOT_IN_DIRS, |_, fs, (_, f)| {
        fs.setattr(f, &set(|s| s.size = Some(1))).map(drop)
    }),
    ("truncate up", NOT_IN_DIRS, |_, fs, (_, f)| {
        fs.setattr(f, &set(|s| s.size = Some(2 * SIZE))).map(drop)
    }),
    ("allocate", NOT_OF_IMMUTABLE, |_, fs, (_, f)| {
        let keep_size = false;
        fs.fallocate(f, SIZE, 9000, Fallocate::Allocate { keep_size }, false)
    }),
    ("allocate again", NOT_OF_IMMUTABLE, |_, fs, (_, f)| {
        let keep_size = true;
        fs.fallocate(f, 0, 9000, Fallocate::Allocate { keep_size }, false)
    }),
    ("punch", NOT_IN_DIRS, |_, fs, (_, f)| {
        fs.fallocate(f, 0, 8192, Fallocate::PunchHole, false)
    }),
    ("zero", NOT_IN_DIRS, |_, fs, (_, f)| {
        let keep_size = true;
        fs.fallocate(f, SIZE, 100, Fallocate::ZeroRange { keep_size }, false)
    }),
    ("chmod", NOT_IN_DIRS, |volume, _, _| {
        volume.set_permissions("d/f", Permissions::from_mode(0o600))
    }),
    ("chown", NOT_IN_DIRS, |volume, _, _| {
        volume.chown("d/f", Some(7), None)
    }),
    ("utimes", NOT_IN_DIRS, |volume, _, _| {
        let times = FileTimes::new().set_modified(std::time::UNIX_EPOCH);
        volume.set_times("d/f", times)
    }),
    ("touch", NOT_OF_IMMUTABLE, |_, fs, (_, f)| {
        let now = Some(SetTime::Now);
        let times = set(|s| (s.atime, s.mtime) = (now, now));
        fs.setattr(f, &times).map(drop)
    }),
    ("touch one", NOT_IN_DIRS, |_, fs, (_, f)| {
        let times = set(|s| s.mtime = Some(SetTime::Now));
        fs.setattr(f, &times).map(drop)
    }),
    ("nothing", NOT_OF_IMMUTABLE, |_, fs, (_, f)| {
        fs.setattr(f, &SetAttr::default()).map(drop)
    }),
    ("setxattr", NOT_IN_DIRS, |_, fs, (_, f)| {
        fs.setxattr(f, b"user.b", b"1", XattrMode::Set)
    }),
    ("removexattr", NOT_IN_DIRS, |_, fs, (_, f)| {
        fs.removexattr(f, b"user.a")
    }),
    ("link", [true, true, false, false], |_, fs, (_, f)| {
        let link = fs.link(f, 1, b"link");
        link.map(|attr| fs.forget(attr.ino, 1))
    }),
    ("unlink", [true; 4], |volume, _, _| {
        volume.remove_file("d/f")
    }),
    ("rename away", [true; 4], |volume, _, _| {
        volume.rename("d/f", "moved")
    }),
    ("rename within", [true; 4], |volume, _, _| {
        volume.rename("d/f", "d/g")
    }),
    ("rename over it", [true; 4], |volume, _, _| {
        volume.rename("other", "d/f")
    }),
    ("exchange", [true; 4], |_, fs, (d, _)| {
        fs.rename(1, b"other", d, b"f", RenameMode::Exchange)
    }),
    ("whiteout", [true; 4], |_, fs, (d, _)| {
        let owner = Creds::default();
        let replace = true;
        fs.rename(d, b"f", 1, b"w", RenameMode::Whiteout { owner, replace })
    }),
    (
        "rename into",
        [false, false, false, true],
        |volume, _, _| volume.rename("other", "d/new"),
    ),
    ("create", [false, false, false, true], |volume, _, _| {
        volume.write("d/new", "x")
    }),
    ("mkdir", [false, false, false, true], |volume, _, _| {
        volume.create_dir("d/new")
    }),
    ("symlink", [false, false, false, true], |volume, _, _| {
        volume.symlink("f", "d/new")
    }),
    ("link into", [false, false, false, true], |volume, _, _| {
        volume.hard_link("other", "d/new")
    }),
    ("tmpfile", [false, false, false, true], |_, fs, (d, _)| {
        let made = fs.tmpfile(d, 0o600, Creds::default());
        made.map(|attr| fs.forget(attr.ino, 1))
    }),
    (
        "rename the directory",
        [false, false, true, true],
        |volume, _, _| volume.rename("d", "e"),
    ),
    ("rmdir", [false, false, true, true], |_, fs, _| {
        match fs.rmdir(1, b"d") {
            Err(Error::NotEmpty) => Ok(()),
            other => other,
        }
    }),
    (
        "chmod the directory",
        [false, false, true, true],
        |volume, _, _| volume.set_permissions("d", Permissions::from_mode(0o700)),
    ),
    ("read", [false; 4], |volume, _, _| {
        let bytes = volume.read("d/f")?;
        assert_eq!(bytes.len() as u64, SIZE);
        assert!(volume.get_xattr("d/f", "user.a")?.is_some());
        Ok(())
    }),
];

/// A volume with the file `d/f`, and `other`.
fn prepared() -> Volume {
    let volume = volume();
    volume.create_dir("d").unwrap();
    volume.write("d/f", vec![1; SIZE as usize]).unwrap();
    volume.set_xattr("d/f", "user.a", "1").unwrap();
    volume.write("other", "other").unwrap();
    volume
}

/// Contract: posix.flags
#[test]
fn append_only_and_immutable_refuse_listed_changes() {
    let flagged = [
        ("d/f", Flags::APPEND),
        ("d/f", Flags::IMMUTABLE),
        ("d", Flags::APPEND),
        ("d", Flags::IMMUTABLE),
    ];
    for (name, refused, change) in CHANGES {
        for ((path, flags), refused) in flagged.into_iter().zip(refused) {
            let volume = prepared();
            let fs = volume.file_system().clone();
            let place = (ino(&volume, "d"), ino(&volume, "d/f"));
            volume.set_flags(path, flags).unwrap();
            let before = [volume.metadata("d"), volume.metadata("d/f")].map(Result::unwrap);
            let outcome = change(&volume, &fs, place);
            let context = format!("{name} with {flags:?} of {path}: {outcome:?}");
            if !refused {
                assert!(outcome.is_ok(), "{context}");
                continue;
            }
            let error = outcome.unwrap_err();
            assert!(matches!(error.cause(), Error::NotPermitted(_)), "{context}");
            let after = [volume.metadata("d"), volume.metadata("d/f")].map(Result::unwrap);
            assert_eq!(before, after, "{context}");
            volume.set_flags(path, Flags::NONE).unwrap();
            change(&volume, &fs, place).unwrap();
        }
    }
}

#[test]
fn flags_are_durable_and_update_ctime() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("v");
    let volume = Volume::create(&image, 64 << 20).unwrap();
    volume.write("f", "x").unwrap();
    let before = volume.metadata("f").unwrap();
    let all = Flags::APPEND.with(Flags::NODUMP).with(Flags::IMMUTABLE);
    volume.set_flags("f", all).unwrap();
    let after = volume.metadata("f").unwrap();
    assert!(after.changed().unwrap() > before.changed().unwrap());
    assert_eq!(after.modified().unwrap(), before.modified().unwrap());
    volume.close().unwrap();
    let volume = Volume::open(&image).unwrap();
    assert_eq!(volume.metadata("f").unwrap().flags(), all);
    fails_with(volume.write("f", "y"), libc::EPERM);
}

#[test]
fn immutable_file_refuses_other_flag_changes() {
    let volume = prepared();
    volume.set_flags("d/f", Flags::IMMUTABLE).unwrap();
    volume.set_flags("d/f", Flags::IMMUTABLE).unwrap();
    let more = Flags::IMMUTABLE.with(Flags::NODUMP);
    fails_with(volume.set_flags("d/f", more), libc::EPERM);
    volume.set_flags("d/f", Flags::NODUMP).unwrap();
}

#[test]
fn only_nodump_is_inherited() {
    let volume = prepared();
    let flags = |path: &str| volume.symlink_metadata(path).unwrap().flags();
    volume
        .set_flags("d", Flags::NODUMP.with(Flags::APPEND))
        .unwrap();
    volume.create_dir("d/s").unwrap();
    volume.write("d/s/f", "x").unwrap();
    volume.symlink("f", "d/l").unwrap();
    volume.rename("other", "d/o").unwrap();
    for path in ["d/s", "d/s/f", "d/l"] {
        assert_eq!(flags(path), Flags::NODUMP, "{path}");
    }
    assert_eq!(flags("d/o"), Flags::NONE);
    let symlink = set(|s| s.flags = Some(Flags::NONE));
    let link = volume.symlink_metadata("d/l").unwrap().ino();
    let refused = volume.file_system().setattr(link, &symlink).unwrap_err();
    assert!(matches!(refused.cause(), Error::Unsupported(_)));
}

/// Contract: posix.flags
#[test]
fn data_written_before_immutable_flag_is_kept() {
    let volume = prepared();
    let fs = volume.file_system();
    let f = ino(&volume, "d/f");
    fs.write(f, 0, &[9; 20_000], false).unwrap();
    volume.set_flags("d/f", Flags::IMMUTABLE).unwrap();
    let early = Time { secs: 1, nanos: 0 };
    let times = set(|s| s.mtime = Some(SetTime::At(early)));
    assert!(fs.setattr(f, &times).is_err());
    volume.sync().unwrap();
    assert_eq!(volume.read("d/f").unwrap(), [9; 20_000]);
}
