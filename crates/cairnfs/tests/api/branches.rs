//! Branches and snapshots of an open volume: independent trees with one cache, log and life.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cairnfs::{Error, Result, Volume};
use cairnfs_disk::device::{Device, MemoryDevice};

use super::engine::{OWNER, ROOT, copy, create, fresh, open};
use super::{SIZE, fails, names, volume};

fn root_names(volume: &Volume) -> Vec<String> {
    let mut names: Vec<_> = volume.roots().into_iter().filter_map(|r| r.name).collect();
    names.sort();
    names
}

#[test]
fn branch_begins_as_its_tree_and_is_independent() {
    let main = volume();
    main.create_dir_all("d/e").unwrap();
    main.write("d/f", "first").unwrap();
    let one = main.branch("one").unwrap();
    one.write("d/f", "second").unwrap();
    let two = one.branch("two").unwrap();
    two.rename("d/f", "g").unwrap();
    main.remove_dir_all("d").unwrap();
    assert_eq!(names(&main, "/"), [""; 0]);
    assert_eq!(one.read("d/f").unwrap(), b"second");
    assert_eq!(names(&one, "d"), ["e", "f"]);
    assert_eq!(two.read("g").unwrap(), b"second");
    assert_eq!(names(&two, "d"), ["e"]);
    assert_eq!(root_names(&main), ["main", "one", "two"]);
    let told = [&main, &one, &two].map(|v| v.name().unwrap());
    assert_eq!(told, ["main", "one", "two"]);
}

#[test]
fn branches_of_snapshots_in_any_depth() {
    let main = volume();
    let mut at = main.clone();
    for depth in 0..8 {
        at.write(format!("f{depth}"), vec![depth as u8; 5000])
            .unwrap();
        at.snapshot(&format!("s{depth}")).unwrap();
        at.write("later", "after the snapshot").unwrap();
        let snapshot = at.open_branch(&format!("s{depth}")).unwrap();
        fails(snapshot.read("later"), ErrorKind::NotFound);
        at = snapshot.branch(&format!("b{depth}")).unwrap();
    }
    assert_eq!(names(&at, "/").len(), 8);
    for depth in 0..8 {
        let read = at.read(format!("f{depth}")).unwrap();
        assert_eq!(read, vec![depth as u8; 5000]);
    }
    assert_eq!(names(&main, "/"), ["f0", "later"]);
}

#[test]
fn all_branches_are_there_after_reopening() {
    let device = Arc::new(MemoryDevice::new(SIZE));
    let main = Volume::options().create_device(device.clone()).unwrap();
    main.write("f", "main").unwrap();
    let one = main.branch("one").unwrap();
    one.write("f", "one").unwrap();
    one.snapshot("kept").unwrap();
    one.write("f", "one later").unwrap();
    drop(one);
    main.close().unwrap();
    for writable in [true, false] {
        let options = Volume::options().read_only(!writable);
        let main = options.open_device(device.clone()).unwrap();
        let read = |name: &str| main.open_branch(name).unwrap().read_to_string("f").unwrap();
        assert_eq!(
            ["main", "one", "kept"].map(read),
            ["main", "one later", "one"]
        );
        main.close().unwrap();
    }
    let one = Volume::options().root("one").open_device(device).unwrap();
    one.write("f", "opened alone").unwrap();
    assert_eq!(one.open_branch("main").unwrap().read("f").unwrap(), b"main");
}

#[test]
fn snapshot_of_a_writable_volume_is_read_only() {
    let main = volume();
    main.write("f", "kept").unwrap();
    main.snapshot("s").unwrap();
    let s = main.open_branch("s").unwrap();
    assert!(s.is_read_only() && !main.is_read_only());
    let writing = cairnfs::OpenOptions::new().write(true).clone();
    let opened = s.open_with("f", &writing);
    fails(
        opened.and_then(|f| f.set_len(0)),
        ErrorKind::ReadOnlyFilesystem,
    );
    let refused: [Result<()>; 8] = [
        s.write("f", "changed"),
        s.write("g", "new"),
        s.create_dir("d"),
        s.rename("f", "g"),
        s.remove_file("f"),
        s.set_permissions("f", super::permissions(0o600)),
        s.set_xattr("f", "user.a", b"x"),
        s.snapshot("of a snapshot"),
    ];
    for result in refused {
        fails(result, ErrorKind::ReadOnlyFilesystem);
    }
    s.open_file("f").unwrap().sync_all().unwrap();
    s.sync().unwrap();
    assert_eq!(s.read("f").unwrap(), b"kept");
}

