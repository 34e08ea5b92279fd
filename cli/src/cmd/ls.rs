//! `cairnfs ls`: lists names and attributes in a volume.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use cairnfs_core::refs::local_zone;
use cairnfs_daemon::failure::{AnyError, Explain, Failure, show_bytes};
use cairnfs_disk::types::{Attr, FileKind, Flags};
use serde::Serialize;

use crate::output::{Style, json, local_time, mode_string, utc_time, write_name};
use crate::spec::VolumePath;
use crate::tree::join;
use crate::volume_by_path::{LastLink, Volume};

const EXAMPLES: &str = "\
Examples:
  cairnfs ls disk.img               the root directory
  cairnfs ls -l disk.img:/home
  cairnfs ls disk.img@monday:/home  as a snapshot has it
  cairnfs ls -R --json disk.img | jq -r '.[].path'

Names are written to a terminal with escapes for control characters, and byte
for byte elsewhere; -q and -b are as in ls(1).

Owners are shown as numbers, because this machine may give the numbers in the
volume other names.

Exit codes: 0 listed, 1 something was not, 2 wrong arguments.";

/// List files in a volume
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A directory or file, as `VOLUME[:PATH]`, or `VOLUME@NAME[:PATH]` in a branch or snapshot
    #[arg(value_name = "VOLUME[@NAME][:PATH]")]
    place: OsString,
    /// Mode, links, owner, group, size, time and target of each
    #[arg(short, long)]
    long: bool,
    /// Also names that begin with a dot
    #[arg(short, long)]
    all: bool,
    /// Also everything below
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Write a question mark for each control character in a name
    #[arg(short = 'q', long, conflicts_with_all = ["escape", "json"])]
    hide_control_chars: bool,
    /// Write control characters, spaces and backslashes in names as escapes of C
    #[arg(short = 'b', long, conflicts_with = "json")]
    escape: bool,
    /// Print all attributes as JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    fn style(&self) -> Style {
        match (self.hide_control_chars, self.escape) {
            (true, _) => Style::Hidden,
            (_, true) => Style::Escaped,
            _ => Style::default_for(io::stdout().is_terminal()),
        }
    }
}

/// A line of a listing.
struct ListedEntry {
    name: Vec<u8>,
    path: Vec<u8>,
    attr: Attr,
    target: Option<Vec<u8>>,
}

