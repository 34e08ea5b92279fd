//! Mechanisms (optimisations) that can be disabled, to measure what each of them saves.
//!
//! Floor 0: uses nothing. Defines only names; the code of each mechanism checks whether it is
//! enabled. The contract holds without any of them, and the on-disk format is the same.

/// An optimisation that can be disabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mechanism {
    /// An fsync flushes data and its log record together. Without: the data is flushed before the
    /// record is written and flushed.
    OneFlush,
    /// An fsync writes its dependency closure. Without: it writes everything that is not logged
    /// yet.
    FsyncClosure,
    /// The log contains each directory entry once. Without: twice in a row, as if there were two
    /// indexes, if the log has space.
    EntriesOnce,
    /// An inode without extended attributes is not searched for any. Without: an fsync searches
    /// each requested inode, in the index and in the dirty sets.
    AttributesKnown,
}

impl Mechanism {
    /// All of them.
    pub const ALL: [Mechanism; 4] = [
        Mechanism::OneFlush,
        Mechanism::FsyncClosure,
        Mechanism::EntriesOnce,
        Mechanism::AttributesKnown,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mechanism::OneFlush => "one-flush",
            Mechanism::FsyncClosure => "fsync-closure",
            Mechanism::EntriesOnce => "entries-once",
            Mechanism::AttributesKnown => "attributes-known",
        }
    }

    /// The mechanism with that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|m| m.name() == name)
    }
}
