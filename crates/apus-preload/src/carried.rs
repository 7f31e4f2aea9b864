//! The return of carried descriptors to TCP before a call that only the kernel can handle.

use crate::{carry, descriptors};

pub(crate) use crate::carry::leaving::children::passed_on;
pub(crate) use crate::carry::{after_failed_fork, disconnected, give_away, return_to_kernel};

/// Runs before the process starts or becomes a program, which may inherit descriptors. Makes all of them return. `call` is the
/// reason in the report.
#[inline]
pub(crate) fn before_program(call: &'static str) {
    if descriptors::any_used() && descriptors::belongs_to_this_process() {
        carry::return_all(call);
    }
}

/// Runs before the process becomes a program, which inherits all descriptors that `exec` does not close.
#[inline]
pub(crate) fn before_exec() {
    if !descriptors::any_used() {
        return;
    }
    if descriptors::belongs_to_this_process() {
        carry::before_exec();
    } else {
        carry::spare_from_exec(); // The memory is the parent's, but the descriptor table is not.
    }
}

/// Keeps programs that a call starts from sleeping in the close of this library's descriptors, while the value lives.
#[inline]
pub(crate) fn spare_from_spawn() -> Option<carry::Spared> {
    descriptors::any_used().then(carry::Spared::new)
}

/// Runs if the process did not become a program.
#[inline]
pub(crate) fn after_exec_failed() {
    if descriptors::any_used() && descriptors::belongs_to_this_process() {
        carry::take_back();
    }
}

/// Runs before the process ends.
#[inline]
pub(crate) fn before_exit() {
    if descriptors::any_used() {
        carry::hand_over(|_| true);
    }
}
