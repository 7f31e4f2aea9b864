//! How a thread waits: polling, sleeping on the link, or sleeping until it is called.
//!
//! A waiting thread first looks whether its message is there. If not, it does what the delivery
//! mode says; in `suspend` and `napibusy` it asks for the lead ([`crate::delivery`]). The leader turns the engine
//! and finds its own message under the same lock it holds anyway: no wake-up, no handoff.

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

/// What a thread waits for.
pub(crate) trait Awaited {
    type Output;

    /// Takes it, if it is there.
    fn take(&mut self, engine: &mut Engine) -> Option<Self::Output>;

    /// `waiter`, which has prepared to sleep, is to be woken for it.
    fn enlist(&self, engine: &mut Engine, waiter: Waiter);

    /// The waiter is up. True if it had been chosen to be woken.
    fn delist(&self, engine: &mut Engine, id: WaiterId) -> bool;

    /// Whose message it is; `None` when it is no message.
    fn socket(&self) -> Option<SocketKey>;

    /// What is known of waiting for it; `None` when it is not worth polling for.
    fn spin<'m>(&self, mail: &'m mut Mail) -> Option<&'m mut Spin>;
}

/// How polling ended.
enum Polled<T> {
    Ready(T),
    TimedOut,
    /// Nothing came for longer than the poll budget allows.
    InVain,
}

impl Shared {
    /// Waits with the lock given, and lets go of it. `now`: a fresh reading of the clock. Returns
    /// None when `until` has passed first.
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
        let corked = engine.corked().is_some();
        if corked {
            engine.transmit(now);
        }
        if let Some(output) = awaited.take(&mut engine) {
            if corked {
                engine.see_to(now);
            }
            engine.counters.found_at_once += 1;
            return Ok(Some(output));
        }
        match self.regime {
            Regime::Background => self.wait_parked(engine, awaited, now, until),
            Regime::NobodySleeps => self.wait_busy(engine, awaited, now, until),
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
        let (mut engine, polled) = self.poll(engine, awaited, &mut budget, until)?;
        let time = engine.last_turn.saturating_since(began);
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
            engine.see_to(now);
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

    fn wait_leading<'a, A: Awaited>(
        &'a self,
        mut engine: Guard<'a>,
        awaited: &mut A,
        began: Time,
        until: Option<Time>,
    ) -> Result<Option<A::Output>, Unusable> {
        let me = parker::thread_id();
        let adaptive = self.delivery.poll_time().is_none();
        let mut budget = match self.delivery.poll_time() {
            Some(time) => PollBudget::fixed(time),
            None => awaited.spin(&mut engine.mail).map_or(PollBudget::none(), Spin::begin),
        };
        if engine.begin_waiting(me, began) {
            budget = PollBudget::none();
        }
        let polls = !budget.is_none();
        // Without a look a thread goes to the link only, which sees what is there by itself.
        let mut look = polls || !adaptive || engine.leadership.defers();
        let mut asleep_since = None;
        let mut sleep = Sleep::None;
        let output = loop {
            let leads = match asleep_since {
                None => engine.leadership.claim(me),
                Some(_) => engine.leadership.reclaim(me),
            };
            if leads && look {
                let polled;
                (engine, polled) = self.poll(engine, awaited, &mut budget, until)?;
                match polled {
                    Polled::Ready(output) => break Some(output),
                    Polled::TimedOut => break None,
                    Polled::InVain => {}
                }
            }
            look = true;
            let now = clock::now();
            asleep_since.get_or_insert(now);
            sleep.in_vain(&mut engine);
            (engine, sleep) = if !leads {
                self.sleep_parked(engine, awaited, &mut budget, now, until)?
            } else if self.regime == Regime::ThreadsLead {
                self.sleep_as_leader(engine, awaited, now, until)?
            } else {
                engine.hand_over(me, now);
                self.sleep_parked(engine, awaited, &mut PollBudget::none(), now, until)?
            };
            if let Some(output) = awaited.take(&mut engine) {
                break Some(output);
            }
            if until.is_some_and(|until| until <= clock::now()) {
                break None;
            }
        };
        let now = if asleep_since.is_some() { clock::now() } else { engine.last_turn };
        if output.is_some() {
            sleep.won(&mut engine, awaited.socket());
        }
        let after = now.saturating_since(began);
        let slept = asleep_since.map(|since| now.saturating_since(since));
        engine.counters.sleeping_ns += nanos(slept.unwrap_or_default());
        engine.counters.polling_ns += nanos(after.saturating_sub(slept.unwrap_or_default()));
        if adaptive && let Some(spin) = awaited.spin(&mut engine.mail) {
            match output {
                Some(_) => spin.ended(after, slept),
                None => spin.given_up(after),
            }
        }
        engine.counters.spins_won += u64::from(asleep_since.is_none());
        engine.counters.spins_lost += u64::from(asleep_since.is_some() && polls);
        engine.release_lead(me, now);
        Ok(output)
    }

