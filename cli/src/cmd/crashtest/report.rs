//! The output of `cairnfs crashtest`: a table or JSON, and each state that fails.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::Output;

use cairnfs_daemon::failure::{AnyError, show_bytes, shown};
use cairnfs_daemon::shell;
use cairnfs_sim::disk::Event;
use cairnfs_sim::explore::{Tally, joined};
use cairnfs_sim::record::Recording;
use cairnfs_sim::states::StateId;
use serde::Serialize;

use super::record::Ran;
use super::{Args, INTERVALS};
use crate::output;

/// Maximum number of failures in the table.
const SHOWN: usize = 10;

#[derive(Serialize)]
struct JsonReport {
    /// All states of all runs were tried, as far as `--states` asks for, and are allowed.
    allowed: bool,
    complete: bool,
    runs: Vec<Run>,
}

/// The result of the states of one run.
#[derive(Serialize)]
pub struct Run {
    interval: u64,
    complete: bool,
    command_failed: Option<String>,
    calls: usize,
    writes: usize,
    flushes: usize,
    possible_states: usize,
    states: u64,
    distinct_disks: usize,
    interrupted_recoveries: u64,
    failures: Vec<JsonFailure>,
    kept: Vec<String>,
    /// The first of them, as a shell reads it.
    #[serde(skip)]
    first_kept: Option<String>,
}

#[derive(Serialize)]
struct JsonState<'a> {
    state: String,
    after: String,
    allowed: bool,
    message: Option<&'a str>,
}

#[derive(Serialize)]
struct JsonFailure {
    state: String,
    after: String,
    message: String,
}

/// The last call that had returned when the power failed.
fn after(recording: &Recording, id: &[StateId]) -> String {
    let event = id.first().map_or(0, |first| first.event as usize);
    let calls: Vec<&str> = recording.calls().collect();
    let n = recording.returned(event).calls;
    match n.checked_sub(1).and_then(|last| calls.get(last)) {
        Some(call) => format!("call {n} of {}, {call}", calls.len()),
        None => "the beginning".into(),
    }
}

impl Run {
    /// The result of a run that had `possible` states; `complete` if the trials ended by themselves.
    pub fn new(
        interval: u64,
        run: &Ran,
        tally: &Tally,
        possible: usize,
        kept: &[PathBuf],
        complete: bool,
    ) -> Self {
        let events = run.recording.events();
        let flushes = events.iter().filter(|e| matches!(e, Event::Flush)).count();
        let failures = tally.failures.iter().map(|failure| JsonFailure {
            state: failure.id(),
            after: after(&run.recording, &failure.id),
            message: failure.message.clone(),
        });
        Self {
            interval,
            complete,
            command_failed: run.failed.clone(),
            calls: run.recording.calls().count(),
            writes: events.len() - flushes,
            flushes,
            possible_states: possible,
            states: tally.states,
            distinct_disks: tally.disks.len(),
            interrupted_recoveries: tally.interrupted,
            failures: failures.collect(),
            kept: kept.iter().map(|path| shown(path)).collect(),
            first_kept: kept.first().map(|path| shell::word_of_path(path)),
        }
    }

    fn verdict(&self) -> String {
        match (self.failures.len(), self.complete) {
            (0, true) => "all tried states keep the contract".into(),
            (n, true) => format!("{n} FAIL"),
            (0, false) => "incomplete: not all states were tried".into(),
            (n, false) => format!("{n} FAIL; incomplete: not all states were tried"),
        }
    }
}

/// Prints the results of all runs; `complete` if none is missing. Returns whether the test was
/// passed.
pub fn tell(args: &Args, runs: Vec<Run>, complete: bool) -> Result<bool, AnyError> {
    let report = JsonReport {
        allowed: complete && runs.iter().all(|run| run.failures.is_empty()),
        complete,
        runs,
    };
    if args.json {
        return output::json(&report).map(|()| report.allowed);
    }
    let mut out = io::stdout().lock();
    for (n, run) in report.runs.iter().enumerate() {
        if !args.quiet {
            if n > 0 {
                writeln!(out)?;
            }
            table(&mut out, run)?;
        }
        print_failures(&mut out, args, run)?;
    }
    if !args.quiet {
        print_untried(&mut out, &report.runs)?;
    }
    Ok(report.allowed)
}

