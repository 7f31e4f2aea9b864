//! The story of one call, in sentences.

use std::collections::BTreeMap;

use super::delay::side;
use super::slowest::SPENT_IN;
use crate::calls::{STAGES, TracedCall};
use crate::merged::{Merged, Moment};
use crate::nodes::Nodes;
use crate::packets::{Packet, PacketType, packets};
use crate::report::{Cell, Report, counted};

/// A node may have been stopped if it records nothing for at least one part in this many of a call, and for [`STILL_NANOS`].
const STILL_SHARE: u64 = 4;
/// The least time of such a stop.
const STILL_NANOS: u64 = 1_000_000;

/// Events of arriving packets.
const RECEIVED: [&str; 6] = [
    "data_received",
    "grant_received",
    "resend_received",
    "busy_received",
    "unknown_received",
    "need_ack_received",
];

/// Shows how a call ended, how far it got, and where its time went. `causes` are the texts of the causes of failed calls, by
/// number.
#[must_use]
pub fn explain(merged: &Merged, call: &TracedCall, causes: &[&str]) -> Report {
    let nodes = Nodes::of(merged);
    let records = merged.moments.iter().filter_map(|moment| {
        let (key, at_client) = nodes.call(merged, moment)?;
        (key == call.key).then_some((moment, at_client))
    });
    let records: Vec<_> = records.collect();
    let failed = records.iter().find(|(moment, _)| merged.name(moment) == "call_failed");
    let ours = packets(merged, &nodes).into_iter().filter(|packet| packet.call == call.key);
    let case = Case {
        merged,
        call,
        packets: ours.collect(),
        ends: [true, false].map(|at_client| nodes.end(call.key, at_client)),
        nodes: &nodes,
        begun: call.reached[0].unwrap_or(call.first),
        // Acknowledgements may follow.
        ended: failed
            .map(|(it, _)| it.nanos)
            .or(call.reached[STAGES.len() - 1])
            .unwrap_or(call.last),
        records,
    };
    let mut report = Report::default();
    let of_end = |end: Option<usize>| end.map(|node| nodes.name(node));
    report.fact("id", call.id);
    report.fact("pair", Cell::hex(call.pair));
    report.fact("client", of_end(case.ends[0]));
    report.fact("server", of_end(case.ends[1]));
    report.fact("request_bytes", call.request);
    report.fact("response_bytes", call.response);
    report.fact("begun_us", Cell::nanos(case.begun));
    report.fact("took_us", Cell::nanos(case.took()));
    report.findings.push(case.outcome(causes));
    if case.is_alone() {
        report.find(
            "the traces have only the failure of this call: with APUS_TRACE_CALLS=all, or while `apus trace record --calls all` \
             runs, every call is recorded"
                .to_owned(),
        );
        return report;
    }
    report.findings.extend(case.whereabouts());
    report.findings.extend(case.messages());
    report.findings.extend(case.losses());
    report.findings.extend(case.silence());
    report.findings.extend(case.standstills());
    if case.ends[1].is_none() {
        report.find(
            "the files have no trace of the server, so the events at the server are not known"
                .to_owned(),
        );
    }
    case.stages(&mut report);
    case.kinds(&mut report);
    report
}

/// A call with its records, nodes and packets.
struct Case<'a> {
    merged: &'a Merged,
    nodes: &'a Nodes,
    call: &'a TracedCall,
    /// Its records, each with whether the client made it.
    records: Vec<(&'a Moment, bool)>,
    packets: Vec<Packet>,
    /// The client's node and the server's.
    ends: [Option<usize>; 2],
    begun: u64,
    ended: u64,
}

