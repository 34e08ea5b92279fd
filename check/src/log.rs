//! Reads the log as recovery does: determines the valid records and their changes.
//!
//! The log begins at the superblock's tail and ends at the first invalid record. The superblock's
//! required LSN, the durable mark and the durable LSNs in valid records after the end show whether
//! that is the true end or damage.

use std::collections::VecDeque;

use cairnfs_disk::device::AlignedBuf;
use cairnfs_disk::error::{Corruption, Result};
use cairnfs_disk::format::BLOCK_SIZE;
use cairnfs_disk::format::geometry::{Geometry, LOG_START};
use cairnfs_disk::format::mark;
use cairnfs_disk::format::record::{
    FLAG_FSYNC, FLAG_LAST, FLAG_MOUNT, FLAG_ROOTS, HEADER_SIZE, RecordHeader, entries,
};
use cairnfs_disk::format::{checksum, record};

use crate::checked_volume::Volume;
use crate::codes;
use crate::overlay::{Overlay, Overlays};
use crate::report::{Finding, Ledger};

/// Number of blocks after the end of the log that are searched for durable LSNs (32 MiB).
const BEYOND_BLOCKS: u64 = 8192;
/// Number of blocks read at once in a search for headers.
const SCAN_BLOCKS: u64 = 64;

/// The state that the log adds to the index.
pub(crate) struct Log {
    pub(crate) overlays: Overlays,
    /// Sequence number of the newest complete context.
    pub(crate) seq: u64,
    /// Whether some entries were invalid.
    incomplete: bool,
}

impl Log {
    /// Takes what the log changes in a root that can be written.
    pub(crate) fn take(&mut self, root: u32) -> Replay {
        Replay {
            overlay: self.overlays.take(root),
            seq: self.seq,
            youngest: self.youngest(),
            incomplete: self.incomplete,
        }
    }

    /// Greatest birth that the index can have: no merge goes beyond the first change of roots in
    /// the log, because what is older belongs to a snapshot that the index does not have yet.
    pub(crate) fn youngest(&self) -> u64 {
        let first = self.overlays.steps.first().and_then(|step| step.end);
        first.map_or(self.seq, |(seq, _)| seq)
    }

    /// What the log changes in a root that was frozen at `boundary`: nothing.
    pub(crate) fn of_frozen(&self, boundary: u64) -> Replay {
        Replay {
            overlay: Overlay::default(),
            seq: self.seq,
            youngest: self.youngest().min(boundary),
            incomplete: false,
        }
    }
}

/// The state that the log adds to the files of a root.
pub(crate) struct Replay {
    pub(crate) overlay: Overlay,
    /// Sequence number of the newest complete context.
    pub(crate) seq: u64,
    /// Greatest birth that the root can have in the index.
    pub(crate) youngest: u64,
    /// Whether some entries were invalid.
    pub(crate) incomplete: bool,
}

/// Reads and replays the log; `None` if the superblock that it belongs to is lost.
pub(crate) fn read(volume: &Volume<'_>, ledger: &mut Ledger<'_>) -> Result<Option<Log>> {
    let required = volume.superblock.required_lsn.get();
    let mut reader = Reader {
        volume,
        generation: 0,
        durable: required.max(marked(volume)?),
        behind: 0,
    };
    let mut contexts = Contexts::new(volume.superblock.merged_seq.get(), volume.geometry);
    let (end, in_order) = reader.follow(&mut contexts, ledger)?;
    reader.look_beyond(end)?;
    contexts.apply_durable(reader.durable, ledger);
    reader.apply_checked(&mut contexts, ledger)?;
    if !volume.both_slots {
        reader.scan_generations(ledger)?;
    }
    let generation = volume.superblock.generation.get();
    if reader.generation > generation {
        let message = format!(
            "the log was written under superblock {}, the newest that can be read is {generation}",
            reader.generation
        );
        ledger.add(Finding::new(codes::SUPERBLOCK_LOST, message));
        ledger.unchecked("everything behind the superblock: its newest state is lost");
        return Ok(None);
    }
    let (wanted, behind) = (reader.durable, reader.behind);
    if in_order && wanted > end {
        let message = format!(
            "log ends at LSN {end}, but was durable up to {wanted}; {behind} later records can be found"
        );
        ledger.add(Finding::new(codes::LOG_DAMAGED, message).at(reader.block(end)));
        ledger.unchecked("changes in the lost part of the log");
    }
    Ok(Some(contexts.replay(volume.superblock.hash_seed.get())))
}

