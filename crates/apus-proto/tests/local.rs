//! Calls within one host: whole messages instead of packets.

use std::collections::VecDeque;
use std::time::Duration;

use apus_proto::{
    Awaited, Body, CallError, CallFailed, CallOptions, Config, Cookie, Endpoint, Event,
    MessageKind, MessageSink, PathKind, Remote, ReplyError, Rights, RpcKey, SocketKey, Time, Words,
};
use apus_wire::{PathId, TraceContext, UnknownReason};
use bytes::Bytes;

const PORT: u16 = 4000;
const CLIENT: usize = 0;
const SERVER: usize = 1;

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[derive(Default)]
struct Wire(VecDeque<(Words, Bytes)>);

impl MessageSink for Wire {
    fn send(&mut self, _: PathId, words: Words, body: &Body) {
        self.0.push_back((words, body.clone().into_bytes()));
    }
}

/// Two nodes of one host.
struct Host {
    now: Time,
    nodes: [Endpoint; 2],
    socket: SocketKey,
    service: SocketKey,
    /// Whether the server's process has stopped, so that no message is delivered to it.
    stopped: bool,
    /// The verdict about doubted peers, and their number.
    runs: bool,
    doubts: u32,
    /// Trace context of the calls that begin.
    trace: Option<TraceContext>,
}

/// Returns the path of a node to the other one.
fn path(node: usize) -> PathId {
    PathId::new(3 + node as u32, 7).local()
}

impl Host {
    fn new(configure: impl Fn(&mut Config)) -> Self {
        let mut config = Config::default();
        configure(&mut config);
        let mut nodes = [1, 2].map(|seed| Endpoint::new(config.clone(), seed));
        let now = Time::ZERO + millis(5);
        (0..2).for_each(|node| nodes[node].add_local(now, path(node)));
        let service = nodes[SERVER].open(Some(PORT)).unwrap();
        let socket = nodes[CLIENT].open(None).unwrap();
        Self { now, nodes, socket, service, stopped: false, runs: false, doubts: 0, trace: None }
    }

    fn call(&mut self, length: usize) -> Result<RpcKey, CallError> {
        self.call_with(PORT, length, None)
    }

    fn call_with(
        &mut self,
        port: u16,
        length: usize,
        deadline: Option<Duration>,
    ) -> Result<RpcKey, CallError> {
        let deadline = deadline.map(|deadline| self.now + deadline);
        let options =
            CallOptions { cookie: Cookie::Key(9), deadline, trace: self.trace.map(Box::new) };
        let to = Remote::new(path(CLIENT), port);
        self.nodes[CLIENT].call(self.now, self.socket, to, vec![1; length], options)
    }

    /// Delivers all messages, both ways.
    fn settle(&mut self) {
        loop {
            let mut quiet = true;
            for from in [CLIENT, SERVER] {
                let to = 1 - from;
                let mut wire = Wire::default();
                self.nodes[from].poll_messages(self.now, &mut wire);
                for (words, body) in wire.0.into_iter().filter(|_| !self.stopped || to == CLIENT) {
                    quiet = false;
                    self.nodes[to].handle_message(self.now, path(to), words, body);
                }
            }
            if quiet {
                return;
            }
        }
    }

    /// Advances the clock, runs timers and delivers messages.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = (self.now + millis(1)).min(end);
            for node in &mut self.nodes {
                if node.poll_timeout().is_some_and(|due| due <= self.now) {
                    node.handle_timeout(self.now);
                }
                while let Some(path) = node.poll_doubted() {
                    self.doubts += 1;
                    node.judge_local(self.now, path, self.runs);
                }
            }
            self.settle();
        }
    }

    fn request(&mut self) -> RpcKey {
        self.settle();
        let event = self.nodes[SERVER].poll_event();
        let Some(Event::Request { rpc, from, .. }) = event else { panic!("{event:?}") };
        assert_eq!(from.path, path(SERVER));
        rpc
    }

    /// Takes the watched requests that were reported as cancelled.
    fn cancelled(&mut self) -> Vec<RpcKey> {
        let mut cancelled = Vec::new();
        while let Some(event) = self.nodes[SERVER].poll_event() {
            let Event::Cancelled { rpc, .. } = event else { panic!("{event:?}") };
            cancelled.push(rpc);
        }
        cancelled
    }

    fn reply(&mut self, rpc: RpcKey, length: usize) -> Result<(), ReplyError> {
        self.nodes[SERVER].reply(self.now, rpc, vec![2; length])
    }

    fn failure(&mut self) -> CallFailed {
        match self.nodes[CLIENT].poll_event() {
            Some(Event::Failed { cookie: Cookie::Key(9), error, .. }) => error,
            other => panic!("{other:?}"),
        }
    }

    /// Asserts that no state of any call is left.
    fn assert_clean(&mut self) {
        self.settle();
        for node in &mut self.nodes {
            assert!(node.is_idle() && node.held_bytes() == 0, "{} bytes", node.held_bytes());
        }
    }
}

