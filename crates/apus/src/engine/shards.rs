//! The shards behind a [`Node`](crate::Node): one or several, each with a link, an engine and a background thread.

use std::io::ErrorKind;
use std::mem;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use apus_net::{Capabilities, Link, OwningProcess, interface_addresses};
use apus_proto::{Endpoint, SocketKey, Time};
use apus_shm::{Listener, fits_limits, limit_pools};

use crate::config::{Config, ConfigError};
use crate::delivery::parker::{self, Parker, Waiter, WaiterId};
use crate::delivery::spin::Spin;
use crate::delivery::waiting::Awaited;
use crate::delivery::{Delivery, Regime};
use crate::engine::Engine;
use crate::engine::background;
use crate::engine::lock::Shared;
use crate::engine::memory_limit::memory_limit;
use crate::engine::no_link::NoLink;
use crate::engine::shard_loads::ShardLoads;
use crate::error::{StartError, Unusable};
use crate::host::neighbours::Neighbours;
use crate::host::places::Places;
use crate::mail::Mail;
use crate::observe::missing_files;
use crate::observe::publication::Publication;
use crate::observe::stats::Stats;
use crate::secure::{Driver, NodeIdentity};
use crate::shared_engine::attached::{ATTACH_TIMEOUT, Attached, Attachment};
use crate::shared_engine::awaited::AwaitEngine;
use crate::shared_engine::forwarder::Limits;
use crate::sync::clock;
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Mutex, PoisonError, mpsc};

/// The shards of a node. Each of its sockets holds them, so that none outlives its node.
pub(crate) struct Shards {
    all: Vec<Shard>,
    pub(crate) local_addr: SocketAddr,
    pub(crate) capabilities: Capabilities,
    /// The certificate of the node and its rules, if it has any, and those of users of its engine.
    pub(crate) identities: Vec<Arc<NodeIdentity>>,
}

/// The ways in which a node works with other processes of its host.
#[derive(Debug)]
pub(crate) enum Near {
    /// Nothing: all messages go by the links.
    Nobody,
    /// It shares memory with their nodes.
    Nodes,
    /// The same, and processes that come to the listener use its engine, within limits. The files are the certificates and keys of
    /// further identities.
    Serving(Listener, Limits, Vec<(PathBuf, PathBuf)>),
    /// It uses the engine that listens at a file.
    Engine(PathBuf),
}

impl Near {
    fn open(
        self,
        local_addr: SocketAddr,
        process: OwningProcess,
        config: &Config,
    ) -> Result<Option<Neighbours>, StartError> {
        let now = clock::now();
        let meet = || {
            if let Err(error) = fits_limits() {
                missing_files::note("memory between processes", &error);
            }
            let places = Places::new(local_addr, config.shared_directory(), interface_addresses);
            let listeners = places.listen().map_err(|error| config.unusable_directory(&error))?;
            Ok::<_, ConfigError>(Neighbours::open(places, listeners, process, now))
        };
        match self {
            Self::Nobody => Ok(None),
            Self::Nodes => Ok(meet()?.filter(|_| fits_limits().is_ok())),
            Self::Serving(listener, limits, _) => {
                let mut neighbours = meet()?.ok_or_else(StartError::no_memory)?;
                neighbours.serve(listener, limits).map_err(StartError::Descriptor)?;
                Ok(Some(neighbours))
            }
            Self::Engine(path) => {
                Neighbours::of_engine(&path, process, now).map(Some).map_err(StartError::Descriptor)
            }
        }
    }
}

/// Part of the total budget that the memory for long messages to processes of this host comes to, on top of it.
const POOLS_PART: u64 = 4;

/// A part of a node that has the traffic with some of its peers.
struct Shard {
    shared: Arc<Shared>,
    background: Mutex<Option<(Arc<Parker>, JoinHandle<()>)>>,
}

impl Shards {
    /// Starts one on each of several links, at least one. They have the same address.
    ///
    /// # Errors
    ///
    /// [`StartError::Config`], [`StartError::Memory`], [`StartError::Thread`].
    pub(crate) fn start(
        links: Vec<Box<dyn Link>>,
        config: &Config,
        near: Near,
    ) -> Result<Self, StartError> {
        config.check()?;
        let first = links.first().expect("a node has at least one link");
        let (local_addr, capabilities) = (first.local_addr(), first.capabilities().clone());
        let process = OwningProcess::current().map_err(StartError::Memory)?;
        let mut shard_loads: Vec<_> = match links.len() {
            1 => vec![None],
            shards => ShardLoads::of(shards).map(Some).collect(),
        };
        let mut protocol = config.protocol.clone();
        memory_limit().into_iter().for_each(|bytes| protocol.follow_memory(bytes));
        let mut shards = Vec::with_capacity(links.len());
        let mut identities: Vec<_> = NodeIdentity::of(config)?.into_iter().collect();
        if let Near::Serving(_, _, files) = &near {
            for files in files {
                identities.extend(NodeIdentity::of_users(config, files)?);
            }
        }
        let mut neighbours = near.open(local_addr, process, config)?;
        for (link, shard_loads) in links.into_iter().zip(shard_loads.drain(..)) {
            let endpoint = Endpoint::new(protocol.clone(), seed());
            limit_pools(endpoint.total_budget() / POOLS_PART);
            let publication = Publication::new(config.metrics_at());
            let neighbours = neighbours.take(); // Only a node with one shard has any.
            let engine = |background| {
                let (delivery, now) = (config.delivery, clock::now());
                let mut engine =
                    Engine::new(endpoint, link, neighbours, delivery, background, shard_loads, now);
                engine.publication = publication;
                engine.mail.skips_unwanted = config.skip_unwanted;
                let is_open = config.is_insecure() && !config.has_identity();
                engine.identity.insecure = is_open.then_some(1);
                let publishes = engine.publication.is_some();
                if let Some(forwarder) = engine.forwarder() {
                    forwarder.publishes = publishes;
                }
                engine
            };
            shards.push(Shard::start(engine, config.delivery, process)?);
        }
        if !identities.is_empty() {
            let is_open = config.is_insecure();
            let begin = |shard: &Shard| Driver::begin(&shard.shared, &identities, is_open);
            shards.iter().try_for_each(begin)?;
        }
        if shards.len() > 1 {
            let all = || shards.iter().map(|shard| Arc::downgrade(&shard.shared)).collect();
            shards.iter().for_each(|shard| shard.shared.introduce(all()));
        }
        Ok(Self { all: shards, local_addr, capabilities, identities })
    }

