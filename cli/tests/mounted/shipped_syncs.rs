//! Mounts whose fsyncs wait for the backup (`-o backup-sync`).

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::thread;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::io::Errno;
use serde_json::Value;

use crate::place::{Place, able, said};

/// Ships by itself at its beginning and its end only.
fn mount(place: &mut Place, options: &str) {
    let url = place.beside("b");
    place.mount_logged(&format!("backup={},interval=30d,{options}", url.display()));
}

fn write_and_sync(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// The contents of a file in the newest moment.
fn newest(place: &Place, name: &str) -> String {
    place.ok(&["restore-from", "b", "newest"]);
    let text = place.ok(&["cat", &format!("newest:/{name}")]);
    fs::remove_file(place.beside("newest")).unwrap();
    text
}

fn backup(place: &Place) -> Value {
    let stats: Value = serde_json::from_str(&place.ok(&["stats", "--json", "m"])).unwrap();
    stats["backup"].clone()
}

#[test]
fn what_an_fsync_has_made_durable_is_in_the_backup_when_it_returns() {
    if !able(&[]) {
        return;
    }
    for options in ["backup-sync", "backup-sync=300,write=back,transport=dev"] {
        let mut place = Place::new("64M");
        mount(&mut place, options);
        for number in 0..5 {
            let text = format!("{options} {number}");
            write_and_sync(&place.at("f"), &text).unwrap();
            assert_eq!(newest(&place, "f"), text);
        }
        // A directory, too.
        fs::rename(place.at("f"), place.at("g")).unwrap();
        File::open(place.dir()).unwrap().sync_all().unwrap();
        assert_eq!(newest(&place, "g"), format!("{options} 4"));
        let before = backup(&place)["moments"].as_u64().unwrap();
        // Many at once, and other operations beside them.
        let (threads, each) = (8, 6);
        thread::scope(|scope| {
            for writer in 0..threads {
                let place = &place;
                scope.spawn(move || {
                    for number in 0..each {
                        let path = place.at(format!("w{writer}"));
                        write_and_sync(&path, &number.to_string()).unwrap();
                        assert!(fs::read_dir(place.dir()).unwrap().count() > 0);
                    }
                });
            }
        });
        let stored = backup(&place)["moments"].as_u64().unwrap() - before;
        assert!(stored <= threads * each, "{stored} moments");
        place.ok(&["restore-from", "b", "all"]);
        for writer in 0..threads {
            let text = place.ok(&["cat", &format!("all:/w{writer}")]);
            assert_eq!(text, (each - 1).to_string());
        }
        place.finish();
    }
}

#[test]
fn an_fsync_fails_if_the_store_does_and_the_next_one_tries_again() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::new("64M");
    mount(&mut place, "backup-sync");
    write_and_sync(&place.at("f"), "stored").unwrap();
    fs::rename(place.beside("b/heads"), place.beside("heads")).unwrap();
    fs::write(place.beside("b/heads"), "no directory").unwrap();
    for _ in 0..2 {
        let refused = write_and_sync(&place.at("f"), "not stored").unwrap_err();
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::IO), "{refused}");
    }
    assert_eq!(backup(&place)["failing"], true);
    fs::remove_file(place.beside("b/heads")).unwrap();
    fs::rename(place.beside("heads"), place.beside("b/heads")).unwrap();
    write_and_sync(&place.at("g"), "stored again").unwrap();
    assert_eq!(newest(&place, "f"), "not stored");
    assert_eq!(newest(&place, "g"), "stored again");

    // Another writer ends it for the rest of the mount.
    place.ok(&["restore-from", "b", "moved"]);
    place.ok(&["cp", "log", "moved:/h"]);
    place.ok(&["backup", "--take-over", "moved", "b"]);
    for _ in 0..2 {
        let refused = write_and_sync(&place.at("f"), "too late").unwrap_err();
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::IO), "{refused}");
    }
    assert_eq!(backup(&place)["ended"], true);
    // It is durable on this machine.
    place.kill();
    assert_eq!(place.ok(&["cat", "v.cairn:/f"]), "too late");
}

#[test]
fn an_fsync_waits_no_longer_than_its_limit_for_a_store_that_does_not_answer() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::new("64M");
    let store = place.beside("b");
    fs::create_dir(&store).unwrap();
    let root = store.join("cairnfs-backup.json");
    mknodat(CWD, root, FileType::Fifo, Mode::RUSR, 0).unwrap();
    mount(&mut place, "backup-sync=0.5,backup-wait=0.5");
    for number in 0..2 {
        let refused = write_and_sync(&place.at("f"), &number.to_string()).unwrap_err();
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::IO), "{refused}");
    }
    // More of them than the daemon has threads hold up nothing else.
    thread::scope(|scope| {
        for writer in 0..100 {
            let place = &place;
            scope.spawn(move || {
                assert!(write_and_sync(&place.at(format!("w{writer}")), "x").is_err());
            });
        }
        for number in 0..100 {
            fs::write(place.at(format!("o{number}")), "y").unwrap();
        }
    });
    let out = place.run(&["umount", "m"]);
    assert!(out.status.success(), "{}", said(&out));
    place.wait_for_end();
    assert_eq!(place.ok(&["cat", "v.cairn:/f"]), "1");
    place.check();
}
