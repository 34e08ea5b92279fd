//! Unified diffs.

use crate::diff::{MOST_TEXT, is_text, unified};

#[test]
fn unified_diff_is_that_of_diff_u() {
    let old = b"one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n";
    let new = b"one\ntwo\nthree\nfour\n5\nsix\nseven\neight\nnine";
    let text = unified(("a/f", "b/f"), old, new).unwrap();
    let expected = "--- a/f\n+++ b/f\n@@ -2,7 +2,8 @@\n two\n three\n four\n-five\n+5\n six\n seven\n eight\n+nine\n\\ No newline at end of file\n";
    assert_eq!(String::from_utf8(text).unwrap(), expected);
    assert_eq!(unified(("a", "b"), old, old), Some(Vec::new()));
}

#[test]
fn lone_carriage_return_ends_no_line() {
    let text = unified(("a", "b"), b"one\ntwo\n", b"one\rbar\ntwo\r").unwrap();
    let expected = "--- a\n+++ b\n@@ -1,2 +1,2 @@\n-one\n-two\n+one\rbar\n+two\r\n\\ No newline at end of file\n";
    assert_eq!(String::from_utf8(text).unwrap(), expected);
    let text = unified(("a", "b"), b"one\r\n", b"one\n").unwrap();
    assert!(text.ends_with(b"@@ -1 +1 @@\n-one\r\n+one\n"));
}

#[test]
fn bytes_that_are_not_utf8_are_kept() {
    let text = unified(("a", "b"), b"\xff\xfe\n", b"\xff\xfd\n").unwrap();
    let has = |line: &[u8]| text.windows(line.len()).any(|w| w == line);
    assert!(has(b"-\xff\xfe\n") && has(b"+\xff\xfd\n"));
}

#[test]
fn binary_and_long_contents_are_not_text() {
    assert_eq!(unified(("a", "b"), b"text", b"nul\0"), None);
    assert!(is_text(b"") && is_text(&vec![b'x'; MOST_TEXT]));
    assert!(!is_text(&vec![b'x'; MOST_TEXT + 1]));
}
