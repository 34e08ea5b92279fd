//! Benchmarks that measure a mounted directory and print their own figures: dbench, fio, fs_mark.
//! Their output is converted to the same figures as those of workloads.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::super::stats::cpu_of_children;
use super::{External, Site};
use crate::Result;
use crate::phase::{Meter, Outcome};
use crate::tally::Latency;

/// One run of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reporting {
    /// dbench for `seconds` seconds.
    Dbench {
        /// Run time in seconds.
        seconds: u32,
    },
    /// fio with `jobs` jobs.
    Fio {
        /// Number of jobs, each with its own file.
        jobs: u32,
        /// Writes of 4 KiB at random offsets of existing files, instead of 64 KiB sequentially.
        random: bool,
    },
    /// fs_mark.
    FsMark,
}

const DBENCH_CLIENTS: u32 = 40;
const FS_MARK_PROCESSES: u32 = 8;
const FS_MARK_FILES: u32 = 10_000;
/// Total bytes that all jobs of fio write.
const FIO_TOTAL: u32 = 256 << 20;
const FIO_RANDOM_TOTAL: u32 = 16 << 20;

impl Reporting {
    /// Returns the runs of fio.
    pub fn fio() -> Vec<Self> {
        let fio = |random| move |jobs| Reporting::Fio { jobs, random };
        let sequential = [1, 4, 16, 64].map(fio(false));
        [&sequential[..], &[1, 16].map(fio(true))].concat()
    }

    fn command(&self, dir: &Path) -> Result<Command> {
        let mut command = Command::new(self.program().0);
        match self {
            Reporting::Dbench { seconds } => {
                let (seconds, clients) = (seconds.to_string(), DBENCH_CLIENTS.to_string());
                command.arg("-D").arg(dir).args(["-t", &seconds, &clients]);
            }
            Reporting::Fio { jobs, random } => {
                let (how, block, total) = if *random {
                    ("randwrite", "4k", FIO_RANDOM_TOTAL)
                } else {
                    ("write", "64k", FIO_TOTAL)
                };
                command
                    .arg(format!("--directory={}", dir.display()))
                    .args([
                        "--name=job",
                        "--fsync=1",
                        "--fallocate=none",
                        "--group_reporting",
                    ])
                    .args(["--output-format=json", "--ioengine=psync", "--randseed=1"])
                    .arg(format!("--rw={how}"))
                    .arg(format!("--bs={block}"))
                    .arg(format!("--size={}", total / jobs))
                    .arg(format!("--numjobs={jobs}"));
            }
            Reporting::FsMark => {
                command.args(["-s", "0", "-S", "0", "-k", "-D", "10", "-N", "1000"]);
                command.arg("-n").arg(FS_MARK_FILES.to_string());
                command.arg("-l").arg("/dev/null");
                for process in 0..FS_MARK_PROCESSES {
                    let own = dir.join(process.to_string());
                    fs::create_dir(&own)?;
                    command.arg("-d").arg(own);
                }
            }
        }
        Ok(command)
    }

    fn parse(&self, printed: &str) -> Option<Outcome> {
        match self {
            Reporting::Dbench { seconds } => dbench(printed, *seconds),
            Reporting::Fio { .. } => fio(printed),
            Reporting::FsMark => fs_mark(printed),
        }
    }
}

impl External for Reporting {
    fn title(&self) -> String {
        match self {
            Reporting::Dbench { seconds } => {
                format!("dbench, {DBENCH_CLIENTS} clients, {seconds} s")
            }
            Reporting::Fio { jobs, random: true } => {
                format!("fio, 4 KiB random write + fsync, {jobs} jobs")
            }
            Reporting::Fio { jobs, .. } => {
                format!("fio, 64 KiB sequential write + fsync, {jobs} jobs")
            }
            Reporting::FsMark => {
                format!("fs_mark, {FS_MARK_PROCESSES} x {FS_MARK_FILES} empty files")
            }
        }
    }

    fn program(&self) -> (&'static str, &'static str) {
        match self {
            Reporting::Dbench { .. } => ("dbench", "MB"),
            Reporting::Fio { .. } => ("fio", "fsyncs"),
            Reporting::FsMark => ("fs_mark", "files"),
        }
    }

    fn measure(&self, site: &Site<'_>, meter: &mut Meter<'_>) -> Result<()> {
        let mut command = self.command(site.dir)?;
        let phase = match self {
            Reporting::Dbench { .. } => "load",
            Reporting::Fio { random: true, .. } => "random write + fsync",
            Reporting::Fio { .. } => "write + fsync",
            Reporting::FsMark => "create",
        };
        meter.program(phase, || {
            let before = cpu_of_children();
            let printed = site.run(&mut command)?;
            let mut outcome = self.parse(&printed).ok_or_else(|| {
                format!(
                    "cannot find the figures in what {} printed: {printed}",
                    self.program().0
                )
            })?;
            outcome.cpu = cpu_of_children().saturating_sub(before);
            Ok(outcome)
        })?;
        meter.sync()
    }
}

