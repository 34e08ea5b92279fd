//! Formats an answer of the daemon as a table for people: shares, means, and the cost of each
//! operation.

use std::borrow::Cow;
use std::cmp::Reverse;

use cairnfs_core::refs::local_zone;
use cairnfs_daemon::failure::{show_bytes, shown};
use cairnfs_disk::types::Time;
use cairnfs_fuse::status::{Backup, Programs};

use super::{Counters, health};
use crate::daemon::Answer;
use crate::output::{self, counted};
use crate::size::human;

/// The rows of the table. From `full` percent on, a volume counts as nearly full.
pub fn rows(answer: &Answer, full: u64) -> Vec<(Cow<'static, str>, String)> {
    let mut rows = state_rows(answer);
    let displaced = answer.status.displaced();
    rows.extend(displaced.map(|text| ("warning", show_bytes(text.as_bytes()))));
    let shortage = health::shortage(&answer.status, full);
    rows.extend(shortage.map(|text| ("warning", text)));
    rows.extend(answer.status.backup.iter().flat_map(backup_rows));
    rows.extend(counter_rows(&answer.status.counters));
    let transport = &answer.status.transport;
    rows.push((
        "transport",
        format!(
            "{}, {} messages found by polling, {} served on the client's processor",
            safe(&transport.name),
            transport.polled,
            transport.followed
        ),
    ));
    let rows = rows.into_iter().map(|(name, value)| (name.into(), value));
    let messages = message_rows(&answer.status.messages).into_iter();
    let programs = program_rows(&answer.status.programs).into_iter();
    rows.chain(messages).chain(programs).collect()
}

fn safe(text: &str) -> String {
    show_bytes(text.as_bytes())
}

/// State, space and errors.
fn state_rows(answer: &Answer) -> Vec<(&'static str, String)> {
    let (status, space) = (&answer.status, &answer.status.space);
    let (volume, dir) = (safe(&status.volume), shown(&answer.mountpoint));
    let reason = match (&status.reason, answer.mounted_read_only) {
        (Some(reason), _) => format!(": {}", safe(reason)),
        (None, true) => ": it was remounted with ro".into(),
        (None, false) => String::new(),
    };
    let used = human(space.total.saturating_sub(space.free));
    let (total, available) = (human(space.total), human(space.available));
    let (log, log_used) = (human(space.log), human(space.log_used));
    let mut rows = vec![
        (
            "volume",
            format!("{volume}, mounted on {dir} by process {}", status.pid),
        ),
        ("state", format!("{}{reason}", health::state(answer))),
    ];
    rows.extend(
        status
            .next_step
            .as_deref()
            .map(|step| ("to do", safe(step))),
    );
    rows.extend([
        (
            "space",
            format!(
                "{used} of {total} in use ({}%), {available} available",
                health::used_percent(space)
            ),
        ),
        (
            "inodes",
            format!("{} of {} available", space.inodes_free, space.inodes),
        ),
        ("log in use", format!("{log_used} of {log}")),
    ]);
    rows.extend(status.host.as_ref().map(|host| {
        let (holes, free) = (human(host.unallocated), human(host.free));
        let warning = if host.may_outgrow {
            ": less than that, writes are refused when it is full"
        } else {
            ""
        };
        let text =
            format!("the file may grow by {holes}, its file system has {free} left{warning}");
        ("host", text)
    }));
    rows.push(("errors", health::errors(status)));
    rows.extend(status.last_error.as_ref().map(|error| {
        let text = format!("{} {}", shown_time(error.time), safe(&error.text));
        ("last error", text)
    }));
    rows
}

/// The backup: what is in it, and what went wrong.
fn backup_rows(backup: &Backup) -> Vec<(&'static str, String)> {
    let newest = match (backup.moment, backup.time) {
        (Some(moment), Some(time)) => format!("moment {moment} of {}", shown_time(time)),
        _ => "no moment yet".to_owned(),
    };
    let age = match (backup.age, backup.ended) {
        (_, true) => ", ended".to_owned(),
        (Some(age), false) => format!(", complete {} ago", health::seconds(age)),
        (None, false) => String::new(),
    };
    let mut rows = vec![
        ("backup", safe(&backup.url)),
        ("  newest", format!("{newest}{age}")),
        (
            "  stored",
            format!("{} in {} moments", human(backup.bytes), backup.moments),
        ),
        ("  removed", format!("{} moments", backup.removed)),
        (
            "  failures",
            (backup.failures + backup.care_failures).to_string(),
        ),
    ];
    rows.extend(
        backup
            .attempt
            .map(|since| ("  attempt", format!("for {}", health::seconds(since)))),
    );
    rows.extend(backup.in_flight.iter().map(|it| {
        let requests = counted(it.requests, "request", "requests");
        let (what, since) = (safe(&it.what), health::seconds(it.seconds));
        (
            "  in flight",
            format!("{requests}, the oldest for {since}: {what}"),
        )
    }));
    let errors = [&backup.last_error, &backup.last_care_error];
    let last = errors.into_iter().flatten().max_by_key(|error| error.time);
    rows.extend(last.map(|error| {
        let text = format!("{} {}", shown_time(error.time), safe(&error.text));
        ("  last failure", text)
    }));
    rows
}

/// Seconds since 1970 in the local time zone.
fn shown_time(seconds: u64) -> String {
    let secs = i64::try_from(seconds).unwrap_or(i64::MAX);
    output::local_time(Time { secs, nanos: 0 }, &local_zone())
}

