//! Mount options: the words after `-o`, and their meaning for kernel and engine.
//!
//! Pure parsing; an unknown word is an error that names it. Later words override earlier ones, as
//! with mount(8).

mod table;

use std::ffi::OsString;
use std::time::Duration;

use cairnfs_transport::Transport;

use self::table::{DAEMON_WORDS, is_without_effect, unknown};

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
    /// How long open files are still served after a signal ends the mount.
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
            keep: KEEP,
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
            grace: GRACE,
            discard: true,
            write: WriteMode::default(),
            source: None,
            access_times: false,
            sloppy: false,
        }
    }
}

/// Default of [`MountOptions::grace`]: less than the 90 seconds after which systemd sends SIGKILL.
const GRACE: Duration = Duration::from_secs(60);

/// Default of [`MountOptions::interval`].
const INTERVAL: Duration = Duration::from_secs(5);

/// Default of [`MountOptions::backup_wait`]: with [`GRACE`] less than systemd's 90 seconds.
const BACKUP_WAIT: Duration = Duration::from_secs(20);

/// Default of [`MountOptions::backup_grace`].
const BACKUP_GRACE: Duration = Duration::from_secs(3600);

/// Default of [`MountOptions::backup_sync`] if it is given without a time.
const BACKUP_SYNC: Duration = Duration::from_secs(60);

/// What the words about moments that stay begin with.
const BACKUP_KEEP: &str = "backup-keep-";

/// Default of [`MountOptions::keep`].
const KEEP: usize = 24;

/// Maximum of [`MountOptions::keep`].
const KEEP_MAX: usize = 10_000;

/// Minimum memory of the engine, in bytes.
const CACHE_MIN: u64 = 8 << 20;

/// Maximum number of event loops.
const THREADS_MAX: usize = 256;

impl MountOptions {
    /// Applies a comma-separated list of words.
    ///
    /// # Errors
    /// A text that names the word and the problem with it.
    pub fn apply(&mut self, list: &str) -> Result<(), String> {
        list.split(',')
            .map(str::trim)
            .filter(|word| !word.is_empty())
            .try_for_each(|word| self.apply_word(word))
    }

    /// Refuses combinations that exclude each other; to be called after all lists are applied.
    ///
    /// # Errors
    /// A text that names the missing word.
    pub fn check(&self) -> Result<(), String> {
        if !self.recovery && !self.read_only {
            return Err(
                "norecovery leaves the log as it is, so it needs ro: -o ro,norecovery".into(),
            );
        }
        // A remount gets the words of the mount, and changes none of these.
        if self.remount {
            Ok(())
        } else {
            self.check_backup()
        }
    }

    fn check_backup(&self) -> Result<(), String> {
        if self.backup.is_some() {
            return if self.read_only {
                Err(
                    "backup= stores what changes, and nothing does with ro: leave one of them out; \
                     `cairnfs backup VOLUME URL` stores the present state"
                        .into(),
                )
            } else {
                Ok(())
            };
        }
        let set = [
            ("interval", self.interval.is_some()),
            ("backup-wait", self.backup_wait.is_some()),
            ("backup-recipient", self.backup_recipient.is_some()),
            ("backup-grace", self.backup_grace.is_some()),
            ("backup-sync", self.backup_sync.is_some()),
            (BACKUP_KEEP, !self.backup_keep.is_empty()),
        ];
        match set.into_iter().find(|(_, is_set)| *is_set) {
            Some((word, _)) => Err(format!(
                "{word} is about the backup of a mount, and there is none: add backup=URL, or leave \
                 {word} out"
            )),
            None => Ok(()),
        }
    }

    /// How long after one moment of the backup the next one is stored.
    pub fn backup_interval(&self) -> Duration {
        self.interval.unwrap_or(INTERVAL)
    }

    /// How long the end of the last mount waits for a last moment of the backup.
    pub fn backup_patience(&self) -> Duration {
        self.backup_wait.unwrap_or(BACKUP_WAIT)
    }

    /// How long the contents of removed moments of the backup stay.
    pub fn backup_grace(&self) -> Duration {
        self.backup_grace.unwrap_or(BACKUP_GRACE)
    }

