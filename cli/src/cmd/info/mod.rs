//! `cairnfs info`: superblock, space, features and backup of a volume, also while it is mounted.

mod backup;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use cairnfs::fs::{FileSystem, Options, inspect};
use cairnfs::{Error, Volume};
use cairnfs_daemon::damage::unknown_space;
use cairnfs_daemon::failure::{AnyError, Explain, show_bytes, shown};
use cairnfs_daemon::shell;
use cairnfs_disk::device::HostRoom;
use cairnfs_disk::format::superblock::{
    CHECKPOINTS, COPIES, KNOWN_INCOMPATIBLE, KNOWN_RO_COMPATIBLE, RANGES, RENAMED_ENTRIES,
    REPLACED, ROOTS,
};
use cairnfs_disk::types::{StatFs, VolumeInfo, uuid_text};
use cairnfs_fuse::mountinfo;
use serde::Serialize;

use self::backup::Backup;
use crate::named_volume;
use crate::output::{self, counted};
use crate::size::human;

const EXAMPLES: &str = "\
Examples:
  cairnfs info disk.img
  cairnfs info --json /dev/sdb1 | jq -r .uuid

Works while the volume is mounted; df(1) on its mountpoint then shows the free
space. A volume that has been backed up names the checkpoint that was stored
last, which `cairnfs backup list --json` has, too; while it is mounted with
-o backup=, its backup and the newest moment there are shown.

Exit codes: 0 shown, 1 not a volume, damaged or unreadable, 2 wrong arguments.";

/// Show what a volume is: label, size, features, free space, backup
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// File or block device
    volume: PathBuf,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct JsonReport {
    volume: String,
    label: String,
    uuid: String,
    created: String,
    size: u64,
    log_size: u64,
    log_used: u64,
    generation: u64,
    merged_seq: u64,
    features: Features,
    in_use: bool,
    space: Option<Space>,
    /// What was dropped and still holds space; `None` while the volume is in use.
    being_dropped: Option<Drops>,
    /// `None` if none is known.
    backup: Option<Backup>,
    host: Option<Host>,
    problem: Option<String>,
}

/// Snapshots and branches that were dropped.
#[derive(Serialize)]
struct Drops {
    roots: usize,
    /// Bytes that are left to free.
    bytes: u64,
}

/// For an image file: bytes by which it may still grow, and free bytes of its file system.
#[derive(Serialize)]
struct Host {
    holes: u64,
    free: u64,
}

#[derive(Serialize)]
struct Features {
    compatible: u64,
    ro_compatible: u64,
    incompatible: u64,
}

#[derive(Serialize)]
struct Space {
    total: u64,
    free: u64,
    available: u64,
}

/// Runs the command.
pub fn run(mut args: Args) -> Result<ExitCode, AnyError> {
    // The volume that is mounted there.
    if mountinfo::is_directory(&args.volume) {
        args.volume = named_volume::file_of(&args.volume)?;
    }
    let info = inspect(&args.volume).explain(shown(&args.volume))?;
    let report = json_report(&args.volume, info);
    if args.json {
        output::json(&report)?;
    } else {
        output::table(&mut io::stdout().lock(), &rows(&report, &args.volume))?;
    }
    Ok(ExitCode::from(u8::from(report.problem.is_some())))
}

fn json_report(path: &Path, info: VolumeInfo) -> JsonReport {
    let State {
        in_use,
        space,
        being_dropped,
        backup,
        log_used,
        problem,
    } = state(path);
    let [compatible, ro_compatible, incompatible] = info.features;
    JsonReport {
        volume: shown(path),
        label: show_bytes(info.label.as_bytes()),
        uuid: uuid_text(&info.uuid),
        created: output::utc_time(info.created),
        size: info.size,
        log_size: info.log_size,
        // Without an open volume only the superblock's value is known, which is from the time of
        // its last write.
        log_used: log_used.unwrap_or(info.log_used),
        generation: info.generation,
        merged_seq: info.merged_seq,
        features: Features {
            compatible,
            ro_compatible,
            incompatible,
        },
        in_use,
        space,
        being_dropped,
        backup,
        host: HostRoom::of(path).ok().flatten().map(|room| Host {
            holes: room.holes,
            free: room.free,
        }),
        problem: problem
            .or_else(|| info.front.map(|front| front.to_string()))
            .or_else(|| cut_off(path, info.size)),
    }
}

/// The problem of a truncated volume: opening it read-only succeeds all the same.
fn cut_off(path: &Path, size: u64) -> Option<String> {
    let left = std::fs::metadata(path).ok()?;
    let cut = left.is_file() && left.len() < size;
    cut.then(|| {
        let left = left.len();
        let next = "`cairnfs export` and `cairnfs mount -o ro` read what is left";
        Error::CutOff { size, left, next }.to_string()
    })
}

/// What opening the volume shows: whether it is in use; if not, its space and the log to replay;
/// and why it cannot be opened.
#[derive(Default)]
struct State {
    in_use: bool,
    space: Option<Space>,
    being_dropped: Option<Drops>,
    backup: Option<Backup>,
    log_used: Option<u64>,
    problem: Option<String>,
}

