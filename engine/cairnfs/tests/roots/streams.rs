//! Round trips of streams between volumes, and what a receiver refuses.

use std::io::{self, Read, Write};

use cairnfs::{Error, Status, Volume};

use crate::tree::{change, plant, tree};
use crate::{SIZE, roots, volume};

/// A volume with the snapshots `a` and `b`.
fn sender() -> Volume {
    let volume = volume();
    plant(&volume);
    volume.snapshot("a").unwrap();
    change(&volume);
    volume.snapshot("b").unwrap();
    volume
}

pub fn sent(volume: &Volume, snapshot: &str, base: Option<&str>) -> Vec<u8> {
    volume.send(Vec::new(), snapshot, base).unwrap()
}

#[track_caller]
pub fn same(a: (&Volume, &str), b: (&Volume, &str)) {
    let (left, right) = (
        tree(&a.0.open_branch(a.1).unwrap()),
        tree(&b.0.open_branch(b.1).unwrap()),
    );
    for (path, seen) in &left {
        assert_eq!(Some(seen), right.get(path), "{}", path.display());
    }
    assert_eq!(left.len(), right.len());
}

/// The same files have the same numbers, so nothing differs but the place of the data.
#[track_caller]
fn copied(volume: &Volume, a: &str, b: &str) {
    for file in &volume.diff(a, b).unwrap().report().files {
        let same = file.old_paths.is_empty() && file.new_paths.is_empty();
        let rest = file.attributes.is_empty() && file.xattrs.is_empty();
        assert!(file.status == Status::Changed && same && rest, "{file:?}");
    }
}

#[test]
fn whole_and_incremental_round_trip_keep_everything() {
    let (from, to) = (sender(), volume());
    to.write("own", "a file of the receiver").unwrap();
    assert_eq!(
        to.receive(&sent(&from, "a", None)[..], Some("a")).unwrap(),
        "a"
    );
    same((&from, "a"), (&to, "a"));
    to.receive(&sent(&from, "b", Some("a"))[..], Some("b"))
        .unwrap();
    same((&from, "b"), (&to, "b"));
    same((&from, "a"), (&to, "a"));
    // Backwards, and as a whole once more.
    to.receive(&sent(&from, "a", Some("b"))[..], Some("a2"))
        .unwrap();
    same((&from, "a"), (&to, "a2"));
    to.receive(&sent(&from, "b", None)[..], Some("b2")).unwrap();
    same((&from, "b"), (&to, "b2"));
    assert_eq!(to.read("own").unwrap(), b"a file of the receiver");
    copied(&to, "b", "b2");
    let there = serde_json::to_value(from.diff("a", "b").unwrap().report()).unwrap();
    let paths = |report: &serde_json::Value| {
        let files = report["files"].as_array().unwrap().iter();
        let each = files.map(|f| (f["path"].clone(), f["status"].clone()));
        each.collect::<Vec<_>>()
    };
    let here = serde_json::to_value(to.diff("a", "b").unwrap().report()).unwrap();
    assert_eq!(paths(&here), paths(&there));
}

#[test]
fn received_snapshots_can_be_sent_on() {
    let (from, middle, to) = (sender(), volume(), volume());
    middle
        .receive(&sent(&from, "a", None)[..], Some("a"))
        .unwrap();
    middle
        .receive(&sent(&from, "b", Some("a"))[..], Some("b"))
        .unwrap();
    to.receive(&sent(&middle, "a", None)[..], Some("a"))
        .unwrap();
    to.receive(&sent(&middle, "b", Some("a"))[..], Some("b"))
        .unwrap();
    same((&from, "b"), (&to, "b"));
}

#[test]
fn volume_receives_what_it_has_sent() {
    let volume = sender();
    volume
        .receive(&sent(&volume, "b", Some("a"))[..], Some("c"))
        .unwrap();
    same((&volume, "b"), (&volume, "c"));
    volume
        .receive(&sent(&volume, "a", None)[..], Some("d"))
        .unwrap();
    same((&volume, "a"), (&volume, "d"));
    copied(&volume, "a", "d");
}

