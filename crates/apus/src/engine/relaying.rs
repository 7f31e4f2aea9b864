//! What the engine does for other processes ([`crate::relay`]).

use std::mem;
use std::net::SocketAddr;

use apus_proto::slab::Handle;
use apus_proto::{
    CallFailed, CallOptions, Endpoint, Event, FIRST_CLIENT_PORT, MessageKind, Remote, ReplyError,
    RpcKey, SocketKey, Time, Words,
};
use apus_wire::{PathError, PathId, TraceContext, UnknownReason};
use bytes::Bytes;

use super::Engine;
use crate::attach::{AttachKind, Opened, decode_address};
use crate::clock;
use crate::neighbour_key::NeighbourKey;
use crate::relay::{Again, Limits, Origin, Relay, RelayKey, Relayed};

impl Engine {
    /// Moves on what is under way for other processes.
    #[inline]
    pub(super) fn relay(&mut self, now: Time) {
        let relay = self.neighbours.as_mut().and_then(|neighbours| neighbours.relay.take());
        let Some(mut relay) = relay else { return };
        self.relay_messages(now, &mut relay);
        if let Some(neighbours) = &mut self.neighbours {
            neighbours.relay = Some(relay);
        }
    }

    fn relay_messages(&mut self, now: Time, relay: &mut Relay) {
        for _ in 0..relay.arrived.len() {
            let Some((from, words, body)) = relay.arrived.pop_front() else { break };
            if !self.relay_message(now, relay, from, words, body) {
                relay.processes.get_mut(&from).into_iter().for_each(|process| process.lied = true);
                self.end_process(from, "what no process sends that uses an engine");
            }
        }
        for _ in 0..relay.again.len() {
            let Some(key) = relay.next_again(now) else { break };
            self.relay_again(now, relay, key);
        }
        for _ in 0..LEFT_MAX {
            let Some(key) = relay.left.pop_front() else { break };
            self.clear_away(relay, key);
        }
        if relay.left.is_empty() {
            relay.closing.drain(..).for_each(|socket| self.endpoint.close(socket));
        }
    }

    fn end_process(&mut self, key: NeighbourKey, why: &'static str) {
        if let Some(neighbours) = &mut self.neighbours {
            neighbours.end_process(key, why);
        }
    }

    /// Takes a message of a process. False if no process sends it that uses an engine.
    #[inline]
    fn relay_message(
        &mut self,
        now: Time,
        relay: &mut Relay,
        from: NeighbourKey,
        words: Words,
        body: Bytes,
    ) -> bool {
        let process = relay.processes.get_mut(&from).filter(|process| !process.lied);
        let Some(process) = process else {
            self.endpoint.discard(body);
            return true; // It has ended, or is about to.
        };
        process.counters.bytes_sent += body.len() as u64;
        match AttachKind::decode(words) {
            Some(AttachKind::Address { id }) => {
                let address = decode_address(&body);
                return address.is_some_and(|address| relay.tell_address(from, id, address));
            }
            Some(AttachKind::Open { port }) => {
                self.relay_open(relay, from, port);
                return true;
            }
            Some(AttachKind::Close { port }) => {
                self.relay_close(relay, from, port);
                return true;
            }
            Some(AttachKind::Welcome { .. } | AttachKind::Opened { .. }) => return false,
            None => {}
        }
        let key = RelayKey::from_bits(words[1]);
        match MessageKind::decode(words) {
            Some((kind @ MessageKind::Request { from: own, .. }, id))
                if own >= FIRST_CLIENT_PORT =>
            {
                match relay.take_told(from, id) {
                    Some((to, trace)) => {
                        self.relay_request(now, relay, (from, id), (to, kind), trace, body);
                    }
                    // It was given up when a part of it had been sent, and the ABORT has overtaken the rest.
                    None => self.endpoint.discard(body),
                }
            }
            Some((MessageKind::Response, _)) => {
                self.relay_response(now, relay, from, key, body);
            }
            Some((MessageKind::Refused(reason), _)) => {
                self.relay_refusal(now, relay, from, key, reason);
            }
            Some((MessageKind::Abort, id)) => self.relay_abort(relay, from, id),
            Some((MessageKind::Trace, id)) => return relay.tell_trace(from, id, &body),
            Some((MessageKind::Probe, _)) => {
                relay.send(from, MessageKind::Alive.encode(0), Bytes::new());
            }
            _ => return false,
        }
        true
    }

