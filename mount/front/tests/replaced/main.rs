//! The mounted tree is replaced by another one, through the operations of a mount and without a
//! kernel: which inodes go on, what is read and refused through the others, and what the kernel is
//! told to forget.
//!
//! Contract: replace.mounted

mod renewals;
mod stand;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use cairnfs::PublishOptions;
use cairnfs_disk::acl::ACCESS;
use cairnfs_disk::device::waiting;
use cairnfs_disk::types::{Flags, KillPrivileges, SetAttr};
use cairnfs_fuse::control;
use cairnfs_fuse::convert::Refusal;
use cairnfs_fuse::ops::{NewEntry, Ops};
use cairnfs_fuse::options::WriteMode;

use stand::{APART, ROOT, STALE, Stand, Told, access_list};

/// This includes files that are equal in both trees: a program that has one open may have read other
/// files of the old tree.
#[test]
fn directories_go_on_and_open_files_stay_readable() {
    let stand = Stand::new(|main| {
        main.create_dir("d").unwrap();
        main.write("d/same", "same").unwrap();
        main.write("d/changed", "before").unwrap();
        main.write("untouched", "untouched").unwrap();
    });
    let (same, changed) = (stand.node("d/same"), stand.node("d/changed"));
    let d = stand.node("d");
    let work = stand.work();
    work.write("d/changed", "after it").unwrap();
    let (told, merged) = stand.publish(work);
    assert!(!merged);
    // The entry is the same, and nevertheless leads to another node.
    // The open one has no name any more.
    let mut expected = Stand::dirs(&[(d, "changed"), (d, "same")], &[]);
    expected.extend([same, changed].map(Told::Attributes));
    assert_eq!(told, expected);
    assert_eq!(stand.ops.getattr(changed, false).unwrap().nlink, 0);

    assert_eq!(stand.read(changed), "before", "open since before");
    assert_eq!(stand.write(changed, "x"), Err(STALE));
    assert_eq!(
        stand
            .ops
            .setattr(ROOT, changed, SetAttr::default())
            .map(drop),
        Err(STALE)
    );
    let now = stand.look_up(d, "changed").unwrap();
    assert!(now.node >= APART && now.attr.ino == changed);
    assert_eq!(stand.read(now.node), "after it");
    assert_eq!(stand.write(now.node, "again it"), Ok(8));
    assert_eq!(stand.read(same), "same");
    assert_eq!(stand.write(same, "lost"), Err(STALE));
    let opened = stand.node("d/same");
    assert!(opened >= APART);
    assert_eq!(stand.write(opened, "SAME"), Ok(4));
    assert_eq!(stand.read(same), "same", "of the old tree");
    assert_eq!(stand.node("d"), d);
    let main = stand.volume.open_branch("main").unwrap();
    assert_eq!(main.read("d/same").unwrap(), b"SAME");
    assert_eq!(main.read("d/changed").unwrap(), b"again it");
    drop(main);

    // Both ids end with their last references, and the file has its number as the id again.
    assert_eq!(stand.ops.bound_nodes(), 4);
    stand.ops.forget(same, 1);
    stand.ops.forget(opened, 1);
    assert_eq!(stand.ops.bound_nodes(), 2);
    stand.ops.forget(changed, 1);
    assert_eq!(stand.ops.bound_nodes(), 1);
    assert_eq!(stand.look_up(d, "changed").unwrap().node, now.node);
    stand.ops.forget(now.node, 2);
    assert_eq!(stand.ops.bound_nodes(), 0);
    assert_eq!(stand.look_up(d, "changed").unwrap().node, changed);
}

