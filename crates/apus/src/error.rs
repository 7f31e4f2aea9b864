//! Errors: one type per operation, with variants sorted by whose fault the failure is.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use apus_net::LinkError;
use apus_proto::{Awaited, CallFailed, CallStory};
use apus_wire::{MAX_LINUX_MESSAGE, PathError, is_native};

use crate::address::Address;
use crate::config::{ConfigError, PatternError};
use crate::delivery::Delivery;

/// Why no operation on a node is possible any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unusable {
    /// The process is a forked child of the one that started the node.
    Forked,
    /// A thread panicked under the engine's lock.
    Panicked,
}

macro_rules! unusable {
    ($($error:ty),+) => {
        $(impl From<Unusable> for $error {
            #[cold]
            fn from(reason: Unusable) -> Self {
                match reason {
                    Unusable::Forked => Self::Forked,
                    Unusable::Panicked => Self::NodePanicked,
                }
            }
        })+
    };
}

unusable!(CallError, ReplyError, RecvError, OpenError, CloseError, EventLoopError, RuleError);

impl From<Unusable> for StartError {
    #[cold]
    fn from(reason: Unusable) -> Self {
        Self::Link(match reason {
            Unusable::Forked => {
                "the process was forked while the node was being started".to_owned()
            }
            Unusable::Panicked => "a thread panicked inside the node".to_owned(),
        })
    }
}

/// Why a client or a service was not opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Misuse: server ports are 1 to 32766.
    #[error("port {0}: server ports are 1 to 32766")]
    PortOutOfRange(u16),
    /// Misuse: the node was started by the parent of this process, before the fork.
    #[error("the node belongs to the parent of this process: start another one after the fork")]
    Forked,
    /// Local: a thread panicked inside the node and left it unusable. The panic message of that thread names the cause.
    #[error("a thread panicked inside the node: start another one")]
    NodePanicked,
    /// Misuse: handshakes of sealed paths have this port.
    #[error("port {0} is kept for the handshakes of sealed paths: serve another one")]
    PortReserved(u16),
    /// Local: another service of this node has the port.
    #[error("port {0} is in use on this node")]
    PortInUse(u16),
    /// Local: all 32,768 client ports are taken.
    #[error("all client ports of this node are in use")]
    NoPortLeft,
    /// Local: the shared engine ([`Config::engine`](crate::Config::engine)) does not let this user open the port.
    #[error("the shared engine does not let this user open port {0}")]
    PortForbidden(u16),
    /// Local: the shared engine ([`Config::engine`](crate::Config::engine)) has ended, or does not answer.
    #[error("the shared engine does not answer")]
    NoEngine,
    /// The node was closed on this side, by another of its handles.
    #[error("the node is closed")]
    Closed,
}

impl OpenError {
    #[cold]
    pub(crate) fn refused(error: apus_proto::OpenError) -> Self {
        use apus_proto::OpenError as Refused;
        match error {
            Refused::PortOutOfRange(port) => Self::PortOutOfRange(port),
            Refused::PortInUse(port) => Self::PortInUse(port),
            // `NoPortLeft`, and whatever a later core may lack.
            _ => Self::NoPortLeft,
        }
    }
}

/// Why a node has no event loop ([`Node::event_loop`](crate::Node::event_loop)).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventLoopError {
    /// Misuse: in this delivery mode no event loop leads.
    #[error("delivery mode {0}: an event loop turns the engine in mode `suspend` only")]
    Delivery(Delivery),
    /// Misuse: an event loop turns one engine, and the node has several.
    #[error("the node has {0} shards: an event loop turns a node with one")]
    Shards(usize),
    /// Misuse: the node has an event loop.
    #[error("the node has an event loop")]
    InUse,
    /// Misuse: the node was started by the parent of this process, before the fork.
    #[error("the node belongs to the parent of this process: start another one after the fork")]
    Forked,
    /// Local: a thread panicked inside the node and left it unusable. The panic message of that thread names the cause.
    #[error("a thread panicked inside the node: start another one")]
    NodePanicked,
    /// Local: the process or the system has no descriptor left.
    #[error("no descriptor for the event loop")]
    Descriptor(#[source] io::Error),
}

