//! One remote procedure call, at the client or at the server.

use std::time::Duration;

use apus_wire::{DataFlags, Header, RpcId};

use crate::budget::Account;
use crate::downlink::Downlink;
use crate::error::Awaited;
use crate::incoming::Incoming;
use crate::lookup::Named;
use crate::outgoing::Outgoing;
use crate::peer::Peer;
use crate::slab::{PeerKey, SocketKey};
use crate::time::{Time, nanos};

/// Where an RPC is in its life (rule `life-1`).
///
/// ```text
/// client:  Outgoing ──first response DATA──▶ Incoming ──last byte──▶ ended
/// server:  Incoming ──last byte──▶ InService ──reply──▶ Outgoing ──acknowledged──▶ ended
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Client: the request goes out, nothing of the response came. Server: the response goes out or
    /// waits for its acknowledgement.
    Outgoing,
    /// The client's response or the server's request is arriving.
    Incoming,
    /// Server: the application has the request.
    InService,
    /// Client: there is no request, only the wish to know the peer.
    Connecting,
}

/// What an RPC waits for, and from whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waiting {
    /// On us: our link, our grants, our application. The peer's silence means nothing.
    Nobody,
    /// Client: for the response, or any sign of life.
    Response,
    /// Server: for a grant to send the rest of the response.
    Grant,
    /// For granted data.
    Data,
    /// Server: for the acknowledgement of the response.
    Acknowledgement,
    /// Server: for a sign that the client receives at its address (rule `hostile-3`).
    Confirmation,
}

/// Whether data that was granted waits in the network behind what comes at higher levels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Preempted {
    /// It would have come.
    No,
    Yes,
    /// It still may, but for so long that a sign of its sender is due.
    ForLong,
}

/// A server waits this many timeouts for a client that has nothing to say: while its request is in
/// service it asks from time to time, but while its grants go to other messages it need not.
const PATIENT_TIMEOUTS: u32 = 10;

/// Prober that must have gone unanswered before a peer counts as lost. Time alone is no proof:
/// this process may have been stopped, with the answers waiting in the link.
const PROBES_MIN: u8 = 2;

/// The same for a peer that is heard of otherwise. With one question in five lost or its answer, as
/// where one packet in ten is lost, 16 in a row are lost once in 10^11 calls.
const PROBES_MAX: u8 = 16;

/// Times a request is sent again to a Linux server that says that it does not know it. One that is lost each time, where one
/// packet in ten is, happens once in a million calls.
const UNKNOWN_MAX: u8 = 5;

/// Prober about a response under way that an Apus server must have answered by RPC_UNKNOWN. One that has given a response up says
/// that it is finished, so fewer are late answers to questions of before the response began.
const LATE_MAX: u8 = 3;

/// Times an unanswered question doubles the wait for the next, and one that was answered does.
const DOUBLINGS_MAX: u8 = 6;
const PUT_OFF_MAX: u8 = 16;

/// Unanswered questions about a message that was sent that double nothing: where packets are lost by chance, one says nothing of
/// the next. Missing data is different, because too many questions about it fill the link that it waits for.
const FREE: u8 = 2;

/// Of data that others overtake one packet is asked for after this many times the rto, in case
/// the rate of the link was taken for lower than it is,
const PREEMPTED_MAX: u32 = 8;

/// or so many bytes on a slow link, if that takes longer,
const PREEMPTED_BYTES: u64 = 2_000_000;

/// and all of it when the link was not full for a part of the rto: then it would have come.
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
    pub(crate) outgoing: Option<Outgoing>,
    pub(crate) incoming: Option<Box<Incoming>>,
    /// The client is in an incast: its responses should come with few unscheduled bytes.
    pub(crate) incast: bool,
    /// Bytes charged to the budgets.
    pub(crate) held: u64,
    /// They are charged for a stranger.
    pub(crate) strange: bool,
    /// Those of them charged for a message of ours.
    pub(crate) ours: u64,

    pub(crate) started: Time,
    /// When the application wants it to end at the latest.
    pub(crate) expires: Option<Time>,
    /// The peer gave a sign of life, or it was not its turn.
    pub(crate) last_rx: Time,
    /// The peer was asked last.
    pub(crate) last_probe: Time,
    /// Silence after which to ask.
    pub(crate) rto: Duration,
    /// Prober since the peer last gave a sign.
    pub(crate) probes_unanswered: u8,
    /// Client: those of them that were answered by RPC_UNKNOWN, so that the request was sent again.
    pub(crate) unknown: u8,
    /// Prober answered, but only by a sign, since the peer last went on.
    pub(crate) probes_answered: u8,
    /// Waits for its turn to ask.
    pub(crate) queued: bool,
    /// When the timer wheel will bring the RPC up.
    pub(crate) armed: Time,
    /// Client: the server had no room for the request when it was last heard of.
    pub(crate) refused: bool,
    /// Something was sent again, or asked for: no measure of delay.
    pub(crate) disturbed: bool,
}

impl Named<(PeerKey, RpcId)> for Rpc {
    #[inline]
    fn name(&self) -> (PeerKey, RpcId) {
        (self.peer, self.id)
    }
}

