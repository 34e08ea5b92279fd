//! Requests of a store that have no answer yet, and since when.
//!
//! A request that is repeated is one. Uses nothing of the crate.

use std::collections::BTreeMap;
use std::time::Instant;

use parking_lot::Mutex;

/// The oldest of the requests that have no answer yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// What it is about, such as `store heads/7`.
    pub what: String,
    /// When it was first made.
    pub since: Instant,
    /// How many requests have no answer.
    pub requests: u64,
}

/// The requests of one store.
#[derive(Default)]
pub(crate) struct InFlight(Mutex<Table>);

#[derive(Default)]
struct Table {
    last: u64,
    requests: BTreeMap<u64, (String, Instant)>,
}

impl InFlight {
    /// A request begins; it ends when the result is dropped.
    pub fn begin(&self, what: &str, name: &str) -> Request<'_> {
        let mut table = self.0.lock();
        table.last += 1;
        let number = table.last;
        let what = what.strip_prefix("cannot ").unwrap_or(what);
        let request = (format!("{what} {name}"), Instant::now());
        table.requests.insert(number, request);
        Request { all: self, number }
    }

    /// The oldest one.
    pub fn oldest(&self) -> Option<Waiting> {
        let table = self.0.lock();
        let (what, since) = table.requests.values().next()?;
        Some(Waiting {
            what: what.clone(),
            since: *since,
            requests: table.requests.len() as u64,
        })
    }
}

/// A request that goes on.
pub(crate) struct Request<'a> {
    all: &'a InFlight,
    number: u64,
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        self.all.0.lock().requests.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_request_without_an_answer_is_told() {
        let all = InFlight::default();
        assert_eq!(all.oldest(), None);
        let first = all.begin("cannot store", "heads/1");
        let second = all.begin("cannot read", "layers/2");
        let told = all.oldest().unwrap();
        assert_eq!((told.what.as_str(), told.requests), ("store heads/1", 2));
        drop(first);
        let told = all.oldest().unwrap();
        assert_eq!((told.what.as_str(), told.requests), ("read layers/2", 1));
        drop(second);
        assert_eq!(all.oldest(), None);
    }
}