/// Why a call has no response.
///
/// [`may_have_executed`](Self::may_have_executed) returns whether the request may have been executed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// Misuse: the request is empty, which a peer with the Linux module does not accept. Nothing was sent.
    #[error("empty request: a peer with the Linux module (homa://) accepts at least 1 byte")]
    EmptyForLinux,
    /// Misuse: the request is longer than the limit of this node. Nothing was sent.
    #[error("request of {length} bytes: at most {limit} are allowed")]
    MessageTooLarge {
        /// Length of the request, in bytes.
        length: usize,
        /// The limit (configuration `message_max`), in bytes.
        limit: u32,
    },
    /// Local: the response is longer than this node accepts (its `message_max` or budgets). The request was executed.
    #[error("response of {length} bytes: at most {limit} are allowed")]
    ResponseTooLarge {
        /// Length of the response, in bytes.
        length: u32,
        /// The longest response that would fit, in bytes.
        limit: u32,
    },
    /// Misuse: the request is longer than a peer with the Linux module accepts. Nothing was sent.
    #[error(
        "request of {length} bytes: a peer with the Linux module (homa://) accepts at most {MAX_LINUX_MESSAGE}"
    )]
    TooLargeForLinux {
        /// Length of the request, in bytes.
        length: usize,
    },
    /// Misuse: an unspecified address (`0.0.0.0`, `[::]`) means all addresses of a listening node, and no address of a peer.
    /// Nothing was sent.
    #[error("cannot call {0}: {ip} is an address to listen on, not the address of a node", ip = .0.host.ip())]
    UnspecifiedAddress(Address),
    /// Misuse: a thread called the service that it serves itself, in a handler or a task, and no other thread takes requests there. The
    /// call is given up: its request is skipped, unless the setting `skip_unwanted` is off.
    #[error(
        "the call waited {after:?} for its own thread, because no other thread serves the service"
    )]
    OwnService {
        /// How long the call waited for another thread.
        after: Duration,
    },
    /// Misuse: the node was started by the parent of this process, before the fork. Nothing was sent. A call that was started
    /// before the fork continues in the parent.
    #[error("the node belongs to the parent of this process: start another one after the fork")]
    Forked,
    /// Local: a thread panicked inside the node and left it unusable. The request may have been executed.
    #[error("a thread panicked inside the node: start another one")]
    NodePanicked,
    /// Local: the number of outstanding calls to this peer is at its limit, and the call has waited for room until its deadline or does
    /// not wait ([`CallOptions::wait_for_room`](crate::CallOptions::wait_for_room)). Nothing was sent. Wait for calls to end, or raise
    /// `calls_max`.
    #[error("calls_max is reached: {limit} calls to this peer are outstanding")]
    TooManyCalls {
        /// The limit (configuration `calls_max`).
        limit: u32,
    },
    /// Local: the request does not fit the budgets beside the outstanding requests and the responses that the application has
    /// not taken, and the call has waited for room until its deadline or does not wait
    /// ([`CallOptions::wait_for_room`](crate::CallOptions::wait_for_room)). Nothing was sent. Take responses, or raise `peer_budget`, `socket_budget` and
    /// `total_budget`. Requests may use half of each.
    #[error("request of {length} bytes: the budgets leave room for {room}")]
    OverBudget {
        /// Length of the request, in bytes.
        length: usize,
        /// The longest request that would fit, in bytes.
        room: u64,
    },
    /// Local: the number of peers in use is at its limit. Nothing was sent.
    #[error("peers_max is reached: {limit} peers are in use")]
    TooManyPeers {
        /// The limit (configuration `peers_max`).
        limit: usize,
    },
    /// Peer: it was silent and left probes unanswered. The request may have been executed, unless a part of it was not sent.
    ///
    /// The peer may be down, cut off, or too busy to answer. It is also possible that no node is at its UDP port. A host
    /// reports that by ICMP, but limits the rate (Linux: `net.ipv4.icmp_ratelimit`, and 1,000 messages per second to all
    /// hosts), and firewalls drop ICMP. A call that gets the report ends with [`PeerUnreachable`](Self::PeerUnreachable).
    #[error(
        "waited {silent_for:?} for {waited_for}, probed {probes_unanswered} times, received nothing: the peer is down or cut off, \
         or nothing listens at its port and its host limits its ICMP errors ({story})"
    )]
    PeerTimeout {
        /// The event for which the call waited.
        waited_for: Awaited,
        /// How long no packet of the peer was received: at least the setting `peer_timeout`.
        silent_for: Duration,
        /// Number of probes that the peer left unanswered.
        probes_unanswered: u32,
        /// The history of the call.
        story: Box<CallStory>,
    },
    /// Peer: the network reports that the peer cannot be reached, or that no node listens there.
    #[error("peer unreachable: {error}{note}", note = if *.sent { "" } else { "; the request was not executed" })]
    PeerUnreachable {
        /// The report of the network.
        error: PathError,
        /// Whether the whole request was sent, so that the server may have executed it.
        sent: bool,
    },
    /// Peer: the node does not serve the port. The request was not executed.
    #[error("no service listens at this port of the peer")]
    NoSuchPort,
    /// Peer: its handler panicked with the request, which may have been executed in part. It will not be executed again. If the
    /// report of the panic is lost, the call ends with [`ResponseLost`](Self::ResponseLost) instead.
    #[error("the server's handler panicked")]
    HandlerPanicked,
    /// Peer: the server executed the request or gave it up, and there will be no response.
    #[error("the peer has given up the response")]
    ResponseLost,
    /// Peer: the run of the server that had the request is over, or has forgotten this client. The server was restarted, or one
    /// of the two was stopped or cut off for minutes. The request may have been executed once, and no other run of the server
    /// will execute it.
    #[error(
        "the server that had the request was restarted or has forgotten this client; the request may have been executed"
    )]
    MayHaveExecuted,
    /// Peer: it uses another version of the wire format. The request was not executed.
    #[error("the peer uses version {theirs} of the wire format, this node version {ours}")]
    OtherVersion {
        /// Wire version of this node.
        ours: u8,
        /// Wire version of the peer.
        theirs: u8,
    },
    /// Peer: the request is longer than the peer ever accepts (its `message_max` or budgets). It was not executed.
    #[error("request of {length} bytes: longer than the peer accepts")]
    RequestTooLarge {
        /// Length of the request, in bytes.
        length: u32,
    },
    /// Peer: its budgets had no room whenever the request arrived. The request was not executed.
    #[error("the peer had no room for the request in {after:?} ({story})")]
    Overloaded {
        /// How long the client tried.
        after: Duration,
        /// The history of the call.
        story: Box<CallStory>,
    },
    /// The deadline given with the call passed. The request may have been executed, unless a part of it was not sent.
    #[error("deadline exceeded after {after:?}: {story}")]
    Deadline {
        /// Time from the start of the call to its deadline.
        after: Duration,
        /// The history of the call.
        story: Box<CallStory>,
    },
    /// The call was cancelled on this side. The request may have been executed.
    #[error("the call was cancelled")]
    Cancelled,
    /// The client or its node was closed on this side. The request may have been executed.
    #[error("the port is closed")]
    Closed,
    /// Local: the shared engine ([`Config::engine`](crate::Config::engine)) has ended while the call was under way. The request may
    /// have been executed. The node attaches again by itself.
    #[error("the shared engine has ended; the request may have been executed")]
    EngineEnded,
    /// Local: the shared engine ([`Config::engine`](crate::Config::engine)) has ended and was not found again yet. Nothing was
    /// sent.
    #[error("the shared engine has ended, and no successor was found yet")]
    NoEngine,
    /// Local: the memory shared with the peer, or with the shared engine, ended before the request was in it, and the request could
    /// not go over UDP instead; or a sealed path ended before the request was sent completely. The request was not executed.
    #[error("the path ended before the request was sent; it was not executed")]
    NotSent,
    /// Peer: its certificate has another name than this client expects. Nothing was sent to it.
    #[error("{0}; nothing was sent")]
    WrongPeer(Box<WrongPeer>),
    /// Peer or local: no sealed path to the node was made. Calls fail at once until the next handshake may begin, after 0.25 s at first
    /// and 30 s at most.
    #[error("no sealed path: {reason}{note}", note = if *.sent { "" } else { "; the request was not executed" })]
    HandshakeFailed {
        /// The cause, with the TLS alert and the words of the peer if it sent any.
        reason: String,
        /// Whether the request was sent behind the last frame of the handshake. The server drops it unless it has verified this node, but
        /// an attacker on the path could forge its refusal.
        sent: bool,
    },
    /// Misuse: this node has no certificate, so it speaks with its own machine only, and the address is of another one. Nothing was sent.
    /// Give the node a certificate ([`Config::tls_cert`](crate::Config::tls_cert)), or speak plain with everybody
    /// ([`Config::insecure`](crate::Config::insecure)).
    #[error(
        "the address is of another machine, and this node has no identity: set [tls] (try `apus dev-certs`), or insecure = true; nothing was sent"
    )]
    NoIdentity,
    /// Misuse: a `homa://` address, whose packets are never encrypted, is not of a host with which this node speaks plain
    /// ([`Config::tls_plain_peers`](crate::Config::tls_plain_peers), [`Config::insecure`](crate::Config::insecure)). Nothing was sent.
    #[error(
        "homa:// is never encrypted, and the host is not in tls_plain_peers (nor is insecure = true set); nothing was sent"
    )]
    NoPlainPeer,
    /// Peer: it has no certificate and speaks plain only, which this node's clients do not. Nothing was sent. Give the peer a
    /// certificate ([`Config::tls_cert`](crate::Config::tls_cert)), or use plain packets with the setting `tls_plain = use`.
    #[error(
        "the peer has no certificate (tls_cert) and speaks plain only; the request was not executed"
    )]
    PlainOnly,
    /// Peer: the rule of the service does not allow this node. The request was not executed.
    #[error("the service's rule does not allow this node; the request was not executed")]
    Forbidden,
    /// Peer: the node takes sealed packets only, at least of other machines, and this node has no identity (set `[tls]` at both, or
    /// `insecure = true` at the peer). The request was not executed.
    #[error(
        "the node takes sealed packets only, and this node has no identity (set [tls]); the request was not executed"
    )]
    SealedOnly,
    /// The call failed for a reason that this version of the library does not know.
    #[error("the call failed for a reason that this version does not know")]
    Other,
}

