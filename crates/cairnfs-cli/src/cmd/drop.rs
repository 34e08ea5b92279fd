//! `cairnfs drop`: drops snapshots and branches.

use std::path::PathBuf;

use cairnfs::{Error, RootInfo};
use serde::{Deserialize, Serialize};

use crate::failure::{AnyError, Failure, show_bytes, shown};
use crate::output::counted;
use crate::raw_path;
use crate::roots::{Roots, Telling, name_of, root_failure};
use crate::size::human;

const EXAMPLES: &str = "\
Examples:
  cairnfs drop disk.img monday tuesday
  cairnfs drop disk.img trial                 a branch that was a mistake
  cairnfs drop --wait disk.img monday         until its space is free
  cairnfs drop --wait disk.img                what was dropped before

The name is gone at once. What belongs to the snapshot or branch alone is freed
in the background while the volume is in use, now or later; what others share
with it stays. `cairnfs log` shows what is left to free. With --wait, the command
ends when nothing is left; it can be interrupted, and the rest is freed later.
This works on a full volume, too. There is no way back. The branch main cannot be
dropped.

Exit codes: 0 all were dropped, 1 one was not, or not all space is free,
2 wrong arguments.";

/// Parts of the progress of one root.
const PARTS: u64 = 1000;

/// Drop snapshots or branches
#[derive(Debug, clap::Args, Serialize, Deserialize)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The volume, or where it is mounted
    #[serde(with = "raw_path")]
    pub volume: PathBuf,
    /// Snapshots and branches
    #[arg(required_unless_present = "wait", value_name = "REF")]
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
    /// How many that were dropped still hold space of their own.
    being_dropped: usize,
}

#[derive(Serialize)]
struct JsonFailure {
    reference: String,
    why: String,
}

/// Performs the command.
pub fn perform(args: &Args, roots: &Roots<'_>) -> Result<u8, AnyError> {
    if args.wait {
        roots.stage().defer_interrupts()?;
    }
    let free = free_bytes(roots);
    let mut report = drop_all(roots, &args.references);
    let waited = match args.wait {
        true => wait(roots, args.telling.quiet),
        false => Ok(()),
    };
    if args.wait {
        report.freed_bytes = Some(free_bytes(roots).saturating_sub(free));
    }
    report.being_dropped = being_dropped(roots).len();
    let lines: Vec<String> = lines(&report).collect();
    args.telling.tell(roots.stage(), &report, &lines)?;
    waited?;
    Ok(u8::from(!report.failed.is_empty()))
}

/// Drops what the references mean; tells failures at once.
fn drop_all(roots: &Roots<'_>, references: &[String]) -> Json {
    let mut report = Json::default();
    for reference in references {
        match drop_one(roots, reference) {
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

fn drop_one(roots: &Roots<'_>, reference: &str) -> Result<(), Failure> {
    let root = roots.find(reference)?;
    let dropped = roots.volume().drop_root(name_of(&root));
    dropped.map_err(|e| {
        let mounted = matches!(e, Error::Busy(_)).then(|| roots.check_unmounted(&root));
        let mounted = mounted.and_then(Result::err);
        mounted.unwrap_or_else(|| root_failure(roots.path(), reference, &e))
    })
}

fn lines(report: &Json) -> impl Iterator<Item = String> {
    let dropped = report.dropped.iter();
    let dropped = dropped.map(|name| format!("Dropped {}", show_bytes(name.as_bytes())));
    let freed = report
        .freed_bytes
        .map(|bytes| format!("Freed {}", human(bytes)));
    dropped.chain(freed)
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
fn wait(roots: &Roots<'_>, quiet: bool) -> Result<(), Failure> {
    let volume = shown(roots.path());
    let stage = roots.stage();
    let progress = stage.steps("freeing", quiet);
    let mut most = 0;
    let freed = roots.volume().free_drops(|now| {
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
