//! The effect of each call on the tree, the versions it depends on, and what it promises.

use std::sync::Arc;

use cairnfs::Error;
use cairnfs::fs::{Call, Outcome};
use cairnfs_disk::acl::{self, Acl};
use cairnfs_disk::types::{Attr, Fallocate, KillPrivileges, RenameMode, SetAttr};

use super::Model;
use super::chain::{Part, Promise, UNTOLD, Value, Version};
use crate::tree::{Facts, ROOT, Times};

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTES: u32 = 0o010;

impl Model {
    /// Follows a call with this outcome. `seen` returns the current times of an inode.
    pub fn apply(
        &mut self,
        call: &Call<'_>,
        outcome: &Outcome<'_>,
        seen: &dyn Fn(u64) -> Option<Times>,
    ) {
        self.calls.push(shown(call, outcome));
        self.request.next_call();
        self.look(call, outcome, seen);
        match outcome {
            Outcome::Failed(error) => self.failed(call, error),
            done => self.done(call, done),
        }
    }

    fn done(&mut self, call: &Call<'_>, outcome: &Outcome<'_>) {
        match (*call, *outcome) {
            (_, Outcome::Failed(_)) => {}
            (
                Call::Make {
                    dir,
                    name,
                    target,
                    xattrs,
                },
                Outcome::Inode(attr),
            ) => {
                let mut facts = Facts::of(attr, target);
                let owned = |(name, value): &(&[u8], &[u8])| (name.to_vec(), value.to_vec());
                facts.xattrs.extend(xattrs.iter().map(owned));
                self.make(dir, name, facts, attr.ino);
            }
            (Call::Tmpfile, Outcome::Inode(attr)) => self.make_unnamed(attr),
            (Call::Link { ino, dir, name }, _) => self.link(ino, dir, name),
            (Call::Remove { dir, name }, _) => self.remove(dir, name),
            (Call::Rename { from, to, mode }, Outcome::Inode(attr)) => {
                self.rename(from, to, mode, Some(attr));
            }
            (Call::Rename { from, to, mode }, _) => self.rename(from, to, mode, None),
            (
                Call::Write {
                    ino,
                    offset,
                    data,
                    kill,
                },
                Outcome::Number(n),
            ) => {
                let (at, len) = match offset {
                    Some(offset) => (offset, n as usize),
                    None => (n, data.len()),
                };
                let needs = if len > 0 {
                    self.kill_privileges(ino, kill).into_iter().collect()
                } else {
                    Vec::new()
                };
                self.write(ino, at, data.get(..len).unwrap_or(data), needs);
            }
            (Call::SetAttr { ino, set }, _) => self.set_attributes(ino, set),
            (
                Call::Fallocate {
                    ino,
                    offset,
                    len,
                    what,
                    kill,
                },
                _,
            ) => {
                self.kill_privileges(ino, kill);
                self.fallocate(ino, offset, offset + len, what);
            }
            (
                Call::SetAccessList {
                    ino, value, kill, ..
                },
                _,
            ) => self.change_facts(ino, |facts| set_access_list(facts, value, kill)),
            (
                Call::SetXattr {
                    ino, name, value, ..
                },
                _,
            ) => self.change_facts(ino, |facts| {
                facts.xattrs.insert(name.to_vec(), value.to_vec());
            }),
            (Call::RemoveXattr { ino, name }, _) => self.change_facts(ino, |facts| {
                facts.xattrs.remove(name);
            }),
            (Call::Fsync { ino, data_only }, _) => {
                if data_only {
                    self.leave_times(ino);
                }
                self.promise_inode(ino, data_only);
            }
            (Call::FsyncAll { inodes }, _) => {
                let each = inodes.iter();
                each.for_each(|ino| self.promise_inode(*ino, false));
            }
            (Call::Sync | Call::Snapshot { .. } | Call::Branch { .. }, _) => self.promise_all(),
            (Call::DropRoot { name }, _) => {
                self.promise(Vec::new());
                self.dropped_snapshot(name);
            }
            (Call::RenameRoot { .. } | Call::Replace { .. }, _) => {}
            (Call::Make { .. } | Call::Tmpfile | Call::Write { .. }, _) => {}
        }
    }

