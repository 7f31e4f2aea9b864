//! Nodes: one or several shards, each with a link, an engine and a background thread.

use std::fmt;
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use apus_net::{Capabilities, Link, Process};
use apus_proto::{Endpoint, SocketKey, Time};

use crate::background;
use crate::clock;
use crate::config::Config;
use crate::cross_shard::CrossShardWaiters;
use crate::delivery::{Delivery, Regime};
use crate::engine::Engine;
use crate::error::{CloseError, OpenError, StartError, Unusable};
use crate::links;
use crate::mail::Mail;
use crate::parker::{self, Parker, Waiter, WaiterId};
use crate::shard_loads::ShardLoads;
use crate::shared::Shared;
use crate::socket::{Socket, SocketInner};
use crate::spin::Spin;
use crate::stats::Stats;
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Mutex, PoisonError, mpsc};
use crate::wait::Awaited;

/// A place on the network: one link (by default a UDP port), any number of [`Socket`]s on it.
///
/// A process needs one, seldom more: scheduling is best when all of a host's messages share a node.
///
/// [`close`](Self::close) lets everything end, then stops the node. A node that is dropped instead
/// goes on until the last of its sockets, calls and requests is dropped, and then stops at once.
///
/// # After a fork
///
/// A node belongs to the process that started it. In a child (`fork`), every operation on it and on
/// what came of it ends at once with an error named `Forked`, or does nothing where there is no error
/// to give; no packet is sent or taken by the parent's link, and dropping is free of effect. The check
/// costs about a nanosecond an operation. A child may start nodes of its own. The parent's descriptors
/// stay open in the child until it ends or executes another program.
///
/// # After a panic inside
///
/// A thread that panics while it works on a node, in a link of the application's own for instance, leaves the node unusable.
/// Threads and tasks that wait are woken, and every operation returns an error named `NodePanicked`. Handlers run outside the
/// node: their panics end one request ([`Socket::serve`]).
pub struct Node {
    parts: Arc<Parts>,
}

/// What a node is made of. Each of its sockets holds it, so that none outlives its node.
pub(crate) struct Parts {
    shards: Vec<Shard>,
    local_addr: SocketAddr,
    capabilities: Capabilities,
}

/// A part of a node that has the traffic with some of its peers.
struct Shard {
    shared: Arc<Shared>,
    background: Mutex<Option<(Arc<Parker>, JoinHandle<()>)>>,
}

