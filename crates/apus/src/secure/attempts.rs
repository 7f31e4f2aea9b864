//! Handshakes that this node begins, as their client.

use std::sync::Arc;
use std::time::Duration;

use apus_net::{PathKeys, SealedKey};
use apus_proto::{CallOptions, Remote, Time};
use apus_seal::frame::{FEATURE_PORTS, FEATURE_SEVERAL};
use apus_seal::{
    ClientHandshake, ClientOffer, ClientStep, HandshakeError, Introduction, Limit, Need, PathEnd,
    Refresh, SECURE_PORT, TlsSession,
};
use apus_wire::PathId;

use crate::engine::Engine;
use crate::error::CallError;
use crate::mail::queue::WaitingResponse;
use crate::secure::driver::{Driver, random, sealed};
use crate::secure::paths::{Attempt, Cause, PathUse, time_of};
use crate::secure::worker::{BegunHandshake, Job, JobDone, StepResult};

/// Time for a handshake, of both roles.
pub(super) const HANDSHAKE_TIME: Duration = Duration::from_secs(5);

/// The cookie of calls whose responses have no meaning.
const FAREWELL: u64 = 0;

/// Upper bound on the handshakes that begin anew at once, one after another.
const WITHDRAWN_MAX: u8 = 3;

/// The part of the rest of a certificate's life after which its path is refreshed.
const REST: f64 = 2.0 / 3.0;

impl Driver {
    /// Begins a handshake for a path.
    pub(super) fn begin_attempt(&mut self, engine: &mut Engine, now: Time, path: PathId) {
        let at = time_of(now);
        let salt = sealed(engine).refresh_salt(path);
        let begun = self.paths.update(path, |entry| {
            let cause = match salt {
                _ if entry.is_doubted => Some(Cause::Doubted),
                None if entry.is_wanted => Some(Cause::Wanted),
                Some(_) if entry.refresh_at.is_some() => Some(Cause::Refresh),
                _ => None,
            };
            (entry.is_wanted, entry.is_doubted, entry.refresh_at) = (false, false, None);
            let cause = cause.filter(|_| entry.attempts.begin(at, Need::NoPath))?;
            Some((cause, entry.address, entry.peer.clone(), entry.usage))
        });
        let Some((cause, address, peer, usage)) = begun.flatten() else { return };
        let salt = salt.filter(|_| cause == Cause::Refresh);
        let refresh = salt.zip(peer.as_ref());
        let refresh =
            refresh.map(|(salt, peer)| Refresh { salts: vec![salt], peer: peer.name.clone() });
        sealed(engine).forget_want(path);
        let Some(id) = sealed(engine).reserve_keys(random()) else {
            return self.fail_attempt(engine, now, path, HandshakeError::Busy(Limit::Paths), None);
        };
        let doubts = peer.is_some() && cause != Cause::Refresh;
        let greeting = engine.endpoint.greeting(now, path, doubts);
        //= docs/protocol.md#seal-18
        let port = match usage.port {
            0 => engine.endpoint.contact_port(path).unwrap_or(0),
            port => port,
        };
        let several = if self.nodes.len() > 1 { FEATURE_SEVERAL } else { 0 };
        let offer = ClientOffer {
            port,
            end: PathEnd { id, token: greeting.token },
            doubted: greeting.doubted,
            features: FEATURE_PORTS | several,
            suites: self.node().suites.clone(),
            refresh,
        };
        engine.handshakes.client_begun += 1;
        self.paths.set_busy(path, false);
        let number = self.paths.next_attempt(path);
        let attempt = Attempt {
            number,
            id,
            greeting,
            cause,
            port,
            theirs: None,
            handshake: None,
            began: at,
            generation: self.generation(),
        };
        self.paths.update(path, |entry| entry.attempt = Some(attempt));
        let node = self.identity(usage.local);
        let (tls, name) = (node.tls(), node.name_at(address));
        self.worker.push(Job::Begin { attempt: number, tls, name, to: address.ip(), offer });
    }