/// No message says that a file is opened, so each way to change it is refused by its node.
#[test]
fn file_of_before_cannot_change_the_new_tree() {
    let stand = Stand::new(|main| {
        main.write("f", "contents").unwrap();
        main.write("wal", "1").unwrap();
    });
    let f = stand.node("f");
    let unnamed = NewEntry {
        caller: ROOT,
        dir: 1,
        name: b"",
        mode: libc::S_IFREG | 0o600,
        umask: 0,
    };
    let unnamed = stand.ops.tmpfile(unnamed).unwrap().node;
    for node in [f, unnamed] {
        let set = stand
            .ops
            .setxattr(KillPrivileges::No, node, b"user.a", b"0", 0);
        set.unwrap();
    }
    let work = stand.work();
    work.write("wal", "other").unwrap();
    stand.publish(work);
    let now = stand.node("f");
    assert_ne!(now, f);
    for node in [f, unnamed] {
        let ops = &stand.ops;
        let size = SetAttr {
            size: Some(1),
            ..SetAttr::default()
        };
        let mode = SetAttr {
            mode: Some(0o777),
            ..SetAttr::default()
        };
        let attribute = ops.setxattr(KillPrivileges::No, node, b"user.a", b"1", 0);
        let list = ops.setxattr(KillPrivileges::No, node, ACCESS, &access_list(0), 0);
        let refused = [
            stand.write(node, "x").map(drop),
            ops.write_cached(node, 0, b"x", None).map(drop),
            ops.setattr(ROOT, node, size).map(drop),
            ops.setattr(ROOT, node, mode).map(drop),
            ops.fallocate(ROOT, node, 0, 9000, 0),
            ops.fallocate(
                ROOT,
                node,
                0,
                2,
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            ),
            ops.set_flags(node, Flags::IMMUTABLE),
            ops.link(node, 1, b"linked").map(drop),
            ops.removexattr(node, b"user.a"),
            attribute,
            list,
        ];
        for (nth, outcome) in refused.into_iter().enumerate() {
            assert_eq!(outcome, Err(STALE), "{nth}");
        }
        let copied = ops.copy_range(ROOT, (now, 0), (node, 0), 4);
        assert_eq!(copied, Err(Refusal(libc::EXDEV)), "the kernel writes, then");
    }
    assert_eq!(stand.read(f), "contents");
    assert_eq!(stand.read(now), "contents");
    let attr = stand.ops.getattr(now, false).unwrap();
    assert_eq!((attr.mode & 0o777, attr.nlink), (0o644, 1));
    assert!(stand.look_up(1, "linked").is_none());
}

/// What has no contents of its own is not left behind: sockets and pipes are in use by name.
#[test]
fn special_files_and_links_go_on() {
    let stand = Stand::new(|main| {
        main.write("f", "1").unwrap();
        main.symlink("f", "link").unwrap();
        main.mknod("pipe", libc::S_IFIFO | 0o600, 0).unwrap();
    });
    let nodes = ["link", "pipe"].map(|name| stand.node(name));
    let work = stand.work();
    work.write("f", "22").unwrap();
    let (told, _) = stand.publish(work);
    assert_eq!(told, []);
    assert_eq!(["link", "pipe"].map(|name| stand.node(name)), nodes);
}

/// The references to what goes on are references to the inodes of the new tree.
#[test]
fn open_file_outlives_its_name_in_the_new_tree() {
    let stand = Stand::new(|main| {
        main.create_dir("d").unwrap();
        main.write("f", "contents").unwrap();
    });
    let f = stand.node("f");
    let work = stand.work();
    work.set_permissions("d", Permissions::from_mode(0o700))
        .unwrap();
    let (told, _) = stand.publish(work);
    assert_eq!(told, [], "no file differs");
    stand.ops.unlink(1, b"f").unwrap();
    assert_eq!(stand.write(f, "CON"), Ok(3));
    assert_eq!(stand.read(f), "CONtents");
    assert!(stand.ops.forget(f, 1).is_none());
    assert!(stand.ops.getattr(f, false).is_err());
}

