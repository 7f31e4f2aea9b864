//! Slow calls stop the time traces of both ends.
#![allow(clippy::disallowed_types, reason = "a sink may be used by another thread than its test")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::pair::*;
use apus_proto::{TraceChoice, TraceEvent, TraceSink};
use apus_wire::{Freeze, Header, RpcId};

/// Records of a node, and the number of requests to stop recording.
#[derive(Default)]
struct Recorded {
    events: Vec<TraceEvent>,
    frozen: usize,
}

struct Sink(Arc<Mutex<Recorded>>);

impl TraceSink for Sink {
    fn record(&mut self, event: TraceEvent, _: [u32; 4]) {
        self.0.lock().unwrap().events.push(event);
    }

    fn freeze(&mut self) {
        self.0.lock().unwrap().frozen += 1;
    }
}

const SLOW: Duration = Duration::from_millis(10);

/// Returns two nodes that record every call, and their records.
fn traced() -> (Pair, [Arc<Mutex<Recorded>>; 2]) {
    let mut pair = Pair::new();
    let recorded = [CLIENT, SERVER].map(|node| {
        let recorded = Arc::default();
        let choice = TraceChoice { one_in: 1, slower_than: Some(SLOW) };
        pair.endpoint(node).set_trace(Box::new(Sink(Arc::clone(&recorded))), choice);
        recorded
    });
    (pair, recorded)
}

fn frozen(recorded: &[Arc<Mutex<Recorded>>; 2]) -> [usize; 2] {
    [0, 1].map(|node| recorded[node].lock().unwrap().frozen)
}

/// Makes a call that is answered only after this time.
fn call_that_takes(pair: &mut Pair, time: Duration) {
    pair.hold();
    pair.call(100);
    pair.drive_for(time);
    pair.reply_from(SERVER, body(10, 1));
    pair.drive();
}

#[test]
fn a_slow_call_freezes_both_ends() {
    //= docs/protocol.md#trace-1
    let (mut pair, recorded) = traced();
    call_that_takes(&mut pair, SLOW / 2);
    assert_eq!(frozen(&recorded), [0, 0]);
    call_that_takes(&mut pair, 2 * SLOW);
    assert_eq!(frozen(&recorded), [1, 1]);
    let [client, server] = recorded.each_ref().map(|it| it.lock().unwrap().events.clone());
    assert!(client.contains(&TraceEvent::SlowCall));
    assert!(server.contains(&TraceEvent::FreezeReceived));
    assert_eq!(pair.counters(CLIENT).slow_calls, 1);
    assert_eq!(pair.counters(CLIENT).freezes_sent, 1);
    pair.assert_clean();
}

#[test]
fn slow_calls_send_one_freeze_in_a_second() {
    let (mut pair, recorded) = traced();
    for _ in 0..3 {
        call_that_takes(&mut pair, 2 * SLOW);
    }
    assert_eq!((frozen(&recorded), pair.counters(CLIENT).slow_calls), ([1, 1], 3));
    pair.drive_for(secs(1));
    call_that_takes(&mut pair, 2 * SLOW);
    assert_eq!((frozen(&recorded), pair.counters(CLIENT).freezes_sent), ([2, 2], 2));
}

#[test]
fn a_call_that_fails_late_was_slow() {
    let (mut pair, recorded) = traced();
    pair.nodes[SERVER].up = false;
    let call = pair.call(100);
    pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
    assert_eq!(frozen(&recorded), [1, 0]);
}

#[test]
fn freezes_of_others_are_limited() {
    //= docs/protocol.md#trace-1
    let (mut pair, recorded) = traced();
    let header = Header { source_port: 9, dest_port: 0, sender_id: RpcId(0) };
    let mut freeze = [0; Freeze::LEN];
    Freeze.emit(&header, &mut freeze);
    // From an unknown node, from a known node, and from that node again.
    pair.inject_raw(native_path(9), SERVER, &freeze);
    assert_eq!(frozen(&recorded), [0, 0]);
    pair.answer_with(1);
    pair.call(100);
    pair.drive();
    for _ in 0..5 {
        pair.inject(path(CLIENT), SERVER, &freeze);
    }
    assert_eq!(frozen(&recorded), [0, 1]);
    let counters = pair.counters(SERVER);
    assert_eq!((counters.freezes_received, counters.freezes_refused), (5, 4));
}

#[test]
fn a_node_without_a_trace_counts_freezes_and_no_more() {
    let mut pair = Pair::new();
    let mut freeze = [0; Freeze::LEN];
    Freeze.emit(&Header { source_port: 9, dest_port: 0, sender_id: RpcId(0) }, &mut freeze);
    pair.inject(path(CLIENT), SERVER, &freeze);
    assert_eq!(pair.counters(SERVER).freezes_refused, 1);
}
