//! Calls in a merged trace, with the time at which each reached each stage.

use std::collections::BTreeMap;

use crate::distribution::Distribution;
use crate::merged::{Merged, Moment};
use crate::nodes::{CallKey, Nodes};

/// The stages of a call whose messages are one packet each, in order of time. A name is the event's, with the message in front if
/// both messages have the event. The last stage ends the round trip.
pub const STAGES: [Stage; 10] = [
    Stage { name: "sendmsg_request", event: "sendmsg_request", at_client: true },
    Stage { name: "request_xmit", event: "data_xmit", at_client: true },
    Stage { name: "request_received", event: "data_received", at_client: false },
    Stage { name: "request_complete", event: "request_complete", at_client: false },
    Stage { name: "recvmsg_request", event: "recvmsg_request", at_client: false },
    Stage { name: "sendmsg_response", event: "sendmsg_response", at_client: false },
    Stage { name: "response_xmit", event: "data_xmit", at_client: false },
    Stage { name: "response_received", event: "data_received", at_client: true },
    Stage { name: "response_complete", event: "response_complete", at_client: true },
    Stage { name: "recvmsg_response", event: "recvmsg_response", at_client: true },
];

/// Index of `request_received` in [`STAGES`].
const REQUEST_RECEIVED: usize = 2;
/// Index of `response_received` in [`STAGES`].
const RESPONSE_RECEIVED: usize = 7;

/// [`STAGES`] with the times at which the kernels received the first packets.
fn stages_with_kernel() -> Vec<Stage> {
    let kernel = |name, at_client| Stage { name, event: "kernel_recv", at_client };
    let mut stages = STAGES.to_vec();
    stages.insert(RESPONSE_RECEIVED, kernel("response_kernel", true));
    stages.insert(REQUEST_RECEIVED, kernel("request_kernel", false));
    stages
}

/// A stage of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stage {
    /// Its name.
    pub name: &'static str,
    /// The event that begins it, at its first occurrence in the call.
    pub event: &'static str,
    /// Whether it is at the client.
    pub at_client: bool,
}

/// A call, as far as the traces record it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TracedCall {
    /// The lower half of its id, in its client's form.
    pub id: u32,
    /// The pair of nodes.
    pub pair: u32,
    /// Bytes of the request.
    pub request: Option<u32>,
    /// Bytes of the response.
    pub response: Option<u32>,
    /// Time of each of the [`STAGES`], in ns of the merged trace.
    pub reached: [Option<u64>; STAGES.len()],
    /// Time at which the receiver's kernel received the first packet of the request and of the response. Recorded only if
    /// `APUS_TRACE_KERNEL` is on.
    pub kernel: [Option<u64>; 2],
    /// Packets that were retransmitted, requested again, or answered with BUSY or RPC_UNKNOWN.
    pub disturbances: u32,
    /// The cause of its failure, a number of the event `call_failed`.
    pub failed: Option<u32>,
    /// The time of its first record.
    pub first: u64,
    /// The time of its last record.
    pub last: u64,
    /// Its key, unique in the merged trace.
    pub(crate) key: CallKey,
}

impl TracedCall {
    /// Time from the application's call until the application has the response.
    #[must_use]
    pub fn round_trip(&self) -> Option<u64> {
        self.reached[STAGES.len() - 1]?.checked_sub(self.reached[0]?)
    }

    /// Times of all stages. `None` if a stage is missing or the times are out of order.
    #[must_use]
    pub fn all_stages(&self) -> Option<[u64; STAGES.len()]> {
        let mut all = [0; STAGES.len()];
        for (to, reached) in all.iter_mut().zip(self.reached) {
            *to = reached?;
        }
        all.is_sorted().then_some(all)
    }

    /// [`Self::all_stages`] with the times at which the kernels received the first packets.
    fn with_kernel(&self) -> Option<[u64; STAGES.len() + 2]> {
        let all = self.all_stages()?;
        let [request, response] = [self.kernel[0]?, self.kernel[1]?];
        let mut times = [0; STAGES.len() + 2];
        times[..REQUEST_RECEIVED].copy_from_slice(&all[..REQUEST_RECEIVED]);
        times[REQUEST_RECEIVED] = request;
        times[REQUEST_RECEIVED + 1..=RESPONSE_RECEIVED]
            .copy_from_slice(&all[REQUEST_RECEIVED..RESPONSE_RECEIVED]);
        times[RESPONSE_RECEIVED + 1] = response;
        times[RESPONSE_RECEIVED + 2..].copy_from_slice(&all[RESPONSE_RECEIVED..]);
        times.is_sorted().then_some(times)
    }

