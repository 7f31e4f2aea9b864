//! One remote procedure call, at the client or at the server.

use std::mem;
use std::time::Duration;

use apus_wire::{DataFlags, Header, RpcId, TraceContext};

use crate::downlink::Downlink;
use crate::error::Awaited;
use crate::incoming::Incoming;
use crate::lookup::Named;
use crate::outgoing::Outgoing;
use crate::peer::Peer;
use crate::slab::{PeerKey, SocketKey};
use crate::time::{Time, nanos};
use crate::usage::{Account, Charge};

/// Where an RPC is in its life, with its messages (rule `life-1`).
///
/// ```text
/// client:  [Connecting ──▶] Outgoing ──first response DATA──▶ Incoming ──last byte──▶ ended
/// server:  Incoming ──last byte──▶ InService ──reply──▶ Outgoing ──acknowledged──▶ ended
/// ```
#[derive(Debug)]
pub(crate) enum Phase {
    /// Client: there is no request; the call ends when the peer is known.
    Connecting,
    /// Client: the request is transmitted, and no packet of the response was received. Server: the response is transmitted, or
    /// waits for its acknowledgement.
    Outgoing(Outgoing),
    /// The client's response or the server's request is arriving.
    Incoming {
        message: Box<Incoming>,
        /// Client: the request, of which the server may still miss a part.
        request: Option<Outgoing>,
    },
    /// Server: the application has the request.
    InService,
}

/// The packet that an RPC waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waiting {
    /// None: the next step is this node's, by its link, its grants or its application. The peer's silence means nothing.
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
    /// No: it would have been received.
    No,
    Yes,
    /// It may, but for so long that the sender is to be probed.
    ForLong,
}

/// A server waits this many timeouts for a client that has nothing to send: while its request is in
/// service it is probed from time to time, but while its grants go to other messages it need not be.
const IN_SERVICE_TIMEOUTS: u32 = 10;

/// Probes that must have gone unanswered before a peer counts as lost. Time alone is no proof:
/// this process may have been stopped, with the answers waiting in the link.
const PROBES_MIN: u8 = 2;

/// The same for a peer from which other packets are received. With one probe in five lost or its answer, as
/// where one packet in ten is lost, 16 in a row are lost once in 10^11 calls.
const PROBES_MAX: u8 = 16;

/// Times a request is sent again to a Linux server that says that it does not know it. A request is lost each time, where one
/// packet in ten is, once in a million calls.
const UNKNOWN_MAX: u8 = 5;

/// Probes about a response under way that an Apus server must have answered by RPC_UNKNOWN. A server that has given a response up
/// says that it is finished, so fewer are late answers to probes of before the response began.
const LATE_MAX: u8 = 3;

/// Times an unanswered probe doubles the wait for the next, and an answered one does.
const DOUBLINGS_MAX: u8 = 6;
const ANSWERED_DOUBLINGS_MAX: u8 = 16;

/// Unanswered probes about a transmitted message that double nothing: where packets are lost by chance, one loss says nothing of
/// the next. Missing data is different, because too many probes about it fill the link that it waits for.
const FREE: u8 = 2;

/// One packet of preempted data is asked for after this many times the RTO, in case the measured rate of the link is too low,
const PREEMPTED_MAX: u32 = 8;

/// or after the time of this many bytes on a slow link, if that is longer,
const PREEMPTED_BYTES: u64 = 2_000_000;

/// and all of it when the link was not full for this part of the RTO: then it would have been received.
const PREEMPTED_IDLE: u32 = 4;

#[derive(Debug)]
pub(crate) struct Rpc {
    /// As this side knows it: even at the client, odd at the server.
    pub(crate) id: RpcId,
    pub(crate) phase: Phase,
    pub(crate) peer: PeerKey,
    pub(crate) socket: SocketKey,
    pub(crate) local_port: u16,
    pub(crate) remote_port: u16,
    pub(crate) cookie: u64,
    /// The client is in an incast: its responses should come with few unscheduled bytes.
    pub(crate) incast: bool,
    pub(crate) charge: Charge,

    pub(crate) started: Time,
    /// The application's deadline.
    pub(crate) expires: Option<Time>,
    /// Where the call belongs in a distributed trace. Server: until the application has the request.
    pub(crate) trace: Option<Box<TraceContext>>,
    /// When the peer last sent a packet about the RPC, or it was this node's turn.
    pub(crate) last_rx: Time,
    pub(crate) last_probe: Time,
    /// Silence after which the peer is probed, in nanoseconds.
    pub(crate) rto: u64,
    /// Probes since the last packet.
    pub(crate) probes_unanswered: u8,
    /// Client: those of them that were answered by RPC_UNKNOWN, so that the request was sent again.
    pub(crate) probes_unknown: u8,
    /// Probes that were answered, but by no data and no grant, since the last data or grant.
    pub(crate) probes_answered: u8,
    /// The RPC waits for its turn to be probed.
    pub(crate) queued: bool,
    /// When the timer wheel will bring the RPC up.
    pub(crate) armed: Time,
    /// Client: the server's last word was that it has no room for the request.
    pub(crate) refused: bool,
    /// Server: the client waits for the response no more. The RPC stays, and is charged, until the application has ended it.
    pub(crate) cancelled: bool,
    /// Something was sent again, or asked for: delays of this RPC are no measure.
    pub(crate) disturbed: bool,
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

