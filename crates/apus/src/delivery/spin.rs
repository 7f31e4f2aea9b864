//! The time for which a thread polls before it sleeps.
//!
//! Polling finds a message tens of microseconds earlier than a wake-up does, and uses a core while no message arrives. If one
//! message in a hundred needs a wake-up, that wake-up is the 99th percentile. So a thread polls long enough to outlast all but one
//! in a thousand waits for messages at random times: seven times the mean wait. If that is longer than [`BUDGET_MAX`], messages are
//! rare and polling does not pay: a thread that has lost several times in a row stops polling, and tries again from time to time.
//!
//! Polling does harm on a core that another thread needs. If the peer runs on that core, its message arrives only after the poller
//! has yielded. So a thread that has polled for longer than usual yields once (`sched_yield`, which returns at once if no other
//! thread is ready there). If other threads ran meanwhile and the message has arrived, the peer shares the core, and the thread
//! then yields before its look, and sleeps if no other thread was ready: neither side polls without success. It stops when the message
//! comes without that, or only a wake-up after the sleep began.
//!
//! If another program needs the core, the kernel takes the core from a poller for milliseconds, but gives it to a sleeper that
//! wakes. A thread that detects this stops polling, for increasing times. So does a thread whose messages arrive as soon as it
//! sleeps, and never while it polls: some versions of the kernel do not give the core to another thread by a yield.

use std::time::Duration;

/// The polling of one wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PollBudget {
    /// Upper bound on the time without a packet.
    gap: Duration,
    /// Sum of the times without a packet; `None` if they are not added.
    idle_left: Option<Duration>,
    /// When to yield to other threads that want the core.
    giving_way: GivingWay,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum GivingWay {
    Never,
    /// Yields once, after this time without a packet.
    After(Duration),
    /// Yields before every look: the peer shares the core.
    Always,
}

impl PollBudget {
    /// Does not poll.
    pub(crate) const fn none() -> Self {
        Self::learnt(Duration::ZERO, GivingWay::Never)
    }

    /// Polls until this time has passed without a packet, regardless of earlier waits, and never yields.
    pub(crate) const fn fixed(gap: Duration) -> Self {
        Self { gap, idle_left: None, giving_way: GivingWay::Never }
    }

    /// Polls for `budget`. Packets of other messages do not extend it: otherwise a thread would poll for ever on a slow network, on
    /// which a packet arrives every few hundred microseconds. Gaps shorter than the cost of a sleep are always waited out.
    const fn learnt(budget: Duration, giving_way: GivingWay) -> Self {
        Self { gap: budget, idle_left: Some(budget), giving_way }
    }

    /// Records a yield of `time` after which the message had not arrived. Returns whether the thread sleeps now: no other thread was
    /// ready, or the kernel has reasons to run this thread further, which a sleep ends.
    pub(crate) fn yields_in_vain(&mut self, time: Duration) -> bool {
        let sleeps = self.giving_way == GivingWay::Always && time < OTHERS_RAN;
        if sleeps {
            self.wear_out();
        }
        sleeps
    }

    /// Polls no longer than `most`.
    pub(crate) fn at_most(self, most: Duration) -> Self {
        Self {
            gap: self.gap.min(most),
            idle_left: self.idle_left.map(|left| left.min(most)),
            ..self
        }
    }

    pub(crate) const fn is_none(&self) -> bool {
        self.gap.is_zero()
    }

    /// Deducts polling of [at most](Self::at_most) a part of this budget, which found no message within `time`. Polling that ended before
    /// is not to go on.
    pub(crate) fn spend_part(&mut self, most: Duration, time: Duration) {
        if time < self.gap.min(most) {
            *self = Self::none();
            return;
        }
        self.gap = self.gap.saturating_sub(time);
        self.idle_left = self.idle_left.map(|left| left.saturating_sub(time));
        self.giving_way = match self.giving_way {
            GivingWay::After(left) if left > time => GivingWay::After(left.saturating_sub(time)),
            GivingWay::After(_) => GivingWay::Never,
            other => other,
        };
    }

    /// The remaining time without a packet.
    pub(crate) const fn gap(&self) -> Duration {
        self.gap
    }

    /// Whether a gap of this length ends the polling.
    #[inline]
    pub(crate) fn ends_at(&self, gap: Duration) -> bool {
        gap >= self.gap || self.idle_left.is_some_and(|left| gap >= left.max(BUDGET_MIN))
    }

