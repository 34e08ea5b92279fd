//! What users are told of writes that were refused, because a publish has replaced the file meanwhile.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};

use crate::place::{Place, able};

/// Without a writeback cache the program has got the error itself. With one it gets it by fsync, and
/// whoever unmounts is told what was refused: the volume lacks nothing.
#[test]
fn writes_to_replaced_files_are_not_told_as_lost() {
    if !able(&[]) {
        return;
    }
    for write in ["through", "back"] {
        let options = format!("write={write}");
        let mut place = Place::mounted("128M", &options);
        fs::create_dir(place.at("d")).unwrap();
        fs::write(place.at("d/f"), b"before").unwrap();
        place.ok(&["branch", "m", "work"]);
        place.mount_beside("branch=work", "t");
        fs::write(place.beside("t/d/f"), b"published").unwrap();
        place.umount_beside("t");
        let append = || File::options().append(true).open(place.at("d/f")).unwrap();
        let mut old = append();
        place.ok(&["publish", "m", "work"]);
        let refused = old.write_all(b" lost").and_then(|()| old.sync_all());
        assert_eq!(
            refused.unwrap_err().kind(),
            ErrorKind::StaleNetworkFileHandle
        );
        drop(old);
        let mut new = append();
        new.write_all(b" and more").unwrap();
        drop(new);
        let out = place.run(&["umount", "m"]);
        let told = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{told}");
        let mut says = told.lines();
        match write {
            "back" => {
                let line = says.next().unwrap();
                assert!(line.contains("warning") && line.contains("/d/f"), "{told}");
            }
            _ => assert_eq!(says.next(), None),
        }
        assert!(says.next().is_none(), "{told}");
        place.wait_for_end();
        place.check();
        assert_eq!(place.ok(&["cat", "v.cairn:/d/f"]), "published and more");
    }
}
