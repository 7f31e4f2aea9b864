//! The common part of clients and services: a Homa port of the node, with an end in each shard, and its queue.

use std::future::Future;
use std::iter;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use apus_net::shard_of;
use apus_proto::{Endpoint, FIRST_CLIENT_PORT, SocketKey, Time};
use apus_seal::SECURE_PORT;

use crate::config::PeerRule;
use crate::delivery::Regime;
use crate::delivery::cross_shard::CrossShardWaiters;
use crate::delivery::parker::{self, Waiter, WaiterId};
use crate::delivery::spin::Spin;
use crate::delivery::waiting::Awaited;
use crate::engine::Engine;
use crate::engine::lock::{Guard, Shared};
use crate::engine::shards::Shards;
use crate::error::{OpenError, RecvError, RuleError};
use crate::mail;
use crate::mail::queue::Queue;
use crate::observe::spans::QueuedSpans;
use crate::observe::stats::PortStats;
use crate::shared_engine::attached::{ATTACH_TIMEOUT, Attached};
use crate::shared_engine::awaited::AwaitEngine;
use crate::shared_engine::messages::{Opened, RULES_MAX, RuleAnswer};
use crate::sync::clock;

/// A port. Clones are the same port; any number of threads and tasks may use it at once.
///
/// A message goes to one waiter: to a thread that polls, else to the one that slept last.
#[derive(Clone)]
pub(crate) struct Socket {
    /// One in each shard of the node.
    ends: Arc<[Arc<SocketInner>]>,
    /// Of its calls whose results it receives.
    pub(crate) spans: QueuedSpans,
}

/// A message that a port delivers.
pub(crate) trait Deliverable: Sized {
    /// Takes the next one of the queue of `end`.
    fn take(queue: &mut Queue, endpoint: &mut Endpoint, end: &Arc<SocketInner>) -> Option<Self>;

    /// Takes the next one and puts it into its place. Returns whether there was one.
    #[inline(always)]
    fn take_into(
        place: &mut Result<Self, RecvError>,
        queue: &mut Queue,
        endpoint: &mut Endpoint,
        end: &Arc<SocketInner>,
    ) -> bool {
        let Some(message) = Self::take(queue, endpoint, end) else { return false };
        *place = Ok(message);
        true
    }

    /// Whether [`delivered`](Self::delivered) has to be called.
    fn is_noted(&self) -> bool;

    /// Called before the application gets the message of `socket`; the lock is free.
    fn delivered(&mut self, socket: &Socket);
}

/// One open port of one shard; closes it when dropped.
pub(crate) struct SocketInner {
    pub(crate) shared: Arc<Shared>,
    pub(crate) key: SocketKey,
    port: u16,
    /// State shared with the ends in other shards, if there are any.
    cross_shard: Option<Arc<CrossShardWaiters>>,
    /// Keeps the node running.
    node: Arc<Shards>,
}

/// A port and its node, which it does not keep running.
pub(crate) type PortId = (u16, Weak<Shards>);

impl Drop for SocketInner {
    fn drop(&mut self) {
        let Ok(mut engine) = self.shared.enter() else { return };
        engine.close(self.key);
        engine.transmit_due(clock::now());
    }
}

impl SocketInner {
    /// Opens a port, or an automatic client port, in one shard. `cross_shard`: the state shared with other shards and the number of
    /// this one, if there are several.
    fn open(
        node: &Arc<Shards>,
        shared: &Arc<Shared>,
        port: Option<u16>,
        cross_shard: Option<(&Arc<CrossShardWaiters>, usize)>,
    ) -> Result<Arc<Self>, OpenError> {
        let mut engine = shared.enter()?;
        if engine.stopped {
            return Err(OpenError::Closed);
        }
        let key = engine.endpoint.open(port).map_err(OpenError::refused)?;
        let port = engine.endpoint.port(key).expect("opened a moment ago, under the same lock");
        engine.apply_rule_of_port(key, port);
        engine
            .mail
            .open(key, cross_shard.map(|(cross_shard, shard)| (Arc::clone(cross_shard), shard)));
        let served = port < FIRST_CLIENT_PORT;
        if let Some(attached) = engine.attached().filter(|_| served) {
            attached.open(port);
        }
        let attached = served && engine.attached().is_some();
        drop(engine);
        let cross_shard = cross_shard.map(|(cross_shard, _)| Arc::clone(cross_shard));
        let (shared, node) = (Arc::clone(shared), Arc::clone(node));
        let end = Arc::new(Self { shared, key, port, cross_shard, node });
        if attached {
            end.await_port()?; // Otherwise it is closed again.
        }
        Ok(end)
    }

