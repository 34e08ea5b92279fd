//! The table of mount options: every word, the form of its value, its default, its meaning, the
//! part that uses it, and its line in the help and in `docs/mounting.md`.
//!
//! Parsing, the list of known words, the help and the document are made from it. An option is a
//! field and a row here; what acts on it reads the field.

use std::ffi::OsString;
use std::time::Duration;

use cairnfs_transport::Transport;

use super::values::{check_source, parse_count, parse_interval, parse_seconds, parse_size, unless};

/// When the kernel sends written data to the daemon.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WriteMode {
    /// At `write(2)`. The daemon maintains all times.
    #[default]
    Through,
    /// When the file is closed or synced, when memory is short, or after about 30 seconds. Until
    /// then the kernel maintains size, mtime and ctime of regular files.
    Back,
}

/// The options of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// Refuse changes; the volume is opened read-only.
    pub read_only: bool,
    /// Replay the log when the volume is opened.
    pub recovery: bool,
    /// Users other than the mounting one may use the mount.
    pub allow_other: bool,
    /// Device files can be opened (superuser only).
    pub dev: bool,
    /// Set-user-id bits are honoured (superuser only).
    pub suid: bool,
    /// Programs can be executed.
    pub exec: bool,
    /// Every `write(2)` is synchronous, as with `O_SYNC`.
    pub sync: bool,
    /// The branch or snapshot to mount, as a reference; without it `main`.
    pub branch: Option<String>,
    /// Change the flags of an existing mount.
    pub remount: bool,
    /// Maximum bytes for the engine's caches and dirty data.
    pub cache: Option<usize>,
    /// Interval of periodic syncs of all data that has reached the daemon. `Some(None)`: no
    /// periodic sync.
    pub durability: Option<Option<Duration>>,
    /// Interval of snapshots of the branch that are made by themselves.
    pub snapshots: Option<Duration>,
    /// How many of these snapshots are kept.
    pub keep: usize,
    /// The URL of the backup that the volume is shipped to while it is mounted.
    pub backup: Option<String>,
    /// How long after one moment of that backup the next one is stored.
    pub interval: Option<Duration>,
    /// How long the end of the last mount waits for a last moment of it.
    pub backup_wait: Option<Duration>,
    /// The age recipient that it is encrypted for.
    pub backup_recipient: Option<String>,
    /// Which moments of it stay: words such as `daily=7` or `all`, which the backup reads.
    pub backup_keep: Vec<String>,
    /// How long the contents of removed moments stay for those that read them.
    pub backup_grace: Option<Duration>,
    /// Each fsync waits until the backup has what it made durable, and for how long.
    pub backup_sync: Option<Duration>,
    /// Report times of birth.
    pub birth_times: bool,
    /// Number of event loops.
    pub threads: Option<usize>,
    /// What carries the kernel's messages to the daemon.
    pub transport: Transport,
    /// How long open files are still served after a signal ends the mount. The default is less than
    /// the 90 seconds after which systemd sends SIGKILL.
    pub grace: Duration,
    /// Discard freed space on the device.
    pub discard: bool,
    /// When the kernel sends written data to the daemon.
    pub write: WriteMode,
    /// The source shown for the mount, instead of the volume's path.
    pub source: Option<OsString>,
    /// Access times were requested. A mount never changes them by reads, so the caller can warn.
    pub access_times: bool,
    /// Ignore unknown words.
    pub sloppy: bool,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            recovery: true,
            allow_other: false,
            dev: false,
            suid: false,
            exec: true,
            sync: false,
            branch: None,
            remount: false,
            cache: None,
            durability: None,
            snapshots: None,
            keep: 24,
            backup: None,
            interval: None,
            backup_wait: None,
            backup_recipient: None,
            backup_keep: Vec::new(),
            backup_grace: None,
            backup_sync: None,
            birth_times: false,
            threads: None,
            transport: Transport::default(),
            grace: Duration::from_secs(60),
            discard: true,
            write: WriteMode::default(),
            source: None,
            access_times: false,
            sloppy: false,
        }
    }
}

