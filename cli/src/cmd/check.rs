//! `cairnfs check`: checks a volume for damage, as fsck(8) does. Nothing is repaired.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use cairnfs::Error;
use cairnfs_check::codes::{
    BITMAP_CHECKSUM, BLOCK_NOT_ALLOCATED, BLOCK_SHARED, CHECKPOINT, DATA_CHECKSUM,
    DEVICE_TOO_SMALL, FREE_COUNT, GROUP_FREE_COUNT, LOG_DAMAGED, LOG_ENTRY, LOG_ORDER, ROOT_ITEM,
    ROOT_LINEAGE, ROOT_MISSING, SUPERBLOCK_COPY, SUPERBLOCK_FRONT, SUPERBLOCK_LOST,
    SUPERBLOCK_MISMATCH, SUPERBLOCK_SLOT, TABLE_CHECKSUM, TABLE_ENTRY, TOO_MANY,
};
use cairnfs_check::{CheckOptions, Finding, Report};
use cairnfs_daemon::failure::{AnyError, Failure, show_bytes, shown};
use cairnfs_daemon::shell::{word, word_of_path};
use cairnfs_disk::device::{Access as DeviceAccess, Device, FileDevice};
use cairnfs_fuse::mountinfo;
use serde::Serialize;

use crate::named_volume;
use crate::output::{self, Progress, counted};
use crate::volume_by_path::{Access, Volume};

/// Exit code: damage was found and is still there.
const ERRORS_LEFT: u8 = 4;
/// Exit code: the volume could not be checked.
const OPERATIONAL: u8 = 8;

/// Names of branches and snapshots that are shown where main cannot be read.
const SHOWN: usize = 8;

/// Damage of the record of free space.
const OF_SPACE: [&str; 6] = [
    TABLE_CHECKSUM,
    TABLE_ENTRY,
    BITMAP_CHECKSUM,
    GROUP_FREE_COUNT,
    FREE_COUNT,
    BLOCK_NOT_ALLOCATED,
];
/// Damage outside of the trees of files, of the record of free space and of contents.
const OF_VOLUME: [&str; 13] = [
    DEVICE_TOO_SMALL,
    SUPERBLOCK_SLOT,
    SUPERBLOCK_MISMATCH,
    SUPERBLOCK_FRONT,
    SUPERBLOCK_COPY,
    SUPERBLOCK_LOST,
    CHECKPOINT,
    LOG_DAMAGED,
    LOG_ORDER,
    LOG_ENTRY,
    ROOT_MISSING,
    ROOT_ITEM,
    ROOT_LINEAGE,
];

const EXAMPLES: &str = "\
Examples:
  cairnfs check disk.img           the structure, in proportion to the metadata
  cairnfs check --data disk.img    also the checksums of all contents

The volume must not be in use. Nothing is changed or repaired: to save the
readable part of a damaged volume, use `cairnfs export`. What ends the damage is
printed last: `cairnfs rm --damaged` removes what is damaged in the index of
branches, `cairnfs drop` a damaged snapshot, and a file with damaged contents is
written anew or removed.

A note is no error: a superblock or durable mark that other places have is not in
all of its places, as a power cut or damage leaves it, and is written anew by the
next changes.

Exit codes, as in fsck(8): 0 no errors, 4 errors found and left, 8 the volume
could not be checked, 16 usage.";

/// Check a volume for damage (nothing is repaired)
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// File or block device
    volume: PathBuf,
    /// Also read all contents and verify their checksums
    #[arg(short, long)]
    data: bool,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
    /// Change nothing (always so)
    #[arg(short)]
    n: bool,
    /// Accepted for fsck(8); nothing is repaired
    #[arg(short)]
    y: bool,
    /// Accepted for fsck(8); nothing is repaired
    #[arg(short)]
    p: bool,
    /// Accepted for fsck(8); nothing is repaired
    #[arg(short)]
    a: bool,
    /// Check even if the volume seems clean (always so)
    #[arg(short)]
    f: bool,
}

#[derive(Serialize)]
struct JsonReport {
    volume: String,
    clean: bool,
    files: u64,
    directories: u64,
    findings: Vec<JsonFinding>,
    /// Conditions that are unusual, but not errors.
    notes: Vec<String>,
}

#[derive(Serialize)]
struct JsonFinding {
    code: &'static str,
    message: String,
    block: Option<u64>,
    inode: Option<u64>,
    path: Option<String>,
    /// The snapshot that has it; none for a branch, and for the volume as a whole.
    snapshot: Option<String>,
}