    /// The message that this node transmits.
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
    /// An RPC that begins now and is charged nothing yet. `ports` are the local and the remote one.
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
            cookie: 0,
            incast: false,
            charge: Charge::default(),
            started: now,
            expires: None,
            trace: None,
            last_rx: now,
            last_probe: now,
            rto: 0,
            probes_unanswered: 0,
            probes_unknown: 0,
            probes_answered: 0,
            queued: false,
            armed: Time::ZERO,
            refused: false,
            cancelled: false,
            disturbed: false,
        }
    }

    /// The message that this node transmits: the client's request, the server's response.
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

    /// The message that arrives.
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

    /// A message begins to arrive.
    pub(crate) fn receive(&mut self, message: Incoming) {
        let message = Box::new(message);
        let request = match mem::replace(&mut self.phase, Phase::InService) {
            Phase::Outgoing(request) => Some(request),
            Phase::Incoming { request, .. } => request,
            Phase::Connecting | Phase::InService => None,
        };
        self.phase = Phase::Incoming { message, request };
    }

    /// The message is whole, or arrives no more. The request, if any, stays.
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
    pub(crate) fn waiting(&self) -> Waiting {
        match &self.phase {
            Phase::Incoming { message, .. } if message.is_expecting() => Waiting::Data,
            Phase::InService | Phase::Connecting | Phase::Incoming { .. } => Waiting::Nothing,
            Phase::Outgoing(message) => match message {
                _ if message.is_blocked() => Waiting::Confirmation,
                _ if message.may_send() || message.has_resends() => Waiting::Nothing,
                _ if self.is_client() => Waiting::Response,
                _ if !message.is_sent() => Waiting::Grant,
                _ => Waiting::Acknowledgement,
            },
        }
    }

    /// Client: whether the server may have executed the request, because all of it was sent.
    pub(crate) fn has_sent_request(&self) -> bool {
        self.phase.is_incoming() || self.outgoing().is_some_and(Outgoing::is_sent)
    }

    /// Named in the error when the peer stays silent.
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

    /// The next moment the RPC needs to be looked at, if the peer stays silent.
    #[inline]
    pub(crate) fn due(&self, timeout: Duration) -> Time {
        // In whole nanoseconds: this runs for every call, several times.
        let timeout = nanos(timeout);
        let after = |time: Time, span: u64| Time::from_nanos(time.as_nanos().saturating_add(span));
        let due = if self.phase.is_in_service() {
            let span = timeout.saturating_mul(u64::from(IN_SERVICE_TIMEOUTS));
            after(self.last_rx.max(self.last_probe), span)
        } else if self.is_deferred() {
            after(self.last_rx, timeout / 4)
        } else {
            let probe = after(self.last_rx.max(self.last_probe), self.wait_nanos(timeout));
            let lost = after(self.last_rx, timeout);
            if lost > self.last_probe { probe.min(lost) } else { probe }
        };
        self.expires.map_or(due, |expires| due.min(expires))
    }

    /// Whether it waits for its turn to begin, because too much is in flight or the peer is not known yet.
    #[inline]
    pub(crate) fn is_deferred(&self) -> bool {
        self.phase.is_connecting() || self.outgoing().is_some_and(Outgoing::is_deferred)
    }

    /// Silence before the next probe.
    pub(crate) fn wait(&self, timeout: Duration) -> Duration {
        Duration::from_nanos(self.wait_nanos(nanos(timeout)))
    }

    #[inline]
    fn wait_nanos(&self, timeout: u64) -> u64 {
        //= docs/protocol.md#loss-2
        let (doublings, most) = match self.probes_unanswered {
            0 => (self.probes_answered.min(ANSWERED_DOUBLINGS_MAX), timeout),
            probes => {
                let free = if self.phase.is_outgoing() { FREE } else { 0 };
                let in_vain = probes
                    .saturating_sub(self.probes_unknown)
                    .saturating_add(self.probes_unknown / 2);
                (in_vain.saturating_sub(free).min(DOUBLINGS_MAX), timeout / 4)
            }
        };
        self.rto.saturating_mul(1 << doublings).min(most)
    }

    /// Whether missing data may only wait behind other packets of the link.
    pub(crate) fn preempted(
        &mut self,
        now: Time,
        timeout: Duration,
        downlink: &Downlink,
    ) -> Preempted {
        let wait = self.wait(timeout);
        let elapsed = now.saturating_since(self.last_rx.max(self.last_probe));
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

    /// Whether the peer has been silent about this for so long that it counts as lost. A peer that
    /// sends other packets is there: then the network loses the answers, and more of them
    /// have to be lost. For a peer that sends none, probes about any RPC count.
    pub(crate) fn is_lost(&self, now: Time, timeout: Duration, peer: &Peer) -> bool {
        if let Some(opening) = peer.contact.opening() {
            //= docs/protocol.md#contact-2
            let waited = now.saturating_since(self.started);
            return waited >= timeout && opening.sent >= PROBES_MIN;
        }
        let silent = now.saturating_since(self.last_rx);
        let peer_silent = now.saturating_since(peer.last_rx);
        match self.waiting() {
            Waiting::Nothing if !self.phase.is_in_service() => false,
            //= docs/protocol.md#server-2
            Waiting::Nothing => silent.min(peer_silent) >= timeout * IN_SERVICE_TIMEOUTS,
            //= docs/protocol.md#server-3
            Waiting::Grant => silent >= timeout * IN_SERVICE_TIMEOUTS,
            _ if silent < timeout => false,
            _ if peer_silent < timeout => self.probes_unanswered >= PROBES_MAX,
            _ => {
                let last_rx = self.last_rx.max(peer.last_rx);
                self.probes_unanswered >= PROBES_MIN || peer.prober.is_unanswered(last_rx)
            }
        }
    }

    /// Data or a grant: the peer goes on with the RPC.
    #[inline]
    pub(crate) fn note_progress(&mut self, now: Time) {
        self.last_rx = now;
        self.probes_unanswered = 0;
        self.probes_unknown = 0;
        self.probes_answered = 0;
    }

    /// A packet about the RPC, but neither data nor a grant.
    pub(crate) fn note_alive(&mut self, now: Time) {
        self.last_rx = now;
        self.probes_answered = self.probes_answered.saturating_add(self.probes_unanswered.min(1));
        self.probes_unanswered = 0;
        self.probes_unknown = 0;
    }

    /// Client: whether the response cannot be hoped for any more when the server says that it does not know the RPC.
    pub(crate) fn gives_up_on_unknown(&self, native: bool) -> bool {
        match &self.phase {
            //= docs/protocol.md#loss-13
            Phase::Incoming { .. } => self.probes_unknown >= if native { 1 } else { LATE_MAX },
            //= docs/protocol.md#linux-5
            Phase::Outgoing(request) if native => {
                request.is_sent() && self.probes_answered > 0 || self.probes_unknown > UNKNOWN_MAX
            }
            Phase::Connecting | Phase::Outgoing(_) | Phase::InService => false,
        }
    }

    /// Whether the server is known to have the request: it said so in answer to a probe.
    pub(crate) fn is_known(&self) -> bool {
        self.probes_answered > 0 && self.probes_unanswered == 0
    }

    /// Client: whether a packet that comes now answers the only probe so far.
    pub(crate) fn is_first_answer(&self) -> bool {
        let Phase::Outgoing(message) = &self.phase else { return false };
        self.is_client()
            && (self.probes_unanswered, self.probes_answered) == (1, 0)
            && message.first_grant().is_none()
    }

    /// Whether a probe about it may wait for its turn among others.
    pub(crate) fn may_queue(&self) -> bool {
        self.phase.is_in_service() || self.waiting() == Waiting::Response
    }

    /// Whether a packet with this header is between the ports of the RPC.
    #[inline]
    pub(crate) fn has_ports_of(&self, header: &Header) -> bool {
        self.remote_port == header.source_port && self.local_port == header.dest_port
    }

    /// The header of every packet of this RPC.
    #[inline]
    pub(crate) fn header(&self) -> Header {
        Header { source_port: self.local_port, dest_port: self.remote_port, sender_id: self.id }
    }

    /// What a client in an incast puts into its DATA.
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
        let mut message = Outgoing::new(body, granted, Priority::LOWEST, 0);
        message.next = next;
        message
    }

    fn incoming(received: u32, granted: u32, request: Option<Outgoing>) -> Phase {
        let mut message = Incoming::new(100, granted, 0, Time::ZERO);
        message.add(0, &[0; 100][..received as usize]);
        Phase::Incoming { message: Box::new(message), request }
    }

    /// The whole table, so that a change of any entry is seen.
    #[test]
    fn every_state_waits_for_one_kind_of_packet() {
        use {Phase::*, Waiting::*};
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
            assert_eq!(rpc.waiting(), expected, "{rpc:?}");
        }
    }
}
