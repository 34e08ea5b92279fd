//! Conversions of errors, for every variant.

use super::*;
use std::error::Error as _;

/// The index of a variant in [`every_variant`]; a new variant without an arm does not compile.
fn place(error: &Error) -> usize {
    match error {
        Error::NotFound => 0,
        Error::Exists => 1,
        Error::NotDirectory => 2,
        Error::IsDirectory => 3,
        Error::NotEmpty => 4,
        Error::NameTooLong => 5,
        Error::Invalid(_) => 6,
        Error::NoSpace => 7,
        Error::FileTooLarge => 8,
        Error::TooManyLinks => 9,
        Error::NoAttribute => 10,
        Error::AttributeTooLarge => 11,
        Error::SymlinkLoop => 12,
        Error::NoSuchOffset => 13,
        Error::Unsupported(_) => 14,
        Error::NotPermitted(_) => 15,
        Error::NotOpenFor(_) => 16,
        Error::UnexpectedEnd => 17,
        Error::ReadOnly => 18,
        Error::Busy(_) => 19,
        Error::NotUtf8 => 20,
        Error::InUse(_) => 21,
        Error::NotAVolume(_) => 22,
        Error::Incompatible(_) => 23,
        Error::CutOff { .. } => 24,
        Error::Corrupt(_) => 25,
        Error::Io { .. } => 26,
        Error::HostFull { .. } => 27,
        Error::Temporary { .. } => 28,
        Error::Open { .. } => 29,
        Error::Stopped(_) => 30,
        Error::Other(_) => 31,
        Error::At { .. } => 32,
        Error::Attached { .. } => 33,
        Error::NoSnapshot(_) => 34,
        Error::Stream(_) => 35,
        Error::Stale => 36,
        Error::HeldByRoots => 37,
        Error::NoRoot { .. } => 38,
        Error::NoBase { .. } => 39,
        Error::WouldWait => 40,
        Error::Unsettled(_) => 41,
        Error::NoSpaceForStream { .. } => 42,
        Error::GaveWay => 43,
        Error::FrontLost { .. } => 44,
        Error::Conflicts(_) => 45,
    }
}

fn denied() -> Arc<io::Error> {
    Arc::new(io::Error::from_raw_os_error(libc::EACCES))
}

fn in_use() -> InUse {
    InUse {
        path: "disk.img".into(),
        by_this_process: false,
    }
}

fn failed() -> Error {
    Error::Io {
        op: "write",
        offset: 4096,
        len: 8192,
        source: Arc::new(io::Error::other("unplugged")),
    }
}

fn every_variant() -> [Error; 46] {
    [
        Error::NotFound,
        Error::Exists,
        Error::NotDirectory,
        Error::IsDirectory,
        Error::NotEmpty,
        Error::NameTooLong,
        Error::Invalid("why"),
        Error::NoSpace,
        Error::FileTooLarge,
        Error::TooManyLinks,
        Error::NoAttribute,
        Error::AttributeTooLarge,
        Error::SymlinkLoop,
        Error::NoSuchOffset,
        Error::Unsupported("why"),
        Error::NotPermitted("why"),
        Error::NotOpenFor("reading"),
        Error::UnexpectedEnd,
        Error::ReadOnly,
        Error::Busy("why"),
        Error::NotUtf8,
        Error::InUse(in_use()),
        Error::NotAVolume("why".into()),
        Error::Incompatible("why".into()),
        Error::CutOff {
            size: 2,
            left: 1,
            next: "what next",
        },
        Error::corrupt(7, "index node", 1, 2),
        failed(),
        Error::HostFull {
            path: "disk.img".into(),
            missing: 4096,
        },
        Error::Temporary {
            dir: "/tmp".into(),
            source: denied(),
        },
        Error::Open {
            path: "disk.img".into(),
            source: denied(),
        },
        Error::Stopped(Arc::new(failed())),
        Error::Other(Arc::new(io::Error::other("from another crate"))),
        Error::NotFound.at(Path::new("a/b")),
        Error::Attached {
            path: "disk.img".into(),
            device: "/dev/loop3".into(),
        },
        Error::NoSnapshot("monday".into()),
        Error::Stream("why".into()),
        Error::Stale,
        Error::HeldByRoots,
        Error::NoRoot {
            reference: "monday".into(),
            why: "why".into(),
        },
        Error::NoBase {
            volume: "uuid".into(),
            root: 2,
            why: "why",
        },
        Error::WouldWait,
        Error::Unsettled("main".into()),
        Error::NoSpaceForStream { ino: 17 },
        Error::GaveWay,
        Error::FrontLost {
            found: "what".into(),
            next: "what to do".into(),
        },
        Error::Conflicts(vec![Conflict {
            path: b"a/b".to_vec(),
            kind: ConflictKind::Contents,
            inodes: vec![7],
        }]),
    ]
}

