//! Everything that programs see of a tree, for comparison, and random changes of one.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cairnfs::{FileTimes, Flags, Volume};

/// Contents, of which only the beginning is shown.
#[derive(PartialEq, Eq)]
pub struct Contents(pub Vec<u8>);

impl std::fmt::Debug for Contents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = &self.0[..self.0.len().min(20)];
        write!(f, "{shown:?}… of {} bytes", self.0.len())
    }
}

/// A file of any kind.
#[derive(Debug, PartialEq, Eq)]
pub struct Seen {
    mode: u32,
    owner: (u32, u32),
    rdev: u64,
    nlink: u64,
    size: u64,
    flags: Flags,
    /// Last access, contents, change, birth.
    times: [SystemTime; 4],
    xattrs: Vec<(OsString, Vec<u8>)>,
    contents: Contents,
    /// Begins of data and holes.
    data: Vec<(u64, u64)>,
    /// The first path of the same inode.
    same: PathBuf,
}

impl Seen {
    pub fn contents(&self) -> &[u8] {
        &self.contents.0
    }

    /// Bytes of a file, entries of a directory.
    pub fn entries(&self) -> u64 {
        self.size
    }
}

/// Gives `seen` the change time of another state of the file: a merge sets it.
pub fn unchanged_times(seen: &mut Seen, other: &Seen) {
    seen.times[2] = other.times[2];
}

/// All files by path, with the root directory under the empty path.
pub fn tree(volume: &Volume) -> BTreeMap<PathBuf, Seen> {
    let mut found = BTreeMap::new();
    let mut first: BTreeMap<u64, PathBuf> = BTreeMap::new();
    let mut paths: Vec<PathBuf> = vec!["/".into()];
    paths.extend(volume.walk("/").unwrap().map(|e| e.unwrap().path()));
    paths.sort();
    for path in paths {
        let meta = volume.symlink_metadata(&path).unwrap();
        let same = first.entry(meta.ino()).or_insert_with(|| path.clone());
        let seen = Seen {
            mode: meta.mode(),
            owner: (meta.uid(), meta.gid()),
            rdev: meta.rdev(),
            nlink: meta.nlink(),
            size: meta.len(),
            flags: meta.flags(),
            times: [
                meta.accessed().unwrap(),
                meta.modified().unwrap(),
                meta.changed().unwrap(),
                meta.created().unwrap(),
            ],
            xattrs: xattrs(volume, &path),
            contents: Contents(contents(volume, &path)),
            data: data(volume, &path),
            same: same.clone(),
        };
        found.insert(path, seen);
    }
    found
}

fn xattrs(volume: &Volume, path: &Path) -> Vec<(OsString, Vec<u8>)> {
    if volume.symlink_metadata(path).unwrap().is_symlink() {
        return Vec::new();
    }
    let names = volume.list_xattrs(path).unwrap().into_iter();
    let mut list: Vec<_> = names
        .map(|name| {
            (
                name.clone(),
                volume.get_xattr(path, &name).unwrap().unwrap(),
            )
        })
        .collect();
    list.sort();
    list
}

fn contents(volume: &Volume, path: &Path) -> Vec<u8> {
    let meta = volume.symlink_metadata(path).unwrap();
    match (meta.is_file(), meta.is_symlink()) {
        (true, _) => volume.read(path).unwrap(),
        (_, true) => volume
            .read_link(path)
            .unwrap()
            .as_os_str()
            .as_bytes()
            .to_vec(),
        _ => Vec::new(),
    }
}

fn data(volume: &Volume, path: &Path) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    if !volume.symlink_metadata(path).unwrap().is_file() {
        return found;
    }
    let file = volume.open_file(path).unwrap();
    let mut at = 0;
    while let Some(begin) = file.seek_data(at).unwrap() {
        let end = file.seek_hole(begin).unwrap().unwrap();
        found.push((begin, end));
        at = end;
    }
    found
}

