//! Calls whose path within the host ends: those that the peer cannot have executed continue over UDP.

use crate::pair::{CLIENT, PORT, Pair, SERVER, body, millis, path};
use apus_proto::slab::Handle;
use apus_proto::{
    Body, CallFailed, CallOptions, Cookie, MessageKind, MessageSink, Moved, Remote, RpcKey, Words,
};
use apus_wire::{PathId, TraceContext, UnknownReason};
use bytes::Bytes;

/// The path within the host from the client to the server.
fn local() -> PathId {
    PathId::new(9, 9).local()
}

/// Returns a client that shares memory with the server.
fn neighbours() -> Pair {
    let mut pair = Pair::new();
    let now = pair.now;
    pair.endpoint(CLIENT).add_local(now, local());
    pair
}

fn call(pair: &mut Pair, options: CallOptions) -> RpcKey {
    let (now, node) = (pair.now, &mut pair.nodes[CLIENT]);
    let to = Remote::new(local(), PORT);
    node.endpoint.call(now, node.socket, to, body(100, 1), options).unwrap()
}

/// Takes the client's messages through memory.
struct Sent(Vec<Words>);

impl MessageSink for Sent {
    fn send(&mut self, _: PathId, words: Words, _: &Body) {
        self.0.push(words);
    }
}

fn send(pair: &mut Pair) -> Vec<Words> {
    let (now, mut sent) = (pair.now, Sent(Vec::new()));
    pair.endpoint(CLIENT).poll_messages(now, &mut sent);
    sent.0
}

/// Ends the path. `is_unsent`: the last byte of the request with this id is not in memory.
fn end(pair: &mut Pair, to: Option<PathId>, is_unsent: impl Fn(u64) -> bool) -> Vec<Moved> {
    let now = pair.now;
    let client = pair.endpoint(CLIENT);
    let unsent = client.take_unsent(local(), &is_unsent);
    client.remove_local(local(), CallFailed::MayHaveExecuted);
    client.forget_run(path(SERVER));
    client.begin_unsent(now, unsent, to)
}

/// Asserts that the only call of the client continues over UDP and is executed there once.
fn assert_goes_on(pair: &mut Pair, moved: &[Moved]) {
    let [Moved { cookie: Cookie::Queue(7), rpc, .. }] = *moved else { panic!("{moved:?}") };
    pair.drive();
    assert_eq!((pair.response(rpc).len(), pair.nodes[SERVER].executed.len()), (100, 1));
    let counters = pair.counters(CLIENT);
    let counts = (counters.calls, counters.calls_begun_anew, counters.calls_completed);
    assert_eq!(counts, (1, 1, 1));
    pair.assert_clean();
}

const OPTIONS: CallOptions = CallOptions { cookie: Cookie::Queue(7), deadline: None, trace: None };

//= docs/protocol.md#local-8
#[test]
fn a_call_that_was_not_sent_goes_on_over_udp() {
    let mut pair = neighbours();
    call(&mut pair, OPTIONS);
    let moved = end(&mut pair, Some(path(SERVER)), |_| false);
    assert_goes_on(&mut pair, &moved);
    assert!(send(&mut pair).is_empty(), "it goes one way");
}

//= docs/protocol.md#local-8
#[test]
fn a_call_of_which_a_part_was_not_sent_goes_on_over_udp() {
    let mut pair = neighbours();
    let call = call(&mut pair, OPTIONS);
    assert_eq!(send(&mut pair).len(), 1);
    let moved = end(&mut pair, Some(path(SERVER)), |id| RpcKey::from_bits(id) == call);
    assert_goes_on(&mut pair, &moved);
}

//= docs/protocol.md#local-8
#[test]
fn a_call_that_the_peer_has_refused_goes_on_over_udp() {
    let mut pair = neighbours();
    call(&mut pair, OPTIONS);
    let [[_, id]] = send(&mut pair)[..] else { panic!("one request") };
    let (now, refused) = (pair.now, MessageKind::Refused(UnknownReason::OverBudget).encode(id));
    pair.endpoint(CLIENT).handle_message(now, local(), refused, Bytes::new());
    let moved = end(&mut pair, Some(path(SERVER)), |_| false);
    assert_goes_on(&mut pair, &moved);
}

//= docs/protocol.md#local-8
#[test]
fn a_call_that_was_sent_is_not_sent_again() {
    let mut pair = neighbours();
    let call = call(&mut pair, OPTIONS);
    assert_eq!(send(&mut pair).len(), 1);
    assert!(end(&mut pair, Some(path(SERVER)), |_| false).is_empty());
    pair.drive();
    assert_eq!(pair.failure(call), CallFailed::MayHaveExecuted);
    assert!(pair.sent.is_empty() && pair.nodes[SERVER].executed.is_empty());
    pair.assert_clean();
}

//= docs/protocol.md#local-8
#[test]
fn a_call_that_can_go_no_other_way_was_not_executed() {
    for to in [None, Some(path(SERVER))] {
        let mut pair = Pair::with(|config| {
            config.calls_max(1);
        });
        let now = pair.now;
        pair.endpoint(CLIENT).add_local(now, local());
        pair.call(100); // The only call over UDP that the limit allows.
        let call = call(&mut pair, OPTIONS);
        assert!(end(&mut pair, to, |_| false).is_empty());
        pair.drive();
        assert_eq!(pair.failure(call), CallFailed::NotSent, "{to:?}");
        pair.assert_clean();
    }
}

#[test]
fn a_call_keeps_its_deadline_on_its_new_way() {
    let mut pair = neighbours();
    pair.hold();
    let deadline = Some(pair.now + millis(20));
    call(&mut pair, CallOptions { deadline, ..OPTIONS });
    let moved = end(&mut pair, Some(path(SERVER)), |_| false);
    pair.drive_for(millis(30));
    let failure = pair.failure(moved[0].rpc);
    assert!(matches!(failure, CallFailed::DeadlineExceeded { .. }), "{failure}");
}

//= docs/protocol.md#local-9
#[test]
fn a_call_keeps_its_trace_on_its_new_way() {
    let mut pair = neighbours();
    pair.hold();
    let trace = TraceContext::new([1; 16], [2; 8], 1);
    call(&mut pair, CallOptions { trace: trace.map(Box::new), ..OPTIONS });
    let moved = end(&mut pair, Some(path(SERVER)), |_| false);
    assert_eq!(moved.len(), 1);
    pair.drive_for(millis(30));
    assert_eq!(pair.nodes[SERVER].requests[0].trace, trace);
}
