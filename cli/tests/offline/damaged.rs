//! Damage at random places of a volume with known files, and what the commands then say. There are
//! three verdicts only: *right*, all files are as they were; *told*, what is missing or different is
//! named, by its path or that of a directory above; *refused*, with a next step that works. Everything
//! else is a fault.
//!
//! `CAIRNFS_DAMAGE_SEEDS` is the number of seeds, `CAIRNFS_DAMAGE_FROM` the first one.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::Output;
use std::sync::atomic::{AtomicU64, Ordering};

use cairnfs::fs::{FileSystem, Options};
use cairnfs_disk::format::geometry::LOG_START;
use cairnfs_disk::format::{BLOCK_SIZE, NODE_BLOCKS};
use cairnfs_disk::types::Creds;
use cairnfs_mutate::Image;
use cairnfs_mutate::layout::Layout;
use cairnfs_mutate::random::Random;
use cairnfs_tier::size_from;

use crate::place::Place;

const SEEDS: [u64; 2] = [24, 60];

/// What is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// The volume's first bytes: of one superblock, of both, and of the log behind them.
    Front,
    /// A block of a record of the log, of a volume that was not closed.
    Log,
    /// A node of the index.
    Node,
    /// A block of the group table or a bitmap.
    Space,
    /// A block of a file's data.
    Data,
    /// The image is cut off.
    Cut,
}

const KINDS: [Kind; 6] = [
    Kind::Front,
    Kind::Log,
    Kind::Node,
    Kind::Space,
    Kind::Data,
    Kind::Cut,
];

/// What a command must not do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// Something is missing or different, and is not named.
    Silent,
    /// It refuses, and names no next step, or one that fails.
    NoWayOut,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Right,
    Told,
    Refused,
}

/// A volume and what is in it.
struct Volume {
    bytes: Vec<u8>,
    layout: Layout,
    files: BTreeMap<String, Vec<u8>>,
}

impl Volume {
    fn new(bytes: Vec<u8>, files: BTreeMap<String, Vec<u8>>) -> Self {
        let layout = Layout::of(&Image::new(bytes.clone().into()));
        Self {
            bytes,
            layout,
            files,
        }
    }
}

/// The volume after it was closed, and the same after more files were synced and the power failed.
struct Volumes {
    closed: Volume,
    killed: Volume,
}

/// Contents that differ from file to file and from block to block.
fn contents(random: &mut Random, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    random.fill(&mut bytes);
    bytes
}

fn volumes() -> Volumes {
    let p = Place::new();
    let mut random = Random::new(1);
    let mut files = BTreeMap::new();
    for n in 0..160 {
        let len = match n % 8 {
            0 => 30_000,
            1 => 4096,
            _ => 1 + n * 9,
        };
        let path = format!("dir{}/sub{}/file{n:03}", n % 4, n % 3);
        files.insert(path, contents(&mut random, len));
    }
    for (path, contents) in &files {
        let path = p.path("in").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    }
    p.ok(&["mkfs", "-q", "--size", "16M", "v.img"]);
    p.ok(&["import", "-q", "in", "v.img"]);
    let closed = Volume::new(fs::read(p.path("v.img")).unwrap(), files.clone());
    let options = Options {
        workers: false,
        ..Options::default()
    };
    let open = FileSystem::open(&p.path("v.img"), &options).unwrap();
    let new = open.mkdir(1, b"new", 0o755, Creds::default()).unwrap().ino;
    for n in 0..12 {
        let (name, contents) = (format!("file{n}"), contents(&mut random, 100 + n * 700));
        let made = open.mknod(new, name.as_bytes(), 0o100_644, 0, Creds::default());
        let ino = made.unwrap().ino;
        open.write(ino, 0, &contents, false).unwrap();
        files.insert(format!("new/{name}"), contents);
        open.sync().unwrap();
    }
    // Until it is stated that the last record is durable, its rot can be taken for a power cut.
    open.sync_stated().unwrap();
    let killed = Volume::new(fs::read(p.path("v.img")).unwrap(), files);
    Volumes { closed, killed }
}

