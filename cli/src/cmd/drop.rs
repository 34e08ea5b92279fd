//! `cairnfs drop`: drops snapshots and branches.

use std::path::PathBuf;

use cairnfs::{Error, RootInfo};
use cairnfs_daemon::failure::{AnyError, Failure, show_bytes, shown};
use cairnfs_daemon::raw_path;
use cairnfs_daemon::reference::{name_of, root_failure};
use cairnfs_daemon::shell::word_of_path;
use serde::{Deserialize, Serialize};

use crate::opened_roots::{Roots, Telling};
use crate::output::counted;
use crate::size::human;

const EXAMPLES: &str = "\
Examples:
  cairnfs drop disk.img monday tuesday
  cairnfs drop disk.img trial                 a branch that was a mistake
  cairnfs drop --wait disk.img monday         until its space is free
  cairnfs drop --wait disk.img                what was dropped before

The name is gone at once. What belongs to the snapshot or branch alone is freed
in the background while the volume is in use, now or later; what others share
with it stays; if two or more were forked from it, that is all, as their fork
point in `cairnfs log`, which also shows what is left to free. With --wait, the
command ends when nothing is left; it can be interrupted, and the rest is freed
later. This works on a full volume, too. There is no way back. The branch main
cannot be dropped.

Exit codes: 0 all were dropped, 1 one was not, or not all space is free,
2 wrong arguments, 74 dropped, but that could not be printed.";

/// Parts of the progress of one root.
const PARTS: u64 = 1000;

/// Names in the line that says why nothing became free.
const SHOWN: usize = 4;

/// Drop snapshots or branches
#[derive(Debug, clap::Args, Serialize, Deserialize)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The volume, or where it is mounted
    #[serde(with = "raw_path")]
    pub volume: PathBuf,
    /// Snapshots and branches
    #[arg(value_name = "REF")]
    references: Vec<String>,
    /// Wait until the space of everything dropped is free
    #[arg(short, long)]
    wait: bool,
    #[command(flatten)]
    telling: Telling,
}

#[derive(Default, Serialize)]
struct Json {
    /// References whose roots were dropped.
    dropped: Vec<String>,
    failed: Vec<JsonFailure>,
    /// With `--wait`, bytes that became free.
    freed_bytes: Option<u64>,
    /// Branches and snapshots that have files in common with what was dropped: that space stays.
    shared_with: Vec<String>,
    /// How many that were dropped still hold space of their own.
    being_dropped: usize,
    /// Blocks stay in use, because it is not known which of them a damaged one had alone.
    #[serde(skip)]
    kept: bool,
}

#[derive(Serialize)]
struct JsonFailure {
    reference: String,
    why: String,
}

/// Checks the arguments, before the volume is opened: an opening for writing frees what was dropped.
///
/// # Errors
/// Nothing is named, and there is nothing to wait for.
pub fn check(args: &Args) -> Result<(), Failure> {
    if !args.references.is_empty() || args.wait {
        return Ok(());
    }
    let word = word_of_path(&args.volume);
    let failure = Failure::new(
        shown(&args.volume),
        "no snapshot or branch is named, so nothing is dropped",
    );
    Err(failure
        .hint(format_args!(
            "name some: cairnfs drop {word} NAME; to see all: cairnfs log {word}; to wait for the \
             space of what was dropped before: cairnfs drop --wait {word}"
        ))
        .code(2))
}

/// Performs the command.
pub fn perform(args: &Args, roots: &Roots<'_>) -> Result<u8, AnyError> {
    if args.wait {
        roots.stage().defer_interrupts()?;
    }
    let free = free_bytes(roots);
    let mut report = drop_all(roots, &args.references);
    let waited = if args.wait {
        wait(roots, args.telling.quiet, &mut report.kept)
    } else {
        Ok(())
    };
    if args.wait {
        report.freed_bytes = Some(free_bytes(roots).saturating_sub(free));
    }
    report.being_dropped = being_dropped(roots).len();
    let lines: Vec<String> = lines(&report).collect();
    let told = if waited.is_ok() && report.failed.is_empty() {
        args.telling.tell(roots.stage(), &report, &lines)
    } else {
        args.telling.print(roots.stage(), &report, &lines)
    };
    waited?;
    told?;
    Ok(u8::from(!report.failed.is_empty()))
}

/// Drops what the references mean; tells failures at once.
fn drop_all(roots: &Roots<'_>, references: &[String]) -> Json {
    let mut report = Json::default();
    for reference in references {
        match drop_one(roots, reference, &mut report.shared_with) {
            Ok(()) => report.dropped.push(reference.clone()),
            Err(failure) => {
                roots.stage().tell(&failure);
                report.failed.push(JsonFailure {
                    reference: reference.clone(),
                    why: failure.why().to_owned(),
                });
            }
        }
    }
    report
}

