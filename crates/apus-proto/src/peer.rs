//! The state of one peer node.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use apus_wire::compact::Envelope;
use apus_wire::{Acked, Credentials, Cutoffs, PathId, RpcId, Token, UnknownReason};

use crate::ack_ranges::AckRanges;
use crate::config::{Config, PACKET_PAYLOAD};
use crate::contact::Contact;
use crate::delay::{Delay, Rate};
use crate::flight::Flight;
use crate::history::{History, ReplayCheck};
use crate::hosts::HostKey;
use crate::id::Ids;
use crate::incarnations::{Admission, Echo, Incarnations};
use crate::incoming::Rank;
use crate::lookup::Named;
use crate::outgoing::{Again, Carried};
use crate::prober::Prober;
use crate::rights::Rights;
use crate::slab::RpcKey;
use crate::time::{Time, nanos};
use crate::trace::{TraceMark, pair};
use crate::usage::Usage;

/// Upper bound on the acknowledgements in one packet, and on those that wait for a packet.
pub(crate) const ACKS: usize = 5;

/// Upper bound on the time that a packet counts as under way, in multiples of `resend_min`. One measured answer may have taken
/// minutes; lost packets must be retransmitted soon all the same.
const UNDER_WAY_MAX: u32 = 8;

/// A peer stays known for at least twice the time in which its token can be confirmed.
pub(crate) const EVICTABLE_AFTER: Duration = Duration::from_secs(25);

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) path: PathId,
    /// Token in packets from the peer; [`Token::NONE`] on a native link.
    pub(crate) token: Token,
    pub(crate) contact: Contact,
    /// Time at which the peer became known.
    pub(crate) met: Time,
    pub(crate) loopback: bool,
    /// Whether packets of this peer were lost although this node's receive buffer had refused none (rule `loss-14`).
    pub(crate) loses_unseen: bool,
    /// Whether the peer is on a native link: it may be the Linux module, which receives only packets that it knows.
    pub(crate) native: bool,
    /// Whether the peer reads compact bundles.
    pub(crate) compact: bool,
    /// Time of the last packet from the peer.
    pub(crate) last_rx: Time,
    pub(crate) reach: Reach,
    pub(crate) measured: Measured,
    pub(crate) server: AsServer,
    pub(crate) client: AsClient,
    /// Flight of the messages to the peer, of both roles.
    pub(crate) flight: Flight,
    pub(crate) carried: Carried,
    pub(crate) prober: Prober,
    pub(crate) grants: PeerGrants,
    /// Number of RPCs of both roles.
    pub(crate) rpcs: u32,
    /// Charges to the peer's budget.
    pub(crate) usage: Usage,
    /// The peer's host, if it has several peers; requests are charged to the host as well.
    pub(crate) host: Option<HostKey>,
    /// Copy of the rights of its path.
    pub(crate) rights: Rights,
}

/// Reports that the peer moved or is unreachable.
#[derive(Debug)]
pub(crate) struct Reach {
    /// Path that its packets arrive by now, the bytes received since the last request to prove that the peer receives there, and
    /// the time of that request.
    elsewhere: Option<(PathId, usize, Option<Time>)>,
    /// The network's error reports about the peer since its last packet.
    refused: Option<Refused>,
    /// Time at which the network's report that the peer is unreachable was last believed.
    pub(crate) believed: Time,
}

/// Measurements of the path to a peer and of its service.
#[derive(Debug)]
pub(crate) struct Measured {
    /// Delay of the network: from a grant to its data.
    pub(crate) delay: Delay,
    /// Time from a whole request to the first packet of its response, including the service's time.
    pub(crate) answers: Delay,
    rate: Rate,
    /// Largest payload of a packet received from the peer, in bytes.
    pub(crate) packet_payload: u32,
}

/// The peer as the server of this node's calls.
#[derive(Debug)]
pub(crate) struct AsServer {
    pub(crate) ids: Ids,
    pub(crate) calls: u32,
    /// The peer's table for messages to it.
    pub(crate) cutoffs: Option<Cutoffs>,
    /// Finished calls that were not acknowledged to the peer yet.
    acks: Vec<Acked>,
    /// The same, if the peer reads compact bundles.
    pub(crate) ack_ranges: AckRanges,
}

