//! Handshakes in the world: calls with repeated requests, which carry the frames of `apus-seal` and scripted flights of TLS.

use std::time::Duration;

use apus_proto::Greeting;
use apus_seal::{
    Arrival, AssociationId, ClientHandshake, ClientOffer, ClientStep, HandshakeAnswer,
    HandshakeError, Installation, Introduction, Limit, Name, Need, PathEnd, Refresh, Role,
    ServerOffer, Suite,
};
use apus_wire::{PathId, Priority};
use rand::Rng;

use crate::check::holes::Hole;
use crate::check::keys::{Attempt, HANDSHAKE_TIME, Keys, SealedPath};
use crate::check::ledger::Violation;
use crate::check::scenario::FaultType;
use crate::check::script::{CertificateName, ScriptedTls};
use crate::check::sealing::{Content, FLIGHT};
use crate::check::world::{PORT, World, WorldEvent};

const REQUEST: u8 = 0;
const RESPONSE: u8 = 1;
/// Mark, kind, number of the call, length of the body.
const PREFIX_LEN: usize = 4 + 1 + 8 + 2;
/// Time until a request is repeated for the first time.
const REPEAT_AFTER: Duration = Duration::from_millis(2);

/// A flight: one message of a call.
struct Flight<'a> {
    kind: u8,
    call: u64,
    body: &'a [u8],
}

impl<'a> Flight<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (prefix, rest) = bytes.split_at_checked(PREFIX_LEN)?;
        let call = u64::from_be_bytes(prefix[5..13].try_into().ok()?);
        let len = u16::from_be_bytes(prefix[13..].try_into().ok()?);
        Some(Self { kind: prefix[4], call, body: rest.get(..len.into())? })
    }

    fn emit(&self) -> Vec<u8> {
        let len = u16::try_from(self.body.len()).expect("flights are short");
        let mut bytes = FLIGHT.to_vec();
        bytes.push(self.kind);
        bytes.extend(self.call.to_be_bytes());
        bytes.extend(len.to_be_bytes());
        bytes.extend(self.body);
        // No record is shorter than a packet without a body.
        bytes.resize(bytes.len().max(apus_wire::COMMON_LEN), 0);
        bytes
    }
}

/// The work that is due for a path.
enum Due {
    Nothing,
    Begin { is_refresh: bool },
    Repeat,
    TimeOut,
}