/// Runs the command.
pub fn run(mut args: Args) -> Result<ExitCode, AnyError> {
    if args.y || args.p || args.a {
        say!("cairnfs: -y, -p and -a are accepted, but nothing is repaired");
    }
    if mountinfo::is_directory(&args.volume) {
        // The volume that is mounted there: one that is only read can be checked.
        let file = named_volume::file_of(&args.volume);
        args.volume = file.map_err(|failure| failure.code(OPERATIONAL))?;
    }
    let report = examine(&args)?;
    let clean = report.findings.is_empty();
    if args.json {
        output::json(&JsonReport {
            volume: shown(&args.volume),
            clean,
            files: report.stats.files,
            directories: report.stats.directories,
            notes: report.notes.iter().map(note).collect(),
            findings: report.findings.into_iter().map(json_finding).collect(),
        })?;
    } else {
        print_report(&args, &report)?;
    }
    Ok(ExitCode::from(if clean { 0 } else { ERRORS_LEFT }))
}

fn examine(args: &Args) -> Result<Report, Failure> {
    let fail = |e: Error| Failure::opening(&args.volume, &e).code(OPERATIONAL);
    let device = FileDevice::open(&args.volume, DeviceAccess::ReadOnly).map_err(fail)?;
    check_device(&device, args.data, args.json).map_err(fail)
}

/// Checks the volume on a device, with `data` all contents of files too, and shows the progress
/// unless `quiet`.
///
/// # Errors
/// The device cannot be read.
pub fn check_device(device: &dyn Device, data: bool, quiet: bool) -> Result<Report, Error> {
    let progress = Progress::steps("check", quiet);
    cairnfs_check::check(device, &CheckOptions { data }, &mut |at| {
        progress.phase(at.phase);
        progress.set(at.done, at.total);
    })
}

/// Whether damage prevents opening the volume with its log, also to save what is before the damage.
fn log_is_lost(report: &Report) -> bool {
    has_one(report, &[SUPERBLOCK_LOST, LOG_ENTRY])
}

fn has_one(report: &Report, codes: &[&str]) -> bool {
    report.findings.iter().any(|f| codes.contains(&f.code))
}

/// What can be read of a damaged volume.
#[derive(Default)]
struct Saved {
    /// How to save it, in lines; none if nothing can be read.
    lines: Vec<String>,
    /// Whether the newest state can be opened.
    opens: bool,
    /// Whether its files can be found from its root directory.
    has_root: bool,
}

/// Finds out how an export can read a damaged volume.
fn saved(args: &Args, report: &Report) -> Saved {
    let options = [
        ("", Access::Salvage),
        ("--no-recovery ", Access::Unrecovered),
    ];
    let mut saved = Saved::default();
    let word_of_volume = word_of_path(&args.volume);
    for (option, access) in options.into_iter().skip(usize::from(log_is_lost(report))) {
        let Ok(volume) = Volume::try_open(&args.volume, access) else {
            continue;
        };
        let export = format!("cairnfs export {option}{word_of_volume}");
        saved.opens |= option.is_empty();
        if volume.root().is_ok() {
            saved.has_root = option.is_empty();
            saved.lines.extend([
                format!("Save what can be read with: {export} DIR"),
                format!("or, of a branch or snapshot: {export}@NAME DIR"),
            ]);
            break;
        }
        let roots = volume.fs().roots().into_iter().filter_map(|root| root.name);
        let reads = |name: &String| {
            let tree = volume.at(Some(name), access);
            tree.is_ok_and(|tree| tree.root().is_ok())
        };
        let names = roots.filter(reads).take(SHOWN);
        let lines = names.map(|name| {
            format!(
                "Save {} with: {export}@{} DIR",
                show_bytes(name.as_bytes()),
                word(&name)
            )
        });
        let lines: Vec<String> = lines.collect();
        if saved.lines.is_empty() {
            saved.lines = lines;
        }
    }
    saved
}

/// What may be damage and harms nothing.
fn note(note: &Finding) -> String {
    let block = note.block.map(|block| format!(" (block {block})"));
    let (code, message) = (note.code, &note.message);
    format!("{code}: {message}{}", block.unwrap_or_default())
}

fn json_finding(finding: Finding) -> JsonFinding {
    JsonFinding {
        code: finding.code,
        message: finding.message,
        block: finding.block,
        inode: finding.ino,
        path: finding.path.map(|path| show_bytes(&path)),
        snapshot: finding.frozen.filter(|name| !name.is_empty()),
    }
}

