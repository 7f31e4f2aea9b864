//! The nodes, calls and faults of one run of the campaign, all from a seed.

use std::fmt;
use std::time::Duration;

use apus_load::{Random, seeded};
use apus_proto::Config;
use apus_wire::{DATA_HEADER_LEN, Data, PacketType};
use rand::Rng;

use crate::chance::{below, happens};
use crate::check::holes::Hole;

/// Shortest request: room for its number, the length of its response, and a check byte.
pub(super) const REQUEST_MIN: u32 = 16;

/// One call of an application.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PlannedCall {
    pub(super) at: Duration,
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) request: u32,
    pub(super) response: u32,
    /// Time until the server's application replies.
    pub(super) service: Duration,
    pub(super) deadline: Option<Duration>,
    /// Time after which the caller aborts the call.
    pub(super) abort: Option<Duration>,
    /// Whether the server's application drops the request instead of replying.
    pub(super) dropped: bool,
}

/// A fault that lasts from `from` until `until`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fault {
    pub(super) from: Duration,
    pub(super) until: Duration,
    pub(super) kind: FaultType,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FaultType {
    /// Packets of one type or of all are lost, this many per million.
    Loss { per_million: u32, only: Option<PacketType> },
    /// Packets arrive twice, the copy up to `late` later.
    Duplicate { per_million: u32, late: Duration },
    /// Packets arrive up to `late` later, after packets that were sent later.
    Reorder { per_million: u32, late: Duration },
    /// Bits flip; the link's checksum detects it and drops the packet.
    Corrupt { per_million: u32 },
    /// Bits flip undetected. The run then only checks that nothing panics or spins.
    CorruptUnnoticed { per_million: u32 },
    /// All packets take longer.
    Delay { extra: Duration },
    /// No packet to or from this node gets through.
    LinkDown { node: usize },
    /// Nodes of the mask receive no packets of the other nodes, and vice versa.
    Partition { mask: u32 },
    /// The node loses its state, and restarts at the end of the fault.
    Restart { node: usize },
    /// The node's clock is fast by this many parts per million, from the start of the run.
    Skew { node: usize, parts: i32 },
    /// The queue in front of each node holds this many bytes.
    Buffer { bytes: u64 },
    /// Packets may be no larger than this.
    Mtu { bytes: usize },
    /// The node moves to a new address, and the heir, if there is one, to the node's old address.
    Move { node: usize, heir: Option<usize> },
    /// The node is paused. Up to `queue` packets wait for it.
    Pause { node: usize, queue: usize },
    /// A sender that sees no packet sends the target packets in the name of the source.
    Forged { source: usize, target: usize, packets: u32 },
    /// An attacker sends this many packets.
    Hostile { packets: u32, manner: Manner },
    /// An attacker on the path of sealed nodes sends this many datagrams.
    Attack { packets: u32 },
    /// The node refuses the certificates of all clients.
    Refuse { node: usize },
    /// The node gets a certificate with another name at the beginning of the fault.
    Rename { node: usize },
    /// An attacker forges this many ICMP errors about nodes.
    Reports { packets: u32 },
}

/// The kind of packets that a hostile node sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Manner {
    /// Random bytes, and random bytes behind a valid header.
    Noise,
    /// Packets recorded from the network, sent again from its own address, some of them modified.
    Copies,
    /// First packets of new requests, of any length.
    Requests,
    /// GRANT, RESEND and ACK packets for guessed ids.
    Control,
    /// Copies, requests and control packets about a few calls, with a token from a first contact.
    Met,
}

