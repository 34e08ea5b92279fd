//! The runs of a comparison: in each round every file system in turn, beginning with another one in
//! each round, so that a drift over time affects all of them equally.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use super::external::{External, Inputs, Site};
use super::make::{Shared, Spot, drop_caches};
use super::options::Compare;
use super::place::Device;
use super::programs::Programs;
use super::stats::{Block, machine_cpu};
use super::system::System;
use super::task::{Task, Work};
use super::undo::{Made, Trace, Undo};
use crate::phase::Meter;
use crate::processor::process_cpu;
use crate::report::Report;
use crate::settings::{Place, parse};
use crate::target::{self, Dir, Directory, Raw, Target, Tree};
use crate::workload::{ALL, measure_on};
use crate::{Failure, Result};

/// The device and the directory for all runs.
pub struct Ground<'a> {
    device: &'a Device,
    spot: Spot,
    /// Directory of the inputs of programs.
    inputs: PathBuf,
    ext4_inodes: Option<u64>,
    undo: &'a Undo,
    _made: Made,
}

impl<'a> Ground<'a> {
    /// Creates a temporary directory with the mountpoint, the log file and the inputs of programs.
    pub fn new(
        device: &'a Device,
        programs: &Programs,
        args: &Compare,
        undo: &'a Undo,
    ) -> Result<Self> {
        let name = format!("cairnfs-compare-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let spot = Spot {
            programs: programs.clone(),
            device: device.path.clone(),
            cache: args.cache,
            options: args.mount_options.clone(),
            log: folder.join("log"),
            dir: folder.join("mnt"),
        };
        if folder.exists() {
            return Err(format!("{} is in the way: remove it", folder.display()).into());
        }
        let inputs = folder.join("inputs");
        let mut made = Made::new(undo);
        made.make(Trace::Directory(folder.clone()), || {
            std::fs::create_dir(&folder)?;
            std::fs::create_dir(&spot.dir)?;
            std::fs::create_dir(&inputs)?;
            for dir in [&folder, &inputs] {
                // The user of a database server, too, must reach the mount and its socket.
                std::fs::set_permissions(dir, Permissions::from_mode(0o755))?;
            }
            File::create(&spot.log)
        })
        .map_err(|e| format!("{}: {e}", folder.display()))?;
        Ok(Self {
            device,
            spot,
            inputs,
            ext4_inodes: args.ext4_inodes,
            undo,
            _made: made,
        })
    }

    /// Creates the file system, runs the task on it, and unmounts it.
    pub fn run(&self, system: System, task: &Task) -> Result<Report> {
        let with_context =
            |e: Failure| -> Failure { format!("{system}, {}: {e}", task.title).into() };
        self.measure(system, task).map_err(with_context)
    }

    fn measure(&self, system: System, task: &Task) -> Result<Report> {
        if let Work::External(load) = &task.work {
            load.prepare(&self.inputs())?;
        }
        if let Some(mut mkfs) = self.mkfs(system) {
            self.device.wipe()?;
            self.undo.run(&mut mkfs)?;
        }
        drop_caches()?;
        let target = self.target(system, task)?;
        let mut report = match &task.work {
            Work::External(load) => self.program(system, &**load, &target)?,
            work => {
                let workload = work.on(system).ok_or("a workload is no program")?;
                measure_on(&*workload, &target, false, true)?
            }
        };
        if system == System::Noop {
            // Not comparable with the other systems' sums because the walks are missing.
            report.phases.retain(|phase| phase.name != ALL);
        }
        report.target = system.to_string();
        Ok(report)
    }

    fn mkfs(&self, system: System) -> Option<Command> {
        system.mkfs(
            &self.spot.programs.cairnfs,
            &self.device.path,
            self.ext4_inodes,
        )
    }

