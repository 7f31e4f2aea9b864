//! The handshakes of one engine: its sockets at port 32767, its timers, and the events of the link.

use std::iter;
use std::mem;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use apus_net::{SealEvent, SealedPaths};
use apus_proto::{PathKind, RequestLimits, SocketKey, Time};
use apus_seal::{
    EndReason, HandshakeLimits, Handshakes, Identity, Rule, SECURE_PORT, TlsSession, frame,
};
use apus_wire::PathId;

use crate::engine::lock::Shared;
use crate::engine::{Engine, Handler, Next};
use crate::error::{RuleError, StartError};
use crate::observe::stats::IdentityGauges;
use crate::secure::expiry;
use crate::secure::node_identity::{LOOK_EVERY, NodeIdentity, real_time};
use crate::secure::paths::{PathUse, time_of};
use crate::secure::peer::Peer;
use crate::secure::rules::{HANDSHAKE, Rules};
use crate::secure::sealed_peers::SealedPeers;
use crate::secure::worker::{Job, Worker};
use crate::sync::{Mutex, PoisonError, clock};

/// The handshakes of an engine. A handler of its sockets, which has the [peers](SealedPeers) of the engine during a turn.
pub(crate) struct Driver {
    pub(super) peers: Option<Box<SealedPeers>>,
    /// Takes the requests of handshakes that others begin.
    pub(super) service: SocketKey,
    /// Makes the calls of handshakes that this node begins.
    pub(super) client: SocketKey,
    pub(super) server: Handshakes<TlsSession>,
    pub(super) worker: Worker,
    /// When the files of the identity are looked at.
    pub(super) look_at: Duration,
    /// The generation of the files by which the peers were judged, and the time of that.
    pub(super) judged: (u64, Option<Duration>),
}

impl Deref for Driver {
    type Target = SealedPeers;

    fn deref(&self) -> &SealedPeers {
        self.peers.as_ref().expect(IN_TURN)
    }
}

impl DerefMut for Driver {
    fn deref_mut(&mut self) -> &mut SealedPeers {
        self.peers.as_mut().expect(IN_TURN)
    }
}

pub(super) const IN_TURN: &str = "a driver works in its turn, in which it has the peers";

impl Driver {
    /// Opens the sockets of handshakes, gives each kind of path its rights, and starts the thread for public-key work.
    ///
    /// # Errors
    ///
    /// The system has no thread left.
    pub(crate) fn begin(
        shared: &Arc<Shared>,
        nodes: &[Arc<NodeIdentity>],
        is_open: bool,
    ) -> Result<(), StartError> {
        let worker = Worker::start(Arc::downgrade(shared)).map_err(StartError::Thread)?;
        let mut guard = shared.lock()?;
        let engine = &mut *guard;
        let mut open = |port| {
            let key = engine.endpoint.open(port).expect("no other socket is open yet");
            engine.mail.open(key, None);
            engine.endpoint.set_rule(key, HANDSHAKE);
            key
        };
        let (service, client) = (open(Some(SECURE_PORT)), open(None));
        engine.endpoint.limit_requests(service, HANDSHAKE_LIMITS);
        let peers = SealedPeers::new(nodes, is_open, client);
        peers.set_default_rights(&mut engine.endpoint);
        engine.endpoint.set_default_rights(PathKind::Sealed, Rules::of_unknown());
        engine.identity = gauges(nodes, iter::empty());
        if nodes[0].key_log.is_some() {
            sealed(engine).log_keys();
        }
        let generation = peers.generation();
        engine.sealed_peers = Some(Box::new(peers));
        let driver = Arc::new(HandshakePort(Mutex::new(Self {
            peers: None,
            service,
            client,
            server: Handshakes::new(HandshakeLimits::default()),
            worker,
            look_at: time_of(clock::now()) + LOOK_EVERY,
            judged: (generation, None),
        })));
        engine.add_handler(service, Arc::clone(&driver) as Arc<dyn Handler>);
        engine.add_handler(client, driver);
        Ok(())
    }

