//! Lines for whoever runs the carrier.

use std::io::{self, Write};

/// Writes a line to standard error.
pub(crate) fn line(line: &str) {
    let _ = writeln!(io::stderr(), "apus: {line}");
}
