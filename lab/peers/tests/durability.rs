//! Equal durability, shown by the device: each store flushes its cache at least once for each call
//! that returns with its changes durable, and not for each call otherwise. Needs root, for a loop
//! device with an ext4 file system; skipped without, unless `CAIRNFS_REQUIRE_FUSE` is set.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails where it stands"
)]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

const EACH: u64 = 40;
const BLOBS: u64 = 3000;

/// A mounted ext4 file system on a loop device; removed when dropped.
struct Mounted {
    device: String,
    dir: PathBuf,
    _image: tempfile::TempDir,
}

fn done(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

impl Mounted {
    fn new() -> Self {
        let image = tempfile::tempdir().unwrap();
        let path = image.path().join("image");
        File::create(&path).unwrap().set_len(1 << 30).unwrap();
        let dir = image.path().join("mnt");
        fs::create_dir(&dir).unwrap();
        let mut losetup = Command::new("losetup");
        let device = done(losetup.args(["--find", "--show"]).arg(&path));
        let mounted = Self {
            device,
            dir,
            _image: image,
        };
        let device = &mounted.device;
        done(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(device));
        done(Command::new("mount").arg(device).arg(&mounted.dir));
        mounted
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.dir).status();
        let _ = Command::new("losetup").arg("-d").arg(&self.device).status();
    }
}

fn measured(dir: &Path) -> Value {
    let json = dir.join("figures.json");
    let sizes = ["--sizes", "100", "--durability", "each,batch,none"];
    done(
        Command::new(env!("CARGO_BIN_EXE_cairnfs-peers"))
            .args(sizes)
            .args(["--rounds", "1", "--blobs-each", &EACH.to_string()])
            .args(["--blobs", &BLOBS.to_string(), "--dir"])
            .arg(dir)
            .arg("--json")
            .arg(&json),
    );
    serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap()
}

#[test]
fn every_durable_call_flushes_the_device() {
    let required = std::env::var_os("CAIRNFS_REQUIRE_FUSE").is_some();
    if !rustix::process::geteuid().is_root() && !required {
        eprintln!("skipped: needs root");
        return;
    }
    let mounted = Mounted::new();
    let found = measured(&mounted.dir);
    let runs = found["runs"].as_array().unwrap();
    assert!(runs.len() >= 6, "two stores are always built");
    for run in runs {
        let durability = run["load"]["durability"].as_str().unwrap();
        let calls = match durability {
            "each" => EACH,
            "batch" => BLOBS.div_ceil(1000),
            _ => 0,
        };
        for step in run["figures"]["steps"].as_array().unwrap() {
            let flushes = step["device"]["flushes"].as_u64().unwrap();
            let said = format!("{}: {durability}: {step}", run["store"]);
            match step["name"].as_str().unwrap() {
                "write" | "delete" if calls > 0 => assert!(flushes >= calls, "{said}"),
                "write" | "delete" => assert!(flushes < BLOBS / 10, "{said}"),
                "sync" if calls == 0 => assert!(flushes >= 1, "{said}"),
                _ => {}
            }
        }
    }
}
