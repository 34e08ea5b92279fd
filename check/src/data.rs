//! Reads the contents of all files and verifies the checksum of each block.

use cairnfs_disk::error::Result;
use cairnfs_disk::format::item::decode_extent;
use cairnfs_disk::format::key::Kind;
use cairnfs_disk::format::{BLOCK_SIZE, checksum};

use crate::checked::Checked;
use crate::checked_volume::Volume;
use crate::codes;
use crate::holes::KeyRange;
use crate::log::Replay;
use crate::overlay::Sink;
use crate::report::{Finding, Ledger};
use crate::visit::{Inherited, Item};

/// Verifies all written extents in the logical state of a root's files, except those in leaves that
/// it inherits.
pub(crate) fn check(
    volume: &Volume<'_>,
    replay: &Replay,
    root: &Checked<'_>,
    ledger: &mut Ledger<'_>,
) -> Result<()> {
    let total = ledger.stats().data_blocks;
    let mut reader = Reader {
        volume,
        inherited: root.inherited,
        ledger,
        done: 0,
        total,
    };
    root.walk_again(volume, replay, &mut reader)?;
    ledger.progress("data", total, total);
    Ok(())
}

struct Reader<'a, 'd, 'p> {
    volume: &'a Volume<'d>,
    /// What was verified with the root's parent.
    inherited: Inherited,
    ledger: &'a mut Ledger<'p>,
    done: u64,
    total: u64,
}

impl Sink for Reader<'_, '_, '_> {
    fn indexed(&mut self, _: &Item<'_>, _: bool, _: &mut Ledger<'_>) {}

    fn item(&mut self, item: &Item<'_>, _: &mut Ledger<'_>) -> Result<()> {
        if item.key.kind != Kind::Extent {
            return Ok(());
        }
        let Ok((raw, crcs)) = decode_extent(item.value) else {
            return Ok(());
        };
        let (block, len) = (raw.block.get(), u64::from(raw.len.get()));
        if !self.volume.geometry.in_data(block, len) {
            return Ok(());
        }
        self.done += len;
        // A leaf of the root's own has checksums of its own, also of an extent that is inherited.
        let verified = item.birth.is_some_and(|birth| self.inherited.has(birth));
        if crcs.is_empty() || verified {
            return Ok(());
        }
        let bytes = self.volume.read(block, len)?;
        for (i, (data, crc)) in (0u64..).zip(bytes.chunks(BLOCK_SIZE).zip(crcs)) {
            let found = checksum::crc(data);
            self.ledger.stats().verified_blocks += 1;
            if found != crc.get() {
                let offset = item.key.offset.saturating_add(i);
                let message = format!(
                    "file offset {}: expected {:08x}, found {found:08x}",
                    offset.saturating_mul(BLOCK_SIZE as u64),
                    crc.get()
                );
                let finding = Finding::new(codes::DATA_CHECKSUM, message);
                self.ledger.add(finding.at(block + i).of(item.key.object));
            }
        }
        self.ledger.progress("data", self.done, self.total);
        Ok(())
    }

    fn hole(&mut self, _: KeyRange) {}
}