#[test]
fn fork_has_every_call_that_had_returned_and_its_unwritten_data() {
    let device = fresh();
    let fs = open(device.clone());
    let main = Volume::from(fs.clone());
    main.write("long", vec![3; 300_000]).unwrap();
    main.write("short", "inline").unwrap();
    main.snapshot("s").unwrap();
    main.branch("b").unwrap();
    let later = open(copy(&device));
    for name in ["s", "b"] {
        let root = Volume::from(later.open_named(name).unwrap());
        assert_eq!(root.read("long").unwrap(), vec![3; 300_000], "{name}");
        assert_eq!(root.read("short").unwrap(), b"inline", "{name}");
    }
}

#[test]
fn sync_of_any_branch_is_of_the_whole_volume() {
    let device = fresh();
    let main = Volume::from(open(device.clone()));
    let branches = ["a", "b", "c"].map(|name| main.branch(name).unwrap());
    for branch in &branches {
        branch.write("f", vec![1; 50_000]).unwrap();
    }
    let [a, b, c] = branches;
    // Nothing but its unwritten data keeps this one open.
    drop(c);
    a.sync().unwrap();
    drop((a, b));
    let later = open(copy(&device));
    for name in ["a", "b", "c"] {
        let branch = Volume::from(later.open_named(name).unwrap());
        assert_eq!(branch.read("f").unwrap(), vec![1; 50_000], "{name}");
    }
}

#[test]
fn fsync_of_a_branch_keeps_its_file() {
    let device = fresh();
    let main = Volume::from(open(device.clone()));
    let branch = main.branch("b").unwrap();
    main.write("f", "not synced").unwrap();
    branch.write("f", "synced").unwrap();
    branch.open_file("f").unwrap().sync_all().unwrap();
    let later = Volume::from(open(copy(&device)));
    let branch = later.open_branch("b").unwrap();
    assert_eq!(branch.read("f").unwrap(), b"synced");
    fails(later.read("f"), ErrorKind::NotFound);
}

#[test]
fn files_of_another_branch_are_refused_in_one_sync() {
    let main = volume();
    main.write("f", "x").unwrap();
    let branch = main.branch("b").unwrap();
    let (own, other) = (main.open_file("f").unwrap(), branch.open_file("f").unwrap());
    fails(main.sync_files(&[&own, &other]), ErrorKind::InvalidInput);
    let again = main.open_branch("main").unwrap();
    again.sync_files(&[&own]).unwrap();
}

#[test]
fn handles_to_one_branch_are_one_tree() {
    let main = volume();
    let made = main.branch("b").unwrap();
    let opened = main.open_branch("b").unwrap();
    made.write("f", "one tree").unwrap();
    assert_eq!(opened.read("f").unwrap(), b"one tree");
    opened.rename("f", "g").unwrap();
    fails(made.read("f"), ErrorKind::NotFound);
    drop(made);
    assert_eq!(opened.read("g").unwrap(), b"one tree");
}

#[test]
fn last_handle_of_any_root_closes_the_volume() {
    let device = Arc::new(MemoryDevice::new(SIZE));
    let main = Volume::options().create_device(device.clone()).unwrap();
    let branch = main.branch("b").unwrap();
    drop(main);
    branch
        .write("f", "after the main tree was dropped")
        .unwrap();
    drop(branch);
    let main = Volume::options().open_device(device.clone()).unwrap();
    let branch = main.open_branch("b").unwrap();
    assert_eq!(
        branch.read("f").unwrap(),
        b"after the main tree was dropped"
    );
    main.close().unwrap();
    fails(branch.write("f", "closed"), ErrorKind::InvalidInput);
}