    /// Waits until the engine of another process has said whether the port can be served.
    #[cold]
    fn await_port(&self) -> Result<(), OpenError> {
        let mut awaited = AwaitEngine(|attached: &mut Attached| match attached.is_attached() {
            true => attached.opened(self.port).map(Some),
            false => Some(None),
        });
        let now = clock::now();
        let until = Some(now + ATTACH_TIMEOUT);
        match self.shared.wait(self.shared.lock()?, &mut awaited, now, until)? {
            Some(Some(Opened::Yes)) => Ok(()),
            Some(Some(Opened::InUse)) => Err(OpenError::PortInUse(self.port)),
            Some(Some(Opened::Forbidden)) => Err(OpenError::PortForbidden(self.port)),
            Some(None) | None => Err(OpenError::NoEngine),
        }
    }

    //= docs/protocol.md#seal-6
    /// Gives the port a rule for its peers, which the engine of another process keeps if this node uses one.
    fn set_rule(&self, rule: &PeerRule) -> Result<(), RuleError> {
        let mut engine = self.shared.enter()?;
        let Some(attached) = engine.attached() else { return engine.set_rule(self.key, rule) };
        let number = attached.set_rule(self.port, rule)?;
        engine.transmit_due(clock::now());
        let mut awaited = AwaitEngine(|attached: &mut Attached| match attached.is_attached() {
            true => attached.take_rule_answer(number).map(Some),
            false => Some(None),
        });
        let now = clock::now();
        let until = Some(now + ATTACH_TIMEOUT);
        let answer = self.shared.wait(engine, &mut awaited, now, until)?.flatten();
        let mut engine = self.shared.lock()?;
        let kept = answer == Some(RuleAnswer::Set);
        if let Some(attached) = engine.attached() {
            attached.end_rule(number, kept.then_some((self.port, rule)));
        }
        match answer {
            Some(RuleAnswer::Set) => engine.refuse_waiting(self.key, rule),
            Some(RuleAnswer::NoIdentity) => return Err(RuleError::NoIdentity),
            Some(RuleAnswer::TooMany) => return Err(RuleError::TooMany { limit: RULES_MAX }),
            None => return Err(RuleError::NoEngine),
        }
        Ok(())
    }

    /// The address of the node. A node that uses the engine of another process has that engine's address.
    pub(crate) fn node_addr(&self) -> SocketAddr {
        self.node.local_addr
    }

    /// Identifies the port, for [`is_at`](Self::is_at).
    pub(crate) fn port_id(&self) -> PortId {
        (self.port, Arc::downgrade(&self.node))
    }

    /// Whether an id is that of the port with that number of the node that this is a port of.
    pub(crate) fn is_at(&self, (port, node): &PortId, wanted: u16) -> bool {
        *port == wanted && node.as_ptr() == Arc::as_ptr(&self.node)
    }

    /// This is the port with that number of the node that `other` is a port of.
    pub(crate) fn is_port(&self, other: &Self, port: u16) -> bool {
        self.port == port && Arc::ptr_eq(&self.node, &other.node)
    }
}

impl Socket {
    /// Opens a port, or an automatic client port, in each shard of a node.
    pub(crate) fn open(node: &Arc<Shards>, port: Option<u16>) -> Result<Self, OpenError> {
        if let Some(port) = port.filter(|&port| port == SECURE_PORT) {
            return Err(OpenError::PortReserved(port));
        }
        let cross_shard = (node.iter().len() > 1).then(Arc::<CrossShardWaiters>::default);
        let ends = node.iter().enumerate().map(|(shard, shared)| {
            let cross_shard = cross_shard.as_ref().map(|cross_shard| (cross_shard, shard));
            SocketInner::open(node, shared, port, cross_shard)
        });
        Ok(Self { ends: ends.collect::<Result<_, _>>()?, spans: QueuedSpans::new() })
    }

    /// Its ends, one in each shard.
    pub(crate) fn ends(&self) -> impl Iterator<Item = &Arc<SocketInner>> {
        self.ends.iter()
    }

    /// The end in the first shard.
    #[inline]
    pub(crate) fn first(&self) -> &Arc<SocketInner> {
        &self.ends[0]
    }

    /// The end that has the traffic with a peer.
    #[inline]
    pub(crate) fn end(&self, peer: SocketAddr) -> &Arc<SocketInner> {
        match &*self.ends {
            [only] => only,
            ends => &ends[shard_of(peer, ends.len())],
        }
    }

