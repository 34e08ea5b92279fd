//! Mounts and unmounts each of the compared file systems on the device, by the programs that a user
//! would run, with their defaults.
//!
//! The daemon of a FUSE mount runs in the foreground of its own process, so that its process id,
//! and with it its processor time, is known.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;

use super::programs::Programs;
use super::stats::cpu_of;
use super::system::System;
use super::undo::{Trace, Undo, failed};
use crate::Result;
use crate::target::Hooks;

/// Maximum time for a daemon to mount, or to end after an unmount.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where and by which programs a system is mounted.
#[derive(Debug, Clone)]
pub struct Spot {
    /// The programs of CairnFS.
    pub programs: Programs,
    /// The block device.
    pub device: PathBuf,
    /// Memory limit of CairnFS in bytes, if one is set.
    pub cache: Option<u64>,
    /// Mount options for CairnFS and for the server that stores nothing, if some are set.
    pub options: Option<String>,
    /// The directory to mount on.
    pub dir: PathBuf,
    /// Existing file that receives a daemon's messages.
    pub log: PathBuf,
}

/// A mounted file system. It is unmounted when dropped.
pub struct Mount {
    system: System,
    spot: Spot,
    undo: Undo,
    state: State,
}

struct State {
    mounted: bool,
    daemon: Option<Child>,
    /// Processor time of the daemons that have ended.
    before: Duration,
}

/// A mount shared by the measuring code and the target.
#[derive(Clone)]
pub struct Shared(Arc<Mutex<Mount>>);

impl Shared {
    /// Mounts the file system on the device.
    pub fn new(system: System, spot: &Spot, undo: &Undo) -> Result<Self> {
        let mut mount = Mount {
            system,
            spot: spot.clone(),
            undo: undo.clone(),
            state: State {
                mounted: false,
                daemon: None,
                before: Duration::ZERO,
            },
        };
        mount.mount()?;
        Ok(Self(Arc::new(Mutex::new(mount))))
    }

    /// Returns the processor time of all its daemons; `None` if it is served by the kernel.
    pub fn daemon_cpu(&self) -> Option<Duration> {
        let mount = self.lock();
        (!mount.system.is_kernels()).then(|| mount.cpu())
    }

    fn lock(&self) -> MutexGuard<'_, Mount> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hooks for Shared {
    fn sync(&self, path: &Path) -> Result<()> {
        // syncfs(2) does not reach the daemon of a FUSE mount.
        match self.lock().system {
            system if system.is_our_mount() => Ok(cairnfs_fuse::control::sync(path).map(drop)?),
            _ => Ok(rustix::fs::syncfs(&File::open(path)?)?),
        }
    }

    fn remount(&self) -> Result<()> {
        let mut mount = self.lock();
        mount.unmount()?;
        drop_caches()?;
        mount.mount()
    }

    fn unmount(&self) -> Result<()> {
        self.lock().unmount()
    }
}

impl Mount {
    fn mount(&mut self) -> Result<()> {
        let dir = self.spot.dir.clone();
        self.undo.note(Trace::Mount(dir));
        let mounted = match self.system {
            system if system.is_our_mount() => {
                let cache = self.spot.cache.map(|bytes| format!("cache={bytes}"));
                let program = self.spot.programs.cairnfs.clone();
                self.serve((&program, &["mount", "--foreground"]), cache, true)
            }
            System::Noop => {
                let program = self.spot.programs.own.clone();
                self.serve((&program, &["noop"]), None, false)
            }
            _ => self.by_kernel(),
        };
        self.state.mounted = true;
        if mounted.is_err() {
            self.end();
        }
        mounted
    }

    fn by_kernel(&self) -> Result<()> {
        let mut mount = Command::new("mount");
        mount.args(["-t", &self.system.to_string()]);
        self.undo
            .run(mount.arg(&self.spot.device).arg(&self.spot.dir))?;
        Ok(())
    }

    fn serve(
        &mut self,
        (program, words): (&Path, &[&str]),
        cache: Option<String>,
        stores: bool,
    ) -> Result<()> {
        let mut daemon = Command::new(program);
        // As the mounts of the kernel's file systems, it is open to all users.
        daemon.args(words).args(["-o", "allow_other"]);
        for option in cache.iter().chain(&self.spot.options) {
            daemon.args(["-o", option]);
        }
        if stores {
            daemon.arg(&self.spot.device);
        }
        let log = File::options()
            .write(true)
            .truncate(true)
            .open(&self.spot.log)?;
        daemon
            .arg(&self.spot.dir)
            .stdout(log.try_clone()?)
            .stderr(log);
        let bare = device_of(&self.spot.dir)?;
        let child = self.undo.start(&mut daemon)?;
        let child = self.state.daemon.insert(child);
        let start = Instant::now();
        // During the mount a stat of its root may fail or wait.
        while !device_of(&self.spot.dir).is_ok_and(|now| now != bare) {
            if let Ok(status) = self.undo.wait(child, Some(Duration::ZERO), |_| {}) {
                self.state.daemon = None;
                let said = fs::read_to_string(&self.spot.log).unwrap_or_default();
                return Err(failed(&daemon, status, &said));
            }
            if start.elapsed() > PATIENCE {
                return Err(format!("{} is not mounted within a minute", self.system).into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    fn unmount(&mut self) -> Result<()> {
        if !self.state.mounted {
            return Ok(());
        }
        let dir = self.spot.dir.clone();
        match self.system {
            system if system.is_our_mount() => {
                self.undo.run(
                    Command::new(&self.spot.programs.cairnfs)
                        .arg("umount")
                        .arg(&dir),
                )?;
            }
            _ => rustix::mount::unmount(&dir, UnmountFlags::empty())
                .map_err(|e| format!("unmounting {}: {e}", dir.display()))?,
        }
        self.reap()?;
        self.state.mounted = false;
        self.undo.cross_out(&Trace::Mount(dir));
        Ok(())
    }

    fn reap(&mut self) -> Result<()> {
        let Some(daemon) = &mut self.state.daemon else {
            return Ok(());
        };
        let mut spent = Duration::ZERO;
        let status = self
            .undo
            .wait(daemon, Some(PATIENCE), |id| spent = cpu_of(id))?;
        self.state.daemon = None;
        self.state.before += spent;
        if status.success() {
            Ok(())
        } else {
            let said = fs::read_to_string(&self.spot.log).unwrap_or_default();
            Err(format!("the daemon of {} failed: {}", self.system, said.trim()).into())
        }
    }

    fn cpu(&self) -> Duration {
        let daemon = self.state.daemon.as_ref();
        self.state.before + daemon.map_or(Duration::ZERO, |daemon| cpu_of(daemon.id()))
    }

    /// Kills the daemon and detaches the mount, whatever its state.
    fn end(&mut self) {
        if let Some(mut daemon) = self.state.daemon.take() {
            self.undo.kill(&mut daemon);
        }
        let dir = self.spot.dir.clone();
        while rustix::mount::unmount(&dir, UnmountFlags::DETACH).is_ok() {}
        self.state.mounted = false;
        self.undo.cross_out(&Trace::Mount(dir));
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.state.mounted && self.unmount().is_err() {
            self.end();
        }
    }
}

fn device_of(dir: &Path) -> Result<u64> {
    Ok(fs::metadata(dir)?.dev())
}

/// Makes the kernel drop its clean caches.
pub fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    Ok(fs::write("/proc/sys/vm/drop_caches", "3")?)
}
