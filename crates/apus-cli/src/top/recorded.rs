//! The recent calls of a process, from its time trace. One call in 64 is recorded, unless the process has another setting.

use std::collections::BTreeMap;
use std::time::Duration;

use apus_load::stats;
use apus_trace::{Record, Trace};

/// Recorded calls of a process that ended recently.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Recorded {
    /// Calls that the process made and that got their responses.
    pub(super) calls: usize,
    /// Time from the call of the application until it had the response, of half of these calls and of 99 %. Zero without calls.
    pub(super) p50: Duration,
    pub(super) p99: Duration,
    /// Other nodes with which it exchanged messages, by their share in the bytes.
    pub(super) peers: Vec<PeerTraffic>,
}

/// A node at the other end of recorded calls, in both roles.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct PeerTraffic {
    /// The number of the pair of nodes, which both ends record; 0 stands for all peers of raw links.
    pub(super) pair: u32,
    /// Recorded messages to it, and from it.
    pub(super) messages: u64,
    /// Their bytes.
    pub(super) bytes: u64,
}

impl Recorded {
    /// Of calls that ended, and messages that were sent or taken, at `from` or later: nanoseconds of the monotonic clock.
    pub(super) fn of(trace: &Trace, from: u64) -> Self {
        let number = |name| trace.number_of(name);
        let (begins, ends) = (number("sendmsg_request"), number("recvmsg_response"));
        let messages = [begins, ends, number("recvmsg_request"), number("sendmsg_response")];
        let records = || trace.rings.iter().flat_map(|ring| &ring.records);
        let of = |event: Option<u16>| records().filter(move |it| Some(it.event) == event);
        let nanos = nanos_of(trace);
        let key = |it: &Record| (it.arguments[0], it.arguments[1]);
        let begun: BTreeMap<_, _> = of(begins).map(|it| (key(it), it.ticks)).collect();
        let recent = |it: &&Record| nanos(it.ticks) >= from as f64;
        let times = of(ends).filter(recent).filter_map(|it| {
            let begun = begun.get(&key(it)).filter(|begun| **begun <= it.ticks)?;
            Some(nanos(it.ticks) - nanos(*begun))
        });
        let mut times: Vec<f64> = times.collect();
        times.sort_by(f64::total_cmp);
        let percentile = |percent: f64| {
            let nanos = stats::percentile(&times, percent).unwrap_or_default();
            Duration::from_nanos(nanos as u64)
        };
        let mut peers: BTreeMap<u32, PeerTraffic> = BTreeMap::new();
        for it in records().filter(|it| messages.contains(&Some(it.event))).filter(recent) {
            let [_, pair, bytes, _] = it.arguments;
            let peer =
                peers.entry(pair).or_insert_with(|| PeerTraffic { pair, ..PeerTraffic::default() });
            peer.messages += 1;
            peer.bytes += u64::from(bytes);
        }
        let mut peers: Vec<_> = peers.into_values().collect();
        peers.sort_by_key(|peer| (u64::MAX - peer.bytes, peer.pair));
        Self { calls: times.len(), p50: percentile(50.0), p99: percentile(99.0), peers }
    }
}

/// From stamps of a trace to nanoseconds of the monotonic clock.
#[expect(
    clippy::cast_precision_loss,
    reason = "nanoseconds of a century have 62 bits; microseconds are shown"
)]
fn nanos_of(trace: &Trace) -> impl Fn(u64) -> f64 + use<> {
    let [first, last] = trace.widest_anchors();
    let ticks = last.ticks.saturating_sub(first.ticks).max(1) as f64;
    let per_tick = last.nanos.saturating_sub(first.nanos) as f64 / ticks;
    // The difference of stamps is exact, also where they are long.
    move |ticks| {
        let since = ticks.wrapping_sub(last.ticks).cast_signed();
        last.nanos as f64 + since as f64 * per_tick
    }
}

#[cfg(test)]
mod tests {
    use apus_trace::{Anchor, Clock, EventNames, RingTrace};

    use super::*;

    const EVENTS: [&str; 4] =
        ["sendmsg_request", "recvmsg_response", "recvmsg_request", "sendmsg_response"];

    /// A trace with two ticks per nanosecond, of two threads.
    fn trace(rings: [&[(u64, &str, [u32; 4])]; 2]) -> Trace {
        let names = EVENTS.iter().zip(0..).map(|(name, number)| EventNames {
            number,
            name: (*name).to_owned(),
            arguments: Vec::new(),
            text: String::new(),
        });
        let record = |&(nanos, name, arguments): &(u64, &str, _)| {
            let event = EVENTS.iter().zip(0..).find(|(it, _)| **it == name).unwrap().1;
            Record { ticks: 2 * nanos, event, arguments }
        };
        let ring = |records: &[_]| RingTrace {
            records: records.iter().map(record).collect(),
            ..RingTrace::default()
        };
        let anchor = |nanos| Anchor { ticks: 2 * nanos, nanos };
        Trace {
            clock: Clock::Monotonic,
            program: "p".to_owned(),
            pid: 1,
            machine: [0; 16],
            realtime: 0,
            anchors: vec![anchor(1_000), anchor(2_000)],
            events: names.collect(),
            rings: rings.map(ring).into(),
            without_ring: 0,
        }
    }

    #[test]
    fn a_call_ends_in_another_thread_than_it_began() {
        let recorded = Recorded::of(
            &trace([
                &[
                    (1_000, "sendmsg_request", [2, 9, 100, 1]),
                    (1_500, "sendmsg_request", [4, 9, 100, 1]),
                ],
                &[
                    (3_000, "recvmsg_response", [2, 9, 50, 0]),
                    (5_500, "recvmsg_response", [4, 9, 50, 0]),
                ],
            ]),
            1_200,
        );
        assert_eq!(recorded.calls, 2);
        assert_eq!(
            (recorded.p50, recorded.p99),
            (Duration::from_nanos(2_000), Duration::from_nanos(4_000))
        );
        // The first request was sent before.
        assert_eq!(recorded.peers, [PeerTraffic { pair: 9, messages: 3, bytes: 200 }]);
    }

    #[test]
    fn peers_are_sorted_by_their_bytes() {
        let recorded = Recorded::of(
            &trace([
                &[(10, "recvmsg_request", [3, 7, 10, 0]), (11, "sendmsg_response", [3, 7, 20, 0])],
                &[(12, "recvmsg_request", [3, 8, 500, 0])],
            ]),
            0,
        );
        let expected = [
            PeerTraffic { pair: 8, messages: 1, bytes: 500 },
            PeerTraffic { pair: 7, messages: 2, bytes: 30 },
        ];
        assert_eq!(recorded.peers, expected);
        assert_eq!((recorded.calls, recorded.p99), (0, Duration::ZERO));
    }

    #[test]
    fn a_call_of_which_the_beginning_was_overwritten_has_no_time() {
        let recorded = Recorded::of(&trace([&[(10, "recvmsg_response", [2, 7, 10, 0])], &[]]), 0);
        assert_eq!((recorded.calls, recorded.peers.len()), (0, 1));
    }
}