    /// A call that fails because of the disk or of damage may have been applied or not: a commit is
    /// not undone when the push or merge after it fails. So its effect is possible and never
    /// promised. Every other failed call, and every call after the volume was stopped, had no
    /// effect.
    ///
    /// The live tree continues as if the call had been applied. That is correct only because no
    /// later call succeeds: a failed read, which does not stop the volume, must be the last call
    /// that the model follows.
    fn failed(&mut self, call: &Call<'_>, error: &Error) {
        let stopped = matches!(error.cause(), Error::Stopped(_));
        let unknown = matches!(error.cause(), Error::Io { .. } | Error::Corrupt(_));
        if self.stopped || !(stopped || unknown) {
            return;
        }
        self.stopped = stopped || !matches!(error.cause(), Error::Io { op: "read", .. });
        match *call {
            // The call did not return the inode number.
            Call::Make { dir, name, .. } => {
                let needs = self.directories(&[dir]);
                let makes = vec![self.enter(dir, name, Some(UNTOLD))];
                self.add(makes, needs);
            }
            Call::Write {
                ino, offset, data, ..
            } => {
                let at = offset.unwrap_or(self.size(ino));
                self.done(
                    call,
                    &Outcome::Number(match offset {
                        Some(_) => data.len() as u64,
                        None => at,
                    }),
                );
            }
            Call::Fsync {
                ino,
                data_only: true,
            } => self.leave_times(ino),
            Call::Tmpfile
            | Call::Fsync { .. }
            | Call::FsyncAll { .. }
            | Call::Sync
            | Call::Snapshot { .. }
            | Call::DropRoot { .. }
            | Call::Branch { .. }
            | Call::Replace { .. }
            | Call::RenameRoot { .. } => {}
            _ => self.done(call, &Outcome::Done),
        }
    }

    fn make(&mut self, dir: u64, name: &[u8], facts: Facts, ino: u64) {
        let live = self.live.entry(ino).or_default();
        live.directory = facts.kind.is_dir();
        let needs = self.directories(&[dir]);
        let mut makes = vec![
            self.enter(dir, name, Some(ino)),
            (Part::Facts(ino), Value::Facts(Some(Arc::new(facts)))),
        ];
        makes.extend(self.times_now(ino));
        self.add(makes, needs);
    }

    fn make_unnamed(&mut self, attr: &Attr) {
        self.live.entry(attr.ino).or_default();
        let facts = Value::Facts(Some(Arc::new(Facts::of(attr, &[]))));
        let mut makes = vec![(Part::Facts(attr.ino), facts)];
        makes.extend(self.times_now(attr.ino));
        self.add(makes, Vec::new());
    }

    fn link(&mut self, ino: u64, dir: u64, name: &[u8]) {
        let mut needs = self.directories(&[dir]);
        needs.extend(self.contents(ino));
        let mut makes = vec![self.enter(dir, name, Some(ino))];
        makes.extend(self.touch(ino));
        self.add(makes, needs);
    }

    fn remove(&mut self, dir: u64, name: &[u8]) {
        let Some(ino) = self.entry(dir, name) else {
            return;
        };
        let mut needs = self.directories(&[dir]);
        needs.extend(self.children(ino));
        let mut makes = vec![self.enter(dir, name, None)];
        makes.extend(self.touch(ino));
        self.add(makes, needs);
    }

    /// `made` is the whiteout; it is `None` if there is none, or if the call failed and did not
    /// return it.
    fn rename(
        &mut self,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        mode: RenameMode,
        made: Option<&Attr>,
    ) {
        let (moved, replaced) = (self.entry(from.0, from.1), self.entry(to.0, to.1));
        let Some(ino) = moved.filter(|_| moved != replaced) else {
            return;
        };
        let mut needs = self.directories(&[from.0, to.0]);
        needs.extend(self.contents(ino));
        if let Some(other) = replaced {
            match mode {
                RenameMode::Exchange => needs.extend(self.contents(other)),
                _ => needs.extend(self.children(other)),
            }
        }
        let left = match mode {
            RenameMode::Exchange => replaced,
            RenameMode::Whiteout { .. } => Some(made.map_or(UNTOLD, |attr| attr.ino)),
            RenameMode::Replace | RenameMode::NoReplace => None,
        };
        let mut makes = vec![
            self.enter(from.0, from.1, left),
            self.enter(to.0, to.1, moved),
        ];
        for inode in [Some(ino), replaced].into_iter().flatten() {
            makes.extend(self.touch(inode));
        }
        if let Some(attr) = made {
            let facts = Value::Facts(Some(Arc::new(Facts::of(attr, &[]))));
            makes.push((Part::Facts(attr.ino), facts));
            makes.extend(self.times_now(attr.ino));
        }
        self.add(makes, needs);
    }

    fn set_attributes(&mut self, ino: u64, set: &SetAttr) {
        let mode = set.mode.map(|mode| mode & 0o7777);
        let follow = |facts: &mut Facts| {
            facts.flags = set.flags.unwrap_or(facts.flags);
            if let Some(mode) = mode {
                facts.mode = mode;
                follow_mode(facts);
            }
        };
        let all_but_mode = |facts: &mut Facts| {
            drop_privileges(facts, set.kill_privileges);
            facts.uid = set.uid.unwrap_or(facts.uid);
            facts.gid = set.gid.unwrap_or(facts.gid);
        };
        let Some(size) = set.size else {
            return self.change_facts(ino, |facts| {
                all_but_mode(facts);
                follow(facts);
            });
        };
        let changed = self.changed_facts(ino, all_but_mode);
        self.truncate(ino, size, changed);
        self.change_facts(ino, follow);
    }

