//! How a thread waits: it polls, sleeps on the link, or parks until another thread wakes it.
//!
//! A waiting thread first checks whether its message has arrived. If not, the delivery mode decides; in `suspend` and `napibusy` the
//! thread asks for the lead ([`crate::delivery`]). The leader turns the engine and finds its own message under the lock that it holds
//! already: no wake-up, no handoff.

use std::time::Duration;

use apus_net::cpu;
use apus_proto::{SocketKey, Time, TraceEvent};

use crate::delivery::Regime;
use crate::delivery::parker::{self, SleepKind, Waiter, WaiterId};
use crate::delivery::spin::{PREEMPTED, PollBudget, Spin};
use crate::engine::Engine;
use crate::engine::lock::{Guard, Shared};
use crate::error::Unusable;
use crate::mail::Mail;
use crate::observe::time_trace;
use crate::sync::clock;
use crate::sync::{Ordering, thread};

/// A message, or another event, for which a thread waits.
pub(crate) trait Awaited {
    type Output;

    /// Takes the message, if it has arrived.
    fn take(&mut self, engine: &mut Engine) -> Option<Self::Output>;

    /// Registers a waiter, which has prepared to sleep, to be woken for the message.
    fn enlist(&self, engine: &mut Engine, waiter: Waiter);

    /// Removes a waiter that is awake. Returns true if the engine had chosen to wake it.
    fn delist(&self, engine: &mut Engine, id: WaiterId) -> bool;

    /// The socket of the message; `None` for another event.
    fn socket(&self) -> Option<SocketKey>;

    /// Statistics of earlier waits; `None` if polling is not worthwhile.
    fn spin<'m>(&self, mail: &'m mut Mail) -> Option<&'m mut Spin>;
}

/// How polling ended.
pub(crate) enum Polled<T> {
    Ready(T),
    TimedOut,
    /// The poll budget ran out before the message came.
    InVain,
}

