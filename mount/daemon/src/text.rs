//! Names and errors as messages show them.

use std::io;
use std::path::Path;

/// The text of an I/O error without "(os error N)".
pub fn io_text(error: &io::Error) -> String {
    without_number(&error.to_string()).to_owned()
}

/// A text without it.
pub(crate) fn without_number(text: &str) -> &str {
    let end = text.rfind(" (os error ");
    end.and_then(|at| text.get(..at)).unwrap_or(text)
}

/// A path as shown in messages.
pub fn shown(path: &Path) -> String {
    show_bytes(path.as_os_str().as_encoded_bytes())
}

/// A name as shown in messages and on terminals: characters that can control a terminal are
/// escaped.
pub fn show_bytes(name: &[u8]) -> String {
    let mut text = String::new();
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() {
                text.extend(c.escape_default());
            } else {
                text.push(c);
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_for_terminals() {
        assert_eq!(show_bytes("plain é".as_bytes()), "plain é");
        assert_eq!(show_bytes(b"a\x1b[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(show_bytes(b"\xff\n"), "\\xff\\n");
    }

    #[test]
    fn error_numbers_are_not_shown() {
        let e = io::Error::from_raw_os_error(2);
        assert_eq!(io_text(&e), "No such file or directory");
    }
}
