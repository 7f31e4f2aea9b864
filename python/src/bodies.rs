//! Bodies of messages: from objects with a buffer, without a copy where the object cannot change.
//!
//! The engine drops a body on any thread, also under its lock. A buffer is released with Python's lock, so it waits in a list until the
//! next operation of a thread that has it.
#![expect(unsafe_code, reason = "the memory of Python's buffers")]

use std::ptr::NonNull;
use std::slice;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::message::Message;

/// Bodies up to this length are copied, which takes less time than keeping their objects.
const COPIED_MAX: usize = 4096;

/// How long the object of a body stays as it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lent {
    /// The caller waits for the end of its call.
    UntilTheEnd,
    /// The program may change an object that can be changed as soon as the operation returns.
    Briefly,
}

/// Returns the bytes of an object: `bytes`, a [`Message`], or any other with a contiguous buffer.
pub(crate) fn body(object: &Bound<'_, PyAny>, lent: Lent) -> PyResult<Bytes> {
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
    release(object.py());
    let buffer = PyUntypedBuffer::get(object)?;
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("the buffer of a body must be contiguous"));
    }
    let is_copied =
        buffer.len_bytes() <= COPIED_MAX || (lent == Lent::Briefly && !buffer.readonly());
    let held = HeldBuffer::new(buffer);
    if is_copied {
        let copied = Bytes::copy_from_slice(held.as_ref());
        drop(held);
        release(object.py());
        return Ok(copied);
    }
    Ok(Bytes::from_owner(held))
}

/// Memory of an object of Python.
#[derive(Clone, Copy)]
struct Memory {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the memory is read only, and its owner keeps it in place.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// # Safety
    ///
    /// The object that has the memory lives longer than the result and keeps it in place.
    unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the caller vouches for it.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

/// An object `bytes`, which never changes.
struct HeldBytes {
    memory: Memory,
    /// Dropped without Python's lock, it is put on a list of pyo3.
    _object: Py<PyBytes>,
}

impl HeldBytes {
    fn new(object: &Bound<'_, PyBytes>) -> Self {
        let bytes = object.as_bytes();
        let memory = Memory { start: NonNull::from(bytes).cast(), length: bytes.len() };
        Self { memory, _object: object.clone().unbind() }
    }
}

impl AsRef<[u8]> for HeldBytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the object lives as long as `self`, and `bytes` neither moves nor changes.
        unsafe { self.memory.bytes() }
    }
}

/// A buffer of another object, which is pinned: it may not be resized meanwhile. A program that writes to it while a call waits sends
/// either bytes.
struct HeldBuffer {
    memory: Memory,
    buffer: Option<PyUntypedBuffer>,
}

impl HeldBuffer {
    fn new(buffer: PyUntypedBuffer) -> Self {
        let start = NonNull::new(buffer.buf_ptr().cast()).unwrap_or(NonNull::dangling());
        let memory = Memory { start, length: buffer.len_bytes() };
        Self { memory, buffer: Some(buffer) }
    }
}

impl AsRef<[u8]> for HeldBuffer {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the buffer is contiguous, and pinned as long as `self` has it.
        unsafe { self.memory.bytes() }
    }
}

impl Drop for HeldBuffer {
    fn drop(&mut self) {
        let Some(buffer) = self.buffer.take() else { return };
        let mut over = OVER.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        over.push(buffer);
        ARE_OVER.store(true, Ordering::Release);
    }
}

/// Buffers that are no longer needed.
static OVER: Mutex<Vec<PyUntypedBuffer>> = Mutex::new(Vec::new());
static ARE_OVER: AtomicBool = AtomicBool::new(false);

/// Releases the buffers that are no longer needed.
#[inline]
pub(crate) fn release(py: Python<'_>) {
    if ARE_OVER.load(Ordering::Acquire) {
        release_all(py);
    }
}

#[cold]
fn release_all(py: Python<'_>) {
    ARE_OVER.store(false, Ordering::Release);
    let over = std::mem::take(&mut *OVER.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    // Code of the objects may run here, so the list is not locked.
    over.into_iter().for_each(|buffer| buffer.release(py));
}
