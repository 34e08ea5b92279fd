//! Extended attributes: each thread sets one on each of its files, to values that many files share,
//! and reads it back; then it reads an attribute that does not exist.
//!
//! Files, their names and the common bytes of all values are created before the clock starts; a
//! value is those bytes with its number in front. So a thread's own work and memory do not depend
//! on the number of values: a table of 100,000 values would take 40 MB, and reading from it would
//! be measured with the call. The seed determines which file gets which value.

use super::{Description, Phases, Worker, Workload, at_least_one, file_name};
use crate::Result;
use crate::random::Random;
use crate::settings::parse_size;

/// Set attributes whose values are equal for many files, and read them.
#[derive(Debug, Clone, clap::Args)]
pub struct Xattr {
    /// Threads, each in a directory of its own.
    #[arg(long, short = 't', value_name = "N", default_value_t = 1)]
    pub threads: usize,

    /// Files of each thread.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1000)]
    pub files: u64,

    /// Different values; each file gets one of them.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub values: u64,

    /// Bytes of each value; suffix K.
    #[arg(long, value_name = "BYTES", default_value = "400", value_parser = parse_size)]
    pub value_size: u64,

    /// Do not read back what was set: for a file system that does not store any.
    #[arg(long)]
    pub only_absent: bool,

    /// Seed that selects the value of each file.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

const PRESENT: &str = "user.cairnfs-bench";
const ABSENT: &str = "user.cairnfs-absent";

/// Maximum size of a value in Linux, in bytes (`XATTR_SIZE_MAX`).
const MAX_VALUE: u64 = 64 << 10;

impl Workload for Xattr {
    fn describe(&self) -> Description {
        Description {
            name: "xattr",
            unit: "calls",
            threads: self.threads,
            settings: vec![
                ("threads", self.threads as u64),
                ("files_per_thread", self.files),
                ("values", self.values),
                ("value_bytes", self.value_size),
                ("only_absent", u64::from(self.only_absent)),
                ("seed", self.seed),
            ],
        }
    }

    fn check(&self) -> Result<()> {
        at_least_one(&[
            ("--threads", self.threads as u64),
            ("--files", self.files),
            ("--values", self.values),
        ])?;
        if self.value_size > MAX_VALUE {
            return Err("--value-size may be at most 64K".into());
        }
        if self.value_size < 8 && self.values > 1 << (8 * self.value_size) {
            return Err("there are not so many values of so few bytes".into());
        }
        Ok(())
    }

    fn prepare(&self, worker: &Worker<'_>) -> Result<()> {
        let dir = worker.dir()?;
        (0..self.files).try_for_each(|file| dir.create(&file_name(file), &[], false))
    }

    fn measure(&self, phases: &mut Phases<'_>) -> Result<()> {
        let names: Vec<String> = (0..self.files).map(file_name).collect();
        let common = Random::new(self.seed, 0).bytes(self.value_size as usize);
        phases.run("set", |worker| self.set(worker, &names, common.clone()))?;
        phases.meter.sync_last("sync", "set synced")?;
        if !self.only_absent {
            let size = Some(self.value_size);
            phases.run("get, present", |worker| {
                get(worker, &names, (PRESENT, size))
            })?;
        }
        phases.run("get, absent", |worker| get(worker, &names, (ABSENT, None)))
    }
}

impl Xattr {
    fn set(&self, worker: &mut Worker<'_>, names: &[String], mut value: Vec<u8>) -> Result<()> {
        let dir = worker.dir()?;
        let mut random = Random::new(self.seed, worker.number as u64);
        worker.each(names, |name| {
            number(&mut value, random.below(self.values));
            dir.set_xattr(name, PRESENT, &value)
        })
    }
}

/// Reads an attribute of each file, which must have that size, or not exist.
fn get(
    worker: &mut Worker<'_>,
    names: &[String],
    (attribute, expected): (&str, Option<u64>),
) -> Result<()> {
    let dir = worker.dir()?;
    let mut value = vec![0; MAX_VALUE as usize];
    worker.each(names, |name| {
        let found = dir.get_xattr(name, attribute, &mut value)?;
        if found.map(|length| length as u64) != expected {
            return Err(format!(
                "{attribute} of {name} should have {expected:?} bytes, but has {found:?}"
            )
            .into());
        }
        Ok(())
    })
}

/// Writes the value's number into its first bytes, so that no two values are equal.
fn number(value: &mut [u8], number: u64) {
    let places = value.iter_mut().zip(number.to_le_bytes());
    places.for_each(|(place, byte)| *place = byte);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_distinct_and_of_requested_size() {
        for (size, values) in [("400", 300), ("1", 256), ("9", 300)] {
            let count = values.to_string();
            let xattr: Xattr = crate::parse(&["--value-size", size, "--values", &count]).unwrap();
            xattr.check().unwrap();
            let of = |n| {
                let mut value = vec![9; xattr.value_size as usize];
                number(&mut value, n);
                value
            };
            let all: std::collections::BTreeSet<_> = (0..values).map(of).collect();
            assert_eq!(all.len(), values as usize);
            assert!(all.iter().all(|v| v.len() as u64 == xattr.value_size));
        }
        let crowded: Xattr = crate::parse(&["--value-size", "1", "--values", "257"]).unwrap();
        assert!(crowded.check().is_err());
    }
}
