//! The part of a turn that serves attached processes ([`crate::shared_engine::forwarder`]).

use std::mem;
use std::net::SocketAddr;

use apus_proto::slab::Handle;
use apus_proto::{
    CallFailed, CallOptions, Cookie, Endpoint, Event, FIRST_CLIENT_PORT, MessageKind, Remote,
    ReplyError, RpcKey, SocketKey, Time, Words,
};
use apus_seal::SECURE_PORT;
use apus_wire::{TraceContext, UnknownReason};
use bytes::Bytes;

use crate::address::Address;
use crate::engine::Engine;
use crate::host::neighbour_key::NeighbourKey;
use crate::secure::peer::Peer;
use crate::shared_engine::described;
use crate::shared_engine::forwarder::{
    Again, ForwardKey, Forwarded, Forwarder, Limits, Origin, RequestOrigin,
};
use crate::shared_engine::messages::{AttachKind, Opened, decode_address};
use crate::shared_engine::peers::NO_PEER;
use crate::shared_engine::process_rules::{SOCKETS_MAX, TakenRule};
use crate::sync::clock;

impl Engine {
    /// Advances the calls and requests of attached processes.
    #[inline]
    pub(crate) fn forward(&mut self, now: Time) {
        let forwarder =
            self.neighbours.as_mut().and_then(|neighbours| neighbours.attachments.forwarder.take());
        let Some(mut forwarder) = forwarder else { return };
        self.forward_messages(now, &mut forwarder);
        if let Some(neighbours) = &mut self.neighbours {
            neighbours.attachments.forwarder = Some(forwarder);
        }
    }

    fn forward_messages(&mut self, now: Time, forwarder: &mut Forwarder) {
        for _ in 0..forwarder.arrived.len() {
            let Some((from, words, body)) = forwarder.arrived.pop_front() else { break };
            if !self.forward_message(now, forwarder, from, words, body) {
                forwarder
                    .processes
                    .get_mut(&from)
                    .into_iter()
                    .for_each(|process| process.expelled = true);
                self.end_process(from, "it sent a message that an attached process never sends");
            }
        }
        for _ in 0..forwarder.again.len() {
            let Some(key) = forwarder.next_again(now) else { break };
            self.forward_again(now, forwarder, key);
        }
        for _ in 0..LEFT_MAX {
            let Some(key) = forwarder.left.pop_front() else { break };
            self.clear_away(forwarder, key);
        }
        if forwarder.left.is_empty() {
            for (socket, rule) in forwarder.closing.drain(..) {
                self.endpoint.close(socket);
                self.release_rule(rule);
            }
        }
        forwarder.unused_rules.drain(..).for_each(|rule| self.release_rule(rule));
    }

    fn end_process(&mut self, key: NeighbourKey, why: &'static str) {
        if let Some(neighbours) = &mut self.neighbours {
            neighbours.end_process(key, why);
        }
    }

    /// Handles a message of a process. Returns `false` if the message violates the protocol.
    #[inline]
    fn forward_message(
        &mut self,
        now: Time,
        forwarder: &mut Forwarder,
        from: NeighbourKey,
        words: Words,
        body: Bytes,
    ) -> bool {
        let process = forwarder.processes.get_mut(&from).filter(|process| !process.expelled);
        let Some(process) = process else {
            self.endpoint.discard(body);
            return true; // It has ended, or is about to.
        };
        process.counters.bytes_sent += body.len() as u64;
        match AttachKind::decode(words) {
            Some(AttachKind::Address { id }) => {
                let address = decode_address(&body);
                return address
                    .is_some_and(|address| forwarder.announce_address(from, id, address));
            }
            Some(AttachKind::Open { port }) => {
                self.open_port(forwarder, from, port);
                return true;
            }
            Some(AttachKind::Close { port }) => {
                self.close_port(forwarder, from, port);
                return true;
            }
            Some(AttachKind::Rule { port, number, is_last, is_again }) => {
                let rule = TakenRule { port, number, is_again };
                return self.take_rule(now, forwarder, from, rule, is_last, &body);
            }
            Some(
                AttachKind::Welcome { .. }
                | AttachKind::Opened { .. }
                | AttachKind::Peer { .. }
                | AttachKind::RuleSet { .. },
            ) => return false,
            None => {}
        }
        let key = ForwardKey::from_bits(words[1]);
        match MessageKind::decode(words) {
            Some((kind @ MessageKind::Request { from: own, .. }, id))
                if own >= FIRST_CLIENT_PORT =>
            {
                match forwarder.take_announced(from, id) {
                    Some((to, trace)) => {
                        self.forward_request(now, forwarder, (from, id), (to, kind), trace, body);
                    }
                    // It was given up when a part of it had been sent, and the ABORT has overtaken the rest.
                    None => self.endpoint.discard(body),
                }
            }
            Some((MessageKind::Response, _)) => {
                self.forward_response(now, forwarder, from, key, body);
            }
            Some((MessageKind::Refused(reason), _)) => {
                self.forward_refusal(now, forwarder, from, key, reason);
            }
            Some((MessageKind::Abort, id)) => self.forward_abort(forwarder, from, id),
            Some((MessageKind::Trace, id)) => return forwarder.announce_trace(from, id, &body),
            Some((MessageKind::Probe, _)) => {
                forwarder.send(from, MessageKind::Alive.encode(0), Bytes::new());
            }
            _ => return false,
        }
        true
    }