/// Lookups and forgets that run while trees are replaced leave no reference behind, and none is
/// given back that was not taken.
#[test]
fn references_balance_through_replacements() {
    const NAMES: [&str; 4] = ["same", "changed", "comes", "d"];
    let stand = Stand::new(|main| {
        main.write("same", "same").unwrap();
        main.write("changed", "0").unwrap();
        main.create_dir("d").unwrap();
    });
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let users: Vec<_> = (0..3)
            .map(|user| {
                let (stand, stop) = (&stand, &stop);
                scope.spawn(move || {
                    for at in (user..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                        if let Some(found) = stand.look_up(1, NAMES[at % NAMES.len()]) {
                            assert!(stand.ops.getattr(found.node, false).is_ok());
                            stand.ops.forget(found.node, 1);
                        }
                        let mut listed = Vec::new();
                        let list = stand.ops.readdir_plus(1, 0, &mut |entry, found| {
                            if !entry.is_dots() && listed.len() < at % 5 {
                                listed.extend(found.map(|found| found.node));
                                return true;
                            }
                            entry.is_dots()
                        });
                        list.unwrap();
                        listed
                            .into_iter()
                            .for_each(|node| drop(stand.ops.forget(node, 1)));
                    }
                })
            })
            .collect();
        for round in 0..100 {
            let work = stand.work();
            work.write("changed", format!("{round}")).unwrap();
            match round % 2 {
                0 => work.write("comes", "and goes").unwrap(),
                _ => work.remove_file("comes").unwrap(),
            }
            stand.publish(work);
        }
        stop.store(true, Ordering::Relaxed);
        users.into_iter().for_each(|user| user.join().unwrap());
    });
    assert_eq!(stand.ops.bound_nodes(), 0);
    let main = stand.volume.open_branch("main").unwrap();
    assert!(main.file_system().inodes_in_use().is_empty());
}

/// A kernel that is gone does not say that it has forgotten.
#[test]
fn end_gives_back_what_this_kernel_had_and_no_more() {
    let stand = Stand::new(|main| {
        for file in ["f", "g", "both"] {
            main.write(file, file).unwrap();
        }
    });
    stand.node("g");
    let work = stand.work();
    work.write("g", "other").unwrap();
    stand.publish(work);
    let kept = stand.replaced();
    let busy = stand.volume.drop_root(&kept).unwrap_err();
    assert_eq!(busy.errno(), libc::EBUSY);

    let main = stand.volume.open_branch("main").unwrap();
    let again = main.file_system().open_named("main").unwrap();
    let beside = Ops::new(again, Path::new("test"), WriteMode::Through);
    let both = beside.lookup(1, b"both").unwrap().unwrap().node;
    let f = stand.node("f");
    stand.node("both");
    stand.node("both");
    stand.ops.unlink(1, b"f").unwrap();
    assert_eq!(main.file_system().getattr(f).unwrap().nlink, 0);
    let mut listed = 0;
    let list = stand.ops.readdir_plus(1, 0, &mut |entry, _| {
        listed += usize::from(!entry.is_dots());
        listed < 2
    });
    list.unwrap();

    stand.ops.end();
    assert_eq!(stand.ops.bound_nodes(), 0);
    assert_eq!(main.file_system().inodes_in_use(), [both]);
    assert!(
        main.file_system().getattr(f).is_err(),
        "without names and uses"
    );
    stand.volume.drop_root(&kept).unwrap();
    // What comes late has no effect on others.
    assert!(stand.ops.forget(both, 9).is_none());
    assert_eq!(main.file_system().uses(both), 1);
    beside.end();
    assert!(main.file_system().inodes_in_use().is_empty());
}

/// As long as the kernel knows an inode of it, a tree that was replaced is in use, and no longer.
#[test]
fn replaced_tree_is_closed_with_its_last_node() {
    let stand = Stand::new(|main| main.write("f", "1").unwrap());
    let f = stand.node("f");
    let work = stand.work();
    work.write("f", "22").unwrap();
    stand.publish(work);
    let kept = stand.replaced();
    let busy = stand.volume.drop_root(&kept).unwrap_err();
    assert_eq!(busy.errno(), libc::EBUSY);
    stand.ops.forget(f, 1);
    stand.volume.drop_root(&kept).unwrap();
}

