//! The FUSE protocol in user space: what the kernel sends, what it is answered, and the ways
//! between.
//!
//! [`abi`] has the structures and numbers of the kernel's `fuse.h`. [`request`] decodes messages,
//! [`reply`] encodes answers, [`server`] is the interface that a file system implements; none of
//! the three knows a transport. A transport reads messages, passes each to [`server::serve`] with
//! a [`reply::Sink`], and sends what the sink receives: [`dev`] over `/dev/fuse`, `ring` over io_uring.
//! [`init`] is the negotiation as data, [`notify`] what is sent without a request, and [`session`]
//! owns the threads of a connection. [`Quiet`] waits until what the kernel sends has arrived.
//!
//! `unsafe` is allowed only at the seams to system calls that have no safe wrapper.

pub mod abi;
mod by_rings;
pub mod dev;
pub mod init;
mod malformed;
pub mod notify;
mod polling;
mod quiet;
mod readers;
pub mod reply;
mod reply_thread;
pub mod request;
mod ring;
mod search;
pub mod server;
pub mod session;

pub use init::{Features, Granted, Offer, Wanted};
pub use notify::{Notification, Notifier};
pub use quiet::{Asker, Quiet};
pub use reply::Errno;
pub use request::Header;
pub use ring::DEPTH as RING_DEPTH;
pub use server::{Attempt, Job, Server};
pub use session::{Config, Session, Transport};
