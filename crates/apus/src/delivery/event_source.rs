//! The turns of the engine by an event loop of the application. The loop looks, and then sleeps as a leader does, but in a call of the
//! application.

use std::sync::Arc;
use std::time::Duration;

use apus_net::Descriptors;
use apus_proto::{SocketKey, Time};

use crate::delivery::parker::{Parker, Waiter, WaiterId};
use crate::delivery::spin::{PollBudget, Spin};
use crate::delivery::waiting::{Awaited, Polled, nanos};
use crate::delivery::{Leaving, Regime};
use crate::engine::Engine;
use crate::engine::lock::{Guard, Shared};
use crate::error::{EventLoopError, Unusable};
use crate::mail::Mail;
use crate::sync::clock;

/// The result of a look of an event loop at the engine.
#[derive(Debug)]
pub(crate) struct Look {
    /// Number of received datagrams and messages of neighbours.
    pub(crate) received: usize,
    /// Whether a task was woken that the calling thread ran when the task began to wait.
    pub(crate) woke: bool,
    /// Whether the event loop stays awake: it looks again before its thread sleeps.
    pub(crate) awake: bool,
    pub(crate) now: Time,
    /// Time of the next look without an arrival. `None`: no timer runs, or the loop stays awake.
    pub(crate) due: Option<Time>,
    /// The node is closed.
    #[cfg(feature = "tokio")]
    pub(crate) stopped: bool,
}

impl Look {
    /// Nothing has arrived, no timer runs, and the event loop sleeps.
    const ASLEEP: Self = Self {
        received: 0,
        woke: false,
        awake: false,
        now: Time::ZERO,
        due: None,
        #[cfg(feature = "tokio")]
        stopped: false,
    };

    pub(crate) const STOPPED: Self = Self {
        #[cfg(feature = "tokio")]
        stopped: true,
        ..Self::ASLEEP
    };
}

impl Shared {
    /// Turns the engine once. The event loop sleeps afterwards.
    ///
    /// # Errors
    ///
    /// As [`enter`](Self::enter).
    pub(crate) fn turn_in_event_loop(&self, me: &Arc<Parker>) -> Result<Look, Unusable> {
        me.end_event_loop_sleep();
        let mut engine = self.enter()?;
        if engine.stopped {
            return Ok(Look::STOPPED);
        }
        engine.leadership.event_loop_looks(me.id());
        // The turn must read the input that made the descriptor readable: a loop that is notified of changes alone is not notified again.
        engine.turns.slept = true;
        let now = clock::now();
        let received = engine.turn(now);
        Ok(sleep(engine, me, now, received))
    }

    /// Turns the engine until a task is to be woken, at most for a time learnt from earlier waits and for `at_most`. The event loop
    /// sleeps afterwards, unless a task was woken, or the time learnt is longer than `at_most` and `goes_on` is true: then it looks
    /// again before its thread sleeps.
    ///
    /// # Errors
    ///
    /// As [`enter`](Self::enter).
    pub(crate) fn poll_in_event_loop(
        &self,
        me: &Arc<Parker>,
        at_most: Duration,
        goes_on: bool,
    ) -> Result<Look, Unusable> {
        let slept = me.end_event_loop_sleep();
        let mut engine = self.enter()?;
        if engine.stopped {
            return Ok(Look::STOPPED);
        }
        let leads = engine.leadership.event_loop_looks(me.id());
        engine.turns.slept |= slept;
        let began = clock::now();
        if let Some((began, _)) = engine.mail.task_waits.sleeps.take() {
            let after = engine.turns.last.saturating_since(began);
            engine.mail.task_waits.spin.given_up(after);
        }
        if !leads || !engine.mail.tasks_wait() {
            let received = engine.turn(began);
            return Ok(sleep(engine, me, began, received));
        }
        let waits = &mut engine.mail.task_waits;
        let (wait_began, mut budget) = match (waits.polling.take(), self.delivery.poll_time()) {
            (Some(polling), _) => polling,
            (None, Some(time)) => (began, PollBudget::fixed(time)),
            (None, None) => (began, waits.spin.begin()),
        };
        let mut part = budget.at_most(at_most);
        let (mut engine, polled) = self.poll(engine, &mut AwaitTask, began, &mut part, None)?;
        let now = engine.turns.last;
        let polling = now.saturating_since(began);
        engine.counters.polling_ns += nanos(polling);
        if let Polled::Ready(()) = polled {
            engine.counters.spins_won += 1;
            engine.mail.task_waits.spin.ended(now.saturating_since(wait_began), None);
            return Ok(run_tasks(
                &mut engine,
                me,
                Look { received: 1, woke: true, now, ..Look::ASLEEP },
            ));
        }
        budget.spend_part(at_most, polling);
        if goes_on && !budget.is_none() {
            engine.mail.task_waits.polling = Some((wait_began, budget));
            return Ok(run_tasks(&mut engine, me, Look { now, ..Look::ASLEEP }));
        }
        engine.counters.spins_lost += 1;
        engine.mail.task_waits.sleeps = Some((wait_began, now));
        Ok(sleep(engine, me, now, 0))
    }

