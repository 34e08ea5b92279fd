//! A volume and a mountpoint in a temporary directory, and the daemon between them.
//!
//! Starts and ends only its own daemon, held by a pidfd, so it never signals another process.
//! When a [`Place`] is dropped, no mount, daemon or file of it is left.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use cairnfs_fuse::mountinfo;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tempfile::TempDir;

/// The command under test.
pub const CAIRNFS: &str = env!("CARGO_BIN_EXE_cairnfs");

/// The `cairnfs-bench` program, of another package: a test of the whole workspace builds it.
pub fn bench() -> PathBuf {
    let program = Path::new(CAIRNFS).with_file_name("cairnfs-bench");
    let built = program.is_file();
    assert!(built, "build it first: cargo build --package cairnfs-bench");
    program
}

/// If this variable is 1, a test that cannot run on this machine fails.
const REQUIRE: &str = "CAIRNFS_REQUIRE_FUSE";

/// The transport of mounts, as in `-o transport=`, unless a test asks for one.
const TRANSPORT: &str = "CAIRNFS_TRANSPORT";

/// Held for writing by tests that drop the caches of the whole machine; for reading by tests that
/// count requests, which depend on what the kernel has cached. Taken before [`MOUNT_COPIES`].
static CACHES: RwLock<()> = RwLock::new(());

/// While it lives, the test may drop the caches of the machine.
pub fn may_drop_caches() -> RwLockWriteGuard<'static, ()> {
    CACHES.write().unwrap_or_else(PoisonError::into_inner)
}

/// While it lives, no other test drops the caches of the machine.
pub fn caches_are_kept() -> RwLockReadGuard<'static, ()> {
    CACHES.read().unwrap_or_else(PoisonError::into_inner)
}

/// Held for reading by tests that make mount namespaces, each with copies of all mounts; for
/// writing by tests that unmount a device and need it unused at once.
pub static MOUNT_COPIES: RwLock<()> = RwLock::new(());

/// Held for reading while a fork is tried; for writing by tests that make mount namespaces of their own, whose
/// copies of all mounts would keep that of the fork in use. Taken after [`MOUNT_COPIES`].
pub static FORKS: RwLock<()> = RwLock::new(());

/// While it lives, no fork is tried.
pub fn no_fork_is_tried() -> RwLockWriteGuard<'static, ()> {
    FORKS.write().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this machine can run a test that mounts and uses `programs`. Prints the reason if not.
pub fn able(programs: &[&str]) -> bool {
    let missing = if !rustix::process::geteuid().is_root() {
        "root".to_owned()
    } else if let Err(e) = fs::File::options().read(true).write(true).open("/dev/fuse") {
        format!("/dev/fuse ({e})")
    } else if let Some(program) = programs.iter().find(|p| !installed(p)) {
        format!("the program {program}")
    } else {
        return true;
    };
    assert!(
        std::env::var_os(REQUIRE).is_none_or(|v| v != "1"),
        "{REQUIRE}=1, but this test needs {missing}"
    );
    let test = std::thread::current();
    let name = test.name().unwrap_or("a test");
    tell(&format!("SKIPPED {name}: it needs {missing}"));
    false
}

/// As [`able`], for a test that needs FUSE over io_uring, which it enables for mounts from now on.
/// Kernels before 6.14 have none.
pub fn able_with_rings() -> bool {
    if !able(&[]) {
        return false;
    }
    let parameter = Path::new("/sys/module/fuse/parameters/enable_uring");
    if parameter.exists() {
        fs::write(parameter, "Y").unwrap();
        return true;
    }
    tell("SKIPPED a test that needs FUSE over io_uring");
    false
}

