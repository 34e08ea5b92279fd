//! Files that are opened without a name (`O_TMPFILE`): one table of calls on a mount and on ext4,
//! with equal results required; what a killed daemon leaves of them.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::modes::Ext4;
use crate::place::{Place, able, arg, shell};

fn unnamed(dir: &Path, flags: OFlags, mode: u32) -> Result<OwnedFd, Errno> {
    let mode = Mode::from_raw_mode(mode);
    rustix::fs::open(dir, OFlags::TMPFILE | OFlags::CLOEXEC | flags, mode)
}

/// Gives an open file a name.
fn link(file: &impl AsFd, name: &Path) -> Result<(), Errno> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    rustix::fs::linkat(CWD, path, CWD, name, AtFlags::SYMLINK_FOLLOW)
}

/// What is seen of an unnamed file through its descriptor.
fn seen(made: Result<OwnedFd, Errno>) -> String {
    let file = match made {
        Ok(fd) => File::from(fd),
        Err(e) => return format!("{e:?}"),
    };
    let data = file.metadata().unwrap();
    let mut list = [0; 256];
    let list = rustix::fs::fgetxattr(&file, "system.posix_acl_access", &mut list[..])
        .map(|len| list[..len].to_vec());
    let (mode, owner) = (data.mode(), (data.uid(), data.gid()));
    format!(
        "{mode:o} {owner:?} {} {} {list:?}",
        data.nlink(),
        data.size()
    )
}

/// The calls, each with its result.
fn table(dir: &Path) -> Vec<(&'static str, String)> {
    let at = |name: &str| dir.join(name);
    for name in ["plain", "listed", "group", "frozen"] {
        fs::create_dir(at(name)).unwrap();
    }
    fs::write(at("file"), "").unwrap();
    shell(
        dir,
        "setfacl -d -m u:1234:rw-,g::r-x listed; chattr +i frozen",
    );
    chown(at("group"), Some(5), Some(77)).unwrap();
    fs::set_permissions(at("group"), fs::Permissions::from_mode(0o2777)).unwrap();
    let rw = OFlags::RDWR;
    let mut cases = vec![
        ("new", seen(unnamed(&at("plain"), rw, 0o666))),
        ("all bits", seen(unnamed(&at("plain"), rw, 0o7777))),
        (
            "write only",
            seen(unnamed(&at("plain"), OFlags::WRONLY, 0o600)),
        ),
        (
            "read only",
            seen(unnamed(&at("plain"), OFlags::RDONLY, 0o600)),
        ),
        ("with default list", seen(unnamed(&at("listed"), rw, 0o666))),
        (
            "in set-group-id directory",
            seen(unnamed(&at("group"), rw, 0o2755)),
        ),
        (
            "in immutable directory",
            seen(unnamed(&at("frozen"), rw, 0o600)),
        ),
        ("in a file", seen(unnamed(&at("file"), rw, 0o600))),
        ("in nothing", seen(unnamed(&at("missing"), rw, 0o600))),
    ];
    shell(dir, "chattr -i frozen");

    let mut file = File::from(unnamed(&at("plain"), rw, 0o640).unwrap());
    file.write_all(b"some text").unwrap();
    file.rewind().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    cases.push(("contents", text));
    let listed = fs::read_dir(at("plain")).unwrap().count();
    cases.push(("listing", listed.to_string()));
    let linked = link(&file, &at("plain/name"));
    let named = fs::read_to_string(at("plain/name"));
    cases.push(("linked", format!("{linked:?} {named:?}")));
    let again = link(&file, &at("plain/again"));
    let uses = file.metadata().unwrap().nlink();
    cases.push(("linked again", format!("{again:?} {uses}")));
    fs::remove_file(at("plain/name")).unwrap();
    fs::remove_file(at("plain/again")).unwrap();
    let gone = link(&file, &at("plain/gone"));
    cases.push(("linked after the last unlink", format!("{gone:?}")));
    let taken = File::from(unnamed(&at("plain"), rw, 0o640).unwrap());
    cases.push((
        "linked over a name",
        format!("{:?}", link(&taken, &at("file"))),
    ));
    let single = unnamed(&at("plain"), rw | OFlags::EXCL, 0o600).unwrap();
    let refused = link(&single, &at("plain/single"));
    cases.push(("linked with O_EXCL", format!("{refused:?}")));

    let left = fs::read_dir(at("plain")).unwrap().count();
    cases.push(("left", left.to_string()));
    cases
}

#[test]
fn unnamed_files_are_as_on_ext4() {
    if !able(&["mkfs.ext4", "mount", "setfacl", "chattr"]) {
        return;
    }
    for options in ["", "write=back"] {
        let place = Place::mounted("64M", options);
        let ext4 = Ext4::mounted(&place);
        let (expected, found) = (table(&ext4.0), table(&place.dir()));
        for (expected, found) in expected.iter().zip(&found) {
            assert_eq!(found, expected, "{options}");
        }
        drop(ext4);
        place.finish();
    }
}

#[test]
fn killed_daemon_leaves_linked_files_only() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("64M", "durability=0");
    let make = || {
        let mut file = File::from(unnamed(&place.dir(), OFlags::RDWR, 0o600).unwrap());
        file.write_all(b"text").unwrap();
        file
    };
    let (linked, nameless) = (make(), make());
    link(&linked, &place.at("linked")).unwrap();
    linked.sync_all().unwrap();
    nameless.sync_all().unwrap();
    place.kill();
    drop((linked, nameless));
    place.remount("");
    assert_eq!(fs::read_to_string(place.at("linked")).unwrap(), "text");
    assert_eq!(fs::read_dir(place.dir()).unwrap().count(), 1);
    place.finish();
}

/// The last close is a message of its own, and frees the space.
#[test]
fn closed_unnamed_file_frees_its_space() {
    if !able(&[]) {
        return;
    }
    let place = Place::mounted("64M", "");
    let path = place.dir();
    for _ in 0..8 {
        let mut file = File::from(unnamed(&path, OFlags::RDWR, 0o600).unwrap());
        // Together they would not fit.
        file.write_all(&vec![1; 20 << 20]).unwrap();
        drop(file);
        place.ok(&["sync", arg(&path)]);
    }
    place.finish();
}
