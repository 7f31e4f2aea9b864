//! The state of the world: two nodes, the calls between them, the network, and shared memory.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::memory::Memory;
use crate::packet::{Packet, Place, Proof, Run, Token};

/// Everything that a step can change.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    /// The time, in the units of a TOKEN's age: 1.07 s.
    pub unit: u16,
    /// The nodes. Each calls and serves.
    pub nodes: [Node; 2],
    /// The calls, with their numbers as indices.
    pub calls: Vec<Call>,
    /// Every packet that was ever sent.
    pub packets: Arc<BTreeSet<Packet>>,
    /// The memory that node 0 uses for its calls to node 1.
    pub memory: Memory,
    /// Faults that may still occur.
    pub left: Faults,
    /// Whether a fault has occurred that may cost a call its response.
    pub has_cause: bool,
    /// Whether a call has got the response to another one.
    pub is_mixed_up: bool,
}

/// A node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Node {
    /// Its present run.
    pub run: Run,
    /// Its present address.
    pub place: Place,
    /// Whether its port is served.
    pub is_open: bool,
    /// Number of tokens drawn in this run.
    pub drawn: u8,
    /// Known peers, by this node's token.
    pub peers: Vec<Peer>,
    /// The peers to which calls to an address go.
    pub paths: Vec<(Place, Token)>,
    /// Tokens of peers that were forgotten while their proofs were fresh (contact-4).
    pub spent: Vec<Token>,
}

/// A peer: one run of the other node, at a node.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Peer {
    /// The token in packets from the peer.
    pub ours: Token,
    /// The address of the peer.
    pub place: Place,
    /// The state of the contact.
    pub contact: Contact,
    /// The time of its last packet.
    pub heard: u16,
    /// Number of calls to it so far.
    pub called: u8,
    /// The history: numbers of taken requests, as bits (once-1).
    pub taken: u8,
    /// Numbers of requests that were refused because the port was not served, as bits (life-6).
    pub refused: u8,
    /// Its requests that are arriving, in service or answered.
    pub requests: Vec<Request>,
}

/// The state of a contact; the table in `crates/apus-proto/src/contact.rs` has the same names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Contact {
    /// OPEN is sent, and calls wait.
    Opening,
    /// OPEN is sent on behalf of the peer with this token, which is in doubt.
    Asking(Token),
    /// Each node knows the other's token, or will as soon as CONFIRM arrives.
    Met {
        /// The token in packets to the peer.
        theirs: Token,
        /// The proof in this node's CONFIRM and the time of the CONFIRM, until the peer uses this node's token.
        confirming: Option<(Proof, u16)>,
        /// The peer that asks on behalf of this one, if it is in doubt.
        asking: Option<Token>,
    },
    /// The run is over.
    Over,
}

/// A request at its server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Request {
    /// Its number.
    pub seq: u8,
    /// The call.
    pub call: u8,
    /// Its progress.
    pub phase: Service,
}

/// The progress of a request at its server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Service {
    /// The first packet has arrived, not the last.
    Arriving,
    /// The application executes it.
    Executing,
    /// So it does, and no client waits.
    Cancelled,
    /// The response was sent, and is not acknowledged.
    Answered,
}

/// A call.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Call {
    /// The node that calls the other one.
    pub from: u8,
    /// Whether request and response have two packets, the second of which needs a GRANT. Otherwise they have one.
    pub is_long: bool,
    /// Its progress at the client.
    pub phase: Phase,
    /// The peer, by the client's token.
    pub peer: Option<Token>,
    /// The number of the call at that peer.
    pub seq: u8,
    /// Number of times that an application got the request, at most 2.
    pub executed: u8,
    /// Whether the server has taken an ABORT that ends the request.
    pub is_aborted: bool,
    /// Whether the request was executed after that.
    pub is_in_vain: bool,
}

/// The progress of a call at its client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Phase {
    /// Not called yet.
    Future,
    /// Nothing is sent, because the peer is not met or in doubt.
    Waiting,
    /// The first of two packets is sent.
    Part,
    /// The request is sent completely.
    Sent,
    /// So it is, and the first of two packets of the response has arrived.
    Begun,
    /// The request waits for shared memory, or a part of it is there.
    Queued,
    /// The request is in memory completely.
    Carried,
    /// The server has refused the request for the moment, which is in memory (local-4).
    PutOff,
    /// The call has ended.
    Ended(End),
}

