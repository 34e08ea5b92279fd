//! References to roots, as users write them: a name, `BRANCH@SNAPSHOT`, or `BRANCH@TIME`.
//!
//! Uses the list of roots, errors, and the names of the format. Pure: the caller passes
//! the roots and the current time. No name has `@` in it, and none begins with `-`, so a reference
//! has one meaning.
//!
//! The *history* of a root is the root, its ancestors, and the states that a publish or a restore
//! has replaced, which have names made by [`undo_name`], with their ancestors.

mod made;
mod time;

pub use made::{
    REPLACED_KEPT, auto_name, automatic, check_given, received_name, replaced, replaced_before,
    undo_name, yielding,
};
pub use time::stamp;

use std::collections::{BTreeMap, BTreeSet};

use jiff::tz::TimeZone;

use self::made::UNDO;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::types::{RootInfo, Time};

/// Names that a message lists at most.
const MOST_LISTED: usize = 12;

/// The root of a reference among `roots`. Times are relative to `now` and in `zone`: the name of a time
/// zone or its POSIX form, or without one the local time zone.
///
/// # Errors
/// [`Error::NoRoot`], which lists what there is; [`Error::Invalid`] for a time in a zone that is not
/// known, or a local time if the local zone is not.
pub fn resolve<'r>(
    reference: &str,
    roots: &'r [RootInfo],
    now: Time,
    zone: Option<&str>,
) -> Result<&'r RootInfo> {
    // Looked up only for a time: the first look-up reads the system's list of zones.
    let zone = || zone.map_or_else(|| Ok(local_zone()), time_zone);
    resolve_in(reference, roots, now, zone)
}

/// The directory of the system's list of zones, and what POSIX forms without dates mean, as in glibc.
const ZONES: &str = "/usr/share/zoneinfo";
const DATES: &str = ",M3.2.0,M11.1.0";

/// The time zone of this process: what `TZ` says, as other programs understand it, else that of the system,
/// else UTC. It is [`TimeZone::unknown`] if `TZ` says something that is not known here.
pub fn local_zone() -> TimeZone {
    let Some(told) = std::env::var_os("TZ") else {
        return TimeZone::try_system().unwrap_or(TimeZone::UTC);
    };
    let text = told.to_str().unwrap_or_default();
    match time_zone(text) {
        Ok(zone) => zone,
        // A path, or nothing.
        Err(_)
            if matches!(
                text.trim_start_matches(':').as_bytes().first(),
                None | Some(b'/')
            ) =>
        {
            TimeZone::try_system().unwrap_or(TimeZone::unknown())
        }
        Err(_) => TimeZone::unknown(),
    }
}

/// The time zone of a name or a POSIX form, which may begin with a colon.
///
/// # Errors
/// [`Error::Invalid`] if there is none.
pub fn time_zone(text: &str) -> Result<TimeZone> {
    let text = text.strip_prefix(':').unwrap_or(text);
    // Known also where there is no list of zones.
    match text {
        "UTC" => return Ok(TimeZone::UTC),
        // What is said of a zone that is not known.
        "Etc/Unknown" => return Ok(TimeZone::unknown()),
        _ => {}
    }
    let zone = TimeZone::posix(text).ok();
    let zone = zone.or_else(|| named_zone(text));
    let zone = zone.or_else(|| TimeZone::posix(&format!("{text}{DATES}")).ok());
    zone.ok_or(Error::Invalid("there is no such time zone"))
}

/// The zone of this name in the system's list, which may also be in one of its other parts (`posix/`).
fn named_zone(name: &str) -> Option<TimeZone> {
    // Names differ from others in the case of their letters, too.
    let listed = TimeZone::get(name).ok();
    if listed.as_ref().and_then(TimeZone::iana_name) == Some(name) {
        return listed;
    }
    let is_part = name.starts_with("posix/") && !name.split('/').any(|part| part == "..");
    let bytes = is_part.then(|| std::fs::read(format!("{ZONES}/{name}")).ok());
    TimeZone::tzif(name, &bytes.flatten()?).ok()
}

/// The time that `text` names, relative to `now` and in `zone`, as in a reference.
///
/// # Errors
/// [`Error::Invalid`] if it names none, or a local time and the zone is unknown.
pub fn time_named(text: &str, now: Time, zone: &TimeZone) -> Result<Time> {
    time::parse(text, now, zone)?.ok_or(Error::Invalid(
        "not a time: give one such as 10:30, 2026-01-31, 2026-01-31T10:30:00Z or -5m",
    ))
}

