//! The health of a mounted volume: healthy, degraded or stopped.
//!
//! Derived from an answer of the daemon; sends no request itself. Exit codes and the first word
//! of the line are those of monitoring plugins: 0 OK, 1 warning, 2 critical.

use cairnfs_daemon::failure::{show_bytes, shown};
use cairnfs_fuse::status::{Space, State, Status};

use crate::daemon::Answer;
use crate::size::human;

/// The health of a volume, with its problems.
pub struct Health {
    stopped: bool,
    problems: Vec<String>,
}

impl Health {
    /// Derives the health of a volume. From `full` percent on, it counts as nearly full.
    pub fn of(answer: &Answer, full: u64) -> Self {
        let status = &answer.status;
        match status.stopped() {
            Some(text) => Self {
                stopped: true,
                problems: vec![text],
            },
            None => Self {
                stopped: false,
                problems: [
                    displaced(status),
                    shortage(status, full),
                    trouble(status),
                    unshipped(status),
                    unanswered(status),
                    neglected(status),
                ]
                .into_iter()
                .flatten()
                .collect(),
            },
        }
    }

    /// The exit code of a health check.
    pub fn exit_code(&self) -> u8 {
        match (self.stopped, self.problems.is_empty()) {
            (true, _) => 2,
            (false, false) => 1,
            (false, true) => 0,
        }
    }

    /// The health in one word.
    pub fn word(&self) -> &'static str {
        match self.exit_code() {
            0 => "healthy",
            1 => "degraded",
            _ => "stopped",
        }
    }

    /// The problems found.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// One line for a monitor.
    pub fn line(&self, answer: &Answer) -> String {
        let word = match self.exit_code() {
            0 => "OK",
            1 => "DEGRADED",
            _ => "STOPPED",
        };
        let volume = show_bytes(answer.status.volume.as_bytes());
        let dir = shown(&answer.mountpoint);
        let what = if self.problems.is_empty() {
            let space = &answer.status.space;
            let available = human(space.available);
            let percent = used_percent(space);
            format!(
                "{}, {percent}% in use, {available} available",
                state(answer)
            )
        } else {
            show_bytes(self.problems.join("; ").as_bytes())
        };
        format!("{word}: {volume} on {dir}: {what}")
    }
}

/// The state in words.
pub fn state(answer: &Answer) -> &'static str {
    match answer.status.state {
        State::Stopped => "stopped",
        State::Running if !answer.mounted_read_only => "running",
        State::Running | State::ReadOnly => "read-only",
    }
}

/// Percent of the volume in use, computed as by df(1): used / (used + available).
pub fn used_percent(space: &Space) -> u64 {
    let used = space.total.saturating_sub(space.free);
    let all = used.saturating_add(space.available);
    match all {
        0 => 100,
        all => (u128::from(used) * 100).div_ceil(u128::from(all)) as u64,
    }
}

/// A shortage of space in the volume or on its host. Used space is ignored for a volume that is
/// not writable; held changes are always reported.
pub fn shortage(status: &Status, full: u64) -> Option<String> {
    let (space, host) = (&status.space, status.host.as_ref());
    let held = status.counter("held_bytes");
    let percent = used_percent(space);
    if held > 0 {
        return Some(format!(
            "the file system that holds the volume is full: {} of changes wait in memory, and no sync \
             succeeds until there is space",
            human(held)
        ));
    }
    if percent < full || status.state != State::Running {
        return None;
    }
    let available = human(space.available);
    let narrow = host.filter(|h| h.may_outgrow && space.available < space.free);
    Some(match narrow {
        Some(host) => format!(
            "the file system that holds the volume has {} left: {available} can be written",
            human(host.free)
        ),
        None => format!("{percent}% in use, {available} available"),
    })
}

fn displaced(status: &Status) -> Option<String> {
    status.displaced().map(str::to_owned)
}

/// A message with the number of errors and the last one, if there were errors.
fn trouble(status: &Status) -> Option<String> {
    let last = status.last_error.as_ref();
    let last = last.map(|e| format!(", the last: {}", e.text));
    let text = || {
        format!(
            "errors since it was mounted: {}{}",
            errors(status),
            last.unwrap_or_default()
        )
    };
    (status.error_count() > 0).then(text)
}

/// A message if the last attempt to store a moment in the backup failed.
fn unshipped(status: &Status) -> Option<String> {
    let backup = status.backup.as_ref().filter(|backup| backup.failing)?;
    let last = backup.last_error.as_ref();
    let last = last.map_or_else(String::new, |last| format!(": {}", last.text));
    let what = if backup.ended { "has ended" } else { "fails" };
    let age = match backup.age {
        Some(age) => format!("its last success was {} ago", seconds(age)),
        None => "nothing was stored since it was mounted".to_owned(),
    };
    Some(format!("the backup in {} {what}, {age}{last}", backup.url))
}

/// A message if the store of the backup has not answered for too long.
fn unanswered(status: &Status) -> Option<String> {
    let backup = status.backup.as_ref()?;
    let in_flight = backup.in_flight.as_ref().filter(|it| it.overdue)?;
    Some(format!(
        "the backup in {} has waited for {} for an answer to: {}",
        backup.url,
        seconds(in_flight.seconds),
        in_flight.what
    ))
}

/// A message if the last attempt to remove what the backup does not need failed.
fn neglected(status: &Status) -> Option<String> {
    let backup = status.backup.as_ref().filter(|it| it.care_failing)?;
    let last = backup.last_care_error.as_ref();
    let last = last.map_or_else(String::new, |last| format!(": {}", last.text));
    Some(format!(
        "the backup in {} is not kept small{last}",
        backup.url
    ))
}

