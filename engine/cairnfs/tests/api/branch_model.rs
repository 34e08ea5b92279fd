//! Random trees of branches and snapshots, compared with a model: a map of paths to contents for
//! each root.

use std::collections::BTreeMap;

use cairnfs::fs::{Options, Pressure};
use cairnfs::{Error, OpenOptions, Volume};
use cairnfs_tier::size;
use proptest::prelude::*;

use super::engine::{copy, fresh, open_with};

const FILES: [&str; 6] = ["a", "b", "d/a", "d/b", "e/a", "e/b"];

type Tree = BTreeMap<String, Vec<u8>>;

/// A change; roots are chosen by number, modulo the number of roots that can be chosen.
#[derive(Debug, Clone)]
enum Op {
    Write(usize, usize, usize),
    Append(usize, usize, usize),
    SetLen(usize, usize, usize),
    Remove(usize, usize),
    Rename(usize, usize, usize),
    /// Exchanges the directories of a branch by renaming each.
    SwapDirs(usize),
    Snapshot(usize),
    /// A branch of any root.
    Branch(usize),
    /// The handles to a root are dropped; it is opened again when it is used.
    Drop(usize),
    Fsync(usize, usize),
    Sync,
    Merge,
    Replace(usize, usize),
    /// The volume is synced and killed, or closed, and opened again.
    Kill,
    Close,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let root = || 0..40_usize;
    let file = || 0..FILES.len();
    let len = || prop_oneof![0..300_usize, 3000..20_000_usize, Just(4096)];
    let op = prop_oneof![
        6 => (root(), file(), len()).prop_map(|(r, f, n)| Op::Write(r, f, n)),
        4 => (root(), file(), len()).prop_map(|(r, f, n)| Op::Append(r, f, n)),
        2 => (root(), file(), len()).prop_map(|(r, f, n)| Op::SetLen(r, f, n)),
        3 => (root(), file()).prop_map(|(r, f)| Op::Remove(r, f)),
        3 => (root(), file(), file()).prop_map(|(r, f, g)| Op::Rename(r, f, g)),
        1 => root().prop_map(Op::SwapDirs),
        3 => root().prop_map(Op::Snapshot),
        4 => root().prop_map(Op::Branch),
        2 => root().prop_map(Op::Drop),
        2 => (root(), file()).prop_map(|(r, f)| Op::Fsync(r, f)),
        1 => Just(Op::Sync),
        2 => Just(Op::Merge),
        1 => (root(), root()).prop_map(|(r, s)| Op::Replace(r, s)),
        1 => Just(Op::Kill),
        1 => Just(Op::Close),
    ];
    proptest::collection::vec(op, 1..60)
}

struct Root {
    tree: Tree,
    writable: bool,
    open: Option<Volume>,
}

/// A volume, and what it must have.
struct Modelled {
    device: std::sync::Arc<cairnfs::device::MemoryDevice>,
    pressure: Pressure,
    main: Volume,
    roots: BTreeMap<String, Root>,
    made: usize,
    byte: u8,
}

fn opened(device: &std::sync::Arc<cairnfs::device::MemoryDevice>, pressure: Pressure) -> Volume {
    let options = Options {
        cache_budget: 8 << 20,
        pressure: Some(pressure),
        ..Options::default()
    };
    Volume::from(open_with(device.clone(), options))
}

impl Modelled {
    fn new(pressure: Pressure) -> Self {
        let device = fresh();
        let main = opened(&device, pressure);
        main.create_dir("d").unwrap();
        main.create_dir("e").unwrap();
        let root = Root {
            tree: Tree::new(),
            writable: true,
            open: None,
        };
        Self {
            device,
            pressure,
            main,
            roots: [("main".to_owned(), root)].into(),
            made: 0,
            byte: 0,
        }
    }

    /// The name of a root, writable or any.
    fn chosen(&self, number: usize, writable: bool) -> String {
        let fits = self.roots.iter().filter(|(_, r)| r.writable || !writable);
        let names: Vec<_> = fits.map(|(name, _)| name.clone()).collect();
        names[number % names.len()].clone()
    }

    fn volume(&mut self, name: &str) -> Volume {
        let root = self.roots.get_mut(name).unwrap();
        let open = root
            .open
            .get_or_insert_with(|| self.main.open_branch(name).unwrap());
        open.clone()
    }

    /// A writable root: its volume and its model.
    fn head(&mut self, number: usize) -> (Volume, &mut Tree) {
        let name = self.chosen(number, true);
        (
            self.volume(&name),
            &mut self.roots.get_mut(&name).unwrap().tree,
        )
    }

    fn new_name(&mut self, kind: &str) -> String {
        self.made += 1;
        format!("{kind}{}", self.made)
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        self.byte = self.byte % 250 + 1;
        vec![self.byte; len]
    }

    fn add(&mut self, name: String, from: &str, writable: bool, open: Option<Volume>) {
        let tree = self.roots[from].tree.clone();
        let root = Root {
            tree,
            writable,
            open,
        };
        self.roots.insert(name, root);
    }

