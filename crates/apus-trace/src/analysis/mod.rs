//! Analyses of merged traces. Each is a function that makes a [`Report`](crate::Report).
//!
//! | file | analyses |
//! |---|---|
//! | `delay` | [`delay()`]: delays of packets, by stage |
//! | `handoffs` | [`handoffs()`], [`sockqs()`]: from the complete message to the application |
//! | `explain` | [`explain()`]: the story of one call |
//! | `slowest` | [`p99short()`]: why the slowest short calls were slow |
//! | `loss` | [`lost()`], [`ooo()`]: packets that did not arrive, or arrived too late |
//! | `grants` | [`grants()`]: bytes that were granted and have not arrived |
//! | `gaps` | [`gaps()`]: stops of threads and nodes |
//! | `locks` | [`locks()`]: waits for the engine's lock |
//! | `pass` | [`pass()`]: whether short messages overtake long ones |
//! | `rates` | [`incoming()`], [`activity()`], [`longterm()`], [`tput()`], [`sum()`]: arrivals, calls and events over time |
//! | `ways` | [`net()`], [`minlatency()`], [`pairs()`], [`rtt()`]: packets from node to node, and back |
//! | `copy` | [`copy()`]: the rate at which payload is copied |
//! | `snapshot` | [`snapshot()`]: incomplete messages at one instant |
//! | `medians` | [`medians()`], by which two traces are compared |

mod copy;
mod delay;
mod explain;
mod gaps;
mod grants;
mod handoffs;
mod locks;
mod loss;
mod medians;
mod pass;
mod rates;
mod slowest;
mod snapshot;
mod ways;

pub use copy::copy;
pub use delay::delay;
pub use explain::explain;
pub use gaps::gaps;
pub use grants::grants;
pub use handoffs::{handoffs, sockqs};
pub use locks::locks;
pub use loss::{lost, ooo};
pub use medians::medians;
pub use pass::pass;
pub use rates::{activity, incoming, longterm, sum, tput};
pub use slowest::p99short;
pub use snapshot::snapshot;
pub use ways::{minlatency, net, pairs, rtt};

use crate::merged::Merged;

/// Rows of a list of the worst cases.
const WORST: usize = 10;

/// The times of one event, by ring.
struct Times(Vec<Vec<u64>>);

impl Times {
    fn of(merged: &Merged, event: &str) -> Self {
        let mut times = vec![Vec::new(); merged.rings.len()];
        for moment in merged.moments.iter().filter(|moment| merged.name(moment) == event) {
            times[moment.ring].push(moment.nanos);
        }
        Self(times)
    }

    /// The first time at a ring that is not before `nanos`.
    fn next(&self, ring: usize, nanos: u64) -> Option<u64> {
        let times = &self.0[ring];
        times.get(times.partition_point(|&time| time < nanos)).copied()
    }
}

/// The time of the last record.
fn end(merged: &Merged) -> u64 {
    merged.moments.last().map_or(0, |moment| moment.nanos)
}

/// The name of a thread, unique among all traces.
fn thread(merged: &Merged, ring: usize) -> String {
    let source = &merged.rings[ring];
    match &*source.program {
        "merged" => source.name.clone(),
        program => format!("{program}.{}/{}", source.pid, source.name),
    }
}

#[cfg(test)]
mod tests {
    use crate::calls::calls;
    use crate::flights::story;
    use crate::report::Report;
    use crate::script::script;

    use super::*;

    const EVENTS: [&str; 24] = [
        "sendmsg_request",
        "data_xmit",
        "granted_xmit",
        "retransmit",
        "data_received",
        "request_complete",
        "recvmsg_request",
        "sendmsg_response",
        "response_complete",
        "recvmsg_response",
        "acked",
        "call_failed",
        "grant_xmit",
        "grant_received",
        "resend_xmit",
        "resend_received",
        "need_ack_xmit",
        "need_ack_received",
        "link_recv",
        "link_flush",
        "sleep",
        "wake_up",
        "lock_wait",
        "unheard_of",
    ];

    /// Meaningless records: any event at any time, with few ids and with lengths from 0 to the maximum.
    fn nonsense(seed: u64) -> Merged {
        let mut state = seed;
        let mut next = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let lines = (0..300).map(|_| {
            let nanos = [next(1_000), next(1 << 31), u64::MAX - next(9)][next(3) as usize];
            let (ring, event) =
                (["a.x", "a.y", "b", "c"][next(4) as usize], EVENTS[next(24) as usize]);
            let number = |next: &mut dyn FnMut(u64) -> u64| {
                [next(5), next(5_000), 0xffff_ffff][next(3) as usize]
            };
            let (id, pair) = (next(6), next(2));
            let (a, b) = (number(&mut next), number(&mut next));
            format!("{nanos} {ring} {event} {id} {pair} {a} {b}\n")
        });
        script(&lines.collect::<String>())
    }

    #[test]
    fn no_trace_is_too_strange() {
        let plain: [fn(&Merged) -> Report; 12] = [
            delay,
            handoffs,
            sockqs,
            p99short,
            lost,
            ooo,
            locks,
            sum,
            minlatency,
            pairs,
            copy,
            |it| gaps(it, 10),
        ];
        let over_time = [grants, incoming, net, activity, longterm];
        for seed in 0..40 {
            let merged = nonsense(seed);
            for analysis in plain {
                analysis(&merged);
            }
            // Each of these analyses makes up to 10,000 intervals.
            for analysis in over_time.iter().filter(|_| seed < 3) {
                assert!(
                    analysis(&merged, 1).tables.iter().all(|table| table.rows.len() <= 10_001 * 4)
                );
            }
            let _ = snapshot(&merged, seed * 100);
            for analysis in [pass, tput, rtt] {
                analysis(&merged, 1_000);
            }
            let _ = medians(&merged);
            calls(&merged).iter().for_each(|call| drop(story(&merged, call)));
        }
    }
}
