//! What commands and the daemon of a volume share: failures as users see them, and how messages name
//! things.

pub mod commands;
pub mod exit;
pub mod failure;
pub mod holder;
pub mod inside;
pub mod mounts;
pub mod raw_path;
pub mod reference;
pub mod shell;
pub mod writer;