/// Waits a moment before a condition is looked at again: what it waits for needs the processors.
pub fn nap(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

/// Writes a line to standard error. Not `eprintln!`, which the test harness hides for a passing
/// test.
pub fn tell(line: &str) {
    io::stderr()
        .write_all(format!("{line}\n").as_bytes())
        .unwrap();
}

/// Adds the wanted transport to the arguments of a mount; a later option of the test overrides it.
fn with_transport(args: &[&str]) -> Vec<String> {
    let mut all: Vec<_> = args.iter().map(|&arg| arg.to_owned()).collect();
    let mounts = args.first() == Some(&"mount") && !args.iter().any(|arg| arg.contains("remount"));
    if let (true, Ok(transport)) = (mounts, std::env::var(TRANSPORT)) {
        let option = ["-o".to_owned(), format!("transport={transport}")];
        all.splice(1..1, option);
    }
    all
}

fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// The process that serves a mount. The pidfd stays valid if the process number is reused.
struct Daemon {
    pid: Pid,
    process: OwnedFd,
}

/// A temporary directory with a volume `v.cairn`, a directory `m` to mount it on, and room for
/// other files.
pub struct Place {
    folder: TempDir,
    /// Whether the directory is a separate file system.
    apart: bool,
    daemon: Option<Daemon>,
}

impl Place {
    /// Makes an unmounted volume of `size`.
    pub fn new(size: &str) -> Self {
        Self::within(tempfile::tempdir().unwrap(), false, size)
    }

    /// As [`Place::new`], in a tmpfs limited to `limit`.
    pub fn limited(limit: &str, size: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = format!("size={limit}");
        let tmpfs = [
            "-t",
            "tmpfs",
            "-o",
            &options,
            "tmpfs",
            folder.path().to_str().unwrap(),
        ];
        succeed(Command::new("mount").args(tmpfs));
        Self::within(folder, true, size)
    }

    fn within(folder: TempDir, apart: bool, size: &str) -> Self {
        let place = Self {
            folder,
            apart,
            daemon: None,
        };
        fs::create_dir(place.dir()).unwrap();
        fs::create_dir(place.runtime()).unwrap();
        place.ok(&["mkfs", "-q", "--size", size, "v.cairn"]);
        place
    }

    /// Makes a volume and mounts it.
    pub fn mounted(size: &str, options: &str) -> Self {
        let mut place = Self::new(size);
        place.mount(options);
        place
    }

    /// A path in the directory that holds the volume.
    pub fn beside(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The volume.
    pub fn volume(&self) -> PathBuf {
        self.beside("v.cairn")
    }

    /// The directory in which daemons put the directory of their sockets.
    pub fn runtime(&self) -> PathBuf {
        self.beside(".run")
    }

    /// The mountpoint.
    pub fn dir(&self) -> PathBuf {
        self.beside("m")
    }

    /// A path in the mounted volume.
    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir().join(name)
    }

    /// Copies `cairnfs` next to the volume, where any user can run it. Another process writes the
    /// copy: a child of this one that has not executed yet would keep it open for writing
    /// (`ETXTBSY`).
    pub fn copy_command(&self) {
        succeed(Command::new("cp").args([CAIRNFS, arg(&self.beside("cairnfs"))]));
    }

    /// Runs `cairnfs` in the directory; `umount` until the mount is not busy. A process that another
    /// test is starting holds copies of this test's descriptors until it executes its program.
    pub fn run(&self, args: &[&str]) -> Output {
        loop {
            let out = self.command(args).output().unwrap();
            if args.first() != Some(&"umount") || !said(&out).contains("is busy") {
                return out;
            }
            nap(20);
        }
    }

    /// Prepares to run `cairnfs` in the directory.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(CAIRNFS);
        command
            .current_dir(self.folder.path())
            .env("XDG_RUNTIME_DIR", self.runtime())
            .args(with_transport(args))
            .stdin(Stdio::null());
        command
    }

    /// Runs `cairnfs`, which must succeed, and returns its standard output.
    pub fn ok(&self, args: &[&str]) -> String {
        let out = self.run(args);
        assert!(out.status.success(), "cairnfs {args:?}: {}", said(&out));
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// Runs `cairnfs`, which must fail with this exit code, print each text of `says`, and not
    /// panic.
    pub fn fails(&self, args: &[&str], code: i32, says: &[&str]) -> String {
        let out = if says.contains(&"busy") {
            self.command(args).output().unwrap()
        } else {
            self.run(args)
        };
        let text = said(&out);
        assert_eq!(out.status.code(), Some(code), "cairnfs {args:?}: {text}");
        assert!(!text.contains("panicked"), "cairnfs {args:?}: {text}");
        for word in says {
            assert!(
                text.contains(word),
                "cairnfs {args:?}: no {word:?} in: {text}"
            );
        }
        text
    }

    /// Mounts the volume with mount options, which may be empty.
    pub fn mount(&mut self, options: &str) {
        self.ok(&["mount", "-o", options, "v.cairn", "m"]);
        self.adopt();
    }

    /// Mounts a branch or snapshot of the volume, which has a mount already, on the directory `name`
    /// beside it, which is made if it is missing.
    pub fn mount_beside(&self, options: &str, name: &str) {
        if let Err(error) = fs::create_dir(self.beside(name)) {
            // It may also be the mountpoint of a dead daemon, which cannot be looked up.
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{name}");
        }
        self.ok(&["mount", "-o", options, "v.cairn", name]);
    }

    /// As [`Place::mount`], with the daemon's messages in the file `log` next to the volume.
    pub fn mount_logged(&mut self, options: &str) {
        self.ok(&["mount", "--log", "log", "-o", options, "v.cairn", "m"]);
        self.adopt();
    }

    /// Takes over the daemon that serves the volume.
    pub fn adopt(&mut self) {
        let pid = self.find_daemon().expect("a mount has a daemon");
        let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        self.daemon = Some(Daemon { pid, process });
    }

    fn find_daemon(&self) -> Option<Pid> {
        let (volume, dir) = (self.volume(), self.dir());
        let tail = [
            b"--",
            volume.as_os_str().as_encoded_bytes(),
            dir.as_os_str().as_encoded_bytes(),
        ];
        let tail: Vec<u8> = tail
            .iter()
            .flat_map(|word| [b"\0", *word].concat())
            .collect();
        fs::read_dir("/proc").unwrap().find_map(|entry| {
            let entry = entry.ok()?;
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            let line = line.strip_suffix(b"\0")?;
            let ours = line.starts_with(b"cairnfs\0mount\0") && line.ends_with(&tail);
            ours.then(|| Pid::from_raw(pid)).flatten()
        })
    }

    /// The process id of the daemon.
    pub fn daemon_pid(&self) -> i32 {
        let daemon = self.daemon.as_ref().expect("a daemon runs");
        daemon.pid.as_raw_nonzero().get()
    }

    /// Sends the daemon a signal.
    pub fn signal(&self, signal: Signal) {
        let daemon = self.daemon.as_ref().expect("a daemon runs");
        pidfd_send_signal(&daemon.process, signal).unwrap();
    }

    /// Stops the daemon. Each of its threads has stopped when this returns: until the first of them
    /// takes the signal, the others run on.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.daemon_pid());
        let has_stopped = |task: io::Result<fs::DirEntry>| {
            // One that has ended meanwhile is not listed again.
            let stat = task.and_then(|task| fs::read_to_string(task.path().join("stat")));
            stat.is_ok_and(|stat| stat.rsplit(") ").next().unwrap().starts_with('T'))
        };
        while !fs::read_dir(&tasks).unwrap().all(has_stopped) {
            nap(5);
        }
    }

    /// Whether the daemon has a thread of this name.
    pub fn has_thread(&self, name: &str) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.daemon_pid()));
        // A daemon or thread that has ended meanwhile has none.
        let has_name = |task: io::Result<fs::DirEntry>| {
            let found = task.and_then(|task| fs::read_to_string(task.path().join("comm")));
            found.is_ok_and(|found| found.trim_end() == name)
        };
        tasks.is_ok_and(|mut tasks| tasks.any(has_name))
    }

    /// Waits until the daemon has ended.
    pub fn wait_for_end(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            let mut fds = [PollFd::new(&daemon.process, PollFlags::IN)];
            while poll(&mut fds, None).is_err() {}
        }
    }

    /// The peak memory of the daemon, in bytes.
    pub fn daemon_memory(&self) -> u64 {
        peak_memory(self.daemon_pid()).unwrap()
    }

    /// Kills the daemon with SIGKILL. The dead mount stays.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.wait_for_end();
    }

    /// Unmounts with the command, which must return only after the volume is closed.
    pub fn umount(&mut self) {
        self.umount_beside("m");
        self.wait_for_end();
    }

    /// Unmounts one of several directories with the command.
    pub fn umount_beside(&self, name: &str) {
        self.ok(&["umount", name]);
    }

    /// Asserts that the volume has no damage, including its contents.
    pub fn check(&self) {
        let out = self.run(&["check", "--data", "v.cairn"]);
        assert!(out.status.success(), "check: {}", said(&out));
    }

    /// Unmounts, checks, mounts again.
    pub fn remount(&mut self, options: &str) {
        self.umount();
        self.check();
        self.mount(options);
    }

    /// Unmounts and checks, at the end of a successful test.
    pub fn finish(mut self) {
        self.umount();
        self.check();
    }

    /// Runs a shell script in the mounted volume, which must succeed, and returns its standard
    /// output.
    pub fn sh(&self, script: &str) -> String {
        shell(&self.dir(), script)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // This also removes a dead mount, whose daemon the test has killed.
        let flags = rustix::mount::UnmountFlags::DETACH;
        while rustix::mount::unmount(self.dir(), flags).is_ok() {}
        let table = mountinfo::list(Path::new("/proc/self/mountinfo")).into_iter();
        let ours = table.filter(|m| m.is_ours() && m.mountpoint.starts_with(self.folder.path()));
        for mount in ours {
            // Fails if a mount above it has taken it along.
            let _ = rustix::mount::unmount(&mount.mountpoint, flags);
        }
        if self.daemon.is_some() {
            self.kill();
        }
        if self.apart {
            // On failure the mount remains until the machine stops; the directory that is left
            // shows it.
            let _ = rustix::mount::unmount(self.folder.path(), flags);
        }
    }
}