/// What the words about moments that stay begin with. What follows is for the backup to read.
pub(super) const BACKUP_KEEP: &str = "backup-keep-";

/// The part that uses an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum User {
    /// The kernel, as flags of the mount: a remount changes them.
    Flags,
    /// This crate, when it serves the kernel.
    Front,
    /// The process around it: branches, snapshots and backups.
    Daemon,
    /// The volume as a whole.
    Engine,
    /// No part.
    Nothing,
}

/// What a word does to the options.
pub(super) enum Meaning {
    /// It stands alone.
    Flag(fn(&mut MountOptions)),
    /// It has a value. An error is a text that follows the word.
    Value(fn(&mut MountOptions, &str) -> Result<(), String>),
    /// It begins with [`BACKUP_KEEP`].
    Rule,
    /// It is an error, with this text.
    Refused(&'static str),
}

/// Words that belong together.
pub(super) struct Row {
    /// The words with the forms of their values; empty for what the help need not say.
    pub shown: &'static str,
    /// The value, or the word, that holds without any of them.
    pub default: &'static str,
    pub user: User,
    /// What it means.
    pub help: &'static str,
    pub words: &'static [(&'static str, Meaning)],
}

use Meaning::{Flag, Refused, Rule, Value};

/// A word and what it does: `"word" => |options| …`, or `"word" = |options, value| …` if it has a
/// value.
macro_rules! word {
    ($word:literal => |$o:ident| $do:expr) => {
        ($word, Flag(|$o| $do))
    };
    ($word:literal = |$o:ident, $value:ident| $do:expr) => {
        (
            $word,
            Value(|$o, $value| {
                $do;
                Ok(())
            }),
        )
    };
    ($word:literal $meaning:expr) => {
        ($word, $meaning)
    };
}

/// Rows: the user, what is shown, the default, the help, and the words.
macro_rules! table {
    ($($user:ident $shown:literal [$default:literal] $help:literal { $(($($word:tt)+))* })*) => {
        &[$(Row {
            shown: $shown,
            default: $default,
            user: User::$user,
            help: $help,
            words: &[$(word!($($word)+)),*],
        }),*]
    };
}

