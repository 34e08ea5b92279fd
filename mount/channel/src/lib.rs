//! Calls between a program and the daemon of a volume by shared memory.
//!
//! A program has one *channel*: a region of memory that it shares with the daemon, and a *doorbell*, an
//! eventfd. A thread of the program takes a free slot of the region, writes a request into it, and waits
//! until the daemon has written the reply there. The daemon has few threads; each looks at the slots of
//! many channels ([`Server`]). What a call costs depends on how both sides wait ([`wait`]): while both
//! look at the memory, no system call is made.
//!
//! The daemon trusts nothing in the region: the program may change any of it at any moment. So the region
//! is made and sealed by the daemon, its size never changes, the daemon copies a request before it looks
//! at it, and whatever a program writes can only spoil its own calls. What another program shares with
//! the daemon is another region.
//!
//! # The life of a slot
//!
//! | From | To | By | What it means |
//! |---|---|---|---|
//! | free | asked | program | the payload is a request; the bit in `pending` is set after it |
//! | asked | awaited | program | the caller sleeps until the state changes |
//! | asked | answered | daemon | the payload is the reply |
//! | awaited | answered | daemon | the same, and the daemon wakes the caller |
//! | answered | free | program | the reply was copied, or nobody waits for it |
//!
//! 1. Only the program takes a slot out of *free* and *answered*, only the daemon puts it into *answered*.
//! 2. A bit in `pending` is set only behind the state *asked*, so the daemon finds the request when it takes the bit.
//! 3. The daemon sleeps on a channel, or does not look at it any more, only after it has set `asleep` and
//!    found `pending` empty behind that; a program that sets a bit and then finds `asleep` rings the
//!    doorbell. So no request waits unseen.
//!
//! # Deferred calls
//!
//! A call that cannot fail need not be waited for: the daemon carries it out before anybody can see that it
//! has not. A program has a *lease* on a file as long as nobody but the program can reach the file except by
//! the daemon, which then carries out what was deferred first. A lease ends with the *epoch* of its channel.
//!
//! 1. Deferred calls of a program are carried out in the order of their turns, and before any call that is
//!    made after one of them has returned, by whatever program.
//! 2. The program looks at the epoch after it has set the bit in `deferred`. If the epoch has ended, it waits
//!    for the reply as for that of any call, which may be that nothing was done.
//! 3. The daemon ends an epoch, then carries out what is deferred, and then lets others at the file
//!    ([`Joiner::end_leases`]). By 2, whatever it finds after that is waited for.
//!
//! The daemon waits for no program in this: a deferred call is complete when its bit is set.
//!
//! `scripts/concurrency server::schedules` searches orders of threads in which one of these does not hold.
//!
//! # Promised replies
//!
//! What takes long, as an fsync does, is answered by another thread ([`Promise`]): the slot stays *asked* or
//! *awaited* meanwhile, and the serving thread goes on. A program has at most [`SLOTS`] of them, whatever it
//! writes into its region.
//!
//! The library that is loaded into programs uses [`Client`] only, which allocates nothing after it was
//! made, starts no thread, and can be used in a signal handler.

pub mod call;
mod client;
mod region;
mod served;
mod server;
mod sync;
pub mod wait;

pub use client::{Client, Deferred, Gone};
pub use region::{DEFERRED, Layout, PAYLOAD, SLOTS};
pub use served::DaemonEnd;
pub use server::{Answered, Asked, Handler, Joiner, Promise, Server};

/// The two ends of a channel, as the daemon makes them; the program's end is passed over a socket.
pub struct Ends {
    /// The end of the daemon.
    pub daemon: std::sync::Arc<DaemonEnd>,
    /// The memory of the program's end.
    pub memory: region::Memory,
    /// The doorbell of the program's end.
    pub doorbell: sync::Doorbell,
}

/// Makes a channel.
///
/// # Errors
/// The kernel's, if there is no memory or no descriptor left.
pub fn channel() -> std::io::Result<Ends> {
    let memory = region::make()?;
    let doorbell = sync::doorbell()?;
    Ok(Ends {
        daemon: std::sync::Arc::new(DaemonEnd::new(
            region::Region::map(&memory)?,
            sync::same(&doorbell)?,
        )),
        memory,
        doorbell,
    })
}
