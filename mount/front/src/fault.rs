//! Faults that the daemon injects on request into what programs ask beside the kernel, as the engine does
//! (`cairnfs_disk::fault`).
//!
//! Uses nothing. Without the feature `fault-injection`, which only the tests of this crate enable,
//! `is_injected` is a constant `false` and none of this is compiled in. With it, a fault is injected in the
//! threads that asked for it, within `within`, and in those that answer programs which they have started.

/// A fault. Each omits one step of the rules in [`crate::ops::programs`] and `deferrals.rs`.
/// Its `Contract:` line has the ids of the promises in docs/contract.md that it breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InjectedFault {
    /// A file that the kernel knows is changed all the same.
    /// Contract: posix
    KnownFileServed,
    /// A name is removed or moved whose inode the kernel knows.
    /// Contract: posix
    KnownNameServed,
    /// A name is made that the kernel has cached as absent, or whose directory it has listed.
    /// Contract: posix, posix.listing
    CachedNamesIgnored,
    /// The kernel keeps the attributes of a directory that has changed.
    /// Contract: posix
    AttributesKept,
    /// A lease goes on when the kernel looks the file up.
    /// Contract: posix
    LeaseOutlivesLookup,
    /// A lease goes on when the kernel lists the directory.
    /// Contract: posix
    LeaseOutlivesListing,
    /// What is deferred is not carried out before a fork or a sync.
    /// Contract: durable.sync, branch.verbs
    DeferredNotFinished,
    /// Writes are accepted without space that was set aside for them.
    /// Contract: failure.space
    NothingSetAside,
    /// Permissions on directories are not looked at.
    /// Contract: posix
    PermissionUnchecked,
    /// Whoever may write into a directory with the sticky bit removes what is of others.
    /// Contract: posix
    StickyBitIgnored,
    /// A program opens what another one has open.
    /// Contract: posix
    FilesOfAll,
    /// The files of a program that has ended stay open.
    /// Contract: failure.removal
    FilesStayOpen,
}

#[cfg(not(feature = "fault-injection"))]
mod switch {
    use crate::fault::InjectedFault;

    /// Whether to inject this fault: never.
    #[inline]
    pub const fn is_injected(_fault: InjectedFault) -> bool {
        false
    }

    /// What a thread runs that is started.
    #[inline]
    pub fn inherited<R>(run: impl FnOnce() -> R) -> impl FnOnce() -> R {
        run
    }
}

#[cfg(feature = "fault-injection")]
mod switch {
    use std::cell::Cell;

    use crate::fault::InjectedFault;

    thread_local! {
        /// The fault to inject.
        static ACTIVE: Cell<Option<InjectedFault>> = const { Cell::new(None) };
    }

    /// Whether to inject this fault.
    pub fn is_injected(fault: InjectedFault) -> bool {
        ACTIVE.get() == Some(fault)
    }

    /// Restores the previous fault, also when a test panics.
    struct Restore(Option<InjectedFault>);

    impl Drop for Restore {
        fn drop(&mut self) {
            ACTIVE.set(self.0);
        }
    }

    fn with<R>(fault: Option<InjectedFault>, run: impl FnOnce() -> R) -> R {
        let _restore = Restore(ACTIVE.replace(fault));
        run()
    }

    /// Injects this fault in this thread while `run` runs.
    pub fn within<R>(fault: InjectedFault, run: impl FnOnce() -> R) -> R {
        with(Some(fault), run)
    }

    /// What a thread runs that is started, with the fault of the thread that starts it.
    pub fn inherited<R>(run: impl FnOnce() -> R) -> impl FnOnce() -> R {
        let fault = ACTIVE.get();
        move || with(fault, run)
    }
}

pub use switch::{inherited, is_injected};

#[cfg(feature = "fault-injection")]
pub use switch::within;
