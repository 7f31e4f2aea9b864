//! The engine: protocol, link and mail. A thread that holds the lock may turn it.
//!
//! | file | contents |
//! |---|---|
//! | `engine` | turns, and the thread that turns next |
//! | `calls`, `delivering` | calls and responses of the application; messages for it |
//! | `absence` | the absence of threads that stop waiting |
//! | `paths` | the link's knowledge of the ways to peers |
//! | `waiting`, `waiting_calls` | calls that wait for room, and their list |
//! | `near` | calls and responses within the host, sent at once |
//! | `queued_replies` | responses within the host that leave together |
//! | `lock` | the engine behind its lock, and the guard that wakes threads when it is dropped |
//! | `background` | the thread that turns the engine while no other thread waits |
//! | `shards`, `shard_loads` | the engines of a node, and the use of the host's resources that they publish to each other |
//! | `links`, `no_link` | opens the links of a node; the link that stands in once the node has stopped |
//! | `handlers`, `handling` | sockets whose messages a handler takes when they arrive |
//! | `postponed` | timers that wait for packets |
//! | `memory_limit` | the memory limit of the control groups |
//! | `publication` | the times at which counters are published |
//! | `after_unlock`, `ending` | work that waits until the lock is released; the end of an engine |

use std::mem;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use apus_net::{Examination, Link};
use apus_proto::{Endpoint, Time, TraceEvent, sooner};
use apus_wire::compact::Entries;
use apus_wire::{DATA_HEADER_LEN, PacketReceiver, PathError, PathId, ReceiveTarget};

use crate::delivery::parker::{Parker, Waiter, WaiterId};
use crate::delivery::{Delivery, Leadership, Leaving};
use crate::engine::handlers::Handlers;
use crate::engine::postponed::{ANSWERS_WAIT, Postponed, TIMERS_WAIT};
use crate::engine::shard_loads::ShardLoads;
use crate::host::neighbours::Neighbours;
use crate::local_caller::LocalCaller;
use crate::mail::Mail;
use crate::observe::publication::Publication;
use crate::observe::stats::{DeliveryCounters, HandshakeCounters, IdentityGauges, StreamCounters};
use crate::observe::time_trace::{self, Following};
use crate::secure::SealedPeers;
use crate::shared_engine::attached::Attached;
use crate::shared_engine::forwarder::Forwarder;

mod absence;
mod after_unlock;
mod calls;
mod delivering;
mod ending;
mod handlers;
mod handling;
mod near;
mod paths;
mod postponed;
mod publication;
mod queued_replies;
mod waiting;
mod waiting_calls;

#[cfg(all(test, apus_model))]
mod model;

pub(crate) mod background;
pub(crate) mod links;
pub(crate) mod lock;
pub(crate) mod memory_limit;
pub(crate) mod no_link;
pub(crate) mod shard_loads;
pub(crate) mod shards;

use absence::Absence;
use waiting_calls::WaitingCalls;

pub(crate) use after_unlock::AfterUnlock;
pub(crate) use near::Reply;
pub(crate) use publication::CountedOutside;
pub(crate) use queued_replies::{QueuedReplies, QueuedReply};

/// Takes the messages of a socket when they arrive. The thread that turns the engine calls it, under the lock.
pub(crate) trait Handler: Send + Sync {
    /// Messages wait in the mailbox of the socket, or the time has come that was asked for.
    fn handle(&self, engine: &mut Engine, now: Time) -> Next;

    /// The socket is being closed, or the engine has become unusable.
    fn closed(&self, engine: &mut Engine);
}

/// When a [`Handler`] is to be called again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// At this time, or earlier when messages come.
    At(Time),
    /// When messages come.
    Message,
    /// Never: the handler is dropped.
    Never,
}

