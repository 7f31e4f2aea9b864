//! Errors, one type per operation.

use std::fmt;
use std::time::Duration;

use apus_wire::{MAX_LINUX_MESSAGE, PathError};

mod encoded;
mod story;

pub use story::CallStory;

/// Reason for not opening a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The port is not a server port: those are 1 to 32767.
    PortOutOfRange(u16),
    /// Another socket of this endpoint has the port.
    PortInUse(u16),
    /// All 32,768 client ports are taken.
    NoPortLeft,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PortOutOfRange(port) => write!(f, "port {port}: server ports are 1 to 32767"),
            Self::PortInUse(port) => write!(f, "port {port} is in use on this node"),
            Self::NoPortLeft => write!(f, "all client ports of this node are in use"),
        }
    }
}

impl std::error::Error for OpenError {}

/// Reason for not starting a call. Nothing was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CallError {
    /// The request is empty, and the peer may be the Linux module, which has no empty messages.
    EmptyForLinux,
    /// The request is longer than the limit.
    MessageTooLarge {
        /// Length of the request, in bytes.
        length: usize,
        /// The limit, in bytes.
        limit: u32,
    },
    /// The request is longer than the Linux module takes, and the peer may be that module.
    TooLargeForLinux {
        /// Length of the request, in bytes.
        length: usize,
    },
    /// The number of outstanding calls to this peer is at its limit.
    TooManyCalls {
        /// The limit.
        limit: u32,
    },
    /// The request does not fit the budgets. They already hold requests and responses of calls to this peer or of this socket, and
    /// responses that the application has not taken.
    OverBudget {
        /// Length of the request, in bytes.
        length: usize,
        /// The longest request that would fit, in bytes.
        room: u64,
    },
    /// The peer table is full of peers in use.
    TooManyPeers {
        /// The limit.
        limit: usize,
    },
    /// The socket is closed.
    SocketClosed,
    /// The path within the host has ended, for instance because the peer's process has ended.
    PathEnded,
    /// The socket may not call the peer: its rule does not name it ([`Endpoint::set_rights`](crate::Endpoint::set_rights)).
    NotExpected,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyForLinux => empty_for_linux(f, "request"),
            Self::MessageTooLarge { length, limit } => {
                write!(f, "request of {length} bytes: at most {limit} are allowed")
            }
            Self::TooLargeForLinux { length } => too_large_for_linux(f, "request", *length),
            Self::TooManyCalls { limit } => {
                write!(f, "calls_max is reached: {limit} calls to this peer are outstanding")
            }
            Self::OverBudget { length, room } => over_budget(f, "request", *length, *room),
            Self::TooManyPeers { limit } => {
                write!(f, "peers_max is reached: {limit} peers are in use")
            }
            Self::SocketClosed => write!(f, "the socket is closed"),
            Self::PathEnded => write!(f, "the path within the host has ended"),
            Self::NotExpected => write!(f, "{NOT_EXPECTED}"),
        }
    }
}

impl std::error::Error for CallError {}

const NOT_EXPECTED: &str = "the client's rule does not name the peer; nothing was sent";

fn over_budget(f: &mut fmt::Formatter<'_>, what: &str, length: usize, room: u64) -> fmt::Result {
    write!(f, "{what} of {length} bytes: the budgets leave room for {room}")
}

fn empty_for_linux(f: &mut fmt::Formatter<'_>, what: &str) -> fmt::Result {
    write!(f, "empty {what}: a peer with the Linux module (homa://) accepts at least 1 byte")
}

fn too_large_for_linux(f: &mut fmt::Formatter<'_>, what: &str, length: usize) -> fmt::Result {
    write!(
        f,
        "{what} of {length} bytes: a peer with the Linux module (homa://) accepts at most {MAX_LINUX_MESSAGE}"
    )
}