/// Parses `Throughput 998.421 MB/sec  2 clients  2 procs  max_latency=3.647 ms`. One operation is
/// one megabyte.
fn dbench(printed: &str, seconds: u32) -> Option<Outcome> {
    let line = printed
        .lines()
        .find(|line| line.starts_with("Throughput"))?;
    let rate: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    let megabytes = (rate * f64::from(seconds)).round();
    Some(Outcome {
        operations: megabytes as u64,
        time: Duration::try_from_secs_f64(megabytes / rate).ok()?,
        ..Outcome::default()
    })
}

fn fio(printed: &str) -> Option<Outcome> {
    // Warnings may precede the JSON.
    let json: Value = serde_json::from_str(printed.get(printed.find('{')?..)?).ok()?;
    let job = json.get("jobs")?.get(0)?;
    let write = job.get("write")?;
    let sync = job.get("sync")?.get("lat_ns")?;
    let number = |of: &Value, name: &str| of.get(name).and_then(Value::as_u64);
    let percentile = |percent: &str| number(sync.get("percentile")?, percent);
    Some(Outcome {
        operations: number(write, "total_ios")?,
        bytes: number(write, "io_bytes")?,
        time: Duration::from_millis(number(write, "runtime")?),
        latency: Some(Latency {
            count: number(sync, "N")?,
            p50: percentile("50.000000")?,
            p90: percentile("90.000000")?,
            p99: percentile("99.000000")?,
            p99_9: percentile("99.900000")?,
            max: number(sync, "max")?,
        }),
        cpu: Duration::ZERO,
    })
}

/// Parses the line after the heading `FSUse% Count Size Files/sec App Overhead`.
fn fs_mark(printed: &str) -> Option<Outcome> {
    let mut lines = printed.lines();
    lines.find(|line| line.trim_start().starts_with("FSUse%"))?;
    let fields: Vec<&str> = lines.next()?.split_whitespace().collect();
    let files: u32 = fields.get(1)?.parse().ok()?;
    let rate: f64 = fields.get(3)?.parse().ok()?;
    Some(Outcome {
        operations: u64::from(files),
        time: Duration::try_from_secs_f64(f64::from(files) / rate).ok()?,
        ..Outcome::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dbench_throughput_is_parsed() {
        let printed = " Flush           4408     0.260     4.527\n\n\
                       Throughput 998.421 MB/sec  2 clients  2 procs  max_latency=3.647 ms\n";
        let found = dbench(printed, 20).unwrap();
        assert_eq!(found.operations, 19968);
        let rate = found.operations as f64 / found.time.as_secs_f64();
        assert!((rate - 998.421).abs() < 0.001, "{rate}");
        assert!(dbench("no server", 20).is_none());
        assert!(dbench("Throughput 0 MB/sec", 20).is_none());
    }

    #[test]
    fn fio_writes_and_fsync_latencies_are_parsed() {
        let printed = r#"fio: a warning
            {"fio version": "fio-3.33", "jobs": [{"jobname": "job",
              "write": {"io_bytes": 2097152, "runtime": 6, "total_ios": 32},
              "sync": {"total_ios": 30, "lat_ns": {"min": 199308, "max": 1034442, "N": 30,
                "percentile": {"50.000000": 254976, "90.000000": 296960, "99.000000": 1036288,
                               "99.900000": 1036288}}}}]}"#;
        let found = fio(printed).unwrap();
        assert_eq!((found.operations, found.bytes), (32, 2_097_152));
        assert_eq!(found.time, Duration::from_millis(6));
        let latency = found.latency.unwrap();
        assert_eq!((latency.p50, latency.max), (254_976, 1_034_442));
        assert!(fio("{}").is_none() && fio("no").is_none());
    }

    #[test]
    fn fs_mark_files_per_second_is_parsed() {
        let printed = "#\tFiles info: size 0 bytes\n\n\
                       FSUse%        Count         Size    Files/sec     App Overhead\n    \
                       71         1000            0      36091.5             2798\n";
        let found = fs_mark(printed).unwrap();
        assert_eq!(found.operations, 1000);
        let rate = found.operations as f64 / found.time.as_secs_f64();
        assert!((rate - 36091.5).abs() < 0.1, "{rate}");
        assert!(fs_mark("FSUse% Count\n").is_none());
    }

    #[test]
    fn reporting_programs_have_runs() {
        let fio = Reporting::fio();
        assert_eq!(fio.len(), 6);
        assert!(fio.iter().all(|run| run.title().starts_with("fio")));
        let dbench = Reporting::Dbench { seconds: 7 };
        assert_eq!(dbench.title(), "dbench, 40 clients, 7 s");
    }
}