    /// Does the work that has come up.
    fn turn(&mut self, engine: &mut Engine, now: Time) -> Next {
        let at = time_of(now);
        while let Some(done) = self.worker.poll_done() {
            self.worked(engine, now, done);
        }
        while let Some(request) = engine.mail.hand_over_request(self.service) {
            self.serve(engine, now, request);
        }
        while let Some(response) = engine.mail.hand_over_response(self.client) {
            self.on_response(engine, now, response);
        }
        while let Some(event) = sealed(engine).poll_seal() {
            self.on_event(engine, now, event);
        }
        self.log_keys(engine);
        self.end_paths_of_served(engine);
        self.server.expire(at);
        while let Some(id) = self.server.poll_ended() {
            sealed(engine).remove_keys(id);
        }
        while let Some(path) = self.paths.first_due(at) {
            self.begin_attempt(engine, now, path);
        }
        if self.judge_again(now) || at >= self.look_at {
            self.show_state(engine);
        }
        self.look_at_files(at);
        let signs = self.share_signs(engine, now).then(|| at + SIGNS_EVERY);
        let keys = sealed(engine).seal_due_in().map(|wait| at + wait);
        let times = [keys, signs, self.server.next_timeout(), self.paths.next_due()];
        let due = times.into_iter().flatten().fold(self.look_at, Duration::min);
        Next::At(Time::ZERO + due)
    }

    /// Notes for calls that wait for a handshake that their peer lives, if the handshake has signs of it, or has met a server
    /// without room. Returns whether any such call may wait.
    fn share_signs(&self, engine: &mut Engine, now: Time) -> bool {
        let mut any = false;
        for path in self.paths.busy() {
            any = true;
            engine.endpoint.note_sign(now, path);
        }
        for (path, address) in self.paths.under_way() {
            any = true;
            if let Some(plain) = engine.link.find(address) {
                engine.endpoint.share_sign(plain, path);
            }
        }
        any
    }

    fn on_event(&mut self, engine: &mut Engine, now: Time, event: SealEvent) {
        let at = time_of(now);
        match event {
            SealEvent::Wanted(path) => self.want(engine, now, path),
            SealEvent::Doubted(path) => {
                self.paths.update(path, |entry| {
                    // Only its peer can begin a handshake for a path that has arrived.
                    if !entry.usage.has_arrived {
                        entry.doubt(at);
                    }
                });
            }
            SealEvent::Moved(from, to) => {
                if let Some(address) = engine.link.address(to) {
                    self.give_up_attempt(engine, to);
                    self.paths.rename(from, to, address);
                    self.report_rights(engine, to);
                }
            }
            //= docs/protocol.md#seal-7
            SealEvent::Ended(path, EndReason::Expired) => self.forget_path(engine, path),
            // The next packet asks for keys. The name of the path stays.
            SealEvent::Ended(path, _) => {
                self.paths.update(path, |entry| {
                    (entry.refresh_at, entry.keyless_since) = (None, Some(at));
                });
            }
            _ => {}
        }
    }

    /// Notes that packets wait for the keys of a path. Their calls end if there is no room for the path.
    fn want(&mut self, engine: &mut Engine, now: Time, path: PathId) {
        let Some(address) = engine.link.address(path) else { return };
        //= docs/protocol.md#seal-18
        let known = self.paths.get(path).map(|entry| entry.usage);
        let usage = known.or_else(|| sealed(engine).sealed_key(path).map(PathUse::of_key));
        let usage = usage.filter(|usage| !usage.has_arrived);
        if usage.is_some_and(|usage| self.add_path(engine, now, path, (address, usage))) {
            self.paths.update(path, |entry| entry.is_wanted = true);
        } else {
            sealed(engine).forget_want(path);
            engine.endpoint.contact_failed(now, path);
        }
    }