/// Reason for not sending a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ReplyError {
    /// The request is no longer in service: it was answered before or aborted, or its client is gone.
    NotInService,
    /// The response is empty, and the peer may be the Linux module, which has no empty messages. The request stays in service.
    EmptyForLinux,
    /// The response is longer than the limit. The request stays in service.
    MessageTooLarge {
        /// Length of the response, in bytes.
        length: usize,
        /// The limit, in bytes.
        limit: u32,
    },
    /// The response does not fit the budgets for this client, this socket and the whole node. The request stays in service. A
    /// response no longer than its request always fits.
    OverBudget {
        /// Length of the response, in bytes.
        length: usize,
        /// The longest response that would fit, in bytes.
        room: u64,
    },
    /// The response is longer than the Linux module takes, and the peer may be that module. The request stays in service.
    TooLargeForLinux {
        /// Length of the response, in bytes.
        length: usize,
    },
}

impl fmt::Display for ReplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInService => write!(f, "the request is no longer in service"),
            Self::EmptyForLinux => empty_for_linux(f, "response"),
            Self::TooLargeForLinux { length } => too_large_for_linux(f, "response", *length),
            Self::OverBudget { length, room } => over_budget(f, "response", *length, *room),
            Self::MessageTooLarge { length, limit } => {
                write!(f, "response of {length} bytes: at most {limit} are allowed")
            }
        }
    }
}

impl std::error::Error for ReplyError {}

/// The input that a client was waiting for when its peer fell silent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Awaited {
    /// The first packet of the peer. Nothing of the request was sent.
    Token,
    /// Any packet that shows that the request was received, or its response.
    Response,
    /// A grant to send the rest of the request.
    Grant,
    /// The rest of a response that had begun to arrive.
    RestOfResponse,
    /// A turn on this node's link: bytes of the request may be sent, but other messages go first.
    Link,
}

impl fmt::Display for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Token => "the first packet of the peer",
            Self::Response => "the response",
            Self::Grant => "a grant to send the rest of the request",
            Self::RestOfResponse => "the rest of the response",
            Self::Link => "its turn on this node's link",
        })
    }
}

/// Reason why a call ended without its response.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CallFailed {
    /// The peer fell silent. The request may or may not have been executed.
    PeerTimeout {
        /// The input that the client was waiting for.
        waited_for: Awaited,
        /// Time since the last packet from the peer.
        silent_for: Duration,
        /// Number of unanswered probes.
        probes_unanswered: u32,
        /// Progress of the call.
        story: Box<CallStory>,
    },
    /// The network reports that the peer is unreachable, or that no socket is open there.
    Unreachable {
        /// The report of the network.
        error: PathError,
        /// Whether the whole request was sent, so that the server may have executed it.
        sent: bool,
    },
    /// The node runs, but the port is not served. The request was not executed.
    NoSuchPort,
    /// The request was executed, but the server gave its response up before it arrived. A Linux server does not distinguish this
    /// from a request that it never received.
    ResponseLost,
    /// The server's run that had the request is over, or has forgotten this client: the server was restarted, or one of the two was
    /// stopped or cut off for long. The request may have been executed once; no other run of the server will execute it.
    MayHaveExecuted,
    /// The peer speaks another version of the wire format. The request was not executed.
    OtherVersion {
        /// The version of this node.
        ours: u8,
        /// The version of the peer.
        theirs: u8,
    },
    /// The server's handler panicked with the request. It was executed in part.
    HandlerPanicked,
    /// The deadline of the call passed. The request may or may not have been executed; it was not executed if nothing of it was
    /// sent.
    DeadlineExceeded {
        /// Time since the start of the call.
        after: Duration,
        /// Progress of the call.
        story: Box<CallStory>,
    },
    /// The request is longer than the peer ever takes. It was not executed.
    RequestTooLarge {
        /// Length of the request, in bytes.
        length: u32,
    },
    /// The budgets of the peer were full at every arrival of the request. It was not executed.
    Overloaded {
        /// Time for which the client tried.
        after: Duration,
        /// Progress of the call.
        story: Box<CallStory>,
    },
    /// The response is longer than this endpoint takes: `message_max`, or its smallest budget.
    ResponseTooLarge {
        /// Length announced, in bytes.
        length: u32,
        /// The limit, in bytes.
        limit: u32,
    },
    /// The request is empty, and the Linux module has no empty messages. Nothing was sent.
    EmptyForLinux,
    /// The process that ran the engine of this node has ended. The request may have been executed.
    EngineEnded,
    /// The path ended before the request was sent completely, and no other path took it. The request was not executed.
    NotSent,
    /// The rule of the service does not name this node. The request was not executed.
    NotAllowed,
    /// The port takes sealed packets only, and the path to it is plain. The request was not executed.
    SealedOnly,
    /// The peer that answered is not one that the socket may call. Nothing was sent.
    NotExpected,
    /// The handshake with the peer failed. The request was not executed.
    HandshakeFailed,
    /// The engine of another process made the call and describes the error, in a form that its user and that engine know. At most
    /// [`DESCRIPTION_MAX`](Self::DESCRIPTION_MAX) bytes.
    Described(Box<str>),
}

