//! How a thread waits: polling, sleeping on the link, or sleeping until it is called.
//!
//! A waiting thread first looks whether its message is there. If not, it does what the delivery
//! mode says; in `suspend` it asks for the lead ([`crate::delivery`]). The leader turns the engine
//! and finds its own message under the same lock it holds anyway: no wake-up, no handoff.

use std::time::Duration;

use apus_proto::Time;

use crate::clock;
use crate::delivery::Regime;
use crate::engine::Engine;
use crate::mail::Mail;
use crate::parker::{self, Waiter, WaiterId};
use crate::shared::{Guard, Shared};
use crate::spin::Spin;

/// What a thread waits for.
pub(crate) trait Awaited {
    type Output;

    /// Takes it, if it is there.
    fn take(&mut self, engine: &mut Engine) -> Option<Self::Output>;

    /// `waiter` is to be woken for it.
    fn enlist(&self, engine: &mut Engine, waiter: Waiter);

    /// The waiter is up.
    fn delist(&self, engine: &mut Engine, id: WaiterId);

    /// What is known of waiting for it; `None` when it is not worth polling for.
    fn spin<'m>(&self, mail: &'m mut Mail) -> Option<&'m mut Spin>;
}

/// How polling ended.
enum Polled<T> {
    Ready(T),
    TimedOut,
    /// Nothing came for as long as the budget.
    InVain,
}