impl Shared {
    /// Waits for a message, and releases the lock meanwhile. `now` is a fresh reading of the clock. Returns `None` if `until`
    /// passes first.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    #[inline]
    pub(crate) fn wait<'a, A: Awaited>(
        &'a self,
        mut engine: Guard<'a>,
        awaited: &mut A,
        now: Time,
        until: Option<Time>,
    ) -> Result<Option<A::Output>, Unusable> {
        let corked = engine.holds_back();
        if corked {
            engine.transmit(now);
        }
        if let Some(output) = awaited.take(&mut engine) {
            if corked {
                engine.transmit_due(now);
            }
            engine.counters.found_at_once += 1;
            return Ok(Some(output));
        }
        match self.regime {
            Regime::Background => self.wait_parked(engine, awaited, now, until),
            Regime::AlwaysPolls => self.wait_busy(engine, awaited, now, until),
            Regime::PollFirst | Regime::ThreadsLead => {
                self.wait_leading(engine, awaited, now, until)
            }
        }
    }

    fn wait_busy<'a, A: Awaited>(
        &'a self,
        engine: Guard<'a>,
        awaited: &mut A,
        began: Time,
        until: Option<Time>,
    ) -> Result<Option<A::Output>, Unusable> {
        let mut budget = PollBudget::fixed(Duration::MAX);
        let (mut engine, polled) = self.poll(engine, awaited, began, &mut budget, until)?;
        let time = engine.turns.last.saturating_since(began);
        engine.counters.polling_ns += nanos(time);
        Ok(match polled {
            Polled::Ready(output) => Some(output),
            Polled::TimedOut | Polled::InVain => None,
        })
    }

    fn wait_parked<'a, A: Awaited>(
        &'a self,
        mut engine: Guard<'a>,
        awaited: &mut A,
        mut now: Time,
        until: Option<Time>,
    ) -> Result<Option<A::Output>, Unusable> {
        let mut sleep = Sleep::None;
        loop {
            if until.is_some_and(|until| until <= now) {
                return Ok(None);
            }
            engine.transmit_due(now);
            sleep.in_vain(&mut engine);
            (engine, sleep) =
                self.sleep_parked(engine, awaited, &mut PollBudget::none(), now, until)?;
            if let Some(output) = awaited.take(&mut engine) {
                sleep.won(&mut engine, awaited.socket());
                return Ok(Some(output));
            }
            now = clock::now();
        }
    }

    /// Waits in a mode in which threads lead. The states of one pass:
    ///
    /// | state | event | next state |
    /// |---|---|---|
    /// | claim | the thread leads, and looks before it sleeps | poll |
    /// | claim | the thread leads, and goes to the link at once | sleep |
    /// | claim | another thread leads | sleep as [`SleepAs::Follower`] |
    /// | poll | the message came, or the deadline passed | end |
    /// | poll | the budget is used up | sleep as [`SleepAs::Leader`] (`suspend`) or [`SleepAs::HandedOver`] (`napibusy`) |
    /// | sleep | the message came, or the deadline passed | end |
    /// | sleep | anything else | claim |
    fn wait_leading<'a, A: Awaited>(
        &'a self,
        mut engine: Guard<'a>,
        awaited: &mut A,
        began: Time,
        until: Option<Time>,
    ) -> Result<Option<A::Output>, Unusable> {
        let mut wait = LeadingWait::begin(self, &mut engine, awaited, began);
        let mut now = began;
        let output = loop {
            let leads = wait.claim(&mut engine);
            if leads && wait.looks {
                self.leader_cpu.store(cpu::current(), Ordering::Relaxed);
                let polled;
                (engine, polled) = self.poll(engine, awaited, now, &mut wait.budget, until)?;
                match polled {
                    Polled::Ready(output) => break Some(output),
                    Polled::TimedOut => break None,
                    Polled::InVain => {}
                }
            }
            wait.looks = true;
            now = clock::now();
            wait.asleep_since.get_or_insert(now);
            wait.sleep.in_vain(&mut engine);
            (engine, wait.sleep) = match SleepAs::new(leads, self.regime) {
                SleepAs::Leader => self.sleep_as_leader(engine, awaited, now, until)?,
                SleepAs::Follower => {
                    self.sleep_parked(engine, awaited, &mut wait.budget, now, until)?
                }
                SleepAs::HandedOver => {
                    engine.hand_over(wait.me, now);
                    self.sleep_parked(engine, awaited, &mut PollBudget::none(), now, until)?
                }
            };
            if let Some(output) = awaited.take(&mut engine) {
                break Some(output);
            }
            now = clock::now();
            if until.is_some_and(|until| until <= now) {
                break None;
            }
        };
        wait.end(&mut engine, awaited, output.is_some());
        Ok(output)
    }

    /// Turns the engine until the message has arrived, `until` has passed, or the budget has run out without packets. Lets other
    /// threads take the lock between two turns. `now` is a fresh reading of the clock.
    #[inline]
    pub(crate) fn poll<'a, A: Awaited>(
        &'a self,
        mut engine: Guard<'a>,
        awaited: &mut A,
        mut now: Time,
        budget: &mut PollBudget,
        until: Option<Time>,
    ) -> Result<(Guard<'a>, Polled<A::Output>), Unusable> {
        let mut quiet_since = None;
        let mut gave_way = None;
        if budget.gives_way(Duration::ZERO) {
            (engine, now, gave_way) = self.give_way(engine)?;
        }
        loop {
            let received = engine.turn_polling(now);
            let output = awaited.take(&mut engine);
            let yielded = gave_way.take();
            if let Some(time) = yielded
                && let Some(spin) = awaited.spin(&mut engine.mail)
            {
                spin.gave_way(time, output.is_some());
            }
            if let Some(output) = output {
                return Ok((engine, Polled::Ready(output)));
            }
            if yielded.is_some_and(|time| budget.yields_in_vain(time)) {
                return Ok((engine, Polled::InVain));
            }
            if until.is_some_and(|until| until <= now) {
                return Ok((engine, Polled::TimedOut));
            }
            // A thread that sleeps on the link next may skip the second look: a packet ends that sleep at once. A thread that
            // sleeps on a timer needs it: the packet would wait for the timer.
            let once = budget.is_none() && !engine.leadership.defers();
            let mut gap = Duration::ZERO;
            if received > 0 && !once {
                if let Some(since) = quiet_since.take() {
                    budget.spend(now.saturating_since(since));
                }
            } else {
                gap = now.saturating_since(*quiet_since.get_or_insert(now));
                if budget.ends_at(gap) && engine.due(now).is_none_or(|due| due > now + SOON) {
                    budget.wear_out();
                    return Ok((engine, Polled::InVain));
                }
            }
            if budget.gives_way(gap) {
                (engine, now, gave_way) = self.give_way(engine)?;
                continue;
            }
            if received == 0 {
                engine.poll_near(now, || self.contenders.load(Ordering::Relaxed) > 0);
            }
            engine = self.let_others_in(engine)?;
            let before = std::mem::replace(&mut now, clock::now());
            if now.saturating_since(before) > PREEMPTED
                && cpu::was_preempted()
                && let Some(spin) = awaited.spin(&mut engine.mail)
            {
                spin.preempted();
            }
        }
    }

    /// Yields the core to another runnable thread. Returns the time, and how long the core was yielded.
    fn give_way<'a>(
        &'a self,
        engine: Guard<'a>,
    ) -> Result<(Guard<'a>, Time, Option<Duration>), Unusable> {
        drop(engine);
        let before = clock::now();
        thread::yield_now();
        let now = clock::now();
        Ok((self.lock()?, now, Some(now.saturating_since(before))))
    }

    /// Sleeps as leader. A thread that takes the lead meanwhile wakes this one for its message.
    fn sleep_as_leader<'a, A: Awaited>(
        &'a self,
        mut engine: Guard<'a>,
        awaited: &A,
        now: Time,
        until: Option<Time>,
    ) -> Result<(Guard<'a>, Sleep), Unusable> {
        let me = parker::current();
        let kind = engine.leadership.sleep_kind();
        let until = [engine.due(now), kind.until(now), until].into_iter().flatten().min();
        me.prepare();
        awaited.enlist(&mut engine, Waiter::Thread(parker::current()));
        if let Some(background) = engine.leadership.leader_sleeps(me.id(), parker::current(), until)
        {
            engine.mail.wakes.push(Waiter::Thread(background));
        }
        match kind {
            SleepKind::Link => engine.counters.link_sleeps += 1,
            SleepKind::Timer(_) => engine.counters.deferred_sleeps += 1,
        }
        engine.turns.on_timer = matches!(kind, SleepKind::Timer(_));
        drop(engine);
        let timeout = until.map(|until| until.saturating_since(now));
        let traced = [u32::from(matches!(kind, SleepKind::Timer(_))), 0, 0, 0];
        time_trace::record(TraceEvent::Sleep, traced);
        let slept = me.sleep_as_leader(kind, self.descriptors, timeout);
        time_trace::record(TraceEvent::WakeUp, traced);
        let (mut engine, sleep) = self.end_sleep(awaited, me.id(), slept)?;
        engine.turns.slept = true;
        Ok((engine, sleep))
    }

    /// Polls for a wake-up while the budget lasts, then parks until another thread wakes this one.
    fn sleep_parked<'a, A: Awaited>(
        &'a self,
        mut engine: Guard<'a>,
        awaited: &A,
        budget: &mut PollBudget,
        now: Time,
        until: Option<Time>,
    ) -> Result<(Guard<'a>, Sleep), Unusable> {
        let me = parker::current();
        me.prepare();
        awaited.enlist(&mut engine, Waiter::Thread(parker::current()));
        engine.leadership.follow(me.id(), parker::current());
        engine.counters.parks += 1;
        let polling = !budget.is_none()
            && awaited.socket().is_some_and(|socket| engine.mail.begin_polling(socket, &me));
        drop(engine);
        let poll_time = if polling { budget.gap() } else { Duration::ZERO };
        let apart = || self.leader_cpu.load(Ordering::Relaxed) != cpu::current();
        time_trace::record(TraceEvent::Sleep, [PARKED, 0, 0, 0]);
        let slept = me.park(poll_time, apart, until.map(|until| until.saturating_since(now)));
        time_trace::record(TraceEvent::WakeUp, [PARKED, 0, 0, 0]);
        if slept {
            budget.wear_out();
        }
        let (mut engine, sleep) = self.end_sleep(awaited, me.id(), slept)?;
        if polling && let Some(socket) = awaited.socket() {
            engine.mail.end_polling(socket);
        }
        Ok((engine, sleep))
    }

    fn end_sleep<A: Awaited>(
        &self,
        awaited: &A,
        id: WaiterId,
        slept: bool,
    ) -> Result<(Guard<'_>, Sleep), Unusable> {
        let mut engine = self.lock()?;
        engine.leadership.unfollow(id);
        let chosen = awaited.delist(&mut engine, id);
        let sleep = match (slept, chosen) {
            (false, _) => Sleep::None,
            (true, true) => {
                engine.mail.count_handoff(awaited.socket());
                Sleep::None
            }
            (true, false) => Sleep::Unexplained,
        };
        Ok((engine, sleep))
    }
}