    /// Handles the request of a process to serve a port.
    #[cold]
    fn open_port(&mut self, forwarder: &mut Forwarder, from: NeighbourKey, port: u16) {
        let Some(process) = forwarder.processes.get(&from) else { return };
        let owner = forwarder.server(port);
        let is_barred = port == SECURE_PORT || process.barred.contains(&port);
        let opened = if is_barred || !forwarder.limits.allow(process.uid, port) {
            Opened::Forbidden
        } else if owner == Some(from) {
            Opened::Yes
        } else if process.sockets.len() >= SOCKETS_MAX {
            Opened::InUse
        } else if let Some(owner) = owner
            && self.neighbours.as_ref().is_some_and(|neighbours| neighbours.has_ended(owner))
        {
            // The port is free once the entries of its former process are cleared away.
            self.end_process(owner, "nothing any more");
            let again = AttachKind::Open { port }.encode();
            return forwarder.arrived.push_back((from, again, Bytes::new()));
        } else {
            match self.endpoint.open(Some(port)) {
                Ok(socket) => {
                    forwarder.own(socket, from, port);
                    if self.apply_rule_of_process(forwarder, from, (socket, port)) {
                        Opened::Yes
                    } else {
                        self.close_port(forwarder, from, port);
                        Opened::Forbidden
                    }
                }
                Err(_) if !forwarder.closing.is_empty() => {
                    let again = AttachKind::Open { port }.encode();
                    return forwarder.arrived.push_back((from, again, Bytes::new()));
                }
                Err(_) => Opened::InUse,
            }
        };
        forwarder.send(from, AttachKind::Opened { port, opened }.encode(), Bytes::new());
    }

    fn close_port(&mut self, forwarder: &mut Forwarder, from: NeighbourKey, port: u16) {
        let Some(process) = forwarder.processes.get_mut(&from) else { return };
        process.barred.remove(&port);
        if let Some(rule) = process.rules.remove(&port) {
            self.release_rule(rule);
        }
        if let Some(socket) = process.sockets.remove(&port) {
            let rule = forwarder.disown(socket);
            self.endpoint.close(socket);
            self.release_rule(rule);
        }
    }

    /// Handles a call of a process to a node.
    #[inline]
    fn forward_request(
        &mut self,
        now: Time,
        forwarder: &mut Forwarder,
        (from, id): (NeighbourKey, u64),
        (to, kind): (SocketAddr, MessageKind),
        trace: Option<Box<TraceContext>>,
        body: Bytes,
    ) {
        let MessageKind::Request { from: own, to: port, remaining } = kind else { return };
        let budget = forwarder.limits.process_budget;
        let Some(process) = forwarder.processes.get_mut(&from) else { return };
        let charge = body.len() as u64 + CALL_BYTES;
        if process.calls.contains_key(&id) {
            return self.endpoint.discard(body); // No honest process calls twice by one id.
        }
        let client = Origin { process: from, id, charge };
        if process.held + process.unread() + charge > budget {
            process.counters.over_budget += 1;
            let reason =
                if charge > budget { UnknownReason::TooLarge } else { UnknownReason::OverBudget };
            forwarder.send(from, MessageKind::Refused(reason).encode(id), Bytes::new());
            return self.endpoint.discard(body);
        }
        process.held += charge;
        process.counters.calls += 1;
        if process.barred.contains(&own) {
            self.endpoint.discard(body);
            return forwarder.fail(client, CallFailed::NotExpected);
        }
        if self.is_this_node(to) {
            return self.forward_directly(forwarder, client, (to, kind), trace, body);
        }
        // Handshakes are this engine's own, and show its certificates.
        if port == SECURE_PORT {
            self.endpoint.discard(body);
            let refusal = MessageKind::Refused(UnknownReason::NoSuchPort);
            return forwarder.answer(client, refusal, Bytes::new());
        }
        let identity = process.identity;
        let path = match self.resolve_as(Address::new(to, port), identity) {
            Ok(path) => path,
            Err(error) => {
                self.endpoint.discard(body);
                return forwarder.fail(client, described::describe(&error));
            }
        };
        let Some(process) = forwarder.processes.get_mut(&from) else { return };
        let socket = match process.sockets.get(&own) {
            Some(&socket) => Some(socket),
            None if process.sockets.len() >= SOCKETS_MAX => None,
            None => self.open_client_of_process(forwarder, from, own),
        };
        let Some(socket) = socket else {
            self.endpoint.discard(body);
            return forwarder.answer(
                client,
                MessageKind::Refused(UnknownReason::OverBudget),
                Bytes::new(),
            );
        };
        let to = self.route(now, Remote::new(path, port));
        let deadline = remaining.map(|remaining| now + remaining);
        let options = CallOptions { deadline, trace, ..CallOptions::default() };
        self.forward_call(now, forwarder, client, (socket, to), body, options);
    }

