//! Requests that collect until a leader takes them all. Each carries the means to answer it, so no
//! thread waits for an answer.
//!
//! The number of leaders is limited: it bounds the threads that wait, however many requests are in
//! flight. A leader serves batch after batch until no request is left.

use crate::sync::Mutex;

/// A queue of requests, served in batches.
pub struct BatchQueue<T> {
    state: Mutex<State<T>>,
    most_leaders: usize,
}

struct State<T> {
    requests: Vec<T>,
    leaders: usize,
}

impl<T> BatchQueue<T> {
    /// An empty queue that at most `most_leaders` threads serve at once.
    pub fn new(most_leaders: usize) -> Self {
        Self {
            state: Mutex::new(State {
                requests: Vec::new(),
                leaders: 0,
            }),
            most_leaders,
        }
    }

    /// Adds a request. Returns whether the caller has become a leader: then it must have
    /// [`Self::serve`] called, by any thread, until that returns true.
    #[must_use = "no other thread serves the request"]
    pub fn push(&self, request: T) -> bool {
        let mut state = self.state.lock();
        state.requests.push(request);
        let leads = state.leaders < self.most_leaders;
        state.leaders += usize::from(leads);
        leads
    }

    /// Serves all requests in the queue, as a leader. Returns true if none is left then: the caller
    /// does not lead any more. If `serve` panics, it does not lead any more either, and what is
    /// left is served by another leader or with the next request.
    pub fn serve(&self, serve: impl FnOnce(Vec<T>)) -> bool {
        let mut state = self.state.lock();
        assert!(
            (1..=self.most_leaders).contains(&state.leaders),
            "group invariant 4: a leader serves"
        );
        if !state.requests.is_empty() {
            let requests = std::mem::take(&mut state.requests);
            drop(state);
            let leads = Leads(self);
            serve(requests);
            std::mem::forget(leads);
            state = self.state.lock();
        }
        let over = state.requests.is_empty();
        state.leaders -= usize::from(over);
        over
    }

    /// Number of requests that no leader has taken.
    pub fn waiting(&self) -> usize {
        self.state.lock().requests.len()
    }
}

/// A leader that serves; dropped in a panic only.
struct Leads<'a, T>(&'a BatchQueue<T>);

impl<T> Drop for Leads<'_, T> {
    fn drop(&mut self) {
        self.0.state.lock().leaders -= 1;
    }
}
