//! The command: see the crate's documentation.

use std::process::ExitCode;

use clap::Parser;

/// Compare CairnFS with embedded stores, in one process and with equal durability.
#[derive(Parser)]
#[command(name = "cairnfs-peers", version)]
struct Command {
    #[command(flatten)]
    args: cairnfs_peers::Args,
}

fn main() -> ExitCode {
    match cairnfs_peers::run(&Command::parse().args, &mut std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("cairnfs-peers: {e}");
            ExitCode::FAILURE
        }
    }
}
