//! Placeholder paragraph to be replaced by the crate.