/// The peer as a client of this node.
#[derive(Debug)]
pub(crate) struct AsClient {
    pub(crate) requests: Requests,
    /// Requests refused because their port was not served or the peer had no right, oldest first, with the reason. They are never
    /// taken.
    refused_requests: VecDeque<(RpcId, UnknownReason)>,
    /// Number added to the version of this node's cutoffs on a native link, so that only a host that receives at this address knows
    /// the sum.
    pub(crate) version_salt: u16,
    pub(crate) cutoffs_sent: Option<Time>,
    pub(crate) confirmation: Confirmation,
}

/// Grants to a peer.
#[derive(Debug, Default)]
pub(crate) struct PeerGrants {
    /// Incoming messages that can be granted more, best first.
    pub(crate) grantable: BTreeSet<Rank>,
    /// Time since which granted bytes of the peer are late.
    pub(crate) stalled: Option<Time>,
    /// Number of its messages that are probed because granted bytes are late.
    pub(crate) suspended: u32,
    /// Whether its best message has a lower rank than the messages of other peers.
    pub(crate) behind: bool,
}

/// The network's reports that the peer is unreachable (rule `life-5`).
#[derive(Clone, Copy, Debug)]
struct Refused {
    /// Time of the first report.
    first: Time,
    /// Time of the last probe because of these reports.
    last_probe: Time,
    /// Number of such probes.
    probes: u8,
    /// Whether the last report has caused a packet that the peer must answer.
    is_asked: bool,
}

/// Reaction to such a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// Probe the peer.
    Probe,
    /// Wait: the last probe is too recent.
    Wait,
    /// Believe the report: the peer was probed often enough and for long enough, and no packet from it was received.
    Believe,
}

/// Silence after which a peer may have forgotten this node: half of the time after which idle peers are forgotten. Such a peer is
/// probed before it is sent anything new.
pub(crate) const CERTAIN_FOR: Duration = Duration::from_secs(60);

/// Number of probes, half an RTO apart, that must have been refused before the network is believed.
const REFUSALS_MIN: u8 = 2;

/// Upper bound on the recorded refused requests of one peer.
const REFUSED_MAX: usize = 64;

/// Record of the peer's requests that were taken.
#[derive(Debug)]
pub(crate) enum Requests {
    /// The peer is known by its token, which also identifies its requests.
    ByToken(History),
    /// The peer is known by its address alone.
    ByIncarnation(Box<Incarnations>),
}

/// Whether the peer is known to receive at its address.
///
/// An unconfirmed peer gets no more bytes than it sent (rule `hostile-2`): a request with a forged source must not turn this node
/// into an amplifier.
#[derive(Debug)]
pub(crate) enum Confirmation {
    /// The peer may still be sent `credit` bytes. `blocked` responses wait for more.
    Pending {
        /// Bytes received less bytes sent.
        credit: u64,
        /// Responses that wait for the confirmation.
        blocked: BTreeSet<RpcKey>,
    },
    /// The peer echoed a number that was sent only there, or this node has called it.
    Confirmed,
}

/// The token that a peer has chosen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Theirs(pub(crate) Token);

impl Named<Theirs> for Peer {
    fn name(&self) -> Theirs {
        Theirs(self.contact.met().map_or(Token::NONE, |met| met.token))
    }
}

impl Named<Token> for Peer {
    #[inline]
    fn name(&self) -> Token {
        self.token
    }
}

impl Peer {
    /// Returns the mark of an RPC with the peer in the time trace.
    #[cold]
    pub(crate) fn trace_mark(&self, id: RpcId) -> TraceMark {
        let theirs = self.contact.stamp().map_or(Token::NONE, |stamp| stamp.token);
        let ours = if self.native { Token::NONE } else { self.token };
        TraceMark { id: id.0 as u32, pair: pair(ours, theirs) }
    }