#[derive(Serialize)]
struct JsonReport {
    path: String,
    /// The bytes of a path that is not UTF-8, in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    kind: &'static str,
    inode: u64,
    mode: String,
    links: u32,
    uid: u32,
    gid: u32,
    size: u64,
    allocated: u64,
    device: Option<[u32; 2]>,
    mtime: String,
    atime: String,
    ctime: String,
    btime: String,
    flags: String,
    target: Option<String>,
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode, AnyError> {
    let place = VolumePath::parse(&args.place)?;
    let last = if args.long {
        LastLink::Keep
    } else {
        LastLink::Follow
    };
    let (volume, node) = Volume::open_at(&place, crate::volume_by_path::Access::Read, last)?;
    let mut reports = Vec::new();
    let mut damage = None;
    if !node.is_dir() {
        let entry = entry(&volume, node.attr, place.inside.clone(), place.inside)?;
        show(&args, &[entry], &mut reports)?;
    } else {
        drop(node);
        damage = directories(&args, &volume, place.inside, &mut reports)?;
    }
    if args.json {
        json(&reports)?;
    }
    damage.map_or(Ok(ExitCode::SUCCESS), |failure| Err(failure.into()))
}

/// Lists a directory, and with `-R` all directories below it. Each directory is listed once.
/// Returns why something was left out.
fn directories(
    args: &Args,
    volume: &Volume,
    top: Vec<u8>,
    reports: &mut Vec<JsonReport>,
) -> Result<Option<Failure>, AnyError> {
    let mut seen = HashSet::new();
    let mut waiting = vec![top];
    let mut first = true;
    let mut damage = None;
    while let Some(path) = waiting.pop() {
        let entries = directory(args, volume, &path, &mut damage)?;
        if args.recursive && !args.json {
            let mut out = io::stdout().lock();
            if !first {
                writeln!(out)?;
            }
            write_name(&mut out, &rooted(&path), args.style())?;
            writeln!(out, ":")?;
        }
        first = false;
        show(args, &entries, reports)?;
        if args.recursive {
            let below = entries.iter().rev().filter(|e| {
                let dots = e.name == b"." || e.name == b"..";
                e.attr.kind == FileKind::Directory && !dots && seen.insert(e.attr.ino)
            });
            waiting.extend(below.map(|e| e.path.clone()));
        }
    }
    Ok(damage)
}

/// The entries of a directory. What cannot be read is left out; the first reason is `damage`.
fn directory(
    args: &Args,
    volume: &Volume,
    path: &[u8],
    damage: &mut Option<Failure>,
) -> Result<Vec<ListedEntry>, Failure> {
    let dir = volume.find(path, LastLink::Follow)?;
    let mut entries = Vec::new();
    if args.all {
        let above = volume.find(&join(path, b".."), LastLink::Follow)?;
        entries.push(entry(volume, dir.attr, b".".to_vec(), path.to_vec())?);
        entries.push(entry(
            volume,
            above.attr,
            b"..".to_vec(),
            join(path, b".."),
        )?);
    }
    let (names, lost) = volume.names_found(dir.ino());
    let mut note = |failure: Failure| {
        damage.get_or_insert(failure);
    };
    if let Err(failure) = lost.map_or(Ok(()), Err).explain(volume.shown(path)) {
        note(failure);
    }
    for name in names {
        if name.starts_with(b".") && !args.all {
            continue;
        }
        let path = join(path, &name);
        let node = match volume.lookup(&dir, &name).explain(volume.shown(&path)) {
            Ok(node) => node,
            Err(failure) => {
                note(failure);
                continue;
            }
        };
        entries.push(entry(volume, node.attr, name, path)?);
    }
    Ok(entries)
}

fn entry(
    volume: &Volume,
    attr: Attr,
    name: Vec<u8>,
    path: Vec<u8>,
) -> Result<ListedEntry, Failure> {
    let target = match attr.kind {
        FileKind::Symlink => {
            let target = volume.fs().readlink(attr.ino);
            Some(target.explain(volume.shown(&path))?)
        }
        _ => None,
    };
    Ok(ListedEntry {
        name,
        path,
        attr,
        target,
    })
}

fn show(args: &Args, entries: &[ListedEntry], reports: &mut Vec<JsonReport>) -> io::Result<()> {
    if args.json {
        let shown = entries.iter().filter(|e| e.name != b"." && e.name != b"..");
        reports.extend(shown.map(json_report));
        return Ok(());
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    let style = args.style();
    if args.long {
        long(&mut out, entries, style)?;
    } else {
        for entry in entries {
            write_name(&mut out, &entry.name, style)?;
            writeln!(out)?;
        }
    }
    out.flush()
}

/// Columns as in `ls -l`, each as wide as its widest value.
fn long(out: &mut dyn Write, entries: &[ListedEntry], style: Style) -> io::Result<()> {
    let rows: Vec<[String; 4]> = entries.iter().map(|e| columns(&e.attr)).collect();
    let mut widths = [0; 4];
    for row in &rows {
        for (width, value) in widths.iter_mut().zip(row) {
            *width = value.len().max(*width);
        }
    }
    let zone = local_zone();
    for (entry, row) in entries.iter().zip(&rows) {
        let [links, uid, gid, size] = row;
        let [w_links, w_uid, w_gid, w_size] = widths;
        let mode = mode_string(entry.attr.kind, entry.attr.mode);
        let time = local_time(entry.attr.mtime, &zone);
        write!(
            out,
            "{mode} {links:>w_links$} {uid:>w_uid$} {gid:>w_gid$} {size:>w_size$} {time} "
        )?;
        write_name(out, &entry.name, style)?;
        if let Some(target) = &entry.target {
            write!(out, " -> ")?;
            write_name(out, target, style)?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn columns(attr: &Attr) -> [String; 4] {
    let size = match device(attr) {
        Some([major, minor]) => format!("{major}, {minor}"),
        None => attr.size.to_string(),
    };
    [
        attr.nlink.to_string(),
        attr.uid.to_string(),
        attr.gid.to_string(),
        size,
    ]
}

fn device(attr: &Attr) -> Option<[u32; 2]> {
    match attr.kind {
        FileKind::CharDevice | FileKind::BlockDevice => {
            Some([rustix::fs::major(attr.rdev), rustix::fs::minor(attr.rdev)])
        }
        _ => None,
    }
}

fn rooted(path: &[u8]) -> Vec<u8> {
    let mut rooted = b"/".to_vec();
    rooted.extend(crate::volume_by_path::components(path).join(&b'/'));
    rooted
}

fn json_report(entry: &ListedEntry) -> JsonReport {
    let a = &entry.attr;
    let path = rooted(&entry.path);
    let hex = || path.iter().map(|b| format!("{b:02x}")).collect();
    JsonReport {
        path_hex: std::str::from_utf8(&path).is_err().then(hex),
        path: String::from_utf8_lossy(&path).into_owned(),
        kind: kind_name(a.kind),
        inode: a.ino,
        mode: format!("{:04o}", a.mode & 0o7777),
        links: a.nlink,
        uid: a.uid,
        gid: a.gid,
        size: a.size,
        allocated: a.blocks.saturating_mul(512),
        device: device(a),
        mtime: utc_time(a.mtime),
        atime: utc_time(a.atime),
        ctime: utc_time(a.ctime),
        btime: utc_time(a.btime),
        flags: flag_letters(a.flags),
        target: entry.target.as_ref().map(|t| show_bytes(t)),
    }
}

/// The flag letters of chattr(1).
fn flag_letters(flags: Flags) -> String {
    let all = [
        ('i', Flags::IMMUTABLE),
        ('a', Flags::APPEND),
        ('d', Flags::NODUMP),
    ];
    let set = all.into_iter().filter(|(_, flag)| flags.contains(*flag));
    set.map(|(letter, _)| letter).collect()
}

fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::CharDevice => "char-device",
        FileKind::BlockDevice => "block-device",
        FileKind::Socket => "socket",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairnfs_disk::types::Time;

    fn file(name: &str, size: u64, uid: u32) -> ListedEntry {
        let time = Time {
            secs: i64::MAX,
            nanos: 0,
        };
        ListedEntry {
            name: name.into(),
            path: name.into(),
            attr: Attr {
                ino: 2,
                kind: FileKind::File,
                mode: 0o100644,
                nlink: 1,
                uid,
                gid: 0,
                rdev: 0,
                size,
                blocks: 8,
                atime: time,
                mtime: time,
                ctime: time,
                btime: time,
                flags: Flags::NONE,
            },
            target: None,
        }
    }

    #[test]
    fn columns_align_and_links_show_their_targets() {
        let mut link = file("b\n", 10, 1000);
        link.attr.kind = FileKind::Symlink;
        link.target = Some(b"t".to_vec());
        let mut out = Vec::new();
        long(&mut out, &[file("a", 5, 0), link], Style::Shown).unwrap();
        let text = String::from_utf8(out).unwrap();
        let time = format!("@{}", i64::MAX);
        assert_eq!(
            text,
            format!("-rw-r--r-- 1    0 0  5 {time} a\nlrw-r--r-- 1 1000 0 10 {time} b\\n -> t\n")
        );
    }

    #[test]
    fn paths_are_printed_from_the_root() {
        let report = json_report(&file("x/./y", 1, 0));
        assert_eq!(report.path, "/x/y");
        assert_eq!(report.mode, "0644");
        assert!(report.path_hex.is_none() && report.flags.is_empty());
        let mut kept = file("x", 1, 0);
        kept.attr.flags = Flags::APPEND.with(Flags::NODUMP);
        assert_eq!(json_report(&kept).flags, "ad");
        let mut odd = file("", 1, 0);
        odd.path = b"\xff".to_vec();
        assert_eq!(json_report(&odd).path_hex.as_deref(), Some("2fff"));
    }
}
