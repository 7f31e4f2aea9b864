//! Nodes: one or several shards, each with a link, an engine and a background thread.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use apus_net::{Capabilities, Link};
use apus_proto::{Endpoint, SocketKey};

use crate::background;
use crate::clock;
use crate::config::Config;
use crate::delivery::{Delivery, Regime};
use crate::engine::Engine;
use crate::error::{CloseError, OpenError, StartError};
use crate::links;
use crate::mail::Mail;
use crate::parker::{self, Parker, Waiter, WaiterId};
use crate::roster::Roster;
use crate::shared::Shared;
use crate::siblings::Siblings;
use crate::socket::{Socket, SocketInner};
use crate::spin::Spin;
use crate::stats::Stats;
use crate::sync::mpsc;
use crate::sync::thread::{self, JoinHandle};
use crate::wait::Awaited;

/// A place on the network: one link (by default a UDP port), any number of [`Socket`]s on it.
///
/// A process needs one, seldom more: scheduling is best when all of a host's messages share a node.
/// Dropping it stops everything at once; [`close`](Self::close) lets things end first.
pub struct Node {
    shards: Vec<Shard>,
    local_addr: SocketAddr,
}

/// A part of a node that has the traffic with some of its peers.
struct Shard {
    shared: Arc<Shared>,
    background: Option<(Arc<Parker>, JoinHandle<()>)>,
}

impl Node {
    /// Starts a node on the links and at the address of its configuration ([`Config::links`],
    /// [`Config::listen`]), with [`Config::shards`] of them.
    ///
    /// # Errors
    ///
    /// [`StartError`]: the port is busy, the address not of this machine, no permission, no thread
    /// or descriptor left.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        Self::with_links(links::open_shards(config)?, config)
    }

    /// Starts a node on a link of the caller's: one that injects faults, captures packets, or is not
    /// UDP at all. [`Config::listen`], [`Config::shards`] and the UDP settings are not looked at.
    ///
    /// # Errors
    ///
    /// [`StartError::Thread`].
    pub fn with_link(link: Box<dyn Link>, config: &Config) -> Result<Self, StartError> {
        Self::with_links(vec![link], config)
    }

    /// Starts a node with a shard for each of several links. All have the same address, and the
    /// traffic with a peer goes by the one whose place [`net::shard_of`](apus_net::shard_of) tells,
    /// as from [`UdpLink::bind_shards`](apus_net::UdpLink::bind_shards).
    ///
    /// # Errors
    ///
    /// [`StartError::Thread`].
    ///
    /// # Panics
    ///
    /// Without a link.
    pub fn with_links(links: Vec<Box<dyn Link>>, config: &Config) -> Result<Self, StartError> {
        let local_addr = links.first().expect("a node has at least one link").local_addr();
        let mut siblings: Vec<_> = match links.len() {
            1 => vec![None],
            shards => Siblings::of(shards).map(Some).collect(),
        };
        let mut node = Self { shards: Vec::with_capacity(links.len()), local_addr };
        for (link, siblings) in links.into_iter().zip(siblings.drain(..)) {
            let endpoint = Endpoint::new(config.protocol.clone(), seed());
            node.shards.push(Shard::start(link, endpoint, siblings, config.delivery)?);
        }
        if node.shards.len() > 1 {
            let shards = || node.shards.iter().map(|shard| Arc::downgrade(&shard.shared));
            node.shards.iter().for_each(|shard| shard.shared.introduce(shards().collect()));
        }
        Ok(node)
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
        self.shards[0].shared.lock().link.capabilities().clone()
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
        let roster = (self.shards.len() > 1).then(Arc::<Roster>::default);
        let ends = self.shards.iter().enumerate().map(|(shard, Shard { shared, .. })| {
            SocketInner::open(shared, port, roster.as_ref().map(|roster| (roster, shard)))
        });
        Ok(Socket::new(ends.collect::<Result<_, _>>()?))
    }

    /// Everything counted since the node was started, over all shards. Takes their locks; may cost a
    /// system call for each.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut sum = self.shards[0].stats();
        for shard in &self.shards[1..] {
            sum.add(&shard.stats());
        }
        sum
    }

    /// Takes no further calls, waits until all outstanding calls have ended, all requests taken are
    /// answered and all responses are acknowledged, but no longer than `deadline`; then stops.
    /// Sockets that are still held find themselves closed.
    ///
    /// # Errors
    ///
    /// [`CloseError`] when something had not ended. The node is stopped all the same.
    pub fn close(self, deadline: Duration) -> Result<(), CloseError> {
        let until = clock::now() + deadline;
        for shard in &self.shards {
            shard.shared.lock().draining = true;
        }
        let mut active = 0;
        for Shard { shared, .. } in &self.shards {
            let now = clock::now();
            if shared.wait(shared.lock(), &mut AwaitIdle, now, Some(until)).is_none() {
                active += shared.lock().endpoint.active_rpcs();
            }
        }
        if active == 0 { Ok(()) } else { Err(CloseError { active, after: deadline }) }
    }
}

impl Shard {
    fn start(
        link: Box<dyn Link>,
        endpoint: Endpoint,
        siblings: Option<Siblings>,
        delivery: Delivery,
    ) -> Result<Self, StartError> {
        let engine = |parker| Engine::new(endpoint, link, delivery, parker, siblings, clock::now());
        if delivery.regime() == Regime::NobodySleeps {
            let shared = Arc::new(Shared::new(engine(None), delivery));
            return Ok(Self { shared, background: None });
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
        let shared = Arc::new(Shared::new(engine(Some(Arc::clone(&parker))), delivery));
        to_thread.send(Arc::clone(&shared)).expect("the thread waits for it");
        Ok(Self { shared, background: Some((parker, thread)) })
    }

    fn stats(&self) -> Stats {
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
}

impl Drop for Shard {
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
            .field("shards", &self.shards.len())
            .field("delivery", &self.shards[0].shared.delivery)
            .finish_non_exhaustive()
    }
}

/// Different for every node and every run of it, also of machines that were cloned; unknown to peers.
fn seed() -> u128 {
    let mut seed = [0; 16];
    getrandom::fill(&mut seed).expect("the kernel has random numbers once it has started");
    u128::from_le_bytes(seed)
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
