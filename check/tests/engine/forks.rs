//! What forks keep back of the free space, and what works on a full volume that has many.
//!
//! Contract: failure.space

use std::io::Write;
use std::sync::Arc;

use cairnfs::fs::{FileSystem, Options};
use cairnfs::{Error, OpenOptions, Volume};
use cairnfs_disk::device::MemoryDevice;
use cairnfs_disk::types::SetAttr;
use cairnfs_tier::size;

use super::seen::{Seen, assert_sound, options, pressed_options, tree};
use super::snapshots::{Numbers, fresh, kill, open, open_with, volume};

const MIB: u64 = 1 << 20;

/// Blocks of a node.
const NODE: u64 = 4;

fn name(n: u32) -> String {
    format!("d{}/a-file-with-a-long-name-{n}", n % 7)
}

/// Small files in seven directories, merged.
fn populate(fs: &FileSystem, v: &Volume, files: u32) {
    (0..7).for_each(|dir| v.create_dir(format!("d{dir}")).unwrap());
    (0..files).for_each(|n| v.write(name(n), "small").unwrap());
    fs.merge().unwrap();
}

/// A fork of a large tree takes a unit for the root of its index; all forks together keep as many
/// units as one of them needs to copy all of its index.
#[test]
fn forks_of_a_large_tree_keep_little_back() {
    let device = fresh(64 * MIB);
    let fs = open(&device);
    let v = volume(&fs);
    populate(&fs, &v, 12_000);
    let left = || fs.statfs().available;
    let before = left();
    v.branch("b0").unwrap();
    fs.merge().unwrap();
    let first = before - left();
    // The index has at least 12,000 * 200 bytes.
    assert!(first > 140 * NODE, "{first} blocks");
    for n in 1..100 {
        v.branch(&format!("b{n}")).unwrap();
    }
    fs.merge().unwrap();
    let all = before - left();
    // With what the tree of roots needs for the items of 200 roots.
    assert!(all - first <= 100 * NODE + 40, "{first} blocks, then {all}");
    // What is shown is there.
    let mut rest = v.create_file("rest").unwrap();
    let mut written = 0;
    while rest.write_all(&[9; 65_536]).is_ok() {
        written += 16;
    }
    assert!(
        written + 256 >= before - all,
        "{written} of {}",
        before - all
    );
    fs.sync().unwrap();
    kill(fs);
    let fs = open(&device);
    let (again, full) = (fs.statfs().available, before - all - written);
    assert!(
        again <= full + 256,
        "{again} blocks after a replay, {full} before"
    );
    fs.close().unwrap();
    assert_sound(&*device, "closed");
}

/// A volume whose branches were filled until each call was refused.
struct Full {
    device: Arc<MemoryDevice>,
    options: Options,
    fs: Arc<FileSystem>,
    branches: Vec<Volume>,
}

impl Full {
    /// Branches of a tree of small files, in each of which `change` was called until it had no
    /// space; and then once more in each.
    fn new(files: u32, branches: u32, change: impl Fn(&Volume, u32) -> Result<(), Error>) -> Self {
        let device = fresh(64 * MIB);
        let fs = open(&device);
        let v = volume(&fs);
        populate(&fs, &v, files);
        let made = (0..branches).map(|n| v.branch(&format!("b{n}")).unwrap());
        let mut full = Self {
            branches: made.collect(),
            options: options(false),
            device,
            fs,
        };
        full.branches.push(v);
        for round in 0..2 {
            for branch in &full.branches {
                let mut n = round;
                let refused = loop {
                    n += 2;
                    if let Err(refused) = change(branch, n) {
                        break refused;
                    }
                };
                let cause = refused.cause();
                assert!(matches!(cause, Error::HeldByRoots), "{refused:?}");
            }
        }
        full.fs.sync().unwrap();
        full
    }

