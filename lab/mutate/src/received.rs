//! Streams that a small volume receives as snapshots, and what must hold of it afterwards.
//!
//! The volume has the snapshots that the changes of sound streams build on. Some of these come from a
//! volume that has itself received a part of its files. Streams are arbitrary bytes, or the frames of sound ones changed, with checksums that are valid again.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use cairnfs::fs::{FileSystem, Options};
use cairnfs::{Volume, VolumeOptions};
use cairnfs_check::{CheckOptions, check};
use cairnfs_disk::device::MemoryDevice;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::MAX_NAME;
use cairnfs_disk::format::frames::{Chain, FRAME_HEADER, PREAMBLE};
use cairnfs_disk::format::stream::{STREAM_VERSION, STREAM_VERSION_ORIGINS};
use cairnfs_disk::types::FileKind;

use crate::base::SIZE;
use crate::image::{Bounded, Image, copy};
use crate::random::Random;

/// The kind of the last frame of a stream.
const END: u8 = 11;
/// The kind of a frame that tells where files come from.
const ORIGIN: u8 = 12;
/// Name of the snapshot that is received.
const NAME: &str = "received";
/// Values that numbers in records are changed to.
const NUMBERS: [u64; 9] = [0, 1, 2, 16, 17, 18, 1 << 40, i64::MAX as u64, u64::MAX];
/// Names that no entry can have, and one that entries have.
const NAMES: [&[u8]; 8] = [
    b"",
    b".",
    b"..",
    b"a/b",
    b"/",
    b"a\0b",
    b"file",
    &[b'n'; 256],
];

/// A frame: its kind and its payload.
pub type Frame = (u8, Vec<u8>);

/// A volume that receives, and sound streams that it can receive.
pub struct Ground {
    image: Image,
    /// A whole tree, and the changes from a snapshot that the volume has; the same of the volume that
    /// sends on.
    pub streams: [Vec<u8>; 4],
    roots: usize,
}

fn options() -> VolumeOptions {
    let options = Volume::options().cache_budget(2 << 20);
    options.durability_interval(None)
}

fn fill(volume: &Volume) -> Result<()> {
    volume.create_dir("dir")?;
    volume.create_dir("dir/inner")?;
    volume.write("file", "contents of a file")?;
    volume.write("dir/large", vec![7; 20_000])?;
    volume.hard_link("file", "dir/hard")?;
    volume.symlink("../file", "dir/link")?;
    volume.snapshot("base")
}

fn change(volume: &Volume) -> Result<()> {
    volume.rename("dir/inner", "moved")?;
    volume.write("moved/new", "a new file")?;
    volume.remove_file("dir/link")?;
    volume.write("dir/large", vec![8; 9_000])?;
    volume.create_dir("other")?;
    volume.rename("dir", "other/dir")?;
    volume.snapshot("later")
}

/// A volume receives the stream of a snapshot and changes a branch of it: a stream of a first state, and
/// of a second one all, and the changes from the first.
fn relay(base: &[u8]) -> Result<(Vec<u8>, [Vec<u8>; 2])> {
    let volume = options().size(SIZE).in_memory()?;
    volume.receive(base, Some("base"))?;
    let work = volume.open_branch("base")?.branch("work")?;
    work.write("own", "made where it was received")?;
    work.write("dir/large", vec![9; 30_000])?;
    work.snapshot("relayed")?;
    change(&work)?;
    let sent = |from| volume.send(Vec::new(), "later", from);
    let first = volume.send(Vec::new(), "relayed", None)?;
    Ok((first, [sent(None)?, sent(Some("relayed"))?]))
}

/// Makes the volume and the streams.
pub fn ground() -> Ground {
    let sender = options().size(SIZE).in_memory().unwrap();
    fill(&sender).unwrap();
    let base = sender.send(Vec::new(), "base", None).unwrap();
    change(&sender).unwrap();
    let whole = sender.send(Vec::new(), "later", None).unwrap();
    let changes = sender.send(Vec::new(), "later", Some("base")).unwrap();
    let (relayed, [sent_on, changed_on]) = relay(&base).unwrap();
    let device = Arc::new(MemoryDevice::new(SIZE));
    let receiver = options().create_device(device.clone()).unwrap();
    receiver.receive(&base[..], Some("base")).unwrap();
    receiver.receive(&relayed[..], Some("relayed")).unwrap();
    receiver.close().unwrap();
    let image = copy(&*device);
    let roots = reopened(&image).unwrap();
    Ground {
        image,
        streams: [whole, changes, sent_on, changed_on],
        roots,
    }
}

/// Number of roots after an opening, once all dropped ones are gone.
fn reopened(image: &Image) -> Result<usize> {
    let options = Options {
        durability_interval: None,
        workers: false,
        ..Options::default()
    };
    let fs = FileSystem::open_device(Bounded::new(image), &options)?;
    while fs.drop_step()? {}
    Ok(fs.roots().len())
}

