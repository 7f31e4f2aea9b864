//! Bounds on the packets of nodes: a storm is a failure, even if the call ends.
//!
//! Every packet belongs to an RPC, which its id names. The packets that both sides of an RPC may send follow from its messages, the
//! network's faults and its age:
//!
//! - a full packet of message data costs DATA and a GRANT, and both once more if it was taken for lost;
//! - a packet that was lost, copied, late or forged costs a probe, its answer, and the packets that each causes;
//! - a node that receives nothing sends ten probes in the first peer timeout, because the RTO is 2 ms at least and doubles up to a
//!   quarter of the timeout, and then five probes in each further timeout. A probe is one packet, or one for each of 16 gaps, and
//!   its answer as many.
//!
//! While no new data arrives, every full packet may be sent at most twice, besides the probes.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use apus_wire::{Packet, Stamp, Token};
use foldhash::fast::FixedState;

use crate::check::ledger::{Violation, number_of};
use crate::check::scenario::{FaultType, Scenario};

/// Upper bound on packets per full packet of message data.
const PER_FULL: u64 = 4;
/// Upper bound on packets per full packet while no new data arrives.
const PER_FULL_SILENT: u64 = 2;
/// Upper bound on other packets of an RPC: cutoffs, acknowledgements and the last grants.
const PER_RPC: u64 = 8;
/// Upper bound on packets per packet that was lost, copied, late or forged.
const PER_DISTURBED: u64 = 4;
/// Upper bound on probes in the first peer timeout.
const PROBES_FIRST: u64 = 10;
/// Upper bound on probes in each further peer timeout.
const PROBES: u64 = 5;
/// Packets of a probe and its answer, besides two for each gap.
const PER_PROBE: u64 = 4;
/// Upper bound on the gaps that a probe asks for.
const GAPS_MAX: u64 = 16;
/// Upper bound on ids without DATA between two nodes on a network without faults.
const STRAYS: u64 = 16;

/// The name of an RPC: its client, its server, a token that stands for the pair's tokens, and the client's form of its id. The
/// packets of a first contact count as one RPC with id 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Name {
    client: usize,
    server: usize,
    token: Token,
    id: u64,
}

/// Packets sent for one RPC, by both sides.
#[derive(Debug)]
struct Spent {
    /// The number of its call, if its first packet was seen.
    call: Option<usize>,
    began: Duration,
    /// Full packets of both messages, as far as their lengths are known.
    full: u64,
    /// Ranges of the request and of the response that have not arrived.
    missing: [Option<Vec<Range<u32>>>; 2],
    sent: u64,
    /// Packets that were lost, copied, late or forged.
    disturbed: u64,
    /// Time at which new data last arrived.
    progressed: Duration,
    /// Packets sent since `progressed`.
    sent_since: u64,
    /// Packets disturbed since `progressed`.
    disturbed_since: u64,
}

/// The work of all nodes.
#[derive(Debug)]
pub(super) struct Work {
    /// The least payload of a full packet, in bytes.
    payload: u32,
    peer_timeout: Duration,
    calls: usize,
    rpcs: HashMap<Name, Spent, FixedState>,
    tokens: Tokens,
    /// Lower bound on the full packets of an RPC. If addresses change hands, the node that sent the data may not be the named one.
    full_min: u64,
    /// Number of restarts, moves and absences of nodes.
    absences: u64,
    /// Number of ids without DATA.
    strays: u64,
    /// Upper bound on `strays`.
    strays_max: u64,
}

impl Work {
    pub(super) fn new(scenario: &Scenario) -> Self {
        // A client's later run probes for the calls that its earlier run left at a server, and packets to a moved node reach its
        // heir.
        let leaves = |kind| {
            use FaultType::{LinkDown, Move, Partition, Pause, Restart};
            matches!(
                kind,
                Restart { .. } | Move { .. } | Pause { .. } | LinkDown { .. } | Partition { .. }
            )
        };
        let times = scenario.faults.iter().filter(|fault| leaves(fault.kind)).count();
        let left = scenario.calls.len() * times;
        Self {
            payload: scenario.payload_min(),
            peer_timeout: scenario.peer_timeout,
            calls: scenario.calls.len(),
            rpcs: HashMap::default(),
            tokens: Tokens::default(),
            absences: times as u64,
            full_min: if scenario.moves() { scenario.longest_call() } else { 0 },
            strays: 0,
            strays_max: STRAYS * (scenario.nodes * scenario.nodes) as u64 + left as u64,
        }
    }

