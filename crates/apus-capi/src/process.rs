//! The process that made a handle.

use std::process;

use crate::failure::Failure;

/// The process in which a handle was made. A child that it forks has a copy of the handle.
#[derive(Clone, Copy)]
pub(crate) struct OwnerProcess(u32);

impl OwnerProcess {
    pub(crate) fn this() -> Self {
        Self(process::id())
    }

    /// Costs a system call.
    pub(crate) fn check(self) -> Result<(), Failure> {
        if self.0 == process::id() { Ok(()) } else { Err(Failure::forked()) }
    }
}