    /// Starts a call on behalf of a process.
    #[inline]
    fn forward_call(
        &mut self,
        now: Time,
        forwarder: &mut Forwarder,
        client: Origin,
        (socket, to): (SocketKey, Remote),
        body: Bytes,
        options: CallOptions,
    ) {
        let rpc = RpcKey::from_bits(0); // Until it is known.
        let key = forwarder.under_way.insert(Forwarded::Call { client, rpc });
        let options = CallOptions { cookie: Cookie::Key(key.to_bits()), ..options };
        match self.endpoint.call(now, socket, to, body, options) {
            Ok(started) => {
                if let Some(Forwarded::Call { rpc, .. }) = forwarder.under_way.get_mut(key) {
                    *rpc = started;
                }
                if let Some(process) = forwarder.processes.get_mut(&client.process) {
                    process.calls.insert(client.id, key);
                }
                self.endpoint.report_paths(&mut *self.link);
            }
            Err(error) => {
                forwarder.under_way.remove(key);
                if error == apus_proto::CallError::NotExpected {
                    let error = self.refused_by_rule(to.path, forwarder.rule(socket));
                    return forwarder.fail(client, described::describe(&error));
                }
                match Forwarder::refusal(error) {
                    Ok(reason) => {
                        forwarder.answer(client, MessageKind::Refused(reason), Bytes::new())
                    }
                    Err(error) => forwarder.fail(client, error),
                }
            }
        }
    }

    /// Whether an address is that of this engine's own node.
    #[inline]
    fn is_this_node(&mut self, to: SocketAddr) -> bool {
        let local = self.link.local_addr();
        if to.port() != local.port() {
            return false;
        }
        let mut is_own = || {
            let path = self.link.resolve(to);
            local.ip().is_unspecified() && path.is_some_and(|path| self.link.path(path).loopback)
        };
        to.ip() == local.ip() || is_own()
    }

    /// Handles a call of one process to another.
    fn forward_directly(
        &mut self,
        forwarder: &mut Forwarder,
        client: Origin,
        (to, kind): (SocketAddr, MessageKind),
        trace: Option<Box<TraceContext>>,
        body: Bytes,
    ) {
        let MessageKind::Request { from: own, to: port, .. } = kind else { return };
        let server = forwarder.server(port);
        if let Some(server) = server
            && let Some(error) = self.direct_refusal(forwarder, (client, own), (server, port), to)
        {
            self.endpoint.discard(body);
            return forwarder.fail(client, described::describe(&error));
        }
        let process =
            server.and_then(|server| Some((server, forwarder.processes.get_mut(&server)?)));
        let refusal = match process {
            None => UnknownReason::NoSuchPort,
            Some((_, process)) if process.unread() > forwarder.limits.process_budget => {
                UnknownReason::OverBudget
            }
            Some((server, process)) => {
                process.counters.requests += 1;
                let peer = self.peer_of_process(forwarder, client.process);
                let peer = forwarder.peer_number(server, peer.as_ref());
                let from = RequestOrigin { address: to, peer };
                let key = forwarder.under_way.insert(Forwarded::Direct { client, server, from });
                if let Some(process) = forwarder.processes.get_mut(&client.process) {
                    process.calls.insert(client.id, key);
                }
                return forwarder.send_request(server, key, (from, kind), trace, body);
            }
        };
        self.endpoint.discard(body);
        forwarder.answer(client, MessageKind::Refused(refusal), Bytes::new());
    }

