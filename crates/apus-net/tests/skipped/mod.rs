//! Tests that cannot run on this machine report that, and `cargo test` counts them as ignored (`.cargo/test-runner`).

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Write as _};
use std::{env, thread};

/// Reports that the test of this thread is skipped, and the reason: to the runner, in the file that it names, or in one line on
/// standard error. That line is shown although the test passes: the harness captures the output of macros only.
pub(crate) fn skipped(reason: impl Display) {
    let thread = thread::current();
    let test = thread.name().unwrap_or("a test");
    let reason = reason.to_string().replace(['\n', '\t'], " ");
    let reported = env::var_os("APUS_SKIPPED").and_then(|path| {
        let mut file = File::options().append(true).open(path).ok()?;
        // One call, so that lines of several threads stay whole.
        file.write_all(format!("{test}\t{reason}\n").as_bytes()).ok()
    });
    if reported.is_none() {
        writeln!(io::stderr(), "skipped: {test}: {reason}").expect("standard error is open");
    }
}