    /// The shard in which the calling thread waits for messages.
    #[inline]
    fn home(&self) -> usize {
        match self.ends.len() {
            1 => 0,
            shards => usize::try_from(parker::thread_id()).unwrap_or(0) % shards,
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.first().port
    }

    //= docs/protocol.md#seal-6
    /// Gives the socket a rule for its peers.
    pub(crate) fn set_rule(&self, rule: &PeerRule) -> Result<(), RuleError> {
        for end in &*self.ends {
            end.set_rule(rule)?;
        }
        Ok(())
    }

    pub(crate) fn stats(&self) -> PortStats {
        let mut stats = PortStats::default();
        for end in &*self.ends {
            let Ok(mut engine) = end.shared.enter() else { continue };
            stats
                .add(engine.mail.mailbox(end.key).map(|mailbox| mailbox.stats).unwrap_or_default());
        }
        stats
    }

    /// Runs before a message is given to the application. The lock is free.
    #[inline(always)]
    fn note_delivery<M: Deliverable>(&self, delivered: &mut Result<M, RecvError>) {
        if let Ok(message) = delivered
            && message.is_noted()
        {
            message.delivered(self);
        }
    }

    /// Waits for the next message, no longer than `timeout`.
    pub(crate) fn recv<M: Deliverable>(&self, timeout: Option<Duration>) -> Result<M, RecvError> {
        // It is put to its place at once: messages are large.
        let mut delivered = Err(RecvError::Empty);
        let received = self.receive(timeout, |queue, endpoint, end| {
            M::take_into(&mut delivered, queue, endpoint, end)
        });
        match received {
            Ok(()) => self.note_delivery(&mut delivered),
            Err(error) => delivered = Err(error),
        }
        delivered
    }

    /// The next message, if one has arrived; turns the engine once to look for it.
    #[inline]
    pub(crate) fn try_recv<M: Deliverable>(&self) -> Result<M, RecvError> {
        let mut delivered = Err(RecvError::Empty);
        match self.look_everywhere(&mut delivered) {
            Ok(()) => self.note_delivery(&mut delivered),
            Err(error) => delivered = Err(error),
        }
        delivered
    }

    /// Looks at all ends, from that of the calling thread on, until one has a message.
    #[inline(always)]
    fn look_everywhere<M: Deliverable>(
        &self,
        delivered: &mut Result<M, RecvError>,
    ) -> Result<(), RecvError> {
        let mut take = |queue: &mut Queue, endpoint: &mut Endpoint, end: &Arc<SocketInner>| {
            M::take_into(delivered, queue, endpoint, end)
        };
        let (before, from_home) = self.ends.split_at(self.home());
        for end in from_home.iter().chain(before) {
            let engine = end.shared.enter()?;
            if end.look_once(engine, &mut take)? {
                break;
            }
        }
        Ok(())
    }

    /// Waits for the next message, then takes all messages that have arrived, up to `max`, which counts as 1 if it is 0.
    #[inline]
    pub(crate) fn recv_many<M: Deliverable>(
        &self,
        batch: &mut Vec<M>,
        max: usize,
        timeout: Option<Duration>,
    ) -> Result<usize, RecvError> {
        let before = batch.len();
        self.receive(timeout, |queue, endpoint, end| {
            let messages = iter::from_fn(|| M::take(queue, endpoint, end));
            batch.extend(messages.take(max.max(1)));
            batch.len() > before
        })?;
        let count = batch.len() - before;
        if cfg!(feature = "tracing") {
            let noted = batch[before..].iter_mut().filter(|message| message.is_noted());
            noted.for_each(|message| message.delivered(self));
        }
        Ok(count)
    }

    /// Waits until `take` returns `true` for the queue of one of the ends.
    #[inline]
    fn receive(
        &self,
        timeout: Option<Duration>,
        mut take: impl FnMut(&mut Queue, &mut Endpoint, &Arc<SocketInner>) -> bool,
    ) -> Result<(), RecvError> {
        let home = &self.ends[self.home()];
        let mut engine = home.shared.enter()?;
        let mut now = clock::now();
        let until = timeout.map(|timeout| now + timeout);
        if home.shared.regime == Regime::AlwaysPolls && self.ends.len() > 1 {
            drop(engine);
            return self.receive_busy(until, take);
        }
        home.look_around(&mut engine, now);
        loop {
            let mut awaited = AwaitMail { end: home, take: &mut take };
            match home.shared.wait(engine, &mut awaited, now, until)? {
                None => return Err(RecvError::Timeout),
                Some(Err(closed)) => return Err(closed),
                Some(Ok(Mail::Here)) => return Ok(()),
                Some(Ok(Mail::Elsewhere)) => {}
            }
            for end in self.ends.iter().filter(|end| !Arc::ptr_eq(end, home)) {
                let mut engine = end.shared.lock()?;
                if end.look(&mut engine, false, &mut take)? {
                    return Ok(());
                }
            }
            engine = home.shared.lock()?;
            now = clock::now();
        }
    }

    /// Polls all shards, because no other thread turns their engines in this mode.
    fn receive_busy(
        &self,
        until: Option<Time>,
        mut take: impl FnMut(&mut Queue, &mut Endpoint, &Arc<SocketInner>) -> bool,
    ) -> Result<(), RecvError> {
        loop {
            for end in &*self.ends {
                // A thread that holds the lock turns that engine.
                let Some(engine) = end.shared.try_lock()? else { continue };
                if end.look_once(engine, &mut take)? {
                    return Ok(());
                }
            }
            if until.is_some_and(|until| until <= clock::now()) {
                return Err(RecvError::Timeout);
            }
        }
    }

    /// As a future's `poll`. `waiting` is the id under which the future has registered a waker.
    pub(crate) fn poll_recv<M: Deliverable>(
        &self,
        waiting: &mut Option<WaiterId>,
        context: &mut Context<'_>,
    ) -> Poll<Result<M, RecvError>> {
        parker::count_task_poll();
        let is_alone = self.ends.len() == 1;
        if !is_alone {
            self.leave(waiting);
        }
        let mut id = None;
        for end in &*self.ends {
            let shared = &*end.shared;
            let mut engine = match shared.enter() {
                Ok(engine) => engine,
                Err(unusable) => return Poll::Ready(Err(unusable.into())),
            };
            if is_alone && let Some(id) = waiting.take() {
                // The queue is checked under this lock.
                engine.mail.leave_mail(end.key, id);
            }
            let now = clock::now();
            let always_polls = shared.regime == Regime::AlwaysPolls;
            if engine.holds_back() || always_polls {
                engine.turn(now);
            } else {
                end.look_around(&mut engine, now);
            }
            let mut delivered = Err(RecvError::Empty);
            let looked = end.look(&mut engine, true, &mut |queue, endpoint, end| {
                M::take_into(&mut delivered, queue, endpoint, end)
            });
            if looked != Ok(false) {
                drop(engine);
                self.leave(waiting);
                self.note_delivery(&mut delivered);
                return Poll::Ready(looked.and(delivered));
            }
            if !always_polls {
                // From here on it may be called, by this end or by one before.
                let id = *id.get_or_insert_with(parker::next_id);
                *waiting = Some(id);
                engine.mail.wait_for_mail(end.key, Waiter::task(id, context.waker()));
                engine.need_progress();
                engine.transmit_due(now);
            }
        }
        if waiting.is_none() {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// The future waits nowhere any more.
    pub(crate) fn leave(&self, waiting: &mut Option<WaiterId>) {
        let Some(id) = waiting.take() else {
            return;
        };
        for end in &*self.ends {
            let Ok(mut engine) = end.shared.enter() else { continue };
            engine.mail.leave_mail(end.key, id);
            engine.mail.pass_on(end.key);
        }
    }

    pub(crate) fn shutdown(&self) {
        for end in &*self.ends {
            let Ok(mut engine) = end.shared.enter() else { return };
            engine.close(end.key);
            engine.transmit_due(clock::now());
        }
        self.spans.give_up_all();
    }
}

/// Waiting for the next message, as a future. Dropping it loses no message.
pub(crate) struct Recv<'a, M> {
    socket: &'a Socket,
    /// The id under which a waker is registered.
    waiting: Option<WaiterId>,
    message: PhantomData<fn() -> M>,
}

impl<'a, M> Recv<'a, M> {
    pub(crate) fn new(socket: &'a Socket) -> Self {
        Self { socket, waiting: None, message: PhantomData }
    }
}

impl<M: Deliverable> Future for Recv<'_, M> {
    type Output = Result<M, RecvError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let socket = self.socket;
        socket.poll_recv(&mut self.waiting, context)
    }
}

