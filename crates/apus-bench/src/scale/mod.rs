//! `apus bench scale`: the cost of a call with many outstanding calls or many peers.
//!
//! * `holder`: a server that holds a number of requests and answers the oldest when another one arrives;
//! * `addresses`: a link that makes one process any number of peers;
//! * this file: a client that calls any number of peers, with a few more outstanding calls than the server holds.

mod addresses;
pub(crate) mod holder;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use apus::{Address, Bytes, Delivery, Flush, Node, RecvError, Response};
use apus_load::{ResultFile, Row, Workload};

use self::addresses::ManyAddresses;
use self::holder::BATCH_MAX;
use crate::calls::{Calls, Choice};
use crate::closed_loop::Pipeline;
use crate::floor;
use crate::peer::{Meter, ServerProcess};
use crate::pin::{Pin, on_cpu};
use crate::transport::Transport;
use apus_load::progress::Progress;
use apus_node::arguments;
use apus_node::transport::interface::{Client, Ended, Failed, Reply, Request};
use apus_node::transport::over_apus::PORT;

/// Time between two batches while the first calls are started, before the server answers any.
const FILL_PAUSE: Duration = Duration::from_micros(300);

/// Number of requests that the server holds while peers are varied.
const HELD_FOR_PEERS: u32 = 10;

/// Cost of a call by the number of outstanding calls and of peers: the numbers to measure, and the calls.
#[derive(Clone, Debug, clap::Args)]
pub struct Scalability {
    /// Requests that the server holds before it answers the oldest; each number is measured
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "10,1000,100000",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub held: Vec<u32>,
    /// Peers of client and server, each another address of 127.0.0.0/8; each number is measured
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,100,10000",
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub peers: Vec<u32>,
    /// Outstanding calls besides those that the server holds
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub window: u32,
    /// Bytes of request and reply
    #[arg(long, value_name = "BYTES", default_value = "100", value_parser = arguments::size)]
    pub size: u32,
    /// Packet delivery of both sides
    #[arg(long, value_name = "MODE", default_value = "suspend", value_parser = arguments::delivery)]
    pub delivery: Delivery,
    /// Runs of each setting, interleaved
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Seconds of each run
    #[arg(long, value_name = "S", allow_negative_numbers = true, default_value_t = 1.0, value_parser = arguments::seconds)]
    pub seconds: f64,
    /// CPUs of client and server: split (the first two), same, none, or numbers like 0-3
    #[arg(long, value_name = "WHERE", default_value = "split")]
    pub pin: Pin,
}

/// The factor that is varied, with its level.
#[derive(Clone, Copy, Debug)]
enum Factor {
    Held(u32),
    Peers(u32),
}

impl Factor {
    fn held(self) -> u32 {
        match self {
            Self::Held(held) => held,
            Self::Peers(_) => HELD_FOR_PEERS,
        }
    }

    fn row(self, row: Row) -> Row {
        match self {
            Self::Held(held) => row.set("workload", "calls held").set("calls_held", held),
            Self::Peers(peers) => row.set("workload", "peers").set("peers", peers),
        }
    }
}

/// Measures, and adds a row for each run of a setting.
///
/// # Errors
/// If a process fails.
pub fn measure(
    options: &Scalability,
    progress: &dyn Progress,
    result: &mut ResultFile,
) -> Result<()> {
    let held = options.held.iter().map(|held| Factor::Held(*held));
    let factors: Vec<Factor> =
        held.chain(options.peers.iter().map(|peers| Factor::Peers(*peers))).collect();
    progress.lengthen(factors.len() as u64 * u64::from(options.runs));
    for run in 1..=options.runs {
        for &factor in &factors {
            progress.begin(&format!("scale: {factor:?}"));
            let row = floor::beside(options.pin, result, |_| measure_once(options, factor));
            let row = row.with_context(|| format!("{factor:?}"))?;
            result.rows.push(row.set("run", run));
            progress.done();
        }
    }
    Ok(())
}

