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

/// Help texts of the engine counters: a line for each, which begins with its name.
const HELP: &str = "\
bytes_formatted Bytes of items formatted for the log.
bytes_relogged Bytes of items formatted over older values of the same items.
commits Transactions.
contexts Contexts written to the log.
device_flushes Flushes of the device.
device_read_bytes Bytes read from the device.
device_reads Reads of the device.
device_write_bytes Bytes written to the device.
device_writes Writes to the device.
dirty_bytes Memory of changes that are not merged into the index.
flush_longest_ns Longest flush that callers waited for.
flush_ns Time of flushes that callers waited for.
flushes_led Flushes that callers waited for.
fsync_entries Directory entries written by fsyncs.
fsync_records Groups of fsyncs written to the log.
fsync_inodes Inodes written by fsyncs.
fsync_log_blocks Blocks of the log written by fsyncs.
fsync_whole_contexts Fsyncs that wrote a whole context.
fsyncs Fsyncs of single inodes.
held_bytes Changes that wait in memory for space on the file system that holds the volume.
inodes_in_memory Inodes in memory.
items_cancelled Items that were not logged, because a later value replaced them.
items_died Items made and deleted before they were logged.
log_bytes Bytes written to the log.
log_entries Entries written to the log.
log_records Records written to the log.
log_wait_longest_ns Longest wait for room in the log.
log_wait_ns Time of waits for room in the log.
log_waits Waits for room in the log.
merge_longest_ns Longest merge into the index.
merge_ns Time of merges into the index.
merges Merges into the index.
name_bytes Memory of names.
node_cache_bytes Memory of index nodes.
node_cache_hits Look-ups of index nodes found in memory.
node_cache_misses Look-ups of index nodes that read the device.
open_ns Time that opening the volume took, replay of the log included.
page_bytes Memory of file data that is not written.
push_largest_bytes Largest context written to the log.
push_longest_ns Longest push of a context to the log.
push_ns Time of pushes to the log, from closing a context to the end of its write.
pushes Pushes to the log.
replayed_bytes Bytes of the log replayed when the volume was opened.
syncs Syncs of everything.
throttle_longest_ns Longest wait of a committer that outran the log.
throttle_ns Time of waits of committers that outran the log.
throttled Waits of committers that outran the log.
vectors_allocated Log vectors allocated.
vectors_reused Log vectors formatted in place.
xattr_shared_bytes Bytes of attribute values that were not stored again.
xattr_value_bytes Memory of attribute values.
xattr_value_evictions Attribute values dropped from memory.
xattr_value_hits Attribute values found in memory.
xattr_value_misses Attribute values that were read.
";

/// Help texts of the other metrics, likewise.
const METRICS: &str = "\
up Whether the daemon of the mount answers.
stopped Whether a failure has stopped all changes.
read_only Whether changes are refused because it was mounted so.
health Exit code of `cairnfs stats --check`: 0 healthy, 1 degraded, 2 stopped.
size_bytes Bytes that files and index can use.
free_bytes Bytes not in use.
available_bytes Bytes that can be given to files, here and on the host.
files Inodes that the empty volume has space for.
files_free Inodes that there is space for.
log_size_bytes Size of the log.
log_used_bytes Bytes of the log that a crash would leave to be replayed.
host_free_bytes Bytes left on the file system that holds the volume's file.
host_unallocated_bytes Bytes of the volume's file that have no space yet.
errors_total Errors since the volume was mounted, by kind.
last_error_timestamp_seconds When the last error was met.
fuse_messages_total Messages from the kernel since the volume was mounted, by operation.
fuse_messages_polled_total Messages from the kernel that were found by polling, by transport.
fuse_messages_followed_total Messages from the kernel that were served on the processor of the only client, by transport.
programs Programs that are connected to the daemon (cairnfs run).
program_calls_total Calls that were answered to such programs since the volume was mounted, by operation.
program_calls_deferred_total Those among them that were not waited for.
program_calls_left_total Calls that such programs were told to leave to the kernel, by reason.
backup_moments_total Moments stored in the backup since the volume was mounted.
backup_stored_bytes_total Bytes stored in the backup since the volume was mounted.
backup_failures_total Failed attempts to store a moment since the volume was mounted.
backup_failing Whether the last attempt to store a moment failed.
backup_removed_moments_total Moments removed by the rules of the mount since the volume was mounted.
backup_care_failures_total Failed attempts to remove moments, or to merge or delete layers.
backup_care_failing Whether the last attempt to remove moments, or to merge or delete layers, failed.
backup_age_seconds Time since everything in the volume was in the backup.
backup_moment_timestamp_seconds Time of the newest moment in the backup.
backup_attempt_seconds Time since the attempt to store a moment began that goes on; 0 if there is none.
backup_requests_in_flight Requests to the store of the backup that have no answer yet.
backup_oldest_request_seconds Time since the oldest of these requests was made; 0 if there is none.
backup_overdue Whether that request has had no answer for so long that the backup hangs.
";

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
    let read_only = status.state == State::ReadOnly || answer.mounted_read_only;
    page.metric("up", 1)?;
    page.metric("stopped", (status.state == State::Stopped).into())?;
    page.metric("read_only", read_only.into())?;
    page.metric("health", health.exit_code().into())?;
    let space = &status.space;
    page.metric("size_bytes", space.total)?;
    page.metric("free_bytes", space.free)?;
    page.metric("available_bytes", space.available)?;
    page.metric("files", space.inodes)?;
    page.metric("files_free", space.inodes_free)?;
    page.metric("log_size_bytes", space.log)?;
    page.metric("log_used_bytes", space.log_used)?;
    if let Some(host) = &status.host {
        page.metric("host_free_bytes", host.free)?;
        page.metric("host_unallocated_bytes", host.unallocated)?;
    }
    page.each("errors_total", "kind", &status.errors)?;
    if let Some(error) = &status.last_error {
        page.metric("last_error_timestamp_seconds", error.time)?;
    }
    if let Some(backup) = &status.backup {
        page.backup(backup)?;
    }
    page.each("fuse_messages_total", "operation", &status.messages)?;
    let (name, transport) = (&status.transport.name, &status.transport);
    let polled = [(name, &transport.polled)];
    page.each("fuse_messages_polled_total", "transport", polled)?;
    let followed = [(name, &transport.followed)];
    page.each("fuse_messages_followed_total", "transport", followed)?;
    let programs = &status.programs;
    page.metric("programs", programs.connected)?;
    page.each("program_calls_total", "operation", &programs.answered)?;
    page.metric("program_calls_deferred_total", programs.deferred)?;
    page.each("program_calls_left_total", "reason", &programs.left)?;
    for (name, value) in &status.counters {
        page.counter(name, *value)?;
    }
    Ok(())
}

