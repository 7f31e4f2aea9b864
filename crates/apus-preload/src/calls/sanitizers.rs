//! Options for the sanitizers of gcc and clang, and a check for those that cannot see this library's work.

use std::ffi::CStr;

use libc::c_char;

/// AddressSanitizer insists on being the first library of a process, so that its interceptors run. It need not be: calls that
/// this library passes on reach it as well. A program that defines these options itself overrides this function.
#[unsafe(no_mangle)]
extern "C" fn __asan_default_options() -> *const c_char {
    c"verify_asan_link_order=0".as_ptr()
}

/// Whether ThreadSanitizer checks this process for races. It knows that bytes of a socket order the threads that write and read
/// them, but cannot know that bytes in this library's shared memory do too.
pub(crate) fn look_for_races() -> bool {
    has(c"__tsan_init")
}

fn has(name: &CStr) -> bool {
    // SAFETY: the name ends with a zero byte.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    !found.is_null()
}
