//! A node that uses the engine of another process: state of that engine, and of the nodes reached by it.
//!
//! The core has a path to each of these nodes, and one more for each identity that a node shows with its requests. All messages go to
//! the engine and come from it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use apus_proto::slab::{Handle, Slab};
use apus_proto::{CallFailed, Endpoint, FIRST_CLIENT_PORT, MessageKind, Time, Words};
use apus_seal::Rule;
use apus_shm::MessageReceiver;
use apus_wire::PathId;
use bytes::Bytes;

use crate::delivery::parker::Waiter;
use crate::error::RuleError;
use crate::observe::stats::MemoryCounters;
use crate::secure::peer::Peer;
use crate::shared_engine::messages::{
    AttachKind, Opened, PATTERNS_MAX, PIECE_MAX, RULE_MAX, RuleAnswer, VERSION, decode_address,
    decode_origin, encode_address, patterns,
};
use crate::shared_engine::peers::{KnownPeers, NO_PEER, PeerNumber};

apus_proto::handle! {
    /// A node of the network.
    pub(crate) RemoteKey
}

/// The progress of a node towards an engine.
#[derive(Debug)]
pub(crate) enum Attachment {
    /// The process tries to attach.
    Wanted,
    /// The engine's node has this address.
    Attached(SocketAddr),
    /// The last attach attempt failed, or the engine went away, with this error. The process retries.
    Failed(io::Error),
}

/// The state of a node that uses the engine of another process.
#[derive(Debug)]
pub(crate) struct Attached {
    /// The engine's socket.
    pub(crate) path: PathBuf,
    pub(crate) attachment: Attachment,
    /// Time of the next attempt to attach.
    pub(crate) retry_at: Option<Time>,
    /// Nodes of the network.
    remotes: Slab<RemoteKey, RemoteNode>,
    by_origin: HashMap<Origin, PathId>,
    /// The order in which nodes are checked when one must be forgotten.
    order: VecDeque<RemoteKey>,
    /// The clients of the requests with these ids.
    announced: HashMap<u64, RemoteNode>,
    /// Identities that nodes have shown.
    peers: KnownPeers,
    /// Ports that this process serves, each with the engine's answer.
    ports: HashMap<u16, Option<Opened>>,
    /// Ports with rules of their own.
    rules: HashMap<u16, Rule>,
    /// The number of the last rule that was sent.
    last_rule: u32,
    /// Rules without an answer yet.
    rules_awaited: HashSet<u32>,
    /// Answers that nobody has taken.
    rule_answers: HashMap<u32, RuleAnswer>,
    /// Messages to the engine.
    pub(crate) outgoing: VecDeque<(Words, Bytes)>,
    /// Whether the engine has answered, has ended, or was not found.
    pub(crate) changed: bool,
    /// Threads that wait for that event.
    pub(crate) waiters: Vec<Waiter>,
}

/// The address of a node, and the number of the identity that it has shown with a request. A node that is called is known by its address
/// alone.
type Origin = (SocketAddr, PeerNumber);

/// A node of the network.
#[derive(Clone, Debug)]
struct RemoteNode {
    origin: Origin,
    peer: Option<Peer>,
}

impl Attached {
    pub(crate) fn new(path: &Path, now: Time) -> Self {
        Self {
            path: path.to_owned(),
            attachment: Attachment::Wanted,
            retry_at: Some(now),
            remotes: Slab::new(),
            by_origin: HashMap::new(),
            order: VecDeque::new(),
            announced: HashMap::new(),
            peers: KnownPeers::default(),
            ports: HashMap::new(),
            rules: HashMap::new(),
            last_rule: 0,
            rules_awaited: HashSet::new(),
            rule_answers: HashMap::new(),
            outgoing: VecDeque::new(),
            changed: false,
            waiters: Vec::new(),
        }
    }

    pub(crate) fn is_attached(&self) -> bool {
        matches!(self.attachment, Attachment::Attached(_))
    }

    /// The path to the node at an address. `None` if the maximum number of nodes is in use.
    pub(crate) fn path_to(
        &mut self,
        now: Time,
        address: SocketAddr,
        endpoint: &mut Endpoint,
    ) -> Option<PathId> {
        self.path_of(now, RemoteNode { origin: (address, NO_PEER), peer: None }, endpoint)
    }

    /// The path of requests from a node.
    fn path_of(&mut self, now: Time, node: RemoteNode, endpoint: &mut Endpoint) -> Option<PathId> {
        let origin = node.origin;
        if let Some(&path) = self.by_origin.get(&origin) {
            return Some(path);
        }
        if self.order.len() >= REMOTES_MAX && !self.forget_one(endpoint) {
            return None;
        }
        let key = self.remotes.insert(node);
        self.order.push_back(key);
        let path = path(key);
        self.by_origin.insert(origin, path);
        endpoint.add_local(now, path);
        Some(path)
    }