    /// A process wants to serve a port.
    #[cold]
    fn relay_open(&mut self, relay: &mut Relay, from: NeighbourKey, port: u16) {
        let Some(process) = relay.processes.get(&from) else { return };
        let owner = relay.server(port);
        let opened = if !relay.limits.allow(process.uid, port) {
            Opened::Forbidden
        } else if owner == Some(from) {
            Opened::Yes
        } else if process.sockets.len() >= SOCKETS_MAX {
            Opened::InUse
        } else if let Some(owner) = owner
            && self.neighbours.as_ref().is_some_and(|neighbours| neighbours.has_ended(owner))
        {
            // The port is free when what the other process has left behind is cleared away.
            self.end_process(owner, "nothing any more");
            let again = AttachKind::Open { port }.encode();
            return relay.arrived.push_back((from, again, Bytes::new()));
        } else {
            match self.endpoint.open(Some(port)) {
                Ok(socket) => {
                    relay.own(socket, from, port);
                    Opened::Yes
                }
                Err(_) if !relay.closing.is_empty() => {
                    let again = AttachKind::Open { port }.encode();
                    return relay.arrived.push_back((from, again, Bytes::new()));
                }
                Err(_) => Opened::InUse,
            }
        };
        relay.send(from, AttachKind::Opened { port, opened }.encode(), Bytes::new());
    }

    fn relay_close(&mut self, relay: &mut Relay, from: NeighbourKey, port: u16) {
        let socket = relay.processes.get_mut(&from).and_then(|it| it.sockets.remove(&port));
        if let Some(socket) = socket {
            relay.disown(socket);
            self.endpoint.close(socket);
        }
    }

    /// A process calls a node.
    #[inline]
    fn relay_request(
        &mut self,
        now: Time,
        relay: &mut Relay,
        (from, id): (NeighbourKey, u64),
        (to, kind): (SocketAddr, MessageKind),
        trace: Option<Box<TraceContext>>,
        body: Bytes,
    ) {
        let MessageKind::Request { from: own, to: port, remaining } = kind else { return };
        let budget = relay.limits.process_budget;
        let Some(process) = relay.processes.get_mut(&from) else { return };
        let charge = body.len() as u64 + CALL_BYTES;
        if process.calls.contains_key(&id) {
            return self.endpoint.discard(body); // No honest process calls twice by one id.
        }
        let client = Origin { process: from, id, charge };
        if process.held + process.unread() + charge > budget {
            process.counters.over_budget += 1;
            let reason =
                if charge > budget { UnknownReason::TooLarge } else { UnknownReason::OverBudget };
            relay.send(from, MessageKind::Refused(reason).encode(id), Bytes::new());
            return self.endpoint.discard(body);
        }
        process.held += charge;
        process.counters.calls += 1;
        let Some(path) = self.link.resolve(to) else {
            self.endpoint.discard(body);
            let (error, sent) = (PathError::NoLink, false);
            return relay.fail(client, CallFailed::Unreachable { error, sent });
        };
        if self.is_this_node(to, path) {
            return self.relay_directly(relay, client, (to, kind), trace, body);
        }
        let socket = match process.sockets.get(&own) {
            Some(&socket) => Some(socket),
            None if process.sockets.len() >= SOCKETS_MAX => None,
            None => self.endpoint.open(None).ok().inspect(|&socket| relay.own(socket, from, own)),
        };
        let Some(socket) = socket else {
            self.endpoint.discard(body);
            return relay.answer(
                client,
                MessageKind::Refused(UnknownReason::OverBudget),
                Bytes::new(),
            );
        };
        let to = self.route(now, Remote::new(path, port));
        let deadline = remaining.map(|remaining| now + remaining);
        let options = CallOptions { deadline, trace, ..CallOptions::default() };
        self.relay_call(now, relay, client, (socket, to), body, options);
    }

    /// Makes a call for a process.
    #[inline]
    fn relay_call(
        &mut self,
        now: Time,
        relay: &mut Relay,
        client: Origin,
        (socket, to): (SocketKey, Remote),
        body: Bytes,
        options: CallOptions,
    ) {
        let rpc = RpcKey::from_bits(0); // Until it is known.
        let key = relay.under_way.insert(Relayed::Call { client, rpc });
        let options = CallOptions { cookie: key.to_bits(), ..options };
        match self.endpoint.call(now, socket, to, body, options) {
            Ok(started) => {
                if let Some(Relayed::Call { rpc, .. }) = relay.under_way.get_mut(key) {
                    *rpc = started;
                }
                if let Some(process) = relay.processes.get_mut(&client.process) {
                    process.calls.insert(client.id, key);
                }
                self.endpoint.tell_paths(&mut *self.link);
            }
            Err(error) => {
                relay.under_way.remove(key);
                match Relay::refusal(error) {
                    Ok(reason) => relay.answer(client, MessageKind::Refused(reason), Bytes::new()),
                    Err(error) => relay.fail(client, error),
                }
            }
        }
    }

