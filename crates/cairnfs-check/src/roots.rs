//! Finds the files' tree in the root tree and walks both.

use cairnfs::error::Result;
use cairnfs::format::item::{RawRoot, decode_root};
use cairnfs::format::key::{Key, Kind, MAIN_ROOT, VOLUME_ROOT};

use crate::codes;
use crate::holes::{Holes, KeyRange};
use crate::log::Replay;
use crate::overlay::{Item, Merge};
use crate::report::{Finding, Ledger};
use crate::structure::Structure;
use crate::tree::{Visitor, Walker};
use crate::volume::Volume;

/// Walks the trees and passes the logical state of the files to `structure`. Returns the files'
/// root.
pub(crate) fn walk(
    volume: &Volume<'_>,
    replay: &Replay,
    structure: &mut Structure<'_>,
    ledger: &mut Ledger<'_>,
) -> Result<Option<RawRoot>> {
    let superblock = &volume.superblock;
    let mut walker = Walker::new(volume, replay.seq);
    let mut table = Table::default();
    let height = superblock.root_height.get();
    walker.walk(&superblock.root, height, &mut table, ledger)?;
    let main = table.main;
    match &main {
        Some(root) => {
            let mut merge = Merge::new(&replay.overlay, superblock.hash_seed.get(), structure);
            walker.walk(&root.ptr, root.height.get(), &mut merge, ledger)?;
            merge.finish(ledger)?;
        }
        None => {
            if !table
                .holes
                .hides(&Key::new(u64::from(MAIN_ROOT), Kind::Root, 0))
            {
                let message = format!("no root {MAIN_ROOT} in the table of roots");
                ledger.add(Finding::new(codes::ROOT_MISSING, message));
            }
            ledger.unchecked("all files: their root is not known");
            structure.lose_everything();
        }
    }
    structure.finish(walker.used, ledger);
    Ok(main)
}

/// Reads the table of roots.
#[derive(Default)]
struct Table {
    main: Option<RawRoot>,
    holes: Holes,
}

impl Visitor for Table {
    fn item(&mut self, item: &Item<'_>, ledger: &mut Ledger<'_>) -> Result<()> {
        let key = item.key;
        let sound = key.kind == Kind::Root && key.offset == 0;
        if !sound || key.object == u64::from(VOLUME_ROOT) {
            let message = format!("{key:?} in the volume's own root");
            ledger.add(Finding::new(codes::UNEXPECTED_ITEM, message).at(item.block));
            return Ok(());
        }
        let root = decode_root(item.value).and_then(|root| {
            if key.object != u64::from(MAIN_ROOT) {
                return Err(format!(
                    "root {}, which this version cannot have",
                    key.object
                ));
            }
            Ok(root)
        });
        match root {
            Ok(root) => self.main = Some(root),
            Err(why) => {
                ledger.add(Finding::new(codes::ROOT_ITEM, why).at(item.block));
                self.holes.push(KeyRange::one(key));
            }
        }
        Ok(())
    }

    fn hole(&mut self, hole: KeyRange, _: &mut Ledger<'_>) -> Result<()> {
        self.holes.push(hole);
        Ok(())
    }
}
