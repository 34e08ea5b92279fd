//! What a daemon says after the end of its last mount, to the commands that have waited for that.
//!
//! Their connections are kept until the process ends, which tells them that there is nothing more to be
//! said. Uses frames.

use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

use super::frames::{Answer, send};

/// Connections of commands that were told the end of the last mount.
#[derive(Default)]
pub struct EndNotice(Mutex<Vec<UnixStream>>);

impl EndNotice {
    /// Keeps a connection, which must not block.
    pub fn keep(&self, told: UnixStream) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(told);
    }

    /// Tells all of them what did not go well.
    pub fn say(&self, text: &str) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for told in &*all {
            // A caller that has gone, or does not read, learns nothing.
            let _ = send(told, &Answer::Warning(text.to_owned()), &[]);
        }
    }
}
