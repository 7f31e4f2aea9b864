//! An engine that works for the processes of a host: a process *attaches* to it, and it *forwards* the calls of the process and the
//! requests to its ports.
//!
//! | file | contents |
//! |---|---|
//! | this one | the API of a program that runs such an engine: [`SharedEngine`], [`EngineAccess`] |
//! | [`messages`] | messages between a process and the engine |
//! | [`peers`], [`described`] | identities of peers and errors of calls in these messages |
//! | [`attached`] | in the process: state of the engine, and of the nodes reached by it |
//! | [`awaited`] | in the process: waiting for the engine |
//! | [`attachments`], [`attaching`] | both: how a process attaches, and how an attachment ends |
//! | [`forwarder`] | in the engine: processes, their ports, and their calls and requests |
//! | [`forwarding`] | in the engine: the part of a turn that serves them |
//! | [`process_rules`] | in the engine: the rules of their clients and services |

mod attachments;
mod forwarding;
mod peers;
mod process_rules;

pub(crate) mod attached;
pub(crate) mod attaching;
pub(crate) mod awaited;
pub(crate) mod described;
pub(crate) mod forwarder;
pub(crate) mod messages;

use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use apus_proto::SocketKey;
use apus_shm::{Listener, Place};

use crate::config::{Config, ConfigError};
use crate::delivery::parker::{Waiter, WaiterId};
use crate::delivery::spin::Spin;
use crate::delivery::waiting::Awaited;
use crate::engine::Engine;
use crate::engine::links;
use crate::engine::memory_limit::memory_limit;
use crate::engine::shards::Near;
use crate::error::{IdentityError, StartError};
use crate::mail::Mail;
use crate::node::Node;
use crate::observe::stats::{ProcessCounters, Stats};
use crate::secure::peer::Peer;
use crate::shared_engine::forwarder::{Limits, NOBODY};
use crate::socket::Socket;
use crate::sync::clock;

/// Users that may use a [`SharedEngine`], and their limits.
///
/// ```
/// use std::path::Path;
/// use apus::EngineAccess;
///
/// let mut access = EngineAccess::new(Path::new("/run/apus/engine.sock"));
/// access.mode(0o660).users(&[1000, 1001]);
/// access.ports(1..=999, &[0]); // Only root serves these ports.
/// access.process_budget(256 << 20);
/// ```
#[derive(Clone, Debug)]
pub struct EngineAccess {
    path: PathBuf,
    mode: u32,
    limits: Limits,
    /// The certificates and keys of identities, from number 1 on.
    identities: Vec<(PathBuf, PathBuf)>,
}

