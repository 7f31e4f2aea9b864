//! Nodes and addresses.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use apus::net::{FaultLink, Faults};
use apus::{CloseError, Config, Node};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyString};

use crate::blocking::block_on;
use crate::client::Client;
use crate::errors::{IntoException, OrRaise, closed, misuse};
use crate::port::Port;
use crate::rpc::ended_ports::EndedPorts;
use crate::waiting;

/// An endpoint on the network, with settings by name: ``Node(listen="127.0.0.1:0", peer_budget="64 MiB")``.
#[pyclass(frozen, module = "apus", name = "Node", weakref)]
pub(crate) struct PyNode {
    /// `None` once it is closed.
    node: RwLock<Option<Node>>,
    ended_ports: Arc<EndedPorts>,
}

impl PyNode {
    /// Runs `run` on an open node.
    ///
    /// # Errors
    ///
    /// The node is closed.
    pub(crate) fn with<T>(&self, py: Python<'_>, run: impl FnOnce(&Node) -> T) -> PyResult<T> {
        self.handle().as_ref().map(run).ok_or_else(|| closed(py))
    }

    /// The node. The place is not locked meanwhile: a close waits for nobody.
    fn handle(&self) -> Option<Node> {
        self.node.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The ports of servers of the node that have ended.
    pub(crate) fn ended_ports(&self) -> &Arc<EndedPorts> {
        &self.ended_ports
    }

    /// Takes the node out, to close it.
    pub(crate) fn take(&self) -> Option<Node> {
        self.node.write().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Closes the node, unless it is closed. A handler of a signal that raises ends the wait and not the close.
    fn close_within(&self, py: Python<'_>, timeout: Duration) -> PyResult<Result<(), CloseError>> {
        let Some(node) = self.take() else { return Ok(Ok(())) };
        let closed = if timeout.is_zero() || !waiting::sees_signals() {
            py.detach(|| node.close(timeout))
        } else {
            block_on(py, node.close_async(timeout))?
        };
        self.ended_ports.close_all();
        Ok(closed)
    }
}

/// The text of a setting's value.
fn setting(value: &Bound<'_, PyAny>) -> PyResult<String> {
    if value.is_instance_of::<PyBool>() {
        return Ok(value.is_truthy()?.to_string());
    }
    let is_text = value.is_instance_of::<PyString>();
    if is_text || value.is_instance_of::<PyInt>() || value.is_instance_of::<PyFloat>() {
        return Ok(value.str()?.to_string());
    }
    Err(PyTypeError::new_err("the value of a setting is a str, an int, a float or a bool"))
}

fn start(config: &Config, faults: Option<Faults>) -> Result<Node, apus::StartError> {
    let Some(faults) = faults else { return Node::start(config) };
    let link = FaultLink::new(config.open_link()?, faults).expect("the faults were checked");
    Node::with_link(Box::new(link), config)
}

#[pymethods]
impl PyNode {
    #[new]
    #[pyo3(signature = (*, config = None, environment = true, server = false, faults = None, **settings))]
    fn new(
        py: Python<'_>,
        config: Option<&str>,
        environment: bool,
        server: bool,
        faults: Option<&str>,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let mut all = if server { Config::server() } else { Config::new() };
        if let Some(text) = config {
            all.apply_toml(text).or_raise(py)?;
        }
        for (key, value) in settings.into_iter().flatten() {
            all.set(key.cast::<PyString>()?.to_str()?, &setting(&value)?).or_raise(py)?;
        }
        if environment {
            all.apply_environment().or_raise(py)?;
        }
        let faults = faults.map(str::parse::<Faults>).transpose();
        let faults = faults.map_err(|error| misuse(error.to_string()))?;
        let node = py.detach(|| start(&all, faults)).or_raise(py)?;
        Ok(Self { node: RwLock::new(Some(node)), ended_ports: Arc::default() })
    }

    /// The address of the link, ``IP:UDPPORT``.
    #[getter]
    fn local_addr(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |node| node.local_addr().to_string())
    }

    /// The address of a service of this node, as clients of this host name it.
    fn address(&self, py: Python<'_>, port: u16) -> PyResult<Address> {
        let mut host = self.with(py, Node::local_addr)?;
        if host.ip().is_unspecified() {
            host.set_ip(match host.ip() {
                std::net::IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                std::net::IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            });
        }
        Ok(Address { address: apus::Address::new(host, port) })
    }

    /// Opens a client on a port that the node chooses.
    fn client(&self, py: Python<'_>) -> PyResult<Client> {
        Ok(Client::new(self.with(py, Node::client)?.or_raise(py)?))
    }

    /// Opens a port, 1 to 32766, that clients can call.
    fn bind(&self, py: Python<'_>, port: u16) -> PyResult<Port> {
        self.ended_ports.close(port);
        Ok(Port::new(self.with(py, |node| node.bind(port))?.or_raise(py)?))
    }

    /// Finds the address of a service, ``HOST:PORT`` or ``HOST:PORT@UDPPORT``, and remembers its name for certificates.
    fn resolve(&self, py: Python<'_>, text: &str) -> PyResult<Address> {
        let node = self.handle().ok_or_else(|| closed(py))?;
        Ok(Address { address: py.detach(|| node.resolve(text)).or_raise(py)? })
    }

    /// The way of messages to another node: ``memory``, ``engine``, ``udp`` or ``raw``.
    fn route(&self, py: Python<'_>, to: &Bound<'_, PyAny>) -> PyResult<String> {
        let to = Address::of(to)?;
        self.with(py, |node| format!("{:?}", node.route(to)).to_lowercase())
    }

    /// The counters of the node since its start.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.with(py, Node::stats)?;
        let all = PyDict::new(py);
        for (name, value) in stats.iter() {
            all.set_item(name, value)?;
        }
        Ok(all)
    }

