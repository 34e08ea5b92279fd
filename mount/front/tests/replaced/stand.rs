//! A mount without a kernel, whose branch is replaced, and what the kernel would be told.

use std::path::Path;
use std::sync::{Arc, Mutex};

use cairnfs::{PublishOptions, Volume};
use cairnfs_fuse::convert::Refusal;
use cairnfs_fuse::ops::{Caller, Found, Kernel, Ops};
use cairnfs_fuse::options::WriteMode;
use cairnfs_fuse::status::Transport;
use cairnfs_transport::Asker;

pub const ROOT: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 0,
};

pub const STALE: Refusal = Refusal(libc::ESTALE);

/// Inode numbers are smaller.
pub const APART: u64 = 1 << 63;

/// What a kernel is told.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Told {
    Name(u64, String),
    Attributes(u64),
    Pages(u64),
}

struct Recorder(Arc<Mutex<Vec<Told>>>);

impl Recorder {
    fn told(&self, what: Told) {
        self.0.lock().unwrap().push(what);
    }
}

impl Kernel for Recorder {
    fn forget_attributes(&self, node: u64) {
        self.told(Told::Attributes(node));
    }
    fn forget_name(&self, dir: u64, name: &[u8]) {
        self.told(Told::Name(dir, String::from_utf8_lossy(name).into_owned()));
    }
    fn fetch_dirty(&self, node: u64, _offset: u64) -> bool {
        self.told(Told::Pages(node));
        true
    }
    fn is_quiet(&self, _asker: Asker) -> bool {
        true
    }
    fn transport(&self) -> Transport {
        Transport::default()
    }
}

/// A volume whose branch `main` is mounted, and another handle to it.
pub struct Stand {
    pub volume: Volume,
    pub ops: Ops,
    pub told: Arc<Mutex<Vec<Told>>>,
}

impl Stand {
    pub fn new(fill: impl FnOnce(&Volume)) -> Self {
        Self::with(WriteMode::Through, fill)
    }

    pub fn with(write: WriteMode, fill: impl FnOnce(&Volume)) -> Self {
        let main = Volume::in_memory(64 << 20).unwrap();
        fill(&main);
        // Only the mount has the branch open.
        let volume = main.branch("aside").unwrap();
        drop(main);
        let fs = volume.file_system().open_named("main").unwrap();
        let ops = Ops::new(fs, Path::new("test"), write);
        let told = Arc::default();
        ops.connect(Box::new(Recorder(Arc::clone(&told))));
        Self { volume, ops, told }
    }

    pub fn look_up(&self, dir: u64, name: &str) -> Option<Found> {
        self.ops.lookup(dir, name.as_bytes()).unwrap()
    }

    /// The node of a path; the kernel has one reference to each part of it more.
    pub fn node(&self, path: &str) -> u64 {
        let look_up = |dir, name| self.look_up(dir, name).unwrap().node;
        path.split('/').fold(1, look_up)
    }

    pub fn read(&self, node: u64) -> String {
        let mut buf = vec![0; 1 << 16];
        let len = self.ops.read(node, 0, &mut buf).unwrap();
        String::from_utf8(buf[..len].to_vec()).unwrap()
    }

    pub fn write(&self, node: u64, text: &str) -> Result<usize, Refusal> {
        self.ops.write(node, 0, text.as_bytes(), None)
    }

    /// The name of the only state that a publish has replaced.
    pub fn replaced(&self) -> String {
        let roots = self.volume.roots().into_iter();
        let names = roots.filter_map(|root| root.name);
        let kept: Vec<String> = names
            .filter(|name| name.starts_with("main.undo-"))
            .collect();
        let [kept] = &kept[..] else {
            panic!("{kept:?}");
        };
        kept.clone()
    }

    /// A branch of the mounted one, to be published.
    pub fn work(&self) -> Volume {
        let main = self.volume.open_branch("main").unwrap();
        main.branch("work").unwrap()
    }

    /// Publishes `work`; returns what the kernel was told, and whether there was a merge.
    pub fn publish(&self, work: Volume) -> (Vec<Told>, bool) {
        drop(work);
        let options = PublishOptions::default();
        let publish = || self.volume.publish("work", &options).unwrap();
        let (published, followed) = self.ops.replacing(publish, |_| true);
        followed.unwrap();
        assert!(published.conflicts.is_empty() && published.kept.is_some());
        (
            std::mem::take(&mut self.told.lock().unwrap()),
            published.merged,
        )
    }

    pub fn restore(&self, reference: &str) -> Vec<Told> {
        let restore = || self.volume.restore(reference, "main", &[]).unwrap();
        let (_, followed) = self.ops.replacing(restore, |_| true);
        followed.unwrap();
        std::mem::take(&mut self.told.lock().unwrap())
    }

    pub fn dirs(names: &[(u64, &str)], dirs: &[u64]) -> Vec<Told> {
        let names = names
            .iter()
            .map(|(dir, name)| Told::Name(*dir, (*name).into()));
        let dirs = dirs.iter().map(|dir| Told::Pages(*dir));
        names.chain(dirs).collect()
    }
}

/// An access list with a user, and these rights of the group.
pub fn access_list(group: u16) -> Vec<u8> {
    let entry = |tag: u16, perm: u16, id: u32| {
        [
            &tag.to_le_bytes()[..],
            &perm.to_le_bytes(),
            &id.to_le_bytes(),
        ]
        .concat()
    };
    let mut bytes = 2u32.to_le_bytes().to_vec();
    bytes.extend(entry(1, 6, u32::MAX));
    bytes.extend(entry(2, 6, 1000));
    bytes.extend(entry(4, group, u32::MAX));
    bytes.extend(entry(0x10, 6, u32::MAX));
    bytes.extend(entry(0x20, 0, u32::MAX));
    bytes
}
