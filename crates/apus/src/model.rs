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

use apus_net::{Capabilities, Link, LinkCounters, Path};
use apus_proto::Address;
use apus_wire::{PacketSink, PathError, Transmit};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Runner, thread};

use crate::config::Config;
use crate::delivery::{Delivery, Regime};
use crate::node::Node;
use crate::request::Incoming;
use crate::sync::{arrive, take_arrived};

const PORT: u16 = 7;

/// One end of a wire: what it sends arrives at the descriptor `there`.
struct Wire {
    here: RawFd,
    there: RawFd,
    capabilities: Capabilities,
}

fn address(end: RawFd) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, u8::try_from(end).unwrap()], 1))
}

impl PacketSink for Wire {
    fn send(&mut self, packet: Transmit<'_>) {
        arrive(self.there, address(self.here), [packet.header, packet.payload()].concat());
    }

    fn max_packet(&self, _to: SocketAddr) -> usize {
        1_472
    }
}

impl Link for Wire {
    fn local_addr(&self) -> SocketAddr {
        address(self.here)
    }

    fn recv(&mut self, handler: &mut dyn FnMut(SocketAddr, &[u8])) -> usize {
        let Some((from, packet)) = take_arrived(self.here) else {
            return 0;
        };
        handler(from, &packet);
        1
    }

    fn flush(&mut self) {}

    fn poll_error(&mut self) -> Option<(SocketAddr, PathError)> {
        None
    }

    fn descriptor(&self) -> RawFd {
        self.here
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn receive_capacity(&self) -> usize {
        1 << 20
    }

    fn path(&self, to: SocketAddr) -> Path {
        Path { max_packet: self.max_packet(to), loopback: false, link_mbps: None }
    }

    fn counters(&self) -> LinkCounters {
        LinkCounters::default()
    }
}

fn node(here: RawFd, there: RawFd, delivery: Delivery) -> Node {
    let link = Wire { here, there, capabilities: Capabilities::default() };
    Node::with_link(Box::new(link), Config::new().delivery(delivery)).unwrap()
}

/// `callers` threads make a call each through one socket, `servers` threads take what comes to
/// another until it is closed. Every call must end with its own answer.
fn calls_are_answered(delivery: Delivery, callers: u8, servers: usize) {
    let (client, server) = (node(1, 2, delivery), node(2, 1, delivery));
    let service = server.bind(PORT).unwrap();
    let socket = client.socket().unwrap();
    let servers: Vec<_> = (0..servers)
        .map(|_| {
            let service = service.clone();
            thread::spawn(move || {
                while let Ok(Incoming::Request(mut request)) = service.recv() {
                    let body = request.take_body();
                    request.reply(body).unwrap();
                }
            })
        })
        .collect();
    let callers: Vec<_> = (0..callers)
        .map(|caller| {
            let socket = socket.clone();
            thread::spawn(move || {
                let answer = socket.call(Address::new(address(2), PORT), vec![caller]).unwrap();
                assert_eq!(answer, [caller].as_slice());
            })
        })
        .collect();
    for caller in callers {
        caller.join().unwrap();
    }
    for stats in [socket.stats(), service.stats()] {
        assert!(stats.handoffs <= stats.messages, "two wake-ups for one message: {stats:?}");
    }
    service.shutdown();
    for server in servers {
        server.join().unwrap();
    }
}

fn explore(scheduler: impl Scheduler + 'static, delivery: Delivery, callers: u8, servers: usize) {
    let mut config = shuttle::Config::new();
    config.max_time = Some(Duration::from_millis(600));
    config.stack_size = 1 << 18;
    Runner::new(scheduler, config).run(move || calls_are_answered(delivery, callers, servers));
}

/// More than any run makes in its time.
const SCHEDULES: usize = 1_000_000;

#[test]
fn no_wake_up_is_lost_and_no_message_left_behind() {
    for delivery in Delivery::ALL {
        for (callers, servers) in [(1, 1), (2, 2)] {
            explore(RandomScheduler::new_from_seed(7, SCHEDULES), delivery, callers, servers);
            // By priority, a thread that polls without end would be the only one to run.
            if delivery.regime() != Regime::NobodySleeps {
                explore(PctScheduler::new_from_seed(7, 3, SCHEDULES), delivery, callers, servers);
            }
        }
    }
}
