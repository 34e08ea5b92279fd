//! How the open roots of a volume share its memory for clean inodes and names, and what data blocks
//! get of memory that is idle.
//!
//! There is one budget, however many roots are open. Each root may double what it has; roots that
//! have most give up what others ask for. So a single active root has nearly all of the memory, and
//! an idle one gives its memory up when others need it.

use crate::fs::FileSystem;
use crate::txn::Core;

/// What a root may ask for in any case, if all get it: clean inodes, bytes of names.
const AT_LEAST: (u64, u64) = (1024, 256 << 10);

/// Divides `total` by what each root has: all get what they ask for if there is enough, and an equal
/// part of the rest; else no root gets more than a common limit.
fn divide(total: u64, have: &[u64], at_least: u64) -> Vec<u64> {
    let asked: Vec<u64> = have.iter().map(|n| (2 * n).max(at_least)).collect();
    let limit = common_limit(total, asked.clone());
    let given = |asked: &u64| (*asked).min(limit);
    let sum: u64 = asked.iter().map(given).sum();
    let rest = total.saturating_sub(sum) / have.len().max(1) as u64;
    asked.iter().map(|asked| given(asked) + rest).collect()
}

/// The largest limit at which `asked` add up to `total` at most; `u64::MAX` if they do without one.
fn common_limit(total: u64, mut asked: Vec<u64>) -> u64 {
    asked.sort_unstable();
    let (mut left, mut roots) = (total, asked.len() as u64);
    for asked in asked {
        if asked * roots > left {
            return left / roots;
        }
        left -= asked;
        roots -= 1;
    }
    u64::MAX
}

impl FileSystem {
    /// Limits the memory of a root that was just opened, until memory is divided the next time.
    pub(super) fn limit_new_root(&self) {
        let roots = self.engine.roots.list().len().max(1);
        let limits = self.core().limits();
        let (inodes, names) = (limits.inodes / roots, limits.names / roots as i64);
        self.items().limit_memory(inodes, names);
    }

    /// Divides the memory for clean inodes and names among the open roots, and lends data blocks
    /// what is idle.
    pub(super) fn divide_memory(&self) {
        let roots = self.engine.roots.list();
        let inodes = roots.iter().map(|root| root.items.table().count() as u64);
        let names = roots
            .iter()
            .map(|root| root.items.name_bytes().max(0) as u64);
        let (inodes, names): (Vec<_>, Vec<_>) = inodes.zip(names).unzip();
        let all = (inodes.iter().sum(), names.iter().sum());
        self.engine.lender.lend(self.core(), all.0, all.1);
        let limits = self.core().limits();
        if let [root] = roots.as_slice() {
            return root.items.limit_memory(limits.inodes, limits.names);
        }
        let inodes = divide(limits.inodes as u64, &inodes, AT_LEAST.0);
        let names = divide(limits.names.max(0) as u64, &names, AT_LEAST.1);
        for (root, (inodes, names)) in roots.iter().zip(inodes.into_iter().zip(names)) {
            root.items.limit_memory(inodes as usize, names as i64);
        }
    }
}

/// Lends idle memory to cached data.
pub(super) struct Lender {
    lends: bool,
}

impl Lender {
    /// One that lends if `lends` says so.
    pub fn new(lends: bool) -> Self {
        Self { lends }
    }

    /// Lends what is idle while so many inodes and bytes of names are in memory.
    fn lend(&self, core: &Core, inodes: u64, names: u64) {
        if self.lends {
            let (limits, nodes) = (core.limits(), core.index().counters().bytes as usize);
            let lent = limits.lent_to_data(nodes, inodes as usize, names as i64);
            core.data().lend(lent);
        }
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fs::{MakeOptions, Options, make_device};
    use crate::journal::signals::LogWork;
    use cairnfs_disk::device::MemoryDevice;
    use cairnfs_disk::types::Creds;

    const FILE: usize = 64 << 10;

    /// When the memory of a new volume is divided.
    #[derive(Clone, Copy, PartialEq)]
    enum Divided {
        /// By the opening that starts workers.
        Opening,
        /// By the log's worker.
        Interval,
        Never,
    }

    /// Opens a new volume with the least default budget, of which data has 6 MiB, writes files of
    /// 12 MiB in all, and returns how often these are read from the device.
    fn reads_of_new_data(kernel_caches: bool, divided: Divided) -> u64 {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        let options = Options {
            cache_budget: 64 << 20,
            durability_interval: None,
            workers: divided == Divided::Opening,
            seed: Some(1),
            kernel_caches,
            ..Options::default()
        };
        let fs = FileSystem::open_device(device, &options).unwrap();
        if divided == Divided::Interval {
            fs.work(LogWork::Interval, false).unwrap();
        }
        let write = |n: u8| {
            let name = format!("f{n}");
            let creds = Creds::default();
            let made = fs.mknod(1, name.as_bytes(), 0o100_644, 0, creds).unwrap();
            fs.write(made.ino, 0, &[n; FILE], false).unwrap();
            made.ino
        };
        let files: Vec<u64> = (0..192).map(write).collect();
        fs.sync().unwrap();
        let reads = || fs.core().storage().counters()[2].1;
        let before = reads();
        let mut bytes = vec![0; FILE];
        for (ino, n) in files.into_iter().zip(0..) {
            assert_eq!(fs.read(ino, 0, &mut bytes).unwrap(), FILE);
            assert!(bytes.iter().all(|b| *b == n));
        }
        reads() - before
    }

    #[test]
    fn new_data_is_read_from_memory_that_is_idle() {
        assert_eq!(reads_of_new_data(false, Divided::Opening), 0);
        assert_eq!(reads_of_new_data(false, Divided::Interval), 0);
        assert!(reads_of_new_data(false, Divided::Never) > 0);
        assert!(reads_of_new_data(true, Divided::Opening) > 0);
    }

    #[test]
    fn one_root_has_all_and_many_have_no_more() {
        assert_eq!(divide(100_000, &[5], 10), [100_000]);
        assert_eq!(divide(100_000, &[100_000], 10), [100_000]);
        for have in [&[0; 7][..], &[0, 5, 90_000], &[1 << 40, 1 << 40, 3]] {
            let shares = divide(100_000, have, 10);
            let sum: u64 = shares.iter().sum();
            assert!(sum <= 100_000, "{have:?}: {shares:?}");
            assert!(
                sum + 7 > 100_000,
                "{have:?}: {shares:?} leaves memory unused"
            );
        }
    }

    #[test]
    fn active_root_takes_memory_of_idle_ones() {
        let (mut active, idle) = (0, 100_000);
        for _ in 0..20 {
            let shares = divide(100_000, &[active, idle.min(100_000 - active)], 10);
            assert!(shares[0] >= 10.max(2 * active).min(50_000), "{shares:?}");
            active = shares[0];
        }
        assert!(active >= 50_000, "{active}");
        let shares = divide(100_000, &[100, 100, 90_000], 10);
        assert!(
            shares[2] > 99_000,
            "idle roots leave what they do not use: {shares:?}"
        );
    }
}