fn state(path: &Path) -> State {
    let options = Options {
        read_only: true,
        ..Options::default()
    };
    match FileSystem::open(path, &options) {
        Ok(fs) => {
            let drops = drops(&fs);
            let space = space(&fs.statfs());
            let info = fs.info();
            let failed = drops.as_ref().err().map(Error::to_string);
            State {
                space: Some(space),
                log_used: Some(info.log_used),
                problem: info.space.as_deref().map(unknown_space).or(failed),
                being_dropped: drops.ok(),
                backup: Backup::of_volume(&Volume::from(Arc::clone(&fs))),
                ..State::default()
            }
        }
        Err(Error::InUse(_)) => State {
            in_use: true,
            backup: Backup::of_daemon(path),
            ..State::default()
        },
        Err(e) => State {
            problem: Some(e.to_string()),
            ..State::default()
        },
    }
}

fn drops(fs: &FileSystem) -> cairnfs::Result<Drops> {
    let mut dropped = fs.roots();
    dropped.retain(|root| root.being_dropped);
    let mut drops = Drops {
        roots: dropped.len(),
        bytes: 0,
    };
    for root in dropped {
        drops.bytes = drops.bytes.saturating_add(fs.space_of(root.id)?);
    }
    Ok(drops)
}

fn space(stat: &StatFs) -> Space {
    let bytes = |blocks: u64| blocks.saturating_mul(stat.block_size.into());
    Space {
        total: bytes(stat.blocks),
        free: bytes(stat.free),
        available: bytes(stat.available),
    }
}

/// Names of known features, and the bits of unknown ones.
fn feature_names(features: &Features) -> String {
    let mut names = Vec::new();
    if features.incompatible & RENAMED_ENTRIES != 0 {
        names.push("renamed_entries".to_owned());
    }
    if features.incompatible & ROOTS != 0 {
        names.push("roots".to_owned());
    }
    if features.incompatible & REPLACED != 0 {
        names.push("replaced".to_owned());
    }
    if features.ro_compatible & CHECKPOINTS != 0 {
        names.push("checkpoints".to_owned());
    }
    if features.ro_compatible & RANGES != 0 {
        names.push("ranges".to_owned());
    }
    if features.ro_compatible & COPIES != 0 {
        names.push("copies".to_owned());
    }
    for (what, bits) in [
        ("compatible", features.compatible),
        (
            "read-only compatible",
            features.ro_compatible & !KNOWN_RO_COMPATIBLE,
        ),
        ("incompatible", features.incompatible & !KNOWN_INCOMPATIBLE),
    ] {
        if bits != 0 {
            names.push(format!("{what} {bits:#x}"));
        }
    }
    if names.is_empty() {
        "none".into()
    } else {
        names.join(", ")
    }
}

fn rows(report: &JsonReport, volume: &Path) -> Vec<(&'static str, String)> {
    let exact = |bytes: u64| format!("{} ({bytes} bytes)", human(bytes));
    let features = feature_names(&report.features);
    let label = if report.label.is_empty() {
        "(none)"
    } else {
        &report.label
    };
    let mut rows = vec![
        ("Volume", report.volume.clone()),
        ("Label", label.to_owned()),
        ("UUID", report.uuid.clone()),
        ("Created", report.created.clone()),
        ("Size", exact(report.size)),
        (
            "Log",
            format!(
                "{}, {} to replay",
                human(report.log_size),
                human(report.log_used)
            ),
        ),
        ("Features", features),
        ("Generation", report.generation.to_string()),
        (
            "In use",
            if report.in_use { "yes" } else { "no" }.to_owned(),
        ),
    ];
    if let Some(space) = &report.space {
        let percent = space.available.saturating_mul(100) / space.total.max(1);
        let (free, total) = (human(space.available), human(space.total));
        rows.push(("Free", format!("{free} of {total} ({percent}%)")));
    }
    if let Some(drops) = report
        .being_dropped
        .as_ref()
        .filter(|drops| drops.bytes > 0)
    {
        let hold = counted(
            drops.roots as u64,
            "snapshot or branch holds",
            "snapshots and branches hold",
        );
        let (bytes, volume) = (human(drops.bytes), shell::word_of_path(volume));
        rows.push((
            "Being dropped",
            format!("{hold} {bytes}; to free it now: cairnfs drop --wait {volume}"),
        ));
    }
    if let Some(backup) = &report.backup {
        rows.push(("Backup", backup.words()));
    }
    if let Some(host) = &report.host {
        let (holes, free) = (human(host.holes), human(host.free));
        let warning = if host.holes > host.free {
            ": less than that, writes are refused when it is full"
        } else {
            ""
        };
        rows.push((
            "Host",
            format!("the file may grow by {holes}, its file system has {free} left{warning}"),
        ));
    }
    if let Some(problem) = &report.problem {
        rows.push(("Problem", problem.clone()));
    }
    rows
}