fn drop_one(
    roots: &Roots<'_>,
    reference: &str,
    shared_with: &mut Vec<String>,
) -> Result<(), Failure> {
    let (root, list) = roots.with(&[reference], || {
        let root = roots.find(reference)?;
        let list = roots.volume().roots();
        let dropped = roots.volume().drop_root(name_of(&root));
        dropped.map_err(|e| {
            let mounted = matches!(e, Error::Busy(_)).then(|| roots.check_unmounted(&root));
            let mounted = mounted.and_then(Result::err);
            mounted.unwrap_or_else(|| root_failure(roots.path(), reference, &e))
        })?;
        Ok::<_, Failure>((root, list))
    })?;
    shared_with.retain(|name| name != name_of(&root));
    for name in relatives(&root, &list) {
        if !shared_with.contains(&name) {
            shared_with.push(name);
        }
    }
    Ok(())
}

/// The names of the roots that share files with `root`: the nearest ones that were forked from it, and
/// from which it was forked or else was forked together with it.
fn relatives(root: &RootInfo, list: &[RootInfo]) -> Vec<String> {
    let above = root.parent.and_then(|id| list.iter().find(|r| r.id == id));
    let mut found = Vec::new();
    let mut waiting = vec![root];
    // A parent without a name is what its children share.
    waiting.extend(above.filter(|above| above.name.is_none()));
    found.extend(above.and_then(|above| above.name.clone()));
    // Parents that form a circle, in a damaged volume, end with the list.
    for _ in 0..list.len() {
        let Some(at) = waiting.pop() else { break };
        for child in list
            .iter()
            .filter(|r| r.parent == Some(at.id) && r.id != root.id)
        {
            match &child.name {
                Some(name) => found.push(name.clone()),
                None => waiting.push(child),
            }
        }
    }
    found
}

fn lines(report: &Json) -> impl Iterator<Item = String> {
    let dropped = report.dropped.iter();
    let dropped = dropped.map(|name| format!("Dropped {}", show_bytes(name.as_bytes())));
    let is_told = !report.dropped.is_empty() || report.failed.is_empty();
    let freed = report.freed_bytes.filter(|_| is_told);
    let freed = freed.map(|bytes| match bytes {
        0 if report.kept => {
            "Freed 0 B: other snapshots or branches are damaged, too, so it is not \
                             known which blocks were its own; they stay in use until all damage is \
                             removed (cairnfs check)"
                .into()
        }
        0 if !report.shared_with.is_empty() => format!("Freed 0 B: {}", shared(report)),
        _ => format!("Freed {}", human(bytes)),
    });
    dropped.chain(freed)
}

/// Why nothing became free.
fn shared(report: &Json) -> String {
    let names = report.shared_with.iter().take(SHOWN);
    let names: Vec<String> = names.map(|name| show_bytes(name.as_bytes())).collect();
    let more = match report.shared_with.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let what = match &report.dropped[..] {
        [_] => "its blocks are",
        _ => "all blocks are",
    };
    format!("{what} shared with {}{more}", names.join(", "))
}

fn free_bytes(roots: &Roots<'_>) -> u64 {
    let space = roots.volume().statfs();
    space.free.saturating_mul(space.block_size.into())
}

fn being_dropped(roots: &Roots<'_>) -> Vec<RootInfo> {
    let mut list = roots.volume().roots();
    list.retain(|root| root.being_dropped);
    list
}

/// Frees what was dropped, until nothing is left or a signal arrives.
fn wait(roots: &Roots<'_>, quiet: bool, kept: &mut bool) -> Result<(), Failure> {
    let volume = shown(roots.path());
    let stage = roots.stage();
    let progress = stage.steps("freeing", quiet);
    let mut most = 0;
    let freed = roots.volume().free_drops(|now| {
        *kept = now.kept;
        let left = now.left as u64 * PARTS;
        most = most.max(left);
        let part = (now.part * PARTS as f64) as u64;
        progress.set((most - left).saturating_add(part).min(most), most);
        stage.check().is_ok()
    });
    drop(progress);
    let left = being_dropped(roots).len() as u64;
    let hold = counted(
        left,
        "snapshot or branch holds",
        "snapshots and branches hold",
    );
    match freed {
        Err(e) => Err(Failure::engine(volume, &e)),
        Ok(()) if left == 0 => Ok(()),
        Ok(()) if stage.check().is_err() => Err(Failure::new(
            volume,
            format_args!("interrupted; {hold} space still, which is freed later"),
        )),
        Ok(()) => Err(Failure::new(
            volume,
            format_args!("{hold} space still, because of what is being read"),
        )),
    }
}