    /// Deducts a gap of this length, after which a packet arrived.
    #[inline]
    pub(crate) fn spend(&mut self, gap: Duration) {
        self.idle_left = self.idle_left.map(|left| left.saturating_sub(gap));
    }

    /// Whether to yield before the next look, after `gap` without packets. A gap of zero is that before the first look.
    #[inline]
    pub(crate) fn gives_way(&mut self, gap: Duration) -> bool {
        match self.giving_way {
            GivingWay::Never => false,
            GivingWay::Always => true,
            GivingWay::After(time) => {
                let now = gap >= time;
                if now {
                    self.giving_way = GivingWay::Never;
                }
                now
            }
        }
    }

    /// The budget ran out without a message. Clears the rest of it.
    pub(crate) fn wear_out(&mut self) {
        if self.idle_left.is_some() {
            *self = Self::none();
        }
    }
}

/// Statistics of one kind of wait at a socket. Pure: time is an argument.
#[derive(Debug)]
pub(crate) struct Spin {
    /// Mean time to the message, of waits that polling could win.
    mean: Duration,
    /// Whether the current wait polls.
    polls: bool,
    /// Number of further waits without polling.
    skip: u32,
    /// Whether a pause may end early because messages are frequent again; not if polling does harm.
    may_resume: bool,
    /// Number of losses since the last win.
    lost: u32,
    /// Exponent of the next pause for lack of messages, in waits.
    pause: u32,
    /// Number of losses in a row in which polling should have won: the message arrived as soon as the thread slept, or messages had
    /// arrived shortly before, while it did not poll.
    deceived: u32,
    /// Whether polling was resumed because messages arrived soon without it.
    resumed: bool,
    /// Whether the message arrived because the thread yielded: the peer runs on the same core.
    neighbour: bool,
    /// Waits in a row in which a yield found no other thread, and the message did not arrive soon after the thread slept.
    alone: u32,
    /// A yield of this wait found no other thread.
    yielded_alone: bool,
    /// Number of further waits without a yield.
    keep: u32,
    /// The next such pause has 64 * 2^this waits.
    keep_back: u32,
    /// The next pause for lack of the core has 64 * 2^this waits.
    stand_back: u32,
    /// Number of wins since the last such pause.
    won: u32,
}

impl Spin {
    pub(crate) const fn new() -> Self {
        Self {
            mean: START_MEAN,
            polls: false,
            skip: 0,
            may_resume: true,
            lost: 0,
            pause: 0,
            deceived: 0,
            resumed: false,
            neighbour: false,
            alone: 0,
            yielded_alone: false,
            keep: 0,
            keep_back: 0,
            stand_back: 0,
            won: 0,
        }
    }

    /// Begins a wait. Returns its polling; without a budget the thread sleeps at once.
    pub(crate) fn begin(&mut self) -> PollBudget {
        self.polls = self.skip == 0;
        self.yielded_alone = false;
        if !self.polls {
            self.skip -= 1;
            return PollBudget::none();
        }
        let budget = (self.mean * OUTLAST).clamp(BUDGET_MIN, BUDGET_MAX);
        let giving_way = match self.neighbour {
            _ if self.keep > 0 => GivingWay::Never,
            true => GivingWay::Always,
            false => GivingWay::After(budget / GIVE_WAY_PART),
        };
        self.keep = self.keep.saturating_sub(1);
        PollBudget::learnt(budget, giving_way)
    }

    /// Records a yield of `time`, and whether the message had arrived afterwards.
    pub(crate) fn gave_way(&mut self, time: Duration, found: bool) {
        if time > PREEMPTED {
            (self.neighbour, self.alone) = (false, 0);
            self.keep = STAND_BACK << self.keep_back;
            self.keep_back = (self.keep_back + 1).min(PAUSE_MAX);
        } else if time < OTHERS_RAN {
            self.yielded_alone = true;
        } else if found {
            (self.neighbour, self.alone) = (true, 0);
        }
    }

    /// Records the end of a wait in which a yield found no other thread. A neighbour's message arrives as soon as the thread sleeps. That
    /// of a peer on another core takes a wake-up, or arrives without a sleep.
    fn ended_alone(&mut self, asleep: Option<Duration>) {
        if asleep.is_some_and(|asleep| asleep < AT_ONCE) {
            self.alone = 0;
            return;
        }
        self.alone += 1;
        if self.alone >= ALONE_MAX {
            (self.neighbour, self.alone) = (false, 0);
        }
    }