/// The end of a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum End {
    /// With its response.
    Answered,
    /// `MayHaveExecuted`.
    MayHaveExecuted,
    /// `ResponseLost`: it was executed.
    ResponseLost,
    /// `NoSuchPort`: it was not executed.
    NoSuchPort,
    /// `NotSent`: it was not executed.
    NotSent,
    /// The application gave it up.
    GivenUp,
    /// The client's run ended.
    Gone,
}

impl End {
    /// Returns whether the end says that the request was not executed and will not be.
    #[must_use]
    pub fn denies(self) -> bool {
        matches!(self, Self::NoSuchPort | Self::NotSent)
    }
}

/// Numbers of faults, each of which may occur at any time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Faults {
    /// Restarts of each node.
    pub restarts: [u8; 2],
    /// Moves of each node to its second address.
    pub moves: [u8; 2],
    /// Times that a unit passes, so that answers to OPEN name another token.
    pub seconds: u8,
    /// Times that 130 s pass, so that idle peers are forgotten.
    pub pauses: u8,
    /// Times that node 1 closes its port. It may open the port again.
    pub closings: u8,
    /// Calls that the client gives up.
    pub aborts: u8,
    /// Requests that the server's application gives up.
    pub abandons: u8,
    /// Peers that node 1 forgets because its table is full.
    pub evictions: u8,
    /// Packets that an attacker repeats from its own address.
    pub forgeries: u8,
    /// Whether clients ask for the progress of their requests (RESEND).
    pub has_probes: bool,
    /// Whether the calls of node 0 begin in shared memory.
    pub has_memory: bool,
    /// Requests in memory that node 1 refuses for the moment.
    pub refusals: u8,
}

impl State {
    /// Returns the world before anything happens.
    #[must_use]
    pub fn new(calls: &[(u8, bool)], faults: Faults) -> Self {
        let node = |node: u8| Node::new(Run { node, number: 0 }, node);
        let calls = calls.iter().map(|&(from, is_long)| Call::new(from, is_long)).collect();
        Self {
            unit: 0,
            nodes: [node(0), node(1)],
            calls,
            packets: Arc::default(),
            memory: Memory::new(faults.has_memory),
            left: faults,
            has_cause: false,
            is_mixed_up: false,
        }
    }

    /// Returns whether a call is under way.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        self.calls.iter().any(|it| !matches!(it.phase, Phase::Future | Phase::Ended(_)))
    }

    /// Returns the state without that which a step changes when it moves a peer and does nothing else.
    #[must_use]
    pub fn without_addresses(&self) -> Self {
        let mut state = self.clone();
        for node in &mut state.nodes {
            node.paths.clear();
            for peer in &mut node.peers {
                (peer.place, peer.heard) = (0, 0);
            }
        }
        state
    }

    /// Returns the ends of the calls that have ended.
    pub fn ends(&self) -> impl Iterator<Item = (End, &Call)> {
        self.calls.iter().filter_map(|call| match call.phase {
            Phase::Ended(end) => Some((end, call)),
            _ => None,
        })
    }
}

impl Node {
    pub(crate) fn new(run: Run, place: Place) -> Self {
        let (peers, paths, spent) = (Vec::new(), Vec::new(), Vec::new());
        Self { run, place, is_open: true, drawn: 0, peers, paths, spent }
    }

    /// Returns the peer that calls to an address go to.
    pub(crate) fn path(&self, place: Place) -> Option<Token> {
        self.paths.iter().find(|&&(at, _)| at == place).map(|&(_, token)| token)
    }
}

impl Peer {
    pub(crate) fn new(ours: Token, place: Place, contact: Contact, heard: u16) -> Self {
        let requests = Vec::new();
        Self { ours, place, contact, heard, called: 0, taken: 0, refused: 0, requests }
    }

    pub(crate) fn theirs(&self) -> Option<Token> {
        match self.contact {
            Contact::Met { theirs, .. } => Some(theirs),
            _ => None,
        }
    }
}

impl Call {
    fn new(from: u8, is_long: bool) -> Self {
        Self {
            from,
            is_long,
            phase: Phase::Future,
            peer: None,
            seq: 0,
            executed: 0,
            is_aborted: false,
            is_in_vain: false,
        }
    }
}