impl<M> Drop for Recv<'_, M> {
    fn drop(&mut self) {
        self.socket.leave(&mut self.waiting);
    }
}

impl SocketInner {
    /// Takes messages from the queue with `take`. Returns whether it took any. `home`: the thread waits in this shard.
    #[inline]
    fn look(
        self: &Arc<Self>,
        engine: &mut Engine,
        home: bool,
        take: &mut impl FnMut(&mut Queue, &mut Endpoint, &Arc<Self>) -> bool,
    ) -> Result<bool, RecvError> {
        let Engine { mail, endpoint, .. } = engine;
        let Some(mailbox) = mail.mailbox(self.key) else { return Err(RecvError::Closed) };
        let took = take(&mut mailbox.queue, endpoint, self);
        mailbox.looked(home);
        if took && !mailbox.has_changed() {
            engine.mail.note_change(self.key);
        }
        Ok(took)
    }

    /// The same; turns the engine if no message waits.
    #[inline]
    fn look_once(
        self: &Arc<Self>,
        mut engine: Guard<'_>,
        take: &mut impl FnMut(&mut Queue, &mut Endpoint, &Arc<Self>) -> bool,
    ) -> Result<bool, RecvError> {
        // A message is large, so only one call takes it.
        let mut turned = None;
        if engine.mail.mailbox(self.key).is_some_and(|mailbox| mailbox.queue.is_empty()) {
            let now = clock::now();
            engine.opportunistic_turn(now);
            turned = Some(now);
        }
        let took = self.look(&mut engine, true, take);
        match turned {
            Some(now) => engine.transmit_due(now),
            None if took == Ok(false) => return self.look_again(&mut engine, take),
            None => {}
        }
        took
    }

