//! Event loops of applications that turn a node in place of its background thread.

use std::future::Future;
use std::net::{TcpListener, TcpStream};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use crate::pair;
use crate::pair::{Pair, acquaint, pair, pattern, serve_echo, wait_until};
use apus::{CallError, Client, Config, Delivery, EventLoop, EventLoopError, Flush, Node, Port};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};

/// So long that a test sees what the background thread does for a loop that is late, and what it does not do for one that is not.
const NEVER: Duration = Duration::from_secs(10);

/// Waits until the event loop's descriptor is readable.
fn watch(event_loop: &EventLoop) {
    let fault_after = PollTimeout::try_from(pair::FAULT_AFTER).unwrap();
    let mut watched = [PollFd::new(event_loop.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut watched, fault_after).unwrap(), 1, "the descriptor is not readable");
}

/// A runtime with one thread that turns `node`.
fn runtime_of(node: &Node) -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.spawn(node.event_loop().unwrap().drive());
    runtime
}

async fn echo(service: Port) {
    while let Ok(mut request) = service.recv_async().await {
        let body = request.take_body();
        request.reply(body).unwrap();
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a task on this thread, which watches no descriptor.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn a_program_that_watches_the_descriptor_needs_no_background_thread() {
    let pair = pair(Delivery::suspend().with_suspend_timeout(NEVER));
    serve_echo(&pair.service);
    acquaint_by_calls(&pair);
    let client = pair.client_node.client().unwrap();
    let event_loop = pair.client_node.event_loop().unwrap();
    let turned_before = pair.client_node.stats().delivery.background_turns;
    for number in 0..200 {
        let body = pattern(number, if number % 10 == 0 { 300_000 } else { 100 });
        client.send(pair.address, body.clone(), number, Flush::Now).unwrap();
        let response = loop {
            watch(&event_loop);
            event_loop.turn();
            if let Ok(response) = client.try_recv() {
                break response;
            }
        };
        assert_eq!((response.cookie, response.result.unwrap()), (number, body.into()));
    }
    assert_eq!(pair.client_node.stats().delivery.background_turns, turned_before);
}

/// A look at one queue turns the engine, and so does an operation of another thread: messages for other queues arrive meanwhile.
#[test]
fn messages_that_arrive_between_two_turns_make_the_descriptor_readable() {
    let pair = pair(Delivery::suspend().with_suspend_timeout(NEVER));
    serve_echo(&pair.service);
    acquaint_by_calls(&pair);
    let [first, second] = [(); 2].map(|()| pair.client_node.client().unwrap());
    let event_loop = pair.client_node.event_loop().unwrap();
    let mut watched = [PollFd::new(event_loop.as_fd(), PollFlags::POLLIN)];
    for number in 0..50 {
        while poll(&mut watched, PollTimeout::ZERO).unwrap() == 1 {
            event_loop.turn();
        }
        let before = pair.client_node.stats().delivery.messages;
        first.send(pair.address, "hello", number, Flush::Now).unwrap();
        wait_until("the second client receives the response to the first", || {
            assert!(second.try_recv().is_err());
            pair.client_node.stats().delivery.messages > before
        });
        assert_eq!(poll(&mut watched, PollTimeout::ZERO).unwrap(), 1, "response {number}");
        event_loop.turn();
        assert_eq!(first.try_recv().unwrap().cookie, number);
    }
}

/// The nodes know each other.
fn acquaint_by_calls(pair: &Pair) {
    pair.client_node.client().unwrap().call(pair.address, "hello").wait().unwrap();
}

#[test]
fn tasks_of_tokio_call_and_serve_without_the_background_thread() {
    let pair = pair(Delivery::suspend().with_suspend_timeout(NEVER));
    acquaint(&pair);
    let nodes = [&pair.client_node, &pair.server_node];
    let turned = || nodes.map(|node| node.stats().delivery.background_turns);
    let runtime = runtime_of(&pair.server_node);
    let serving = thread::spawn({
        let service = pair.service.clone();
        move || {
            let serving = runtime.spawn(echo(service));
            runtime.block_on(serving).unwrap();
        }
    });
    let runtime = runtime_of(&pair.client_node);
    let before = turned();
    let calls = |task: u64| {
        let (client, to) = (pair.client_node.client().unwrap(), pair.address);
        async move {
            for round in 0..20 {
                let length = if round == 7 { 200_000 } else { 400 };
                let body = pattern(task * 100 + round, length);
                let call = client.call(to, body.clone()).start().unwrap();
                assert_eq!(call.await.unwrap(), body);
            }
        }
    };
    let tasks: Vec<_> = (0..20).map(|task| runtime.spawn(calls(task))).collect();
    runtime.block_on(async {
        for task in tasks {
            task.await.unwrap();
        }
        calls(20).await;
    });
    assert_eq!(turned(), before);
    pair.service.shutdown();
    serving.join().unwrap();
}

#[test]
fn a_runtime_with_several_threads_turns_a_node() {
    let pair = pair(Delivery::suspend());
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for node in [&pair.client_node, &pair.server_node] {
        runtime.spawn(node.event_loop().unwrap().drive());
    }
    runtime.spawn(echo(pair.service.clone()));
    let client = pair.client_node.client().unwrap();
    runtime.block_on(async {
        for seed in 0..200 {
            let body = pattern(seed, 400);
            assert_eq!(client.call(pair.address, body.clone()).await.unwrap(), body);
        }
    });
}

#[test]
fn messages_are_late_and_not_lost_if_no_thread_watches_the_descriptor() {
    let pair = pair(Delivery::suspend());
    serve_echo(&pair.service);
    let event_loop = pair.client_node.event_loop().unwrap();
    let client = pair.client_node.client().unwrap();
    for seed in 0..20 {
        let body = pattern(seed, 200);
        let call = client.call(pair.address, body.clone()).start().unwrap();
        assert_eq!(block_on(call).unwrap(), body);
    }
    assert!(pair.client_node.stats().delivery.background_turns > 0);
    drop(event_loop);
    let call = client.call(pair.address, "without").start().unwrap();
    assert_eq!(block_on(call).unwrap(), "without");
}

#[test]
fn the_deadline_of_a_call_ends_it_although_no_thread_watches_the_descriptor() {
    let pair = pair(Delivery::suspend());
    acquaint(&pair);
    let _event_loop = pair.client_node.event_loop().unwrap();
    let client = pair.client_node.client().unwrap();
    let call =
        client.call(pair.address, "no answer").deadline(Duration::from_millis(30)).start().unwrap();
    assert!(matches!(block_on(call), Err(CallError::Deadline { .. })));
}

#[test]
fn threads_that_block_and_tasks_share_a_node() {
    let pair = pair(Delivery::suspend());
    serve_echo(&pair.service);
    let runtime = runtime_of(&pair.client_node);
    let client = pair.client_node.client().unwrap();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for seed in 0..300 {
                    let body = pattern(seed, 64);
                    assert_eq!(client.call(pair.address, body.clone()).wait().unwrap(), body);
                }
            });
        }
        let (client, to): (Client, _) = (client.clone(), pair.address);
        let task = runtime.spawn(async move {
            for seed in 0..300 {
                let body = pattern(seed, 64);
                assert_eq!(client.call(to, body.clone()).await.unwrap(), body);
            }
        });
        runtime.block_on(task).unwrap();
    });
}