/// Writes the metric for a daemon that does not answer.
pub fn write_down(out: &mut dyn Write, dir: &Path) -> io::Result<()> {
    let labels = format!("mountpoint=\"{}\"", escaped(&dir.to_string_lossy()));
    Page { out, labels }.metric("up", 0)
}

/// The text of a table that follows a name; the name itself if it is not there.
fn help<'a>(table: &'a str, name: &'a str) -> &'a str {
    let mut lines = table.lines().filter_map(|line| line.split_once(' '));
    let found = lines.find(|(of, _)| *of == name);
    found.map_or(name, |(_, text)| text)
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
    fn metric(&mut self, name: &str, value: u64) -> io::Result<()> {
        self.head(name, help(METRICS, name))?;
        self.sample(name, "", value as f64)
    }

    /// A metric with a sample for each value of a label.
    fn each<'a>(
        &mut self,
        name: &str,
        label: &str,
        values: impl IntoIterator<Item = (&'a String, &'a u64)>,
    ) -> io::Result<()> {
        self.head(name, help(METRICS, name))?;
        for (of, value) in values {
            let label = format!(",{label}=\"{}\"", escaped(of));
            self.sample(name, &label, *value as f64)?;
        }
        Ok(())
    }

    fn backup(&mut self, backup: &Backup) -> io::Result<()> {
        self.metric("backup_moments_total", backup.moments)?;
        self.metric("backup_stored_bytes_total", backup.bytes)?;
        self.metric("backup_failures_total", backup.failures)?;
        self.metric("backup_failing", backup.failing.into())?;
        self.metric("backup_removed_moments_total", backup.removed)?;
        self.metric("backup_care_failures_total", backup.care_failures)?;
        self.metric("backup_care_failing", backup.care_failing.into())?;
        if let Some(age) = backup.age {
            self.metric("backup_age_seconds", age)?;
        }
        if let Some(time) = backup.time {
            self.metric("backup_moment_timestamp_seconds", time)?;
        }
        self.metric("backup_attempt_seconds", backup.attempt.unwrap_or(0))?;
        let (requests, oldest, overdue) = match &backup.in_flight {
            Some(it) => (it.requests, it.seconds, it.overdue),
            None => (0, 0, false),
        };
        self.metric("backup_requests_in_flight", requests)?;
        self.metric("backup_oldest_request_seconds", oldest)?;
        self.metric("backup_overdue", overdue.into())
    }

    fn counter(&mut self, counter: &str, value: u64) -> io::Result<()> {
        let value = match counter.ends_with("_ns") {
            true => value as f64 / NANOS,
            false => value as f64,
        };
        let name = metric_name(counter);
        self.head(&name, help(HELP, counter))?;
        self.sample(&name, "", value)
    }

    /// What stands above a metric: all counters, and they alone, have the suffix `_total`.
    fn head(&mut self, name: &str, help: &str) -> io::Result<()> {
        let kind = match name.ends_with("_total") {
            true => "counter",
            false => "gauge",
        };
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
        status.programs.answered = [("create".to_owned(), 1), ("write".to_owned(), 2)].into();
        status.programs.left = [("path".to_owned(), 3)].into();
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
        let documented: BTreeSet<_> = HELP
            .lines()
            .filter_map(|line| Some(line.split_once(' ')?.0))
            .collect();
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
            let labelled = [
                "cairnfs_errors_total",
                "cairnfs_fuse_messages_total",
                "cairnfs_program_calls_total",
                "cairnfs_program_calls_left_total",
            ];
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
