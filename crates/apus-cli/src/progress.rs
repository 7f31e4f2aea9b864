//! Progress of long work, on standard error and only when that is a terminal.

use apus_bench::progress::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar that moves on between measurements only: nothing is drawn while one runs.
pub(crate) struct Bar {
    bar: ProgressBar,
}

impl Bar {
    /// A bar without steps yet.
    pub(crate) fn new() -> Self {
        // Hides itself when standard error is not a terminal.
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}")
            .expect("the template is constant and its keys are indicatif's");
        bar.set_style(style);
        Self { bar }
    }
}

impl Progress for Bar {
    fn lengthen(&self, steps: u64) {
        self.bar.inc_length(steps);
    }

    fn begin(&self, name: &str) {
        self.bar.set_message(name.to_owned());
        self.bar.tick();
    }

    fn done(&self) {
        self.bar.inc(1);
    }
}

impl Drop for Bar {
    /// Leaves the terminal clean for the table, also when a measurement failed.
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
