//! Times from Python: nanoseconds since 1970 as an `int`.

use std::time::{Duration, SystemTime};

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

/// The time so many nanoseconds after (or before) 1970.
pub fn time_of(nanos: i128) -> PyResult<SystemTime> {
    let far = || PyOverflowError::new_err("the time is too far from 1970");
    let size = nanos.unsigned_abs();
    let secs = u64::try_from(size / 1_000_000_000).map_err(|_| far())?;
    let span = Duration::from_secs(secs) + Duration::from_nanos((size % 1_000_000_000) as u64);
    let epoch = SystemTime::UNIX_EPOCH;
    if nanos < 0 {
        epoch.checked_sub(span)
    } else {
        epoch.checked_add(span)
    }
    .ok_or_else(far)
}
