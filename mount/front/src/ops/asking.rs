//! What concerns a mount as a whole: its end, syncs, space, and the questions of commands.

use cairnfs_disk::format::ROOT_INO;
use cairnfs_disk::types::StatFs;
use cairnfs_transport::Asker;

use crate::control::{self, Question};
use crate::convert::Refusal;
use crate::mountinfo;
use crate::ops::entries::has_name;
use crate::ops::{Caller, Ops, Outcome};
use crate::status::{self, Status};

impl Ops {
    /// Prepares the end of a mount whose files are open: makes the kernel write back its dirty
    /// pages, and ask before it accepts more data, which is then refused. Must not be called in an
    /// event loop.
    pub(crate) fn take_all(&self) {
        self.admission.close();
        // Twice: a write that was admitted before it closed can reach the kernel's cache
        // after the first round.
        for _ in 0..2 {
            self.fetch_each();
        }
    }

    /// Gives back what the kernel had of a mount that has ended: it does not say so itself. Refuses all
    /// later requests; waits for those in flight.
    pub fn end(&self) {
        self.admission.shut();
        self.programs_end();
        self.trees.end();
    }

    /// Waits, on behalf of `asker`, until each write that the kernel has sent is answered. Must not be
    /// called in an event loop.
    pub(crate) fn wait_for_writes(&self, asker: Asker) {
        if let Some(kernel) = self.kernel.get()
            && !kernel.is_quiet(asker)
        {
            self.fetch_each();
        }
    }

    /// Makes the kernel write back the dirty pages of each file, and drop all. Must not be called in
    /// an event loop.
    fn fetch_each(&self) {
        let Some(kernel) = self.kernel.get() else {
            return;
        };
        for node in self.trees.nodes() {
            kernel.fetch_dirty(node, 0);
        }
    }

    /// Makes all earlier changes durable, and states on the device that they are. Waits for the
    /// device.
    pub fn sync(&self) -> Outcome<()> {
        drop(self.arriving.write());
        self.on(ROOT_INO, |root| Ok(root.fs.sync_stated()?))
    }

    /// Number of node ids that do not mean the inode of their number in the mounted tree.
    pub fn bound_nodes(&self) -> usize {
        self.trees.bound()
    }

    /// A message with reason and recommended action if the volume has stopped.
    pub(crate) fn stopped(&self) -> Option<String> {
        Some(status::stopped_by(
            &self.volume,
            &self.trees.mounted().failure()?,
        ))
    }

    /// Returns the volume's space and inode counts.
    pub fn statfs(&self) -> StatFs {
        self.trees.mounted().statfs()
    }

    /// Answers a question, that is, returns the value of a reserved attribute. May wait for the
    /// device.
    pub fn answer(&self, caller: Caller, name: &[u8]) -> Outcome<Vec<u8>> {
        let question = Question::parse(name);
        let ours = caller.uid == 0 || caller.uid == rustix::process::geteuid().as_raw();
        if question.is_some_and(Question::is_privileged) && !ours {
            return Err(Refusal(libc::EPERM));
        }
        match question {
            Some(Question::Sync) => {
                // Not every kernel waits in syncfs for the writes that it begins, and this question may
                // have overtaken them.
                self.wait_for_writes(Asker::Request);
                self.sync()?;
                let lost = self.losses.take(|(root, ino)| {
                    let tree = self.trees.of_root(root);
                    tree.is_none_or(|fs| has_name(&fs, ino))
                });
                Ok(control::sync_answer(&lost).into_bytes())
            }
            Some(Question::Volume) => Ok(mountinfo::bytes(&self.volume).to_vec()),
            Some(Question::Status) => {
                let transport = self.kernel.get().map(|kernel| kernel.transport());
                let mut status = Status::of(
                    &self.trees.mounted(),
                    &self.volume,
                    self.losses.count(),
                    &self.messages,
                    transport.unwrap_or_default(),
                )
                .showing(self.shown());
                status.backup = self.backup.as_ref().map(|ask| ask());
                status.programs = self.program_counts.shown(self.deferrals.count());
                Ok(control::status_answer(&status))
            }
            Some(Question::Writable) => Ok(control::writable_answer(
                self.trees.mounted().is_read_only(),
            )),
            Some(Question::Trim) => Ok(self.trees.mounted().trim()?.to_string().into_bytes()),
            None => Err(Refusal(libc::ENODATA)),
        }
    }
}