/// The LSN up to which the durable mark says that the log was durable; 0 if there is no mark.
fn marked(volume: &Volume<'_>) -> Result<u64> {
    mark::greatest(&volume.superblock, &mut |block, buffer| {
        volume.read_into(block, buffer)
    })
}

struct Reader<'v, 'd> {
    volume: &'v Volume<'d>,
    /// Greatest superblock generation in any record.
    generation: u64,
    /// Greatest LSN up to which the log was durable, by the superblock, the mark or any record.
    durable: u64,
    /// Number of record headers after the end that are at the position of their LSN.
    behind: u64,
}

impl Reader<'_, '_> {
    fn ring(&self) -> u64 {
        self.volume.geometry.log_blocks
    }

    fn block(&self, lsn: u64) -> u64 {
        LOG_START + lsn % self.ring()
    }

    /// Reads blocks of the ring from `lsn`, wrapping at its end.
    fn read(&self, lsn: u64, count: u64) -> Result<AlignedBuf> {
        let mut bytes = AlignedBuf::zeroed(count as usize * BLOCK_SIZE);
        self.read_into(lsn, &mut bytes)?;
        Ok(bytes)
    }

    fn read_into(&self, lsn: u64, bytes: &mut [u8]) -> Result<()> {
        let start = lsn % self.ring();
        let before_end = (self.ring() - start) as usize * BLOCK_SIZE;
        let (head, tail) = bytes.split_at_mut(before_end.min(bytes.len()));
        self.volume.read_into(LOG_START + start, head)?;
        if tail.is_empty() {
            Ok(())
        } else {
            self.volume.read_into(LOG_START, tail)
        }
    }

    /// Calls `each` with the headers of this volume in the blocks of the ring from `from` to `to`,
    /// and with their positions.
    fn headers(&self, from: u64, to: u64, mut each: impl FnMut(u64, &RecordHeader)) -> Result<()> {
        let most = SCAN_BLOCKS.min(to.saturating_sub(from));
        let mut buffer = AlignedBuf::zeroed(most as usize * BLOCK_SIZE);
        let mut at = from;
        while at < to {
            let count = SCAN_BLOCKS.min(to - at);
            let len = count as usize * BLOCK_SIZE;
            let bytes = buffer.get_mut(..len).unwrap_or_default();
            self.read_into(at, bytes)?;
            for (block, position) in bytes.chunks(BLOCK_SIZE).zip(at..) {
                if let Some(header) = self.header(block) {
                    each(position, &header);
                }
            }
            at += count;
        }
        Ok(())
    }

    fn header(&self, bytes: &[u8]) -> Option<RecordHeader> {
        RecordHeader::decode(bytes).filter(|h| h.uuid == self.volume.superblock.uuid)
    }

    /// The valid record at `lsn` whose chain field is `chain`, at most `room` blocks long.
    fn record(&self, lsn: u64, chain: u64, room: u64) -> Result<Option<(RecordHeader, Vec<u8>)>> {
        let Some(header) = self.header(&self.read(lsn, 1)?) else {
            return Ok(None);
        };
        let blocks = header.blocks();
        if header.lsn.get() != lsn || header.chain.get() != chain || blocks > room {
            return Ok(None);
        }
        let bytes = self.read(lsn, blocks)?;
        let len = header.payload_len.get() as usize;
        let payload = bytes.get(HEADER_SIZE..HEADER_SIZE + len);
        Ok(payload
            .filter(|p| checksum::crc(p) == header.payload_crc.get())
            .map(|p| (header, p.to_vec())))
    }

