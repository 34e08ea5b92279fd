//! Mechanisms that save work and can be left out, to measure what each of them saves.
//!
//! Floor 0: uses nothing. Plain names; who has a mechanism looks here whether it is wanted. The contract
//! holds without any of them, and a volume is the same on disk, so nothing else need know.

/// A mechanism that saves work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mechanism {
    /// An fsync flushes data and its record together. Without: the data is flushed before the record is
    /// written, which is then flushed.
    OneFlush,
    /// An fsync writes what its inode depends on. Without: it writes all that is not logged, of everybody.
    FsyncClosure,
    /// The log has each directory entry once. Without: twice in a row, as for two indexes, wherever the
    /// log has room for that.
    EntriesOnce,
    /// An inode that has no attributes is not searched for any. Without: each inode that an fsync is asked
    /// for is, in the index and in what is not yet there.
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

    /// Its name in words of a command line.
    pub fn name(self) -> &'static str {
        match self {
            Mechanism::OneFlush => "one-flush",
            Mechanism::FsyncClosure => "fsync-closure",
            Mechanism::EntriesOnce => "entries-once",
            Mechanism::AttributesKnown => "attributes-known",
        }
    }

    /// The one of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|m| m.name() == name)
    }
}
