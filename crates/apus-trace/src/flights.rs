//! Packets of one call, from one node to the other.

use crate::calls::TracedCall;
use crate::merged::{Merged, Moment};
use crate::nodes::Nodes;
use crate::packets::{PacketType, packets};

/// A packet of a call, or bytes that were transmitted and did not arrive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Flight {
    /// Its type, as the protocol names it.
    pub kind: &'static str,
    /// Whether the client sent it.
    pub from_client: bool,
    /// Offset of its first byte in the message, for DATA.
    pub offset: Option<u32>,
    /// Bytes of payload.
    pub bytes: u32,
    /// Time at which it was given to the link, in ns of the merged trace.
    pub sent: u64,
    /// Time at which the receiver parsed it, if it arrived.
    pub received: Option<u64>,
}

/// All records of one call, and its packets in the order of transmission. The `bool` of a record says whether the client made it.
#[must_use]
pub fn story<'a>(merged: &'a Merged, call: &TracedCall) -> (Vec<(&'a Moment, bool)>, Vec<Flight>) {
    let nodes = Nodes::of(merged);
    let records = merged.moments.iter().filter_map(|moment| {
        let (key, at_client) = nodes.call(merged, moment)?;
        (key == call.key).then_some((moment, at_client))
    });
    let records = records.collect();
    let ours = packets(merged, &nodes).into_iter().filter(|packet| packet.call == call.key);
    let flights = ours.map(|packet| Flight {
        kind: packet.kind.name(),
        from_client: packet.from_client,
        offset: (packet.kind == PacketType::Data).then_some(packet.offset),
        bytes: packet.bytes,
        sent: packet.sent,
        received: packet.received.map(|arrival| arrival.at),
    });
    (records, flights.collect())
}

#[cfg(test)]
mod tests {
    use crate::calls::calls;
    use crate::script::script;

    use super::*;

    #[test]
    fn a_story_is_of_one_call() {
        let merged = script(
            "0 c sendmsg_request 2 9 100
             10 c data_xmit 2 9 0 100
             20 c data_xmit 4 9 0 100
             40 s data_received 3 9 0 100
             50 s grant_xmit 3 9 5000 0",
        );
        let (records, flights) = story(&merged, &calls(&merged)[0]);
        let sides: Vec<_> =
            records.iter().map(|(moment, client)| (moment.nanos, *client)).collect();
        assert_eq!(sides, [(0, true), (10, true), (40, false), (50, false)]);
        let times: Vec<_> = flights.iter().map(|it| (it.kind, it.sent, it.received)).collect();
        assert_eq!(times, [("DATA", 10, Some(40)), ("GRANT", 50, None)]);
    }
}
