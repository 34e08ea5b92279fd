//! Writes an answer of the daemon in the text format of Prometheus, for a textfile collector.
//!
//! Names begin with `cairnfs_` and end with their unit, and with `_total` for counters that only
//! grow; `promtool check metrics` requires this. Metric names are derived from the names of
//! engine counters, so that every counter is included.

use std::io::{self, Write};
use std::path::Path;

use cairnfs::fs::LEVELS;
use cairnfs_fuse::status::{Backup, State};

use super::Health;
use crate::daemon::Answer;

/// Help texts of the engine counters.
const HELP: &[(&str, &str)] = &[
    ("bytes_formatted", "Bytes of items formatted for the log."),
    (
        "bytes_relogged",
        "Bytes of items formatted over older values of the same items.",
    ),
    ("commits", "Transactions."),
    ("contexts", "Contexts written to the log."),
    ("device_flushes", "Flushes of the device."),
    ("device_read_bytes", "Bytes read from the device."),
    ("device_reads", "Reads of the device."),
    ("device_write_bytes", "Bytes written to the device."),
    ("device_writes", "Writes to the device."),
    (
        "dirty_bytes",
        "Memory of changes that are not merged into the index.",
    ),
    ("flush_longest_ns", "Longest flush that callers waited for."),
    ("flush_ns", "Time of flushes that callers waited for."),
    ("flushes_led", "Flushes that callers waited for."),
    ("fsync_entries", "Directory entries written by fsyncs."),
    ("fsync_records", "Groups of fsyncs written to the log."),
    ("fsync_inodes", "Inodes written by fsyncs."),
    ("fsync_log_blocks", "Blocks of the log written by fsyncs."),
    ("fsync_whole_contexts", "Fsyncs that wrote a whole context."),
    ("fsyncs", "Fsyncs of single inodes."),
    (
        "held_bytes",
        "Changes that wait in memory for space on the file system that holds the volume.",
    ),
    ("inodes_in_memory", "Inodes in memory."),
    (
        "items_cancelled",
        "Items that were not logged, because a later value replaced them.",
    ),
    (
        "items_died",
        "Items made and deleted before they were logged.",
    ),
    ("log_bytes", "Bytes written to the log."),
    ("log_entries", "Entries written to the log."),
    ("log_records", "Records written to the log."),
    ("log_wait_longest_ns", "Longest wait for room in the log."),
    ("log_wait_ns", "Time of waits for room in the log."),
    ("log_waits", "Waits for room in the log."),
    ("merge_longest_ns", "Longest merge into the index."),
    ("merge_ns", "Time of merges into the index."),
    ("merges", "Merges into the index."),
    ("name_bytes", "Memory of names."),
    ("node_cache_bytes", "Memory of index nodes."),
    (
        "node_cache_hits",
        "Look-ups of index nodes found in memory.",
    ),
    (
        "node_cache_misses",
        "Look-ups of index nodes that read the device.",
    ),
    (
        "open_ns",
        "Time that opening the volume took, replay of the log included.",
    ),
    ("page_bytes", "Memory of file data that is not written."),
    ("push_largest_bytes", "Largest context written to the log."),
    ("push_longest_ns", "Longest push of a context to the log."),
    (
        "push_ns",
        "Time of pushes to the log, from closing a context to the end of its write.",
    ),
    ("pushes", "Pushes to the log."),
    (
        "replayed_bytes",
        "Bytes of the log replayed when the volume was opened.",
    ),
    ("syncs", "Syncs of everything."),
    (
        "throttle_longest_ns",
        "Longest wait of a committer that outran the log.",
    ),
    (
        "throttle_ns",
        "Time of waits of committers that outran the log.",
    ),
    ("throttled", "Waits of committers that outran the log."),
    ("vectors_allocated", "Log vectors allocated."),
    ("vectors_reused", "Log vectors formatted in place."),
    (
        "xattr_shared_bytes",
        "Bytes of attribute values that were not stored again.",
    ),
    ("xattr_value_bytes", "Memory of attribute values."),
    (
        "xattr_value_evictions",
        "Attribute values dropped from memory.",
    ),
    ("xattr_value_hits", "Attribute values found in memory."),
    ("xattr_value_misses", "Attribute values that were read."),
];