/// A branch that begins at a received snapshot has its mark, but is another tree.
#[test]
fn only_the_received_snapshot_itself_is_a_base() {
    let (from, to) = (sender(), volume());
    to.receive(&sent(&from, "a", None)[..], Some("a")).unwrap();
    let own = to.open_branch("a").unwrap().branch("own").unwrap();
    own.write("more", "of the receiver").unwrap();
    own.snapshot("c").unwrap();
    to.receive(&sent(&from, "b", Some("a"))[..], Some("b"))
        .unwrap();
    same((&from, "b"), (&to, "b"));
}

#[test]
fn missing_base_and_taken_names_are_refused() {
    let (from, to) = (sender(), volume());
    let changes = sent(&from, "b", Some("a"));
    let refused = to.receive(&changes[..], Some("b")).unwrap_err();
    assert!(matches!(refused, Error::NoBase { .. }), "{refused}");
    assert!(refused.to_string().contains("without a base"));
    let whole = sent(&from, "a", None);
    let name = |name| to.receive(&whole[..], Some(name)).unwrap_err();
    assert!(matches!(name("main"), Error::Exists));
    assert!(matches!(name("a@b"), Error::Invalid(_)));
    assert_eq!(roots(&to), ["main"]);
    let made = to.receive(&whole[..], None).unwrap();
    assert!(made.starts_with("received-"), "{made}");
    let again = to.receive(&whole[..], None).unwrap();
    assert_ne!(made, again);
}

#[test]
fn branches_are_not_sent() {
    let from = sender();
    for (snapshot, base) in [("main", None), ("a", Some("main"))] {
        let refused = from.send(Vec::new(), snapshot, base).unwrap_err();
        assert!(matches!(refused, Error::Invalid(_)), "{refused}");
    }
    let refused = from.send(Vec::new(), "c", None).unwrap_err();
    assert!(matches!(refused, Error::NoRoot { .. }), "{refused}");
}

/// A stream that is cut anywhere, or of which any bit is wrong, leaves nothing.
/// Contract: roots.whole
#[test]
fn receive_cut_anywhere_leaves_nothing() {
    let from = volume();
    from.write("f", "contents").unwrap();
    from.create_dir("d").unwrap();
    from.hard_link("f", "d/g").unwrap();
    from.snapshot("a").unwrap();
    let stream = sent(&from, "a", None);
    let to = Volume::in_memory(64 << 20).unwrap();
    for cut in (0..stream.len()).step_by(7).chain([stream.len() - 1]) {
        let refused = to.receive(&stream[..cut], Some("a")).unwrap_err();
        assert!(matches!(refused, Error::Stream(_)), "{cut}: {refused}");
    }
    for at in (0..stream.len()).step_by(11) {
        let mut wrong = stream.clone();
        wrong[at] ^= 4;
        let refused = to.receive(&wrong[..], Some("a")).unwrap_err();
        assert!(matches!(refused, Error::Stream(_)), "{at}: {refused}");
    }
    assert_eq!(roots(&to), ["main"]);
    to.receive(&stream[..], Some("a")).unwrap();
    same((&from, "a"), (&to, "a"));
}

#[test]
fn full_volumes_and_failing_pipes_leave_nothing() {
    #[derive(Debug)]
    struct Failing(usize);
    impl Write for Failing {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = self.0.min(bytes.len());
            self.0 -= taken;
            match taken {
                0 => Err(io::Error::from_raw_os_error(libc::EPIPE)),
                taken => Ok(taken),
            }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::from_raw_os_error(libc::EIO))
        }
    }
    let from = Volume::in_memory(SIZE).unwrap();
    from.write("large", vec![1; 40 << 20]).unwrap();
    from.snapshot("a").unwrap();
    let broken = from.send(Failing(100_000), "a", None).unwrap_err();
    assert_eq!(broken.errno(), libc::EPIPE);
    let stream = sent(&from, "a", None);
    let small = Volume::in_memory(24 << 20).unwrap();
    small.write("own", "own").unwrap();
    let half = (&stream[..1 << 20]).chain(Failing(0));
    let failed = small.receive(half, Some("a")).unwrap_err();
    assert_eq!(failed.errno(), libc::EIO);
    let full = small.receive(&stream[..], Some("a")).unwrap_err();
    assert_eq!(full.errno(), libc::ENOSPC, "{full}");
    assert_eq!(roots(&small), ["main"]);
    assert_eq!(small.read("own").unwrap(), b"own");
}