impl Case<'_> {
    fn took(&self) -> u64 {
        self.ended.saturating_sub(self.begun)
    }

    /// Whether only its failure was recorded.
    fn is_alone(&self) -> bool {
        self.call.reached.iter().all(Option::is_none)
    }

    fn outcome(&self, causes: &[&str]) -> String {
        let took = time(self.took());
        let cause = |number: u32| match causes.get(number as usize) {
            Some(text) => (*text).to_owned(),
            None => format!("cause {number}"),
        };
        match self.call.failed {
            Some(number) if self.is_alone() => format!("the call failed: {}", cause(number)),
            Some(number) => format!("the call failed {took} after it had begun: {}", cause(number)),
            None if self.call.round_trip().is_some() => format!("the call took {took}"),
            None => format!(
                "the traces have no end of the call; its last record is {took} after its first"
            ),
        }
    }

    /// The stage that took longest, or the progress of a failed call.
    fn whereabouts(&self) -> Option<String> {
        let reached = STAGES.iter().enumerate().filter_map(|(stage, _)| {
            let at = self.call.reached[stage]?;
            // The application takes an error as it takes a response.
            (self.call.failed.is_none() || at < self.ended).then_some((stage, at))
        });
        let reached: Vec<_> = reached.collect();
        let &(last, at) = reached.last()?;
        if self.call.failed.is_none() && self.call.round_trip().is_some() {
            let steps = reached.windows(2);
            let steps = steps.map(|pair| (pair[1].0, pair[1].1.saturating_sub(pair[0].1)));
            let (stage, longest) = steps.max_by_key(|(_, step)| *step)?;
            return Some(format!(
                "{} of it went to {}, before {}",
                time(longest),
                SPENT_IN[stage],
                name(stage)
            ));
        }
        let since = time(self.ended.saturating_sub(at));
        if last == 0 {
            return Some(format!(
                "nothing of the request was sent: for {since} it waited for the first packet of the peer, or for its turn on the \
                 link"
            ));
        }
        let place =
            format!("it had come to {} after {}", name(last), time(at.saturating_sub(self.begun)));
        let next = (last + 1).min(STAGES.len() - 1);
        // Without the server's trace, its stages may have been reached.
        let known = STAGES[next].at_client || self.ends[1].is_some();
        Some(match known {
            true => format!(
                "{place}, and spent the remaining {since} in {}, before {}",
                SPENT_IN[next],
                name(next)
            ),
            false => place,
        })
    }

    /// Progress of each message: bytes sent, granted and received.
    fn messages(&self) -> Vec<String> {
        [true, false].into_iter().filter_map(|of_client| self.message(of_client)).collect()
    }

    fn message(&self, of_client: bool) -> Option<String> {
        let (message, length) = match of_client {
            true => ("request", self.call.request?),
            false => ("response", self.call.response?),
        };
        let bursts = self.of_end(of_client, &["data_xmit", "granted_xmit"]);
        let sent: u64 = bursts.iter().map(|moment| u64::from(moment.arguments[3])).sum();
        let last = bursts.last().filter(|_| sent < u64::from(length))?.nanos;
        let grants = self.of_end(of_client, &["grant_received"]);
        let allowed = match grants.iter().map(|moment| moment.arguments[2]).max() {
            None => "no grant has arrived for more".to_owned(),
            Some(offset) => format!("grants have arrived for all bytes below {offset}"),
        };
        let before = time(self.ended.saturating_sub(last));
        Some(format!(
            "of the {message}, {sent} of {length} bytes were sent, the last of them {before} before the end; {allowed}"
        ))
    }

    /// Records of these events at one end.
    fn of_end(&self, at_client: bool, events: &[&str]) -> Vec<&Moment> {
        let of_end = self.records.iter().filter(|(_, of_client)| *of_client == at_client);
        let moments = of_end.map(|(moment, _)| *moment);
        moments.filter(|moment| events.contains(&self.merged.name(moment))).collect()
    }

    fn losses(&self) -> Vec<String> {
        let mut lost: BTreeMap<(PacketType, bool), usize> = BTreeMap::new();
        for packet in self.packets.iter().filter(|packet| packet.lost) {
            *lost.entry((packet.kind, packet.from_client)).or_default() += 1;
        }
        let sentence = |((kind, from_client), count): ((PacketType, bool), usize)| {
            let packets = counted(count, &format!("{} packet", kind.name()));
            format!("{packets} of the {} did not arrive", side(from_client))
        };
        lost.into_iter().map(sentence).collect()
    }

    /// Time since the client last received a packet about a failed call.
    fn silence(&self) -> Option<String> {
        self.call.failed?;
        let arrivals = self.of_end(true, &RECEIVED);
        let probes = match self.of_end(true, &["resend_xmit"]).len() {
            0 => String::new(),
            count => format!("; it requested missing bytes with {}", counted(count, "RESEND")),
        };
        Some(match arrivals.last() {
            None => format!("no packet about the call reached the client{probes}"),
            Some(moment) => {
                let before = time(self.ended.saturating_sub(moment.nanos));
                format!(
                    "the last packet about the call reached the client {before} before the end{probes}"
                )
            }
        })
    }

    /// Nodes that recorded nothing for a large part of the call.
    fn standstills(&self) -> Vec<String> {
        let ends = self.ends.iter().zip([true, false]);
        ends.filter_map(|(&node, at_client)| self.standstill(node?, at_client)).collect()
    }

    fn standstill(&self, node: usize, at_client: bool) -> Option<String> {
        let inside = self.begun..=self.ended;
        let of_node = self.merged.moments.iter().filter(|it| self.nodes.of_ring(it.ring) == node);
        let times = of_node.map(|moment| moment.nanos).filter(|nanos| inside.contains(nanos));
        let mut before = self.begun;
        let mut longest = (0, 0);
        for at in times.chain([self.ended]) {
            longest = longest.max((at.saturating_sub(before), before));
            before = at;
        }
        let (nanos, since) = longest;
        let knows = self.nodes.knows(node, since) && self.nodes.knows(node, since + nanos);
        (knows && nanos >= STILL_NANOS.max(self.took() / STILL_SHARE)).then(|| {
            format!(
                "the {} recorded nothing for {}, from {} on: it received no packets, or was stopped",
                side(at_client),
                time(nanos),
                time(since.saturating_sub(self.begun))
            )
        })
    }

    fn stages(&self, report: &mut Report) {
        let table = report.table("stages", &["stage", "at", "since_begin_us", "step_us"]);
        let mut before = None;
        for (stage, reached) in STAGES.iter().zip(self.call.reached) {
            let Some(at) = reached else { continue };
            let since = Cell::nanos(at.saturating_sub(self.begun));
            let step = before.replace(at).map(|before| Cell::nanos(at.saturating_sub(before)));
            table.row([stage.name.into(), side(stage.at_client).into(), since, step.into()]);
        }
    }

    fn kinds(&self, report: &mut Report) {
        let columns =
            ["packet", "from", "sent", "arrived", "lost", "last_sent_us", "last_arrived_us"];
        let table = report.table("packets", &columns);
        for kind in PacketType::ALL {
            for from_client in [true, false] {
                let of_kind = self
                    .packets
                    .iter()
                    .filter(|it| it.kind == kind && it.from_client == from_client);
                let of_kind: Vec<_> = of_kind.collect();
                let Some(sent) = of_kind.iter().map(|packet| packet.sent).max() else { continue };
                let arrived: Vec<_> = of_kind.iter().filter_map(|packet| packet.received).collect();
                let last = arrived.iter().map(|arrival| arrival.at).max();
                let since = |at: u64| Cell::nanos(at.saturating_sub(self.begun));
                table.row([
                    kind.name().into(),
                    side(from_client).into(),
                    of_kind.len().into(),
                    arrived.len().into(),
                    of_kind.iter().filter(|packet| packet.lost).count().into(),
                    since(sent),
                    last.map(since).into(),
                ]);
            }
        }
    }
}