/// Nanoseconds in a second.
const NANOS: f64 = 1e9;

/// Writes the metrics of one mount.
pub fn write(out: &mut dyn Write, answer: &Answer, health: &Health) -> io::Result<()> {
    let status = &answer.status;
    let (volume, dir) = (&status.volume, answer.mountpoint.to_string_lossy());
    let labels = format!(
        "volume=\"{}\",mountpoint=\"{}\"",
        escaped(volume),
        escaped(&dir)
    );
    let mut page = Page { out, labels };
    let flag = |set: bool| f64::from(u8::from(set));
    page.up(true)?;
    page.gauge(
        "stopped",
        "Whether a failure has stopped all changes.",
        flag(status.state == State::Stopped),
    )?;
    let read_only = status.state == State::ReadOnly || answer.mounted_read_only;
    page.gauge(
        "read_only",
        "Whether changes are refused because it was mounted so.",
        flag(read_only),
    )?;
    let code = f64::from(health.exit_code());
    page.gauge(
        "health",
        "Exit code of `cairnfs stats --check`: 0 healthy, 1 degraded, 2 stopped.",
        code,
    )?;
    let space = &status.space;
    for (name, help, value) in [
        (
            "size_bytes",
            "Bytes that files and index can use.",
            space.total,
        ),
        ("free_bytes", "Bytes not in use.", space.free),
        (
            "available_bytes",
            "Bytes that can be given to files, here and on the host.",
            space.available,
        ),
        (
            "files",
            "Inodes that the empty volume has space for.",
            space.inodes,
        ),
        (
            "files_free",
            "Inodes that there is space for.",
            space.inodes_free,
        ),
        ("log_size_bytes", "Size of the log.", space.log),
        (
            "log_used_bytes",
            "Bytes of the log that a crash would leave to be replayed.",
            space.log_used,
        ),
    ] {
        page.gauge(name, help, value as f64)?;
    }
    if let Some(host) = &status.host {
        page.gauge(
            "host_free_bytes",
            "Bytes left on the file system that holds the volume's file.",
            host.free as f64,
        )?;
        page.gauge(
            "host_unallocated_bytes",
            "Bytes of the volume's file that have no space yet.",
            host.unallocated as f64,
        )?;
    }
    page.head(
        "errors_total",
        "counter",
        "Errors since the volume was mounted, by kind.",
    )?;
    for (kind, count) in &status.errors {
        let label = format!(",kind=\"{}\"", escaped(kind));
        page.sample("errors_total", &label, *count as f64)?;
    }
    if let Some(error) = &status.last_error {
        page.gauge(
            "last_error_timestamp_seconds",
            "When the last error was met.",
            error.time as f64,
        )?;
    }
    if let Some(backup) = &status.backup {
        page.backup(backup)?;
    }
    page.head(
        "fuse_messages_total",
        "counter",
        "Messages from the kernel since the volume was mounted, by operation.",
    )?;
    for (operation, count) in &status.messages {
        let label = format!(",operation=\"{}\"", escaped(operation));
        page.sample("fuse_messages_total", &label, *count as f64)?;
    }
    page.head(
        "fuse_messages_polled_total",
        "counter",
        "Messages from the kernel that were found by polling, by transport.",
    )?;
    let label = format!(",transport=\"{}\"", escaped(&status.transport.name));
    let polled = status.transport.polled as f64;
    page.sample("fuse_messages_polled_total", &label, polled)?;
    page.head(
        "fuse_messages_followed_total",
        "counter",
        "Messages from the kernel that were served on the processor of the only client, by transport.",
    )?;
    let followed = status.transport.followed as f64;
    page.sample("fuse_messages_followed_total", &label, followed)?;
    for (name, value) in &status.counters {
        page.counter(name, *value)?;
    }
    Ok(())
}

/// Writes the metric for a daemon that does not answer.
pub fn write_down(out: &mut dyn Write, dir: &Path) -> io::Result<()> {
    let labels = format!("mountpoint=\"{}\"", escaped(&dir.to_string_lossy()));
    Page { out, labels }.up(false)
}

