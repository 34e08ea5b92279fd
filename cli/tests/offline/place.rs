//! The working directory of a test, and helpers that run the command in it.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// A working directory, with a volume of 64 MiB at `v.img` once it is made.
pub struct Place {
    dir: TempDir,
}

impl Place {
    pub fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    pub fn with_volume() -> Self {
        Self::with_volume_of("64M")
    }

    /// As [`Self::with_volume`], with the smallest volume: for tests that copy it again and again.
    pub fn with_small_volume() -> Self {
        Self::with_volume_of("16M")
    }

    fn with_volume_of(size: &str) -> Self {
        let place = Self::new();
        place.ok(&["mkfs", "-q", "--size", size, "v.img"]);
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn run(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_cairnfs"))
            .current_dir(self.dir.path())
            .args(args)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    pub fn ok(&self, args: &[&str]) -> String {
        String::from_utf8_lossy(&self.ok_bytes(args)).into_owned()
    }

    pub fn ok_bytes(&self, args: &[&str]) -> Vec<u8> {
        let out = self.run(args);
        let [told, text] = [&out.stdout, &out.stderr].map(|text| String::from_utf8_lossy(text));
        assert!(out.status.success(), "{args:?}: {text}{told}");
        out.stdout
    }

    pub fn fails(&self, args: &[&str], code: i32, says: &str) {
        let out = self.run(args);
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{args:?}: {text}");
        assert!(text.contains(says), "{args:?}: {text}");
        assert!(!text.contains("panicked"), "{text}");
    }

    pub fn json(&self, args: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.ok(args)).unwrap()
    }

    /// Runs a shell line, in which `$cairnfs` is the command. `feed` writes to its standard input
    /// until the shell stops reading.
    pub fn shell(&self, line: &str, feed: impl FnOnce(&mut dyn Write)) -> Output {
        let mut child = Command::new("sh")
            .current_dir(self.dir.path())
            .env("cairnfs", env!("CARGO_BIN_EXE_cairnfs"))
            .args(["-c", line])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        feed(&mut stdin);
        drop(stdin);
        child.wait_with_output().unwrap()
    }

    /// Runs the command with a file size limit of a few MiB (`EFBIG`).
    pub fn limited(&self, args: &str) -> Output {
        let line = format!("ulimit -f 8192; exec \"$cairnfs\" {args}");
        self.shell(&line, |_| {})
    }

    /// Flips a bit in every block of the volume that begins with `bytes`. Returns the number of
    /// blocks.
    pub fn rot(&self, volume: &str, bytes: &[u8]) -> usize {
        let mut image = fs::read(self.path(volume)).unwrap();
        let blocks = image.chunks_mut(4096).filter(|b| b.starts_with(bytes));
        let rotten = blocks.map(|block| block[17] ^= 1).count();
        fs::write(self.path(volume), image).unwrap();
        rotten
    }
}

/// Bytes in which adjacent parts differ.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7 % 251) as u8).collect()
}