    //= docs/protocol.md#seal-4
    /// Makes an entry for a path that has none. In a full table, the path that has been without keys and without use for the longest
    /// time is forgotten. Returns `false` if there is none.
    pub(super) fn add_path(
        &mut self,
        engine: &mut Engine,
        now: Time,
        path: PathId,
        of: (SocketAddr, PathUse),
    ) -> bool {
        let at = time_of(now);
        let local = of.1.local;
        if self.paths.is_full(local)
            && self.paths.get(path).is_none()
            && let Some(spare) = self.paths.first_spare(at, local)
        {
            self.forget_path(engine, spare);
        }
        self.paths.add(path, of, at)
    }

    /// Has the keys that are used for the first time written to the key log.
    fn log_keys(&self, engine: &mut Engine) {
        if self.node().key_log.is_none() {
            return;
        }
        let link = sealed(engine);
        let keys: Vec<_> = iter::from_fn(|| link.poll_logged_key()).collect();
        if !keys.is_empty() {
            self.worker.push(Job::LogKeys { node: Arc::clone(self.node()), keys });
        }
    }

    /// Writes the gauges of certificates and of the key log.
    fn show_state(&self, engine: &mut Engine) {
        let peers = self.paths.iter().filter_map(|(_, entry)| entry.peer.as_ref());
        engine.identity = gauges(&self.nodes, peers.map(|peer| peer.not_after));
    }

    /// Reports the rights of the peer of a path to the core.
    pub(super) fn report_rights(&self, engine: &mut Engine, path: PathId) {
        let Engine { endpoint, neighbours, identity, .. } = engine;
        if let Some(peer) = self.paths.get(path).and_then(|entry| entry.peer.as_ref()) {
            expiry::note_peer(identity, real_time(), peer.not_after);
        }
        self.set_rights(endpoint, neighbours.as_deref(), path);
    }

    /// Forgets a path that is over. Its calls end, its handshake has failed, and the memory that is shared with its peer ends.
    pub(super) fn forget_path(&mut self, engine: &mut Engine, path: PathId) {
        self.give_up_attempt(engine, path);
        self.paths.remove(path);
        sealed(engine).end_keys(path);
        engine.endpoint.path_over(path);
        engine.endpoint.remove_rights(path);
        if let Some(neighbours) = &mut engine.neighbours {
            neighbours.end_pairs_with(path);
        }
    }

    //= docs/protocol.md#seal-18
    /// Ends the paths for ports that their identity no longer serves. Their peers begin anew.
    fn end_paths_of_served(&mut self, engine: &mut Engine) {
        let served = mem::take(&mut self.served);
        if served.is_empty() {
            return;
        }
        let is_other = |usage: PathUse| {
            let serves = served.get(&usage.port);
            usage.has_arrived && serves.is_some_and(|&local| local != usage.local)
        };
        let paths = self.paths.iter().filter(|(_, entry)| is_other(entry.usage));
        let paths: Vec<PathId> = paths.map(|(path, _)| path).collect();
        paths.into_iter().for_each(|path| self.forget_path(engine, path));
    }

    /// Ends the handshake of a path, if this node has begun one, because the path is over.
    fn give_up_attempt(&mut self, engine: &mut Engine, path: PathId) {
        if let Some(attempt) = self.paths.end_attempt(path) {
            sealed(engine).remove_keys(attempt.id);
            engine.handshakes.client_failed += 1;
        }
    }

    /// Returns the time until which keys of a handshake of an identity with a peer are valid, from now on.
    pub(super) fn lifetime(&self, local: u8, peer: &Identity) -> Duration {
        let now = real_time();
        let own = self.identity(local).tls().identity().map_or(Duration::MAX, |own| own.not_after);
        let valid = peer.not_after.min(own).saturating_sub(now);
        (self.node().rekey * 2).min(valid)
    }
}

/// Returns the gauges of identities: of their certificates, the first to expire counts.
fn gauges(nodes: &[Arc<NodeIdentity>], peers: impl Iterator<Item = Duration>) -> IdentityGauges {
    let mut gauges = nodes[0].gauges(peers);
    nodes[1..].iter().for_each(|node| gauges.add(&node.gauges(iter::empty())));
    gauges
}

/// How often signs of a peer are looked for during a handshake: several times within the least `peer_timeout` that makes sense.
const SIGNS_EVERY: Duration = Duration::from_millis(100);

