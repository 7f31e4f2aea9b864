//! Handshakes that others begin, with this node as their server.

use std::sync::Arc;

use apus_net::{PathKeys, SealedKey};
use apus_proto::{Greeting, Time};
use apus_seal::{
    Arrival, HandshakeAnswer, HandshakeError, Introduction, Limit, PathEnd, Refresh, ServerOffer,
    TlsSession, Worked,
};
use apus_wire::PathId;

use crate::engine::Engine;
use crate::mail::queue::WaitingRequest;
use crate::secure::driver::{Driver, random, sealed};
use crate::secure::paths::time_of;
use crate::secure::worker::{HeldRequest, Job};

impl Driver {
    /// Takes a request of a handshake.
    pub(super) fn serve(&mut self, engine: &mut Engine, now: Time, request: WaitingRequest) {
        let WaitingRequest { rpc, from, path, deadline, body, .. } = request;
        let held = HeldRequest { rpc, path, from };
        let home = self.home(engine, &held).filter(|_| !self.worker.is_behind());
        let Some(home) = home else {
            engine.handshakes.refused += 1;
            return self.reply(
                engine,
                now,
                &held,
                HandshakeError::Busy(Limit::Paths).fail().emit(),
            );
        };
        //= docs/protocol.md#seal-7
        let salt = sealed(engine).refresh_salt(home).filter(|_| path.is_sealed());
        let peer = self.paths.get(home).and_then(|entry| entry.peer.as_ref());
        let refresh = salt.zip(peer);
        let refresh = refresh.map(|(salt, peer)| Refresh { salt, peer: peer.name.clone() });
        let arrival = Arrival {
            address: from.host.ip(),
            deadline: deadline.map(time_of),
            body: body.to_vec(),
            random: random(),
        };
        let node = Arc::clone(&self.node);
        let tls = node.tls();
        let Engine { endpoint, link, handshakes, .. } = engine;
        let work = self.server.handle_request(time_of(now), arrival, |hello| {
            handshakes.server_begun += 1;
            let session = tls.server_session()?;
            let paths = link.sealed_paths().expect("the link of a node with a certificate seals");
            let id = paths.reserve_keys(random()).ok_or(HandshakeError::Busy(Limit::Paths))?;
            let greeting = Greeting { token: hello.end.token, doubted: hello.doubted };
            let token = endpoint.answer_greeting(now, home, greeting);
            let end = PathEnd { id, token };
            let suites = node.suites.clone();
            Ok(ServerOffer { end, suites, features: 0, label: 0, session, refresh })
        });
        match work {
            Ok(work) => self.worker.push(Job::Request { held, work }),
            Err(error) => {
                engine.handshakes.refused += 1;
                self.reply(engine, now, &held, error.fail().emit());
            }
        }
    }

    /// Returns the sealed path of the node that begins a handshake.
    fn home(&self, engine: &mut Engine, held: &HeldRequest) -> Option<PathId> {
        if held.path.is_sealed() {
            return Some(held.path);
        }
        sealed(engine).resolve_sealed(held.from.host, SealedKey::default())
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
        let Introduction { secret, role, suite, ours, theirs, peer, .. } = introduction;
        let Some(mut path) = self.home(engine, held) else { return false };
        if !self.add_path(engine, now, path, held.from.host) {
            return false;
        }
        let known = self.paths.get(path).and_then(|entry| entry.peer.as_ref());
        //= docs/protocol.md#seal-5
        if known.is_some_and(|known| known.name != peer.name) {
            let Some(renewed) = self.end_path(engine, now, path) else { return false };
            path = renewed;
        }
        let lifetime = self.lifetime(&peer);
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
            self.paths.update(path, |entry| entry.keyless_since = None);
            self.judge_client(now, path, &peer);
        }
        has_keys
    }
}
