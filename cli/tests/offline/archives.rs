//! Archives keep access lists and all names of attributes, between volumes and with GNU tar.
//!
//! Contract: copies

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use super::place::Place;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// The value of an access list attribute: entries of tag, permissions and id.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(perm.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

/// A list in which a named user has more rights than the owning group.
fn named(user: u32) -> Vec<u8> {
    const NONE: u32 = u32::MAX;
    list(&[
        (0x01, 6, NONE),
        (0x02, 7, user),
        (0x02, 4, 1_234_567),
        (0x04, 4, NONE),
        (0x08, 5, 77),
        (0x10, 7, NONE),
        (0x20, 0, NONE),
    ])
}

fn set(path: &Path, name: &[u8], value: &[u8]) -> rustix::io::Result<()> {
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::lsetxattr(path, OsStr::from_bytes(name), value, flags)
}

fn get(path: &Path, name: &[u8]) -> Option<Vec<u8>> {
    let mut value = vec![0; 65_536];
    let len = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value).ok()?;
    value.truncate(len);
    Some(value)
}

/// Attribute names that are encoded in archives, or look as if they were.
const NAMES: [&[u8]; 6] = [
    b"user.na=me",
    b"user.=",
    b"user.100%",
    b"user.%3D",
    b"user.%253d=%25",
    b"user.\xff\n",
];

/// Makes the tree `in`. Returns `false` where the host keeps no access lists or the caller is not
/// root.
fn plant(p: &Place, user: u32) -> bool {
    let root = p.path("in");
    fs::create_dir_all(root.join("d")).unwrap();
    fs::write(root.join("f"), b"x").unwrap();
    let able = rustix::process::geteuid().is_root()
        && set(&root.join("f"), ACCESS.as_bytes(), &named(user)).is_ok()
        && set(&root.join("d"), DEFAULT.as_bytes(), &named(user)).is_ok()
        && set(&root.join("d"), ACCESS.as_bytes(), &named(user)).is_ok()
        && NAMES
            .iter()
            .all(|name| set(&root.join("f"), name, name).is_ok());
    if !able {
        eprintln!("skipped: needs root, and a temporary directory with access lists");
    }
    able
}

/// Compares mode, access lists and attributes of the tree `in` with those of `out`.
#[track_caller]
fn same(p: &Place, out: &str, names: &[&[u8]]) {
    let lists = [ACCESS.as_bytes(), DEFAULT.as_bytes()];
    for file in ["f", "d"] {
        let (a, b) = (p.path("in").join(file), p.path(out).join(file));
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode();
        assert_eq!(mode(&a), mode(&b), "{file}");
        for name in lists.iter().chain(names) {
            let shown = String::from_utf8_lossy(name);
            assert_eq!(get(&a, name), get(&b, name), "{file}: {shown}");
        }
    }
    let mut listed = vec![0; 65_536];
    let mut count = |root: &str| {
        let len = rustix::fs::llistxattr(p.path(root).join("f"), &mut listed).unwrap();
        listed[..len].iter().filter(|b| **b == 0).count()
    };
    assert_eq!(count("in"), count(out));
}

/// Runs GNU tar in the test's directory; `false` where it is not installed.
fn gnu_tar(p: &Place, args: &[&str]) -> bool {
    let version = Command::new("tar").arg("--version").output();
    if !version.is_ok_and(|v| String::from_utf8_lossy(&v.stdout).contains("GNU tar")) {
        eprintln!("skipped: needs GNU tar");
        return false;
    }
    let out = Command::new("tar")
        .current_dir(p.path(""))
        .args(args)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && text.is_empty(), "{args:?}: {text}");
    true
}

#[test]
fn archive_of_export_is_unchanged_by_import() {
    let p = Place::with_volume();
    if !plant(&p, 5) {
        return;
    }
    p.ok(&["import", "-q", "in", "v.img"]);
    p.ok(&["export", "-q", "v.img", "a.tar"]);
    p.ok(&[
        "import", "-q", "--create", "--size", "64M", "a.tar", "w.img:/",
    ]);
    p.ok(&["export", "-q", "w.img", "out"]);
    same(&p, "out", &NAMES);
}

#[test]
fn gnu_tar_restores_lists_and_attributes_of_export() {
    let p = Place::with_volume();
    if !plant(&p, 5) {
        return;
    }
    p.ok(&["import", "-q", "in", "v.img"]);
    p.ok(&["export", "-q", "v.img", "a.tar"]);
    fs::create_dir(p.path("out")).unwrap();
    if gnu_tar(&p, &["--acls", "--xattrs", "-xpf", "a.tar", "-C", "out"]) {
        same(&p, "out", &NAMES);
    }
}

