//! The state machine behind the delivery modes (`mode.rs`). It decides which thread turns the engine.
//!
//! At most one thread *leads*: an application thread that waits for a message, or the background thread. The leader turns the
//! engine, delivers messages to the threads that wait for them, and sleeps when no packet arrives. The rules have the names of the
//! IRQ suspension work:
//!
//! * **Masked.** While application threads lead, the background thread stays asleep. It only checks once per suspend timeout.
//! * **Unmasked.** If work must continue and no thread leads (a task waits, a long message is half sent), the background thread
//!   leads.
//! * **Forced.** If no thread led for a suspend timeout (the application computes), the background thread leads too.
//! * **Taken over.** A thread that begins to wait takes the lead from a sleeping leader. The old leader stays asleep: when the lead
//!   is released, it gets the lead back at no cost. If it wakes earlier and the new leader sleeps, it follows.
//! * **Handed over.** A leader that leaves hands the lead to a thread that sleeps as a leader does, else to the follower that slept
//!   last (lesson 5), else to the background thread. A leader that recently came back sooner than a wake-up takes wakes no thread
//!   ([`Leaving::BackSoon`]): no thread leads until it is back, or until the background thread detects that it is not. Work that it
//!   leaves, such as a half-sent long message, waits for it too, while the background thread *watches*: it checks every millisecond.
//! * **Deferred.** A leader that recently found packets sleeps on a timer and not on the link ([`SleepKind`]), so that packets arrive
//!   in batches and their senders wake no thread.
//! * **Event loop.** An event loop of the application ([`EventLoop`](crate::EventLoop)) leads asleep while its thread watches its
//!   descriptor. Between two looks its thread runs tasks: no thread leads then, and waiting tasks wake no thread, because the loop
//!   looks again before its thread sleeps. The background thread *guards* a sleeping loop: while no packet or message arrives, it
//!   sleeps on the loop's descriptor too. If one arrives and the loop does not look within a suspend timeout, the background thread
//!   leads until the loop looks again.
//!
//! | lead | a thread begins to wait | its sleep ends | it leaves |
//! |---|---|---|---|
//! | vacant | leads | follows | |
//! | offered to X | leads | X leads, others follow | if it is X: passed on |
//! | X awake | follows | X leads, others follow | if it is X: passed on |
//! | X asleep as leader | leads; X follows in its sleep | X leads, others follow | if it is X: passed on |
//! | background | leads; the background thread stays asleep | follows | |
//!
//! An event loop that looks while another thread leads turns the engine nevertheless. It stays asleep, as a leader does that has lost
//! the lead.
//!
//! This table holds for the mode in which threads lead, asleep or awake (`suspend`). If threads lead only while they poll
//! (`napibusy`), the lead goes back to the background thread after polling without success, and threads are never offered it. If
//! the background thread always leads (`base`, `defer`), threads never take the lead. `leadership/table.txt` has every state, every
//! event, and the answer.

use std::time::Duration;

use apus_net::Descriptors;
use apus_proto::Time;

use crate::delivery::parker::{SleepKind, WaiterId};

use crate::delivery::mode::{Delivery, Regime};

/// The time at which a sleep ends by itself; `None`: never.
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
    /// The thread once had the lead and is still asleep on the leader's descriptors.
    as_leader: Option<Until>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Background {
    /// The mode has no background thread (`fullbusy`).
    Absent,
    /// The thread turns the engine, or is about to check for work.
    Running,
    /// Asleep on the leader's descriptors.
    Asleep(Until),
    /// Parked; checks by itself at the end of the mask's time.
    Armed,
    /// Parked until notified.
    Disarmed,
    /// Asleep on the descriptor of the event loop.
    Guards,
}

/// The next action of the background thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BackgroundAction {
    /// Turn the engine, then sleep as leader. `forced`: no thread has turned it for too long.
    Turn { forced: bool },
    /// Stay asleep for this time, or until notified.
    Park(Option<Duration>),
    /// Sleep on the descriptor of the event loop, or until called.
    Guard(Descriptors),
}

/// The expectation about a thread that stops waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Leaving {
    /// The time of its next wait is not known.
    Away,
    /// The thread recently came back sooner than a wake-up takes.
    BackSoon,
    /// Work must continue now.
    Wanted,
}

/// The state machine. `T` is the handle that wakes a sleeping thread. This code only returns handles, which the caller uses after
/// it has released the engine's lock.
#[derive(Debug)]
pub(crate) struct Leadership<T> {
    regime: Regime,
    /// Time without a turn after which a masked background thread turns the engine.
    mask: Duration,
    /// Length of a deferred sleep, and the number of such sleeps in a row.
    deferral: Option<(Duration, u32)>,
    /// Number of deferred sleeps before the next sleep on the link.
    deferred_left: u32,
    lead: Lead<T>,
    /// The follower that slept last is at the end.
    followers: Vec<Follower<T>>,
    background: Background,
    background_handle: Option<T>,
    /// Whether the background thread was notified to lead at once.
    urgent: bool,
    /// Whether the last leader is expected back soon.
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

/// The watch of the background thread over work of a leader that is expected back soon.
#[derive(Debug, Default)]
struct Watch {
    /// Time at which work was last left.
    left_at: Option<Time>,
    /// Whether the background thread is parked for at most [`LEFT_MAX`], or about to check.
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

