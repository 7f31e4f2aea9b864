//! Metadata and statuses between Python and `apus-rpc`.

use apus_rpc::{Code, Metadata, MetadataError, MetadataValue, Status};
use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use crate::errors::misuse;

/// The names that an envelope has a place of its own for.
const NOT_SENT: [&str; 4] = ["grpc-timeout", "grpc-status", "grpc-message", "te"];

/// Pairs of a name and a value. Values of names that end in ``-bin`` are bytes.
pub(crate) fn metadata(pairs: Option<&Bound<'_, PyAny>>) -> PyResult<Metadata> {
    let mut metadata = Metadata::new();
    let Some(pairs) = pairs.filter(|pairs| !pairs.is_none()) else { return Ok(metadata) };
    for pair in pairs.try_iter()? {
        let (name, value): (String, Bound<'_, PyAny>) = pair?.extract()?;
        if NOT_SENT.contains(&name.as_str()) {
            continue;
        }
        let bytes = match value.cast::<PyString>() {
            Ok(text) => Bytes::copy_from_slice(text.to_str()?.as_bytes()),
            Err(_) => Bytes::from(value.extract::<Vec<u8>>()?),
        };
        append(&mut metadata, &name, bytes).map_err(|error| misuse(error.to_string()))?;
    }
    Ok(metadata)
}

fn append(metadata: &mut Metadata, name: &str, value: Bytes) -> Result<(), MetadataError> {
    if name.ends_with("-bin") {
        return metadata.append_bin(name, value);
    }
    let text = String::from_utf8(value.to_vec()).map_err(|_| MetadataError::Text(name.to_owned()));
    metadata.append(name, text?)
}

/// The pairs as a list of tuples.
pub(crate) fn pairs<'py>(py: Python<'py>, metadata: &Metadata) -> PyResult<Bound<'py, PyList>> {
    let all = PyList::empty(py);
    for (name, value) in metadata.iter() {
        let value = match value {
            MetadataValue::Text(text) => PyString::new(py, text).into_any(),
            MetadataValue::Binary(bytes) => PyBytes::new(py, bytes).into_any(),
        };
        all.append((name, value))?;
    }
    Ok(all)
}

/// A status as a tuple: code, message, details, trailers, and whether the request may have been executed.
pub(crate) fn status<'py>(py: Python<'py>, status: &Status) -> PyResult<Bound<'py, PyTuple>> {
    let details = PyBytes::new(py, status.details());
    let trailers = pairs(py, status.metadata())?;
    let (code, executed) = (status.code().number(), status.may_have_executed());
    (code, status.message(), details, trailers, executed).into_pyobject(py)
}

/// A status of a handler.
pub(crate) fn to_status(code: u64, message: String, details: Option<Vec<u8>>) -> Status {
    let status = Status::new(Code::from_number(code), message);
    match details {
        Some(details) if !details.is_empty() => status.with_details(details),
        _ => status,
    }
}
