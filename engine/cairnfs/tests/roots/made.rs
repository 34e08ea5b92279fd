//! Publishing where both sides made files and directories of the same names.

use std::os::unix::fs::PermissionsExt;

use cairnfs::{ConflictKind, FileTimes, PublishOptions, Volume};

use crate::tree::tree;
use crate::volume;

/// What a build makes: objects, a program with two names, a link, and what only this one has.
fn build(volume: &Volume, own: &str) {
    volume.create_dir_all("target/deps").unwrap();
    volume.write("target/empty", "").unwrap();
    volume
        .write("target/deps/object", vec![7; 3 << 20])
        .unwrap();
    volume
        .hard_link("target/deps/object", "target/program")
        .unwrap();
    volume.symlink("deps/object", "target/link").unwrap();
    volume.mknod("target/fifo", 0o010_644, 0).unwrap();
    volume.write(format!("target/deps/{own}"), own).unwrap();
    volume
        .set_xattr("target/deps/object", "user.a", "1")
        .unwrap();
}

/// A file that takes hours to read, and has one block.
fn spread(volume: &Volume) {
    let file = volume.create_file("target/spread").unwrap();
    file.set_len(1 << 42).unwrap();
    file.write_all_at(b"end", (1 << 42) - 3).unwrap();
}

fn onto_main() -> PublishOptions {
    PublishOptions::default()
}

#[test]
fn equal_builds_of_two_forks_are_one() {
    let volume = volume();
    volume.write("shared", "base").unwrap();
    let [first, second] = ["first", "second"].map(|name| volume.branch(name).unwrap());
    build(&first, "one");
    build(&second, "two");
    first.write("shared", "changed alike").unwrap();
    second.write("shared", "changed alike").unwrap();
    second.rename("shared", "target/deps/shared").unwrap();
    let times = FileTimes::new().set_modified(std::time::SystemTime::UNIX_EPOCH);
    second.set_times("target/deps/object", times).unwrap();
    drop((first, second));
    volume.publish("first", &onto_main()).unwrap();
    let main = volume.open_branch("main").unwrap();
    let before = tree(&main);
    let dry = PublishOptions {
        dry_run: true,
        ..onto_main()
    };
    for options in [dry, onto_main()] {
        let published = volume.publish("second", &options).unwrap();
        assert_eq!(published.conflicts, []);
        assert!(published.merged);
    }
    let main = volume.open_branch("main").unwrap();
    let mut after = tree(&main);
    let new = ["/target/deps/shared", "/target/deps/two"];
    for path in new {
        assert!(after.remove(std::path::Path::new(path)).is_some(), "{path}");
    }
    assert_eq!(main.read("target/deps/shared").unwrap(), b"changed alike");
    let object = main.metadata("target/deps/object").unwrap();
    assert_eq!(object.nlink(), 2);
    assert_ne!(
        object.modified().unwrap(),
        std::time::SystemTime::UNIX_EPOCH
    );
    let links = |path: &str| main.metadata(path).unwrap().nlink();
    assert_eq!(
        (links("target"), links("target/deps"), links("/")),
        (3, 2, 3)
    );
    for (path, seen) in &after {
        let is_dir = main.symlink_metadata(path).unwrap().is_dir();
        assert!(is_dir || before[path] == *seen, "{}", path.display());
    }
}

#[test]
fn builds_that_differ_conflict_where_they_do() {
    let volume = volume();
    let [first, second] = ["first", "second"].map(|name| volume.branch(name).unwrap());
    build(&first, "one");
    build(&second, "two");
    [&first, &second].into_iter().for_each(spread);
    second.write("target/empty", "no more").unwrap();
    second.remove_file("target/program").unwrap();
    let mode = std::fs::Permissions::from_mode(0o700);
    second.set_permissions("target/deps", mode).unwrap();
    drop((first, second));
    volume.publish("first", &onto_main()).unwrap();
    let conflicts = crate::conflicts(volume.publish("second", &onto_main()));
    let found: Vec<_> = conflicts.iter().map(|c| (&c.path[..], &c.kind)).collect();
    let expected = [
        (&b"target/deps"[..], &ConflictKind::Attribute("mode")),
        (b"target/deps/object", &ConflictKind::NameTaken),
        (b"target/empty", &ConflictKind::NameTaken),
    ];
    assert_eq!(found, expected);
    let options = PublishOptions {
        ours: vec!["target/empty".into()],
        theirs: vec!["target/deps".into()],
        ..onto_main()
    };
    let published = volume.publish("second", &options).unwrap();
    assert_eq!(published.conflicts, []);
    let main = volume.open_branch("main").unwrap();
    assert_eq!(main.read("target/empty").unwrap(), b"");
    assert_eq!(main.metadata("target/deps").unwrap().mode() & 0o777, 0o700);
    assert_eq!(main.metadata("target/deps/object").unwrap().nlink(), 1);
}

/// A call that only looks returns what would be done.
#[test]
fn dry_run_tells_whether_it_would_merge() {
    let volume = volume();
    let dry = PublishOptions {
        dry_run: true,
        ..onto_main()
    };
    let work = volume.branch("work").unwrap();
    work.write("f", "1").unwrap();
    // Another fork of the unchanged base changes nothing of that.
    drop(volume.branch("other").unwrap());
    for _ in 0..2 {
        let looked = volume.publish("work", &dry).unwrap();
        assert_eq!((looked.merged, looked.kept), (false, None));
    }
    volume.write("g", "2").unwrap();
    assert!(volume.publish("work", &dry).unwrap().merged);
    assert!(volume.publish("work", &onto_main()).unwrap().merged);
}