/// Everything behind the node's lock.
pub(crate) struct Engine {
    pub(crate) endpoint: Endpoint,
    pub(crate) link: Box<dyn Link>,
    /// Processes of this host that share memory with this one, unless only the network is to be used.
    pub(crate) neighbours: Option<Box<Neighbours>>,
    pub(crate) mail: Mail,
    handlers: Handlers<dyn Handler>,
    pub(crate) leadership: Leadership<Arc<Parker>>,
    absence: Absence,
    pub(crate) turns: Turns,
    paths: Paths,
    /// The other engines of the node, if there are any.
    shard_loads: Option<ShardLoads>,
    waiting: WaitingCalls,
    pub(crate) drain: Drain,
    /// Responses that wait outside the lock.
    pub(crate) replies: Arc<QueuedReplies>,
    /// An empty list, whose memory is used again.
    spent_replies: Vec<QueuedReply>,
    /// The node has been closed, or the link has failed.
    pub(crate) stopped: bool,
    pub(crate) counters: DeliveryCounters,
    pub(crate) streams: StreamCounters,
    pub(crate) handshakes: HandshakeCounters,
    pub(crate) identity: IdentityGauges,
    following: Following,
    /// Where other processes can read the counters.
    pub(crate) publication: Option<Box<Publication>>,
    /// The peers behind sealed paths, if the node has a certificate.
    pub(crate) sealed_peers: Option<Box<SealedPeers>>,
}

/// Times of the last turns, and limits of the next one.
#[derive(Default)]
pub(crate) struct Turns {
    /// When the engine was turned last.
    pub(crate) last: Time,
    /// Datagrams that a turn takes.
    budget: usize,
    /// A turn from then on is not for neighbours alone.
    full_at: Time,
    /// When the link was looked at last.
    link_looked: Time,
    /// When the link brought packets last.
    link_used: Time,
    timers: Postponed,
    /// Questions of peers, while other packets wait.
    questions: Postponed,
    /// When the drops of the receive buffer were last reported to the endpoint, and the gaps in messages that it had seen by then.
    drops_reported: (Time, u64),
    /// A thread, or an event loop, has slept on the link since the last turn.
    pub(crate) slept: bool,
    /// The thread that sleeps does so on a timer, and is not to be woken for messages.
    pub(crate) on_timer: bool,
    /// When a thread that looked for a message without waiting turned the engine last.
    tried_at: Option<Time>,
    /// Since when operations are queued that have not been transmitted, because another one was to follow at once.
    corked_at: Option<Time>,
}

/// Paths to peers.
#[derive(Default)]
struct Paths {
    /// By index: the path whose properties were reported to the endpoint, and when.
    reported: Vec<Option<(PathId, Time)>>,
    /// Paths to be examined after the unlock.
    examinations: Vec<Examination>,
    /// Errors about peers of other engines: the kernel gives an error to any link of the address.
    misrouted: Vec<(SocketAddr, PathError)>,
}

/// The end of a node that lets calls and requests end first.
#[derive(Default)]
pub(crate) struct Drain {
    /// No further calls are taken.
    pub(crate) begun: bool,
    /// The thread or task that waits until everything has ended.
    pub(crate) waiter: Option<Waiter>,
}

impl Engine {
    pub(crate) fn new(
        mut endpoint: Endpoint,
        mut link: Box<dyn Link>,
        neighbours: Option<Neighbours>,
        delivery: Delivery,
        background: Option<Arc<Parker>>,
        shard_loads: Option<ShardLoads>,
        now: Time,
    ) -> Self {
        link.set_receive_budget(delivery.budget() as usize);
        endpoint.set_receive_capacity(link.receive_capacity() as u64);
        Self {
            following: Following::begin(&mut endpoint, &mut *link),
            link,
            neighbours: neighbours.map(Box::new),
            mail: Mail::new(),
            handlers: Handlers::new(),
            leadership: Leadership::new(delivery, background),
            absence: Absence::default(),
            turns: Turns {
                budget: delivery.budget() as usize,
                last: now,
                link_looked: now,
                link_used: now,
                ..Turns::default()
            },
            paths: Paths::default(),
            shard_loads,
            waiting: WaitingCalls::default(),
            drain: Drain::default(),
            replies: Arc::new(QueuedReplies::new(endpoint.longest_message())),
            spent_replies: Vec::new(),
            stopped: false,
            counters: DeliveryCounters::default(),
            streams: StreamCounters::default(),
            handshakes: HandshakeCounters::default(),
            identity: IdentityGauges::default(),
            publication: None,
            sealed_peers: None,
            endpoint,
        }
    }