//= docs/protocol.md#seal-4
/// Strangers may send requests of handshakes: each takes at most 64 KiB, and all together at most 16 MiB.
const HANDSHAKE_LIMITS: RequestLimits =
    RequestLimits { longest: frame::REQUEST_MAX as u32, budget: 16 << 20 };

/// Returns the sealed paths of the engine's link.
pub(super) fn sealed(engine: &mut Engine) -> &mut dyn SealedPaths {
    engine.link.sealed_paths().expect("the link of a node with a certificate seals")
}

/// A random number that nobody can guess.
pub(super) fn random() -> u64 {
    getrandom::u64().expect("the kernel has random numbers once it has started")
}

/// The driver, as the handler of its sockets. It is locked after the engine.
struct HandshakePort(Mutex<Driver>);

impl HandshakePort {
    /// Runs the driver while it has the peers of the engine. `None`: the engine has stopped.
    fn run(&self, engine: &mut Engine, now: Time) -> Option<Next> {
        let peers = engine.sealed_peers.take()?;
        let mut driver = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        driver.peers = Some(peers);
        let next = driver.turn(engine, now);
        engine.sealed_peers = driver.peers.take();
        Some(next)
    }
}

impl Handler for HandshakePort {
    fn handle(&self, engine: &mut Engine, now: Time) -> Next {
        self.run(engine, now).unwrap_or(Next::Message)
    }

    fn closed(&self, engine: &mut Engine) {
        engine.sealed_peers = None; // The engine stops.
    }
}

impl Engine {
    //= docs/protocol.md#seal-6
    /// Gives a socket a rule for its peers, by which requests that were not taken are judged again.
    ///
    /// # Errors
    ///
    /// The node has no certificate, or too many different rules.
    pub(crate) fn set_rule(&mut self, socket: SocketKey, rule: &Rule) -> Result<(), RuleError> {
        self.deliver(); // All requests that have arrived are in the queue now.
        let Self { sealed_peers, endpoint, neighbours, mail, .. } = self;
        let peers = sealed_peers.as_mut().ok_or(RuleError::NoIdentity)?;
        let before = mail.rule(socket);
        let number = peers.set_rule(endpoint, neighbours.as_deref(), (socket, before), rule)?;
        if let Some(mailbox) = mail.mailbox(socket) {
            mailbox.rule = number;
            mailbox.queue.refuse_forbidden(endpoint, |endpoint, request| {
                endpoint.refuse_if_forbidden(request.rpc)
            });
            let now = clock::now();
            self.transmit(now);
            self.transmit_due(now);
        }
        Ok(())
    }

    /// Gives a service that was opened the rule that the configuration has for its port.
    pub(crate) fn apply_rule_of_port(&mut self, socket: SocketKey, port: u16) {
        let Some(peers) = &self.sealed_peers else { return };
        let node = Arc::clone(peers.node());
        if let Some(rule) = node.allowed_at(port) {
            let set = self.set_rule(socket, rule);
            debug_assert_eq!(set, Ok(()), "the rules of the configuration have numbers");
        }
    }

    /// Compares the peer at an address with the rules again, because the address has another name now.
    pub(crate) fn name_has_changed(&mut self, address: SocketAddr) {
        let Self { sealed_peers, endpoint, neighbours, link, .. } = self;
        let (Some(peers), Some(sealed)) = (sealed_peers, link.sealed_paths()) else { return };
        for path in sealed.sealed_at(address) {
            peers.set_rights(endpoint, neighbours.as_deref(), path);
        }
    }

    /// Returns the peer at the end of a path, if it has shown a certificate.
    pub(crate) fn peer(&self, path: PathId) -> Option<Peer> {
        if path.is_local()
            && let Some(attached) = &self.neighbours.as_ref()?.attachments.attached
        {
            return attached.peer(path).cloned();
        }
        let peers = self.sealed_peers.as_ref()?;
        match path.is_local() {
            true => peers.peer(self.neighbours.as_ref()?.udp(path)?),
            false => peers.peer(path),
        }
    }
}
