//! What references lead to while a call works with it.
//!
//! A reference is resolved, and the call works with the id of the root. Meanwhile a publish or a restore
//! may give the name to another root, or the root may be renamed or dropped. Each change of roots checks
//! under its lock whether the roots are still what it needs, and fails if they are not; then the call
//! begins again with what the references lead to by then. So it does if a drop was decided meanwhile: before
//! that its root can be neither opened nor pinned, and has its name still. Uses references and the list of
//! roots.

use std::collections::BTreeSet;

use crate::operations::find;
use cairnfs_core::fs::FileSystem;
use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::types::RootInfo;

/// Calls `once` with the roots of references, again and again as long as it fails because one of these
/// has moved meanwhile. The call that moved it has succeeded, so all calls together come to an end.
///
/// # Errors
/// [`Error::NoRoot`]; the others of `once`.
pub(super) fn with_roots<T, const N: usize>(
    fs: &FileSystem,
    references: [&str; N],
    once: impl FnMut(&[RootInfo; N]) -> Result<T>,
) -> Result<T> {
    with_turns(fs, references, 0, once)
}

/// As [`with_roots`], for a call that replaces the first `taken` of these roots, or takes them away:
/// other such calls on the same names wait until it has ended.
pub(super) fn with_turns<T, const N: usize>(
    fs: &FileSystem,
    references: [&str; N],
    taken: usize,
    mut once: impl FnMut(&[RootInfo; N]) -> Result<T>,
) -> Result<T> {
    loop {
        let drops = fs.core().drops_decided();
        let found = all(fs, references)?;
        let names = found.iter().take(taken);
        let names: BTreeSet<String> = names.filter_map(|root| root.name.clone()).collect();
        let waits = !names.is_empty();
        let _turn = fs.take_turn(names);
        // Those that were waited for have moved them.
        if waits && !is_same(&found, &all(fs, references)?) {
            continue;
        }
        match once(&found) {
            Err(error)
                if is_of_moved(&error)
                    && (fs.core().settle_drops() != drops
                        || !is_same(&found, &all(fs, references)?)) => {}
            done => return done,
        }
    }
}

fn all<const N: usize>(fs: &FileSystem, references: [&str; N]) -> Result<[RootInfo; N]> {
    let mut found = Vec::with_capacity(N);
    for reference in references {
        found.push(find(fs, reference)?);
    }
    // As many as there are references.
    found.try_into().map_err(|_| Error::NotFound)
}

/// Whether an error may be that of a root which was replaced, renamed or dropped. One that was frozen
/// by a replacement is read-only when it is opened, and one that is being dropped is as good as open for
/// another drop.
fn is_of_moved(error: &Error) -> bool {
    matches!(
        error,
        Error::Stale
            | Error::Busy(_)
            | Error::ReadOnly
            | Error::NotFound
            | Error::NoSnapshot(_)
            | Error::NoRoot { .. }
    )
}

fn is_same(before: &[RootInfo], now: &[RootInfo]) -> bool {
    let what = |root: &RootInfo| (root.id, root.writable, root.name.clone());
    before.iter().map(what).eq(now.iter().map(what))
}