#[test]
fn names_are_changed_unique_and_found() {
    let main = volume();
    let branch = main.branch("b").unwrap();
    main.snapshot("s").unwrap();
    assert!(matches!(main.branch("s"), Err(Error::Exists)));
    assert!(matches!(main.branch("b/c"), Err(Error::Invalid(_))));
    assert!(matches!(
        main.open_branch("none"),
        Err(Error::NoSnapshot(_))
    ));
    assert!(matches!(
        main.rename_root("none", "x"),
        Err(Error::NoSnapshot(_))
    ));
    assert!(matches!(main.rename_root("b", "s"), Err(Error::Exists)));
    assert!(matches!(
        main.rename_root("main", "x"),
        Err(Error::NotPermitted(_))
    ));
    branch.write("f", "before").unwrap();
    main.rename_root("b", "c").unwrap();
    branch.write("g", "after").unwrap();
    assert_eq!(branch.name().as_deref(), Some("c"));
    assert!(matches!(main.open_branch("b"), Err(Error::NoSnapshot(_))));
    let found = main.open_branch("c").unwrap();
    assert_eq!(names(&found, "/"), ["f", "g"]);
    main.branch("b").unwrap();
}

/// What was open and had no name stays in the old tree and is not in the new one; a truncation that
/// was not finished is finished in both.
#[test]
fn restore_path_of_open_unlinked() {
    let device = fresh();
    let fs = open(device.clone());
    let ino = create(&fs, "f");
    fs.write(ino, 0, &[5; 100_000], false).unwrap();
    fs.sync().unwrap();
    fs.lookup(ROOT, b"f").unwrap();
    fs.unlink(ROOT, b"f").unwrap();
    let branch = fs.open_root(fs.branch("b").unwrap()).unwrap();
    assert!(matches!(branch.getattr(ino), Err(Error::NotFound)));
    assert!(matches!(branch.lookup_number(ino), Err(Error::NotFound)));
    let mut bytes = [0; 100];
    assert_eq!(fs.read(ino, 50_000, &mut bytes).unwrap(), 100);
    assert_eq!(bytes, [5; 100]);
    // The numbers of the old tree are not given to other files of the new one.
    let new = branch.mknod(ROOT, b"new", 0o100_644, 0, OWNER).unwrap();
    assert_ne!(new.ino, ino);
    fs.forget(ino, 2);
    assert!(matches!(fs.getattr(ino), Err(Error::NotFound)));
    fs.sync().unwrap();
    let later = open(copy(&device));
    let branch = later.open_named("b").unwrap();
    assert!(matches!(branch.getattr(ino), Err(Error::NotFound)));
    assert!(matches!(later.getattr(ino), Err(Error::NotFound)));
}

/// A branch that was replaced keeps its files readable for those that have it open, and takes no
/// change any more; its unwritten data does not come up again.
#[test]
fn replaced_branch_is_stale_for_open_handles() {
    let device = fresh();
    let fs = open(device.clone());
    let main = Volume::from(fs.clone());
    main.write("f", "before").unwrap();
    let trial = main.branch("trial").unwrap();
    trial.write("f", "published").unwrap();
    let mut file = main
        .open_with("f", cairnfs::OpenOptions::new().append(true))
        .unwrap();
    std::io::Write::write_all(&mut file, b" and appended").unwrap();
    fs.replace_by(trial.file_system(), "main before", None)
        .unwrap();
    assert_eq!(main.name().as_deref(), Some("main before"));
    assert_eq!(trial.name().as_deref(), Some("main"));
    assert_eq!(main.read("f").unwrap(), b"before and appended");
    let appended = std::io::Write::write_all(&mut file, b"lost");
    assert_eq!(
        appended.unwrap_err().kind(),
        ErrorKind::StaleNetworkFileHandle
    );
    fails(file.sync_all(), ErrorKind::StaleNetworkFileHandle);
    fails(
        main.write("g", "refused"),
        ErrorKind::StaleNetworkFileHandle,
    );
    fails(main.remove_file("f"), ErrorKind::StaleNetworkFileHandle);
    fails(main.snapshot("s"), ErrorKind::StaleNetworkFileHandle);
    // What is refused changes nothing of what is read on.
    let seen = |name| {
        let meta = main.metadata(name).unwrap();
        let modified = meta.modified().unwrap();
        (
            meta.permissions().mode(),
            meta.nlink(),
            meta.changed().unwrap(),
            modified,
        )
    };
    let before = (seen("f"), seen("/"));
    let refused = ErrorKind::StaleNetworkFileHandle;
    fails(
        main.set_permissions("f", Permissions::from_mode(0o7)),
        refused,
    );
    fails(main.set_xattr("f", "user.x", b"x"), refused);
    fails(main.hard_link("f", "h"), refused);
    fails(main.rename("f", "r"), refused);
    fails(main.create_dir("d"), refused);
    fails(file.set_len(1), refused);
    assert_eq!((seen("f"), seen("/")), before);
    assert_eq!(main.read("f").unwrap(), b"before and appended");
    main.sync().unwrap();
    let kept = main.open_branch("main before").unwrap();
    assert!(kept.is_read_only());
    assert_eq!(kept.read("f").unwrap(), b"before and appended");
    fails(kept.write("f", "x"), ErrorKind::ReadOnlyFilesystem);
    trial.write("f", "later").unwrap();
    trial.sync().unwrap();
    let later = Volume::from(open(copy(&device)));
    assert_eq!(later.read("f").unwrap(), b"later");
    let kept = later.open_branch("main before").unwrap();
    assert_eq!(kept.read("f").unwrap(), b"before and appended");
    let base_changed = later.branch("next").unwrap();
    let since = kept.file_system().root_id();
    let swapped = later
        .file_system()
        .replace_by(base_changed.file_system(), "kept", Some(since));
    fails(swapped, ErrorKind::StaleNetworkFileHandle);
}

