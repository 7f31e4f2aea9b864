//! The rules of processes: the engine keeps and applies them (rule seal-6 of docs/protocol.md). A process only gives their texts, and
//! refuses requests that it had before a rule.

use std::collections::HashSet;
use std::net::SocketAddr;

use apus_proto::{FIRST_CLIENT_PORT, SocketKey, Time};
use apus_seal::Rule;
use apus_wire::{PathId, UnknownReason};

use crate::engine::Engine;
use crate::error::CallError;
use crate::host::neighbour_key::NeighbourKey;
use crate::secure::SealedPeers;
use crate::secure::peer::Peer;
use crate::shared_engine::forwarder::{ForwardedProcess, Forwarder, NOBODY, Origin};
use crate::shared_engine::messages::{
    AttachKind, PATTERNS_MAX, RULE_MAX, RULES_MAX, RuleAnswer, patterns,
};
use crate::sync::clock;

/// A rule that a process gives to a port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TakenRule {
    pub(crate) port: u16,
    pub(crate) number: u32,
    pub(crate) is_again: bool,
}

impl Engine {
    /// Takes a piece of a rule. Returns `false` if no process sends such a one.
    pub(crate) fn take_rule(
        &mut self,
        now: Time,
        forwarder: &mut Forwarder,
        from: NeighbourKey,
        taken: TakenRule,
        is_last: bool,
        piece: &[u8],
    ) -> bool {
        let Some(process) = forwarder.processes.get_mut(&from) else { return true };
        process.rule.extend_from_slice(piece);
        if process.rule.len() > RULE_MAX {
            return false;
        }
        if !is_last {
            return true;
        }
        let text = std::mem::take(&mut process.rule);
        let text = str::from_utf8(&text).ok();
        let text = text.filter(|text| patterns(text).count() <= PATTERNS_MAX);
        let Some(rule) = text.and_then(|text| Rule::parse(patterns(text)).ok()) else {
            return false;
        };
        let answer = self.set_rule_of_process(now, forwarder, from, taken.port, &rule);
        if taken.is_again
            && answer != RuleAnswer::Set
            && let Some(process) = forwarder.processes.get_mut(&from)
        {
            if process.barred.len() >= SOCKETS_MAX {
                return false;
            }
            process.barred.insert(taken.port);
        }
        let words = AttachKind::RuleSet { number: taken.number, answer }.encode();
        forwarder.send(from, words, bytes::Bytes::new());
        true
    }

    //= docs/protocol.md#seal-6
    /// Gives a port of a process a rule. A client's port is opened for that, and a service's gets it when it is opened.
    fn set_rule_of_process(
        &mut self,
        now: Time,
        forwarder: &mut Forwarder,
        from: NeighbourKey,
        port: u16,
        rule: &Rule,
    ) -> RuleAnswer {
        let Self { sealed_peers, endpoint, neighbours, .. } = self;
        let Some(peers) = sealed_peers else { return RuleAnswer::NoIdentity };
        let Some(process) = forwarder.processes.get(&from) else { return RuleAnswer::NoIdentity };
        let local = process.identity;
        if local == NOBODY {
            return RuleAnswer::NoIdentity;
        }
        let (uid, known) = (process.uid, process.sockets.get(&port).copied());
        let is_full = process.sockets.len() + process.rules.len() >= SOCKETS_MAX;
        let is_new = !peers.has_rule(local, rule);
        if known.is_none() && is_full || is_new && !forwarder.may_compare(now, uid) {
            return RuleAnswer::TooMany;
        }
        let share = RulesShare::of(peers, forwarder, (local, uid));
        let Ok(number) = peers.keep_rule(endpoint, neighbours.as_deref(), (local, rule)) else {
            return RuleAnswer::TooMany;
        };
        if !share.has_room(number) {
            peers.release_rule(number);
            return RuleAnswer::TooMany;
        }
        let is_client = port >= FIRST_CLIENT_PORT;
        let opened = known.or_else(|| {
            let socket = endpoint.open(None).ok().filter(|_| is_client)?;
            forwarder.own(socket, from, port);
            Some(socket)
        });
        let replaced = match opened {
            Some(socket) => {
                endpoint.set_rule(socket, number);
                Some(forwarder.set_rule(socket, number))
            }
            None if is_client => Some(number), // No port is left.
            None => forwarder.processes.get_mut(&from).and_then(|it| it.rules.insert(port, number)),
        };
        replaced.into_iter().for_each(|number| peers.release_rule(number));
        match opened {
            None if is_client => RuleAnswer::TooMany,
            _ => {
                if let Some(process) = forwarder.processes.get_mut(&from) {
                    process.barred.remove(&port);
                }
                RuleAnswer::Set
            }
        }
    }

    /// Gives a socket that was opened for a port of a process the rule that the process has sent, or that of the configuration, or the
    /// default of its identity. Returns `false` if there are too many rules: the socket must not be used.
    #[must_use]
    pub(crate) fn apply_rule_of_process(
        &mut self,
        forwarder: &mut Forwarder,
        from: NeighbourKey,
        (socket, port): (SocketKey, u16),
    ) -> bool {
        let Self { sealed_peers, endpoint, neighbours, .. } = self;
        let Some(peers) = sealed_peers else { return true };
        let Some(process) = forwarder.processes.get_mut(&from) else { return false };
        let (sent, local, uid) = (process.rules.remove(&port), process.identity, process.uid);
        let is_service = port < FIRST_CLIENT_PORT;
        let configured = if is_service { port } else { 0 }; // No rule is for port 0.
        let neighbours = neighbours.as_deref();
        let kept = || peers.keep_rule_at(endpoint, neighbours, (local, configured));
        let is_sent = sent.is_some();
        let Some(number) = sent.or_else(kept) else { return false };
        // The rules of the configuration have numbers of their own for the engine's identity.
        let takes_share = !is_sent && local != 0 && peers.is_given(number);
        if takes_share && !RulesShare::of(peers, forwarder, (local, uid)).has_room(number) {
            peers.release_rule(number);
            return false;
        }
        endpoint.set_rule(socket, number);
        forwarder.set_rule(socket, number);
        if is_service {
            peers.note_served(port, local);
            let driver = peers.driver();
            self.handler_is_due(driver, clock::now());
        }
        true
    }

