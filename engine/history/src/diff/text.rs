//! Unified diffs of text, as `diff -u` writes them.
//!
//! Uses nothing of the crate but the names of files. Contents are compared by lines, as bytes; what
//! has a NUL, or is too long, is not compared as text.

use std::io::Write;

use similar::{Algorithm, TextDiff};

/// Most bytes of a file that is compared as text.
pub const MOST_TEXT: usize = 16 << 20;

/// Lines of context around a change.
const CONTEXT: usize = 3;

/// Behind a last line that no newline ends.
const NO_NEWLINE: &[u8] = b"\n\\ No newline at end of file\n";

/// Whether contents are compared as text: no NUL, and not longer than [`MOST_TEXT`].
pub fn is_text(contents: &[u8]) -> bool {
    contents.len() <= MOST_TEXT && !contents.contains(&0)
}

/// The unified diff of two contents, with the two names in its header; `None` if one of them is
/// not text. Equal contents give nothing.
pub fn unified<N: AsRef<[u8]> + ?Sized>(
    names: (&N, &N),
    old: &[u8],
    new: &[u8],
) -> Option<Vec<u8>> {
    if !is_text(old) || !is_text(new) {
        return None;
    }
    let lines = |text| -> Vec<&[u8]> { <[u8]>::split_inclusive(text, |b| *b == b'\n').collect() };
    // The crate would also end a line at a lone carriage return, which `diff` and `patch` do not.
    let diff = TextDiff::configure()
        .algorithm(Algorithm::Histogram)
        .diff_slices(&lines(old), &lines(new));
    let mut out = Vec::new();
    for hunk in diff.unified_diff().context_radius(CONTEXT).iter_hunks() {
        if out.is_empty() {
            let (old, new) = (names.0.as_ref(), names.1.as_ref());
            out.extend_from_slice(&[b"--- ", old, b"\n+++ ", new, b"\n"].concat());
        }
        writeln!(out, "{}", hunk.header()).ok()?;
        for change in hunk.iter_changes() {
            write!(out, "{}", change.tag()).ok()?;
            out.extend_from_slice(change.value());
            if !change.value().ends_with(b"\n") {
                out.extend_from_slice(NO_NEWLINE);
            }
        }
    }
    Some(out)
}
