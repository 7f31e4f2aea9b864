//! `apus bench-server`, the hidden other half of `apus bench`: the same program in its own process.
//!
//! It prints its address as one line, serves until its standard input closes, prints one line of JSON and exits. So it never
//! outlives the benchmark, even if that is killed.

use std::io::Write;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::peer::until_closed;
use crate::pin::stay_on;
use crate::transport::{self, Transport};
use apus_node::message;
use apus_node::transport::interface::NodeOptions;

/// The name of this role.
pub(crate) const ROLE: &str = "transport";

/// Configuration of a server over one of the transports.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TransportConfig {
    /// Transport to serve.
    #[serde(with = "apus_node::as_text")]
    pub(crate) transport: Transport,
    /// Settings of an Apus node.
    pub(crate) node: NodeOptions,
    /// CPU to stay on.
    pub(crate) cpu: Option<usize>,
    /// Whether to read every byte of the requests.
    pub(crate) reads_all: bool,
}

/// Serves until standard input closes.
///
/// # Errors
/// If the kernel refuses a socket or the CPU.
pub(crate) fn run(options: &TransportConfig, output: &mut dyn Write) -> Result<()> {
    stay_on(options.cpu)?;
    message::read_every_byte(options.reads_all);
    let server = transport::bind(options.transport, options.node.clone())?;
    let (address, health_probe) = (server.address(), server.health_probe());
    until_closed(address, move || server.run(), health_probe, output)
}
