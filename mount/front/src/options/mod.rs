//! Mount options: the words after `-o`, and their meaning for kernel and engine.
//!
//! [`table`] has all of them, and what each one means. Here: how a list of words is read, and what
//! the words mean together. Later words override earlier ones, as with mount(8).

mod shown;
mod table;
mod values;

use std::time::Duration;

pub use shown::{document, help};
use table::{BACKUP_KEEP, IGNORED, Meaning, SHOWN_BY_KERNEL, TABLE, User};
pub use table::{MountOptions, WriteMode};
pub use values::parse_size;

/// Default of [`MountOptions::interval`].
const INTERVAL: Duration = Duration::from_secs(5);

/// Default of [`MountOptions::backup_wait`]: with [`MountOptions::grace`] less than systemd's 90
/// seconds.
const BACKUP_WAIT: Duration = Duration::from_secs(20);

/// Default of [`MountOptions::backup_grace`].
const BACKUP_GRACE: Duration = Duration::from_secs(3600);

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
        let (key, value) = match word.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (word, None),
        };
        for (name, meaning) in words() {
            match (meaning, value) {
                (Meaning::Flag(set), None) if name == key => {
                    set(self);
                    return Ok(());
                }
                (Meaning::Value(set), Some(value)) if name == key => {
                    return set(self, value)
                        .map_err(|what| format!("mount option {word:?}: {what}"));
                }
                (Meaning::Refused(why), None) if name == key => return Err((*why).into()),
                _ => {}
            }
        }
        let listed = |list: &str| list.split(' ').any(|name| name == key || name == word);
        let own = word.starts_with("x-") || word.starts_with("X-");
        if self.sloppy || own || listed(IGNORED) || listed(SHOWN_BY_KERNEL) {
            Ok(())
        } else {
            Err(unknown(word))
        }
    }

    /// Whether a word is for the daemon, which keeps its setting in a remount.
    pub fn is_kept_by_remount(word: &str) -> bool {
        let key = word.split('=').next().unwrap_or_default();
        let kept = |user| matches!(user, User::Front | User::Daemon | User::Engine);
        let mut rows = TABLE.iter().filter(|row| kept(row.user));
        rows.any(|row| row.words.iter().any(|(name, _)| *name == key))
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

/// All words of the table, with their meanings.
fn words() -> impl Iterator<Item = (&'static str, &'static Meaning)> {
    let words = TABLE.iter().flat_map(|row| row.words);
    words.map(|(name, meaning)| (*name, meaning))
}

/// What is said of a word that is not known.
fn unknown(word: &str) -> String {
    let known = words().filter(|(_, m)| !matches!(m, Meaning::Refused(_)));
    let mut known: Vec<&str> = known.map(|(name, _)| name).collect();
    known.dedup();
    known.extend(IGNORED.split(' '));
    let known = known.join(", ");
    format!("unknown mount option {word:?}; the known ones are {known} and x-NAME")
}

#[cfg(test)]
mod tests {
    use cairnfs_transport::Transport;

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
