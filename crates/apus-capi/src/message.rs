//! Responses.

use std::cell::Cell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
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
        let message = Self { handles: AtomicUsize::new(1), bytes };
        let spare = SPARE.try_with(|spare| spare.0.replace(ptr::null_mut()));
        match spare {
            Ok(place) if !place.is_null() => {
                let place = place.cast::<Self>();
                // SAFETY: the place has room for a message, and this thread has taken it.
                unsafe { place.write(message) };
                place
            }
            _ => Box::into_raw(Box::new(message)),
        }
    }

    /// Frees a message, whose place the thread keeps if it has none.
    #[inline]
    unsafe fn free(message: *mut Self) {
        // SAFETY: no handle is left.
        unsafe { ptr::drop_in_place(message) };
        let place = message.cast::<MaybeUninit<Self>>();
        let kept = SPARE.try_with(|spare| {
            let is_kept = spare.0.get().is_null();
            if is_kept {
                spare.0.set(place);
            }
            is_kept
        });
        if kept != Ok(true) {
            // SAFETY: the place is that of a box.
            drop(unsafe { Box::from_raw(place) });
        }
    }

    /// A text with a NUL behind it, which does not count.
    #[cold]
    pub(crate) fn of_text(text: &str) -> *mut Self {
        let length = text.len();
        Self::new(Bytes::from(format!("{text}\0")).slice(..length))
    }
}

/// The place of a message that a thread has freed, for its next one: a thread with one call after the other allocates none.
struct Spare(Cell<*mut MaybeUninit<apus_message>>);

impl Drop for Spare {
    fn drop(&mut self) {
        let place = self.0.replace(ptr::null_mut());
        if !place.is_null() {
            // SAFETY: the place is that of a box.
            drop(unsafe { Box::from_raw(place) });
        }
    }
}

thread_local! {
    static SPARE: Spare = const { Spare(Cell::new(ptr::null_mut())) };
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

/// Frees a handle to a message; the bytes are freed with the last one. Does nothing with NULL. A release function may call it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn apus_message_free(message: *mut apus_message) {
    entry::value_in_release((), || {
        // SAFETY: the handle is valid or NULL.
        let Some(shared) = (unsafe { message.as_ref() }) else { return Ok(()) };
        // The only handle is not copied meanwhile: its owner is here.
        let is_last = shared.handles.load(Ordering::Acquire) == 1
            || shared.handles.fetch_sub(1, Ordering::Release) == 1;
        if is_last {
            fence(Ordering::Acquire);
            // SAFETY: no other handle is left.
            unsafe { apus_message::free(message) };
        }
        Ok(())
    });
}
