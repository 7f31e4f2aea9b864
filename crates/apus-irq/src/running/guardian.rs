//! The process that restores what a killed process has set.

use std::io::{self, Read};

use rustix::process::setsid;

use super::{privileges, ready};
use crate::error::Error;
use crate::program::ProcessId;
use crate::state::State;

/// Waits until standard input, which the guarded process holds, ends; then restores what that process has set. It finds nothing if the
/// process has restored it. To be called by the process that [`Session::start`](super::Session::start) starts.
///
/// # Errors
/// When something cannot be restored.
pub fn guard(owner: ProcessId, state: &State) -> Result<(), Error> {
    // A signal to the terminal's processes or to the group of the guarded process is not for the guardian.
    let _ = setsid();
    privileges::keep_what_restoring_takes();
    ready::tell()?;
    io::stdin().read_to_end(&mut Vec::new()).map_err(|error| Error::io("standard input", error))?;
    state.restore_of(owner)
}
