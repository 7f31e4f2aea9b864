//! Compares awaited calls in a runtime of tokio with blocking calls: a client and an echo server in two threads, 100 bytes.
//!
//! `await_rate CALLS LINK PIN [KIND]` prints the median time of a call, one at a time, of each kind of client and server, or of one. LINK is
//! `auto` or `udp`. PIN is `split`, or `same` for both threads on one core.

#![forbid(unsafe_code)]

use std::error::Error;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use apus::{Address, Client, Config, Node, Port};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use tokio::runtime::{Builder, Runtime};

/// How the threads of a node wait for messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waits {
    Blocking,
    /// In a runtime, woken by the background thread.
    Await,
    /// In a runtime that has the node's event loop.
    EventLoop,
    /// The same, and the calls are in the future of `block_on`.
    BlockOn,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().ok_or("await_rate CALLS LINK PIN [KIND]");
    let (calls, link, pin_to): (usize, _, _) = (next()?.parse()?, next()?, next()?);
    let server_cpu = usize::from(pin_to != "same");
    let only = next().ok();
    for waits in [Waits::Blocking, Waits::Await, Waits::EventLoop, Waits::BlockOn, Waits::Blocking]
    {
        if only.as_ref().is_some_and(|only| *only != format!("{waits:?}")) {
            continue;
        }
        let mut config = Config::new();
        config.listen("127.0.0.1:0".parse()?).link(link.parse()?);
        let server = Node::start(&config)?;
        let port = server.bind(4000)?;
        let to = Address::new(server.local_addr(), 4000);
        let (ready, is_ready) = mpsc::channel();
        let serving = thread::spawn({
            let port = port.clone();
            move || {
                pin(server_cpu);
                ready.send(()).unwrap();
                serve(waits, server, port);
            }
        });
        is_ready.recv()?;
        pin(0);
        let node = Node::start(&config)?;
        let client = node.client()?;
        client.connect(to).deadline(Duration::from_secs(10)).wait()?;
        call(waits, &node, &client, to, calls / 10);
        let mut times = call(waits, &node, &client, to, calls);
        times.sort();
        let at = |part: usize| times[times.len() * part / 1000].as_secs_f64() * 1e6;
        let counted = node.stats().delivery;
        println!(
            "{waits:?}: p50 {:.2} us, p99 {:.2} us; polls won {}, lost {}; turns of the background thread {}",
            at(500),
            at(990),
            counted.spins_won,
            counted.spins_lost,
            counted.background_turns
        );
        port.shutdown();
        serving.join().unwrap();
    }
    Ok(())
}

fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu).unwrap();
    let _ = sched_setaffinity(Pid::from_raw(0), &set);
}

fn runtime(waits: Waits, node: &Node) -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    if waits != Waits::Await {
        runtime.spawn(node.event_loop().unwrap().drive());
    }
    runtime
}

fn serve(waits: Waits, server: Node, port: Port) {
    if waits == Waits::Blocking {
        return port.serve(|mut request| {
            let body = request.take_body();
            let _ = request.reply(body);
        });
    }
    let runtime = runtime(waits, &server);
    let serving = runtime.spawn(async move {
        while let Ok(mut request) = port.recv_async().await {
            let body = request.take_body();
            let _ = request.reply(body);
        }
    });
    runtime.block_on(serving).unwrap();
}

fn call(waits: Waits, node: &Node, client: &Client, to: Address, calls: usize) -> Vec<Duration> {
    let mut times = Vec::with_capacity(calls);
    if waits == Waits::Blocking {
        for _ in 0..calls {
            let before = Instant::now();
            client.call(to, &[7; 100][..]).wait().unwrap();
            times.push(before.elapsed());
        }
        return times;
    }
    let runtime = runtime(waits, node);
    let client = client.clone();
    let calling = async move {
        for _ in 0..calls {
            let before = Instant::now();
            client.call(to, &[7; 100][..]).await.unwrap();
            times.push(before.elapsed());
        }
        times
    };
    match waits {
        Waits::BlockOn => runtime.block_on(calling),
        _ => runtime.block_on(runtime.spawn(calling)).unwrap(),
    }
}