    /// Whether a process calls the node of this very engine.
    #[inline]
    fn is_this_node(&self, to: SocketAddr, path: PathId) -> bool {
        let local = self.link.local_addr();
        let is_any = local.ip().is_unspecified() && self.link.path(path).loopback;
        to.port() == local.port() && (to.ip() == local.ip() || is_any)
    }

    /// A process calls another one.
    fn relay_directly(
        &mut self,
        relay: &mut Relay,
        client: Origin,
        (to, kind): (SocketAddr, MessageKind),
        trace: Option<Box<TraceContext>>,
        body: Bytes,
    ) {
        let MessageKind::Request { to: port, .. } = kind else { return };
        let server = relay.server(port);
        let process = server.and_then(|server| Some((server, relay.processes.get_mut(&server)?)));
        let refusal = match process {
            None => UnknownReason::NoSuchPort,
            Some((_, process)) if process.unread() > relay.limits.process_budget => {
                UnknownReason::OverBudget
            }
            Some((server, process)) => {
                process.counters.requests += 1;
                let key = relay.under_way.insert(Relayed::Direct { client, server, node: to });
                if let Some(process) = relay.processes.get_mut(&client.process) {
                    process.calls.insert(client.id, key);
                }
                return relay.send_request(server, key, (to, kind), trace, body);
            }
        };
        self.endpoint.discard(body);
        relay.answer(client, MessageKind::Refused(refusal), Bytes::new());
    }

    /// A process answers a request.
    #[inline]
    fn relay_response(
        &mut self,
        now: Time,
        relay: &mut Relay,
        from: NeighbourKey,
        key: RelayKey,
        body: Bytes,
    ) {
        match relay.under_way.get_mut(key) {
            Some(Relayed::Direct { client, server, .. }) if *server == from => {
                let client = *client;
                relay.under_way.remove(key);
                relay.answer(client, MessageKind::Response, body);
            }
            Some(Relayed::Request { server, again, .. })
                if *server == from && again.response.is_none() =>
            {
                if let Some(process) = relay.processes.get_mut(&from) {
                    process.kept += body.len() as u64;
                }
                again.response = Some(body);
                self.relay_again(now, relay, key);
            }
            _ => self.endpoint.discard(body), // Nobody waits for it any more.
        }
    }

    /// Tries again what had no room: to give the response of a request, or to send the request to its process.
    fn relay_again(&mut self, now: Time, relay: &mut Relay, key: RelayKey) {
        let Some(Relayed::Request { server, rpc, again }) = relay.under_way.get_mut(key) else {
            return;
        };
        let (server, rpc) = (*server, *rpc);
        let Some(response) = again.response.clone() else {
            return match self.endpoint.is_active(rpc) {
                true => relay.send_again(now, key),
                false => self.clear_away(relay, key),
            };
        };
        let to = again.path;
        if !to.is_local() && self.endpoint.is_active(rpc) {
            self.know_path(now, to);
        }
        match self.endpoint.reply(now, rpc, response) {
            Err(ReplyError::OverBudget { .. }) if relay.may_keep(server) => {
                return relay.try_again(now, key);
            }
            Err(ReplyError::NotInService) | Ok(()) => {}
            // It is longer than this node sends, or one of too many that wait.
            Err(_) => {
                self.endpoint.reject(rpc, UnknownReason::Finished);
            }
        }
        if let Some(Relayed::Request { again, .. }) = relay.take(key) {
            self.endpoint.discard(again.body);
        }
    }

    /// A process does not take a request, or has given it up.
    fn relay_refusal(
        &mut self,
        now: Time,
        relay: &mut Relay,
        from: NeighbourKey,
        key: RelayKey,
        reason: UnknownReason,
    ) {
        match relay.under_way.get(key) {
            Some(&Relayed::Direct { client, server, .. }) if server == from => {
                relay.under_way.remove(key);
                relay.answer(client, MessageKind::Refused(reason), Bytes::new());
            }
            Some(&Relayed::Request { server, rpc, .. }) if server == from => {
                if reason == UnknownReason::OverBudget {
                    return relay.try_again(now, key);
                }
                relay.take(key);
                self.give_up(rpc, reason);
            }
            _ => {}
        }
    }

    /// A process gives a call up.
    fn relay_abort(&mut self, relay: &mut Relay, from: NeighbourKey, id: u64) {
        relay.take_told(from, id);
        let Some(process) = relay.processes.get_mut(&from) else { return };
        let Some(key) = process.calls.remove(&id) else { return };
        if let Some(Relayed::Call { client, .. } | Relayed::Direct { client, .. }) =
            relay.under_way.get(key)
        {
            process.held -= client.charge;
        }
        self.clear_away(relay, key);
    }