    /// Takes the result of public-key work.
    pub(super) fn worked(&mut self, engine: &mut Engine, now: Time, done: JobDone) {
        match done {
            JobDone::Begun { attempt, result } => self.begun(engine, now, attempt, result),
            JobDone::Stepped { attempt, handshake, result } => {
                self.stepped(engine, now, attempt, handshake, result);
            }
            JobDone::Answered { held, worked } => self.answer(engine, now, held, worked),
            JobDone::KeysLogged => engine.identity.keylog = self.node().is_key_log_written(),
            JobDone::Reloaded { result } => self.reloaded(engine, &result),
            JobDone::Judged { verdicts } => self.judged(engine, now, verdicts),
        }
    }

    fn begun(
        &mut self,
        engine: &mut Engine,
        now: Time,
        attempt: u64,
        result: Result<BegunHandshake, HandshakeError>,
    ) {
        let Some(path) = self.paths.of_attempt(attempt) else { return };
        match result {
            Ok((handshake, body)) => self.call(engine, now, path, handshake, body),
            Err(error) => self.fail_attempt(engine, now, path, error, None),
        }
    }

    /// Makes the next call of a handshake, by the path itself if that is refreshed.
    fn call(
        &mut self,
        engine: &mut Engine,
        now: Time,
        path: PathId,
        handshake: Box<ClientHandshake<TlsSession>>,
        body: Vec<u8>,
    ) {
        let begun = self.paths.update(path, |entry| {
            let attempt = entry.attempt.as_mut()?;
            attempt.handshake = Some(handshake);
            Some((attempt.number, attempt.cause, attempt.began, entry.address))
        });
        let Some((number, cause, began, address)) = begun.flatten() else { return };
        let way = match cause {
            Cause::Refresh => Some(path),
            Cause::Wanted | Cause::Doubted => engine.link.resolve(address),
        };
        let deadline = Time::ZERO + (began + HANDSHAKE_TIME);
        let sent = match way {
            Some(way) => self.send(engine, now, way, body, number, deadline),
            None => {
                Err(CallError::PeerUnreachable { error: apus_wire::PathError::NoLink, sent: false })
            }
        };
        if let Err(error) = sent {
            self.end_attempt(engine, now, path, None, error);
        }
    }

    /// Begins a call of a handshake by a path, over the network although the server may share memory with this node.
    fn send(
        &self,
        engine: &mut Engine,
        now: Time,
        way: PathId,
        body: Vec<u8>,
        number: u64,
        deadline: Time,
    ) -> Result<(), CallError> {
        let options = CallOptions { deadline: Some(deadline), ..CallOptions::default() };
        engine.know_path(now, way);
        let to = Remote::new(way, SECURE_PORT);
        engine.send_by(now, self.client, to, body.into(), number, options)
    }

    /// Takes the response of a call.
    pub(super) fn on_response(
        &mut self,
        engine: &mut Engine,
        now: Time,
        response: WaitingResponse,
    ) {
        let WaitingResponse { cookie, result, .. } = response;
        let Some(path) = self.paths.of_attempt(cookie) else { return };
        match result {
            Ok(body) => {
                let handshake =
                    self.paths.update(path, |entry| entry.attempt.as_mut()?.handshake.take());
                if let Some(handshake) = handshake.flatten() {
                    self.worker.push(Job::Response { attempt: cookie, handshake, body });
                }
            }
            // The server was restarted, perhaps.
            Err(CallError::MayHaveExecuted | CallError::ResponseLost | CallError::NotSent)
                if self.withdraw(engine, path) => {}
            Err(error) => self.end_attempt(engine, now, path, None, error),
        }
    }