#[test]
fn names_that_differ_are_forgotten() {
    let stand = Stand::new(|main| {
        for dir in ["d", "moved", "gone", "unknown"] {
            main.create_dir(dir).unwrap();
        }
        for file in ["d/removed", "d/renamed", "moved/f", "gone/f", "unknown/f"] {
            main.write(file, file).unwrap();
        }
        main.write("d/replaced", "1").unwrap();
    });
    let d = stand.node("d");
    for path in ["d/removed", "d/renamed", "d/replaced"] {
        stand.node(path);
    }
    let (moved, f) = (stand.node("moved"), stand.node("moved/f"));
    let (gone, gone_f) = (stand.node("gone"), stand.node("gone/f"));
    assert!(stand.look_up(d, "added").is_none());
    let work = stand.work();
    work.remove_file("d/removed").unwrap();
    work.rename("d/renamed", "d/new name").unwrap();
    work.write("d/added", "added").unwrap();
    work.write("d/other", "2").unwrap();
    work.rename("d/other", "d/replaced").unwrap();
    work.rename("moved", "d/moved").unwrap();
    work.remove_dir_all("gone").unwrap();
    work.remove_file("unknown/f").unwrap();
    let (mut told, _) = stand.publish(work);
    told.retain(|told| !matches!(told, Told::Attributes(_)));
    let names = [
        (1, "gone"),
        (1, "moved"),
        (d, "added"),
        (d, "moved"),
        (d, "new name"),
        (d, "removed"),
        (d, "renamed"),
        (d, "replaced"),
        (gone, "f"),
        (moved, "f"),
    ];
    // `moved` was made before `gone`.
    let mut expected = Stand::dirs(&names, &[1, d, moved]);
    let names = expected.len() - 3;
    expected[..names].sort();
    assert_eq!(told, expected);
    assert!(stand.look_up(d, "added").is_some());
    assert!(stand.look_up(d, "removed").is_none());
    assert_eq!(stand.node("d/moved"), moved, "a working directory goes on");
    assert_ne!(stand.node("d/moved/f"), f);
    assert_eq!(stand.read(f), "moved/f");
    // What is gone can be looked at, and nothing is found in it.
    assert_eq!(stand.read(gone_f), "gone/f");
    assert!(stand.ops.getattr(gone, false).is_ok());
    assert_eq!(stand.ops.lookup(gone, b"f"), Err(STALE));
    assert_eq!(stand.ops.unlink(gone, b"f"), Err(STALE));
    let new = NewEntry {
        caller: ROOT,
        dir: gone,
        name: b"new",
        mode: libc::S_IFREG,
        umask: 0,
    };
    assert_eq!(stand.ops.mknod(new, 0), Err(STALE));
}

#[test]
fn all_names_of_a_changed_file_are_forgotten() {
    let stand = Stand::new(|main| {
        main.create_dir("d").unwrap();
        main.write("f", "1").unwrap();
        main.hard_link("f", "d/link").unwrap();
        main.hard_link("f", "d/link 2").unwrap();
    });
    let d = stand.node("d");
    let f = stand.node("f");
    let work = stand.work();
    work.write("f", "22").unwrap();
    let (told, _) = stand.publish(work);
    let mut expected = Stand::dirs(&[(1, "f"), (d, "link"), (d, "link 2")], &[]);
    expected.push(Told::Attributes(f));
    assert_eq!(told, expected);
}

#[test]
fn changed_attributes_alone_leave_a_file_behind() {
    for write in [WriteMode::Through, WriteMode::Back] {
        let stand = Stand::with(write, |main| main.write("f", "1").unwrap());
        let f = stand.node("f");
        let work = stand.work();
        work.chown("f", Some(5), None).unwrap();
        let (told, _) = stand.publish(work);
        assert_eq!(told, [Told::Name(1, "f".into()), Told::Attributes(f)]);
        assert_ne!(stand.node("f"), f);
        assert_eq!(stand.look_up(1, "f").unwrap().uid, 5);
        assert_eq!(stand.write(f, "2"), Err(STALE));
    }
}

