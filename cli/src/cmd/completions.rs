//! `cairnfs completions`: scripts with which a shell completes the arguments of this program.

use std::io::{self, Write};
use std::process::ExitCode;

use cairnfs_daemon::failure::AnyError;

const EXAMPLES: &str = "\
Examples:
  cairnfs completions bash > ~/.local/share/bash-completion/completions/cairnfs
  cairnfs completions zsh > ~/.zfunc/_cairnfs";

/// Write a completion script for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The shell
    shell: clap_complete::Shell,
}

/// Runs the command.
pub fn run(args: Args, command: &mut clap::Command) -> Result<ExitCode, AnyError> {
    // The generator panics on a write error; a buffer cannot fail.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, command, "cairnfs", &mut script);
    io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