    /// Forgets a node without calls. Returns `false` if the first nodes that it checks all have calls.
    #[cold]
    fn forget_one(&mut self, endpoint: &mut Endpoint) -> bool {
        for _ in 0..LOOKS {
            let Some(key) = self.order.pop_front() else { return false };
            if endpoint.is_local_idle(path(key)) {
                endpoint.remove_local(path(key), CallFailed::EngineEnded);
                if let Some(remote) = self.remotes.take(key) {
                    self.by_origin.remove(&remote.origin);
                }
                return true;
            }
            self.order.push_back(key);
        }
        false
    }

    /// The address of the node at the end of a path.
    pub(crate) fn address(&self, path: PathId) -> Option<SocketAddr> {
        Some(self.remotes.get(RemoteKey::from_bits(path.name()))?.origin.0)
    }

    /// The identity that the node at the end of a path has shown with its requests.
    pub(crate) fn peer(&self, path: PathId) -> Option<&Peer> {
        self.remotes.get(RemoteKey::from_bits(path.name()))?.peer.as_ref()
    }

    /// The announcement that the engine needs before a message with these words by `path`.
    #[inline]
    pub(crate) fn announcement(&self, path: PathId, words: Words) -> Option<(Words, Bytes)> {
        match MessageKind::decode(words) {
            Some((MessageKind::Request { .. }, id)) => {
                let address = Bytes::copy_from_slice(&encode_address(self.address(path)?));
                Some((AttachKind::Address { id }.encode(), address))
            }
            _ => None,
        }
    }

    /// Requests a port to serve from the engine.
    pub(crate) fn open(&mut self, port: u16) {
        self.ports.insert(port, None);
        self.outgoing.push_back((AttachKind::Open { port }.encode(), Bytes::new()));
    }

    /// The engine's answer for a port.
    pub(crate) fn opened(&self, port: u16) -> Option<Opened> {
        self.ports.get(&port).copied().flatten()
    }

    /// Has the engine keep a rule for a port. Returns the number of the answer.
    ///
    /// # Errors
    ///
    /// The rule is too long, or no engine is there.
    pub(crate) fn set_rule(&mut self, port: u16, rule: &Rule) -> Result<u32, RuleError> {
        if !self.is_attached() {
            return Err(RuleError::NoEngine);
        }
        let number = self.send_rule(port, rule, false)?;
        self.rules_awaited.insert(number);
        Ok(number)
    }

    fn send_rule(&mut self, port: u16, rule: &Rule, is_again: bool) -> Result<u32, RuleError> {
        let text = rule.to_string();
        if text.len() > RULE_MAX || patterns(&text).count() > PATTERNS_MAX {
            return Err(RuleError::TooLong { patterns: PATTERNS_MAX, bytes: RULE_MAX });
        }
        let text = Bytes::from(text);
        self.last_rule = self.last_rule.wrapping_add(1);
        let number = self.last_rule;
        for start in (0..text.len().max(1)).step_by(PIECE_MAX) {
            let end = text.len().min(start + PIECE_MAX);
            let is_last = end == text.len();
            let kind = AttachKind::Rule { port, number, is_last, is_again };
            self.outgoing.push_back((kind.encode(), text.slice(start..end)));
        }
        Ok(number)
    }

    /// Takes the engine's answer to a rule. `None` while there is none.
    pub(crate) fn take_rule_answer(&mut self, number: u32) -> Option<RuleAnswer> {
        self.rule_answers.remove(&number)
    }

    /// Notes that nobody waits for the answer to a rule any more. `kept`: the engine keeps the rule, which its successors get too.
    pub(crate) fn end_rule(&mut self, number: u32, kept: Option<(u16, &Rule)>) {
        self.rules_awaited.remove(&number);
        self.rule_answers.remove(&number);
        if let Some((port, rule)) = kept
            && (port >= FIRST_CLIENT_PORT || self.ports.contains_key(&port))
        {
            self.rules.insert(port, rule.clone());
        }
    }

    /// Handles the close of a socket.
    pub(crate) fn close(&mut self, port: u16) {
        self.ports.remove(&port);
        self.rules.remove(&port);
        if self.is_attached() {
            self.outgoing.push_back((AttachKind::Close { port }.encode(), Bytes::new()));
        }
    }

    /// Handles the end of the engine, or a failed search for it. `is_unsent`: the engine does not have the whole request with this
    /// id.
    pub(crate) fn lose(
        &mut self,
        now: Time,
        error: io::Error,
        is_unsent: &dyn Fn(u64) -> bool,
        endpoint: &mut Endpoint,
    ) {
        self.attachment = Attachment::Failed(error);
        self.changed = true;
        self.retry_at = Some(now + RETRY);
        for key in self.order.drain(..) {
            let calls = endpoint.take_unsent(path(key), is_unsent);
            endpoint.remove_local(path(key), CallFailed::EngineEnded);
            endpoint.begin_unsent(now, calls, None);
            self.remotes.remove(key);
        }
        self.by_origin.clear();
        self.announced.clear();
        self.peers.clear();
        self.outgoing.clear();
    }