//= docs/protocol.md#local-1
#[test]
fn a_call_is_answered() {
    let mut host = Host::new(|_| {});
    let call = host.call_with(PORT, 100, Some(millis(20))).unwrap();
    host.settle();
    let event = host.nodes[SERVER].poll_event();
    let Some(Event::Request { rpc, deadline, body, .. }) = event else { panic!("{event:?}") };
    assert_eq!((deadline, body.len()), (Some(host.now + millis(20)), 100));
    assert!(host.nodes[SERVER].is_active(rpc));
    host.reply(rpc, 200).unwrap();
    host.settle();
    let event = host.nodes[CLIENT].poll_event();
    let Some(Event::Response { rpc, cookie: Cookie::Key(9), body, .. }) = event else {
        panic!("{event:?}")
    };
    assert_eq!((rpc, body.len()), (call, 200));
    host.assert_clean();
}

#[test]
fn what_cannot_be_called_fails() {
    let mut host = Host::new(|config| {
        config.message_max(100_000).calls_max(2);
    });
    assert!(matches!(host.call(100_001), Err(CallError::MessageTooLarge { .. })));
    host.call_with(PORT + 1, 1, None).unwrap();
    host.settle();
    assert_eq!(host.failure(), CallFailed::NoSuchPort);
    host.call(1).unwrap();
    host.call(1).unwrap();
    assert_eq!(host.call(1), Err(CallError::TooManyCalls { limit: 2 }));
    host.nodes[CLIENT].remove_local(path(CLIENT), CallFailed::MayHaveExecuted);
    assert_eq!(host.call(1), Err(CallError::PathEnded));
}

//= docs/protocol.md#seal-6
#[test]
fn a_process_without_right_is_refused_and_learns_it() {
    let mut host = Host::new(|_| {});
    let service = host.service;
    host.nodes[SERVER].set_rule(service, 3);
    host.nodes[SERVER].set_default_rights(PathKind::Local, Rights { requests: 7, calls: 0 });
    host.call(100).unwrap();
    host.settle();
    assert_eq!(host.failure(), CallFailed::NotAllowed);
    assert_eq!(host.nodes[SERVER].counters().refused_not_allowed, 1);
    let request = MessageKind::Request { from: 1, to: PORT, remaining: None };
    assert!(!host.nodes[SERVER].admits_message(path(SERVER), request.encode(5), 100));
    host.nodes[SERVER].set_rights(path(SERVER), Rights { requests: 8, calls: 0 });
    host.call(100).unwrap();
    let request = host.request();
    // It goes on without the right.
    host.nodes[SERVER].remove_rights(path(SERVER));
    host.reply(request, 1).unwrap();
    host.settle();
    assert!(matches!(host.nodes[CLIENT].poll_event(), Some(Event::Response { .. })));
    host.assert_clean();
}

//= docs/protocol.md#seal-6
#[test]
fn a_request_that_waits_is_refused_when_a_new_rule_does_not_name_its_process() {
    let mut host = Host::new(|_| {});
    let service = host.service;
    host.nodes[SERVER].set_default_rights(PathKind::Local, Rights { requests: 7, calls: 0 });
    host.call(100).unwrap();
    let request = host.request();
    assert!(!host.nodes[SERVER].refuse_if_forbidden(request));
    host.nodes[SERVER].set_rule(service, 3);
    assert!(host.nodes[SERVER].refuse_if_forbidden(request));
    assert_eq!(host.reply(request, 1), Err(ReplyError::NotInService));
    host.settle();
    assert_eq!(host.failure(), CallFailed::NotAllowed);
    assert_eq!(host.nodes[SERVER].counters().refused_not_allowed, 1);
    host.assert_clean();
}

