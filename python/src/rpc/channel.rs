//! Channels.

use std::sync::Arc;

use apus_rpc::Status;
use apus_rpc::envelope::EnvelopeLimits;
use bytes::Bytes;
use pyo3::prelude::*;

use crate::blocking::block_on;
use crate::bodies::body;
use crate::errors::{IntoException, OrRaise};
use crate::node::{PyNode, some_seconds};
use crate::rpc::client_call::{ClientCall, RpcCall};
use crate::rpc::convert::metadata;
use crate::rpc::frames::frame;

impl IntoException for apus_rpc::ConnectError {
    fn class(&self) -> &'static str {
        match self {
            Self::Resolve(_) | Self::Endpoints { .. } => "ResolveError",
            Self::Start(_) => "StartError",
            _ => "OpenError",
        }
    }
}

/// Leads to the servers of a target.
#[pyclass(frozen, module = "apus._native")]
pub(crate) struct RpcChannel {
    channel: apus_rpc::Channel,
    longest_received: usize,
}

#[pymethods]
impl RpcChannel {
    /// A channel to a target such as ``apus://HOST:PORT``. The thread waits for the resolver.
    #[new]
    fn new(py: Python<'_>, target: &str, node: &PyNode, longest_received: usize) -> PyResult<Self> {
        let limits = EnvelopeLimits::new().frame_max(usize::MAX);
        let builder = apus_rpc::Channel::builder(target).limits(limits);
        let builder = node.with(py, |node| builder.node(node))?;
        let channel = py.detach(|| builder.build()).or_raise(py)?;
        Ok(Self { channel, longest_received })
    }

    /// Begins a call, with the first request if there is one.
    #[pyo3(signature = (path, pairs, timeout, first, is_last, /))]
    fn start(
        &self,
        py: Python<'_>,
        path: &str,
        pairs: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
        first: Option<&Bound<'_, PyAny>>,
        is_last: bool,
    ) -> PyResult<RpcCall> {
        let (metadata, timeout) = (metadata(pairs)?, some_seconds(timeout.map(|it| it.max(0.0)))?);
        let first = first.map(body).transpose()?;
        let begun = py.detach(|| self.begin(path, metadata, timeout, first.as_ref(), is_last));
        Ok(RpcCall::new(Arc::new(match begun {
            Ok((sender, responses)) => ClientCall::new(sender, responses, self.longest_received),
            Err(status) => ClientCall::refused(status),
        })))
    }

    /// Performs first contact with the server.
    #[pyo3(signature = (timeout = None))]
    fn contact(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let mut contact = self.channel.contact();
        if let Some(timeout) = some_seconds(timeout)? {
            contact = contact.deadline(timeout);
        }
        block_on(py, contact.into_future())?.or_raise(py)
    }
}

type Begun = (Option<apus_rpc::StreamSender>, apus_rpc::Streaming);

impl RpcChannel {
    fn begin(
        &self,
        path: &str,
        metadata: apus_rpc::Metadata,
        timeout: Option<std::time::Duration>,
        first: Option<&Bytes>,
        is_last: bool,
    ) -> Result<Begun, Status> {
        let first = first.map(|first| frame(first)).transpose()?.unwrap_or_default();
        let path = Bytes::copy_from_slice(path.as_bytes());
        let mut call = self.channel.stream(path).all_metadata(metadata);
        if let Some(timeout) = timeout {
            call = call.deadline(timeout);
        }
        call.start_raw(first, is_last)
    }
}