    /// Whether the engine takes messages.
    fn welcome(&mut self, version: u32, address: &[u8]) {
        self.attachment = match decode_address(address) {
            Some(address) if version == VERSION => Attachment::Attached(address),
            _ => Attachment::Failed(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("it is of version {version}, and this process of version {VERSION}"),
            )),
        };
        self.retry_at = None;
        // Before the ports: no request comes to a service without its rule.
        for (port, rule) in self.rules.clone() {
            let sent = self.send_rule(port, &rule, true);
            debug_assert!(sent.is_ok(), "an engine has kept the rule");
        }
        let ports: Vec<u16> = self.ports.keys().copied().collect();
        ports.into_iter().for_each(|port| self.open(port));
    }
}

/// The path to a node.
fn path(key: RemoteKey) -> PathId {
    PathId::new(key.index(), key.to_bits()).local()
}

/// Receives messages of the engine.
pub(crate) struct FromEngine<'a> {
    pub(crate) attached: &'a mut Attached,
    pub(crate) endpoint: &'a mut Endpoint,
    pub(crate) now: Time,
    pub(crate) counters: &'a mut MemoryCounters,
}

impl FromEngine<'_> {
    /// The path of a message.
    #[inline]
    fn path(&mut self, words: Words) -> Option<PathId> {
        match MessageKind::decode(words)? {
            (MessageKind::Request { .. } | MessageKind::Abort | MessageKind::Trace, id) => {
                let node = self.attached.announced.get(&id)?.clone();
                self.attached.path_of(self.now, node, self.endpoint)
            }
            (_, id) => self.endpoint.local_path_of(id),
        }
    }

    #[cold]
    fn handle_control(&mut self, kind: AttachKind, body: &[u8]) {
        self.attached.changed = true;
        match kind {
            AttachKind::Welcome { version } => self.attached.welcome(version, body),
            AttachKind::Opened { port, opened } => {
                if let Some(answer) = self.attached.ports.get_mut(&port) {
                    *answer = Some(opened);
                }
            }
            AttachKind::RuleSet { number, answer } => {
                if self.attached.rules_awaited.contains(&number) {
                    self.attached.rule_answers.insert(number, answer);
                }
            }
            AttachKind::Peer { number, is_last } => {
                self.attached.peers.take_piece(number, is_last, body);
            }
            AttachKind::Address { .. }
            | AttachKind::Open { .. }
            | AttachKind::Close { .. }
            | AttachKind::Rule { .. } => {}
        }
    }

    /// The engine is attached. All nodes of the network count as reachable.
    #[cold]
    fn alive(&mut self, words: Words) {
        for key in self.attached.remotes.keys() {
            self.endpoint.handle_message(self.now, path(key), words, Bytes::new());
        }
    }
}

impl MessageReceiver for FromEngine<'_> {
    fn admits(&mut self, words: Words, length: usize) -> bool {
        let admits =
            self.path(words).is_some_and(|path| self.endpoint.admits_message(path, words, length));
        if !admits {
            self.attached.announced.remove(&words[1]);
        }
        admits
    }

    #[inline]
    fn message(&mut self, words: Words, body: Bytes) {
        match AttachKind::decode(words) {
            Some(AttachKind::Address { id }) => {
                if let Some(origin) = decode_origin(&body) {
                    // A node whose identity is not known is none that the process may answer.
                    let peer = self.attached.peers.get(origin.1).cloned();
                    if peer.is_some() || origin.1 == NO_PEER {
                        self.attached.announced.insert(id, RemoteNode { origin, peer });
                    }
                }
                return;
            }
            Some(kind) => return self.handle_control(kind, &body),
            None => {}
        }
        self.counters.messages_received += 1;
        self.counters.bytes_received += body.len() as u64;
        match (self.path(words), MessageKind::decode(words)) {
            (_, Some((MessageKind::Alive, _))) => self.alive(words),
            (Some(path), Some((kind, id))) => {
                if matches!(kind, MessageKind::Request { .. } | MessageKind::Abort) {
                    self.attached.announced.remove(&id);
                }
                self.endpoint.handle_message(self.now, path, words, body);
            }
            _ => self.endpoint.discard(body),
        }
    }
}

/// Upper bound on known nodes. Beyond it, nodes without calls are forgotten.
pub(crate) const REMOTES_MAX: usize = 65_536;

/// Upper bound on nodes checked in a search for one that can be forgotten.
const LOOKS: usize = 256;

/// Interval between attempts to attach after the engine was lost or not found.
const RETRY: Duration = Duration::from_millis(100);

/// Upper bound on the time in which the engine must answer: a service manager may start it meanwhile.
pub(crate) const ATTACH_TIMEOUT: Duration = Duration::from_secs(5);
