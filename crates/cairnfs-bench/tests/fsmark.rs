//! The benchmark run as the command runs it, small.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails where it stands"
)]

use cairnfs_bench::{Args, run_to};
use clap::Parser;
use serde_json::Value;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

fn run(args: &[&str]) -> Result<String, String> {
    let command =
        Command::try_parse_from([&["bench"], args].concat()).map_err(|e| e.to_string())?;
    let mut out = Vec::new();
    run_to(&command.args, &mut out).map_err(|e| e.to_string())?;
    Ok(String::from_utf8(out).unwrap())
}

const SMALL: [&str; 9] = [
    "fsmark",
    "--threads",
    "3",
    "--files",
    "20",
    "--dirs",
    "4",
    "--size",
    "100",
];

fn phases(json: &str) -> Vec<(String, u64)> {
    let value: Value = serde_json::from_str(json).unwrap();
    let phases = value["phases"].as_array().unwrap();
    phases
        .iter()
        .map(|p| {
            let name = p["phase"].as_str().unwrap().to_owned();
            (name, p["operations"].as_u64().unwrap())
        })
        .collect()
}

fn expected(phases: &[(&str, u64)]) -> Vec<(String, u64)> {
    phases.iter().map(|(n, o)| ((*n).to_owned(), *o)).collect()
}

#[test]
fn a_directory_is_measured_and_left_clean() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let target = ["--target", path, "--json", "--sync"];
    let json = run(&[&SMALL[..], &target].concat()).unwrap();
    assert_eq!(
        phases(&json),
        expected(&[
            ("create", 60),
            ("walk", 60),
            ("unlink", 60),
            ("sync", 0),
            ("all, until synced", 60),
        ])
    );
    assert_eq!(dir.path().read_dir().unwrap().count(), 0);
    let table = run(&[&SMALL[..], &["--target", path, "--sync-phases"]].concat()).unwrap();
    assert!(table.contains("system calls"), "{table}");
    assert!(!table.contains("log B/op"), "{table}");
}

#[test]
fn files_are_kept_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    run(&[&SMALL[..], &["--target", path, "--keep"]].concat()).unwrap();
    let top = dir
        .path()
        .read_dir()
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let first = top.join("t2/d3/file00000015");
    assert_eq!(first.metadata().unwrap().len(), 100);
}

#[test]
fn the_library_is_measured_by_path_and_by_inode() {
    for how in [&[][..], &["--by-inode"]] {
        let target = ["--target", "lib:", "--volume-size", "64M", "--json"];
        let json = run(&[&SMALL[..], &target, how].concat()).unwrap();
        let names = phases(&json);
        assert_eq!(names.len(), 6);
        assert_eq!(names[4].0, "close");
        let value: Value = serde_json::from_str(&json).unwrap();
        assert!(
            value["phases"][5]["counters"]["log_bytes"]
                .as_u64()
                .unwrap()
                > 0
        );
    }
}

#[test]
fn a_volume_of_ones_own_stays() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("v.cairn");
    let target = format!("lib:{}", image.display());
    let options = ["--target", &target, "--volume-size", "64M", "--keep"];
    run(&[&SMALL[..], &options].concat()).unwrap();
    let volume = cairnfs::Volume::open(&image).unwrap();
    let files = volume
        .walk("/")
        .unwrap()
        .filter(|e| e.as_ref().unwrap().file_type().is_file());
    assert_eq!(files.count(), 60);
}

#[test]
fn what_makes_no_sense_is_refused() {
    assert!(run(&["--threads", "0"]).is_err());
    assert!(run(&["--target", "/", "--by-inode"]).is_err());
    assert!(run(&["--size", "many"]).is_err());
    assert!(
        run(&["--target", "no/such/directory"])
            .unwrap_err()
            .contains("no/such/directory")
    );
}