impl Node {
    /// Starts a node on the links and at the address of its configuration ([`Config::link`],
    /// [`Config::listen`]), with [`Config::shards`] of them.
    ///
    /// # Errors
    ///
    /// [`StartError`]: a setting is not allowed, the port is busy, the address not of this machine, no permission, no thread
    /// or descriptor left.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        config.check()?;
        Self::with_links(links::open_shards(config)?, config)
    }

    /// Starts a node on a link of the caller's: one that injects faults, captures packets, or is not
    /// UDP at all. [`Config::listen`], [`Config::shards`] and the UDP settings are not looked at.
    ///
    /// # Errors
    ///
    /// [`StartError::Config`], [`StartError::Thread`].
    pub fn with_link(link: Box<dyn Link>, config: &Config) -> Result<Self, StartError> {
        Self::with_links(vec![link], config)
    }

    /// Starts a node with a shard for each of several links. All have the same address, and the
    /// traffic with a peer goes by the one whose place [`net::shard_of`](apus_net::shard_of) tells,
    /// as from [`UdpLink::bind_shards`](apus_net::UdpLink::bind_shards).
    ///
    /// # Errors
    ///
    /// [`StartError::Config`], [`StartError::Thread`].
    ///
    /// # Panics
    ///
    /// Without a link.
    pub fn with_links(links: Vec<Box<dyn Link>>, config: &Config) -> Result<Self, StartError> {
        config.check()?;
        let first = links.first().expect("a node has at least one link");
        let (local_addr, capabilities) = (first.local_addr(), first.capabilities().clone());
        let process = Process::current().map_err(StartError::Memory)?;
        let mut shard_loads: Vec<_> = match links.len() {
            1 => vec![None],
            shards => ShardLoads::of(shards).map(Some).collect(),
        };
        let mut shards = Vec::with_capacity(links.len());
        for (link, shard_loads) in links.into_iter().zip(shard_loads.drain(..)) {
            let endpoint = Endpoint::new(config.protocol.clone(), seed());
            shards.push(Shard::start(link, endpoint, shard_loads, config.delivery, process)?);
        }
        if shards.len() > 1 {
            let all = || shards.iter().map(|shard| Arc::downgrade(&shard.shared)).collect();
            shards.iter().for_each(|shard| shard.shared.introduce(all()));
        }
        Ok(Self { parts: Arc::new(Parts { shards, local_addr, capabilities }) })
    }

    /// The address the link is bound to, with the port the system chose if 0 was asked for. An
    /// unspecified IP (`0.0.0.0`) stays unspecified: peers take one of the machine's own instead.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.parts.local_addr
    }

    /// What the link found the kernel to offer.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.parts.capabilities.clone()
    }

    /// Opens a socket on an automatic client port.
    ///
    /// # Errors
    ///
    /// [`OpenError::NoPortLeft`] when all 32,768 are in use, [`OpenError::Forked`] in a forked child.
    pub fn socket(&self) -> Result<Socket, OpenError> {
        self.open(None)
    }

    /// Opens a socket on a server port, 1 to 32767, so that others can call it.
    ///
    /// # Errors
    ///
    /// [`OpenError::PortInUse`], [`OpenError::PortOutOfRange`], or [`OpenError::Forked`] in a forked
    /// child.
    pub fn bind(&self, port: u16) -> Result<Socket, OpenError> {
        self.open(Some(port))
    }

    fn open(&self, port: Option<u16>) -> Result<Socket, OpenError> {
        let shards = &self.parts.shards;
        let cross_shard = (shards.len() > 1).then(Arc::<CrossShardWaiters>::default);
        let ends = shards.iter().enumerate().map(|(shard, Shard { shared, .. })| {
            let cross_shard = cross_shard.as_ref().map(|cross_shard| (cross_shard, shard));
            SocketInner::open(&self.parts, shared, port, cross_shard)
        });
        Ok(Socket::new(ends.collect::<Result<_, _>>()?))
    }

    /// Everything counted since the node was started, over all shards; all zero in a forked child of
    /// the process that started it. Takes their locks; may cost a system call for each.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        for shard in &self.parts.shards {
            sum.add(&shard.stats());
        }
        sum
    }

    /// Takes no further calls, waits until all outstanding calls have ended, all requests taken are
    /// answered and all responses are acknowledged, but no longer than `deadline`; then stops, and the
    /// link's port is free. Zero stops at once. Sockets that are still held find themselves closed.
    ///
    /// # Errors
    ///
    /// [`CloseError::Unfinished`] when something had not ended; the node is stopped all the same.
    /// [`CloseError::Forked`] in a forked child of the process that started it.
    pub fn close(self, deadline: Duration) -> Result<(), CloseError> {
        let drained = self.drain(clock::now() + deadline);
        if drained != Err(Unusable::Forked) {
            self.parts.shards.iter().for_each(Shard::stop);
        }
        match drained? {
            0 => Ok(()),
            active => Err(CloseError::Unfinished { active, after: deadline }),
        }
    }

    /// Waits until everything has ended or `until` has passed, and returns the number of RPCs that have not ended.
    fn drain(&self, until: Time) -> Result<usize, Unusable> {
        let shards = &self.parts.shards;
        for shard in shards {
            shard.shared.enter()?.draining = true;
        }
        let mut active = 0;
        for Shard { shared, .. } in shards {
            let now = clock::now();
            if shared.wait(shared.lock()?, &mut AwaitIdle, now, Some(until))?.is_none() {
                active += shared.lock()?.endpoint.active_rpcs();
            }
        }
        Ok(active)
    }
}

impl Shard {
    fn start(
        link: Box<dyn Link>,
        endpoint: Endpoint,
        shard_loads: Option<ShardLoads>,
        delivery: Delivery,
        process: Process,
    ) -> Result<Self, StartError> {
        let engine =
            |parker| Engine::new(endpoint, link, delivery, parker, shard_loads, clock::now());
        if delivery.regime() == Regime::NobodySleeps {
            let shared = Arc::new(Shared::new(engine(None), delivery, process));
            return Ok(Self { shared, background: Mutex::new(None) });
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
        let engine = engine(Some(Arc::clone(&parker)));
        let shared = Arc::new(Shared::new(engine, delivery, process));
        to_thread.send(Arc::clone(&shared)).expect("the thread waits for it");
        Ok(Self { shared, background: Mutex::new(Some((parker, thread))) })
    }

    /// Ends everything and closes the link; nothing is left to do the second time.
    fn stop(&self) {
        if self.shared.is_forked() {
            // The thread does not exist here, and closing the link might write what it has buffered, a
            // capture for instance, a second time. So nothing is ever dropped.
            mem::forget(Arc::clone(&self.shared));
            if let Ok(mut background) = self.background.try_lock() {
                mem::forget(background.take());
            }
            return;
        }
        // After a panic the link is closed with the last handle of the engine.
        let link = self.shared.lock().ok().map(|mut engine| engine.stop());
        let background = self.background.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((parker, thread)) = background {
            parker.notify();
            // The thread itself stops the node when it drops the last task that held a socket.
            if thread.thread().id() != thread::current().id() {
                // An error means that the thread panicked, which its own message has told.
                let _ = thread.join();
            }
        }
        drop(link);
    }

    fn stats(&self) -> Stats {
        let Ok(engine) = self.shared.enter() else { return Stats::default() };
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
        self.stop();
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("local_addr", &self.parts.local_addr)
            .field("shards", &self.parts.shards.len())
            .field("delivery", &self.parts.shards[0].shared.delivery)
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
