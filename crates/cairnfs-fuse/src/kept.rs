//! The mount options `backup-keep-...`: which moments of a backup stay, as `cairnfs backup prune` has it.
//!
//! Pure parsing; what the rules mean is decided by the backup.

use std::time::Duration;

/// What each of the words begins with.
const PREFIX: &str = "backup-keep-";

/// Rules for moments; without any the backup decides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BackupKeep {
    /// All stay.
    pub all: bool,
    /// The last ones.
    pub last: u32,
    /// The last one of each of so many hours.
    pub hourly: u32,
    /// Of days.
    pub daily: u32,
    /// Of weeks.
    pub weekly: u32,
    /// Of months.
    pub monthly: u32,
    /// Of years.
    pub yearly: u32,
    /// All within this time before the newest one.
    pub within: Option<Duration>,
}

impl BackupKeep {
    /// Whether a word with a value may be one of these.
    pub(crate) fn has(key: &str) -> bool {
        key.starts_with(PREFIX)
    }

    /// Whether there are rules.
    pub fn has_rules(&self) -> bool {
        let all = self.all;
        *self
            != Self {
                all,
                ..Self::default()
            }
    }

    /// Applies one word.
    pub(crate) fn apply(&mut self, key: &str, value: &str) -> Result<(), &'static str> {
        let rule = match key.strip_prefix(PREFIX).unwrap_or_default() {
            "last" => &mut self.last,
            "hourly" => &mut self.hourly,
            "daily" => &mut self.daily,
            "weekly" => &mut self.weekly,
            "monthly" => &mut self.monthly,
            "yearly" => &mut self.yearly,
            "within" => {
                let within = cairnfs::refs::duration_named(value);
                self.within = Some(within.map_err(|_| "not a time such as 12h or 7d")?);
                return Ok(());
            }
            "all" => return Err("it has no value"),
            _ => {
                return Err(
                    "the rules are last, hourly, daily, weekly, monthly, yearly and within",
                );
            }
        };
        match value.parse() {
            Ok(count) if count > 0 => *rule = count,
            _ => return Err("not a number from 1 on"),
        }
        Ok(())
    }

    /// Refuses rules beside the word that makes them void.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self.all && self.has_rules() {
            true => Err(
                "backup-keep-all keeps all moments, and the other backup-keep- options do not: leave one \
                 of them out"
                    .into(),
            ),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_has_its_word() {
        let mut keep = BackupKeep::default();
        assert!(!keep.has_rules());
        let words = ["last", "hourly", "daily", "weekly", "monthly", "yearly"];
        for (word, count) in words.into_iter().zip(1..) {
            let count: u32 = count;
            keep.apply(&format!("backup-keep-{word}"), &count.to_string())
                .unwrap();
        }
        keep.apply("backup-keep-within", "2d").unwrap();
        let counts = [
            keep.last,
            keep.hourly,
            keep.daily,
            keep.weekly,
            keep.monthly,
            keep.yearly,
        ];
        assert_eq!(counts, [1, 2, 3, 4, 5, 6]);
        assert_eq!(keep.within, Some(Duration::from_secs(2 * 86_400)));
        assert_eq!(keep.check(), Ok(()));
        keep.all = true;
        assert!(keep.check().unwrap_err().contains("backup-keep-all"));
    }
}