/// A wait of a thread that may lead.
struct LeadingWait {
    me: WaiterId,
    began: Time,
    /// How long to poll depends on earlier waits.
    is_adaptive: bool,
    /// The thread polls before it sleeps.
    polls: bool,
    budget: PollBudget,
    /// The thread looks at the link before it sleeps there. Without a look the sleep ends at once if a packet is there.
    looks: bool,
    /// When the thread fell asleep first.
    asleep_since: Option<Time>,
    /// How the last sleep ended.
    sleep: Sleep,
}

impl LeadingWait {
    #[inline]
    fn begin<A: Awaited>(
        shared: &Shared,
        engine: &mut Guard<'_>,
        awaited: &A,
        began: Time,
    ) -> Self {
        let me = parker::thread_id();
        let poll_time = shared.delivery.poll_time();
        let mut budget = match poll_time {
            Some(time) => PollBudget::fixed(time),
            None => awaited.spin(&mut engine.mail).map_or(PollBudget::none(), Spin::begin),
        };
        if engine.begin_waiting(me, began) {
            budget = PollBudget::none();
        }
        let (is_adaptive, polls) = (poll_time.is_none(), !budget.is_none());
        let looks = polls || !is_adaptive || engine.leadership.defers();
        let (asleep_since, sleep) = (None, Sleep::None);
        Self { me, began, is_adaptive, polls, budget, looks, asleep_since, sleep }
    }