/// All options, in the order of the help.
pub(super) const TABLE: &[Row] = table! {
    Flags "ro, rw" ["rw"]
        "read-only, or read and write. The volume is not written with ro: after a crash, a log that needs more \
         memory than the cache is recovered into a temporary file in TMPDIR"
        { ("ro" => |o| o.read_only = true) ("rw" => |o| o.read_only = false) }
    Daemon "branch=NAME" ["main"]
        "the branch NAME, or a snapshot, which is read-only; also beside other mounts of the volume, which share \
         cache=, durability=, write= and discarding with the first one"
        { ("branch" = |o, v| o.branch = Some(unless(v.is_empty(), v, "the name is empty")?.to_owned())) }
    Front "allow_other" [""]
        "let other users access the mount, as the modes of files permit"
        { ("allow_other" => |o| o.allow_other = true)
          ("allow_root" Refused("allow_root is not supported: use allow_other")) }
    Front "write=through" ["write=through"]
        "send data to the daemon in each write(2), which itself reports a full volume"
        { ("write" = |o, v| o.write = match v {
            "through" => WriteMode::Through,
            "back" => WriteMode::Back,
            _ => return Err("neither through nor back".into()),
        }) }
    Front "write=back" [""]
        "let the kernel keep data until a file is closed or synced, or for about 30 seconds: faster for small \
         writes without a sync, but close and fsync report a full volume"
        {}
    Engine "durability=SECONDS" ["5"]
        "make data that has reached the daemon durable by a sync that begins this long after the last one; 0: on \
         request only. Data written through a mapping reaches it with msync and munmap"
        { ("durability" = |o, v| o.durability = Some(Some(parse_seconds(v)?).filter(|t| !t.is_zero()))) }
    Daemon "snapshots=TIME" ["0"]
        "make a snapshot of the branch by itself, each time that this long has passed and it has changed: 30s, \
         5m, 1h, 1d; 0: none"
        { ("snapshots" = |o, v| o.snapshots = Some(parse_interval(v)?).filter(|t| !t.is_zero())) }
    Daemon "keep=N" ["24"]
        "how many of these are kept; before there is no space, the oldest are dropped"
        { ("keep" = |o, v| o.keep = parse_count(v, 10_000)?) }
    Daemon "backup=URL" [""]
        "store what has changed in a backup (`cairnfs backup`), again and again while the volume is mounted; an \
         option of the first mount"
        { ("backup" = |o, v| {
            let neither = !v.starts_with('/') && !v.contains("://");
            o.backup = Some(unless(neither, v, "neither a URL nor a path that begins with /")?.to_owned());
        }) }
    Daemon "interval=TIME" ["5s"]
        "how long after one moment of it the next one is stored"
        { ("interval" = |o, v| {
            let interval = parse_interval(v)?;
            o.interval = Some(unless(interval.is_zero(), interval, "at least 1s")?);
        }) }
    Daemon "backup-wait=SECONDS" ["20"]
        "how long the end of the last mount waits for a last moment of it; 0: none is stored then"
        { ("backup-wait" = |o, v| o.backup_wait = Some(parse_seconds(v)?)) }
    Daemon "backup-sync[=SECONDS]" [""]
        "fsync returns when what it made durable is in the backup, too, and fails (EIO) if it is not within this \
         time (60 without a number) or cannot be stored; it is durable in the volume then"
        { ("backup-sync" => |o| o.backup_sync = Some(Duration::from_secs(60)))
          ("backup-sync" = |o, v| {
            let limit = parse_seconds(v)?;
            o.backup_sync = Some(unless(limit.is_zero(), limit, "more than 0 seconds")?);
        }) }
    Daemon "backup-keep-last=N, backup-keep-hourly=N, -daily, -weekly, -monthly, -yearly, backup-keep-within=TIME" [""]
        "remove the moments that none of these rules keeps, as `cairnfs backup prune` does. Without any, those \
         that mounts have stored are thinned out: the last 1000 stay, the last one of each minute for a day and \
         of each hour for two weeks, counted where there are any, and one of each day"
        { ("backup-keep-last" Rule) ("backup-keep-hourly" Rule) ("backup-keep-daily" Rule)
          ("backup-keep-weekly" Rule) ("backup-keep-monthly" Rule) ("backup-keep-yearly" Rule)
          ("backup-keep-within" Rule) }
    Daemon "backup-keep-all" [""]
        "remove none; when no further one can be named, none is stored"
        { ("backup-keep-all" Rule) }
    Daemon "backup-grace=TIME" ["1h"]
        "how long the contents of removed moments stay for programs that read them"
        { ("backup-grace" = |o, v| o.backup_grace = Some(parse_interval(v)?)) }
    Daemon "backup-recipient=AGE1" [""]
        "encrypt a new backup for this age recipient, and refuse one that is not encrypted for it; needs a \
         program that was built with `--features encryption`"
        { ("backup-recipient" = |o, v| {
            o.backup_recipient = Some(unless(v.is_empty(), v, "the recipient is empty")?.to_owned());
        }) }
    Engine "cache=SIZE"
        ["an eighth of the memory that the process may use, control groups considered, from 64M to 4G"]
        "memory for caches and unwritten changes, such as 512M; at least 8M"
        { ("cache" = |o, v| {
            let bytes = parse_size(v)?;
            let bytes = unless(bytes < 8 << 20, bytes, "less than 8M")?;
            o.cache = Some(usize::try_from(bytes).map_err(|_| "too large")?);
        }) }
    Front "btime, nobtime" ["nobtime"]
        "report times of birth (statx(2)), or do not. Programs that ask for them with every stat, as those of \
         Rust and Node.js do, then cost one message more for each file"
        { ("btime" => |o| o.birth_times = true) ("nobtime" => |o| o.birth_times = false) }
    Front "threads=N" ["one for each processor, from 2 to 16"]
        "event loops"
        { ("threads" = |o, v| o.threads = Some(parse_count(v, 256)?)) }
    Front "transport=auto" ["transport=auto"]
        "exchange messages with the kernel over io_uring if it offers that (Linux 6.14; root enables it by the \
         parameter enable_uring of the module fuse), and over /dev/fuse otherwise"
        { ("transport" = |o, v| o.transport = match v {
            "auto" => Transport::Auto,
            "dev" => Transport::Dev,
            "ring" => Transport::Ring,
            _ => return Err("neither auto, dev nor ring".into()),
        }) }
    Front "transport=dev" [""] "use /dev/fuse" {}
    Front "transport=ring" [""] "as auto, and log why if it is /dev/fuse" {}
    Front "grace=SECONDS" ["60"]
        "how long open files are still served after a signal ends the mount"
        { ("grace" = |o, v| o.grace = parse_seconds(v)?) }
    Engine "ro,norecovery" [""]
        "do not replay the log: show the state of the last merge if the log or the newest superblock is damaged \
         (noload is the same)"
        { ("norecovery" => |o| o.recovery = false) ("noload" => |o| o.recovery = false) }
    Engine "discard, nodiscard" ["discard"]
        "discard freed space on the device, or do not"
        { ("discard" => |o| o.discard = true) ("nodiscard" => |o| o.discard = false) }
    Flags "dev, suid, noexec" [""]
        "as for mount(8). The default is no devices and no set-id bits, but both if root mounts by mount(8) or \
         fstab"
        { ("dev" => |o| o.dev = true) ("nodev" => |o| o.dev = false)
          ("suid" => |o| o.suid = true) ("nosuid" => |o| o.suid = false)
          ("exec" => |o| o.exec = true) ("noexec" => |o| o.exec = false) }
    Flags "defaults" [""]
        "rw, dev, suid, exec and async"
        { ("defaults" => |o| {
            (o.read_only, o.sync) = (false, false);
            (o.dev, o.suid, o.exec) = (true, true, true);
        }) }
    Flags "sync, async" ["async"]
        "make the data of write(2) durable before it returns, or do not; not names"
        { ("sync" => |o| o.sync = true) ("async" => |o| o.sync = false) }
    Flags "remount" [""]
        "change the flags of the mount on DIR, which may be given without a VOLUME (root only): ro, rw, dev, \
         suid, exec, sync and their opposites; all others stay. With ro, everything is made durable. A volume \
         mounted with ro cannot become rw"
        { ("remount" => |o| o.remount = true) }
    Front "fsname=NAME" ["the path of the volume"]
        "the source in the table of mounts"
        { ("fsname" = |o, v| o.source = Some(check_source(v)?.into())) }
    Front "" [""] ""
        { ("subtype" = |_o, v| { unless(v != "cairnfs", v, "the subtype is always cairnfs")?; }) }
    // Access times change only by explicit requests (`utimensat(2)`).
    Nothing "" [""] ""
        { ("atime" => |o| o.access_times = true) ("relatime" => |o| o.access_times = true)
          ("strictatime" => |o| o.access_times = true) ("diratime" => |o| o.access_times = true)
          ("noatime" => |o| o.access_times = false) }
};

/// Words of fstab that are for mount(8) or systemd, and words for fixed behaviour: the kernel always
/// checks permissions, reads never change access times, access lists and attributes of users are
/// always there, and a volume accepts no changes after a failure. They are accepted, and mean nothing
/// here, as do names that begin with `x-`.
pub(super) const IGNORED: &str = "\
    auto noauto user nouser users owner group nofail _netdev dirsync default_permissions acl \
    user_xattr errors=remount-ro nodiratime norelatime nostrictatime lazytime nolazytime mand \
    nomand iversion noiversion silent loud comment";

/// Words that the kernel shows for a FUSE mount; mount(8) passes them back in a remount.
pub(super) const SHOWN_BY_KERNEL: &str = "user_id group_id max_read blksize";
