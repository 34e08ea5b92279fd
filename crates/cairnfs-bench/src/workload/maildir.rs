//! Mail delivery: a message is created in `tmp`, written and synced, renamed into `new`, and `new`
//! is synced. Then the message counts as delivered.

use super::{Ground, Workload, at_least_one, at_most_1g, contents};
use crate::Result;
use crate::args::parse_size;
use crate::phase::Meter;
use crate::tally::Tally;

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
    fn name(&self) -> &'static str {
        "maildir"
    }

    fn unit(&self) -> &'static str {
        "messages"
    }

    fn threads(&self) -> usize {
        self.jobs
    }

    fn settings(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("jobs", self.jobs as u64),
            ("messages_per_job", self.messages),
            ("message_bytes", self.size),
        ]
    }

    fn check(&self) -> Result<()> {
        at_least_one(&[("--jobs", self.jobs as u64), ("--messages", self.messages)])?;
        at_most_1g("--size", self.size)
    }

    fn prepare(&self, ground: &Ground<'_>) -> Result<()> {
        for job in 0..self.jobs {
            ground.make_subdir(job, "tmp")?;
            ground.make_subdir(job, "new")?;
        }
        Ok(())
    }

    fn measure(&self, ground: &Ground<'_>, meter: &mut Meter<'_>) -> Result<()> {
        let bytes = contents(self.size);
        meter.threads("deliver", self.jobs, |job, tally| {
            self.deliver(ground, job, &bytes, tally)
        })?;
        meter.sync()
    }
}

impl Maildir {
    fn deliver(
        &self,
        ground: &Ground<'_>,
        job: usize,
        bytes: &[u8],
        tally: &mut Tally,
    ) -> Result<()> {
        let (tmp, new) = (ground.subdir(job, "tmp")?, ground.subdir(job, "new")?);
        for number in 0..self.messages {
            let name = format!("{number:08}.{job}");
            tally.timed(|| {
                tmp.create(&name, bytes, true)?;
                tmp.rename(&name, &*new, &name)?;
                new.sync()
            })?;
            tally.bytes += self.size;
        }
        Ok(())
    }
}
