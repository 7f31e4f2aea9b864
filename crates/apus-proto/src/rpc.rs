//! One remote procedure call, at the client or at the server.

use std::mem;
use std::time::Duration;

use apus_wire::{DataFlags, Header, RpcId, TraceContext};

use crate::cookie::Cookie;
use crate::downlink::Downlink;
use crate::error::Awaited;
use crate::incoming::Incoming;
use crate::lookup::Named;
use crate::outgoing::Outgoing;
use crate::peer::Peer;
use crate::slab::{PeerKey, SocketKey};
use crate::time::{Time, nanos};
use crate::usage::{Account, Charge};

/// Phase in the life cycle of an RPC, with its messages (rule `life-1`).
///
/// ```text
/// client:  [Connecting ──▶] Outgoing ──first response DATA──▶ Incoming ──last byte──▶ ended
/// server:  Incoming ──last byte──▶ InService ──reply──▶ Outgoing ──acknowledged──▶ ended
/// ```
#[derive(Debug)]
pub(crate) enum Phase {
    /// Client: there is no request; the call ends once the peer is known.
    Connecting,
    /// Client: the request is being transmitted, and no packet of the response was received. Server: the response is being
    /// transmitted, or waits for its acknowledgement.
    Outgoing(Outgoing),
    /// The client's response or the server's request is arriving.
    Incoming {
        message: Box<Incoming>,
        /// Client: the request. The server may still miss a part of it.
        request: Option<Outgoing>,
    },
    /// Server: the application has the request.
    InService,
}

/// The packet that an RPC waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AwaitedPacket {
    /// No packet: the next step is this node's, by its link, its grants or its application. The peer's silence means nothing.
    Nothing,
    /// Client: the response, or any packet about the RPC.
    Response,
    /// Server: a grant to send the rest of the response.
    Grant,
    /// Granted data.
    Data,
    /// Server: the acknowledgement of the response.
    Acknowledgement,
    /// Server: a packet that shows that the client receives at its address (rule `hostile-3`).
    Confirmation,
}

/// Whether granted data waits in the network behind packets of higher levels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Preempted {
    /// Not preempted: the data would have been received.
    No,
    Yes,
    /// Perhaps preempted, but long enough ago that the sender must be probed.
    ForLong,
}

/// Number of timeouts that a server waits for a client that has nothing to send. The client probes from time to time while its
/// request is in service, but it need not while its grants go to other messages.
const IN_SERVICE_TIMEOUTS: u32 = 10;

/// Number of unanswered probes before a peer counts as lost. Time alone is no proof: this process may have been stopped, with the
/// answers waiting in the link.
const PROBES_MIN: u8 = 2;

/// Number of unanswered probes before a peer counts as lost that sends other packets. If one packet in ten is lost, one probe in
/// five goes unanswered, and 16 in a row once in 10^11 calls.
const PROBES_MAX: u8 = 16;

/// Upper bound on retransmissions of a request to a Linux server that answers that it does not know it. If one packet in ten is
/// lost, the request is lost every time once in a million calls.
const UNKNOWN_MAX: u8 = 5;

/// Number of probes about an arriving response that an Apus server must have answered by RPC_UNKNOWN. A server that has given a
/// response up answers that it is finished, so fewer answers may be late ones to probes from before the response began.
const LATE_MAX: u8 = 3;

/// Upper bound on the doublings of the wait by unanswered probes.
const DOUBLINGS_MAX: u8 = 6;
/// Upper bound on the doublings of the wait by answered probes.
const ANSWERED_DOUBLINGS_MAX: u8 = 16;

/// Number of unanswered probes about a transmitted message that double nothing: if packets are lost by chance, one loss does not
/// predict the next. Missing data is different, because too many probes about it fill the link that it waits for.
const FREE: u8 = 2;

/// Multiple of the RTO after which one packet of preempted data is requested, in case the measured rate of the link is too low.
const PREEMPTED_MAX: u32 = 8;

/// Bytes whose time on a slow link replaces that multiple, if it is longer.
const PREEMPTED_BYTES: u64 = 2_000_000;

/// Reciprocal of the part of the RTO in which the link must have been idle for all preempted data to be requested: then it would
/// have been received.
const PREEMPTED_IDLE: u32 = 4;

