//! What becomes of the work of a program that was tried: shows it, asks, and publishes, keeps or drops.

use std::io::{self, BufRead, IsTerminal, Write};

use cairnfs_daemon::failure::{AnyError, told};
use cairnfs_daemon::shell::{word, word_of_path};
use serde::Serialize;
use serde_json::Value;

use super::fork::End as Ended;
use super::{Args, Base, FAILED, Interrupted, name_of, note};
use crate::interrupt;
use crate::output;

/// Lines of differences that are shown.
const MOST_LINES: usize = 40;

/// What becomes of a fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum End {
    Published,
    Kept,
    Dropped,
}

#[derive(Serialize)]
struct Json<'a> {
    branch: &'a str,
    base: &'a str,
    /// The exit code of the program.
    exit_code: u8,
    end: End,
    /// What differs between the fork and the state that it began with.
    changes: Value,
    /// What `publish` has told: the snapshot of the state before, or the conflicts.
    publish: Option<Value>,
}

/// Ends a fork that is not mounted any more; returns the exit code. A signal keeps it.
pub(super) fn decide(args: &Args, base: &Base, fork: &str, ended: &Ended) -> Result<u8, AnyError> {
    let done = end(args, base, fork, ended);
    match interrupt::take() {
        // Its decision was made, and carried out.
        Some(_) if matches!(done, Ok((_, End::Published | End::Dropped))) => {}
        Some(signal) => return Err(keep(base, fork, signal).into()),
        None => {}
    }
    done.map(|(code, _)| code)
}

/// Tells that a signal keeps the fork.
fn keep(base: &Base, fork: &str, signal: i32) -> Interrupted {
    let steps = base.next_steps(fork);
    note(format_args!(
        "{}: the fork is kept as the branch {fork}: {steps}",
        name_of(signal)
    ));
    Interrupted(signal)
}

/// Ends a fork, unless a signal arrives; returns the exit code and what became of the fork.
fn end(args: &Args, base: &Base, fork: &str, ended: &Ended) -> Result<(u8, End), AnyError> {
    let code = ended.code;
    let form: &[&str] = if args.json { &["--json"] } else { &[] };
    let words = [&[base.branch.as_str(), fork, "--merge-base"], form].concat();
    let (differs, changes) = base.capture("diff", &words)?;
    let end = match differs {
        0 if args.keep => End::Kept,
        0 => End::Dropped,
        1 => {
            if !args.quiet && !args.json {
                // The terminal may be gone.
                let _ = show(&changes);
            }
            choose(args, base, ended)
        }
        _ => {
            let failure = base.kept(fork, "what was done in it could not be found");
            return Err(failure.hint(base.next_steps(fork)).into());
        }
    };
    if interrupt::arrived().is_some() {
        return Ok((code, End::Kept));
    }
    if let (End::Kept, Some(signal)) = (end, ended.signal) {
        return Err(keep(base, fork, signal).into());
    }
    let (end, publish) = match end {
        End::Published => {
            let words = [&[fork, "--onto", &base.branch], form].concat();
            match base.capture("publish", &words)? {
                (0, told) => (End::Published, Some(told)),
                (_, told) => (End::Kept, Some(told)),
            }
        }
        End::Dropped => match base.capture("drop", &["-q", fork])?.0 {
            0 => (End::Dropped, None),
            _ => (End::Kept, None),
        },
        End::Kept => (End::Kept, None),
    };
    if end == End::Kept && interrupt::arrived().is_some() {
        return Ok((code, end));
    }
    let refused = publish.is_some() && end == End::Kept;
    if args.json {
        let value = |text: &str| serde_json::from_str(text).unwrap_or_default();
        told(output::json(&Json {
            branch: fork,
            base: &base.branch,
            exit_code: code,
            end,
            changes: value(&changes),
            publish: publish.as_deref().map(value),
        }))?;
    } else {
        let published = publish.as_deref().unwrap_or_default();
        // Nobody is left to be told that standard error failed.
        let _ = tell(args, base, fork, (end, differs > 0, ended), published);
    }
    Ok((if refused { FAILED } else { code }, end))
}

/// Shows the differences, the first ones if there are many.
fn show(changes: &str) -> io::Result<()> {
    let mut out = io::stderr().lock();
    for line in changes.lines().take(MOST_LINES) {
        writeln!(out, "{line}")?;
    }
    match changes.lines().count().saturating_sub(MOST_LINES) {
        0 => Ok(()),
        more => writeln!(out, "... and {more} more"),
    }
}

fn tell(
    args: &Args,
    base: &Base,
    fork: &str,
    (end, differs, ended): (End, bool, &Ended),
    published: &str,
) -> Result<(), AnyError> {
    let mut out = io::stderr().lock();
    let place = word_of_path(&base.place);
    match end {
        End::Published if args.quiet => {}
        End::Published => write!(out, "{published}")?,
        // Conflicts.
        End::Kept if !published.is_empty() => {
            write!(out, "{published}")?;
            writeln!(
                out,
                "The fork is the branch {fork}: cairnfs publish {place} {fork} --onto {} --ours PATH \
                 --theirs PATH",
                word(&base.branch)
            )?;
        }
        // As it was asked for.
        End::Kept if args.quiet && args.keep => {}
        End::Kept => writeln!(
            out,
            "{}The fork is the branch {fork}: {}",
            unpublished(args, ended),
            base.next_steps(fork)
        )?,
        End::Dropped if args.quiet => {}
        End::Dropped if differs => writeln!(out, "Dropped what was done")?,
        End::Dropped => writeln!(out, "Nothing was changed")?,
    }
    Ok(())
}

/// Why a fork was not published as it was asked for, before what is said of it.
fn unpublished(args: &Args, ended: &Ended) -> String {
    if args.yes && ended.code != 0 {
        format!(
            "Not published, because CMD failed with exit code {}. ",
            ended.code
        )
    } else {
        String::new()
    }
}

/// What is asked at a terminal.
fn question(base: &Base, ended: &Ended) -> String {
    let failed = match ended.code {
        0 => String::new(),
        code => format!("CMD failed with exit code {code}. "),
    };
    if base.is_snapshot() {
        format!("{failed}Keep this as a branch, or drop it? [k/d] ")
    } else {
        format!(
            "{failed}Publish this onto {}, keep it as a branch, or drop it? [p/k/d] ",
            base.branch
        )
    }
}

/// What the user wants. A signal instead of an answer keeps the fork, and so does a terminal that is gone.
fn choose(args: &Args, base: &Base, ended: &Ended) -> End {
    if args.drop {
        return End::Dropped;
    }
    if args.yes && ended.code == 0 {
        return End::Published;
    }
    let asks = !args.keep && !args.yes && !args.json && ended.signal.is_none();
    if !asks || !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return End::Kept;
    }
    let question = question(base, ended);
    loop {
        let asked = io::stderr().lock().write_all(question.as_bytes());
        // A terminal gives whole lines, so what is buffered is never a part of one.
        let mut answer = String::new();
        let read = asked.and_then(|()| {
            interrupt::wait(io::stdin())?;
            io::stdin().lock().read_line(&mut answer)
        });
        if !matches!(read, Ok(1..)) {
            return End::Kept;
        }
        match answer.trim().to_ascii_lowercase().as_str() {
            "p" | "publish" if !base.is_snapshot() => return End::Published,
            "k" | "keep" => return End::Kept,
            "d" | "drop" => return End::Dropped,
            _ => {}
        }
    }
}
