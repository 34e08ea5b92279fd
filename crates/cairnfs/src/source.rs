//! Where times and random numbers come from: the system, or a seed.
//!
//! Floor 2: uses errors and types. With a seed both are functions of it and of how often they were
//! asked for, so that the same calls put the same bytes on the device.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::error::{Error, Result};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::types::Time;

/// Second at which the clock of a seeded source begins: in March 2026.
const SEEDED_EPOCH: i64 = 1_772_600_000;

/// A source of times and random numbers.
#[derive(Debug)]
pub enum Source {
    /// The system's.
    System,
    /// A function of the seed.
    Seeded {
        /// The seed.
        seed: u64,
        /// How often it was asked; each time the clock advances by a microsecond.
        asked: AtomicU64,
    },
}

impl Source {
    /// Of the system, or of a seed.
    pub fn new(seed: Option<u64>) -> Self {
        match seed {
            None => Source::System,
            Some(seed) => Source::Seeded {
                seed,
                asked: AtomicU64::new(0),
            },
        }
    }

    /// The current time.
    pub fn now(&self) -> Time {
        match self {
            Source::System => Time::now(),
            Source::Seeded { asked, .. } => {
                let micros = asked.fetch_add(1, Ordering::Relaxed);
                Time {
                    secs: SEEDED_EPOCH + (micros / 1_000_000) as i64,
                    nanos: (micros % 1_000_000) as u32 * 1000,
                }
            }
        }
    }

    /// A random number.
    ///
    /// # Errors
    /// The system gives none.
    pub fn random(&self) -> Result<u64> {
        match self {
            Source::System => {
                let mut bytes = [0; 8];
                getrandom::fill(&mut bytes)
                    .map_err(|_| Error::Unsupported("the system gives no random numbers"))?;
                Ok(u64::from_le_bytes(bytes))
            }
            Source::Seeded { seed, asked } => {
                let nth = asked.fetch_add(1, Ordering::Relaxed);
                Ok(xxh3_64_with_seed(&nth.to_le_bytes(), *seed))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_again() {
        let draw = |seed| {
            let source = Source::new(Some(seed));
            (
                source.random().unwrap(),
                source.now(),
                source.random().unwrap(),
            )
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1).0, draw(2).0);
        assert_ne!(draw(1).0, draw(1).2);
    }

    #[test]
    fn the_clock_of_a_seed_advances() {
        let source = Source::new(Some(7));
        let first = source.now();
        assert!(source.now() > first);
    }
}
