//! Histories of several heads, below the level of files: the power fails at every write and flush,
//! and what is found must be a state that the volume had, no older than the last promise. After
//! that all blocks are either free or in the tree of a root.

mod cases;
mod disk;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use self::disk::{Disk, Image};
use crate::fs::{MakeOptions, make_device};
use crate::index::{OldOnly, Tree};
use crate::inode::attrs::Attrs;
use crate::journal::ring::Ring;
use crate::space::{Class, Funding};
use crate::txn::roots::{root_key, tree_of};
use crate::txn::superblocks::volume_tree;
use crate::txn::{Core, ForkKind, FsyncRequest, ItemStore, Limits, Need, OpenMode, Pressure};
use cairnfs_disk::device::{DataStamp, Device};
use cairnfs_disk::error::Result;
use cairnfs_disk::format::checksum::crc;
use cairnfs_disk::format::item::{RawExtent, decode_extent};
use cairnfs_disk::format::key::{Key, Kind, VOLUME_ROOT};
use cairnfs_disk::format::root::{Root, RootState};
use cairnfs_disk::format::{BLOCK_SIZE, NODE_BLOCKS};

const SIZE: u64 = 16 << 20;
const BLOCK: u64 = BLOCK_SIZE as u64;

/// The blocks of the files of a root: inode and file block, and the byte that fills it.
type Files = BTreeMap<(u64, u64), u8>;

/// The files of all roots that have a name, by it.
type State = BTreeMap<String, Files>;

/// The state after a step, and how far the disk was then.
struct Moment {
    state: State,
    ops: usize,
    /// Whether the state is promised to survive.
    promised: bool,
}

fn open(disk: Arc<Disk>, pressure: Option<Pressure>) -> Result<Core> {
    let limits = Limits::for_budget(8 << 20).under(pressure);
    Core::open(disk, OpenMode::seeded(limits))
}

/// A volume, and what its roots must have.
struct Run {
    core: Core,
    disk: Arc<Disk>,
    pressure: Option<Pressure>,
    /// The files of each root, also of those without a name.
    files: BTreeMap<u32, Files>,
    moments: Vec<Moment>,
}

