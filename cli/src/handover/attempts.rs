//! How a command reaches its end whether a daemon has the volume open or not, also while one begins or
//! ends.
//!
//! Asks, and does it here where nobody answers, until one of both succeeds. The end of a daemon that is
//! closing the volume is waited for in between. Knows no messages.

use std::time::{Duration, Instant};

use super::caller::Ending;
use crate::interrupt;

/// Time for which a volume may be locked by what does not answer: not yet, or no more.
const LOCKED: Duration = Duration::from_secs(3);

/// The same once a daemon has said that it is closing the volume.
const CLOSING: Duration = Duration::from_secs(60);

/// Time that a daemon has for an answer. Opening a branch may take a merge.
pub const ANSWER: Duration = Duration::from_secs(60);

/// What came of asking a daemon.
pub enum Asked<T> {
    /// It has done what was asked for.
    Done(T),
    /// There is no daemon.
    Nobody,
    /// It is about to end.
    Closing(Ending),
}

/// What came of an attempt without a daemon.
pub enum Alone<T, E> {
    /// It succeeded.
    Done(T),
    /// The volume is locked, as the error says. The attempt has waited for the lock for a while.
    Locked(E),
}

/// Asks the daemon or does without, in turn, until there is a result.
///
/// # Errors
/// The first one of `ask` and `alone`; what the volume is locked by, when it is for too long or a signal
/// that was deferred has arrived.
pub fn ask_or_do_alone<T, E>(
    mut ask: impl FnMut() -> Result<Asked<T>, E>,
    mut alone: impl FnMut() -> Result<Alone<T, E>, E>,
) -> Result<T, E> {
    let (began, mut time) = (Instant::now(), LOCKED);
    loop {
        match ask()? {
            Asked::Done(result) => return Ok(result),
            Asked::Nobody => {}
            Asked::Closing(ending) => {
                time = CLOSING;
                ending.wait(time.saturating_sub(began.elapsed()));
            }
        }
        match alone()? {
            Alone::Done(result) => return Ok(result),
            Alone::Locked(_) if began.elapsed() < time && interrupt::arrived().is_none() => {}
            Alone::Locked(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn daemon_that_begins_meanwhile_is_asked_again() {
        let mut asked = 0;
        let ask = || {
            asked += 1;
            Ok(match asked {
                1 => Asked::Nobody,
                2 => Asked::Closing(Ending::of(UnixStream::pair().unwrap().0)),
                _ => Asked::Done("by the daemon"),
            })
        };
        let done = ask_or_do_alone::<_, &str>(ask, || Ok(Alone::Locked("locked")));
        assert_eq!((done, asked), (Ok("by the daemon"), 3));
    }

    /// What a closing daemon has open is not touched before it has ended.
    #[test]
    fn daemon_that_closes_is_waited_for() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let has_ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let mut ending = Some(Ending::of(ours));
            let (asked, is_asked) = std::sync::mpsc::channel();
            let has_ended = &has_ended;
            scope.spawn(move || {
                is_asked.recv().unwrap();
                has_ended.store(true, Ordering::SeqCst);
                drop(theirs);
            });
            let ask = || {
                asked.send(()).unwrap();
                Ok(Asked::Closing(ending.take().unwrap()))
            };
            let alone = || Ok(Alone::Done(has_ended.load(Ordering::SeqCst)));
            assert_eq!(ask_or_do_alone::<_, &str>(ask, alone), Ok(true));
        });
    }

    #[test]
    fn failures_and_results_end_the_attempts() {
        let nobody = || Ok::<Asked<u8>, &str>(Asked::Nobody);
        assert_eq!(ask_or_do_alone(nobody, || Ok(Alone::Done(7))), Ok(7));
        assert_eq!(ask_or_do_alone(nobody, || Err("broken")), Err("broken"));
        let refused = || Err::<Asked<u8>, _>("refused");
        assert_eq!(
            ask_or_do_alone(refused, || Ok(Alone::Done(7))),
            Err("refused")
        );
    }
}
