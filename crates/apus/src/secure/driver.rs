//! The handshakes of one engine: its sockets at port 32767, its timers, and the events of the link.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;
use std::{io, mem};

use apus_net::{Link, SealEvent, SealedPaths};
use apus_proto::{CallFailed, PathKind, RequestLimits, SocketKey, Time};
use apus_seal::{
    EndReason, HandshakeLimits, Handshakes, Identity, Rule, SECURE_PORT, TlsSession, frame,
};
use apus_wire::{PathId, is_native};

use crate::engine::lock::Shared;
use crate::engine::{Engine, Handler, Next};
use crate::error::{CallError, RuleError, WrongPeer};
use crate::secure::node_identity::{NodeIdentity, Plain};
use crate::secure::paths::SealedPathTable;
use crate::secure::peer::Peer;
use crate::secure::reload::LOOK_EVERY;
use crate::secure::rules::{HANDSHAKE, Rules};
use crate::secure::worker::{JobDone, Worker};

/// The handshakes of an engine.
pub(crate) struct Driver {
    pub(super) node: Arc<NodeIdentity>,
    /// Takes the requests of handshakes that others begin.
    pub(super) service: SocketKey,
    /// Makes the calls of handshakes that this node begins.
    pub(super) client: SocketKey,
    pub(super) server: Handshakes<TlsSession>,
    pub(super) paths: SealedPathTable,
    pub(super) rules: Rules,
    worker: Option<Worker>,
    /// When the files of the identity are looked at.
    pub(super) look_at: Duration,
    /// The generation of the files by which the peers were judged.
    pub(super) judged: u64,
}

impl Driver {
    /// Opens the sockets of handshakes, and gives each kind of path its rights.
    pub(crate) fn begin(engine: &mut Engine, node: &Arc<NodeIdentity>) {
        let mut open = |port| {
            let key = engine.endpoint.open(port).expect("no other socket is open yet");
            engine.mail.open(key, None);
            engine.endpoint.set_rule(key, HANDSHAKE);
            engine.add_handler(key, Arc::new(HandshakePort));
            key
        };
        let (service, client) = (open(Some(SECURE_PORT)), open(None));
        engine.endpoint.limit_requests(service, HANDSHAKE_LIMITS);
        let rules = Rules::of(&node.allow);
        engine.endpoint.set_default_rights(PathKind::Plain, rules.of_plain(node.plain));
        engine.endpoint.set_default_rights(PathKind::Sealed, Rules::of_unknown());
        engine.driver = Some(Box::new(Self {
            node: Arc::clone(node),
            service,
            client,
            server: Handshakes::new(HandshakeLimits::default()),
            paths: SealedPathTable::default(),
            rules,
            worker: None,
            look_at: clock(crate::sync::clock::now()) + LOOK_EVERY,
            judged: node.generation(),
        }));
        engine.handler_is_due(client, Time::ZERO);
    }

    /// Starts the thread for public-key work.
    ///
    /// # Errors
    ///
    /// The system has no thread left.
    pub(crate) fn start_worker(&mut self, engine: Weak<Shared>) -> io::Result<()> {
        self.worker = Some(Worker::start(engine)?);
        Ok(())
    }

    pub(super) fn worker(&self) -> &Worker {
        self.worker.as_ref().expect("it starts with the engine")
    }

    /// Returns the path to a node: a sealed one, unless plain ones are to be used.
    ///
    /// # Errors
    ///
    /// The last handshake with the node has failed, and the next one may not begin yet.
    #[inline]
    pub(crate) fn resolve(
        &self,
        link: &mut dyn Link,
        host: SocketAddr,
        now: impl FnOnce() -> Time,
    ) -> Result<Option<PathId>, CallError> {
        if is_native(host) || self.node.plain == Plain::Use {
            return Ok(link.resolve(host));
        }
        let Some(path) = link.sealed_paths().and_then(|sealed| sealed.resolve_sealed(host)) else {
            return Ok(None);
        };
        if let Some(entry) = self.paths.get(path)
            && let Some(error) = &entry.error
            && entry.attempts.error(clock(now())).is_some()
        {
            return Err(error.clone());
        }
        Ok(Some(path))
    }

    /// Returns the peer at the end of a path.
    pub(crate) fn peer(&self, path: PathId) -> Option<Peer> {
        self.paths.get(path)?.peer.clone().map(Peer)
    }