    /// Starts one that uses the engine of another process, and waits until it does.
    ///
    /// # Errors
    ///
    /// [`StartError::Engine`], and as [`start`](Self::start).
    pub(crate) fn attach(path: &Path, config: &Config) -> Result<Self, StartError> {
        let link = Box::new(NoLink::default());
        let mut shards = Self::start(vec![link], config, Near::Engine(path.to_owned()))?;
        let failed = |source| StartError::Engine { path: path.to_owned(), source };
        let shared = &shards.all[0].shared;
        let mut awaited = AwaitEngine(|attached: &mut Attached| match &mut attached.attachment {
            Attachment::Wanted => None,
            Attachment::Attached(address) => Some(Ok(*address)),
            Attachment::Failed(error) => Some(Err(mem::replace(error, ErrorKind::Other.into()))),
        });
        let now = clock::now();
        let found = shared.wait(shared.lock()?, &mut awaited, now, Some(now + ATTACH_TIMEOUT))?;
        let found = found.unwrap_or_else(|| Err(ErrorKind::TimedOut.into()));
        shards.local_addr = found.map_err(failed)?;
        Ok(shards)
    }

    /// The shared state of each shard, in order.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<Shared>> {
        self.all.iter().map(|shard| &shard.shared)
    }

    pub(crate) fn delivery(&self) -> Delivery {
        self.all[0].shared.delivery
    }

    pub(crate) fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        for shard in &self.all {
            sum.add(&shard.stats());
        }
        sum
    }

    /// Waits until everything has ended or `until` has passed, and returns the number of RPCs that have not ended.
    pub(crate) fn drain(&self, until: Time) -> Result<usize, Unusable> {
        for shard in &self.all {
            shard.shared.enter()?.drain.begun = true;
        }
        let mut active = 0;
        for Shard { shared, .. } in &self.all {
            let now = clock::now();
            if shared.wait(shared.lock()?, &mut AwaitIdle, now, Some(until))?.is_none() {
                active += shared.lock()?.endpoint.active_rpcs();
            }
        }
        Ok(active)
    }

    /// Ends everything and closes the links; nothing is left to do the second time.
    pub(crate) fn stop(&self) {
        self.all.iter().for_each(Shard::stop);
    }
}

impl Shard {
    fn start(
        engine: impl FnOnce(Option<Arc<Parker>>) -> Engine,
        delivery: Delivery,
        process: OwningProcess,
    ) -> Result<Self, StartError> {
        if delivery.regime() == Regime::AlwaysPolls {
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
            // The thread does not exist in the child. A drop of the link could write its buffer, a capture for instance, a second
            // time. So nothing is dropped.
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
                // An error means that the thread panicked. The panic has printed its message.
                let _ = thread.join();
            }
        }
        drop(link);
    }

    fn stats(&self) -> Stats {
        let Ok(engine) = self.shared.enter() else { return Stats::default() };
        let mut delivery = engine.counters;
        let outside = self.shared.counted_outside();
        (delivery.wake_ups, delivery.lock_misses) = (outside.wake_ups, outside.lock_misses);
        let memory = engine.memory_counters();
        let sockets = engine.mail.stats();
        (delivery.messages, delivery.handoffs) = (sockets.messages, sockets.handoffs);
        Stats {
            protocol: engine.endpoint.counters().clone(),
            link: engine.link.counters(),
            memory,
            delivery,
            streams: engine.streams,
            handshakes: engine.handshakes,
            identity: engine.identity,
        }
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Different for every node and every run of it, also of machines that were cloned; unknown to peers.
fn seed() -> u128 {
    let mut seed = [0; 16];
    getrandom::fill(&mut seed).expect("the kernel has random numbers once it has started");
    u128::from_le_bytes(seed)
}

/// A wait for the end of all calls and requests.
struct AwaitIdle;

impl Awaited for AwaitIdle {
    type Output = ();

    fn take(&mut self, engine: &mut Engine) -> Option<()> {
        engine.is_idle().then_some(())
    }

    fn enlist(&self, engine: &mut Engine, waiter: Waiter) {
        engine.drain.waiter = Some(waiter);
    }

    fn delist(&self, engine: &mut Engine, _id: WaiterId) -> bool {
        engine.drain.waiter.take().is_none()
    }

    fn socket(&self) -> Option<SocketKey> {
        None
    }

    fn spin<'m>(&self, _mail: &'m mut Mail) -> Option<&'m mut Spin> {
        None
    }
}