impl World<'_> {
    /// Begins, repeats and ends handshakes whose time has come.
    pub(super) fn tend_attempts(&mut self, node: usize) {
        for index in 0..self.sealing().nodes[node].paths.len() {
            match self.due_at(node, index) {
                Due::Nothing => {}
                Due::Begin { is_refresh } => self.begin_attempt(node, index, is_refresh),
                Due::Repeat => self.send_request(node, index),
                Due::TimeOut => self.fail_attempt(node, index, HandshakeError::UnknownHandle),
            }
        }
    }

    fn due_at(&mut self, node: usize, index: usize) -> Due {
        let (now, quiet_from) = (self.now, self.scenario.quiet_from);
        let place = &self.sealing().nodes[node].paths[index];
        if let Some(attempt) = &place.attempt {
            return match () {
                () if now >= attempt.deadline => Due::TimeOut,
                () if now >= attempt.repeat_at => Due::Repeat,
                () => Due::Nothing,
            };
        }
        match place.begin_at(quiet_from) {
            Some(at) if at <= now => Due::Begin { is_refresh: !place.needs_path() },
            _ => Due::Nothing,
        }
    }

    fn begin_attempt(&mut self, node: usize, index: usize, is_refresh: bool) {
        let (now, local) = (self.now, self.local(node));
        let numbers = [(); 3].map(|()| self.rng.next_u64());
        let expected = self.expected_names();
        let sealing = self.sealing.as_mut().expect("a sealed world");
        let keys = &mut sealing.nodes[node];
        let place = &mut keys.paths[index];
        if !place.attempts.begin(now, Need::NoPath) {
            return;
        }
        (place.is_wanted, place.is_doubted, place.refresh_at) = (false, false, None);
        let Some(ours) = keys.table.reserve(numbers[0]) else {
            place.attempts.failed(now, HandshakeError::Busy(Limit::Paths), numbers[1] as u32);
            return;
        };
        let over = place.keys.filter(|_| is_refresh);
        let doubts = place.is_introduced && over.is_none();
        let greeting = self.nodes[node].endpoint.greeting(local, place.path, doubts);
        let refresh = over.and_then(|id| keys.table.refresh_salt(id)).zip(place.peer);
        let refresh =
            refresh.map(|(salt, peer)| Refresh { salts: vec![salt.clone()], peer: expected(peer) });
        let offer = ClientOffer {
            port: PORT,
            end: PathEnd { id: ours, token: greeting.token },
            doubted: greeting.doubted,
            features: 0,
            suites: vec![Suite::Aes128Gcm],
            refresh,
        };
        let session = ScriptedTls::client(sealing.key, keys.name, numbers[1]);
        let (handshake, body) = ClientHandshake::begin(offer, session);
        place.attempt = Some(Attempt {
            handshake,
            greeting,
            ours,
            over,
            call: numbers[2],
            body,
            repeat_at: now,
            pause: REPEAT_AFTER,
            deadline: now + HANDSHAKE_TIME,
            installed: None,
        });
        let (path, peer) = (place.path, place.peer);
        self.note(|| {
            format!(
                "node {node} begins a handshake by {path:?}: refresh {is_refresh}, {greeting:?}"
            )
        });
        self.disturb_contact(node, peer.map(|peer| peer.node));
        self.send_request(node, index);
    }

    //= docs/protocol.md#seal-7
    /// Returns the name that a refresh expects of the peer, given the name of the path.
    fn expected_names(&mut self) -> impl Fn(CertificateName) -> Name + use<> {
        let names = self.sealing().nodes.iter().map(|keys| keys.name);
        let names: Vec<CertificateName> = names.collect();
        let is_open = self.has(Hole::NameNotCompared);
        move |peer| if is_open { names[peer.node].name() } else { peer.name() }
    }

    /// A handshake may bring a token into doubt, and delays packets.
    fn disturb_contact(&mut self, node: usize, peer: Option<usize>) {
        let peers = 0..self.nodes.len();
        for other in peers.filter(|other| peer.is_none_or(|peer| peer == *other)) {
            self.work.disturbed_contact(node, other);
        }
    }

    /// Sends the request under way, again or for the first time.
    fn send_request(&mut self, node: usize, index: usize) {
        let now = self.now;
        let longest = self.scenario.peer_timeout / 8;
        let place = &mut self.sealing().nodes[node].paths[index];
        let address = place.address;
        let attempt = place.attempt.as_mut().expect("a handshake under way");
        attempt.repeat_at = now + attempt.pause;
        attempt.pause = (attempt.pause * 2).min(longest.max(REPEAT_AFTER));
        let flight = Flight { kind: REQUEST, call: attempt.call, body: &attempt.body };
        let (bytes, over) = (flight.emit(), attempt.over);
        if !self.send_flight(node, address, over, &bytes) {
            // The keys of the path have ended, so there is nothing to refresh. A new handshake may begin at once.
            let place = &mut self.sealing().nodes[node].paths[index];
            let attempt = place.attempt.take().expect("it was just there");
            place.attempts = apus_seal::Attempts::default();
            self.sealing().nodes[node].forget(attempt.ours);
        }
    }

    /// Sends a flight, in a record if it refreshes a path. Returns whether the path still has its keys.
    pub(super) fn send_flight(
        &mut self,
        node: usize,
        to: PathId,
        over: Option<AssociationId>,
        bytes: &[u8],
    ) -> bool {
        let Some(id) = over else {
            self.give(node, to, bytes.to_vec(), None);
            return true;
        };
        let keys = &self.sealing().nodes[node];
        let Some(place) = keys.table.path(id).map(|path| &keys.paths[path.index()]) else {
            return false;
        };
        let peer = place.peer.expect("a path with keys has a name").node;
        let address = place.address;
        let sealed = self.seal(node, id, Priority::HIGHEST, &Content::Whole(bytes));
        let Some(datagram) = sealed else { return false };
        let clear = *datagram.first_chunk().expect("a record has clear bytes");
        let noted = self.sealing().records.seal(clear, (node, peer), bytes, None);
        debug_assert_eq!(noted, Ok(()));
        self.give(node, address, datagram, None);
        true
    }

    /// Takes a flight, which came in a record of an association or in the clear.
    pub(super) fn on_flight(
        &mut self,
        node: usize,
        from: PathId,
        over: Option<AssociationId>,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        let Some(Flight { kind, call, body }) = Flight::parse(bytes) else { return Ok(()) };
        if kind == RESPONSE {
            self.on_response(node, from, call, body);
        } else {
            let body = self.serve(node, from, over, call, body);
            let bytes = Flight { kind: RESPONSE, call, body: &body }.emit();
            let (at, incarnation) = (self.now + self.work_time(), self.nodes[node].incarnation);
            let over = over.map(AssociationId::to_bits);
            self.schedule(at, WorldEvent::Flight { node, incarnation, to: from, over, bytes });
        }
        self.tend_soon(node);
        self.turn(node)?;
        self.sealing().violation.take().map_or(Ok(()), Err)
    }

    /// Answers a request of a handshake, a repeated one with the same answer.
    fn serve(
        &mut self,
        node: usize,
        from: PathId,
        over: Option<AssociationId>,
        call: u64,
        body: &[u8],
    ) -> Vec<u8> {
        if let Some(answer) = self.sealing().nodes[node].answers.get(&(from, call)) {
            return answer.clone();
        }
        let (now, local, refuses) = (self.now, self.local(node), self.refuses(node));
        let numbers = [(); 3].map(|()| self.rng.next_u64());
        let expected = self.expected_names();
        let sealing = self.sealing.as_mut().expect("a sealed world");
        let keys = &mut sealing.nodes[node];
        let home = over.and_then(|id| keys.table.path(id)).map(PathId::index);
        let index = home.unwrap_or_else(|| keys.resolve(from));
        let Keys { name, server, table, paths, .. } = keys;
        let salt = over.and_then(|id| table.refresh_salt(id)).zip(paths[index].peer);
        let refresh =
            salt.map(|(salt, peer)| Refresh { salts: vec![salt.clone()], peer: expected(peer) });
        let session = ScriptedTls::server(sealing.key, *name, numbers[1], refuses);
        let endpoint = &mut self.nodes[node].endpoint;
        let address = std::net::Ipv4Addr::from_bits(from.name() as u32).into();
        let arrival = Arrival { address, deadline: None, body: body.to_vec(), random: numbers[2] };
        let work = server.handle_request(now, arrival, |hello| {
            let ours = table.reserve(numbers[0]).ok_or(HandshakeError::Busy(Limit::Paths))?;
            let greeting = Greeting { token: hello.end.token, doubted: hello.doubted };
            let token = endpoint.answer_greeting(local, paths[index].path, greeting);
            let end = PathEnd { id: ours, token };
            let suites = Suite::ALL.to_vec();
            Ok(ServerOffer { end, suites, features: 0, label: 0, session, refresh })
        });
        let answer = match work.map(|work| server.finish(work.run())) {
            Ok(HandshakeAnswer::Reply(body)) => body,
            Ok(HandshakeAnswer::Introduced(introduction, body)) => {
                let name = CertificateName::parse(&introduction.peer.name);
                let index = match over {
                    Some(_) => index,
                    None => self.path_of_client(node, from, name),
                };
                if self.introduce(node, index, over.is_some(), *introduction) {
                    body
                } else {
                    HandshakeError::Busy(Limit::Paths).fail().emit()
                }
            }
            Ok(HandshakeAnswer::Failed(error, body)) => {
                self.note(|| format!("node {node} ends a handshake: {error}"));
                body
            }
            Err(error) => error.fail().emit(),
        };
        self.remove_failed(node);
        self.sealing().nodes[node].answers.insert((from, call), answer.clone());
        answer
    }

    //= docs/protocol.md#seal-5
    /// Returns the path of a client. The earlier path of its address is over if it has another name.
    fn path_of_client(&mut self, node: usize, from: PathId, name: CertificateName) -> usize {
        let keeps = self.has(Hole::PathKept);
        let keys = &mut self.sealing.as_mut().expect("a sealed world").nodes[node];
        let before = keys.resolve(from);
        if keeps && keys.paths[before].peer.is_some() {
            return before;
        }
        let index = keys.named(from, name);
        if index != before {
            self.nodes[node].endpoint.path_over(keys.paths[before].path);
        }
        index
    }

    /// Whether a node refuses all clients at present.
    fn refuses(&self, node: usize) -> bool {
        self.kinds().any(|kind| kind == FaultType::Refuse { node })
    }

    /// Frees the ids of handshakes that have ended at the server without a path.
    pub(super) fn remove_failed(&mut self, node: usize) {
        let keys = &mut self.sealing().nodes[node];
        while let Some(id) = keys.server.poll_ended() {
            keys.table.remove(id);
        }
    }

    /// Gives the result of a handshake to the core and to the table of keys. Returns whether the core knows the peer.
    fn introduce(
        &mut self,
        node: usize,
        index: usize,
        is_refresh: bool,
        introduction: Introduction,
    ) -> bool {
        let (now, local, lifetime) = (self.now, self.local(node), self.lifetime());
        let drops_history = is_refresh && self.has(Hole::HistoryDropped);
        let Introduction { secret, role, suite, ours, theirs, doubted, peer, .. } = introduction;
        self.check_name(node, index, CertificateName::parse(&peer.name));
        self.handshake_named(node, index);
        self.set_rights(node, index, Some(role));
        let sealing = self.sealing.as_mut().expect("a sealed world");
        let keys = &mut sealing.nodes[node];
        let place = &mut keys.paths[index];
        let (path, address) = (place.path, place.address);
        let peer = place.peer.map(|peer| peer.node);
        let (id, peer_id) = (ours.id, theirs.id);
        let endpoint = &mut self.nodes[node].endpoint;
        let is_known = match role {
            Role::Client => {
                let greeting = Greeting { token: ours.token, doubted };
                endpoint.answered(local, path, greeting, theirs.token)
            }
            Role::Server => endpoint.introduced(local, path, ours.token, theirs.token),
        };
        #[cfg(feature = "holes")]
        if drops_history {
            endpoint.drop_history(ours.token);
        }
        let _ = drops_history;
        if !is_known {
            keys.table.remove(id);
            self.note(|| format!("node {node} cannot be introduced by {path:?}"));
            return false;
        }
        self.work.introduced(ours.token, theirs.token);
        let new = Installation { secret, role, suite, peer_id, path, address, lifetime };
        let Some(kept) = keys.table.install(now, id, new) else { return false };
        place.is_introduced = true;
        //= docs/protocol.md#seal-2
        // A client that has keys sends by them until the server has shown that it has the new ones.
        if role == Role::Server {
            //= docs/protocol.md#seal-4
            place.attempts.made_by_peer();
        }
        if role == Role::Server || place.keys.is_none() {
            keys.send_by(now, index, id, is_refresh);
        }
        for kept in kept {
            sealing.keep(node, kept.from, kept.datagram);
        }
        let tokens = (ours.token, theirs.token);
        self.note(|| {
            format!("node {node} is introduced to {peer:?} as {role:?}: {id:?}, {tokens:?}")
        });
        self.disturb_contact(node, peer);
        true
    }

    //= docs/protocol.md#seal-5
    /// Notes a violation if a handshake gives a path the keys of another name.
    fn check_name(&mut self, node: usize, index: usize, name: CertificateName) {
        let sealing = self.sealing();
        let of_path = sealing.nodes[node].paths[index].peer;
        if let Some(peer) = of_path.filter(|&of_path| of_path != name) {
            sealing.violation = Some(Violation::Renamed { node, peer: peer.node });
        }
    }

    /// The lifetime of new keys. It is longer than the pauses between probes, of which each may be the first packet after the end of
    /// the keys before; until the last fault, that costs time only.
    fn lifetime(&mut self) -> Duration {
        let (now, scenario) = (self.now, self.scenario);
        let planned = self.sealing().plan.lifetime;
        if now < scenario.quiet_from { planned } else { planned.max(scenario.peer_timeout) }
    }

    /// Takes the answer to a request of a handshake.
    fn on_response(&mut self, node: usize, from: PathId, call: u64, body: &[u8]) {
        let keys = &mut self.sealing().nodes[node];
        let under_way = keys.paths.iter_mut().position(|place| {
            place.attempt.as_ref().is_some_and(|it| it.call == call) && place.address == from
        });
        let Some(index) = under_way else { return };
        let path = keys.paths[index].path;
        let local = self.local(node);
        self.nodes[node].endpoint.note_sign(local, path);
        let keys = &mut self.sealing().nodes[node];
        let attempt = keys.paths[index].attempt.as_mut().expect("it was found by it");
        let (ours, is_refresh) = (attempt.ours, attempt.over.is_some());
        match attempt.handshake.handle_response(body) {
            Ok(ClientStep::Continue(body)) => self.next_request(node, index, body),
            Ok(ClientStep::Introduced(introduction, body)) => {
                let name = CertificateName::parse(&introduction.peer.name);
                if self.is_named_otherwise(node, index, name) {
                    return;
                }
                let theirs = introduction.theirs.token;
                if !self.introduce(node, index, is_refresh, *introduction) {
                    return self.fail_attempt(node, index, HandshakeError::OutOfOrder);
                }
                let place = &mut self.sealing().nodes[node].paths[index];
                place.attempt.as_mut().expect("it is under way").installed = Some(theirs);
                self.next_request(node, index, body);
            }
            Ok(ClientStep::Done) => {
                self.sealing().nodes[node].table.confirm(ours);
                self.end_if_confirmed(node, ours);
            }
            Err(error) => {
                if let Some(body) = attempt.handshake.farewell() {
                    let (call, over) = (attempt.call ^ 1, attempt.over);
                    let bytes = Flight { kind: REQUEST, call, body: &body }.emit();
                    self.send_flight(node, from, over, &bytes);
                }
                self.fail_attempt(node, index, error);
            }
        }
    }

    //= docs/protocol.md#seal-5
    /// Gives the address another path if a node with another name has answered there, and begins that path's own handshake: the tokens
    /// of this one belong to the path. Returns whether it was so.
    fn is_named_otherwise(&mut self, node: usize, index: usize, name: CertificateName) -> bool {
        let keeps = self.has(Hole::PathKept);
        let keys = &mut self.sealing.as_mut().expect("a sealed world").nodes[node];
        let place = &mut keys.paths[index];
        let is_refresh = place.attempt.as_ref().is_some_and(|attempt| attempt.over.is_some());
        // The session has compared the names of a refresh.
        if *place.peer.get_or_insert(name) == name || is_refresh || keeps {
            return false;
        }
        let (address, path) = (place.address, place.path);
        let other = keys.named(address, name);
        keys.paths[other].is_wanted = true;
        self.nodes[node].endpoint.path_over(path);
        self.fail_attempt(node, index, HandshakeError::OutOfOrder);
        true
    }

    fn next_request(&mut self, node: usize, index: usize, body: Vec<u8>) {
        let call = self.rng.next_u64();
        let at = self.now + self.work_time();
        let place = &mut self.sealing().nodes[node].paths[index];
        let attempt = place.attempt.as_mut().expect("a handshake under way");
        (attempt.call, attempt.body, attempt.pause) = (call, body, REPEAT_AFTER);
        attempt.repeat_at = at;
    }

    fn fail_attempt(&mut self, node: usize, index: usize, error: HandshakeError) {
        let (now, random) = (self.now, self.rng.next_u32());
        let keys = &mut self.sealing().nodes[node];
        let place = &mut keys.paths[index];
        let Some(attempt) = place.attempt.take() else { return };
        let (text, path) = (error.to_string(), place.path);
        let waits = matches!(error, HandshakeError::Busy(_));
        place.attempts.failed(now, error, random);
        keys.forget(attempt.ours);
        if !waits {
            //= docs/protocol.md#seal-1
            let local = self.local(node);
            self.nodes[node].endpoint.contact_failed(local, path);
        }
        // An attacker may have joined a part of a sealed datagram to the text of the peer, and the log is the same with every cipher.
        let text = text.split("; the peer says").next().unwrap_or_default();
        self.note(|| format!("node {node}: the handshake has failed: {text}"));
        self.handshake_failed(node, index);
    }

    //= docs/protocol.md#seal-2
    /// Ends the handshake that gave these keys, because the peer has shown that it has them. The node sends by them from now on.
    pub(super) fn end_if_confirmed(&mut self, node: usize, id: AssociationId) {
        let (now, local) = (self.now, self.local(node));
        let sealing = self.sealing.as_mut().expect("a sealed world");
        let rekey = sealing.plan.rekey;
        let keys = &mut sealing.nodes[node];
        let of_id = |place: &SealedPath| {
            let attempt = place.attempt.as_ref().filter(|attempt| attempt.ours == id)?;
            let began = attempt.deadline - HANDSHAKE_TIME;
            Some((attempt.greeting, attempt.installed?, attempt.over.is_some(), began))
        };
        let found = keys.paths.iter().enumerate().find_map(|(at, place)| Some((at, of_id(place)?)));
        let Some((index, (greeting, theirs, is_refresh, began))) = found else { return };
        let path = keys.paths[index].path;
        if !self.nodes[node].endpoint.confirmed(local, path, greeting, theirs) {
            return self.fail_attempt(node, index, HandshakeError::OutOfOrder);
        }
        keys.send_by(now, index, id, is_refresh);
        let place = &mut keys.paths[index];
        place.attempt = None;
        place.attempts.succeeded(now);
        place.refresh_at = Some(now + rekey);
        self.handshake_succeeded(node, index, began);
    }
}