/// The scenario of one run.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) seed: u64,
    pub(super) nodes: usize,
    pub(super) config: Config,
    pub(super) peer_timeout: Duration,
    pub(super) total_budget: u64,
    pub(super) calls: Vec<PlannedCall>,
    pub(super) faults: Vec<Fault>,
    /// Delay of the network, one way.
    pub(super) delay: Duration,
    /// Rate of its links, in Gb/s.
    pub(super) gbps: u64,
    pub(super) mtu: usize,
    /// Whether the packets of the nodes are sealed.
    pub(super) is_sealed: bool,
    /// Whether budgets are so small that calls may fail because of them.
    pub(super) tight: bool,
    /// Time of the last call and of the end of the last fault.
    pub(super) quiet_from: Duration,
    /// The rule that the nodes break in a test.
    pub(super) hole: Option<Hole>,
    /// Whether records are sealed with AES-128-GCM, in a test.
    pub(super) is_real: bool,
}

pub(super) fn micros(n: u32) -> Duration {
    Duration::from_micros(u64::from(n))
}

pub(super) fn millis(n: u32) -> Duration {
    Duration::from_millis(u64::from(n))
}

impl Scenario {
    /// A scenario without weights.
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = seeded(seed.wrapping_mul(0xD134_2543_DE82_EF95) ^ 0x6661_756c_7473);
        let nodes = 2 + below(&mut rng, 4) as usize;
        let span = millis(5 + below(&mut rng, 120));
        let peer_timeout = millis([100, 250, 500, 1000][below(&mut rng, 4) as usize]);
        let tight = happens(&mut rng, 150_000);
        let (config, total_budget) = config(&mut rng, peer_timeout, tight);
        let count = 1 + below(&mut rng, 80);
        let mut room = 8_000_000u32;
        let mut calls: Vec<PlannedCall> =
            (0..count).map(|_| call(&mut rng, nodes, span, &mut room)).collect();
        if tight {
            // The budget does not bound responses, which are the application's own; only requests matter.
            calls.iter_mut().for_each(|call| call.response = call.response.min(1_000));
        }
        let kinds = below(&mut rng, 5);
        let faults = (0..kinds).map(|_| fault(&mut rng, nodes, span)).collect();
        let mut scenario = Self {
            seed,
            nodes,
            config,
            peer_timeout,
            total_budget,
            calls,
            faults,
            delay: micros(1 + below(&mut rng, 100)),
            gbps: [1, 10, 25, 100][below(&mut rng, 4) as usize],
            mtu: [576, 1472, 1472, 8972, 65_507][below(&mut rng, 5) as usize],
            is_sealed: false,
            tight,
            quiet_from: Duration::ZERO,
            hole: None,
            is_real: false,
        };
        scenario.settle();
        scenario
    }

    /// Computes `quiet_from` after calls or faults were removed.
    pub(super) fn settle(&mut self) {
        let calls = self.calls.iter().map(|call| call.at + call.service);
        let faults = self.faults.iter().map(|fault| fault.until);
        self.quiet_from = calls.chain(faults).max().unwrap_or_default();
    }

    /// Whether no fault may fail a call: losses are rare enough for retransmissions.
    pub(super) fn is_benign(&self) -> bool {
        let mut lost = 0;
        let harmless = self.faults.iter().all(|fault| match fault.kind {
            FaultType::Loss { per_million, .. } | FaultType::Corrupt { per_million } => {
                lost += per_million;
                true
            }
            FaultType::Duplicate { .. }
            | FaultType::Skew { .. }
            | FaultType::Mtu { .. }
            | FaultType::Attack { .. }
            | FaultType::Reports { .. }
            | FaultType::Forged { .. } => true,
            FaultType::Reorder { late, .. } => late < self.peer_timeout / 8,
            FaultType::Delay { extra } => extra < self.peer_timeout / 8,
            FaultType::LinkDown { .. } | FaultType::Partition { .. } => {
                fault.until - fault.from < self.peer_timeout / 8
            }
            FaultType::CorruptUnnoticed { .. }
            | FaultType::Restart { .. }
            | FaultType::Move { .. }
            | FaultType::Pause { .. }
            | FaultType::Buffer { .. }
            | FaultType::Refuse { .. }
            | FaultType::Rename { .. }
            | FaultType::Hostile { .. } => false,
        });
        harmless && !self.tight && lost <= 50_000
    }

    /// Whether there are forged reports of the network.
    pub(super) fn has_reports(&self) -> bool {
        self.faults.iter().any(|fault| matches!(fault.kind, FaultType::Reports { .. }))
    }

    /// Bytes of payload in a full packet of the narrowest path.
    pub(super) fn payload_min(&self) -> u32 {
        let limits = self.faults.iter().filter_map(|fault| match fault.kind {
            FaultType::Mtu { bytes } => Some(bytes.max(Data::LEN_MAX + 1)),
            _ => None,
        });
        let narrowest = limits.fold(self.mtu, usize::min);
        narrowest.saturating_sub(DATA_HEADER_LEN).max(1) as u32
    }

    /// Whether nodes change their addresses.
    pub(super) fn moves(&self) -> bool {
        self.faults.iter().any(|fault| matches!(fault.kind, FaultType::Move { .. }))
    }

    /// Total time for which a node is paused.
    pub(super) fn paused(&self, of: usize) -> Duration {
        let pauses = self
            .faults
            .iter()
            .filter(|fault| matches!(fault.kind, FaultType::Pause { node, .. } if node == of));
        pauses.map(|fault| fault.until - fault.from).sum()
    }

    /// Number of full packets in the longest call.
    pub(super) fn longest_call(&self) -> u64 {
        let payload = self.payload_min();
        let full = |bytes: u32| u64::from(bytes.div_ceil(payload));
        let calls = self.calls.iter().map(|call| full(call.request) + full(call.response));
        calls.max().unwrap_or(0)
    }

    /// Whether payload may be damaged undetected. The tag of a record detects every damage.
    pub(super) fn damages(&self) -> bool {
        !self.is_sealed
            && self
                .faults
                .iter()
                .any(|fault| matches!(fault.kind, FaultType::CorruptUnnoticed { .. }))
    }
}

