//! `cairnfs stats`: state, counters, times and memory of a mounted volume, for people, programs,
//! health checks and Prometheus.
//!
//! Asks the daemon once or periodically. A stopped volume answers; a daemon that is gone or hangs
//! is reported as such.

mod health;
mod prometheus;
mod table;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use cairnfs::fs::LEVELS;
use cairnfs_daemon::failure::AnyError;
use cairnfs_fuse::status::{Programs, Status};
use serde::Serialize;

use self::health::Health;
use crate::daemon::{self, Answer, Request};
use crate::output;

/// Exit code: the daemon cannot be asked.
const NO_ANSWER: u8 = 3;

const EXAMPLES: &str = "\
Examples:
  cairnfs stats ~/disk                    its state, and what it did since it was mounted
  cairnfs stats --check ~/disk            one line, and an exit code, for a health check
  cairnfs stats --interval 1 ~/disk       what happens each second, until interrupted
  cairnfs stats --json ~/disk | jq .state,.space.available,.commits,.messages
  cairnfs stats --prometheus ~/disk >/var/lib/node_exporter/disk.prom

The state is running, read-only or stopped: a failure has stopped all changes. With --json
counters are printed as they are; names that end with _ns are nanoseconds, last_error.time is in
seconds since 1970. Counters, messages and errors restart at 0 with each mount. Messages are
those of the kernel, by operation of FUSE, without the ones by which commands ask the daemon.
Of a backup, backup.age is how many seconds ago everything was in the store, and backup.time that
of its newest moment; while nothing changes no further moment is stored.

Exit codes: 0 shown, 3 the daemon cannot be asked. With --check:
  0  healthy
  1  degraded: nearly full here or on the host, changes wait for space on the host, or there
     were errors since it was mounted, or its backup (mount -o backup=) fails, hangs, or
     is not kept small
  2  stopped
  3  no answer: no volume is mounted there, or its daemon is gone or does not answer";

/// Show the state of a mounted volume and what it does: space, errors, log, device, memory, messages
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The mountpoint, or anything in it that can be read
    dir: PathBuf,
    /// Print everything as one JSON object (one per line with --interval)
    #[arg(long)]
    json: bool,
    /// Print everything in the text format of Prometheus
    #[arg(long, conflicts_with_all = ["json", "interval"])]
    prometheus: bool,
    /// Report the health of the volume by the exit code; alone it prints one line
    #[arg(long, conflicts_with = "interval")]
    check: bool,
    /// Percentage of used space from which a volume counts as nearly full
    #[arg(long, value_name = "PERCENT", default_value_t = 95,
          value_parser = clap::value_parser!(u64).range(1..=100))]
    full: u64,
    /// Time to wait for an answer of the daemon
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    timeout: Duration,
    /// Act as the child process that sends the daemon a request
    #[arg(long, hide = true)]
    asking: Option<Request>,
    /// Print again every so many seconds what happened since, until interrupted
    #[arg(long, short = 'i', value_name = "SECONDS", value_parser = seconds)]
    interval: Option<Duration>,
    /// Stop after so many prints
    #[arg(long, short = 'n', value_name = "N", requires = "interval")]
    count: Option<u64>,
}

/// Parses a time in seconds from an option; at least 0.01.
///
/// # Errors
/// A message with the expected form.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let valid = text.parse().ok().filter(|s| *s >= 0.01);
    valid
        .and_then(|s| Duration::try_from_secs_f64(s).ok())
        .ok_or_else(|| format!("'{text}' is no time: write seconds, such as 1 or 0.5"))
}

type Counters = BTreeMap<String, u64>;

/// The JSON output.
#[derive(Serialize)]
struct JsonReport<'a> {
    mountpoint: String,
    health: &'static str,
    problems: &'a [String],
    #[serde(flatten)]
    status: &'a Status,
}

