//! Backups of mounted volumes, and moments that are mounted from a store.

use std::fs;

use crate::place::{Place, able};

#[test]
fn a_mounted_volume_is_backed_up_with_every_write_that_had_returned() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::new("64M");
    place.mount("");
    for number in 0..3_u32 {
        let text = number.to_string().repeat(50_000);
        fs::write(place.beside("m/f"), &text).unwrap();
        let url = place.beside("b");
        let stored = place.ok(&["backup", "--json", "m", url.to_str().unwrap()]);
        let stored: serde_json::Value = serde_json::from_str(&stored).unwrap();
        assert_eq!(stored["whole"], number == 0, "{stored}");
        let name = format!("new{number}");
        place.ok(&["restore-from", "b", &name]);
        assert_eq!(place.ok(&["cat", &format!("{name}:/f")]), text);
        assert!(place.ok(&["check", "--data", &name]).contains("clean"));
    }
    place.finish();
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

    let then = place.beside("then");
    fs::create_dir(&then).unwrap();
    for (at, text) in [(first, old.as_str()), ("latest", "new")] {
        place.ok(&["mount", "--at", at, "b", "then"]);
        assert_eq!(fs::read_to_string(then.join("dir/f")).unwrap(), text);
        let refused = fs::write(then.join("g"), "x").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        place.ok(&["umount", "then"]);
    }
    place.finish();
}
