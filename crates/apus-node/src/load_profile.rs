//! The load profile of a client.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process;
use std::sync::Arc;

use anyhow::{Context, Error, Result};
use apus::{Address, Links, ResolveError, Scheme};
use apus_load::seeded;
use apus_load::{Row, Workload};
use rand::RngExt;

use super::link::{BodyFormat, LinkOptions, Protocol, needs_apus};
use crate::arguments;
use crate::pace::Pace;
use crate::transport::over_apus::Body;
use apus_load::misuse::Misuse;

/// Default upper bound on outstanding calls in an open loop.
const OPEN_LOOP_MAX: u32 = 200;

/// Load profile: the calls to make, and the servers.
#[derive(Clone, Debug, clap::Args)]
pub struct LoadProfile {
    /// How the node reaches the network
    #[command(flatten)]
    pub link: LinkOptions,
    /// Servers: HOST:PORT of the first port; HOST:PORT@UDPPORT if the node's UDP port is not 20146; homa://HOST:PORT for IP protocol 146
    #[arg(long, value_name = "ADDR,…", value_delimiter = ',', required = true)]
    pub servers: Vec<String>,
    /// Number of ports to call on each server, from the given port on
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub server_ports: u16,
    /// Lengths of requests: w1 to w5, a size, mix, or weight:size,…
    #[arg(long, value_name = "WORKLOAD", default_value = "100", value_parser = arguments::workload)]
    pub workload: Workload,
    /// Longest request; longer ones are cut. The Linux module takes no more than the default
    #[arg(long, value_name = "BYTES", default_value = "1MB", value_parser = arguments::size)]
    pub longest: u32,
    /// Load: request bytes in Gb/s, with exponential gaps between requests; 0 is a closed loop
    #[arg(long, value_name = "GBPS", allow_negative_numbers = true, default_value_t = 0.0, value_parser = arguments::gbps_or_closed_loop)]
    pub gbps: f64,
    /// Upper bound on outstanding calls, over all ports [default: 1; with --gbps, 200]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub client_max: Option<u32>,
    /// Client ports, each with a thread that sends
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub ports: u16,
    /// Threads that wait for replies at each port; with 0, as always with TCP, the sending thread waits too
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=256))]
    pub port_receivers: u16,
    /// Request replies of 100 bytes instead of replies as long as the request
    #[arg(long)]
    pub one_way: bool,
    /// Instead of a load, make N calls of every length of the workload, one at a time
    #[arg(long, value_name = "N", conflicts_with_all = ["gbps", "client_max", "verify"],
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub unloaded: Option<u32>,
    /// Check every byte of every request and reply, and that no request is executed twice
    #[arg(long)]
    pub verify: bool,
    /// End the run at the first call that fails
    #[arg(long)]
    pub fail_fast: bool,
    /// Seconds until the end; 0 runs until Ctrl-C or SIGTERM
    #[arg(long, value_name = "S", allow_negative_numbers = true, default_value_t = 0.0, value_parser = arguments::seconds_or_endless)]
    pub seconds: f64,
    /// Write the newest 500,000 calls to FILE, one per line: bytes of the request, round trip in µs
    #[arg(long, value_name = "FILE")]
    pub dump: Option<PathBuf>,
    /// CPU to which all threads are pinned
    #[arg(long, value_name = "CPU")]
    pub pin: Option<usize>,
}

impl LoadProfile {
    /// Refuses contradictory options.
    ///
    /// # Errors
    /// If options contradict each other: with the options and the reason.
    pub fn check(&self) -> Result<()> {
        self.link.check()?;
        if self.link.protocol == Protocol::Tcp {
            needs_apus("--verify", self.verify)?;
            needs_apus("--unloaded", self.unloaded.is_some())?;
        }
        if self.verify && self.link.body == BodyFormat::CpNode {
            let why = "a cp_node answers with the bytes of the request, so they cannot be checked";
            return Err(Misuse(format!("'--verify' with '--body cp-node': {why}")).into());
        }
        Ok(())
    }