fn table(out: &mut dyn Write, run: &Run) -> io::Result<()> {
    let mut rows = vec![(
        "Durable",
        match run.interval {
            0 => "by syncs only (--interval 0)".into(),
            1 => "after each call (--interval 1)".into(),
            n => format!("after every {n} calls (--interval {n})"),
        },
    )];
    if let Some(status) = &run.command_failed {
        rows.push(("Command", format!("failed: {status}")));
    }
    rows.extend([
        ("Calls", run.calls.to_string()),
        (
            "Disk",
            format!("{} writes, {} flushes", run.writes, run.flushes),
        ),
        ("Possible states", run.possible_states.to_string()),
        (
            "Recovered",
            format!("{}, {} distinct disks", run.states, run.distinct_disks),
        ),
        (
            "Of them",
            format!("{} of interrupted recoveries", run.interrupted_recoveries),
        ),
        ("Verdict", run.verdict()),
    ]);
    output::table(out, &rows)
}

/// Names the intervals that were not tried.
fn print_untried(out: &mut dyn Write, runs: &[Run]) -> io::Result<()> {
    for interval in INTERVALS {
        if runs.iter().all(|run| run.interval != interval) {
            writeln!(
                out,
                "Not tried: --interval {interval}, which has other states"
            )?;
        }
    }
    Ok(())
}

fn print_failures(out: &mut dyn Write, args: &Args, run: &Run) -> io::Result<()> {
    for failure in run.failures.iter().take(SHOWN) {
        let message = show_bytes(failure.message.as_bytes());
        let after = show_bytes(failure.after.as_bytes());
        writeln!(out, "state {}: {message}", failure.state)?;
        writeln!(out, "  after {after}")?;
    }
    if run.failures.len() > SHOWN {
        writeln!(out, "and {} more", run.failures.len() - SHOWN)?;
    }
    let Some(first) = run.failures.first() else {
        return Ok(());
    };
    if let Some(path) = &run.first_kept {
        writeln!(
            out,
            "Look at it: cairnfs check {path}; cairnfs mount {path} DIR"
        )
    } else if args.command.is_empty() {
        let (interval, state) = (run.interval, &first.state);
        writeln!(
            out,
            "Again: the same with --interval {interval} --replay {state}"
        )
    } else {
        writeln!(out, "To keep the disks of such states: --keep DIR")
    }
}

/// Prints the result of one state.
pub fn tell_one(
    args: &Args,
    recording: &Recording,
    id: &[StateId],
    verdict: &Result<(), String>,
) -> Result<(), AnyError> {
    let report = JsonState {
        state: joined(id),
        after: after(recording, id),
        allowed: verdict.is_ok(),
        message: verdict.as_ref().err().map(String::as_str),
    };
    if args.json {
        return output::json(&report);
    }
    if args.quiet && report.allowed {
        return Ok(());
    }
    let message = report.message.unwrap_or("keeps the contract");
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "state {}: {}",
        report.state,
        show_bytes(message.as_bytes())
    )?;
    writeln!(out, "  after {}", show_bytes(report.after.as_bytes()))?;
    Ok(())
}

/// How the caller's check ended, and the last line that it printed.
pub fn last_words(output: &Output) -> String {
    let last = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        let line = text.lines().rfind(|line| !line.trim().is_empty());
        line.map(str::to_owned)
    };
    match last(&output.stderr).or_else(|| last(&output.stdout)) {
        Some(line) => format!("{}: {line}", output.status),
        None => output.status.to_string(),
    }
}