    /// Records that the wait ended with a message `after` its begin, of which the thread slept for the last `asleep`.
    pub(crate) fn ended(&mut self, after: Duration, asleep: Option<Duration>) {
        if after <= BUDGET_MAX {
            self.mean = (self.mean * 15 + after) / 16;
        }
        if self.neighbour && self.yielded_alone {
            self.ended_alone(asleep);
            if asleep.is_some() {
                return;
            }
        }
        match asleep {
            None => self.win(),
            Some(_) if self.polls && !self.may_resume => self.stand_back(), // It still does harm.
            Some(asleep) if self.polls && (asleep < AT_ONCE || self.resumed) => {
                self.resumed = false;
                self.deceived += 1;
                if self.deceived >= DECEIVED_MAX {
                    self.stand_back();
                }
            }
            Some(_) if self.polls && after > BUDGET_MAX => self.lose(),
            Some(_) if self.polls => self.deceived = 0,
            Some(_) if self.may_resume && after <= BUDGET_MAX => {
                (self.skip, self.lost, self.pause) = (0, 0, 0);
                self.resumed = true;
            }
            Some(_) => {}
        }
    }

    /// Records that the wait was given up this time after its begin.
    pub(crate) fn given_up(&mut self, after: Duration) {
        if self.polls && after > BUDGET_MAX {
            self.lose();
        }
    }

    /// Records that the kernel took the core away while the thread polled.
    #[cold]
    pub(crate) fn preempted(&mut self) {
        self.stand_back();
    }

    fn win(&mut self) {
        (self.lost, self.pause, self.deceived) = (0, 0, 0);
        (self.may_resume, self.resumed) = (true, false);
        self.won += 1;
        if self.won >= WON_MAX {
            self.won = 0;
            self.stand_back = self.stand_back.saturating_sub(1);
            self.keep_back = self.keep_back.saturating_sub(1);
        }
    }

    fn lose(&mut self) {
        self.lost += 1;
        if self.lost >= LOST_MAX {
            self.skip = 1 << self.pause;
            self.pause = (self.pause + 1).min(PAUSE_MAX);
        }
    }

    fn stand_back(&mut self) {
        self.may_resume = false;
        self.skip = STAND_BACK << self.stand_back;
        self.stand_back = (self.stand_back + 1).min(PAUSE_MAX);
        (self.won, self.deceived) = (0, 0);
    }
}

