//! The output of `cairnfs crashtest`: a table or JSON, and each state that fails.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::Output;

use cairnfs_sim::disk::Event;
use cairnfs_sim::explore::{Tally, joined};
use cairnfs_sim::record::Recording;
use cairnfs_sim::states::StateId;
use serde::Serialize;

use super::Args;
use super::record::Ran;
use crate::failure::{AnyError, show_bytes, shown};
use crate::output;

/// Maximum number of failures in the table.
const SHOWN: usize = 10;

#[derive(Serialize)]
struct JsonReport {
    allowed: bool,
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

/// Prints the result of all states.
pub fn tell(
    args: &Args,
    run: &Ran,
    tally: &Tally,
    possible: usize,
    kept: &[PathBuf],
) -> Result<(), AnyError> {
    let events = run.recording.events();
    let flushes = events.iter().filter(|e| matches!(e, Event::Flush)).count();
    let failures = tally.failures.iter();
    let report = JsonReport {
        allowed: tally.failures.is_empty(),
        command_failed: run.failed.clone(),
        calls: run.recording.calls().count(),
        writes: events.len() - flushes,
        flushes,
        possible_states: possible,
        states: tally.states,
        distinct_disks: tally.disks.len(),
        interrupted_recoveries: tally.interrupted,
        failures: failures
            .map(|failure| JsonFailure {
                state: failure.id(),
                after: after(&run.recording, &failure.id),
                message: failure.message.clone(),
            })
            .collect(),
        kept: kept.iter().map(|path| shown(path)).collect(),
    };
    if args.json {
        return output::json(&report);
    }
    let mut out = io::stdout().lock();
    if !args.quiet {
        table(&mut out, &report)?;
    }
    print_failures(&mut out, args, &report)?;
    Ok(())
}

fn table(out: &mut dyn Write, report: &JsonReport) -> io::Result<()> {
    let mut rows = Vec::new();
    if let Some(status) = &report.command_failed {
        rows.push(("Command", format!("failed: {status}")));
    }
    rows.extend([
        ("Calls", report.calls.to_string()),
        (
            "Disk",
            format!("{} writes, {} flushes", report.writes, report.flushes),
        ),
        ("Possible states", report.possible_states.to_string()),
        (
            "Recovered",
            format!(
                "{}, {} distinct disks",
                report.states, report.distinct_disks
            ),
        ),
        (
            "Of them",
            format!(
                "{} of interrupted recoveries",
                report.interrupted_recoveries
            ),
        ),
        (
            "Verdict",
            match report.failures.len() {
                0 => "all keep the contract".into(),
                n => format!("{n} FAIL"),
            },
        ),
    ]);
    output::table(out, &rows)
}

fn print_failures(out: &mut dyn Write, args: &Args, report: &JsonReport) -> io::Result<()> {
    for failure in report.failures.iter().take(SHOWN) {
        let message = show_bytes(failure.message.as_bytes());
        let after = show_bytes(failure.after.as_bytes());
        writeln!(out, "state {}: {message}", failure.state)?;
        writeln!(out, "  after {after}")?;
    }
    if report.failures.len() > SHOWN {
        writeln!(out, "and {} more", report.failures.len() - SHOWN)?;
    }
    let Some(first) = report.failures.first() else {
        return Ok(());
    };
    if let Some(path) = report.kept.first() {
        writeln!(
            out,
            "Look at it: cairnfs check {path}; cairnfs mount {path} DIR"
        )
    } else if args.command.is_empty() {
        writeln!(out, "Again: the same with --replay {}", first.state)
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
