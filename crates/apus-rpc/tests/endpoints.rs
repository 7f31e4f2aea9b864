//! Channels with several endpoints.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread;

use apus_rpc::{
    Address, Balance, Channel, Code, ConnectError, Endpoint, EndpointStream, Resolve, Target,
};
use futures_lite::Stream;
use futures_lite::future::block_on;
use tokio::sync::watch;

use crate::cluster;
use crate::cluster::{PORT, channel, cluster, node, target};

fn count(channel: &Channel) -> usize {
    let response = channel.unary("/a.B/Count", "").wait().expect("a response");
    str::from_utf8(response.body()).expect("a text").parse().expect("a number")
}

#[test]
fn calls_go_to_all_servers_and_the_first_is_not_preferred() {
    let members = cluster(3);
    let channel = channel(&members, |it| it.balance(Balance::RoundRobin));
    let numbers: Vec<_> = (0..6).map(|_| count(&channel)).collect();
    assert_eq!(numbers, [0, 1, 2, 0, 1, 2]);
    let channel = cluster::channel(&members, |it| it);
    for _ in 0..60 {
        count(&channel);
    }
    assert!(members.iter().all(|member| member.calls() > 10));
    assert!(channel.endpoints().iter().all(|it| it.load == 0 && !it.is_ejected));
}

#[test]
fn calls_that_fail_take_turns_as_well() {
    let members = cluster(2);
    let channel = channel(&members, |it| it.balance(Balance::RoundRobin));
    for _ in 0..100 {
        let status = channel.unary("/a.B/Find", "").wait().expect_err("nothing is found");
        assert_eq!(status.code(), Code::NotFound);
    }
    assert_eq!(members.iter().map(|it| it.calls()).collect::<Vec<_>>(), [50, 50]);
}

#[test]
fn the_server_with_fewer_calls_under_way_is_chosen() {
    let members = cluster(2);
    let channel = channel(&members, |it| it);
    // A call that waits is load.
    let waiting = channel.clone();
    let waiting = thread::spawn(move || waiting.unary("/a.B/Wait", "").wait());
    while members.iter().all(|member| member.waits() == 0) {
        thread::yield_now();
    }
    let busy = members.iter().position(|member| member.waits() == 1).expect("one of them");
    assert!((0..20).all(|_| count(&channel) == 1 - busy));
    members[busy].gate.add_permits(1);
    waiting.join().expect("no panic").expect("a response");
}

#[test]
fn a_request_that_no_server_took_goes_to_another_one_at_once() {
    //= docs/rpc-wire.md#E14
    let members = cluster(2);
    // A node without the port, first in the list.
    let without = node();
    let to = Address::new(without.local_addr(), PORT);
    let text = target(&members).replace("static:", &format!("static:{to},"));
    let channel = Channel::builder(&text).node(&node()).balance(Balance::PickFirst);
    let channel = channel.build().expect("a channel");
    assert_eq!(channel.address(), to);
    assert_eq!(count(&channel), 0);
    assert_eq!((channel.counters().moved(), channel.endpoints()[0].failures), (1, 1));
    let response = block_on(channel.unary("/a.B/Count", "").into_future()).expect("a response");
    assert_eq!((response.body().as_ref(), channel.counters().moved()), (&b"0"[..], 1));
}

#[test]
fn a_server_that_does_not_exist_is_ejected_and_the_last_failure_is_the_status() {
    let (members, without) = (cluster(1), node());
    let to = Address::new(without.local_addr(), PORT);
    let text = format!("{},{to}", target(&members));
    let channel = Channel::builder(&text).node(&node()).balance(Balance::RoundRobin);
    let channel = channel.build().expect("a channel");
    for _ in 0..20 {
        assert_eq!(count(&channel), 0);
    }
    assert_eq!((channel.counters().moved(), channel.counters().ejections()), (5, 1));
    assert!(channel.endpoints()[1].is_ejected);
    let channel = Channel::builder(&to.to_string()).node(&node()).build().expect("a channel");
    let status = channel.unary("/a.B/Count", "").wait().expect_err("no server");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(!status.may_have_executed());
    assert_eq!(channel.counters().moved(), 0, "there is no other");
}

#[test]
fn a_call_may_wait_for_its_server() {
    let mut members = cluster(1);
    drop(members[0].drain().join().expect("no panic"));
    let channel = channel(&members, |it| it.wait_for_ready(true));
    let waiting = channel.clone();
    let waiting = thread::spawn(move || waiting.unary("/a.B/Count", "").wait());
    let task = channel.clone();
    let task = thread::spawn(move || block_on(task.unary("/a.B/Count", "").into_future()));
    while channel.endpoints()[0].failures < 2 {
        thread::yield_now();
    }
    members[0].begin();
    waiting.join().expect("no panic").expect("a response");
    task.join().expect("no panic").expect("a response");
    assert_eq!(members[0].calls(), 2);
}

