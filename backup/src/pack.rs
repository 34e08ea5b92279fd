//! Writing a layer: blocks become frames, frames objects, objects are stored by several threads.
//!
//! The last object is stored when all others are, and the layer counts once a head names it. At most
//! [`THREADS`] objects and one more are in memory. Uses the store, frames and the format.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::format::head::Layer;
use crate::format::layer::{Frame, Index, MAGIC, Object, Run, encode_table};
use crate::format::{BLOCK, FRAME, Hash, OBJECT_BLOCKS, object_name};
use crate::frame;
use crate::seal::Seal;
use crate::store::Store;
use crate::watch::Watch;

/// Threads that compress and store.
const THREADS: usize = 4;

/// Reads blocks from the given one on.
pub type ReadBlocks<'a> = dyn FnMut(u64, &mut [u8]) -> Result<()> + 'a;

/// Where layers go.
#[derive(Clone, Copy)]
pub struct Packer<'a> {
    /// The store.
    pub store: &'a Store,
    /// How frames are encrypted.
    pub seal: &'a Seal,
    /// Who is told.
    pub watch: &'a dyn Watch,
}

/// An object that is stored.
struct Stored {
    object: Object,
    hash: Hash,
    bytes: u64,
}

impl Packer<'_> {
    /// Stores a layer of the name `name`, whose blocks `read` provides in ascending order.
    ///
    /// # Errors
    /// Blocks cannot be read, or the store fails. What was stored is garbage then; if there was no space, it
    /// goes, for it would be in the way of everything that makes space.
    pub fn write(
        &self,
        (number, name): (u64, String),
        runs: Vec<Run>,
        read: &mut ReadBlocks<'_>,
    ) -> Result<Layer> {
        let data = runs.iter().filter(|run| run.has_data);
        let blocks: u64 = data.map(|run| run.count).sum();
        let count = blocks.div_ceil(OBJECT_BLOCKS).max(1);
        let objects: Vec<String> = (0..count).map(|n| object_name(&name, n)).collect();
        let written = self.write_all((number, name), (blocks, count - 1), runs, read);
        if written.as_ref().is_err_and(Error::is_full) {
            // The next prune removes what is left.
            let _ = self.store.delete(&objects);
        }
        written
    }

    /// Stores so many `blocks`, `whole` objects of them and one more.
    fn write_all(
        &self,
        (number, name): (u64, String),
        (blocks, whole): (u64, u64),
        runs: Vec<Run>,
        read: &mut ReadBlocks<'_>,
    ) -> Result<Layer> {
        let mut input = Blocks::new(&runs, read);
        let mut stored = self.write_whole(&name, whole, &mut input)?;
        let (mut bytes, object) = self.object(&input.take(blocks - whole * OBJECT_BLOCKS)?)?;
        let mut objects: Vec<Object> = stored.iter().map(|stored| stored.object).collect();
        objects.push(object);
        let index = Index { runs, objects }.encode()?;
        let index_offset = bytes.len() as u64;
        bytes.extend_from_slice(&index);
        stored.push(self.store(&name, whole, bytes, object)?);
        Ok(Layer {
            number,
            name,
            blocks,
            bytes: stored.iter().map(|stored| stored.bytes).sum(),
            index_offset,
            index_length: index.len() as u64,
            index_hash: Hash::of(&index),
            hash: Hash::of_all(stored.iter().map(|stored| &stored.hash)),
        })
    }

    /// Stores the first `count` objects, all of which have [`OBJECT_BLOCKS`] blocks.
    fn write_whole(
        &self,
        name: &str,
        count: u64,
        input: &mut Blocks<'_, '_>,
    ) -> Result<Vec<Stored>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let (jobs, waiting) = sync_channel::<(u64, Vec<u8>)>(0);
        let waiting = Mutex::new(waiting);
        let (results, done) = channel();
        let fed = std::thread::scope(|scope| {
            for _ in 0..THREADS {
                let (waiting, results) = (&waiting, results.clone());
                scope.spawn(move || self.work(name, waiting, &results));
            }
            drop(results);
            let mut stored = Vec::new();
            for number in 0..count {
                let blocks = input.take(OBJECT_BLOCKS)?;
                stored.extend(done.try_iter().collect::<Result<Vec<_>>>()?);
                // The threads end when nobody sends any longer.
                if jobs.send((number, blocks)).is_err() {
                    break;
                }
            }
            drop(jobs);
            stored.extend(done.iter().collect::<Result<Vec<_>>>()?);
            Ok::<_, Error>(stored)
        });
        let mut stored = fed?;
        stored.sort_by_key(|(number, _)| *number);
        Ok(stored.into_iter().map(|(_, stored)| stored).collect())
    }

    fn work(
        &self,
        name: &str,
        jobs: &Mutex<Receiver<(u64, Vec<u8>)>>,
        results: &Sender<Result<(u64, Stored)>>,
    ) {
        loop {
            let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok((number, blocks)) = job else {
                return;
            };
            let made = self.object(&blocks);
            let stored = made.and_then(|(bytes, object)| self.store(name, number, bytes, object));
            // Nobody waits any longer if another object has failed.
            let _ = results.send(stored.map(|stored| (number, stored)));
        }
    }

    /// The bytes of an object, up to and with its table.
    fn object(&self, blocks: &[u8]) -> Result<(Vec<u8>, Object)> {
        let mut bytes = MAGIC.to_vec();
        let mut frames = Vec::new();
        for blocks in blocks.chunks(FRAME) {
            let stored = frame::encode(blocks, self.seal)?;
            frames.push(Frame {
                offset: bytes.len() as u64,
                length: stored.len() as u64,
                hash: Hash::of(&stored).short(),
            });
            bytes.extend_from_slice(&stored);
            self.watch.done(blocks.len() as u64);
            self.watch.go_on()?;
        }
        let table = encode_table(&frames);
        let object = Object {
            table_offset: bytes.len() as u64,
            table_hash: Hash::of(&table),
        };
        bytes.extend_from_slice(&table);
        Ok((bytes, object))
    }

    fn store(&self, name: &str, number: u64, bytes: Vec<u8>, object: Object) -> Result<Stored> {
        let bytes = Bytes::from(bytes);
        let stored = Stored {
            object,
            hash: Hash::of(&bytes),
            bytes: bytes.len() as u64,
        };
        self.store.put(&object_name(name, number), bytes)?;
        Ok(stored)
    }
}

/// The blocks of a layer, one behind the other.
struct Blocks<'a, 'b> {
    /// First block and number of blocks of what is left.
    left: Vec<(u64, u64)>,
    read: &'a mut ReadBlocks<'b>,
}

impl<'a, 'b> Blocks<'a, 'b> {
    fn new(runs: &[Run], read: &'a mut ReadBlocks<'b>) -> Self {
        let data = runs.iter().rev().filter(|run| run.has_data);
        Self {
            left: data.map(|run| (run.start, run.count)).collect(),
            read,
        }
    }

    /// The next `count` blocks.
    fn take(&mut self, count: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; count as usize * BLOCK];
        let mut rest = bytes.as_mut_slice();
        while !rest.is_empty() {
            let Some((start, left)) = self.left.pop() else {
                break;
            };
            let some = left.min((rest.len() / BLOCK) as u64);
            let (now, later) = rest.split_at_mut(some as usize * BLOCK);
            (self.read)(start, now)?;
            rest = later;
            if left > some {
                self.left.push((start + some, left - some));
            }
        }
        Ok(bytes)
    }
}