    /// The background thread's handle, if the mode has this thread.
    pub(crate) fn background(&self) -> Option<T> {
        self.background_handle.clone()
    }

    /// Thread `id` waits. Returns `true` if it leads now, and `false` if it must [`follow`](Self::follow) and sleep.
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

    /// Thread `id` woke up and continues to wait. As [`claim`](Self::claim), but a sleeping leader keeps the lead, because the
    /// packet wakes it too. If it lost the lead, both threads would sleep on the link, and every packet would wake both.
    #[inline]
    pub(crate) fn reclaim(&mut self, id: WaiterId) -> bool {
        !matches!(&self.lead, Lead::Asleep(leader) if leader.id != id) && self.claim(id)
    }

    /// The leader goes to sleep. Returns the thread to wake: a background thread that still sleeps on the link must leave it, or
    /// every packet would wake both.
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

    /// The event loop ends. Returns the threads to wake: the one that gets the lead, and the background thread.
    pub(crate) fn remove_event_loop(&mut self, id: WaiterId, leaving: Leaving) -> [Option<T>; 2] {
        self.event_loop = None;
        self.unfollow(id);
        let handed_over = self.leave(id, leaving);
        let background = match self.background {
            Background::Guards => self.call_background(leaving == Leaving::Wanted), // Its descriptor is closed next.
            _ if leaving == Leaving::Wanted => self.need_progress(),
            _ => None,
        };
        [handed_over, background]
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

    /// The event loop has looked, and its thread looks again when a packet or message arrives. Returns the thread to wake.
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

    /// The event loop, if it sleeps without the lead.
    fn take_late_event_loop(&mut self) -> Option<Sleeping<T>> {
        let at = self.followers.iter().position(|follower| self.is_event_loop(follower.id))?;
        let Follower { id, handle, as_leader } = self.followers.remove(at);
        Some(Sleeping { id, handle, until: as_leader.flatten() })
    }

    fn is_event_loop(&self, id: WaiterId) -> bool {
        self.event_loop.as_ref().is_some_and(|event_loop| event_loop.id == id)
    }

    /// Thread `id` sleeps without the lead.
    pub(crate) fn follow(&mut self, id: WaiterId, handle: T) {
        self.followers.push(Follower { id, handle, as_leader: None });
    }

    /// Thread `id` is awake, or about to wake: it no longer gets the lead.
    pub(crate) fn unfollow(&mut self, id: WaiterId) {
        if let Some(at) = self.followers.iter().rposition(|follower| follower.id == id) {
            self.followers.remove(at);
        }
    }

    /// A thread turned the engine without waiting, to look for messages between other work. The background thread need not wake for
    /// every packet beside it: at its next wake-up it sees that the engine is turned, and stays asleep as long as that continues.
    #[inline]
    pub(crate) fn turned_opportunistically(&mut self) {
        let asleep = matches!(self.background, Background::Asleep(_));
        if self.regime == Regime::ThreadsLead && asleep && matches!(self.lead, Lead::Background) {
            self.lead = self.take_late_event_loop().map_or(Lead::Vacant, Lead::Asleep);
        }
    }

    /// Thread `id` stops waiting. If it had the lead, or an offer of it, the lead is handed over. Returns the thread to wake.
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
                // Otherwise it wakes for the next packet, sees that the engine is turned, and stays asleep.
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

    /// The kind of the leader's sleep after a turn without packets. In a mode with deferred sleeps, a leader turns the engine until
    /// it finds no packet, because further packets would wait for the timer.
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

    /// The thread that sleeps on the leader's descriptors and leads when its sleep ends, if no awake thread leads.
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

    /// Schedules work at `due`, for which no waiting thread may have a timer. Returns the thread to wake for it.
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

    /// Work is due now, and no thread leads. Returns the thread to wake. If the last leader is expected back soon, or the thread of
    /// an event loop runs tasks, it is the background thread, which begins to watch; if the background thread watches already, no
    /// thread is woken.
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

    /// Work must continue although no thread waits. Returns the thread to wake.
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

    /// The background thread woke up. `last_turn`: time of the last turn of the engine.
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
            // The loop is late, as a thread is that does not come back. Its thread may sleep on, or compute.
            if let Lead::Asleep(Sleeping { id, handle, until }) =
                std::mem::replace(&mut self.lead, Lead::Vacant)
            {
                self.followers.push(Follower { id, handle, as_leader: Some(until) });
            }
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

/// Time after which waiting threads take the lead from a leader that was expected back soon.
const MISSED: Duration = Duration::from_micros(200);

/// Interval of checks by the watching background thread. Work of a leader that does not come back waits for this time.
const LEFT_MAX: Duration = Duration::from_millis(1);

/// Whether `due` is earlier than the end of a sleep until `until`.
fn sooner(due: Until, until: Until) -> bool {
    match (due, until) {
        (Some(due), Some(until)) => due < until,
        (due, None) => due.is_some(),
        (None, Some(_)) => false,
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod walk;
