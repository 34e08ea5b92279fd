//! Patches in the colours of git diff.

use std::io::{self, Write};

use crate::look::{ADDED, Look, MOVED, REMOVED, STRONG};

/// Writes the patch of a file, line by line. Contents stay as they are.
pub fn write(out: &mut impl Write, look: &Look, patch: &[u8]) -> io::Result<()> {
    // Lines of a header begin like lines of contents.
    let mut in_header = true;
    for line in patch.split_inclusive(|b| *b == b'\n') {
        let style = match line.first() {
            Some(b'd') => {
                in_header = true;
                Some(STRONG)
            }
            Some(b'@') => {
                in_header = false;
                Some(MOVED)
            }
            _ if in_header => Some(STRONG),
            Some(b'+') => Some(ADDED),
            Some(b'-') => Some(REMOVED),
            _ => None,
        };
        let (text, end) = match line.strip_suffix(b"\n") {
            Some(text) => (text, &b"\n"[..]),
            None => (line, &b""[..]),
        };
        match style {
            Some(style) => {
                let mark = look.paint(style, "\0");
                let (begin, reset) = mark.split_once('\0').unwrap_or_default();
                out.write_all(begin.as_bytes())?;
                out.write_all(text)?;
                out.write_all(reset.as_bytes())?;
            }
            None => out.write_all(text)?,
        }
        out.write_all(end)?;
    }
    Ok(())
}