    /// Looks once more after all waiting requests were skipped.
    #[cold]
    #[inline(never)]
    fn look_again(
        self: &Arc<Self>,
        engine: &mut Engine,
        take: &mut impl FnMut(&mut Queue, &mut Endpoint, &Arc<Self>) -> bool,
    ) -> Result<bool, RecvError> {
        let now = clock::now();
        engine.opportunistic_turn(now);
        let took = self.look(engine, true, take);
        engine.transmit_due(now);
        took
    }

    /// Turns the engine if requests wait and the last turn is too long ago, unless the mode leaves that to the background thread.
    /// With a slow handler the queue may never be empty, and requests that arrive meanwhile would wait for all of it.
    #[inline]
    fn look_around(&self, engine: &mut Engine, now: Time) {
        if self.port < FIRST_CLIENT_PORT
            && self.shared.regime != Regime::Background
            && now.saturating_since(engine.turns.last) > AROUND
            && engine.mail.mailbox(self.key).is_some_and(|mailbox| !mailbox.queue.is_empty())
        {
            engine.turn(now);
            engine.transmit_due(now);
        }
    }
}

/// Waiting for messages of a socket, at one of its ends.
struct AwaitMail<'a, F> {
    end: &'a Arc<SocketInner>,
    take: &'a mut F,
}

/// The place of a waiting message.
enum Mail {
    /// At this end, and taken.
    Here,
    /// At another one.
    Elsewhere,
}

impl<F: FnMut(&mut Queue, &mut Endpoint, &Arc<SocketInner>) -> bool> Awaited for AwaitMail<'_, F> {
    type Output = Result<Mail, RecvError>;

    #[inline]
    fn take(&mut self, engine: &mut Engine) -> Option<Self::Output> {
        match self.end.look(engine, true, self.take) {
            Err(closed) => Some(Err(closed)),
            Ok(true) => Some(Ok(Mail::Here)),
            Ok(false) => {
                let elsewhere =
                    self.end.cross_shard.as_ref().is_some_and(|cross_shard| cross_shard.has_mail());
                elsewhere.then_some(Ok(Mail::Elsewhere))
            }
        }
    }

    fn enlist(&self, engine: &mut Engine, waiter: Waiter) {
        if let Some(cross_shard) = &self.end.cross_shard {
            cross_shard.enlist(waiter.clone());
        }
        engine.mail.wait_for_mail(self.end.key, waiter);
    }

    fn delist(&self, engine: &mut Engine, id: WaiterId) -> bool {
        if let Some(cross_shard) = &self.end.cross_shard {
            cross_shard.delist(id);
        }
        engine.mail.leave_mail(self.end.key, id)
    }

    fn socket(&self) -> Option<SocketKey> {
        Some(self.end.key)
    }

    fn spin<'m>(&self, mail: &'m mut mail::Mail) -> Option<&'m mut Spin> {
        mail.mailbox(self.end.key).map(|mailbox| &mut mailbox.receive_spin)
    }
}

/// The greatest age of the knowledge of other peers when a request is taken. A turn costs a tenth of this at most.
const AROUND: Duration = Duration::from_micros(20);