#[test]
fn merge_and_restore_keep_what_they_do_not_change() {
    let stand = Stand::new(|main| {
        main.write("ours", "1").unwrap();
        main.write("theirs", "1").unwrap();
        main.write("same", "1").unwrap();
        main.snapshot("s").unwrap();
    });
    let nodes = ["ours", "theirs", "same"].map(|name| stand.node(name));
    let [ours, theirs, same] = nodes;
    let work = stand.work();
    work.write("theirs", "22").unwrap();
    stand.write(ours, "2").unwrap();
    let (told, merged) = stand.publish(work);
    assert!(merged);
    assert!(told.contains(&Told::Name(1, "theirs".into())), "{told:?}");
    for node in nodes {
        assert_eq!(stand.write(node, "3"), Err(STALE));
    }
    let again = ["ours", "same"].map(|name| stand.node(name));
    for node in again {
        stand.write(node, "3").unwrap();
    }
    assert_eq!(stand.read(stand.node("theirs")), "22");
    let told = stand.restore("s");
    let names = [(1, "ours"), (1, "same"), (1, "theirs")];
    let told_names: Vec<Told> = told
        .iter()
        .filter(|t| matches!(t, Told::Name(..)))
        .cloned()
        .collect();
    assert_eq!(told_names, Stand::dirs(&names, &[]));
    for name in ["ours", "theirs", "same"] {
        assert_eq!(stand.read(stand.node(name)), "1", "{name}");
    }
    assert_eq!(again.map(|node| stand.read(node)), ["3", "3"]);
    let first = [ours, theirs, same].map(|node| stand.read(node));
    assert_eq!(first, ["2", "1", "1"], "of the first tree, still");
}

#[test]
fn unlinked_open_file_is_readable_and_refuses_changes() {
    let stand = Stand::new(|main| main.write("f", "contents").unwrap());
    let f = stand.node("f");
    stand.ops.unlink(1, b"f").unwrap();
    let work = stand.work();
    work.write("other", "").unwrap();
    stand.publish(work);
    assert_eq!(stand.read(f), "contents");
    assert_eq!(stand.write(f, "x"), Err(STALE));
    assert_eq!(stand.ops.bound_nodes(), 1);
    assert!(stand.ops.forget(f, 1).is_none());
    assert_eq!(stand.ops.bound_nodes(), 0);
}

/// What the branch's mount refuses between the change of roots and the switch waits for the switch.
#[test]
fn operations_wait_for_the_switch() {
    enum Seen {
        Waits,
        Ends,
    }
    let stand = Stand::new(|main| {
        main.write("f", "before").unwrap();
        main.write("changed", "before").unwrap();
    });
    let (f, changed) = (stand.node("f"), stand.node("changed"));
    stand.work().write("changed", "after").unwrap();
    let stand = &stand;
    thread::scope(|scope| {
        let (seen, sees) = channel();
        let change = || {
            stand
                .volume
                .publish("work", &PublishOptions::default())
                .unwrap();
            [f, changed].map(|node| {
                let (waits, ends) = (seen.clone(), seen.clone());
                let writer = scope.spawn(move || {
                    waiting::announce(move || waits.send(Seen::Waits).unwrap());
                    let written = stand.write(node, "during");
                    let made = stand.ops.mknod(
                        NewEntry {
                            caller: ROOT,
                            dir: 1,
                            name: format!("new{node}").as_bytes(),
                            mode: libc::S_IFREG,
                            umask: 0,
                        },
                        0,
                    );
                    let _ = ends.send(Seen::Ends);
                    (written, made.is_ok())
                });
                match sees.recv().unwrap() {
                    Seen::Waits => {}
                    Seen::Ends => panic!("it was refused"),
                }
                writer
            })
        };
        let (writers, followed) = stand.ops.replacing(change, |_| true);
        followed.unwrap();
        let [same, changed] = writers.map(|writer| writer.join().unwrap());
        assert_eq!(same, (Err(STALE), true));
        assert_eq!(changed, (Err(STALE), true));
    });
    assert_eq!(stand.read(stand.node("f")), "before");
}

/// Outside of a replacement a tree that has lost its name refuses changes at once.
#[test]
fn replacement_behind_the_mount_is_refused() {
    let stand = Stand::new(|main| main.write("f", "1").unwrap());
    let f = stand.node("f");
    stand.work().write("g", "2").unwrap();
    stand
        .volume
        .publish("work", &PublishOptions::default())
        .unwrap();
    assert_eq!(stand.write(f, "2"), Err(STALE));
    assert_eq!(stand.read(f), "1");
}