//= docs/protocol.md#seal-6
#[test]
fn a_process_is_called_only_by_sockets_whose_rule_names_it() {
    let mut host = Host::new(|_| {});
    host.nodes[CLIENT].set_rights(path(CLIENT), Rights { requests: 0, calls: 2 });
    assert_eq!(host.call(100), Err(CallError::NotExpected));
    let socket = host.socket;
    host.nodes[CLIENT].set_rule(socket, 1);
    host.call(100).unwrap();
    host.request();
}

//= docs/protocol.md#local-2
#[test]
fn a_response_that_comes_late_finds_nothing() {
    let mut host = Host::new(|_| {});
    let first = host.call(1).unwrap();
    let request = host.request();
    host.reply(request, 1).unwrap();
    assert!(host.nodes[CLIENT].abort(first));
    let second = host.call(1).unwrap();
    host.settle();
    assert_eq!(host.nodes[CLIENT].poll_event(), None);
    let request = host.request();
    host.reply(request, 1).unwrap();
    host.settle();
    let event = host.nodes[CLIENT].poll_event();
    assert!(matches!(event, Some(Event::Response { rpc, .. }) if rpc == second));
    host.assert_clean();
}

//= docs/protocol.md#local-3
#[test]
fn a_request_that_is_repeated_is_executed_once() {
    let mut host = Host::new(|_| {});
    host.call(1).unwrap();
    let mut wire = Wire::default();
    host.nodes[CLIENT].poll_messages(host.now, &mut wire);
    let (words, body) = wire.0[0].clone();
    for _ in 0..3 {
        host.nodes[SERVER].handle_message(host.now, path(SERVER), words, body.clone());
    }
    host.request();
    assert_eq!(host.nodes[SERVER].poll_event(), None);
    assert_eq!(host.nodes[SERVER].counters().refused_duplicate_requests, 2);
}

//= docs/protocol.md#local-4
#[test]
fn a_request_waits_for_room_at_the_server() {
    let mut host = Host::new(|config| {
        config
            .message_max(40_000)
            .peer_budget(1 << 16)
            .socket_budget(1 << 18)
            .total_budget(1 << 18);
    });
    let calls: Vec<_> = (0..2).map(|_| host.call(30_000).unwrap()).collect();
    assert!(matches!(host.call(30_000), Err(CallError::OverBudget { .. })));
    let first = host.request();
    let second = host.request();
    host.nodes[CLIENT].abort(calls[0]);
    host.call(30_000).unwrap();
    host.pass(millis(10));
    assert_eq!(host.nodes[SERVER].poll_event(), None, "the server still holds both");
    assert_eq!(host.reply(first, 1), Err(ReplyError::NotInService), "its client has given it up");
    host.pass(millis(70));
    let third = host.request();
    host.reply(second, 1).unwrap();
    host.reply(third, 1).unwrap();
    host.settle();
    for _ in 0..2 {
        assert!(matches!(host.nodes[CLIENT].poll_event(), Some(Event::Response { .. })));
    }
    host.assert_clean();
}

//= docs/protocol.md#local-4
#[test]
fn what_a_path_keeps_for_a_peer_is_charged_to_it() {
    let mut host = Host::new(|config| {
        config
            .message_max(40_000)
            .peer_budget(1 << 16)
            .socket_budget(1 << 18)
            .total_budget(1 << 18);
    });
    assert!(host.nodes[SERVER].set_local_load(path(SERVER), 60_000));
    host.call(30_000).unwrap();
    host.pass(millis(10));
    assert_eq!(host.nodes[SERVER].poll_event(), None, "there is no room beside it");
    assert!(host.nodes[SERVER].set_local_load(path(SERVER), 0));
    host.pass(millis(70));
    let request = host.request();
    host.reply(request, 1).unwrap();
    host.settle();
    assert!(matches!(host.nodes[CLIENT].poll_event(), Some(Event::Response { .. })));
    assert!(!host.nodes[SERVER].set_local_load(path(SERVER), 5 << 16), "it reads nothing");
}