    fn take(&mut self, name: &str, at_client: bool, moment: &Moment) {
        for (stage, reached) in STAGES.iter().zip(&mut self.reached) {
            if stage.event == name && stage.at_client == at_client {
                reached.get_or_insert(moment.nanos);
            }
        }
        self.last = moment.nanos;
        let length = Some(moment.arguments[2]);
        match name {
            // A simulation only counts the bytes of long messages, so they arrive with a length of 0.
            "sendmsg_request" | "request_complete" => self.request = self.request.max(length),
            "sendmsg_response" | "response_complete" => self.response = self.response.max(length),
            "call_failed" => self.failed = length,
            "retransmit" | "resend_xmit" | "busy_xmit" | "unknown_xmit" => self.disturbances += 1,
            _ => {}
        }
    }
}

/// The calls of a trace, in the order in which they began.
#[must_use]
pub fn calls(merged: &Merged) -> Vec<TracedCall> {
    let (nodes, mut calls) = (Nodes::of(merged), BTreeMap::new());
    // First packets of a batch whose time follows, and whether each belongs to a response.
    let mut batches: Vec<Vec<(CallKey, usize)>> = vec![Vec::new(); merged.rings.len()];
    for moment in &merged.moments {
        let batch = &mut batches[moment.ring];
        match merged.name(moment) {
            "kernel_recv" => {
                let at = moment.nanos.checked_sub(moment.arguments[0].into());
                for (key, message) in batch.drain(..) {
                    let call: Option<&mut TracedCall> = calls.get_mut(&key);
                    if let Some(call) = call {
                        call.kernel[message] = call.kernel[message].or(at);
                    }
                }
            }
            "link_recv" => batch.clear(),
            _ => {}
        }
        let Some((key, at_client)) = nodes.call(merged, moment) else { continue };
        if merged.name(moment) == "data_received" {
            batch.push((key, usize::from(at_client)));
        }
        let CallKey { id, pair, .. } = key;
        let new = || TracedCall { id, pair, first: moment.nanos, key, ..TracedCall::default() };
        let call: &mut TracedCall = calls.entry(key).or_insert_with(new);
        call.take(merged.name(moment), at_client, moment);
    }
    let mut calls: Vec<_> = calls.into_values().collect();
    calls.sort_by_key(|call| call.first);
    calls
}

/// Means over calls of one length, or of a range of lengths.
#[derive(Clone, PartialEq, Debug)]
pub struct Timeline {
    /// Least and most bytes of the requests.
    pub requests: (u32, u32),
    /// Calls with all stages in the traces.
    pub calls: usize,
    /// The stages.
    pub stages: Vec<TimelineStage>,
}

/// One stage of a [`Timeline`].
#[derive(Clone, PartialEq, Debug)]
pub struct TimelineStage {
    /// Its name.
    pub name: &'static str,
    /// Whether it is at the client.
    pub at_client: bool,
    /// Mean time from the beginning of the call, in ns.
    pub mean: f64,
    /// Mean time since the previous stage, in ns.
    pub delta: f64,
    /// Median time since the previous stage, in ns.
    pub p50: u64,
    /// 99th percentile of the time since the previous stage, in ns.
    pub p99: u64,
}

impl Timeline {
    /// Means of calls whose request length is in this range; without a range, of calls with the most frequent request length.
    /// `None` if the trace has no call with all stages.
    #[must_use]
    pub fn of(calls: &[TracedCall], requests: Option<(u32, u32)>) -> Option<Self> {
        let whole: Vec<_> = calls.iter().filter(|call| call.all_stages().is_some()).collect();
        let mut counts = BTreeMap::new();
        for call in &whole {
            *counts.entry(call.request.unwrap_or(0)).or_insert(0) += 1;
        }
        let frequent =
            || counts.iter().max_by_key(|(_, count)| **count).map(|(length, _)| (*length, *length));
        let requests = requests.or_else(frequent)?;
        let fits = |length| (requests.0..=requests.1).contains(&length);
        let same = whole.into_iter().filter(|call| call.request.is_some_and(fits));
        let same: Vec<_> = same.collect();
        let row = |times: &[u64]| times.to_vec();
        let with_kernel = same.iter().filter_map(|call| Some(row(&call.with_kernel()?)));
        let mut columns = stages_with_kernel();
        let mut rows: Vec<Vec<u64>> = with_kernel.collect();
        if rows.len() * 2 < same.len() {
            columns = STAGES.to_vec();
            rows = same.iter().filter_map(|call| Some(row(&call.all_stages()?))).collect();
        }
        if rows.is_empty() {
            return None;
        }
        let stages = columns.iter().enumerate().map(|(index, stage)| {
            let before = index.saturating_sub(1);
            let deltas: Distribution = rows.iter().map(|row| row[index] - row[before]).collect();
            let reached: Distribution = rows.iter().map(|row| row[index] - row[0]).collect();
            TimelineStage {
                name: stage.name,
                at_client: stage.at_client,
                mean: reached.mean(),
                delta: deltas.mean(),
                p50: deltas.median(),
                p99: deltas.percentile(99),
            }
        });
        Some(Self { requests, calls: rows.len(), stages: stages.collect() })
    }
}
