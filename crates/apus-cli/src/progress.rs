//! Progress of long work, on standard error: a bar on a terminal, elsewhere one line each ten seconds.

use std::io::{Write, stderr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use apus_bench::progress::Progress;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Time between two lines where no bar can be drawn.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// A bar that moves on between measurements only: nothing is drawn while one runs.
pub(crate) struct Bar {
    bar: ProgressBar,
    /// When the last line was written.
    last_line: Mutex<Instant>,
}

impl Bar {
    /// A bar without steps yet.
    pub(crate) fn new() -> Self {
        // Hides itself when standard error is not a terminal.
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len}, {eta} left  {msg}")
            .expect("the template is constant and its keys are indicatif's");
        bar.set_style(style);
        Self { bar, last_line: Mutex::new(Instant::now()) }
    }

    /// Writes a line when no bar can be drawn and the last line is old enough.
    fn write_line(&self) {
        let mut last_line = self.last_line.lock().unwrap_or_else(PoisonError::into_inner);
        if self.bar.is_hidden() && last_line.elapsed() >= LINE_EVERY {
            *last_line = Instant::now();
            let (done, all) = (self.bar.position(), self.bar.length().unwrap_or_default());
            let (name, left) = (self.bar.message(), HumanDuration(self.bar.eta()));
            // Nobody is left to tell when standard error is closed.
            let _ = writeln!(stderr(), "{done}/{all}, {left} left  {name}");
        }
    }
}

impl Progress for Bar {
    fn lengthen(&self, steps: u64) {
        self.bar.inc_length(steps);
    }

    fn begin(&self, name: &str) {
        self.bar.set_message(name.to_owned());
        self.bar.tick();
        self.write_line();
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
