//! Passes the commit that the command is built from to the compiler.
//!
//! Without git, or outside of a checkout of this repository, the command reports its version
//! only. It is rebuilt when the checked out commit changes, not when anything else in `.git`
//! changes.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let Some(commit) = commit() else { return };
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    println!("cargo::rustc-env=CAIRNFS_VERSION={version} (commit {commit})");
    // In a linked worktree this log is outside of the worktree's own directory.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
}

fn commit() -> Option<String> {
    let top = git(&["rev-parse", "--show-toplevel"])?;
    let top = Path::new(&top).canonicalize().ok()?;
    let ours = Path::new("..").canonicalize().ok()?;
    // An unpacked source archive may be inside the repository of another project.
    if top != ours {
        return None;
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}