    fn kill(&mut self) {
        let branches = std::mem::take(&mut self.branches);
        branches.into_iter().for_each(std::mem::forget);
        let fs = open_with(&self.device, &self.options);
        kill(std::mem::replace(&mut self.fs, fs));
        let v = volume(&self.fs);
        let heads = v.roots().into_iter().filter(|root| root.writable);
        let names = heads.filter_map(|root| root.name);
        let open = |name: String| match name.as_str() {
            "main" => v.clone(),
            name => v.open_branch(name).unwrap(),
        };
        self.branches = names.map(open).collect();
    }

    /// Removes what was written, drops all branches but main, and finds the space again.
    fn empty(mut self, remove: impl Fn(&Volume)) {
        for branch in &self.branches {
            remove(branch);
            self.fs.merge().unwrap();
        }
        let left = self.fs.statfs().available;
        assert!(left > 1000, "{left} blocks after the removals");
        self.branches.clear();
        let names = self.fs.roots().into_iter().filter_map(|root| root.name);
        for name in names.filter(|name| name != "main") {
            self.fs.drop_root(&name).unwrap();
        }
        while self.fs.drop_step().unwrap() {}
        self.fs.merge().unwrap();
        let roots = self.fs.roots();
        assert_eq!(roots.len(), 1, "{roots:?}");
        self.fs.close().unwrap();
        assert_sound(&*self.device, "closed");
    }
}

fn remove_dir(v: &Volume) {
    for dir in 0..7 {
        for n in (dir..6000).step_by(7) {
            let _ = v.remove_file(format!("{}-new", name(n)));
        }
    }
}

/// New small files next to each old one: each leaf of each branch is copied.
#[test]
fn branches_filled_with_small_files_are_emptied() {
    let change = |v: &Volume, n: u32| v.write(format!("{}-new", name(n * 37 % 6000)), [1; 1500]);
    let mut full = Full::new(6000, 12, |v, n| {
        if n > 12_000 {
            return v.write(format!("more{n}"), [2; 6000]);
        }
        change(v, n)
    });
    full.kill();
    for branch in &full.branches {
        let refused = (0..300).find_map(|n| branch.write(format!("x{n}"), [1; 4000]).err());
        assert!(refused.is_some());
    }
    full.empty(|v| {
        remove_dir(v);
        for n in 0..40_000 {
            let _ = v.remove_file(format!("more{n}"));
        }
        (0..300).for_each(|n| drop(v.remove_file(format!("x{n}"))));
    });
}

/// Data written at once: it waits in memory, and its items are charged when it is accepted.
#[test]
fn branches_filled_with_data_are_emptied() {
    let mut full = Full::new(6000, 12, |v, n| {
        let mut opened = OpenOptions::new();
        let mut file = v.open_with(name(n * 7 % 6000), opened.append(true))?;
        file.write_all(&vec![3; 30_000])?;
        Ok(())
    });
    full.fs.sync().unwrap();
    full.kill();
    full.fs.merge().unwrap();
    full.empty(|v| (0..6000).for_each(|n| v.remove_file(name(n)).unwrap()));
}

/// A change of an attribute adds nothing to the index, but copies nodes. It is refused when it is
/// called, not by a merge; after a drop there is space again.
#[test]
fn changes_that_only_copy_nodes_are_refused_before_the_merge() {
    let device = fresh(64 * MIB);
    let fs = open(&device);
    let v = volume(&fs);
    populate(&fs, &v, 6000);
    let made = (0..12).map(|n| v.branch(&format!("b{n}")).unwrap());
    let branches: Vec<Volume> = made.collect();
    fs.merge().unwrap();
    let mut rest = v.create_file("rest").unwrap();
    while rest.write_all(&[9; 65_536]).is_ok() {}
    let change = |v: &Volume, n: u32| {
        let set = SetAttr {
            mode: Some(0o600),
            ..SetAttr::default()
        };
        let ino = v.metadata(name(n))?.ino();
        v.file_system().setattr(ino, &set).map(|_| ())
    };
    let mut refused = 0;
    for branch in &branches {
        for n in (0..6000).step_by(20) {
            if let Err(e) = change(branch, n) {
                assert!(matches!(e.cause(), Error::HeldByRoots), "{e:?}");
                refused += 1;
                break;
            }
        }
        fs.merge().unwrap();
    }
    assert!(refused > 3, "{refused}");
    drop(branches);
    (0..6).for_each(|n| fs.drop_root(&format!("b{n}")).unwrap());
    while fs.drop_step().unwrap() {}
    let last = v.open_branch("b11").unwrap();
    for n in (0..6000).step_by(20) {
        change(&last, n).unwrap();
    }
    drop(last);
    fs.close().unwrap();
    assert_sound(&*device, "closed");
}