    /// Receives messages of neighbours and packets, runs timers, transmits, and delivers messages. Returns the number of datagrams
    /// and of messages of neighbours. A turn is bounded by the receive budget and one transmitted burst, so that other threads get
    /// the lock soon. While neighbours send, most turns are for them alone, and the network and the timers have one as often as the
    /// link is to be looked at.
    #[inline]
    pub(crate) fn turn(&mut self, now: Time) -> usize {
        let slept = mem::take(&mut self.turns.slept);
        self.turn_after(now, slept || now.saturating_since(self.turns.last) > PAUSE)
    }

    /// A turn of a thread that looks again at once, or sleeps on the link, if this one finds nothing. After a pause, in which the thread
    /// ran code of the application, such a thread need not look at everything that the link receives by. After a sleep on the link it
    /// must.
    #[inline]
    pub(crate) fn turn_polling(&mut self, now: Time) -> usize {
        if self.leadership.defers() {
            return self.turn(now);
        }
        let slept = mem::take(&mut self.turns.slept);
        self.turn_after(now, slept)
    }

    /// A turn. `paused`: it looks at everything that the link receives by.
    #[inline]
    fn turn_after(&mut self, now: Time, paused: bool) -> usize {
        if now < self.turns.full_at
            && self.neighbours.as_ref().is_some_and(|neighbours| neighbours.have_messages())
        {
            return self.turn_near(now);
        }
        let received = self.turn_fully(now, paused);
        if self.neighbours.as_ref().is_some_and(|neighbours| neighbours.are_active()) {
            let full_at = now + self.link_every(now);
            let timer = self.endpoint.poll_timeout();
            self.turns.full_at = timer.map_or(full_at, |due| full_at.min(due));
        }
        received
    }

    /// A turn for messages of neighbours that are awake. Timers, the link and the other neighbours wait for the next full turn.
    #[inline]
    fn turn_near(&mut self, now: Time) -> usize {
        self.turns.last = now;
        self.turns.on_timer = false;
        self.report_backlog();
        self.counters.turns += 1;
        let Self { neighbours, endpoint, mail, .. } = self;
        let received = neighbours
            .as_mut()
            .map_or(0, |neighbours| neighbours.receive_active(now, endpoint, mail));
        if self.holds_back() || self.is_sending_near() || self.endpoint.has_messages() {
            self.transmit(now);
        }
        self.end_turn(now, received);
        received
    }

    fn turn_fully(&mut self, now: Time, paused: bool) -> usize {
        if paused {
            self.link.look_everywhere();
        }
        self.turns.last = now;
        self.turns.on_timer = false;
        self.report_backlog();
        self.counters.turns += 1;
        let near = self.receive_near(now, paused);
        self.forward(now);
        self.endpoint.postpone_questions();
        let (far, more) = if self.wants_link(now, paused) { self.receive(now) } else { (0, false) };
        let asked = self.endpoint.has_questions();
        if self.turns.questions.run(now, asked, more, ANSWERS_WAIT) || !asked {
            self.endpoint.answer_questions(now);
        }
        let received = near + far;
        if far > 0 {
            self.turns.link_used = now;
            if let Self { neighbours: Some(neighbours), endpoint, link, .. } = self {
                neighbours.packets_arrived(now, endpoint, &mut **link);
            }
        }
        // Bounded, because errors can be forged as fast as they are taken.
        for _ in 0..ERRORS {
            let Some((peer, error)) = self.link.poll_error() else { break };
            if self.shard_loads.as_ref().is_none_or(|shard_loads| shard_loads.is_mine(peer)) {
                self.handle_path_error(now, peer, error);
            } else {
                self.paths.misrouted.push((peer, error));
            }
        }
        self.report_drops(now);
        let due = self.turns.timers.run(now, self.is_due(now), more, TIMERS_WAIT);
        if due {
            if self.sealed_peers.is_some() {
                self.run_handlers(now); // Handshakes may have signs of peers for which timers wait.
            }
            self.endpoint.handle_timeout(now);
            self.judge_silent(now);
            self.paths.examinations.extend(self.link.wanted_examination());
        }
        if received > 0 || due || self.holds_back() || self.link_is_due() || self.is_sending_near()
        {
            self.transmit(now);
        }
        self.end_turn(now, received);
        received
    }