    /// Homa addresses of all ports of all servers.
    ///
    /// # Errors
    /// If one is malformed or its host is unknown.
    pub(super) fn apus_servers(&self) -> Result<Arc<[Address]>> {
        let mut addresses = Vec::new();
        for server in &self.servers {
            let first = self.resolve(server).map_err(|error| unresolved(server, error))?;
            for port in 0..self.server_ports {
                let port = first.port.checked_add(port).with_context(|| too_high(server))?;
                addresses.push(Address::new(first.host, port));
            }
        }
        Ok(addresses.into())
    }

    /// Resolves a server. A node with only a raw link uses Homa addresses.
    fn resolve(&self, server: &str) -> Result<Address, ResolveError> {
        if self.link.link == Links::Raw && !server.contains("://") {
            return apus::resolve(&format!("{}{server}", Scheme::HOMA));
        }
        apus::resolve(server)
    }

    /// TCP addresses of all ports of all servers.
    pub(super) fn tcp_servers(&self) -> Result<Vec<SocketAddr>> {
        let mut addresses = Vec::new();
        for server in &self.servers {
            if server.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
                return Err(Misuse(format!("'--servers {server}': expected HOST:PORT")).into());
            }
            let mut found =
                server.to_socket_addrs().with_context(|| format!("'--servers {server}'"))?;
            let first =
                found.next().with_context(|| format!("'--servers {server}': no such host"))?;
            for port in 0..self.server_ports {
                let port = first.port().checked_add(port).with_context(|| too_high(server))?;
                addresses.push(SocketAddr::new(first.ip(), port));
            }
        }
        Ok(addresses)
    }

    /// Upper bound on outstanding calls of each port.
    pub(super) fn port_max(&self) -> u32 {
        let default = if self.gbps > 0.0 { OPEN_LOOP_MAX } else { 1 };
        (self.client_max.unwrap_or(default) / u32::from(self.ports)).max(1)
    }

    pub(super) fn pace(&self, port: u64) -> Result<Pace> {
        let mean = self.workload.mean(Some(self.longest)).max(f64::from(self.body().shortest()));
        Ok(Pace::for_throughput(self.gbps / f64::from(self.ports), mean, port)?)
    }

    /// The format of messages.
    pub(super) fn body(&self) -> Body {
        match self.link.body {
            BodyFormat::CpNode => Body::CpNode,
            BodyFormat::Apus if self.verify => {
                Body::Verified(seeded(wall_clock() ^ u64::from(process::id())).random())
            }
            BodyFormat::Apus => Body::Pattern,
        }
    }

    /// Calls `make` once for each port.
    pub(super) fn for_each_port<T>(&self, make: impl FnMut() -> Result<T>) -> Result<Vec<T>> {
        std::iter::repeat_with(make).take(self.ports.into()).collect()
    }

    /// A row with the settings, without measurements.
    pub(super) fn row(&self) -> Row {
        let mut row = Row::new(self.link.transport()).set("bench", "node client");
        if self.link.protocol == Protocol::Apus {
            row.put("delivery", self.link.delivery.to_string());
            row.put("receivers", u32::from(self.port_receivers));
        }
        row.set("workload", self.workload.to_string()).set("ports", u32::from(self.ports))
    }
}

/// A malformed address is [`Misuse`]; an unknown host is a failure.
fn unresolved(server: &str, error: ResolveError) -> Error {
    match error {
        ResolveError::Form { .. } => Misuse(format!("'--servers {server}': {error}")).into(),
        other => Error::new(other).context(format!("'--servers {server}'")),
    }
}

fn too_high(server: &str) -> String {
    format!("'--servers {server}' with '--server-ports': ports must be at most 65535")
}

/// Nanoseconds of the wall clock, which distinguishes clients.
fn wall_clock() -> u64 {
    let since =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64
}
