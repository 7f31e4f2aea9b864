//! Calls that a path within the host has not carried when it ends: they go by another path.

use std::collections::BTreeSet;

use apus_wire::PathId;

use crate::body::Body;
use crate::cookie::Cookie;
use crate::endpoint::Endpoint;
use crate::endpoint::event::{CallOptions, Event};
use crate::error::CallFailed;
use crate::local::{CallRole, LocalCall, OutboundMessage};
use crate::remote::Remote;
use crate::slab::{RpcKey, SocketKey};
use crate::time::Time;
use crate::usage::Account;

/// Calls that no peer can have executed, removed from their path ([`Endpoint::take_unsent`]).
#[must_use = "calls end in no other way than by begin_unsent"]
#[derive(Debug, Default)]
pub struct UnsentCalls(Vec<Unsent>);

#[derive(Debug)]
struct Unsent {
    /// The application's handle of the call until now.
    rpc: RpcKey,
    socket: SocketKey,
    /// The server's port.
    port: u16,
    body: Body,
    options: CallOptions,
}

/// A call that moves to another path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moved {
    /// The socket that called.
    pub socket: SocketKey,
    /// The cookie passed to [`Endpoint::call`](crate::Endpoint::call).
    pub cookie: Cookie,
    /// The new handle of the call.
    pub rpc: RpcKey,
}

impl UnsentCalls {
    /// Returns whether there are no calls.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Endpoint {
    /// Removes the calls to the peer at `path`, which is about to be [removed](Self::remove_local), that the peer cannot have
    /// executed: those that were passed to no sink, those that the peer has refused for the moment, and those with an id for which
    /// `is_unsent` is true. The path has not carried the last byte of such a request. Continue with
    /// [`begin_unsent`](Self::begin_unsent).
    pub fn take_unsent(&mut self, path: PathId, is_unsent: &dyn Fn(u64) -> bool) -> UnsentCalls {
        //= docs/protocol.md#local-8
        let request = |message: &OutboundMessage| match message {
            OutboundMessage::Request(key) => Some(*key),
            OutboundMessage::Response(..) | OutboundMessage::Control(..) => None,
        };
        let outbound: BTreeSet<RpcKey> = self.local.outbound.iter().filter_map(request).collect();
        let of_peer =
            |call: &LocalCall| call.peer == path.index() && call.account() == Account::Own;
        let keys = self.local.find(of_peer).into_iter();
        let unsent: Vec<_> = keys
            .filter_map(|rpc| {
                let call = self.local.get_mut(rpc)?;
                let refused = call.client_mut()?.waits;
                if !refused && !outbound.contains(&rpc) && !is_unsent(call.id) {
                    return None;
                }
                let LocalCall { socket, expires: deadline, role, .. } = self.end_local(rpc)?;
                let CallRole::Client(client) = role else { return None };
                let options = CallOptions { cookie: client.cookie, deadline, trace: client.trace };
                Some(Unsent { rpc, socket, port: client.ports.1, body: client.body, options })
            })
            .collect();
        let local = &mut self.local;
        let mut outbound = std::mem::take(&mut local.outbound);
        outbound.retain(|message| request(message).is_none_or(|key| local.get(key).is_some()));
        local.outbound = outbound;
        UnsentCalls(unsent)
    }

    /// Begins calls again by the path `to`, under other handles. Calls that cannot go there fail as [`CallFailed::NotSent`];
    /// without such a path, all of them do.
    pub fn begin_unsent(
        &mut self,
        now: Time,
        calls: UnsentCalls,
        to: Option<PathId>,
    ) -> Vec<Moved> {
        //= docs/protocol.md#local-8
        let mut moved = Vec::with_capacity(calls.0.len());
        for Unsent { rpc, socket, port, body, options } in calls.0 {
            let cookie = options.cookie;
            let begun = match to {
                Some(path) => self.call(now, socket, Remote::new(path, port), body, options).ok(),
                None => {
                    self.discard(body);
                    None
                }
            };
            let counters = &mut self.parts.counters;
            if let Some(rpc) = begun {
                counters.calls -= 1; // It was counted when it began.
                counters.calls_begun_anew += 1;
                moved.push(Moved { socket, cookie, rpc });
            } else {
                counters.calls_failed += 1;
                let error = CallFailed::NotSent;
                self.parts.events.push_back(Event::Failed {
                    socket,
                    rpc,
                    cookie,
                    path: None,
                    error,
                });
            }
        }
        moved
    }
}
