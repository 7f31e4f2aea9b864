//! Checks of arguments.
//!
//! The functions that read pointers are `unsafe`: a pointer that is not NULL must be valid, as the head of `apus.h` demands.

use std::ffi::{CStr, c_char, c_void};
use std::slice;
use std::time::Duration;

use crate::failure::{Failure, LENGTH_MAX};

/// The object that a pointer names. NULL is refused.
#[inline]
pub(crate) unsafe fn shared<'a, T>(name: &str, pointer: *const T) -> Result<&'a T, Failure> {
    // SAFETY: the caller has a pointer to an object, or NULL.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::null(name))
}

/// The place of a result. NULL is refused.
#[inline]
pub(crate) unsafe fn place<'a, T>(name: &str, pointer: *mut T) -> Result<&'a mut T, Failure> {
    // SAFETY: the caller has a pointer to a place that nobody else uses, or NULL.
    unsafe { pointer.as_mut() }.ok_or_else(|| Failure::null(name))
}

/// Takes a handle back that [`Box::into_raw`] has given. NULL is refused.
#[inline]
pub(crate) unsafe fn owned<T>(name: &str, pointer: *mut T) -> Result<Box<T>, Failure> {
    if pointer.is_null() {
        return Err(Failure::null(name));
    }
    // SAFETY: the caller has a handle of this library, which no other thread uses.
    Ok(unsafe { Box::from_raw(pointer) })
}

/// A text in UTF-8 that ends with a NUL.
pub(crate) unsafe fn text<'a>(name: &str, pointer: *const c_char) -> Result<&'a str, Failure> {
    if pointer.is_null() {
        return Err(Failure::null(name));
    }
    // SAFETY: the caller has a pointer to a text with a NUL.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| {
        Failure::argument(name, &format_args!("'{}'", text.to_string_lossy()), "text in UTF-8")
    })
}

/// `count` texts.
pub(crate) unsafe fn texts<'a>(
    name: &str,
    pointer: *const *const c_char,
    count: usize,
) -> Result<Vec<&'a str>, Failure> {
    if pointer.is_null() {
        return Err(Failure::null(name));
    }
    if count == 0 || count > TEXTS_MAX {
        let allowed = format!("1 to {TEXTS_MAX} texts");
        return Err(Failure::argument(name, &format_args!("{count} texts"), &allowed));
    }
    // SAFETY: the caller has that many pointers.
    let pointers = unsafe { slice::from_raw_parts(pointer, count) };
    // SAFETY: each is NULL or a text with a NUL.
    pointers.iter().map(|pointer| unsafe { text(name, *pointer) }).collect()
}

const TEXTS_MAX: usize = 4_096;

/// The bytes of a body. NULL stands for an empty one.
#[inline]
pub(crate) unsafe fn body<'a>(pointer: *const c_void, length: usize) -> Result<&'a [u8], Failure> {
    if length == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(Failure::null("body"));
    }
    if length > LENGTH_MAX {
        return Err(Failure::too_long(length));
    }
    // SAFETY: the caller has a pointer to that many bytes.
    Ok(unsafe { slice::from_raw_parts(pointer.cast(), length) })
}

/// A time in nanoseconds; a negative one is without end.
#[inline]
pub(crate) fn time(nanoseconds: i64) -> Option<Duration> {
    u64::try_from(nanoseconds).ok().map(Duration::from_nanos)
}

/// A number of elements, at least one.
#[inline]
pub(crate) fn count(name: &str, count: usize) -> Result<usize, Failure> {
    match count {
        0 => Err(Failure::argument(name, &0, "a number from 1")),
        more => Ok(more.min(BATCH_MAX)),
    }
}

/// As many messages are received at once, however many places the program has.
const BATCH_MAX: usize = 1 << 20;
