//! What happens to carried descriptors before a call that only the kernel can answer: their bytes return to the kernel's stream.
//!
//! Nothing is carried in this version, so nothing has to return. The functions are where they will be needed. They are async-signal-safe.

use std::hint;

use libc::c_int;

use crate::descriptors;

/// Lets the bytes of a descriptor return to the kernel's stream.
#[cold]
#[inline(never)]
pub(crate) extern "C" fn return_to_kernel(fd: c_int) {
    // Without this the compiler would remove the calls and their branches, and measurements would not include them.
    hint::black_box(fd);
}

/// Before the process starts or becomes a program, which may inherit descriptors: lets all of them return.
#[inline]
pub(crate) fn before_program() {
    if descriptors::any_carried() {
        return_all();
    }
}

#[cold]
extern "C" fn return_all() {
    for fd in descriptors::used_in(0..=u32::MAX).filter(|fd| descriptors::is_carried(*fd)) {
        return_to_kernel(fd);
    }
}
