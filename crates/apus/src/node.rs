//! Nodes: one link, one engine, one background thread.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use apus_net::{Capabilities, Link, UdpLink};
use apus_proto::{Endpoint, SocketKey};

use crate::background;
use crate::clock;
use crate::config::Config;
use crate::delivery::Regime;
use crate::engine::Engine;
use crate::error::{CloseError, OpenError, StartError};
use crate::mail::Mail;
use crate::parker::{self, Parker, Waiter, WaiterId};
use crate::shared::Shared;
use crate::socket::Socket;
use crate::spin::Spin;
use crate::stats::Stats;
use crate::wait::Awaited;

/// A place on the network: one link (by default a UDP port), any number of [`Socket`]s on it.
///
/// A process needs one, seldom more: scheduling is best when all of a host's messages share a node.
/// Dropping it stops everything at once; [`close`](Self::close) lets things end first.
pub struct Node {
    shared: Arc<Shared>,
    background: Option<(Arc<Parker>, JoinHandle<()>)>,
    local_addr: SocketAddr,
}

impl Node {
    /// Starts a node on a UDP port ([`Config::listen`]).
    ///
    /// # Errors
    ///
    /// [`StartError`]: the port is busy, the address not of this machine, no permission, no thread
    /// or descriptor left.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        let link = UdpLink::bind(config.listen, &config.udp)?;
        Self::with_link(Box::new(link), config)
    }

    /// Starts a node on a link of the caller's: one that injects faults, captures packets, or is not
    /// UDP at all. [`Config::listen`] and the UDP settings are not looked at.
    ///
    /// # Errors
    ///
    /// [`StartError::Thread`].
    pub fn with_link(link: Box<dyn Link>, config: &Config) -> Result<Self, StartError> {
        let endpoint = Endpoint::new(config.protocol.clone(), seed(), incarnation());
        let local_addr = link.local_addr();
        let delivery = config.delivery;
        let engine =
            |endpoint, background| Engine::new(endpoint, link, delivery, background, clock::now());
        if delivery.regime() == Regime::NobodySleeps {
            let engine = engine(endpoint, None);
            let shared = Arc::new(Shared::new(engine, delivery));
            return Ok(Self { shared, background: None, local_addr });
        }
        // The thread's parker is needed to make the engine, the engine to run the thread.
        let (to_thread, from_here) = mpsc::channel::<Arc<Shared>>();
        let (to_here, from_thread) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("apus".to_owned())
            .spawn(move || {
                let me = parker::current();
                if to_here.send(Arc::clone(&me)).is_ok()
                    && let Ok(shared) = from_here.recv()
                {
                    background::run(&shared, &me);
                }
            })
            .map_err(StartError::Thread)?;
        let parker = from_thread.recv().expect("the thread sends its parker first of all");
        let engine = engine(endpoint, Some(Arc::clone(&parker)));
        let shared = Arc::new(Shared::new(engine, delivery));
        to_thread.send(Arc::clone(&shared)).expect("the thread waits for it");
        Ok(Self { shared, background: Some((parker, thread)), local_addr })
    }

    /// The address the link is bound to, with the port the system chose if 0 was asked for. An
    /// unspecified IP (`0.0.0.0`) stays unspecified.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// What the link found the kernel to offer.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.shared.lock().link.capabilities().clone()
    }

    /// Opens a socket on an automatic client port.
    ///
    /// # Errors
    ///
    /// [`OpenError::NoPortLeft`] when all 32,768 are in use.
    pub fn socket(&self) -> Result<Socket, OpenError> {
        self.open(None)
    }

    /// Opens a socket on a server port, 1 to 32767, so that others can call it.
    ///
    /// # Errors
    ///
    /// [`OpenError::PortInUse`] or [`OpenError::PortOutOfRange`].
    pub fn bind(&self, port: u16) -> Result<Socket, OpenError> {
        self.open(Some(port))
    }

    fn open(&self, port: Option<u16>) -> Result<Socket, OpenError> {
        let mut engine = self.shared.lock();
        let key = engine.endpoint.open(port)?;
        let port = engine.endpoint.port(key).expect("opened a moment ago, under the same lock");
        engine.mail.open(key);
        Ok(Socket::new(Arc::clone(&self.shared), key, port))
    }

    /// Everything counted since the node was started. Takes the lock; may cost a system call.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let engine = self.shared.lock();
        let mut delivery = engine.counters;
        delivery.wake_ups = self.shared.wake_ups();
        let sockets = engine.mail.stats();
        (delivery.messages, delivery.handoffs) = (sockets.messages, sockets.handoffs);
        Stats {
            protocol: engine.endpoint.counters().clone(),
            link: engine.link.counters(),
            delivery,
        }
    }

    /// Takes no further calls, waits until all outstanding calls have ended, all requests taken are
    /// answered and all responses are acknowledged, but no longer than `deadline`; then stops.
    /// Sockets that are still held find themselves closed.
    ///
    /// # Errors
    ///
    /// [`CloseError`] when something had not ended. The node is stopped all the same.
    pub fn close(self, deadline: Duration) -> Result<(), CloseError> {
        let mut engine = self.shared.lock();
        engine.draining = true;
        let now = clock::now();
        match self.shared.wait(engine, &mut AwaitIdle, now, Some(now + deadline)) {
            Some(()) => Ok(()),
            None => {
                let active = self.shared.lock().endpoint.active_rpcs();
                Err(CloseError { active, after: deadline })
            }
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let mut engine = self.shared.lock_for_cleanup();
        let link = engine.stop();
        self.shared.unlock(engine);
        if let Some((parker, thread)) = self.background.take() {
            parker.notify();
            // An error means that the thread panicked, which its own message has told.
            let _ = thread.join();
        }
        drop(link);
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("local_addr", &self.local_addr)
            .field("delivery", &self.shared.delivery)
            .finish_non_exhaustive()
    }
}

/// Different for every node, unknown to peers.
fn seed() -> u64 {
    RandomState::new().hash_one(clock::now())
}

/// When this node was started, so that ids of an earlier life are recognised: milliseconds of the
/// wall clock since 1970.
fn incarnation() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Waiting for everything to end.
struct AwaitIdle;

impl Awaited for AwaitIdle {
    type Output = ();

    fn take(&mut self, engine: &mut Engine) -> Option<()> {
        engine.endpoint.is_idle().then_some(())
    }

    fn enlist(&self, engine: &mut Engine, waiter: Waiter) {
        engine.drainer = Some(waiter);
    }

    fn delist(&self, engine: &mut Engine, _id: WaiterId) -> bool {
        engine.drainer.take().is_none()
    }

    fn socket(&self) -> Option<SocketKey> {
        None
    }

    fn spin<'m>(&self, _mail: &'m mut Mail) -> Option<&'m mut Spin> {
        None
    }
}