//= docs/protocol.md#local-4
#[test]
fn memory_that_a_path_has_created_for_a_peer_is_charged_to_it() {
    let mut host = Host::new(|config| {
        config
            .message_max(40_000)
            .peer_budget(1 << 17)
            .socket_budget(1 << 18)
            .total_budget(1 << 18);
    });
    host.nodes[SERVER].set_local_memory(path(SERVER), 60_000);
    host.call(40_000).unwrap();
    host.call(40_000).unwrap();
    host.pass(millis(10));
    let first = host.request();
    assert_eq!(host.nodes[SERVER].poll_event(), None, "there is no room for the second");
    host.nodes[SERVER].set_local_memory(path(SERVER), 0);
    host.pass(millis(70));
    let second = host.request();
    host.nodes[SERVER].set_local_memory(path(SERVER), 8 << 20);
    host.reply(first, 1).unwrap();
    host.reply(second, 1).unwrap();
    host.settle();
    for _ in 0..2 {
        assert!(matches!(host.nodes[CLIENT].poll_event(), Some(Event::Response { .. })));
    }
    host.call(40_000).unwrap();
    host.pass(millis(10));
    host.request(); // Much memory leaves room for one longest message.
}

#[test]
fn a_server_without_room_is_tried_for_a_while() {
    let mut host = Host::new(|config| {
        config
            .message_max(40_000)
            .peer_budget(1 << 16)
            .socket_budget(1 << 18)
            .total_budget(1 << 18);
    });
    // The server holds requests of other clients.
    let mut hold = Host::new(|_| {});
    for _ in 0..8 {
        hold.call(30_000).unwrap();
    }
    let mut wire = Wire::default();
    hold.nodes[CLIENT].poll_messages(hold.now, &mut wire);
    for (number, (words, body)) in wire.0.into_iter().enumerate() {
        let other = PathId::new(9 + number as u32, 9).local();
        host.nodes[SERVER].add_local(host.now, other);
        host.nodes[SERVER].handle_message(host.now, other, words, body);
    }
    host.call(30_000).unwrap();
    host.pass(millis(1_500));
    assert!(
        matches!(host.failure(), CallFailed::Overloaded { after, .. } if after >= millis(1_000))
    );
}

//= docs/protocol.md#local-5
#[test]
fn a_call_that_is_given_up_is_cancelled_at_the_server() {
    let mut host = Host::new(|_| {});
    let call = host.call(1).unwrap();
    let request = host.request();
    assert!(host.nodes[SERVER].watch(request));
    host.nodes[CLIENT].abort(call);
    host.settle();
    assert!(!host.nodes[SERVER].is_active(request) && !host.nodes[SERVER].watch(request));
    assert_eq!(host.cancelled(), [request]);
    assert_eq!(host.reply(request, 1), Err(ReplyError::NotInService));
    host.call_with(PORT, 1, Some(millis(30))).unwrap();
    let request = host.request();
    host.pass(millis(29));
    assert!(host.nodes[SERVER].is_active(request));
    host.pass(millis(5));
    assert!(
        matches!(host.failure(), CallFailed::DeadlineExceeded { after, .. } if after >= millis(30))
    );
    assert!(!host.nodes[SERVER].is_active(request));
    assert_eq!(host.reply(request, 1), Err(ReplyError::NotInService));
    host.assert_clean();
}

#[test]
fn a_handler_that_panics_is_reported() {
    let mut host = Host::new(|_| {});
    host.call(1).unwrap();
    let request = host.request();
    assert!(
        host.nodes[SERVER].reject(request, UnknownReason::HandlerPanicked)
            && !host.nodes[SERVER].reject(request, UnknownReason::HandlerPanicked)
    );
    host.settle();
    assert_eq!(host.failure(), CallFailed::HandlerPanicked);
    host.assert_clean();
}

//= docs/protocol.md#local-6
#[test]
fn a_peer_that_is_silent_is_probed_and_given_up() {
    let mut host = Host::new(|_| {});
    host.call(1).unwrap();
    host.request();
    host.pass(millis(5_000));
    assert_eq!(host.nodes[CLIENT].poll_event(), None, "it answers probes");
    host.stopped = true;
    host.pass(millis(1_500));
    let CallFailed::PeerTimeout { waited_for, silent_for, probes_unanswered, .. } = host.failure()
    else {
        panic!("another failure");
    };
    assert_eq!(waited_for, Awaited::Response);
    assert!(silent_for >= millis(1_000) && probes_unanswered >= 2);
}