/// The peak memory of a process, in bytes; `None` once it has ended.
pub fn peak_memory(pid: i32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}

/// Runs a shell script in `dir`, which must succeed, and returns its standard output.
pub fn shell(dir: &Path, script: &str) -> String {
    succeed(
        Command::new("bash")
            .args(["-euo", "pipefail", "-c", script])
            .current_dir(dir),
    )
}

/// Runs a program, which must succeed, and returns its standard output.
pub fn succeed(command: &mut Command) -> String {
    let out = command.stdin(Stdio::null()).output().unwrap();
    assert!(out.status.success(), "{command:?}: {}", said(&out));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Runs umount(8) until the mount is not busy, as [`Place::run`] does.
pub fn umount(dir: &Path) {
    loop {
        let out = Command::new("umount").arg(dir).output().unwrap();
        if out.status.success() {
            break;
        }
        assert!(said(&out).contains("is busy"), "{}", said(&out));
        nap(20);
    }
}

/// A path as an argument.
pub fn arg(path: &impl AsRef<OsStr>) -> &str {
    path.as_ref().to_str().unwrap()
}

/// The exit status and all output of a program, for messages.
pub fn said(out: &Output) -> String {
    format!(
        "{}\n{}{}",
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    )
}

/// `len` pseudo-random bytes for `seed`.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Pseudo-random numbers, reproducible by seed (xorshift).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 11) % end
    }
}