fn name(stage: usize) -> String {
    format!("{} at the {}", STAGES[stage].name, side(STAGES[stage].at_client))
}

/// A time in a fitting unit.
fn time(nanos: u64) -> String {
    if nanos < 1_000_000 {
        format!("{:.1} us", nanos as f64 / 1e3)
    } else {
        format!("{:.2} ms", nanos as f64 / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use crate::calls::calls;
    use crate::script::script;

    use super::*;

    const CAUSES: [&str; 9] = ["", "", "", "", "", "", "", "", "its deadline passed"];

    fn findings(lines: &str) -> Vec<String> {
        let merged = script(lines);
        explain(&merged, &calls(&merged)[0], &CAUSES).findings
    }

    #[test]
    fn a_call_without_grants_says_how_far_it_came() {
        let found = findings(
            "0 c sendmsg_request 2 9 500000
             10000 c data_xmit 2 9 0 10000
             40000 s data_received 3 9 0 5000
             50000 s grant_xmit 3 9 20000 0
             60000 c grant_received 2 9 20000 0
             70000 c granted_xmit 2 9 10000 10000
             1000000 c resend_xmit 2 9 0 1
             5000000 c call_failed 2 9 8
             6000000 s sleep",
        );
        assert_eq!(
            found,
            [
                "the call failed 5.00 ms after it had begun: its deadline passed",
                "it had come to request_received at the server after 40.0 us, and spent the remaining 4.96 ms in the rest of the request, \
                 before request_complete at the server",
                "of the request, 20000 of 500000 bytes were sent, the last of them 4.93 ms before the end; grants have arrived for all \
                 bytes below 20000",
                "2 DATA packets of the client did not arrive",
                "1 RESEND packet of the client did not arrive",
                "the last packet about the call reached the client 4.94 ms before the end; it requested missing bytes with 1 RESEND",
                "the client recorded nothing for 4.00 ms, from 1.00 ms on: it received no packets, or was stopped",
                "the server recorded nothing for 4.95 ms, from 50.0 us on: it received no packets, or was stopped",
            ]
        );
    }

    #[test]
    fn a_call_that_ended_says_where_its_time_went() {
        let found = findings(
            "0 c sendmsg_request 2 9 100
             10 c data_xmit 2 9 0 100
             20 s data_received 3 9 0 100
             30 s request_complete 3 9 100
             40 s recvmsg_request 3 9 100 0
             900040 s sendmsg_response 3 9 100
             900050 s data_xmit 3 9 0 100
             900060 c data_received 2 9 0 100
             900070 c response_complete 2 9 100
             900080 c recvmsg_response 2 9 100",
        );
        assert_eq!(
            found,
            [
                "the call took 900.1 us",
                "900.0 us of it went to the server's application, before sendmsg_response at the server",
            ]
        );
    }

    #[test]
    fn a_failure_without_other_records_says_how_to_get_them() {
        let found = findings("0 c call_failed 2 9 8");
        assert_eq!(found[0], "the call failed: its deadline passed");
        assert!(found[1].contains("--calls all") && found.len() == 2, "{found:?}");
        let found = findings(
            "0 c sendmsg_request 2 9 100\n5 c data_xmit 2 9 0 100\n9 c call_failed 2 9 70",
        );
        assert!(found[0].contains("cause 70"), "{found:?}");
        assert!(found.iter().any(|it| it.contains("no trace of the server")), "{found:?}");
        assert!(
            found.contains(&"no packet about the call reached the client".to_owned()),
            "{found:?}"
        );
    }
}