/// The frames of a sound stream, without the last one.
pub fn frames(stream: &[u8]) -> Vec<Frame> {
    let mut rest = &stream[PREAMBLE..];
    let mut frames = Vec::new();
    while let Some((header, behind)) = rest.split_first_chunk::<FRAME_HEADER>() {
        let len = u32::from_le_bytes(*header.first_chunk().unwrap());
        let (payload, behind) = behind.split_at(len as usize);
        frames.push((header[4], payload.to_vec()));
        rest = behind;
    }
    frames.retain(|(kind, _)| *kind != END);
    frames
}

/// The stream of these frames, with valid checksums and a last frame, of the version that they need.
pub fn sealed(frames: &[Frame]) -> Vec<u8> {
    let (preamble, mut chain) = Chain::begin(if frames.iter().any(|(kind, _)| *kind == ORIGIN) {
        STREAM_VERSION_ORIGINS
    } else {
        STREAM_VERSION
    });
    let mut bytes = preamble.to_vec();
    for (kind, payload) in frames {
        chain.seal(*kind, payload, &mut bytes);
    }
    let end = chain.end();
    chain.frame(&end, &mut bytes).unwrap();
    bytes
}

/// Changes one frame, or the order of the frames behind the first.
pub fn mutate(frames: &mut Vec<Frame>, random: &mut Random) {
    let (i, j) = (random.below(frames.len()), random.below(frames.len()));
    match random.below(8) {
        0 => drop(frames.remove(i)),
        1 => frames.insert(j, frames[i].clone()),
        2 => frames.swap(i, j),
        3 => frames[i].0 = random.below(13) as u8,
        4 => {
            let (kind, payload) = &mut frames[i];
            // The name is behind two numbers.
            if matches!(kind, 8 | 9) && payload.len() >= 16 {
                payload.truncate(16);
                payload.extend_from_slice(NAMES[random.below(NAMES.len())]);
            }
        }
        // The number of another inode: of a file for a directory, of a parent for a child.
        5 if frames[j].1.len() >= 8 && frames[i].1.len() >= 16 => {
            let other = frames[j].1[..8].to_vec();
            let at = 8 * random.below(2);
            frames[i].1[at..at + 8].copy_from_slice(&other);
        }
        6 if frames[i].1.len() >= 8 => {
            let payload = &mut frames[i].1;
            let at = 8 * random.below(payload.len() / 8);
            let number = *random.pick(&NUMBERS);
            payload[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        _ if !frames[i].1.is_empty() => {
            let payload = &mut frames[i].1;
            let at = random.below(payload.len());
            payload[at] ^= 1 << random.below(8);
        }
        _ => {}
    }
    if frames.is_empty() {
        frames.push((1, vec![0; 40]));
    }
}

/// Checks all names of a snapshot.
fn names(volume: &Volume) -> std::result::Result<(), String> {
    let mut todo = vec![PathBuf::from("/")];
    let mut levels = 0;
    while let Some(dir) = todo.pop() {
        levels += 1;
        if levels > 10_000 {
            return Err("directories without end".into());
        }
        let fail = |e: Error| format!("{dir:?}: {e}");
        let mut seen = BTreeSet::new();
        for entry in volume.read_dir(&dir).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let name = entry.file_name().into_encoded_bytes();
            let fits = (1..=MAX_NAME).contains(&name.len()) && name != b"." && name != b"..";
            if !fits || name.iter().any(|b| matches!(b, 0 | b'/')) {
                return Err(format!("{dir:?}: name {name:?}"));
            }
            if !seen.insert(name) {
                return Err(format!("{dir:?}: a name twice"));
            }
            if entry.file_type().map_err(fail)? == FileKind::Directory {
                todo.push(dir.join(entry.file_name()));
            }
        }
    }
    Ok(())
}

/// Receives a stream. `Ok` tells whether it was accepted.
///
/// # Errors
/// What is wrong with the volume after that, or an error that a stream cannot cause.
pub fn survives(ground: &Ground, bytes: &[u8]) -> std::result::Result<bool, String> {
    let device = Bounded::new(&ground.image);
    let volume = options().open_device(device.clone());
    let volume = volume.map_err(|e| format!("opening: {e}"))?;
    let received = volume.receive(bytes, Some(NAME));
    match &received {
        Ok(_) => {
            let snapshot = volume.open_branch(NAME);
            names(&snapshot.map_err(|e| format!("opening what was received: {e}"))?)?;
        }
        Err(Error::Stream(_) | Error::NoBase { .. } | Error::NoSpace) => {}
        Err(e) => return Err(format!("receiving: {e}")),
    }
    volume.close().map_err(|e| format!("closing: {e}"))?;
    let image = device.image();
    let report = check(
        &*Bounded::new(&image),
        &CheckOptions { data: true },
        &mut |_| {},
    );
    let report = report.map_err(|e| format!("the check fails: {e}"))?;
    if !report.is_clean() {
        return Err(format!("after receiving: {:?}", report.findings));
    }
    let roots = reopened(&image).map_err(|e| format!("opening again: {e}"))?;
    let more = usize::from(received.is_ok());
    if roots != ground.roots + more {
        let (had, error) = (ground.roots, received.err());
        return Err(format!(
            "{roots} roots instead of {had} + {more} ({error:?})"
        ));
    }
    Ok(more > 0)
}
