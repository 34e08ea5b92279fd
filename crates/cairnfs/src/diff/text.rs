//! Unified diffs of text, as `diff -u` writes them.
//!
//! Uses nothing of the crate but the names of files. Contents are compared by lines, as bytes; what
//! has a NUL, or is too long, is not compared as text.

use similar::{Algorithm, TextDiff};

/// Most bytes of a file that is compared as text.
pub const MOST_TEXT: usize = 16 << 20;

/// Lines of context around a change.
const CONTEXT: usize = 3;

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
    let diff = TextDiff::configure()
        .algorithm(Algorithm::Histogram)
        .diff_lines(old, new);
    let mut out = Vec::new();
    for hunk in diff.unified_diff().context_radius(CONTEXT).iter_hunks() {
        if out.is_empty() {
            let (old, new) = (names.0.as_ref(), names.1.as_ref());
            out.extend_from_slice(&[b"--- ", old, b"\n+++ ", new, b"\n"].concat());
        }
        // Hunk by hunk: written as a whole, bytes that are not UTF-8 would be replaced.
        hunk.to_writer(&mut out).ok()?;
    }
    Some(out)
}
