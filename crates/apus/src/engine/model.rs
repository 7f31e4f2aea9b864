//! The model test: no wake-up is lost and no message is left behind, whatever the order in which
//! threads run.
//!
//! Real nodes run on `shuttle`'s threads, background thread, engine, mail and all; the link is a
//! queue whose readiness the model knows. No sleep of more than a millisecond ends by itself, so a
//! thread that sleeps beside its message sleeps for ever, which the scheduler reports with the
//! schedule that led there.
//!
//! `RUSTFLAGS="--cfg apus_model" cargo test -p apus --lib --target-dir target/model model`

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::Duration;

use apus_net::{Capabilities, Descriptors, Link, LinkCounters, Path, only, shard_of};
use apus_wire::{PacketReceiver, PacketSink, PathError, PathId, Transmit};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Runner, thread};

use crate::address::Address;
use crate::client::Client;
use crate::config::Config;
use crate::delivery::{Delivery, Regime};
use crate::node::Node;
use crate::sync::{arrive, take_arrived};

const PORT: u16 = 7;

/// A link of the node at `local`: what it sends arrives at the descriptor of the peer's link for it.
struct Wire {
    here: RawFd,
    local: SocketAddr,
    peers: Vec<(SocketAddr, RawFd)>,
    capabilities: Capabilities,
}

fn address(node: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, node], 1))
}

impl PacketSink for Wire {
    fn send(&mut self, packet: Transmit<'_>) {
        let (_, there) = self.peers[packet.path.index()];
        arrive(there, self.local, [packet.header, packet.payload()].concat());
    }

    fn max_packet(&self, _: PathId) -> usize {
        1_472
    }
}

impl Link for Wire {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn recv(&mut self, receiver: &mut dyn PacketReceiver) -> usize {
        let Some((from, packet)) = take_arrived(self.here) else {
            return 0;
        };
        let from = self.find(from).expect("only peers send");
        receiver.packet(from, &packet);
        1
    }

    fn resolve(&mut self, to: SocketAddr) -> Option<PathId> {
        self.find(to)
    }

    fn find(&mut self, address: SocketAddr) -> Option<PathId> {
        let place = self.peers.iter().position(|(peer, _)| *peer == address)?;
        Some(PathId::new(u32::try_from(place).ok()?, place as u64))
    }

    fn address(&self, path: PathId) -> Option<SocketAddr> {
        Some(self.peers[path.index()].0)
    }

    fn flush(&mut self) {}

    fn poll_error(&mut self) -> Option<(SocketAddr, PathError)> {
        None
    }

    fn descriptors(&self) -> Descriptors {
        only(self.here)
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn receive_capacity(&self) -> usize {
        1 << 20
    }

    fn path(&self, path: PathId) -> Path {
        Path { max_packet: self.max_packet(path), ..Path::UNKNOWN }
    }

    fn counters(&self) -> LinkCounters {
        LinkCounters::default()
    }
}

/// A node with a link for each descriptor, to peers each of which has one for it.
fn node(
    at: SocketAddr,
    links: &[RawFd],
    peers: &[(SocketAddr, RawFd)],
    delivery: Delivery,
) -> Node {
    let wire = |&here: &RawFd| -> Box<dyn Link> {
        let capabilities = Capabilities::default();
        Box::new(Wire { here, local: at, peers: peers.to_vec(), capabilities })
    };
    Node::with_links(links.iter().map(wire).collect(), Config::new().delivery(delivery)).unwrap()
}

/// Who calls whom in a run.
#[derive(Clone, Copy)]
struct Shape {
    /// Parts of the node that serves; each has a node that calls it.
    shards: u8,
    /// Threads of each calling node, each with a call through the same client.
    callers: u8,
    /// Threads that serve one service.
    servers: u8,
}

/// Calls are made and answered until the service is closed. Every call must end with its
/// own answer.
fn calls_are_answered(delivery: Delivery, shape: Shape) {
    let server = address(1);
    let shards = 0..usize::from(shape.shards);
    let client_of =
        |shard| (2..=u8::MAX).map(address).find(|ip| shard_of(*ip, shards.end) == shard);
    let link_of = |shard| RawFd::try_from(shard).unwrap();
    let clients: Vec<_> =
        shards.clone().map(|shard| (client_of(shard).unwrap(), 100 + link_of(shard))).collect();
    let links: Vec<_> = shards.clone().map(link_of).collect();
    let serving = node(server, &links, &clients, delivery);
    let calling: Vec<_> = clients
        .iter()
        .zip(&links)
        .map(|(&(at, link), &there)| node(at, &[link], &[(server, there)], delivery))
        .collect();
    let service = serving.bind(PORT).unwrap();
    let clients: Vec<_> = calling.iter().map(|node| node.client().unwrap()).collect();
    let servers: Vec<_> = (0..shape.servers)
        .map(|_| {
            let service = service.clone();
            thread::spawn(move || {
                while let Ok(mut request) = service.recv() {
                    let body = request.take_body();
                    request.reply(body).unwrap();
                }
            })
        })
        .collect();
    let call = |client: &Client, caller: u8| {
        let client = client.clone();
        thread::spawn(move || {
            let answer = client.call(Address::new(server, PORT), vec![caller]).unwrap();
            assert_eq!(answer, [caller].as_slice());
        })
    };
    let callers: Vec<_> = clients
        .iter()
        .flat_map(|client| (0..shape.callers).map(move |caller| call(client, caller)))
        .collect();
    for caller in callers {
        caller.join().unwrap();
    }
    // With several shards a thread may be called for a message that another one finds first.
    let served = (shape.shards == 1).then(|| service.stats());
    for stats in clients.iter().map(Client::stats).chain(served) {
        assert!(stats.handoffs <= stats.messages, "two wake-ups for one message: {stats:?}");
    }
    service.shutdown();
    for server in servers {
        server.join().unwrap();
    }
}

fn explore(scheduler: impl Scheduler + 'static, delivery: Delivery, shape: Shape) {
    let mut config = shuttle::Config::new();
    config.max_time = Some(Duration::from_millis(600));
    config.stack_size = 1 << 18;
    Runner::new(scheduler, config).run(move || calls_are_answered(delivery, shape));
}

/// More than any run makes in its time.
const SCHEDULES: usize = 1_000_000;

#[test]
fn no_wake_up_is_lost_and_no_message_left_behind() {
    for delivery in Delivery::ALL {
        for (shards, callers, servers) in [(1, 1, 1), (1, 2, 2), (2, 1, 1), (2, 1, 2)] {
            let shape = Shape { shards, callers, servers };
            explore(RandomScheduler::new_from_seed(7, SCHEDULES), delivery, shape);
            // By priority, a thread that polls without end would be the only one to run.
            if delivery.regime() != Regime::NobodySleeps {
                explore(PctScheduler::new_from_seed(7, 3, SCHEDULES), delivery, shape);
            }
        }
    }
}