/// The peer that answered instead of the one that a client expects. From [`CallError::WrongPeer`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{address} is {name}; expected {expected}")]
pub struct WrongPeer {
    /// The address that was called.
    pub address: SocketAddr,
    /// The name of the certificate that was shown.
    pub name: String,
    /// The patterns of the peers that the client expects, with commas between them.
    pub expected: String,
}

/// Why a socket has no rule for its peers ([`Port::allow`](crate::Port::allow), [`Client::expect`](crate::Client::expect)).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// Misuse: a text is not a pattern.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// Misuse: the sockets of the node have too many different rules.
    #[error("the sockets of a node have at most {limit} different rules")]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// Misuse: the node has no certificate ([`Config::tls_cert`](crate::Config::tls_cert)), so that it knows no peer by name. With a
    /// shared engine ([`Config::engine`](crate::Config::engine)): that engine has none for this process.
    #[error("the node has no certificate (tls_cert), so it knows no peer by name")]
    NoIdentity,
    /// Misuse: the rule is longer than a shared engine ([`Config::engine`](crate::Config::engine)) takes.
    #[error("a shared engine takes at most {patterns} patterns with {bytes} bytes together")]
    TooLong {
        /// The limit for patterns.
        patterns: usize,
        /// The limit for their text, in bytes.
        bytes: usize,
    },
    /// Local: the shared engine ([`Config::engine`](crate::Config::engine)), which keeps the rules, has ended or does not answer.
    #[error("the shared engine, which keeps the rules, has ended or does not answer")]
    NoEngine,
    /// Misuse: the node was started by the parent of this process, before the fork.
    #[error("the node belongs to the parent of this process: start another one after the fork")]
    Forked,
    /// Local: a thread panicked inside the node and left it unusable.
    #[error("a thread panicked inside the node: start another one")]
    NodePanicked,
}