/// Of waits that end at random, exp(-7) or 0.1 % take longer than seven times the mean.
const OUTLAST: u32 = 7;
/// A first budget of 50 µs.
const START_MEAN: Duration = Duration::from_micros(7);
/// About the cost of a wake-up. A shorter budget loses more than it saves when a peer is a little late (the 99.9th percentile of
/// 100 B calls is 45 µs with 10 µs, and 34 µs with 30 µs).
const BUDGET_MIN: Duration = Duration::from_micros(30);
/// A thread sleeps in waits for messages that arrive less often than about every 50 µs.
const BUDGET_MAX: Duration = Duration::from_micros(350);
/// A thread yields after this part of its budget: 1.75 times the mean wait, or more.
const GIVE_WAY_PART: u32 = 4;
/// A yield that takes longer than this let other threads run: twice the time to switch to a thread and back, many times that of a
/// yield without another thread.
const OTHERS_RAN: Duration = Duration::from_micros(2);
/// This many yields in a row without another thread are no coincidence: the peer has left the core.
const ALONE_MAX: u32 = 3;
/// A round of polling that takes longer than this was interrupted by another thread that wants the core.
pub(crate) const PREEMPTED: Duration = Duration::from_millis(1);
/// Number of losses in a row before a pause.
const LOST_MAX: u32 = 4;
/// The longest pause for lack of messages has 2^6 waits, for lack of the core 64 * 2^6.
const PAUSE_MAX: u32 = 6;
/// A message that arrives within this time of sleep, after polling has found nothing, arrives because of the sleep: a wake-up from
/// another core takes longer.
const AT_ONCE: Duration = Duration::from_micros(20);
/// Number of such losses in a row that are no coincidence.
const DECEIVED_MAX: u32 = 3;
/// First number of waits without polling after polling did harm.
const STAND_BACK: u32 = 64;
/// Number of wins without harm that shorten the next such pause.
const WON_MAX: u32 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    const LATE: Duration = Duration::from_millis(3);

    fn micros(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    fn begin(spin: &mut Spin) -> u128 {
        spin.begin().gap().as_micros()
    }

    /// Number of waits of `waits` that poll, if every one ends as given.
    fn polls(spin: &mut Spin, waits: u32, after: Duration, asleep: Duration) -> Vec<u32> {
        let mut polls = Vec::new();
        for wait in 0..waits {
            if begin(spin) > 0 {
                polls.push(wait);
            }
            spin.ended(after, Some(asleep));
        }
        polls
    }

    #[test]
    fn a_budget_is_spent_in_parts_and_ends_with_a_part_that_ended_before() {
        let part = Duration::from_micros(50);
        let mut budget = PollBudget::learnt(part * 3, GivingWay::After(part * 3 / 2));
        budget.spend_part(part, part);
        assert_eq!((budget.gap(), budget.gives_way(part / 2)), (part * 2, true));
        budget.spend_part(part, part + part / 2);
        assert_eq!(budget.gap(), part / 2);
        let mut vain = budget;
        vain.spend_part(part, part / 4);
        assert!(vain.is_none());
        budget.spend_part(part, part / 2);
        assert!(budget.is_none());
    }

    #[test]
    fn the_budget_follows_the_time_to_the_message_within_its_bounds() {
        let mut spin = Spin::new();
        assert_eq!(begin(&mut spin), 49);
        for (after, budget) in [(20, 139), (2, 30), (95, 350)] {
            for _ in 0..200 {
                spin.ended(micros(after), None);
            }
            assert_eq!(begin(&mut spin), budget);
        }
    }

    #[test]
    fn packets_of_other_messages_do_not_extend_what_was_learnt() {
        let mut budget = PollBudget::learnt(micros(350), GivingWay::Never);
        for _ in 0..3 {
            assert!(!budget.ends_at(micros(100)));
            budget.spend(micros(100));
        }
        assert!(budget.ends_at(micros(50)));
        budget.spend(micros(49));
        // Gaps shorter than a sleep are waited out, until one is longer.
        budget.spend(micros(25));
        assert!(!budget.ends_at(micros(29)) && budget.ends_at(micros(30)));
        budget.wear_out();
        assert!(budget.is_none() && budget.ends_at(Duration::ZERO));
    }

    #[test]
    fn a_fixed_time_holds_for_every_gap() {
        let mut budget = PollBudget::fixed(micros(64));
        for _ in 0..10 {
            assert!(!budget.ends_at(micros(63)) && budget.ends_at(micros(64)));
            assert!(!budget.gives_way(micros(63)));
            budget.spend(micros(63));
            budget.wear_out();
        }
    }

    #[test]
    fn waits_given_up_count_as_lost() {
        let mut spin = Spin::new();
        for _ in 0..4 {
            assert!(begin(&mut spin) > 0);
            spin.given_up(LATE);
        }
        assert_eq!(begin(&mut spin), 0);
    }

    #[test]
    fn lost_polls_pause_polling_for_longer_and_longer() {
        let polls = polls(&mut Spin::new(), 300, LATE, LATE);
        assert_eq!(polls, [0, 1, 2, 3, 5, 8, 13, 22, 39, 72, 137, 202, 267]);
    }

    #[test]
    fn one_message_in_time_ends_the_pause_for_want_of_messages() {
        let mut spin = Spin::new();
        polls(&mut spin, 40, LATE, LATE);
        assert_eq!(begin(&mut spin), 0);
        spin.ended(micros(30), Some(micros(30)));
        assert!(begin(&mut spin) > 0);
    }

    #[test]
    fn nobody_polls_where_messages_only_come_to_sleepers() {
        let polls = polls(&mut Spin::new(), 1000, micros(60), micros(5));
        assert_eq!(polls, [0, 1, 2, 67, 196, 453, 966]);
    }

    #[test]
    fn nobody_polls_where_messages_only_come_soon_to_who_does_not() {
        let mut spin = Spin::new();
        let mut polls = Vec::new();
        for wait in 0..2000 {
            let polled = begin(&mut spin) > 0;
            if polled {
                polls.push(wait);
            }
            let asleep = if polled { micros(300) } else { micros(13) };
            spin.ended(if polled { micros(550) } else { micros(13) }, Some(asleep));
        }
        assert!(polls.len() < 25, "{polls:?}");
    }

    #[test]
    fn a_thread_that_loses_its_core_stands_back_and_forgets_it_slowly() {
        let mut spin = Spin::new();
        let pause = |spin: &mut Spin| (0..10_000).take_while(|_| begin(spin) == 0).count();
        spin.preempted();
        assert_eq!(pause(&mut spin), 64);
        spin.preempted();
        assert_eq!(pause(&mut spin), 128);
        for _ in 0..30_000 {
            spin.ended(micros(10), None);
        }
        spin.preempted();
        assert_eq!(pause(&mut spin), 64);
    }

    /// Whether the thread yields in a wait without packets for `gap`.
    fn gives_way(spin: &mut Spin, gap: Duration) -> bool {
        spin.begin().gives_way(gap)
    }

    #[test]
    fn a_thread_gives_way_once_when_it_has_polled_for_longer_than_usual() {
        let mut spin = Spin::new();
        for _ in 0..200 {
            spin.ended(micros(20), None);
        }
        let mut budget = spin.begin();
        assert!(!budget.gives_way(Duration::ZERO) && !budget.gives_way(micros(34)));
        assert!(budget.gives_way(micros(35)));
        assert!(!budget.gives_way(micros(100)), "nobody was there");
        assert!(!PollBudget::none().gives_way(LATE), "it sleeps at once");
    }

    /// The message of a peer on the same core arrives when the thread yields or sleeps.
    #[test]
    fn one_wait_is_enough_to_know_a_neighbour() {
        let mut spin = Spin::new();
        let mut polled_first = 0;
        for _ in 0..10_000 {
            let mut budget = spin.begin();
            assert!(!budget.is_none(), "no wake-up is paid for");
            if !budget.gives_way(Duration::ZERO) {
                polled_first += 1;
                assert!(budget.gives_way(budget.gap() / 4));
            }
            spin.gave_way(micros(6), true);
            spin.ended(micros(7), None);
        }
        assert_eq!(polled_first, 1);
    }

    #[test]
    fn a_neighbour_that_has_moved_is_forgotten_soon() {
        let mut spin = Spin::new();
        spin.gave_way(micros(6), true);
        let mut gave_way = 0;
        while gives_way(&mut spin, Duration::ZERO) {
            gave_way += 1;
            spin.gave_way(Duration::from_nanos(300), false);
            spin.ended(micros(5), None);
        }
        assert_eq!(gave_way, 3);
    }

    #[test]
    fn a_thread_sleeps_for_a_neighbour_that_a_yield_does_not_run() {
        let mut spin = Spin::new();
        assert!(!spin.begin().yields_in_vain(Duration::from_nanos(300)), "it may be elsewhere");
        spin.gave_way(micros(6), true);
        for _ in 0..1_000 {
            let mut budget = spin.begin();
            assert!(budget.gives_way(Duration::ZERO), "it is here");
            assert!(!budget.yields_in_vain(micros(6)), "it runs");
            assert!(budget.yields_in_vain(Duration::from_nanos(300)) && budget.is_none());
            spin.gave_way(Duration::from_nanos(300), false);
            spin.ended(micros(9), Some(micros(8)));
        }
        // Messages come a wake-up after the thread has fallen asleep: from another core.
        for _ in 0..3 {
            assert!(gives_way(&mut spin, Duration::ZERO));
            spin.gave_way(Duration::from_nanos(300), false);
            spin.ended(micros(60), Some(micros(59)));
        }
        assert!(!gives_way(&mut spin, Duration::ZERO));
    }

    #[test]
    fn others_that_run_without_bringing_the_message_are_no_neighbours() {
        let mut spin = Spin::new();
        spin.gave_way(micros(50), false);
        assert!(!gives_way(&mut spin, Duration::ZERO));
        // The message came from another core: the yield found no other thread.
        spin.gave_way(Duration::from_nanos(300), true);
        assert!(!gives_way(&mut spin, Duration::ZERO));
    }

    #[test]
    fn a_program_that_keeps_the_core_is_given_way_to_ever_more_seldom() {
        let mut spin = Spin::new();
        let mut gave_way = Vec::new();
        for wait in 0..2_000 {
            if gives_way(&mut spin, micros(100)) {
                gave_way.push(wait);
                spin.gave_way(micros(4_000), true);
            }
            spin.ended(micros(10), None);
        }
        assert_eq!(gave_way, [0, 65, 194, 451, 964, 1989]);
    }
}