    /// Makes `me` the event loop of the engine: one that has looked, and sleeps until `descriptor` is readable.
    ///
    /// # Errors
    ///
    /// As [`enter`](Self::enter); the engine has an event loop.
    pub(crate) fn add_event_loop(
        &self,
        me: &Arc<Parker>,
        descriptor: Descriptors,
    ) -> Result<Look, EventLoopError> {
        if self.regime != Regime::ThreadsLead {
            return Err(EventLoopError::Delivery(self.delivery));
        }
        let mut engine = self.enter()?;
        if !engine.leadership.add_event_loop(me.id(), Arc::clone(me), descriptor) {
            return Err(EventLoopError::InUse);
        }
        engine.mail.event_loop_sleeps = true;
        drop(engine);
        Ok(self.turn_in_event_loop(me)?)
    }

    /// Turns the engine once, on behalf of an event loop that looks again before its thread sleeps.
    ///
    /// # Errors
    ///
    /// As [`enter`](Self::enter).
    #[cfg(feature = "tokio")]
    pub(crate) fn turn_between_tasks(&self, me: &Arc<Parker>) -> Result<Look, Unusable> {
        let slept = me.end_event_loop_sleep();
        let mut engine = self.enter()?;
        if engine.stopped {
            return Ok(Look::STOPPED);
        }
        engine.turns.slept |= slept;
        let leads = engine.leadership.event_loop_looks(me.id());
        let now = clock::now();
        let received = engine.turn_polling(now);
        if !leads {
            return Ok(sleep(engine, me, now, received));
        }
        settle(&mut engine, me);
        end_wait(&mut engine, now);
        let woke = wakes_task_of_this_thread(&engine);
        Ok(run_tasks(&mut engine, me, Look { received, woke, now, ..Look::ASLEEP }))
    }

    /// Ends the event loop of the engine.
    pub(crate) fn remove_event_loop(&self, id: WaiterId) {
        let Ok(mut engine) = self.enter() else { return };
        let leaving = if engine.mail.tasks_wait() { Leaving::Wanted } else { Leaving::Away };
        let woken = engine.leadership.remove_event_loop(id, leaving);
        engine.mail.event_loop_sleeps = false;
        engine.mail.wakes.extend(woken.into_iter().flatten().map(Waiter::Thread));
        engine.transmit_due(clock::now());
    }
}

/// Chooses the threads and tasks to be woken, but not the event loop.
fn settle(engine: &mut Engine, me: &Parker) {
    engine.settle();
    forget(engine, me);
}

/// The calling thread looks for the messages of this turn itself.
fn forget(engine: &mut Engine, me: &Parker) {
    engine.mail.wakes.retain(|waiter| waiter.id() != me.id());
}

/// The event loop has looked and stays awake while tasks run.
fn run_tasks(engine: &mut Engine, me: &Parker, look: Look) -> Look {
    engine.mail.event_loop_sleeps = false;
    forget(engine, me);
    if let Some(background) = engine.leadership.event_loop_runs_tasks(me.id()) {
        engine.mail.wakes.push(Waiter::Thread(background));
    }
    Look { awake: true, ..look }
}

/// The event loop has looked and sleeps.
fn sleep(mut engine: Guard<'_>, me: &Arc<Parker>, now: Time, received: usize) -> Look {
    settle(&mut engine, me);
    engine.mail.event_loop_sleeps = true;
    end_wait(&mut engine, now);
    let waits = &mut engine.mail.task_waits;
    if let Some((began, _)) = waits.polling.take() {
        waits.sleeps = Some((began, now));
    }
    let woke = wakes_task_of_this_thread(&engine);
    let due = engine.due(now);
    me.prepare();
    if let Some(background) = engine.leadership.event_loop_sleeps(me.id(), due) {
        engine.mail.wakes.push(Waiter::Thread(background));
    }
    engine.counters.link_sleeps += 1;
    engine.turns.on_timer = false;
    drop(engine);
    me.begin_event_loop_sleep();
    Look { received, woke, now, due, ..Look::ASLEEP }
}

/// Records the end of a wait, if tasks are to be woken.
fn end_wait(engine: &mut Engine, now: Time) {
    let waits = &mut engine.mail.task_waits;
    if engine.mail.wakes.is_empty() {
        return;
    }
    if let Some((began, _)) = waits.polling.take() {
        waits.spin.ended(now.saturating_since(began), None);
    }
    if let Some((began, asleep)) = waits.sleeps.take() {
        let slept = now.saturating_since(asleep);
        waits.spin.ended(now.saturating_since(began), Some(slept));
        engine.counters.sleeping_ns += nanos(slept);
    }
}

fn wakes_task_of_this_thread(engine: &Engine) -> bool {
    engine.mail.wakes.iter().any(Waiter::is_task_of_this_thread)
}

/// Polling until a task is to be woken.
struct AwaitTask;

impl Awaited for AwaitTask {
    type Output = ();

    #[inline]
    fn take(&mut self, engine: &mut Engine) -> Option<()> {
        engine.settle();
        wakes_task_of_this_thread(engine).then_some(())
    }

    fn enlist(&self, _engine: &mut Engine, _waiter: Waiter) {}

    fn delist(&self, _engine: &mut Engine, _id: WaiterId) -> bool {
        false
    }

    fn socket(&self) -> Option<SocketKey> {
        None
    }

    fn spin<'m>(&self, mail: &'m mut Mail) -> Option<&'m mut Spin> {
        Some(&mut mail.task_waits.spin)
    }
}