    /// Follows the chain of records from the tail. Returns the end LSN, and whether the order was
    /// valid.
    fn follow(&mut self, contexts: &mut Contexts, ledger: &mut Ledger<'_>) -> Result<(u64, bool)> {
        let tail = self.volume.superblock.tail_lsn.get();
        let limit = tail.saturating_add(self.ring());
        let (mut at, mut chain) = (tail, self.volume.superblock.tail_chain.get());
        while at < limit {
            ledger.progress("log", at - tail, self.ring());
            let Some((header, payload)) = self.record(at, chain, limit - at)? else {
                break;
            };
            let block = self.block(at);
            if let Err(why) = contexts.accept(&header) {
                ledger.add(Finding::new(codes::LOG_ORDER, why).at(block));
                ledger.unchecked(format!("log records from LSN {at}"));
                return Ok((at, false));
            }
            let checks = header.checks_len.get() as usize;
            let part = Part {
                seq: header.seq.get(),
                flags: header.flags.get(),
                lsn: at,
                block,
                entries: payload.len().saturating_sub(checks),
                payload,
            };
            contexts.add(&header, part, ledger);
            self.generation = self.generation.max(header.generation.get());
            self.durable = self.durable.max(header.durable_lsn.get());
            contexts.apply_durable(self.durable, ledger);
            at += header.blocks();
            chain = header.checksum.get();
        }
        ledger.progress("log", at - tail, self.ring());
        Ok((at, true))
    }

    /// Applies contexts that may not have been durable, up to the first one whose data was lost.
    fn apply_checked(&self, contexts: &mut Contexts, ledger: &mut Ledger<'_>) -> Result<()> {
        while let Some(parts) = contexts.whole.pop_front() {
            for part in &parts {
                if !self.data_holds(part, ledger)? {
                    return Ok(());
                }
            }
            contexts.apply(&parts, ledger);
        }
        Ok(())
    }

