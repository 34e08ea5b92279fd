//! A volume without an engine: blocks whose contents follow from a number, and checkpoints of them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use cairnfs_backup::{Checkpoint, EachRun, Result, Source};

/// Bytes of a block.
pub const BLOCK: usize = 4096;

/// What each block holds, as a number.
pub type Blocks = BTreeMap<u64, u64>;

/// The contents that follow from a number: some compress, some do not.
pub fn contents(seed: u64) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let noise = if seed.is_multiple_of(3) { BLOCK } else { 256 };
    for bytes in block[..noise].chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.copy_from_slice(&state.to_le_bytes());
    }
    block
}

/// A volume that is changed and backed up.
pub struct Volume {
    name: String,
    /// What its checkpoints' names begin with.
    tag: RefCell<String>,
    size: u64,
    state: RefCell<State>,
}

#[derive(Default, Clone)]
struct State {
    blocks: Blocks,
    made: u64,
    shipped: Option<(String, Blocks)>,
    /// The time of checkpoints, in seconds since 1970; `None`: an hour for each.
    clock: Option<i64>,
    /// How many further checkpoints give way when they are read.
    giving_way: u64,
    /// Every checkpoint that was ever made: what its moment must be.
    all: BTreeMap<String, Blocks>,
}

impl Volume {
    pub fn new(name: &str, size: u64) -> Self {
        Self {
            name: name.to_owned(),
            tag: RefCell::new(name.to_owned()),
            size,
            state: RefCell::default(),
        }
    }

    /// The same volume with its present contents, elsewhere.
    pub fn cloned(&self) -> Self {
        Self {
            name: self.name.clone(),
            tag: self.tag.clone(),
            size: self.size,
            state: self.state.clone(),
        }
    }

    /// Its checkpoints get other names than those of a clone.
    pub fn rename(&self, tag: &str) {
        tag.clone_into(&mut self.tag.borrow_mut());
    }

    /// Knows the checkpoints of both.
    pub fn with(self, other: &Self) -> Self {
        let all = other.state.borrow().all.clone();
        self.state.borrow_mut().all.extend(all);
        self
    }

    pub fn write(&self, start: u64, count: u64, seed: u64) {
        let mut state = self.state.borrow_mut();
        for block in start..(start + count).min(self.size) {
            state.blocks.insert(block, seed.wrapping_mul(1000) + block);
        }
    }

    pub fn free(&self, start: u64, count: u64) {
        let mut state = self.state.borrow_mut();
        state
            .blocks
            .retain(|block, _| *block < start || *block >= start + count);
    }

    /// Further checkpoints are of this time.
    pub fn set_clock(&self, seconds: i64) {
        self.state.borrow_mut().clock = Some(seconds);
    }

    /// That many further checkpoints give way when they are read.
    pub fn give_way(&self, times: u64) {
        self.state.borrow_mut().giving_way = times;
    }

    /// Forgets what was shipped, as when there was no space for it.
    pub fn forget(&self) {
        self.state.borrow_mut().shipped = None;
    }

    /// What the moment of a checkpoint must be.
    pub fn image(&self, checkpoint: &str) -> Blocks {
        self.state.borrow().all[checkpoint].clone()
    }
}

fn runs(blocks: impl Iterator<Item = u64>, each: &mut EachRun<'_>) -> Result<()> {
    let mut run: Option<(u64, u64)> = None;
    for block in blocks {
        match &mut run {
            Some((start, count)) if *start + *count == block => *count += 1,
            _ => {
                if let Some((start, count)) = run {
                    each(start, count)?;
                }
                run = Some((block, 1));
            }
        }
    }
    run.map_or(Ok(()), |(start, count)| each(start, count))
}

impl Source for Volume {
    fn volume(&self) -> String {
        self.name.clone()
    }

    fn known(&self) -> Vec<String> {
        let state = self.state.borrow();
        state.shipped.iter().map(|(id, _)| id.clone()).collect()
    }

    fn checkpoint(&self, since: Option<&str>) -> Result<Box<dyn Checkpoint + '_>> {
        let mut state = self.state.borrow_mut();
        state.made += 1;
        let id = format!("{}-{}", self.tag.borrow(), state.made);
        let known = state.shipped.clone();
        let before = known.filter(|(id, _)| Some(id.as_str()) == since);
        let blocks = state.blocks.clone();
        state.all.insert(id.clone(), blocks.clone());
        Ok(Box::new(Frozen {
            volume: self,
            time: time(state.clock.unwrap_or(state.made as i64 * 3600)),
            id,
            before: before.map(|(_, blocks)| blocks),
            blocks,
        }))
    }
}

fn time(seconds: i64) -> SystemTime {
    let distance = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 {
        SystemTime::UNIX_EPOCH - distance
    } else {
        SystemTime::UNIX_EPOCH + distance
    }
}

struct Frozen<'a> {
    volume: &'a Volume,
    id: String,
    time: SystemTime,
    before: Option<Blocks>,
    blocks: Blocks,
}

impl Checkpoint for Frozen<'_> {
    fn id(&self) -> String {
        self.id.clone()
    }

    fn is_whole(&self) -> bool {
        self.before.is_none()
    }

    fn time(&self) -> SystemTime {
        self.time
    }

    fn blocks(&self) -> u64 {
        self.volume.size
    }

    fn is_unchanged(&self) -> bool {
        self.before.as_ref() == Some(&self.blocks)
    }

    fn own_blocks(&self) -> Vec<(u64, u64)> {
        Vec::new()
    }

    fn for_each_gained(&self, each: &mut EachRun<'_>) -> Result<()> {
        let old = |block: &u64| self.before.as_ref().and_then(|before| before.get(block));
        let gained = self
            .blocks
            .iter()
            .filter(|(block, seed)| old(block) != Some(seed));
        runs(gained.map(|(block, _)| *block), each)
    }

    fn for_each_live(&self, each: &mut EachRun<'_>) -> Result<()> {
        runs(self.blocks.keys().copied(), each)
    }

    fn read(&self, block: u64, buf: &mut [u8]) -> Result<()> {
        let mut state = self.volume.state.borrow_mut();
        if let Some(left) = state.giving_way.checked_sub(1) {
            state.giving_way = left;
            return Err(cairnfs::Error::GaveWay.into());
        }
        for (block, bytes) in (block..).zip(buf.chunks_mut(BLOCK)) {
            bytes.copy_from_slice(&contents(self.blocks[&block]));
        }
        Ok(())
    }

    fn shipped(self: Box<Self>) -> Result<()> {
        let mut state = self.volume.state.borrow_mut();
        state.shipped = Some((self.id, self.blocks));
        Ok(())
    }
}