    /// Notes that a node has given a packet to the network.
    pub(super) fn sent(
        &mut self,
        now: Duration,
        from: usize,
        to: usize,
        packet: &[u8],
    ) -> Result<Name, Violation> {
        let (name, parsed) = self.tokens.name(from, to, packet);
        let spent = self.rpcs.entry(name).or_insert_with(|| {
            self.strays += 1;
            // A node that restarts, moves or is absent for long makes contact again.
            let again = if name.id == 0 { 2 * self.absences } else { 0 };
            Spent { disturbed: again, disturbed_since: again, ..Spent::new(now) }
        });
        if let Some(Packet::Data { header, data, payload }) = parsed {
            let is_response = header.sender_id.is_server();
            let call = number_of(payload, self.calls);
            if !is_response && data.offset == 0 && call.is_some() {
                if spent.call.is_some_and(|earlier| Some(earlier) != call) {
                    // The same id under another token is a new RPC.
                    *spent = Spent::new(now);
                    self.strays += 1;
                }
                spent.call = call;
            }
            self.strays -= u64::from(spent.full == 0);
            spent.learn_length(is_response, data.message_length, self.payload);
        }
        spent.sent += 1;
        spent.sent_since += 1;
        if self.strays > self.strays_max {
            return Err(Violation::Strays { ids: self.strays, allowed: self.strays_max });
        }
        match spent.over(now, self.peer_timeout, self.full_min) {
            Some(over) => Err(name.storm(&over)),
            None => Ok(name),
        }
    }

    /// Notes that the network has affected a packet. A late packet may also bring a token into doubt.
    pub(super) fn disturbed(&mut self, name: &Name) {
        self.strays_max += 1;
        let contact = Name::contact(name.client, name.server);
        for name in [*name, contact].iter().take(if *name == contact { 1 } else { 2 }) {
            if let Some(spent) = self.rpcs.get_mut(name) {
                spent.disturbed += 1;
                spent.disturbed_since += 1;
            }
        }
    }

    /// Notes that the first contact of two nodes may need more packets.
    pub(super) fn disturbed_contact(&mut self, one: usize, other: usize) {
        self.disturbed(&Name::contact(one, other));
    }

    /// Notes that all RPCs of two nodes may need more packets.
    pub(super) fn disturbed_pair(&mut self, one: usize, other: usize) {
        let pair = (one.min(other), one.max(other));
        let of_pair = |name: &Name| (name.client.min(name.server), name.client.max(name.server));
        for (_, spent) in self.rpcs.iter_mut().filter(|(name, _)| of_pair(name) == pair) {
            spent.disturbed += 1;
            spent.disturbed_since += 1;
        }
    }

    /// Notes the tokens that a handshake gave to a pair of nodes.
    pub(super) fn introduced(&mut self, ours: Token, theirs: Token) {
        self.tokens.learn(ours, theirs);
    }

    /// Notes a packet forged in the name of a node.
    pub(super) fn forged(&mut self, now: Duration, from: usize, to: usize, packet: &[u8]) {
        let (name, _) = self.tokens.name(from, to, packet);
        self.rpcs.entry(name).or_insert_with(|| {
            self.strays += 1;
            Spent::new(now)
        });
        self.disturbed(&name);
    }

    /// Notes a packet that reached a stopped node.
    pub(super) fn missed(&mut self, from: usize, to: usize, packet: &[u8]) {
        let (name, _) = self.tokens.name(from, to, packet);
        self.disturbed(&name);
    }

    /// Notes a packet that reached a running node.
    pub(super) fn arrived(&mut self, now: Duration, from: usize, to: usize, packet: &[u8]) {
        let named = self.tokens.name(from, to, packet);
        let (name, Some(Packet::Data { header, data, payload })) = named else {
            return;
        };
        let Some(spent) = self.rpcs.get_mut(&name) else { return };
        let missing = &mut spent.missing[usize::from(header.sender_id.is_server())];
        let part = data.offset..data.offset + payload.len() as u32;
        if missing.as_mut().is_some_and(|missing| take(missing, part)) {
            spent.progress(now);
        }
    }
}