    /// Looks whether the processes of silent neighbours run.
    fn judge_silent(&mut self, now: Time) {
        while let Some(path) = self.endpoint.poll_doubted() {
            let runs = self.neighbours.as_ref().is_some_and(|neighbours| neighbours.runs(path));
            self.endpoint.judge_local(now, path, runs);
        }
    }

    /// Delivers messages, and does work that has come up in a turn.
    #[inline]
    fn end_turn(&mut self, now: Time, received: usize) {
        if self.endpoint.has_events() || self.has_met() {
            self.deliver();
        }
        if !self.waiting.is_empty() {
            self.retry_waiting(now);
        }
        self.give_up_requests();
        if let Some(neighbours) = &mut self.neighbours {
            neighbours.transmit_others(now, &mut self.endpoint);
            if neighbours.have_ended() {
                self.remove_ended(now);
            }
        }
        self.run_handlers(now);
        if received > 0 {
            self.leadership.packets_arrived();
        }
    }

    /// Receives messages of neighbours. Returns the number of messages and parts of messages.
    #[inline]
    fn receive_near(&mut self, now: Time, paused: bool) -> usize {
        let Self { neighbours: Some(neighbours), endpoint, link, mail, .. } = self else {
            return 0;
        };
        neighbours.receive(now, paused, endpoint, &mut **link, mail)
    }

    /// Whether to look at the link: it costs a system call, which a neighbour that is about to answer would have to wait for.
    #[inline]
    fn wants_link(&mut self, now: Time, paused: bool) -> bool {
        let busy = self.neighbours.as_ref().is_some_and(|neighbours| neighbours.are_busy(now));
        let every = self.link_every(now);
        let elapsed = now.saturating_since(self.turns.link_looked);
        let wants = paused || !busy || elapsed > every || self.is_due(now);
        if wants {
            self.turns.link_looked = now;
        }
        wants
    }

    /// How often to look at the link while neighbours are busy.
    #[inline]
    fn link_every(&self, now: Time) -> Duration {
        if now < self.turns.link_used + LINK_IN_USE { LINK_EVERY } else { LINK_SELDOM }
    }

    /// Neighbours were met for which calls wait.
    #[inline]
    fn has_met(&self) -> bool {
        let neighbours = self.neighbours.as_ref();
        neighbours.is_some_and(|neighbours| !neighbours.meetings.connected.is_empty())
    }

    /// Polls for a moment for a message of a neighbour, if one is expected, or until `stop` says so.
    #[inline]
    pub(crate) fn poll_near(&self, now: Time, stop: impl Fn() -> bool) {
        if let Some(neighbours) = &self.neighbours {
            neighbours.poll(now, stop);
        }
    }

    /// Messages wait for room in the memory of neighbours.
    #[inline]
    fn is_sending_near(&self) -> bool {
        self.neighbours.as_ref().is_some_and(|neighbours| neighbours.is_sending())
    }

