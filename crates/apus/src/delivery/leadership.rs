//! Which thread turns the engine: the state machine behind the delivery modes (`mode.rs`).
//!
//! At most one thread *leads*: an application thread that waits for a message, or the background
//! thread. The leader turns the engine, hands messages to the threads that wait for them, and sleeps when no packet
//! comes. The rules, in the words of the IRQ suspension work they come from:
//!
//! * **Masked.** While application threads lead, the background thread stays away. It only looks
//!   once per suspend timeout.
//! * **Unmasked.** When work must go on and no thread leads (a task waits, a long message is half
//!   sent), the background thread leads.
//! * **Forced.** When no thread led for a suspend timeout (the application computes), the background thread leads too.
//! * **Taken over.** A thread that begins to wait takes the lead from a leader that sleeps. The
//!   old leader stays asleep: when the lead is released, it gets the lead back for free. When it wakes
//!   before that and the new leader sleeps, it follows.
//! * **Handed over.** A leader that leaves hands the lead to a thread asleep where leaders sleep, else
//!   to the follower that slept last (lesson 5), else to the background thread. A leader that was lately
//!   back sooner than a wake-up takes wakes no thread ([`Leaving::BackSoon`]): no thread leads
//!   until it is back, or the background thread notices that it is not. Work that it leaves, as a long message
//!   half sent, waits for it too, while the background thread *watches*: it looks every millisecond.
//! * **Deferred.** A leader that found packets lately sleeps on a timer and not on the link
//!   ([`SleepKind`]), so that packets come in batches and their senders wake no thread.
//! * **Event loop.** An event loop of the application ([`EventLoop`](crate::EventLoop)) leads asleep while its thread watches its
//!   descriptor. Between two looks its thread runs tasks: no thread leads then, and tasks that wait wake no thread, because the
//!   loop looks again before its thread sleeps. The background thread *guards* a loop that is asleep: while nothing arrives it
//!   sleeps on the loop's descriptor too. If something arrives and the loop does not look within a suspend timeout, the background
//!   thread leads until the loop looks again.
//!
//! | lead | a thread begins to wait | its sleep ends | it leaves |
//! |---|---|---|---|
//! | vacant | leads | follows | |
//! | offered to X | leads | X leads, others follow | if it is X: passed on |
//! | X awake | follows | X leads, others follow | if it is X: passed on |
//! | X asleep as leader | leads; X follows in its sleep | X leads, others follow | if it is X: passed on |
//! | background | leads; the background thread stays asleep | follows | |
//!
//! An event loop that looks while another thread leads turns the engine nevertheless, and sleeps on, as a leader does from whom the
//! lead was taken.
//!
//! That is the rule where threads lead, asleep or awake (`suspend`). Where they only poll
//! (`napibusy`), the lead goes back to the background thread when polling has found nothing, and threads are never offered it. Where the
//! background thread always leads (`base`, `defer`), threads never take the lead.
//! `leadership/table.txt` has every state, every event, and the answer.

use std::time::Duration;

use apus_net::Descriptors;
use apus_proto::Time;

use crate::delivery::parker::{SleepKind, WaiterId};

use crate::delivery::mode::{Delivery, Regime};

/// The moment a sleep ends by itself; `None`: never.
type Until = Option<Time>;

#[derive(Debug)]
enum Lead<T> {
    Vacant,
    /// A follower was woken to take the lead and is on its way.
    Offered(WaiterId),
    Awake(WaiterId),
    Asleep(Sleeping<T>),
    Background,
}

#[derive(Debug)]
struct Sleeping<T> {
    id: WaiterId,
    handle: T,
    until: Until,
}

/// A thread that waits without the lead.
#[derive(Debug)]
struct Follower<T> {
    id: WaiterId,
    handle: T,
    /// It once had the lead and is still asleep where leaders sleep.
    as_leader: Option<Until>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Background {
    /// The mode has no background thread (`fullbusy`).
    Absent,
    /// It turns the engine, or is about to look for work.
    Running,
    /// Asleep where leaders sleep.
    Asleep(Until),
    /// Parked; looks by itself when the mask's time is over.
    Armed,
    /// Parked until called.
    Disarmed,
    /// Asleep on the descriptor of the event loop.
    Guards,
}

/// The next action of the background thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BackgroundAction {
    /// Turn the engine, then sleep as leader. `forced`: no thread has turned it for too long.
    Turn { forced: bool },
    /// Stay away for this long, or until called.
    Park(Option<Duration>),
    /// Sleep on the descriptor of the event loop, or until called.
    Guard(Descriptors),
}