#[test]
fn a_rolling_restart_with_drain_loses_no_call() {
    //= docs/rpc-wire.md#E14
    let mut members = cluster(4);
    let channel = channel(&members, |it| it);
    let ends = Arc::new(AtomicBool::new(false));
    let caller = |_| {
        let (channel, ends) = (channel.clone(), Arc::clone(&ends));
        thread::spawn(move || {
            let mut calls = 0;
            while !ends.load(Ordering::SeqCst) {
                count(&channel);
                calls += 1;
            }
            calls
        })
    };
    let callers: Vec<_> = (0..2).map(caller).collect();
    let is_ejected = |number: usize| channel.endpoints()[number].is_ejected;
    let mut calls = 0;
    for (number, member) in members.iter_mut().enumerate() {
        // The server ends while a handler waits.
        let direct = Channel::builder(&member.address().to_string()).node(&node());
        let direct = direct.build().expect("a channel");
        let waiting = thread::spawn(move || direct.unary("/a.B/Wait", "").wait());
        while member.waits() == 0 {
            thread::yield_now();
        }
        let ended = member.drain();
        while !is_ejected(number) {
            count(&channel);
            calls += 1;
        }
        member.gate.add_permits(1);
        waiting.join().expect("no panic").expect("the handler ends");
        drop(ended.join().expect("no panic"));
        member.begin();
        while is_ejected(number) {
            count(&channel);
            calls += 1;
        }
    }
    ends.store(true, Ordering::SeqCst);
    calls += callers.into_iter().map(|it| it.join().expect("no call fails")).sum::<u64>();
    // Each call was executed once.
    let executed = members.iter().map(|member| member.calls()).sum::<u64>();
    assert_eq!(executed, calls);
    assert!(channel.counters().moved() >= 4 && channel.counters().ejections() >= 4);
}

/// Gives the lists that a test sends.
struct Lists {
    sent: watch::Receiver<Result<Vec<Endpoint>, String>>,
    refreshed: Arc<Mutex<u32>>,
}

struct ListStream {
    next: Pin<Box<dyn Stream<Item = Result<Vec<Endpoint>, String>> + Send>>,
}

impl Stream for ListStream {
    type Item = Result<Vec<Endpoint>, apus_rpc::BoxError>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.next.as_mut().poll_next(task).map(|item| item.map(|list| list.map_err(Into::into)))
    }
}

impl Resolve for Lists {
    fn watch(&self, target: &Target) -> EndpointStream {
        assert_eq!(target.as_str(), "a service");
        let mut sent = self.sent.clone();
        sent.mark_changed();
        let next = futures_lite::stream::unfold(sent, |mut sent| async move {
            sent.changed().await.ok()?;
            let list = sent.borrow_and_update().clone();
            Some((list, sent))
        });
        Box::pin(ListStream { next: Box::pin(next) })
    }

    fn refresh(&self) {
        *self.refreshed.lock().expect("no panic") += 1;
    }
}

#[test]
fn a_resolver_changes_the_endpoints_and_an_empty_list_changes_nothing() {
    let members = cluster(2);
    let list = |number: usize| Ok(vec![Endpoint::new(members[number].address())]);
    let (sender, sent) = watch::channel(list(0));
    let refreshed = Arc::default();
    let resolver = Lists { sent, refreshed: Arc::clone(&refreshed) };
    let channel = Channel::builder("a service").node(&node()).resolver(resolver);
    let channel = channel.build().expect("a channel");
    assert_eq!(count(&channel), 0);
    for (lists, next) in [(1, Ok(Vec::new())), (2, list(1))] {
        sender.send(next).expect("the channel watches");
        while channel.counters().lists() < lists {
            thread::yield_now();
        }
    }
    while channel.address() != members[1].address() {
        thread::yield_now();
    }
    assert_eq!(count(&channel), 1);
    sender.send(Err("the name service is down".to_owned())).expect("the channel watches");
    while channel.counters().list_errors() == 0 {
        thread::yield_now();
    }
    assert_eq!(count(&channel), 1);
    assert_eq!(*refreshed.lock().expect("no panic"), 0);
    sender
        .send(Ok(vec![Endpoint::new(Address::new(members[0].node.local_addr(), 7))]))
        .expect("sent");
    while channel.address().port != 7 {
        thread::yield_now();
    }
    channel.unary("/a.B/Count", "").wait().expect_err("no such port");
    assert_eq!(*refreshed.lock().expect("no panic"), 1);
    // The channel ends its watch.
    drop(channel);
    while sender.receiver_count() > 1 {
        thread::yield_now();
    }
}

#[test]
fn a_channel_needs_a_first_list() {
    let (_sender, sent) = watch::channel(Err("no such service".to_owned()));
    let resolver = Lists { sent, refreshed: Arc::default() };
    let channel = Channel::builder("a service").node(&node()).resolver(resolver);
    let error = channel.build().expect_err("no list");
    assert!(matches!(error, ConnectError::Endpoints { .. }), "{error}");
    assert_eq!(error.to_string(), "no endpoints of 'a service': no such service");
    let error = Channel::builder("static:x").node(&node()).build().expect_err("no port");
    assert!(matches!(error, ConnectError::Resolve(_)), "{error}");
    let path = std::env::temp_dir().join(format!("apus-rpc-no-hosts-{}", std::process::id()));
    std::fs::write(&path, "# none\n").expect("a file");
    let text = format!("file:{}", path.display());
    let error = Channel::builder(&text).node(&node()).build().expect_err("no hosts");
    std::fs::remove_file(&path).expect("the file");
    let expected = format!("no endpoints of '{text}': {} has no hosts", path.display());
    assert_eq!(error.to_string(), expected);
}

#[test]
fn contact_takes_the_first_server_that_is_reached() {
    let (members, without) = (cluster(1), node());
    let to = Address::new(without.local_addr(), PORT);
    let text = target(&members).replace("static:", &format!("static:{to},"));
    let channel = Channel::builder(&text).node(&node()).balance(Balance::PickFirst);
    let channel = block_on(channel.connect()).expect("the second");
    assert_eq!(count(&channel), 0);
    let alone = Channel::builder(&to.to_string()).node(&node());
    let error = block_on(alone.connect()).expect_err("no such port");
    assert!(matches!(error, ConnectError::Contact(_)), "{error}");
}
