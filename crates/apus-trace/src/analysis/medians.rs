//! Medians by which two traces are compared.

use super::delay::CLASSES;
use crate::calls::{STAGES, TracedCall, calls};
use crate::distribution::Distribution;
use crate::merged::Merged;
use crate::nodes::Nodes;
use crate::packets::{Packet, packets};

/// Medians of a trace by name, in µs: of round trips, of the time before each stage of calls with complete records, and of packet
/// delays. Values that the trace does not have are missing.
#[must_use]
pub fn medians(merged: &Merged) -> Vec<(String, f64)> {
    let calls = calls(merged);
    let mut medians = Vec::new();
    let mut add = |name: String, times: Distribution| {
        if times.count() > 0 {
            medians.push((name, times.median() as f64 / 1e3));
        }
    };
    add("round trip".to_owned(), calls.iter().filter_map(TracedCall::round_trip).collect());
    let whole: Vec<_> = calls.iter().filter_map(TracedCall::all_stages).collect();
    for (index, stage) in STAGES.iter().enumerate().skip(1) {
        let times = whole.iter().map(|reached| reached[index] - reached[index - 1]).collect();
        add(format!("before {}", stage.name), times);
    }
    let packets = packets(merged, &Nodes::of(merged));
    for (class, is_of) in CLASSES {
        let of_class = packets.iter().filter(|packet| is_of(packet) && !packet.again);
        add(format!("{class}, xmit to receipt"), of_class.filter_map(Packet::delay).collect());
    }
    medians
}

#[cfg(test)]
mod tests {
    use crate::script::script;

    use super::*;

    #[test]
    fn what_a_trace_has_is_named() {
        let found = medians(&script(
            "0 c sendmsg_request 2 9 100
             10 c data_xmit 2 9 0 100
             40 s data_received 3 9 0 100
             90 c recvmsg_response 2 9 50",
        ));
        let expected = [("round trip", 0.09), ("single-packet messages, xmit to receipt", 0.03)];
        assert_eq!(found, expected.map(|(name, micros)| (name.to_owned(), micros)));
    }
}