impl Spent {
    fn new(now: Duration) -> Self {
        Self {
            call: None,
            began: now,
            full: 0,
            missing: [None, None],
            sent: 0,
            disturbed: 0,
            progressed: now,
            sent_since: 0,
            disturbed_since: 0,
        }
    }

    fn progress(&mut self, now: Duration) {
        (self.progressed, self.sent_since, self.disturbed_since) = (now, 0, 0);
    }

    fn learn_length(&mut self, is_response: bool, length: u32, payload: u32) {
        let missing = &mut self.missing[usize::from(is_response)];
        if missing.is_none() {
            *missing = Some(std::iter::once(0..length).collect());
            self.full += u64::from(length.div_ceil(payload));
        }
    }

    /// The excess over the bounds, if there is one.
    fn over(&self, now: Duration, peer_timeout: Duration, full_min: u64) -> Option<Over> {
        let full = self.full.max(full_min);
        let may = |since: Duration, disturbed: u64, per_full: u64| {
            let age_nanos = now.saturating_sub(since).as_nanos() as u64;
            let probes = PROBES_FIRST + PROBES * age_nanos / peer_timeout.as_nanos() as u64;
            let per_probe = PER_PROBE + 2 * full.min(GAPS_MAX);
            full * per_full + PER_RPC + PER_DISTURBED * disturbed + probes * per_probe
        };
        let allowed = may(self.progressed, self.disturbed_since, PER_FULL_SILENT);
        if self.sent_since > allowed {
            let silent = Some(now - self.progressed);
            return Some(Over { packets: self.sent_since, allowed, silent });
        }
        let allowed = may(self.began, self.disturbed, PER_FULL);
        (self.sent > allowed).then_some(Over { packets: self.sent, allowed, silent: None })
    }
}

/// An excess of packets, since the RPC began or while no new data arrived.
#[derive(Debug)]
struct Over {
    packets: u64,
    allowed: u64,
    silent: Option<Duration>,
}

impl Name {
    /// The name of the first contact of two nodes.
    fn contact(one: usize, other: usize) -> Self {
        Self { client: one.min(other), server: one.max(other), token: Token::NONE, id: 0 }
    }

    fn storm(&self, over: &Over) -> Violation {
        let Over { packets, allowed, silent } = *over;
        let Self { client, server, .. } = *self;
        Violation::Storm { client, server, id: self.id, packets, allowed, silent }
    }
}

/// The tokens that pairs of nodes have given each other, learned from their packets.
#[derive(Debug, Default)]
struct Tokens {
    /// For either token of a pair, the token that stands for both.
    one: HashMap<Token, Token, FixedState>,
    /// The last token of each RPC, by its name without a token: some answers carry no known token.
    last: HashMap<Name, Token, FixedState>,
}

impl Tokens {
    /// Remembers that two tokens belong to one pair.
    fn learn(&mut self, token: Token, stamp: Token) {
        // A token in doubt is issued again, to one of the peer's tokens that is not used.
        let known = self.one.get(&token).or_else(|| self.one.get(&stamp));
        let one = known.copied().unwrap_or(stamp);
        self.one.insert(token, one);
        self.one.entry(stamp).or_insert(one);
    }

    /// The name of a packet's RPC. Remembers the tokens of TOKEN and CONFIRM packets.
    fn name<'a>(&mut self, from: usize, to: usize, bytes: &'a [u8]) -> (Name, Option<Packet<'a>>) {
        use Packet::{Confirm, Open, Token as TokenPacket};
        let stamp = Stamp::read(bytes).map_or(Token::NONE, |stamp| stamp.token);
        let packet = Packet::parse(bytes).ok();
        if let Some(TokenPacket { credentials, .. } | Confirm { credentials, .. }) = packet {
            self.learn(credentials.token, stamp);
        }
        let about_rpc =
            |packet: &_| !matches!(packet, Open { .. } | TokenPacket { .. } | Confirm { .. });
        let Some(packet) = packet.filter(about_rpc) else {
            return (Name::contact(from, to), None);
        };
        let sender_id = packet.header().sender_id;
        let (client, server) = if sender_id.is_client() { (from, to) } else { (to, from) };
        let id = sender_id.client_form().0;
        let mut name = Name { client, server, token: Token::NONE, id };
        let one = self.one.get(&stamp).copied();
        name.token = match one {
            Some(one) => *self.last.entry(name).insert_entry(one).get(),
            None => self.last.get(&name).copied().unwrap_or(stamp),
        };
        (name, Some(packet))
    }
}

