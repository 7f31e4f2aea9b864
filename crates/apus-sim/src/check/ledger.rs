//! The state of every call, and the violations of the campaign's rules.

use std::time::Duration;

use apus_proto::CallFailed;
use apus_wire::TraceContext;
use bytes::Bytes;
use thiserror::Error;

use crate::check::scenario::{PlannedCall, REQUEST_MIN};

/// A broken rule.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum Violation {
    /// A request or response arrived with other bytes than the sent ones.
    #[error("the {what} of call {call} arrived with wrong bytes from {at} on")]
    WrongBytes {
        /// The call's number.
        call: usize,
        /// The message: request or response.
        what: &'static str,
        /// Offset of the first wrong byte, or the length that arrived.
        at: usize,
    },
    /// A server's application received a request more than once, in one run of the server or in two.
    #[error("call {call} was executed {}", by_runs(runs))]
    ExecutedAgain {
        /// The call's number.
        call: usize,
        /// The runs of the server that executed it first and again, counted from 0.
        runs: (u32, u32),
    },
    /// A request was executed, but the call's error says that it was not.
    #[error("call {call} was executed, but its error denies that: {error}")]
    ExecutedThoughDenied {
        /// The call's number.
        call: usize,
        /// The text of the error.
        error: String,
    },
    /// A call failed without a fault that explains it.
    #[error("call {call} failed without a reason: {error}")]
    FailedWithoutReason {
        /// The call's number.
        call: usize,
        /// The text of the error.
        error: String,
    },
    /// A call got its response, or an error that says that it was executed, but it never was.
    #[error("call {call} ended as executed, but was never executed")]
    NeverExecuted {
        /// The call's number.
        call: usize,
    },
    /// A call ended twice, or after it was aborted.
    #[error("call {call} ended twice")]
    EndedAgain {
        /// The call's number.
        call: usize,
    },
    /// A call did not end in time after the last fault.
    #[error("call {call} had not ended {bound:?} after the last fault")]
    NeverEnded {
        /// The call's number.
        call: usize,
        /// The time limit after the last fault.
        bound: Duration,
    },
    /// A call outlived its deadline.
    #[error("call {call} ended {by:?} after its deadline")]
    DeadlineMissed {
        /// The call's number.
        call: usize,
        /// The time from the deadline to the end of the call.
        by: Duration,
    },
    /// A node held more bytes than its budget.
    #[error("node {node} held {held} bytes, more than its budget")]
    OverBudget {
        /// The node's number.
        node: usize,
        /// Bytes held.
        held: u64,
    },
    /// A node still held RPCs at the end of the run.
    #[error("node {node} was not idle at the end of the run: {rpcs} RPCs left")]
    LeftOver {
        /// The node's number.
        node: usize,
        /// The number of RPCs left.
        rpcs: usize,
    },
    /// A node sent an attacker more bytes than the attacker had sent.
    #[error("node {node} sent an attacker {sent} bytes for {received}")]
    Amplified {
        /// The node's number.
        node: usize,
        /// Bytes to the attacker.
        sent: u64,
        /// Bytes from the attacker.
        received: u64,
    },
    /// Two nodes sent more packets for one RPC than it can need.
    #[error("a storm: {packets} packets for RPC {id} of node {client} with node {server} {}, {allowed} are allowed", meanwhile(*silent))]
    Storm {
        /// The client's node number.
        client: usize,
        /// The server's node number.
        server: usize,
        /// The id of the RPC, in its client's form.
        id: u64,
        /// Packets that both nodes sent.
        packets: u64,
        /// Upper bound on the packets.
        allowed: u64,
        /// Time without new data; absent if the packets of the whole RPC are too many.
        silent: Option<Duration>,
    },
    /// Packets named more ids without DATA than the network can have made.
    #[error("a storm: packets about {ids} RPCs without DATA, {allowed} are allowed")]
    Strays {
        /// Number of ids.
        ids: u64,
        /// Upper bound on the ids.
        allowed: u64,
    },
    /// A node's application received a request that its apparent sender never made.
    #[error("node {node} executed a request that node {from} never made")]
    Forged {
        /// The node's number.
        node: usize,
        /// The node number of the apparent sender.
        from: usize,
    },
    /// A node opened bytes that no node had sealed for it and for this path.
    #[error("node {node} opened bytes on its path to node {peer} that were not sealed for it")]
    NotSealed {
        /// The node's number.
        node: usize,
        /// The node whose name the path has.
        peer: usize,
    },
    /// A node opened a record more than once from the address of its path, or from others.
    #[error("node {node} opened a record of node {peer} again")]
    OpenedAgain {
        /// The node's number.
        node: usize,
        /// The node whose name the path has.
        peer: usize,
    },
    /// A node refused a record as one that it had opened, and had not opened it from the address of its path.
    #[error("node {node} refused a record of node {peer} that it had not opened")]
    RefusedUnopened {
        /// The node's number.
        node: usize,
        /// The node that had sealed the record.
        peer: usize,
    },
    /// A path used a number for two records.
    #[error("node {node} sealed two records of a path with one number")]
    NumberReused {
        /// The node's number.
        node: usize,
    },
    /// A hint ended the keys of a path.
    #[error("node {node} lost the keys of its path to node {peer} because of a hint")]
    KeysLost {
        /// The node's number.
        node: usize,
        /// The node whose name the path has.
        peer: usize,
    },
    /// A handshake gave a path keys of another name than that of the path.
    #[error("node {node} gave its path to node {peer} the keys of another name")]
    Renamed {
        /// The node's number.
        node: usize,
        /// The node whose name the path has.
        peer: usize,
    },
    /// A service executed a request of a node that its rule does not name.
    #[error("node {node} executed a request of node {from}, which its rule does not name")]
    NotAllowed {
        /// The node's number.
        node: usize,
        /// The node that sent the request.
        from: usize,
    },
    /// A key sealed two records with one nonce.
    #[error("node {node} sealed two records with one nonce")]
    NonceReused {
        /// The node's number.
        node: usize,
    },
    /// A call did not end in time after the last fault, and its path had no keys.
    #[error("call {call} had not ended {bound:?} after the last fault, on a path without keys")]
    HungWithoutKeys {
        /// The call's number.
        call: usize,
        /// The time limit after the last fault.
        bound: Duration,
    },
    /// A node asked to be called again and again without an event.
    #[error("node {node} requests repeated calls without end")]
    Spins {
        /// The node's number.
        node: usize,
    },
    /// The core panicked.
    #[error("panic: {message}")]
    Panicked {
        /// The panic message.
        message: String,
    },
}