/// A tree with everything that must survive.
pub fn plant(volume: &Volume) {
    volume.create_dir_all("dir/deeper").unwrap();
    volume.create_dir("empty").unwrap();
    volume.write("dir/deeper/small", "small\n").unwrap();
    volume.write("nothing", "").unwrap();
    let large: Vec<u8> = (0..3_000_001u32).map(|i| (i / 7 % 251) as u8).collect();
    volume.write("large", large).unwrap();
    volume.write("one", "linked").unwrap();
    volume.hard_link("one", "dir/two").unwrap();
    volume.hard_link("one", "dir/deeper/three").unwrap();
    volume.symlink("dir/deeper/small", "link").unwrap();
    volume.symlink("/absent", "dir/dangling").unwrap();
    volume.mknod("fifo", libc::S_IFIFO | 0o620, 0).unwrap();
    volume
        .mknod("device", libc::S_IFBLK | 0o660, libc::makedev(8, 3))
        .unwrap();
    let sparse = volume.create_file("sparse").unwrap();
    sparse.set_len(40 << 20).unwrap();
    sparse.write_all_at(b"middle", 20 << 20).unwrap();
    sparse.write_all_at(&[7; 9000], 33 << 20).unwrap();
    volume
        .set_xattr("one", "user.note", b"two\nlines\0")
        .unwrap();
    volume.set_xattr("dir", "user.dir", [7; 3000]).unwrap();
    volume.set_xattr("dir", "trusted.dir", []).unwrap();
    volume.set_xattr("large", "user.same", [9; 3000]).unwrap();
    volume.set_xattr("nothing", "user.same", [9; 3000]).unwrap();
    // Owner, a named user, group, mask, others.
    let list = acl(&[
        (1, 6, u32::MAX),
        (2, 7, 1000),
        (4, 4, u32::MAX),
        (0x10, 6, u32::MAX),
        (0x20, 0, u32::MAX),
    ]);
    volume
        .set_xattr("large", "system.posix_acl_access", &list)
        .unwrap();
    volume
        .set_xattr("dir/deeper", "system.posix_acl_default", &list)
        .unwrap();
    volume.lchown("link", Some(77), Some(78)).unwrap();
    volume
        .chown("dir/deeper/small", Some(1000), Some(100))
        .unwrap();
    volume.set_flags("nothing", Flags::IMMUTABLE).unwrap();
    volume
        .set_flags("dir/deeper/small", Flags::APPEND.with(Flags::NODUMP))
        .unwrap();
    let times = |n: u32| {
        let time = |secs: u64| UNIX_EPOCH + Duration::new(secs, n);
        FileTimes::new()
            .set_accessed(time(1_000_000_000))
            .set_modified(time(1_234_567_890))
    };
    for (n, path) in ["large", "dir", "dir/deeper", "one", "fifo"]
        .iter()
        .enumerate()
    {
        volume
            .set_times(path, times(123_456_789 + n as u32))
            .unwrap();
    }
    volume.set_times_nofollow("link", times(5)).unwrap();
    volume.set_times("/", times(7)).unwrap();
}

fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// Changes of every kind to what [`plant`] made.
pub fn change(volume: &Volume) {
    volume.set_flags("nothing", Flags::NONE).unwrap();
    volume.write("nothing", "something").unwrap();
    volume.set_flags("nothing", Flags::IMMUTABLE).unwrap();
    volume.rename("dir", "moved").unwrap();
    volume.create_dir("dir").unwrap();
    volume.rename("moved/deeper", "dir/below").unwrap();
    volume.remove_file("moved/two").unwrap();
    volume.hard_link("one", "again").unwrap();
    volume.remove_file("one").unwrap();
    volume.remove_file("link").unwrap();
    volume.symlink("elsewhere", "link").unwrap();
    volume.remove_dir("empty").unwrap();
    let large = volume.open_with("large", &{
        let mut options = cairnfs::OpenOptions::new();
        options.write(true);
        options
    });
    let large = large.unwrap();
    large.write_all_at(b"changed", 1_000_000).unwrap();
    large.set_len(2_000_000).unwrap();
    large.set_len(2_500_000).unwrap();
    large.punch_hole(8192, 65_536).unwrap();
    volume.set_xattr("large", "user.new", b"value").unwrap();
    volume.remove_xattr("large", "user.same").unwrap();
    volume.remove_xattr("moved", "trusted.dir").unwrap();
    volume.remove_file("fifo").unwrap();
    volume.write("fifo", "a file now").unwrap();
    volume.create_dir_all("fresh/tree").unwrap();
    volume.write("fresh/tree/leaf", "leaf").unwrap();
    // Names are exchanged.
    volume.rename("fresh/tree/leaf", "leaf").unwrap();
    volume.rename("sparse", "fresh/tree/leaf").unwrap();
    volume.rename("leaf", "sparse").unwrap();
}