/// A time for people.
pub fn seconds(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// Errors by kind, such as `2 read, 1 damage`.
pub fn errors(status: &Status) -> String {
    let met = status.errors.iter().filter(|(_, n)| **n > 0);
    let kinds: Vec<String> = met.map(|(kind, n)| format!("{n} {kind}")).collect();
    if kinds.is_empty() {
        "none".into()
    } else {
        kinds.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairnfs_fuse::status::{Backup, Host, InFlight, LastError, Programs, Transport};

    pub fn answer(state: State) -> Answer {
        let space = Space {
            total: 1000,
            free: 500,
            available: 400,
            ..Space::default()
        };
        let status = Status {
            volume: "/v".into(),
            pid: 1,
            state,
            reason: None,
            next_step: None,
            space,
            host: None,
            file: None,
            tree: None,
            errors: [("read".to_owned(), 0)].into(),
            last_error: None,
            messages: [("lookup".to_owned(), 0)].into(),
            transport: Transport::default(),
            programs: Programs::default(),
            backup: None,
            counters: [("held_bytes".to_owned(), 0)].into(),
        };
        Answer {
            status,
            volume: "/v".into(),
            mountpoint: "/m".into(),
            mounted_read_only: false,
        }
    }

    fn judged(answer: &Answer) -> (u8, String) {
        let health = Health::of(answer, 95);
        (health.exit_code(), health.line(answer))
    }

    #[test]
    fn health_is_healthy_degraded_or_stopped() {
        let mut it = answer(State::Running);
        let line = "OK: /v on /m: running, 56% in use, 400 B available";
        assert_eq!(judged(&it), (0, line.into()));
        it.status.space.available = 20;
        it.status.space.free = 20;
        let (code, line) = judged(&it);
        assert!(
            code == 1 && line.contains("98% in use, 20 B available"),
            "{line}"
        );
        it.status.space.free = 500;
        it.status.host = Some(Host {
            free: 4096,
            unallocated: 9000,
            may_outgrow: true,
        });
        let (code, line) = judged(&it);
        assert!(code == 1 && line.contains("has 4 KiB left"), "{line}");
        it.status.counters.insert("held_bytes".into(), 8192);
        let (code, line) = judged(&it);
        assert!(
            code == 1 && line.contains("8 KiB of changes wait"),
            "{line}"
        );
        it.status.state = State::Stopped;
        it.status.reason = Some("because".into());
        it.status.next_step = Some("do that".into());
        let (code, line) = judged(&it);
        assert_eq!(code, 2);
        assert!(
            line.contains("/v has stopped: because") && line.ends_with("do that"),
            "{line}"
        );
    }

    #[test]
    fn a_backup_that_fails_degrades_health() {
        let mut it = answer(State::Running);
        let mut backup = Backup {
            url: "s3://b/d".into(),
            age: Some(3),
            failures: 1,
            ..Backup::default()
        };
        it.status.backup = Some(backup.clone());
        assert_eq!(judged(&it).0, 0);
        backup.failing = true;
        backup.age = Some(7200);
        backup.last_error = Some(LastError {
            kind: "backup".into(),
            time: 0,
            text: "no answer".into(),
        });
        it.status.backup = Some(backup.clone());
        let (code, line) = judged(&it);
        let wanted = "the backup in s3://b/d fails, its last success was 2 h ago: no answer";
        assert!(code == 1 && line.contains(wanted), "{line}");
        (backup.age, backup.ended) = (None, true);
        it.status.backup = Some(backup);
        let (_, line) = judged(&it);
        assert!(line.contains("has ended, nothing was stored"), "{line}");
        it.status.backup = Some(Backup {
            url: "s3://b/d".into(),
            care_failing: true,
            last_care_error: Some(LastError {
                kind: "backup".into(),
                time: 0,
                text: "may not delete".into(),
            }),
            ..Backup::default()
        });
        let (code, line) = judged(&it);
        let wanted = "the backup in s3://b/d is not kept small: may not delete";
        assert!(code == 1 && line.contains(wanted), "{line}");
    }

    #[test]
    fn a_backup_whose_store_does_not_answer_degrades_health() {
        let mut it = answer(State::Running);
        let mut in_flight = InFlight {
            what: "store heads/7".into(),
            seconds: 24,
            requests: 2,
            overdue: false,
        };
        let mut backup = Backup {
            url: "s3://b/d".into(),
            attempt: Some(25),
            in_flight: Some(in_flight.clone()),
            ..Backup::default()
        };
        it.status.backup = Some(backup.clone());
        assert_eq!(judged(&it).0, 0);
        in_flight.overdue = true;
        backup.in_flight = Some(in_flight);
        it.status.backup = Some(backup);
        let (code, line) = judged(&it);
        let wanted = "the backup in s3://b/d has waited for 24 s for an answer to: store heads/7";
        assert!(code == 1 && line.contains(wanted), "{line}");
    }

    #[test]
    fn errors_degrade_health_but_full_read_only_volume_does_not() {
        let mut it = answer(State::ReadOnly);
        it.status.space.available = 0;
        it.status.space.free = 0;
        assert_eq!(judged(&it).0, 0);
        it.status.errors.insert("damage".into(), 2);
        it.status.last_error = Some(LastError {
            kind: "damage".into(),
            time: 0,
            text: "bad\nblock".into(),
        });
        let (code, line) = judged(&it);
        assert!(
            code == 1 && line.contains("2 damage, the last: bad\\nblock"),
            "{line}"
        );
    }
}
