//! A node that uses the engine of another process: state of that engine, and of the nodes reached by it.
//!
//! The core has a path to each of these nodes. All messages go to the engine and come from it.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use apus_proto::slab::{Handle, Slab};
use apus_proto::{CallFailed, Endpoint, MessageKind, Time, Words};
use apus_shm::MessageReceiver;
use apus_wire::PathId;
use bytes::Bytes;

use crate::delivery::parker::Waiter;
use crate::observe::stats::MemoryCounters;
use crate::shared_engine::messages::{AttachKind, Opened, VERSION, decode_address, encode_address};

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
    remotes: Slab<RemoteKey, SocketAddr>,
    by_address: HashMap<SocketAddr, PathId>,
    /// The order in which nodes are checked when one must be forgotten.
    order: VecDeque<RemoteKey>,
    /// The clients of the requests with these ids.
    announced: HashMap<u64, SocketAddr>,
    /// Ports that this process serves, each with the engine's answer.
    ports: HashMap<u16, Option<Opened>>,
    /// Messages to the engine.
    pub(crate) outgoing: VecDeque<(Words, Bytes)>,
    /// Whether the engine has answered, has ended, or was not found.
    pub(crate) changed: bool,
    /// Threads that wait for that event.
    pub(crate) waiters: Vec<Waiter>,
}

impl Attached {
    pub(crate) fn new(path: &Path, now: Time) -> Self {
        Self {
            path: path.to_owned(),
            attachment: Attachment::Wanted,
            retry_at: Some(now),
            remotes: Slab::new(),
            by_address: HashMap::new(),
            order: VecDeque::new(),
            announced: HashMap::new(),
            ports: HashMap::new(),
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
        if let Some(&path) = self.by_address.get(&address) {
            return Some(path);
        }
        if self.order.len() >= REMOTES_MAX && !self.forget_one(endpoint) {
            return None;
        }
        let key = self.remotes.insert(address);
        self.order.push_back(key);
        let path = path(key);
        self.by_address.insert(address, path);
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
                if let Some(address) = self.remotes.take(key) {
                    self.by_address.remove(&address);
                }
                return true;
            }
            self.order.push_back(key);
        }
        false
    }

    /// The address of the node at the end of a path.
    pub(crate) fn address(&self, path: PathId) -> Option<SocketAddr> {
        self.remotes.get(RemoteKey::from_bits(path.name())).copied()
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

    /// Handles the close of a socket.
    pub(crate) fn close(&mut self, port: u16) {
        self.ports.remove(&port);
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
        self.by_address.clear();
        self.announced.clear();
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
                let address = self.attached.announced.get(&id)?;
                self.attached.path_to(self.now, *address, self.endpoint)
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
            AttachKind::Address { .. } | AttachKind::Open { .. } | AttachKind::Close { .. } => {}
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
                if let Some(address) = decode_address(&body) {
                    self.attached.announced.insert(id, address);
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
