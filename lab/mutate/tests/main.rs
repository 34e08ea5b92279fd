//! Damaged volumes and streams, in one program: it links the library once.

mod bases;
mod corpus;
mod front;
mod graphs;
#[path = "hostile/main.rs"]
mod hostile;
mod logged;
#[path = "hostile/memory.rs"]
mod memory;
mod named;
mod nodes;
mod received;
mod ring;
mod space;

use cairnfs::fs::Options;

/// Options without threads of the volume's own.
fn options(read_only: bool) -> Options {
    Options {
        read_only,
        workers: false,
        durability_interval: None,
        ..Options::default()
    }
}