/// Damages a copy of the volume; returns where.
fn damage(volume: &Volume, kind: Kind, random: &mut Random) -> (Vec<u8>, String) {
    let (layout, mut bytes) = (&volume.layout, volume.bytes.clone());
    let geometry = layout.geometry;
    let (block, blocks) = match kind {
        Kind::Front => (0, 1 + random.below(2 * LOG_START as usize) as u64),
        Kind::Log => {
            let record = random.pick(&layout.records);
            let at = random.below(record.header.blocks() as usize) as u64;
            (layout.log_block(record.lsn + at), 1)
        }
        Kind::Node => {
            let nodes: Vec<u64> = layout.nodes.keys().copied().collect();
            (*random.pick(&nodes), NODE_BLOCKS)
        }
        Kind::Space => {
            let (first, end) = (LOG_START + geometry.log_blocks, geometry.data_start());
            (first + random.below((end - first) as usize) as u64, 1)
        }
        Kind::Data => {
            let (first, len) = *random.pick(&layout.data);
            (first + random.below(len as usize) as u64, 1)
        }
        Kind::Cut => {
            let left = random.below(bytes.len());
            bytes.truncate(left);
            return (bytes, format!("{left} bytes are left"));
        }
    };
    let at = block as usize * BLOCK_SIZE;
    let place = &mut bytes[at..at + blocks as usize * BLOCK_SIZE];
    if random.once_in(3) {
        place.fill(0)
    } else {
        random.fill(place)
    }
    (bytes, format!("blocks {block} to {}", block + blocks - 1))
}

/// The texts of a command.
fn said(out: &Output) -> String {
    let texts = [&out.stderr, &out.stdout].map(|text| String::from_utf8_lossy(text).into_owned());
    texts.concat()
}

/// Runs a command, which must neither panic nor be killed.
fn run(p: &Place, args: &[&str]) -> (u8, Output) {
    let out = p.run(args);
    let code = out.status.code().and_then(|code| u8::try_from(code).ok());
    let code = code.filter(|code| *code < 100 && !said(&out).contains("panicked"));
    assert!(code.is_some(), "{args:?}: {}: {}", out.status, said(&out));
    (code.unwrap(), out)
}

/// The files that are not as they were; those that are missing, only if they `must` be there.
fn wrong<'f>(files: &'f BTreeMap<String, Vec<u8>>, dir: &Path, must: bool) -> Vec<&'f str> {
    let is_wrong = |(path, contents): &(&'f String, &Vec<u8>)| match fs::read(dir.join(path)) {
        Ok(found) => found != **contents,
        Err(_) => must,
    };
    let wrong = files.iter().filter(is_wrong);
    wrong.map(|(path, _)| path.as_str()).collect()
}

/// Whether a message names a file, or a directory above it.
fn names(text: &str, path: &str) -> bool {
    let above = Path::new(path).ancestors().filter_map(Path::to_str);
    above
        .map(|path| format!("v.img:/{path}"))
        .any(|place| text.contains(&format!("{place}:")))
}

/// The commands that a message advises, without "cairnfs", with a directory to save to.
fn advised(text: &str) -> Vec<Vec<String>> {
    let ends = [';', ',', '`', '\n'];
    let commands = text.split("cairnfs export ").skip(1);
    let words = commands.map(|rest| {
        let line = rest.split(ends).next().unwrap_or_default();
        let words = line.split_whitespace().map(|word| match word {
            "VOLUME" => "v.img",
            "DIR" => "saved",
            word => word,
        });
        ["export"]
            .into_iter()
            .chain(words)
            .map(str::to_owned)
            .collect()
    });
    words.collect()
}