    /// A peer over UDP, identified by `token`, which only a host that receives at its address can know. The peer is confirmed, or
    /// about to be.
    pub(crate) fn known(path: PathId, token: Token, contact: Contact, now: Time) -> Self {
        let requests = Requests::ByToken(History::new());
        Self { token, contact, ..Self::new(path, Ids::counted(), requests, now) }
    }

    /// A peer of a native link, identified by its address.
    pub(crate) fn native(path: PathId, ids: Ids, salt: u16, now: Time) -> Self {
        let requests = Requests::ByIncarnation(Box::default());
        let confirmation = Confirmation::Pending { credit: 0, blocked: BTreeSet::new() };
        let mut peer = Self::new(path, ids, requests, now);
        (peer.client.version_salt, peer.client.confirmation) = (salt, confirmation);
        peer
    }

    fn new(path: PathId, ids: Ids, requests: Requests, now: Time) -> Self {
        Self {
            path,
            token: Token::NONE,
            contact: Contact::Native,
            met: now,
            loopback: path.is_loopback(),
            loses_unseen: false,
            native: path.is_native(),
            //= docs/wire.md#W57
            compact: path.is_sealed(),
            last_rx: now,
            reach: Reach { elsewhere: None, refused: None, believed: Time::ZERO },
            measured: Measured {
                delay: Delay::new(),
                answers: Delay::new(),
                rate: Rate::new(),
                packet_payload: PACKET_PAYLOAD,
            },
            server: AsServer {
                ids,
                calls: 0,
                cutoffs: None,
                acks: Vec::with_capacity(ACKS),
                ack_ranges: AckRanges::default(),
            },
            client: AsClient {
                requests,
                refused_requests: VecDeque::new(),
                version_salt: 0,
                cutoffs_sent: None,
                confirmation: Confirmation::Confirmed,
            },
            flight: Flight::default(),
            carried: Carried::default(),
            prober: Prober::new(),
            grants: PeerGrants::default(),
            rpcs: 0,
            usage: Usage::default(),
            host: None,
            rights: Rights::ALL,
        }
    }

