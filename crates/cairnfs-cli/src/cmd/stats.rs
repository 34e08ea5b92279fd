//! `cairnfs stats`: what a mounted volume did, where its time went, what its memory holds.
//!
//! Asks the daemon for its counters, once or again and again, and computes what people ask for:
//! shares, means, what each operation cost.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use cairnfs::fs::LEVELS;
use cairnfs_fuse::control;

use super::sync::is_foreign;
use crate::output;
use crate::size::human;

const EXAMPLES: &str = "\
Examples:
  cairnfs stats ~/disk                    since it was mounted
  cairnfs stats --interval 1 ~/disk       what happens each second, until interrupted
  cairnfs stats --json ~/disk | jq .commits

With --json all counters are printed as they are; names that end with _ns are
nanoseconds. Counters begin anew with each mount.";

/// Show what a mounted volume does: commits, log, merges, device, memory
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The mountpoint, or anything in it that can be read
    dir: PathBuf,
    /// Print the counters as one JSON object (one a line with --interval)
    #[arg(long)]
    json: bool,
    /// Print again after so many seconds what happened since, until interrupted
    #[arg(long, short = 'i', value_name = "SECONDS", value_parser = seconds)]
    interval: Option<Duration>,
    /// End after so many prints
    #[arg(long, short = 'n', value_name = "N", requires = "interval")]
    count: Option<u64>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let valid = text.parse().ok().filter(|s| *s >= 0.01);
    valid
        .and_then(|s| Duration::try_from_secs_f64(s).ok())
        .ok_or_else(|| format!("'{text}' is no time: write seconds, such as 1 or 0.5"))
}

type Counters = BTreeMap<String, u64>;

