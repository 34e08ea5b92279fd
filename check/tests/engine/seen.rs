//! A volume as the offline check and as a program sees it.

use cairnfs::fs::{FileSystem, Options, Pressure};
use cairnfs_check::{CheckOptions, check};
use cairnfs_disk::device::Device;
use cairnfs_disk::types::{Attr, FileKind};

pub fn assert_sound(device: &dyn Device, when: &str) {
    let report = check(device, &CheckOptions { data: true }, &mut |_| {}).unwrap();
    assert!(
        report.is_clean(),
        "{when}: {:#?} {:?}",
        report.findings,
        report.unchecked
    );
}

/// A path, its attributes, its contents, and its extended attributes.
pub type Seen = (String, Attr, Vec<u8>, Vec<Vec<u8>>);

/// Everything that a program can see of a volume, by path.
pub fn tree(fs: &FileSystem) -> Vec<Seen> {
    let mut seen = Vec::new();
    let mut todo = vec![(String::new(), 1)];
    while let Some((path, ino)) = todo.pop() {
        let attr = fs.getattr(ino).unwrap();
        let contents = match attr.kind {
            FileKind::File => {
                let mut bytes = vec![0; attr.size as usize];
                assert_eq!(fs.read(ino, 0, &mut bytes).unwrap(), bytes.len());
                bytes
            }
            FileKind::Symlink => fs.readlink(ino).unwrap(),
            _ => Vec::new(),
        };
        let names = fs.listxattr(ino).unwrap();
        let mut xattrs: Vec<Vec<u8>> = names
            .split(|b| *b == 0)
            .filter(|n| !n.is_empty())
            .map(|n| [n, b"=", &fs.getxattr(ino, n).unwrap()].concat())
            .collect();
        xattrs.sort();
        if attr.kind == FileKind::Directory {
            let mut cookie = 0;
            fs.readdir(ino, 0, &mut |e| {
                assert!(e.cookie > cookie);
                cookie = e.cookie;
                if !e.is_dots() {
                    let name = String::from_utf8_lossy(e.name);
                    todo.push((format!("{path}/{name}"), e.ino));
                }
                true
            })
            .unwrap();
        }
        // The block count of unwritten data is known only after writeback.
        let attr = Attr { blocks: 0, ..attr };
        seen.push((path, attr, contents, xattrs));
    }
    seen.sort_by(|a, b| a.0.cmp(&b.0));
    seen
}

pub fn options(workers: bool) -> Options {
    Options {
        cache_budget: 8 << 20,
        durability_interval: None,
        workers,
        ..Options::default()
    }
}

/// Options of a random history: for odd seeds, merges in small steps or parts, and replay in passes.
pub fn pressed_options(seed: u64) -> Options {
    let replay = 4000 * (seed as i64 % 3);
    Options {
        pressure: match seed % 4 {
            1 => Some(Pressure::steps(replay, 1 + seed % 5)),
            3 => Some(Pressure::parts(replay, 1 + seed % 5)),
            _ => None,
        },
        ..options(false)
    }
}
