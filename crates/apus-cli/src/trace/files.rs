//! The arguments of all analyses: traces in files.

use std::fs::File;
use std::io::{Write as _, stderr};
use std::path::PathBuf;

use anyhow::{Context, Result};
use apus_trace::{Merged, Trace};

/// Files to analyse.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Files {
    /// Traces, of any processes and hosts
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

impl Files {
    /// The traces as one, on one clock.
    ///
    /// # Errors
    /// When a file is no trace or cannot be read.
    pub(super) fn merged(&self) -> Result<Merged> {
        merged(&self.files)
    }
}

/// Traces as one, on one clock.
///
/// # Errors
/// As [`Files::merged`].
pub(super) fn merged(files: &[PathBuf]) -> Result<Merged> {
    let traces = files.iter().map(|path| {
        let read = || Trace::read(&File::open(path)?);
        read().with_context(|| format!("cannot read the time trace '{}'", path.display()))
    });
    let merged = Merged::of(&traces.collect::<Result<Vec<_>>>()?);
    for offset in merged.offsets.iter().filter(|offset| offset.least_delay_nanos.is_none()) {
        // An error of standard error itself cannot be reported.
        let _ = writeln!(
            stderr(),
            "warning: the clock of '{}' is aligned by the time of day alone, which may be wrong by milliseconds: no call between its \
             host and the others was recorded at both ends",
            files[offset.trace].display()
        );
    }
    Ok(merged)
}

/// Nanoseconds in µs.
pub(super) fn micros(nanos: impl Into<f64>) -> f64 {
    nanos.into() / 1e3
}
