//! A process that puts objects is killed in the middle: each object is whole or absent, and what was
//! acknowledged is there.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use cairnfs::Volume;
use cairnfs_object_store::CairnStore;
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload};

const CHILD: &str = "CAIRNFS_TEST_CHILD";
const THREADS: u32 = 4;
/// Objects that each thread replaces in turn.
const OBJECTS: u32 = 5;

/// The bytes of a version of an object: their number and pattern follow from both.
fn contents(object: u32, version: u32) -> Vec<u8> {
    let seed = u64::from(object) << 32 | u64::from(version);
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let len = 8 + state as usize % (1 << (6 + state % 14));
    let mut bytes = Vec::with_capacity(len + 8);
    bytes.extend(object.to_le_bytes());
    bytes.extend(version.to_le_bytes());
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes
}

fn location(object: u32) -> Path {
    Path::parse(format!("dir/{}/{object}", object % 3)).unwrap()
}

/// Puts versions without end, and prints each that is acknowledged.
async fn put_until_killed(store: CairnStore, thread: u32) {
    for version in 1.. {
        let object = thread * OBJECTS + version % OBJECTS;
        let bytes = contents(object, version);
        let location = location(object);
        if version % 4 == 0 {
            let mut upload = store.put_multipart(&location).await.unwrap();
            for part in bytes.chunks(10_000) {
                let part = PutPayload::from(part.to_vec());
                upload.put_part(part).await.unwrap();
            }
            upload.complete().await.unwrap();
        } else {
            store.put(&location, bytes.into()).await.unwrap();
        }
        let mut out = std::io::stdout().lock();
        writeln!(out, "put {object} {version}").unwrap();
        out.flush().unwrap();
    }
}

/// The child: does nothing unless the other test starts it.
#[test]
fn child() {
    let Some(image) = std::env::var_os(CHILD) else {
        return;
    };
    let store = CairnStore::new(Volume::open(image).unwrap()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let tasks = (0..THREADS).map(|t| tokio::spawn(put_until_killed(store.clone(), t)));
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
    });
}

/// Checks all objects against what was acknowledged.
async fn check(store: &CairnStore, acknowledged: &HashMap<u32, u32>) {
    let mut found = HashMap::new();
    let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
    for meta in listed {
        let read = store.get(&meta.location).await.unwrap();
        let bytes = read.bytes().await.unwrap();
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let (object, version) = (number(0), number(4));
        assert_eq!(meta.location, location(object));
        assert!(
            bytes == contents(object, version),
            "{object} in version {version} is not whole"
        );
        found.insert(object, version);
    }
    for (object, version) in acknowledged {
        let there = found.get(object);
        assert!(
            there >= Some(version),
            "{object}: {version} was acknowledged, {there:?} is there"
        );
    }
}

#[test]
fn killed_puts_are_whole_or_absent() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    Volume::create(&image, 256 << 20).unwrap().close().unwrap();
    let mut acknowledged = HashMap::new();
    for round in 0..6 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killed::child", "--nocapture"])
            .env(CHILD, &image)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut left = 20 + 37 * round;
        for line in lines {
            let line = line.unwrap();
            let words: Vec<&str> = line.split(' ').collect();
            let ["put", object, version] = words[..] else {
                continue;
            };
            let version = version.parse().unwrap();
            acknowledged.insert(object.parse().unwrap(), version);
            left -= 1;
            if left == 0 {
                // The pipe may still have some; they are read until it ends.
                child.kill().unwrap();
            }
        }
        assert!(left <= 0, "the child ended by itself");
        child.wait().unwrap();
        let volume = Volume::open(&image).unwrap();
        let store = CairnStore::new(volume.clone()).unwrap();
        let staged = volume.read_dir(".cairnfs-staging");
        assert!(staged.is_ok_and(|mut s| s.next().is_none()), "leftovers");
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(check(&store, &acknowledged));
        drop(store);
        volume.close().unwrap();
        // The next child begins with the first versions again.
        acknowledged.values_mut().for_each(|version| *version = 0);
    }
}
