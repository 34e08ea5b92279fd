//! Default memory budget of a volume: an eighth of the available memory.
//!
//! Reads the memory size from the kernel and the limits of the process's control groups, once for
//! each opened volume.

use std::path::{Path, PathBuf};

const MIN_BUDGET: u64 = 64 << 20;
const MAX_BUDGET: u64 = 4 << 30;

/// An eighth of the memory that this process may use, from 64 MiB to 4 GiB, in bytes.
pub fn default_budget() -> usize {
    let info = rustix::system::sysinfo();
    let machine = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit));
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let memory =
        group_limit(Path::new("/sys/fs/cgroup"), &groups).map_or(machine, |l| l.min(machine));
    (memory / 8).clamp(MIN_BUDGET, MAX_BUDGET) as usize
}

/// The lowest limit of the control group in `groups` (the text of /proc/self/cgroup) and its
/// parents.
fn group_limit(mount: &Path, groups: &str) -> Option<u64> {
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mut group: PathBuf = mount.join(own);
    let mut least = None;
    loop {
        let limit = std::fs::read_to_string(group.join("memory.max")).ok();
        let limit = limit.and_then(|text| text.trim().parse::<u64>().ok());
        least = least.into_iter().chain(limit).min();
        if group == mount || !group.pop() {
            return least;
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
        let budget = default_budget() as u64;
        assert!((MIN_BUDGET..=MAX_BUDGET).contains(&budget), "{budget}");
    }
}
