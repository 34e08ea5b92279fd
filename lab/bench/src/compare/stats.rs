//! The kernel's counters: requests to a block device, and processor time.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{major, minor};

use crate::Result;

/// A block device's statistics file.
#[derive(Debug, Clone)]
pub struct Block {
    stat: PathBuf,
}

/// Requests to a device since it exists.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Requests {
    /// Reads that reached the device, after merging.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Flushes.
    pub flushes: u64,
}

impl Block {
    /// Finds the statistics of the device at `path`.
    pub fn of(path: &Path) -> Result<Self> {
        let with_path = |e: std::io::Error| format!("{}: {e}", path.display());
        let found = fs::metadata(path).map_err(with_path)?;
        if !found.file_type().is_block_device() {
            return Err(format!("{} is no block device", path.display()).into());
        }
        let (major, minor) = (major(found.rdev()), minor(found.rdev()));
        Ok(Self {
            stat: PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat")),
        })
    }

    /// Finds the statistics of the device that holds the files of a directory; `None` if its file
    /// system has no block device of its own, as tmpfs and overlayfs.
    pub fn under(dir: &Path) -> Result<Option<Self>> {
        let found = fs::metadata(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        let (major, minor) = (major(found.dev()), minor(found.dev()));
        let stat = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"));
        Ok(stat.exists().then_some(Self { stat }))
    }

    /// Reads the current figures; zeros if the device does not exist any more.
    pub fn now(&self) -> Requests {
        let text = fs::read_to_string(&self.stat).unwrap_or_default();
        parse_requests(&text).unwrap_or_default()
    }
}

impl Requests {
    /// Returns them as counters of a target.
    pub fn counters(&self) -> [(&'static str, u64); 5] {
        [
            ("device_writes", self.writes),
            ("device_write_bytes", self.write_bytes),
            ("device_reads", self.reads),
            ("device_read_bytes", self.read_bytes),
            ("device_flushes", self.flushes),
        ]
    }
}

/// Parses the fields of the kernel's Documentation/block/stat.rst, where sectors have 512 bytes.
/// Kernels before 5.5 do not count flushes.
fn parse_requests(text: &str) -> Option<Requests> {
    let fields: Vec<u64> = text
        .split_whitespace()
        .map(|field| field.parse().ok())
        .collect::<Option<_>>()?;
    let field = |n: usize| fields.get(n).copied();
    Some(Requests {
        reads: field(0)?,
        read_bytes: field(2)? * 512,
        writes: field(4)?,
        write_bytes: field(6)? * 512,
        flushes: field(15).unwrap_or(0),
    })
}

/// Returns the user and system time of a process; zero if it does not exist any more. The time of
/// ended threads has a granularity of 10 ms.
pub fn cpu_of(process: u32) -> Duration {
    let all = times(&process.to_string()).map_or(Duration::ZERO, |times| times.own);
    // Both are lower bounds: one omits incomplete steps of 10 ms, the other ended threads.
    all.max(cpu_of_threads(process).unwrap_or_default())
}

/// Sums the first field of each thread's `schedstat`: nanoseconds on a processor.
fn cpu_of_threads(process: u32) -> Option<Duration> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let nanos = threads.flatten().filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Some(Duration::from_nanos(nanos.sum()))
}

/// Returns the busy time of all processors of the machine, in steps of 10 ms.
pub fn machine_cpu() -> Duration {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    parse_machine(&text).unwrap_or_default()
}

/// Parses proc(5): `cpu user nice system idle iowait irq softirq steal guest guest_nice`; guest
/// times are included in user and nice.
fn parse_machine(stat: &str) -> Option<Duration> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Vec<u64> = line
        .split_whitespace()
        .map(|field| field.parse().ok())
        .collect::<Option<_>>()?;
    let busy = [0, 1, 2, 5, 6].iter().map(|n| fields.get(*n).copied());
    Some(Duration::from_millis(10 * busy.sum::<Option<u64>>()?))
}

/// Returns the user and system time of a process and of its ended children.
pub fn cpu_with_children(process: u32) -> Duration {
    times(&process.to_string()).map_or(Duration::ZERO, |times| times.own + times.children)
}

/// Returns the user and system time of ended children of this process that were waited for.
pub fn cpu_of_children() -> Duration {
    times("self").map_or(Duration::ZERO, |times| times.children)
}

struct Times {
    own: Duration,
    children: Duration,
}

fn times(process: &str) -> Option<Times> {
    parse_times(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

/// Parses proc(5): the 14th to 17th field, in hundredths of a second on all current Linux systems.
/// The second field is the program's name in parentheses, which may contain any character.
fn parse_times(stat: &str) -> Option<Times> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |n: usize| fields.get(n - 3)?.parse::<u64>().ok();
    let time = |ticks: u64| Duration::from_millis(ticks * 10);
    Some(Times {
        own: time(ticks(14)? + ticks(15)?),
        children: time(ticks(16)? + ticks(17)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_from_their_fields() {
        let line = "   16678        1   842068     1794    70399   331083 11576106   101935        0    \
                    10600   107017       46        0 125960226     2400      941      885\n";
        assert_eq!(
            parse_requests(line),
            Some(Requests {
                reads: 16678,
                read_bytes: 842_068 * 512,
                writes: 70399,
                write_bytes: 11_576_106 * 512,
                flushes: 941,
            })
        );
        let old = parse_requests("1 2 3 4 5 6 7 8 9 10 11").unwrap();
        assert_eq!((old.writes, old.flushes), (5, 0));
        assert_eq!(parse_requests("1 2 3"), None);
        assert_eq!(parse_requests("a b c d e f g h"), None);
    }

    #[test]
    fn machine_busy_time_excludes_idle_and_iowait() {
        let stat = "cpu  100 20 30 4000 500 6 7 80 9 1\ncpu0 1 2 3 4 5 6 7 8 9 0\n";
        assert_eq!(parse_machine(stat), Some(Duration::from_millis(1630)));
        assert_eq!(parse_machine("cpu  1 2 3\n"), None);
        assert_eq!(parse_machine("intr 5"), None);
        assert!(machine_cpu() > Duration::ZERO);
    }

    #[test]
    fn processor_times_are_read_from_their_fields() {
        let line = "77 (a) b (c) S 1 77 77 0 -1 4194560 9 8 7 6 150 50 30 20 20 0 5 0 9 1 1";
        let times = parse_times(line).unwrap();
        assert_eq!(times.own, Duration::from_secs(2));
        assert_eq!(times.children, Duration::from_millis(500));
        assert!(parse_times("77 (a) S 1").is_none());
        assert_eq!(cpu_of(0), Duration::ZERO);
    }
}
