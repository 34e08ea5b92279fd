//! Times as programs read them.

use cairnfs::Time;

/// A time for programs: RFC 3339 in UTC with nanoseconds, or `@` and seconds since the epoch if
/// the year does not have four digits.
pub fn utc_time(time: Time) -> String {
    match jiff::Timestamp::new(time.secs, time.nanos.try_into().unwrap_or(0)) {
        Ok(stamp) => stamp.strftime("%Y-%m-%dT%H:%M:%S.%9fZ").to_string(),
        Err(_) => format!("@{}.{:09}", time.secs, time.nanos),
    }
}
