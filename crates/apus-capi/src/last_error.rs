//! The error of the calling thread.

use std::cell::RefCell;
use std::ffi::{CString, c_char};

use crate::failure::{Details, Failure};

thread_local! {
    static LAST: RefCell<Last> = const { RefCell::new(Last { text: None, may_have_executed: false }) };
}

struct Last {
    text: Option<CString>,
    may_have_executed: bool,
}

/// Keeps a failure for the calling thread. Returns its number.
#[cold]
pub(crate) fn set(failure: Failure) -> i32 {
    let Details { number, text, may_have_executed } = *failure.0;
    let mut text = text.into_bytes();
    text.retain(|byte| *byte != 0);
    let text = CString::new(text).ok();
    // A thread that ends may have no memory of its own any more.
    let _ = LAST.try_with(|last| *last.borrow_mut() = Last { text, may_have_executed });
    number as i32
}

/// The text of the last error of a function in the calling thread: the argument, its value and the allowed ones, or the cause.
/// Never NULL; empty if no function has failed. A function that succeeds does not change it. The pointer is valid until the next
/// error of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn apus_last_error() -> *const c_char {
    let text = LAST.try_with(|last| last.borrow().text.as_ref().map(|text| text.as_ptr()));
    text.ok().flatten().unwrap_or(c"".as_ptr())
}

/// Returns 1 if the request of the last error of apus_call() in the calling thread may have been executed, and 0 if it was not
/// and will not be: the call may be repeated then, whatever the request does. More exact than apus_error_may_have_executed(),
/// because it depends on how far the request had come. An apus_completion has the same in a field. 0 if no function has failed.
#[unsafe(no_mangle)]
pub extern "C" fn apus_last_error_may_have_executed() -> i32 {
    LAST.try_with(|last| last.borrow().may_have_executed).unwrap_or(true).into()
}

/// The text of the last error.
#[cfg(test)]
pub(crate) fn text() -> String {
    // SAFETY: the pointer is valid, and no error comes before it is read.
    unsafe { std::ffi::CStr::from_ptr(apus_last_error()) }.to_string_lossy().into_owned()
}