impl EngineAccess {
    /// Processes connect to a unix socket at `path`. A file that a process has left there is replaced.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        let limits = Limits {
            users: None,
            ports: Vec::new(),
            process_budget: PROCESS_BUDGET,
            total_budget: memory_limit().map_or(TOTAL_BUDGET, |it| TOTAL_BUDGET.min(it / 4)),
            processes_max: PROCESSES_MAX,
            identities: Vec::new(),
        };
        Self { path: path.to_owned(), mode: MODE, limits, identities: Vec::new() }
    }

    /// Sets the permissions of the socket's file. A process that may write to the file may use the engine. Default `0o666`: all
    /// users. A socket that a service manager has opened keeps its own.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = mode;
        self
    }

    /// Sets the users whose processes may attach. Default: all users that can connect to the socket. The kernel reports the user of
    /// a process, as for [`ports`](Self::ports).
    pub fn users(&mut self, uids: &[u32]) -> &mut Self {
        self.limits.users = Some(uids.to_vec());
        self
    }

    /// Sets the users whose processes may serve these ports. All users may serve a port that is never named; a port that is named
    /// more than once is for all users named with it.
    ///
    /// The kernel reports the user as of the moment when the process connected. In a user namespace without a mapping for the user,
    /// that is 65534.
    pub fn ports(&mut self, ports: RangeInclusive<u16>, uids: &[u32]) -> &mut Self {
        self.limits.ports.push((ports, uids.to_vec()));
        self
    }

    /// Sets the budget of one process in bytes: its calls, with 512 bytes for each, and the messages that it has not read. Calls
    /// beyond it wait. A call longer than the budget, a request longer than three budgets, and a response without room in four
    /// budgets fail. Default 128 MiB.
    pub fn process_budget(&mut self, bytes: u64) -> &mut Self {
        self.limits.process_budget = bytes;
        self
    }

    /// Sets the budget of all processes together in bytes: messages that they have not read, and partly received ones. The
    /// processes of one user get half of it. Beyond it, a process with more than an equal share gets no requests until it reads,
    /// and its calls fail if their responses have no room. Default 1 GiB, or a quarter of the limit of the engine's control group
    /// (`memory.max`).
    pub fn total_budget(&mut self, bytes: u64) -> &mut Self {
        self.limits.total_budget = bytes;
        self
    }

    /// Processes that may use the engine at a time. Default 1,000: each takes 3 descriptors.
    pub fn processes_max(&mut self, processes: usize) -> &mut Self {
        self.limits.processes_max = processes;
        self
    }

    //= docs/protocol.md#seal-18
    /// Sets the identity of users: their processes speak under the certificate in the first file, whose private key is in the second one;
    /// with `None`, under that of the engine. The roots, and all other settings of sealed paths, are the engine's, which needs a
    /// certificate of its own ([`Config::tls_cert`]). The first entry with a user counts.
    ///
    /// Default: the processes of all users have the identity of the engine. Once an identity is set, a user without an entry has none: its
    /// processes call and serve processes of this engine only, and other nodes plain if the engine is [`insecure`](Config::insecure).
    /// Identities stay as they are until the engine ends ([`SharedEngine::set_access`]), while their files may change.
    pub fn identity(&mut self, uids: &[u32], files: Option<(&Path, &Path)>) -> &mut Self {
        let known = files.map(|(cert, key)| {
            self.identities.push((cert.to_owned(), key.to_owned()));
            self.identities.len()
        });
        // Beyond the bound, the start fails.
        let number = u8::try_from(known.unwrap_or(0)).unwrap_or(NOBODY);
        self.limits.identities.push((uids.to_vec(), number));
        self
    }

    /// Checks the identities with the configuration of the engine.
    fn check(&self, config: &Config) -> Result<(), ConfigError> {
        let wrong = |key: &str, value: String, allowed: &str| {
            let (key, allowed) = (key.to_owned(), allowed.to_owned());
            Err(ConfigError::Value { key, value, allowed })
        };
        if !self.limits.identities.is_empty() && !config.has_identity() {
            let allowed = "a certificate, because users have identities";
            return wrong("tls_cert", "none".to_owned(), allowed);
        }
        if self.identities.len() > IDENTITIES_MAX {
            let count = format!("{} certificates", self.identities.len());
            return wrong("identity", count, &format!("at most {IDENTITIES_MAX}"));
        }
        Ok(())
    }

    fn listen(&self) -> Result<Listener, StartError> {
        let failed = |source| StartError::Engine { path: self.path.clone(), source };
        let listener = Listener::bind(&Place::File(self.path.clone())).map_err(failed)?;
        let permissions = fs::Permissions::from_mode(self.mode);
        fs::set_permissions(&self.path, permissions).map_err(failed)?;
        Ok(listener)
    }
}

/// One engine for all processes of a host that attach to it ([`Config::engine`]): the program `apus daemon`.
///
/// The order of messages, grants and budgets then hold over all these processes. Links and privileges are this process's alone.
/// Ports, budgets and counters are per process, and no process sees the messages of another.
///
/// An engine with a certificate ([`Config::tls_cert`]) speaks sealed for its processes, under its name. It has the keys, and applies the
/// rules of their clients and services.
///
/// When the process that has the engine ends, outstanding calls fail with
/// [`CallError::EngineEnded`](crate::CallError::EngineEnded), and the processes attach again to its successor.
///
/// ```
/// use apus::{Config, EngineAccess, EngineAt, Node, SharedEngine};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let path = std::env::temp_dir().join(format!("apus-example-{}.sock", std::process::id()));
/// // In the process with the engine.
/// let mut config = Config::new();
/// config.listen("127.0.0.1:0".parse()?);
/// let engine = SharedEngine::start(&config, EngineAccess::new(&path).mode(0o600))?;
///
/// // In each of the other processes; here in the same one.
/// let mut attached = Config::new();
/// attached.engine(EngineAt::Socket(path.clone()));
/// let node = Node::start(&attached)?;
/// assert_eq!(node.local_addr(), engine.local_addr());
/// assert_eq!(engine.processes().len(), 1);
/// # drop(node);
/// # std::fs::remove_file(path)?;
/// # Ok(())
/// # }
/// ```
///
/// The background thread of the engine does the work in this example. A program that does nothing else calls
/// [`run`](Self::run).
pub struct SharedEngine {
    node: Node,
    /// The socket's file, if this engine has made it.
    path: Option<PathBuf>,
    /// Statistics of the thread's waits.
    socket: Socket,
}