impl CallFailed {
    /// Upper bound on a description in bytes. A longer one is malformed.
    pub const DESCRIPTION_MAX: usize = 3_072;

    /// Returns the progress of the call, for an error without another explanation.
    #[must_use]
    pub const fn story(&self) -> Option<&CallStory> {
        match self {
            Self::PeerTimeout { story, .. }
            | Self::DeadlineExceeded { story, .. }
            | Self::Overloaded { story, .. } => Some(story),
            _ => None,
        }
    }
}

impl fmt::Display for CallFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PeerTimeout { waited_for, silent_for, probes_unanswered, story } => write!(
                f,
                "waited {silent_for:?} for {waited_for}, probed {probes_unanswered} times, received nothing: the peer is down or cut off, \
                 or nothing listens at its port and its host limits its ICMP errors ({story})"
            ),
            Self::Unreachable { error, sent: true } => write!(f, "peer unreachable: {error}"),
            Self::Unreachable { error, sent: false } => {
                write!(f, "peer unreachable: {error}; the request was not executed")
            }
            Self::NoSuchPort => write!(f, "no service listens at this port of the peer"),
            Self::ResponseLost => {
                write!(f, "the server executed the request and gave the response up")
            }
            Self::MayHaveExecuted => write!(
                f,
                "the server that had the request was restarted or has forgotten this client; the request may have been executed"
            ),
            Self::OtherVersion { ours, theirs } => write!(
                f,
                "the peer uses version {theirs} of the wire format, this node version {ours}"
            ),
            Self::HandlerPanicked => write!(f, "the server's handler panicked"),
            Self::EmptyForLinux => empty_for_linux(f, "request"),
            Self::EngineEnded => {
                write!(f, "the shared engine has ended; the request may have been executed")
            }
            Self::NotAllowed => write!(
                f,
                "the rule of the service does not allow this node; the request was not executed"
            ),
            Self::SealedOnly => write!(
                f,
                "the port takes sealed packets only, and this path is plain; the request was not executed"
            ),
            Self::NotExpected => write!(f, "{NOT_EXPECTED}"),
            Self::HandshakeFailed => {
                write!(f, "the handshake with the peer failed; the request was not executed")
            }
            Self::Described(text) => f.write_str(text),
            Self::NotSent => {
                write!(f, "the path ended before the request was sent; it was not executed")
            }
            Self::DeadlineExceeded { after, story } => {
                write!(f, "deadline exceeded after {after:?}: {story}")
            }
            Self::RequestTooLarge { length } => {
                write!(f, "request of {length} bytes: longer than the peer accepts")
            }
            Self::Overloaded { after, story } => {
                write!(f, "the peer had no room for the request in {after:?} ({story})")
            }
            Self::ResponseTooLarge { length, limit } => {
                write!(f, "response of {length} bytes: at most {limit} are allowed")
            }
        }
    }
}

impl std::error::Error for CallFailed {}