    /// Removes neighbours that have ended.
    #[cold]
    fn remove_ended(&mut self, now: Time) {
        let Self { neighbours: Some(neighbours), endpoint, mail, .. } = self else { return };
        // Their last messages are delivered while the path to them is known.
        neighbours.take_last(now, endpoint, mail);
        self.forward(now);
        self.deliver();
        let Self { neighbours: Some(neighbours), endpoint, link, mail, .. } = self else { return };
        neighbours.remove_ended(now, endpoint, &mut **link);
        for moved in neighbours.moved.drain(..) {
            match neighbours
                .attachments
                .forwarder
                .as_mut()
                .filter(|it| it.owner(moved.socket).is_some())
            {
                Some(forwarder) => forwarder.moved(moved),
                None => mail.moved(moved),
            }
        }
        self.paths.reported.clear(); // The endpoint has forgotten their paths.
        self.deliver();
    }

    /// Whether timers of the endpoint are due.
    #[inline]
    fn is_due(&self, now: Time) -> bool {
        self.endpoint.poll_timeout().is_some_and(|due| due <= now)
    }

    /// Reports the number of packets that the link's receive buffer has refused to the endpoint: before timers act and, while messages
    /// of several packets arrive, when one has a new gap, and at intervals.
    #[inline]
    fn report_drops(&mut self, now: Time) {
        let (at, seen) = self.turns.drops_reported;
        let wants = || {
            let gaps = self.endpoint.counters().gaps;
            gaps != seen || now.saturating_since(at) >= DROPS_EVERY
        };
        if self.is_due(now) || self.endpoint.awaits_data() && wants() {
            self.report_drops_now(now);
        }
    }

    /// Costs a system call for each socket of the link.
    #[cold]
    fn report_drops_now(&mut self, now: Time) {
        self.turns.drops_reported = (now, self.endpoint.counters().gaps);
        if self.link.capabilities().drop_counter {
            self.endpoint.set_receive_drops(now, self.link.counters().receive_buffer_drops);
        }
    }

    /// Receives datagrams within the budget. Returns their number, and whether more are probably waiting. If timers are due, or a
    /// peer has asked a question, it receives until nothing is waiting: the answer may be there, or in the link's other socket.
    #[inline]
    fn receive(&mut self, now: Time) -> (usize, bool) {
        let due = self.is_due(now);
        if due {
            self.link.look_everywhere();
        }
        let is_shared = self
            .neighbours
            .as_ref()
            .is_some_and(|neighbours| neighbours.attachments.forwarder.is_some());
        let mail = if is_shared { None } else { Some(&mut self.mail) };
        let mut receiver = Receiver { endpoint: &mut self.endpoint, mail, now, bytes: 0 };
        let mut received = 0;
        loop {
            let before = receiver.bytes;
            let batch = self.link.recv(&mut receiver);
            received += batch;
            if batch > 0 {
                let bytes = receiver.bytes - before;
                self.following.received(&*self.link, batch, bytes);
                self.following.look(receiver.endpoint);
            }
            // A batch that is not full was probably the last. Another look costs a system call, which is little beside a burst that
            // would delay the packets behind it.
            let to_end = due || receiver.endpoint.has_questions();
            if to_end {
                self.link.look_everywhere();
            }
            let is_last = batch < FULL_BATCH && !receiver.endpoint.sends_long();
            if batch == 0 || is_last && !to_end {
                return (received, false);
            }
            if received + FULL_BATCH > self.turns.budget || receiver.bytes >= BYTES_MAX {
                return (received, batch >= FULL_BATCH || to_end);
            }
        }
    }

    /// Transmits packets and messages that may be sent now.
    #[inline]
    pub(crate) fn transmit(&mut self, now: Time) {
        self.turns.corked_at = None;
        self.send_queued_replies(now);
        if let Some(shard_loads) = &self.shard_loads {
            self.endpoint.set_others(now, shard_loads.others());
            let endpoint = &mut self.endpoint;
            let exchanged = self.mail.exchange_held(|socket| endpoint.socket_held(socket));
            if let Some((socket, others)) = exchanged {
                endpoint.set_socket_others(socket, others);
            }
        }
        if self.endpoint.has_packets() || self.link_is_due() {
            let before = self.endpoint.counters().packets_sent;
            self.endpoint.poll_transmit(now, &mut *self.link);
            self.link.flush();
            let packets = self.endpoint.counters().packets_sent - before;
            if packets > 0 {
                time_trace::record(TraceEvent::LinkFlush, [packets as u32, 0, 0, 0]);
            }
        }
        if let Some(neighbours) = &mut self.neighbours {
            neighbours.transmit(now, &mut self.endpoint);
        }
        if let Some(shard_loads) = &self.shard_loads {
            shard_loads.publish(self.endpoint.load());
        }
        self.tend_sealed(now);
    }