/// Text for the runs of a server that executed a call.
fn by_runs((first, again): &(u32, u32)) -> String {
    if first == again {
        return format!("twice by run {first} of its server");
    }
    format!("by runs {first} and {again} of its server")
}

/// Text for the time of a storm.
fn meanwhile(silent: Option<Duration>) -> String {
    match silent {
        Some(silent) => format!("within {silent:?} without new data"),
        None => "in all".to_owned(),
    }
}

/// The state of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    NotBegun,
    UnderWay,
    Answered,
    Failed,
    /// Aborted, refused at once, or forgotten by a restarted node.
    Gone,
}

#[derive(Clone, Debug)]
pub(super) struct LedgerEntry {
    pub(super) fate: Fate,
    /// The run of the server that executed it.
    pub(super) executed_by: Option<u32>,
    /// The error that says that it was not executed.
    pub(super) denied: Option<CallFailed>,
    pub(super) began: Duration,
}

impl LedgerEntry {
    pub(super) fn new() -> Self {
        Self { fate: Fate::NotBegun, executed_by: None, denied: None, began: Duration::ZERO }
    }

    /// Notes that the application received the request in this run of the server. Fails if any run has received it before.
    pub(super) fn execute(&mut self, call: usize, run: u32) -> Result<(), Violation> {
        if let Some(first) = self.executed_by.replace(run) {
            return Err(Violation::ExecutedAgain { call, runs: (first, run) });
        }
        self.truthful(call)
    }

