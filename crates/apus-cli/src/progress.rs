//! Progress of long work, on standard error and only when that is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar that moves on between measurements only: nothing is drawn while one runs.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar over `steps` measurements.
    pub(crate) fn new(steps: u64) -> Self {
        // Hides itself when standard error is not a terminal.
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}")
            .expect("the template is constant and its keys are indicatif's");
        bar.set_style(style);
        Self { bar }
    }

    /// There are more measurements than was known.
    pub(crate) fn lengthen(&self, steps: u64) {
        self.bar.inc_length(steps);
    }

    /// Says what is measured next.
    pub(crate) fn begin(&self, what: &str) {
        self.bar.set_message(what.to_owned());
        self.bar.tick();
    }

    /// One measurement is done.
    pub(crate) fn done(&self) {
        self.bar.inc(1);
    }
}

impl Drop for Progress {
    /// Leaves the terminal clean for the table, also when a measurement failed.
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
