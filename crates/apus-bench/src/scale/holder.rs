//! `apus bench-holder`, the hidden server of `apus bench scale`: it holds a number of requests, and answers the oldest when another
//! one arrives.

use std::collections::VecDeque;
use std::io::Write;
use std::net::SocketAddr;

use anyhow::Result;
use apus::{Config, Delivery, EngineAt, Flush, Links, Node, Port, RecvError, Request};
use serde::{Deserialize, Serialize};

use crate::peer::until_closed;
use crate::pin::stay_on;
use apus_node::transport::over_apus::{PORT, health};

/// Upper bound on requests taken at once.
pub(super) const BATCH_MAX: usize = 64;

/// Upper bound on outstanding calls to one peer.
const CALLS_MAX: u32 = 1 << 20;

/// Upper bound on remembered peers.
const PEERS_MAX: usize = 1 << 17;

/// Upper bound on held bytes, for one peer and for all.
const BUDGET: u64 = 8 << 30;

/// The name of this role.
pub(crate) const ROLE: &str = "holder";

/// Configuration of the server that holds requests.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct HolderConfig {
    /// Address to listen at; 0.0.0.0 takes all of 127.0.0.0/8
    pub(crate) listen: SocketAddr,
    /// Packet delivery.
    #[serde(with = "apus_node::as_text")]
    pub(crate) delivery: Delivery,
    /// Requests kept
    pub(crate) held: u32,
    /// CPU to stay on
    pub(crate) cpu: Option<usize>,
}

/// Serves until standard input closes.
///
/// # Errors
/// If the node cannot start or the kernel refuses the CPU.
pub(crate) fn run(options: HolderConfig, output: &mut dyn Write) -> Result<()> {
    stay_on(options.cpu)?;
    let node = Node::start(&config(options.listen, options.delivery)?)?;
    let (address, service, held) = (node.local_addr(), node.bind(PORT)?, options.held as usize);
    until_closed(address, move || Err(hold(&service, held).into()), || health(&node), output)
}

/// Settings with room for all held requests. Small packets do not share datagrams: with one peer they could, with many they cannot,
/// and this benchmark does not measure that. Settings of the environment take precedence, except that calls use UDP.
///
/// # Errors
/// If the environment has an impossible setting.
pub(super) fn config(listen: SocketAddr, delivery: Delivery) -> Result<Config> {
    let mut config = Config::new();
    config.listen(listen).delivery(delivery);
    config.bundles(false).gso(false);
    config.calls_max(CALLS_MAX).peers_max(PEERS_MAX);
    config.peer_budget(BUDGET).socket_budget(BUDGET).total_budget(BUDGET);
    config.apply_environment()?.link(Links::Udp).engine(EngineAt::Own);
    Ok(config)
}

/// Holds `held` requests. Returns only if receiving fails.
fn hold(service: &Port, held: usize) -> RecvError {
    let mut kept: VecDeque<Request> = VecDeque::with_capacity(held + BATCH_MAX);
    let mut batch = Vec::with_capacity(BATCH_MAX);
    loop {
        if let Err(error) = service.recv_many(&mut batch, BATCH_MAX, None) {
            return error;
        }
        kept.extend(batch.drain(..));
        let surplus = kept.len().saturating_sub(held);
        for (left, mut request) in (0..surplus).rev().zip(kept.drain(..surplus)) {
            let body = request.take_body();
            let flush = if left > 0 { Flush::Later } else { Flush::Now };
            // A client that is gone needs no answer.
            let _ = request.reply_with(body, flush);
        }
    }
}
