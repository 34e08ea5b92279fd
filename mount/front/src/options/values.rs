//! The forms of the values of mount options.
//!
//! Pure parsing; an error is the text that follows the option's name.

use std::time::Duration;

/// Maximum length of the source in mount(2), in bytes.
const SOURCE_MAX: usize = 4095;

/// Refuses a value if `wrong`.
pub(super) fn unless<T>(wrong: bool, value: T, why: &'static str) -> Result<T, &'static str> {
    if wrong { Err(why) } else { Ok(value) }
}

/// Refuses a name that the table of mounts cannot show.
pub(super) fn check_source(name: &str) -> Result<&str, &'static str> {
    match name {
        "" => Err("the name is empty"),
        _ if name.len() > SOURCE_MAX => Err("the name is longer than 4095 bytes"),
        _ if name.chars().any(char::is_control) => Err("the name has control characters"),
        _ => Ok(name),
    }
}

/// Parses a number of seconds, which may have a fraction.
pub(super) fn parse_seconds(text: &str) -> Result<Duration, &'static str> {
    let seconds = text.parse().ok();
    let duration = seconds.and_then(|s| Duration::try_from_secs_f64(s).ok());
    duration.ok_or("not a number of seconds")
}

/// Parses a number of seconds, or a time with units.
pub(super) fn parse_interval(text: &str) -> Result<Duration, &'static str> {
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

/// Parses a number from 1 to `most`.
pub(super) fn parse_count(text: &str, most: usize) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if (1..=most).contains(&number) => Ok(number),
        _ => Err(format!("not a number from 1 to {most}")),
    }
}