/// How a thread stops waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Leaving {
    /// It is not known when the thread will wait again.
    Away,
    /// The thread was lately back sooner than another thread could have been woken.
    BackSoon,
    /// Work must go on now.
    Wanted,
}

/// The state machine. `T` is the handle by which a sleeping thread is woken; this code only passes
/// handles out, to be called after the engine's lock was let go.
#[derive(Debug)]
pub(crate) struct Leadership<T> {
    regime: Regime,
    /// How long the engine may stand still before a masked background thread turns it.
    mask: Duration,
    /// Length and number in a row of the deferred sleeps.
    deferral: Option<(Duration, u32)>,
    /// Deferred sleeps left before the next is on the link.
    deferred_left: u32,
    lead: Lead<T>,
    /// The follower that slept last is at the end.
    followers: Vec<Follower<T>>,
    background: Background,
    background_handle: Option<T>,
    /// The background thread was called to lead at once.
    urgent: bool,
    /// The last leader to leave is expected back soon.
    back_soon: bool,
    watch: Watch,
    event_loop: Option<Guarded<T>>,
}

/// The event loop, and the background thread's look after it.
#[derive(Debug)]
struct Guarded<T> {
    id: WaiterId,
    handle: T,
    descriptor: Descriptors,
    /// When the background thread found that something had arrived for the loop.
    roused_at: Option<Time>,
}

/// The background thread's look after work that was left to a thread which is expected back soon.
#[derive(Debug, Default)]
struct Watch {
    /// When work was left last.
    left_at: Option<Time>,
    /// The background thread is parked for no longer than [`LEFT_MAX`], or about to look.
    is_on: bool,
}

impl<T: Clone> Leadership<T> {
    /// `background` is the background thread's handle; none in `fullbusy`.
    pub(crate) fn new(mode: Delivery, background: Option<T>) -> Self {
        let there = background.is_some();
        Self {
            regime: mode.regime(),
            mask: mode.mask(),
            deferral: mode.deferral(),
            deferred_left: 0,
            lead: if there { Lead::Background } else { Lead::Vacant },
            followers: Vec::new(),
            background: if there { Background::Running } else { Background::Absent },
            background_handle: background,
            urgent: false,
            back_soon: false,
            watch: Watch::default(),
            event_loop: None,
        }
    }

    /// The background thread's handle, if there is that thread.
    pub(crate) fn background(&self) -> Option<T> {
        self.background_handle.clone()
    }

    /// Thread `id` waits. True: it leads now. False: it shall [`follow`](Self::follow) and sleep.
    #[inline]
    pub(crate) fn claim(&mut self, id: WaiterId) -> bool {
        match &self.lead {
            Lead::Awake(leader) => *leader == id,
            Lead::Background if self.regime == Regime::Background => false,
            Lead::Asleep(leader) if leader.id != id => {
                if let Lead::Asleep(old) = std::mem::replace(&mut self.lead, Lead::Awake(id)) {
                    let Sleeping { id, handle, until } = old;
                    self.followers.push(Follower { id, handle, as_leader: Some(until) });
                }
                true
            }
            Lead::Vacant | Lead::Offered(_) | Lead::Asleep(_) | Lead::Background => {
                self.lead = Lead::Awake(id);
                true
            }
        }
    }

    /// Thread `id` is up from a sleep and goes on waiting. As [`claim`](Self::claim), but a leader that
    /// sleeps keeps the lead: the packet wakes it too. Were the lead taken from it, both would sleep on
    /// the link from then on, and every packet would wake both.
    #[inline]
    pub(crate) fn reclaim(&mut self, id: WaiterId) -> bool {
        !matches!(&self.lead, Lead::Asleep(leader) if leader.id != id) && self.claim(id)
    }

    /// The leader goes to sleep. Returns whom to wake: a background thread that still sleeps on the
    /// link is called away, or every packet would wake both.
    pub(crate) fn leader_sleeps(&mut self, id: WaiterId, handle: T, until: Until) -> Option<T> {
        debug_assert!(matches!(self.lead, Lead::Awake(leader) if leader == id), "only a leader");
        self.lead = Lead::Asleep(Sleeping { id, handle, until });
        match self.background {
            Background::Asleep(_) | Background::Guards => self.call_background(false),
            _ => None,
        }
    }

