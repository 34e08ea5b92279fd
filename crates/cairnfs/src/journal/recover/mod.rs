//! Reading the log: which records hold, where it ends, and whether the end is an end or damage.
//!
//! Uses the device and the format only, writes nothing. The first pass follows the chain from the
//! tail and notes complete contexts; [`read_context`] then delivers their entries, one context at
//! a time, so that memory stays bounded.

use zerocopy::little_endian::U32;

use crate::device::{AlignedBuf, Device};
use crate::error::{Error, Result};
use crate::fault::{InjectedFault, is_injected};
use crate::format::geometry::LOG_START;
use crate::format::record::{
    self, Entry, FLAG_GROUP, FLAG_LAST, FLAG_MOUNT, HEADER_SIZE, RecordHeader,
};
use crate::format::superblock::Superblock;
use crate::format::{BLOCK_SIZE, checksum};
use crate::journal::push::FLUSH_EVERY;

/// Blocks behind the log's end that are searched for records which say that it was longer. A push
/// flushes at least so often that no durable record can lie further away.
const SEARCH_BLOCKS: u64 = 2 * FLUSH_EVERY;

/// How often a block is read before its contents are believed to be missing.
const READS: usize = 3;

/// Blocks read at once when records are searched for.
const AT_ONCE: u64 = 64;

/// A place between two records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogPosition {
    /// LSN of the record that begins here.
    pub lsn: u64,
    /// What its chain field must hold.
    pub chain: u64,
}

/// A complete context in the log, or a group that was logged ahead of its context.
#[derive(Debug, Clone, Copy)]
pub struct FoundContext {
    /// Its sequence.
    pub seq: u64,
    /// Where its first record begins.
    pub start: LogPosition,
    /// Where the log goes on behind it.
    pub end: LogPosition,
    /// More of the context may follow.
    pub group: bool,
    /// It is a mount record.
    pub mount: bool,
}

/// What the log holds.
#[derive(Debug, Default)]
pub struct Scan {
    /// Complete contexts in order, mount records included, but for one at the end.
    pub contexts: Vec<FoundContext>,
    /// Where the log goes on: behind the last valid record, which may be a part of a context that was
    /// never finished. A mount record at the end is overwritten: nothing refers to it, and mounts that
    /// are killed again and again would fill the log with theirs.
    pub end: LogPosition,
    /// The largest sequence seen, be it complete or not.
    pub last_seq: u64,
}

impl Scan {
    /// A log that is not looked at: it ends where it begins.
    pub fn skipped(superblock: &Superblock) -> Self {
        Self {
            contexts: Vec::new(),
            end: LogPosition {
                lsn: superblock.tail_lsn.get(),
                chain: superblock.tail_chain.get(),
            },
            last_seq: superblock.merged_seq.get(),
        }
    }

    /// Ends the log before a mount record behind which nothing counts.
    fn leave_last_mount(&mut self) {
        let end = self.end;
        if let Some(last) = self.contexts.pop_if(|c| c.mount && c.end == end) {
            self.end = last.start;
        }
    }
}

struct Reader<'a> {
    device: &'a dyn Device,
    superblock: &'a Superblock,
    log_blocks: u64,
    buffer: AlignedBuf,
}

impl<'a> Reader<'a> {
    fn new(device: &'a dyn Device, superblock: &'a Superblock) -> Self {
        Self {
            device,
            superblock,
            log_blocks: superblock.log_blocks.get(),
            buffer: AlignedBuf::zeroed(0),
        }
    }

    fn block_of(&self, lsn: u64) -> u64 {
        LOG_START + lsn % self.log_blocks
    }

    /// Reads `blocks` blocks of the ring from `lsn` into the buffer's begin; no record has more than
    /// [`record::MAX_RECORD_BLOCKS`].
    fn read(&mut self, lsn: u64, blocks: u64) -> Result<()> {
        let at = lsn % self.log_blocks;
        let first = blocks.min(self.log_blocks - at) as usize * BLOCK_SIZE;
        let all = blocks as usize * BLOCK_SIZE;
        self.buffer.ensure(all);
        let (head, tail) = self
            .buffer
            .get_mut(..all)
            .unwrap_or_default()
            .split_at_mut(first.min(all));
        self.device
            .read((LOG_START + at) * BLOCK_SIZE as u64, head)?;
        if !tail.is_empty() {
            self.device.read(LOG_START * BLOCK_SIZE as u64, tail)?;
        }
        Ok(())
    }

