//! The file systems that can be compared, and what each requires.

use std::fmt;
use std::path::Path;
use std::process::Command;

use cairnfs::Mechanism;

use super::programs::{Programs, is_in_path};
use crate::Result;

/// A file system and its interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum System {
    /// CairnFS, by the library's calls by path, in this process
    Cairnfs,
    /// CairnFS, mounted through FUSE
    CairnfsMount,
    /// A FUSE file system that stores nothing: what FUSE itself costs
    Noop,
    /// CairnFS in-process by path, without its mechanism one-flush
    CairnfsWithoutOneFlush,
    /// The same, without fsync-closure
    CairnfsWithoutFsyncClosure,
    /// The same, without entries-once
    CairnfsWithoutEntriesOnce,
    /// The same, without attributes-known
    CairnfsWithoutAttributesKnown,
    /// The same, without relogging
    CairnfsWithoutRelogging,
    /// The same, without values-once
    CairnfsWithoutValuesOnce,
    /// The same, without changes-only
    CairnfsWithoutChangesOnly,
    /// The same, without reservation-caches
    CairnfsWithoutReservationCaches,
    /// No file system: the device itself, for fsync and mixed
    Raw,
    /// XFS of the kernel
    Xfs,
    /// ext4 of the kernel
    Ext4,
    /// btrfs of the kernel
    Btrfs,
}

impl System {
    /// Returns its name on the command line and in tables.
    pub fn name(self) -> &'static str {
        match self {
            System::Cairnfs => "cairnfs",
            System::CairnfsMount => "cairnfs-mount",
            System::CairnfsWithoutOneFlush => "cairnfs-without-one-flush",
            System::CairnfsWithoutFsyncClosure => "cairnfs-without-fsync-closure",
            System::CairnfsWithoutEntriesOnce => "cairnfs-without-entries-once",
            System::CairnfsWithoutAttributesKnown => "cairnfs-without-attributes-known",
            System::CairnfsWithoutRelogging => "cairnfs-without-relogging",
            System::CairnfsWithoutValuesOnce => "cairnfs-without-values-once",
            System::CairnfsWithoutChangesOnly => "cairnfs-without-changes-only",
            System::CairnfsWithoutReservationCaches => "cairnfs-without-reservation-caches",
            System::Noop => "noop",
            System::Raw => "raw",
            System::Xfs => "xfs",
            System::Ext4 => "ext4",
            System::Btrfs => "btrfs",
        }
    }

    /// Whether it is used by calls of the library, without system calls.
    pub fn in_process(self) -> bool {
        self == System::Cairnfs || self.without().is_some()
    }

    /// Returns the mechanism of CairnFS that it lacks.
    pub fn without(self) -> Option<Mechanism> {
        let lacks = |mechanism: &Mechanism| System::lacking(*mechanism) == self;
        Mechanism::ALL.into_iter().find(lacks)
    }

    /// Returns CairnFS without a mechanism.
    pub fn lacking(mechanism: Mechanism) -> System {
        match mechanism {
            Mechanism::OneFlush => System::CairnfsWithoutOneFlush,
            Mechanism::FsyncClosure => System::CairnfsWithoutFsyncClosure,
            Mechanism::EntriesOnce => System::CairnfsWithoutEntriesOnce,
            Mechanism::AttributesKnown => System::CairnfsWithoutAttributesKnown,
            Mechanism::Relogging => System::CairnfsWithoutRelogging,
            Mechanism::ValuesOnce => System::CairnfsWithoutValuesOnce,
            Mechanism::ChangesOnly => System::CairnfsWithoutChangesOnly,
            Mechanism::ReservationCaches => System::CairnfsWithoutReservationCaches,
        }
    }

    /// Whether it is CairnFS, by any interface.
    pub fn is_ours(self) -> bool {
        self.in_process() || self == System::CairnfsMount
    }

    /// Whether it is a file system of the kernel.
    pub fn is_kernels(self) -> bool {
        matches!(self, System::Xfs | System::Ext4 | System::Btrfs)
    }

    /// Returns the name of its interface.
    pub fn interface(self) -> &'static str {
        match self {
            System::CairnfsMount => "FUSE",
            System::Noop => "FUSE, stores nothing",
            System::Raw => "the device, no file system",
            System::Xfs | System::Ext4 | System::Btrfs => "kernel",
            _ => "library by path",
        }
    }

    /// Returns the command that creates it on a device, ext4 with room for so many files if a number
    /// is given; `None` if nothing is stored.
    pub fn mkfs(self, cairnfs: &Path, device: &Path, ext4_inodes: Option<u64>) -> Option<Command> {
        let (program, args): (&Path, &[&str]) = match self {
            System::Noop | System::Raw => return None,
            System::Xfs => (Path::new("mkfs.xfs"), &["-q", "-f"]),
            System::Ext4 => (Path::new("mkfs.ext4"), &["-q", "-F"]),
            System::Btrfs => (Path::new("mkfs.btrfs"), &["-q", "-f"]),
            _ => (cairnfs, &["mkfs", "--quiet", "--force"]),
        };
        let mut command = Command::new(program);
        command.args(args);
        if let (System::Ext4, Some(inodes)) = (self, ext4_inodes) {
            command.args(["-N", &inodes.to_string()]);
        }
        command.arg(device);
        Some(command)
    }

    /// Fails if it cannot be used here, with a text that names what is missing.
    pub fn check(self, programs: &Programs) -> Result<()> {
        match self {
            System::Xfs => needs("mkfs.xfs", "xfsprogs"),
            System::Ext4 => needs("mkfs.ext4", "e2fsprogs"),
            System::Btrfs => needs("mkfs.btrfs", "btrfs-progs"),
            System::Noop => needs_fuse(),
            System::CairnfsMount => programs.check().and_then(|()| needs_fuse()),
            _ if self.is_ours() => programs.check(),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Fails if a program is not installed, with a text that names its package (in Debian).
pub fn needs(program: &str, package: &str) -> Result<()> {
    if is_in_path(program) {
        Ok(())
    } else {
        Err(format!("{program} is missing: install the package {package}").into())
    }
}

fn needs_fuse() -> Result<()> {
    if Path::new("/dev/fuse").exists() {
        Ok(())
    } else {
        Err("/dev/fuse is missing: `modprobe fuse`".into())
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn names_match_command_line() {
        for system in System::value_variants() {
            let value = system.to_possible_value().unwrap();
            assert_eq!(value.get_name(), system.name());
            let lacks = system
                .without()
                .map(|m| format!("cairnfs-without-{}", m.name()));
            assert!(lacks.is_none_or(|name| name == system.name()), "{system}");
            assert_eq!(
                system.in_process(),
                system.interface().starts_with("library")
            );
        }
    }

    #[test]
    fn missing_program_error_names_package() {
        assert!(needs("sh", "dash").is_ok());
        let error = needs("no-such-program", "some-package").unwrap_err();
        assert!(error.to_string().contains("some-package"));
    }
}
