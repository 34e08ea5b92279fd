//! The file systems that can be compared, and what each requires.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;

use cairnfs::Mechanism;

use super::programs::{Programs, is_in_path};
use crate::Result;

/// A file system and its interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// CairnFS, by the library's calls by path, in this process
    Cairnfs,
    /// CairnFS, mounted through FUSE
    CairnfsMount,
    /// The same, with programs that ask its daemon beside the kernel (`cairnfs run`)
    CairnfsRun,
    /// A FUSE file system that stores nothing: what FUSE itself costs
    Noop,
    /// CairnFS in-process by path, without a mechanism
    CairnfsWithout(Mechanism),
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
    /// All of them; those that lack a mechanism come last.
    fn all() -> impl Iterator<Item = System> {
        use System::{Btrfs, Cairnfs, CairnfsMount, CairnfsRun, Ext4, Noop, Raw, Xfs};
        let whole = [
            Cairnfs,
            CairnfsMount,
            CairnfsRun,
            Noop,
            Raw,
            Xfs,
            Ext4,
            Btrfs,
        ];
        let lacking = Mechanism::ALL.into_iter().map(System::CairnfsWithout);
        whole.into_iter().chain(lacking)
    }

    /// Whether it is used by calls of the library, without system calls.
    pub fn in_process(self) -> bool {
        matches!(self, System::Cairnfs | System::CairnfsWithout(_))
    }

    /// Returns the mechanism of CairnFS that it lacks.
    pub fn without(self) -> Option<Mechanism> {
        match self {
            System::CairnfsWithout(mechanism) => Some(mechanism),
            _ => None,
        }
    }

    /// Whether it is CairnFS, by any interface.
    pub fn is_ours(self) -> bool {
        self.in_process() || self.is_our_mount()
    }

    /// Whether it is a mount of CairnFS.
    pub fn is_our_mount(self) -> bool {
        matches!(self, System::CairnfsMount | System::CairnfsRun)
    }

    /// Whether it is a file system of the kernel.
    pub fn is_kernels(self) -> bool {
        matches!(self, System::Xfs | System::Ext4 | System::Btrfs)
    }

    /// Returns the name of its interface.
    pub fn interface(self) -> &'static str {
        match self {
            System::CairnfsMount => "FUSE",
            System::CairnfsRun => "FUSE, and shared memory",
            System::Noop => "FUSE, stores nothing",
            System::Raw => "the device, no file system",
            System::Xfs | System::Ext4 | System::Btrfs => "kernel",
            System::Cairnfs | System::CairnfsWithout(_) => "library by path",
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
            System::CairnfsMount | System::CairnfsRun => {
                programs.check().and_then(|()| needs_fuse())
            }
            _ if self.is_ours() => programs.check(),
            _ => Ok(()),
        }
    }
}

/// Its name on the command line and in tables.
impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            System::Cairnfs => "cairnfs",
            System::CairnfsMount => "cairnfs-mount",
            System::CairnfsRun => "cairnfs-run",
            System::CairnfsWithout(mechanism) => {
                return f.pad(&format!("cairnfs-without-{}", mechanism.name()));
            }
            System::Noop => "noop",
            System::Raw => "raw",
            System::Xfs => "xfs",
            System::Ext4 => "ext4",
            System::Btrfs => "btrfs",
        })
    }
}

impl FromStr for System {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        let named = System::all().find(|system| system.to_string() == name);
        named.ok_or_else(|| {
            let known: Vec<_> = System::all().map(|system| system.to_string()).collect();
            format!("`{name}` is none of {}", known.join(", "))
        })
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
    use super::*;

    #[test]
    fn names_match_command_line() {
        for system in System::all() {
            assert_eq!(system.to_string().parse(), Ok(system));
            let lacks = system
                .without()
                .map(|m| format!("cairnfs-without-{}", m.name()));
            assert!(
                lacks.is_none_or(|name| name == system.to_string()),
                "{system}"
            );
            assert_eq!(
                system.in_process(),
                system.interface().starts_with("library")
            );
        }
        assert!(
            "zfs"
                .parse::<System>()
                .unwrap_err()
                .contains("cairnfs-mount")
        );
    }

    #[test]
    fn missing_program_error_names_package() {
        assert!(needs("sh", "dash").is_ok());
        let error = needs("no-such-program", "some-package").unwrap_err();
        assert!(error.to_string().contains("some-package"));
    }
}
