//! `VOLUME:PATH` arguments, which name a file inside a volume.
//!
//! The rules, in this order:
//! 1. An argument that names an existing host file is a host path, with or without colons.
//! 2. Otherwise the first colon that follows the name of an existing file or device (not a
//!    directory) ends the volume's name; the rest is the path inside, from the volume's root.
//! 3. Otherwise it is a host path.
//!
//! So `disk.img:/etc/motd` is inside `disk.img`, and `dir/a:b` is a host path unless a file
//! `dir/a` exists and `dir/a:b` does not. From the crate this uses failures, and looks whether a
//! mount is dead.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, io_text, shown};
use crate::seat;

/// A path inside a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumePath {
    /// The volume's file or device.
    pub volume: PathBuf,
    /// The path inside, from the root, with or without a leading slash.
    pub inside: Vec<u8>,
}

impl VolumePath {
    /// Parses an argument that must name a volume, with or without a path: `VOLUME[:PATH]`.
    ///
    /// # Errors
    /// The named file or device does not exist, or is in a mount whose daemon is gone.
    pub fn parse(arg: &OsStr) -> Result<Self, Failure> {
        let whole = Path::new(arg);
        if whole.is_dir() {
            seat::refuse_dead(whole)?;
            return Err(Failure::new(shown(whole), "is a directory, not a volume"));
        }
        if whole.exists() {
            return Ok(Self {
                volume: whole.to_owned(),
                inside: Vec::new(),
            });
        }
        if let Some(inside) = split(arg, is_file) {
            return Ok(inside);
        }
        // It cannot be asked what it is there.
        seat::refuse_dead(whole)?;
        Err(no_volume(whole))
    }

    /// As shown in messages.
    pub fn shown(&self) -> String {
        place(&self.volume, &self.inside)
    }
}

/// A path inside a volume as shown in messages.
pub fn place(volume: &Path, inside: &[u8]) -> String {
    let inside = crate::failure::show_bytes(inside);
    format!("{}:/{}", shown(volume), inside.trim_start_matches('/'))
}

/// An argument that names a host path or a path inside a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spec {
    /// On the host.
    Host(PathBuf),
    /// Inside a volume.
    Volume(VolumePath),
}

impl Spec {
    /// Parses an argument by the rules of this module.
    pub fn parse(arg: &OsStr) -> Self {
        Self::parse_with(arg, |p| p.symlink_metadata().is_ok(), is_file)
    }

    fn parse_with(
        arg: &OsStr,
        exists: impl Fn(&Path) -> bool,
        is_file: impl Fn(&Path) -> bool,
    ) -> Self {
        if exists(Path::new(arg)) {
            return Spec::Host(arg.into());
        }
        match split(arg, is_file) {
            Some(inside) => Spec::Volume(inside),
            None => Spec::Host(arg.into()),
        }
    }

    /// As shown in messages.
    pub fn shown(&self) -> String {
        match self {
            Spec::Host(path) => shown(path),
            Spec::Volume(path) => path.shown(),
        }
    }
}

/// The failure for a path that was given as a volume but is none.
pub fn no_volume(path: &Path) -> Failure {
    match path.metadata() {
        Err(e) if e.kind() == ErrorKind::PermissionDenied => Failure::new(shown(path), io_text(&e))
            .hint("you need permission to enter the directories that lead to it"),
        _ => Failure::new(shown(path), "no such volume")
            .hint("write VOLUME or VOLUME:PATH; to make a volume: cairnfs mkfs VOLUME"),
    }
}

/// The volume that was probably meant by a host path that does not exist.
pub fn meant_volume(path: &Path) -> Option<PathBuf> {
    let bytes = path.as_os_str().as_bytes();
    let at = bytes.windows(2).position(|w| w == b":/")?;
    bytes
        .get(..at)
        .filter(|name| !name.is_empty())
        .map(|name| PathBuf::from(OsStr::from_bytes(name)))
}

fn is_file(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| !m.is_dir())
}

fn split(arg: &OsStr, is_file: impl Fn(&Path) -> bool) -> Option<VolumePath> {
    let bytes = arg.as_bytes();
    let colons = bytes.iter().enumerate().filter(|(_, b)| **b == b':');
    for (at, _) in colons {
        let (name, rest) = bytes.split_at_checked(at)?;
        let name = Path::new(OsStr::from_bytes(name));
        if is_file(name) {
            return Some(VolumePath {
                volume: name.to_owned(),
                inside: rest.get(1..).unwrap_or_default().to_vec(),
            });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arg: &str, files: &[&str], others: &[&str]) -> Spec {
        let named = |set: &[&str], p: &Path| set.iter().any(|f| Path::new(f) == p);
        Spec::parse_with(
            OsStr::new(arg),
            |p| named(files, p) || named(others, p),
            |p| named(files, p),
        )
    }

    fn inside(volume: &str, path: &str) -> Spec {
        Spec::Volume(VolumePath {
            volume: volume.into(),
            inside: path.into(),
        })
    }

    #[test]
    fn colon_after_existing_file_separates_path() {
        assert_eq!(
            parse("v.img:/a/b", &["v.img"], &[]),
            inside("v.img", "/a/b")
        );
        assert_eq!(parse("v.img:a:b", &["v.img"], &[]), inside("v.img", "a:b"));
        assert_eq!(parse("v.img:", &["v.img"], &[]), inside("v.img", ""));
    }

    #[test]
    fn volumes_may_have_colons_in_their_names() {
        assert_eq!(parse("a:b:/c", &["a:b"], &["a"]), inside("a:b", "/c"));
    }

    #[test]
    fn host_paths_stay_host_paths() {
        assert_eq!(parse("./a:b", &[], &[]), Spec::Host("./a:b".into()));
        assert_eq!(parse("a:b", &["a", "a:b"], &[]), Spec::Host("a:b".into()));
        assert_eq!(parse("dir:x", &[], &["dir"]), Spec::Host("dir:x".into()));
        assert_eq!(parse("v.img", &["v.img"], &[]), Spec::Host("v.img".into()));
    }

    #[test]
    fn missing_volume_is_guessed_from_path() {
        assert_eq!(meant_volume(Path::new("v.img:/x")), Some("v.img".into()));
        assert_eq!(meant_volume(Path::new("a:b")), None);
    }
}
