//! Failures: an errno value, and a message that the thread keeps.
//!
//! The message stays until the next failure of the same thread.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};

use cairnfs::Error;

/// Why a call failed.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    /// The errno value that the call returns.
    pub errno: c_int,
    /// What happened, and what to do next.
    pub message: Cow<'static, str>,
}

/// The result of everything inside the boundary.
pub(crate) type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub(crate) const fn new(errno: c_int, message: &'static str) -> Self {
        Self {
            errno,
            message: Cow::Borrowed(message),
        }
    }

    /// An invalid argument.
    pub(crate) const fn invalid(message: &'static str) -> Self {
        Self::new(libc::EINVAL, message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self {
            errno: error.errno(),
            message: Cow::Owned(error.to_string()),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Error::from(error).into()
    }
}

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// Keeps the message of a failure.
pub(crate) fn keep(message: &str) {
    let text: Vec<u8> = message.bytes().filter(|b| *b != 0).collect();
    let text = CString::new(text).unwrap_or_default();
    // While the thread ends, there may be no place for it any more.
    let _ = MESSAGE.try_with(|kept| kept.replace(text));
}

/// The message of the last call of this thread that failed; "" if none has. It stays valid until
/// another call of this thread fails, or the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn cairnfs_message() -> *const c_char {
    MESSAGE
        .try_with(|kept| kept.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}
