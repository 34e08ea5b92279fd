//! A volume that is reachable both as an image and through loop devices: it opens in one place, and
//! not in an image that is in use through a loop device.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::place::{MOUNT_COPIES, Place, able, arg, nap, succeed};

/// A loop device on an image, detached in the end.
struct Loop(String);

impl Loop {
    fn on(image: &Path) -> Self {
        Self::with(image, &[])
    }

    /// With options of losetup(8).
    fn with(image: &Path, options: &[&str]) -> Self {
        let mut losetup = Command::new("losetup");
        let device = succeed(losetup.args(options).args(["-f", "--show", arg(&image)]));
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

/// A mount of a device made by mount(8), unmounted in the end.
struct Mounted<'a>(&'a str, &'a Path);

impl<'a> Mounted<'a> {
    fn of(device: &'a str, dir: &'a Path) -> Self {
        fs::create_dir(dir).unwrap();
        succeed(Command::new("mount").args([device, arg(&dir)]));
        Self(device, dir)
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.1, rustix::mount::UnmountFlags::empty());
        // Programs in mount namespaces of their own, which began meanwhile, have copies of the mount.
        let flags = OFlags::RDONLY | OFlags::EXCL;
        while matches!(
            rustix::fs::open(self.0, flags, Mode::empty()),
            Err(Errno::BUSY)
        ) {
            nap(20);
        }
    }
}

#[test]
fn image_whose_loop_device_is_mounted_is_refused() {
    if !able(&["losetup", "mkfs.ext4"]) {
        return;
    }
    let place = Place::new("64M");
    let (image, dir) = (place.beside("ext4"), place.beside("ext4.dir"));
    File::create(&image).unwrap().set_len(64 << 20).unwrap();
    succeed(Command::new("mkfs.ext4").args(["-q", "-F", arg(&image)]));
    let before = fs::read(&image).unwrap();
    let [used, unused] = [0; 2].map(|_| Loop::on(&image));
    {
        // A copy of the mount in another mount namespace would keep the device in use.
        let _copies = MOUNT_COPIES.write();
        let _mounted = Mounted::of(&used.0, &dir);
        let says = [used.0.as_str(), "losetup -d"];
        place.fails(&["mkfs", "-f", "ext4"], 1, &says);
        place.fails(&["mkfs", "-f", &unused.0], 1, &says);
        place.fails(&["mount", "ext4", "m"], 32, &says);
        place.fails(&["cp", "v.cairn", "ext4:/"], 1, &says);
    }
    let now = fs::read(&image).unwrap();
    // ext4 itself writes to its superblock and journal.
    assert!(before[4 << 20..8 << 20] == now[4 << 20..8 << 20]);
    // A device that is attached but not in use does not prevent anything.
    place.ok(&["mkfs", "-q", "-f", "ext4"]);
    drop((used, unused));
    place.ok(&["check", "ext4"]);
}

#[test]
fn loop_device_beside_a_mounted_one_is_free() {
    if !able(&["losetup", "mkfs.ext4"]) {
        return;
    }
    let place = Place::new("64M");
    let (image, dir) = (place.beside("parts"), place.beside("ext4.dir"));
    File::create(&image).unwrap().set_len(128 << 20).unwrap();
    let half = (64 << 20).to_string();
    let first = Loop::with(&image, &["--sizelimit", &half]);
    let second = Loop::with(&image, &["-o", &half]);
    succeed(Command::new("mkfs.ext4").args(["-q", "-F", &second.0]));
    {
        let _copies = MOUNT_COPIES.write();
        let _mounted = Mounted::of(&second.0, &dir);
        place.ok(&["mkfs", "-q", &first.0]);
        place.fails(&["mkfs", "-f", "parts"], 1, &[&second.0]);
    }
    place.ok(&["check", &first.0]);
}

#[test]
fn write_protected_volume_is_mounted_read_only_only() {
    if !able(&["losetup", "chattr"]) {
        return;
    }
    let place = Place::new("64M");
    let protected = |volume: &str| {
        place.fails(&["mount", volume, "m"], 32, &["write-protected", "-o ro"]);
        place.fails(&["mkfs", "-f", volume], 1, &["write-protected"]);
        place.fails(&["rm", &format!("{volume}:/x")], 1, &["write-protected"]);
        place.ok(&["mount", "-o", "ro", volume, "m"]);
        place.ok(&["umount", "m"]);
    };
    let device = Loop::with(&place.volume(), &["-r"]);
    protected(&device.0);
    drop(device);
    let volume = place.volume();
    succeed(Command::new("chattr").args(["+i", arg(&volume)]));
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| protected("v.cairn")));
    succeed(Command::new("chattr").args(["-i", arg(&volume)]));
    outcome.unwrap();
}
