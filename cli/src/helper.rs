//! Translates the arguments that mount(8) passes to a mount helper into those of `cairnfs mount`.
//!
//! mount(8) calls `mount.cairnfs`, or `mount.fuse.cairnfs` to remount a file system of the
//! kernel's type `fuse.cairnfs`. Where only mount.fuse(8) exists, it calls the program that has
//! the subtype's name, `cairnfs`, with an absolute path as the first argument; no subcommand
//! begins with a slash. mount(8) leaves out options that are its defaults, such as dev and suid.
//! A helper therefore mounts with both unless the opposite option is given. An ordinary user gets
//! neither: fusermount3 refuses them.

use std::ffi::OsString;
use std::path::Path;

/// Translates `VOLUME DIR [-sfnv] [-o OPTIONS] [-t TYPE]`. `None` if the program was not called as
/// a helper.
pub fn helper_arguments(argv: &[OsString]) -> Option<Result<Vec<OsString>, String>> {
    let (program, given) = argv.split_first()?;
    let name = Path::new(program).file_name()?;
    let by_name = name == "mount.cairnfs" || name == "mount.fuse.cairnfs";
    let absolute = given.first().is_some_and(|arg| Path::new(arg).has_root());
    (by_name || (name == "cairnfs" && absolute)).then(|| translate(given))
}

fn translate(given: &[OsString]) -> Result<Vec<OsString>, String> {
    let mut flags: Vec<OsString> = ["cairnfs", "mount", "--helper"].map(OsString::from).into();
    let mut places: Vec<OsString> = Vec::new();
    let mut rest = given.iter();
    while let Some(arg) = rest.next() {
        let cluster = match arg.to_str() {
            Some("--") => {
                places.extend(rest.by_ref().cloned());
                break;
            }
            Some("-h" | "--help") => {
                return Ok(["cairnfs", "mount", "--help"].map(OsString::from).into());
            }
            Some("-V" | "--version") => {
                return Ok(["cairnfs", "--version"].map(OsString::from).into());
            }
            Some(text) if text.len() > 1 => text.strip_prefix('-'),
            _ => None,
        };
        let Some(cluster) = cluster else {
            places.push(arg.clone());
            continue;
        };
        for (at, letter) in cluster.char_indices() {
            match letter {
                's' => flags.push("--sloppy".into()),
                'f' => flags.push("--fake".into()),
                'v' => flags.push("--verbose".into()),
                'n' => {}
                'o' | 't' | 'N' => {
                    let attached = cluster.get(at + 1..).unwrap_or_default();
                    let value = match attached {
                        "" => rest
                            .next()
                            .cloned()
                            .ok_or_else(|| format!("-{letter} needs a value"))?,
                        text => text.into(),
                    };
                    match letter {
                        'o' => flags.extend(["-o".into(), value]),
                        'N' => return Err("-N (another mount namespace) is not supported".into()),
                        _ => {}
                    }
                    break;
                }
                _ => return Err(format!("unknown option -{letter}")),
            }
        }
    }
    if places.len() != 2 {
        return Err("usage: mount.cairnfs VOLUME DIR [-sfnv] [-o OPTIONS]".into());
    }
    flags.push("--".into());
    flags.append(&mut places);
    Ok(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn helper(words: &[&str]) -> Option<Result<Vec<OsString>, String>> {
        helper_arguments(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn help_and_version_need_no_volume() {
        for (flag, expected) in [("--help", "mount --help"), ("-V", "--version")] {
            let ours = helper(&["mount.cairnfs", flag]).unwrap().unwrap();
            assert_eq!(ours[1..], expected.split(' ').collect::<Vec<_>>());
        }
    }

    #[test]
    fn mount_fuse_calls_with_an_absolute_path() {
        let ours = helper(&["cairnfs", "/v", "/m", "-o", "ro"])
            .unwrap()
            .unwrap();
        assert_eq!(
            ours,
            "cairnfs mount --helper -o ro -- /v /m"
                .split(' ')
                .collect::<Vec<_>>()
        );
    }

    #[test]
    fn other_program_names_are_not_the_helper() {
        assert!(helper(&["cairnfs", "mount", "a", "b"]).is_none());
        assert!(helper(&[]).is_none());
    }

    #[test]
    fn helper_arguments_are_translated() {
        let words = [
            "/sbin/mount.cairnfs",
            "/v.cairn",
            "/m",
            "-sfv",
            "-n",
            "-o",
            "ro,nofail",
        ];
        let ours = helper(&words).unwrap().unwrap();
        let expected =
            "cairnfs mount --helper --sloppy --fake --verbose -o ro,nofail -- /v.cairn /m";
        assert_eq!(ours, expected.split(' ').collect::<Vec<_>>());
    }

    #[test]
    fn values_may_be_attached_or_come_first() {
        let words = [
            "mount.cairnfs",
            "-t",
            "fuse.cairnfs",
            "-voro",
            "a b",
            "--",
            "-m",
        ];
        let ours = helper(&words).unwrap().unwrap();
        assert_eq!(
            ours,
            [
                "cairnfs",
                "mount",
                "--helper",
                "--verbose",
                "-o",
                "ro",
                "--",
                "a b",
                "-m"
            ]
        );
    }

    #[test]
    fn wrong_helper_arguments_are_refused() {
        for words in [
            &["mount.cairnfs", "v"][..],
            &["mount.cairnfs", "v", "m", "x"],
            &["mount.cairnfs", "v", "m", "-x"],
            &["mount.cairnfs", "v", "m", "-N", "ns"],
            &["mount.cairnfs", "v", "m", "-o"],
        ] {
            assert!(helper(words).unwrap().is_err(), "{words:?}");
        }
    }
}
