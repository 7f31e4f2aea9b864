//! The arguments of all analyses: traces in files.

use std::fs::File;
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
    Ok(Merged::of(&traces.collect::<Result<Vec<_>>>()?))
}

/// Nanoseconds in µs.
pub(super) fn micros(nanos: impl Into<f64>) -> f64 {
    nanos.into() / 1e3
}