/// A device that counts the bytes read.
struct Counted {
    memory: MemoryDevice,
    read: AtomicU64,
}

impl Device for Counted {
    fn size(&self) -> u64 {
        self.memory.size()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.memory.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.memory.write(offset, buf)
    }

    fn flush(&self) -> Result<()> {
        self.memory.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.memory.discard(offset, len)
    }
}

/// Blocks that many branches share are in the cache once.
#[test]
fn branches_share_cached_blocks() {
    const BYTES: usize = 4 << 20;
    const BRANCHES: usize = 50;
    let device = Arc::new(Counted {
        memory: MemoryDevice::new(SIZE),
        read: AtomicU64::new(0),
    });
    let options = Volume::options().cache_budget(256 << 20);
    let main = options.clone().create_device(device.clone()).unwrap();
    main.write("f", vec![9; BYTES]).unwrap();
    for n in 0..BRANCHES {
        main.branch(&format!("b{n}")).unwrap();
    }
    main.close().unwrap();
    let main = options.open_device(device.clone()).unwrap();
    let open = |n| main.open_branch(&format!("b{n}")).unwrap();
    let branches: Vec<_> = (0..BRANCHES).map(open).collect();
    let before = device.read.load(Ordering::Relaxed);
    for branch in &branches {
        assert_eq!(branch.read("f").unwrap().len(), BYTES);
    }
    let read = device.read.load(Ordering::Relaxed) - before;
    let most = BYTES as u64 * 3 / 2;
    assert!((BYTES as u64..most).contains(&read), "{read} bytes read");
}

#[test]
fn threads_work_on_different_branches_at_once() {
    let main = volume();
    main.create_dir("shared").unwrap();
    main.write("shared/f", vec![0; 100_000]).unwrap();
    let branches: Vec<_> = (0..4)
        .map(|n| main.branch(&format!("b{n}")).unwrap())
        .collect();
    std::thread::scope(|scope| {
        for (n, branch) in branches.iter().enumerate() {
            scope.spawn(move || {
                for round in 0..200_usize {
                    let name = format!("shared/{round}");
                    branch.write(&name, vec![n as u8; 100 * round]).unwrap();
                    match round % 10 {
                        3 => branch.open_file(&name).unwrap().sync_all().unwrap(),
                        5 => branch.snapshot(&format!("s{n}-{round}")).unwrap(),
                        7 => branch.remove_file(&name).unwrap(),
                        _ => branch.rename(&name, format!("{name}-{n}")).unwrap(),
                    }
                }
                branch.write("shared/f", vec![n as u8; 100_000]).unwrap();
            });
        }
    });
    assert_eq!(names(&main, "shared"), ["f"]);
    for (n, branch) in branches.iter().enumerate() {
        assert_eq!(branch.read("shared/f").unwrap(), vec![n as u8; 100_000]);
        let left: BTreeSet<_> = names(branch, "shared").into_iter().collect();
        assert_eq!(left.len(), 1 + 200 - 20, "branch {n}");
        let snapshot = main.open_branch(&format!("s{n}-195")).unwrap();
        assert_eq!(snapshot.read("shared/195").unwrap(), vec![n as u8; 19_500]);
    }
}
