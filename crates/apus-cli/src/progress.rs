//! Progress of long work, on standard error: a bar on a terminal, elsewhere one line each ten seconds.

use std::fmt;
use std::io::{Write, stderr};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use apus_load::progress::Progress;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

/// Time between two lines where no bar can be drawn.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// A bar that moves on between measurements only: it is not drawn while one runs.
pub(crate) struct Bar {
    bar: ProgressBar,
    /// The thread that writes lines ends when this is dropped.
    _lines: Sender<()>,
}

impl Bar {
    /// A bar without steps yet.
    pub(crate) fn new() -> Self {
        // Hides itself when standard error is not a terminal.
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len}, {left}  {msg}")
            .expect("the template is constant, and its keys are indicatif's and `left`")
            .with_key("left", |state: &ProgressState, text: &mut dyn fmt::Write| {
                let left = left(state.elapsed(), state.pos(), state.len().unwrap_or_default());
                let _ = text.write_str(&left); // A bar without this text is still a bar.
            });
        bar.set_style(style);
        let (lines, ended) = channel();
        let shown = bar.clone();
        if bar.is_hidden() {
            thread::spawn(move || {
                while ended.recv_timeout(LINE_EVERY) == Err(RecvTimeoutError::Timeout) {
                    write_line(&shown);
                }
            });
        }
        Self { bar, _lines: lines }
    }
}

fn write_line(bar: &ProgressBar) {
    let (done, all) = (bar.position(), bar.length().unwrap_or_default());
    let (name, left) = (bar.message(), left(bar.elapsed(), done, all));
    // An error of standard error itself cannot be reported.
    let _ = writeln!(stderr(), "{done}/{all}, {left}  {name}");
}

/// The time that the other steps take if they take as long as those before. Steps are long and few, so the rate of the last one,
/// which indicatif uses, says little.
fn left(elapsed: Duration, done: u64, all: u64) -> String {
    if done == 0 {
        return "time left unknown".to_owned();
    }
    let factor = all.saturating_sub(done) as f64 / done as f64;
    let left = Duration::try_from_secs_f64(elapsed.as_secs_f64() * factor).unwrap_or(Duration::MAX);
    format!("{} left", HumanDuration(left))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_the_time_of_the_steps_before() {
        let text = |seconds, done, all| left(Duration::from_secs(seconds), done, all);
        assert_eq!(text(600, 0, 9), "time left unknown");
        assert_eq!(text(600, 1, 3), "20 minutes left");
        assert_eq!(text(600, 3, 3), "0 seconds left");
        assert_eq!(text(600, 4, 3), "0 seconds left");
    }
}
