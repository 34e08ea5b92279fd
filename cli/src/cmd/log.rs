//! `cairnfs log`: the branches and snapshots of a volume.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::PathBuf;

use anstyle::Style;
use cairnfs::{Error, RootInfo};
use cairnfs_core::refs::replaced;
use cairnfs_daemon::failure::{AnyError, Explain, show_bytes, shown};
use cairnfs_daemon::raw_path;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use crate::look::{self, Look};
use crate::opened_roots::{JsonRoot, Roots, created, kind, show_name};
use crate::output::local_time;
use crate::size::human;

const EXAMPLES: &str = "\
Examples:
  cairnfs log disk.img
  cairnfs log --all disk.img             with every state that can be restored
  cairnfs log --json disk.img | jq -r '.roots[] | select(.kind == \"snapshot\").name'

Oldest first. What is indented was forked from the line above the indentation.
The last column is the space that belongs to each alone: what dropping it frees.
It is 0 while others were forked from it, and ? if damage hides it. What was changed in a mounted volume is
merged first, so that it counts; what a program has written counts once it has
reached the daemon (`cairnfs sync`). Besides branches and snapshots there
are:

fork point     the state in which two branches parted. It holds what all of them
               have changed or removed since, and goes when one of them is left
               (also a snapshot that was dropped while it has two or more)
being dropped  its space, in the last column, is freed while the volume is in
               use; `cairnfs drop --wait` does it now. Also what a diff or
               publish needed for itself. All of these are one line, the last
older          states of a branch that publishes and restores have replaced, but
               for the newest three: one line for each branch, at the end, with
               the sum of the last column. --all shows each in its place
unfinished     what a publish, restore or receive had prepared when it was
               interrupted; the next command that writes, or mount, drops it

Exit codes: 0 shown, 1 not a volume, in use or damaged, 2 wrong arguments.";

/// List branches and snapshots
#[derive(Debug, clap::Args, Serialize, Deserialize)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The volume, or where it is mounted
    #[serde(with = "raw_path")]
    pub volume: PathBuf,
    /// Show also each older state that a publish or restore has replaced
    #[arg(short, long)]
    all: bool,
    /// Print it as JSON, with all states
    #[arg(long)]
    json: bool,
}

/// Replaced states of a branch that have lines of their own: the newest.
const REPLACED_SHOWN: usize = 3;

/// What is between the name of a branch and a time in the name of a replaced state.
const UNDO: &str = ".undo-";

#[derive(Serialize)]
struct Json {
    volume: String,
    roots: Vec<Line>,
}

#[derive(Serialize)]
struct Line {
    #[serde(flatten)]
    root: JsonRoot,
    /// Bytes that dropping it would free, or that are left to free; none if damage hides that.
    own_bytes: Option<u64>,
}

/// Performs the command.
pub fn perform(args: &Args, roots: &Roots<'_>) -> Result<u8, AnyError> {
    let stage = roots.stage();
    // Who is told by a check to drop something needs the names.
    let (own, hidden) = match roots.volume().spaces() {
        Err(damage @ Error::Corrupt(_)) => (None, Some(damage)),
        own => (Some(own.explain(shown(&args.volume))?), None),
    };
    let own = own.as_ref();
    let mut list = roots.volume().roots();
    // One that was made meanwhile is told the next time.
    list.retain(|root| own.is_none_or(|own| own.contains_key(&root.id)));
    if args.json {
        stage.json(&Json {
            volume: shown(&args.volume),
            roots: list.iter().map(|r| line(r, own)).collect(),
        })?;
    } else {
        let mut out = stage.out();
        print(&mut out, (stage.look(), stage.zone()), args.all, &list, own)?;
        out.flush()?;
    }
    hidden.map_or(Ok(0), |damage| {
        let what = format!("{}: the space of each is not known", shown(&args.volume));
        Ok(Err(damage).explain(what)?)
    })
}

fn line(root: &RootInfo, own: Option<&BTreeMap<u32, u64>>) -> Line {
    Line {
        root: root.into(),
        own_bytes: own.map(|own| own.get(&root.id).copied().unwrap_or(0)),
    }
}

