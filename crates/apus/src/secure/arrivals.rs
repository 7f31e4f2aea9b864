//! Handshakes that others begin, with this node as their server.

use std::net::SocketAddr;
use std::sync::Arc;

use apus_net::{PathKeys, SealedKey};
use apus_proto::{Greeting, Time};
use apus_seal::frame::{FEATURE_PORTS, FEATURE_SEVERAL, Hello};
use apus_seal::{
    Arrival, HandshakeAnswer, HandshakeError, Identity, Introduction, Limit, PathEnd, Refresh,
    ServerOffer, TlsSession, Worked,
};
use apus_wire::{PathId, Token};

use crate::engine::Engine;
use crate::mail::queue::WaitingRequest;
use crate::secure::driver::{Driver, IN_TURN, random, sealed};
use crate::secure::paths::{PathUse, time_of};
use crate::secure::sealed_peers::SealedPeers;
use crate::secure::worker::{HeldRequest, Job};

impl Driver {
    /// Takes a request of a handshake.
    pub(super) fn serve(&mut self, engine: &mut Engine, now: Time, request: WaitingRequest) {
        let WaitingRequest { rpc, from, path, deadline, body, .. } = request;
        let held = HeldRequest { rpc, path, from };
        if self.worker.is_behind() {
            engine.handshakes.refused += 1;
            let body = HandshakeError::Busy(Limit::Paths).fail().emit();
            return self.reply(engine, now, &held, body);
        }
        //= docs/protocol.md#seal-7
        let salts = match path.is_sealed() {
            true => sealed(engine).refresh_salts(path),
            false => Vec::new(),
        };
        let known = self.paths.get(path).filter(|_| path.is_sealed());
        let peer = known.and_then(|entry| entry.peer.as_ref()).filter(|_| !salts.is_empty());
        let refresh = peer.map(|peer| Refresh { salts, peer: peer.name.clone() });
        let known = known.map(|entry| entry.usage);
        let arrival = Arrival {
            address: from.host.ip(),
            deadline: deadline.map(time_of),
            body: body.to_vec(),
            random: random(),
        };
        let Self { peers, server, .. } = self;
        let peers = peers.as_deref().expect(IN_TURN);
        let work = server.handle_request(time_of(now), arrival, |hello| {
            engine.handshakes.server_begun += 1;
            let usage = known.unwrap_or_else(|| peers.wanted(engine, hello));
            let node = peers.identity(usage.local);
            let session = node.tls().server_session()?;
            let id = sealed(engine).reserve_keys(random());
            let id = id.ok_or(HandshakeError::Busy(Limit::Paths))?;
            let greeting = Greeting { token: hello.end.token, doubted: hello.doubted };
            let token = peers.answer_greeting(engine, now, (&held, usage), greeting);
            let end = PathEnd { id, token };
            let is_for_port = usage.has_arrived && peers.has_several() && known.is_none();
            let features = if is_for_port { FEATURE_PORTS } else { 0 };
            let (suites, label) = (node.suites.clone(), usage.label());
            Ok(ServerOffer { end, suites, features, label, session, refresh })
        });
        match work {
            Ok(work) => self.worker.push(Job::Request { held, work }),
            Err(error) => {
                engine.handshakes.refused += 1;
                self.reply(engine, now, &held, error.fail().emit());
            }
        }
    }

    fn reply(&self, engine: &mut Engine, now: Time, held: &HeldRequest, body: Vec<u8>) {
        let reply = engine.reply(now, self.service, held.rpc, held.path, body.into());
        if reply.is_err() {
            engine.endpoint.abort(held.rpc); // The client has gone.
        }
    }

    /// Answers a request whose public-key work is done.
    pub(super) fn answer(
        &mut self,
        engine: &mut Engine,
        now: Time,
        held: HeldRequest,
        worked: Worked<TlsSession>,
    ) {
        let body = match self.server.finish(worked) {
            HandshakeAnswer::Reply(body) => body,
            HandshakeAnswer::Introduced(introduction, body) => {
                let id = introduction.ours.id;
                if self.introduce_client(engine, now, &held, *introduction) {
                    engine.handshakes.server_done += 1;
                    engine.handshakes.refreshes += u64::from(held.path.is_sealed());
                    body
                } else {
                    sealed(engine).remove_keys(id);
                    engine.handshakes.server_failed += 1;
                    HandshakeError::Busy(Limit::Paths).fail().emit()
                }
            }
            HandshakeAnswer::Failed(_, body) => {
                engine.handshakes.server_failed += 1;
                engine.handshakes.refresh_failures += u64::from(held.path.is_sealed());
                body
            }
        };
        self.reply(engine, now, &held, body);
    }

