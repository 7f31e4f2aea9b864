//! What is known of every call, and what must never happen.

use std::time::Duration;

use apus_proto::CallFailed;
use apus_wire::TraceContext;
use bytes::Bytes;
use thiserror::Error;

use crate::check::scenario::{Call, REQUEST_MIN};

/// A promise that was broken.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum Violation {
    /// A request or response arrived with other bytes than were sent.
    #[error("the {what} of call {call} arrived with wrong bytes from {at} on")]
    WrongBytes {
        /// Which call.
        call: usize,
        /// Whose bytes.
        what: &'static str,
        /// The first wrong byte, or the length that arrived.
        at: usize,
    },
    /// A request was handed to a server's application more than once, by one run of it or by two.
    #[error("call {call} was executed {}", by_runs(runs))]
    ExecutedAgain {
        /// Which call.
        call: usize,
        /// The run of the server that executed it first, and the one that did again, counted from 0.
        runs: (u32, u32),
    },
    /// A request was executed though its call was told that it was not.
    #[error("call {call} was executed, and told: {error}")]
    ExecutedThoughDenied {
        /// Which call.
        call: usize,
        /// What it was told.
        error: String,
    },
    /// A call that nothing stood in the way of failed.
    #[error("call {call} failed without a reason: {error}")]
    FailedWithoutReason {
        /// Which call.
        call: usize,
        /// What it was told.
        error: String,
    },
    /// A call got its response, or was told that it was executed, though it never was.
    #[error("call {call} was told that it was executed, and never was")]
    NeverExecuted {
        /// Which call.
        call: usize,
    },
    /// A call ended twice, or after it was aborted.
    #[error("call {call} ended twice")]
    EndedAgain {
        /// Which call.
        call: usize,
    },
    /// A call did not end in time after the last fault.
    #[error("call {call} had not ended {bound:?} after the last fault")]
    NeverEnded {
        /// Which call.
        call: usize,
        /// How long after.
        bound: Duration,
    },
    /// A call outlived its deadline.
    #[error("call {call} ended {by:?} after its deadline")]
    DeadlineMissed {
        /// Which call.
        call: usize,
        /// By how much.
        by: Duration,
    },
    /// A node held more than its budget.
    #[error("node {node} held {held} bytes, more than its budget")]
    OverBudget {
        /// Which node.
        node: usize,
        /// Bytes held.
        held: u64,
    },
    /// A node still held something when all was over.
    #[error("node {node} was not idle when all was over: {rpcs} RPCs left")]
    LeftOver {
        /// Which node.
        node: usize,
        /// RPCs.
        rpcs: usize,
    },
    /// An attacker was sent more bytes than it had sent.
    #[error("node {node} sent an attacker {sent} bytes for {received}")]
    Amplified {
        /// Which node.
        node: usize,
        /// Bytes to the attacker and from it.
        sent: u64,
        /// Bytes from it.
        received: u64,
    },
    /// Two nodes sent more packets for one RPC than it can need.
    #[error("a storm: {packets} packets for RPC {id} of node {client} with node {server} {}, {allowed} are allowed", meanwhile(*silent))]
    Storm {
        /// Which node calls.
        client: usize,
        /// Which node serves.
        server: usize,
        /// The id of the RPC, in its client's form.
        id: u64,
        /// Packets that both sent.
        packets: u64,
        /// What it may need.
        allowed: u64,
        /// For how long nothing new had arrived; absent when all packets of the RPC are too many.
        silent: Option<Duration>,
    },
    /// Packets named more ids of which no DATA was ever sent than the network can have made.
    #[error("a storm: packets about {ids} RPCs that nobody began, {allowed} are allowed")]
    Strays {
        /// Ids.
        ids: u64,
        /// What may be.
        allowed: u64,
    },
    /// A node's application was given a request that the node it is said to be from never made.
    #[error("node {node} executed a request that node {from} never made")]
    Forged {
        /// Which node.
        node: usize,
        /// Who is said to have made it.
        from: usize,
    },
    /// A node wanted to be called for ever without anything happening.
    #[error("node {node} wants to be called for ever")]
    Spins {
        /// Which node.
        node: usize,
    },
    /// The core panicked.
    #[error("panic: {message}")]
    Panicked {
        /// What it said.
        message: String,
    },
}

/// By which runs of its server a call was executed.
fn by_runs((first, again): &(u32, u32)) -> String {
    if first == again {
        return format!("twice by run {first} of its server");
    }
    format!("by runs {first} and {again} of its server")
}

/// While what a storm was.
fn meanwhile(silent: Option<Duration>) -> String {
    match silent {
        Some(silent) => format!("in {silent:?} in which nothing new arrived"),
        None => "in all".to_owned(),
    }
}

/// What became of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    NotBegun,
    UnderWay,
    Answered,
    Failed,
    /// Aborted, refused at once, or forgotten by a node that restarted.
    Gone,
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) fate: Fate,
    /// The run of the server that executed it.
    pub(super) executed_by: Option<u32>,
    /// The error that said that it was not executed.
    pub(super) denied: Option<CallFailed>,
    pub(super) began: Duration,
}

impl Entry {
    pub(super) fn new() -> Self {
        Self { fate: Fate::NotBegun, executed_by: None, denied: None, began: Duration::ZERO }
    }

    /// The request was handed to the application in this run of the server: whatever runs there
    /// were, for the first time.
    pub(super) fn execute(&mut self, call: usize, run: u32) -> Result<(), Violation> {
        if let Some(first) = self.executed_by.replace(run) {
            return Err(Violation::ExecutedAgain { call, runs: (first, run) });
        }
        self.truthful(call)
    }

    /// The call failed: what the error says of the execution is so.
    pub(super) fn fail(&mut self, call: usize, error: CallFailed) -> Result<(), Violation> {
        use CallFailed::{
            DeadlineExceeded, NoSuchPort, OtherVersion, Overloaded, PeerTimeout, RequestTooLarge,
            ResponseLost, Unreachable,
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

    /// It was not executed and denied, in whichever order.
    fn truthful(&self, call: usize) -> Result<(), Violation> {
        match (self.executed_by, &self.denied) {
            (Some(_), Some(error)) => {
                Err(Violation::ExecutedThoughDenied { call, error: error.to_string() })
            }
            _ => Ok(()),
        }
    }
}

/// Bytes of a message that differ by their place only.
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

/// The bytes of a message; they differ from call to call and from place to place.
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

/// The context of the distributed trace that a call belongs to. One call in four has none.
pub(super) fn context(number: usize) -> Option<TraceContext> {
    let span = (number as u64 + 1).to_be_bytes();
    TraceContext::new([1; 16], span, 0).filter(|_| !number.is_multiple_of(4))
}

/// The request of a call: its number, how long a response it wants, then the pattern.
pub(super) fn request(number: usize, call: &Call) -> Bytes {
    let mut body = filled(number, false, call.request);
    body[..8].copy_from_slice(&(number as u64).to_le_bytes());
    body[8..12].copy_from_slice(&call.response.to_le_bytes());
    body.into()
}

pub(super) fn response(number: usize, call: &Call) -> Bytes {
    filled(number, true, call.response).into()
}

/// Which call a request is, if it is one that a node made.
pub(super) fn number_of(body: &[u8], calls: usize) -> Option<usize> {
    let bytes = body.get(..8)?.try_into().ok()?;
    let number = usize::try_from(u64::from_le_bytes(bytes)).ok()?;
    (number < calls && body.len() >= REQUEST_MIN as usize).then_some(number)
}

/// Whether the bytes that arrived are those that were sent.
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
