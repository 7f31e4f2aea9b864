//! Events for the application, and the options of its calls.

use apus_wire::{PathId, TraceContext};
use bytes::Bytes;

use crate::body::Body;
use crate::cookie::Cookie;
use crate::error::CallFailed;
use crate::remote::Remote;
use crate::slab::{RpcKey, SocketKey};
use crate::time::Time;

/// An event for the application.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A complete request arrived. It is in service until [`Endpoint::reply`](crate::Endpoint::reply) or
    /// [`Endpoint::abort`](crate::Endpoint::abort).
    Request {
        /// The destination socket.
        socket: SocketKey,
        /// The RPC to answer.
        rpc: RpcKey,
        /// The client.
        from: Remote,
        /// Time at which the client gives the call up, if it has stated one. From then on [`is_active`](crate::Endpoint::is_active)
        /// is false.
        deadline: Option<Time>,
        /// The call's context in a distributed trace, if the client has stated one. Boxed, because few calls have one.
        trace: Option<Box<TraceContext>>,
        /// The request.
        body: Bytes,
    },
    /// The client of a request that is [watched](crate::Endpoint::watch) no longer waits, or the RPC has ended. A request in service
    /// stays until [`Endpoint::abort`](crate::Endpoint::abort).
    Cancelled {
        /// The destination socket.
        socket: SocketKey,
        /// The request.
        rpc: RpcKey,
    },
    /// The response of a call. The RPC has ended.
    Response {
        /// The socket that called.
        socket: SocketKey,
        /// The call.
        rpc: RpcKey,
        /// The cookie passed to [`Endpoint::call`](crate::Endpoint::call).
        cookie: Cookie,
        /// The response.
        body: Bytes,
    },
    /// The peer of an [`Endpoint::connect`](crate::Endpoint::connect) is known. The RPC has ended.
    Connected {
        /// The socket that connected.
        socket: SocketKey,
        /// The RPC.
        rpc: RpcKey,
        /// The cookie passed to [`Endpoint::connect`](crate::Endpoint::connect).
        cookie: Cookie,
    },
    /// A call ended without a response. The RPC has ended.
    Failed {
        /// The socket that called.
        socket: SocketKey,
        /// The call.
        rpc: RpcKey,
        /// The cookie passed to [`Endpoint::call`](crate::Endpoint::call).
        cookie: Cookie,
        /// The path to the peer, if the call went over the network.
        path: Option<PathId>,
        /// The reason.
        error: CallFailed,
    },
}

impl Event {
    /// Returns the socket of the event.
    #[must_use]
    pub fn socket(&self) -> SocketKey {
        match *self {
            Self::Request { socket, .. }
            | Self::Cancelled { socket, .. }
            | Self::Response { socket, .. }
            | Self::Connected { socket, .. }
            | Self::Failed { socket, .. } => socket,
        }
    }
}

/// Options of a call beside its destination and body.
#[derive(Clone, Debug, Default)]
pub struct CallOptions {
    /// Returned with the events of the call.
    pub cookie: Cookie,
    /// Time at which to give up; `None`: only if the peer is lost.
    pub deadline: Option<Time>,
    /// The call's context in a distributed trace. The server receives it, unless that is a Linux host; it has no other effect.
    /// Boxed, because few calls have one.
    pub trace: Option<Box<TraceContext>>,
}

/// Bodies of messages that an endpoint no longer needs ([`Endpoint::take_spent`](crate::Endpoint::take_spent)).
#[derive(Default, Debug)]
pub struct SpentBodies(pub(super) Vec<Body>);

impl SpentBodies {
    /// Drops the bodies and keeps the memory of their list, unless that is large.
    #[inline]
    pub fn clear(&mut self) {
        self.0.clear();
        if self.0.capacity() > SPENT_KEPT {
            self.0 = Vec::new();
        }
    }
}

/// Upper bound on the bodies for which an empty list keeps memory: 8 KiB, more than a turn within the host leaves.
const SPENT_KEPT: usize = 256;