/// The name of an engine counter's metric, without its prefix.
fn metric_name(counter: &str) -> String {
    let unit = match counter.strip_prefix("bytes_") {
        Some(what) => format!("{what}_bytes"),
        None => match counter.strip_suffix("_ns") {
            Some(what) => format!("{what}_seconds"),
            None => counter.to_owned(),
        },
    };
    if LEVELS.contains(&counter) {
        unit
    } else {
        format!("{unit}_total")
    }
}

/// Escapes a label's value.
fn escaped(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
    escaped.replace('\n', "\\n")
}

struct Page<'a> {
    out: &'a mut dyn Write,
    /// Labels of every sample.
    labels: String,
}

impl Page<'_> {
    fn up(&mut self, up: bool) -> io::Result<()> {
        let up = f64::from(u8::from(up));
        self.gauge("up", "Whether the daemon of the mount answers.", up)
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) -> io::Result<()> {
        self.head(name, "gauge", help)?;
        self.sample(name, "", value)
    }

    fn backup(&mut self, backup: &Backup) -> io::Result<()> {
        let in_flight = backup.in_flight.as_ref();
        for (name, kind, help, value) in [
            (
                "backup_moments_total",
                "counter",
                "Moments stored in the backup since the volume was mounted.",
                Some(backup.moments),
            ),
            (
                "backup_stored_bytes_total",
                "counter",
                "Bytes stored in the backup since the volume was mounted.",
                Some(backup.bytes),
            ),
            (
                "backup_failures_total",
                "counter",
                "Failed attempts to store a moment since the volume was mounted.",
                Some(backup.failures),
            ),
            (
                "backup_failing",
                "gauge",
                "Whether the last attempt to store a moment failed.",
                Some(u64::from(backup.failing)),
            ),
            (
                "backup_removed_moments_total",
                "counter",
                "Moments removed by the rules of the mount since the volume was mounted.",
                Some(backup.removed),
            ),
            (
                "backup_care_failures_total",
                "counter",
                "Failed attempts to remove moments, or to merge or delete layers.",
                Some(backup.care_failures),
            ),
            (
                "backup_care_failing",
                "gauge",
                "Whether the last attempt to remove moments, or to merge or delete layers, failed.",
                Some(u64::from(backup.care_failing)),
            ),
            (
                "backup_age_seconds",
                "gauge",
                "Time since everything in the volume was in the backup.",
                backup.age,
            ),
            (
                "backup_moment_timestamp_seconds",
                "gauge",
                "Time of the newest moment in the backup.",
                backup.time,
            ),
            (
                "backup_attempt_seconds",
                "gauge",
                "Time since the attempt to store a moment began that goes on; 0 if there is none.",
                Some(backup.attempt.unwrap_or(0)),
            ),
            (
                "backup_requests_in_flight",
                "gauge",
                "Requests to the store of the backup that have no answer yet.",
                Some(in_flight.map_or(0, |it| it.requests)),
            ),
            (
                "backup_oldest_request_seconds",
                "gauge",
                "Time since the oldest of these requests was made; 0 if there is none.",
                Some(in_flight.map_or(0, |it| it.seconds)),
            ),
            (
                "backup_overdue",
                "gauge",
                "Whether that request has had no answer for so long that the backup hangs.",
                Some(u64::from(in_flight.is_some_and(|it| it.overdue))),
            ),
        ] {
            if let Some(value) = value {
                self.head(name, kind, help)?;
                self.sample(name, "", value as f64)?;
            }
        }
        Ok(())
    }

    fn counter(&mut self, counter: &str, value: u64) -> io::Result<()> {
        let known = HELP.iter().find(|(name, _)| *name == counter);
        let help = known.map_or(counter, |(_, help)| help);
        let kind = if LEVELS.contains(&counter) {
            "gauge"
        } else {
            "counter"
        };
        let value = if counter.ends_with("_ns") {
            value as f64 / NANOS
        } else {
            value as f64
        };
        let name = metric_name(counter);
        self.head(&name, kind, help)?;
        self.sample(&name, "", value)
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) -> io::Result<()> {
        writeln!(
            self.out,
            "# HELP cairnfs_{name} {help}\n# TYPE cairnfs_{name} {kind}"
        )
    }

    fn sample(&mut self, name: &str, label: &str, value: f64) -> io::Result<()> {
        writeln!(self.out, "cairnfs_{name}{{{}{label}}} {value}", self.labels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use cairnfs::fs::{FileSystem, MakeOptions, Options, make_device};
    use cairnfs_disk::device::MemoryDevice;
    use cairnfs_fuse::messages::{Messages, Operation};
    use cairnfs_fuse::status::{Status, Transport};

    fn page() -> String {
        let device = MemoryDevice::new(64 << 20);
        make_device(&device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        let fs = FileSystem::open_device(Arc::new(device), &Options::default()).unwrap();
        let messages = Messages::default();
        messages.count(Operation::Lookup);
        let mut status = Status::of(
            &fs,
            Path::new("/a \"b\"\\\n"),
            3,
            &messages,
            Transport {
                name: "dev".into(),
                polled: 5,
                followed: 6,
            },
        );
        status.backup = Some(Backup {
            age: Some(1),
            time: Some(2),
            ..Backup::default()
        });
        let answer = Answer {
            status,
            volume: "/v".into(),
            mountpoint: "/m".into(),
            mounted_read_only: false,
        };
        let mut out = Vec::new();
        write(&mut out, &answer, &Health::of(&answer, 95)).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_counter_has_a_help_text() {
        let device = MemoryDevice::new(64 << 20);
        make_device(&device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        let fs = FileSystem::open_device(Arc::new(device), &Options::default()).unwrap();
        let counters: BTreeSet<_> = fs.counters().into_iter().map(|(name, _)| name).collect();
        let documented: BTreeSet<_> = HELP.iter().map(|(name, _)| *name).collect();
        assert_eq!(
            counters, documented,
            "a line of HELP for each counter of the engine"
        );
    }

    #[test]
    fn metrics_follow_prometheus_format() {
        let text = page();
        let mut seen = BTreeSet::new();
        let mut lines = text.lines().peekable();
        while let Some(help) = lines.next() {
            let (name, words) = help
                .strip_prefix("# HELP ")
                .unwrap()
                .split_once(' ')
                .unwrap();
            assert!(words.ends_with('.') && words.len() > 5, "{help}");
            let kind = lines
                .next()
                .unwrap()
                .strip_prefix(&format!("# TYPE {name} "))
                .unwrap();
            assert_eq!(
                kind == "counter",
                name.ends_with("_total"),
                "{name} is a {kind}"
            );
            assert!(["counter", "gauge"].contains(&kind));
            assert!(seen.insert(name), "{name} comes twice");
            let plain = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(
                name.starts_with("cairnfs_") && name.chars().all(plain),
                "{name}"
            );
            assert!(!name.contains("_ns") && !name.contains("__"), "{name}");
            let mut samples = 0;
            while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
                let (metric, value) = line.rsplit_once(' ').unwrap();
                let start = format!("{name}{{volume=\"/a \\\"b\\\"\\\\\\n\",mountpoint=\"/m\"");
                assert!(
                    metric.starts_with(&start) && metric.ends_with('}'),
                    "{line}"
                );
                assert!(value.parse::<f64>().unwrap() >= 0.0);
                samples += 1;
            }
            let labelled = ["cairnfs_errors_total", "cairnfs_fuse_messages_total"];
            assert!(samples == 1 || labelled.contains(&name), "{name}");
        }
        let lookups = "\",mountpoint=\"/m\",operation=\"lookup\"} 1\n";
        assert!(text.contains(lookups), "{text}");
        let polled = "\",mountpoint=\"/m\",transport=\"dev\"} 5\n";
        assert!(text.contains(polled), "{text}");
        for name in [
            "up",
            "errors_total",
            "fuse_messages_total",
            "formatted_bytes_total",
            "merge_seconds_total",
            "dirty_bytes",
            "backup_age_seconds",
            "backup_failures_total",
            "backup_removed_moments_total",
            "backup_care_failures_total",
            "backup_care_failing",
            "backup_attempt_seconds",
            "backup_requests_in_flight",
            "backup_oldest_request_seconds",
            "backup_overdue",
        ] {
            assert!(seen.contains(format!("cairnfs_{name}").as_str()), "{name}");
        }
    }
}
