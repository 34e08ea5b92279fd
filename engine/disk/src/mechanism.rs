//! Mechanisms (optimisations) that can be disabled, to measure what each of them saves.
//!
//! Uses nothing. Defines only names; the code of each mechanism checks whether it is
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
    /// An item that changes again in the open context is formatted in place and logged once.
    /// Without: the context logs it once for each change, if the log has space.
    Relogging,
    /// Equal values of extended attributes are stored once, in memory and in the index. Without:
    /// each attribute has a copy of its own.
    ValuesOnce,
    /// An fsync of an inode that was evicted and read again writes only what changed since.
    /// Without: the first fsync of an inode since it is in memory writes all its items, except names
    /// and attributes, if there is space.
    ChangesOnly,
    /// Threads reserve log and index space from caches of their own, and sum up their commits in
    /// them. Without: all threads use one cache, under one lock.
    ReservationCaches,
}

impl Mechanism {
    /// All of them.
    pub const ALL: [Mechanism; 8] = [
        Mechanism::OneFlush,
        Mechanism::FsyncClosure,
        Mechanism::EntriesOnce,
        Mechanism::AttributesKnown,
        Mechanism::Relogging,
        Mechanism::ValuesOnce,
        Mechanism::ChangesOnly,
        Mechanism::ReservationCaches,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mechanism::OneFlush => "one-flush",
            Mechanism::FsyncClosure => "fsync-closure",
            Mechanism::EntriesOnce => "entries-once",
            Mechanism::AttributesKnown => "attributes-known",
            Mechanism::Relogging => "relogging",
            Mechanism::ValuesOnce => "values-once",
            Mechanism::ChangesOnly => "changes-only",
            Mechanism::ReservationCaches => "reservation-caches",
        }
    }

    /// The mechanism with that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|m| m.name() == name)
    }
}
