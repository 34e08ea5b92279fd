//! The commands that README.md and docs/languages.md show do what these say, as they are there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::place::{CAIRNFS, able, said};

/// The block of shell commands behind a heading or a first word.
fn block(document: &str, behind: &str) -> String {
    let (_, rest) = document.split_once(behind).unwrap();
    let (_, rest) = rest.split_once("```sh\n").unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

/// Runs a script in a directory.
fn run(script: &str, dir: &Path, mounts: &[&str]) -> Output {
    let programs: PathBuf = Path::new(CAIRNFS).parent().unwrap().into();
    let path = std::env::var("PATH").unwrap();
    let out = Command::new("sh")
        .args(["-e", "-c", script])
        .current_dir(dir)
        .stdin(Stdio::null())
        .env("PATH", format!("{}:{path}", programs.display()))
        .output()
        .unwrap();
    if !out.status.success() {
        for mount in mounts {
            let mut undo = Command::new(CAIRNFS);
            let _ = undo.args(["umount", mount]).current_dir(dir).output();
        }
        panic!("{script}: {}", said(&out));
    }
    out
}

fn document(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    fs::read_to_string(root.join(path)).unwrap()
}

#[test]
fn commands_and_mount_of_the_document_run() {
    if !able(&["sh"]) {
        return;
    }
    let document = document("docs/languages.md");
    let dir = tempfile::tempdir().unwrap();
    for section in ["\n**Commands**", "\n**A mount**"] {
        let script = block(&document, section);
        assert!(script.lines().count() > 3, "{script}");
        let out = run(&script, dir.path(), &["notes"]);
        let printed = String::from_utf8_lossy(&out.stdout);
        let last = printed.lines().last();
        assert_eq!(last, Some("water the plants"), "{section}: {printed}");
    }
}

#[test]
fn the_readme_is_followed() {
    if !able(&["sh"]) {
        return;
    }
    let document = document("README.md").replace("cargo run --release --", "cairnfs");
    let begin = block(&document, "\n## Try it");
    let (mount, umount) = begin.split_once('\n').unwrap();
    let tried = block(&document, "\nWhile `mnt` is mounted:");
    let steps = block(&document, "\nThe same in steps");
    let (fork, publish) = steps.split_once('\n').unwrap();
    let script = format!(
        "set +e\n{mount}\n( {tried} )\n{fork}\necho forked >w/new\n{publish}\ncat mnt/new\n{umount}"
    );
    let dir = tempfile::tempdir().unwrap();
    let printed = said(&run(&script, dir.path(), &["w", "mnt"]));
    for told in ["A file", "A new", "\nforked\n"] {
        assert!(printed.contains(told), "{told}: {printed}");
    }
}
