//! Runs the benchmarks as the command does.

use std::path::{Path, PathBuf};

use cairnfs_bench::{Args, run_to};
use clap::Parser;
use serde_json::Value;

/// The command line of `cairnfs-bench`.
#[derive(Parser)]
pub struct Command {
    #[command(flatten)]
    args: Args,
}

/// Returns the command's output, or its error text.
pub fn run(args: &[&str]) -> Result<String, String> {
    let command =
        Command::try_parse_from([&["cairnfs-bench"], args].concat()).map_err(|e| e.to_string())?;
    let mut out = Vec::new();
    run_to(&command.args, &mut out).map_err(|e| e.to_string())?;
    Ok(String::from_utf8(out).unwrap())
}

/// Returns the figures, parsed from JSON.
pub fn figures(args: &[&str]) -> Value {
    let json = run(&[args, &["--json"]].concat()).unwrap();
    serde_json::from_str(&json).unwrap()
}

/// Returns the figures of a workload in-process and through system calls. Checks that nothing is left in the directory.
pub fn everywhere(args: &[&str]) -> [Value; 2] {
    let library = [args, &["--target", "lib:", "--volume-size", "64M"]].concat();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let all = [
        figures(&library),
        figures(&[args, &["--target", path]].concat()),
    ];
    assert_eq!(dir.path().read_dir().unwrap().count(), 0);
    assert_eq!(all[0]["interface"], "in-process, library by path");
    assert_eq!(all[1]["interface"], "system calls");
    assert!(all[0]["phases"][0]["counters"]["device_flushes"].is_u64());
    assert_eq!(all[1]["phases"][0]["counters"], serde_json::json!({}));
    all
}

/// Returns each phase with its number of operations.
pub fn phases(figures: &Value) -> Vec<(&str, u64)> {
    let phases = figures["phases"].as_array().unwrap();
    phases
        .iter()
        .map(|p| {
            let name = p["phase"].as_str().unwrap();
            (name, p["operations"].as_u64().unwrap())
        })
        .collect()
}

/// Runs a workload that keeps its files in `dir`; returns the directory that it created there.
pub fn kept_in(dir: &Path, args: &[&str]) -> PathBuf {
    let target = ["--target", dir.to_str().unwrap(), "--keep"];
    run(&[args, &target].concat()).unwrap();
    let mut entries = dir.read_dir().unwrap();
    let top = entries.next().unwrap().unwrap().path();
    assert!(entries.next().is_none());
    top
}

/// Runs a workload in-process and keeps its files on a volume; returns path and length of every
/// file in the directory that it created there.
pub fn kept_on_a_volume(args: &[&str]) -> Vec<(String, u64)> {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("v.cairn");
    let target = format!("lib:{}", image.display());
    let options = ["--target", &target, "--volume-size", "64M", "--keep"];
    run(&[args, &options].concat()).unwrap();
    let volume = cairnfs::Volume::open(&image).unwrap();
    let mut files = Vec::new();
    for entry in volume.walk("/").unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_file() {
            let path = entry.path();
            let below = path.components().skip_while(|c| {
                !c.as_os_str()
                    .to_str()
                    .unwrap()
                    .starts_with("cairnfs-bench-")
            });
            let path: PathBuf = below.skip(1).collect();
            let length = entry.metadata().unwrap().len();
            files.push((path.to_str().unwrap().to_owned(), length));
        }
    }
    files.sort();
    files
}

/// Returns names and lengths of the files in a directory.
pub fn files_in(dir: &Path) -> Vec<(String, u64)> {
    let entries = dir.read_dir().unwrap().map(Result::unwrap);
    let mut files: Vec<_> = entries
        .map(|e| {
            let name = e.file_name().into_string().unwrap();
            (name, e.metadata().unwrap().len())
        })
        .collect();
    files.sort();
    files
}
