//! `apus bench-server`, the hidden other half of `apus bench`: the same program in a process of its own.
//!
//! It prints the address it serves as one line, serves until its standard input closes, then prints one line of JSON and
//! ends. So it never outlives the benchmark, however that ends.

use std::io::Write;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::peer::until_closed;
use crate::pin::stay_on;
use crate::transport::{self, Transport};
use apus_node::transport::interface::NodeOptions;

/// The name of this role.
pub(crate) const ROLE: &str = "transport";

/// How this role is set up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Options {
    /// Transport to serve.
    #[serde(with = "apus_node::as_text")]
    pub(crate) transport: Transport,
    /// What a node of Apus is set to.
    pub(crate) node: NodeOptions,
    /// CPU to stay on.
    pub(crate) cpu: Option<usize>,
}

/// Serves until standard input closes.
///
/// # Errors
/// When the kernel refuses a socket or the CPU.
pub(crate) fn run(options: &Options, output: &mut dyn Write) -> Result<()> {
    stay_on(options.cpu)?;
    let server = transport::bind(options.transport, options.node.clone())?;
    let (address, health_probe) = (server.address(), server.health_probe());
    until_closed(address, move || server.run(), health_probe, output)
}
