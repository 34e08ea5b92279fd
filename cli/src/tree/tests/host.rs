//! The host as a sink and as a source while another user swaps entries between any two steps.
//!
//! Contract: copies.failed

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;

use tempfile::TempDir;

use super::*;
use crate::output::Progress;
use crate::tree::host::HostSource;
use crate::tree::{Copier, Source};

/// A target directory, and next to it files that must never be changed.
struct Scene {
    dir: TempDir,
}

impl Scene {
    fn new() -> Self {
        let scene = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        fs::create_dir(scene.at("target")).unwrap();
        fs::create_dir(scene.at("victim")).unwrap();
        fs::set_permissions(scene.at("victim"), fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(scene.at("victim/secret"), b"secret").unwrap();
        let private = fs::Permissions::from_mode(0o600);
        fs::set_permissions(scene.at("victim/secret"), private).unwrap();
        scene
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn sink(&self) -> HostSink {
        HostSink::open(&self.at("target"), Keep::ALL).unwrap()
    }

    fn source(&self) -> HostSource {
        let mut source = HostSource::open(&self.at("target"), true).unwrap();
        source.start().unwrap();
        source.enter().unwrap();
        source
    }

    /// The other user's step: moves the entry `name` away, and puts a link to the victim in its
    /// place.
    fn swap(&self, name: &str, to: &str) {
        let name = self.at(&format!("target/{name}"));
        fs::rename(&name, self.at("taken")).unwrap();
        symlink(self.at(to), name).unwrap();
    }

    fn assert_victim_unchanged(&self) {
        let secret = self.at("victim/secret");
        assert_eq!(fs::read(&secret).unwrap(), b"secret");
        let meta = secret.metadata().unwrap();
        assert_eq!(meta.mode() & 0o7777, 0o600);
        assert_eq!(meta.nlink(), 1);
        assert!(meta.modified().unwrap() > std::time::UNIX_EPOCH + DAY);
        let dir = self.at("victim");
        assert_eq!(dir.metadata().unwrap().mode() & 0o7777, 0o700);
        assert_eq!(fs::read_dir(dir).unwrap().count(), 1);
    }
}

const DAY: std::time::Duration = std::time::Duration::from_secs(86_400);

/// Attributes that are visible if they are set on the wrong inode.
fn meta(kind: FileKind) -> Meta {
    Meta {
        kind,
        mode: 0o666,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        rdev: 0,
        size: 0,
        nlink: 2,
        id: (0, 0),
        atime: Default::default(),
        mtime: Default::default(),
        xattrs: vec![(b"user.mark".to_vec(), b"x".to_vec())],
    }
}

#[test]
fn attributes_follow_the_file_and_not_its_name() {
    let scene = Scene::new();
    let mut sink = scene.sink();
    let meta = meta(FileKind::File);
    sink.begin_file(b"f", &meta, &[]).unwrap();
    sink.write(0, b"data").unwrap();
    scene.swap("f", "victim/secret");
    sink.write(4, b"more").unwrap();
    sink.end_file(b"f", &meta).unwrap();
    assert_eq!(fs::read(scene.at("taken")).unwrap(), b"datamore");
    assert_eq!(scene.at("taken").metadata().unwrap().mode() & 0o777, 0o666);
    scene.assert_victim_unchanged();
}

#[test]
fn sink_fills_held_directory_after_it_was_moved() {
    let scene = Scene::new();
    let mut sink = scene.sink();
    let (dir, file) = (meta(FileKind::Directory), meta(FileKind::File));
    sink.begin_directory(b"d", &dir).unwrap();
    scene.swap("d", "victim");
    sink.begin_file(b"d/secret", &file, &[]).unwrap();
    sink.end_file(b"d/secret", &file).unwrap();
    sink.symlink(b"d/l", b"x", &meta(FileKind::Symlink))
        .unwrap();
    sink.special(b"d/p", &meta(FileKind::Fifo)).unwrap();
    sink.begin_directory(b"d/e", &dir).unwrap();
    sink.end_directory(b"d/e", &dir).unwrap();
    sink.end_directory(b"d", &dir).unwrap();
    assert_eq!(fs::read_dir(scene.at("taken")).unwrap().count(), 4);
    scene.assert_victim_unchanged();
}

#[test]
fn sink_does_not_reenter_directory_replaced_by_link() {
    let scene = Scene::new();
    let mut sink = scene.sink();
    let (dir, file) = (meta(FileKind::Directory), meta(FileKind::File));
    sink.begin_directory(b"d", &dir).unwrap();
    sink.begin_directory(b"e", &dir).unwrap();
    scene.swap("d", "victim");
    assert!(sink.begin_file(b"d/secret", &file, &[]).is_err());
    assert!(sink.begin_directory(b"d/new", &dir).is_err());
    assert!(sink.hard_link(b"e/l", b"d/secret").is_err());
    assert!(sink.end_directory(b"d", &dir).is_err());
    scene.assert_victim_unchanged();
}

#[test]
fn existing_links_are_replaced_or_refused() {
    let scene = Scene::new();
    let target = |name: &str| scene.at("target").join(name);
    for name in ["f", "l", "p"] {
        symlink(scene.at("victim/secret"), target(name)).unwrap();
    }
    symlink(scene.at("victim"), target("d")).unwrap();
    let mut sink = scene.sink();
    let file = meta(FileKind::File);
    sink.begin_file(b"f", &file, &[]).unwrap();
    sink.write(0, b"new").unwrap();
    assert!(target("f").is_symlink(), "replaced when it is whole");
    sink.end_file(b"f", &file).unwrap();
    assert_eq!(fs::read(target("f")).unwrap(), b"new");
    sink.symlink(b"l", b"elsewhere", &meta(FileKind::Symlink))
        .unwrap();
    assert_eq!(
        fs::read_link(target("l")).unwrap().to_str(),
        Some("elsewhere")
    );
    sink.special(b"p", &meta(FileKind::Fifo)).unwrap();
    assert_eq!(
        target("p").symlink_metadata().unwrap().mode() & 0o777,
        0o666
    );
    assert!(
        sink.begin_directory(b"d", &meta(FileKind::Directory))
            .is_err()
    );
    assert!(sink.begin_file(b"d/secret", &file, &[]).is_err());
    assert_eq!(fs::read_dir(scene.at("target")).unwrap().count(), 4);
    scene.assert_victim_unchanged();
}

#[test]
fn entry_without_contents_gets_attributes_only_on_made_inode() {
    let scene = Scene::new();
    let mut sink = scene.sink();
    for kind in [FileKind::Symlink, FileKind::Fifo, FileKind::Socket] {
        let meta = meta(kind);
        let make = |sink: &mut HostSink| {
            let pending = sink.pending(b"x").unwrap();
            match kind {
                FileKind::Symlink => symlink("y", scene.at("target/x")).unwrap(),
                _ => sink.make_special(&pending, &meta).unwrap(),
            }
            pending
        };
        let pending = make(&mut sink);
        sink.complete(&pending, b"x", &meta).unwrap();
        let made = scene.at("target/x").symlink_metadata().unwrap();
        assert_eq!(made.mtime(), 0, "{kind:?}");
        fs::remove_file(scene.at("target/x")).unwrap();
        // Replaced by a link to the victim, then by another name of the victim itself.
        let pending = make(&mut sink);
        scene.swap("x", "victim/secret");
        let done = sink.complete(&pending, b"x", &meta);
        assert!(kind == FileKind::Symlink || done.is_err(), "{kind:?}");
        fs::remove_file(scene.at("target/x")).unwrap();
        let pending = make(&mut sink);
        fs::remove_file(scene.at("target/x")).unwrap();
        fs::hard_link(scene.at("victim/secret"), scene.at("target/x")).unwrap();
        assert!(sink.complete(&pending, b"x", &meta).is_err(), "{kind:?}");
        fs::remove_file(scene.at("target/x")).unwrap();
        scene.assert_victim_unchanged();
    }
}

#[test]
fn hard_link_refuses_original_replaced_by_another_file() {
    let scene = Scene::new();
    let mut sink = scene.sink();
    let file = meta(FileKind::File);
    sink.begin_file(b"f", &file, &[]).unwrap();
    sink.end_file(b"f", &file).unwrap();
    sink.hard_link(b"same", b"f").unwrap();
    fs::remove_file(scene.at("target/f")).unwrap();
    fs::hard_link(scene.at("victim/secret"), scene.at("target/f")).unwrap();
    assert!(sink.hard_link(b"l", b"f").is_err());
    assert!(!scene.at("target/l").exists());
    fs::remove_file(scene.at("target/f")).unwrap();
    scene.assert_victim_unchanged();
}

#[test]
fn abandoned_file_keeps_existing_file() {
    let scene = Scene::new();
    fs::write(scene.at("target/f"), b"old").unwrap();
    let mut sink = scene.sink();
    sink.begin_file(b"f", &meta(FileKind::File), &[]).unwrap();
    sink.write(0, b"new").unwrap();
    sink.abandon_file();
    assert_eq!(fs::read(scene.at("target/f")).unwrap(), b"old");
    assert_eq!(fs::read_dir(scene.at("target")).unwrap().count(), 1);
}

#[test]
fn existing_directory_keeps_its_attributes() {
    let scene = Scene::new();
    let private = fs::Permissions::from_mode(0o711);
    fs::set_permissions(scene.at("target"), private).unwrap();
    let meta = meta(FileKind::Directory);
    for (name, mode) in [("target", 0o711), ("made", 0o666)] {
        let mut sink = HostSink::make(&scene.at(name), Keep::ALL).unwrap();
        sink.begin_directory(b"", &meta).unwrap();
        sink.end_directory(b"", &meta).unwrap();
        let made = scene.at(name).metadata().unwrap();
        assert_eq!(made.mode() & 0o7777, mode, "{name}");
        assert_eq!(made.mtime() == 0, name == "made");
    }
}

#[test]
fn directory_of_another_user_keeps_its_attributes() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("left out: it takes two users, and so root");
        return;
    }
    let scene = Scene::new();
    let mut sink = scene.sink();
    assert!(sink.make_directory(b"d").unwrap());
    fs::rename(scene.at("target/d"), scene.at("taken")).unwrap();
    fs::create_dir(scene.at("target/d")).unwrap();
    std::os::unix::fs::chown(scene.at("target/d"), Some(4711), None).unwrap();
    fs::set_permissions(scene.at("target/d"), fs::Permissions::from_mode(0o755)).unwrap();
    sink.enter_directory(b"d", true).unwrap();
    assert!(
        sink.end_directory(b"d", &meta(FileKind::Directory))
            .is_err()
    );
    let theirs = scene.at("target/d").metadata().unwrap();
    assert_eq!((theirs.uid(), theirs.mode() & 0o7777), (4711, 0o755));
    scene.assert_victim_unchanged();
}