    //= docs/protocol.md#seal-6
    /// Returns the error of a call to a peer that its client, whose rule has this number, does not expect.
    pub(crate) fn unexpected(&self, path: PathId, rule: u8) -> CallError {
        let Some(entry) = self.paths.get(path) else { return CallError::PlainOnly };
        let expected = match self.rules.get(rule) {
            Some(rule) => rule.to_string(),
            None => self.node.expected_at(entry.address).to_string(),
        };
        let name = entry.peer.as_ref().map_or_else(String::new, |peer| peer.name.to_string());
        CallError::WrongPeer(Box::new(WrongPeer { address: entry.address, name, expected }))
    }

    /// Returns the error of a call that has ended because of its first contact, which the core does not know in words.
    #[cold]
    pub(crate) fn contact_error(
        &self,
        path: PathId,
        rule: u8,
        error: &CallFailed,
    ) -> Option<CallError> {
        match error {
            CallFailed::NotExpected => Some(self.unexpected(path, rule)),
            CallFailed::HandshakeFailed => self.paths.get(path)?.error.clone(),
            _ => None,
        }
    }

    /// Does the work that has come up.
    fn turn(&mut self, engine: &mut Engine, now: Time) -> Next {
        let at = clock(now);
        while let Some(request) = engine.mail.hand_over_request(self.service) {
            self.serve(engine, now, request);
        }
        while let Some(response) = engine.mail.hand_over_response(self.client) {
            self.on_response(engine, now, response);
        }
        while let Some(event) = sealed(engine).poll_seal() {
            self.on_event(engine, now, event);
        }
        self.server.expire(at);
        while let Some(id) = self.server.poll_ended() {
            sealed(engine).remove_keys(id);
        }
        while let Some(path) = self.paths.first_due(at) {
            self.begin_attempt(engine, now, path);
        }
        self.look_at_files(at);
        let keys = sealed(engine).seal_due_in().map(|wait| at + wait);
        let times = [keys, self.server.next_timeout(), self.paths.next_due()];
        let due = times.into_iter().flatten().fold(self.look_at, Duration::min);
        Next::At(Time::ZERO + due)
    }

    fn on_event(&mut self, engine: &mut Engine, now: Time, event: SealEvent) {
        let at = clock(now);
        match event {
            SealEvent::Wanted(path) => {
                if let Some(address) = engine.link.address(path) {
                    self.paths.add(path, address, at);
                    self.paths.update(path, |entry| entry.is_wanted = true);
                }
            }
            SealEvent::Doubted(path) => _ = self.paths.update(path, |entry| entry.doubt(at)),
            SealEvent::Moved(from, to) => {
                if let Some(address) = engine.link.address(to) {
                    self.paths.rename(from, to, address);
                    self.set_rights(engine, to);
                }
            }
            //= docs/protocol.md#seal-7
            SealEvent::Ended(path, EndReason::Expired) => self.forget_path(engine, path),
            // The next packet asks for keys. The name of the path stays.
            SealEvent::Ended(path, _) => _ = self.paths.update(path, |it| it.refresh_at = None),
            _ => {}
        }
    }

    /// Forgets a path that is over. Its calls end, and so does the memory that is shared with its peer.
    pub(super) fn forget_path(&mut self, engine: &mut Engine, path: PathId) {
        if let Some(attempt) = self.paths.end_attempt(path) {
            sealed(engine).remove_keys(attempt.id);
        }
        self.paths.remove(path);
        sealed(engine).end_keys(path);
        engine.endpoint.path_over(path);
        engine.endpoint.remove_rights(path);
        if let Some(neighbours) = &mut engine.neighbours {
            neighbours.end_pairs_with(path);
        }
    }

    /// Tells the core what the peer of a path may do.
    pub(super) fn set_rights(&self, engine: &mut Engine, path: PathId) {
        let Some(entry) = self.paths.get(path) else { return };
        let Some(peer) = &entry.peer else { return };
        let rights = self.rules.of_peer(&self.node, entry.address, peer);
        engine.endpoint.set_rights(path, rights);
        if let Engine { endpoint, neighbours: Some(neighbours), .. } = engine {
            neighbours.local_paths(path).for_each(|local| endpoint.set_rights(local, rights));
        }
    }

    /// Gives a socket a rule.
    ///
    /// # Errors
    ///
    /// The node has too many different rules.
    pub(crate) fn set_rule(
        &mut self,
        engine: &mut Engine,
        socket: SocketKey,
        rule: &Rule,
    ) -> Result<(), RuleError> {
        let (number, is_new) = self.rules.number(rule)?;
        if is_new {
            let plain = self.rules.of_plain(self.node.plain);
            engine.endpoint.set_default_rights(PathKind::Plain, plain);
            let paths: Vec<PathId> = self.paths.iter().map(|(path, _)| path).collect();
            paths.into_iter().for_each(|path| self.set_rights(engine, path));
        }
        engine.endpoint.set_rule(socket, number);
        if let Some(mailbox) = engine.mail.mailbox(socket) {
            mailbox.rule = number;
        }
        Ok(())
    }