pub(super) fn config(rng: &mut Random, peer_timeout: Duration, tight: bool) -> (Config, u64) {
    let mut config = Config::default();
    config.peer_timeout(peer_timeout).priorities(1 + below(rng, 8) as u8);
    if happens(rng, 500_000) {
        config.unscheduled([0, 1, 1_500, 10_000, 100_000][below(rng, 5) as usize]);
    }
    if happens(rng, 500_000) {
        config.max_incoming([10_000, 50_000, 1 << 20][below(rng, 3) as usize]);
    }
    config.overcommitment(1 + below(rng, 8) as usize);
    config.fifo_share([0, 50, 200][below(rng, 3) as usize]);
    config.link_mbps([1_000, 10_000, 100_000][below(rng, 3) as usize]);
    config.pacing(happens(rng, 800_000));
    config.burst([1_500, 10_000, 128 << 10][below(rng, 3) as usize]);
    if happens(rng, 200_000) {
        config.incast_threshold(1 + below(rng, 10));
    }
    let mut total = 1 << 30;
    if tight {
        total = u64::from(100_000 + below(rng, 2_000_000));
        config.peer_budget(u64::from(64_000 + below(rng, 500_000)).max(64 << 10));
        config.socket_budget(u64::from(64_000 + below(rng, 1_000_000)).max(64 << 10));
        config.total_budget(total);
        config.calls_max(1 + below(rng, 50));
        config.peers_max(1 + below(rng, 6) as usize);
    }
    (config, total)
}

pub(super) fn call(rng: &mut Random, nodes: usize, span: Duration, room: &mut u32) -> PlannedCall {
    let from = below(rng, nodes as u32) as usize;
    let to = (from + 1 + below(rng, nodes as u32 - 1) as usize) % nodes;
    let length = |rng: &mut Random, room: &mut u32| {
        let most = [20, 100, 1_500, 12_000, 100_000, 1_500_000][below(rng, 6) as usize];
        let length = (REQUEST_MIN + below(rng, most)).min((*room).max(REQUEST_MIN));
        *room = room.saturating_sub(length);
        length
    };
    let (request, response) = (length(rng, room), length(rng, room));
    PlannedCall {
        at: span.mul_f64(f64::from(below(rng, 1000)) / 1000.0),
        from,
        to,
        request,
        response,
        service: micros(if happens(rng, 100_000) { below(rng, 50_000) } else { below(rng, 50) }),
        deadline: happens(rng, 60_000).then(|| millis(1 + below(rng, 300))),
        abort: happens(rng, 40_000).then(|| micros(below(rng, 20_000))),
        dropped: happens(rng, 15_000),
    }
}

