//! The forms of `cairnfs diff` for programs, `--name-only` and `--name-status`: as git diff has them.

use std::io::{self, Write};

use cairnfs::{FileChange, FilePath, Status};

/// What stands between the parts of a record, and how a path is written.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    /// Whether the letter is written, and the old path of a renamed file.
    pub status: bool,
    /// Whether parts end with NUL, and paths are written byte for byte; otherwise a record is a
    /// line, and paths with unusual bytes are quoted.
    pub nul: bool,
}

/// Writes the names of a file: one record for the file, and one for each further name that it got
/// or lost.
pub fn write(out: &mut impl Write, form: Form, file: &FileChange) -> io::Result<()> {
    let (old, new) = (&file.old_paths[..], &file.new_paths[..]);
    let (lost, gained) = match file.status {
        Status::Added => (old, new.get(1..).unwrap_or_default()),
        Status::Removed => (old.get(1..).unwrap_or_default(), new),
        Status::Renamed => (
            old.get(1..).unwrap_or_default(),
            new.get(1..).unwrap_or_default(),
        ),
        Status::Changed => (old, new),
    };
    match (file.status, old.first(), new.first()) {
        (Status::Added, ..) => record(out, form, "A", &[&file.path])?,
        (Status::Removed, ..) => record(out, form, "D", &[&file.path])?,
        (Status::Renamed, Some(old), Some(new)) => {
            record(out, form, &format!("R{:03}", kept(file)), &[old, new])?;
        }
        _ if is_changed(file) => record(out, form, "M", &[&file.path])?,
        _ => {}
    }
    gained
        .iter()
        .try_for_each(|path| record(out, form, "A", &[path]))?;
    lost.iter()
        .try_for_each(|path| record(out, form, "D", &[path]))
}

/// Whether more of a file differs than its names.
fn is_changed(file: &FileChange) -> bool {
    let names = !file.old_paths.is_empty() || !file.new_paths.is_empty();
    let inside = !file.contents.is_empty() || !file.xattrs.is_empty();
    !names || inside || !file.attributes.is_empty()
}

/// The part of the contents that did not change, in percent; 100 only if nothing did.
fn kept(file: &FileChange) -> u64 {
    let old = file.attributes.iter().find(|a| a.name == "size");
    let old = old.map_or(file.size, |a| u64::try_from(a.old).unwrap_or(0));
    let all = u128::from(old.max(file.size));
    let changed = file.contents.iter().map(|range| range.end - range.start);
    let changed: u128 = changed.map(u128::from).sum();
    match (changed, all) {
        (0, _) => 100,
        (_, 0) => 0,
        _ => u64::try_from(all.saturating_sub(changed) * 100 / all).unwrap_or(0),
    }
}

fn record(out: &mut impl Write, form: Form, letter: &str, paths: &[&FilePath]) -> io::Result<()> {
    let (between, end): (&[u8], &[u8]) = if form.nul {
        (b"\0", b"\0")
    } else {
        (b"\t", b"\n")
    };
    let mut parts: Vec<Vec<u8>> = Vec::new();
    if form.status {
        parts.push(letter.as_bytes().to_vec());
    }
    let shown = if form.status {
        paths
    } else {
        paths.last_chunk::<1>().map_or(&[][..], |last| &last[..])
    };
    parts.extend(shown.iter().map(|path| match (&path.bytes[..], form.nul) {
        // The root directory.
        (b"", _) => b".".to_vec(),
        (path, true) => path.to_vec(),
        (path, false) => quoted(path),
    }));
    out.write_all(&parts.join(between))?;
    out.write_all(end)
}

/// A path in quotes with escapes of C, as git quotes it, if it has bytes that are not ASCII,
/// control characters, quotes or backslashes.
fn quoted(path: &[u8]) -> Vec<u8> {
    let special = |byte: &u8| !matches!(byte, b' '..=b'~') || matches!(byte, b'"' | b'\\');
    if !path.iter().any(special) {
        return path.to_vec();
    }
    let mut out = b"\"".to_vec();
    for byte in path {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            7 => out.extend_from_slice(b"\\a"),
            8 => out.extend_from_slice(b"\\b"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            11 => out.extend_from_slice(b"\\v"),
            12 => out.extend_from_slice(b"\\f"),
            b'\r' => out.extend_from_slice(b"\\r"),
            byte if special(byte) => out.extend_from_slice(format!("\\{byte:03o}").as_bytes()),
            byte => out.push(*byte),
        }
    }
    out.push(b'"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_as_git_does() {
        let q = |path: &[u8]| String::from_utf8(quoted(path)).unwrap();
        assert_eq!(q(b"two words"), "two words");
        assert_eq!(q("w\u{f6}rds".as_bytes()), r#""w\303\266rds""#);
        assert_eq!(q(b"a\"b\\c\td\n"), r#""a\"b\\c\td\n""#);
        assert_eq!(q(b"\x1b\x7f\xff"), r#""\033\177\377""#);
    }
}
