//! Workloads, runs of them with a fault, and checks of the recovered volumes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use cairnfs::Error;
use cairnfs::fs::FileSystem;
use cairnfs_check::{CheckOptions, check};
use cairnfs_sim::disk::SimDisk;
use cairnfs_sim::image::Image;
use cairnfs_sim::model::Moment;
use cairnfs_sim::record::{Recording, fresh_volume, options};
use cairnfs_sim::tree::Tree;
use cairnfs_sim::workload::{Runner, Step, after, base_volume, random_steps, steps};
use cairnfs_tier::size_from;

/// Every kind of step, and their interactions.
const EVERY_STEP: &str = "
    create a; write a 0 9000; fsync a; mkdir m; symlink m/s 2000; fifo m/p; tmpfile m/t;
    link f m/l; write f 4096 9000; rename f m/f; append m/f 3000; fdatasync m/f; exchange g m/l;
    whiteout g n; unlink g; rename n g;
    setxattr a a 30000; setxattr d b 200; fsync d; unlink-open d/h; truncate a 100000;
    write a 90000 500; merge; truncate a 3000; punch m/f 1000 5000; zero m/f 4096 8192;
    allocate a 8192 40000; reserve a 60000 20000; write a 10000 5000; sync; chmod a 384;
    removexattr a a; rmdir e; merge; unlink m/s; rename m d/m; write a 0 30000; merge;
    write d/m/f 0 100; rename d/m/f g; fsync g; sync";

/// Truncates a file with very many extents and removes another: both take several transactions.
const LONG: &str = "
    append g 10; truncate x 5000; fsync x; append x 9000; merge; fsync x; unlink y; sync;
    create y; write y 0 5000; merge; fsync y";

/// A volume and the steps to run on it.
pub struct Workload {
    pub name: String,
    pub start: Image,
    pub steps: Vec<Step>,
}

pub fn every_step() -> Workload {
    Workload {
        name: "every step".into(),
        start: base_volume().unwrap(),
        steps: steps(EVERY_STEP).unwrap(),
    }
}

pub fn long_truncations() -> Workload {
    let mut before = steps("create x; create y").unwrap();
    for i in 0..530 {
        before.push(format!("write x {} 1", i * 8192).parse().unwrap());
        before.push(format!("write y {} 1", i * 8192).parse().unwrap());
    }
    Workload {
        name: "long truncations".into(),
        start: after(base_volume().unwrap(), &before).unwrap(),
        steps: steps(LONG).unwrap(),
    }
}

pub fn random(seed: u64, count: usize) -> Workload {
    Workload {
        name: format!("random {seed}"),
        start: fresh_volume(16 << 20).unwrap(),
        steps: random_steps(seed, count),
    }
}

/// A volume that has been used and reopened, so that little is cached in memory.
pub fn used(seed: u64) -> Workload {
    let fresh = random(seed, 0).start;
    let before: Vec<_> = random_steps(seed, 150);
    let disk = Arc::new(SimDisk::new(fresh.clone(), false));
    let fs = FileSystem::open_device(disk, &options(3)).unwrap();
    let mut runner = Runner::new(&fs);
    let done: Vec<_> = before
        .into_iter()
        .filter(|step| runner.run(step).is_ok())
        .collect();
    Workload {
        name: format!("used {seed}"),
        start: after(fresh, &done).unwrap(),
        steps: random_steps(seed + 1000, 100).split_off(2),
    }
}

/// The seeds to try: as many as the tier has, or the number in the environment.
pub fn seeds(short: u64, deep: u64) -> std::ops::Range<u64> {
    0..size_from("CAIRNFS_FAULT_SEEDS", short, deep)
}

/// Whether an error comes from the disk or from damage, and is not one that POSIX allows.
pub fn is_failure(error: &Error) -> bool {
    matches!(
        error.cause(),
        Error::Io { .. } | Error::Corrupt(_) | Error::Stopped(_)
    )
}

/// The trees before the first step and after each step, without a fault.
pub fn trees(workload: &Workload) -> Vec<Tree> {
    let disk = Arc::new(SimDisk::new(workload.start.clone(), false));
    let fs = FileSystem::open_device(disk, &options(4)).unwrap();
    let mut runner = Runner::new(&fs);
    let mut trees = vec![Tree::read(&fs).unwrap()];
    for step in &workload.steps {
        if let Err(e) = runner.run(step) {
            assert!(!is_failure(&e), "{step}: {e}");
        }
        trees.push(Tree::read(&fs).unwrap());
    }
    trees
}

/// Checks that the offline check reports no finding.
pub fn sound(image: &Image) -> Result<(), String> {
    let disk = SimDisk::new(image.clone(), false);
    let report = check(&disk, &CheckOptions { data: true }, &mut |_| {})
        .map_err(|e| format!("cannot be checked: {e}"))?;
    match report.findings.first() {
        None => Ok(()),
        Some(first) => Err(format!("the check says: {}", first.message)),
    }
}

/// Opens a volume on a disk without faults and reads its tree.
pub fn reopen(image: &Image) -> Result<Tree, String> {
    let disk = Arc::new(SimDisk::new(image.clone(), false));
    let seed = image.digest() | 1;
    let fs = FileSystem::open_device(disk, &options(seed)).map_err(|e| format!("opening: {e}"))?;
    let tree = Tree::read(&fs).map_err(|e| format!("reading: {e}"))?;
    fs.close().map_err(|e| format!("closing: {e}"))?;
    Ok(tree)
}

/// Checks that a volume is sound, and that the contract allows its tree at that moment.
pub fn verdict(recording: &Recording, image: &Image, moment: Moment) -> Result<(), String> {
    sound(image)?;
    let tree = reopen(image)?;
    recording.verify(&tree, moment).map_err(|v| v.to_string())
}

/// Counts faults by what they affect.
#[derive(Default)]
pub struct Count(BTreeMap<String, u64>);

impl Count {
    pub fn add(&mut self, what: impl fmt::Debug, n: u64) {
        *self.0.entry(format!("{what:?}")).or_default() += n;
    }

    pub fn print(&self, title: &str) {
        let parts: Vec<String> = self.0.iter().map(|(k, n)| format!("{k}: {n}")).collect();
        println!("{title}: {}", parts.join(", "));
    }
}

/// Prints the current fault if an assertion fails.
pub struct Told(String);

impl Told {
    pub fn new(fault: String) -> Self {
        Self(fault)
    }

    pub fn well(mut self) {
        self.0.clear();
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            eprintln!("with the fault {}", self.0);
        }
    }
}

/// Describes the first difference of two trees.
pub fn difference(found: &Tree, expected: &Tree) -> String {
    for (ino, node) in &found.nodes {
        match expected.nodes.get(ino) {
            None => return format!("{} is new", found.path(*ino)),
            Some(old) if old != node => {
                return format!(
                    "{}: size {} was {}, {:?} was {:?}, links {} was {}, blocks {:?} was {:?}",
                    found.path(*ino),
                    node.size,
                    old.size,
                    node.facts,
                    old.facts,
                    node.nlink,
                    old.nlink,
                    node.blocks.keys(),
                    old.blocks.keys(),
                );
            }
            _ => {}
        }
    }
    "something is gone".into()
}
