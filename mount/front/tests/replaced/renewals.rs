//! Worn listings are renewed, but not so that the kernel decides by a mode from before a replacement.

use std::os::unix::fs::PermissionsExt;

use cairnfs_disk::acl::ACCESS;
use cairnfs_disk::types::{EntryRef, KillPrivileges};
use cairnfs_fuse::ops::Found;

use super::stand::{Stand, Told, access_list};

/// A mount with the directories `d` and `e`, which were listed, and whose 200 files each were read then;
/// returns both, and the files of `e`.
fn with_worn_listings() -> (Stand, [u64; 2], Vec<u64>) {
    let stand = Stand::new(|main| {
        for dir in ["d", "e"] {
            main.create_dir(dir).unwrap();
            (0..200).for_each(|n| main.write(format!("{dir}/f{n}"), "contents").unwrap());
        }
    });
    let mut files = Vec::new();
    let dirs = ["d", "e"].map(|name| {
        let dir = stand.node(name);
        files.clear();
        let list = &mut |entry: EntryRef<'_>, found: Option<&Found>| {
            files.extend(found.filter(|_| !entry.is_dots()).map(|found| found.node));
            true
        };
        stand.ops.readdir_plus(dir, 0, list).unwrap();
        for file in &files {
            assert_eq!(stand.read(*file), "contents");
        }
        dir
    });
    (stand, dirs, files)
}

/// Not the one whose attributes are asked for.
#[test]
fn worn_listing_is_renewed_when_attributes_are_asked_for() {
    let (stand, [d, _], files) = with_worn_listings();
    assert_eq!(files.len(), 200);
    let renews = files.iter().position(|file| stand.ops.asked(*file));
    assert_eq!(renews, Some(63));
    stand.ops.renew_listings();
    assert_eq!(*stand.told.lock().unwrap(), [Told::Pages(d)]);
    assert!(!files.iter().any(|file| stand.ops.asked(*file)));
    stand.ops.renew_listings();
    assert_eq!(stand.told.lock().unwrap().len(), 1);
}

/// The kernel would decide by the mode from before the replacement.
#[test]
fn listing_of_replaced_tree_is_not_renewed() {
    let (stand, [d, _], files) = with_worn_listings();
    let work = stand.work();
    let mode = std::fs::Permissions::from_mode(0o700);
    work.set_permissions("d", mode).unwrap();
    let (told, _) = stand.publish(work);
    assert_eq!(told, [Told::Pages(d)]);
    assert!(!files.iter().any(|file| stand.ops.asked(*file)));
    stand.ops.renew_listings();
    assert_eq!(*stand.told.lock().unwrap(), []);
}

#[test]
fn listings_are_not_renewed_beside_a_replacement() {
    let (stand, dirs, _) = with_worn_listings();
    let renew = || stand.ops.renew_listings();
    stand.ops.replacing(renew, |_| true).1.unwrap();
    assert_eq!(*stand.told.lock().unwrap(), []);
    renew();
    assert_eq!(*stand.told.lock().unwrap(), dirs.map(Told::Pages));
}

/// The kernel would decide by the mode from before.
#[test]
fn listing_of_directory_with_new_access_list_is_not_renewed() {
    let (stand, [d, e], _) = with_worn_listings();
    let set = |value: &[u8]| stand.ops.setxattr(KillPrivileges::No, d, ACCESS, value, 0);
    set(&access_list(0)).unwrap();
    stand.told.lock().unwrap().clear();
    stand.ops.renew_listings();
    assert_eq!(*stand.told.lock().unwrap(), [Told::Pages(e)]);
}