/// The columns of a line: name, kind, time, space.
fn columns(depth: usize, root: &RootInfo, own: Option<u64>, zone: &TimeZone) -> [String; 4] {
    let indent = "  ".repeat(depth);
    let when = created(root).map(|time| local_time(time, zone));
    let when = when.unwrap_or_default();
    let name = format!("{indent}{}", show_name(root));
    [name, kind(root).to_owned(), when, space(own)]
}

/// The last column.
fn space(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "?".to_owned(), human)
}

fn style(root: &RootInfo) -> Style {
    match (root.writable, &root.name) {
        (true, Some(_)) => look::ADDED,
        (false, Some(_)) => look::CHANGED,
        (_, None) => look::FAINT,
    }
}

fn print(
    out: &mut impl Write,
    (look, zone): (&Look, &TimeZone),
    all: bool,
    list: &[RootInfo],
    own: Option<&BTreeMap<u32, u64>>,
) -> io::Result<()> {
    let own = |root: &RootInfo| own.map(|own| own.get(&root.id).copied().unwrap_or(0));
    let (stays, dropped) = without_dropped(list);
    let (stays, older) = if all {
        (stays, BTreeMap::new())
    } else {
        without_older(&stays)
    };
    let older = older.iter().map(|(of, older)| older_line(of, older, own));
    let lines = lines(&stays).into_iter();
    let lines = lines.map(|(depth, root)| (style(root), columns(depth, root, own(root), zone)));
    let lines = lines.chain(older).chain(dropped_line(&dropped, own));
    let head = ["NAME", "KIND", "MADE", "OWN"].map(str::to_owned);
    let head = look.terminal.then_some((look::STRONG, head));
    let lines: Vec<(Style, [String; 4])> = head.into_iter().chain(lines).collect();
    let width = |at: usize, least: usize| {
        let cells = lines.iter().filter_map(|(_, cells)| cells.get(at));
        cells
            .map(|cell| cell.chars().count())
            .fold(least, usize::max)
    };
    let (name_width, kind_width) = (width(0, 0), width(1, 10));
    for (style, [name, kind, when, own]) in &lines {
        let name = look.paint(*style, &format!("{name:name_width$}"));
        writeln!(out, "{name}  {kind:kind_width$}  {when:16}  {own:>9}")?;
    }
    Ok(())
}

/// The roots that stay, each with the nearest ancestor that stays, and those that are being dropped.
fn without_dropped(list: &[RootInfo]) -> (Vec<RootInfo>, Vec<&RootInfo>) {
    let dropped: Vec<_> = list.iter().filter(|root| root.being_dropped).collect();
    (without(list, |root| root.being_dropped), dropped)
}

/// The roots that are not left out, each with the nearest ancestor that is not.
fn without(list: &[RootInfo], is_out: impl Fn(&RootInfo) -> bool) -> Vec<RootInfo> {
    let all: BTreeMap<u32, &RootInfo> = list.iter().map(|root| (root.id, root)).collect();
    // In a damaged volume parents may form a circle.
    let above = |root: &RootInfo| {
        let mut parent = root.parent;
        for _ in list {
            let out = all.get(&parent?).filter(|parent| is_out(parent));
            match out {
                Some(out) => parent = out.parent,
                None => return parent,
            }
        }
        None
    };
    let stays = list.iter().filter(|root| !is_out(root));
    let stays = stays.map(|root| RootInfo {
        parent: above(root),
        ..root.clone()
    });
    stays.collect()
}

