//! `cairnfs log`: the branches and snapshots of a volume.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use cairnfs::{RootInfo, Time};
use serde::Serialize;

use crate::failure::{AnyError, Explain, show_bytes, shown};
use crate::output::{self, local_time};
use crate::roots::Roots;
use crate::size::human;
use crate::volume::Access;

const EXAMPLES: &str = "\
Examples:
  cairnfs log disk.img
  cairnfs log --json disk.img | jq -r '.roots[] | select(.kind == \"snapshot\").name'

Oldest first. What is indented was forked from the line above the indentation;
a fork point is the state in which two branches parted, and has no name. The
last column is the space that belongs to each alone: what dropping it frees. It
is 0 while others were forked from it. What is being dropped has no name, too.

Exit codes: 0 shown, 1 not a volume, in use or damaged, 2 wrong arguments.";

/// List branches and snapshots
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
struct Json {
    volume: String,
    roots: Vec<JsonRoot>,
}

#[derive(Serialize)]
struct JsonRoot {
    id: u32,
    name: Option<String>,
    kind: &'static str,
    parent: Option<u32>,
    /// When it was made; of the main branch of a volume without snapshots unknown.
    created: Option<String>,
    /// Bytes that dropping it would free.
    own_bytes: u64,
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode, AnyError> {
    let roots = Roots::open(&args.volume, Access::Read)?;
    let list = roots.volume().roots();
    let mut own = BTreeMap::new();
    for root in &list {
        let bytes = roots.volume().space_of(root.id);
        own.insert(root.id, bytes.explain(shown(&args.volume))?);
    }
    roots.close()?;
    if args.json {
        output::json(&Json {
            volume: shown(&args.volume),
            roots: list.into_iter().map(|r| json_root(r, &own)).collect(),
        })?;
    } else {
        print(&mut io::stdout().lock(), &list, &own)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn kind(root: &RootInfo) -> &'static str {
    match (root.writable, &root.name) {
        (true, Some(_)) => "branch",
        // A branch without a name is what was prepared and not finished; the next opening drops it.
        (true, None) => "unfinished",
        (false, Some(_)) => "snapshot",
        (false, None) => "fork point",
    }
}

fn created(root: &RootInfo) -> Option<Time> {
    Some(root.created).filter(|time| *time != Time::default())
}

fn json_root(root: RootInfo, own: &BTreeMap<u32, u64>) -> JsonRoot {
    JsonRoot {
        own_bytes: own.get(&root.id).copied().unwrap_or(0),
        id: root.id,
        kind: kind(&root),
        parent: root.parent,
        created: created(&root).map(output::utc_time),
        name: root.name,
    }
}

fn print(out: &mut impl Write, list: &[RootInfo], own: &BTreeMap<u32, u64>) -> io::Result<()> {
    let lines = lines(list);
    let name = |root: &RootInfo| match &root.name {
        Some(name) => show_bytes(name.as_bytes()),
        None => "-".to_owned(),
    };
    let text =
        |(depth, root): &(usize, &RootInfo)| format!("{}{}", "  ".repeat(*depth), name(root));
    let width = lines.iter().map(|line| text(line).chars().count()).max();
    let width = width.unwrap_or(0);
    for line in &lines {
        let when = created(line.1).map(local_time).unwrap_or_default();
        let own = human(own.get(&line.1.id).copied().unwrap_or(0));
        let (text, kind) = (text(line), kind(line.1));
        writeln!(out, "{text:width$}  {kind:10}  {when:16}  {own:>9}")?;
    }
    Ok(())
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
    use super::*;

    fn root(id: u32, name: &str, parent: u32, secs: i64, writable: bool) -> RootInfo {
        RootInfo {
            id,
            name: Some(name.to_owned()).filter(|n| !n.is_empty()),
            parent: Some(parent).filter(|p| *p > 0),
            writable,
            boundary: 0,
            created: Time { secs, nanos: 0 },
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
    fn parents_that_are_unknown_or_form_a_circle_do_not_hang() {
        let list = [
            root(1, "main", 9, 0, true),
            root(2, "a", 3, 1, false),
            root(3, "b", 2, 2, false),
        ];
        assert_eq!(lines(&list).len(), 1);
    }
}
