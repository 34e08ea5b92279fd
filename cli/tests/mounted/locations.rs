//! A directory of a mount stands for the volume that its daemon has open, whatever has the path of that
//! volume; and what is said when the daemon is gone.

use std::fs;
use std::path::Path;

use crate::place::{Place, able, arg, said};
use crate::tried::{attempt, code, text};

/// What is at the path of a volume after it was moved.
const AT_ITS_PATH: [&str; 3] = ["nothing", "new", "twin"];

/// A mounted volume with the file `d/f` and the snapshot `old`, whose file was moved to `moved`.
fn moved(what: &str) -> Place {
    let place = Place::mounted("64M", "");
    fs::create_dir(place.at("d")).unwrap();
    fs::write(place.at("d/f"), "mounted").unwrap();
    place.ok(&["snapshot", "m", "old"]);
    // A copy has the same UUID, and another inode.
    fs::copy(place.volume(), place.beside("twin")).unwrap();
    fs::rename(place.volume(), place.beside("moved")).unwrap();
    match what {
        "nothing" => {}
        "twin" => fs::rename(place.beside("twin"), place.volume()).unwrap(),
        _ => drop(place.ok(&["mkfs", "-q", "--size", "64M", "v.cairn"])),
    }
    place
}

/// Puts the file back, and ends.
fn put_back(place: Place) {
    fs::rename(place.beside("moved"), place.volume()).unwrap();
    place.finish();
}

#[test]
fn directory_of_a_mount_stands_for_what_its_daemon_has_open() {
    if !able(&[]) {
        return;
    }
    for what in AT_ITS_PATH {
        let place = moved(what);
        let before = fs::read(place.volume()).ok();
        assert!(place.ok(&["log", "m"]).contains("old"), "{what}");
        place.ok(&["snapshot", "m", "new"]);
        place.ok(&["branch", "m/d", "b"]);
        place.ok(&["rename", "m", "b", "c"]);
        fs::write(place.at("d/f"), "changed").unwrap();
        place.fails(&["diff", "m", "old"], 1, &["M d/f"]);
        place.ok(&["restore", "m", "old", "d/f"]);
        assert_eq!(fs::read(place.at("d/f")).unwrap(), b"mounted");
        place.ok(&["send", "m", "old", "-o", "stream"]);
        place.ok(&["receive", "m", "stream", "--name", "back"]);
        place.ok(&["publish", "m", "c"]);
        place.ok(&["drop", "m", "new"]);
        assert!(fs::read(place.volume()).ok() == before, "{what}");
        put_back(place);
    }
}

#[test]
fn fork_is_of_the_volume_that_is_mounted() {
    if !able(&[]) {
        return;
    }
    for what in AT_ITS_PATH {
        let place = moved(what);
        let before = fs::read(place.volume()).ok();
        let script = "cat f; echo tried > g";
        for words in [&["--yes"][..], &["--beside", "--yes"]] {
            let output = attempt(&place, "d", &[words, &["sh", "-c", script]].concat());
            assert_eq!(code(&output), 0, "{what}: {}", said(&output));
            assert_eq!(text(&output.stdout), "mounted");
            assert_eq!(fs::read(place.at("d/g")).unwrap(), b"tried\n");
            fs::remove_file(place.at("d/g")).unwrap();
        }
        assert!(fs::read(place.volume()).ok() == before, "{what}");
        put_back(place);
    }
}

/// Nobody is left to ask, and the path leads elsewhere: nothing is done there.
#[test]
fn volume_that_is_found_at_no_path_is_not_replaced_by_another() {
    if !able(&[]) {
        return;
    }
    let place = moved("new");
    let before = fs::read(place.volume()).unwrap();
    fs::remove_file(place.beside("moved")).unwrap();
    for entry in fs::read_dir(place.runtime().join("cairnfs")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    place.fails(&["snapshot", "m", "x"], 1, &["was moved or deleted"]);
    let output = attempt(&place, "d", &["--yes", "rm", "f"]);
    assert_eq!(code(&output), 125, "{}", said(&output));
    assert!(place.at("d/f").exists());
    assert!(fs::read(place.volume()).unwrap() == before);
    place.ok(&["umount", "m"]);
}

/// The name of a mounted branch is what the daemon says: the table of mounts has what was mounted.
#[test]
fn fork_is_of_the_branch_that_is_mounted() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::new("64M");
    place.ok(&["branch", "v.cairn", "trial"]);
    place.mount("branch=trial,fsname=named");
    place.ok(&["rename", "m", "trial", "other"]);
    let output = attempt(&place, "", &["--yes", "sh", "-c", "echo x > f"]);
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert!(text(&output.stderr).contains("Published onto other"));
    assert!(place.at("f").exists());
    place.finish();
}

#[test]
fn dead_daemon_is_told_by_every_command() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("64M", "");
    fs::create_dir(place.at("d")).unwrap();
    place.ok(&["sync", "m"]);
    place.kill();
    let commands: &[(&[&str], i32)] = &[
        (&["log", "m"], 1),
        (&["snapshot", "m", "x"], 1),
        (&["branch", "m", "x"], 1),
        (&["diff", "m", "main"], 2),
        (&["publish", "m", "x"], 1),
        (&["restore", "m", "x"], 1),
        (&["rename", "m", "x", "y"], 1),
        (&["drop", "m", "x"], 1),
        (&["check", "m"], 8),
        (&["info", "m"], 1),
        (&["send", "m", "x", "-o", "out"], 1),
        (&["receive", "m", "v.cairn"], 1),
        (&["try", "--volume", "m", "true"], 125),
        (&["ls", "m"], 1),
        (&["cat", "m"], 1),
        (&["mkdir", "m"], 1),
        (&["rm", "m"], 1),
        (&["export", "m", "out"], 1),
        (&["import", ".", "m"], 1),
    ];
    let says = ["the daemon of this mount is gone; `cairnfs umount "];
    for (command, code) in commands {
        place.fails(command, *code, &says);
        let below: Vec<&str> = command
            .iter()
            .map(|word| if *word == "m" { "m/d" } else { word })
            .collect();
        let told = place.fails(&below, *code, &says);
        let dir = format!("cairnfs umount {}`", arg(&place.dir()));
        assert!(told.contains(&dir), "{told}");
    }
    assert!(!Path::new(&place.beside("out")).exists());
}

