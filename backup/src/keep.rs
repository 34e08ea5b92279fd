//! Which moments a prune keeps: rules as restic has them, and the thinning of the moments that a mount
//! stores.
//!
//! The newest moment is always kept. Times are those of the machine that had the volume, in a given time
//! zone.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::format::head::Moment;

/// Rules; a moment is kept if one of them keeps it. Without any all are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keep {
    /// The last ones.
    pub last: u32,
    /// The last one of each of the last minutes that have one.
    pub minutely: u32,
    /// The same of hours.
    pub hourly: u32,
    /// The same of days.
    pub daily: u32,
    /// Of weeks, which begin on Mondays.
    pub weekly: u32,
    /// Of months.
    pub monthly: u32,
    /// Of years.
    pub yearly: u32,
    /// All that are not older than the newest one by more than this.
    pub within: Option<Duration>,
}

/// How many moments thinning leaves in any case: the last that were stored.
pub const DENSE: usize = 1000;

/// Which moments stay in a backup that a mount writes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Rules {
    /// The last [`DENSE`], whatever their clock says, less and less of what is older, and all that
    /// somebody has asked for.
    #[default]
    Thin,
    /// All.
    All,
    /// Those that these rules keep.
    Keep(Keep),
}

impl Rules {
    /// Adds the rule of a word such as `daily=7`, `within=2d` or `all`. Of two words about the same the
    /// later one counts.
    ///
    /// # Errors
    /// What is wrong with the word, or that `all` and another rule exclude each other.
    pub fn add(&mut self, word: &str) -> Result<(), &'static str> {
        let mut keep = match (&*self, word) {
            (Self::All | Self::Thin, "all") => {
                *self = Self::All;
                return Ok(());
            }
            (Self::All, _) | (Self::Keep(_), "all") => {
                return Err("all keeps all moments, and other rules do not: leave one of them out");
            }
            (Self::Keep(keep), _) => keep.clone(),
            (Self::Thin, _) => Keep::default(),
        };
        keep.add(word)?;
        *self = Self::Keep(keep);
        Ok(())
    }

    /// The numbers of the moments that stay.
    pub fn kept(&self, moments: &[Moment], zone: &TimeZone) -> BTreeSet<u64> {
        match self {
            Self::All => Keep::default().kept(moments, zone),
            Self::Keep(keep) => keep.kept(moments, zone),
            Self::Thin => {
                let mut kept = Keep::thinned().kept(moments, zone);
                let asked = moments.iter().filter(|moment| !moment.automatic);
                let last = moments.iter().rev().take(DENSE);
                kept.extend(asked.chain(last).map(|moment| moment.number));
                kept
            }
        }
    }
}

/// A period: equal for moments of the same one.
type Period = (i16, i16, i16);
/// In which period a moment is.
type PeriodOf = fn(&Moment, &TimeZone) -> Period;

impl Keep {
    /// What thinning leaves besides the last ones: less the older it is, and one of each day for ever. It
    /// counts periods that have moments, not ages, so that a clock that jumps takes no period's last one.
    fn thinned() -> Self {
        Self {
            minutely: 24 * 60,
            hourly: 14 * 24,
            daily: u32::MAX,
            ..Self::default()
        }
    }