fn print_report(args: &Args, report: &Report) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for finding in &report.findings {
        write!(
            out,
            "{}: {}",
            finding.code,
            show_bytes(finding.message.as_bytes())
        )?;
        if let Some(block) = finding.block {
            write!(out, " (block {block})")?;
        }
        if let Some(ino) = finding.ino {
            write!(out, " (inode {ino})")?;
        }
        if let Some(path) = &finding.path {
            write!(out, " in {}", show_bytes(path))?;
        }
        writeln!(out)?;
    }
    for found in &report.notes {
        writeln!(out, "note: {}", note(found))?;
    }
    let volume = shown(&args.volume);
    let stats = &report.stats;
    let holds = format!(
        "{}, {}",
        counted(stats.files, "file", "files"),
        counted(stats.directories, "directory", "directories")
    );
    match report.findings.len() {
        0 if args.data => writeln!(out, "{volume}: clean, contents too; {holds}"),
        0 => writeln!(out, "{volume}: clean; {holds}"),
        n => {
            let errors = counted(n as u64, "error", "errors");
            writeln!(out, "{volume}: {errors}, nothing was repaired; {holds}")?;
            let mut saved = saved(args, report);
            let ends = if saved.opens {
                ends_of_damage(report, &word_of_path(&args.volume), &saved)
            } else {
                Vec::new()
            };
            saved.lines.extend(ends);
            if saved.lines.is_empty() {
                saved.lines.push(
                    "Nothing of it can be opened, so nothing can be exported: fetch it again if it was cut \
                     off on its way, or restore it from a backup (cairnfs restore-from)"
                        .to_owned(),
                );
            }
            let mut lines = saved.lines.iter();
            lines.try_for_each(|line| writeln!(out, "{line}"))
        }
    }
}

/// What ends the damage of a volume that can be opened, once everything was saved: a line for each kind
/// that there is.
fn ends_of_damage(report: &Report, volume: &str, saved: &Saved) -> Vec<String> {
    let has_main = saved.has_root || report.stats.files + report.stats.directories > 0;
    // Such a volume is not opened for writing, and nothing in it can be mended.
    let is_only_read = has_one(report, &[LOG_DAMAGED, LOG_ORDER, DEVICE_TOO_SMALL]);
    if log_is_lost(report) || is_only_read || !has_main && saved.lines.is_empty() {
        return Vec::new();
    }
    if has_one(report, &OF_SPACE) {
        return vec![
            "Then make a new volume of it: a damaged record of free space cannot be mended, and \
             only reading does not need it"
                .to_owned(),
        ];
    }
    let mut lines = Vec::new();
    let has_frozen = report.findings.iter().any(|f| f.frozen.is_some());
    let of_index = |finding: &Finding| {
        let code = finding.code;
        let others = [DATA_CHECKSUM, TOO_MANY];
        // What a branch inherits from a damaged snapshot is not damaged itself.
        let follows = code == BLOCK_SHARED && has_frozen;
        finding.frozen.is_none()
            && !follows
            && !OF_VOLUME.contains(&code)
            && !others.contains(&code)
    };
    if !has_main {
        lines.push(format!(
            "Nothing of main is found without its top node: copy the volume, let main begin anew \
             (cairnfs rm --damaged {volume}), and restore a snapshot (cairnfs log {volume}) or a \
             backup (cairnfs restore-from)"
        ));
    } else if report.findings.iter().any(of_index) {
        lines.push(if saved.has_root {
format!(
                "Then remove what is damaged in the index of branches: cairnfs rm --damaged {volume}"
            )
} else {
format!(
                "No path leads to what is left of main: copy the volume, and have its files moved to \
                 /lost+found: cairnfs rm --damaged {volume}"
            )
});
    }
    if has_one(report, &[DATA_CHECKSUM]) {
        lines.push(
            "Write each file whose contents are damaged anew, restore it from a snapshot or \
             backup, or remove it (cairnfs rm)"
                .to_owned(),
        );
    }
    let frozen = report.findings.iter().filter_map(|f| f.frozen.as_deref());
    let frozen: BTreeSet<&str> = frozen.collect();
    lines.extend(frozen.into_iter().map(|name| match name {
        "" => format!(
            "A state that snapshots or branches have in common never changes: it is damaged until \
             all but one of those are dropped (cairnfs log {volume})"
        ),
        name => format!(
            "Snapshot {} never changes: it is damaged until it is dropped: cairnfs drop --wait \
             {volume} {}",
            show_bytes(name.as_bytes()),
            word(name)
        ),
    }));
    lines
}
