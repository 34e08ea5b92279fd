//! Where requests of programs come in, and what is done for deferred ones beside what is done for any
//! ([`super::programs`]).
//!
//! Their programs have gone on, so what is in trouble is done all the same, or counts as lost. Attributes that
//! a program sets one after the other, as after it has unpacked a file, are set at once: the file has a lease,
//! so nobody sees it before the pass ends in which the calls are carried out, and they are set before that
//! ([`Ops::set_merged`]).

use std::sync::Arc;

use cairnfs::fs::FsyncRequest;
use cairnfs_channel::call::{self, Op, Request, Status, Why};
use cairnfs_disk::types::{Attr, SetAttr};

use crate::admission::Purpose;
use crate::caller::Caller;
use crate::convert::{Outcome, Refusal};
use crate::ops::programs::{Done, Not, Program, Serving, give_back};
use crate::ops::{Ops, caught};

/// Attributes of one file that are still to be set.
pub struct Merged {
    channel: u64,
    number: u64,
    caller: Caller,
    /// The attributes before.
    attr: Attr,
    set: SetAttr,
}

impl Merged {
    fn is_of(&self, program: &Program, number: u64) -> bool {
        (self.channel, self.number) == (program.channel, number)
    }
}

impl Ops {
    /// Answers a request of a program, which may not wait for the answer to one that it has `deferred`.
    /// `merged` is what [`Self::set_merged`] has still to do, behind the last request at the latest. One to make a
    /// file durable is returned instead, without a reply: it is answered by [`Self::put_synced`].
    pub fn serve_program(
        &self,
        program: &Program,
        (request, deferred): (&[u8], bool),
        merged: &mut Option<Merged>,
        reply: &mut Vec<u8>,
    ) -> Option<FsyncRequest> {
        let Some(request) = Request::parse(request) else {
            call::put_reply(reply, Status::NotMine, &[Why::Call as u64]);
            return None;
        };
        match request.op {
            Op::Sync => return self.to_sync(program, &request, merged, reply),
            Op::Read => self.answer_bytes(program, &request, merged, reply),
            _ => self.answer_words(program, (&request, deferred), merged, reply),
        }
        None
    }

    /// Answers with bytes of a file.
    fn answer_bytes(
        &self,
        program: &Program,
        request: &Request<'_>,
        merged: &mut Option<Merged>,
        reply: &mut Vec<u8>,
    ) {
        self.set_merged(merged);
        match self.read_for(program, request) {
            Ok(bytes) => {
                self.program_counts.answered(request.op, false);
                call::put_bytes(reply, &bytes);
            }
            Err(not) => self.put_not(&not, reply),
        }
    }