    fn fallocate(&mut self, ino: u64, from: u64, to: u64, what: Fallocate) {
        let times = self.date_in_steps(ino);
        let keeps_size = match what {
            Fallocate::PunchHole => {
                self.zero(ino, (from, to), vec![times]);
                true
            }
            Fallocate::ZeroRange { keep_size } => {
                self.zero(ino, (from, to), vec![times]);
                keep_size
            }
            Fallocate::Allocate { keep_size } => keep_size,
        };
        if !keeps_size {
            self.grow(ino, to);
        }
        self.date(ino);
    }

    /// A write clears set-id bits: the data must not survive without that.
    fn kill_privileges(&mut self, ino: u64, kill: KillPrivileges) -> Option<Version> {
        self.changed_facts(ino, |facts| drop_privileges(facts, kill))?;
        self.change_facts(ino, |facts| drop_privileges(facts, kill));
        Some(self.newest(Part::Facts(ino)))
    }

    fn change_facts(&mut self, ino: u64, change: impl FnOnce(&mut Facts)) {
        match self.changed_facts(ino, change) {
            Some(changed) => {
                let mut makes = vec![changed];
                makes.extend(self.times_now(ino));
                self.add(makes, Vec::new());
            }
            None => {
                self.date(ino);
            }
        }
    }

    /// The attributes of an inode after a change; `None` if they stay the same.
    fn changed_facts(&self, ino: u64, change: impl FnOnce(&mut Facts)) -> Option<(Part, Value)> {
        let old = self.facts(ino)?;
        let mut new = (*old).clone();
        change(&mut new);
        let value = Value::Facts(Some(Arc::new(new.clone())));
        (new != *old).then_some((Part::Facts(ino), value))
    }

    /// The unchanged attributes and new times of an inode that an operation changes in ways the
    /// model does not follow, so that the operation is ordered among the inode's versions.
    fn touch(&self, ino: u64) -> impl Iterator<Item = (Part, Value)> + use<> {
        let facts = self.unchanged(ino);
        let times = self.times_now(ino).filter(|_| facts.is_some());
        facts.into_iter().chain(times)
    }

    /// The unchanged attributes of an inode, as a new version, to order an operation among those
    /// that change them.
    pub(super) fn unchanged(&self, ino: u64) -> Option<(Part, Value)> {
        let facts = self.facts(ino)?;
        Some((Part::Facts(ino), Value::Facts(Some(facts))))
    }

    /// Changes the entry of a name; the live tree follows.
    fn enter(&mut self, dir: u64, name: &[u8], ino: Option<u64>) -> (Part, Value) {
        let key = (dir, name.to_vec());
        let old = self
            .entry(dir, name)
            .and_then(|old| self.live.get_mut(&old));
        if let Some(old) = old {
            old.names.remove(&key);
        }
        if let Some(ino) = ino {
            self.live.entry(ino).or_default().names.insert(key);
        }
        let live = self.live.entry(dir).or_default();
        live.children.insert(name.to_vec());
        (Part::Name(dir, name.to_vec()), Value::Entry(ino))
    }

    /// What a change of entries of these directories needs: the entries that lead to them, their
    /// attributes, and the times that the change gives them.
    fn directories(&mut self, dirs: &[u64]) -> Vec<Version> {
        let mut needs = Vec::new();
        for dir in dirs {
            needs.extend(self.place(*dir));
            needs.push(self.newest(Part::Facts(*dir)));
            needs.push(self.date(*dir));
        }
        needs
    }

    /// The current versions of all names that a directory ever had.
    fn children(&mut self, dir: u64) -> Vec<Version> {
        let names = match self.live.get(&dir) {
            Some(live) if live.directory => live.children.clone(),
            _ => return Vec::new(),
        };
        names
            .into_iter()
            .map(|name| self.newest(Part::Name(dir, name)))
            .collect()
    }

    /// Promises an inode with its contents or entries, its names, and the directories that lead to
    /// it; with its times unless only the data is synced.
    fn promise_inode(&mut self, ino: u64, data_only: bool) {
        let mut keeps = vec![self.newest(Part::Facts(ino))];
        if !data_only {
            keeps.push(self.newest(Part::Times(ino)));
        }
        keeps.extend(self.contents(ino));
        keeps.extend(self.children(ino));
        let names = self.live.get(&ino).map(|l| l.names.clone());
        for (dir, name) in names.unwrap_or_default() {
            keeps.push(self.newest(Part::Name(dir, name)));
            let mut at = dir;
            while at != ROOT {
                let Some(live) = self.live.get(&at) else {
                    break;
                };
                let Some((parent, name)) = live.names.first().cloned() else {
                    break;
                };
                keeps.push(self.newest(Part::Name(parent, name)));
                at = parent;
            }
        }
        self.promise(keeps);
    }