    /// Waits until calls and requests have ended, for at most ``timeout`` seconds, and stops the node. A node that is closed already is
    /// no error.
    #[pyo3(signature = (timeout = 0.0))]
    fn close(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let timeout = seconds(timeout)?;
        self.close_within(py, timeout)?.or_raise(py)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(
        &self,
        py: Python<'_>,
        exception: &Bound<'_, pyo3::types::PyTuple>,
    ) -> PyResult<()> {
        let _ = exception;
        match self.close_within(py, Duration::ZERO)? {
            Ok(()) | Err(CloseError::Unfinished { .. }) => Ok(()),
            Err(error) => Err(error.exception(py)),
        }
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match self.with(py, Node::local_addr) {
            Ok(address) => format!("<apus.Node at {address}>"),
            Err(_) => "<apus.Node, closed>".to_owned(),
        }
    }
}

/// The address of a service: its node and its port. ``Address("10.0.0.7:4000")``, or ``"10.0.0.7:4000@7000"`` for another UDP port than
/// 20146. Names are found by ``apus.resolve``.
#[pyclass(frozen, module = "apus", eq, hash)]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    address: apus::Address,
}

impl Address {
    /// The address in an argument: an `Address`, or a numeric text.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<apus::Address> {
        if let Ok(address) = object.cast::<Self>() {
            return Ok(address.get().address);
        }
        match object.cast::<PyString>() {
            Ok(text) => Self::parse(text.to_str()?),
            Err(_) => Err(PyTypeError::new_err("an address is an apus.Address or a str")),
        }
    }

    fn parse(text: &str) -> PyResult<apus::Address> {
        text.parse().map_err(|error: apus::AddressError| {
            misuse(format!("{error}; apus.resolve() finds the address of a name"))
        })
    }
}

#[pymethods]
impl Address {
    #[new]
    fn new(text: &str) -> PyResult<Self> {
        Ok(Self { address: Self::parse(text)? })
    }

    /// The IP address of the node.
    #[getter]
    fn host(&self) -> String {
        self.address.host.ip().to_string()
    }

    /// The UDP port of the node; 0 for one that is reached by IP protocol 146.
    #[getter]
    fn udp_port(&self) -> u16 {
        self.address.host.port()
    }

    /// The Homa port of the service.
    #[getter]
    fn port(&self) -> u16 {
        self.address.port
    }

    fn __str__(&self) -> String {
        self.address.to_string()
    }

    fn __repr__(&self) -> String {
        format!("Address('{}')", self.address)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> (Bound<'py, pyo3::types::PyType>, (String,)) {
        (slf.get_type(), (slf.get().address.to_string(),))
    }
}

impl From<apus::Address> for Address {
    fn from(address: apus::Address) -> Self {
        Self { address }
    }
}

/// Finds the address of a service by its name.
#[pyfunction]
pub(crate) fn resolve(py: Python<'_>, text: &str) -> PyResult<Address> {
    Ok(py.detach(|| apus::resolve(text)).or_raise(py)?.into())
}

/// A time in seconds.
pub(crate) fn seconds(time: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(time)
        .map_err(|error| misuse(format!("a time of {time} s: {error}")))
}

/// A time in seconds that may be absent.
#[inline]
pub(crate) fn some_seconds(time: Option<f64>) -> PyResult<Option<Duration>> {
    time.map(seconds).transpose()
}
