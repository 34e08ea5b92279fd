//! A volume that is reachable both as an image and through loop devices: it opens in one place.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::place::{Place, able, arg, succeed};

/// A loop device on an image, detached in the end.
struct Loop(String);

impl Loop {
    fn on(image: &Path) -> Self {
        let device = succeed(Command::new("losetup").args(["-f", "--show", arg(&image)]));
        Self(device.trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

#[test]
fn volume_in_use_is_refused_through_loop_device_and_image() {
    if !able(&["losetup"]) {
        return;
    }
    let mut place = Place::mounted("64M", "");
    let [first, second] = [0; 2].map(|_| Loop::on(&place.volume()));
    let (other, notes) = (place.beside("other"), place.beside("notes"));
    fs::create_dir(&other).unwrap();
    fs::write(&notes, "notes").unwrap();
    let in_use = |place: &Place, volume: &str| {
        let target = format!("{volume}:/");
        place.fails(&["mount", volume, "other"], 32, &["in use"]);
        place.fails(&["cp", "notes", &target], 1, &["in use"]);
        place.fails(&["ls", volume], 1, &["in use"]);
    };
    in_use(&place, &first.0);
    place.umount();
    place.ok(&["mount", &first.0, "m"]);
    in_use(&place, "v.cairn");
    in_use(&place, &second.0);
    place.ok(&["umount", "m"]);
    place.ok(&["ls", "v.cairn"]);
    drop((first, second));
    place.check();
}
