//! What a thread does before it waits for the device, or for others that do: nothing, announce the
//! wait, or refuse it.
//!
//! Some threads serve a queue alone. One that can call a substitute announces each wait
//! ([`announce`]). One that cannot runs an operation without waiting ([`without`]): where it would
//! wait, the operation fails with [`Error::WouldWait`] before it has changed anything, and its caller
//! repeats it in another thread. A transaction that has begun is never refused (`Insist`), and what
//! it would wait for afterwards is owed instead ([`Waits::owed`]). Locks are not covered: they are
//! held for as long as their holder needs, which may include a read.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::error::{Error, Result};

thread_local! {
    static THREAD: Patience = const { Patience::new() };
}

struct Patience {
    announce: RefCell<Option<Rc<dyn Fn()>>>,
    refuses: Cell<bool>,
    refused: Cell<bool>,
    owed: Cell<Option<u64>>,
}

impl Patience {
    const fn new() -> Self {
        Self {
            announce: RefCell::new(None),
            refuses: Cell::new(false),
            refused: Cell::new(false),
            owed: Cell::new(None),
        }
    }
}

/// What an operation would have waited for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waits {
    /// It was refused a wait. If it failed, or did only a part, it is to be repeated.
    pub refused: bool,
    /// It has changed the volume faster than the log or the memory permits: the wait up to this
    /// context of the log was left out, and is to be made up for before the caller learns of the
    /// success.
    pub owed: Option<u64>,
}

/// Runs `op`, which waits for nothing. Returns what it would have waited for.
pub fn without<T>(op: impl FnOnce() -> T) -> (T, Waits) {
    /// Permits waits again, also after a panic.
    struct Permit;
    impl Drop for Permit {
        fn drop(&mut self) {
            THREAD.with(|thread| thread.refuses.set(false));
        }
    }
    THREAD.with(|thread| {
        thread.refused.set(false);
        thread.owed.set(None);
        thread.refuses.set(true);
        let permit = Permit;
        let result = op();
        drop(permit);
        let waits = Waits {
            refused: thread.refused.get(),
            owed: thread.owed.get(),
        };
        (result, waits)
    })
}

/// From now on this thread calls `before` whenever it may be about to wait.
pub fn announce(before: impl Fn() + 'static) {
    THREAD.with(|thread| thread.announce.replace(Some(Rc::new(before))));
}

/// To be called before a wait, while nothing of the operation is done.
///
/// # Errors
/// [`Error::WouldWait`] if this thread must not wait.
pub fn before() -> Result<()> {
    THREAD.with(|thread| {
        if thread.refuses.get() {
            thread.refused.set(true);
            return Err(Error::WouldWait);
        }
        thread.tell();
        Ok(())
    })
}

/// To be called before a wait behind the change of context `seq`, with all locks dropped. Returns
/// whether the wait is left out.
pub fn postponed(seq: u64) -> bool {
    THREAD.with(|thread| {
        if thread.refuses.get() {
            thread.owed.set(thread.owed.get().max(Some(seq)));
            return true;
        }
        thread.tell();
        false
    })
}

/// To be called before a wait that is never refused.
pub fn announced() {
    THREAD.with(Patience::tell);
}

impl Patience {
    fn tell(&self) {
        if let Some(before) = &*self.announce.borrow() {
            before();
        }
    }
}

/// While this exists, waits of its thread are not refused.
#[derive(Debug)]
pub struct Insist {
    refuses: bool,
}

impl Insist {
    /// Ends the refusing of waits for this thread.
    pub fn begin() -> Self {
        let refuses = THREAD.with(|thread| thread.refuses.replace(false));
        Self { refuses }
    }
}

impl Drop for Insist {
    fn drop(&mut self) {
        THREAD.with(|thread| thread.refuses.set(self.refuses));
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use std::panic::{catch_unwind, resume_unwind};

    use super::*;

    #[test]
    fn waits_are_refused_within_the_call_only() {
        before().unwrap();
        let (inside, waits) = without(before);
        assert!(matches!(inside, Err(Error::WouldWait)));
        assert!(waits.refused && waits.owed.is_none());
        before().unwrap();
        assert_eq!(without(|| ()).1, Waits::default());
        // Unwinds like a panic, but prints nothing.
        let broken = catch_unwind(|| without(|| resume_unwind(Box::new("on purpose"))));
        assert!(broken.is_err());
        before().unwrap();
    }

    #[test]
    fn transactions_are_not_refused() {
        let (inside, waits) = without(|| {
            let insist = Insist::begin();
            let within = before();
            drop(insist);
            (within.is_ok(), before().is_ok())
        });
        assert_eq!(inside, (true, false));
        assert!(waits.refused);
    }

    #[test]
    fn newest_context_is_owed() {
        assert!(!postponed(1));
        let (_, waits) = without(|| assert!(postponed(7) && postponed(5)));
        let owed = Waits {
            refused: false,
            owed: Some(7),
        };
        assert_eq!(waits, owed);
    }

    #[test]
    fn announced_waits_are_not_refused() {
        let calls = Rc::new(Cell::new(0));
        let counted = Rc::clone(&calls);
        announce(move || counted.set(counted.get() + 1));
        before().unwrap();
        assert!(!postponed(3));
        announced();
        assert_eq!(calls.get(), 3);
        assert!(without(before).0.is_err());
        assert_eq!(calls.get(), 3);
    }
}
