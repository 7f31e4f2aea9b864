//! The process that restores the values of a killed process.

use std::io::{self, Read};

use rustix::process::setsid;

use super::{privileges, ready};
use crate::error::Error;
use crate::program::ProcessId;
use crate::state::StateDirectory;

/// Waits for the end of standard input, which the guarded process holds; then restores the values that the process has set and not
/// restored itself. To be called by the process that [`Session::start`](super::Session::start) starts.
///
/// # Errors
/// When a value cannot be restored.
pub fn guard(owner: ProcessId, state: &StateDirectory) -> Result<(), Error> {
    // Signals to the terminal's processes, or to the group of the guarded process, must not reach the guardian.
    let _ = setsid();
    privileges::keep_what_restoring_takes();
    ready::report()?;
    io::stdin().read_to_end(&mut Vec::new()).map_err(|error| Error::io("standard input", error))?;
    state.restore_of(owner)
}