/// Removes a part of a message from the missing ranges. Returns whether any of it was missing.
fn take(missing: &mut Vec<Range<u32>>, part: Range<u32>) -> bool {
    let first = missing.partition_point(|range| range.end <= part.start);
    let after = missing.partition_point(|range| range.start < part.end);
    if first >= after {
        return false;
    }
    let before = missing[first].start..part.start;
    let behind = part.end..missing[after - 1].end;
    let left = [before, behind].into_iter().filter(|range| !range.is_empty());
    missing.splice(first..after, left);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_wire::{
        DATA_HEADER_LEN, Data, DataFlags, Header, MAX_HEADER, Priority, Resend, RpcId,
    };

    const CLIENT: usize = 0;
    const SERVER: usize = 1;
    const TOKEN: Token = Token(7);

    /// The bounds on a network without faults.
    fn work() -> Work {
        let mut scenario = Scenario::new(0);
        (scenario.nodes, scenario.mtu, scenario.peer_timeout) = (2, 1472, Duration::from_secs(1));
        scenario.faults.clear();
        Work::new(&scenario)
    }

    fn data(id: u64, offset: u32) -> Vec<u8> {
        let header = Header { source_port: 40_000, dest_port: 7, sender_id: RpcId(id) };
        let data = Data {
            message_length: 14_160,
            incoming: 14_160,
            ack: None,
            cutoff_version: 0,
            retransmit: false,
            flags: DataFlags::NONE,
            offset,
        };
        let mut bytes = [0; DATA_HEADER_LEN];
        data.emit(&header, &mut bytes);
        Stamp::new(TOKEN).write(&mut bytes);
        [&bytes[..], &[0; 1416]].concat()
    }

    fn resend(id: u64) -> Vec<u8> {
        let header = Header { source_port: 7, dest_port: 40_000, sender_id: RpcId(id) };
        let mut bytes = [0; MAX_HEADER];
        let resend = Resend { offset: 0, length: None, priority: Priority::HIGHEST };
        let length = resend.emit(&header, &mut bytes);
        Stamp::new(TOKEN).write(&mut bytes);
        bytes[..length].to_vec()
    }

    #[test]
    fn data_answered_by_a_probe_for_ever_is_a_storm() {
        let mut work = work();
        let (mut now, mut packets) = (Duration::ZERO, 0);
        let storm = loop {
            now += Duration::from_micros(50);
            let packet = data(2, packets % 10 * 1416);
            let sent = work.sent(now, CLIENT, SERVER, &packet);
            work.arrived(now, CLIENT, SERVER, &packet);
            packets += 2;
            if let Err(storm) = sent.and_then(|_| work.sent(now, SERVER, CLIENT, &resend(3))) {
                break storm;
            }
        };
        // Ten full packets; the last new one is the tenth.
        assert!(matches!(storm, Violation::Storm { silent: Some(_), .. }), "{storm}");
        assert!(packets < 10 * 2 + 10 * 2 + 8 + 10 * (4 + 20) + 4, "{packets}");
    }

    #[test]
    fn a_probe_each_quarter_of_the_timeout_is_none() {
        let mut work = work();
        for turn in 0..10_000 {
            let now = Duration::from_millis(250) * turn;
            work.sent(now, SERVER, CLIENT, &resend(3)).expect("one probe and no answer");
        }
    }

    #[test]
    fn ever_new_ids_are_a_storm() {
        let mut work = work();
        let mut ids = 1..1_000;
        let over =
            ids.find(|&id| work.sent(Duration::ZERO, SERVER, CLIENT, &resend(2 * id + 1)).is_err());
        assert_eq!(over, Some(65)); // 16 for each ordered pair of two nodes.
    }

    #[test]
    fn what_is_missing_is_cut_by_what_comes() {
        let mut missing: Vec<_> = std::iter::once(0..100).collect();
        assert!(take(&mut missing, 0..10) && take(&mut missing, 50..60));
        assert_eq!(missing, [10..50, 60..100]);
        assert!(!take(&mut missing, 50..60) && take(&mut missing, 40..70));
        assert_eq!(missing, [10..40, 70..100]);
        assert!(take(&mut missing, 0..200) && missing.is_empty());
    }
}
