//! Backups of mounted volumes, and moments that are mounted from a store.

use std::fs::{self, File};
use std::io::Write;

use crate::place::{Place, able, nap};

#[test]
fn a_mounted_volume_is_backed_up_with_every_write_that_had_returned() {
    if !able(&[]) {
        return;
    }
    for write in ["through", "back"] {
        let place = Place::mounted("64M", &format!("write={write}"));
        for number in 0..3_u32 {
            let text = number.to_string().repeat(50_000);
            // Open still, so that the kernel may keep it with write=back.
            let mut file = File::create(place.at("f")).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            let volume = if number == 1 { "v.cairn" } else { "m" };
            let stored = place.ok(&["backup", "--json", volume, "b"]);
            let stored: serde_json::Value = serde_json::from_str(&stored).unwrap();
            assert_eq!(stored["whole"], number == 0, "{stored}");
            let name = format!("new{number}");
            place.ok(&["restore-from", "b", &name]);
            assert_eq!(place.ok(&["cat", &format!("{name}:/f")]), text);
            assert!(place.ok(&["check", "--data", &name]).contains("clean"));
        }
        place.finish();
    }
}

#[test]
fn a_moment_is_mounted_straight_from_the_store() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::new("64M");
    place.mount("");
    fs::create_dir(place.beside("m/dir")).unwrap();
    let old = "old".repeat(100_000);
    fs::write(place.beside("m/dir/f"), &old).unwrap();
    place.ok(&["backup", "m", "b"]);
    fs::write(place.beside("m/dir/f"), "new").unwrap();
    place.ok(&["backup", "v.cairn", "b"]);
    let list: serde_json::Value =
        serde_json::from_str(&place.ok(&["backup", "list", "--json", "b"])).unwrap();
    let first = list["moments"][0]["time"].as_str().unwrap();
    let number = list["moments"][0]["number"].to_string();

    let then = place.beside("then");
    fs::create_dir(&then).unwrap();
    let unnamed = place.run(&["mount", "file:///b", "then"]);
    assert!(String::from_utf8(unnamed.stderr).unwrap().contains("--at"));
    for (at, text) in [(first, old.as_str()), (&number, &old), ("now", "new")] {
        place.ok(&["mount", "--at", at, "b", "then"]);
        assert_eq!(fs::read_to_string(then.join("dir/f")).unwrap(), text);
        let refused = fs::write(then.join("g"), "x").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        for verb in ["log", "sync"] {
            let refused = place.run(&[verb, "then"]);
            let told = String::from_utf8(refused.stderr).unwrap();
            assert_eq!(refused.status.success(), verb == "sync", "{told}");
            assert_eq!(told.contains("restore-from"), verb == "log", "{told}");
        }
        place.ok(&["umount", "then"]);
    }
    place.finish();
}

/// The contents of `f` in the newest moment; `None` if there is no moment that has it.
fn newest(place: &Place) -> Option<String> {
    let name = "newest";
    let restored = place.run(&["restore-from", "b", name]).status.success();
    if !restored {
        return None;
    }
    let read = place.run(&["cat", &format!("{name}:/f")]);
    fs::remove_file(place.beside(name)).unwrap();
    read.status
        .success()
        .then(|| String::from_utf8(read.stdout).unwrap())
}

#[test]
fn a_mount_ships_what_has_changed_and_survives_a_prune_and_a_kill() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::new("64M");
    let options = format!("backup={},interval=1s", place.beside("b").display());
    place.mount(&options);
    for number in 0..6 {
        let text = number.to_string();
        fs::write(place.at("f"), &text).unwrap();
        while newest(&place).as_ref() != Some(&text) {
            nap(50);
        }
        match number {
            2 => drop(place.ok(&["backup", "prune", "b", "--keep-last", "1"])),
            4 => {
                place.kill();
                place.remount(&options);
            }
            _ => {}
        }
    }
    assert!(place.ok(&["backup", "check", "b"]).contains("clean"));
    place.finish();
}

#[test]
fn a_backup_in_the_volume_itself_is_refused_by_any_path() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::new("64M");
    place.mount("");
    fs::create_dir(place.at("dir")).unwrap();
    std::os::unix::fs::symlink("m/dir", place.beside("link")).unwrap();
    place.ok(&["branch", "m", "other"]);
    place.mount_beside("branch=other", "beside");
    let bound = place.beside("bound");
    fs::create_dir(&bound).unwrap();
    place.sh("mount --bind dir ../bound");
    let told = ["lies in the volume itself", "outside of the volume"];
    for volume in ["m", "v.cairn", "m/dir", "bound", "beside"] {
        let absolute = format!("file://{}", place.at("dir/b").display());
        for url in ["m/b", "link/b", "bound/b/c", "beside/b", &absolute] {
            place.fails(&["backup", volume, url], 1, &told);
        }
    }
    assert_eq!(fs::read_dir(place.at("dir")).unwrap().count(), 0);
    assert!(!place.at("b").exists() && !place.beside("beside/b").exists());
    // Another volume may have its backup there, unless its own file is what holds this one.
    place.ok(&["mkfs", "-q", "--size", "64M", "o.cairn"]);
    place.ok(&["backup", "o.cairn", "m/dir/of-other"]);
    place.sh("umount ../bound");
    place.umount_beside("beside");
    place.umount();
    for url in ["m", "m/b"] {
        let option = format!("backup={}", place.beside(url).display());
        let out = place.run(&["mount", "-o", &option, "v.cairn", "m"]);
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(32), "{url}: {text}");
        assert!(told.iter().all(|told| text.contains(told)), "{text}");
    }
    assert_eq!(fs::read_dir(place.beside("m")).unwrap().count(), 0);
    place.check();
}

#[test]
fn what_a_store_has_lost_is_stored_again_from_a_mounted_volume() {
    if !able(&[]) {
        return;
    }
    let place = Place::mounted("64M", "");
    let text = "kept".repeat(100_000);
    fs::write(place.at("f"), &text).unwrap();
    place.ok(&["backup", "m", "b"]);
    for entry in fs::read_dir(place.beside("b/layers")).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    place.fails(
        &["restore-from", "b", "lacking"],
        1,
        &["backup repair b --from VOLUME"],
    );
    fs::write(place.at("g"), "new").unwrap();
    // The earlier moment lacks what has been written since.
    let out = place.run(&["backup", "repair", "b", "--from", "m"]);
    assert!(matches!(out.status.code(), Some(0 | 4)));
    let told = String::from_utf8_lossy(&out.stdout);
    assert!(
        told.contains("Stored again ") && told.contains(": whole"),
        "{told}"
    );
    place.ok(&["restore-from", "b", "whole"]);
    assert_eq!(place.ok(&["cat", "whole:/f"]), text);
    assert_eq!(place.ok(&["cat", "whole:/g"]), "new");
    assert!(place.ok(&["check", "--data", "whole"]).contains("clean"));
    place.finish();
}