    /// Gives the keys of a verified client to its path. Returns `false` if there is no room.
    fn introduce_client(
        &mut self,
        engine: &mut Engine,
        now: Time,
        held: &HeldRequest,
        introduction: Introduction,
    ) -> bool {
        let Introduction { secret, role, suite, ours, theirs, peer, features, label, .. } =
            introduction;
        let usage = PathUse::of_label(label);
        //= docs/protocol.md#seal-18
        // Another identity may serve the port since the HELLO.
        let is_for_port = !held.path.is_sealed() && usage.has_arrived && usage.port != 0;
        if is_for_port && self.local_at(engine, usage.port) != usage.local {
            return false;
        }
        let home = match (held.path.is_sealed(), usage.has_arrived) {
            (true, _) => Some(held.path),
            (false, true) => self.path_of_client(engine, held.from.host, usage, &peer),
            (false, false) => {
                let key = SealedKey { local: usage.local, port: 0 };
                sealed(engine).resolve_sealed(held.from.host, key)
            }
        };
        let Some(mut path) = home else { return false };
        if !self.add_path(engine, now, path, (held.from.host, usage)) {
            return false;
        }
        if features & FEATURE_SEVERAL != 0 {
            self.note_several(held.from.host);
        }
        let known = self.paths.get(path).and_then(|entry| entry.peer.as_ref());
        //= docs/protocol.md#seal-5
        if known.is_some_and(|known| known.name != peer.name) {
            let Some(renewed) = self.end_path(engine, now, path) else { return false };
            path = renewed;
        }
        // Others know an identity by its place in memory, so an equal one stays.
        let known = self.paths.get(path).and_then(|entry| entry.peer.clone());
        let peer = known.filter(|known| **known == *peer).unwrap_or(peer);
        let lifetime = self.lifetime(usage.local, &peer);
        self.paths.update(path, |entry| {
            (entry.peer, entry.role) = (Some(Arc::clone(&peer)), role);
            (entry.is_wanted, entry.error) = (false, None);
        });
        self.report_rights(engine, path);
        let is_known = engine.endpoint.introduced(now, path, ours.token, theirs.token);
        let is_refresh = held.path.is_sealed();
        let peer_id = theirs.id;
        let keys = PathKeys { secret, role, suite, peer_id, lifetime, is_refresh };
        let has_keys = is_known && sealed(engine).install_keys(path, ours.id, keys);
        if has_keys {
            self.paths.update(path, |entry| {
                entry.keyless_since = None;
                //= docs/protocol.md#seal-4
                entry.attempts.made_by_peer();
            });
            self.judge_client(now, path, &peer);
        }
        has_keys
    }

    //= docs/protocol.md#seal-18
    /// Returns the path of a verified client that may have others beside it at its address. Beyond a bound, one without keys gives way.
    fn path_of_client(
        &mut self,
        engine: &mut Engine,
        host: SocketAddr,
        usage: PathUse,
        client: &Identity,
    ) -> Option<PathId> {
        let is_its = |&path: &PathId| {
            let peer = self.paths.get(path).and_then(|entry| entry.peer.as_ref());
            peer.is_some_and(|peer| peer.name == client.name)
        };
        if let Some(known) = self.paths.arrived_from(host, usage).find(is_its) {
            return Some(known);
        }
        if self.paths.arrived_from(host, usage).count() >= ARRIVED_MAX {
            let has_no_keys = |&path: &PathId| {
                self.paths.get(path).is_some_and(|entry| entry.keyless_since.is_some())
            };
            let spare = self.paths.arrived_from(host, usage).find(has_no_keys)?;
            self.forget_path(engine, spare);
        }
        sealed(engine).renew_sealed(host, None)
    }
}

impl SealedPeers {
    //= docs/protocol.md#seal-18
    /// Returns the use of the path that a HELLO asks for: under the identity that serves the wanted port, or else under that of the node.
    fn wanted(&self, engine: &Engine, hello: &Hello<'_>) -> PathUse {
        let local = self.local_at(engine, hello.port);
        let is_for_port = self.has_several() && hello.features & FEATURE_PORTS != 0;
        let has_arrived = is_for_port || hello.features & FEATURE_SEVERAL != 0;
        PathUse { local, port: if is_for_port { hello.port } else { 0 }, has_arrived }
    }

    /// Returns the identity that serves a port, or else that of the node.
    fn local_at(&self, engine: &Engine, port: u16) -> u8 {
        let forwarder = engine.neighbours.as_ref().and_then(|it| it.attachments.forwarder.as_ref());
        let served = forwarder.and_then(|forwarder| forwarder.identity_at(port));
        served.filter(|_| self.has_several()).unwrap_or(0)
    }

    /// Returns the token for the reply to a HELLO. A client that doubts a token of one of its paths is answered about that one.
    fn answer_greeting(
        &self,
        engine: &mut Engine,
        now: Time,
        (held, usage): (&HeldRequest, PathUse),
        greeting: Greeting,
    ) -> Token {
        let host = held.from.host;
        let home = match (held.path.is_sealed(), usage.has_arrived) {
            (true, _) => vec![held.path],
            (false, true) => self.paths.arrived_from(host, usage).collect(),
            (false, false) => {
                let key = SealedKey { local: usage.local, port: 0 };
                sealed(engine).resolve_sealed(host, key).into_iter().collect()
            }
        };
        let mut answers =
            home.into_iter().map(|path| engine.endpoint.answer_greeting(now, path, greeting));
        let known = answers.find(|&token| token == greeting.doubted);
        let offered = || {
            let stranger = Greeting { doubted: Token::NONE, ..greeting };
            engine.endpoint.answer_greeting(now, held.path, stranger)
        };
        known.filter(|&token| token != Token::NONE).unwrap_or_else(offered)
    }
}

/// Upper bound on the paths of one address, identity and port: on the identities of a node, and some that it had before.
const ARRIVED_MAX: usize = 32;