fn measure_once(options: &Scalability, factor: Factor) -> Result<Row> {
    let (client_cpu, server_cpu) = options.pin.cpus();
    let peer: ServerProcess = ServerProcess::start(
        holder::ROLE,
        &holder::HolderConfig {
            listen: (Ipv4Addr::UNSPECIFIED, 0).into(),
            delivery: options.delivery,
            held: factor.held(),
            cpu: server_cpu,
        },
    )?;
    let (port, meter) = (peer.address().port(), peer.meter());
    let row = on_cpu(client_cpu, || measure_client(options, factor, port, meter))?;
    peer.finish()?;
    Ok(row)
}

fn measure_client(options: &Scalability, factor: Factor, port: u16, meter: Meter) -> Result<Row> {
    let mut client = ManyServers::start(options, factor, port)?;
    let (servers, outstanding) = (client.servers.len(), factor.held() + options.window);
    let calls = Calls::new(Workload::Fixed(options.size), 0, outstanding, 1);
    let calls = calls.among(servers, Choice::InTurn);
    let mut pipeline = Pipeline::new(Transport::ApusUdp, calls);
    let duration = Duration::from_secs_f64(options.seconds);
    pipeline.fill_slowly(&mut client, BATCH_MAX, FILL_PAUSE)?;
    // Before counting, every first call has ended and every peer is met.
    let enough = u64::from(factor.held()).max(servers as u64) * 2;
    pipeline.run(&mut client, duration / 10, enough)?;
    let (before, resends) = (meter.read()?, client.resends());
    let tally = pipeline.run(&mut client, duration, 1)?;
    let (cpu, calls) = (meter.read()? - before, tally.calls as f64);
    let row = Row::new("apus-udp")
        .set("bench", "scale")
        .set("size_bytes", options.size)
        .set("pin", &*options.pin.name())
        .set("delivery", options.delivery.to_string());
    Ok(factor
        .row(row)
        .set("server_cpu_ns_per_call", cpu.server.as_nanos() as f64 / calls)
        .set("client_cpu_ns_per_call", cpu.client.as_nanos() as f64 / calls)
        .set("calls_per_s", tally.calls_per_s())
        .set("resends_per_call", (client.resends() - resends) as f64 / calls))
}

/// A node that calls many servers.
struct ManyServers {
    client: apus::Client,
    /// Keeps the node alive until the end of the measurement.
    node: Node,
    servers: Vec<Address>,
    body: Bytes,
    batch: Vec<Response>,
}

impl ManyServers {
    fn start(options: &Scalability, factor: Factor, port: u16) -> Result<Self> {
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let config = holder::config(listen, options.delivery)?;
        let (node, servers) = match factor {
            Factor::Held(_) => (Node::start(&config)?, vec![(Ipv4Addr::LOCALHOST, port).into()]),
            Factor::Peers(peers) => {
                let link = Box::new(ManyAddresses::open()?);
                let servers = (0..peers).map(|number| addresses::address(number, port));
                (Node::with_link(link, &config)?, servers.collect::<Vec<SocketAddr>>())
            }
        };
        Ok(Self {
            client: node.client()?,
            node,
            servers: servers.into_iter().map(|server| Address::new(server, PORT)).collect(),
            body: vec![0; options.size as usize].into(),
            batch: Vec::with_capacity(BATCH_MAX),
        })
    }

    /// Number of RESENDs sent.
    fn resends(&self) -> u64 {
        self.node.stats().protocol.resends_sent
    }
}

impl Client for ManyServers {
    fn send(&mut self, server: usize, request: Request) -> Result<(), Failed> {
        let body = self.body.clone();
        let sent = self.client.send(self.servers[server], body, request.tag, Flush::Later);
        sent.map_err(|error| Failed::call(request.tag, &error))
    }

    fn receive(&mut self, timeout: Duration, ended: &mut Vec<Ended>) -> Result<()> {
        match self.client.recv_many(&mut self.batch, BATCH_MAX, Some(timeout)) {
            Ok(_) | Err(RecvError::Timeout) => {}
            Err(error) => return Err(error.into()),
        }
        ended.extend(self.batch.drain(..).map(|Response { cookie: tag, result, .. }| {
            let length = result.map_err(|error| Failed::call(tag, &error))?.len() as u32;
            Ok(Reply { tag, length, request_length: length })
        }));
        Ok(())
    }
}
