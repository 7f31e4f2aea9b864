//! What the sanitizers of gcc and clang ask a process for, and whether it has one that cannot see what this library does.

use std::ffi::CStr;

use libc::c_char;

/// AddressSanitizer wants to be the first library of a process, so that its calls are. Calls that this library passes on come to it as
/// well, so it need not be. A program that has options of its own is asked for those, and not this library.
#[unsafe(no_mangle)]
extern "C" fn __asan_default_options() -> *const c_char {
    c"verify_asan_link_order=0".as_ptr()
}

/// Whether ThreadSanitizer looks for races of this process. It knows that bytes of a socket order the threads that write and read them,
/// and cannot know that bytes in memory of this library do.
pub(crate) fn look_for_races() -> bool {
    has(c"__tsan_init")
}

fn has(name: &CStr) -> bool {
    // SAFETY: the name ends with a zero byte.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    !found.is_null()
}
