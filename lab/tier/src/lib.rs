//! How much a test tries. There are two tiers: the short one, which `cargo test` runs, and the deep
//! one, with `CAIRNFS_DEEP=1`, which `scripts/deep` runs. A test asserts the same in both; only the
//! size of its input differs, and it takes that size from here.

use std::str::FromStr;

/// Whether tests run in the deep tier.
#[must_use]
pub fn deep() -> bool {
    std::env::var_os("CAIRNFS_DEEP").is_some_and(|v| v == "1")
}

/// The size of a test's input in this tier.
#[must_use]
pub fn size<T>(short: T, deep: T) -> T {
    if self::deep() { deep } else { short }
}

/// As [`size`], unless the environment variable `name` has another number. A number that cannot be
/// read ends the test: the tier's own would hide the mistake.
#[must_use]
#[track_caller]
#[expect(clippy::panic, reason = "a test fails by panicking")]
pub fn size_from<T: FromStr>(name: &str, short: T, deep: T) -> T {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => size(short, deep),
    }
}
