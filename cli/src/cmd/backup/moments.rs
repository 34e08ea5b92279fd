//! How it is told which moments can be read wholly, and which cannot.

use std::fmt::Write;

use cairnfs_backup::format::head::Moment;
use cairnfs_backup::{Catalogue, DamagedMoment};
use serde::Serialize;

use crate::output::counted;
use crate::size::human;

/// A moment of which not everything can be read, as JSON.
#[derive(Serialize)]
pub struct Json {
    moment: u64,
    /// Bytes of its image that cannot be read; null: none can.
    lost: Option<u64>,
}

/// The same moments as JSON.
pub fn json(damaged: &[DamagedMoment]) -> Vec<Json> {
    let all = damaged.iter().map(|moment| Json {
        moment: moment.number,
        lost: moment.blocks.map(|blocks| blocks * 4096),
    });
    all.collect()
}

/// A line for each row of moments of which the same is true; nothing if all can be read.
pub fn lines(catalogue: &Catalogue, damaged: &[DamagedMoment]) -> Vec<String> {
    if damaged.is_empty() {
        return Vec::new();
    }
    let lost = |moment: &Moment| {
        let at = damaged.binary_search_by_key(&moment.number, |it| it.number);
        at.ok().and_then(|at| damaged.get(at)).map(|it| it.blocks)
    };
    let rows = catalogue.moments().chunk_by(|a, b| lost(a) == lost(b));
    rows.map(|row| line(row, row.first().and_then(lost)))
        .collect()
}

fn line(row: &[Moment], lost: Option<Option<u64>>) -> String {
    let number = |moment: Option<&Moment>| moment.map_or(0, |moment| moment.number);
    let (first, last) = (number(row.first()), number(row.last()));
    let mut text = match row.len() {
        1 => format!("moment {first}"),
        n => format!(
            "moments {first} to {last} ({})",
            counted(n as u64, "moment", "moments")
        ),
    };
    let each = if row.len() > 1 { " of each" } else { "" };
    // A string takes everything.
    let _ = match lost {
        None => write!(text, ": whole"),
        Some(None) => write!(text, ": cannot be restored"),
        Some(Some(blocks)) => write!(text, ": {}{each} cannot be read", human(blocks * 4096)),
    };
    text
}
