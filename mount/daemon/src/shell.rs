//! Words of a command line, as messages tell users what to type.

use std::path::Path;

/// A word of a command line for a shell, in quotes if it needs them.
pub fn word(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "%+,-./:=@_".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// As [`word`], of any bytes: those that a terminal does not show are escaped, as bash and zsh read
/// them.
pub fn word_of(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => word(text),
        _ => {
            let escape = |byte: &u8| match *byte {
                b'\'' | b'\\' => format!("\\{}", char::from(*byte)),
                b' '..=b'~' => char::from(*byte).to_string(),
                byte => format!("\\x{byte:02x}"),
            };
            format!("$'{}'", bytes.iter().map(escape).collect::<String>())
        }
    }
}

/// As [`word_of`], of a path.
pub fn word_of_path(path: &Path) -> String {
    word_of(path.as_os_str().as_encoded_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_a_shell() {
        assert_eq!(
            word("main.undo-20260131T101500Z"),
            "main.undo-20260131T101500Z"
        );
        assert_eq!(word("my disk.img"), "'my disk.img'");
        assert_eq!(word("it's"), r"'it'\''s'");
        assert_eq!(word_of("é\u{1f600} x".as_bytes()), "'é\u{1f600} x'");
        assert_eq!(word_of(b"it's\n\\\xff"), r"$'it\'s\x0a\\\xff'");
    }
}
