//! Mail delivery: a message is created in `tmp`, written and synced, renamed into `new`, and `new`
//! is synced. Then the message counts as delivered.

use super::{Description, Phases, Worker, Workload, at_least_one, at_most_1g, contents};
use crate::Result;
use crate::settings::parse_size;

/// Deliver messages as a mail server does.
#[derive(Debug, Clone, clap::Args)]
pub struct Maildir {
    /// Jobs, each a thread that delivers to a mailbox of its own.
    #[arg(long, short = 'j', value_name = "N", default_value_t = 1)]
    pub jobs: usize,

    /// Messages of each job.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1000)]
    pub messages: u64,

    /// Bytes of each message; suffixes K, M, G.
    #[arg(long, short = 's', value_name = "BYTES", default_value = "4K", value_parser = parse_size)]
    pub size: u64,
}

impl Workload for Maildir {
    fn describe(&self) -> Description {
        Description {
            name: "maildir",
            unit: "messages",
            threads: self.jobs,
            settings: vec![
                ("jobs", self.jobs as u64),
                ("messages_per_job", self.messages),
                ("message_bytes", self.size),
            ],
        }
    }

    fn check(&self) -> Result<()> {
        at_least_one(&[("--jobs", self.jobs as u64), ("--messages", self.messages)])?;
        at_most_1g("--size", self.size)
    }

    fn prepare(&self, worker: &Worker<'_>) -> Result<()> {
        worker.make_subdir("tmp")?;
        worker.make_subdir("new")
    }

    fn measure(&self, phases: &mut Phases<'_>) -> Result<()> {
        let bytes = contents(self.size);
        phases.run("deliver", |worker| self.deliver(worker, &bytes))?;
        phases.meter.sync()
    }
}

impl Maildir {
    fn deliver(&self, worker: &mut Worker<'_>, bytes: &[u8]) -> Result<()> {
        let (tmp, new) = (worker.subdir("tmp")?, worker.subdir("new")?);
        for number in 0..self.messages {
            let name = format!("{number:08}.{}", worker.number);
            worker.tally.timed(|| {
                tmp.create(&name, bytes, true)?;
                tmp.rename(&name, &*new, &name)?;
                new.sync()
            })?;
            worker.tally.bytes += self.size;
        }
        Ok(())
    }
}