    /// Has responses that wait for the application charged.
    #[inline]
    fn report_backlog(&mut self) {
        let endpoint = &mut self.endpoint;
        self.mail.report_backlog(|socket, undelivered| {
            endpoint.set_undelivered(socket, undelivered.responses, undelivered.bytes);
        });
    }

    #[inline]
    fn link_is_due(&self) -> bool {
        self.link.due_in().is_some_and(|time| time.is_zero())
    }

    /// The latest time of the next turn if no packet comes. Exact for transmissions; protocol timers run up to a [`TICK`] late.
    #[inline]
    pub(crate) fn due(&self, now: Time) -> Option<Time> {
        let timer = match self.waiting.is_empty() {
            true => self.endpoint.poll_timeout().map(|due| due.max(now + TICK)),
            false => Some(now + TICK),
        };
        sooner(self.ready(now), timer)
    }

    /// Whether [`ready`](Self::ready) is not after `now`.
    #[inline]
    fn is_ready(&self, now: Time) -> bool {
        let is_due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        is_due(self.endpoint.poll_ready())
            || is_due(self.handlers.due())
            || self.link_is_due()
            || self.neighbours.as_ref().is_some_and(|neighbours| is_due(neighbours.due(now)))
    }

    /// The part of [`due`](Self::due) that is worth being punctual for.
    #[inline]
    fn ready(&self, now: Time) -> Option<Time> {
        let link = self.link.due_in().map(|time| now + time);
        let near = self.neighbours.as_ref().and_then(|neighbours| neighbours.due(now));
        let handlers = self.handlers.due();
        sooner(sooner(self.endpoint.poll_ready(), handlers), sooner(link, near))
    }

    /// The engine of another process that is used.
    pub(crate) fn attached(&mut self) -> Option<&mut Attached> {
        self.neighbours.as_mut()?.attachments.attached.as_deref_mut()
    }

    /// Attached processes and their calls, if this engine is shared.
    pub(crate) fn forwarder(&mut self) -> Option<&mut Forwarder> {
        self.neighbours.as_mut()?.attachments.forwarder.as_deref_mut()
    }

    /// An operation is queued, and another one follows at once.
    pub(crate) fn cork(&mut self, now: Time) {
        self.turns.corked_at.get_or_insert(now);
    }

    /// When the first of the operations that were queued and not transmitted was made.
    #[inline]
    pub(crate) fn corked(&self) -> Option<Time> {
        self.turns.corked_at
    }

    /// Operations wait for the next transmission.
    #[inline]
    pub(crate) fn holds_back(&self) -> bool {
        self.turns.corked_at.is_some() || !self.replies.is_empty()
    }

    /// Ends an operation of a thread that does not wait: transmits due packets, delivers messages that resulted, and wakes a thread
    /// if work is due before the leader's next turn, or if a long message is partly sent.
    #[inline]
    pub(crate) fn transmit_due(&mut self, now: Time) {
        // A sleeping thread may have to be woken earlier than it has planned.
        if self.leadership.sleeper().is_some()
            || self.endpoint.has_events()
            || self.has_met()
            || self.mail.has_handled()
            || !self.waiting.is_empty()
            || self.is_ready(now)
        {
            self.do_due_work(now);
        }
    }