/// Why a node has no identity although its configuration names a certificate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// A file cannot be read.
    #[error("cannot read {file}: {source}", file = file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A file has the wrong contents.
    #[error("{file}: {reason}", file = file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// The fault.
        reason: String,
    },
    /// The [source](crate::Config::identity_source) of the certificate gives none, or one that cannot be used.
    #[error("the source of the node's certificate: {reason}")]
    Source {
        /// The fault.
        reason: String,
    },
}

impl Default for WrongPeer {
    /// Stands for a peer that another process knows.
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([0, 0, 0, 0], 0)),
            name: "another peer".to_owned(),
            expected: "the servers of the setting tls_servers".to_owned(),
        }
    }
}

impl CallError {
    /// Whether the server may have executed the request, or may still execute it. If not, it is safe to repeat the call,
    /// whatever the request does.
    ///
    /// ```
    /// use apus::CallError;
    /// assert!(!CallError::NoSuchPort.may_have_executed());
    /// assert!(CallError::Cancelled.may_have_executed());
    /// ```
    #[must_use]
    pub const fn may_have_executed(&self) -> bool {
        match self {
            Self::EmptyForLinux
            | Self::MessageTooLarge { .. }
            | Self::TooLargeForLinux { .. }
            | Self::UnspecifiedAddress(_)
            | Self::TooManyCalls { .. }
            | Self::OverBudget { .. }
            | Self::TooManyPeers { .. }
            | Self::NoEngine
            | Self::NotSent
            | Self::WrongPeer(_)
            | Self::NoIdentity
            | Self::NoPlainPeer
            | Self::PlainOnly
            | Self::NoSuchPort
            | Self::Forbidden
            | Self::SealedOnly
            | Self::OtherVersion { .. }
            | Self::RequestTooLarge { .. }
            | Self::Overloaded { .. } => false,
            Self::Deadline { story, .. } | Self::PeerTimeout { story, .. } => {
                story.may_have_executed()
            }
            Self::PeerUnreachable { sent, .. } | Self::HandshakeFailed { sent, .. } => *sent,
            Self::ResponseTooLarge { .. }
            | Self::OwnService { .. }
            | Self::Forked
            | Self::NodePanicked
            | Self::HandlerPanicked
            | Self::ResponseLost
            | Self::MayHaveExecuted
            | Self::EngineEnded
            | Self::Cancelled
            | Self::Closed
            | Self::Other => true,
        }
    }