pub(super) fn fault(rng: &mut Random, nodes: usize, span: Duration) -> Fault {
    let from = span.mul_f64(f64::from(below(rng, 900)) / 1000.0);
    let mut until = from + span.mul_f64(f64::from(1 + below(rng, 1000)) / 1000.0);
    let often = [1_000, 10_000, 30_000, 200_000, 1_000_000][below(rng, 5) as usize];
    let late_us_max = [50, 1_000, 30_000][below(rng, 3) as usize];
    let late = micros(1 + below(rng, late_us_max));
    let node = below(rng, nodes as u32) as usize;
    let kind = match below(rng, 15) {
        0 => FaultType::Loss { per_million: often, only: None },
        1..=3 => FaultType::Loss { per_million: often, only: Some(packet_type(rng)) },
        4 => FaultType::Duplicate { per_million: often, late },
        5 => FaultType::Reorder { per_million: often.min(500_000), late },
        6 => FaultType::Corrupt { per_million: often.min(200_000) },
        7 => FaultType::CorruptUnnoticed { per_million: often.min(200_000) },
        8 => FaultType::Delay { extra: late },
        9 => FaultType::LinkDown { node },
        10 => FaultType::Partition { mask: rng.next_u32() },
        11 => FaultType::Restart { node },
        12 => FaultType::Skew { node, parts: below(rng, 2_000) as i32 - 1_000 },
        13 if happens(rng, 500_000) => FaultType::Mtu { bytes: 200 + below(rng, 1_300) as usize },
        13 => FaultType::Buffer { bytes: u64::from(3_000 + below(rng, 100_000)) },
        _ => FaultType::Hostile { packets: 1 + below(rng, 400), manner: manner(rng) },
    };
    if matches!(kind, FaultType::Skew { .. }) {
        until = from;
    }
    Fault { from, until, kind }
}

fn manner(rng: &mut Random) -> Manner {
    [Manner::Noise, Manner::Copies, Manner::Requests, Manner::Control][below(rng, 4) as usize]
}

fn packet_type(rng: &mut Random) -> PacketType {
    use PacketType::{Ack, Busy, Cutoffs, Data, Grant, NeedAck, Resend, RpcUnknown};
    [Data, Grant, Resend, RpcUnknown, Busy, Cutoffs, NeedAck, Ack][below(rng, 8) as usize]
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} to {:?}: {:?}", self.from, self.until, self.kind)
    }
}

impl fmt::Display for PlannedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, from, to, request, response, .. } = self;
        write!(f, "{at:?} node {from} calls node {to}: {request} B, {response} B back")?;
        if let Some(deadline) = self.deadline {
            write!(f, ", deadline {deadline:?}")?;
        }
        if let Some(abort) = self.abort {
            write!(f, ", aborted after {abort:?}")?;
        }
        if self.dropped { f.write_str(", dropped by the server") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_stands_for_what_it_always_stood_for() {
        let scenario = Scenario::new(17);
        let calls: Vec<String> = scenario.calls.iter().take(2).map(ToString::to_string).collect();
        let faults: Vec<String> = scenario.faults.iter().map(ToString::to_string).collect();
        assert_eq!(
            calls,
            [
                "51.852ms node 0 calls node 2: 47677 B, 29 B back",
                "91.06ms node 0 calls node 1: 35 B, 26 B back",
            ]
        );
        let loss = "60.668ms to 169.824ms: Loss { per_million: 10000, only: Some(Data) }";
        assert_eq!(faults, [loss]);
    }
}
