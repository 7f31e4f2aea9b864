//! Responses.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

use bytes::Bytes;

use crate::argument;
use crate::entry;

/// A response. A handle that is counted: apus_message_ref() adds one to the count and apus_message_free() takes one away.
pub struct apus_message {
    handles: AtomicUsize,
    bytes: Bytes,
}

impl apus_message {
    /// A message with one handle.
    #[inline]
    pub(crate) fn new(bytes: Bytes) -> *mut Self {
        Box::into_raw(Box::new(Self { handles: AtomicUsize::new(1), bytes }))
    }

    /// A text with a NUL behind it, which does not count.
    #[cold]
    pub(crate) fn of_text(text: &str) -> *mut Self {
        let length = text.len();
        Self::new(Bytes::from(format!("{text}\0")).slice(..length))
    }
}

/// Returns the bytes of a message, and their number in `length`, which may be NULL. The pointer is valid until the last handle of
/// the message is freed, and is never NULL: an empty message has a pointer to no byte. Returns NULL and a length of 0 if
/// `message` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_message_data(
    message: *const apus_message,
    length: *mut usize,
) -> *const c_void {
    entry::value(ptr::null(), || {
        // SAFETY: the pointer is valid or NULL.
        let length = unsafe { length.as_mut() };
        // SAFETY: the handle is valid or NULL.
        let bytes = unsafe { argument::shared("message", message) }.map(|it| &it.bytes[..]);
        if let Some(length) = length {
            *length = bytes.as_ref().map_or(0, |bytes| bytes.len());
        }
        Ok(bytes?.as_ptr().cast())
    })
}

/// Returns another handle to a message, which is freed on its own. It has the same address, and the same bytes. Returns NULL if
/// `message` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_message_ref(message: *mut apus_message) -> *mut apus_message {
    entry::value(ptr::null_mut(), || {
        // SAFETY: the handle is valid or NULL.
        unsafe { argument::shared("message", message)? }.handles.fetch_add(1, Ordering::Relaxed);
        Ok(message)
    })
}

/// Frees a handle to a message; the bytes are freed with the last one. Does nothing with NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_message_free(message: *mut apus_message) {
    entry::value((), || {
        // SAFETY: the handle is valid or NULL.
        let Some(shared) = (unsafe { message.as_ref() }) else { return Ok(()) };
        // The only handle is not copied meanwhile: its owner is here.
        let is_last = shared.handles.load(Ordering::Acquire) == 1
            || shared.handles.fetch_sub(1, Ordering::Release) == 1;
        if is_last {
            fence(Ordering::Acquire);
            // SAFETY: no other handle is left.
            drop(unsafe { Box::from_raw(message) });
        }
        Ok(())
    });
}
