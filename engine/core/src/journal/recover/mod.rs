//! Reading the log at mount: which records are valid, where the log ends, and whether that end is
//! regular or damage.
//!
//! Uses the device and the format only, writes nothing. [`scan`] follows the chain of records from
//! the tail ([`chain`] has the table of cases), judges its end, and returns the complete contexts.
//! [`read_context`] then delivers their entries, one context at a time, so memory stays bounded.
//!
//! | End of the chain | Meaning |
//! |---|---|
//! | before an LSN that was durable, by the superblock, the durable mark or any record | damage: [`end_damage`] |
//! | a record names a newer superblock generation | damage: that superblock is lost |
//! | an fsync record at or after the durable LSN whose checks do not hold | the log ends there |
//! | a mount record | the log ends before it, and the next mount overwrites it |
//! | otherwise | the regular end of the log |
//!
//! What an opening does before and after, and its states, are in `txn/open`.

mod chain;
mod reader;
mod search;

use self::chain::Chain;
use self::reader::Reader;
use self::search::search_beyond;
use crate::journal::position::{FLUSH_EVERY, LogPosition};
use cairnfs_disk::device::Device;
use cairnfs_disk::error::{Corruption, Error, Result};
use cairnfs_disk::fault::{InjectedFault, is_injected};
use cairnfs_disk::format::record::{self, Entry};
use cairnfs_disk::format::superblock::Superblock;

/// Blocks after the log's end that are searched for records which show that the log was longer. A
/// push flushes every [`FLUSH_EVERY`] blocks, so no durable record can be further away.
const SEARCH_BLOCKS: u64 = 2 * FLUSH_EVERY;

/// A complete context in the log, or an fsync record, logged ahead of its context.
#[derive(Debug, Clone, Copy)]
pub struct FoundContext {
    /// Its sequence.
    pub seq: u64,
    /// Where its first record begins.
    pub start: LogPosition,
    /// Position after its last record.
    pub end: LogPosition,
    /// Whether it is an fsync record: more of its context may follow.
    pub fsync: bool,
    /// Whether it is a mount record.
    pub mount: bool,
    /// Whether it ends with changes of roots.
    pub roots: bool,
}

/// Result of a scan of the log.
#[derive(Debug, Default)]
pub struct Scan {
    /// Complete contexts in order, mount records included, except a mount record at the end.
    pub contexts: Vec<FoundContext>,
    /// The end of the log: the position after the last valid record, which may be part of a context
    /// that was never finished. A mount record at the end is overwritten: nothing refers to it, and
    /// repeatedly killed mounts would otherwise fill the log with their records.
    pub end: LogPosition,
    /// The largest sequence found, of complete and incomplete contexts.
    pub last_seq: u64,
    /// The LSN that the durable mark states.
    pub marked: u64,
    /// What is lost, if the log is damaged and the caller takes it all the same.
    pub lost: Option<LostLog>,
}

/// The part of a damaged log that was durable and is not found.
#[derive(Debug, Clone)]
pub struct LostLog {
    /// The damage.
    pub damage: Corruption,
    /// Where the valid part of the log ends.
    pub end: u64,
    /// Up to which LSN it was durable.
    pub durable: u64,
    /// How many records behind the end can be found.
    pub records: u64,
}

impl Scan {
    /// The result for a log that is not read: it ends at its tail.
    pub fn skipped(superblock: &Superblock) -> Self {
        Self {
            contexts: Vec::new(),
            end: Chain::at_tail(superblock).end,
            last_seq: superblock.merged_seq.get(),
            ..Self::default()
        }
    }

    /// Ends the log before the first context that was written, but whose data did not reach the
    /// device. Everything before the LSN `durable` did.
    fn leave_missing_data(&mut self, reader: &mut Reader<'_>, durable: u64) -> Result<()> {
        let first = self.contexts.partition_point(|c| c.start.lsn < durable);
        for i in first..self.contexts.len() {
            let Some(context) = self.contexts.get(i).copied() else {
                break;
            };
            if !reader.data_holds(&context)? {
                self.end = context.start;
                self.contexts.truncate(i);
                break;
            }
        }
        Ok(())
    }

    /// Ends the log before a mount record that is its last record.
    fn leave_last_mount(&mut self) {
        let end = self.end;
        if let Some(last) = self.contexts.pop_if(|c| c.mount && c.end == end) {
            self.end = last.start;
        }
    }
}