#[test]
fn hints_can_be_pasted_into_a_shell() {
    if !able(&[]) {
        return;
    }
    let place = Place::new("64M");
    fs::create_dir(place.beside("a b")).unwrap();
    place.ok(&["mount", "v.cairn", "a b"]);
    let hint = format!("cairnfs umount '{}'", arg(&place.beside("a b")));
    place.fails(&["check", "v.cairn"], 8, &[&hint]);
    place.fails(&["mount", "v.cairn", "m"], 32, &[&hint]);
    place.ok(&["umount", "a b"]);
    place.check();
}

/// Also where the volume is named by a directory in a mount.
#[test]
fn paths_begin_at_the_root_of_the_volume() {
    if !able(&[]) {
        return;
    }
    let place = Place::mounted("64M", "");
    fs::create_dir(place.at("d")).unwrap();
    fs::write(place.at("d/f"), "before").unwrap();
    place.ok(&["snapshot", "m", "old"]);
    fs::write(place.at("d/f"), "after").unwrap();
    let says = "a PATH begins at the root of the volume";
    place.fails(
        &["restore", "m/d", "old", "f"],
        1,
        &["does not have it", says],
    );
    place.fails(&["diff", "m/d", "old", "main", "f"], 2, &[says]);
    assert_eq!(fs::read(place.at("d/f")).unwrap(), b"after");
    place.ok(&["restore", "m/d", "old", "d/f"]);
    assert_eq!(fs::read(place.at("d/f")).unwrap(), b"before");
    for command in ["restore", "diff"] {
        let help = place.ok(&[command, "--help"]).replace('\n', " ");
        assert!(help.contains("begins at the root of the volume"), "{help}");
    }
    place.finish();
}

#[test]
fn check_and_info_of_a_mount_are_those_of_its_volume() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("64M", "");
    let volume = place.volume();
    let by = format!("(pid {})", place.daemon_pid());
    let says = [arg(&volume), "is in use: mounted on", &by, "cairnfs umount"];
    place.fails(&["check", "m"], 8, &says);
    // The host's free space may differ.
    let identity = |name: &str| -> Vec<String> {
        let shown = place.ok(&["info", name]);
        shown.lines().take(5).map(str::to_owned).collect()
    };
    assert_eq!(identity("m"), identity(arg(&volume)));
    place.fails(&["check", "."], 8, &["is a directory, not a volume"]);
    // One that is only read can be checked meanwhile.
    place.umount();
    place.mount("ro");
    assert!(place.ok(&["check", "m"]).contains("clean"));
    place.finish();
}

#[test]
fn volume_is_unmounted_by_each_of_its_names() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("64M", "");
    fs::hard_link(place.volume(), place.beside("other")).unwrap();
    let dir = place.dir();
    let says = ["is in use: mounted on", arg(&dir)];
    place.fails(&["check", "other"], 8, &says);
    place.ok(&["umount", "other"]);
    place.wait_for_end();
    place.mount("");
    place.ok(&["branch", "m", "trial"]);
    place.mount_beside("branch=trial", "n");
    place.fails(&["umount", "other"], 32, &["name one of these directories"]);
    place.ok(&["umount", "n"]);
    fs::copy(place.volume(), place.beside("copy")).unwrap();
    place.fails(&["umount", "copy"], 32, &["is not mounted"]);
    place.finish();
}

#[test]
fn remount_tells_only_of_what_it_does_not_change() {
    if !able(&[]) {
        return;
    }
    let note = "a remount does not change allow_other";
    for (options, is_told) in [("allow_other", false), ("", true)] {
        let place = Place::mounted("64M", options);
        let out = place.run(&["mount", "-o", "remount,ro,allow_other", "m"]);
        assert!(out.status.success(), "{}", said(&out));
        assert_eq!(said(&out).contains(note), is_told, "{}", said(&out));
        place.finish();
    }
}

#[test]
fn refused_second_directory_is_had_by_bind_mount() {
    if !able(&["mount", "umount"]) {
        return;
    }
    let place = Place::mounted("64M", "");
    fs::create_dir(place.beside("n")).unwrap();
    let dir = place.dir();
    let advice = format!("mount --bind {} DIR", arg(&dir));
    place.fails(&["mount", "v.cairn", "n"], 32, &["symbolic link", &advice]);
    // What is advised works: both show the same, and the end of one leaves the other.
    place.sh(&advice.replace("DIR", arg(&place.beside("n"))));
    fs::write(place.at("f"), "through one").unwrap();
    assert_eq!(fs::read(place.beside("n/f")).unwrap(), b"through one");
    fs::write(place.beside("n/f"), "through the other").unwrap();
    assert_eq!(fs::read(place.at("f")).unwrap(), b"through the other");
    place.ok(&["umount", "n"]);
    assert!(place.at("f").exists());
    place.finish();
}