//= docs/protocol.md#local-6
#[test]
fn a_peer_whose_process_runs_is_not_lost_by_silence() {
    let mut host = Host::new(|_| {});
    let call = host.call(1).unwrap();
    let request = host.request();
    (host.stopped, host.runs) = (true, true);
    host.pass(millis(10_000));
    assert_eq!(host.nodes[CLIENT].poll_event(), None);
    assert!((5..20).contains(&host.doubts), "{} doubts", host.doubts);
    host.stopped = false;
    host.reply(request, 1).unwrap();
    host.settle();
    let event = host.nodes[CLIENT].poll_event();
    assert!(matches!(event, Some(Event::Response { rpc, .. }) if rpc == call), "{event:?}");
    host.assert_clean();
}

//= docs/protocol.md#local-6
#[test]
fn a_node_that_did_not_run_asks_its_peer_before_it_gives_it_up() {
    let mut host = Host::new(|_| {});
    host.call(1).unwrap();
    host.request();
    host.pass(millis(300));
    for _ in 0..5 {
        host.now = host.now + millis(3_000); // Both were out of processor time.
        host.pass(millis(100));
        assert_eq!(host.nodes[CLIENT].poll_event(), None);
    }
}

#[test]
fn the_end_of_a_path_ends_its_calls_and_requests() {
    let mut host = Host::new(|_| {});
    host.call(1).unwrap();
    let request = host.request();
    host.nodes[CLIENT].remove_local(path(CLIENT), CallFailed::MayHaveExecuted);
    host.nodes[SERVER].remove_local(path(SERVER), CallFailed::MayHaveExecuted);
    assert_eq!(host.failure(), CallFailed::MayHaveExecuted);
    assert_eq!(host.reply(request, 1), Err(ReplyError::NotInService));
    host.assert_clean();
}

#[test]
fn a_socket_that_is_closed_leaves_nothing() {
    for side in [CLIENT, SERVER] {
        let mut host = Host::new(|_| {});
        host.call(1).unwrap();
        host.request();
        let socket = if side == CLIENT { host.socket } else { host.service };
        host.nodes[side].close(socket);
        host.settle();
        if side == SERVER {
            assert_eq!(host.failure(), CallFailed::ResponseLost);
        }
        host.pass(millis(1));
        assert!(host.nodes[CLIENT].is_idle() && host.nodes[CLIENT].held_bytes() == 0);
    }
}

/// A hostile process: any words, any body.
#[test]
fn messages_of_no_honest_peer_are_dropped() {
    let mut host = Host::new(|_| {});
    let call = host.call(1).unwrap();
    host.settle();
    let mut state = 1u64;
    for _ in 0..100_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let word = state >> 20 & 0xff | u64::from(PORT) << 8;
        let id = if state >> 60 == 0 { u64::MAX } else { state >> 32 & 3 };
        let body = vec![0; (state >> 50 & 1) as usize];
        host.nodes[CLIENT].handle_message(host.now, path(CLIENT), [word, id], body.clone().into());
        host.nodes[SERVER].handle_message(host.now, path(SERVER), [state, id], body.into());
        let mut wire = Wire::default();
        host.nodes.iter_mut().for_each(|node| node.poll_messages(host.now, &mut wire));
    }
    assert!(host.nodes[CLIENT].is_active(call), "that peer does not know its id");
}

fn context(number: u8) -> TraceContext {
    TraceContext::new([number; 16], [1; 8], 0).unwrap()
}

impl Host {
    /// Returns the trace context of the next request.
    fn trace_of_next(&mut self) -> Option<TraceContext> {
        match self.nodes[SERVER].poll_event() {
            Some(Event::Request { trace, .. }) => trace.map(|trace| *trace),
            other => panic!("{other:?}"),
        }
    }
}

//= docs/protocol.md#local-9
#[test]
fn a_request_comes_with_its_trace() {
    let mut host = Host::new(|_| {});
    for trace in [Some(context(1)), None, Some(context(2))] {
        host.trace = trace;
        host.call(100).unwrap();
    }
    host.settle();
    let traces: Vec<_> = (0..3).map(|_| host.trace_of_next()).collect();
    assert_eq!(traces, [Some(context(1)), None, Some(context(2))]);
}