    fn add(&mut self, word: &str) -> Result<(), &'static str> {
        let (rule, value) = word.split_once('=').unwrap_or((word, ""));
        let count = match rule {
            "last" => &mut self.last,
            "hourly" => &mut self.hourly,
            "daily" => &mut self.daily,
            "weekly" => &mut self.weekly,
            "monthly" => &mut self.monthly,
            "yearly" => &mut self.yearly,
            "within" => {
                let within = cairnfs_core::refs::duration_named(value);
                self.within = Some(within.map_err(|_| "not a time such as 12h or 7d")?);
                return Ok(());
            }
            "all" => return Err("all has no value"),
            _ => {
                return Err(
                    "the rules are all, last, hourly, daily, weekly, monthly, yearly and within",
                );
            }
        };
        *count = match value.parse() {
            Ok(number) if number > 0 => number,
            _ => return Err("not a number from 1 on"),
        };
        Ok(())
    }

    /// Whether there is no rule.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The numbers of the moments that are kept.
    pub fn kept(&self, moments: &[Moment], zone: &TimeZone) -> BTreeSet<u64> {
        if self.is_empty() {
            return moments.iter().map(|moment| moment.number).collect();
        }
        let mut newest: Vec<&Moment> = moments.iter().collect();
        newest.sort_by_key(|m| std::cmp::Reverse((m.seconds, m.nanoseconds, m.number)));
        let mut kept: BTreeSet<u64> = moments.last().map(|m| m.number).into_iter().collect();
        kept.extend(newest.iter().take(self.last as usize).map(|m| m.number));
        let rules: [(u32, PeriodOf); 6] = [
            (self.minutely, minute),
            (self.hourly, hour),
            (self.daily, day),
            (self.weekly, week),
            (self.monthly, month),
            (self.yearly, year),
        ];
        for (count, period) in rules {
            let mut periods: Vec<Period> = Vec::new();
            for moment in &newest {
                let of = period(moment, zone);
                if periods.last() != Some(&of) {
                    if periods.len() == count as usize {
                        break;
                    }
                    periods.push(of);
                    kept.insert(moment.number);
                }
            }
        }
        if let (Some(within), Some(first)) = (self.within, newest.first()) {
            let limit = first.time().checked_sub(within);
            let young = |moment: &&&Moment| limit.is_none_or(|limit| moment.time() >= limit);
            kept.extend(newest.iter().filter(young).map(|moment| moment.number));
        }
        kept
    }
}

fn local(moment: &Moment, zone: &TimeZone) -> jiff::civil::DateTime {
    let time = Timestamp::from_second(moment.seconds).unwrap_or_default();
    zone.to_datetime(time)
}

fn hour(moment: &Moment, zone: &TimeZone) -> Period {
    let time = local(moment, zone);
    (time.year(), time.day_of_year(), time.hour().into())
}

fn minute(moment: &Moment, zone: &TimeZone) -> Period {
    let time = local(moment, zone);
    let of_day = i16::from(time.hour()) * 60 + i16::from(time.minute());
    (time.year(), time.day_of_year(), of_day)
}

fn day(moment: &Moment, zone: &TimeZone) -> Period {
    let time = local(moment, zone);
    (time.year(), time.day_of_year(), 0)
}

fn week(moment: &Moment, zone: &TimeZone) -> Period {
    let date: Date = local(moment, zone).date();
    let week = date.iso_week_date();
    (week.year(), i16::from(week.week()), 0)
}

fn month(moment: &Moment, zone: &TimeZone) -> Period {
    let time = local(moment, zone);
    (time.year(), i16::from(time.month()), 0)
}

