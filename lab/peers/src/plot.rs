//! The figures as bars: one picture for each load, with a panel for each figure that a reader
//! chooses a store by.

use std::fs;
use std::path::Path;

use cairnfs_bench::Result;
use cairnfs_bench::parts::readable;
use cairnfs_bench::parts::svg::{Anchor, INK, Picture, Type};

use crate::load::Load;
use crate::rounds::{Found, Row, Table};
use crate::store::Peer;
use crate::table::title;

/// The figures that are drawn.
const DRAWN: [(&str, &str); 6] = [
    ("write", "blobs/s"),
    ("read", "blobs/s"),
    ("list", "names/s"),
    ("delete", "blobs/s"),
    ("all", "bytes written per byte"),
    ("all", "anonymous memory, MiB"),
];

const WIDTH: f64 = 1120.0;
const MARGIN: f64 = 24.0;
const GAP: f64 = 40.0;
const PANEL: f64 = (WIDTH - 2.0 * MARGIN - GAP) / 2.0;
const TOP: f64 = 60.0;
const FOOT: f64 = 70.0;
const BAR: f64 = 20.0;
const PITCH: f64 = 27.0;
const HEADING: f64 = 46.0;
const NAMES: f64 = 80.0;
/// Width for a value after the longest bar.
const VALUES: f64 = 70.0;

/// Writes the pictures to a directory, which is created if it does not exist.
///
/// # Errors
/// Errors of the files.
pub fn write(found: &Found, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir)?;
    for table in &found.tables {
        fs::write(dir.join(file_name(&table.load)), picture(found, table))?;
    }
    Ok(())
}

fn file_name(load: &Load) -> String {
    let (size, when) = (load.size, load.durability.name());
    match load.threads {
        1 => format!("peers-{size}-{when}.svg"),
        more => format!("peers-{size}-{when}-{more}-threads.svg"),
    }
}

fn picture(found: &Found, table: &Table) -> String {
    let mut picture = Picture::new(WIDTH);
    let heading = (MARGIN, 34.0);
    picture.text(heading, Anchor::Start, Type::Title, &title(&table.load));
    let drawn = DRAWN.iter().filter_map(|drawn| {
        let mut rows = table.rows.iter();
        rows.find(|row| (row.step, row.figure) == *drawn)
    });
    let height = HEADING + PITCH * found.stores.len() as f64 + 18.0;
    let mut panels = 0;
    for row in drawn {
        let (column, line) = ((panels % 2) as f64, (panels / 2) as f64);
        let place = (MARGIN + column * (PANEL + GAP), TOP + line * height);
        panel(&mut picture, &found.stores, row, place);
        panels += 1;
    }
    let mut y = TOP + height * f64::from(u32::div_ceil(panels, 2)) + 14.0;
    let remark = "Bars: median; whiskers: least and most of all rounds.";
    for line in std::iter::once(remark).chain(found.said.iter().skip(1).map(String::as_str)) {
        picture.text((MARGIN, y), Anchor::Start, Type::Small, line);
        y += 18.0;
    }
    picture.finish(y + FOOT - 54.0)
}

fn panel(picture: &mut Picture, stores: &[Peer], row: &Row, (x, y): (f64, f64)) {
    picture.text((x, y + 14.0), Anchor::Start, Type::Heading, row.step);
    let better = if row.more_is_better {
        "longer is better"
    } else {
        "shorter is better"
    };
    let figure = format!("{}; {better}", row.figure);
    picture.text((x, y + 33.0), Anchor::Start, Type::Small, &figure);
    let most = row.cells.iter().flatten().map(|cell| cell.most);
    let (left, room) = (x + NAMES, PANEL - NAMES - VALUES);
    let scale = room / most.fold(f64::MIN_POSITIVE, f64::max);
    for (number, (store, cell)) in stores.iter().zip(&row.cells).enumerate() {
        let top = y + HEADING + PITCH * number as f64;
        let middle = top + BAR / 2.0;
        let baseline = middle + 5.0;
        let name = (left - 8.0, baseline);
        picture.text(name, Anchor::End, Type::Plain, store.name());
        let Some(cell) = cell else {
            let place = (left + 6.0, baseline);
            picture.text(place, Anchor::Start, Type::Small, "not counted");
            continue;
        };
        let size = (cell.median * scale, BAR);
        picture.rect((left, top), size, colour(*store), colour(*store));
        let (from, to) = (left + cell.least * scale, left + cell.most * scale);
        picture.line((from, middle), (to, middle), INK, 1.5);
        for end in [from, to] {
            picture.line((end, middle - 5.0), (end, middle + 5.0), INK, 1.5);
        }
        let value = (to + 8.0, baseline);
        picture.text(value, Anchor::Start, Type::Small, &readable(cell.median));
    }
}

/// A colour for each store, distinguishable also with colour vision deficiency.
fn colour(store: Peer) -> &'static str {
    match store {
        Peer::Cairnfs => "#0072b2",
        Peer::Files => "#9a9a9a",
        Peer::Sqlite => "#e69f00",
        Peer::Lmdb => "#009e73",
        Peer::Redb => "#cc79a7",
        Peer::Fjall => "#d55e00",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounds::tests::found;

    #[test]
    fn picture_has_a_bar_for_each_counted_value() {
        let dir = tempfile::tempdir().unwrap();
        write(&found(), dir.path()).unwrap();
        let text = fs::read_to_string(dir.path().join("peers-100-batch.svg")).unwrap();
        assert_eq!(text.matches("fill=\"#0072b2\"").count(), 3);
        assert_eq!(text.matches("not counted").count(), 1);
        assert!(text.contains("7500") && !text.contains("NaN"));
    }
}
