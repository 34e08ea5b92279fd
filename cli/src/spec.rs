//! `VOLUME:PATH` arguments, which name a file inside a volume, and `VOLUME@NAME:/PATH`, in one of its
//! branches or snapshots.
//!
//! The rules, in this order:
//! 1. An argument that names an existing host file is a host path, with or without colons.
//! 2. Otherwise the first colon that follows the name of an existing file or device (not a
//!    directory) ends the volume's name; the rest is the path inside, from the volume's root.
//! 3. Otherwise the first `@` that follows such a name ends it. What follows is a reference, which
//!    ends at the first `:/`: times in it have colons. Where only a volume is expected, the path may
//!    be missing.
//! 4. Otherwise it is a host path.
//!
//! So `disk.img:/etc/motd` is inside `disk.img`, `disk.img@main@10:30:/etc/motd` in a snapshot of it,
//! and `dir/a:b` is a host path unless a file `dir/a` exists and `dir/a:b` does not. From the crate
//! this uses failures, and looks whether a mount is dead.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cairnfs_daemon::failure::{Failure, io_text, show_bytes, shown};

use crate::mount_location;

/// The hint where a reference has a colon that does not begin a path.
pub const SLASH: &str = "the path in a branch or snapshot begins with a slash: VOLUME@NAME:/PATH";

/// A path inside a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumePath {
    /// The volume's file or device.
    pub volume: PathBuf,
    /// The branch or snapshot; `None` for `main`.
    pub reference: Option<String>,
    /// The path inside, from the root, with or without a leading slash.
    pub inside: Vec<u8>,
}

impl VolumePath {
    /// Parses an argument that must name a volume, with or without the rest:
    /// `VOLUME[:PATH]` or `VOLUME@NAME[:/PATH]`.
    ///
    /// # Errors
    /// The named file or device does not exist, or is in a mount whose daemon is gone.
    pub fn parse(arg: &OsStr) -> Result<Self, Failure> {
        let whole = Path::new(arg);
        if whole.is_dir() {
            mount_location::refuse_dead(whole)?;
            return Err(Failure::new(shown(whole), "is a directory, not a volume"));
        }
        if whole.exists() {
            return Ok(Self {
                volume: whole.to_owned(),
                reference: None,
                inside: Vec::new(),
            });
        }
        if let Some(inside) = split(arg, is_file).or_else(|| split_reference(arg, is_file)) {
            return Ok(inside);
        }
        // It cannot be asked what it is there.
        mount_location::refuse_dead(whole)?;
        Err(no_volume(whole))
    }

    /// As shown in messages.
    pub fn shown(&self) -> String {
        place(&self.volume, self.reference.as_deref(), &self.inside)
    }
}

/// A path inside a volume as shown in messages.
pub fn place(volume: &Path, reference: Option<&str>, inside: &[u8]) -> String {
    let tree = match reference {
        Some(name) => format!("{}@{}", shown(volume), show_bytes(name.as_bytes())),
        None => shown(volume),
    };
    format!("{tree}:/{}", show_bytes(inside).trim_start_matches('/'))
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
        let with_path = |place: &VolumePath| !place.inside.is_empty();
        let in_tree = || split_reference(arg, &is_file).filter(with_path);
        match split(arg, &is_file).or_else(in_tree) {
            Some(inside) => Spec::Volume(inside),
            None => Spec::Host(arg.into()),
        }
    }

    /// Refuses a host path that was meant to be in a branch or snapshot, probably.
    ///
    /// # Errors
    /// It is `VOLUME@NAME:PATH` without a slash, or `VOLUME@NAME` where that file is a volume.
    pub fn checked(self) -> Result<Self, Failure> {
        let meant = match &self {
            Spec::Host(path) if path.symlink_metadata().is_err() => {
                split_reference(path.as_os_str(), is_file)
            }
            _ => None,
        };
        let has_colon = |place: &VolumePath| place.reference.iter().any(|name| name.contains(':'));
        match meant {
            Some(place) if has_colon(&place) => {
                Err(Failure::new(self.shown(), "no such file").hint(SLASH))
            }
            Some(place) if cairnfs::fs::inspect(&place.volume).is_ok() => {
                let why = "names a branch or snapshot of a volume, and no path in it";
                Err(Failure::new(self.shown(), why).hint(format_args!(
                    "{SLASH}; to write a file of this name, make it first, empty"
                )))
            }
            _ => Ok(self),
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
        _ => Failure::new(shown(path), "no such volume").hint(
            "write VOLUME, VOLUME:PATH or VOLUME@NAME:/PATH; to make a volume: cairnfs mkfs VOLUME",
        ),
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
    let (volume, inside) = split_volume(arg, b':', is_file)?;
    Some(VolumePath {
        volume,
        reference: None,
        inside: inside.to_vec(),
    })
}

/// Splits `VOLUME@NAME[:/PATH]`.
fn split_reference(arg: &OsStr, is_file: impl Fn(&Path) -> bool) -> Option<VolumePath> {
    let (volume, rest) = split_volume(arg, b'@', is_file)?;
    let end = rest.windows(2).position(|pair| pair == b":/");
    let (name, path) = rest.split_at_checked(end.unwrap_or(rest.len()))?;
    Some(VolumePath {
        volume,
        // No tree has a name that is not UTF-8.
        reference: Some(String::from_utf8_lossy(name).into_owned()),
        inside: path.get(1..).unwrap_or_default().to_vec(),
    })
}

/// Splits at the first `by` that follows the name of a volume.
fn split_volume(arg: &OsStr, by: u8, is_file: impl Fn(&Path) -> bool) -> Option<(PathBuf, &[u8])> {
    let bytes = arg.as_bytes();
    let ends = bytes.iter().enumerate().filter(|(_, b)| **b == by);
    let parts = ends.filter_map(|(at, _)| bytes.split_at_checked(at));
    let mut volumes = parts.map(|(name, rest)| (Path::new(OsStr::from_bytes(name)), rest));
    let (volume, rest) = volumes.find(|(name, _)| is_file(name))?;
    Some((volume.to_owned(), rest.get(1..).unwrap_or_default()))
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
            reference: None,
            inside: path.into(),
        })
    }

    fn in_tree(volume: &str, name: &str, path: &str) -> VolumePath {
        VolumePath {
            volume: volume.into(),
            reference: Some(name.into()),
            inside: path.into(),
        }
    }

    #[test]
    fn reference_follows_volume_and_may_have_colons() {
        let found = |arg, volume, name, path| {
            assert_eq!(
                parse(arg, &[volume], &[]),
                Spec::Volume(in_tree(volume, name, path))
            );
        };
        found("v.img@monday:/a:/b", "v.img", "monday", "/a:/b");
        found("v.img@main@10:30:/a", "v.img", "main@10:30", "/a");
        found("v@1.img@x:/", "v@1.img", "x", "/");
        assert_eq!(
            parse("v.img:/a@b", &["v.img"], &[]),
            inside("v.img", "/a@b")
        );
        assert_eq!(
            parse("v.img@x:/a", &["v.img", "v.img@x"], &[]),
            inside("v.img@x", "/a")
        );
    }

    #[test]
    fn reference_without_path_is_a_volume_only_where_one_is_expected() {
        let files = |p: &Path| p == Path::new("v.img");
        let split = |arg: &str| split_reference(OsStr::new(arg), files);
        assert_eq!(split("v.img@monday"), Some(in_tree("v.img", "monday", "")));
        assert_eq!(split("w.img@monday"), None);
        assert_eq!(
            parse("v.img@monday", &["v.img"], &[]),
            Spec::Host("v.img@monday".into())
        );
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