fn year(moment: &Moment, zone: &TimeZone) -> Period {
    (local(moment, zone).year(), 0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A moment each six hours, the first at midnight of 2026-01-01.
    fn moments(count: u64) -> Vec<Moment> {
        let moment = |number| Moment {
            number,
            checkpoint: number.to_string(),
            seconds: 1_767_225_600 + number as i64 * 6 * 3600,
            nanoseconds: 0,
            blocks: 0,
            live: 0,
            layers: Vec::new(),
            automatic: true,
        };
        (0..count).map(moment).collect()
    }

    fn kept(rules: &Keep, count: u64) -> Vec<u64> {
        let kept = rules.kept(&moments(count), &TimeZone::UTC);
        kept.into_iter().collect()
    }

    #[test]
    fn each_rule_has_its_word() {
        let named = |words: &[&str]| {
            let mut rules = Rules::default();
            words.iter().try_for_each(|word| rules.add(word))?;
            Ok::<Rules, &str>(rules)
        };
        let all = [
            "last=1",
            "hourly=2",
            "daily=3",
            "weekly=4",
            "monthly=5",
            "yearly=9",
            "yearly=6",
            "within=2d",
        ];
        let keep = Keep {
            last: 1,
            minutely: 0,
            hourly: 2,
            daily: 3,
            weekly: 4,
            monthly: 5,
            yearly: 6,
            within: Some(Duration::from_secs(2 * 86_400)),
        };
        assert_eq!(named(&all), Ok(Rules::Keep(keep)));
        assert_eq!(named(&["all", "all"]), Ok(Rules::All));
        for (words, says) in [
            (["all", "last=2"], "leave one of them out"),
            (["last=2", "all"], "leave one of them out"),
            (["last=2", "all=1"], "no value"),
            (["last=2", "daily"], "a number from 1"),
            (["last=2", "daily=0"], "a number from 1"),
            (["last=2", "within="], "not a time"),
            (["last=2", "minutely=5"], "the rules are"),
        ] {
            let text = named(&words).unwrap_err();
            assert!(text.contains(says), "{words:?}: {text}");
        }
    }

    #[test]
    fn last_ones_and_the_last_of_each_period_are_kept() {
        let rules = |change: fn(&mut Keep)| {
            let mut rules = Keep::default();
            change(&mut rules);
            rules
        };
        assert_eq!(kept(&Keep::default(), 3), [0, 1, 2]);
        assert_eq!(kept(&rules(|r| r.last = 2), 10), [8, 9]);
        assert_eq!(kept(&rules(|r| r.hourly = 2), 10), [8, 9]);
        assert_eq!(kept(&rules(|r| r.daily = 2), 10), [7, 9]);
        // 2026-01-01 is a Thursday: moment 16 is the first one of Monday the 5th.
        assert_eq!(kept(&rules(|r| r.weekly = 5), 20), [15, 19]);
        assert_eq!(kept(&rules(|r| r.monthly = 5), 130), [123, 129]);
        assert_eq!(kept(&rules(|r| r.yearly = 5), 130), [129]);
        let day = rules(|r| r.within = Some(Duration::from_secs(86_400)));
        assert_eq!(kept(&day, 10), [5, 6, 7, 8, 9]);
    }

    /// A moment each five seconds for twenty days, as of a mount that always changes.
    #[test]
    fn thinning_keeps_new_moments_dense_and_a_limited_number_of_all() {
        let mut all = moments(20 * 17_280);
        let first = all[0].seconds;
        for moment in &mut all {
            moment.seconds = first + moment.number as i64 * 5;
        }
        let asked_for = 5;
        all[asked_for].automatic = false;
        let kept = Rules::Thin.kept(&all, &TimeZone::UTC);
        let newest = all.len() as u64 - 1;
        assert!((newest - 999..=newest).all(|number| kept.contains(&number)));
        let (minute, hour, day) = (12, 720, 17_280);
        let age = |number: u64| newest - number;
        // Between the newest ones there is no longer gap than the rules leave.
        let kept: Vec<u64> = kept.into_iter().collect();
        assert_eq!(kept.first(), Some(&(asked_for as u64)));
        for pair in kept.windows(2).skip(1) {
            let gap = pair[1] - pair[0];
            let most = match age(pair[0]) {
                0..1000 => 1,
                age if age < day => minute,
                age if age < 13 * day => hour,
                _ => day,
            };
            assert!(gap <= most, "{pair:?}");
        }
        assert!(kept.len() < 1000 + 1440 + 336 + 22, "{}", kept.len());
        assert_eq!(Rules::All.kept(&all, &TimeZone::UTC).len(), all.len());
    }

    #[test]
    fn thinning_takes_no_new_moment_whatever_the_clock_says() {
        let mut jumped = moments(3000);
        for (at, moment) in jumped.iter_mut().enumerate() {
            moment.seconds = match at {
                500..1900 => 4_000_000_000,
                _ => 1_767_225_600 + at as i64,
            };
        }
        let kept = Rules::Thin.kept(&jumped, &TimeZone::UTC);
        assert!((2000..3000).all(|number| kept.contains(&number)));
    }

    #[test]
    fn newest_moment_stays_whatever_the_clock_says() {
        let mut jumped = moments(4);
        jumped[3].seconds = 0;
        let rules = Keep {
            last: 1,
            ..Keep::default()
        };
        let kept = rules.kept(&jumped, &TimeZone::UTC);
        assert_eq!(kept.into_iter().collect::<Vec<_>>(), [2, 3]);
    }
}