impl Run {
    fn new(pressure: Option<Pressure>) -> Self {
        let made = Disk::new(Image::default());
        make_device(&made, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        let disk = Arc::new(Disk::new(made.written()));
        let core = open(disk.clone(), pressure).unwrap();
        let files = [(core.main_root(), Files::new())].into();
        let mut run = Self {
            core,
            disk,
            pressure,
            files,
            moments: Vec::new(),
        };
        run.note(true);
        run
    }

    fn note(&mut self, promised: bool) {
        let list = self.core.roots.list().into_iter();
        let named = list.filter(|(_, root)| !root.name.is_empty());
        let state = named.map(|(id, root)| (root.name, self.files[&id].clone()));
        self.moments.push(Moment {
            state: state.collect(),
            ops: self.disk.ops(),
            promised,
        });
    }

    fn id(&self, name: &str) -> u32 {
        self.core.roots.named(name).unwrap()
    }

    /// Writes a block of a file of a root.
    fn put(&mut self, root: u32, (ino, at): (u64, u64), value: u8) {
        put(&self.core, root, (ino, at), Some(value)).unwrap();
        self.files.get_mut(&root).unwrap().insert((ino, at), value);
        self.note(false);
    }

    /// Removes a block of a file of a root.
    fn remove(&mut self, root: u32, (ino, at): (u64, u64)) {
        put(&self.core, root, (ino, at), None).unwrap();
        self.files.get_mut(&root).unwrap().remove(&(ino, at));
        self.note(false);
    }

    fn fork(&mut self, from: u32, name: &str, kind: ForkKind) -> u32 {
        let files = self.files[&from].clone();
        let id = self.core.fork(from, name, kind).unwrap();
        self.files.insert(id, files);
        self.note(true);
        id
    }

    fn snapshot(&mut self, from: u32, name: &str) -> u32 {
        self.fork(from, name, ForkKind::Frozen)
    }

    /// Forks as callers do that open the branch next.
    fn branch(&mut self, from: u32, name: &str) -> u32 {
        let files = self.files[&from].clone();
        let made = self.core.fork_readable(from, name, ForkKind::Head);
        let id = made.unwrap().id();
        self.files.insert(id, files);
        self.note(true);
        id
    }

    fn publish(&mut self, base: u32, staged: u32, kept: &str, since: Option<u32>) {
        self.core
            .publish_names(
                base,
                staged,
                kept,
                crate::txn::Unchanged {
                    since,
                    retired: None,
                    ..Default::default()
                },
                || false,
            )
            .unwrap();
        self.note(true);
    }

    /// Takes the name from a root.
    fn drop_root(&mut self, id: u32) {
        let name = self.core.roots().get(id).unwrap().name;
        self.core.drop_root(id, &name).unwrap();
        self.note(true);
    }

    /// Frees what dropped roots have left.
    fn free(&mut self) {
        free_dropped(&self.core).unwrap();
        self.note(false);
    }

    fn merge(&mut self) {
        self.core.merge().unwrap();
        self.note(false);
    }

    fn sync(&mut self) {
        self.core.force_all().unwrap();
        self.note(true);
    }

    /// Opens the volume again, as after a kill.
    fn again(&mut self) {
        let disk = Arc::new(Disk::new(self.disk.written()));
        self.core = open(disk.clone(), self.pressure).unwrap();
        self.disk = disk;
        let last = self.moments.pop().unwrap();
        self.moments = vec![Moment {
            ops: 0,
            promised: true,
            ..last
        }];
    }

    /// Lets the power fail at every point since the volume was opened.
    fn survive(&self) {
        let ops = self.disk.ops();
        for cut in 0..=ops {
            for (way, image) in self.disk.images(cut).into_iter().enumerate() {
                let found = self.recover(image, cut);
                assert!(found.is_ok(), "cut {cut} of {ops}, way {way}: {found:?}");
            }
        }
    }

    fn recover(&self, image: Image, cut: usize) -> Result<(), String> {
        let disk = Arc::new(Disk::new(image));
        let core = open(disk.clone(), self.pressure).map_err(|e| format!("opening: {e}"))?;
        let found = state_of(&core)?;
        let promised = |m: &Moment| m.promised && m.ops <= cut;
        let first = self.moments.iter().rposition(promised).unwrap_or(0);
        // The step in which the power fails, and those after it that write nothing.
        let later = self.moments.iter().find(|m| m.ops >= cut);
        let until = later.map_or(usize::MAX, |m| m.ops);
        let last = self.moments.iter().rposition(|m| m.ops <= until);
        let last = last.unwrap_or(first);
        let may = &self.moments[first..=last];
        if may.iter().all(|moment| moment.state != found) {
            let newest = &self.moments[last].state;
            return Err(format!("found {found:?}, expected {newest:?} or earlier"));
        }
        let again = |core: &Core, when: &str| match state_of(core)? {
            same if same == found => Ok(()),
            other => Err(format!("{when}: {other:?} instead of {found:?}")),
        };
        core.merge().map_err(|e| format!("merge: {e}"))?;
        check_space(&core)?;
        // What was freed wrongly is used by another file now.
        let main = core.main_root();
        for n in 0..12 {
            put(&core, main, (99, n), Some(0xee)).map_err(|e| format!("more: {e}"))?;
        }
        again(&core, "after other changes")?;
        core.merge().map_err(|e| format!("second merge: {e}"))?;
        check_space(&core)?;
        free_dropped(&core).map_err(|e| format!("freeing: {e}"))?;
        again(&core, "without dropped roots")?;
        core.merge().map_err(|e| format!("third merge: {e}"))?;
        check_space(&core)?;
        drop(core);
        let core = open(disk, self.pressure).map_err(|e| format!("opening again: {e}"))?;
        again(&core, "opened again")
    }
}

/// An extent of one block.
fn extent(block: u64, birth: u64, sum: u32) -> Vec<u8> {
    let raw = RawExtent {
        block: U64::new(block),
        birth: U64::new(birth),
        len: U32::new(1),
        flags: U32::new(0),
    };
    [raw.as_bytes(), &sum.to_le_bytes()].concat()
}

/// Writes or removes a block of a file of a root, and makes the file.
fn put(core: &Core, root: u32, (ino, at): (u64, u64), value: Option<u8>) -> Result<()> {
    let items = core.open_root(root)?;
    let reservation = core.reserve(&items, Need::items(2, 512, 1))?;
    let new = match value {
        Some(value) => {
            let run = core.space.alloc(0, 1, Funding::New(Class::Ordinary))?;
            let run = run.ok_or(cairnfs_disk::error::Error::NoSpace)?;
            let bytes = [value; BLOCK_SIZE];
            core.storage.write(run.start * BLOCK, &bytes)?;
            Some((run, crc(&bytes)))
        }
        None => None,
    };
    let stamp = DataStamp::new(core.storage.stamp());
    let inode = items.table().get_or_new(ino);
    let mut state = inode.write();
    items.load(&inode, &mut state)?;
    let old = items.item(&inode, &state, Kind::Extent, at)?;
    let mut commit = match core.commit(&items) {
        Ok(commit) => commit,
        Err(stale) => {
            if let Some((run, _)) = new {
                core.space.release(&mut vec![run], false)?;
            }
            return Err(stale);
        }
    };
    if state.attrs.is_none() {
        state.attrs = Some(Attrs::new(0o100_644, (0, 0), 0, 1, core.now()));
        commit.put_inode(&inode, &mut state);
    }
    let below = old.as_ref().is_some_and(|old| old.below);
    if let Some(old) = &old {
        let (raw, _) = decode_extent(&old.value).unwrap();
        let run = crate::space::BlockRun::new(raw.block.get(), 1);
        commit.free(run, raw.birth.get());
    }
    match new {
        Some((run, sum)) => {
            let runs = [(run.start, vec![sum])].into_iter();
            commit.needs_data(&inode, &stamp, runs);
            let value = extent(run.start, commit.seq(), sum);
            commit.put(&inode, &mut state, Kind::Extent, at, &value, below);
        }
        None if old.is_some() => {
            commit.delete(&inode, &mut state, Kind::Extent, at, &[], below);
        }
        None => {}
    }
    let receipt = commit.finish(reservation);
    inode.set_ready(true);
    drop(state);
    core.throttle(receipt)
}

/// The files of a root, except those that only the test of recovery makes.
fn files_of(core: &Core, items: &ItemStore) -> Result<Files, String> {
    let mut files = Files::new();
    for ino in cases::INODES {
        let inode = items.table().get_or_new(ino);
        let mut state = inode.write();
        let text =
            |e: cairnfs_disk::error::Error| format!("root {}, inode {ino}: {e}", items.root());
        items.load(&inode, &mut state).map_err(text)?;
        for at in cases::BLOCKS {
            let item = items.item(&inode, &state, Kind::Extent, at).map_err(text)?;
            let Some(item) = item else { continue };
            let (raw, sums) = decode_extent(&item.value)?;
            let mut bytes = vec![0; BLOCK_SIZE];
            let offset = raw.block.get() * BLOCK;
            core.storage.read(offset, &mut bytes).map_err(text)?;
            if sums[0].get() != crc(&bytes) {
                return Err(format!(
                    "root {}: block {at} of {ino} differs",
                    items.root()
                ));
            }
            files.insert((ino, at), bytes[0]);
        }
    }
    Ok(files)
}

fn free_dropped(core: &Core) -> Result<()> {
    while core.drop_step()? {}
    Ok(())
}

/// The files of all roots with a name.
fn state_of(core: &Core) -> Result<State, String> {
    let mut state = State::new();
    let read = |(_, root): &(u32, Root)| root.state != RootState::Dropping;
    for (id, root) in core.roots.list().into_iter().filter(read) {
        let text = |e: cairnfs_disk::error::Error| format!("root {id}: {e}");
        let items = core.open_root(id).map_err(text)?;
        let files = files_of(core, &items)?;
        if !root.name.is_empty() {
            state.insert(root.name, files);
        }
    }
    Ok(state)
}

/// The nodes and blocks of a tree.
fn blocks_of(core: &Core, tree: &Tree, used: &mut BTreeSet<u64>) -> Result<()> {
    let mut add = |start: u64, len: u64| used.extend(start..start + len);
    let mut extents = Vec::new();
    core.index
        .scan(tree, &Key::first_of(0), &mut |key, value| {
            if key.kind == Kind::Extent {
                let (raw, _) = decode_extent(value).unwrap();
                extents.push((raw.block.get(), u64::from(raw.len.get())));
            }
            Ok(true)
        })?;
    extents.into_iter().for_each(|(start, len)| add(start, len));
    let nothing = Tree::default();
    let mut walk = core.index.differences(tree, &nothing)?;
    walk.report_old_only(|old| {
        if let OldOnly::Node(ptr) = old {
            add(ptr.block.get(), NODE_BLOCKS);
        }
        Ok(())
    });
    while walk.next_difference()?.is_some() {}
    Ok(())
}

/// Checks that all blocks are free or in the tree of a root, and that nobody has log space. Nothing
/// waits for a merge.
fn check_space(core: &Core) -> Result<(), String> {
    let mut used = BTreeSet::new();
    let text = |e: cairnfs_disk::error::Error| format!("space: {e}");
    let newest = core.superblocks.newest();
    let copies = newest.copy_units();
    used.extend(copies.flat_map(|unit| unit..unit + NODE_BLOCKS));
    blocks_of(core, &volume_tree(&newest), &mut used).map_err(text)?;
    for (id, _) in core.roots.list() {
        let root = core.roots.merged(id).ok_or("a root without a tree")?;
        blocks_of(core, &tree_of(&root.tree), &mut used).map_err(text)?;
    }
    core.reservations.sweep();
    let ring = core.journal.ring();
    let in_log = core.journal.end().lsn - ring.tail();
    let log = [
        ring.free(),
        Ring::new(core.geometry.log_blocks, 0, in_log).free(),
    ];
    if log[0] != log[1] {
        return Err(format!("{} bytes of log are free of {}", log[0], log[1]));
    }
    let all = core.geometry.data_blocks();
    let expected = all - used.len() as u64;
    match core.space.free_blocks() {
        free if free == expected => Ok(()),
        free => Err(format!("{free} blocks are free, expected {expected}")),
    }
}

/// Root items of the volume tree, for assertions about what the index has.
fn has_item(core: &Core, id: u32) -> bool {
    let volume = volume_tree(&core.superblocks.newest());
    assert_ne!(id, VOLUME_ROOT);
    core.index.get(&volume, &root_key(id)).unwrap().is_some()
}

fn fsync(core: &Core, root: u32, ino: u64) {
    let items = core.open_root(root).unwrap();
    let request = FsyncRequest {
        ino,
        data_only: false,
    };
    core.force_inodes(&items, &[request]).unwrap();
}