    /// Begins the handshake of a path anew. Returns `false` if that was done too often.
    fn withdraw(&mut self, engine: &mut Engine, path: PathId) -> bool {
        let may = self.paths.get(path).is_some_and(|entry| entry.withdrawn < WITHDRAWN_MAX);
        if may && let Some(attempt) = self.paths.end_attempt(path) {
            sealed(engine).remove_keys(attempt.id);
            self.paths.update(path, |entry| {
                entry.attempts.withdrawn();
                entry.withdrawn += 1;
                entry.want_again(attempt.cause);
            });
        }
        may
    }

    fn stepped(
        &mut self,
        engine: &mut Engine,
        now: Time,
        attempt: u64,
        mut handshake: Box<ClientHandshake<TlsSession>>,
        result: StepResult,
    ) {
        let Some(path) = self.paths.of_attempt(attempt) else { return };
        match result {
            Ok(ClientStep::Continue(body)) => self.call(engine, now, path, handshake, body),
            Ok(ClientStep::Introduced(introduction, body)) => {
                if self.is_named_otherwise(path, &introduction) {
                    self.bid_farewell(engine, now, path, &mut handshake);
                    self.end_path(engine, now, path);
                    return;
                }
                match self.introduce_server(engine, now, path, *introduction) {
                    true => self.call(engine, now, path, handshake, body),
                    false => {
                        let error = HandshakeError::Busy(Limit::Paths);
                        self.fail_attempt(engine, now, path, error, None);
                    }
                }
            }
            Ok(ClientStep::Done) => self.finish_attempt(engine, now, path),
            Err(error) => self.fail_attempt(engine, now, path, error, Some(handshake)),
        }
    }

    /// Returns whether a node with another name than that of the path answers at its address now.
    fn is_named_otherwise(&self, path: PathId, introduction: &Introduction) -> bool {
        let known = self.paths.get(path).and_then(|entry| entry.peer.as_ref());
        known.is_some_and(|known| known.name != introduction.peer.name)
    }

    //= docs/protocol.md#seal-5
    /// Ends a path whose address has another peer now, and returns a new one.
    pub(super) fn end_path(
        &mut self,
        engine: &mut Engine,
        now: Time,
        path: PathId,
    ) -> Option<PathId> {
        let address = engine.link.address(path)?;
        let key = sealed(engine).sealed_key(path);
        let usage = key.map_or_else(
            || self.paths.get(path).map(|it| it.usage),
            |key| Some(PathUse::of_key(key)),
        );
        self.forget_path(engine, path);
        let renewed = sealed(engine).renew_sealed(address, key)?;
        self.paths.add(renewed, (address, usage?), time_of(now)).then_some(renewed)
    }

    /// Gives the keys of a verified server to its path. Waiting calls leave. Returns `false` if there is no room.
    fn introduce_server(
        &mut self,
        engine: &mut Engine,
        now: Time,
        path: PathId,
        introduction: Introduction,
    ) -> bool {
        let Introduction { secret, role, suite, ours, theirs, peer, features, .. } = introduction;
        let begun = self.paths.update(path, |entry| {
            (entry.peer, entry.role) = (Some(Arc::clone(&peer)), role);
            let attempt = entry.attempt.as_mut()?;
            attempt.theirs = Some(theirs.token);
            Some((attempt.greeting, attempt.cause, attempt.port, entry.usage.local))
        });
        let Some((greeting, cause, port, local)) = begun.flatten() else { return false };
        let lifetime = self.lifetime(local, &peer);
        if cause != Cause::Refresh {
            match features & FEATURE_PORTS {
                0 => self.keep_for_node(engine, path),
                _ => self.keep_for_port(engine, path, port),
            }
        }
        self.report_rights(engine, path);
        let is_known = engine.endpoint.answered(now, path, greeting, theirs.token);
        let (peer_id, is_refresh) = (theirs.id, cause == Cause::Refresh);
        let keys = PathKeys { secret, role, suite, peer_id, lifetime, is_refresh };
        let has_keys = is_known && sealed(engine).install_keys(path, ours.id, keys);
        if has_keys {
            self.paths.update(path, |entry| entry.keyless_since = None);
        }
        has_keys
    }

