//! The record of a run, with its warnings.

use std::path::Path;

use crate::{Machine, ResultFile, Watch};
use anyhow::{Context, Result};

use crate::stop::{self, CUT_SHORT};

/// The command line of this process, for result files.
#[must_use]
pub fn command_line() -> String {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    format!("apus {}", arguments.join(" "))
}

/// Lets `measure` fill the record of a run, and adds warnings about the machine and its use by other processes. After a request to
/// stop, the record has the figures measured so far and the warning [`CUT_SHORT`].
///
/// # Errors
/// The errors of `measure`.
pub fn record(measure: impl FnOnce(&mut ResultFile) -> Result<()>) -> Result<ResultFile> {
    let mut result = ResultFile::new(&command_line(), Machine::here());
    result.machine.warning().into_iter().for_each(|warning| result.warn(warning));
    if cfg!(debug_assertions) {
        result.warn("this is a debug build of the program: all figures are far from those of a release build");
    }
    let watch = Watch::start();
    match measure(&mut result) {
        // The request to stop explains any error.
        Err(_) if stop::requested() => result.warn(CUT_SHORT),
        measured => measured?,
    }
    watch.end().warnings().into_iter().for_each(|warning| result.warn(warning));
    Ok(result)
}

/// Reads a result kept from an earlier run, which need not be measured again.
///
/// # Errors
/// If the file is not a result. The error has its name and a remedy.
pub fn read_kept(path: &Path) -> Result<ResultFile> {
    ResultFile::read(path).with_context(|| {
        format!("`{}` is not a kept result: move it away to repeat the measurement", path.display())
    })
}