//= docs/protocol.md#local-9
#[test]
fn a_request_that_is_sent_again_has_its_trace_again() {
    let mut host = Host::new(|config| {
        config.peer_budget(65_536);
    });
    host.trace = Some(context(1));
    host.call(40_000).unwrap();
    let first = host.request();
    host.trace = Some(context(2));
    host.nodes[CLIENT].set_local_load(path(CLIENT), 0).then_some(()).unwrap();
    host.nodes[SERVER].set_local_load(path(SERVER), 60_000).then_some(()).unwrap();
    host.call(20_000).unwrap();
    host.settle();
    assert_eq!(host.nodes[SERVER].poll_event(), None, "there is no room for it");
    assert!(host.nodes[SERVER].set_local_load(path(SERVER), 0));
    host.reply(first, 1).unwrap();
    host.pass(millis(200));
    assert_eq!(host.trace_of_next(), Some(context(2)));
}

/// Contexts that no request follows, and invalid ones.
//= docs/protocol.md#local-9
#[test]
fn what_no_honest_peer_says_of_traces_does_no_harm() {
    let mut host = Host::new(|_| {});
    let trace = |host: &mut Host, id: u64, body: &[u8]| {
        let words = MessageKind::Trace.encode(id);
        let body = Bytes::copy_from_slice(body);
        host.nodes[SERVER].handle_message(host.now, path(SERVER), words, body);
    };
    let call = |host: &mut Host, id: u64| {
        let kind = MessageKind::Request { from: 40_000, to: PORT, remaining: None };
        let body = Bytes::from_static(b"x");
        host.nodes[SERVER].handle_message(host.now, path(SERVER), kind.encode(id), body);
        host.trace_of_next()
    };
    for id in 0..5_000 {
        trace(&mut host, id, &context(1).to_bytes());
    }
    assert_eq!(call(&mut host, 4_999), Some(context(1)));
    assert_eq!(call(&mut host, 4_000), Some(context(1)));
    assert_eq!(call(&mut host, 1), None, "it was forgotten");
    let before = host.nodes[SERVER].counters().dropped_malformed;
    for bytes in [&[][..], &[0; 25], &[1; 24], &[1; 26]] {
        trace(&mut host, 6_000, bytes);
    }
    assert_eq!(host.nodes[SERVER].counters().dropped_malformed, before + 4);
    assert_eq!(call(&mut host, 6_000), None);
    trace(&mut host, 7_000, &context(1).to_bytes());
    let abort = MessageKind::Abort.encode(7_000);
    host.nodes[SERVER].handle_message(host.now, path(SERVER), abort, Bytes::new());
    assert_eq!(call(&mut host, 7_000), None, "its call was given up");
    assert!(!host.nodes[SERVER].admits_message(
        path(SERVER),
        MessageKind::Trace.encode(1),
        1 << 20
    ));
}

/// Peers that read nothing may together hold no more than the limit for all messages.
#[test]
fn what_is_kept_for_all_peers_is_bounded() {
    let mut config = Config::default();
    config.total_budget(100 << 20).socket_budget(50 << 20).peer_budget(20 << 20);
    let mut node = Endpoint::new(config, 1);
    let path = |index| PathId::new(index, 7).local();
    (0..50).for_each(|index| node.add_local(Time::ZERO, path(index)));
    let keep = |node: &mut Endpoint, index, megabytes: u64| {
        node.set_local_load(path(index), megabytes << 20)
    };
    assert!((0..10).all(|index| keep(&mut node, index, 10)), "the total budget is full");
    assert!(keep(&mut node, 10, 1), "less than the others have");
    assert!(!keep(&mut node, 11, 10), "the next one that wants as much as the others is ended");
    node.remove_local(path(11), CallFailed::MayHaveExecuted);
    assert!(!keep(&mut node, 0, 11), "and so is one of them that wants more");
    (0..10).for_each(|index| node.remove_local(path(index), CallFailed::MayHaveExecuted));
    assert!(keep(&mut node, 12, 79), "within four budgets of a peer");
    assert!(!keep(&mut node, 12, 81));
}
