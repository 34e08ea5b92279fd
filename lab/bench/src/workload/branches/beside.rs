//! Phases of two threads: one makes or removes forks, the other one creates files in the tree.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::{BLOCK, Run};
use crate::Result;
use crate::target::Open;
use crate::workload::{End, Phases, contents, file_name};

/// Number of the thread that makes or removes forks; the other one creates files.
const FORKS: usize = 0;

/// Time between two looks whether the next fork has begun.
const PAUSE: Duration = Duration::from_millis(1);

impl Run<'_> {
    /// Forks while another thread creates files. During each fork at most half of `creates` files
    /// are created, because a program that copies a tree would never be done with one that grows as
    /// fast. Removes the forks and these files, whose number depends on speed: the tree is again as
    /// it was.
    pub(super) fn fork_beside(&self, phases: &mut Phases<'_>) -> Result<()> {
        let (over, forks) = (AtomicBool::new(false), self.settings.forks);
        let (begun, each) = (AtomicU64::new(0), self.settings.creates.div_ceil(2));
        let before = self.next.load(Ordering::Relaxed);
        phases.run("create beside forks", |worker| {
            if worker.number == FORKS {
                let _end = End(&over);
                return (0..forks).try_for_each(|fork| {
                    begun.fetch_add(1, Ordering::Relaxed);
                    self.tree.fork(fork)
                });
            }
            while !over.load(Ordering::Relaxed) {
                let made = self.next.load(Ordering::Relaxed) - before;
                if made < begun.load(Ordering::Relaxed) * each {
                    self.create(worker, 1)?
                } else {
                    std::thread::sleep(PAUSE)
                }
            }
            Ok(())
        })?;
        phases.meter.beside("forks beside create", forks, 0);
        (0..forks).try_for_each(|fork| self.tree.remove(fork))?;
        self.tree.freed()?;
        self.remove_since(before, phases)
    }

    /// Overwrites all files in a fork, and removes it while another thread creates files.
    pub(super) fn remove_beside(&self, phases: &mut Phases<'_>) -> Result<()> {
        let (files, bytes) = (self.settings.files, contents(self.settings.size));
        self.tree.fork(0)?;
        phases.run_first(1, "overwrite all in a fork", |worker| {
            let dir = self.tree.dir(Some(0))?;
            worker.tally.bytes += files * self.settings.size;
            worker.each(0..files, |file| {
                let file = dir.open(&file_name(file), Open::Existing)?;
                file.write_at(&bytes, 0)
            })
        })?;
        phases.meter.settle()?;
        let (over, before) = (AtomicBool::new(false), self.next.load(Ordering::Relaxed));
        phases.run("create beside removal", |worker| {
            if worker.number == FORKS {
                let _end = End(&over);
                self.tree.remove(0)?;
                return self.tree.freed();
            }
            while !over.load(Ordering::Relaxed) {
                self.create(worker, 1)?;
            }
            Ok(())
        })?;
        let blocks = files * self.settings.size.div_ceil(BLOCK);
        phases.meter.beside("blocks freed beside create", blocks, 0);
        self.remove_since(before, phases)
    }

    /// Removes the files of the tree that were created since the next one had this number.
    fn remove_since(&self, before: u64, phases: &Phases<'_>) -> Result<()> {
        let dir = self.tree.dir(None)?;
        let mut made = before..self.next.load(Ordering::Relaxed);
        made.try_for_each(|file| dir.remove(&file_name(file)))?;
        phases.meter.settle()
    }
}