    /// Gives up what is under way for a process that waits for it no more or has ended.
    fn clear_away(&mut self, relay: &mut Relay, key: RelayKey) {
        match relay.take(key) {
            Some(Relayed::Call { rpc, .. }) => {
                self.endpoint.abort(rpc);
            }
            Some(Relayed::Request { rpc, .. }) => {
                self.give_up(rpc, UnknownReason::Finished);
            }
            Some(Relayed::Direct { client, server, node }) => {
                let calls = relay.processes.get(&client.process).map(|process| &process.calls);
                if calls.is_some_and(|calls| calls.get(&client.id) == Some(&key)) {
                    // The server has ended.
                    return relay.fail(client, CallFailed::MayHaveExecuted);
                }
                let abort = (node, MessageKind::Abort);
                relay.send_request(server, key, abort, None, Bytes::new());
            }
            None => {}
        }
    }

    /// Gives up the requests of processes that nobody waits for any more, and tells them. Looks if the node has given any up.
    #[inline]
    pub(super) fn give_up_requests(&mut self) {
        let Some(relay) = self.neighbours.as_mut().and_then(|it| it.relay.as_mut()) else { return };
        let counters = self.endpoint.counters();
        let given_up =
            counters.requests_cancelled + counters.requests_expired + counters.requests_orphaned;
        if mem::replace(&mut relay.given_up, given_up) != given_up {
            relay.unlooked = relay.under_way.slots();
        }
        for _ in 0..LEFT_MAX.min(relay.unlooked) {
            relay.unlooked -= 1;
            let Some((key, Relayed::Request { server, rpc, again })) =
                relay.under_way.at(relay.unlooked)
            else {
                continue;
            };
            if self.endpoint.is_active(*rpc) {
                continue;
            }
            let (server, rpc, from) = (*server, *rpc, again.from);
            relay.send_request(server, key, (from, MessageKind::Abort), None, Bytes::new());
            relay.take(key);
            self.endpoint.abort(rpc);
        }
    }

    /// Ends a request, whether somebody waits for it or not.
    fn give_up(&mut self, rpc: RpcKey, reason: UnknownReason) {
        if !self.endpoint.reject(rpc, reason) {
            self.endpoint.abort(rpc);
        }
    }

    /// Changes who may use the engine. Returns how many processes may not any more.
    pub(crate) fn set_relay_limits(&mut self, limits: Limits) -> usize {
        let ended = self.neighbours.as_mut().map_or(0, |neighbours| neighbours.set_limits(limits));
        if let Some(relay) = self.relaying() {
            let waiter = relay.waiter.take(); // The thread of the engine clears away what has ended.
            self.mail.wakes.extend(waiter);
        }
        ended
    }

    /// Wakes the thread of the engine.
    pub(crate) fn stop_relaying(&mut self) {
        if let Some(relay) = self.neighbours.as_mut().and_then(|it| it.relay.as_mut()) {
            relay.stopped = true;
            self.mail.wakes.extend(relay.waiter.take());
        }
    }
}

impl Relay {
    /// Takes an event of a socket of `process`, which knows it as `port`. `client`: the node that a request is from.
    #[inline]
    pub(super) fn event(
        &mut self,
        (process, port): (NeighbourKey, u16),
        event: Event,
        client: Option<SocketAddr>,
        endpoint: &mut Endpoint,
    ) {
        let (cookie, kind, body) = match event {
            Event::Response { cookie, body, .. } => (cookie, MessageKind::Response, body),
            Event::Failed { cookie, error, .. } => {
                (cookie, MessageKind::Failed, Bytes::copy_from_slice(&error.encode()))
            }
            Event::Request { rpc, body, .. } if body.len() as u64 > self.limits.request_max() => {
                endpoint.reject(rpc, UnknownReason::TooLarge);
                return endpoint.discard(body);
            }
            Event::Request { rpc, from, deadline, trace, body, .. } => {
                let server = self.processes.get_mut(&process);
                let (Some(node), Some(server)) = (client, server) else { return };
                server.counters.requests += 1;
                let again = Box::new(Again {
                    from: node,
                    path: from.path,
                    ports: (from.port, port),
                    deadline,
                    trace,
                    body,
                    response: None,
                    waits: false,
                });
                let key = self.under_way.insert(Relayed::Request { server: process, rpc, again });
                return self.send_again(clock::now(), key);
            }
            Event::Connected { .. } => return, // A process makes no node known.
        };
        let key = RelayKey::from_bits(cookie);
        if let Some(Relayed::Call { client, .. }) = self.under_way.take(key) {
            self.answer(client, kind, body);
        }
    }
}

/// Calls and requests of processes that have ended, cleared away in a turn.
const LEFT_MAX: usize = 64;

/// Sockets that stand for ports of one process.
const SOCKETS_MAX: usize = 1_024;

/// Charged to a process for a call, beside its request.
const CALL_BYTES: u64 = 512;
