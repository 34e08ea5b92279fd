//! Names that are made: of a branch, a mark and the time.
//!
//! A snapshot with the name of a replaced or an automatic one is dropped by itself, when there are too
//! many or their space is needed. So users cannot give these names ([`check_given`]), and a snapshot
//! that gets another name is the user's. Pure: the caller passes the roots and the time.

use super::time::stamp;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::format::root::{MAX_ROOT_NAME, refused_root_name};
use cairnfs_disk::types::{RootInfo, Time};

/// What stands between the name of a branch and the time in the name of a replaced state.
pub(super) const UNDO: &str = ".undo-";

/// The same of a snapshot that is made at an interval.
const AUTO: &str = ".auto-";

/// How many of the states of a branch that publishes and restores have replaced are kept.
pub const REPLACED_KEPT: usize = 24;

/// Checks that a user can give this name to a snapshot or branch.
///
/// # Errors
/// [`Error::Invalid`], which says why not.
pub fn check_given(name: &str) -> Result<()> {
    let is_made = [UNDO, AUTO]
        .iter()
        .any(|mark| before_time(name, mark).is_some());
    match refused_root_name(name) {
        Some(why) => Err(Error::Invalid(why)),
        None if is_made => Err(Error::Invalid(
            "names that end in .auto-TIME or .undo-TIME are those of snapshots that are made, and \
             dropped, by themselves; choose another name",
        )),
        None => Ok(()),
    }
}

/// A name for the state of `branch` that is replaced at `now`; no root has it.
pub fn undo_name(branch: &str, roots: &[RootInfo], now: Time) -> String {
    // A state of a replaced state belongs to the history of the same branch.
    let branch = branch.split(UNDO).next().unwrap_or(branch);
    free_name(stamped(branch, UNDO, now), roots)
}

/// The name of the snapshot of `branch` that is made at `now` by itself.
pub fn auto_name(branch: &str, now: Time) -> String {
    stamped(branch, AUTO, now)
}

/// A name for a snapshot that is received at `now`; no root has it.
pub fn received_name(roots: &[RootInfo], now: Time) -> String {
    free_name(format!("received-{}", stamp(now)), roots)
}

/// The replaced states that still have the names made by [`undo_name`], the oldest first.
pub fn replaced(roots: &[RootInfo]) -> Vec<&RootInfo> {
    made(roots, &[UNDO])
}

/// The snapshots of `branch` that still have the names made by [`auto_name`], the oldest first.
pub fn automatic<'r>(branch: &str, roots: &'r [RootInfo]) -> Vec<&'r RootInfo> {
    let of = Some(prefix(branch, AUTO));
    let mut list = made(roots, &[AUTO]);
    list.retain(|root| before(root, AUTO) == of);
    list
}

/// All snapshots that are dropped before there is no space, the oldest first.
pub fn yielding(roots: &[RootInfo]) -> Vec<&RootInfo> {
    made(roots, &[UNDO, AUTO])
}

/// Of the replaced states of the same branch as the one named `kept`, those that are too many, the
/// oldest first.
pub fn replaced_before<'r>(kept: &str, roots: &'r [RootInfo]) -> Vec<&'r RootInfo> {
    let mut list = replaced(roots);
    let of = before_time(kept, UNDO);
    list.retain(|root| of.is_some() && before(root, UNDO) == of);
    list.truncate(list.len().saturating_sub(REPLACED_KEPT));
    list
}

/// The snapshots with one of these marks and a time in their names, the oldest first.
fn made<'r>(roots: &'r [RootInfo], marks: &[&str]) -> Vec<&'r RootInfo> {
    let has = |root: &RootInfo| marks.iter().any(|mark| before(root, mark).is_some());
    let is_one = |root: &&RootInfo| !root.writable && has(root);
    let mut list: Vec<&RootInfo> = roots.iter().filter(is_one).collect();
    list.sort_by_key(|root| (root.created, root.boundary));
    list
}

fn before<'r>(root: &'r RootInfo, mark: &str) -> Option<&'r str> {
    before_time(root.name.as_deref()?, mark)
}

/// What is before the mark in a name that was made with it; `None` of another name.
fn before_time<'n>(name: &'n str, mark: &str) -> Option<&'n str> {
    let (branch, rest) = name.rsplit_once(mark)?;
    let (time, number) = rest.split_once('-').unwrap_or((rest, "2"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let (date, clock) = time.strip_suffix('Z')?.split_once('T')?;
    let is_time = date.len() == 8 && clock.len() == 6 && is_number(date) && is_number(clock);
    (is_time && is_number(number)).then_some(branch)
}

fn stamped(branch: &str, mark: &str, now: Time) -> String {
    format!("{}{mark}{}", prefix(branch, mark), stamp(now))
}

/// The name of a branch, cut where the mark, a time and a number would have no room.
fn prefix<'b>(branch: &'b str, mark: &str) -> &'b str {
    const AFTER: usize = "20260131T101500Z-18446744073709551615".len();
    let most = MAX_ROOT_NAME.saturating_sub(mark.len() + AFTER);
    let cut = (0..=most.min(branch.len())).rfind(|at| branch.is_char_boundary(*at));
    branch.get(..cut.unwrap_or(0)).unwrap_or_default()
}

/// A name, or the name with the first number that makes it different from those of all roots.
fn free_name(name: String, roots: &[RootInfo]) -> String {
    let taken = |name: &String| roots.iter().any(|r| r.name.as_ref() == Some(name));
    let numbered = (2u64..).map(|n| format!("{name}-{n}"));
    let mut all = std::iter::once(name.clone()).chain(numbered);
    all.find(|name| !taken(name)).unwrap_or(name)
}