/// A volume that is full tells at which file of the stream, and keeps nothing.
#[test]
fn full_volume_tells_the_inode() {
    let from = volume();
    from.write("large", vec![7; SIZE as usize / 2]).unwrap();
    from.snapshot("a").unwrap();
    let ino = from.metadata("large").unwrap().ino();
    let to = Volume::in_memory(SIZE / 4).unwrap();
    let refused = to
        .receive(&sent(&from, "a", None)[..], Some("a"))
        .unwrap_err();
    let told = matches!(refused, Error::NoSpaceForStream { ino: at } if at == ino);
    assert!(told, "{refused:?}");
    assert_eq!(refused.errno(), libc::ENOSPC);
    assert_eq!(roots(&to).len(), 1);
}

/// What is recorded of a received tree is no attribute that programs see: copied to another volume, it
/// would tell of files that are not there.
#[test]
fn record_of_a_received_tree_is_not_an_attribute_of_programs() {
    const NAME: &str = "trusted.cairnfs.received";
    let (from, to) = (sender(), volume());
    to.receive(&sent(&from, "a", None)[..], Some("a")).unwrap();
    let branch = to.open_branch("a").unwrap().branch("work").unwrap();
    branch.create_dir("below").unwrap();
    for path in ["/", "below"] {
        let names = branch.list_xattrs(path).unwrap();
        assert!(names.iter().all(|name| name != NAME), "{names:?}");
        assert_eq!(branch.get_xattr(path, NAME).unwrap(), None);
        let refused = branch.set_xattr(path, NAME, b"x").unwrap_err();
        assert_eq!(refused.errno(), libc::EPERM, "{refused}");
        let refused = branch.remove_xattr(path, NAME).unwrap_err();
        assert_eq!(refused.errno(), libc::ENODATA, "{refused}");
    }
}

/// The record takes no place among the names of the root directory.
#[test]
fn root_directory_with_as_many_names_as_there_can_be_is_received() {
    let (from, to) = (volume(), volume());
    for n in 0..256 {
        from.set_xattr("/", format!("user.{n:0250}"), b"").unwrap();
    }
    from.snapshot("full").unwrap();
    to.receive(&sent(&from, "full", None)[..], Some("full"))
        .unwrap();
    same((&from, "full"), (&to, "full"));
}

/// A small file without data is a hole, also if the base has data there.
#[test]
fn small_file_becomes_a_hole() {
    let (from, to) = (volume(), volume());
    from.write("f", vec![7; 59]).unwrap();
    from.snapshot("a").unwrap();
    to.receive(&sent(&from, "a", None)[..], Some("a")).unwrap();
    let file = from.open_with("f", cairnfs::OpenOptions::new().write(true));
    let file = file.unwrap();
    for len in [0, 100] {
        file.set_len(len).unwrap();
    }
    from.snapshot("b").unwrap();
    to.receive(&sent(&from, "b", Some("a"))[..], Some("b"))
        .unwrap();
    same((&from, "b"), (&to, "b"));
}

/// Files of every kind get a flag of the directory in which they are made, and keep it.
#[test]
fn special_files_keep_the_flags_that_they_were_made_with() {
    let (from, to) = (volume(), volume());
    from.create_dir("dir").unwrap();
    from.set_flags("dir", cairnfs::Flags::NODUMP).unwrap();
    from.mknod("dir/fifo", libc::S_IFIFO | 0o600, 0).unwrap();
    from.symlink("target", "dir/link").unwrap();
    from.snapshot("a").unwrap();
    to.receive(&sent(&from, "a", None)[..], Some("a")).unwrap();
    same((&from, "a"), (&to, "a"));
    to.restore("a", "main", &["dir".into()]).unwrap();
    let made = to.open_branch("main").unwrap();
    for path in ["dir/fifo", "dir/link"] {
        let flags = made.symlink_metadata(path).unwrap().flags();
        assert_eq!(flags, cairnfs::Flags::NODUMP, "{path}");
    }
}