    /// Event loop `id` belongs to the engine from now on. Something has arrived for it when `descriptor` is readable. False if there
    /// is another event loop.
    pub(crate) fn add_event_loop(
        &mut self,
        id: WaiterId,
        handle: T,
        descriptor: Descriptors,
    ) -> bool {
        let is_first = self.event_loop.is_none();
        if is_first {
            self.event_loop = Some(Guarded { id, handle, descriptor, roused_at: None });
        }
        is_first
    }

    /// The event loop's handle, if there is an event loop.
    pub(crate) fn event_loop(&self) -> Option<T> {
        self.event_loop.as_ref().map(|event_loop| event_loop.handle.clone())
    }

    /// The event loop ends. Returns the thread to wake.
    pub(crate) fn remove_event_loop(&mut self, id: WaiterId, leaving: Leaving) -> Option<T> {
        self.event_loop = None;
        self.unfollow(id);
        let handed_over = self.leave(id, leaving);
        match self.background {
            Background::Guards => self.call_background(leaving == Leaving::Wanted), // Its descriptor is closed next.
            _ if leaving == Leaving::Wanted => handed_over.or_else(|| self.need_progress()),
            _ => handed_over,
        }
    }

    /// Event loop `id` looks. True if it leads.
    #[inline]
    pub(crate) fn event_loop_looks(&mut self, id: WaiterId) -> bool {
        let leads = self.reclaim(id);
        if leads {
            self.unfollow(id);
        }
        leads
    }

    /// The event loop has looked, and whoever watches its descriptor looks when something arrives. Returns the thread to wake.
    pub(crate) fn event_loop_sleeps(&mut self, id: WaiterId, until: Until) -> Option<T> {
        let handle = self.event_loop()?;
        if matches!(self.lead, Lead::Awake(leader) if leader == id) {
            self.lead = Lead::Asleep(Sleeping { id, handle, until });
            return self.arm_background();
        }
        self.unfollow(id);
        self.followers.push(Follower { id, handle, as_leader: Some(until) });
        None
    }

