//! Measurements in turn, each with a new server process and a new client thread on the requested CPUs, and with the floor of the
//! same second.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::floor::{self, Floor};
use crate::peer::{CpuTimes, Meter, ServerProcess};
use crate::pin::{Pin, on_cpu};
use crate::server;
use crate::transport::{self, Transport};
use apus_node::message;
use apus_node::transport::interface::{Client, ClientOptions, Health, NodeOptions};

/// Settings common to all measurements of a command.
#[derive(Clone, Debug)]
pub(crate) struct Runner {
    /// The CPUs of the two sides.
    pub(crate) pin: Pin,
    /// Settings of Apus nodes.
    pub(crate) node: NodeOptions,
}

/// Disturbances beside a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beside {
    /// The health of both sides.
    pub(crate) health: Health,
    /// The floor just before and after it, where both sides have a CPU of their own.
    pub(crate) floor: Option<Floor>,
}

impl Runner {
    /// Runs `work` with a client of `transport` that is connected to its own server. Also returns what was seen beside it.
    ///
    /// # Errors
    /// If either side cannot start, and the errors of `work`.
    pub(crate) fn run<T: Send>(
        &self,
        transport: Transport,
        connections: usize,
        work: impl FnOnce(&mut dyn Client, Meter) -> Result<T> + Send,
    ) -> Result<(T, Beside)> {
        let before = floor::round_trip(self.pin)?;
        let (client_cpu, server_cpu) = self.pin.cpus();
        let peer: ServerProcess<String> = ServerProcess::start(
            server::ROLE,
            &server::TransportConfig {
                transport,
                node: self.node.clone(),
                cpu: server_cpu,
                reads_all: message::reads_every_byte(),
            },
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
        let floor = Floor::of(before, floor::round_trip(self.pin)?);
        Ok((result, Beside { health, floor }))
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