#[test]
fn lost_data_of_a_changed_file_is_reported_once() {
    let stand = Stand::new(|main| {
        main.write("f", "1").unwrap();
        main.write("same", "1").unwrap();
    });
    let f = stand.node("f");
    let work = stand.work();
    work.write("f", "22").unwrap();
    stand.publish(work);
    let same = stand.node("same");
    assert_eq!(stand.ops.write_cached(same, 0, b"x", None), Ok(1));
    assert_eq!(stand.ops.write_cached(f, 0, b"x", None), Err(STALE));
    // The file that the mounted tree has under this number has lost nothing.
    let now = stand.node("f");
    stand.write(now, "333").unwrap();
    stand.ops.forget(f, 1);
    let sync = || stand.ops.answer(ROOT, b"user.cairnfs.sync").unwrap();
    assert_eq!(sync(), format!("{} {f} /f\n", libc::ESTALE).into_bytes());
    assert!(sync().is_empty());
    assert!(control::is_reserved(b"user.cairnfs.sync"));
}

/// The kernel must not combine a mode with a list, or a missing one, of the other tree.
#[test]
fn access_lists_change_with_the_tree() {
    let stand = Stand::new(|main| {
        main.create_dir("gains").unwrap();
        main.write("file gains", "1").unwrap();
        main.create_dir("loses").unwrap();
        main.set_xattr("loses", "system.posix_acl_access", access_list(0))
            .unwrap();
    });
    let (gains, loses) = (stand.node("gains"), stand.node("loses"));
    let file = stand.node("file gains");
    let work = stand.work();
    work.set_xattr("file gains", "system.posix_acl_access", access_list(0))
        .unwrap();
    work.set_xattr("gains", "system.posix_acl_access", access_list(0))
        .unwrap();
    work.remove_xattr("loses", "system.posix_acl_access")
        .unwrap();
    let (told, _) = stand.publish(work);
    let expected = [
        // Before the switch.
        Told::Attributes(gains),
        Told::Name(1, "file gains".into()),
        Told::Pages(gains),
        Told::Pages(loses),
        Told::Attributes(file),
    ];
    assert_eq!(told, expected);
    assert_eq!(
        stand.ops.getxattr(file, ACCESS),
        Err(Refusal(libc::ENODATA)),
        "it has the mode of before"
    );
    assert_eq!(stand.ops.getxattr(gains, ACCESS).unwrap(), access_list(0));
    let minimal = stand.ops.getxattr(loses, ACCESS).unwrap();
    assert!(
        minimal.len() < access_list(0).len(),
        "until the kernel forgets it"
    );
    stand.ops.forget(loses, 1);
    assert_eq!(
        stand.ops.getxattr(loses, ACCESS),
        Err(Refusal(libc::ENODATA))
    );
}

/// A file handle names an inode by number and outlives the kernel's references.
#[test]
fn file_handles_lead_to_their_node_only() {
    let stand = Stand::new(|main| {
        main.create_dir("d").unwrap();
        main.write("d/f", "1").unwrap();
    });
    let (d, f) = (stand.node("d"), stand.node("d/f"));
    let work = stand.work();
    work.write("d/f", "22").unwrap();
    stand.publish(work);
    assert_eq!(stand.ops.lookup(f, b".").unwrap().unwrap().node, f);
    assert_eq!(stand.read(f), "1");
    let now = stand.node("d/f");
    stand.ops.forget(f, 2);
    assert_eq!(stand.ops.lookup(f, b"."), Err(STALE), "it has another id");
    assert_eq!(stand.ops.lookup(now, b".").unwrap().unwrap().node, now);
    stand.ops.forget(now, 2);
    assert_eq!(stand.ops.lookup(now, b"."), Err(STALE), "the id has ended");
    assert_eq!(stand.ops.lookup(f, b".").unwrap().unwrap().node, f);
    assert_eq!(stand.read(f), "22");
    assert_eq!(stand.ops.lookup(d, b"..").unwrap().unwrap().node, 1);
    assert_eq!(stand.ops.bound_nodes(), 0);
}

#[test]
fn published_branch_that_is_mounted_is_left_to_its_mount() {
    let stand = Stand::new(|main| main.write("f", "1").unwrap());
    let f = stand.node("f");
    stand.work().write("g", "2").unwrap();
    let publish = || {
        stand
            .volume
            .publish("work", &PublishOptions::default())
            .unwrap()
    };
    let (_, followed) = stand.ops.replacing(publish, |_| false);
    assert_eq!(followed.unwrap_err().errno(), libc::EBUSY);
    assert_eq!(stand.write(f, "2"), Err(STALE));
}