/// The roots without the older replaced states of each branch, and these, by what their names begin
/// with. One from which something was forked stays. Fork points go that are none without them.
fn without_older(list: &[RootInfo]) -> (Vec<RootInfo>, BTreeMap<String, Vec<RootInfo>>) {
    let all: BTreeMap<u32, &RootInfo> = list.iter().map(|root| (root.id, root)).collect();
    let mut children: BTreeMap<u32, usize> = BTreeMap::new();
    for parent in list.iter().filter_map(|root| root.parent) {
        *children.entry(parent).or_default() += 1;
    }
    let mut older: BTreeMap<String, Vec<RootInfo>> = BTreeMap::new();
    for root in replaced(list) {
        let name = root.name.as_deref().unwrap_or_default();
        if let Some((branch, _)) = name.rsplit_once(UNDO)
            && !children.contains_key(&root.id)
        {
            let of = format!("{branch}{UNDO}");
            older.entry(of).or_default().push(root.clone());
        }
    }
    older.retain(|_, states| {
        states.truncate(states.len().saturating_sub(REPLACED_SHOWN));
        // A line for one would save none.
        states.len() > 1
    });
    let mut out: BTreeSet<u32> = BTreeSet::new();
    let mut todo: Vec<u32> = older.values().flatten().map(|root| root.id).collect();
    let mut parted = BTreeSet::new();
    while let Some(id) = todo.pop() {
        out.insert(id);
        let parent = all.get(&id).and_then(|root| all.get(&root.parent?));
        let Some(parent) = parent.filter(|parent| !parent.writable && parent.name.is_none()) else {
            continue;
        };
        parted.insert(parent.id);
        if let Some(left) = children.get_mut(&parent.id) {
            *left = left.saturating_sub(1);
            if *left == 0 {
                todo.push(parent.id);
            }
        }
    }
    out.extend(parted.iter().filter(|id| children.get(id) == Some(&1)));
    (without(list, |root| out.contains(&root.id)), older)
}

/// The line of the older replaced states of a branch, whose names begin alike.
fn older_line(
    of: &str,
    older: &[RootInfo],
    own: impl Fn(&RootInfo) -> Option<u64>,
) -> (Style, [String; 4]) {
    let what = format!("{} older", older.len());
    let name = format!("{}*", show_bytes(of.as_bytes()));
    let bytes = older.iter().map(own).sum();
    (look::FAINT, [name, what, String::new(), space(bytes)])
}

/// The line of all that is being dropped.
fn dropped_line(
    dropped: &[&RootInfo],
    own: impl Fn(&RootInfo) -> Option<u64>,
) -> Option<(Style, [String; 4])> {
    let first = dropped.first()?;
    let count = match dropped.len() {
        1 => String::new(),
        count => format!("{count} "),
    };
    let what = format!("{count}{}", kind(first));
    let bytes = dropped.iter().map(|root| own(root)).sum();
    Some((
        look::FAINT,
        ["-".to_owned(), what, String::new(), space(bytes)],
    ))
}

/// The roots in the order of the tree, each with its depth. Of several children the last one, in
/// the order of their times, goes on at the depth of its parent, so that a line of snapshots is not
/// indented.
fn lines(list: &[RootInfo]) -> Vec<(usize, &RootInfo)> {
    let known: BTreeMap<u32, &RootInfo> = list.iter().map(|root| (root.id, root)).collect();
    let mut children: BTreeMap<Option<u32>, Vec<&RootInfo>> = BTreeMap::new();
    for root in list {
        let parent = root.parent.filter(|parent| known.contains_key(parent));
        children.entry(parent).or_default().push(root);
    }
    // A branch that goes on is younger than everything that was forked from it.
    let order = |root: &&RootInfo| {
        (
            root.writable,
            created(root).is_none(),
            root.created,
            root.id,
        )
    };
    children
        .values_mut()
        .for_each(|list| list.sort_by_key(order));
    let mut lines = Vec::new();
    let first = children.remove(&None).unwrap_or_default();
    let mut waiting: Vec<(usize, &RootInfo)> = first.into_iter().rev().map(|r| (0, r)).collect();
    while let Some((depth, root)) = waiting.pop() {
        lines.push((depth, root));
        let below = children.remove(&Some(root.id)).unwrap_or_default();
        let last = below.len().saturating_sub(1);
        let deeper = |(at, child)| (depth + usize::from(at < last), child);
        waiting.extend(below.into_iter().enumerate().map(deeper).rev());
    }
    lines
}

#[cfg(test)]
mod tests {
    use cairnfs::Time;

    use super::*;

    fn root(id: u32, name: &str, parent: u32, secs: i64, writable: bool) -> RootInfo {
        RootInfo {
            id,
            name: Some(name.to_owned()).filter(|n| !n.is_empty()),
            parent: Some(parent).filter(|p| *p > 0),
            writable,
            boundary: 0,
            created: Time { secs, nanos: 0 },
            being_dropped: false,
        }
    }

