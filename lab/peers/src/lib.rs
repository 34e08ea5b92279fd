//! CairnFS beside embedded stores: the same named blobs put, read, listed and deleted in each, in
//! one process, with equal durability.
//!
//! `store` has the stores under one interface, `load` what is done to one of them, `args` the
//! command line, `rounds` runs the loads on all stores in turn, each in a process of its own;
//! `table` presents the figures. A store is built only with the cargo feature of its
//! name; `all` builds them all.

mod args;
mod load;
mod rounds;
mod store;
mod table;

use std::io::Write;

pub use args::Args;
use cairnfs_bench::Result;

/// Runs the command in `args`, and prints the figures to `out`.
///
/// # Errors
/// Invalid arguments, or the first failure of a store or of `out`.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    if let Some(child) = &args.child {
        let (peer, load) = serde_json::from_str(child)?;
        let figures = load::run(peer, &load, &args.dir)?;
        return Ok(serde_json::to_writer(out, &figures)?);
    }
    args.check()?;
    let found = rounds::measure(args)?;
    table::print(&found, out)?;
    if let Some(path) = &args.json {
        serde_json::to_writer_pretty(std::fs::File::create(path)?, &found)?;
    }
    Ok(())
}