    /// The record at `position` with its payload in the buffer, if it is valid and of this volume.
    fn record(&mut self, position: LogPosition, limit: u64) -> Result<Option<RecordHeader>> {
        if position.lsn >= limit {
            return Ok(None);
        }
        self.read(position.lsn, 1)?;
        let Some(header) = RecordHeader::decode(&self.buffer) else {
            return Ok(None);
        };
        let fits = header.uuid == self.superblock.uuid
            && header.lsn.get() == position.lsn
            && (header.chain.get() == position.chain || is_injected(InjectedFault::ChainUnchecked))
            && position.lsn + header.blocks() <= limit;
        if !fits {
            return Ok(None);
        }
        if header.blocks() > 1 {
            self.read(position.lsn, header.blocks())?;
        }
        let valid = checksum::crc(self.payload(&header)) == header.payload_crc.get()
            || is_injected(InjectedFault::PayloadUnchecked);
        Ok(valid.then_some(header))
    }

    fn payload(&self, header: &RecordHeader) -> &[u8] {
        let len = header.payload_len.get() as usize;
        self.buffer
            .get(HEADER_SIZE..HEADER_SIZE + len)
            .unwrap_or_default()
    }

    /// The entries and the checks of a record.
    fn parts(&self, header: &RecordHeader) -> (&[u8], &[u8]) {
        let payload = self.payload(header);
        let entries = payload
            .len()
            .saturating_sub(header.checks_len.get() as usize);
        payload.split_at(entries)
    }

    /// Whether the data is there that a context or group refers to and that need not be durable.
    fn data_holds(&mut self, context: &FoundContext) -> Result<bool> {
        let mut position = context.start;
        while position.lsn < context.end.lsn {
            let Some(header) = self.record(position, context.end.lsn)? else {
                return Ok(false);
            };
            let mut block = AlignedBuf::zeroed(BLOCK_SIZE);
            for check in record::checks(self.parts(&header).1) {
                let Some((first, crcs)) = check.filter(|c| self.in_data_area(c)) else {
                    return Err(Error::corrupt(
                        self.block_of(position.lsn),
                        "log record checks",
                        "blocks of the volume's data area",
                        "others",
                    ));
                };
                for (at, crc) in (first..).zip(crcs) {
                    if !self.block_holds(at, crc.get(), &mut block)? {
                        return Ok(is_injected(InjectedFault::DataNotCompared));
                    }
                }
            }
            position = LogPosition {
                lsn: position.lsn + header.blocks(),
                chain: header.checksum.get(),
            };
        }
        Ok(true)
    }