    /// The history of the call, for an error of silence or time: how far its messages had come, the event for which it waited, and
    /// when the last packet of the peer came. Other errors name their cause.
    ///
    /// ```no_run
    /// # fn example(error: apus::CallError) {
    /// if let Some(story) = error.story() {
    ///     eprintln!("{} of {} bytes of the request were sent", story.sent, story.request);
    ///     eprintln!("details: apus trace explain {} *.trace", story.id);
    /// }
    /// # }
    /// ```
    #[must_use]
    pub const fn story(&self) -> Option<&CallStory> {
        match self {
            Self::PeerTimeout { story, .. }
            | Self::Overloaded { story, .. }
            | Self::Deadline { story, .. } => Some(story),
            _ => None,
        }
    }

    /// The error of a call that the core has refused. Semantic versioning does not cover it.
    #[doc(hidden)]
    #[cold]
    #[must_use]
    pub fn refused(error: apus_proto::CallError) -> Self {
        use apus_proto::CallError as Refused;
        match error {
            Refused::EmptyForLinux => Self::EmptyForLinux,
            Refused::MessageTooLarge { length, limit } => Self::MessageTooLarge { length, limit },
            Refused::TooLargeForLinux { length } => Self::TooLargeForLinux { length },
            Refused::TooManyCalls { limit } => Self::TooManyCalls { limit },
            Refused::TooManyPeers { limit } => Self::TooManyPeers { limit },
            Refused::OverBudget { length, room } => Self::OverBudget { length, room },
            Refused::NotExpected => Self::WrongPeer(Box::default()),
            // `SocketClosed`, and whatever a later core may refuse a closed socket for.
            _ => Self::Closed,
        }
    }

    //= docs/protocol.md#seal-17
    /// The error of a call to an address with which the node exchanges no plain packets.
    #[cold]
    pub(crate) fn barred(host: SocketAddr) -> Self {
        if is_native(host) { Self::NoPlainPeer } else { Self::NoIdentity }
    }