/// Runs the command.
///
/// # Errors
/// The daemon does not answer (exit code 3).
pub fn run(args: Args) -> Result<ExitCode, AnyError> {
    if let Some(request) = args.asking {
        daemon::answer_parent(request, &args.dir)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = io::stdout().lock();
    let mut before = (Counters::new(), Counters::new(), (0, 0));
    let mut programs_before = Programs::default();
    let mut prints = 0;
    loop {
        let mut answer = match daemon::status(&args.dir, args.timeout) {
            Ok(answer) => answer,
            Err(refusal) => return unanswered(&args, &refusal.about(&args.dir), &mut out),
        };
        let health = Health::of(&answer, args.full);
        let status = &mut answer.status;
        let now = (
            std::mem::take(&mut status.counters),
            std::mem::take(&mut status.messages),
            (status.transport.polled, status.transport.followed),
        );
        status.counters = since(&before.0, &now.0);
        status.messages = since(&before.1, &now.1);
        let (polled, followed) = now.2;
        status.transport.polled = polled.saturating_sub(before.2.0);
        status.transport.followed = followed.saturating_sub(before.2.1);
        let programs = status.programs.clone();
        status.programs = Programs {
            connected: programs.connected,
            answered: since(&programs_before.answered, &programs.answered),
            deferred: programs.deferred.saturating_sub(programs_before.deferred),
            left: since(&programs_before.left, &programs.left),
        };
        programs_before = programs;
        print(&args, &answer, &health, &mut out)?;
        out.flush()?;
        prints += 1;
        let Some(interval) = args.interval else {
            let code = if args.check { health.exit_code() } else { 0 };
            return Ok(ExitCode::from(code));
        };
        if args.count.is_some_and(|count| prints >= count) {
            return Ok(ExitCode::SUCCESS);
        }
        before = now;
        std::thread::sleep(interval);
        if !args.json {
            writeln!(out)?;
        }
    }
}

fn print(
    args: &Args,
    answer: &Answer,
    health: &Health,
    out: &mut dyn Write,
) -> Result<(), AnyError> {
    if args.json {
        let report = JsonReport {
            mountpoint: answer.mountpoint.to_string_lossy().into_owned(),
            health: health.word(),
            problems: health.problems(),
            status: &answer.status,
        };
        serde_json::to_writer(&mut *out, &report)?;
        writeln!(out)?;
    } else if args.prometheus {
        prometheus::write(out, answer, health)?;
    } else if args.check {
        writeln!(out, "{}", health.line(answer))?;
    } else {
        output::table(out, &table::rows(answer, args.full))?;
    }
    Ok(())
}

/// Reports that there is no answer: one line for a health check, a metric for Prometheus, else a
/// message.
fn unanswered(args: &Args, why: &str, out: &mut dyn Write) -> Result<ExitCode, AnyError> {
    if args.check && !args.json && !args.prometheus {
        writeln!(out, "UNKNOWN: {why}")?;
        return Ok(ExitCode::from(NO_ANSWER));
    }
    if args.prometheus {
        prometheus::write_down(out, &args.dir)?;
    }
    say!("cairnfs: {why}");
    Ok(ExitCode::from(NO_ANSWER))
}

/// The difference of two sets of counters; levels are those of the second.
fn since(before: &Counters, now: &Counters) -> Counters {
    let rose = |(name, value): (&String, &u64)| {
        let was = before.get(name).copied().unwrap_or(0);
        let level = LEVELS.contains(&name.as_str());
        let change = if level {
            *value
        } else {
            value.saturating_sub(was)
        };
        (name.clone(), change)
    };
    now.iter().map(rose).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_shows_levels_as_is_and_counters_as_differences() {
        let counters = |pairs: [(&str, u64); 2]| pairs.map(|(n, v)| (n.to_owned(), v)).into();
        let before = counters([("commits", 5), ("dirty_bytes", 900)]);
        let now = counters([("commits", 7), ("dirty_bytes", 100)]);
        assert_eq!(
            since(&before, &now),
            counters([("commits", 2), ("dirty_bytes", 100)])
        );
    }

    #[test]
    fn intervals_are_positive() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["0", "-1", "nan", "soon", "inf"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
