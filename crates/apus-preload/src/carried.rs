//! What happens to carried descriptors before a call that only the kernel can answer: their bytes return to the kernel's stream.

use crate::{carry, descriptors};

pub(crate) use crate::carry::leaving::children::passed_on;
pub(crate) use crate::carry::{after_failed_fork, give_away, return_to_kernel};

/// Before the process starts or becomes a program, which may inherit descriptors: lets all of them return. `call` does that.
#[inline]
pub(crate) fn before_program(call: &'static str) {
    if descriptors::any_used() && descriptors::belongs_to_this_process() {
        carry::return_all(call);
    }
}

/// Before the process becomes a program, which inherits descriptors that `exec` does not close.
#[inline]
pub(crate) fn before_exec() {
    if !descriptors::any_used() {
        return;
    }
    if descriptors::belongs_to_this_process() {
        carry::before_exec();
    } else {
        carry::spare_from_exec(); // The memory is the parent's, and the table of descriptors is not.
    }
}

/// Before a call starts a program in a process of its own, which closes descriptors of this library. It lasts as long as the value.
#[inline]
pub(crate) fn spare_from_spawn() -> Option<carry::Spared> {
    descriptors::any_used().then(carry::Spared::new)
}

/// The process did not become a program.
#[inline]
pub(crate) fn after_exec_failed() {
    if descriptors::any_used() && descriptors::belongs_to_this_process() {
        carry::take_back();
    }
}

/// Before the process ends.
#[inline]
pub(crate) fn before_exit() {
    if descriptors::any_used() {
        carry::hand_over(|_| true);
    }
}