    fn reopen(&mut self, kill: bool) {
        self.roots.values_mut().for_each(|root| root.open = None);
        if kill {
            self.main.sync().unwrap();
            self.device = copy(&self.device);
        } else {
            self.main.clone().close().unwrap()
        }
        self.main = opened(&self.device, self.pressure);
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::Write(root, file, len) => {
                let bytes = self.bytes(len);
                let (volume, tree) = self.head(root);
                volume.write(FILES[file], &bytes).unwrap();
                tree.insert(FILES[file].into(), bytes);
            }
            Op::Append(root, file, len) => {
                let bytes = self.bytes(len);
                let (volume, tree) = self.head(root);
                let options = OpenOptions::new().append(true).create(true).clone();
                let mut opened = volume.open_with(FILES[file], &options).unwrap();
                std::io::Write::write_all(&mut opened, &bytes).unwrap();
                tree.entry(FILES[file].into()).or_default().extend(bytes);
            }
            Op::SetLen(root, file, len) => {
                let (volume, tree) = self.head(root);
                if let Some(contents) = tree.get_mut(FILES[file]) {
                    let options = OpenOptions::new().write(true).clone();
                    let opened = volume.open_with(FILES[file], &options).unwrap();
                    opened.set_len(len as u64).unwrap();
                    contents.resize(len, 0);
                }
            }
            Op::Remove(root, file) => {
                let (volume, tree) = self.head(root);
                let removed = volume.remove_file(FILES[file]);
                assert_eq!(removed.is_ok(), tree.remove(FILES[file]).is_some());
            }
            Op::Rename(root, from, to) => {
                let (volume, tree) = self.head(root);
                let renamed = volume.rename(FILES[from], FILES[to]);
                let moved = tree.remove(FILES[from]);
                assert_eq!(renamed.is_ok(), moved.is_some());
                tree.extend(moved.map(|contents| (FILES[to].to_owned(), contents)));
            }
            Op::SwapDirs(root) => {
                let (volume, tree) = self.head(root);
                for (from, to) in [("d", "x"), ("e", "d"), ("x", "e")] {
                    volume.rename(from, to).unwrap();
                }
                let swapped = |path: String| match path.split_once('/') {
                    Some(("d", name)) => format!("e/{name}"),
                    Some(("e", name)) => format!("d/{name}"),
                    _ => path,
                };
                let old = std::mem::take(tree).into_iter();
                *tree = old.map(|(path, bytes)| (swapped(path), bytes)).collect();
            }
            Op::Snapshot(root) => {
                let (from, name) = (self.chosen(root, true), self.new_name("s"));
                self.volume(&from).snapshot(&name).unwrap();
                self.add(name, &from, false, None);
            }
            Op::Branch(root) => {
                let (from, name) = (self.chosen(root, false), self.new_name("b"));
                let branch = self.volume(&from).branch(&name).unwrap();
                self.add(name, &from, true, Some(branch));
            }
            Op::Drop(root) => {
                let name = self.chosen(root, false);
                self.roots.get_mut(&name).unwrap().open = None;
            }
            Op::Fsync(root, file) => {
                let (volume, tree) = self.head(root);
                if tree.contains_key(FILES[file]) {
                    volume.open_file(FILES[file]).unwrap().sync_all().unwrap();
                }
            }
            Op::Sync => self.main.sync().unwrap(),
            Op::Merge => self.main.file_system().merge().unwrap(),
            Op::Replace(base, staged) => self.replace(base, staged),
            Op::Kill => self.reopen(true),
            Op::Close => self.reopen(false),
        }
    }

    fn replace(&mut self, base: usize, staged: usize) {
        let (base, staged) = (self.chosen(base, true), self.chosen(staged, true));
        if base == staged || staged == "main" {
            return;
        }
        let kept = self.new_name("k");
        let (old, new) = (self.volume(&base), self.volume(&staged));
        let swapped = old.file_system().replace_by(new.file_system(), &kept, None);
        swapped.unwrap();
        assert!(matches!(
            old.write("a", "stale").unwrap_err().cause(),
            Error::Stale
        ));
        let published = self.roots.remove(&staged).unwrap();
        let before = self.roots.insert(base.clone(), published).unwrap();
        let frozen = Root {
            writable: false,
            open: None,
            ..before
        };
        self.roots.insert(kept, frozen);
        if base == "main" {
            self.main = new;
        }
    }

    /// Compares every root with its model.
    fn verify(&mut self) {
        let names: Vec<String> = self.roots.keys().cloned().collect();
        for name in names {
            let volume = self.volume(&name);
            let mut found = Tree::new();
            for entry in volume.walk("/").unwrap() {
                let entry = entry.unwrap();
                let path = entry.path();
                if entry.file_type().unwrap().is_file() {
                    let at = path.to_str().unwrap().trim_start_matches('/').to_owned();
                    found.insert(at, volume.read(path).unwrap());
                }
            }
            assert!(found == self.roots[&name].tree, "{name} has other files");
        }
        let told: Vec<_> = self
            .main
            .roots()
            .into_iter()
            .filter_map(|r| r.name)
            .collect();
        assert_eq!(told.len(), self.roots.len(), "{told:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: size(16, 48), ..ProptestConfig::default() })]

    /// Contract: branch
    #[test]
    fn branches_agree_with_a_model(
        pressure in prop_oneof![
            Just(Pressure::steps(2000, 5)),
            Just(Pressure::parts(2000, 5)),
        ],
        ops in ops(),
    ) {
        let mut modelled = Modelled::new(pressure);
        for op in &ops {
            modelled.run(op);
            if matches!(op, Op::Kill | Op::Close) {
                modelled.verify();
            }
        }
        modelled.verify();
        modelled.reopen(true);
        modelled.verify();
        modelled.reopen(false);
        modelled.verify();
    }
}