    /// Handles the response of a process.
    #[inline]
    fn forward_response(
        &mut self,
        now: Time,
        forwarder: &mut Forwarder,
        from: NeighbourKey,
        key: ForwardKey,
        body: Bytes,
    ) {
        match forwarder.under_way.get_mut(key) {
            Some(Forwarded::Direct { client, server, .. }) if *server == from => {
                let client = *client;
                forwarder.under_way.remove(key);
                forwarder.answer(client, MessageKind::Response, body);
            }
            Some(Forwarded::Request { server, again, .. })
                if *server == from && again.response.is_none() =>
            {
                if let Some(process) = forwarder.processes.get_mut(&from) {
                    process.kept += body.len() as u64;
                }
                again.response = Some(body);
                self.forward_again(now, forwarder, key);
            }
            _ => self.endpoint.discard(body), // The caller has given up.
        }
    }

    /// Retries a response that had no room in the node, or a request that had no room in its process.
    fn forward_again(&mut self, now: Time, forwarder: &mut Forwarder, key: ForwardKey) {
        let Some(Forwarded::Request { server, rpc, again }) = forwarder.under_way.get_mut(key)
        else {
            return;
        };
        let (server, rpc) = (*server, *rpc);
        let Some(response) = again.response.clone() else {
            //= docs/protocol.md#seal-6
            if self.endpoint.refuse_if_forbidden(rpc) {
                // The service has a new rule, and has not had the request.
                if let Some(Forwarded::Request { again, .. }) = forwarder.take(key) {
                    self.endpoint.discard(again.body);
                }
                return;
            }
            return match self.endpoint.is_active(rpc) {
                true => forwarder.send_again(now, key),
                false => self.clear_away(forwarder, key),
            };
        };
        let to = again.path;
        if !to.is_local() && self.endpoint.is_active(rpc) {
            self.know_path(now, to);
        }
        match self.endpoint.reply(now, rpc, response) {
            Err(ReplyError::OverBudget { .. }) if forwarder.may_keep(server) => {
                return forwarder.try_again(now, key);
            }
            Err(ReplyError::NotInService) | Ok(()) => {}
            // The response is longer than the limit, or too many responses wait.
            Err(_) => {
                self.endpoint.reject(rpc, UnknownReason::Finished);
            }
        }
        if let Some(Forwarded::Request { again, .. }) = forwarder.take(key) {
            self.endpoint.discard(again.body);
        }
    }

    /// Handles a request that its process refuses or has given up.
    fn forward_refusal(
        &mut self,
        now: Time,
        forwarder: &mut Forwarder,
        from: NeighbourKey,
        key: ForwardKey,
        reason: UnknownReason,
    ) {
        match forwarder.under_way.get(key) {
            Some(&Forwarded::Direct { client, server, .. }) if server == from => {
                forwarder.under_way.remove(key);
                forwarder.answer(client, MessageKind::Refused(reason), Bytes::new());
            }
            Some(&Forwarded::Request { server, rpc, .. }) if server == from => {
                if reason == UnknownReason::OverBudget {
                    return forwarder.try_again(now, key);
                }
                forwarder.take(key);
                self.give_up(rpc, reason);
            }
            _ => {}
        }
    }

    /// Handles a call that its process gives up.
    fn forward_abort(&mut self, forwarder: &mut Forwarder, from: NeighbourKey, id: u64) {
        forwarder.take_announced(from, id);
        let Some(process) = forwarder.processes.get_mut(&from) else { return };
        let Some(key) = process.calls.remove(&id) else { return };
        if let Some(Forwarded::Call { client, .. } | Forwarded::Direct { client, .. }) =
            forwarder.under_way.get(key)
        {
            process.held -= client.charge;
        }
        self.clear_away(forwarder, key);
    }

    /// Gives up an entry whose process has ended or no longer waits for it.
    fn clear_away(&mut self, forwarder: &mut Forwarder, key: ForwardKey) {
        match forwarder.take(key) {
            Some(Forwarded::Call { rpc, .. }) => {
                self.endpoint.abort(rpc);
            }
            Some(Forwarded::Request { rpc, .. }) => {
                self.give_up(rpc, UnknownReason::Finished);
            }
            Some(Forwarded::Direct { client, server, from }) => {
                let calls = forwarder.processes.get(&client.process).map(|process| &process.calls);
                if calls.is_some_and(|calls| calls.get(&client.id) == Some(&key)) {
                    // The server has ended.
                    return forwarder.fail(client, CallFailed::MayHaveExecuted);
                }
                let abort = (from, MessageKind::Abort);
                forwarder.send_request(server, key, abort, None, Bytes::new());
            }
            None => {}
        }
    }

