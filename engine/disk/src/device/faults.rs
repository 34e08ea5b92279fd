//! Counters of the errors of an open volume, by kind, and the last error, for monitoring.
//!
//! Uses only [`crate::error`] and [`crate::sync`]. No decision depends on these counters; the
//! failure that stops a volume is kept in [`super::Storage`].

use std::time::SystemTime;

use crate::error::Error;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The kind of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// A read of the device.
    Read,
    /// A write to the device.
    Write,
    /// A flush of the device, or the device was found shorter than before.
    Flush,
    /// A discard of free space.
    Discard,
    /// Bytes with a wrong checksum or an invalid content.
    Damage,
    /// An accepted write found no space on the host file system.
    HostFull,
    /// Work was aborted by a panic or another internal error.
    Internal,
}

impl FaultKind {
    /// All kinds.
    pub const ALL: [FaultKind; 7] = [
        FaultKind::Read,
        FaultKind::Write,
        FaultKind::Flush,
        FaultKind::Discard,
        FaultKind::Damage,
        FaultKind::HostFull,
        FaultKind::Internal,
    ];

    /// The kind's name in machine-readable output.
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::Read => "read",
            FaultKind::Write => "write",
            FaultKind::Flush => "flush",
            FaultKind::Discard => "discard",
            FaultKind::Damage => "damage",
            FaultKind::HostFull => "host_full",
            FaultKind::Internal => "internal",
        }
    }

    fn of(error: &Error) -> Self {
        match error {
            Error::Io { op: "read", .. } => FaultKind::Read,
            Error::Io { op: "write", .. } => FaultKind::Write,
            Error::Io { op: "discard", .. } => FaultKind::Discard,
            Error::Io { .. } => FaultKind::Flush,
            Error::Corrupt(_) => FaultKind::Damage,
            Error::HostFull { .. } => FaultKind::HostFull,
            _ => FaultKind::Internal,
        }
    }
}

/// An error that occurred.
#[derive(Debug, Clone)]
pub struct Fault {
    /// The kind of the error.
    pub kind: FaultKind,
    /// Wall-clock time of the error.
    pub time: SystemTime,
    /// The error.
    pub error: Error,
}

/// How often each kind of error occurred, and the last error.
#[derive(Debug, Clone, Default)]
pub struct FaultCounts {
    /// Errors of each kind since the volume was opened.
    pub counts: Vec<(FaultKind, u64)>,
    /// The last error.
    pub last: Option<Fault>,
}

/// The error counters of an open volume.
#[derive(Default)]
pub(super) struct Faults {
    counts: [AtomicU64; FaultKind::ALL.len()],
    last: Mutex<Option<Fault>>,
}

impl Faults {
    /// Counts an error, and keeps it as the last one.
    pub fn note(&self, error: &Error) {
        let kind = FaultKind::of(error);
        let kinds = FaultKind::ALL.iter().zip(&self.counts);
        for (_, count) in kinds.filter(|(each, _)| **each == kind) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        *self.last.lock() = Some(Fault {
            kind,
            time: SystemTime::now(),
            error: error.clone(),
        });
    }

    /// Whether any error was counted.
    pub fn are_some(&self) -> bool {
        self.counts
            .iter()
            .any(|count| count.load(Ordering::Relaxed) > 0)
    }

    /// A copy of the counters and the last error.
    pub fn get(&self) -> FaultCounts {
        let kinds = FaultKind::ALL.into_iter().zip(&self.counts);
        FaultCounts {
            counts: kinds
                .map(|(kind, count)| (kind, count.load(Ordering::Relaxed)))
                .collect(),
            last: self.last.lock().clone(),
        }
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;
    use crate::device::io_error;

    #[test]
    fn errors_are_counted_by_kind_and_the_last_is_kept() {
        let faults = Faults::default();
        assert!(faults.get().last.is_none());
        let io = |op| io_error(op, 0, 4096, std::io::Error::from_raw_os_error(libc::EIO));
        let damage = Error::corrupt(7, "data checksum", 1, 2);
        for error in [io("read"), io("stat"), io("read"), damage] {
            faults.note(&error);
        }
        faults.note(&Error::Invalid("a worker thread panicked"));
        let found = faults.get();
        let some: Vec<_> = found.counts.iter().filter(|(_, n)| *n > 0).collect();
        let expected = [
            (FaultKind::Read, 2),
            (FaultKind::Flush, 1),
            (FaultKind::Damage, 1),
            (FaultKind::Internal, 1),
        ];
        assert_eq!(some, expected.iter().collect::<Vec<_>>());
        assert!(found.last.is_some_and(|f| f.kind == FaultKind::Internal));
    }
}