    /// Answers with words.
    fn answer_words(
        &self,
        program: &Program,
        (request, deferred): (&Request<'_>, bool),
        merged: &mut Option<Merged>,
        reply: &mut Vec<u8>,
    ) {
        let deferred = deferred && request.op.may_be_deferred();
        let served = if deferred && self.merges(program, request, merged) {
            Ok(Vec::new())
        } else {
            self.set_merged(merged);
            let served = self.served(program, request);
            if deferred {
                self.insist(program, request, served)
            } else {
                served
            }
        };
        match served {
            Ok(words) => {
                self.program_counts.answered(request.op, deferred);
                call::put_reply(reply, Status::Done, &words);
            }
            Err(not) => self.put_not(&not, reply),
        }
    }

    /// Answers that something is not done.
    fn put_not(&self, not: &Not, reply: &mut Vec<u8>) {
        match not {
            Not::Mine(why) => {
                self.program_counts.left(*why);
                call::put_reply(reply, Status::NotMine, &[*why as u64]);
            }
            Not::Failed(errno) => {
                // Whether a name is there is all that was found out.
                self.program_counts.answered(Op::StatAt, false);
                call::put_reply(reply, Status::Failed, &[errno.unsigned_abs().into()]);
            }
        }
    }

    /// What a program wants to be made durable; `None`, with a reply, if that is not done.
    fn to_sync(
        &self,
        program: &Program,
        request: &Request<'_>,
        merged: &mut Option<Merged>,
        reply: &mut Vec<u8>,
    ) -> Option<FsyncRequest> {
        self.set_merged(merged);
        let [_, data_only, ..] = request.args;
        match self.synced(program, request) {
            Ok(ino) => Some(FsyncRequest {
                ino,
                data_only: data_only != 0,
            }),
            Err(not) => {
                self.put_not(&not, reply);
                None
            }
        }
    }

    /// Answers what became of an fsync.
    pub fn put_synced(&self, outcome: Outcome<()>, reply: &mut Vec<u8>) {
        self.program_counts.answered_by_any(Op::Sync);
        match outcome {
            Ok(()) => call::put_reply(reply, Status::Done, &[]),
            Err(Refusal(errno)) => {
                call::put_reply(reply, Status::Failed, &[errno.unsigned_abs().into()]);
            }
        }
    }

    /// Carries out what was deferred, and if it was in trouble, once more: by waiting, with the space that was
    /// set aside.
    fn insist(
        &self,
        program: &Program,
        request: &Request<'_>,
        served: Done<Vec<u64>>,
    ) -> Done<Vec<u64>> {
        let served = match served {
            Err(Not::Mine(Why::Trouble) | Not::Failed(_)) => {
                self.serve_by_waiting(program, request)
            }
            served => served,
        };
        self.note_loss(program, request, &served);
        served
    }

    fn serve_by_waiting(&self, program: &Program, request: &Request<'_>) -> Done<Vec<u64>> {
        self.deferrals.meets_trouble(program.channel);
        let mut serving = Serving::new(self, program);
        let [file, ..] = request.args;
        let done = self.exclusively(file, || Ok(serving.serve(request)))?;
        serving.unused.into_iter().for_each(give_back);
        done
    }

    /// Does what was deferred, also while the mount is being ended, without references of the kernel meanwhile.
    fn exclusively<T>(&self, file: u64, op: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        let _inside = self.admission.enter(Purpose::WriteBack)?;
        let _exclusive = self.trees.exclude_references();
        caught("a deferred request", file, op)
    }

    /// What was deferred and cannot be done, though its program may have gone on. A file that the kernel knows
    /// is no such case: its program waits for the answer.
    fn note_loss(&self, program: &Program, request: &Request<'_>, served: &Done<Vec<u64>>) {
        let is_done = match (served, request.op) {
            (Ok(words), Op::Write) => words.first() == Some(&(request.text.len() as u64)),
            (Ok(_) | Err(Not::Mine(Why::Known | Why::Call)), _) => true,
            (Err(_), _) => false,
        };
        if is_done {
            return;
        }
        let [number, ..] = request.args;
        let file = self.files.get(program.channel, number);
        tracing::error!("a deferred {:?} of a program could not be made", request.op);
        if let Some(file) = file.filter(|_| request.op == Op::Write) {
            let (file, why) = ((file.fs.root_id(), file.ino), Refusal(libc::EIO));
            self.losses.refused(file, 0..u64::MAX, why, || None);
        }
    }

    /// Takes over a deferred call that sets attributes. Returns false, and does nothing, if it is not one, or
    /// is to be decided by itself.
    fn merges(
        &self,
        program: &Program,
        request: &Request<'_>,
        merged: &mut Option<Merged>,
    ) -> bool {
        if !matches!(request.op, Op::FileChmod | Op::FileChown | Op::FileUtimens) {
            return false;
        }
        let [number, ..] = request.args;
        if !merged.as_ref().is_some_and(|m| m.is_of(program, number)) {
            self.set_merged(merged);
            *merged = self.merged(program, number);
        }
        let Some(merged) = merged else {
            return false;
        };
        let Ok(set) = Serving::new(self, program).file_set(&merged.attr, request) else {
            return false;
        };
        let all = &mut merged.set;
        all.mode = set.mode.or(all.mode);
        all.uid = set.uid.or(all.uid);
        all.gid = set.gid.or(all.gid);
        all.atime = set.atime.or(all.atime);
        all.mtime = set.mtime.or(all.mtime);
        true
    }

    /// The attributes of a file with a lease.
    fn merged(&self, program: &Program, number: u64) -> Option<Merged> {
        let file = self.files.get(program.channel, number)?;
        let is_leased = |epoch| self.deferrals.is_leased(program.channel, epoch);
        let is_its = file.lease.is_some_and(is_leased);
        if !is_its || !Arc::ptr_eq(&file.fs, &self.trees.mounted()) {
            return None;
        }
        Some(Merged {
            channel: program.channel,
            number,
            caller: program.person.caller(),
            attr: file.fs.getattr(file.ino).ok()?,
            set: SetAttr::default(),
        })
    }

    /// Sets what was taken over.
    pub fn set_merged(&self, merged: &mut Option<Merged>) {
        let Some(Merged {
            channel,
            caller,
            attr: Attr { ino, .. },
            set,
            ..
        }) = merged.take()
        else {
            return;
        };
        if set == SetAttr::default() {
            return;
        }
        let set = || self.exclusively(ino, || self.setattr(caller, ino, set).map(drop));
        let (done, waits) = self.trees.mounted().without_waiting(set);
        let done = done.or_else(|_| {
            self.deferrals.meets_trouble(channel);
            set()
        });
        if done.and_then(|()| self.settle(waits)).is_err() {
            tracing::error!("attributes that a program has set of inode {ino} are lost");
        }
    }
}
