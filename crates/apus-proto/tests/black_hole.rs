//! A path that drops all long packets silently: calls complete in shorter ones.

use crate::pair::*;
use bytes::Bytes;

/// Fallback length of packets: 1,280 bytes less IP and UDP headers.
const BASE: usize = 1_252;

#[test]
fn calls_complete_in_packets_that_pass() {
    //= docs/protocol.md#path-1
    for (request, response) in [(1_400, 100), (100, 1_400), (100_000, 100), (100, 100_000)] {
        let mut pair = Pair::new();
        pair.answer_with(response);
        pair.black_hole = Some(BASE);
        let call = pair.call(request);
        pair.drive();
        assert_eq!(pair.response(call), &body(response, response as u64), "{request} {response}");
        assert_eq!(pair.nodes[SERVER].executed.len(), 1);
        let reported = pair.counters(CLIENT).black_holes + pair.counters(SERVER).black_holes;
        assert_eq!(reported, 1, "{request} {response}");
        pair.assert_clean();
        // From here on, nothing is lost.
        let resends = pair.counters(CLIENT).resends_sent;
        let call = pair.call(request);
        pair.drive();
        assert_eq!(pair.response(call).len(), response);
        assert_eq!(pair.counters(CLIENT).resends_sent, resends);
    }
}

#[test]
fn short_messages_say_nothing_of_the_path() {
    let mut pair = Pair::new();
    let mut lost = 0;
    pair.hook = Some(Box::new(move |passing| {
        lost += usize::from(passing.data(CLIENT).is_some());
        if lost < 6 && passing.data(CLIENT).is_some() { Fate::Drop } else { Fate::Pass }
    }));
    pair.call(1_000);
    pair.drive();
    assert_eq!(pair.counters(CLIENT).calls_completed, 1);
    assert_eq!(pair.counters(CLIENT).black_holes, 0);
}

/// A slow receiver, or bad luck: the first packet of one message is requested again and again while others of the same length
/// arrive.
#[test]
fn a_path_that_carries_long_packets_swallows_none() {
    //= docs/protocol.md#path-1
    for role in [CLIENT, SERVER] {
        let mut pair = Pair::acquainted(|config| {
            config.link_mbps(50);
        });
        let mut lost = 0;
        pair.hook = Some(Box::new(move |passing| {
            let first = passing.data(role).is_some_and(|data| data.message_length == 1_400);
            lost += usize::from(first);
            if first && lost < 5 { Fate::Drop } else { Fate::Pass }
        }));
        let reply = |request: &Bytes| if request.len() == 100 { 1_000_000 } else { 1_400 };
        let lengths = if role == CLIENT { [1_000_000, 1_400] } else { [100, 200] };
        if role == SERVER {
            let answer = move |request: &Bytes| body(reply(request), 1);
            pair.nodes[SERVER].app = App::Answer(Box::new(answer));
        }
        let calls = lengths.map(|length| pair.call(length));
        pair.drive();
        assert_eq!(calls.map(|call| pair.response(call).len()), [1_000_000, 1_400]);
        assert_eq!(pair.counters(role).black_holes, 0, "{role}");
    }
}