    /// Notes that the call failed, and checks the error's claim about the execution.
    pub(super) fn fail(&mut self, call: usize, error: CallFailed) -> Result<(), Violation> {
        use CallFailed::{
            DeadlineExceeded, HandshakeFailed, NoSuchPort, NotAllowed, NotSent, OtherVersion,
            Overloaded, PeerTimeout, RequestTooLarge, ResponseLost, Unreachable,
        };
        match error {
            ResponseLost if self.executed_by.is_none() => Err(Violation::NeverExecuted { call }),
            DeadlineExceeded { ref story, .. } | PeerTimeout { ref story, .. }
                if story.may_have_executed() =>
            {
                Ok(())
            }
            Unreachable { sent: true, .. } => Ok(()),
            NoSuchPort
            | HandshakeFailed
            | NotAllowed
            | NotSent
            | OtherVersion { .. }
            | Overloaded { .. }
            | RequestTooLarge { .. }
            | DeadlineExceeded { .. }
            | PeerTimeout { .. }
            | Unreachable { .. } => {
                self.denied = Some(error);
                self.truthful(call)
            }
            _ => Ok(()),
        }
    }

    /// Fails if the call was executed and an error denies it, in either order.
    fn truthful(&self, call: usize) -> Result<(), Violation> {
        match (self.executed_by, &self.denied) {
            (Some(_), Some(error)) => {
                Err(Violation::ExecutedThoughDenied { call, error: error.to_string() })
            }
            _ => Ok(()),
        }
    }
}

/// Bytes of a message that differ only by their place.
const BLOCK: usize = 251;
const PLACES: [u8; BLOCK] = {
    let mut places = [0; BLOCK];
    let mut place = 0;
    while place < BLOCK {
        places[place] = place as u8;
        place += 1;
    }
    places
};

/// The bytes of a message, which differ from call to call and from place to place.
fn filled(call: usize, is_response: bool, length: u32) -> Vec<u8> {
    let mut body = vec![0; length as usize];
    let message = (call as u64 * 2 + u64::from(is_response)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    for (block, bytes) in body.chunks_mut(BLOCK).enumerate() {
        let mixed = message.wrapping_add((block as u64).wrapping_mul(0xD134_2543_DE82_EF95));
        let mask = (mixed >> 40) as u8;
        bytes.iter_mut().zip(&PLACES).for_each(|(byte, place)| *byte = mask ^ place);
    }
    body
}

/// The context of the distributed trace of a call. One call in four has no context.
pub(super) fn context(number: usize) -> Option<TraceContext> {
    let span = (number as u64 + 1).to_be_bytes();
    TraceContext::new([1; 16], span, 0).filter(|_| !number.is_multiple_of(4))
}

/// The request of a call: its number, the length of the response, then the pattern.
pub(super) fn request(number: usize, call: &PlannedCall) -> Bytes {
    let mut body = filled(number, false, call.request);
    body[..8].copy_from_slice(&(number as u64).to_le_bytes());
    body[8..12].copy_from_slice(&call.response.to_le_bytes());
    body.into()
}

pub(super) fn response(number: usize, call: &PlannedCall) -> Bytes {
    filled(number, true, call.response).into()
}

/// The number of the call that made a request; `None` for a forged or damaged request.
pub(super) fn number_of(body: &[u8], calls: usize) -> Option<usize> {
    let bytes = body.get(..8)?.try_into().ok()?;
    let number = usize::try_from(u64::from_le_bytes(bytes)).ok()?;
    (number < calls && body.len() >= REQUEST_MIN as usize).then_some(number)
}

/// Checks that the received bytes are the sent ones.
pub(super) fn verify(
    number: usize,
    what: &'static str,
    wanted: &[u8],
    body: &[u8],
) -> Result<(), Violation> {
    if wanted == body {
        return Ok(());
    }
    let differs = wanted.iter().zip(body).position(|(a, b)| a != b);
    Err(Violation::WrongBytes { call: number, what, at: differs.unwrap_or(body.len()) })
}
