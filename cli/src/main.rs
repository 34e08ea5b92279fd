//! The `cairnfs` command.
//!
//! Parses the arguments, runs one command of [`cmd`], and prints its failure. Called as
//! `mount.cairnfs`, `mkfs.cairnfs` or `fsck.cairnfs`, the program is the helper of mount(8),
//! mkfs(8) and fsck(8); as `umount.cairnfs` or `umount.fuse.cairnfs`, the helper of umount(8).

#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use(say)]
extern crate cairnfs_daemon;

mod cmd;
mod copied;
mod daemon;
mod handover;
mod helper;
mod inherited;
mod interrupt;
mod look;
mod mount_location;
mod named_volume;
mod opened_roots;
mod output;
mod served;
mod ship;
mod size;
mod spec;
mod stage;
mod tree;
mod verbs;
mod volume_by_path;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, LazyLock};

use cairnfs_daemon::failure::{self, AnyError, BROKEN_PIPE, unprinted};
use clap::{CommandFactory, Parser, Subcommand};

const EXAMPLES: &str = "\
Examples:
  cairnfs mkfs --size 10G disk.img          make a volume
  cairnfs mount disk.img ~/disk             mount it, without root
  cairnfs umount ~/disk
  cairnfs cp -a photos disk.img:/           use it without mounting
  cairnfs check disk.img

`cairnfs COMMAND --help` shows each command's options and examples.";

/// The version, and the commit that it was built from if that is known.
const VERSION: &str = match option_env!("CAIRNFS_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// The version, and which optional parts this program has.
fn long_version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let parts = cairnfs_backup::parts().into_iter().map(|part| {
            let is_in = if part.is_in { "built in" } else { "left out" };
            format!("\n{} ({}): {is_in}", part.feature, part.about)
        });
        format!("{VERSION}{}", parts.collect::<String>())
    });
    &TEXT
}

/// A crash-safe file system in one file or block device
#[derive(Debug, Parser)]
#[command(name = "cairnfs", version = VERSION, long_version = long_version(), after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Mkfs(cmd::mkfs::Args),
    Mount(cmd::mount::Args),
    Umount(cmd::umount::Args),
    Sync(cmd::sync::Args),
    Stats(cmd::stats::Args),
    Trim(cmd::trim::Args),
    Check(cmd::check::Args),
    Info(cmd::info::Args),
    Ls(cmd::ls::Args),
    Cat(cmd::cat::Args),
    Cp(cmd::cp::Args),
    Mkdir(cmd::mkdir::Args),
    Rm(cmd::rm::Args),
    Import(cmd::import::Args),
    Export(cmd::export::Args),
    #[command(flatten)]
    Verb(verbs::Verb),
    Backup(cmd::backup::Args),
    RestoreFrom(cmd::restore_from::Args),
    Try(cmd::r#try::Args),
    Run(cmd::run::Args),
    Crashtest(cmd::crashtest::Args),
    Completions(cmd::completions::Args),
    Man(cmd::man::Args),
}

/// Exit code of fsck(8) for a check that could not be done.
const OPERATIONAL: u8 = 8;
/// Exit code of monitoring plugins for what could not be found out.
const UNKNOWN: u8 = 3;

fn main() -> ExitCode {
    cairnfs_allocator::set_up();
    if let Err(why) = survive_size_limits() {
        say!("cairnfs: {why}");
        return ExitCode::from(1);
    }
    let args = match translate(std::env::args_os().collect()) {
        Ok(args) => args,
        Err(why) => {
            say!("cairnfs: {why}");
            return ExitCode::from(1);
        }
    };
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) => {
            let printed = error.print();
            return match (error.use_stderr(), printed) {
                (true, _) => ExitCode::from(usage_code(&args)),
                (false, Ok(())) => ExitCode::SUCCESS,
                (false, Err(_)) => ExitCode::from(BROKEN_PIPE),
            };
        }
    };
    let code = match run(cli.command) {
        Ok(code) => code,
        Err(error) => ExitCode::from(failure::report(error.as_ref(), &mut std::io::stderr())),
    };
    interrupt::deliver();
    code
}

/// Makes a write beyond the file size limit fail with `EFBIG`, by a handler for SIGXFSZ. Unlike
/// an ignored signal, a handler is not inherited by programs that are started here.
fn survive_size_limits() -> std::io::Result<()> {
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default()).map(drop)
}