impl Shared {
    /// Waits with the lock given, and lets go of it. `now`: a fresh reading of the clock. Returns
    /// None when `until` has passed first.
    #[inline]
    pub(crate) fn wait<'a, A: Awaited>(
        &'a self,
        mut engine: Guard<'a>,
        awaited: &mut A,
        now: Time,
        until: Option<Time>,
    ) -> Option<A::Output> {
        let corked = engine.corked().is_some();
        if corked {
            engine.transmit(now);
        }
        if let Some(output) = awaited.take(&mut engine) {
            if corked {
                engine.see_to(now);
            }
            self.unlock(engine);
            return Some(output);
        }
        match self.regime {
            Regime::Background => self.wait_parked(engine, awaited, now, until),
            Regime::NobodySleeps => self.wait_busy(engine, awaited, until),
            Regime::PollFirst | Regime::ThreadsLead => {
                self.wait_adaptive(engine, awaited, now, until)
            }
        }
    }

    fn wait_busy<'a, A: Awaited>(
        &'a self,
        engine: Guard<'a>,
        awaited: &mut A,
        until: Option<Time>,
    ) -> Option<A::Output> {
        let (engine, polled) = self.poll(engine, awaited, Duration::MAX, until);
        self.unlock(engine);
        match polled {
            Polled::Ready(output) => Some(output),
            Polled::TimedOut | Polled::InVain => None,
        }
    }

    fn wait_parked<'a, A: Awaited>(
        &'a self,
        mut engine: Guard<'a>,
        awaited: &mut A,
        mut now: Time,
        until: Option<Time>,
    ) -> Option<A::Output> {
        loop {
            if until.is_some_and(|until| until <= now) {
                self.unlock(engine);
                return None;
            }
            engine.see_to(now);
            engine = self.sleep_parked(engine, awaited, Duration::ZERO, now, until);
            if let Some(output) = awaited.take(&mut engine) {
                self.unlock(engine);
                return Some(output);
            }
            now = clock::now();
        }
    }

    fn wait_adaptive<'a, A: Awaited>(
        &'a self,
        mut engine: Guard<'a>,
        awaited: &mut A,
        began: Time,
        until: Option<Time>,
    ) -> Option<A::Output> {
        let me = parker::thread_id();
        let budget = awaited.spin(&mut engine.mail).map_or(Duration::ZERO, Spin::begin);
        let mut asleep_since = None;
        let output = loop {
            if engine.command.claim(me) {
                if !budget.is_zero() || asleep_since.is_some() {
                    let polled;
                    (engine, polled) = self.poll(engine, awaited, budget, until);
                    match polled {
                        Polled::Ready(output) => break Some(output),
                        Polled::TimedOut => break None,
                        Polled::InVain => {}
                    }
                }
                asleep_since.get_or_insert_with(clock::now);
                engine = self.sleep_on_link(engine, awaited, until);
            } else {
                let now = *asleep_since.get_or_insert_with(clock::now);
                engine = self.sleep_parked(engine, awaited, budget, now, until);
            }
            if let Some(output) = awaited.take(&mut engine) {
                break Some(output);
            }
            if until.is_some_and(|until| until <= clock::now()) {
                break None;
            }
        };
        let now = if asleep_since.is_some() { clock::now() } else { engine.last_turn };
        if output.is_some()
            && let Some(spin) = awaited.spin(&mut engine.mail)
        {
            let asleep = asleep_since.map(|since| now.saturating_since(since));
            spin.ended(now.saturating_since(began), asleep);
        }
        engine.counters.spins_won += u64::from(asleep_since.is_none());
        engine.counters.spins_lost += u64::from(asleep_since.is_some() && !budget.is_zero());
        engine.step_down(me, now);
        self.unlock(engine);
        output
    }

    /// Turns the engine until the awaited is there, `until` has passed, or nothing came for as long
    /// as the budget. Lets others have the lock whenever they want it.
    #[inline]
    fn poll<'a, A: Awaited>(
        &'a self,
        mut engine: Guard<'a>,
        awaited: &mut A,
        budget: Duration,
        until: Option<Time>,
    ) -> (Guard<'a>, Polled<A::Output>) {
        let mut now = clock::now();
        let mut quiet_since = None;
        loop {
            let came = engine.turn(now);
            if let Some(output) = awaited.take(&mut engine) {
                return (engine, Polled::Ready(output));
            }
            if until.is_some_and(|until| until <= now) {
                return (engine, Polled::TimedOut);
            }
            if came > 0 {
                quiet_since = None;
            } else if now.saturating_since(*quiet_since.get_or_insert(now)) >= budget
                && engine.due(now).is_none_or(|due| due > now + SOON)
            {
                return (engine, Polled::InVain);
            }
            engine.settle();
            if engine.mail.wakes.is_empty() {
                engine = self.let_others_in(engine);
            } else {
                self.unlock(engine);
                engine = self.lock();
            }
            let before = std::mem::replace(&mut now, clock::now());
            if now.saturating_since(before) > PREEMPTED
                && let Some(spin) = awaited.spin(&mut engine.mail)
            {
                spin.preempted();
            }
        }
    }

    /// The leader sleeps on the link. Whoever takes the lead meanwhile wakes it for its message.
    fn sleep_on_link<'a, A: Awaited>(
        &'a self,
        mut engine: Guard<'a>,
        awaited: &A,
        until: Option<Time>,
    ) -> Guard<'a> {
        let me = parker::current();
        let now = clock::now();
        let until = engine.due(now).into_iter().chain(until).min();
        awaited.enlist(&mut engine, Waiter::Thread(parker::current()));
        if let Some(background) = engine.command.doze(me.id(), parker::current(), until) {
            engine.mail.wakes.push(Waiter::Thread(background));
        }
        engine.counters.link_sleeps += 1;
        me.prepare();
        self.unlock(engine);
        me.sleep_on(self.descriptor, until.map(|until| until.saturating_since(now)));
        let mut engine = self.lock();
        engine.command.unfollow(me.id());
        awaited.delist(&mut engine, me.id());
        engine
    }

    /// A follower polls for its call for up to `budget`, then sleeps until it is called.
    fn sleep_parked<'a, A: Awaited>(
        &'a self,
        mut engine: Guard<'a>,
        awaited: &A,
        budget: Duration,
        now: Time,
        until: Option<Time>,
    ) -> Guard<'a> {
        let me = parker::current();
        awaited.enlist(&mut engine, Waiter::Thread(parker::current()));
        engine.command.follow(me.id(), parker::current());
        engine.counters.parks += 1;
        me.prepare();
        self.unlock(engine);
        me.park(budget, until.map(|until| until.saturating_since(now)));
        let mut engine = self.lock();
        engine.command.unfollow(me.id());
        awaited.delist(&mut engine, me.id());
        engine
    }
}

/// A round of polling that takes longer was interrupted by somebody who wants the core.
const PREEMPTED: Duration = Duration::from_millis(1);

/// What is due within this time is waited for awake: a sleep would end later than it should.
const SOON: Duration = Duration::from_micros(20);