    /// Returns the recent minimum of the round trip.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        [self.measured.delay.least(), self.measured.answers.least()].into_iter().flatten().min()
    }

    /// Returns the bytes that the path carries in a round trip, at most the link's, if both rate and round trip were measured.
    pub(crate) fn round_trip_bytes(&self, config: &Config) -> Option<u64> {
        let round_trip = self.round_trip()?;
        let measured = self.measured.rate.bytes_in(round_trip)?;
        //= docs/protocol.md#measure-4
        let link = config.link.filter(|_| !self.loopback);
        Some(link.map_or(measured, |link| measured.min(link.bytes_in(round_trip))))
    }

    /// Takes a sample of the rate: `bytes` were transferred in `elapsed`. Ignores samples shorter than a round trip, because
    /// packets leave a queue in bursts.
    pub(crate) fn sample_rate(&mut self, now: Time, bytes: u64, elapsed: Duration) {
        //= docs/protocol.md#measure-3
        if self.round_trip().is_some_and(|least| elapsed >= least) {
            self.measured.rate.sample(now, bytes, elapsed);
        }
    }

    /// Returns the unscheduled bytes of a message of `length` bytes. Most messages are shorter than the minimum of
    /// [`unscheduled`](Self::unscheduled), which need not be computed then.
    #[inline]
    pub(crate) fn unscheduled_of(&self, config: &Config, length: u32) -> u32 {
        let least = config.unscheduled_min.min(config.unscheduled);
        if length <= least { length } else { self.unscheduled(config) }
    }

    /// Returns the number of bytes of a new message to transmit without a grant (rule `unsched-1`).
    pub(crate) fn unscheduled(&self, config: &Config) -> u32 {
        //= docs/protocol.md#unsched-1
        let Some(measured) = self.round_trip_bytes(config) else { return config.unscheduled };
        //= docs/protocol.md#measure-5
        let measured =
            if self.knows_network() { measured } else { measured.min(config.unscheduled.into()) };
        let most = u64::from(config.unscheduled_max.max(config.unscheduled));
        let least = if self.measured.rate.is_settled() {
            config.unscheduled_min
        } else {
            config.unscheduled
        };
        let least = u64::from(least).min(most);
        u32::try_from(measured.clamp(least, most)).unwrap_or(u32::MAX)
    }

    /// Returns whether the delay of the network alone was measured, without the time of services.
    #[inline]
    fn knows_network(&self) -> bool {
        self.measured.delay.least().is_some()
    }

    /// Returns the bytes that may be expected over all messages while this peer's is granted (rule `grant-6`).
    pub(crate) fn incoming_limit(&self, config: &Config) -> u64 {
        let measured = self.round_trip_bytes(config).filter(|_| self.knows_network());
        //= docs/protocol.md#measure-5
        config.max_incoming.max(measured.map_or(0, |bytes| bytes.saturating_mul(4)))
    }

    /// Returns the bytes to keep granted and not yet received for one message (rule `grant-3`): two round trips and the cost of the
    /// packets' size, or `most` if nothing was measured. At least two unmeasured round trips, because a rate measured through a
    /// small window would keep the window small.
    pub(crate) fn window(&self, config: &Config, most: u64) -> u64 {
        let Some(measured) = self.round_trip_bytes(config) else {
            return most.min(config.window_max);
        };
        //= docs/protocol.md#grant-3
        let window = measured.saturating_mul(2) + 3 * u64::from(self.measured.packet_payload);
        window.max(2 * u64::from(config.unscheduled)).min(most).min(config.window_max)
    }

    /// Returns the bytes that may be retransmitted to the peer in a round trip: the presumed grants of the peer to one message.
    pub(crate) fn again(&self, config: &Config) -> Again {
        //= docs/protocol.md#loss-7
        let most = config.max_incoming;
        let window = self.window(config, most).max(most / 2);
        let round_trip = match self.round_trip() {
            Some(round_trip) if self.knows_network() => round_trip,
            // The time of a service is no reason to transmit less.
            Some(with_service) => with_service.min(config.resend_min),
            None => config.resend_min,
        };
        Again { window, round_trip }
    }

    /// Returns the silence after which to probe for a response that has not begun (rule `loss-2`). It is as short as the network
    /// allows, however long services take: the answer to such a probe is BUSY, which costs next to nothing.
    #[inline]
    pub(crate) fn response_rto_nanos(&self, config: &Config) -> u64 {
        let network = self.rto_nanos(config);
        match self.measured.answers.rto_nanos() {
            None => network,
            Some(measured) => {
                let most = network.max(nanos(config.resend_initial));
                measured.max(nanos(config.resend_min)).min(most)
            }
        }
    }

    /// Returns the silence after which to probe for granted data, or for an acknowledgement (rule `loss-2`). Answers take at least
    /// as long, so they are a bound if nothing else was measured.
    #[inline]
    pub(crate) fn rto(&self, config: &Config) -> Duration {
        Duration::from_nanos(self.rto_nanos(config))
    }

    /// Returns the RTO in nanoseconds. Every call needs it.
    #[inline]
    pub(crate) fn rto_nanos(&self, config: &Config) -> u64 {
        //= docs/protocol.md#loss-2
        let rto = self.measured.delay.rto_nanos().unwrap_or_else(|| {
            let initial = nanos(config.resend_initial);
            self.measured.answers.rto_nanos().map_or(initial, |measured| measured.min(initial))
        });
        rto.max(nanos(config.resend_min)).min(nanos(config.rto_max()))
    }

    /// Returns whether the peer's token must be requested before anything new is sent.
    #[inline]
    pub(crate) fn is_doubtful(&self, now: Time) -> bool {
        //= docs/protocol.md#life-5
        now.saturating_since(self.last_rx) >= CERTAIN_FOR || self.reach.believed > self.last_rx
    }

    /// Returns whether deferred messages may begin once there is room in flight. Those of a peer in doubt that was silent wait for the
    /// answer, whatever else ends or arrives.
    #[inline]
    pub(crate) fn may_release(&self) -> bool {
        //= docs/protocol.md#contact-6
        let is_in_doubt = || self.contact.met().is_some_and(|met| met.asking.is_some());
        self.flight.defers_any() && !(self.flight.awaits_answer && is_in_doubt())
    }

    /// Records the network's report that the peer is unreachable. Any host can forge such a report, so the report alone only
    /// triggers a probe. `last_rx` is the time of the last packet by any token of the peer's path.
    pub(crate) fn note_refusal(&mut self, now: Time, rto: Duration, last_rx: Time) -> Refusal {
        //= docs/protocol.md#life-5
        let Some(refused) = self.reach.refused.as_mut().filter(|refused| refused.first >= last_rx)
        else {
            return self.note_first_refusal(now);
        };
        if now.saturating_since(refused.last_probe) < rto / 2 {
            return Refusal::Wait;
        }
        if !refused.is_asked && self.prober.last() < refused.last_probe {
            return self.note_first_refusal(now); // The peer was not asked, so nothing was refused.
        }
        if refused.probes >= REFUSALS_MIN && now.saturating_since(refused.first) >= rto {
            self.reach.refused = None;
            return Refusal::Believe;
        }
        refused.last_probe = now;
        refused.probes = refused.probes.saturating_add(1);
        refused.is_asked = false;
        Refusal::Probe
    }

    fn note_first_refusal(&mut self, now: Time) -> Refusal {
        let first = Refused { first: now, last_probe: now, probes: 1, is_asked: false };
        self.reach.refused = Some(first);
        Refusal::Probe
    }

    /// Records whether a report has caused a packet that the peer must answer.
    pub(crate) fn note_asked(&mut self, is_asked: bool) {
        if let Some(refused) = &mut self.reach.refused {
            refused.is_asked = is_asked;
        }
    }

    /// Returns the time that a packet to the peer may be under way, as far as it was measured (rule `loss-9`). It is always less
    /// than the RTO of the peer, which measures the same path.
    pub(crate) fn under_way(&self, config: &Config) -> Duration {
        let measured = self.measured.delay.rto().or_else(|| self.measured.answers.rto());
        let measured = measured.unwrap_or(Duration::ZERO);
        measured.min((measured / 2).clamp(config.resend_min / 2, UNDER_WAY_MAX * config.resend_min))
    }

    /// Returns the common fields of compact bundles to the peer; `None` if it reads none, or nothing may be sent to it.
    #[inline]
    pub(crate) fn envelope(&self) -> Option<Envelope> {
        if !self.compact || !self.is_confirmed() {
            return None;
        }
        let token = self.contact.met()?.token;
        let cutoff_version = self.server.cutoffs.as_ref().map_or(0, |table| table.version);
        Some(Envelope { token, cutoff_version })
    }

    /// Takes an acknowledgement for the next DATA packet to the peer, to its port `server_port`.
    #[inline]
    pub(crate) fn pop_ack(&mut self, server_port: u16) -> Option<Acked> {
        if !self.compact {
            return self.server.acks.pop();
        }
        // Such a peer does not read the port.
        self.server.ack_ranges.pop_one().map(|client_id| Acked { client_id, server_port })
    }

    /// Keeps an acknowledgement. If there is no room, it returns all earlier ones for an ACK packet.
    #[inline]
    pub(crate) fn push_ack(&mut self, acked: Acked) -> Option<Vec<Acked>> {
        //= docs/protocol.md#ack-2
        let full = (self.server.acks.len() == ACKS)
            .then(|| std::mem::replace(&mut self.server.acks, Vec::with_capacity(ACKS)));
        self.server.acks.push(acked);
        full
    }

    pub(crate) fn take_acks(&mut self) -> Vec<Acked> {
        std::mem::take(&mut self.server.acks)
    }

    /// Classifies a request: new, taken or stale.
    #[inline]
    pub(crate) fn admit(&mut self, id: RpcId, echo: Echo) -> Admission {
        match &mut self.client.requests {
            Requests::ByToken(history) => match history.admit(id.0 >> 1) {
                ReplayCheck::Fresh => Admission::Fresh,
                ReplayCheck::Taken => Admission::Taken,
                ReplayCheck::Ahead => Admission::Stray,
                ReplayCheck::Lost => Admission::Lost,
            },
            Requests::ByIncarnation(incarnations) => {
                let before = incarnations.bytes();
                let admission = incarnations.admit(id, echo);
                self.usage.charged = self.usage.charged - before + incarnations.bytes();
                admission
            }
        }
    }

    /// Returns the reason for which the request was refused and is never taken, if it was.
    #[inline]
    pub(crate) fn has_refused(&self, id: RpcId) -> Option<UnknownReason> {
        let mut refused = self.client.refused_requests.iter();
        refused.find(|(request, _)| *request == id).map(|&(_, reason)| reason)
    }

    /// Returns whether any request of the peer was refused so.
    #[inline]
    pub(crate) fn has_refused_any(&self) -> bool {
        !self.client.refused_requests.is_empty()
    }

    /// Records a request refused because its port is not served or the peer has no right. Returns the change of the charged bytes:
    /// beyond the bound, the oldest refused request counts as taken.
    pub(crate) fn refuse_request(&mut self, id: RpcId, reason: UnknownReason) -> i64 {
        //= docs/protocol.md#life-6
        if self.has_refused(id).is_some() {
            return 0;
        }
        self.client.refused_requests.push_back((id, reason));
        if self.client.refused_requests.len() <= REFUSED_MAX {
            return 0;
        }
        self.client.refused_requests.pop_front().map_or(0, |(oldest, _)| self.take_request(oldest))
    }

    /// Forgets which requests were taken, as a hole.
    #[cfg(feature = "holes")]
    pub(crate) fn drop_history(&mut self) {
        if let Requests::ByToken(history) = &mut self.client.requests {
            *history = History::new();
        }
    }

    /// Returns whether the request was taken, as far as the record shows.
    pub(crate) fn has_taken(&mut self, id: RpcId) -> bool {
        match &mut self.client.requests {
            Requests::ByToken(history) => history.is_taken(id.0 >> 1),
            Requests::ByIncarnation(incarnations) => incarnations.has_taken(id),
        }
    }

    /// Records that the request was taken. Returns the change of the charged bytes.
    #[inline]
    pub(crate) fn take_request(&mut self, id: RpcId) -> i64 {
        let (before, after) = match &mut self.client.requests {
            Requests::ByToken(history) => {
                let before = history.bytes();
                history.take(id.0 >> 1);
                (before, history.bytes())
            }
            Requests::ByIncarnation(incarnations) => {
                let before = incarnations.bytes();
                incarnations.take(id);
                (before, incarnations.bytes())
            }
        };
        let change = after.cast_signed().saturating_sub(before.cast_signed());
        self.usage.charged = self.usage.charged.saturating_add_signed(change);
        change
    }

    /// Records a packet of `length` bytes from `from`, which is not the peer's path. Returns whether to request a proof that the
    /// peer receives there, with no more bytes than arrived from there.
    pub(crate) fn may_ask_path(
        &mut self,
        now: Time,
        from: PathId,
        length: usize,
        spacing: Duration,
    ) -> bool {
        //= docs/protocol.md#contact-7
        let (bytes, asked) = match self.reach.elsewhere {
            Some((there, bytes, asked)) if there == from => (bytes + length, asked),
            other => (length, other.and_then(|(_, _, asked)| asked)),
        };
        let asks =
            bytes >= Credentials::LEN && asked.is_none_or(|at| now.saturating_since(at) >= spacing);
        self.reach.elsewhere = Some(if asks { (from, 0, Some(now)) } else { (from, bytes, asked) });
        asks
    }

    /// Returns whether the idle peer may be forgotten before its time, without the risk that a request is executed again. Its token
    /// may be offered once more for as long as the proof is fresh.
    pub(crate) fn may_be_evicted(&self, now: Time) -> bool {
        match self.contact {
            Contact::Met(_) | Contact::Over => now.saturating_since(self.met) >= EVICTABLE_AFTER,
            Contact::Opening(_) | Contact::Asking(..) => true,
            Contact::Native => !self.is_confirmed(),
        }
    }

    /// Returns whether the peer has no identity at a node that has one.
    pub(crate) fn is_stranger(&self) -> bool {
        !self.path.is_sealed() && self.rights != Rights::ALL
    }

    /// Confirms the peer. Returns the responses that waited for this.
    pub(crate) fn confirm(&mut self) -> BTreeSet<RpcKey> {
        match std::mem::replace(&mut self.client.confirmation, Confirmation::Confirmed) {
            Confirmation::Pending { blocked, .. } => blocked,
            Confirmation::Confirmed => BTreeSet::new(),
        }
    }

    /// Records a response that waits for the confirmation.
    pub(crate) fn note_blocked(&mut self, key: RpcKey) {
        if let Confirmation::Pending { blocked, .. } = &mut self.client.confirmation {
            blocked.insert(key);
        }
    }

    /// Removes a waiting response that has ended.
    pub(crate) fn forget_blocked(&mut self, key: RpcKey) {
        if let Confirmation::Pending { blocked, .. } = &mut self.client.confirmation {
            blocked.remove(&key);
        }
    }

    pub(crate) fn is_confirmed(&self) -> bool {
        matches!(self.client.confirmation, Confirmation::Confirmed)
    }

    #[inline]
    pub(crate) fn received(&mut self, now: Time, bytes: usize) {
        self.last_rx = now;
        if let Confirmation::Pending { credit, .. } = &mut self.client.confirmation {
            *credit += bytes as u64;
        }
    }

    /// Returns whether granted bytes are late, the peer has been silent since then, and it is probed.
    pub(crate) fn stands_still(&self) -> bool {
        self.grants.suspended > 0 && self.grants.stalled.is_some_and(|since| self.last_rx < since)
    }

    /// Returns the bytes that may be sent to the peer; `None` without a limit.
    #[inline]
    pub(crate) fn credit(&self) -> Option<u64> {
        match self.client.confirmation {
            Confirmation::Confirmed => None,
            Confirmation::Pending { credit, .. } => Some(credit),
        }
    }

    /// Returns whether `bytes` may be sent to the peer, and takes them from its credit if so.
    #[inline]
    pub(crate) fn may_send(&mut self, bytes: usize) -> bool {
        match &mut self.client.confirmation {
            Confirmation::Confirmed => true,
            //= docs/protocol.md#hostile-2
            Confirmation::Pending { credit, .. } => match credit.checked_sub(bytes as u64) {
                Some(left) => {
                    *credit = left;
                    true
                }
                None => false,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> Peer {
        Peer::known(PathId::new(0, 1), Token(1), Contact::Over, Time::ZERO)
    }

    fn micros(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    fn measured(round_trip: u64, bytes: u64, elapsed: u64) -> Peer {
        let mut peer = peer();
        peer.measured.delay.sample(Time::ZERO, micros(round_trip));
        (0..8).for_each(|_| peer.sample_rate(Time::ZERO, bytes, micros(elapsed)));
        peer
    }

    //= docs/protocol.md#unsched-1
    #[test]
    fn unscheduled_bytes_follow_the_path_within_their_bounds() {
        let config = Config::default();
        assert_eq!(peer().unscheduled(&config), 40_000);
        // 10 Gb/s over 80 us, 100 Gb/s over 100 us, 1 Gb/s over 8 us.
        assert_eq!(measured(80, 1_250_000, 1_000).unscheduled(&config), 100_000);
        assert_eq!(measured(100, 12_500_000, 1_000).unscheduled(&config), 256 << 10);
        assert_eq!(measured(8, 125_000, 1_000).unscheduled(&config), 1_500);
    }

    //= docs/protocol.md#unsched-1
    #[test]
    fn a_low_rate_is_believed_only_after_several_samples() {
        let mut peer = peer();
        peer.measured.delay.sample(Time::ZERO, micros(80));
        for sample in 0..9 {
            let expected = if sample < 8 { 40_000 } else { 1_500 };
            assert_eq!(peer.unscheduled(&Config::default()), expected);
            peer.sample_rate(Time::ZERO, 12_500, micros(1_000));
        }
    }

    //= docs/protocol.md#measure-5
    #[test]
    fn a_slow_service_does_not_make_the_path_long() {
        let config = Config::default();
        let mut peer = peer();
        peer.measured.answers.sample(Time::ZERO, micros(10_000));
        (0..8).for_each(|_| peer.sample_rate(Time::ZERO, 125_000_000, micros(100_000)));
        // 12.5 MB in the time of the service.
        assert_eq!(peer.unscheduled(&config), 40_000);
        assert_eq!(peer.incoming_limit(&config), config.max_incoming);
        peer.measured.delay.bound(Time::ZERO, micros(200));
        assert_eq!(peer.unscheduled(&config), 250_000);
        assert_eq!(peer.incoming_limit(&config), 1_000_000);
        // A short answer is an upper bound, which may lower them.
        peer.measured.answers.sample(Time::ZERO, micros(20));
        assert_eq!(peer.unscheduled(&config), 25_000);
    }

    //= docs/protocol.md#measure-3
    #[test]
    fn a_lump_of_packets_is_no_measure_of_the_rate() {
        let lump = measured(80, 1_000_000, 20);
        assert_eq!(lump.round_trip_bytes(&Config::default()), None);
    }

    //= docs/protocol.md#measure-4
    #[test]
    fn no_path_carries_more_than_the_link() {
        // 30 packets that arrived while the process was not running.
        let mut lump = measured(400, 45_000, 500);
        let mut config = Config::default();
        assert_eq!(lump.round_trip_bytes(&config), Some(36_000));
        config.follow_link(50);
        assert_eq!(lump.round_trip_bytes(&config), Some(2_500));
        lump.loopback = true;
        assert_eq!(lump.round_trip_bytes(&config), Some(36_000));
    }

    //= docs/protocol.md#loss-2
    #[test]
    fn rto_lasts_for_all_that_is_granted_to_the_link() {
        let rto = |mbps, change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.follow_link(mbps);
            measured(100, 1, 1).rto(&config)
        };
        assert_eq!(rto(50, |_| {}), micros(10_600));
        assert_eq!(rto(1, |_| {}), micros(250_000));
        assert_eq!(rto(1_000, |_| {}), micros(2_000));
        let set = |config: &mut Config| {
            config.resend_min(micros(500));
        };
        assert_eq!(rto(50, set), micros(500));
    }

    //= docs/protocol.md#grant-3
    #[test]
    fn a_small_window_does_not_keep_itself_small() {
        let config = Config::default();
        assert_eq!(peer().window(&config, 200_000), 200_000);
        assert_eq!(measured(80, 1_250_000, 1_000).window(&config, 400_000), 204_500);
        assert_eq!(measured(80, 12_500, 1_000).window(&config, 400_000), 80_000);
        assert_eq!(measured(80, 12_500, 1_000).window(&config, 50_000), 50_000);
    }

    //= docs/protocol.md#loss-2
    #[test]
    fn rto_stays_within_its_bounds() {
        let config = Config::default();
        assert_eq!(peer().rto(&config), micros(5_000));
        assert_eq!(measured(100, 1, 1).rto(&config), micros(2_000));
        assert_eq!(measured(10_000, 1, 1).rto(&config), micros(30_000));
        assert_eq!(measured(9_000_000, 1, 1).rto(&config), micros(250_000));
        let mut peer = peer();
        peer.measured.answers.sample(Time::ZERO, micros(1_000));
        assert_eq!(peer.response_rto_nanos(&config), 3_000_000);
        assert_eq!(peer.rto(&config), micros(3_000));
        peer.measured.answers.sample(Time::ZERO, micros(16_000));
        assert_eq!(peer.rto(&config), micros(5_000));
        assert_eq!(peer.response_rto_nanos(&config), 5_000_000);
    }
}