/// What happened since the mount, or within an interval.
fn counter_rows(counters: &Counters) -> Vec<(&'static str, String)> {
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

/// Messages from the kernel: all, then each operation that occurred.
fn message_rows(messages: &Counters) -> Vec<Row> {
    let total: u64 = messages.values().sum();
    let head = ("messages from the kernel".into(), total.to_string());
    [head].into_iter().chain(by_frequency(messages)).collect()
}

type Row = (Cow<'static, str>, String);

/// A row for each that occurred, the most frequent first.
fn by_frequency(counts: &Counters) -> impl Iterator<Item = Row> {
    let mut met: Vec<_> = counts.iter().filter(|(_, n)| **n > 0).collect();
    met.sort_by_key(|(_, n)| Reverse(**n));
    met.into_iter()
        .map(|(name, n)| (format!("  {}", safe(name)).into(), n.to_string()))
}

/// Programs of `cairnfs run`, if there were any.
fn program_rows(programs: &Programs) -> Vec<Row> {
    let answered: u64 = programs.answered.values().sum();
    let left: u64 = programs.left.values().sum();
    if programs.connected + answered + left == 0 {
        return Vec::new();
    }
    let head = format!(
        "{} connected, {answered} calls answered, {} of them not waited for",
        programs.connected, programs.deferred
    );
    let mut rows: Vec<Row> = vec![("programs (cairnfs run)".into(), head)];
    rows.extend(by_frequency(&programs.answered));
    rows.push(("  left to the kernel".into(), left.to_string()));
    rows.extend(by_frequency(&programs.left).map(|(name, n)| (format!("  {name}").into(), n)));
    rows
}

/// A count, with the mean and the longest time.
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
    use cairnfs_fuse::status::InFlight;

    fn counters(pairs: &[(&str, u64)]) -> Counters {
        pairs.iter().map(|(n, v)| ((*n).to_owned(), *v)).collect()
    }

    #[test]
    fn a_backup_is_shown_with_its_age_and_failures() {
        let mut backup = Backup {
            url: "s3://b/d\n".into(),
            moment: Some(7),
            time: Some(0),
            age: Some(5),
            moments: 2,
            bytes: 4096,
            ..Backup::default()
        };
        let row = |backup: &Backup, name: &str| {
            let rows = backup_rows(backup).into_iter();
            rows.filter(|row| row.0 == name).map(|row| row.1).next()
        };
        assert_eq!(row(&backup, "backup").as_deref(), Some("s3://b/d\\n"));
        let newest = row(&backup, "  newest").unwrap();
        assert!(newest.starts_with("moment 7 of 19"), "{newest}");
        assert!(newest.ends_with(", complete 5 s ago"), "{newest}");
        assert_eq!(
            row(&backup, "  stored").as_deref(),
            Some("4 KiB in 2 moments")
        );
        assert_eq!(row(&backup, "  last failure"), None);
        assert_eq!(row(&backup, "  in flight"), None);
        backup.attempt = Some(130);
        backup.in_flight = Some(InFlight {
            what: "store heads/7".into(),
            seconds: 24,
            requests: 2,
            overdue: true,
        });
        assert_eq!(row(&backup, "  attempt").as_deref(), Some("for 2 min"));
        assert_eq!(
            row(&backup, "  in flight").as_deref(),
            Some("2 requests, the oldest for 24 s: store heads/7")
        );
        backup.ended = true;
        assert!(row(&backup, "  newest").unwrap().ends_with(", ended"));
    }

    #[test]
    fn programs_are_listed_if_there_were_any() {
        assert_eq!(program_rows(&Programs::default()), []);
        let programs = Programs {
            connected: 1,
            answered: [("write".to_owned(), 2), ("create".to_owned(), 3)].into(),
            deferred: 2,
            left: [("path".to_owned(), 4), ("known".to_owned(), 0)].into(),
        };
        let rows = program_rows(&programs);
        let rows: Vec<_> = rows.iter().map(|(a, b)| (&**a, &**b)).collect();
        let head = "1 connected, 5 calls answered, 2 of them not waited for";
        let expected = [
            ("programs (cairnfs run)", head),
            ("  create", "3"),
            ("  write", "2"),
            ("  left to the kernel", "4"),
            ("    path", "4"),
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn messages_are_listed_by_frequency_without_those_that_did_not_occur() {
        let found = message_rows(&counters(&[("lookup", 2), ("read", 0), ("write", 5)]));
        let found: Vec<_> = found
            .iter()
            .map(|(n, v)| (n.as_ref(), v.as_str()))
            .collect();
        let expected = [
            ("messages from the kernel", "7"),
            ("  write", "5"),
            ("  lookup", "2"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn rows_show_shares_and_means() {
        let found = counter_rows(&counters(&[
            ("commits", 4),
            ("vectors_reused", 6),
            ("vectors_allocated", 2),
            ("log_bytes", 1000),
            ("merges", 2),
            ("merge_ns", 3_000_000),
            ("merge_longest_ns", 2_500_000),
        ]));
        let row = |name| found.iter().find(|r| r.0 == name).map(|r| r.1.as_str());
        assert_eq!(row("  items formatted in place"), Some("6 of 8 (75.0%)"));
        assert_eq!(row("  vectors allocated, each"), Some("0.5"));
        assert_eq!(row("merges"), Some("2, mean 1.5 ms, longest ever 2.5 ms"));
        assert!(row("log").is_some_and(|log| log.ends_with("250.0 B a transaction")));
        assert_eq!(row("  throttled"), Some("0"));
    }
}
