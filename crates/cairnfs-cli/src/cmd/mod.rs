//! The commands, one module each: its arguments and `run`.

pub mod cat;
pub mod check;
pub mod completions;
pub mod cp;
pub mod crashtest;
pub mod export;
pub mod import;
pub mod info;
pub mod ls;
pub mod mkdir;
pub mod mkfs;
pub mod mount;
pub mod rm;
pub mod stats;
pub mod sync;
pub mod trim;
pub mod umount;