/// Follows the first next step that a refusal names. What it saves must be right or named.
fn follow(p: &Place, volume: &Volume, text: &str) -> Result<Verdict, Fault> {
    // Nothing can be saved then, which is a way out of searching: by what is left of the volume, or by
    // the list of its trees and the one before.
    let nothing = ["too little to find any file", "no older state is left"];
    if nothing.iter().any(|why| text.contains(why)) {
        return Ok(Verdict::Refused);
    }
    let commands = advised(text);
    let command = commands.first().ok_or(Fault::NoWayOut)?;
    let args: Vec<&str> = command.iter().map(String::as_str).collect();
    let (_, out) = run(p, &args);
    let saved = p.path("saved");
    if !saved.is_dir() {
        return Err(Fault::NoWayOut);
    }
    let text = said(&out);
    let wrong = wrong(&volume.files, &saved, false);
    if wrong.iter().all(|path| names(&text, path)) {
        Ok(Verdict::Refused)
    } else {
        Err(Fault::Silent)
    }
}

/// Reads everything in every way, and finds the verdict.
fn judge(p: &Place, volume: &Volume, random: &mut Random) -> Result<Verdict, Fault> {
    let (checked, check) = run(p, &["check", "--data", "v.img"]);
    run(p, &["info", "v.img"]);
    let (code, export) = run(p, &["export", "-q", "v.img", "out"]);
    let text = said(&export);
    let wrong = wrong(&volume.files, &p.path("out"), true);
    let unnamed = |path: &&str| !names(&text, path);
    let verdict = match code {
        0 if wrong.is_empty() => Verdict::Right,
        0 => return Err(Fault::Silent),
        _ if !wrong.iter().any(unnamed) => Verdict::Told,
        _ if p.path("out").is_dir() => return Err(Fault::Silent),
        _ => follow(p, volume, &(text + &said(&check)))?,
    };
    if verdict != Verdict::Right && checked == 0 {
        return Err(Fault::Silent);
    }
    let (listed, ls) = run(p, &["ls", "-R", "v.img:/"]);
    let list = String::from_utf8_lossy(&ls.stdout).into_owned();
    let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    if listed == 0 && !volume.files.keys().all(|path| list.contains(&name(path))) {
        return Err(Fault::Silent);
    }
    let paths: Vec<&String> = volume.files.keys().collect();
    for _ in 0..3 {
        let path = *random.pick(&paths);
        let (code, cat) = run(p, &["cat", &format!("v.img:/{path}")]);
        let is_right = cat.stdout == volume.files[path];
        let is_told = code != 0 && said(&cat).contains("v.img");
        if !is_right && !is_told {
            return Err(Fault::Silent);
        }
    }
    Ok(verdict)
}

/// The seeds of a test that has so many in the short and in the deep tier, unless others are asked
/// for.
pub fn seeds([short, deep]: [u64; 2]) -> Range<u64> {
    let from = size_from("CAIRNFS_DAMAGE_FROM", 0, 0);
    from..from + size_from("CAIRNFS_DAMAGE_SEEDS", short, deep)
}

#[test]
fn damage_anywhere_is_survived_told_or_refused_with_a_way_out() {
    let seeds = seeds(SEEDS);
    let (volumes, next) = (volumes(), AtomicU64::new(seeds.start));
    let work = || {
        let (mut verdicts, mut faults) = (BTreeMap::new(), Vec::new());
        let next =
            || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|seed| seeds.contains(seed));
        while let Some(seed) = next() {
            let mut random = Random::new(seed);
            let kind = KINDS[(seed % KINDS.len() as u64) as usize];
            let volume = if kind == Kind::Log || random.once_in(2) {
                &volumes.killed
            } else {
                &volumes.closed
            };
            let (bytes, place) = damage(volume, kind, &mut random);
            let p = Place::new();
            fs::write(p.path("v.img"), bytes).unwrap();
            match judge(&p, volume, &mut random) {
                Ok(verdict) => *verdicts.entry((kind, verdict)).or_insert(0) += 1,
                Err(fault) => faults.push((kind, fault, format!("seed {seed}: {place}"))),
            }
        }
        (verdicts, faults)
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let ended: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .collect()
    });
    let mut unexpected = Vec::new();
    for (verdicts, faults) in ended {
        println!("{verdicts:?}");
        let faults = faults.into_iter();
        unexpected.extend(faults.map(|(kind, fault, what)| format!("{kind:?}: {fault:?}: {what}")));
    }
    assert!(unexpected.is_empty(), "{unexpected:#?}");
}
