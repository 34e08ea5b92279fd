//! Default memory budget of a volume: an eighth of the available memory.
//!
//! Reads the memory size from the kernel and the limits of the process's control groups, once for
//! each opened volume.

use std::path::{Path, PathBuf};

const MIN_BUDGET: u64 = 64 << 20;
const MAX_BUDGET: u64 = 4 << 30;
const CGROUPS: &str = "/sys/fs/cgroup";

/// An eighth of the memory that this process may use, from 64 MiB to 4 GiB, in bytes.
pub fn default_budget() -> usize {
    let info = rustix::system::sysinfo();
    let machine = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit));
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let memory = group_limit(Path::new(CGROUPS), &groups).map_or(machine, |l| l.min(machine));
    (memory / 8).clamp(MIN_BUDGET, MAX_BUDGET) as usize
}

/// Where the memory controller of both versions of control groups keeps its limits.
struct Hierarchy {
    /// The mountpoint below [`CGROUPS`].
    mount: &'static str,
    /// The file with the limit in bytes; without a limit, no number or a huge one.
    limit: &'static str,
}

const UNIFIED: Hierarchy = Hierarchy {
    mount: "",
    limit: "memory.max",
};

const VERSION_1: Hierarchy = Hierarchy {
    mount: "memory",
    limit: "memory.limit_in_bytes",
};

/// The lowest memory limit of the control groups in `groups` (the text of /proc/self/cgroup) and
/// their parents. A line is `ID:CONTROLLERS:PATH`; the unified hierarchy has no controllers.
fn group_limit(cgroups: &Path, groups: &str) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(":/")?;
        let hierarchy = match controllers {
            "" => UNIFIED,
            _ if controllers.split(',').any(|c| c == "memory") => VERSION_1,
            _ => return None,
        };
        hierarchy.limit(cgroups, path)
    });
    limits.min()
}

impl Hierarchy {
    /// The lowest limit of a group and its parents. In a container the path may name a group that
    /// is not visible; the mountpoint then is the container's own group.
    fn limit(&self, cgroups: &Path, group: &str) -> Option<u64> {
        let mount = cgroups.join(self.mount);
        let mut group: PathBuf = mount.join(group);
        let mut lowest = None;
        loop {
            let limit = std::fs::read_to_string(group.join(self.limit)).ok();
            let limit = limit.and_then(|text| text.trim().parse::<u64>().ok());
            lowest = lowest.into_iter().chain(limit).min();
            if group == mount || !group.pop() {
                return lowest;
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;

    #[test]
    fn default_budget_uses_lowest_cgroup_limit() {
        let mount = tempfile::tempdir().unwrap();
        let group = mount.path().join("a/b");
        std::fs::create_dir_all(&group).unwrap();
        std::fs::write(group.join("memory.max"), "max\n").unwrap();
        let limit = || group_limit(mount.path(), "1:name=x:/y\n0::/a/b\n");
        assert_eq!(limit(), None);
        std::fs::write(mount.path().join("a/memory.max"), "1000000\n").unwrap();
        assert_eq!(limit(), Some(1_000_000));
        std::fs::write(group.join("memory.max"), "2000\n").unwrap();
        assert_eq!(limit(), Some(2000));
        assert_eq!(group_limit(mount.path(), "no groups"), None);
        let old = mount.path().join("memory/x/y");
        std::fs::create_dir_all(&old).unwrap();
        std::fs::write(old.join("memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
        std::fs::write(old.join("../memory.limit_in_bytes"), "3000\n").unwrap();
        let limit = |groups| group_limit(mount.path(), groups);
        assert_eq!(limit("4:cpu,memory:/x/y\n3:cpu:/x\n"), Some(3000));
        assert_eq!(limit("4:memory:/x/y/not-visible\n"), Some(3000));
        assert_eq!(limit("4:memory:/x/y\n0::/a/b\n"), Some(2000));
        assert_eq!(limit("3:cpu:/x\n"), None);
        let budget = default_budget() as u64;
        assert!((MIN_BUDGET..=MAX_BUDGET).contains(&budget), "{budget}");
    }
}
