//! Streams: round trips of random trees, damage, and what a hostile stream may ask for.

mod damage;
mod hostile;
mod round_trip;
mod target;
