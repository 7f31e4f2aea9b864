//! The record of a run, with everything that may be wrong with it.

use std::path::Path;

use crate::{Machine, ResultFile, Watch};
use anyhow::{Context, Result};

use crate::stop::{self, CUT_SHORT};

/// The command line of this process, for results.
#[must_use]
pub fn command_line() -> String {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    format!("apus {}", arguments.join(" "))
}

/// Has `measure` fill the record of a run, and adds warnings about the machine and about others who used it meanwhile.
/// After a request to stop, the record has what was measured by then and the warning [`CUT_SHORT`].
///
/// # Errors
/// As `measure` does.
pub fn record(measure: impl FnOnce(&mut ResultFile) -> Result<()>) -> Result<ResultFile> {
    let mut result = ResultFile::new(&command_line(), Machine::here());
    result.machine.warning().into_iter().for_each(|warning| result.warn(warning));
    if cfg!(debug_assertions) {
        result.warn("this is a debug build of the program: every figure is far from that of a release build");
    }
    let watch = Watch::start();
    match measure(&mut result) {
        // Whatever failed then failed because it was stopped.
        Err(_) if stop::requested() => result.warn(CUT_SHORT),
        measured => measured?,
    }
    watch.end().warnings().into_iter().for_each(|warning| result.warn(warning));
    Ok(result)
}

/// Reads a result that an earlier run kept, so that it need not be measured again.
///
/// # Errors
/// When it is no result: with its name, and what to do.
pub fn read_kept(path: &Path) -> Result<ResultFile> {
    ResultFile::read(path).with_context(|| {
        format!(
            "`{}` is in the place of a kept result: move it away to measure that again",
            path.display()
        )
    })
}
