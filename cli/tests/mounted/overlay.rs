//! Overlay file systems whose upper layer is on a mount, as containers use them: one sequence of
//! changes over a mount and over ext4, with equal results required.
//!
//! Contract: posix.overlay

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::Errno;

use crate::handles::drop_caches;
use crate::modes::Ext4;
use crate::place::{Place, able, arg, may_drop_caches, shell, succeed, tell, umount};

/// Options of an overlay: the defaults; those that need file handles; those that need no
/// privileged attributes.
const OPTIONS: [&str; 3] = [
    "",
    ",redirect_dir=on,index=on,nfs_export=on,xino=on",
    ",userxattr",
];

/// The lower layer.
const LOWER: &str = "
    mkdir -p lower/dir/sub lower/opaque/old lower/moved lower/kept
    for name in plain removed renamed replaced dir/file dir/sub/deep opaque/old/file moved/file kept/file
    do echo \"$name\" > lower/$name; done
    ln lower/plain lower/linked; ln -s plain lower/symlink; mkfifo lower/fifo
    setfattr -n user.lower -v value lower/plain; chmod 751 lower/dir";

/// Copy-ups, whiteouts, opaque directories, renames of all kinds.
const CHANGES: &str = "
    cd merged
    echo more >> plain; echo more >> dir/sub/deep; chmod 600 kept/file
    rm removed symlink fifo; echo new > removed
    mv renamed renamed-on; mv replaced dir/file
    rm -r opaque; mkdir opaque; echo new > opaque/new
    mv moved moved-on; echo more >> moved-on/file; mkdir moved
    ln plain second; ln dir/file dir/other
    mkdir made; echo text > made/file; mv made dir/made; rm dir/sub/deep
    mknod device c 1 3; mkfifo fifo; ln -s nowhere symlink
    setfattr -n user.upper -v value dir; setfattr -n trusted.upper -v value plain
    cp -a dir copied; rm -r copied/sub; rmdir kept 2>/dev/null || true";

/// Mount options for upper layers: the overlay accesses them as root, whichever user mounted the
/// volume.
const FOR_CONTAINERS: &str = "allow_other,dev,suid";

/// Prints a tree: types, modes, links, contents, attributes.
const TOLD: &str = "
    cd merged
    find . -mindepth 1 ! -type d -printf '%P %M %n %s %l\\n' -o -type d -printf '%P %M\\n' | sort
    find . -type f | sort | while read -r file; do echo \"$file: $(tr '\\n' , < \"$file\")\"; done
    find . -mindepth 1 ! -type l | sort | xargs getfattr -hd -m 'user.[ul]|trusted.upper'";

/// Prints whiteouts and opaque directories of the upper layer.
const UPPER: &str = "
    find upper -type c -exec stat -c '%n %t %T %a' {} + | sort
    find upper -type d | sort | xargs getfattr -hd -m overlay.opaque";