    fn apply_word(&mut self, word: &str) -> Result<(), String> {
        if let Some(rule) = word.strip_prefix(BACKUP_KEEP) {
            self.backup_keep.push(rule.to_owned());
            return Ok(());
        }
        if let Some((key, value)) = word.split_once('=') {
            return self.apply_value(word, key, value);
        }
        match word {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "allow_other" => self.allow_other = true,
            "allow_root" => return Err("allow_root is not supported: use allow_other".into()),
            "dev" => self.dev = true,
            "nodev" => self.dev = false,
            "suid" => self.suid = true,
            "nosuid" => self.suid = false,
            "exec" => self.exec = true,
            "noexec" => self.exec = false,
            "sync" => self.sync = true,
            "async" => self.sync = false,
            "remount" => self.remount = true,
            "btime" => self.birth_times = true,
            "nobtime" => self.birth_times = false,
            "backup-sync" => self.backup_sync = Some(BACKUP_SYNC),
            "norecovery" | "noload" => self.recovery = false,
            "discard" => self.discard = true,
            "nodiscard" => self.discard = false,
            "atime" | "relatime" | "strictatime" | "diratime" => self.access_times = true,
            "noatime" => self.access_times = false,
            "defaults" => {
                self.read_only = false;
                self.dev = true;
                self.suid = true;
                self.exec = true;
                self.sync = false;
            }
            _ if is_without_effect(word) || self.sloppy => {}
            _ => return Err(unknown(word)),
        }
        Ok(())
    }

    fn apply_value(&mut self, word: &str, key: &str, value: &str) -> Result<(), String> {
        let wrong = |what: &str| format!("mount option {word:?}: {what}");
        match key {
            "branch" if value.is_empty() => return Err(wrong("the name is empty")),
            "branch" => self.branch = Some(value.to_owned()),
            "cache" => {
                let bytes = parse_size(value).map_err(|e| wrong(&e))?;
                if bytes < CACHE_MIN {
                    return Err(wrong("less than 8M"));
                }
                self.cache = Some(usize::try_from(bytes).map_err(|_| wrong("too large"))?);
            }
            "durability" => {
                let interval = parse_seconds(value).map_err(wrong)?;
                self.durability = Some((!interval.is_zero()).then_some(interval));
            }
            "snapshots" => {
                let interval = parse_interval(value).map_err(wrong)?;
                self.snapshots = (!interval.is_zero()).then_some(interval);
            }
            "backup" if value.starts_with('/') || value.contains("://") => {
                self.backup = Some(value.to_owned());
            }
            "backup" => return Err(wrong("neither a URL nor a path that begins with /")),
            "interval" => {
                let interval = parse_interval(value).map_err(wrong)?;
                if interval.is_zero() {
                    return Err(wrong("at least 1s"));
                }
                self.interval = Some(interval);
            }
            "backup-wait" => self.backup_wait = Some(parse_seconds(value).map_err(wrong)?),
            "backup-recipient" if value.is_empty() => return Err(wrong("the recipient is empty")),
            "backup-recipient" => self.backup_recipient = Some(value.to_owned()),
            "backup-grace" => self.backup_grace = Some(parse_interval(value).map_err(wrong)?),
            "backup-sync" => {
                let limit = parse_seconds(value).map_err(wrong)?;
                if limit.is_zero() {
                    return Err(wrong("more than 0 seconds"));
                }
                self.backup_sync = Some(limit);
            }
            "keep" => match value.parse() {
                Ok(n @ 1..=KEEP_MAX) => self.keep = n,
                _ => return Err(wrong("not a number from 1 to 10000")),
            },
            "grace" => self.grace = parse_seconds(value).map_err(wrong)?,
            "threads" => match value.parse() {
                Ok(n @ 1..=THREADS_MAX) => self.threads = Some(n),
                _ => return Err(wrong("not a number from 1 to 256")),
            },
            "transport" => {
                self.transport = match value {
                    "auto" => Transport::Auto,
                    "dev" => Transport::Dev,
                    "ring" => Transport::Ring,
                    _ => return Err(wrong("neither auto, dev nor ring")),
                }
            }
            "write" => {
                self.write = match value {
                    "through" => WriteMode::Through,
                    "back" => WriteMode::Back,
                    _ => return Err(wrong("neither through nor back")),
                }
            }
            "fsname" => {
                check_source(value).map_err(wrong)?;
                self.source = Some(value.into());
            }
            "subtype" if value == "cairnfs" => {}
            "subtype" => return Err(wrong("the subtype is always cairnfs")),
            _ if is_without_effect(key) || is_without_effect(word) || self.sloppy => {}
            _ => return Err(unknown(word)),
        }
        Ok(())
    }

    /// Whether a word is for the daemon, which keeps its setting in a remount.
    pub fn is_kept_by_remount(word: &str) -> bool {
        let key = word.split('=').next().unwrap_or_default();
        DAEMON_WORDS.contains(&key)
    }

    /// Number of event loops: by default one per processor, from 2 to 16.
    pub fn event_loops(&self) -> usize {
        self.threads.unwrap_or_else(|| {
            std::thread::available_parallelism()
                .map_or(2, usize::from)
                .clamp(2, 16)
        })
    }
}

/// Maximum length of the source in mount(2), in bytes.
const SOURCE_MAX: usize = 4095;