/// The time that a sum of numbers with units has, such as `1h30m` or `7d`.
///
/// # Errors
/// [`Error::Invalid`] if it is none.
pub fn duration_named(text: &str) -> Result<std::time::Duration> {
    let seconds = time::seconds(text).and_then(|seconds| u64::try_from(seconds).ok());
    let seconds = seconds.ok_or(Error::Invalid("not a time such as 90s, 5m, 12h, 7d or 4w"))?;
    Ok(std::time::Duration::from_secs(seconds))
}

fn resolve_in<'r>(
    reference: &str,
    roots: &'r [RootInfo],
    now: Time,
    zone: impl FnOnce() -> Result<TimeZone>,
) -> Result<&'r RootInfo> {
    let no = |why: String| Error::NoRoot {
        reference: reference.into(),
        why,
    };
    let Some((branch, point)) = reference.split_once('@') else {
        return named(reference, roots).ok_or_else(|| {
            no(format!(
                "there is no such branch or snapshot; {}",
                all(roots)
            ))
        });
    };
    let root = named(branch, roots)
        .ok_or_else(|| no(format!("there is no branch {branch:?}; {}", all(roots))))?;
    let history = history(root, roots);
    if let Some(found) = history.iter().find(|r| r.name.as_deref() == Some(point)) {
        return Ok(found);
    }
    let frozen: Vec<&RootInfo> = history.into_iter().filter(|r| !r.writable).collect();
    let snapshots = || {
        if frozen.is_empty() {
            "it has no snapshots".to_owned()
        } else {
            listed("its snapshots are", &frozen)
        }
    };
    let zone = zone()?;
    let Some(instant) = time::parse(point, now, &zone)? else {
        let why = match named(point, roots) {
            Some(_) => {
                format!("{point:?} is not in the history of {branch}: name it without `{branch}@`")
            }
            None => format!(
                "{point:?} is neither a snapshot of {branch} nor a time (such as 10:30, -5m, \
                 2026-01-31T10:30); {}",
                snapshots()
            ),
        };
        return Err(no(why));
    };
    let before = frozen.iter().filter(|r| r.created <= instant);
    let newest = before.max_by_key(|r| (r.created, r.boundary));
    newest.copied().ok_or_else(|| {
        let when = time::shown(instant, &zone);
        no(format!(
            "{branch} has no snapshot as old as {when}; {}",
            snapshots()
        ))
    })
}

fn named<'r>(name: &str, roots: &'r [RootInfo]) -> Option<&'r RootInfo> {
    roots
        .iter()
        .find(|r| r.name.as_deref() == Some(name))
        .filter(|_| !name.is_empty())
}

/// The roots in the history of `root` that have a name, `root` first.
fn history<'r>(root: &'r RootInfo, roots: &'r [RootInfo]) -> Vec<&'r RootInfo> {
    let by_id: BTreeMap<u32, &RootInfo> = roots.iter().map(|r| (r.id, r)).collect();
    let branch = root.name.as_deref().unwrap_or_default();
    let replaced = |r: &&RootInfo| {
        let name = r.name.as_deref().and_then(|name| name.strip_prefix(branch));
        name.is_some_and(|rest| rest.starts_with(UNDO))
    };
    let starts = std::iter::once(root).chain(roots.iter().filter(replaced));
    let (mut seen, mut found) = (BTreeSet::new(), Vec::new());
    for start in starts {
        let mut at = Some(start);
        while let Some(root) = at.filter(|root| seen.insert(root.id)) {
            found.extend(root.name.is_some().then_some(root));
            at = root.parent.and_then(|parent| by_id.get(&parent).copied());
        }
    }
    found
}

fn all(roots: &[RootInfo]) -> String {
    let all: Vec<&RootInfo> = roots.iter().collect();
    listed("there are", &all)
}

/// The newest names, for a message.
fn listed(what: &str, roots: &[&RootInfo]) -> String {
    let mut named: Vec<(&Time, &str)> = roots
        .iter()
        .filter_map(|r| Some((&r.created, r.name.as_deref()?)))
        .collect();
    // Equal times, of roots of one second or of the main root, in the order of names.
    named.sort_by(|a, b| b.0.cmp(a.0).then(a.1.cmp(b.1)));
    let shown: Vec<&str> = named.iter().take(MOST_LISTED).map(|(_, n)| *n).collect();
    let more = match named.len().saturating_sub(MOST_LISTED) {
        0 => String::new(),
        more => format!(" and {more} more (see `cairnfs log`)"),
    };
    format!("{what}: {}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests;