    /// Returns the time until which keys of a handshake with a peer are valid, from now on.
    pub(super) fn lifetime(&self, peer: &Identity) -> Duration {
        let now = super::node_identity::real_time();
        let own = self.node.tls().identity().map_or(Duration::MAX, |own| own.not_after);
        let valid = peer.not_after.min(own).saturating_sub(now);
        (self.node.rekey * 2).min(valid)
    }
}

//= docs/protocol.md#seal-4
/// Strangers may send requests of handshakes: each takes at most 64 KiB, and all together at most 16 MiB.
const HANDSHAKE_LIMITS: RequestLimits =
    RequestLimits { longest: frame::REQUEST_MAX as u32, budget: 16 << 20 };

/// Returns the sealed paths of the engine's link.
pub(super) fn sealed(engine: &mut Engine) -> &mut dyn SealedPaths {
    engine.link.sealed_paths().expect("the link of a node with a certificate seals")
}

/// Returns the time of the engine as that of `apus-seal`.
pub(super) fn clock(now: Time) -> Duration {
    now.saturating_since(Time::ZERO)
}

/// A random number that nobody can guess.
pub(super) fn random() -> u64 {
    getrandom::u64().expect("the kernel has random numbers once it has started")
}

/// Hands the messages of the driver's sockets to it.
struct HandshakePort;

impl Handler for HandshakePort {
    fn handle(&self, engine: &mut Engine, now: Time) -> Next {
        let turn = engine.with_driver(|driver, engine| driver.turn(engine, now));
        turn.unwrap_or(Next::Message)
    }

    fn closed(&self, engine: &mut Engine) {
        // The engine stops, and the thread with it.
        engine.driver = None;
    }
}

impl Engine {
    /// Runs the driver of sealed paths, if there is one.
    pub(crate) fn with_driver<R>(
        &mut self,
        run: impl FnOnce(&mut Driver, &mut Self) -> R,
    ) -> Option<R> {
        let mut driver = mem::take(&mut self.driver)?;
        let result = run(&mut driver, self);
        self.driver = Some(driver);
        Some(result)
    }

    /// Gives a socket a rule for its peers.
    ///
    /// # Errors
    ///
    /// The node has no certificate, or too many different rules.
    pub(crate) fn set_rule(&mut self, socket: SocketKey, rule: &Rule) -> Result<(), RuleError> {
        let set = self.with_driver(|driver, engine| driver.set_rule(engine, socket, rule));
        set.unwrap_or(Err(RuleError::NoIdentity))
    }

    /// Gives a service that was opened the rule that the configuration has for its port.
    pub(crate) fn apply_rule_of_port(&mut self, socket: SocketKey, port: u16) {
        self.with_driver(|driver, engine| {
            let node = Arc::clone(&driver.node);
            if let Some(rule) = node.allowed_at(port) {
                let set = driver.set_rule(engine, socket, rule);
                debug_assert_eq!(set, Ok(()), "the rules of the configuration have numbers");
            }
        });
    }

    /// Returns the peer at the end of a path, if it has shown a certificate.
    pub(crate) fn peer(&self, path: PathId) -> Option<Peer> {
        let driver = self.driver.as_ref()?;
        match path.is_local() {
            true => driver.peer(self.neighbours.as_ref()?.udp(path)?),
            false => driver.peer(path),
        }
    }

    /// Has the driver see to events of the link.
    #[inline]
    pub(crate) fn tend_sealed(&mut self, now: Time) {
        if self.driver.is_some() {
            self.tend_sealed_now(now);
        }
    }

    #[cold]
    fn tend_sealed_now(&mut self, now: Time) {
        if self.link.sealed_paths().is_some_and(|sealed| sealed.has_seal_events())
            && let Some(client) = self.driver.as_ref().map(|driver| driver.client)
        {
            self.run_handler(client, now);
        }
    }

    /// Has the peers judged by the files of the identity, which were read again.
    pub(crate) fn identity_changed(&mut self) {
        let now = crate::sync::clock::now();
        self.with_driver(|driver, _| driver.judge_again(now));
    }

    /// Takes the result of public-key work, on its thread.
    pub(super) fn handshake_worked(&mut self, done: JobDone) {
        let now = crate::sync::clock::now();
        let client = self.with_driver(|driver, engine| {
            driver.worked(engine, now, done);
            driver.client
        });
        if let Some(client) = client {
            self.run_handler(client, now);
        }
        self.transmit(now);
        self.transmit_due(now);
    }
}