#[derive(Debug)]
pub(crate) struct Rpc {
    /// Id in the form of this side: even at the client, odd at the server.
    pub(crate) id: RpcId,
    pub(crate) phase: Phase,
    pub(crate) peer: PeerKey,
    pub(crate) socket: SocketKey,
    pub(crate) local_port: u16,
    pub(crate) remote_port: u16,
    pub(crate) cookie: Cookie,
    /// Whether the client is in an incast: its responses should have few unscheduled bytes.
    pub(crate) incast: bool,
    pub(crate) charge: Charge,

    pub(crate) started: Time,
    /// The application's deadline.
    pub(crate) expires: Option<Time>,
    /// Context in a distributed trace. Server: only until the application has the request.
    pub(crate) trace: Option<Box<TraceContext>>,
    /// Time of the peer's last packet about the RPC, or of this node's last turn.
    pub(crate) last_rx: Time,
    pub(crate) probing: Probing,
    /// Time at which the timer wheel returns the RPC.
    pub(crate) armed: Time,
    /// Client: whether the server's last answer was that it has no room for the request.
    pub(crate) refused: bool,
    /// Server: whether the client no longer waits for the response. The RPC stays, and is charged, until the application has ended
    /// it.
    pub(crate) cancelled: bool,
    /// Server: whether the application wants an event when the client no longer waits.
    pub(crate) watched: bool,
    /// Whether anything was retransmitted or requested again, so that delays of this RPC are no measure.
    pub(crate) disturbed: bool,
}

/// Probes of the peer for an RPC.
#[derive(Debug)]
pub(crate) struct Probing {
    pub(crate) last_probe: Time,
    /// Silence after which the peer is probed, in nanoseconds.
    pub(crate) rto: u64,
    /// Number of probes since the last packet.
    pub(crate) probes_unanswered: u8,
    /// Client: number of those probes that were answered by RPC_UNKNOWN, so that the request was retransmitted.
    pub(crate) probes_unknown: u8,
    /// Number of probes since the last data or grant that were answered by neither.
    pub(crate) probes_answered: u8,
    /// Whether the RPC waits for its turn to be probed.
    pub(crate) queued: bool,
    /// Whether nothing was known to be lost at the last probe (rule `loss-14`).
    pub(crate) by_doubt: bool,
}

impl Named<(PeerKey, RpcId)> for Rpc {
    #[inline]
    fn name(&self) -> (PeerKey, RpcId) {
        (self.peer, self.id)
    }
}

impl Phase {
    #[inline]
    pub(crate) fn is_connecting(&self) -> bool {
        matches!(self, Self::Connecting)
    }

    #[inline]
    pub(crate) fn is_outgoing(&self) -> bool {
        matches!(self, Self::Outgoing(_))
    }

    #[inline]
    pub(crate) fn is_incoming(&self) -> bool {
        matches!(self, Self::Incoming { .. })
    }

    /// Returns the message that this node transmits.
    #[inline]
    pub(crate) fn outgoing_mut(&mut self) -> Option<&mut Outgoing> {
        match self {
            Self::Outgoing(message) => Some(message),
            Self::Incoming { request, .. } => request.as_mut(),
            Self::Connecting | Self::InService => None,
        }
    }

    #[inline]
    pub(crate) fn is_in_service(&self) -> bool {
        matches!(self, Self::InService)
    }
}

impl Rpc {
    /// Creates an RPC that begins now and is not charged yet. `ports` are the local and the remote port.
    #[inline]
    pub(crate) fn new(
        id: RpcId,
        phase: Phase,
        peer: PeerKey,
        socket: SocketKey,
        ports: (u16, u16),
        now: Time,
    ) -> Self {
        Self {
            id,
            phase,
            peer,
            socket,
            local_port: ports.0,
            remote_port: ports.1,
            cookie: Cookie::default(),
            incast: false,
            charge: Charge::default(),
            started: now,
            expires: None,
            trace: None,
            last_rx: now,
            probing: Probing {
                last_probe: now,
                rto: 0,
                probes_unanswered: 0,
                probes_unknown: 0,
                probes_answered: 0,
                queued: false,
                by_doubt: false,
            },
            armed: Time::ZERO,
            refused: false,
            cancelled: false,
            watched: false,
            disturbed: false,
        }
    }

    /// Returns the message that this node transmits: the client's request, or the server's response.
    #[inline]
    pub(crate) fn outgoing(&self) -> Option<&Outgoing> {
        match &self.phase {
            Phase::Outgoing(message) => Some(message),
            Phase::Incoming { request, .. } => request.as_ref(),
            Phase::Connecting | Phase::InService => None,
        }
    }

