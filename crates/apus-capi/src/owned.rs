//! Bodies of the program that are sent without a copy.

use std::cell::Cell;
use std::ffi::c_void;
use std::slice;

use bytes::Bytes;

use crate::error::apus_error::APUS_EIN_RELEASE;
use crate::failure::Failure;

/// Gives a body back to the program, with the argument that the program gave with it. It is called once for each body, by any
/// thread, also one of the library, in the middle of its work: it must be quick, must not throw or jump, and may call no
/// function of this library but apus_message_free(). Others return APUS_EIN_RELEASE; those that return no error number do
/// nothing and return NULL or 0, so that a handle is not freed.
pub type apus_release = Option<unsafe extern "C" fn(argument: *mut c_void)>;

thread_local! {
    static IN_RELEASE: Cell<bool> = const { Cell::new(false) };
}

/// The thread is in the middle of a function of the library, or of the work of a node, which would begin once more within itself.
#[inline]
pub(crate) fn refuse_in_release() -> Result<(), Failure> {
    if IN_RELEASE.try_with(Cell::get) == Ok(true) { Err(called_in_release()) } else { Ok(()) }
}

#[cold]
fn called_in_release() -> Failure {
    Failure::new(APUS_EIN_RELEASE, "a release function may call apus_message_free() only")
}

/// The bytes of a program, which are given back when the last handle to them is dropped.
struct Lent {
    data: *const u8,
    length: usize,
    _release: Release,
}

// SAFETY: the header demands that the bytes stay and that any thread may release them.
unsafe impl Send for Lent {}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the bytes stay until they are released.
        unsafe { slice::from_raw_parts(self.data, self.length) }
    }
}

/// Calls a release function when it is dropped.
struct Release {
    function: apus_release,
    argument: *mut c_void,
}

impl Drop for Release {
    fn drop(&mut self) {
        let Some(function) = self.function else { return };
        let before = IN_RELEASE.try_with(|it| it.replace(true));
        // SAFETY: the header demands a function that may be called by any thread.
        unsafe { function(self.argument) };
        let _ = IN_RELEASE.try_with(|it| it.set(before.unwrap_or(false)));
    }
}

/// Takes the bytes of a program. They are released once, also if this fails.
pub(crate) unsafe fn take(
    data: *const c_void,
    length: usize,
    function: apus_release,
    argument: *mut c_void,
) -> Result<Bytes, Failure> {
    let release = Release { function, argument };
    if function.is_none() {
        return Err(Failure::null("release"));
    }
    if length == 0 {
        return Ok(Bytes::new());
    }
    if data.is_null() {
        return Err(Failure::null("data"));
    }
    if isize::try_from(length).is_err() {
        return Err(Failure::too_long(length));
    }
    Ok(Bytes::from_owner(Lent { data: data.cast(), length, _release: release }))
}