fn check_source(name: &str) -> Result<(), &'static str> {
    match name {
        "" => Err("the name is empty"),
        _ if name.len() > SOURCE_MAX => Err("the name is longer than 4095 bytes"),
        _ if name.chars().any(char::is_control) => Err("the name has control characters"),
        _ => Ok(()),
    }
}

fn parse_seconds(text: &str) -> Result<Duration, &'static str> {
    let seconds = text.parse().ok();
    let duration = seconds.and_then(|s| Duration::try_from_secs_f64(s).ok());
    duration.ok_or("not a number of seconds")
}

/// Parses a number of seconds, or a time with units.
fn parse_interval(text: &str) -> Result<Duration, &'static str> {
    match text.parse() {
        Ok(seconds) => Ok(Duration::from_secs(seconds)),
        Err(_) => cairnfs_core::refs::duration_named(text)
            .map_err(|_| "not a time such as 30s, 5m, 1h30m or 1d"),
    }
}

/// Parses a number of bytes with an optional suffix K, M, G, T or P (powers of 1024; `KiB`, `kb`
/// and the like mean the same).
///
/// # Errors
/// A text that describes the expected form.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size: give bytes, or a number with K, M, G, T or P");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let suffix = text.get(digits.len()..).unwrap_or_default();
    let number: u64 = digits.trim().parse().map_err(|_| wrong())?;
    let shift = match suffix.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        "p" | "pb" | "pib" => 50,
        _ => return Err(wrong()),
    };
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Result<MountOptions, String> {
        let mut options = MountOptions::default();
        options.apply(list)?;
        Ok(options)
    }

    #[test]
    fn empty_list_keeps_defaults() {
        assert_eq!(parse("").unwrap(), MountOptions::default());
        assert_eq!(parse(",,").unwrap(), MountOptions::default());
    }

    #[test]
    fn fstab_words_are_accepted() {
        let list = "rw,auto,noauto,user,nofail,_netdev,relatime,noatime,x-systemd.automount,\
                    nostrictatime,nodiratime,dirsync,lazytime,users,owner,group,async,\
                    x-gvfs-name=Cairn,acl,user_xattr,errors=remount-ro,default_permissions,comment=hello,subtype=cairnfs";
        assert_eq!(parse(list).unwrap(), MountOptions::default());
        let all = parse("defaults").unwrap();
        assert!(all.dev && all.suid && all.exec && !all.read_only);
        let some = parse("defaults,nodev,nosuid,noexec,ro").unwrap();
        assert!(!some.dev && !some.suid && !some.exec && some.read_only);
    }

    #[test]
    fn both_words_for_no_recovery_are_kept_by_remount() {
        for word in ["norecovery", "noload"] {
            assert!(!parse(word).unwrap().recovery);
            assert!(MountOptions::is_kept_by_remount(word), "{word}");
        }
    }

    #[test]
    fn access_time_requests_are_recorded() {
        let asks = |list: &str| parse(list).unwrap().access_times;
        assert!(
            asks("relatime") && asks("noatime,strictatime") && asks("atime") && asks("diratime")
        );
        assert!(!asks("noatime") && !asks("relatime,noatime") && !asks("nodiratime,norelatime"));
        assert!(!asks("defaults"));
    }

    #[test]
    fn last_word_wins() {
        assert!(!parse("ro,rw").unwrap().read_only);
        assert!(parse("sync").unwrap().sync && !parse("sync,async").unwrap().sync);
        assert!(parse("discard").unwrap().discard);
        assert!(!parse("discard,nodiscard").unwrap().discard);
    }

    #[test]
    fn values_are_parsed() {
        let o = parse("cache=512M,durability=1.5,threads=3,fsname=my volume,allow_other").unwrap();
        assert_eq!(o.cache, Some(512 << 20));
        assert_eq!(o.durability, Some(Some(Duration::from_millis(1500))));
        assert_eq!(o.threads, Some(3));
        assert_eq!(o.event_loops(), 3);
        assert_eq!(o.source, Some("my volume".into()));
        assert!(o.allow_other && o.branch.is_none());
        assert_eq!(
            parse("branch=a,branch=b@c").unwrap().branch.as_deref(),
            Some("b@c")
        );
        assert_eq!(parse("durability=0").unwrap().durability, Some(None));
        let options = parse("snapshots=5m,keep=3").unwrap();
        assert_eq!(options.snapshots, Some(Duration::from_secs(300)));
        assert_eq!(options.keep, 3);
        for (text, seconds) in [("90", 90), ("1s", 1), ("2h", 7200), ("1d", 86_400)] {
            let options = parse(&format!("snapshots={text}")).unwrap();
            assert_eq!(options.snapshots, Some(Duration::from_secs(seconds)));
        }
        assert_eq!(parse("snapshots=5m,snapshots=0").unwrap().snapshots, None);
        assert_eq!(parse("transport=dev").unwrap().transport, Transport::Dev);
        let both = parse("transport=dev,transport=auto,btime").unwrap();
        assert_eq!(both.transport, Transport::Auto);
        assert!(both.birth_times && !parse("btime,nobtime").unwrap().birth_times);
        assert_eq!(
            parse("write=through,write=back").unwrap().write,
            WriteMode::Back
        );
        for (word, transport) in [
            ("auto", Transport::Auto),
            ("dev", Transport::Dev),
            ("ring", Transport::Ring),
        ] {
            let options = parse(&format!("transport={word}")).unwrap();
            assert_eq!(options.transport, transport);
        }
        assert_eq!(
            parse("grace=2.5").unwrap().grace,
            Duration::from_millis(2500)
        );
        assert_eq!(parse("grace=0").unwrap().grace, Duration::ZERO);
    }

    #[test]
    fn invalid_word_is_named_in_error() {
        for word in [
            "noatme",
            "cache=much",
            "durability=-1",
            "snapshots=",
            "snapshots=m",
            "snapshots=-5m",
            "snapshots=5 m",
            "snapshots=1x",
            "snapshots=99999999999999999d",
            "keep=0",
            "keep=10001",
            "durability=soon",
            "grace=long",
            "threads=0",
            "threads=257",
            "write=never",
            "transport=post",
            "colour=red",
            "subtype=other",
            "errors=panic",
            "errors=continue",
            "noacl",
            "nouser_xattr",
            "allow_root",
            "branch=",
            "fsname=",
            "fsname=a\nb",
            "subtype=",
            "backup=b",
            "interval=0",
            "backup-wait=-1",
            "backup-recipient=",
            "backup-grace=soon",
            "backup-sync=0",
        ] {
            let error = parse(&format!("rw,{word}")).unwrap_err();
            let key = word.split('=').next().unwrap();
            assert!(error.contains(key), "{error}");
        }
        let long = format!("fsname={}", "x".repeat(4096));
        assert!(parse(&long).unwrap_err().contains("4095 bytes"));
    }

    #[test]
    fn words_about_a_backup_need_one_that_can_be_stored() {
        let check = |list: &str| parse(list).unwrap().check();
        let options = parse("backup=/b,interval=2m,backup-wait=0,backup-recipient=age1x").unwrap();
        assert_eq!(options.check(), Ok(()));
        assert_eq!(options.backup_interval(), Duration::from_secs(120));
        assert_eq!(options.backup_patience(), Duration::ZERO);
        for word in [
            "interval=5s",
            "backup-wait=5",
            "backup-recipient=age1x",
            "backup-grace=1h",
            "backup-sync",
            "backup-keep-last=3",
            "backup-keep-all",
        ] {
            let text = check(word).unwrap_err();
            let (key, _) = word.split_once('=').unwrap_or((word, ""));
            let key = if key.starts_with("backup-keep-") {
                "backup-keep-"
            } else {
                key
            };
            assert!(
                text.starts_with(key) && text.contains("add backup=URL"),
                "{text}"
            );
        }
        let text = check("ro,backup=/b").unwrap_err();
        assert!(text.contains("cairnfs backup VOLUME URL"), "{text}");
        assert_eq!(check("remount,ro,backup=/b,interval=5s"), Ok(()));
    }

    #[test]
    fn unknown_word_error_lists_known_words() {
        let message = parse("noatme").unwrap_err();
        let (_, words) = message.split_once("the known ones are ").unwrap();
        let words: Vec<&str> = words.trim_end_matches(" and x-NAME").split(", ").collect();
        assert!(words.contains(&"noatime") && words.contains(&"durability"));
        for word in words {
            let example = match word {
                "backup" => "backup=/a",
                "cache" => "cache=8M",
                "interval" => "interval=1s",
                "backup-recipient" => "backup-recipient=age1",
                "durability" | "backup-grace" | "backup-wait" | "grace" | "keep" | "snapshots"
                | "threads" => &format!("{word}=1"),
                "branch" | "fsname" => &format!("{word}=a"),
                "subtype" => "subtype=cairnfs",
                "transport" => "transport=dev",
                "write" => "write=back",
                other => other,
            };
            parse(example).unwrap();
        }
    }

    #[test]
    fn sloppy_ignores_unknown_words_only() {
        let mut options = MountOptions {
            sloppy: true,
            ..MountOptions::default()
        };
        assert_eq!(options.apply("noatme,colour=red,ro"), Ok(()));
        assert!(options.read_only);
        assert!(options.apply("threads=0").is_err());
    }

    #[test]
    fn sizes_are_parsed_with_suffixes() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("64G"), Ok(64 << 30));
        assert_eq!(parse_size("64 GiB"), Ok(64 << 30));
        assert_eq!(parse_size("2tb"), Ok(2 << 40));
        for wrong in ["", "G", "-1", "1.5G", "12Q", "99999999999P"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