    /// The event loop has looked, and its thread has tasks to run before it looks again. Returns the thread to wake.
    #[inline]
    pub(crate) fn event_loop_runs_tasks(&mut self, id: WaiterId) -> Option<T> {
        match &self.lead {
            Lead::Awake(leader) if *leader == id => {
                self.lead = Lead::Vacant;
                match self.background {
                    Background::Disarmed | Background::Guards => self.call_background(false),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// The event loop sleeps: a background thread that is parked for ever, or sleeps as leader, looks after it instead.
    fn arm_background(&mut self) -> Option<T> {
        match self.background {
            Background::Asleep(_) | Background::Disarmed => self.call_background(false),
            _ => None,
        }
    }

    fn is_event_loop(&self, id: WaiterId) -> bool {
        self.event_loop.as_ref().is_some_and(|event_loop| event_loop.id == id)
    }

    /// Thread `id` sleeps without the lead.
    pub(crate) fn follow(&mut self, id: WaiterId, handle: T) {
        self.followers.push(Follower { id, handle, as_leader: None });
    }

    /// Thread `id` is up, or about to be: the lead is not handed to it any more.
    pub(crate) fn unfollow(&mut self, id: WaiterId) {
        if let Some(at) = self.followers.iter().rposition(|follower| follower.id == id) {
            self.followers.remove(at);
        }
    }

    /// A thread turned the engine without waiting, as one does that looks for messages
    /// between other work. The background thread need not wake for every packet beside it: when it
    /// wakes next it sees that the engine is turned, and stays away as long as it is.
    #[inline]
    pub(crate) fn turned_opportunistically(&mut self) {
        let asleep = matches!(self.background, Background::Asleep(_));
        if self.regime == Regime::ThreadsLead && asleep && matches!(self.lead, Lead::Background) {
            self.lead = Lead::Vacant;
        }
    }

    /// Thread `id` stops waiting. If it led, or was to, the lead is handed over. Returns the thread to wake.
    #[inline]
    pub(crate) fn leave(&mut self, id: WaiterId, leaving: Leaving) -> Option<T> {
        let mine = match &self.lead {
            Lead::Awake(leader) | Lead::Offered(leader) => *leader == id,
            Lead::Asleep(leader) => leader.id == id,
            Lead::Vacant | Lead::Background => false,
        };
        if !mine {
            return None;
        }
        self.back_soon = leaving == Leaving::BackSoon;
        let asleep = self.followers.iter().rposition(|follower| follower.as_leader.is_some());
        let alone = self.followers.is_empty() || (self.back_soon && asleep.is_none());
        if alone || self.regime == Regime::PollFirst {
            return self.leave_to_background(leaving == Leaving::Wanted);
        }
        let next = self.followers.remove(asleep.unwrap_or(self.followers.len() - 1));
        match next.as_leader {
            Some(until) => {
                self.lead = Lead::Asleep(Sleeping { id: next.id, handle: next.handle, until });
                if self.is_event_loop(next.id) { self.arm_background() } else { None }
            }
            None => {
                self.lead = Lead::Offered(next.id);
                Some(next.handle)
            }
        }
    }

    fn leave_to_background(&mut self, wanted: bool) -> Option<T> {
        self.lead = Lead::Vacant;
        let wanted = wanted && self.event_loop.is_none(); // The loop's thread runs tasks, and looks again.
        match self.background {
            Background::Asleep(_) => {
                // Otherwise it wakes for the next packet, sees that the engine is turned, and stays
                // away.
                if wanted {
                    self.lead = Lead::Background;
                }
                None
            }
            Background::Disarmed | Background::Guards => self.call_background(wanted),
            Background::Armed if wanted => self.call_background(true),
            Background::Running => {
                self.urgent |= wanted;
                None
            }
            Background::Armed | Background::Absent => None,
        }
    }

    fn call_background(&mut self, urgent: bool) -> Option<T> {
        self.urgent = urgent;
        self.background = Background::Running;
        self.background_handle.clone()
    }

    /// A turn of the engine found packets.
    #[inline]
    pub(crate) fn packets_arrived(&mut self) {
        self.deferred_left = self.deferral.map_or(0, |(_, count)| count);
    }

    /// Where the leader sleeps now that a look has found nothing. Where sleeps are deferred, a leader
    /// looks until it finds nothing: the rest would wait for the timer.
    pub(crate) fn sleep_kind(&mut self) -> SleepKind {
        match self.deferral {
            Some((time, _)) if self.deferred_left > 0 => {
                self.deferred_left -= 1;
                SleepKind::Timer(time)
            }
            _ => SleepKind::Link,
        }
    }

    pub(crate) fn defers(&self) -> bool {
        self.deferral.is_some()
    }

    /// The thread that sleeps on the leader's descriptors and leads as soon as the sleep ends, if no thread is awake as leader.
    #[inline]
    pub(crate) fn sleeper(&self) -> Option<&T> {
        match (&self.lead, self.background) {
            (Lead::Asleep(leader), _) => Some(&leader.handle),
            (Lead::Vacant | Lead::Background, Background::Asleep(_)) => {
                self.background_handle.as_ref()
            }
            _ => None,
        }
    }

    /// Something is to be done at `due` that no waiting thread may have planned for. Returns whom
    /// to wake so that it is.
    #[inline]
    pub(crate) fn poke(&mut self, now: Time, due: Until) -> Option<T> {
        match &mut self.lead {
            Lead::Asleep(leader) if sooner(due, leader.until) => {
                leader.until = due;
                Some(leader.handle.clone())
            }
            Lead::Background => match &mut self.background {
                Background::Asleep(until) if sooner(due, *until) => {
                    *until = due;
                    self.background_handle.clone()
                }
                _ => None,
            },
            Lead::Vacant if due.is_some_and(|due| due <= now) => self.leave_work(now),
            Lead::Vacant => match self.background {
                Background::Asleep(until) if sooner(due, until) => self.call_background(false),
                _ => None,
            },
            _ => None,
        }
    }

    /// Something is to be done now, and no thread leads. Returns whom to wake. If the last leader is expected back soon, or the thread
    /// of an event loop runs tasks, that is nobody while the background thread watches, and otherwise the background thread, to begin
    /// with that.
    fn leave_work(&mut self, now: Time) -> Option<T> {
        match self.background {
            Background::Armed | Background::Running
                if self.back_soon || self.event_loop.is_some() =>
            {
                self.watch.left_at = Some(now);
                let was_on = std::mem::replace(&mut self.watch.is_on, true);
                if was_on || self.background == Background::Running {
                    None
                } else {
                    self.call_background(false)
                }
            }
            _ => self.need_progress(),
        }
    }

    /// Something must go on although no thread waits. Returns whom to wake.
    pub(crate) fn need_progress(&mut self) -> Option<T> {
        if self.event_loop.is_some()
            && !matches!(self.background, Background::Disarmed | Background::Guards)
        {
            return None; // The loop looks, or is found to be late.
        }
        match (&self.lead, self.background) {
            (
                Lead::Vacant,
                Background::Armed
                | Background::Disarmed
                | Background::Guards
                | Background::Asleep(_),
            ) => self.call_background(true),
            (Lead::Vacant, Background::Running) => {
                self.urgent = true;
                None
            }
            _ => None,
        }
    }

    /// The background thread is up. `last_turn`: when the engine was turned last.
    pub(crate) fn background_action(&mut self, now: Time, last_turn: Time) -> BackgroundAction {
        if let Some(action) = self.look_after_event_loop(now, last_turn) {
            return action;
        }
        let urgent = std::mem::take(&mut self.urgent);
        let still_for = now.saturating_since(last_turn);
        let missed = self.back_soon && !self.followers.is_empty();
        let left_at = self.watch.left_at;
        let is_left = left_at.is_some_and(|at| at >= last_turn);
        self.watch.is_on = left_at.is_some_and(|at| now.saturating_since(at) < 2 * LEFT_MAX);
        let watched = if self.watch.is_on { LEFT_MAX.min(self.mask) } else { self.mask };
        let still = match (missed, is_left) {
            (true, _) => self.mask.min(MISSED),
            (false, true) => self.mask.min(LEFT_MAX),
            (false, false) => self.mask,
        };
        let (background, action) = match &self.lead {
            Lead::Background => (Background::Running, BackgroundAction::Turn { forced: false }),
            Lead::Vacant if urgent || still_for >= still => {
                self.lead = Lead::Background;
                (Background::Running, BackgroundAction::Turn { forced: !urgent })
            }
            Lead::Vacant => {
                let rest = (self.mask - still_for).min(watched);
                (Background::Armed, BackgroundAction::Park(Some(rest)))
            }
            Lead::Awake(_) | Lead::Offered(_) => {
                (Background::Armed, BackgroundAction::Park(Some(watched)))
            }
            Lead::Asleep(_) => (Background::Disarmed, BackgroundAction::Park(None)),
        };
        self.background = background;
        action
    }

    /// The background thread is up while the event loop sleeps. `None`: another thread leads, or none, or the loop is late.
    fn look_after_event_loop(&mut self, now: Time, last_turn: Time) -> Option<BackgroundAction> {
        let mask = self.mask;
        let guarded = self.event_loop.as_mut()?;
        let sleeps = matches!(&self.lead, Lead::Asleep(leader) if leader.id == guarded.id);
        if !sleeps {
            guarded.roused_at = None;
            return None;
        }
        if self.background == Background::Guards {
            guarded.roused_at = Some(now);
        }
        let left = match guarded.roused_at {
            Some(roused_at) if last_turn < roused_at => {
                mask.saturating_sub(now.saturating_since(roused_at))
            }
            _ => {
                guarded.roused_at = None;
                let quiet = now.saturating_since(last_turn);
                if quiet >= mask {
                    self.background = Background::Guards;
                    return Some(BackgroundAction::Guard(guarded.descriptor));
                }
                mask - quiet
            }
        };
        if left.is_zero() {
            guarded.roused_at = None;
            self.lead = Lead::Vacant; // The loop is late, as a thread is that does not come back.
            return None;
        }
        self.background = Background::Armed;
        Some(BackgroundAction::Park(Some(left)))
    }

    /// The background thread goes to sleep as leader.
    pub(crate) fn background_sleeps(&mut self, until: Until) {
        self.background = Background::Asleep(until);
    }
}

/// A leader that was expected back soon is missed after this long, by threads that wait and were not
/// woken for the lead.
const MISSED: Duration = Duration::from_micros(200);

/// How often the background thread looks while it watches: work that a leader has left, and does not come back for, waits this long.
const LEFT_MAX: Duration = Duration::from_millis(1);

/// `due` comes before a sleep until `until` ends.
fn sooner(due: Until, until: Until) -> bool {
    match (due, until) {
        (Some(due), Some(until)) => due < until,
        (due, None) => due.is_some(),
        (None, Some(_)) => false,
    }
}

#[cfg(test)]
mod tests;
