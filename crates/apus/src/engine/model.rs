//! The model test: no wake-up is lost and no message is left behind, whatever the order in which
//! threads run.
//!
//! Real nodes run on `shuttle`'s threads, background thread, engine, mail and all; the link is a
//! queue whose readiness the model knows. No sleep of more than a millisecond ends by itself, so a
//! thread that sleeps beside its message sleeps for ever, which the scheduler reports with the
//! schedule that led there.
//!
//! `RUSTFLAGS="--cfg apus_model" cargo test -p apus --lib --target-dir target/model model`

use std::future::Future;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use apus_net::{Capabilities, Descriptors, Link, LinkCounters, Path, only, shard_of};
use apus_wire::{PacketReceiver, PacketSink, PathError, PathId, Transmit};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Runner, thread};

use crate::address::Address;
use crate::client::Client;
use crate::config::Config;
use crate::delivery::parker::Parker;
use crate::delivery::{Delivery, Regime};
use crate::engine::lock::Shared;
use crate::node::Node;
use crate::sync::{AtomicU8, Ordering, arrive, take_arrived};

const PORT: u16 = 7;

/// A link of the node at `local`. Its packets arrive at the descriptor of the peer's link.
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

/// A node with one link per descriptor. Each link has one peer.
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

/// The callers and servers of a run.
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
    let port = serving.bind(PORT).unwrap();
    let clients: Vec<_> = calling.iter().map(|node| node.client().unwrap()).collect();
    let servers: Vec<_> = (0..shape.servers)
        .map(|_| {
            let port = port.clone();
            thread::spawn(move || {
                while let Ok(mut request) = port.recv() {
                    let body = request.take_body();
                    request.reply(body).unwrap();
                }
            })
        })
        .collect();
    let call = |client: &Client, caller: u8| {
        let client = client.clone();
        thread::spawn(move || {
            let answer = client.call(Address::new(server, PORT), vec![caller]).wait().unwrap();
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
    let served = (shape.shards == 1).then(|| port.stats());
    for stats in clients.iter().map(Client::stats).chain(served) {
        assert!(stats.handoffs <= stats.messages, "two wake-ups for one message: {stats:?}");
    }
    port.shutdown();
    for server in servers {
        server.join().unwrap();
    }
}

fn explore(scheduler: impl Scheduler + 'static, test: impl Fn() + Send + Sync + 'static) {
    let mut config = shuttle::Config::new();
    config.max_time = Some(Duration::from_millis(600));
    config.stack_size = 1 << 18;
    Runner::new(scheduler, config).run(test);
}

/// An event loop of an application with one task. Its thread sleeps where the loop's descriptor would be watched.
struct TaskLoop {
    shared: Arc<Shared>,
    me: Arc<Parker>,
    /// The task was woken.
    woken: Arc<AtomicU8>,
    /// The thread polls before it sleeps.
    polls: bool,
}

struct WakeTask {
    me: Arc<Parker>,
    woken: Arc<AtomicU8>,
}

impl Wake for WakeTask {
    fn wake(self: Arc<Self>) {
        self.woken.store(1, Ordering::Release);
        self.me.sleeper().unwrap().wake(); // As an executor wakes the thread of its loop.
    }
}

impl TaskLoop {
    fn begin(node: &Node, polls: bool) -> Self {
        let shared = Arc::clone(node.shards.iter().next().unwrap());
        let me = Arc::new(Parker::of_event_loop().unwrap());
        shared.add_event_loop(&me, shared.descriptors).unwrap();
        Self { shared, me, woken: Arc::new(AtomicU8::new(0)), polls }
    }

    fn run<T>(&self, task: impl Future<Output = T>) -> T {
        let waker = Waker::from(Arc::new(WakeTask {
            me: Arc::clone(&self.me),
            woken: Arc::clone(&self.woken),
        }));
        let mut task = Box::pin(task);
        loop {
            if let Poll::Ready(output) = task.as_mut().poll(&mut Context::from_waker(&waker)) {
                self.shared.remove_event_loop(self.me.id());
                return output;
            }
            while self.woken.swap(0, Ordering::AcqRel) == 0 {
                let look = if self.polls {
                    self.shared
                        .poll_in_event_loop(&self.me, Duration::from_micros(50), false)
                        .unwrap()
                } else {
                    self.shared.turn_in_event_loop(&self.me).unwrap()
                };
                if self.woken.swap(0, Ordering::AcqRel) != 0 {
                    break;
                }
                let timeout = look.due.map(|due| due.saturating_since(look.now));
                self.me.sleeper().unwrap().sleep(self.shared.descriptors, timeout);
            }
        }
    }
}

/// A task awaits calls that a task of another node answers, while a thread calls by a blocking function.
fn tasks_of_event_loops_go_on(polls: bool) {
    let (at, [serves, calls]) = ([address(1), address(2)], [0, 100]);
    let serving = node(at[0], &[serves], &[(at[1], calls)], Delivery::suspend());
    let calling = node(at[1], &[calls], &[(at[0], serves)], Delivery::suspend());
    let port = serving.bind(PORT).unwrap();
    let client = calling.client().unwrap();
    let to = Address::new(at[0], PORT);
    let server = thread::spawn({
        let port = port.clone();
        move || {
            let event_loop = TaskLoop::begin(&serving, polls);
            event_loop.run(async {
                while let Ok(mut request) = port.recv_async().await {
                    let body = request.take_body();
                    request.reply(body).unwrap();
                }
            });
        }
    });
    let blocking = thread::spawn({
        let client = client.clone();
        move || assert_eq!(client.call(to, "thread").wait().unwrap(), "thread")
    });
    let event_loop = TaskLoop::begin(&calling, polls);
    event_loop.run(async {
        for _ in 0..2 {
            assert_eq!(client.call(to, "task").await.unwrap(), "task");
        }
    });
    blocking.join().unwrap();
    port.shutdown();
    server.join().unwrap();
}

/// More than any run makes in its time.
const SCHEDULES: usize = 1_000_000;

#[test]
fn no_wake_up_is_lost_and_no_message_left_behind() {
    for delivery in Delivery::ALL {
        for (shards, callers, servers) in [(1, 1, 1), (1, 2, 2), (2, 1, 1), (2, 1, 2)] {
            let shape = Shape { shards, callers, servers };
            let test = move || calls_are_answered(delivery, shape);
            explore(RandomScheduler::new_from_seed(7, SCHEDULES), test);
            // By priority, a thread that polls without end would be the only one to run.
            if delivery.regime() != Regime::AlwaysPolls {
                explore(PctScheduler::new_from_seed(7, 3, SCHEDULES), test);
            }
        }
    }
}

#[test]
fn no_wake_up_of_an_event_loop_is_lost() {
    for polls in [false, true] {
        let test = move || tasks_of_event_loops_go_on(polls);
        explore(RandomScheduler::new_from_seed(7, SCHEDULES), test);
        explore(PctScheduler::new_from_seed(7, 3, SCHEDULES), test);
    }
}
