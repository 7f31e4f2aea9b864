//! A call that ends as *no such port* was never executed, whatever was repeated, and never will be.

use crate::pair::*;
use apus_proto::{CallFailed, RpcKey, SocketKey};
use apus_wire::PacketType;

/// Closes the port of the server's service, runs `meanwhile`, and opens the port again.
fn while_closed(pair: &mut Pair, meanwhile: impl FnOnce(&mut Pair)) -> SocketKey {
    let service = pair.nodes[SERVER].service;
    pair.endpoint(SERVER).close(service);
    meanwhile(pair);
    let service = pair.endpoint(SERVER).open(Some(PORT)).expect("the port is free");
    pair.nodes[SERVER].service = service;
    service
}

fn refused(pair: &mut Pair, call: RpcKey) {
    assert_eq!(pair.failure(call), CallFailed::NoSuchPort);
    assert_eq!(pair.counters(SERVER).requests, 0, "a request that was refused is not executed");
}

//= docs/protocol.md#life-6
#[test]
fn a_refused_request_is_refused_again_when_its_port_is_open() {
    let mut pair = Pair::new();
    let call = pair.call(100);
    while_closed(&mut pair, |pair| {
        pair.drive_until(|net| net.counters(SERVER).refused_no_port == 1);
    });
    let request = pair.sent_by(CLIENT, PacketType::Data)[0].clone();
    pair.repeat(&request);
    pair.drive();
    refused(&mut pair, call);
}

//= docs/protocol.md#life-6
#[test]
fn so_is_one_whose_response_was_asked_for() {
    let mut pair = Pair::new();
    pair.lose_first(|passing| passing.is(PacketType::Data, CLIENT));
    let call = pair.call(100);
    while_closed(&mut pair, |pair| {
        pair.drive_until(|net| net.counters(SERVER).unknown_sent == 1);
    });
    let request = pair.sent_by(CLIENT, PacketType::Data)[0].clone();
    pair.repeat(&request);
    pair.drive();
    refused(&mut pair, call);
}

/// A server refuses more requests than it remembers: the oldest refused requests count as taken.
//= docs/protocol.md#life-6
#[test]
fn of_very_many_refused_requests_none_is_executed() {
    let mut pair = Pair::new();
    let calls: Vec<_> = (0..200).map(|_| pair.call(100)).collect();
    while_closed(&mut pair, |pair| {
        pair.drive_until(|net| net.counters(SERVER).refused_no_port == 200);
    });
    let requests: Vec<_> = pair.sent_by(CLIENT, PacketType::Data).into_iter().cloned().collect();
    requests.iter().for_each(|request| pair.repeat(request));
    pair.drive();
    for call in calls {
        refused(&mut pair, call);
    }
}

//= docs/protocol.md#contact-3
#[test]
fn a_late_refusal_of_another_open_does_not_end_a_call_that_is_executed() {
    let mut pair = Pair::unacquainted();
    pair.hold();
    let call = pair.call(100);
    pair.drive_until(|net| net.counters(SERVER).opens_received == 1);
    let open = pair.sent_by(CLIENT, PacketType::Open)[0].clone();
    while_closed(&mut pair, |pair| {
        pair.inject_raw(path(CLIENT), SERVER, &open.bytes);
    });
    // The refusal arrives after the request was executed.
    pair.hook = Some(Box::new(|passing| {
        let refusal = passing.is(PacketType::RpcUnknown, SERVER);
        if refusal { Fate::Late(millis(1)) } else { Fate::Pass }
    }));
    pair.drive_for(millis(2));
    assert_eq!(pair.counters(SERVER).requests, 1);
    assert_eq!(pair.outcome(CLIENT, call), None);
    pair.reply_from(SERVER, body(100, 1));
    pair.drive();
    pair.response(call);
}

/// The port is closed between OPEN and CONFIRM: the request may arrive once more after the port is opened again.
//= docs/protocol.md#contact-3
#[test]
fn a_call_whose_confirm_is_refused_may_have_been_executed() {
    for length in [100, 500_000] {
        let mut pair = Pair::unacquainted();
        let call = pair.call(length);
        pair.drive_until(|net| net.counters(CLIENT).peers_met == 1);
        while_closed(&mut pair, |pair| {
            pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
        });
        pair.drive();
        let sent_whole = length == 100;
        let expected =
            if sent_whole { CallFailed::MayHaveExecuted } else { CallFailed::NoSuchPort };
        assert_eq!(pair.failure(call), expected);
    }
}
