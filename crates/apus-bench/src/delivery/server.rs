//! `apus bench-store`, the hidden server of `apus bench delivery`: the key-value store on one core, in its own process. Its threads
//! share the core with Apus' background thread, like the application and interrupts in the original experiment.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use apus::{Bytes, Config, Delivery, EngineAt, Flush, Links, Node, Port, Request};
use apus_net::cpu;
use derive_more::Sub;
use serde::{Deserialize, Serialize};

use super::store::{Query, Status, Store};
use crate::peer::{ServerProcess, until_closed};
use crate::pin::stay_on;
use apus_node::transport::over_apus::{PORT, health};

/// Upper bound on requests that a thread takes at once, as in the experiment's servers.
pub(crate) const BATCH_MAX: usize = 64;

/// The name of this role.
pub(crate) const ROLE: &str = "store";

/// Configuration of the key-value server.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct StoreConfig {
    /// Packet delivery.
    #[serde(with = "apus_node::as_text")]
    pub(crate) delivery: Delivery,
    /// Threads that serve the one port
    pub(crate) threads: u32,
    /// Records in the store
    pub(crate) records: u32,
    /// CPU to stay on
    pub(crate) cpu: Option<usize>,
}

/// The server's counters since its start, at one time, or over an interval. The answer to [`Query::Stats`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Sub, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// Time since the start.
    pub(crate) wall: Duration,
    /// CPU time of all threads, user and system.
    pub(crate) cpu: Duration,
    /// Requests served.
    pub(crate) queries: u64,
    /// Number of times that threads took requests from the service.
    pub(crate) receives: u64,
    /// Messages that the service received.
    pub(crate) messages: u64,
    /// Sleeps of the service's threads that ended because of a message.
    pub(crate) handoffs: u64,
    /// Sleeps of all kinds: on the link, on a timer, and until another thread wakes the thread.
    pub(crate) sleeps: u64,
    /// Turns of the engine by the background thread.
    pub(crate) background_turns: u64,
}

/// Starts a store in its own process.
///
/// # Errors
/// If it cannot start.
pub(crate) fn start(options: &StoreConfig) -> Result<ServerProcess> {
    ServerProcess::start(ROLE, options)
}

/// Serves until standard input closes.
///
/// # Errors
/// If the node cannot start or the kernel refuses the CPU.
pub(crate) fn run(options: StoreConfig, output: &mut dyn Write) -> Result<()> {
    stay_on(options.cpu)?;
    let store = Store::loaded(options.records);
    let node = start_node((Ipv4Addr::LOCALHOST, 0).into(), options.delivery)?;
    let address = node.local_addr();
    let server = Arc::new(StoreServer {
        service: node.bind(PORT)?,
        node,
        store,
        started: Instant::now(),
        queries: AtomicU64::new(0),
        receives: AtomicU64::new(0),
    });
    let threads = (0..options.threads).map(|number| {
        let server = Arc::clone(&server);
        let thread = thread::Builder::new().name(format!("store-{number}"));
        thread.spawn(move || server.serve()).context("cannot start a thread")
    });
    let threads = threads.collect::<Result<Vec<_>>>()?;
    let serve = move || match threads.into_iter().try_for_each(thread::JoinHandle::join) {
        Ok(()) => Err(anyhow!("the port of the store was closed")),
        Err(panic) => std::panic::resume_unwind(panic),
    };
    until_closed(address, serve, || health(&server.node), output)
}

/// Starts a node with room for the values of all outstanding queries. Settings of the environment take precedence, except that
/// calls use UDP: the experiment measures packets and their delivery.
///
/// # Errors
/// If it cannot start.
pub(crate) fn start_node(listen: SocketAddr, delivery: Delivery) -> Result<Node> {
    let mut config = Config::new();
    config.listen(listen).delivery(delivery);
    config.peer_budget(512 << 20);
    config.apply_environment()?.link(Links::Udp).engine(EngineAt::Own);
    Node::start(&config).context("cannot start an Apus node")
}

struct StoreServer {
    node: Node,
    service: Port,
    store: Store,
    started: Instant,
    queries: AtomicU64,
    receives: AtomicU64,
}

impl StoreServer {
    /// Serves until the service is closed: takes requests in batches and answers them.
    fn serve(&self) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while let Ok(count) = self.service.recv_many(&mut batch, BATCH_MAX, None) {
            self.receives.fetch_add(1, Relaxed);
            self.queries.fetch_add(count as u64, Relaxed);
            for (left, request) in (0..count).rev().zip(batch.drain(..)) {
                let flush = if left > 0 { Flush::Later } else { Flush::Now };
                self.answer(request, flush);
            }
        }
    }

    fn answer(&self, request: Request, flush: Flush) {
        let response = match Query::parse(request.body()) {
            Some(Query::Get { key }) => self.store.get(key),
            Some(Query::Set { key, value }) => self.store.set(key, value),
            Some(Query::Stats) => self.stats(),
            None => Status::Malformed.alone(),
        };
        // A client that is gone needs no answer.
        let _ = request.reply_with(response, flush);
    }

    fn stats(&self) -> Bytes {
        let (delivery, service) = (self.node.stats().delivery, self.service.stats());
        let snapshot = Snapshot {
            wall: self.started.elapsed(),
            cpu: cpu::process_time(),
            queries: self.queries.load(Relaxed),
            receives: self.receives.load(Relaxed),
            messages: service.messages,
            handoffs: service.handoffs,
            sleeps: delivery.link_sleeps + delivery.deferred_sleeps + delivery.parks,
            background_turns: delivery.background_turns,
        };
        let text = serde_json::to_vec(&snapshot).expect("a snapshot is plain numbers");
        [&[Status::Done as u8], &text[..]].concat().into()
    }
}