impl SharedEngine {
    /// Starts an engine on the links and at the address of a configuration.
    ///
    /// # Errors
    ///
    /// As [`Node::start`]. [`StartError::Engine`]: the socket cannot be opened, for example because another process listens there.
    /// [`ConfigError::Value`]: `shards` is not 1, or users have identities and the engine has no certificate.
    pub fn start(config: &Config, access: &EngineAccess) -> Result<Self, StartError> {
        config.check_shared_engine()?;
        access.check(config)?;
        let engine = Self::serve(config, access, access.listen()?)?;
        Ok(Self { path: Some(access.path.clone()), ..engine })
    }

    /// Starts an engine whose socket a service manager has opened: a listening unix socket of type `SOCK_SEQPACKET`.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_at(
        socket: OwnedFd,
        config: &Config,
        access: &EngineAccess,
    ) -> Result<Self, StartError> {
        config.check_shared_engine()?;
        access.check(config)?;
        let failed = |source| StartError::Engine { path: access.path.clone(), source };
        Self::serve(config, access, Listener::of(socket).map_err(failed)?)
    }

    fn serve(
        config: &Config,
        access: &EngineAccess,
        listener: Listener,
    ) -> Result<Self, StartError> {
        let near = Near::Serving(listener, access.limits.clone(), access.identities.clone());
        let node = Node::of_links(links::open_shards(config)?, config, near)?;
        let socket = Socket::open(&node.shards, None).map_err(|_| StartError::no_memory())?;
        Ok(Self { node, path: None, socket })
    }

    /// Serves the processes until [`stop`](Self::stop): polls while messages come, and sleeps otherwise, as the delivery mode
    /// prescribes. For one thread. Without it the background thread does the work, and sleeps between messages.
    pub fn run(&self) {
        let end = self.socket.first();
        loop {
            let Ok(engine) = end.shared.enter() else { return };
            let mut awaited = AwaitMessages(end.key);
            match end.shared.wait(engine, &mut awaited, clock::now(), None) {
                Ok(Some(Moved::Messages)) => {}
                _ => return,
            }
        }
    }

    /// Makes [`run`](Self::run) return. Processes stay attached until the engine is dropped.
    pub fn stop(&self) {
        if let Ok(mut engine) = self.socket.first().shared.enter() {
            engine.stop_forwarding();
        }
    }

    /// Changes the users that may use the engine, and their limits; the path and the identities stay. Detaches processes whose users may not attach
    /// any more, and returns their number. Ports stay open until their processes close them.
    ///
    /// # Errors
    ///
    /// The permissions of the socket's file cannot be changed. Nothing is changed then.
    pub fn set_access(&self, access: &EngineAccess) -> io::Result<usize> {
        if let Some(path) = &self.path {
            fs::set_permissions(path, fs::Permissions::from_mode(access.mode))?;
        }
        let Ok(mut engine) = self.socket.first().shared.enter() else { return Ok(0) };
        let mut limits = access.limits.clone();
        if let Some(forwarder) = engine.forwarder() {
            limits.identities.clone_from(&forwarder.limits.identities);
        }
        Ok(engine.set_access_limits(limits))
    }

    /// Reads the files of the engine's certificate again if one has changed, as [`Node::reload_identity`] does.
    ///
    /// # Errors
    ///
    /// As [`Node::reload_identity`].
    pub fn reload_identity(&self) -> Result<bool, IdentityError> {
        self.node.reload_identity()
    }

    /// The certificates of the engine: its own, and then those of users ([`EngineAccess::identity`]). Empty without a certificate.
    #[must_use]
    pub fn identities(&self) -> Vec<Peer> {
        let Ok(engine) = self.socket.first().shared.enter() else { return Vec::new() };
        (0..=u8::MAX).map_while(|number| engine.own_peer(number)).collect()
    }

    /// The address of the engine's node, which is also the address of all attached processes.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.node.local_addr()
    }

    /// The counters of the engine's node.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.node.stats()
    }

    /// The processes that use the engine, in the order of their pids.
    #[must_use]
    pub fn processes(&self) -> Vec<AttachedProcess> {
        let Ok(mut engine) = self.socket.first().shared.enter() else { return Vec::new() };
        let peers: Vec<_> = (0..=u8::MAX).map_while(|number| engine.own_peer(number)).collect();
        let Some(forwarder) = engine.forwarder() else { return Vec::new() };
        let mut processes: Vec<_> = forwarder
            .processes
            .values()
            .map(|process| {
                let mut ports: Vec<u16> = process.sockets.keys().copied().collect();
                ports.sort_unstable();
                AttachedProcess {
                    pid: process.pid,
                    uid: process.uid,
                    identity: peers
                        .get(usize::from(process.identity))
                        .map(|peer| peer.name().to_owned()),
                    ports,
                    calls: process.calls.len(),
                    held_bytes: process.held + process.kept + process.unread(),
                    counters: process.counters,
                }
            })
            .collect();
        processes.sort_unstable_by_key(|process| process.pid);
        processes
    }

    /// Numbers of processes refused because of their users ([`EngineAccess::users`]), and because there were too many
    /// ([`EngineAccess::processes_max`]).
    #[must_use]
    pub fn refused_processes(&self) -> [u64; 2] {
        let Ok(mut engine) = self.socket.first().shared.enter() else { return [0; 2] };
        engine.forwarder().map_or([0; 2], |forwarder| forwarder.refused)
    }

    /// Bytes of shared memory for long messages to processes, and their target, which a new pool may exceed.
    #[must_use]
    pub fn pool_bytes(&self) -> (u64, u64) {
        apus_shm::pool_bytes()
    }

    /// Bytes of messages that processes have not read, partly received ones included, and their limit
    /// ([`EngineAccess::total_budget`]).
    #[must_use]
    pub fn unread_bytes(&self) -> (u64, u64) {
        let Ok(mut engine) = self.socket.first().shared.enter() else { return (0, 0) };
        engine
            .forwarder()
            .map_or((0, 0), |forwarder| (forwarder.load(), forwarder.limits.total_budget))
    }
}