impl Rpc {
    /// An RPC that begins now, with nothing to send or to wait for. `ports` are ours and the peer's.
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
            outgoing: None,
            incoming: None,
            incast: false,
            held: 0,
            strange: false,
            ours: 0,
            started: now,
            expires: None,
            last_rx: now,
            last_probe: now,
            rto: Duration::ZERO,
            probes_unanswered: 0,
            unknown: 0,
            probes_answered: 0,
            queued: false,
            armed: Time::ZERO,
            refused: false,
            disturbed: false,
        }
    }

    /// A number made of what is scattered over the RPC's state, so that all of it is read.
    #[inline]
    pub(crate) fn touch(&self) -> u64 {
        let next = self.outgoing.as_ref().map_or(0, |message| message.next);
        let received = self.incoming.as_ref().map_or(0, |message| message.received);
        self.id.0
            ^ self.held
            ^ self.last_rx.as_nanos()
            ^ self.armed.as_nanos()
            ^ u64::from(next)
            ^ u64::from(received)
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
        match self.phase {
            Phase::InService | Phase::Connecting => Waiting::Nobody,
            Phase::Incoming => match &self.incoming {
                Some(message) if message.is_expecting() => Waiting::Data,
                _ => Waiting::Nobody,
            },
            Phase::Outgoing => match &self.outgoing {
                Some(message) if message.is_blocked() => Waiting::Confirmation,
                Some(message) if message.may_send() || message.has_resends() => Waiting::Nobody,
                Some(message) if !message.is_sent() && self.is_client() => Waiting::Response,
                Some(message) if !message.is_sent() => Waiting::Grant,
                _ if self.is_client() => Waiting::Response,
                _ => Waiting::Acknowledgement,
            },
        }
    }

    /// What to name in the error when the peer stays silent.
    pub(crate) fn awaited(&self) -> Awaited {
        match (&self.phase, &self.outgoing) {
            (Phase::Incoming, _) => Awaited::RestOfResponse,
            (Phase::Connecting, _) => Awaited::Token,
            (_, Some(message)) if message.is_held() && message.next == 0 => Awaited::Token,
            (_, Some(message)) if !message.is_sent() => Awaited::Grant,
            _ => Awaited::Response,
        }
    }

    /// The next moment the RPC needs to be looked at, if the peer stays silent.
    #[inline]
    pub(crate) fn due(&self, timeout: Duration) -> Time {
        // In whole nanoseconds: this runs for every call, several times.
        let timeout = nanos(timeout);
        let after = |time: Time, span: u64| Time::from_nanos(time.as_nanos().saturating_add(span));
        let due = if self.phase == Phase::InService {
            let rto = timeout.saturating_mul(u64::from(PATIENT_TIMEOUTS));
            after(self.last_rx.max(self.last_probe), rto)
        } else if self.is_held() {
            after(self.last_rx, timeout / 4)
        } else {
            let ask = after(self.last_rx.max(self.last_probe), self.wait_nanos(timeout));
            let lost = after(self.last_rx, timeout);
            if lost > self.last_probe { ask.min(lost) } else { ask }
        };
        self.expires.map_or(due, |expires| due.min(expires))
    }

    /// Whether it waits for its turn to begin, because too much is in flight or the peer is not known yet.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.phase == Phase::Connecting || self.outgoing.as_ref().is_some_and(Outgoing::is_held)
    }

    /// Silence before the next question.
    pub(crate) fn wait(&self, timeout: Duration) -> Duration {
        Duration::from_nanos(self.wait_nanos(nanos(timeout)))
    }

    #[inline]
    fn wait_nanos(&self, timeout: u64) -> u64 {
        //= docs/protocol.md#loss-2
        let (doublings, most) = match self.probes_unanswered {
            0 => (self.probes_answered.min(PUT_OFF_MAX), timeout),
            asked => {
                let free = if self.phase == Phase::Outgoing { FREE } else { 0 };
                let in_vain = asked.saturating_sub(self.unknown) + self.unknown / 2;
                (in_vain.saturating_sub(free).min(DOUBLINGS_MAX), timeout / 4)
            }
        };
        nanos(self.rto).saturating_mul(1 << doublings).min(most)
    }

    /// Whether what is missing may only wait behind what the link brings meanwhile.
    pub(crate) fn preempted(
        &mut self,
        now: Time,
        timeout: Duration,
        downlink: &Downlink,
    ) -> Preempted {
        let wait = self.wait(timeout);
        let Some(message) = &mut self.incoming else { return Preempted::No };
        let elapsed = now.saturating_since(self.last_rx.max(self.last_probe));
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

    /// Whether the peer has been silent about this for so long that it counts as lost. One that was
    /// heard of otherwise is there: then it is the network that loses the answers, and more of them
    /// have to be lost. Of one that was not, questions about any RPC count.
    pub(crate) fn is_lost(&self, now: Time, timeout: Duration, peer: &Peer) -> bool {
        if let Some(opening) = peer.contact.opening() {
            //= docs/protocol.md#contact-2
            let waited = now.saturating_since(self.started);
            return waited >= timeout && opening.sent >= PROBES_MIN;
        }
        let silent = now.saturating_since(self.last_rx);
        let peer_silent = now.saturating_since(peer.last_rx);
        match self.waiting() {
            Waiting::Nobody if self.phase != Phase::InService => false,
            //= docs/protocol.md#server-2
            Waiting::Nobody => silent.min(peer_silent) >= timeout * PATIENT_TIMEOUTS,
            //= docs/protocol.md#server-3
            Waiting::Grant => silent >= timeout * PATIENT_TIMEOUTS,
            _ if silent < timeout => false,
            _ if peer_silent < timeout => self.probes_unanswered >= PROBES_MAX,
            _ => {
                let heard = self.last_rx.max(peer.last_rx);
                self.probes_unanswered >= PROBES_MIN || peer.prober.are_unanswered(heard)
            }
        }
    }

    /// Data or a grant: the peer is there and goes on.
    #[inline]
    pub(crate) fn note_progress(&mut self, now: Time) {
        self.last_rx = now;
        self.probes_unanswered = 0;
        self.unknown = 0;
        self.probes_answered = 0;
    }

    /// The peer is there, but no further.
    pub(crate) fn note_alive(&mut self, now: Time) {
        self.last_rx = now;
        self.probes_answered = self.probes_answered.saturating_add(self.probes_unanswered.min(1));
        self.probes_unanswered = 0;
        self.unknown = 0;
    }

    /// Client: whether there is nothing left to hope for when the server says that it does not know the RPC.
    pub(crate) fn gives_up_on_unknown(&self, native: bool) -> bool {
        match self.phase {
            //= docs/protocol.md#loss-13
            Phase::Incoming => self.unknown >= if native { 1 } else { LATE_MAX },
            //= docs/protocol.md#linux-5
            Phase::Outgoing if native => {
                let is_sent = self.outgoing.as_ref().is_some_and(Outgoing::is_sent);
                is_sent && self.probes_answered > 0 || self.unknown > UNKNOWN_MAX
            }
            Phase::Connecting | Phase::Outgoing | Phase::InService => false,
        }
    }

    /// Whether the server is known to have the request: it said so when it was asked.
    pub(crate) fn is_known(&self) -> bool {
        self.probes_answered > 0 && self.probes_unanswered == 0
    }

    /// Client: whether a sign that comes now answers the only question there was.
    pub(crate) fn is_first_answer(&self) -> bool {
        let not_granted =
            self.outgoing.as_ref().is_some_and(|message| message.first_grant.is_none());
        self.is_client()
            && self.phase == Phase::Outgoing
            && (self.probes_unanswered, self.probes_answered) == (1, 0)
            && not_granted
    }

    /// Whether the question about it may wait for its turn among others.
    pub(crate) fn may_queue(&self) -> bool {
        self.phase == Phase::InService || self.waiting() == Waiting::Response
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

    fn rpc(
        server: bool,
        phase: Phase,
        outgoing: Option<(u32, u32)>,
        incoming: Option<(u32, u32)>,
    ) -> Rpc {
        let outgoing = outgoing.map(|(next, granted)| {
            let body = Bytes::from_static(&[0; 100]);
            let mut message = Outgoing::new(body, granted, Priority::LOWEST, 0);
            message.next = next;
            message
        });
        let incoming = incoming.map(|(received, granted)| {
            let mut message = Incoming::new(100, granted, 0, Time::ZERO);
            message.add(0, &[0; 100][..received as usize]);
            Box::new(message)
        });
        let id = RpcId(2 + u64::from(server));
        let (peer, socket) = (PeerKey::new(0, 0), SocketKey::new(0, 0));
        Rpc { outgoing, incoming, ..Rpc::new(id, phase, peer, socket, (1, 2), Time::ZERO) }
    }

    /// The whole table, so that a change of any entry is seen.
    #[test]
    fn who_is_waited_for_in_every_state() {
        use {Phase::*, Waiting::*};
        let table = [
            (rpc(false, Outgoing, Some((0, 50)), None), Nobody),
            (rpc(false, Outgoing, Some((50, 50)), None), Response),
            (rpc(false, Outgoing, Some((100, 100)), None), Response),
            (rpc(false, Incoming, Some((100, 100)), Some((40, 60))), Data),
            (rpc(false, Incoming, Some((100, 100)), Some((60, 60))), Nobody),
            (rpc(true, Incoming, None, Some((40, 60))), Data),
            (rpc(true, Incoming, None, Some((60, 60))), Nobody),
            (rpc(true, InService, None, None), Nobody),
            (rpc(false, Connecting, None, None), Nobody),
            (rpc(true, Outgoing, Some((0, 50)), None), Nobody),
            (rpc(true, Outgoing, Some((50, 50)), None), Grant),
            (rpc(true, Outgoing, Some((100, 100)), None), Acknowledgement),
        ];
        for (rpc, expected) in table {
            assert_eq!(rpc.waiting(), expected, "{rpc:?}");
        }
    }
}
