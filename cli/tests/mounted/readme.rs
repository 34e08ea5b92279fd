//! The commands and the mount that docs/languages.md shows do what it says, as they are there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::place::{CAIRNFS, able, said};

/// The block of shell commands behind a heading or a first word.
fn block(document: &str, behind: &str) -> String {
    let (_, rest) = document.split_once(behind).unwrap();
    let (_, rest) = rest.split_once("```sh\n").unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

#[test]
fn commands_and_mount_of_the_document_run() {
    if !able(&["sh"]) {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let document = fs::read_to_string(root.join("docs/languages.md")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let programs: PathBuf = Path::new(CAIRNFS).parent().unwrap().into();
    let path = std::env::var("PATH").unwrap();
    for section in ["\n**Commands**", "\n**A mount**"] {
        let script = block(&document, section);
        assert!(script.lines().count() > 3, "{script}");
        let out = Command::new("sh")
            .args(["-e", "-c", &script])
            .current_dir(dir.path())
            .env("PATH", format!("{}:{path}", programs.display()))
            .output()
            .unwrap();
        if !out.status.success() {
            let mut undo = Command::new(CAIRNFS);
            let _ = undo
                .args(["umount", "notes"])
                .current_dir(dir.path())
                .output();
            panic!("{section}: {}", said(&out));
        }
        let printed = String::from_utf8_lossy(&out.stdout);
        let last = printed.lines().last();
        assert_eq!(last, Some("water the plants"), "{section}: {printed}");
    }
}
