//! The health of services: what a server says, and the channels that watch it.

use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use apus_rpc::envelope::{MethodPath, Opening, RequestHead};
use apus_rpc::health::{Health, ServingStatus};
use apus_rpc::{
    Address, Balance, Channel, ChannelBuilder, Code, Metadata, Node, Server, ServerBuilder, Status,
    Streaming,
};
use futures_lite::future::block_on;
use tokio::sync::oneshot;

use crate::cluster::{PORT, node};
use crate::health_frames::{request, response};

const CHECK: &str = "/grpc.health.v1.Health/Check";
const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// A server that counts its calls, and says how it is if it has a health.
struct Member {
    address: Address,
    node: Option<Node>,
    calls: Arc<AtomicUsize>,
}

impl Member {
    fn new(health: Option<&Health>) -> Self {
        Self::with(health, |server| server)
    }

    fn with(
        health: Option<&Health>,
        build: impl FnOnce(ServerBuilder<'_>) -> ServerBuilder<'_>,
    ) -> Self {
        let (node, calls) = (node(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&calls);
        let mut server = Server::builder(&node).route("/a.B/Count", move |_, _| {
            counted.fetch_add(1, Ordering::SeqCst);
            async { Ok::<_, Status>("") }
        });
        if let Some(health) = health {
            server = server.add(health.clone());
        }
        let serving = build(server).serve(PORT, pending());
        thread::spawn(move || serving.wait());
        let address = Address::new(node.local_addr(), PORT);
        Self { address, node: Some(node), calls }
    }
}

fn builder(members: &[Member]) -> ChannelBuilder {
    let addresses: Vec<_> = members.iter().map(|it| it.address.to_string()).collect();
    let target = format!("static:{}", addresses.join(","));
    let channel = Channel::builder(&target).node(&node()).balance(Balance::RoundRobin);
    channel.health("shop.Calc")
}

fn channel(members: &[Member]) -> Channel {
    builder(members).build().expect("a channel")
}

/// Waits until the channel has these states of its endpoints.
fn wait_until(channel: &Channel, expected: &[bool]) {
    let is_it = || channel.endpoints().iter().map(|it| it.is_healthy).eq(expected.iter().copied());
    while !is_it() {
        thread::yield_now();
    }
}

/// Calls 12 times, and returns the numbers of calls that the servers have got.
fn calls(channel: &Channel, members: &[Member]) -> Vec<usize> {
    let count = |member: &Member| member.calls.load(Ordering::SeqCst);
    let before: Vec<_> = members.iter().map(count).collect();
    for _ in 0..12 {
        channel.unary("/a.B/Count", "").wait().expect("a response");
    }
    members.iter().zip(before).map(|(member, before)| count(member) - before).collect()
}

#[test]
fn a_channel_leaves_servers_out_whose_service_does_not_serve() {
    let healths = [Health::new(), Health::new()];
    for health in &healths {
        health.set("shop.Calc", ServingStatus::Serving);
    }
    // The third one does not know the method: it serves.
    let members =
        [Member::new(Some(&healths[0])), Member::new(Some(&healths[1])), Member::new(None)];
    let channel = channel(&members);
    assert_eq!(calls(&channel, &members), [4, 4, 4]);
    healths[0].set("shop.Calc", ServingStatus::NotServing);
    wait_until(&channel, &[false, true, true]);
    assert_eq!(calls(&channel, &members), [0, 6, 6]);
    // A service that is not known serves no more.
    healths[1].clear("shop.Calc");
    wait_until(&channel, &[false, false, true]);
    assert_eq!(calls(&channel, &members), [0, 0, 12]);
    healths[0].set("shop.Calc", ServingStatus::Serving);
    wait_until(&channel, &[true, false, true]);
    assert_eq!(calls(&channel, &members), [6, 0, 6]);
    assert_eq!(channel.counters().health_changes(), 3);
    // The health of other services is nothing to it.
    healths[0].set("shop.Other", ServingStatus::NotServing);
    assert_eq!(calls(&channel, &members), [6, 0, 6]);
}

#[test]
fn the_interceptors_of_a_channel_see_its_watches() {
    let health = Health::new();
    health.set("shop.Calc", ServingStatus::Serving);
    let member = Member::with(Some(&health), |server| {
        server.interceptor(|call| match call.metadata().get("authorization") {
            Some("Bearer secret") => Ok(()),
            _ => Err(Status::new(Code::Unauthenticated, "no token")),
        })
    });
    let members = [member];
    let channel = builder(&members).interceptor(|call| {
        let appended = call.metadata_mut().append("authorization", "Bearer secret");
        appended.map_err(|error| Status::new(Code::Internal, error.to_string()))
    });
    let channel = channel.build().expect("a channel");
    while health.watchers() == 0 {
        assert!(channel.endpoints()[0].is_healthy, "the server admits the watch");
        thread::yield_now();
    }
    for status in [ServingStatus::NotServing, ServingStatus::Serving] {
        health.set("shop.Calc", status);
        wait_until(&channel, &[status == ServingStatus::Serving]);
    }
}

#[test]
fn if_no_server_serves_calls_go_to_all() {
    let health = Health::new();
    let members = [Member::new(Some(&health)), Member::new(Some(&health))];
    let channel = channel(&members);
    wait_until(&channel, &[false, false]);
    assert_eq!(calls(&channel, &members), [6, 6]);
}

#[test]
fn a_server_that_has_gone_is_left_out() {
    let health = Health::new();
    health.set("shop.Calc", ServingStatus::Serving);
    let mut members = [Member::new(Some(&health)), Member::new(Some(&health))];
    let channel = channel(&members);
    assert_eq!(calls(&channel, &members), [6, 6]);
    while health.watchers() < 2 {
        thread::yield_now();
    }
    let _ = members[1].node.take().expect("a node").close(Duration::ZERO);
    wait_until(&channel, &[true, false]);
    assert_eq!(calls(&channel, &members)[0], 12);
}

/// The next status of a watch.
async fn next(responses: &mut Streaming) -> Option<Result<u8, Status>> {
    let chunk = poll_fn(|task| responses.poll_chunk(task)).await?;
    Some(chunk.map(|chunk| response(&chunk)))
}

#[test]
fn a_server_says_how_its_services_are() {
    let health = Health::new();
    let member = Member::new(Some(&health));
    let channel = Channel::builder(&member.address.to_string()).node(&node());
    let channel = channel.build().expect("a channel");
    let check = |service| channel.unary(CHECK, request(service)).wait();
    assert_eq!(response(check("").expect("the whole server").body()), 1);
    let status = check("shop.Calc").expect_err("not known");
    assert_eq!(status.code(), Code::NotFound);
    health.set("shop.Calc", ServingStatus::Unknown);
    assert_eq!(response(check("shop.Calc").expect("a status").body()), 0);
    assert_eq!(health.status("shop.Calc"), Some(ServingStatus::Unknown));
    for wrong in [&b""[..], b"\0\0\0\0", b"\0\0\0\0\x05\x0A\x09abc", b"\0\0\0\0\x03\x0A\x01\xFF"] {
        let status = channel.unary(CHECK, wrong).wait().expect_err("no message");
        assert_eq!(status.code(), Code::InvalidArgument, "{wrong:?}");
    }
    block_on(async {
        let call = channel.stream(WATCH).start_raw(request("shop.Later").into(), true);
        let (_, mut watched) = call.expect("sent");
        assert_eq!(next(&mut watched).await, Some(Ok(3)));
        for status in [ServingStatus::Serving, ServingStatus::NotServing] {
            health.set("shop.Later", status);
            assert_eq!(next(&mut watched).await, Some(Ok(status as u8)));
        }
        drop(watched);
    });
    // A watch that is given up leaves nothing.
    while health.watchers() > 0 {
        thread::yield_now();
    }
}

#[test]
fn watchers_are_notified_of_the_end_of_a_server_which_does_not_wait_for_them() {
    let (health, server_node) = (Health::new(), node());
    health.set("shop.Calc", ServingStatus::Serving);
    let (end, ended) = oneshot::channel();
    let shutdown = async { ended.await.unwrap_or(()) };
    let serving = Server::builder(&server_node).add(health.clone()).serve(PORT, shutdown);
    let serving = thread::spawn(move || serving.drain(Duration::from_secs(600)).wait());
    let address = Address::new(server_node.local_addr(), PORT).to_string();
    let channel = Channel::builder(&address).node(&node()).build().expect("a channel");
    let call = channel.stream(WATCH).start_raw(request("shop.Calc").into(), true);
    let (_, mut watched) = call.expect("sent");
    assert_eq!(block_on(next(&mut watched)), Some(Ok(1)));
    end.send(()).expect("the server serves");
    assert_eq!(block_on(next(&mut watched)), Some(Ok(2)));
    assert_eq!(block_on(next(&mut watched)), None);
    let drained = serving.join().expect("no panic").expect("it served");
    assert_eq!((drained.finished, drained.cancelled), (0, 0), "a watch is no request");
}

#[test]
fn the_end_of_a_server_does_not_wait_for_a_watcher_that_reads_nothing() {
    let (health, server_node) = (Health::new(), node());
    let (end, ended) = oneshot::channel();
    let shutdown = async { ended.await.unwrap_or(()) };
    let serving = Server::builder(&server_node).add(health.clone()).serve(PORT, shutdown);
    let serving = thread::spawn(move || serving.drain(Duration::from_secs(600)).wait());
    let client = node().client().expect("a client");
    let to = Address::new(server_node.local_addr(), PORT);
    let path = MethodPath::new(WATCH).expect("a path");
    let (ends, holds, metadata) = (true, true, Metadata::new());
    let opening = Opening { id: 5, ends, holds, path, metadata };
    let open = [RequestHead::Open(opening).encode(0), request("")].concat();
    let open = client.call(to, open).start().expect("sent");
    // It holds its call, and pulls nothing.
    let hold = client.call(to, RequestHead::Hold { id: 5 }.encode(0)).start().expect("sent");
    open.wait().expect("the first status");
    end.send(()).expect("the server serves");
    let drained = serving.join().expect("no panic").expect("it served");
    assert_eq!((drained.finished, drained.cancelled), (0, 0), "a watch is no request");
    drop(hold);
}

#[test]
fn a_health_of_two_servers_goes_on_when_one_of_them_ends() {
    let health = Health::new();
    let other = Member::new(Some(&health));
    let server_node = node();
    let (end, ended) = oneshot::channel();
    let shutdown = async { ended.await.unwrap_or(()) };
    let serving = Server::builder(&server_node).add(health.clone()).serve(PORT, shutdown);
    let serving = thread::spawn(move || serving.wait());
    end.send(()).expect("the server serves");
    let _drained = serving.join().expect("no panic").expect("it served");
    assert_eq!(health.status(""), Some(ServingStatus::Serving));
    let address = other.address.to_string();
    let channel = Channel::builder(&address).node(&node()).build().expect("a channel");
    let checked = channel.unary(CHECK, request("")).wait().expect("a status");
    assert_eq!(response(checked.body()), 1);
    let call = channel.stream(WATCH).start_raw(request("").into(), true);
    let (_, mut watched) = call.expect("sent");
    assert_eq!(block_on(next(&mut watched)), Some(Ok(1)));
    health.set("", ServingStatus::NotServing);
    assert_eq!(block_on(next(&mut watched)), Some(Ok(2)));
}