    /// Whether a block has this checksum. One that seems not to is read again: if only the reading
    /// went wrong, nothing must be lost for it.
    fn block_holds(&self, at: u64, crc: u32, block: &mut [u8]) -> Result<bool> {
        for _ in 0..READS {
            self.device.read(at * BLOCK_SIZE as u64, block)?;
            if checksum::crc(block) == crc {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn in_data_area(&self, (first, crcs): &(u64, &[U32])) -> bool {
        let end = first.checked_add(crcs.len() as u64);
        *first >= LOG_START + self.log_blocks
            && end.is_some_and(|e| e <= self.superblock.total_blocks.get())
    }
}

/// Follows the log from the superblock's tail. Records of a newer generation mean that the newest
/// superblock was lost; if `other_slot_lost`, the other slot is invalid, and the whole ring is
/// searched for one.
///
/// # Errors
/// The device's failure; damage: a break before what is known to have been durable.
pub fn scan(device: &dyn Device, superblock: &Superblock, other_slot_lost: bool) -> Result<Scan> {
    let mut reader = Reader::new(device, superblock);
    let tail = LogPosition {
        lsn: superblock.tail_lsn.get(),
        chain: superblock.tail_chain.get(),
    };
    let limit = tail.lsn + reader.log_blocks;
    let mut scan = Scan {
        contexts: Vec::new(),
        end: tail,
        last_seq: superblock.merged_seq.get(),
    };
    let mut position = tail;
    let mut open: Option<(u64, LogPosition, u32)> = None;
    let mut durable = superblock.required_lsn.get();
    let mut newest_generation = superblock.generation.get();
    let mut nonce = None;
    while let Some(header) = reader.record(position, limit)? {
        let mount = header.flags.get() & FLAG_MOUNT != 0;
        let (seq, part) = (header.seq.get(), header.part.get());
        let follows = match open {
            _ if mount => part == 0,
            Some((open_seq, _, next)) => seq == open_seq && part == next,
            None => {
                let least = |c: &FoundContext| c.seq + u64::from(!c.group);
                part == 0 && seq >= scan.contexts.last().map_or(1, least)
            }
        };
        let same_mount = mount || nonce.is_none_or(|n| n == header.nonce.get());
        if !follows || !same_mount {
            return Err(Error::corrupt(
                reader.block_of(position.lsn),
                "log record order",
                "the next part of its context, written by the same mount",
                format!("context {seq} part {part} at LSN {}", position.lsn),
            ));
        }
        nonce = Some(header.nonce.get());
        scan.last_seq = scan.last_seq.max(seq);
        durable = durable.max(header.durable_lsn.get());
        newest_generation = newest_generation.max(header.generation.get());
        let group = header.flags.get() & FLAG_GROUP != 0;
        let start = match open {
            Some((_, start, _)) if !mount => start,
            _ => position,
        };
        position = LogPosition {
            lsn: position.lsn + header.blocks(),
            chain: header.checksum.get(),
        };
        if header.flags.get() & FLAG_LAST != 0 {
            open = None;
            scan.contexts.push(FoundContext {
                seq,
                start,
                end: position,
                group,
                mount,
            });
        } else {
            open = Some((seq, start, part + 1));
        }
    }
    if let Some((seq, start, _)) = open
        && is_injected(InjectedFault::HalfContextCounts)
    {
        let end = position;
        scan.contexts.push(FoundContext {
            seq,
            start,
            end,
            group: false,
            mount: false,
        });
    }
    scan.end = position;
    // Any record anywhere tells of a superblock that was lost.
    let stop = if other_slot_lost {
        limit
    } else {
        limit.min(position.lsn + SEARCH_BLOCKS)
    };
    let beyond = search_beyond(&mut reader, position.lsn, stop, other_slot_lost)?;
    durable = durable.max(beyond.durable);
    newest_generation = newest_generation.max(beyond.generation);
    if position.lsn < durable && !is_injected(InjectedFault::EndUnchecked) {
        return Err(Error::corrupt(
            reader.block_of(position.lsn),
            "log",
            format!("valid records up to LSN {durable}, which were durable"),
            format!("no valid record at LSN {}", position.lsn),
        ));
    }
    if newest_generation > superblock.generation.get() {
        return Err(Error::corrupt(
            superblock.slot_block() ^ 8,
            "superblock",
            format!("generation {newest_generation}, which the log knows"),
            format!("at most generation {}", superblock.generation),
        ));
    }
    // What lies behind this was written, but its data may not have come to the disk.
    let first = scan.contexts.partition_point(|c| c.start.lsn < durable);
    for i in first..scan.contexts.len() {
        let Some(context) = scan.contexts.get(i).copied() else {
            break;
        };
        if !reader.data_holds(&context)? {
            scan.end = context.start;
            scan.contexts.truncate(i);
            break;
        }
    }
    scan.leave_last_mount();
    Ok(scan)
}

#[derive(Default)]
struct Beyond {
    durable: u64,
    generation: u64,
}

/// Looks behind the end of the log for records that say that more of it was durable.
/// With `came_round`, those of other rounds of the ring tell of superblocks, too.
fn search_beyond(reader: &mut Reader<'_>, end: u64, stop: u64, came_round: bool) -> Result<Beyond> {
    let mut beyond = Beyond::default();
    let mut lsn = end;
    while lsn < stop {
        let blocks = AT_ONCE.min(stop - lsn);
        reader.read(lsn, blocks)?;
        for i in 0..blocks {
            let block = reader
                .buffer
                .get(i as usize * BLOCK_SIZE..)
                .unwrap_or_default();
            let Some(header) = RecordHeader::decode(block) else {
                continue;
            };
            if header.uuid != reader.superblock.uuid {
                continue;
            }
            let here = header.lsn.get() == lsn + i;
            if here {
                beyond.durable = beyond.durable.max(header.durable_lsn.get().min(lsn + i));
            }
            // Behind a superblock that was lost the log may have come round.
            let place = reader.block_of(header.lsn.get()) == reader.block_of(lsn + i);
            if here || came_round && place {
                beyond.generation = beyond.generation.max(header.generation.get());
            }
        }
        lsn += blocks;
    }
    Ok(beyond)
}

/// Delivers the entries of a context in the order in which they were logged.
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
        position = LogPosition {
            lsn: position.lsn + header.blocks(),
            chain: header.checksum.get(),
        };
    }
    Ok(())
}