fn run(command: Command) -> Result<ExitCode, AnyError> {
    match command {
        Command::Mkfs(args) => cmd::mkfs::run(args),
        Command::Mount(args) => cmd::mount::run(args),
        Command::Umount(args) => cmd::umount::run(args),
        Command::Sync(args) => cmd::sync::run(args),
        Command::Stats(args) => cmd::stats::run(args).map_err(|e| unprinted(e, UNKNOWN)),
        Command::Trim(args) => cmd::trim::run(args),
        Command::Check(args) => cmd::check::run(args).map_err(|e| unprinted(e, OPERATIONAL)),
        Command::Info(args) => cmd::info::run(args),
        Command::Ls(args) => cmd::ls::run(args),
        Command::Cat(args) => cmd::cat::run(args),
        Command::Cp(args) => cmd::cp::run(args),
        Command::Mkdir(args) => cmd::mkdir::run(args),
        Command::Rm(args) => cmd::rm::run(args),
        Command::Import(args) => cmd::import::run(args),
        Command::Export(args) => cmd::export::run(args),
        Command::Try(args) => cmd::r#try::run(&args),
        Command::Run(args) => cmd::run::run(&args),
        Command::Backup(args) => cmd::backup::run(args),
        Command::RestoreFrom(args) => cmd::restore_from::run(&args),
        Command::Verb(verb) => verbs::run(&verb),
        Command::Crashtest(args) => {
            cmd::crashtest::run(args).map_err(|e| unprinted(e, OPERATIONAL))
        }
        Command::Completions(args) => cmd::completions::run(args, &mut Cli::command()),
        Command::Man(args) => cmd::man::run(&args, Cli::command()),
    }
}

/// Translates the arguments if the program was called under another name.
fn translate(args: Vec<OsString>) -> Result<Vec<OsString>, String> {
    if let Some(translated) = helper::helper_arguments(&args) {
        return translated;
    }
    let name = args.first().and_then(|name| Path::new(name).file_name());
    let command = match name.and_then(|name| name.to_str()) {
        Some("mkfs.cairnfs") => "mkfs",
        Some("fsck.cairnfs") => "check",
        Some("umount.cairnfs" | "umount.fuse.cairnfs") => "umount",
        _ => return Ok(args),
    };
    let ours = ["cairnfs", command].into_iter().map(OsString::from);
    Ok(ours.chain(args.into_iter().skip(1)).collect())
}

/// The exit code for invalid arguments, as in the tool of the same name (fsck(8), mount(8),
/// mkfs(8)).
fn usage_code(args: &[OsString]) -> u8 {
    match args.get(1).and_then(|command| command.to_str()) {
        Some("check" | "crashtest") => 16,
        Some("stats") => UNKNOWN,
        Some("mkfs" | "mount" | "umount") => 1,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(args: &[&str]) -> Vec<OsString> {
        args.iter().map(OsString::from).collect()
    }

    #[test]
    fn argument_declarations_are_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_examples() {
        for command in Cli::command().get_subcommands() {
            let ours = ["mount", "umount", "sync"];
            if !ours.contains(&command.get_name()) {
                assert!(command.get_after_help().is_some(), "{}", command.get_name());
                assert!(command.get_about().is_some(), "{}", command.get_name());
            }
        }
    }

    #[test]
    fn program_name_selects_the_command() {
        assert_eq!(
            translate(strings(&["/sbin/fsck.cairnfs", "-a", "/dev/x"])),
            Ok(strings(&["cairnfs", "check", "-a", "/dev/x"]))
        );
        assert_eq!(
            translate(strings(&["mkfs.cairnfs", "/dev/x"])),
            Ok(strings(&["cairnfs", "mkfs", "/dev/x"]))
        );
        let plain = strings(&["./cairnfs", "ls"]);
        assert_eq!(translate(plain.clone()), Ok(plain));
    }

    #[test]
    fn usage_errors_have_exit_codes_of_replaced_tools() {
        assert_eq!(usage_code(&strings(&["cairnfs", "check", "--no"])), 16);
        assert_eq!(usage_code(&strings(&["cairnfs", "mkfs"])), 1);
        assert_eq!(usage_code(&strings(&["cairnfs", "nonsense"])), 2);
    }
}
