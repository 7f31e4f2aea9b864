//! What happens to carried descriptors before a call that only the kernel can answer: their bytes return to the kernel's stream.

use crate::{carry, descriptors};

pub(crate) use crate::carry::children::passed_on;
pub(crate) use crate::carry::{after_fork, return_to_kernel};

/// Before the process starts or becomes a program, which may inherit descriptors: lets all of them return. `call` does that.
#[inline]
pub(crate) fn before_program(call: &'static str) {
    if descriptors::any_used() && descriptors::belongs_to_this_process() {
        carry::return_all(call);
    }
}