    //= docs/protocol.md#seal-18
    /// Limits a path to one port of its peer, whose other ports have other identities.
    fn keep_for_port(&mut self, engine: &mut Engine, path: PathId, port: u16) {
        let Some((address, usage)) = self.paths.get(path).map(|it| (it.address, it.usage)) else {
            return;
        };
        self.note_several(address);
        if usage.port != port {
            self.paths.update(path, |entry| entry.usage.port = port);
            sealed(engine).set_sealed_key(path, SealedKey { local: usage.local, port });
            engine.endpoint.path_is_for(path, port);
        }
    }

    //= docs/protocol.md#seal-18
    /// Has a path be for all ports of its peer, which has one identity. Paths for single ports, from a time when the node at the address
    /// had several, are over: the peer has one path to this node.
    fn keep_for_node(&mut self, engine: &mut Engine, path: PathId) {
        let of = self.paths.get(path).map(|it| (it.address, it.usage));
        let Some((address, usage)) = of.filter(|(_, usage)| usage.port != 0) else { return };
        self.forget_several(address);
        let main = SealedKey { local: usage.local, port: 0 };
        self.paths.update(path, |entry| entry.usage.port = 0);
        sealed(engine).set_sealed_key(path, main);
        for other in sealed(engine).sealed_at(address) {
            let key = sealed(engine).sealed_key(other);
            if key.is_some_and(|key| key.local == usage.local && key != main) {
                self.forget_path(engine, other);
            }
        }
    }

    /// Ends an attempt whose server has its keys.
    fn finish_attempt(&mut self, engine: &mut Engine, now: Time, path: PathId) {
        let at = time_of(now);
        let attempt = self.paths.get(path).and_then(|entry| entry.attempt.as_ref());
        let Some((greeting, theirs)) = attempt.and_then(|it| Some((it.greeting, it.theirs?)))
        else {
            return;
        };
        //= docs/protocol.md#seal-1
        if !engine.endpoint.confirmed(now, path, greeting, theirs) {
            let error = HandshakeError::Busy(Limit::Paths);
            return self.fail_attempt(engine, now, path, error, None);
        }
        let Some(attempt) = self.paths.end_attempt(path) else { return };
        sealed(engine).confirm_keys(attempt.id);
        let is_outdated = attempt.generation != self.generation();
        let refresh_after = self.paths.get(path).and_then(|entry| {
            if is_outdated {
                return Some(soon()); // The files have changed meanwhile.
            }
            let valid = self.lifetime(entry.usage.local, entry.peer.as_ref()?);
            Some(jittered(self.node().rekey).min(valid.mul_f64(REST)))
        });
        self.paths.update(path, |entry| {
            entry.attempts.succeeded(at);
            (entry.is_wanted, entry.error, entry.withdrawn) = (false, None, 0);
            entry.refresh_at = refresh_after.map(|after| at + after);
            if attempt.cause == Cause::Doubted {
                entry.end_doubt(at, theirs == greeting.doubted);
            }
        });
        engine.handshakes.client_done += 1;
        engine.handshakes.refreshes += u64::from(attempt.cause == Cause::Refresh);
    }

    /// Ends an attempt that has failed, and reports it to the server.
    pub(super) fn fail_attempt(
        &mut self,
        engine: &mut Engine,
        now: Time,
        path: PathId,
        error: HandshakeError,
        handshake: Option<Box<ClientHandshake<TlsSession>>>,
    ) {
        if let Some(mut handshake) = handshake {
            self.bid_farewell(engine, now, path, &mut handshake);
        }
        let reason = error.to_string();
        self.end_attempt(
            engine,
            now,
            path,
            Some(error),
            CallError::HandshakeFailed { reason, sent: false },
        );
    }