impl fmt::Debug for SharedEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedEngine").field("node", &self.node).finish_non_exhaustive()
    }
}

/// A process that uses a [`SharedEngine`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct AttachedProcess {
    /// The process number in the pid namespace of the engine; 0 if it has none there.
    pub pid: i32,
    /// The user of the process at the time of its connection.
    pub uid: u32,
    /// The name under which it calls and serves ([`EngineAccess::identity`]). `None`: it has no identity.
    pub identity: Option<String>,
    /// Ports that the process serves or has called from.
    pub ports: Vec<u16>,
    /// Outstanding calls of the process.
    pub calls: usize,
    /// Bytes of these calls, and of unread messages.
    pub held_bytes: u64,
    /// Time since the process attached.
    pub counters: ProcessCounters,
}

/// A wait for moved messages.
struct AwaitMessages(SocketKey);

enum Moved {
    Messages,
    /// The engine was stopped.
    NoMore,
}

impl Awaited for AwaitMessages {
    type Output = Moved;

    fn take(&mut self, engine: &mut Engine) -> Option<Moved> {
        let Some(forwarder) = engine.forwarder() else { return Some(Moved::NoMore) };
        if forwarder.stopped {
            return Some(Moved::NoMore);
        }
        std::mem::take(&mut forwarder.moved).then_some(Moved::Messages)
    }

    fn enlist(&self, engine: &mut Engine, waiter: Waiter) {
        if let Some(forwarder) = engine.forwarder() {
            forwarder.waiter = Some(waiter);
        }
    }

    fn delist(&self, engine: &mut Engine, _id: WaiterId) -> bool {
        engine.forwarder().is_none_or(|forwarder| forwarder.waiter.take().is_none())
    }

    fn socket(&self) -> Option<SocketKey> {
        None // No message is taken here.
    }

    fn spin<'m>(&self, mail: &'m mut Mail) -> Option<&'m mut Spin> {
        mail.mailbox(self.0).map(|mailbox| &mut mailbox.receive_spin)
    }
}

/// Default mode: all users may use the engine.
const MODE: u32 = 0o666;

/// Bytes of calls of one process.
const PROCESS_BUDGET: u64 = 128 << 20;

/// Default of the total budget, unless the control group has little memory.
const TOTAL_BUDGET: u64 = 1 << 30;

/// Upper bound on the certificates of users.
const IDENTITIES_MAX: usize = 15;

/// Default of the upper bound on attached processes.
const PROCESSES_MAX: usize = 1_000;
