//! `apus bench scale`: what a call costs when much is outstanding, and when there are many peers.
//!
//! * `holder`: a server that keeps a number of requests and answers the oldest when one more comes;
//! * `addresses`: a link that makes one process as many peers as are wanted;
//! * this file: a client that keeps a few calls more outstanding than the server keeps, on as many peers as are wanted.

mod addresses;
pub(crate) mod holder;

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use apus::{Address, Bytes, Delivery, Flush, Node, RecvError, Response};
use apus_load::{ResultFile, Row};
use apus_net::cpu;

use self::addresses::ManyAddresses;
use self::holder::BATCH_MAX;
use crate::arguments;
use crate::peer::{Meter, Peer};
use crate::progress::Progress;
use crate::runner::Pin;
use crate::stop;
use crate::transport::apus_udp::PORT;

/// A server answers within this time, or the run fails.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Time between two batches while calls are started of which the server answers none yet.
const FILL_PAUSE: Duration = Duration::from_micros(300);

/// Requests the server keeps while peers are counted.
const HELD_FOR_PEERS: u32 = 10;

/// What is measured.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
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
    /// CPUs of client and server
    #[arg(long, value_name = "WHERE", default_value = "split")]
    pub pin: Pin,
}

/// What is varied.
#[derive(Clone, Copy, Debug)]
enum Subject {
    Held(u32),
    Peers(u32),
}

impl Subject {
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

/// Measures; adds a row for each run of a setting.
///
/// # Errors
/// When a process fails.
pub fn measure(options: &Options, progress: &dyn Progress, result: &mut ResultFile) -> Result<()> {
    let held = options.held.iter().map(|held| Subject::Held(*held));
    let subjects: Vec<Subject> =
        held.chain(options.peers.iter().map(|peers| Subject::Peers(*peers))).collect();
    progress.lengthen(subjects.len() as u64 * u64::from(options.runs));
    for run in 1..=options.runs {
        for &subject in &subjects {
            progress.begin(&format!("scale: {subject:?}"));
            let row = measure_once(options, subject).with_context(|| format!("{subject:?}"))?;
            result.rows.push(row.set("run", run));
            progress.done();
        }
    }
    Ok(())
}

fn measure_once(options: &Options, subject: Subject) -> Result<Row> {
    let (client_cpu, server_cpu) = options.pin.cpus();
    let peer = Peer::start(
        holder::ROLE,
        &holder::Options {
            listen: (Ipv4Addr::UNSPECIFIED, 0).into(),
            delivery: options.delivery,
            held: subject.held(),
            cpu: server_cpu,
        },
    )?;
    let (port, meter) = (peer.address().port(), peer.meter());
    let row = thread::scope(|scope| {
        let client = scope.spawn(|| {
            if let Some(cpu) = client_cpu {
                cpu::pin_current_thread(cpu)
                    .with_context(|| format!("cannot stay on CPU {cpu}"))?;
            }
            Client::start(options, subject, port)?.measure(options, subject, meter)
        });
        client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    peer.finish()?;
    Ok(row)
}

/// Keeps calls outstanding, to one server after the other.
struct Client {
    client: apus::Client,
    /// Kept to the end of the measurement.
    node: Node,
    servers: Vec<Address>,
    next: usize,
    body: Bytes,
    batch: Vec<Response>,
}

impl Client {
    fn start(options: &Options, subject: Subject, port: u16) -> Result<Self> {
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let config = holder::config(listen, options.delivery)?;
        let (node, servers) = match subject {
            Subject::Held(_) => (Node::start(&config)?, vec![(Ipv4Addr::LOCALHOST, port).into()]),
            Subject::Peers(peers) => {
                let link = Box::new(ManyAddresses::open()?);
                let servers = (0..peers).map(|number| addresses::address(number, port)).collect();
                (Node::with_link(link, &config)?, servers)
            }
        };
        Ok(Self {
            client: node.client()?,
            node,
            servers: servers
                .into_iter()
                .map(|server: SocketAddr| Address::new(server, PORT))
                .collect(),
            next: 0,
            body: vec![0; options.size as usize].into(),
            batch: Vec::with_capacity(BATCH_MAX),
        })
    }

    fn measure(mut self, options: &Options, subject: Subject, meter: Meter) -> Result<Row> {
        let duration = Duration::from_secs_f64(options.seconds);
        self.fill(subject.held() + options.window)?;
        // Every call that was started first is over, and every peer was met, before anything is counted.
        let enough = u64::from(subject.held()).max(self.servers.len() as u64) * 2;
        self.run(duration / 10, enough)?;
        let (before, resends) = (meter.read()?, self.resends());
        let start = Instant::now();
        let calls = self.run(duration, 1)?;
        let (cpu, elapsed) = (meter.read()?.since(before), start.elapsed());
        let row = Row::new("apus-udp")
            .set("bench", "scale")
            .set("size_bytes", options.size)
            .set("pin", options.pin.name())
            .set("delivery", options.delivery.to_string());
        Ok(subject
            .row(row)
            .set("server_cpu_ns_per_call", cpu.server.as_nanos() as f64 / calls as f64)
            .set("client_cpu_ns_per_call", cpu.client.as_nanos() as f64 / calls as f64)
            .set("calls_per_s", calls as f64 / elapsed.as_secs_f64())
            .set("resends_per_call", (self.resends() - resends) as f64 / calls as f64))
    }

    /// Starts as many calls, so slowly that the server's receive buffer holds them: it answers none of the first.
    fn fill(&mut self, calls: u32) -> Result<()> {
        for number in 1..=calls {
            stop::check()?;
            self.start_call(Flush::Later)?;
            if number % BATCH_MAX as u32 == 0 || number == calls {
                match self.client.recv_many(&mut self.batch, BATCH_MAX, Some(FILL_PAUSE)) {
                    Ok(_) | Err(RecvError::Timeout) => {}
                    Err(error) => return Err(error.into()),
                }
                for response in std::mem::take(&mut self.batch) {
                    self.check(response)?;
                    self.start_call(Flush::Later)?;
                }
            }
        }
        Ok(())
    }

    fn start_call(&mut self, flush: Flush) -> Result<()> {
        let server = self.servers[self.next];
        self.next = (self.next + 1) % self.servers.len();
        Ok(self.client.send(server, self.body.clone(), 0, flush)?)
    }

    /// Starts a call for each that ends, for a time and until as many have ended; returns how many did.
    fn run(&mut self, duration: Duration, enough: u64) -> Result<u64> {
        let start = Instant::now();
        let mut calls = 0;
        while start.elapsed() < duration || calls < enough {
            stop::check()?;
            self.client.recv_many(&mut self.batch, BATCH_MAX, Some(TIMEOUT))?;
            let mut batch = std::mem::take(&mut self.batch);
            calls += batch.len() as u64;
            for response in batch.drain(..) {
                self.check(response)?;
                self.start_call(Flush::Later)?;
            }
            self.batch = batch;
        }
        Ok(calls)
    }

    fn check(&self, response: Response) -> Result<()> {
        let length = response.result?.len();
        ensure!(length == self.body.len(), "a response of {length} bytes");
        Ok(())
    }

    /// Times data was asked for again.
    fn resends(&self) -> u64 {
        self.node.stats().protocol.resends_sent
    }
}