    /// Whether the data blocks match the checksums that a record has for them.
    fn data_holds(&self, part: &Part, ledger: &mut Ledger<'_>) -> Result<bool> {
        for check in record::checks(part.payload.get(part.entries..).unwrap_or_default()) {
            let area = self.volume.geometry.data_start()..=self.volume.geometry.total_blocks;
            let sound = check.filter(|(block, crcs)| {
                let end = block.checked_add(crcs.len() as u64);
                area.contains(block) && end.is_some_and(|end| area.contains(&end))
            });
            let Some((block, crcs)) = sound else {
                let message = "a check of blocks that hold no data";
                ledger.add(Finding::new(codes::LOG_ENTRY, message).at(part.block));
                return Ok(false);
            };
            for (block, crc) in (block..).zip(crcs) {
                if checksum::crc(&self.volume.read(block, 1)?) != crc.get() {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Reads the durable LSNs and generations of valid records after the end.
    fn look_beyond(&mut self, end: u64) -> Result<()> {
        let last = end.saturating_add(BEYOND_BLOCKS.min(self.ring()));
        let (mut durable, mut generation) = (self.durable, self.generation);
        let mut behind = 0;
        self.headers(end, last, |lsn, header| {
            if header.lsn.get() == lsn {
                behind += 1;
                durable = durable.max(header.durable_lsn.get());
                generation = generation.max(header.generation.get());
            }
        })?;
        (self.durable, self.generation, self.behind) = (durable, generation, behind);
        Ok(())
    }

    /// Reads the newest generation of any record in the ring.
    fn scan_generations(&mut self, ledger: &mut Ledger<'_>) -> Result<()> {
        let (ring, mut generation) = (self.ring(), self.generation);
        let mut at = 0;
        while at < ring {
            ledger.progress("log", at, ring);
            let next = (at + BEYOND_BLOCKS).min(ring);
            self.headers(at, next, |position, header| {
                if header.lsn.get() % ring == position {
                    generation = generation.max(header.generation.get());
                }
            })?;
            at = next;
        }
        self.generation = generation;
        Ok(())
    }
}

/// A part of a context: a record and its place.
struct Part {
    seq: u64,
    flags: u32,
    lsn: u64,
    block: u64,
    payload: Vec<u8>,
    /// Length in bytes of the entries; the data checksums follow them.
    entries: usize,
}

impl Part {
    fn entries(&self) -> impl Iterator<Item = Result<record::Entry<'_>, Corruption>> {
        let bytes = self.payload.get(..self.entries).unwrap_or_default();
        entries(self.block, bytes)
    }
}

/// Assembles parts into contexts and contexts into the final state.
struct Contexts {
    merged_seq: u64,
    geometry: Geometry,
    nonce: Option<u64>,
    /// Sequence number of the last complete context or mount record.
    last: Option<u64>,
    /// Whether the last record was an fsync record, after which more of its context may follow.
    goes_on: bool,
    /// The parts so far of an incomplete context.
    open: Option<(u64, Vec<Part>)>,
    /// Complete contexts that are not known to be durable together with their data.
    whole: VecDeque<Vec<Part>>,
    overlays: Overlays,
    incomplete: bool,
}

impl Contexts {
    fn new(merged_seq: u64, geometry: Geometry) -> Self {
        Self {
            merged_seq,
            geometry,
            nonce: None,
            last: None,
            goes_on: false,
            open: None,
            whole: VecDeque::new(),
            overlays: Overlays::default(),
            incomplete: false,
        }
    }

    /// Checks that a record may come next; the error says why not.
    fn accept(&mut self, header: &RecordHeader) -> std::result::Result<(), String> {
        let (seq, part, flags) = (header.seq.get(), header.part.get(), header.flags.get());
        if flags & FLAG_MOUNT != 0 {
            if flags & FLAG_LAST == 0 || part != 0 || header.payload_len.get() != 0 {
                return Err("a mount record with contents".into());
            }
            self.open = None;
        } else if self.nonce.is_some_and(|n| n != header.nonce.get()) {
            return Err("a record of another mount without a mount record before it".into());
        }
        self.nonce = Some(header.nonce.get());
        match &self.open {
            Some((open, parts)) if *open == seq && parts.len() as u64 == u64::from(part) => Ok(()),
            Some((open, parts)) => Err(format!(
                "part {} of context {open} expected, part {part} of context {seq} found",
                parts.len()
            )),
            None if part != 0 => Err(format!("context {seq} begins with part {part}")),
            None if seq == 0 => Err("context 0, which no volume has".into()),
            None if self
                .last
                .is_some_and(|last| last >= seq + u64::from(self.goes_on)) =>
            {
                Err(format!("context {seq} behind context {:?}", self.last))
            }
            None => Ok(()),
        }
    }

    fn add(&mut self, header: &RecordHeader, part: Part, ledger: &mut Ledger<'_>) {
        let seq = header.seq.get();
        ledger.stats().log_records += 1;
        let counted = part.entries().count() as u64;
        if counted != u64::from(header.entries.get()) {
            let message = format!("{} entries expected, {counted} found", header.entries);
            self.report(ledger, message, part.block);
        }
        let (_, parts) = self.open.get_or_insert_with(|| (seq, Vec::new()));
        parts.push(part);
        if header.flags.get() & FLAG_LAST != 0 {
            self.last = Some(seq);
            self.goes_on = header.flags.get() & FLAG_FSYNC != 0;
            if let Some((_, parts)) = self.open.take()
                && seq > self.merged_seq
            {
                self.whole.push_back(parts);
            }
        }
    }

    /// Applies the complete contexts before an LSN up to which everything was durable.
    fn apply_durable(&mut self, lsn: u64, ledger: &mut Ledger<'_>) {
        let durable = |parts: &mut Vec<Part>| parts.first().is_some_and(|p| p.lsn < lsn);
        while let Some(parts) = self.whole.pop_front_if(durable) {
            self.apply(&parts, ledger);
        }
    }

    fn apply(&mut self, parts: &[Part], ledger: &mut Ledger<'_>) {
        let roots = parts.last().is_some_and(|p| p.flags & FLAG_ROOTS != 0);
        for part in parts {
            let context = (part.seq, roots);
            for entry in part.entries() {
                let applied = entry
                    .map_err(|c| format!("expected {}, found {}", c.expected, c.found))
                    .and_then(|entry| {
                        let geometry = &self.geometry;
                        self.overlays.apply(&entry, context, part.block, geometry)
                    });
                match applied {
                    Ok(()) => ledger.stats().log_entries += 1,
                    Err(why) => self.report(ledger, why, part.block),
                }
            }
        }
    }

    fn report(&mut self, ledger: &mut Ledger<'_>, message: String, block: u64) {
        self.incomplete = true;
        ledger.add(Finding::new(codes::LOG_ENTRY, message).at(block));
    }

    fn replay(mut self, hash_seed: u64) -> Log {
        self.overlays.derive_names(hash_seed);
        Log {
            overlays: self.overlays,
            seq: self.last.unwrap_or(0).max(self.merged_seq),
            incomplete: self.incomplete,
        }
    }
}