    /// The error of a call that has failed in the core. Semantic versioning does not cover it.
    #[doc(hidden)]
    #[cold]
    #[must_use]
    pub fn failed(failed: CallFailed) -> Self {
        match failed {
            CallFailed::PeerTimeout { waited_for, silent_for, probes_unanswered, story } => {
                Self::PeerTimeout { waited_for, silent_for, probes_unanswered, story }
            }
            CallFailed::Unreachable { error, sent } => Self::PeerUnreachable { error, sent },
            CallFailed::NoSuchPort => Self::NoSuchPort,
            CallFailed::NotAllowed => Self::Forbidden,
            CallFailed::SealedOnly => Self::SealedOnly,
            CallFailed::HandshakeFailed => {
                Self::HandshakeFailed { reason: "the handshake has failed".to_owned(), sent: false }
            }
            // From a shared engine without an identity for this process.
            CallFailed::NotExpected => Self::NoIdentity,
            CallFailed::ResponseLost => Self::ResponseLost,
            CallFailed::MayHaveExecuted => Self::MayHaveExecuted,
            CallFailed::EngineEnded => Self::EngineEnded,
            CallFailed::NotSent => Self::NotSent,
            CallFailed::EmptyForLinux => Self::EmptyForLinux,
            CallFailed::OtherVersion { ours, theirs } => Self::OtherVersion { ours, theirs },
            CallFailed::HandlerPanicked => Self::HandlerPanicked,
            CallFailed::RequestTooLarge { length } => Self::RequestTooLarge { length },
            CallFailed::Overloaded { after, story } => Self::Overloaded { after, story },
            CallFailed::DeadlineExceeded { after, story } => Self::Deadline { after, story },
            CallFailed::ResponseTooLarge { length, limit } => {
                Self::ResponseTooLarge { length, limit }
            }
            _ => Self::Other,
        }
    }
}

/// Why the node did not accept a response. Part of [`ReplyFailed`](crate::ReplyFailed), which gives the request back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplyError {
    /// Misuse: the response is empty, which a peer with the Linux module does not accept.
    #[error("empty response: a peer with the Linux module (homa://) accepts at least 1 byte")]
    EmptyForLinux,
    /// Misuse: the response is longer than the limit.
    #[error("response of {length} bytes: at most {limit} are allowed")]
    MessageTooLarge {
        /// Length of the response, in bytes.
        length: usize,
        /// The limit (configuration `message_max`), in bytes.
        limit: u32,
    },
    /// Misuse: the response is longer than a peer with the Linux module accepts.
    #[error(
        "response of {length} bytes: a peer with the Linux module (homa://) accepts at most {MAX_LINUX_MESSAGE}"
    )]
    TooLargeForLinux {
        /// Length of the response, in bytes.
        length: usize,
    },
    /// Local: the response does not fit the budgets beside the responses that this client, or all clients, have not
    /// acknowledged. Answer later or with a shorter response, or raise `peer_budget`, `socket_budget` and `total_budget`.
    /// Responses may use half of each. A response no longer than its request always fits.
    #[error("response of {length} bytes: the budgets leave room for {room}")]
    OverBudget {
        /// Length of the response, in bytes.
        length: usize,
        /// The longest response that would fit, in bytes.
        room: u64,
    },
    /// Misuse: the node was started by the parent of this process, before the fork. Only the parent can answer the request.
    #[error("the node belongs to the parent of this process: start another one after the fork")]
    Forked,
    /// Local: a thread panicked inside the node and left it unusable. The response may have been sent.
    #[error("a thread panicked inside the node: start another one")]
    NodePanicked,
    /// Peer: the client has given the call up or is lost; or the service was closed on this side.
    #[error("the client no longer waits for this response")]
    Gone,
}

impl ReplyError {
    #[cold]
    pub(crate) fn refused(error: apus_proto::ReplyError) -> Self {
        use apus_proto::ReplyError as Refused;
        match error {
            Refused::EmptyForLinux => Self::EmptyForLinux,
            Refused::MessageTooLarge { length, limit } => Self::MessageTooLarge { length, limit },
            Refused::TooLargeForLinux { length } => Self::TooLargeForLinux { length },
            Refused::OverBudget { length, room } => Self::OverBudget { length, room },
            // `NotInService`, and whatever a later core may say of a request that is over.
            _ => Self::Gone,
        }
    }
}