    fn program(&self, system: System, load: &dyn External, target: &Observed) -> Result<Report> {
        let site = Site {
            dir: &self.spot.dir,
            inputs: self.inputs(),
            stores: system != System::Noop,
            run_by: (system == System::CairnfsRun).then_some(&self.spot.programs.cairnfs),
        };
        let mut meter = Meter::new(target);
        load.measure(&site, &mut meter)?;
        meter.once("close", || target.close())?;
        let (phases, ratios) = meter.finish();
        let (workload, unit) = load.program();
        Ok(Report {
            workload,
            target: String::new(),
            interface: target.interface(),
            settings: Vec::new(),
            unit,
            phases,
            ratios,
        })
    }

    fn inputs(&self) -> Inputs<'_> {
        Inputs {
            dir: &self.inputs,
            undo: self.undo,
        }
    }

    fn target(&self, system: System, task: &Task) -> Result<Observed> {
        let block = self.device.block.clone();
        if system == System::Raw {
            let threads = task
                .work
                .on(system)
                .map_or(1, |work| work.describe().threads);
            return Ok(Observed {
                inner: Box::new(Raw::open(&self.spot.device, threads)?),
                block,
                mount: None,
            });
        }
        if system.in_process() {
            let volume = format!("lib:{}", self.spot.device.display());
            let mut place: Place = parse(&["--target", &volume])?;
            place.cache = self.spot.cache;
            place.without = system.without();
            return Ok(Observed {
                inner: target::open(&place)?,
                block,
                mount: None,
            });
        }
        let mount = Shared::new(system, &self.spot, self.undo)?;
        let dir = self.spot.dir.to_string_lossy().into_owned();
        Ok(Observed {
            inner: Box::new(Directory::open(&dir, Some(Box::new(mount.clone())))?),
            block,
            mount: Some(mount),
        })
    }
}

/// Returns the systems in the order of a round.
pub fn order(systems: &[System], round: usize) -> Vec<System> {
    let mut order = systems.to_vec();
    let first = round.checked_rem(order.len()).unwrap_or(0);
    order.rotate_left(first);
    order
}

/// A target whose counters include those of the kernel.
struct Observed {
    inner: Box<dyn Target>,
    block: Block,
    mount: Option<Shared>,
}

impl Target for Observed {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn interface(&self) -> &'static str {
        self.inner.interface()
    }

    fn make_dir(&self, path: &str) -> Result<()> {
        self.inner.make_dir(path)
    }

    fn remove_tree(&self, _path: &str) -> Result<()> {
        // Not needed because the next file system overwrites this one.
        Ok(())
    }

    fn dir<'a>(&'a self, path: &str) -> Result<Box<dyn Dir + 'a>> {
        self.inner.dir(path)
    }

    fn tree<'a>(&'a self, path: &str, git: bool) -> Result<Box<dyn Tree + 'a>> {
        self.inner.tree(path, git)
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn can_reopen(&self) -> bool {
        self.inner.can_reopen()
    }

    fn reopen(&self) -> Result<()> {
        self.inner.reopen()?;
        drop_caches()
    }

    fn close(&self) -> Result<()> {
        self.inner.close()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.inner.counters();
        // The kernel's counters of the device replace the library's, so that all systems are
        // counted alike.
        counters.retain(|(name, _)| !name.starts_with("device_"));
        counters.extend(self.block.now().counters());
        let daemon = self.mount.as_ref().and_then(Shared::daemon_cpu);
        let cpu = process_cpu() + daemon.unwrap_or_default();
        let times = [("cpu_us", cpu), ("machine_cpu_us", machine_cpu())].into_iter();
        for (name, time) in times.chain(daemon.map(|time| ("daemon_cpu_us", time))) {
            counters.push((name, u64::try_from(time.as_micros()).unwrap_or(u64::MAX)));
        }
        counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_starts_with_another_system() {
        let systems = [System::Cairnfs, System::Xfs, System::Ext4];
        assert_eq!(order(&systems, 0), systems);
        assert_eq!(
            order(&systems, 1),
            [System::Xfs, System::Ext4, System::Cairnfs]
        );
        assert_eq!(order(&systems, 3), systems);
        assert_eq!(order(&[], 1), []);
    }
}
