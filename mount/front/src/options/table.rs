//! The words that are mount options: those with a meaning here, and those that are accepted without one.
//!
//! Lists only; the options give them their meaning.

/// Words for the kernel and for the whole mount.
const FLAG_WORDS: &[&str] = &[
    "ro", "rw", "remount", "defaults", "dev", "nodev", "suid", "nosuid", "exec", "noexec", "sync",
    "async",
];

/// Words about access times, which CairnFS changes only by explicit requests (`utimensat(2)`).
const ACCESS_TIME_WORDS: &[&str] = &["atime", "noatime", "relatime", "strictatime", "diratime"];

/// Words for the daemon.
pub(crate) const DAEMON_WORDS: &[&str] = &[
    "allow_other",
    "backup",
    "backup-grace",
    "backup-keep-all",
    "backup-keep-daily",
    "backup-keep-hourly",
    "backup-keep-last",
    "backup-keep-monthly",
    "backup-keep-weekly",
    "backup-keep-within",
    "backup-keep-yearly",
    "backup-recipient",
    "backup-sync",
    "backup-wait",
    "branch",
    "btime",
    "nobtime",
    "cache",
    "discard",
    "nodiscard",
    "durability",
    "fsname",
    "grace",
    "interval",
    "keep",
    "norecovery",
    "noload",
    "snapshots",
    "subtype",
    "threads",
    "transport",
    "write",
];

/// Words of fstab that are for mount(8) or systemd, and words for fixed behaviour: the kernel
/// always checks permissions, reads never change access times, access lists and attributes of users
/// are always there, and a volume accepts no changes after a failure.
const WORDS_WITHOUT_EFFECT: &[&str] = &[
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "dirsync",
    "default_permissions",
    "acl",
    "user_xattr",
    "errors=remount-ro",
    "nodiratime",
    "norelatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "mand",
    "nomand",
    "iversion",
    "noiversion",
    "silent",
    "loud",
    "comment",
];

/// Words that the kernel shows for a FUSE mount; mount(8) passes them back in a remount.
const SHOWN_BY_KERNEL: &[&str] = &["user_id", "group_id", "max_read", "blksize"];

/// Whether a word is accepted, and means nothing here.
pub(crate) fn is_without_effect(word: &str) -> bool {
    let known = WORDS_WITHOUT_EFFECT.contains(&word) || SHOWN_BY_KERNEL.contains(&word);
    known || word.starts_with("x-") || word.starts_with("X-")
}

/// What is said of a word that is not known.
pub(crate) fn unknown(word: &str) -> String {
    let lists = [
        FLAG_WORDS,
        DAEMON_WORDS,
        ACCESS_TIME_WORDS,
        WORDS_WITHOUT_EFFECT,
    ];
    let words = lists.map(|list| list.join(", ")).join(", ");
    format!("unknown mount option {word:?}; the known ones are {words} and x-NAME")
}