/// Why no message was received.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecvError {
    /// No message arrived in the time given.
    #[error("no message arrived in time")]
    Timeout,
    /// No message waits ([`Port::try_recv`](crate::Port::try_recv), [`Client::try_recv`](crate::Client::try_recv)).
    #[error("no message is waiting")]
    Empty,
    /// The client, the service or its node was closed on this side.
    #[error("the port is closed")]
    Closed,
    /// Misuse: the node was started by the parent of this process, before the fork. Its messages belong to the parent.
    #[error("the node belongs to the parent of this process: start another one after the fork")]
    Forked,
    /// Local: a thread panicked inside the node and left it unusable. Waiting messages are lost.
    #[error("a thread panicked inside the node: start another one")]
    NodePanicked,
}

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Misuse: [`Config::check`](crate::Config::check) finds an error.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Another program, or another node, uses this address and port.
    #[error("{0} is already in use")]
    AddressInUse(SocketAddr),
    /// No interface of this machine has this address.
    #[error("{0} is not an address of this machine")]
    AddressNotAvailable(SocketAddr),
    /// The process lacks the permission to bind this port or, for a raw link, `CAP_NET_RAW`.
    #[error("{0}")]
    PermissionDenied(String),
    /// The link could not be opened for another reason.
    #[error("{0}")]
    Link(String),
    /// A node with a raw link can have only one shard.
    #[error("shards = {shards}: expected 1 with 'link = raw' or 'link = both'")]
    RawShards {
        /// The number of shards in the configuration.
        shards: usize,
    },
    /// A probe was asked for of an unspecified address (`0.0.0.0`, `[::]`), which is the address of no peer.
    #[error("cannot probe {0}: {ip} is an address to listen on, not the address of a node", ip = .0.host.ip())]
    UnspecifiedAddress(Address),
    /// The shared engine ([`Config::engine`](crate::Config::engine)) cannot be used, or its socket cannot be opened.
    #[error("shared engine at {path}: {source}", path = path.display())]
    Engine {
        /// The engine's socket.
        path: PathBuf,
        /// The error of the system, or a description of the fault of the engine.
        source: io::Error,
    },
    /// The file of [`Config::capture`](crate::Config::capture) cannot be written.
    #[error("cannot write capture file '{path}': {source}", path = path.display())]
    Capture {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The process has no file descriptor left.
    #[error("no descriptor for the links: {0}")]
    Descriptor(#[source] io::Error),
    /// The system has no memory left.
    #[error("no memory for the node: {0}")]
    Memory(#[source] io::Error),
    /// The files of the settings `tls_*` give the node no identity.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The system cannot start the background thread.
    #[error("no background thread: {0}")]
    Thread(#[source] io::Error),
}

impl StartError {
    pub(crate) fn no_memory() -> Self {
        Self::Memory(io::ErrorKind::OutOfMemory.into())
    }

    pub(crate) fn of_link(error: LinkError) -> Self {
        match error {
            LinkError::AddressInUse { addr } => Self::AddressInUse(addr),
            LinkError::AddressNotAvailable { addr } => Self::AddressNotAvailable(addr),
            LinkError::PermissionDenied { .. } | LinkError::Capability { .. } => {
                Self::PermissionDenied(error.to_string())
            }
            other => Self::Link(other.to_string()),
        }
    }
}

/// Why a node did not end in order. It is stopped nevertheless, unless it belongs to another process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// The deadline passed before all calls, requests and responses had ended.
    #[error("{active} RPCs had not ended {after:?} after the close began")]
    Unfinished {
        /// Number of calls without response, requests without answer, and unacknowledged responses.
        active: usize,
        /// The deadline given to [`Node::close`](crate::Node::close).
        after: Duration,
    },
    /// Misuse: the node was started by the parent of this process, before the fork. It continues to run there.
    #[error("the node belongs to the parent of this process: start another one after the fork")]
    Forked,
    /// Local: a thread panicked inside the node and left it unusable. Its link is closed when the last client, service, call
    /// and request of the node is dropped.
    #[error("a thread panicked inside the node: start another one")]
    NodePanicked,
}