    #[inline(never)]
    fn do_due_work(&mut self, now: Time) {
        if self.endpoint.has_events() || self.has_met() {
            self.deliver();
        }
        if !self.waiting.is_empty() {
            self.retry_waiting(now);
        }
        self.run_handlers(now);
        // Timers count if a sleep was planned without them.
        let heeds_timers = self.leadership.sleeper().is_some();
        let next = |engine: &Self| if heeds_timers { engine.due(now) } else { engine.ready(now) };
        let mut due = next(self);
        if self.turns.tried_at.is_some_and(|at| now.saturating_since(at) < TRY_INTERVAL) {
            due = due.map(|due| due.max(now + TICK)); // The next look is not far.
        }
        for _ in 0..BURSTS {
            if due.is_none_or(|due| due > now) {
                break;
            }
            self.transmit(now);
            due = next(self);
        }
        if let Some(sleeper) = self.leadership.poke(now, due) {
            self.mail.wakes.push(Waiter::Thread(sleeper));
        }
    }

    /// Turns the engine for a thread that looks for a message without waiting.
    pub(crate) fn opportunistic_turn(&mut self, now: Time) {
        self.turn(now);
        if !self.mail.tasks_wait() {
            self.turns.tried_at = Some(now);
            self.leadership.turned_opportunistically();
        }
    }

    /// Thread `id` stops waiting: the lead is passed on if it had it.
    #[inline]
    pub(crate) fn release_lead(&mut self, id: WaiterId, now: Time) {
        self.settle();
        let leaving = match self.mail.tasks_wait() {
            true => Leaving::Wanted,
            false if self.absence.is_short() => Leaving::BackSoon,
            false => Leaving::Away,
        };
        self.absence.begin(id, now);
        if let Some(next) = self.leadership.leave(id, leaving) {
            self.mail.wakes.push(Waiter::Thread(next));
        }
        self.transmit_due(now);
    }

    /// Thread `id` begins to wait. True if polling would keep the thread that left last from its
    /// work, because it left from this very core.
    #[inline]
    pub(crate) fn begin_waiting(&mut self, id: WaiterId, now: Time) -> bool {
        self.absence.end(id, now)
    }

    /// Thread `id` has found nothing by polling and will sleep: the background thread leads now.
    pub(crate) fn hand_over(&mut self, id: WaiterId, now: Time) {
        if let Some(background) = self.leadership.leave(id, Leaving::Wanted) {
            self.mail.wakes.push(Waiter::Thread(background));
        }
        self.transmit_due(now);
    }

    /// Something must go on although no thread waits for it.
    pub(crate) fn need_progress(&mut self) {
        if let Some(background) = self.leadership.need_progress() {
            self.mail.wakes.push(Waiter::Thread(background));
        }
    }

    /// Chooses the threads to wake for messages that are still in their queues.
    #[inline]
    pub(crate) fn settle(&mut self) {
        self.mail.settle();
        if self.drain.begun && self.is_idle() {
            self.mail.wakes.extend(self.drain.waiter.take());
        }
        if let Some(attached) =
            self.neighbours.as_mut().and_then(|it| it.attachments.attached.as_mut())
            && mem::take(&mut attached.changed)
        {
            self.mail.wakes.append(&mut attached.waiters);
        }
        for waiter in &self.mail.wakes {
            self.leadership.unfollow(waiter.id());
        }
        // It may be in a call of the application that does not turn the engine, so it stays among those that can get the lead.
        if self.mail.take_unclaimed()
            && let Some(event_loop) = self.leadership.event_loop()
        {
            self.mail.wakes.push(Waiter::Thread(event_loop));
        }
    }

    /// All calls and requests have ended, and everything was handed over.
    pub(crate) fn is_idle(&self) -> bool {
        self.endpoint.is_idle() && !self.is_sending_near() && self.waiting.is_empty()
    }

    /// Runs before the lock is released. If the next thread to turn the engine sleeps, arms the bells of the active pairs. Wakes
    /// the sleeper if a neighbour has sent a message already.
    #[inline]
    pub(crate) fn rest(&mut self) {
        let Some(neighbours) = &mut self.neighbours else { return };
        if !self.turns.on_timer
            && let Some(sleeper) = self.leadership.sleeper()
            && !neighbours.prepare_sleep()
        {
            self.mail.wakes.push(Waiter::Thread(Arc::clone(sleeper)));
        }
    }

