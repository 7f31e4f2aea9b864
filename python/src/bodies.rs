//! Bodies of messages, from objects with a buffer.
//!
//! `bytes` and messages never change, so the engine has their memory until it drops the body, on any thread. All other buffers are
//! copied: even one that is read-only may be of an object that the program changes.
#![expect(unsafe_code, reason = "the memory of Python's buffers")]

use std::ptr::{self, NonNull};
use std::slice;

use bytes::Bytes;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::message::Message;

/// Objects `bytes` up to this length are copied, which takes less time than keeping them.
const COPIED_MAX: usize = 4096;

/// Returns the bytes of an object: `bytes`, a [`Message`], or any other with a contiguous buffer, which is copied.
pub(crate) fn body(object: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    if let Ok(bytes) = object.cast_exact::<PyBytes>() {
        let length = bytes.as_bytes().len();
        if length <= COPIED_MAX {
            return Ok(Bytes::copy_from_slice(bytes.as_bytes()));
        }
        return Ok(Bytes::from_owner(HeldBytes::new(bytes)));
    }
    if let Ok(message) = object.cast_exact::<Message>() {
        return Ok(message.get().bytes.clone());
    }
    let buffer = PyUntypedBuffer::get(object)?;
    let copied = copy(&buffer);
    buffer.release(object.py());
    copied
}

/// Copies a buffer.
fn copy(buffer: &PyUntypedBuffer) -> PyResult<Bytes> {
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("the buffer of a body must be contiguous"));
    }
    let length = buffer.len_bytes();
    let mut copied = Vec::<u8>::with_capacity(length);
    if length > 0 {
        // SAFETY: the buffer is contiguous and in place while it is not released, and the copy has room for its bytes. They are not
        // borrowed: another thread of the program may write to them.
        unsafe {
            ptr::copy_nonoverlapping(buffer.buf_ptr().cast::<u8>(), copied.as_mut_ptr(), length);
            copied.set_len(length);
        }
    }
    Ok(copied.into())
}

/// An object `bytes`, which never changes.
struct HeldBytes {
    start: NonNull<u8>,
    length: usize,
    /// Dropped without the GIL, it is put on a list of pyo3.
    _object: Py<PyBytes>,
}

// SAFETY: the memory is only read, and the object keeps it in place.
unsafe impl Send for HeldBytes {}
// SAFETY: as above.
unsafe impl Sync for HeldBytes {}

impl HeldBytes {
    fn new(object: &Bound<'_, PyBytes>) -> Self {
        let bytes = object.as_bytes();
        let (start, length) = (NonNull::from(bytes).cast(), bytes.len());
        Self { start, length, _object: object.clone().unbind() }
    }
}

impl AsRef<[u8]> for HeldBytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the object lives as long as `self`, and `bytes` neither moves nor changes.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}
