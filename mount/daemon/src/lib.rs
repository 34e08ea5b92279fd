//! The daemon of a volume: opens it, serves its mounts, and closes it when the last one has ended.
//!
//! [`serving`] is the whole of it. `mount_service` decides which mounts are served, [`opening`] opens what they
//! show, `auto_snapshots` makes snapshots by itself, [`backup_worker`] ships the volume to a backup, and `working` has
//! commands performed on the open volume, which are known by the trait of [`commands`] only. [`handover`]
//! is the channel on which commands call.
//!
//! Commands share the rest with it: [`failure`] and [`exit`] are failures as users see them, with
//! exit codes, [`holder`] tells what holds a volume, [`reference`] finds branches and snapshots. The
//! crate knows no command, and prints nothing but what a caller or a log is told.

#[macro_use]
pub mod say;

mod auto_snapshots;
pub mod backup_worker;
pub mod commands;
pub mod damage;
pub mod exit;
pub mod failure;
pub mod handover;
pub mod holder;
pub mod inside;
mod mount_service;
pub mod mounts;
mod notify;
pub mod opening;
pub mod raw_path;
pub mod reference;
pub mod serving;
pub mod shell;
mod syslog;
mod text;
pub mod times;
mod working;
pub mod writer;
