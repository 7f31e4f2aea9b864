//! Counted increments while servers drain, end without notice and begin again, on a network that loses packets.
//!
//! A counter that is incremented shows each execution. An acknowledged call was executed, and a call that has failed may have
//! been, unless its status says that it was not: acknowledged ≤ executed ≤ acknowledged + failed that may have executed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use apus::net::{FaultLink, Faults, UdpConfig, UdpLink};
use apus::{Address, Config, Node};
use apus_rpc::{Bytes, Channel, Context, Drained, Retry, Server, Status};
use tokio::sync::oneshot;

/// Homa port of all servers.
const PORT: u16 = 4000;

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) calls: u64,
    /// Threads that call, one call after the other.
    pub(crate) callers: usize,
    pub(crate) servers: usize,
    /// Servers that end and begin again: every second one drains before. Less than `calls`.
    pub(crate) restarts: u64,
    /// Probability that a packet is lost.
    pub(crate) loss: f64,
    pub(crate) seed: u64,
}

/// The counts of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) acknowledged: u64,
    /// Failed calls that may have been executed.
    pub(crate) uncertain: u64,
    /// Failed calls that were not executed.
    pub(crate) not_executed: u64,
    pub(crate) executed: u64,
    /// Attempts that went to another server at once.
    pub(crate) moved: u64,
    /// Attempts after a pause.
    pub(crate) repeated: u64,
    pub(crate) restarts: u64,
}

impl Counts {
    /// Whether no call was executed twice, and none was acknowledged without its execution.
    pub(crate) fn are_right(&self) -> bool {
        (self.acknowledged..=self.acknowledged + self.uncertain).contains(&self.executed)
    }
}

/// A server, which can end in two ways.
struct Running {
    node: Node,
    end: oneshot::Sender<()>,
    thread: JoinHandle<Drained>,
}

fn node(host: SocketAddr, run: &Run, seed: u64) -> Node {
    let link = loop {
        // The address is that of a node that has just ended, unless the port is 0.
        match UdpLink::bind(host, &UdpConfig::default()) {
            Ok(link) => break link,
            Err(_) => thread::yield_now(),
        }
    };
    let faults = Faults { loss: run.loss, seed: run.seed + seed, ..Faults::default() };
    let link = FaultLink::new(link, faults).expect("valid faults");
    let mut config = Config::new();
    // One probe in five may be lost together with its answer.
    config.peer_timeout(Duration::from_secs(5));
    Node::with_link(Box::new(link), &config).expect("a node")
}

fn serve(node: Node, executed: &Arc<AtomicU64>) -> Running {
    let executed = Arc::clone(executed);
    let handler = move |_: Context, _: Bytes| {
        executed.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, Status>("") }
    };
    let (end, ended) = oneshot::channel();
    let shutdown = async {
        if ended.await.is_err() {
            std::future::pending().await
        }
    };
    let serving = Server::builder(&node).route("/a.Counter/Add", handler).serve(PORT, shutdown);
    let thread = thread::spawn(move || serving.wait().expect("the port is free"));
    Running { node, end, thread }
}

impl Running {
    fn restart(self, drains: bool, run: &Run, seed: u64, executed: &Arc<AtomicU64>) -> Self {
        let Self { node, end, thread } = self;
        let host = node.local_addr();
        if drains {
            end.send(()).expect("the server serves");
            let drained = thread.join().expect("no panic");
            // Responses that clients do not acknowledge in time are lost.
            let _ = node.close(Duration::from_secs(5));
            drop(drained);
        } else {
            let _ = node.close(Duration::ZERO);
            drop((end, thread.join()));
        }
        serve(self::node(host, run, seed), executed)
    }
}

/// Restarts the servers by turns, one for each message.
fn restart_all(
    mut servers: Vec<Running>,
    run: Run,
    next: &Receiver<()>,
    executed: &Arc<AtomicU64>,
) -> u64 {
    let mut restarts = 0;
    while next.recv().is_ok() {
        let server = servers.remove(0);
        restarts += 1;
        servers.push(server.restart(restarts % 2 == 1, &run, 100 + restarts, executed));
    }
    restarts
}

impl Run {
    pub(crate) fn count(self) -> Counts {
        let executed = Arc::<AtomicU64>::default();
        let anywhere: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        let servers: Vec<_> = (0..self.servers as u64)
            .map(|number| serve(node(anywhere, &self, number), &executed))
            .collect();
        let addresses =
            servers.iter().map(|server| Address::new(server.node.local_addr(), PORT).to_string());
        let target = format!("static:{}", addresses.collect::<Vec<_>>().join(","));
        let client = node(anywhere, &self, 99);
        let channel = Channel::builder(&target).node(&client).retry(Retry::safe()).seed(self.seed);
        let channel = channel.build().expect("a channel");
        let (restart, next) = mpsc::channel();
        let step = (self.calls / (self.restarts + 1)).max(1);
        let begun = Arc::<AtomicU64>::default();
        let caller = |_| {
            let (channel, restart, begun) = (channel.clone(), restart.clone(), Arc::clone(&begun));
            thread::spawn(move || {
                let mut counts = Counts::default();
                loop {
                    let number = begun.fetch_add(1, Ordering::Relaxed);
                    if number >= self.calls {
                        return counts;
                    }
                    if number % step == 0 && (1..=self.restarts).contains(&(number / step)) {
                        let _ = restart.send(());
                    }
                    match channel.unary("/a.Counter/Add", "").wait() {
                        Ok(_) => counts.acknowledged += 1,
                        Err(status) if status.may_have_executed() => counts.uncertain += 1,
                        Err(_) => counts.not_executed += 1,
                    }
                }
            })
        };
        let callers: Vec<_> = (0..self.callers).map(caller).collect();
        drop(restart);
        let restarts = restart_all(servers, self, &next, &executed);
        let mut all = Counts { restarts, ..Counts::default() };
        for caller in callers {
            let counts = caller.join().expect("no panic");
            all.acknowledged += counts.acknowledged;
            all.uncertain += counts.uncertain;
            all.not_executed += counts.not_executed;
        }
        all.executed = executed.load(Ordering::SeqCst);
        (all.moved, all.repeated) = (channel.counters().moved(), channel.counters().repeated());
        all
    }
}