    /// Turns the engine until the awaited message is there, `until` has passed, or nothing came for longer
    /// than the budget allows. Lets other threads have the lock whenever they want it.
    #[inline]
    fn poll<'a, A: Awaited>(
        &'a self,
        mut engine: Guard<'a>,
        awaited: &mut A,
        budget: &mut PollBudget,
        until: Option<Time>,
    ) -> Result<(Guard<'a>, Polled<A::Output>), Unusable> {
        self.leader_cpu.store(cpu::current(), Ordering::Relaxed);
        let mut now = clock::now();
        let mut quiet_since = None;
        let mut gave_way = None;
        if budget.gives_way(Duration::ZERO) {
            (engine, now, gave_way) = self.give_way(engine)?;
        }
        loop {
            let came = engine.turn(now);
            let output = awaited.take(&mut engine);
            if let Some(time) = gave_way.take()
                && let Some(spin) = awaited.spin(&mut engine.mail)
            {
                spin.gave_way(time, output.is_some());
            }
            if let Some(output) = output {
                return Ok((engine, Polled::Ready(output)));
            }
            if until.is_some_and(|until| until <= now) {
                return Ok((engine, Polled::TimedOut));
            }
            // Who sleeps on the link next need not look for the rest: it would end the sleep at once, and is
            // there too seldom to look for. Who sleeps on a timer must: the rest would wait for that.
            let once = budget.is_none() && !engine.leadership.defers();
            let mut gap = Duration::ZERO;
            if came > 0 && !once {
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
            if came == 0 {
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

    /// Lets another thread that is ready to run have the core. Returns the time, and how long the core
    /// was given away.
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

    /// The leader sleeps. Whoever takes the lead meanwhile wakes it for its message.
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
        engine.on_timer = matches!(kind, SleepKind::Timer(_));
        drop(engine);
        let timeout = until.map(|until| until.saturating_since(now));
        let traced = [u32::from(matches!(kind, SleepKind::Timer(_))), 0, 0, 0];
        time_trace::record(TraceEvent::Sleep, traced);
        let slept = me.sleep_as_leader(kind, self.descriptors, timeout);
        time_trace::record(TraceEvent::WakeUp, traced);
        self.get_up(awaited, me.id(), slept)
    }

    /// A follower polls for its call while its budget lasts, then sleeps until it is called.
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
        let (mut engine, sleep) = self.get_up(awaited, me.id(), slept)?;
        if polling && let Some(socket) = awaited.socket() {
            engine.mail.end_polling(socket);
        }
        Ok((engine, sleep))
    }

    fn get_up<A: Awaited>(
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
            (true, false) => Sleep::Unasked,
        };
        Ok((engine, sleep))
    }
}

/// What the sleep just over was, as far as it is not accounted for yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sleep {
    /// There was none, or it was ended for a message, and is counted as its handoff.
    None,
    /// It was ended by the link, a timer, or for the lead. If a message is found now, that was its
    /// handoff; if not, it was in vain.
    Unasked,
}

impl Sleep {
    fn won(self, engine: &mut Engine, socket: Option<SocketKey>) {
        if self == Self::Unasked {
            engine.mail.count_handoff(socket);
        }
    }

    fn in_vain(self, engine: &mut Engine) {
        engine.counters.sleeps_in_vain += u64::from(self == Self::Unasked);
    }
}

/// More than 584 years do not occur.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What is due within this time is waited for awake: a sleep would end later than it should.
const SOON: Duration = Duration::from_micros(20);

/// A thread that sleeps until it is called, in the time trace.
const PARKED: u32 = 2;
