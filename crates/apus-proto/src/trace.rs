//! The time trace: events of calls, for a sink that adds time stamps.
//!
//! The core has no clock. It reports each event of a chosen call at the moment of the event. The call's id determines whether it is
//! chosen, so that client and server choose the same calls. Names follow the trace points of the Linux module for the same stages.

use std::fmt;
use std::time::Duration;

use apus_wire::{Packet, RpcId, Token};

use crate::control::Body;
use crate::error::CallFailed;
use crate::slab::RpcKey;
use crate::time::{Time, nanos};

/// Defines the events and their table, so that both have the same entries.
macro_rules! events {
    ($($(#[$doc:meta])* $event:ident $name:literal [$($argument:literal)*] $text:literal;)*) => {
        /// An event of the time trace. Its number in records is the number of the variant.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u16)]
        #[non_exhaustive]
        pub enum TraceEvent {
            $($(#[$doc])* $event,)*
        }

        impl TraceEvent {
            /// All events, by their numbers: name, names of arguments, and text, in which `{}` stands for the next argument in
            /// decimal and `{x}` for the next in hexadecimal.
            pub const TABLE: &[(&'static str, &'static [&'static str], &'static str)] =
                &[$(($name, &[$($argument),*], $text)),*];
        }
    };
}

events! {
    /// A client begins a call.
    SendmsgRequest "sendmsg_request" ["id" "pair" "length" "port"]
        "sendmsg request, id {}, pair {x}, length {}, port {}";
    /// Unscheduled bytes of a message were passed to the link.
    DataXmit "data_xmit" ["id" "pair" "offset" "bytes"]
        "xmit data, id {}, pair {x}, offset {}, bytes {}";
    /// Granted bytes were passed to the link.
    GrantedXmit "granted_xmit" ["id" "pair" "offset" "bytes"]
        "xmit granted data, id {}, pair {x}, offset {}, bytes {}";
    /// Bytes were passed to the link once more.
    Retransmit "retransmit" ["id" "pair" "sent" "bytes"]
        "retransmit data, id {}, pair {x}, sent before {}, bytes {}";
    /// A DATA packet arrived.
    DataReceived "data_received" ["id" "pair" "offset" "length"]
        "incoming data packet, id {}, pair {x}, offset {}, length {}";
    /// A request is complete and is passed to the engine.
    RequestComplete "request_complete" ["id" "pair" "length"]
        "request complete, id {}, pair {x}, length {}";
    /// The server's application gave the response.
    SendmsgResponse "sendmsg_response" ["id" "pair" "length"]
        "sendmsg response, id {}, pair {x}, length {}";
    /// A response is complete and is passed to the engine.
    ResponseComplete "response_complete" ["id" "pair" "length"]
        "response complete, id {}, pair {x}, length {}";
    /// The server knows that the client has the response.
    Acked "acked" ["id" "pair"]
        "acknowledged, id {}, pair {x}";
    /// A call ended without a response. Recorded of every call.
    CallFailed "call_failed" ["id" "pair" "cause"]
        "call failed, id {}, pair {x}, cause {}";
    /// A grant is queued for the peer.
    GrantXmit "grant_xmit" ["id" "pair" "offset" "priority"]
        "sending grant, id {}, pair {x}, offset {}, priority {}";
    /// A grant of the peer arrived.
    GrantReceived "grant_received" ["id" "pair" "offset" "priority"]
        "processing grant, id {}, pair {x}, offset {}, priority {}";
    /// A RESEND is queued for the peer.
    ResendXmit "resend_xmit" ["id" "pair" "offset" "length"]
        "sending resend, id {}, pair {x}, offset {}, length {}";
    /// A RESEND of the peer arrived.
    ResendReceived "resend_received" ["id" "pair" "offset" "length"]
        "processing resend, id {}, pair {x}, offset {}, length {}";
    /// A BUSY is queued for the peer.
    BusyXmit "busy_xmit" ["id" "pair"]
        "sending busy, id {}, pair {x}";
    /// A BUSY of the peer arrived.
    BusyReceived "busy_received" ["id" "pair"]
        "processing busy, id {}, pair {x}";
    /// An RPC_UNKNOWN is queued for the peer.
    UnknownXmit "unknown_xmit" ["id" "pair" "reason"]
        "sending unknown, id {}, pair {x}, reason {}";
    /// An RPC_UNKNOWN of the peer arrived.
    UnknownReceived "unknown_received" ["id" "pair" "reason"]
        "processing unknown, id {}, pair {x}, reason {}";
    /// A NEED_ACK is queued for the peer.
    NeedAckXmit "need_ack_xmit" ["id" "pair"]
        "sending need ack, id {}, pair {x}";
    /// A NEED_ACK of the peer arrived.
    NeedAckReceived "need_ack_received" ["id" "pair"]
        "processing need ack, id {}, pair {x}";
    /// A thread of the application took a request; `waiting` more are queued. The engine's event.
    RecvmsgRequest "recvmsg_request" ["id" "pair" "length" "waiting"]
        "recvmsg took request, id {}, pair {x}, length {}, waiting behind it {}";
    /// A thread of the application took a response. The engine's event.
    RecvmsgResponse "recvmsg_response" ["id" "pair" "length"]
        "recvmsg took response, id {}, pair {x}, length {}";
    /// The engine took datagrams from the link. The engine's event.
    LinkRecv "link_recv" ["datagrams" "bytes"]
        "link received {} datagrams, {} bytes";
    /// The engine gave packets to the link and flushed it. The engine's event.
    LinkFlush "link_flush" ["packets"]
        "link flushed {} packets";
    /// A thread is about to sleep. The engine's event.
    Sleep "sleep" ["kind"]
        "thread sleeps, kind {} (0 on the link, 1 on a timer, 2 parked)";
    /// A thread that slept runs again. The engine's event.
    WakeUp "wake_up" ["kind"]
        "thread runs again, kind {}";
    /// The kernel had the first datagram of the following batch `ago` nanoseconds before this record. The engine's event.
    KernelRecv "kernel_recv" ["ago"]
        "kernel had the datagram {} ns before";
    /// A call took longer than [`TraceChoice::slower_than`]. Recorded of every such call, in microseconds.
    SlowCall "slow_call" ["id" "pair" "took"]
        "slow call, id {}, pair {x}, took {} us";
    /// A request to the peer to stop its trace, because a call with it was slow. This node also stops its own soon after.
    FreezeXmit "freeze_xmit" ["id" "pair"]
        "sending freeze, id {}, pair {x}";
    /// A request of the peer to stop this node's trace, which ends soon after.
    FreezeReceived "freeze_received" ["id" "pair"]
        "processing freeze, id {}, pair {x}";
    /// A thread got the engine's lock after a wait. The engine's event.
    LockWait "lock_wait" ["nanos"]
        "thread waited {} ns for the engine's lock";
    /// A peer has answered the first contact, so its calls have another pair from now on. Recorded of every such peer.
    PeerMet "peer_met" ["before" "pair"]
        "peer met, pair {x} is pair {x} from now on";
}

/// Destination of an endpoint's events, which adds the time stamps.
pub trait TraceSink: Send {
    /// Records an event that happens now.
    fn record(&mut self, event: TraceEvent, arguments: [u32; 4]);

    /// Stops the recording now or soon, so that the present records, which are of interest, are not overwritten.
    fn freeze(&mut self) {}

    /// Does the same as [`freeze`](Self::freeze) at a peer's request. Any host that may call this node may request it.
    fn freeze_for_peer(&mut self) {
        self.freeze();
    }
}

/// The calls that are recorded, and those that stop the recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceChoice {
    /// One call in `one_in` is recorded, rounded up to a power of two; 1 records every call.
    pub one_in: u32,
    /// Time of a call of this node beyond which it freezes the traces of both ends, whether it succeeds or fails. `None`: no call
    /// does.
    pub slower_than: Option<Duration>,
}

impl TraceChoice {
    /// Creates a choice that records one call in `one_in` and freezes no trace.
    #[must_use]
    pub const fn one_in(one_in: u32) -> Self {
        Self { one_in, slower_than: None }
    }
}

/// The name of a chosen call in records of both ends: the lower half of its id, and the pair of nodes. The lowest bit of the id is
/// 0 at the client and 1 at the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceMark {
    /// The lower half of the call's id, in the form of this side.
    pub id: u32,
    /// A number that the two nodes derive from their tokens; 0 on a raw link.
    pub pair: u32,
}

/// Minimum time between two FREEZE packets sent, and between two obeyed.
const FREEZE_INTERVAL: Duration = Duration::from_secs(1);

/// Upper bound on kept marks of chosen calls. Beyond it, the oldest mark is dropped.
const MARKS_MAX: usize = 64;

/// Destination of an endpoint's events.
pub(crate) struct Tracer {
    sink: Option<Box<dyn TraceSink>>,
    /// Bits that are 0 in the id of a chosen call. The lowest bit, which distinguishes server from client, is among them only if no
    /// call is chosen: no id is 0.
    mask: u64,
    /// Number of nanoseconds beyond which a call is slow.
    slow: u64,
    /// Times of the last FREEZE sent and of the last one obeyed.
    frozen: [Option<Time>; 2],
    /// Marks of chosen calls that have begun, and of chosen requests that are complete.
    marks: Vec<(RpcKey, TraceMark)>,
}

impl Tracer {
    pub(crate) const fn off() -> Self {
        let (mask, slow) = (u64::MAX, u64::MAX);
        Self { sink: None, mask, slow, frozen: [None; 2], marks: Vec::new() }
    }

    pub(crate) fn new(sink: Box<dyn TraceSink>, choice: TraceChoice) -> Self {
        let mut tracer = Self { sink: Some(sink), ..Self::off() };
        tracer.choose(choice);
        tracer
    }

    /// Changes the choice. Has no effect without a sink.
    pub(crate) fn choose(&mut self, choice: TraceChoice) {
        if self.sink.is_some() {
            self.mask = (u64::from(choice.one_in.max(1)).next_power_of_two() - 1) << 1;
            self.slow = choice.slower_than.map_or(u64::MAX, nanos);
        }
    }

    /// Returns whether slow calls are detected.
    #[inline]
    pub(crate) fn watches(&self) -> bool {
        self.slow != u64::MAX
    }

    /// Returns whether a call that took this long is slow.
    pub(crate) fn is_slow(&self, took: Duration) -> bool {
        nanos(took) > self.slow
    }

    /// Returns whether another FREEZE is allowed: of this node, or of a peer.
    pub(crate) fn may_freeze(&mut self, now: Time, by_peer: bool) -> bool {
        let last = &mut self.frozen[usize::from(by_peer)];
        let may = self.sink.is_some()
            && last.is_none_or(|last| now.saturating_since(last) >= FREEZE_INTERVAL);
        if may {
            *last = Some(now);
        }
        may
    }

    /// Ends the recording.
    pub(crate) fn freeze(&mut self) {
        if let Some(sink) = &mut self.sink {
            sink.freeze();
        }
    }

    /// Ends the recording for a peer.
    pub(crate) fn freeze_for_peer(&mut self) {
        if let Some(sink) = &mut self.sink {
            sink.freeze_for_peer();
        }
    }

    /// Returns whether events of this call are recorded.
    #[inline]
    pub(crate) fn chooses(&self, id: RpcId) -> bool {
        id.0 & self.mask == 0
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn record(&mut self, event: TraceEvent, mark: TraceMark, a: u32, b: u32) {
        if let Some(sink) = &mut self.sink {
            sink.record(event, [mark.id, mark.pair, a, b]);
        }
    }

    /// Records that calls with a peer had the pair `before` and have another one now.
    #[cold]
    pub(crate) fn peer_met(&mut self, before: TraceMark, now: TraceMark) {
        if let Some(sink) = &mut self.sink {
            sink.record(TraceEvent::PeerMet, [before.pair, now.pair, 0, 0]);
        }
    }

    /// Keeps a mark until [`take_mark`](Self::take_mark).
    pub(crate) fn keep(&mut self, key: RpcKey, mark: TraceMark) {
        if self.marks.len() == MARKS_MAX {
            self.marks.remove(0);
        }
        self.marks.push((key, mark));
    }

    #[inline]
    pub(crate) fn take_mark(&mut self, key: RpcKey) -> Option<TraceMark> {
        if self.marks.is_empty() { None } else { self.find_mark(key) }
    }

    #[cold]
    fn find_mark(&mut self, key: RpcKey) -> Option<TraceMark> {
        let at = self.marks.iter().position(|(kept, _)| *kept == key)?;
        Some(self.marks.swap_remove(at).1)
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracer").field("mask", &self.mask).finish_non_exhaustive()
    }
}

/// Returns the number of a pair of nodes, the same at both, from the tokens that each has given the other.
pub(crate) fn pair(ours: Token, theirs: Token) -> u32 {
    if ours == Token::NONE && theirs == Token::NONE {
        return 0;
    }
    (mixed(ours.0).wrapping_add(mixed(theirs.0)) >> 32) as u32
}

/// A bijection without a pattern (the finalizer of `MurmurHash3`), so that consecutive tokens yield unrelated numbers.
fn mixed(mut number: u64) -> u64 {
    number = (number ^ number >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    number = (number ^ number >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    number ^ number >> 33
}

/// Returns the event of a transmitted control packet about a call, and its last arguments.
pub(crate) fn of_sent(body: &Body) -> Option<(TraceEvent, u32, u32)> {
    Some(match body {
        Body::Grant(grant) => (TraceEvent::GrantXmit, grant.offset, grant.priority.get().into()),
        Body::Resend(resend) | Body::Probe(resend) => {
            (TraceEvent::ResendXmit, resend.offset, resend.length.unwrap_or(u32::MAX))
        }
        Body::Busy => (TraceEvent::BusyXmit, 0, 0),
        Body::Unknown(unknown) => (TraceEvent::UnknownXmit, unknown.reason as u32, 0),
        Body::NeedAck => (TraceEvent::NeedAckXmit, 0, 0),
        _ => return None,
    })
}

/// Returns the event of a received control packet about a call, the call's id, and the last arguments.
pub(crate) fn of_received(packet: &Packet<'_>) -> Option<(TraceEvent, RpcId, u32, u32)> {
    Some(match packet {
        Packet::Grant { header, grant } => {
            let priority = grant.priority.get().into();
            (TraceEvent::GrantReceived, header.sender_id, grant.offset, priority)
        }
        Packet::Resend { header, resend } => {
            let length = resend.length.unwrap_or(u32::MAX);
            (TraceEvent::ResendReceived, header.sender_id, resend.offset, length)
        }
        Packet::Busy { header } => (TraceEvent::BusyReceived, header.sender_id, 0, 0),
        Packet::RpcUnknown { header, unknown } => {
            (TraceEvent::UnknownReceived, header.sender_id, unknown.reason as u32, 0)
        }
        Packet::NeedAck { header } => (TraceEvent::NeedAckReceived, header.sender_id, 0, 0),
        _ => return None,
    })
}

/// Causes of failed calls, by the number in the record ([`TraceEvent::CallFailed`]). No cause has the number 0.
pub const FAILURE_CAUSES: &[&str] = &[
    "",
    "the peer fell silent",
    "the network says that the peer cannot be reached",
    "the port is not served",
    "the peer has given up the response",
    "the server was restarted or has forgotten this client",
    "the peer uses another version of the wire format",
    "the server's handler panicked",
    "its deadline passed",
    "the request is longer than the peer accepts",
    "the peer had no room for the request",
    "the response is longer than this node accepts",
    "the shared engine has ended",
    "the path ended before the request was sent",
    "the request is empty, which the Linux module does not accept",
    "the rule of the service does not allow this node",
    "the port takes sealed packets only",
    "the client's rule does not name the peer",
    "the handshake with the peer failed",
    "the shared engine made no path to the peer",
];

/// Returns the number of a cause in the trace: its index in [`FAILURE_CAUSES`].
pub(crate) fn cause(error: &CallFailed) -> u32 {
    match error {
        CallFailed::PeerTimeout { .. } => 1,
        CallFailed::Unreachable { .. } => 2,
        CallFailed::NoSuchPort => 3,
        CallFailed::ResponseLost => 4,
        CallFailed::MayHaveExecuted => 5,
        CallFailed::OtherVersion { .. } => 6,
        CallFailed::HandlerPanicked => 7,
        CallFailed::DeadlineExceeded { .. } => 8,
        CallFailed::RequestTooLarge { .. } => 9,
        CallFailed::Overloaded { .. } => 10,
        CallFailed::ResponseTooLarge { .. } => 11,
        CallFailed::EngineEnded => 12,
        CallFailed::NotSent => 13,
        CallFailed::EmptyForLinux => 14,
        CallFailed::NotAllowed => 15,
        CallFailed::SealedOnly => 16,
        CallFailed::NotExpected => 17,
        CallFailed::HandshakeFailed => 18,
        CallFailed::Described(_) => 19,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_nodes_make_the_same_number_of_a_pair() {
        let (one, other) = (Token(5), Token(6));
        assert_eq!(pair(one, other), pair(other, one));
        assert_ne!(pair(one, other), pair(Token(7), other));
        assert_eq!(pair(Token::NONE, Token::NONE), 0);
    }

    #[test]
    fn one_in_so_many_calls_is_chosen_and_none_without_a_sink() {
        struct Nowhere;
        impl TraceSink for Nowhere {
            fn record(&mut self, _: TraceEvent, _: [u32; 4]) {}
        }
        let of = |one_in| Tracer::new(Box::new(Nowhere), TraceChoice::one_in(one_in));
        let chosen = |tracer: &Tracer| (256..512).filter(|&id| tracer.chooses(RpcId(id))).count();
        assert_eq!(chosen(&Tracer::off()), 0);
        assert_eq!(chosen(&of(1)), 256);
        assert_eq!(chosen(&of(64)), 4);
        let tracer = of(64);
        assert!(tracer.chooses(RpcId(128)) && tracer.chooses(RpcId(129)));
    }

    #[test]
    fn marks_are_bounded() {
        let mut tracer = Tracer::off();
        use crate::slab::Handle;
        for index in 0..100 {
            tracer.keep(RpcKey::new(index, 0), TraceMark { id: index, pair: 0 });
        }
        assert_eq!(tracer.take_mark(RpcKey::new(35, 0)), None);
        assert_eq!(tracer.take_mark(RpcKey::new(99, 0)).map(|mark| mark.id), Some(99));
    }
}