    /// Reports the end of the handshake to the server.
    fn bid_farewell(
        &self,
        engine: &mut Engine,
        now: Time,
        path: PathId,
        handshake: &mut ClientHandshake<TlsSession>,
    ) {
        let Some(address) = self.paths.get(path).map(|entry| entry.address) else { return };
        if let Some(body) = handshake.farewell()
            && let Some(way) = engine.link.resolve(address)
        {
            // A server without the report waits for the end of the handshake's time.
            let _ = self.send(engine, now, way, body, FAREWELL, now + HANDSHAKE_TIME);
        }
    }

    //= docs/protocol.md#seal-4
    /// Ends an attempt that has failed: waiting calls end, unless the server only has no room.
    fn end_attempt(
        &mut self,
        engine: &mut Engine,
        now: Time,
        path: PathId,
        cause: Option<HandshakeError>,
        error: CallError,
    ) {
        let attempt = self.paths.end_attempt(path);
        let was_introduced = attempt.as_ref().is_some_and(|attempt| attempt.theirs.is_some());
        let was_refresh = attempt.as_ref().is_some_and(|attempt| attempt.cause == Cause::Refresh);
        attempt.iter().for_each(|attempt| sealed(engine).remove_keys(attempt.id));
        let error = reported(error);
        let cause = cause.unwrap_or_else(|| HandshakeError::NoAnswer(error.to_string()));
        let waits = cause.is_busy();
        let random = random() as u32;
        let has_keys = sealed(engine).refresh_salt(path).is_some();
        let known = self.paths.update(path, |entry| {
            entry.attempts.failed(time_of(now), cause, random);
            //= docs/protocol.md#seal-7
            // Calls go on by the keys that were to be refreshed.
            let goes_on = waits || (was_refresh && has_keys);
            entry.error = (!goes_on).then(|| error.clone());
            entry.is_wanted = waits && !has_keys;
            if !has_keys {
                entry.keyless_since.get_or_insert_with(|| time_of(now));
            }
            // A path with keys goes on with them, and a handshake follows after the pause.
            match attempt.map(|attempt| attempt.cause).filter(|_| has_keys) {
                Some(cause) => entry.want_again(cause),
                None => entry.is_doubted = false,
            }
        });
        engine.handshakes.client_failed += 1;
        engine.handshakes.refresh_failures += u64::from(was_refresh);
        self.paths.set_busy(path, known.is_some() && waits);
        if was_introduced && !has_keys {
            // Calls were sent behind CONTINUE, by keys that are gone now (seal-2).
            engine.endpoint.path_over(path);
        }
        if known.is_none() || waits {
            return;
        }
        engine.endpoint.contact_failed(now, path);
    }
}

/// Returns the error of calls that waited for a handshake, from that of its call: nothing of theirs was sent.
fn reported(error: CallError) -> CallError {
    match error {
        CallError::HandshakeFailed { .. } => error,
        CallError::NoSuchPort | CallError::Forbidden => CallError::PlainOnly,
        CallError::PeerUnreachable { error, .. } => {
            CallError::PeerUnreachable { error, sent: false }
        }
        error => CallError::HandshakeFailed { reason: error.to_string(), sent: false },
    }
}

/// Returns a time, give or take a tenth, so that paths that were made together are not refreshed together.
fn jittered(time: Duration) -> Duration {
    time.mul_f64(0.9 + 0.2 * random_part())
}

/// After a change of the node's files, paths are refreshed within this time.
const REFRESH_WITHIN: Duration = Duration::from_secs(10);

/// Returns the time until a path is refreshed because the node's files have changed.
pub(super) fn soon() -> Duration {
    REFRESH_WITHIN.mul_f64(random_part())
}

/// Returns a random number from 0 to 1.
fn random_part() -> f64 {
    f64::from(random() as u32) / f64::from(u32::MAX)
}
