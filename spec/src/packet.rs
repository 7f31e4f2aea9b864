//! Tokens and packets, as docs/wire.md has them, without everything that has no part in at-most-once.

/// An address. Node `n` begins at address `n`, and moves to `n + 2`.
pub type Place = u8;

/// An address at which no node is, from which an attacker repeats packets.
pub const ATTACKER: Place = 9;

/// A run of a node: it ends, with everything that it remembers, when the node restarts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Run {
    /// 0 or 1.
    pub node: u8,
    /// Number of restarts before this run.
    pub number: u8,
}

/// A number that only its run can choose (contact-1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Token {
    /// The token that a caller draws for a peer.
    Drawn(Run, u8),
    /// The token that a run offers to the owner of a drawn one, in one unit of time: a keyed hash of the two (contact-3).
    Offered {
        /// The run whose key makes the hash.
        by: Run,
        /// The drawn token.
        to: (Run, u8),
        /// The unit of time.
        issued: u16,
    },
}

/// A keyed hash of a token, an address and a unit of time (contact-3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Proof {
    /// The run whose key makes the hash.
    pub by: Run,
    /// The token.
    pub token: Token,
    /// The address to which the proof was sent.
    pub place: Place,
    /// The unit of time.
    pub issued: u16,
}

/// The answer to a packet about a request that the server does not have.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Unknown {
    /// The request has not arrived (loss-6).
    Unknown,
    /// The request was taken, and is over (life-7).
    Finished,
    /// The port is not served (life-6).
    NoSuchPort,
}

#[allow(missing_docs, reason = "the names of the fields are those of Peer and Request")]
/// A packet. `seq` is the number of a call among those to one peer (life-2), 0 for none; `part` counts the packets of a message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Body {
    /// OPEN: the sender chooses `token`, and asks whether the receiver knows `known`.
    Open { token: Token, known: Option<Token>, seq: u8 },
    /// TOKEN: an answer to the owner of `stamp`.
    Token { stamp: Token, offered: Token, proof: Proof, seq: u8 },
    /// CONFIRM: the sender, who chose `theirs`, has received the token `stamp`.
    Confirm { stamp: Token, theirs: Token, proof: Proof, seq: u8 },
    /// DATA of a request.
    Request { stamp: Token, seq: u8, part: u8, is_last: bool, call: u8 },
    /// DATA of a response.
    Response { stamp: Token, seq: u8, part: u8, is_last: bool, call: u8 },
    /// GRANT for the second packet of a request, or of a response.
    Grant { stamp: Token, seq: u8, of_request: bool },
    /// RESEND of everything: the client asks for the server's progress.
    Resend { stamp: Token, seq: u8 },
    /// ACK of a response.
    Ack { stamp: Token, seq: u8 },
    /// ABORT of a call.
    Abort { stamp: Token, seq: u8 },
    /// RPC_UNKNOWN about a request.
    Unknown { stamp: Token, seq: u8, reason: Unknown },
    /// RPC_UNKNOWN, *no contact*: the port of an OPEN or CONFIRM is not served.
    NoContact { stamp: Token, seq: u8 },
    /// RPC_UNKNOWN, *token unknown*, with a copy of that token.
    TokenUnknown { about: Token, seq: u8 },
}

/// A packet in the network. The network forgets none: each may arrive at any time, any number of times, or never.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Packet {
    /// The sender's address.
    pub from: Place,
    /// The receiver's address.
    pub to: Place,
    /// The contents.
    pub body: Body,
}