#[test]
fn sockets_and_timers_of_the_runtime_go_on() {
    let pair = pair(Delivery::suspend());
    serve_echo(&pair.service);
    let runtime = runtime_of(&pair.client_node);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to_echo = listener.local_addr().unwrap();
    let echo = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        std::io::copy(&mut &stream, &mut &stream).unwrap();
    });
    let (client, to) = (pair.client_node.client().unwrap(), pair.address);
    let calling = runtime.spawn(async move {
        loop {
            client.call(to, "all the time").await.unwrap();
        }
    });
    let rounds = runtime.spawn(async move {
        let stream = TcpStream::connect(to_echo).unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut stream = tokio::net::TcpStream::from_std(stream).unwrap();
        for round in 0..50_u8 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            stream.write_all(&[round]).await.unwrap();
            assert_eq!(stream.read_u8().await.unwrap(), round);
        }
    });
    runtime.block_on(rounds).unwrap();
    assert!(!calling.is_finished());
    drop(runtime);
    echo.join().unwrap();
}

#[test]
fn the_end_of_the_node_ends_its_event_loop() {
    let Pair { client_node, .. } = pair(Delivery::suspend());
    let event_loop = client_node.event_loop().unwrap();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let driving = runtime.spawn(event_loop.clone().drive());
    runtime.block_on(tokio::task::yield_now());
    assert!(!driving.is_finished() && !event_loop.is_closed());
    client_node.close(Duration::ZERO).unwrap();
    runtime.block_on(driving).unwrap().unwrap();
    assert!(event_loop.is_closed());
    assert_eq!(event_loop.turn(), 0);
    assert!(!event_loop.poll(Duration::from_secs(60)));
}

#[test]
fn a_node_has_one_event_loop_at_a_time() {
    let node = Node::start(Config::new().listen("127.0.0.1:0".parse().unwrap())).unwrap();
    let event_loop = node.event_loop().unwrap();
    assert!(matches!(node.event_loop(), Err(EventLoopError::InUse)));
    drop(event_loop.clone());
    assert!(matches!(node.event_loop(), Err(EventLoopError::InUse)), "a handle is left");
    drop(event_loop);
    node.event_loop().unwrap();
}

#[test]
fn other_modes_and_shards_have_none() {
    let refused = |delivery, shards| {
        let mut config = Config::new();
        config.listen("127.0.0.1:0".parse().unwrap()).delivery(delivery).shards(shards);
        Node::start(&config).unwrap().event_loop().map(drop).unwrap_err().to_string()
    };
    assert_eq!(
        refused(Delivery::base(), 1),
        "delivery mode base: an event loop turns the engine in mode `suspend` only"
    );
    assert_eq!(
        refused(Delivery::suspend(), 2),
        "the node has 2 shards: an event loop turns a node with one"
    );
}

#[test]
fn an_event_loop_without_messages_uses_no_processor() {
    let pair = pair(Delivery::suspend());
    acquaint(&pair);
    let event_loop = pair.client_node.event_loop().unwrap();
    let mut watched = [PollFd::new(event_loop.as_fd(), PollFlags::POLLIN)];
    // Timers and packets of the acquaintance are late on a busy machine.
    for _ in 0..1_000 {
        let before = pair.client_node.stats().delivery.turns;
        let is_quiet = poll(&mut watched, PollTimeout::from(50_u8)).unwrap() == 0;
        if is_quiet && pair.client_node.stats().delivery.turns == before {
            return;
        }
        event_loop.turn();
    }
    panic!("the node does not come to rest");
}