/// Runs the command.
///
/// # Errors
/// The path cannot be opened, or is in no mounted volume.
pub fn run(args: Args) -> Result<ExitCode, Box<dyn Error>> {
    let mut out = io::stdout().lock();
    let mut before = Counters::new();
    let mut prints = 0;
    loop {
        let now = ask(&args.dir)?;
        let told = since(&before, &now);
        if args.json {
            serde_json::to_writer(&mut out, &told)?;
            writeln!(out)?;
        } else {
            output::table(&mut out, &rows(&told))?;
        }
        out.flush()?;
        prints += 1;
        let Some(interval) = args.interval else { break };
        if args.count.is_some_and(|count| prints >= count) {
            break;
        }
        before = now;
        std::thread::sleep(interval);
        if !args.json {
            writeln!(out)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn ask(dir: &Path) -> Result<Counters, Box<dyn Error>> {
    let name = dir.display();
    match control::counters(dir) {
        Ok(json) => Ok(serde_json::from_str(&json)?),
        Err(e) if is_foreign(&e) => Err(format!(
            "{name} is not in a mounted volume; counters live in the daemon of a mount"
        )
        .into()),
        Err(e) => Err(format!("{name}: {e}").into()),
    }
}

/// What happened between two readings; levels are those of the second.
fn since(before: &Counters, now: &Counters) -> Counters {
    let rose = |(name, value): (&String, &u64)| {
        let was = before.get(name).copied().unwrap_or(0);
        let level = LEVELS.contains(&name.as_str());
        let told = if level {
            *value
        } else {
            value.saturating_sub(was)
        };
        (name.clone(), told)
    };
    now.iter().map(rose).collect()
}

/// The counters as people read them.
fn rows(counters: &Counters) -> Vec<(&'static str, String)> {
    let get = |name: &str| counters.get(name).copied().unwrap_or(0);
    let bytes = |name: &str| human(get(name));
    let commits = get("commits");
    let items = get("vectors_reused") + get("vectors_allocated");
    vec![
        (
            "opened in",
            format!(
                "{}, {} of log replayed",
                duration(get("open_ns")),
                bytes("replayed_bytes")
            ),
        ),
        ("transactions", commits.to_string()),
        (
            "  items formatted in place",
            format!(
                "{} of {items} ({})",
                get("vectors_reused"),
                share(get("vectors_reused"), items)
            ),
        ),
        (
            "  vectors allocated, each",
            per(get("vectors_allocated"), commits),
        ),
        (
            "  items never logged",
            format!("{} (died in their context)", get("items_died")),
        ),
        (
            "  bytes formatted",
            format!(
                "{}, {} of them over older ones",
                bytes("bytes_formatted"),
                bytes("bytes_relogged")
            ),
        ),
        (
            "log",
            format!(
                "{} in {} records of {} contexts, {} B a transaction",
                bytes("log_bytes"),
                get("log_records"),
                get("contexts"),
                per(get("log_bytes"), commits)
            ),
        ),
        ("  pushes", times(counters, "pushes", "push")),
        ("  largest context", bytes("push_largest_bytes")),
        ("  throttled", times(counters, "throttled", "throttle")),
        ("  waits for room", times(counters, "log_waits", "log_wait")),
        ("merges", times(counters, "merges", "merge")),
        (
            "device writes",
            format!("{}, {}", get("device_writes"), bytes("device_write_bytes")),
        ),
        (
            "device reads",
            format!("{}, {}", get("device_reads"), bytes("device_read_bytes")),
        ),
        ("syncs of everything", get("syncs").to_string()),
        ("device flushes", get("device_flushes").to_string()),
        ("  waited for", times(counters, "flushes_led", "flush")),
        ("inodes in memory", get("inodes_in_memory").to_string()),
        (
            "index nodes in memory",
            format!(
                "{}, found there: {}",
                bytes("node_cache_bytes"),
                share(
                    get("node_cache_hits"),
                    get("node_cache_hits") + get("node_cache_misses")
                )
            ),
        ),
        ("names in memory", bytes("name_bytes")),
        (
            "attribute values in memory",
            format!(
                "{}, found there: {}, not held twice: {}",
                bytes("xattr_value_bytes"),
                share(
                    get("xattr_value_hits"),
                    get("xattr_value_hits") + get("xattr_value_misses")
                ),
                bytes("xattr_shared_bytes")
            ),
        ),
        ("  evicted", get("xattr_value_evictions").to_string()),
        ("changes not merged", bytes("dirty_bytes")),
        ("data not written", bytes("page_bytes")),
    ]
}

/// How often, with the mean and the longest.
fn times(counters: &Counters, count: &str, time: &str) -> String {
    let get = |name: String| counters.get(&name).copied().unwrap_or(0);
    let (count, nanos) = (get(count.into()), get(format!("{time}_ns")));
    match nanos.checked_div(count) {
        None => "0".into(),
        Some(mean) => format!(
            "{count}, mean {}, longest ever {}",
            duration(mean),
            duration(get(format!("{time}_longest_ns")))
        ),
    }
}

fn duration(nanos: u64) -> String {
    match nanos {
        0..=999_999 => format!("{} us", nanos / 1000),
        1_000_000..=999_999_999 => format!("{:.1} ms", nanos as f64 / 1e6),
        _ => format!("{:.2} s", nanos as f64 / 1e9),
    }
}

fn per(amount: u64, of: u64) -> String {
    match of {
        0 => "0".into(),
        _ => format!("{:.1}", amount as f64 / of as f64),
    }
}

fn share(part: u64, of: u64) -> String {
    match of {
        0 => "none".into(),
        _ => format!("{:.1}%", part as f64 * 100.0 / of as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(pairs: &[(&str, u64)]) -> Counters {
        pairs.iter().map(|(n, v)| ((*n).to_owned(), *v)).collect()
    }

    #[test]
    fn levels_are_told_as_they_are_and_sums_as_differences() {
        let before = counters(&[("commits", 5), ("dirty_bytes", 900)]);
        let now = counters(&[("commits", 7), ("dirty_bytes", 100)]);
        assert_eq!(
            since(&before, &now),
            counters(&[("commits", 2), ("dirty_bytes", 100)])
        );
    }

    #[test]
    fn rows_tell_shares_and_means() {
        let told = rows(&counters(&[
            ("commits", 4),
            ("vectors_reused", 6),
            ("vectors_allocated", 2),
            ("log_bytes", 1000),
            ("merges", 2),
            ("merge_ns", 3_000_000),
            ("merge_longest_ns", 2_500_000),
        ]));
        let row = |name| told.iter().find(|r| r.0 == name).map(|r| r.1.as_str());
        assert_eq!(row("  items formatted in place"), Some("6 of 8 (75.0%)"));
        assert_eq!(row("  vectors allocated, each"), Some("0.5"));
        assert_eq!(row("merges"), Some("2, mean 1.5 ms, longest ever 2.5 ms"));
        assert!(row("log").is_some_and(|log| log.ends_with("250.0 B a transaction")));
        assert_eq!(row("  throttled"), Some("0"));
    }

    #[test]
    fn intervals_are_positive() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["0", "-1", "nan", "soon", "inf"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
