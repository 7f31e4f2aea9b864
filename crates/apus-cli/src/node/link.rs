//! Arguments of both the load generator and the server.

use std::path::PathBuf;

use anyhow::{Context, Result};
use apus::net::{Faults, cpu};
use apus::{Delivery, Links};
use apus_bench::misuse::Misuse;
use apus_bench::node::link::{BodyFormat, LinkOptions, Protocol};

use crate::arguments;

/// How the node reaches the network, the same for client and server.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct LinkArgs {
    /// Protocol; must be the same on both sides
    #[arg(long, value_name = "PROTOCOL", default_value = "apus")]
    protocol: Protocol,
    /// Links of Apus: udp, raw (IP protocol 146, as the Linux Homa module speaks it; needs CAP_NET_RAW) or both
    #[arg(long, value_name = "LINK", default_value = "udp", value_parser = arguments::links)]
    link: Links,
    /// Packet delivery of Apus: base, defer:20 (µs), napibusy, fullbusy, suspend or suspend:20, with parameters like ,budget=32
    #[arg(long, value_name = "MODE", default_value = "suspend", value_parser = arguments::delivery)]
    delivery: Delivery,
    /// Format of messages, the same on both sides: apus, or cp-node for the load generator of the Linux module
    #[arg(long, value_name = "FORMAT", default_value = "apus")]
    body: BodyFormat,
    /// Inject faults into outgoing packets: loss=0.1,dup=0.05,reorder=0.05,corrupt=0.001,delay=50us,jitter=10us,seed=7
    #[arg(long, value_name = "SPEC")]
    fault: Option<Faults>,
    /// Write all packets to FILE, for Wireshark
    #[arg(long, value_name = "FILE.pcapng")]
    pub(super) capture: Option<PathBuf>,
}

impl LinkArgs {
    pub(super) fn options(&self) -> LinkOptions {
        LinkOptions {
            protocol: self.protocol,
            link: self.link,
            delivery: self.delivery,
            body: self.body,
            fault: self.fault,
            capture: self.capture.clone(),
        }
    }
}

/// Keeps the process on a CPU, when one is named.
///
/// # Errors
/// When it may not run there.
pub(super) fn pin(cpu: Option<usize>) -> Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    let allowed = cpu::allowed();
    if !allowed.contains(&cpu) {
        let allowed: Vec<String> = allowed.iter().map(ToString::to_string).collect();
        let allowed = allowed.join(", ");
        return Err(Misuse(format!("'--pin {cpu}': the CPUs allowed here are {allowed}")).into());
    }
    cpu::pin_current_thread(cpu).with_context(|| format!("'--pin {cpu}'"))
}
