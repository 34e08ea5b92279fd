//! What is going on, on a terminal, while minutes go by.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar on standard error, if that is a terminal. It goes away when dropped.
pub struct Progress(ProgressBar);

impl Progress {
    /// While an image is written.
    pub fn writing(bytes: u64) -> Self {
        let bar = ProgressBar::new(bytes);
        bar.set_style(style("writing the image {bar:30} {bytes} of {total_bytes}"));
        Self(bar)
    }

    /// While there are so many runs.
    pub fn runs(count: usize) -> Self {
        let bar = ProgressBar::new(count as u64);
        bar.set_style(style(
            "{spinner} {bar:30} {pos}/{len} [{elapsed}] {wide_msg}",
        ));
        bar.enable_steady_tick(Duration::from_secs(1));
        Self(bar)
    }

    /// How much is done.
    pub fn at(&self, done: u64) {
        self.0.set_position(done);
    }

    /// What is going on.
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