    /// Gives up requests whose caller has given up, and notifies their processes. Searches only if the node has given up requests
    /// meanwhile.
    #[inline]
    pub(crate) fn give_up_requests(&mut self) {
        let Some(forwarder) =
            self.neighbours.as_mut().and_then(|it| it.attachments.forwarder.as_mut())
        else {
            return;
        };
        let counters = self.endpoint.counters();
        let given_up =
            counters.requests_cancelled + counters.requests_expired + counters.requests_orphaned;
        if mem::replace(&mut forwarder.given_up, given_up) != given_up {
            forwarder.unlooked = forwarder.under_way.slots();
        }
        for _ in 0..LEFT_MAX.min(forwarder.unlooked) {
            forwarder.unlooked -= 1;
            let Some((key, Forwarded::Request { server, rpc, again })) =
                forwarder.under_way.at(forwarder.unlooked)
            else {
                continue;
            };
            if self.endpoint.is_active(*rpc) {
                continue;
            }
            let (server, rpc, from) = (*server, *rpc, again.from);
            forwarder.send_request(server, key, (from, MessageKind::Abort), None, Bytes::new());
            forwarder.take(key);
            self.endpoint.abort(rpc);
        }
    }

    /// Ends a request, whether or not its client waits.
    fn give_up(&mut self, rpc: RpcKey, reason: UnknownReason) {
        if !self.endpoint.reject(rpc, reason) {
            self.endpoint.abort(rpc);
        }
    }

    /// Changes the users that may attach, and their limits. Returns the number of processes that are detached.
    pub(crate) fn set_access_limits(&mut self, limits: Limits) -> usize {
        let ended = self.neighbours.as_mut().map_or(0, |neighbours| neighbours.set_limits(limits));
        if let Some(forwarder) = self.forwarder() {
            let waiter = forwarder.waiter.take(); // The engine's thread clears the ended processes away.
            self.mail.wakes.extend(waiter);
        }
        ended
    }

    /// Wakes the thread of the engine.
    pub(crate) fn stop_forwarding(&mut self) {
        if let Some(forwarder) =
            self.neighbours.as_mut().and_then(|it| it.attachments.forwarder.as_mut())
        {
            forwarder.stopped = true;
            self.mail.wakes.extend(forwarder.waiter.take());
        }
    }
}

impl Forwarder {
    /// Handles an event of a socket of `process`, which knows the socket as `port`. `client`: the node that sent the request, and the
    /// identity that it has shown.
    #[inline]
    pub(crate) fn event(
        &mut self,
        (process, port): (NeighbourKey, u16),
        event: Event,
        client: Option<(SocketAddr, Option<Peer>)>,
        endpoint: &mut Endpoint,
    ) {
        let (cookie, kind, body) = match event {
            Event::Response { cookie, body, .. } => (cookie, MessageKind::Response, body),
            Event::Failed { cookie, error, .. } => {
                (cookie, MessageKind::Failed, Bytes::from(error.encode()))
            }
            Event::Request { rpc, body, .. } if body.len() as u64 > self.limits.request_max() => {
                endpoint.reject(rpc, UnknownReason::TooLarge);
                return endpoint.discard(body);
            }
            Event::Request { rpc, from, deadline, trace, body, .. } => {
                let server = self.processes.get_mut(&process);
                let (Some((address, peer)), Some(server)) = (client, server) else { return };
                //= docs/protocol.md#seal-6
                if endpoint.refuse_if_forbidden(rpc) {
                    return endpoint.discard(body); // It had arrived before the process gave its service a rule.
                }
                server.counters.requests += 1;
                let again = Box::new(Again {
                    from: RequestOrigin { address, peer: NO_PEER },
                    peer,
                    path: from.path,
                    ports: (from.port, port),
                    deadline,
                    trace,
                    body,
                    response: None,
                    waits: false,
                });
                let key = self.under_way.insert(Forwarded::Request { server: process, rpc, again });
                return self.send_again(clock::now(), key);
            }
            // A process makes no node known, and the engine watches no request.
            Event::Connected { .. } | Event::Cancelled { .. } => return,
        };
        let key = ForwardKey::from_bits(cookie.number());
        if let Some(Forwarded::Call { client, .. }) = self.under_way.take(key) {
            self.answer(client, kind, body);
        }
    }
}

/// Calls and requests of processes that have ended, cleared away in a turn.
const LEFT_MAX: usize = 64;

/// Charged to a process for a call, beside its request.
const CALL_BYTES: u64 = 512;