    #[test]
    fn side_branches_are_indented_and_lines_of_snapshots_are_not() {
        let list = [
            root(1, "main", 5, 0, true),
            root(2, "a", 0, 10, false),
            root(3, "", 2, 20, false),
            root(4, "work", 6, 20, true),
            root(5, "b", 3, 30, false),
            root(6, "half", 3, 25, false),
        ];
        let shown: Vec<(usize, &str)> = lines(&list)
            .into_iter()
            .map(|(depth, r)| (depth, r.name.as_deref().unwrap_or("-")))
            .collect();
        let expected = [
            (0, "a"),
            (0, "-"),
            (1, "half"),
            (1, "work"),
            (0, "b"),
            (0, "main"),
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn what_is_being_dropped_is_one_line_behind_all_others() {
        let gone = |id, parent| RootInfo {
            being_dropped: true,
            ..root(id, "", parent, 5, false)
        };
        let list = [
            root(1, "main", 4, 0, true),
            root(2, "a", 0, 10, false),
            gone(3, 2),
            gone(4, 3),
        ];
        let (stays, dropped) = without_dropped(&list);
        assert_eq!((stays.len(), stays[0].parent), (2, Some(2)));
        let (_, line) = dropped_line(&dropped, |root| Some(u64::from(root.id) << 20)).unwrap();
        assert_eq!(line, ["-", "2 being dropped", "", "7 MiB"]);
        let (_, line) = dropped_line(&dropped[..1], |_| Some(0)).unwrap();
        assert_eq!(line[1], "being dropped");
        assert!(dropped_line(&[], |_| Some(0)).is_none());
        let circle = [gone(1, 2), gone(2, 1), root(3, "a", 2, 0, false)];
        assert_eq!(without_dropped(&circle).0[0].parent, None);
    }

    #[test]
    fn older_replaced_states_are_one_line_for_each_branch() {
        let undo = |id, parent| {
            let name = format!("main.undo-20260131T1015{id:02}Z");
            root(id, &name, parent, 10 * i64::from(id) - 195, false)
        };
        // Seven publishes, each at a fork point of its own; something was forked from the first state.
        let mut list = vec![root(1, "main", 16, 0, true), root(2, "a", 20, 9, true)];
        for at in 0..7 {
            let above = if at == 0 { 0 } else { 9 + at };
            list.push(root(10 + at, "", above, 10 * i64::from(at), false));
            list.push(undo(20 + at, 10 + at));
        }
        let (stays, older) = without_older(&list);
        let ids: Vec<u32> = older["main.undo-"].iter().map(|root| root.id).collect();
        assert_eq!(ids, [21, 22, 23]);
        let shown: Vec<(usize, u32)> = lines(&stays).iter().map(|(d, r)| (*d, r.id)).collect();
        let expected = [
            (0, 10),
            (1, 20),
            (1, 2),
            (0, 14),
            (1, 24),
            (0, 15),
            (1, 25),
            (0, 16),
            (1, 26),
            (0, 1),
        ];
        assert_eq!(shown, expected);
        let (_, line) = older_line("main.undo-", &older["main.undo-"], |_| Some(1 << 20));
        assert_eq!(line, ["main.undo-*", "3 older", "", "3 MiB"]);
        // A line for one state, and none for what was renamed.
        list.truncate(2 + 2 * 5);
        list.push(root(40, "main.undo-mine", 0, 1, false));
        let (stays, older) = without_older(&list);
        assert!(older.is_empty() && stays.len() == list.len());
        let circle = [undo(1, 2), undo(2, 1)];
        assert_eq!(without_older(&circle).0.len(), 2);
    }

    #[test]
    fn parents_that_are_unknown_or_form_a_circle_do_not_hang() {
        let list = [
            root(1, "main", 9, 0, true),
            root(2, "a", 3, 1, false),
            root(3, "b", 2, 2, false),
        ];
        assert_eq!(lines(&list).len(), 1);
    }
}