    /// Opens a socket for a client's port of a process.
    pub(crate) fn open_client_of_process(
        &mut self,
        forwarder: &mut Forwarder,
        from: NeighbourKey,
        port: u16,
    ) -> Option<SocketKey> {
        let socket = self.endpoint.open(None).ok()?;
        forwarder.own(socket, from, port);
        if self.apply_rule_of_process(forwarder, from, (socket, port)) {
            return Some(socket);
        }
        forwarder.disown(socket);
        forwarder.processes.get_mut(&from).into_iter().for_each(|it| _ = it.sockets.remove(&port));
        self.endpoint.close(socket);
        None
    }

    /// Notes that a socket with a rule is closed.
    pub(crate) fn release_rule(&mut self, number: u8) {
        if let Some(peers) = &mut self.sealed_peers {
            peers.release_rule(number);
        }
    }

    /// One of the identities of this engine.
    pub(crate) fn own_peer(&self, number: u8) -> Option<Peer> {
        self.sealed_peers.as_ref()?.own_peer(number)
    }

    /// The identity under which a process calls and serves.
    pub(crate) fn peer_of_process(
        &self,
        forwarder: &Forwarder,
        process: NeighbourKey,
    ) -> Option<Peer> {
        self.sealed_peers.as_ref()?.own_peer(forwarder.identity(process))
    }

    //= docs/protocol.md#seal-6
    /// Returns the error of a call from a process to another one, at an address of this node, if a rule of one of them refuses it.
    pub(crate) fn direct_refusal(
        &self,
        forwarder: &Forwarder,
        (client, own): (Origin, u16),
        (server, port): (NeighbourKey, u16),
        address: SocketAddr,
    ) -> Option<CallError> {
        let peers = self.sealed_peers.as_ref()?;
        let identity = |process| self.peer_of_process(forwarder, process);
        let rule = |process, port: u16| {
            let sockets = forwarder.processes.get(&process).map(|process| &process.sockets);
            let socket = sockets.and_then(|sockets| sockets.get(&port));
            socket.map_or(0, |&socket| forwarder.rule(socket))
        };
        let (caller, called) = (identity(client.process), identity(server));
        let expected = peers.unexpected_within(
            address,
            (forwarder.identity(client.process), rule(client.process, own)),
            [caller.as_ref(), called.as_ref()],
        );
        if expected.is_some() {
            return expected;
        }
        let admits = peers.admits_within(rule(server, port), caller.as_ref());
        (!admits).then_some(CallError::Forbidden)
    }

    /// Returns the error of a call of a process to a peer that its rule, which has this number, does not name.
    #[cold]
    pub(crate) fn refused_by_rule(&self, path: PathId, rule: u8) -> CallError {
        let Some(peers) = &self.sealed_peers else { return CallError::NoIdentity };
        let neighbours = self.neighbours.as_ref().filter(|_| path.is_local());
        let shown_by = neighbours.and_then(|neighbours| neighbours.udp(path));
        peers.unexpected(shown_by.unwrap_or(path), rule)
    }

    //= docs/protocol.md#seal-6
    /// Refuses the waiting requests of a process whose service has a new rule, which the engine keeps: those that it had sent before.
    pub(crate) fn refuse_waiting(&mut self, socket: SocketKey, rule: &Rule) {
        let Self { endpoint, mail, neighbours, .. } = self;
        let attached = neighbours.as_ref().and_then(|it| it.attachments.attached.as_ref());
        let (Some(mailbox), Some(attached)) = (mail.mailbox(socket), attached) else { return };
        mailbox.queue.refuse_forbidden(endpoint, |endpoint, request| {
            let peer = attached.peer(request.path);
            let is_forbidden = !rule.admits(peer.map(|peer| &*peer.0));
            if is_forbidden {
                endpoint.reject(request.rpc, UnknownReason::NotAllowed);
            }
            is_forbidden
        });
        let now = clock::now();
        self.transmit(now);
        self.transmit_due(now);
    }
}

//= docs/protocol.md#seal-18
/// The part of the rules for the users of an identity, which the users of others cannot take.
struct RulesShare {
    /// Those that its processes have.
    taken: HashSet<u8>,
    limit: usize,
}

impl RulesShare {
    /// Returns that of an identity, or that of a user where all users have one identity.
    fn of(peers: &SealedPeers, forwarder: &Forwarder, (local, uid): (u8, u32)) -> Self {
        let is_beside = |process: &ForwardedProcess| match peers.has_several() {
            true => process.identity == local,
            false => process.uid == uid,
        };
        let mut taken = forwarder.rules_of(is_beside);
        taken.retain(|&number| peers.is_given(number));
        Self { taken, limit: RULES_MAX.min(peers.rules_share()) }
    }

    fn has_room(&self, number: u8) -> bool {
        self.taken.contains(&number) || self.taken.len() < self.limit
    }
}

/// Upper bound on the sockets that stand for ports of one process, and on rules for ports that it has not opened.
pub(crate) const SOCKETS_MAX: usize = 1_024;