fn sources(error: &Error) -> Vec<String> {
    let mut source = error.source();
    let next = || {
        let this = source?;
        source = this.source();
        Some(this.to_string())
    };
    std::iter::from_fn(next).collect()
}

#[test]
fn every_variant_survives_io_error_round_trip() {
    for (i, error) in every_variant().into_iter().enumerate() {
        assert_eq!(place(&error), i);
        let std = io::Error::from(error.clone());
        assert_eq!(std.kind(), error.kind(), "{error:?}");
        let back = Error::from(std);
        assert_eq!(place(&back), i, "{error:?} became {back:?}");
        assert_eq!(back.to_string(), error.to_string());
        assert_eq!(back.errno(), error.errno());
        assert_eq!(back.kind(), error.kind());
        assert_eq!(sources(&back), sources(&error));
    }
}

#[test]
fn every_variant_keeps_path_in_io_error() {
    for error in every_variant() {
        let at = error.clone().at(Path::new("a/b"));
        let std = io::Error::from(at.clone());
        assert_eq!(std.kind(), error.kind(), "{error:?}");
        assert_eq!(std.to_string(), at.to_string());
        let back = Error::from(std);
        assert_eq!(back.to_string(), at.to_string());
        assert_eq!(place(back.cause()), place(error.cause()));
    }
}

/// An `io::Error` has either an errno or an inner error.
#[test]
fn plain_variants_become_raw_os_errors() {
    for error in every_variant() {
        let plain = PLAIN.iter().any(|p| place(p) == place(&error));
        let (errno, std) = (error.errno(), io::Error::from(error));
        assert_eq!(std.raw_os_error(), plain.then_some(errno), "{std:?}");
        assert_eq!(std.get_ref().is_some(), !plain, "{std:?}");
    }
}

/// Includes the kinds that `std::fs` can return, so a match on the kind works for both.
#[test]
fn error_kind_matches_kind_of_errno() {
    let of_its_own = |e: &Error| {
        use io::ErrorKind::{InvalidData, UnexpectedEof};
        [InvalidData, UnexpectedEof].contains(&e.kind())
    };
    let all = every_variant();
    let of_errno = |e: &&Error| !of_its_own(e) && place(e) != 31;
    for error in all.iter().filter(of_errno) {
        let std = io::Error::from_raw_os_error(error.errno());
        assert_eq!(error.kind(), std.kind(), "{error:?}");
    }
    assert_eq!(all.iter().filter(|e| of_its_own(e)).count(), 7);
}

#[test]
fn io_errors_survive_round_trip() {
    for errno in 1..134 {
        let error = Error::from(io::Error::from_raw_os_error(errno));
        assert_eq!(error.errno(), errno);
        let kind = io::Error::from_raw_os_error(errno).kind();
        assert_eq!(error.kind(), kind);
        assert_eq!(io::Error::from(error).raw_os_error(), Some(errno));
    }
    // A clone is still referenced, so the original cannot be moved out.
    let clone = Error::from(io::Error::from_raw_os_error(libc::EACCES));
    assert_eq!(
        io::Error::from(clone.clone()).raw_os_error(),
        Some(libc::EACCES)
    );
    let text = "from another crate";
    let error = Error::from(io::Error::new(io::ErrorKind::TimedOut, text));
    assert_eq!(
        (error.errno(), error.to_string()),
        (libc::ETIMEDOUT, text.into())
    );
    let shared = io::Error::from(error.clone());
    assert_eq!(
        (shared.kind(), shared.to_string()),
        (error.kind(), text.into())
    );
    let std = io::Error::from(Error::from(io::Error::from(io::ErrorKind::NotFound)));
    assert_eq!(std.kind(), io::ErrorKind::NotFound);
    assert_eq!(Error::from(std).errno(), libc::ENOENT);
}