/// Follows the log from the superblock's tail. Records with a newer generation mean that the newest
/// superblock was lost. If `other_slot_lost`, the other superblock slot is invalid, and the whole
/// ring is searched for such a record. If `damaged`, a log that is damaged ends at the damage, and
/// the result says what is lost.
///
/// # Errors
/// The device's failure; corruption: the log ends before the LSN that is known to have been
/// durable.
pub fn scan(
    device: &dyn Device,
    superblock: &Superblock,
    other_slot_lost: bool,
    damaged: bool,
) -> Result<Scan> {
    let mut reader = Reader::new(device, superblock);
    let marked = reader.marked()?;
    let mut chain = Chain::at_tail(superblock);
    chain.durable = chain.durable.max(marked);
    let limit = chain.end.lsn + superblock.log_blocks.get();
    let disorder = match chain.follow(&mut reader, limit) {
        Err(Error::Corrupt(disorder)) if damaged => {
            chain.drop_open();
            Some(*disorder)
        }
        followed => followed.map(|()| None)?,
    };
    // Any record in the ring can show that a newer superblock was lost.
    let stop = if other_slot_lost {
        limit
    } else {
        limit.min(chain.end.lsn + SEARCH_BLOCKS)
    };
    let beyond = search_beyond(&mut reader, chain.end.lsn, stop, other_slot_lost)?;
    chain.durable = chain.durable.max(beyond.durable);
    chain.generation = chain.generation.max(beyond.generation);
    check_generation(superblock, &chain)?;
    let lost = match disorder.or_else(|| end_damage(&reader, &chain, beyond.records)) {
        Some(damage) if !damaged => return Err(damage.into()),
        damage => damage.map(|damage| LostLog {
            damage,
            end: chain.end.lsn,
            durable: chain.durable,
            records: beyond.records,
        }),
    };
    let mut scan = Scan {
        contexts: chain.contexts,
        end: chain.end,
        last_seq: chain.last_seq,
        marked,
        lost,
    };
    scan.leave_missing_data(&mut reader, chain.durable)?;
    scan.leave_last_mount();
    Ok(scan)
}

/// The damage of a log whose chain does not reach all that was durable.
fn end_damage(reader: &Reader<'_>, chain: &Chain, behind: u64) -> Option<Corruption> {
    let (end, durable) = (chain.end.lsn, chain.durable);
    let damaged = end < durable && !is_injected(InjectedFault::EndUnchecked);
    damaged.then(|| {
        Corruption::new(
            reader.block_of(end),
            "log",
            format!("valid records up to LSN {durable}, which were durable"),
            format!("no valid record at LSN {end}, and {behind} behind it"),
        )
    })
}

/// Checks that no record names a newer superblock.
fn check_generation(superblock: &Superblock, chain: &Chain) -> Result<()> {
    if chain.generation > superblock.generation.get() {
        return Err(Error::corrupt(
            superblock.slot_block() ^ 8,
            "superblock",
            format!("generation {}, which the log knows", chain.generation),
            format!("at most generation {}", superblock.generation),
        ));
    }
    Ok(())
}

/// Calls `each` with the entries of all records that can be read of what is lost. Such records need
/// not be whole contexts, and what they say may have been changed by records that cannot be read.
pub fn read_lost(
    device: &dyn Device,
    superblock: &Superblock,
    lost: &LostLog,
    each: &mut dyn FnMut(&Entry<'_>),
) -> Result<()> {
    let mut reader = Reader::new(device, superblock);
    let ring = superblock.log_blocks.get();
    let limit = lost.durable.min(superblock.tail_lsn.get() + ring);
    let mut lsn = lost.end;
    while lsn < limit {
        let Some(header) = reader.header(lsn, limit)? else {
            lsn += 1;
            continue;
        };
        if reader.read_payload(&header)? {
            let entries = record::entries(reader.block_of(lsn), reader.parts(&header).0);
            // An entry that is not valid ends the record.
            entries
                .map_while(|entry| entry.ok())
                .for_each(|entry| each(&entry));
        }
        lsn += header.blocks();
    }
    Ok(())
}

/// Calls `each` with the entries of a context in the order in which they were logged.
///
/// # Errors
/// The device's failure, malformed entries, or what `each` returns.
pub fn read_context(
    device: &dyn Device,
    superblock: &Superblock,
    context: &FoundContext,
    each: &mut dyn FnMut(&Entry<'_>) -> Result<()>,
) -> Result<()> {
    let mut reader = Reader::new(device, superblock);
    let mut position = context.start;
    while position.lsn < context.end.lsn {
        let block = reader.block_of(position.lsn);
        let Some(header) = reader.record(position, context.end.lsn)? else {
            return Err(Error::corrupt(
                block,
                "log record",
                "the record found there before",
                "another",
            ));
        };
        for entry in record::entries(block, reader.parts(&header).0) {
            each(&entry?)?;
        }
        position = position.after(&header);
    }
    Ok(())
}