    /// Asks for the lead. True if the thread has it.
    #[inline]
    fn claim(&self, engine: &mut Engine) -> bool {
        match self.asleep_since {
            None => engine.leadership.claim(self.me),
            Some(_) => engine.leadership.reclaim(self.me),
        }
    }

    /// Accounts for the wait, and passes the lead on if the thread has it. `ready`: the message came.
    #[inline]
    fn end<A: Awaited>(&self, engine: &mut Engine, awaited: &A, ready: bool) {
        let slept_at_all = self.asleep_since.is_some();
        let now = if slept_at_all { clock::now() } else { engine.turns.last };
        if ready {
            self.sleep.won(engine, awaited.socket());
        }
        let after = now.saturating_since(self.began);
        let slept = self.asleep_since.map(|since| now.saturating_since(since));
        engine.counters.sleeping_ns += nanos(slept.unwrap_or_default());
        engine.counters.polling_ns += nanos(after.saturating_sub(slept.unwrap_or_default()));
        if self.is_adaptive
            && let Some(spin) = awaited.spin(&mut engine.mail)
        {
            match ready {
                true => spin.ended(after, slept),
                false => spin.given_up(after),
            }
        }
        engine.counters.spins_won += u64::from(!slept_at_all);
        engine.counters.spins_lost += u64::from(slept_at_all && self.polls);
        engine.release_lead(self.me, now);
    }
}

/// The role in which a thread that may lead sleeps.
enum SleepAs {
    /// On the link or on a timer.
    Leader,
    /// Parked, after the lead was handed to the background thread.
    HandedOver,
    /// Parked, while another thread leads.
    Follower,
}

impl SleepAs {
    #[inline]
    fn new(leads: bool, regime: Regime) -> Self {
        match (leads, regime) {
            (true, Regime::ThreadsLead) => Self::Leader,
            (true, _) => Self::HandedOver,
            (false, _) => Self::Follower,
        }
    }
}

/// How the last sleep ended, as far as no counter has it yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sleep {
    /// There was no sleep, or a message ended it, which counts as a handoff.
    None,
    /// The link, a timer or an offer of the lead ended it. It counts as a handoff if a message is found now, else as a sleep in
    /// vain.
    Unexplained,
}

impl Sleep {
    fn won(self, engine: &mut Engine, socket: Option<SocketKey>) {
        if self == Self::Unexplained {
            engine.mail.count_handoff(socket);
        }
    }

    fn in_vain(self, engine: &mut Engine) {
        engine.counters.sleeps_in_vain += u64::from(self == Self::Unexplained);
    }
}

/// Saturates at 584 years.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A thread stays awake for a timer that is due within this time: a sleep would end later.
const SOON: Duration = Duration::from_micros(20);

/// The kind of sleep of a parked thread, in the time trace.
const PARKED: u32 = 2;
