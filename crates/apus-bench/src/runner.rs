//! One measurement after another: a fresh server process and a fresh client thread for each, on the CPUs asked for.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::peer::{CpuTimes, Meter, Peer};
use crate::pin::{Pin, on_cpu};
use crate::server;
use crate::transport::{self, Transport};
use apus_node::transport::interface::{Client, ClientOptions, Health, NodeOptions};

/// What is the same for all measurements of a command.
#[derive(Clone, Debug)]
pub(crate) struct Runner {
    /// Where the two sides run.
    pub(crate) pin: Pin,
    /// What nodes of Apus are set to.
    pub(crate) node: NodeOptions,
}

impl Runner {
    /// Has `work` done with a client of `transport` connected to a server of its own. Also returns how both sides fared.
    ///
    /// # Errors
    /// When either side cannot start, and what `work` returns.
    pub(crate) fn run<T: Send>(
        &self,
        transport: Transport,
        connections: usize,
        work: impl FnOnce(&mut dyn Client, Meter) -> Result<T> + Send,
    ) -> Result<(T, Health)> {
        let (client_cpu, server_cpu) = self.pin.cpus();
        let peer: Peer<String> = Peer::start(
            server::ROLE,
            &server::Options { transport, node: self.node.clone(), cpu: server_cpu },
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

/// Has `work` done twice, for a warm-up of a tenth of `duration` and then for all of it; returns what came of the second
/// time and the CPU time it took.
///
/// # Errors
/// As `work` does, and when the server is gone.
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