    fn promise_all(&mut self) {
        let keeps = self.chains.iter().enumerate().map(|(chain, c)| Version {
            chain,
            nth: c.versions.len() - 1,
        });
        let keeps = keeps.collect();
        self.promise(keeps);
    }

    pub(super) fn promise(&mut self, keeps: Vec<Version>) {
        let call = self.calls.len().saturating_sub(1);
        self.promises.push(Promise { call, keeps });
    }
}

fn drop_privileges(facts: &mut Facts, kill: KillPrivileges) {
    let outside = match kill {
        KillPrivileges::No => return,
        KillPrivileges::ByMember => false,
        KillPrivileges::ByGroup(gid) => gid != facts.gid,
    };
    if facts.kind.is_dir() {
        return;
    }
    facts.mode &= !SET_USER_ID;
    if outside || facts.mode & GROUP_EXECUTES != 0 {
        facts.mode &= !SET_GROUP_ID;
    }
}

/// Updates the access list after a change of the mode.
fn follow_mode(facts: &mut Facts) {
    let mode = facts.mode;
    if let Some(value) = facts.xattrs.get_mut(acl::ACCESS)
        && let Some(mut list) = Acl::parse(value)
    {
        list.set_permissions(mode);
        *value = list.to_bytes();
    }
}

/// Sets the access list, and updates the mode after it.
fn set_access_list(facts: &mut Facts, value: &[u8], kill: KillPrivileges) {
    let Some(list) = Acl::parse(value) else {
        return;
    };
    facts.mode = facts.mode & !0o777 | list.permissions();
    if matches!(kill, KillPrivileges::ByGroup(gid) if gid != facts.gid) {
        facts.mode &= !SET_GROUP_ID;
    }
    if list.is_minimal() {
        facts.xattrs.remove(acl::ACCESS)
    } else {
        facts.xattrs.insert(acl::ACCESS.to_vec(), value.to_vec())
    };
}

/// A call and its outcome as text.
fn shown(call: &Call<'_>, outcome: &Outcome<'_>) -> String {
    let name = |n: &[u8]| String::from_utf8_lossy(n).into_owned();
    let what = match *call {
        Call::Make { dir, name: n, .. } => format!("make {} in {dir}", name(n)),
        Call::Tmpfile => "tmpfile".into(),
        Call::Link { ino, dir, name: n } => format!("link {ino} as {} in {dir}", name(n)),
        Call::Remove { dir, name: n } => format!("remove {} in {dir}", name(n)),
        Call::Rename { from, to, mode } => format!(
            "rename {} in {} to {} in {} ({mode:?})",
            name(from.1),
            from.0,
            name(to.1),
            to.0
        ),
        Call::Write {
            ino, offset, data, ..
        } => match offset {
            Some(offset) => format!("write {} bytes at {offset} to {ino}", data.len()),
            None => format!("append {} bytes to {ino}", data.len()),
        },
        Call::SetAttr { ino, set } => match set.size {
            Some(size) => format!("truncate {ino} to {size}"),
            None => format!("set attributes of {ino}"),
        },
        Call::Fallocate {
            ino,
            offset,
            len,
            what,
            ..
        } => format!("fallocate {len} at {offset} of {ino} ({what:?})"),
        Call::SetAccessList { ino, .. } => format!("set access list of {ino}"),
        Call::SetXattr { ino, name: n, .. } => format!("set attribute {} of {ino}", name(n)),
        Call::RemoveXattr { ino, name: n } => format!("remove attribute {} of {ino}", name(n)),
        Call::Fsync { ino, data_only } => {
            if data_only {
                format!("fdatasync {ino}")
            } else {
                format!("fsync {ino}")
            }
        }
        Call::FsyncAll { inodes } => format!("fsync of {inodes:?}"),
        Call::Sync => "sync".into(),
        Call::Snapshot { name } => format!("snapshot {name}"),
        Call::DropRoot { name } => format!("drop {name}"),
        Call::Branch { name } => format!("branch {name}"),
        Call::Replace { staged, kept } => format!("replace by {staged}, keep {kept}"),
        Call::RenameRoot { old, new } => format!("rename root {old} {new}"),
    };
    match outcome {
        Outcome::Inode(attr) => format!("{what}: inode {}", attr.ino),
        Outcome::Failed(e) => format!("{what}: {e}"),
        _ => what,
    }
}
