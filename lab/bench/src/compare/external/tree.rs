//! A tree of small text files, and single sources: the same from the same seed on every machine.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::Result;
use crate::random::Random;
use crate::target::at;

/// Seed of all generated inputs.
pub const SEED: u64 = 18;

/// A word that occurs once in each [`FILES_OF_NEEDLE`]-th file, and nowhere else.
pub const NEEDLE: &str = "Nadel";
const FILES_OF_NEEDLE: u64 = 50;

/// Files in a directory, and directories in a directory above.
const IN_DIRECTORY: u64 = 20;

/// Number of different words.
const WORDS: u64 = 400;

/// Sizes of files: a power of two in this range, and up to as much again. The mean is about 3 KiB.
const SIZES: std::ops::Range<u64> = 6..14;

/// Time of last modification in seconds: long ago, so that no program takes a file for new.
const MODIFIED: u64 = 1_000_000_000;

/// A tree of so many files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tree {
    /// Number of files.
    pub files: u64,
}

impl Tree {
    /// Returns the number of lines that contain the [`NEEDLE`].
    pub fn needles(self) -> u64 {
        self.files.div_ceil(FILES_OF_NEEDLE)
    }

    /// Calls `entry` with the path and the contents of each file; and before those of a directory,
    /// with its path, without contents.
    fn each(self, mut entry: impl FnMut(&str, Option<&[u8]>) -> io::Result<()>) -> io::Result<()> {
        let words = words();
        for number in 0..self.files {
            let dir = number / IN_DIRECTORY;
            let above = format!("d{:03}", dir / IN_DIRECTORY);
            let path = format!("{above}/d{dir:05}");
            if number.is_multiple_of(IN_DIRECTORY * IN_DIRECTORY) {
                entry(&above, None)?;
            }
            if number.is_multiple_of(IN_DIRECTORY) {
                entry(&path, None)?;
            }
            let mut random = Random::new(SEED, number);
            let least = 1 << (SIZES.start + random.below(SIZES.end - SIZES.start));
            let size = least + random.below(least);
            let mut text = text(&words, &mut random, size);
            if number.is_multiple_of(FILES_OF_NEEDLE) {
                text.push_str(NEEDLE);
                text.push('\n');
            }
            entry(
                &format!("{path}/file{number:06}.txt"),
                Some(text.as_bytes()),
            )?;
        }
        Ok(())
    }

    /// Writes the tree as an archive of tar.
    pub fn pack(self, path: &Path) -> Result<()> {
        let with_path = |e| at(path.display(), e);
        let file = fs::File::create(path).map_err(with_path)?;
        let mut archive = tar::Builder::new(BufWriter::new(file));
        self.each(|path, contents| append(&mut archive, path, contents))
            .map_err(with_path)?;
        let mut written = archive.into_inner().map_err(with_path)?;
        written.flush().map_err(with_path)
    }

    /// Writes the files of the tree below an existing directory.
    pub fn write(self, below: &Path) -> Result<()> {
        self.each(|path, contents| match contents {
            Some(bytes) => fs::write(below.join(path), bytes),
            None => fs::create_dir(below.join(path)),
        })
        .map_err(|e| at(below.display(), e))
    }
}

/// Appends a file, or a directory if there are no contents, to an archive.
pub fn append<W: Write>(
    archive: &mut tar::Builder<W>,
    path: &str,
    contents: Option<&[u8]>,
) -> io::Result<()> {
    let mut header = tar::Header::new_ustar();
    let (kind, mode) = match contents {
        Some(_) => (tar::EntryType::Regular, 0o644),
        None => (tar::EntryType::Directory, 0o755),
    };
    let contents = contents.unwrap_or_default();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_mtime(MODIFIED);
    header.set_size(contents.len() as u64);
    archive.append_data(&mut header, path, contents)
}

/// Writes files at paths below a directory, and the directories of those paths.
pub fn write_all(below: &Path, files: &[(String, String)]) -> Result<()> {
    for (path, text) in files {
        let path = below.join(path);
        let written = match path.parent() {
            Some(parent) => fs::create_dir_all(parent),
            None => Ok(()),
        };
        written
            .and_then(|()| fs::write(&path, text))
            .map_err(|e| at(path.display(), e))?;
    }
    Ok(())
}

/// Returns the vocabulary: words of lower case letters.
pub fn words() -> Vec<String> {
    let mut random = Random::new(SEED, u64::MAX);
    let mut word = || {
        let letters = 2 + random.below(8);
        let letter = |_| char::from(b'a' + random.below(26) as u8);
        (0..letters).map(letter).collect()
    };
    (0..WORDS).map(|_| word()).collect()
}

/// Returns at least `size` bytes of text, in lines of some words.
pub fn text(words: &[String], random: &mut Random, size: u64) -> String {
    let mut text = String::new();
    while (text.len() as u64) < size {
        let end = match random.below(8) {
            0 => '\n',
            _ => ' ',
        };
        let chosen = usize::try_from(random.below(words.len() as u64)).unwrap_or(0);
        text.push_str(words.get(chosen).map_or("", String::as_str));
        text.push(end);
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(tree: Tree) -> (Vec<String>, Vec<(String, usize)>) {
        let (mut dirs, mut files) = (Vec::new(), Vec::new());
        tree.each(|path, contents| {
            match contents {
                Some(bytes) => files.push((path.to_owned(), bytes.len())),
                None => dirs.push(path.to_owned()),
            }
            Ok(())
        })
        .unwrap();
        (dirs, files)
    }

    #[test]
    fn tree_has_its_files_in_directories_named_before() {
        let (dirs, files) = listed(Tree { files: 850 });
        assert_eq!((dirs.len(), files.len()), (43 + 3, 850));
        for (path, size) in &files {
            let parent = path.rsplit_once('/').unwrap().0;
            assert!(dirs.iter().any(|dir| dir == parent), "{path}");
            assert!((64..17_000).contains(size), "{path}: {size}");
        }
        assert_eq!(listed(Tree { files: 850 }).1, files);
        let mean = files.iter().map(|(_, size)| size).sum::<usize>() / files.len();
        assert!((2000..4000).contains(&mean), "{mean}");
    }

    #[test]
    fn archive_and_directory_hold_the_same_files() {
        let dir = tempfile::tempdir().unwrap();
        let (packed, written) = (dir.path().join("tree.tar"), dir.path().join("tree"));
        let tree = Tree { files: 120 };
        tree.pack(&packed).unwrap();
        fs::create_dir(&written).unwrap();
        tree.write(&written).unwrap();
        let mut archive = tar::Archive::new(fs::File::open(&packed).unwrap());
        let (mut files, mut needles) = (0, 0);
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = written.join(entry.path().unwrap());
            if entry.header().entry_type().is_dir() {
                assert!(path.is_dir());
                continue;
            }
            let mut text = String::new();
            io::Read::read_to_string(&mut entry, &mut text).unwrap();
            assert_eq!(fs::read_to_string(path).unwrap(), text);
            needles += text.lines().filter(|line| line.contains(NEEDLE)).count() as u64;
            files += 1;
        }
        assert_eq!((files, needles), (120, tree.needles()));
    }
}
