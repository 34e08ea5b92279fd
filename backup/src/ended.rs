//! How work that waits for a store learns that it shall end.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// How often work that waits looks whether it is still wanted.
pub(crate) const GLANCE: Duration = Duration::from_millis(100);

/// Says whether answers are not waited for any longer; by default they are.
#[derive(Clone, Default)]
pub struct Ended(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl Ended {
    /// Asks this function, often and in any thread.
    pub fn when(ended: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(ended)))
    }

    /// Whether it is so now.
    pub(crate) fn now(&self) -> bool {
        self.0.as_ref().is_some_and(|ended| ended())
    }

    /// Sleeps, but not much longer than until it is so.
    pub(crate) fn pause(&self, time: Duration) {
        let until = Instant::now() + time;
        while let Some(left) = until.checked_duration_since(Instant::now())
            && !left.is_zero()
            && !self.now()
        {
            thread::sleep(left.min(GLANCE));
        }
    }

    /// Has another thread do what may wait for a file system that does not answer; it is left behind
    /// then.
    ///
    /// # Errors
    /// [`Error::Interrupted`]; there is no thread left.
    pub fn wait_for<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let (done, result) = channel();
        let work = move || {
            // Who waited for it may have gone.
            let _ = done.send(work());
        };
        let begun = thread::Builder::new().name("store".into()).spawn(work);
        begun.map_err(Error::host("threads"))?;
        loop {
            match result.recv_timeout(GLANCE) {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Timeout) if !self.now() => {}
                Err(_) => return Err(Error::Interrupted),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_answer_is_left_behind() {
        let (_held, answer) = channel::<()>();
        let ended = Ended::when(|| true);
        let left = ended.wait_for(move || answer.recv());
        assert!(matches!(left, Err(Error::Interrupted)));
        assert_eq!(Ended::default().wait_for(|| 7).unwrap(), 7);
        // Returns although the time is long.
        ended.pause(Duration::from_secs(1 << 40));
    }
}
