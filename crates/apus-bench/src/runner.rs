//! Measurements in turn, each with a new server process and a new client thread on the requested CPUs.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::peer::{CpuTimes, Meter, ServerProcess};
use crate::pin::{Pin, on_cpu};
use crate::server;
use crate::transport::{self, Transport};
use apus_node::transport::interface::{Client, ClientOptions, Health, NodeOptions};

/// Settings common to all measurements of a command.
#[derive(Clone, Debug)]
pub(crate) struct Runner {
    /// The CPUs of the two sides.
    pub(crate) pin: Pin,
    /// Settings of Apus nodes.
    pub(crate) node: NodeOptions,
}

impl Runner {
    /// Runs `work` with a client of `transport` that is connected to its own server. Also returns the health of both sides.
    ///
    /// # Errors
    /// If either side cannot start, and the errors of `work`.
    pub(crate) fn run<T: Send>(
        &self,
        transport: Transport,
        connections: usize,
        work: impl FnOnce(&mut dyn Client, Meter) -> Result<T> + Send,
    ) -> Result<(T, Health)> {
        let (client_cpu, server_cpu) = self.pin.cpus();
        let peer: ServerProcess<String> = ServerProcess::start(
            server::ROLE,
            &server::TransportConfig { transport, node: self.node.clone(), cpu: server_cpu },
        )?;
        let (address, meter) = (peer.address().as_str(), peer.meter());
        let options = ClientOptions { connections, node: self.node.clone() };
        let result = on_cpu(client_cpu, || {
            let mut client = transport::connect(transport, address, options)?;
            let result = work(&mut *client, meter)?;
            Ok((result, client.health()?))
        });
        let (result, mut health) = result.with_context(|| transport.name())?;
        health += peer.finish()?.health;
        Ok((result, health))
    }
}

/// Runs `work` twice, for a warm-up of a tenth of `duration` and then for `duration`. Returns the result and the CPU time of the
/// second run.
///
/// # Errors
/// The errors of `work`, and if the server is gone.
pub(crate) fn measured<T>(
    meter: Meter,
    duration: Duration,
    mut work: impl FnMut(Duration) -> Result<T>,
) -> Result<(T, CpuTimes)> {
    work(duration / 10)?;
    let before = meter.read()?;
    let result = work(duration)?;
    Ok((result, meter.read()? - before))
}
