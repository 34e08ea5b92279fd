//! `cairnfs man`: manual pages, from the same source as `--help`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cairnfs_daemon::failure::AnyError;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

const EXAMPLES: &str = "\
Examples:
  cairnfs man ~/.local/share/man/man1    # then: man cairnfs-mount
  cairnfs man --page mount | man -l -

Exit codes: 0 written; 1 failed; 2 wrong arguments.";

/// Write manual pages, one for each command
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Directory to write them to; it is made if it does not exist
    #[arg(required_unless_present = "page")]
    dir: Option<PathBuf>,
    /// Print the page of one command instead, for example mount or 'backup prune'
    #[arg(long, value_name = "COMMAND", conflicts_with = "dir")]
    page: Option<String>,
}

/// Runs the command.
pub fn run(args: &Args, mut command: clap::Command) -> Result<ExitCode, AnyError> {
    command = command.disable_help_subcommand(true);
    command.build();
    // Only this command has a version: by default the foot of another page is its last word and a blank.
    let source = format!("cairnfs {}", command.get_version().unwrap_or_default());
    match (&args.page, &args.dir) {
        (Some(name), _) => {
            let mut found = &command;
            for word in name.split_whitespace() {
                let inner = found.find_subcommand(word);
                found = inner.ok_or_else(|| format!("there is no command {word}"))?;
            }
            io::stdout().write_all(&page(found, &source)?)?;
        }
        (None, Some(dir)) => {
            std::fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
            write_all(&command, &source, dir)?;
        }
        (None, None) => {}
    }
    Ok(ExitCode::SUCCESS)
}

fn write_all(command: &clap::Command, source: &str, dir: &Path) -> Result<(), AnyError> {
    let path = dir.join(format!("{}.1", name_of(command)));
    std::fs::write(&path, page(command, source)?)
        .map_err(|e| format!("{}: {e}", path.display()))?;
    for inner in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        write_all(inner, source, dir)?;
    }
    Ok(())
}

/// The name of a page: the words of the command, joined by hyphens.
fn name_of(command: &clap::Command) -> String {
    let name = command.get_display_name().unwrap_or(command.get_name());
    name.replace(' ', "-")
}

/// A page. What follows the options in the help keeps its lines: it has examples and tables.
fn page(command: &clap::Command, source: &str) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone())
        .title(name_of(command))
        .source(source);
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    man.render_description_section(&mut out)?;
    if command.get_arguments().any(|arg| !arg.is_hide_set()) {
        man.render_options_section(&mut out)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(&mut out)?;
    }
    if let Some(text) = command.get_after_help() {
        let mut roff = Roff::new();
        roff.control("SH", ["NOTES"]).control("nf", []);
        for line in text.to_string().lines() {
            roff.text([roman(line)]);
        }
        roff.control("fi", []).to_writer(&mut out)?;
    }
    if command.get_version().is_some() {
        man.render_version_section(&mut out)?;
    }
    Ok(out)
}
