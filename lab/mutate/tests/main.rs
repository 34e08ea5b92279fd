//! Damaged volumes and streams, in one program: it links the library once.

mod bases;
mod corpus;
mod front;
mod graphs;
#[path = "hostile/main.rs"]
mod hostile;
#[path = "hostile/memory.rs"]
mod memory;
mod named;
mod nodes;
mod received;
mod space;
