//! Tests that cannot run on this machine say so. `.ci/run` lists them at its end.

use std::fmt::Display;
use std::io::{self, Write as _};
use std::thread;

/// Says that the test of this thread is skipped, and why, in one line on standard error. The line is shown although
/// the test passes: the harness captures the output of macros only.
pub(crate) fn skipped(reason: impl Display) {
    let thread = thread::current();
    let test = thread.name().unwrap_or("a test");
    writeln!(io::stderr(), "skipped: {test}: {reason}").expect("standard error is open");
}