/// As many names as a file can have are exchanged for others: each order of setting and removing
/// them leads there.
#[test]
fn all_names_of_attributes_can_be_exchanged() {
    let (from, to) = (volume(), volume());
    let name = |n: u32, which: &str| format!("user.{n:0>5}{which:y>245}");
    from.write("f", "f").unwrap();
    for n in 0..256 {
        from.set_xattr("f", name(n, "a"), b"").unwrap();
    }
    from.snapshot("a").unwrap();
    let work = from.branch("work").unwrap();
    for n in 0..256 {
        work.remove_xattr("f", name(n, "a")).unwrap();
        work.set_xattr("f", name(n, "b"), b"").unwrap();
    }
    work.snapshot("b").unwrap();
    drop(work);
    to.receive(&sent(&from, "a", None)[..], Some("a")).unwrap();
    to.receive(&sent(&from, "b", Some("a"))[..], Some("b"))
        .unwrap();
    same((&from, "b"), (&to, "b"));
    // So do a merge, and a restore.
    from.write("other", "other").unwrap();
    let published = from.publish("work", &cairnfs::PublishOptions::default());
    assert!(published.unwrap().merged);
    let names = |volume: &Volume| volume.list_xattrs("f").unwrap();
    let snapshot = |name: &str| from.open_branch(name).unwrap();
    let main = || from.open_branch("main").unwrap();
    assert_eq!(names(&main()), names(&snapshot("b")));
    from.restore("a", "main", &["f".into()]).unwrap();
    assert_eq!(names(&main()), names(&snapshot("a")));
}

/// What was received twice lies in other blocks, and is equal.
#[test]
fn patches_of_equal_large_files_are_empty() {
    let (from, to) = (volume(), volume());
    let mut large = vec![7; (16 << 20) + 1];
    from.write("large", &large).unwrap();
    from.snapshot("a").unwrap();
    let stream = sent(&from, "a", None);
    to.receive(&stream[..], Some("a")).unwrap();
    to.receive(&stream[..], Some("b")).unwrap();
    let patch = |volume: &Volume, old: &str, new: &str| {
        let diff = volume.diff(old, new).unwrap();
        let mut patches = diff.patches().unwrap();
        let files = diff.report().files.iter();
        let all = files.map(|file| patches.of(file).unwrap());
        String::from_utf8(all.collect::<Vec<_>>().concat()).unwrap()
    };
    assert_eq!(patch(&to, "a", "b"), "");
    large[16 << 20] = 8;
    from.write("large", &large).unwrap();
    let differs = patch(&from, "a", "main");
    assert!(
        differs.ends_with("Binary files a/large and b/large differ\n"),
        "{differs}"
    );
}

/// Copies of one volume have one UUID, and give equal numbers to snapshots that they make by
/// themselves: a stream of one does not build on those of the other.
#[test]
fn snapshots_of_copies_are_no_base_of_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let [disk, copy] = ["disk.img", "copy.img"].map(|name| folder.path().join(name));
    let begun = Volume::create(&disk, 64 << 20).unwrap();
    begun.write("f", "of both").unwrap();
    begun.snapshot("both").unwrap();
    begun.close().unwrap();
    std::fs::copy(&disk, &copy).unwrap();
    let [disk, copy] = [disk, copy].map(|path| {
        let options = Volume::options().durability_interval(None);
        options.open(path).unwrap()
    });
    for (volume, text) in [(&disk, "disk"), (&copy, "copy")] {
        volume.write("f", text).unwrap();
        volume.snapshot("s").unwrap();
        volume.write("later", text).unwrap();
        volume.snapshot("t").unwrap();
    }
    let numbers = |volume: &Volume| {
        let root = volume.find_root("s").unwrap();
        (volume.info().uuid, root.id, root.boundary)
    };
    assert_eq!(numbers(&disk), numbers(&copy));
    let third = volume();
    third
        .receive(&sent(&disk, "s", None)[..], Some("s"))
        .unwrap();
    let changes = sent(&copy, "t", Some("s"));
    for receiver in [&disk, &third] {
        let refused = receiver.receive(&changes[..], Some("u")).unwrap_err();
        assert!(matches!(refused, Error::NoBase { .. }), "{refused}");
        let why = "the snapshot of that number here is another one";
        assert!(refused.to_string().contains(why), "{refused}");
    }
    // On what they had in common, and on what was received, streams build.
    let common = sent(&copy, "t", Some("both"));
    disk.receive(&common[..], Some("u")).unwrap();
    same((&copy, "t"), (&disk, "u"));
    third
        .receive(&sent(&disk, "t", Some("s"))[..], Some("t"))
        .unwrap();
    same((&disk, "t"), (&third, "t"));
}
