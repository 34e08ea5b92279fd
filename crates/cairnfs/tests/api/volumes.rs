//! Volumes as a whole: made, closed, opened again.

use std::io::ErrorKind;
use std::sync::Arc;

use cairnfs::device::{Device, MemoryDevice};
use cairnfs::{OpenOptions, Volume, VolumeOptions};

use super::{SIZE, fails, names, volume};

fn fill(v: &Volume) {
    v.create_dir_all("a/b").unwrap();
    v.write("a/b/small", b"small").unwrap();
    v.write("a/large", vec![3; 3_000_000]).unwrap();
    v.symlink("b/small", "a/link").unwrap();
    v.set_xattr("a/large", "user.k", b"value").unwrap();
    v.set_permissions("a/b", 0o700).unwrap();
}

fn check(v: &Volume) {
    assert_eq!(v.read_to_string("a/link").unwrap(), "small");
    assert_eq!(v.read("a/large").unwrap(), vec![3; 3_000_000]);
    assert_eq!(v.get_xattr("a/large", "user.k").unwrap().unwrap(), b"value");
    assert_eq!(v.metadata("a/b").unwrap().permissions(), 0o700);
    assert_eq!(names(v, "a"), ["b", "large", "link"]);
}

#[test]
fn a_volume_in_a_file_is_the_same_when_reopened() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v.cairn");
    fails(Volume::open(&path), ErrorKind::NotFound);
    fails(
        Volume::options().create(true).open(&path),
        ErrorKind::InvalidInput,
    );
    let v = Volume::create(&path, SIZE).unwrap();
    fails(Volume::create(&path, SIZE), ErrorKind::AlreadyExists);
    fill(&v);
    let uuid = v.info().uuid;
    fails(Volume::open(&path), ErrorKind::ResourceBusy);
    v.close().unwrap();
    for _ in 0..3 {
        let v = Volume::options()
            .create(true)
            .size(SIZE)
            .open(&path)
            .unwrap();
        check(&v);
        assert_eq!(v.info().uuid, uuid);
        // Dropping closes as well.
    }
    let v = Volume::options().read_only(true).open(&path).unwrap();
    check(&v);
    assert!(v.is_read_only());
    fails(v.write("new", b""), ErrorKind::ReadOnlyFilesystem);
    fails(v.write("a/b/small", b""), ErrorKind::ReadOnlyFilesystem);
    let mut writing = OpenOptions::new();
    writing.write(true);
    fails(
        v.open_with(&writing, "a/large"),
        ErrorKind::ReadOnlyFilesystem,
    );
    fails(v.open_with(&writing, "none"), ErrorKind::NotFound);
    fails(v.remove_dir_all("a"), ErrorKind::ReadOnlyFilesystem);
    fails(v.create_dir("d"), ErrorKind::ReadOnlyFilesystem);
    check(&v);
}

#[test]
fn a_closed_volume_is_closed_for_all() {
    let v = volume();
    v.write("f", b"x").unwrap();
    let file = v.open_file("f").unwrap();
    let clone = v.clone();
    v.close().unwrap();
    clone.write("g", b"y").unwrap_err();
    clone.read("f").unwrap_err();
    file.read_at(&mut [0], 0).unwrap_err();
    drop(file);
}

#[test]
fn open_files_do_not_keep_a_closed_volume_from_being_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v.cairn");
    let v = Volume::create(&path, SIZE).unwrap();
    fill(&v);
    let stale = v.open_file("a/large").unwrap();
    v.close().unwrap();
    let v = Volume::open(&path).unwrap();
    drop(stale);
    check(&v);
}

#[test]
fn a_volume_on_a_device_of_the_program() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(SIZE));
    let options = VolumeOptions::new()
        .label("mine")
        .cache_budget(16 << 20)
        .durability_interval(None)
        .discard(false);
    let v = options.create_device(Arc::clone(&device)).unwrap();
    fill(&v);
    v.close().unwrap();
    let v = options.open_device(device).unwrap();
    check(&v);
    assert_eq!(v.info().label, "mine");
    let space = v.statfs();
    assert!(space.free < space.blocks && space.available <= space.free);
    assert_eq!(space.name_max, 255);
}