    #[inline]
    pub(crate) fn outgoing_mut(&mut self) -> Option<&mut Outgoing> {
        self.phase.outgoing_mut()
    }

    /// Returns the arriving message.
    #[inline]
    pub(crate) fn incoming(&self) -> Option<&Incoming> {
        match &self.phase {
            Phase::Incoming { message, .. } => Some(message),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn incoming_mut(&mut self) -> Option<&mut Incoming> {
        match &mut self.phase {
            Phase::Incoming { message, .. } => Some(message),
            _ => None,
        }
    }

    /// Begins to receive a message.
    pub(crate) fn receive(&mut self, message: Incoming) {
        let message = Box::new(message);
        let request = match mem::replace(&mut self.phase, Phase::InService) {
            Phase::Outgoing(request) => Some(request),
            Phase::Incoming { request, .. } => request,
            Phase::Connecting | Phase::InService => None,
        };
        self.phase = Phase::Incoming { message, request };
    }

    /// Removes the arriving message, which is complete or arrives no more. The request, if any, stays.
    #[inline]
    pub(crate) fn take_incoming(&mut self) -> Option<Box<Incoming>> {
        if !self.phase.is_incoming() {
            return None;
        }
        let Phase::Incoming { message, request } = mem::replace(&mut self.phase, Phase::InService)
        else {
            return None;
        };
        if let Some(request) = request {
            self.phase = Phase::Outgoing(request);
        }
        Some(message)
    }

    pub(crate) fn account(&self) -> Account {
        if self.is_client() { Account::Own } else { Account::Theirs }
    }

    pub(crate) fn is_client(&self) -> bool {
        self.id.is_client()
    }

    #[inline]
    //= docs/protocol.md#loss-1
    pub(crate) fn awaited_packet(&self) -> AwaitedPacket {
        match &self.phase {
            Phase::Incoming { message, .. } if message.is_expecting() => AwaitedPacket::Data,
            Phase::InService | Phase::Connecting | Phase::Incoming { .. } => AwaitedPacket::Nothing,
            Phase::Outgoing(message) => match message {
                _ if message.is_blocked() => AwaitedPacket::Confirmation,
                _ if message.may_send() || message.has_resends() => AwaitedPacket::Nothing,
                _ if self.is_client() => AwaitedPacket::Response,
                _ if !message.is_sent() => AwaitedPacket::Grant,
                _ => AwaitedPacket::Acknowledgement,
            },
        }
    }

    /// Client: returns whether the server may have executed the request, because all of it was transmitted.
    pub(crate) fn has_sent_request(&self) -> bool {
        self.phase.is_incoming() || self.outgoing().is_some_and(Outgoing::is_sent)
    }

    /// Returns the awaited input, for the error after the peer's silence.
    pub(crate) fn awaited(&self) -> Awaited {
        match &self.phase {
            Phase::Incoming { .. } => Awaited::RestOfResponse,
            Phase::Connecting => Awaited::Token,
            Phase::Outgoing(message) if message.is_deferred() && message.next == 0 => {
                Awaited::Token
            }
            Phase::Outgoing(message) if message.may_send() => Awaited::Link,
            Phase::Outgoing(message) if !message.is_sent() => Awaited::Grant,
            Phase::Outgoing(_) | Phase::InService => Awaited::Response,
        }
    }

    /// Returns the time at which the RPC must be examined next, if the peer stays silent.
    #[inline]
    pub(crate) fn due(&self, timeout: Duration) -> Time {
        // In whole nanoseconds, because this runs several times for every call.
        let timeout = nanos(timeout);
        let after = |time: Time, span: u64| Time::from_nanos(time.as_nanos().saturating_add(span));
        let due = if self.phase.is_in_service() {
            let span = timeout.saturating_mul(u64::from(IN_SERVICE_TIMEOUTS));
            after(self.last_rx.max(self.probing.last_probe), span)
        } else if self.is_deferred() {
            after(self.last_rx, timeout / 4)
        } else {
            let probe = after(self.last_rx.max(self.probing.last_probe), self.wait_nanos(timeout));
            let lost = after(self.last_rx, timeout);
            if lost > self.probing.last_probe { probe.min(lost) } else { probe }
        };
        self.expires.map_or(due, |expires| due.min(expires))
    }

    /// Returns whether it waits for its turn to begin, because too much is in flight or the peer is not known yet.
    #[inline]
    pub(crate) fn is_deferred(&self) -> bool {
        self.phase.is_connecting() || self.outgoing().is_some_and(Outgoing::is_deferred)
    }

    /// Returns the silence before the next probe.
    pub(crate) fn wait(&self, timeout: Duration) -> Duration {
        Duration::from_nanos(self.wait_nanos(nanos(timeout)))
    }

    #[inline]
    fn wait_nanos(&self, timeout: u64) -> u64 {
        //= docs/protocol.md#loss-2
        let (doublings, most) = match self.probing.probes_unanswered {
            0 => (self.probing.probes_answered.min(ANSWERED_DOUBLINGS_MAX), timeout),
            probes => {
                let free = if self.phase.is_outgoing() { FREE } else { 0 };
                let in_vain = probes
                    .saturating_sub(self.probing.probes_unknown)
                    .saturating_add(self.probing.probes_unknown / 2);
                (in_vain.saturating_sub(free).min(DOUBLINGS_MAX), timeout / 4)
            }
        };
        self.probing.rto.saturating_mul(1 << doublings).min(most)
    }

    /// Returns whether missing data may only wait behind other packets of the link.
    pub(crate) fn preempted(
        &mut self,
        now: Time,
        timeout: Duration,
        downlink: &Downlink,
    ) -> Preempted {
        let wait = self.wait(timeout);
        let elapsed = now.saturating_since(self.last_rx.max(self.probing.last_probe));
        let Some(message) = self.incoming_mut() else { return Preempted::No };
        //= docs/protocol.md#loss-8
        let most = downlink.time_of(PREEMPTED_BYTES).max(wait * PREEMPTED_MAX);
        let bytes = downlink.ahead_of(message.lowest_level()) - message.ahead;
        if !downlink.was_full(bytes, elapsed, wait / PREEMPTED_IDLE) {
            Preempted::No
        } else if elapsed < most.min(timeout / 4) {
            Preempted::Yes
        } else {
            Preempted::ForLong
        }
    }

    /// Returns whether the peer's silence about this RPC is long enough for the peer to count as lost. A peer that sends other
    /// packets is alive: the network loses the answers, and more of them must be lost. For a silent peer, probes about any RPC
    /// count.
    pub(crate) fn is_lost(&self, now: Time, timeout: Duration, peer: &Peer) -> bool {
        if let Some(opening) = peer.contact.opening() {
            //= docs/protocol.md#contact-2
            // The handshake of a sealed path has signs of the peer (life-4).
            let waited = now.saturating_since(self.started.max(peer.last_rx));
            return waited >= timeout && opening.sent >= PROBES_MIN;
        }
        if self.waits_for_answer(peer) {
            //= docs/protocol.md#contact-6
            let since = self.started.max(peer.last_rx);
            return now.saturating_since(since) >= timeout && peer.prober.is_unanswered(since);
        }
        let silent = now.saturating_since(self.last_rx);
        let peer_silent = now.saturating_since(peer.last_rx);
        match self.awaited_packet() {
            AwaitedPacket::Nothing if !self.phase.is_in_service() => false,
            //= docs/protocol.md#server-2
            AwaitedPacket::Nothing => silent.min(peer_silent) >= timeout * IN_SERVICE_TIMEOUTS,
            //= docs/protocol.md#server-3
            AwaitedPacket::Grant => silent >= timeout * IN_SERVICE_TIMEOUTS,
            _ if silent < timeout => false,
            _ if peer_silent < timeout => self.probing.probes_unanswered >= PROBES_MAX,
            _ => {
                let last_rx = self.last_rx.max(peer.last_rx);
                self.probing.probes_unanswered >= PROBES_MIN || peer.prober.is_unanswered(last_rx)
            }
        }
    }

    /// Client: returns whether nothing is sent until the peer has answered a doubt about its token.
    pub(crate) fn waits_for_answer(&self, peer: &Peer) -> bool {
        let is_in_doubt = peer.contact.met().is_some_and(|met| met.asking.is_some());
        is_in_doubt && self.is_client() && self.is_deferred()
    }

    /// Records data or a grant: the peer continues with the RPC.
    #[inline]
    pub(crate) fn note_progress(&mut self, now: Time) {
        self.last_rx = now;
        self.probing.probes_unanswered = 0;
        self.probing.probes_unknown = 0;
        self.probing.probes_answered = 0;
    }

    /// Records a packet about the RPC that is neither data nor a grant.
    pub(crate) fn note_alive(&mut self, now: Time) {
        self.last_rx = now;
        self.probing.probes_answered =
            self.probing.probes_answered.saturating_add(self.probing.probes_unanswered.min(1));
        self.probing.probes_unanswered = 0;
        self.probing.probes_unknown = 0;
    }

    /// Client: returns whether the response is lost, given that the server answers that it does not know the RPC.
    pub(crate) fn gives_up_on_unknown(&self, native: bool) -> bool {
        match &self.phase {
            //= docs/protocol.md#loss-13
            Phase::Incoming { .. } => {
                self.probing.probes_unknown >= if native { 1 } else { LATE_MAX }
            }
            //= docs/protocol.md#linux-5
            Phase::Outgoing(request) if native => {
                request.is_sent() && self.probing.probes_answered > 0
                    || self.probing.probes_unknown > UNKNOWN_MAX
            }
            Phase::Connecting | Phase::Outgoing(_) | Phase::InService => false,
        }
    }

    /// Returns whether the server is known to have the request, by its answer to a probe.
    pub(crate) fn is_known(&self) -> bool {
        self.probing.probes_answered > 0 && self.probing.probes_unanswered == 0
    }

    /// Client: returns whether a packet that arrives now answers the only probe so far.
    pub(crate) fn is_first_answer(&self) -> bool {
        let Phase::Outgoing(message) = &self.phase else { return false };
        self.is_client()
            && (self.probing.probes_unanswered, self.probing.probes_answered) == (1, 0)
            && message.first_grant().is_none()
    }

    /// Returns whether a probe about it may wait for its turn among others.
    pub(crate) fn may_queue(&self) -> bool {
        self.phase.is_in_service() || self.awaited_packet() == AwaitedPacket::Response
    }

    /// Returns whether a packet with this header is between the ports of the RPC.
    #[inline]
    pub(crate) fn has_ports_of(&self, header: &Header) -> bool {
        self.remote_port == header.source_port && self.local_port == header.dest_port
    }

    /// Returns the header of every packet of this RPC.
    #[inline]
    pub(crate) fn header(&self) -> Header {
        Header { source_port: self.local_port, dest_port: self.remote_port, sender_id: self.id }
    }

    /// Returns the flag that a client in an incast sets in its DATA.
    #[inline]
    pub(crate) fn incast_flag(&self) -> DataFlags {
        if self.incast && self.is_client() { DataFlags::INCAST } else { DataFlags::NONE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_wire::Priority;
    use bytes::Bytes;

    use crate::slab::Handle;

    fn rpc(server: bool, phase: Phase) -> Rpc {
        let id = RpcId(2 + u64::from(server));
        let (peer, socket) = (PeerKey::new(0, 0), SocketKey::new(0, 0));
        Rpc::new(id, phase, peer, socket, (1, 2), Time::ZERO)
    }

    fn outgoing(next: u32, granted: u32) -> Outgoing {
        let body = Bytes::from_static(&[0; 100]);
        let mut message = Outgoing::new(body.into(), granted, Priority::LOWEST, 0);
        message.next = next;
        message
    }

    fn incoming(received: u32, granted: u32, request: Option<Outgoing>) -> Phase {
        let mut message = Incoming::new(100, granted, 0, Time::ZERO);
        message.add(0, &[0; 100][..received as usize]);
        Phase::Incoming { message: Box::new(message), request }
    }

    /// The whole table, so that the test shows a change of any entry.
    #[test]
    fn every_state_waits_for_one_kind_of_packet() {
        use {AwaitedPacket::*, Phase::*};
        let request = || Some(outgoing(100, 100));
        let table = [
            (rpc(false, Outgoing(outgoing(0, 50))), Nothing),
            (rpc(false, Outgoing(outgoing(50, 50))), Response),
            (rpc(false, Outgoing(outgoing(100, 100))), Response),
            (rpc(false, incoming(40, 60, request())), Data),
            (rpc(false, incoming(60, 60, request())), Nothing),
            (rpc(true, incoming(40, 60, None)), Data),
            (rpc(true, incoming(60, 60, None)), Nothing),
            (rpc(true, InService), Nothing),
            (rpc(false, Connecting), Nothing),
            (rpc(true, Outgoing(outgoing(0, 50))), Nothing),
            (rpc(true, Outgoing(outgoing(50, 50))), Grant),
            (rpc(true, Outgoing(outgoing(100, 100))), Acknowledgement),
        ];
        for (rpc, expected) in table {
            assert_eq!(rpc.awaited_packet(), expected, "{rpc:?}");
        }
    }
}