    /// The descriptor of the neighbours, on which the engine's threads sleep beside the link.
    pub(crate) fn near_descriptor(&self) -> Option<RawFd> {
        self.neighbours.as_ref().map(|neighbours| neighbours.descriptor())
    }

    /// The process of this host at the end of a path within the host.
    pub(crate) fn process(&self, local: PathId) -> Option<LocalCaller> {
        let process = self.neighbours.as_ref()?.process(local)?;
        Some(LocalCaller::of(process))
    }

    /// Whether messages to the node at an address go through shared memory.
    pub(crate) fn shares_memory_with(&mut self, host: SocketAddr) -> bool {
        let paths = self.paths_to(host);
        let Some(neighbours) = &self.neighbours else { return false };
        paths.into_iter().any(|udp| neighbours.local_path(udp).is_some())
    }
}

/// The endpoint, as a link sees it.
struct Receiver<'a> {
    endpoint: &'a mut Endpoint,
    /// Where messages go, unless some are for attached processes.
    mail: Option<&'a mut Mail>,
    now: Time,
    /// Taken in this turn.
    bytes: usize,
}

impl PacketReceiver for Receiver<'_> {
    #[inline]
    fn packet(&mut self, from: PathId, packet: &[u8]) {
        self.bytes += packet.len();
        self.endpoint.handle_packet(self.now, from, packet);
    }

    #[inline]
    fn entries(&mut self, from: PathId, sender: SocketAddr, entries: &mut Entries<'_>) {
        self.bytes += entries.datagram_len();
        match &mut self.mail {
            // Earlier messages are delivered first.
            Some(mail) if !self.endpoint.has_events() => {
                let mut inbox = mail.inbox(sender, from);
                self.endpoint.handle_entries(self.now, from, entries, &mut inbox);
            }
            _ => self.endpoint.handle_entries_as_events(self.now, from, entries),
        }
    }

    #[inline]
    fn receive_target(&mut self) -> Option<ReceiveTarget<'_>> {
        self.endpoint.receive_target()
    }

    #[inline]
    fn received_in_place(
        &mut self,
        from: PathId,
        header: &[u8; DATA_HEADER_LEN],
        length: usize,
    ) -> bool {
        self.bytes += length;
        self.endpoint.handle_in_place(self.now, from, header, length)
    }
}

/// Errors of the link that are handled in a turn.
const ERRORS: usize = 2_048;

/// A batch of at least this many datagrams means that more are waiting.
const FULL_BATCH: usize = 16;

/// A turn that comes this long after the last one looks at everything that the link receives by: a timer that became due
/// meanwhile must not run before the packets that it waited for, and the thread may look only once.
const PAUSE: Duration = Duration::from_micros(10);

/// Upper bound on bytes received per turn. Copying 256 KiB holds the lock for about 50 µs.
const BYTES_MAX: usize = 256 << 10;

/// Upper bound on bursts of a long message that one operation transmits. Other threads transmit the rest.
const BURSTS: usize = 4;

/// A thread that tries for messages at least this often also runs the timers, so no other thread is woken for them.
const TRY_INTERVAL: Duration = Duration::from_micros(200);

/// A sleep that ends sooner than the kernel's own tick (4 ms at 250 Hz) has a hardware timer set for
/// it, which costs 2 to 10 µs on a virtual machine, at every message. No protocol timer is worth
/// that: they mean "not before".
const TICK: Duration = Duration::from_millis(4);

/// How often the drops of the receive buffer are read while messages of several packets arrive.
const DROPS_EVERY: Duration = Duration::from_micros(100);

/// How often the link is looked at while messages come from neighbours: each time costs a system call.
const LINK_EVERY: Duration = Duration::from_micros(3);

/// The same when the link has brought nothing for a while,
const LINK_SELDOM: Duration = Duration::from_micros(20);

/// The link counts as in use for this long after it brought packets.
const LINK_IN_USE: Duration = Duration::from_micros(100);