/// Changes of random branches of a small volume that is full most of the time, with kills: nothing
/// but writes is refused, and every branch has what it should have.
#[test]
fn random_histories_on_full_volumes_with_forks() {
    for seed in 1..=size(4, 8) {
        random_history(seed);
    }
}

fn random_history(seed: u64) {
    let device = fresh(16 * MIB);
    let pressed = pressed_options(seed);
    let mut fs = open_with(&device, &pressed);
    let mut numbers = Numbers(seed * 0x9e37_79b9);
    let main = volume(&fs);
    populate(&fs, &main, 300);
    let mut open = vec![("main".to_owned(), main)];
    let mut made = 0;
    let enospc = |e: &Error| matches!(e.cause(), Error::NoSpace | Error::HeldByRoots);
    for step in 0..1500 {
        let at = numbers.below(open.len() as u64) as usize;
        let (from, v) = open[at].clone();
        let path = name(numbers.below(300) as u32);
        match numbers.below(40) {
            0..=13 => {
                let len = [100, 1500, 30_000, 200_000][numbers.below(4) as usize];
                if let Err(e) = v.write(&path, vec![step as u8; len]) {
                    assert!(enospc(&e), "{seed}: {e:?}");
                }
            }
            14..=24 => {
                if let Err(e) = v.remove_file(&path) {
                    assert!(
                        matches!(e.cause(), Error::NotFound),
                        "{seed} at {step}: {e:?}"
                    );
                }
            }
            25..=27 => {
                let to = name(numbers.below(300) as u32);
                if let Err(e) = v.rename(&path, to) {
                    let absent = matches!(e.cause(), Error::NotFound);
                    assert!(absent || enospc(&e), "{seed}: {e:?}");
                }
            }
            28..=30 => {
                made += 1;
                let name = format!("b{made}");
                match v.branch(&name) {
                    Ok(branch) => open.push((name, branch)),
                    Err(e) => assert!(enospc(&e), "{seed}: {e:?}"),
                }
            }
            31 => {
                made += 1;
                if let Err(e) = v.snapshot(&format!("s{made}")) {
                    assert!(enospc(&e), "{seed}: {e:?}");
                }
            }
            32..=34 if from != "main" => {
                let dropped = open.swap_remove(at);
                drop((dropped, v));
                fs.drop_root(&from).unwrap();
            }
            35 => while fs.drop_step().unwrap() {},
            36 | 37 => fs.merge().unwrap(),
            38 => fs.sync().unwrap(),
            39 => {
                fs.sync().unwrap();
                let before: Vec<(String, Vec<Seen>)> = open
                    .iter()
                    .map(|(name, v)| (name.clone(), tree(v.file_system())))
                    .collect();
                std::mem::take(&mut open)
                    .into_iter()
                    .for_each(std::mem::forget);
                std::mem::forget(v);
                let again = open_with(&device, &pressed);
                kill(std::mem::replace(&mut fs, again));
                let main = volume(&fs);
                for (name, seen) in before {
                    let v = match name.as_str() {
                        "main" => main.clone(),
                        other => main.open_branch(other).unwrap(),
                    };
                    assert!(tree(v.file_system()) == seen, "{seed} at {step}: {name}");
                    open.push((name, v));
                }
            }
            _ => {}
        }
    }
    open.clear();
    fs.close().unwrap();
    assert_sound(&*device, "closed");
}
