//! A message that was received.
#![expect(unsafe_code, reason = "the buffer protocol")]

use std::ffi::{c_int, c_void};

use bytes::Bytes;
use pyo3::basic::CompareOp;
use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyIterator, PyMemoryView, PySlice, PyString};

use crate::bodies::body;

/// Bytes that were received, without a copy: an object with a read-only buffer. ``memoryview(message)`` copies nothing, and
/// ``bytes(message)`` copies.
#[pyclass(frozen, module = "apus", weakref)]
pub(crate) struct Message {
    pub(crate) bytes: Bytes,
}

impl Message {
    pub(crate) fn new(bytes: Bytes) -> Self {
        Self { bytes }
    }

    /// A message as an object, or ``None``.
    pub(crate) fn or_none(py: Python<'_>, bytes: Option<Bytes>) -> PyResult<Py<PyAny>> {
        match bytes {
            Some(bytes) => Ok(Py::new(py, Self::new(bytes))?.into_any()),
            None => Ok(py.None()),
        }
    }
}

#[pymethods]
impl Message {
    fn __len__(&self) -> usize {
        self.bytes.len()
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.bytes)
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        PyBytes::new(py, &self.bytes).hash()
    }

    fn __richcmp__(&self, other: &Bound<'_, PyAny>, operation: CompareOp) -> PyResult<Py<PyAny>> {
        let py = other.py();
        let wanted = match operation {
            CompareOp::Eq => true,
            CompareOp::Ne => false,
            _ => return Ok(py.NotImplemented()),
        };
        let Ok(other) = body(other) else { return Ok(py.NotImplemented()) };
        Ok(((self.bytes == other) == wanted).into_pyobject(py)?.to_owned().into_any().unbind())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let shown = PyBytes::new(py, &self.bytes[..self.bytes.len().min(32)]).repr()?;
        let more = if self.bytes.len() > 32 { "..." } else { "" };
        Ok(format!("<apus.Message of {} bytes: {shown}{more}>", self.bytes.len()))
    }

    /// A byte, or a part. Parts with a step of 1 are messages that share the memory of this one.
    fn __getitem__(&self, index: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let py = index.py();
        if let Ok(slice) = index.cast::<PySlice>() {
            let length = isize::try_from(self.bytes.len())?;
            let indices = slice.indices(length)?;
            if indices.step == 1 {
                let start = usize::try_from(indices.start)?;
                let part = self.bytes.slice(start..start + indices.slicelength);
                return Ok(Py::new(py, Self::new(part))?.into_any());
            }
            return Ok(PyBytes::new(py, &self.bytes).get_item(slice)?.unbind());
        }
        let index: isize = index
            .extract()
            .map_err(|_| PyTypeError::new_err("a message is indexed by integers and slices"))?;
        let at = if index < 0 { index + isize::try_from(self.bytes.len())? } else { index };
        let byte = usize::try_from(at).ok().and_then(|at| self.bytes.get(at));
        let byte = byte.ok_or_else(|| PyIndexError::new_err("index out of range"))?;
        Ok(byte.into_pyobject(py)?.into_any().unbind())
    }

    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyIterator>> {
        PyMemoryView::from(slf)?.try_iter()
    }

    /// The text of the bytes, as ``bytes.decode``.
    #[pyo3(signature = (encoding = "utf-8", errors = "strict"))]
    fn decode<'py>(
        &self,
        py: Python<'py>,
        encoding: &str,
        errors: &str,
    ) -> PyResult<Bound<'py, PyString>> {
        let text = PyBytes::new(py, &self.bytes).call_method1("decode", (encoding, errors))?;
        Ok(text.cast_into()?)
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let bytes = &slf.get().bytes;
        let start = bytes.as_ptr().cast_mut().cast::<c_void>();
        let length = isize::try_from(bytes.len())?;
        // SAFETY: Python gives a view to fill in. The view keeps the message, which keeps the bytes in place; it is read-only.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, length, 1, flags) };
        if filled == -1 { Err(PyErr::fetch(slf.py())) } else { Ok(()) }
    }
}
