//! A random walk of an event loop, thread X and the background thread.

use super::tests::{E, leadership, show};
use super::*;

/// Thread X.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Thread {
    /// It does not wait.
    Away,
    Leads,
    /// On the link or parked.
    Sleeps,
}

struct Walk {
    leadership: Leadership<char>,
    x: Thread,
    /// The event loop sleeps; otherwise its thread runs tasks.
    loop_sleeps: bool,
    /// The background thread sleeps as leader or as guard.
    background_sleeps: bool,
    now: u64,
    last_turn: u64,
    random: u64,
}

fn at(micros: u64) -> Time {
    Time::from_nanos(micros * 1_000)
}

impl Walk {
    fn choose<T: Copy>(&mut self, choices: &[T]) -> T {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        choices[(self.random >> 20) as usize % choices.len()]
    }

    /// One event. Returns the thread to wake.
    fn step(&mut self) -> Option<char> {
        self.now += self.choose(&[1, 50, 3_000, 20_000]);
        match self.choose(&[0, 0, 1, 1, 2, 3, 4, 5]) {
            0 => self.event_loop_looks(),
            1 => self.thread_goes_on(),
            2 => {
                let due = self.choose(&[None, Some(at(self.now))]);
                self.leadership.poke(at(self.now), due)
            }
            3 => self.leadership.need_progress(),
            4 => {
                self.leadership.turned_opportunistically();
                None
            }
            _ => {
                self.background_looks();
                None
            }
        }
    }

    fn event_loop_looks(&mut self) -> Option<char> {
        let leads = self.leadership.event_loop_looks(E);
        self.last_turn = self.now;
        self.loop_sleeps = !leads || self.choose(&[true, false]);
        match self.loop_sleeps {
            true => self.leadership.event_loop_sleeps(E, None),
            false => self.leadership.event_loop_runs_tasks(E),
        }
    }

    fn thread_goes_on(&mut self) -> Option<char> {
        match (self.x, self.choose(&[true, false])) {
            (Thread::Away, _) => {
                let leads = self.leadership.claim(1);
                self.wait(leads);
                None
            }
            (Thread::Leads, true) => {
                self.x = Thread::Sleeps;
                self.leadership.leader_sleeps(1, 'x', None)
            }
            (Thread::Sleeps, true) => {
                self.wake_thread();
                None
            }
            (Thread::Leads | Thread::Sleeps, false) => {
                let leaving = self.choose(&[Leaving::Away, Leaving::BackSoon, Leaving::Wanted]);
                self.leadership.unfollow(1);
                self.x = Thread::Away;
                self.leadership.leave(1, leaving)
            }
        }
    }

    fn wake_thread(&mut self) {
        self.leadership.unfollow(1);
        let leads = self.leadership.reclaim(1);
        self.wait(leads);
    }

    fn wait(&mut self, leads: bool) {
        self.x = if leads { Thread::Leads } else { Thread::Sleeps };
        if !leads {
            self.leadership.follow(1, 'x');
        }
    }

    /// A background thread that is parked for ever is not up by itself.
    fn background_looks(&mut self) {
        if self.leadership.background == Background::Disarmed {
            return;
        }
        let action = self.leadership.background_action(at(self.now), at(self.last_turn));
        self.background_sleeps = !matches!(action, BackgroundAction::Park(_));
        if let BackgroundAction::Turn { .. } = action {
            self.last_turn = self.now;
            self.leadership.background_sleeps(None);
        }
    }

    /// An event loop that sleeps has the lead, or gets it back from the thread that has it. A background thread that is parked for ever
    /// has a leader that is no event loop.
    fn is_right(&self) -> bool {
        let Self { leadership, loop_sleeps, background_sleeps, .. } = self;
        let comes_back = leadership.followers.iter().any(|it| it.id == E && it.as_leader.is_some());
        let is_guarded = leadership.background != Background::Disarmed;
        match &leadership.lead {
            Lead::Awake(1) | Lead::Offered(1) | Lead::Asleep(Sleeping { id: 1, .. }) => {
                comes_back || !loop_sleeps
            }
            Lead::Asleep(Sleeping { id: E, .. }) => is_guarded,
            Lead::Vacant => !loop_sleeps && is_guarded,
            Lead::Background => *background_sleeps && (comes_back || !loop_sleeps),
            _ => false,
        }
    }
}

#[test]
fn an_event_loop_that_sleeps_is_not_forgotten() {
    let mut walk = Walk {
        leadership: leadership(Delivery::suspend(), "e asleep"),
        x: Thread::Away,
        loop_sleeps: true,
        background_sleeps: false,
        now: 100_000,
        last_turn: 100_000,
        random: 1,
    };
    for step in 0..200_000 {
        if walk.step() == Some('x') {
            walk.wake_thread();
        }
        let Walk { x, loop_sleeps, .. } = walk;
        assert!(
            walk.is_right(),
            "step {step}: {}; x {x:?}, the loop sleeps: {loop_sleeps}",
            show(&walk.leadership)
        );
    }
}
