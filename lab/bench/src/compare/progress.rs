//! Progress display on a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A progress bar on standard error, if that is a terminal. It is cleared when dropped.
pub struct Progress(ProgressBar);

impl Progress {
    /// Creates a bar for writing an image of `bytes` bytes.
    pub fn writing(bytes: u64) -> Self {
        let bar = ProgressBar::new(bytes);
        bar.set_style(style("writing the image {bar:30} {bytes} of {total_bytes}"));
        Self(bar)
    }

    /// Creates a bar for `count` runs.
    pub fn runs(count: usize) -> Self {
        let bar = ProgressBar::new(count as u64);
        bar.set_style(style(
            "{spinner} {bar:30} {pos}/{len} [{elapsed}] {wide_msg}",
        ));
        bar.enable_steady_tick(Duration::from_secs(1));
        Self(bar)
    }

    /// Sets the completed amount.
    pub fn at(&self, done: u64) {
        self.0.set_position(done);
    }

    /// Sets the message.
    pub fn says(&self, what: String) {
        self.0.set_message(what);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
