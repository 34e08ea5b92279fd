//! Points in time, as users write them.
//!
//! A clock time is local time: `10:30` is the last time when clocks here showed 10:30, today or
//! yesterday. A date alone is the end of that day, and a time with seconds the end of that second, as a
//! list that shows it means. `-5m` counts back from now.

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

use cairnfs_disk::error::{Error, Result};
use cairnfs_disk::types::Time;

/// A local time could mean another state than the caller has in mind.
const UNKNOWN_ZONE: &str = "the time zone is not known here: set TZ to one such as Europe/Berlin, or \
                            give the time as -5m or 2026-01-31T10:30:00Z";

const LAST_NANOSECOND: u32 = 999_999_999;

/// Seconds of the units of a time that counts back.
const UNITS: [(char, i64); 5] = [
    ('s', 1),
    ('m', 60),
    ('h', 3600),
    ('d', 86_400),
    ('w', 604_800),
];

/// The time that `text` names; `None` if it names none.
///
/// # Errors
/// [`Error::Invalid`] for a local time in an unknown zone.
pub(super) fn parse(text: &str, now: Time, zone: &TimeZone) -> Result<Option<Time>> {
    if let Some(ago) = text.strip_prefix('-') {
        let secs = seconds(ago).and_then(|ago| now.secs.checked_sub(ago));
        return Ok(secs.map(|secs| Time { secs, ..now }));
    }
    let end = |time: Time| {
        if has_seconds(text) {
            Time {
                nanos: LAST_NANOSECOND,
                ..time
            }
        } else {
            time
        }
    };
    if let Ok(absolute) = text.parse::<Timestamp>() {
        return Ok(Some(end(time_of(absolute))));
    }
    match local(text, now, zone) {
        Some(_) if zone.is_unknown() => Err(Error::Invalid(UNKNOWN_ZONE)),
        found => Ok(found.map(time_of).map(end)),
    }
}

/// Whether a time ends with whole seconds, apart from its zone.
fn has_seconds(text: &str) -> bool {
    let clock = text.rsplit(['T', 't', ' ']).next().unwrap_or_default();
    let clock = clock
        .split(['Z', 'z', '+', '-', '['])
        .next()
        .unwrap_or_default();
    clock.matches(':').count() == 2 && !clock.contains(['.', ','])
}

/// The sum of numbers with units, such as `1h30m`.
pub(super) fn seconds(text: &str) -> Option<i64> {
    let mut rest = text;
    let mut sum = 0i64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, unit) = rest.split_at_checked(digits)?;
        let mut letters = unit.chars();
        let letter = letters.next()?;
        let (_, each) = UNITS.iter().find(|(name, _)| *name == letter)?;
        sum = sum.checked_add(number.parse::<i64>().ok()?.checked_mul(*each)?)?;
        rest = letters.as_str();
    }
    (!text.is_empty()).then_some(sum)
}

/// The time of a clock, a date or both in `zone`.
fn local(text: &str, now: Time, zone: &TimeZone) -> Option<Timestamp> {
    if let Some(clock) = clock(text) {
        let now = timestamp(now)?;
        let today = now.to_zoned(zone.clone()).date();
        let at = |date: Date| zone.to_timestamp(date.to_datetime(clock)).ok();
        return at(today)
            .filter(|then| *then <= now)
            .or_else(|| at(today.yesterday().ok()?));
    }
    if let (10, Ok(date)) = (text.len(), text.parse::<Date>()) {
        let midnight = date
            .tomorrow()
            .ok()?
            .to_datetime(jiff::civil::Time::midnight());
        return zone
            .to_timestamp(midnight)
            .ok()?
            .checked_sub(1.nanosecond())
            .ok();
    }
    let moment = text.parse::<DateTime>().ok()?;
    zone.to_timestamp(moment).ok()
}

/// A time of day with hours and minutes.
fn clock(text: &str) -> Option<jiff::civil::Time> {
    let digits = |c: char| c.is_ascii_digit() || c == ':';
    let plain = text.contains(':') && text.chars().all(digits);
    plain.then(|| text.parse().ok())?
}

fn timestamp(time: Time) -> Option<Timestamp> {
    Timestamp::new(time.secs, time.nanos.try_into().ok()?).ok()
}

fn time_of(stamp: Timestamp) -> Time {
    let time = std::time::SystemTime::from(stamp);
    time.into()
}

/// A time in UTC as it is in names: without separators, in seconds.
pub fn stamp(time: Time) -> String {
    match timestamp(time) {
        Some(stamp) => stamp.strftime("%Y%m%dT%H%M%SZ").to_string(),
        None => time.secs.to_string(),
    }
}

/// A time for messages.
pub(super) fn shown(time: Time, zone: &TimeZone) -> String {
    match timestamp(time) {
        Some(stamp) => {
            let zoned = stamp.to_zoned(zone.clone());
            zoned.strftime("%Y-%m-%d %H:%M:%S").to_string()
        }
        None => format!("@{}", time.secs),
    }
}