#[test]
fn lists_and_attributes_of_gnu_tar_are_imported() {
    for without in [&["--xattrs-exclude=system.*"][..], &[]] {
        let p = Place::with_volume();
        // User 0 is written by name: every host has it.
        if !plant(&p, 0) {
            return;
        }
        let make = ["--acls", "--xattrs", "--format=pax"];
        let make = [&make, without, &["-cf", "a.tar", "-C", "in", "."]].concat();
        if !gnu_tar(&p, &make) {
            return;
        }
        let archive = fs::read(p.path("a.tar")).unwrap();
        let holds = |what: &[u8]| archive.windows(what.len()).any(|w| w == what);
        assert!(holds(b"SCHILY.acl.access="));
        assert_eq!(
            holds(b"SCHILY.xattr.system.posix_acl_access="),
            without.is_empty()
        );
        p.ok(&["import", "-q", "a.tar", "v.img"]);
        p.ok(&["export", "-q", "v.img", "out"]);
        same(&p, "out", &NAMES);
    }
}

/// An archive of one file of mode 0640, as bsdtar writes it beside a list with a wider mask, with
/// extended records.
fn archive(records: &[(&str, &[u8])]) -> Vec<u8> {
    let mut extended = Vec::new();
    for (key, value) in records {
        let rest = key.len() + value.len() + 3;
        let len = (rest + 1..).find(|len| rest + len.to_string().len() == *len);
        extended.extend(format!("{} {key}=", len.unwrap()).bytes());
        extended.extend_from_slice(value);
        extended.push(b'\n');
    }
    let mut bytes = Vec::new();
    let mut put = |kind, name: &str, data: &[u8]| {
        let mut header = tar::Header::new_ustar();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(kind);
        header.set_size(data.len() as u64);
        header.set_mode(0o640);
        header.set_uid(0);
        header.set_gid(0);
        header.set_cksum();
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    };
    put(tar::EntryType::XHeader, "x", &extended);
    put(tar::EntryType::Regular, "f", b"");
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

#[test]
fn lists_as_text_are_imported_by_number() {
    let p = Place::with_volume();
    if !plant(&p, 5) {
        return;
    }
    // A number behind the permissions, as star(1) writes it, is preferred to the name.
    for text in [
        "user::rw-,user:5:rwx,user:1234567:r--,group::r--,group:77:r-x,mask::rwx,other::---",
        "o::-\nm::rwx\ng:77:rx\ng::r\nu:1234567:r--\nu:5:rwx # a comment\nu::rw\n",
        "user::rw-,user:no such user:rwx:5,user:root:r--:1234567,group::r--,\
         group:none:r-x:77,mask::rwx,other::---:",
    ] {
        fs::write(
            p.path("a.tar"),
            archive(&[("SCHILY.acl.access", text.as_bytes())]),
        )
        .unwrap();
        p.ok(&["import", "-q", "a.tar", "v.img"]);
        p.ok(&["export", "-q", "-f", "v.img", "out"]);
        assert_eq!(
            get(&p.path("out/f"), ACCESS.as_bytes()),
            Some(named(5)),
            "{text}"
        );
    }
}

#[test]
fn lost_list_is_named_and_gives_group_no_rights() {
    let p = Place::with_volume();
    for (text, why) in [
        (
            "user::rw-,user:no-such:rwx,group::r--,mask::rwx,other::---",
            "no-such",
        ),
        (
            "user::rw-,group:no-such:rwx,group::r--,mask::rwx,other::---",
            "no-such",
        ),
        ("user::rw-,user:5:rwx,group::r--,other::---", "access list"),
        (
            "user::rw-,user:5:rwx,user:5:r,group::r--,mask::rwx,other::---",
            "access list",
        ),
        (
            "user::rw-,user:5:8,group::r--,mask::rwx,other::---",
            "access list",
        ),
        ("user::rw-,user:5:rwx,mask::rwx", "access list"),
        ("user:5", "access list"),
        ("what", "access list"),
    ] {
        fs::write(
            p.path("a.tar"),
            archive(&[("SCHILY.acl.access", text.as_bytes())]),
        )
        .unwrap();
        p.fails(&["import", "a.tar", "v.img"], 1, why);
        let listing = p.ok(&["ls", "-l", "v.img"]);
        assert!(listing.starts_with("-rw-------"), "{text}: {listing}");
    }
}

#[test]
fn refused_list_gives_group_only_its_own_rights() {
    let p = Place::with_volume();
    let key = "SCHILY.xattr.system.posix_acl_access";
    let mode = |listing: &str| listing.lines().next().unwrap()[..10].to_owned();
    fs::write(p.path("a.tar"), archive(&[(key, b"no list")])).unwrap();
    p.ok(&["import", "-q", "a.tar", "v.img"]);
    assert_eq!(mode(&p.ok(&["ls", "-l", "v.img"])), "-rw-------");

    // The kernel refuses lists in any other order.
    let mut disordered = named(5);
    disordered[4..20].rotate_left(8);
    fs::write(p.path("a.tar"), archive(&[(key, &disordered)])).unwrap();
    p.ok(&["import", "-q", "a.tar", "v.img"]);
    assert_eq!(mode(&p.ok(&["ls", "-l", "v.img"])), "-rw-rwx---");
    p.ok(&["export", "-q", "v.img", "out"]);
    let mode = p.path("out/f").metadata().unwrap().permissions().mode();
    assert_eq!(format!("{mode:o}"), "100640");
}