#[test]
fn source_refuses_entry_replaced_after_lookup() {
    let scene = Scene::new();
    let mode = rustix::fs::Mode::from_bits_truncate(0o600);
    let fifo = || {
        let (at, kind) = (scene.at("target/f"), rustix::fs::FileType::Fifo);
        rustix::fs::mknodat(rustix::fs::CWD, at, kind, mode, 0).unwrap();
    };
    let link = || symlink(scene.at("victim/secret"), scene.at("target/f")).unwrap();
    let hard = || fs::hard_link(scene.at("victim/secret"), scene.at("target/f")).unwrap();
    let steps: [&dyn Fn(); 3] = [&fifo, &link, &hard];
    for swap in steps {
        fs::write(scene.at("target/f"), b"mine").unwrap();
        let mut source = scene.source();
        assert_eq!(source.find(b"f").unwrap().size, 4);
        fs::remove_file(scene.at("target/f")).unwrap();
        swap();
        let refused = source.segments(4).err().unwrap().to_string();
        let is_link = scene.at("target/f").is_symlink();
        let why = if is_link {
            "symbolic links"
        } else {
            "was replaced"
        };
        assert!(refused.contains(why), "{refused}");
        assert!(source.read(0, &mut [0; 4]).is_err());
        fs::remove_file(scene.at("target/f")).unwrap();
    }
    fs::create_dir(scene.at("target/d")).unwrap();
    let mut source = scene.source();
    source.find(b"d").unwrap();
    scene.swap("d", "victim");
    assert!(source.enter().is_err());
    scene.assert_victim_unchanged();
}

