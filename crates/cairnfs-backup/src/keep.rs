//! Which moments a prune keeps: rules as restic has them.
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
    /// The last one of each of the last hours that have one.
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

/// A period: equal for moments of the same one.
type Period = (i16, i16, i8);
/// In which period a moment is.
type PeriodOf = fn(&Moment, &TimeZone) -> Period;

impl Keep {
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
        let rules: [(u32, PeriodOf); 5] = [
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
    (time.year(), time.day_of_year(), time.hour())
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
        };
        (0..count).map(moment).collect()
    }

    fn kept(rules: &Keep, count: u64) -> Vec<u64> {
        let kept = rules.kept(&moments(count), &TimeZone::UTC);
        kept.into_iter().collect()
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