/// Removes everything. A name of a file with several is removed while the kernel caches no other
/// one; the reason is at the test of removed links below.
const EMPTY: &str = "
    find merged -type f -links +1 | while read -r name
    do rm \"$name\"; echo 2 > /proc/sys/vm/drop_caches; done
    rm -r merged/*; test -z \"$(ls -A merged)\"";

struct Overlay<'a> {
    /// Holds the lower layer and the merged tree.
    dir: &'a Path,
    layers: &'a Path,
    options: &'a str,
}

impl Overlay<'_> {
    fn mount(&self) {
        let (layers, options) = (arg(&self.layers), self.options);
        let options =
            format!("lowerdir=lower,upperdir={layers}/upper,workdir={layers}/work{options}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "overlay", "-o", &options, "overlay", "merged"]);
        succeed(mount.current_dir(self.dir));
    }

    fn umount(&self) {
        umount(&self.dir.join("merged"));
    }
}

/// The overlay is unmounted before the file systems below it.
impl Drop for Overlay<'_> {
    fn drop(&mut self) {
        let flags = rustix::mount::UnmountFlags::DETACH;
        while rustix::mount::unmount(self.dir.join("merged"), flags).is_ok() {}
    }
}

/// The inode numbers of a tree, by path. Listings and stat must agree: always on types, on
/// numbers if they are `constant`, as with `xino`.
fn numbers(dir: &Path, constant: bool) -> BTreeMap<PathBuf, u64> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let (path, attr) = (entry.path(), entry.metadata().unwrap());
        assert_eq!(entry.file_type().unwrap(), attr.file_type(), "{path:?}");
        assert!(!constant || entry.ino() == attr.ino(), "{path:?}");
        if attr.is_dir() {
            found.extend(numbers(&path, constant));
        }
        found.insert(path, attr.ino());
    }
    found
}

/// The output of a sequence of changes over an upper layer in `layers`, during it and after a
/// remount.
fn history(layers: &Path, options: &str, remount: impl FnOnce()) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("merged")).unwrap();
    for name in ["upper", "work"] {
        fs::create_dir(layers.join(name)).unwrap();
    }
    shell(dir.path(), LOWER);
    let overlay = Overlay {
        dir: dir.path(),
        layers,
        options,
    };
    let merged = dir.path().join("merged");
    overlay.mount();
    shell(dir.path(), CHANGES);
    let constant = options.contains("xino=on");
    let before = numbers(&merged, constant);
    let mut outputs = vec![shell(dir.path(), TOLD)];
    overlay.umount();
    outputs.push(shell(layers, UPPER));
    remount();
    overlay.mount();
    outputs.push(shell(dir.path(), TOLD));
    let after = numbers(&merged, constant);
    assert!(
        !constant || after == before,
        "{after:?} but before {before:?}"
    );
    shell(dir.path(), EMPTY);
    overlay.umount();
    outputs.push(shell(layers, UPPER));
    fs::remove_dir_all(layers.join("work")).unwrap();
    fs::remove_dir_all(layers.join("upper")).unwrap();
    outputs
}

/// Whether the kernel supports overlays; without it these tests cannot run.
fn has_overlays() -> bool {
    let known = fs::read_to_string("/proc/filesystems").unwrap();
    let has = known.lines().any(|line| line.ends_with("\toverlay"));
    if !has {
        tell("SKIPPED overlay: the kernel has no overlay file system");
    }
    has
}

#[test]
fn overlay_upper_layer_behaves_as_on_ext4() {
    let programs = ["mkfs.ext4", "mount", "umount", "setfattr", "getfattr"];
    if !able(&programs) || !has_overlays() {
        return;
    }
    let _caches = may_drop_caches();
    let mut place = Place::mounted("256M", FOR_CONTAINERS);
    let ext4 = Ext4::mounted(&place);
    for options in OPTIONS {
        let expected = history(&ext4.0, options, || ());
        let layers = place.dir();
        let found = history(&layers, options, || place.remount(FOR_CONTAINERS));
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found, expected, "overlay{options}");
        }
    }
    drop(ext4);
    place.finish();
}

/// If the upper layer is on a FUSE mount, an overlay looks a removed name up again before it uses
/// another name of the file. The other names are stale until the kernel evicts them.
#[test]
fn overlay_removal_of_one_link_keeps_other_links() {
    if !able(&["mount", "umount"]) || !has_overlays() {
        return;
    }
    let _caches = may_drop_caches();
    let place = Place::mounted("64M", FOR_CONTAINERS);
    let (dir, layers) = (tempfile::tempdir().unwrap(), place.dir());
    let merged = dir.path().join("merged");
    for made in [&dir.path().join("lower"), &merged, &layers.join("work")] {
        fs::create_dir(made).unwrap();
    }
    fs::create_dir(layers.join("upper")).unwrap();
    fs::write(layers.join("upper/a"), "text").unwrap();
    fs::hard_link(layers.join("upper/a"), layers.join("upper/b")).unwrap();
    let overlay = Overlay {
        dir: dir.path(),
        layers: &layers,
        options: "",
    };
    overlay.mount();
    let read = |name: &str| fs::read_to_string(merged.join(name));
    assert_eq!(
        (read("a").unwrap(), read("b").unwrap()),
        ("text".into(), "text".into())
    );
    fs::remove_file(merged.join("a")).unwrap();
    match read("b") {
        Ok(text) => assert_eq!(text, "text"),
        Err(e) => assert_eq!(Errno::from_io_error(&e), Some(Errno::STALE)),
    }
    drop_caches();
    assert_eq!(read("b").unwrap(), "text");
    drop(overlay);
    place.finish();
}

/// What another user may do with `merged/file` after each line: the first character of each result
/// is `y` if it can be read.
const LISTS: &str = "
    cd merged; echo text > file; chmod 644 file; cat file > shown
    may() { if setpriv --reuid 65534 --regid 65534 --clear-groups cat file > shown 2>&1; then echo y; else echo n; fi; }
    may
    setfacl -m u::rw,g::-,o::- file; chmod $(stat -c %a file) file; may
    setfacl -m u:65534:r file; chmod $(stat -c %a file) file; may; getfacl -nc file
    setfacl -b file; chmod $(stat -c %a file) file; may";

/// The kernel does not learn the new mode of a file in the upper layer from `setfacl`, on any FUSE
/// mount; the `chmod` that is advised brings it.
#[test]
fn overlay_checks_access_lists_after_a_chmod() {
    let programs = [
        "mkfs.ext4",
        "mount",
        "umount",
        "setfacl",
        "getfacl",
        "setpriv",
    ];
    if !able(&programs) || !has_overlays() {
        return;
    }
    let place = Place::mounted("256M", FOR_CONTAINERS);
    let ext4 = Ext4::mounted(&place);
    let told = |layers: &Path| {
        let dir = tempfile::tempdir().unwrap();
        let merged = dir.path().join("merged");
        for made in [&dir.path().join("lower"), &merged] {
            fs::create_dir(made).unwrap();
        }
        shell(dir.path(), "chmod 755 . lower merged");
        shell(layers, "mkdir upper work; chmod 755 . upper");
        let overlay = Overlay {
            dir: dir.path(),
            layers,
            options: "",
        };
        overlay.mount();
        let told = shell(dir.path(), LISTS);
        drop(overlay);
        shell(layers, "rm -r upper work");
        told
    };
    let expected = told(&ext4.0);
    assert_eq!(told(&place.dir()), expected);
    assert!(expected.starts_with("y\nn\ny\n"), "{expected}");
    drop(ext4);
    place.finish();
}