#[test]
fn descent_reenters_directory_only_with_same_inode() {
    let scene = Scene::new();
    let deep = |from: &mut Descent, names: &[&str]| {
        for name in names {
            let dir = from.dir().unwrap();
            rustix::fs::mkdirat(dir, *name, Mode::RWXU).unwrap();
            let (fd, stat) = descent::open_dir(dir, name.as_bytes()).unwrap();
            from.enter(name.as_bytes(), fd, descent::id(&stat));
        }
    };
    let start = || {
        let base = descent::open_named(&scene.at("target")).unwrap();
        Descent::new(base, scene.at("target"))
    };
    let names: Vec<String> = (0..80).map(|n| format!("d{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let upto = |n: usize| scene.at("target").join(names[..n].join("/"));

    // The lowest open level was moved: ".." leads elsewhere, the names still lead here.
    let mut place = start();
    deep(&mut place, &names);
    fs::rename(upto(49), scene.at("moved")).unwrap();
    for _ in 48..80 {
        place.leave();
    }
    assert_eq!(place.shown(b""), upto(48).to_str().unwrap());
    let id = descent::id(&rustix::fs::fstat(place.dir().unwrap()).unwrap());
    let there = upto(48).metadata().unwrap();
    assert_eq!(id, (there.dev(), there.ino()));
    for _ in 20..48 {
        place.leave();
    }
    assert!(place.dir().is_ok());
    fs::remove_dir_all(scene.at("moved")).unwrap();
    fs::remove_dir_all(scene.at("target/d0")).unwrap();

    // The names lead elsewhere, too.
    let mut place = start();
    deep(&mut place, &names);
    fs::rename(upto(49), scene.at("moved")).unwrap();
    fs::rename(upto(10), scene.at("taken")).unwrap();
    symlink(scene.at("victim"), upto(10)).unwrap();
    for _ in 48..80 {
        place.leave();
    }
    assert!(place.dir().is_err());
    scene.assert_victim_unchanged();
}

#[test]
fn copy_continues_after_directory_swapped_for_link() {
    let scene = Scene::new();
    for dir in ["from/a", "from/b"] {
        fs::create_dir_all(scene.at(dir)).unwrap();
        fs::write(scene.at(dir).join("secret"), b"copied").unwrap();
    }
    symlink(scene.at("victim"), scene.at("target/a")).unwrap();
    let progress = Progress::bytes("", 0, true);
    let mut copier = Copier::new(Keep::ALL, &progress);
    let mut source = HostSource::open(&scene.at("from"), true).unwrap();
    copier
        .copy(&mut source, &mut scene.sink(), Vec::new())
        .unwrap();
    assert_eq!((copier.summary.failed, copier.summary.files), (1, 1));
    assert_eq!(fs::read(scene.at("target/b/secret")).unwrap(), b"copied");
    scene.assert_victim_unchanged();
}
