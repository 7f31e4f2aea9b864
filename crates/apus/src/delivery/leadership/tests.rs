//! The whole table: every state, every event, and the answer.

use std::fmt::Write;

use expect_test::expect_file;

use super::*;

const BACKGROUND: char = 'b';

fn at(micros: u64) -> Time {
    Time::from_nanos(micros * 1_000)
}

/// Thread X leads, and the background thread parks.
fn mask(leadership: &mut Leadership<char>, mode: Delivery) {
    assert!(leadership.claim(1));
    let action = leadership.background_action(at(0), at(0));
    assert_eq!(action, BackgroundAction::Park(Some(mode.mask())));
}

/// A leadership with threads X (id 1) and Y (id 2) in it, brought into a named state by events only.
pub(super) fn leadership(mode: Delivery, state: &str) -> Leadership<char> {
    let mut leadership = Leadership::new(mode, Some(BACKGROUND));
    let mask = |leadership: &mut Leadership<char>| mask(leadership, mode);
    match state {
        "background" => leadership.background_sleeps(Some(at(90))),
        "background, x parked" => {
            leadership.background_sleeps(Some(at(90)));
            leadership.follow(1, 'x');
        }
        "vacant, background asleep" => {
            leadership.background_sleeps(Some(at(90)));
            assert!(leadership.claim(1));
            assert_eq!(leadership.leave(1, Leaving::Away), None);
        }
        "vacant, background armed" => {
            mask(&mut leadership);
            assert_eq!(leadership.leave(1, Leaving::Away), None);
        }
        "vacant, x back soon" => {
            mask(&mut leadership);
            assert_eq!(leadership.leave(1, Leaving::BackSoon), None);
        }
        "vacant, watched" => {
            leadership = self::leadership(mode, "vacant, x back soon");
            assert_eq!(leadership.poke(at(0), Some(at(0))), Some(BACKGROUND));
            assert_ne!(leadership.background_action(at(9), at(0)), BackgroundAction::Park(None));
        }
        "x awake" => mask(&mut leadership),
        "x awake, background asleep" => {
            leadership.background_sleeps(Some(at(90)));
            assert!(leadership.claim(1));
        }
        "x awake, y parked" => {
            mask(&mut leadership);
            leadership.follow(2, 'y');
        }
        "x asleep" => {
            mask(&mut leadership);
            assert_eq!(leadership.leader_sleeps(1, 'x', Some(at(90))), None);
        }
        "x asleep, background disarmed" => {
            mask(&mut leadership);
            assert_eq!(leadership.leader_sleeps(1, 'x', Some(at(90))), None);
            assert_eq!(leadership.background_action(at(0), at(0)), BackgroundAction::Park(None));
        }
        "y awake, x asleep" => {
            mask(&mut leadership);
            assert_eq!(leadership.leader_sleeps(1, 'x', Some(at(90))), None);
            assert!(leadership.claim(2));
        }
        "y asleep, x asleep" => {
            mask(&mut leadership);
            assert_eq!(leadership.leader_sleeps(1, 'x', Some(at(90))), None);
            assert!(leadership.claim(2));
            assert_eq!(leadership.leader_sleeps(2, 'y', Some(at(95))), None);
        }
        "offered to y" => {
            mask(&mut leadership);
            leadership.follow(2, 'y');
            assert_eq!(leadership.leave(1, Leaving::Away), Some('y'));
        }
        _ => return with_event_loop(mode, state),
    }
    leadership
}

/// A leadership with an event loop, brought into a named state by events only.
fn with_event_loop(mode: Delivery, state: &str) -> Leadership<char> {
    let mut leadership = Leadership::new(mode, Some(BACKGROUND));
    match state {
        "e asleep" => {
            mask(&mut leadership, mode);
            assert_eq!(leadership.leave(1, Leaving::Away), None);
            begin_loop(&mut leadership);
        }
        "e asleep, background guards" => {
            leadership = self::leadership(mode, "e asleep");
            let action = leadership.background_action(at(20_000), at(0));
            assert_eq!(action, BackgroundAction::Guard(LOOP));
        }
        "e asleep, background roused" => {
            leadership = self::leadership(mode, "e asleep, background guards");
            let action = leadership.background_action(at(30_000), at(0));
            assert_eq!(action, BackgroundAction::Park(Some(mode.mask())));
        }
        "x awake, e asleep" => {
            leadership = self::leadership(mode, "e asleep");
            assert!(leadership.claim(1));
        }
        "e awake" => {
            leadership = self::leadership(mode, "e asleep");
            assert!(leadership.event_loop_looks(E));
        }
        "vacant, e runs tasks" => {
            leadership = self::leadership(mode, "e awake");
            assert_eq!(leadership.event_loop_runs_tasks(E), None);
        }
        "background, e is late" => {
            leadership = self::leadership(mode, "e asleep, background roused");
            let action = leadership.background_action(at(40_000), at(0));
            assert_eq!(action, BackgroundAction::Turn { forced: true });
            leadership.background_sleeps(Some(at(90)));
        }
        _ => panic!("no such state: {state}"),
    }
    leadership
}

/// The event loop.
pub(super) const E: WaiterId = 4;

/// Its descriptor.
const LOOP: Descriptors = [7, -1, -1, -1];

/// The event loop begins, and sleeps.
fn begin_loop(leadership: &mut Leadership<char>) {
    assert!(leadership.add_event_loop(E, 'e', LOOP));
    assert!(leadership.event_loop_looks(E));
    assert_eq!(leadership.event_loop_sleeps(E, Some(at(90))), None);
}

/// The states that can come about where there is an event loop.
const LOOP_STATES: [&str; 7] = [
    "e asleep",
    "e asleep, background guards",
    "e asleep, background roused",
    "x awake, e asleep",
    "e awake",
    "vacant, e runs tasks",
    "background, e is late",
];

/// The states that can come about in a mode.
fn states(mode: Delivery) -> &'static [&'static str] {
    match mode.regime() {
        Regime::AlwaysPolls => &[],
        Regime::Background => &["background", "background, x parked"],
        Regime::PollFirst => &[
            "background",
            "background, x parked",
            "vacant, background asleep",
            "vacant, background armed",
            "vacant, x back soon",
            "vacant, watched",
            "x awake",
            "x awake, background asleep",
            "x awake, y parked",
        ],
        Regime::ThreadsLead => &[
            "background",
            "vacant, background asleep",
            "vacant, background armed",
            "vacant, x back soon",
            "vacant, watched",
            "x awake",
            "x awake, background asleep",
            "x awake, y parked",
            "x asleep",
            "x asleep, background disarmed",
            "y awake, x asleep",
            "y asleep, x asleep",
            "offered to y",
        ],
    }
}

fn name(id: WaiterId) -> char {
    ['x', 'y', 'z', 'e'][usize::try_from(id).unwrap() - 1]
}

pub(super) fn show(leadership: &Leadership<char>) -> String {
    let mut text = match &leadership.lead {
        Lead::Vacant => "vacant".to_owned(),
        Lead::Offered(id) => format!("offered to {}", name(*id)),
        Lead::Awake(id) => format!("{} awake", name(*id)),
        Lead::Asleep(sleeping) => format!("{} asleep", sleeping.handle),
        Lead::Background => "background".to_owned(),
    };
    for follower in &leadership.followers {
        let place = if follower.as_leader.is_some() { "asleep" } else { "parked" };
        write!(text, ", {} {place}", follower.handle).unwrap();
    }
    let background = match leadership.background {
        Background::Asleep(_) => "asleep".to_owned(),
        other => format!("{other:?}").to_lowercase(),
    };
    let urgent = if leadership.urgent { ", urgent" } else { "" };
    let roused = leadership.event_loop.as_ref().is_some_and(|it| it.roused_at.is_some());
    let roused = if roused { ", roused" } else { "" };
    let watches = if leadership.watch.is_on { ", watches" } else { "" };
    write!(text, "; background {background}{urgent}{watches}{roused}").unwrap();
    text
}

fn wake(handle: Option<char>) -> String {
    handle.map_or_else(|| "-".to_owned(), |handle| format!("wake {handle}"))
}

fn wakes(handles: [Option<char>; 2]) -> String {
    match handles {
        [Some(first), Some(second)] => format!("wake {first}, {second}"),
        [first, second] => wake(first.or(second)),
    }
}

fn text_of(action: BackgroundAction) -> String {
    match action {
        BackgroundAction::Turn { forced: false } => "turn".to_owned(),
        BackgroundAction::Turn { forced: true } => "forced turn".to_owned(),
        BackgroundAction::Park(None) => "park".to_owned(),
        BackgroundAction::Park(Some(time)) => format!("park {time:?}"),
        BackgroundAction::Guard(_) => "guard".to_owned(),
    }
}

fn follows(leads: bool) -> String {
    if leads { "leads" } else { "follows" }.to_owned()
}

type Event = (&'static str, fn(&mut Leadership<char>) -> String);

/// All events. The answer is the action of the thread that caused the event.
const EVENTS: [Event; 13] = [
    ("z begins to wait", |c| follows(c.claim(3))),
    ("x is up and goes on waiting", |c| {
        c.unfollow(1);
        follows(c.reclaim(1))
    }),
    ("y is up and goes on waiting", |c| {
        c.unfollow(2);
        follows(c.reclaim(2))
    }),
    ("x stops waiting", |c| {
        c.unfollow(1);
        wake(c.leave(1, Leaving::Away))
    }),
    ("x stops waiting while a task waits, or polled in vain", |c| {
        c.unfollow(1);
        wake(c.leave(1, Leaving::Wanted))
    }),
    ("x stops waiting, to be back soon", |c| {
        c.unfollow(1);
        wake(c.leave(1, Leaving::BackSoon))
    }),
    ("y stops waiting", |c| {
        c.unfollow(2);
        wake(c.leave(2, Leaving::Away))
    }),
    ("a thread turned the engine without waiting", |c| {
        c.turned_opportunistically();
        "-".to_owned()
    }),
    ("something is due sooner than the leader planned", |c| wake(c.poke(at(10), Some(at(50))))),
    ("something is due at once", |c| wake(c.poke(at(10), Some(at(10))))),
    ("something must go on although no thread waits", |c| wake(c.need_progress())),
    ("the background thread looks, 50 µs after the last turn", |c| {
        text_of(c.background_action(at(1_000), at(950)))
    }),
    ("the background thread looks, 1 s after the last turn", |c| {
        text_of(c.background_action(at(1_000_000), at(0)))
    }),
];

fn table(mode: Delivery) -> String {
    let mut text = format!("# {mode}\n");
    for (event, act) in EVENTS {
        writeln!(text, "\n{event}").unwrap();
        for state in states(mode) {
            let mut leadership = leadership(mode, state);
            let answer = act(&mut leadership);
            writeln!(text, "  {state:<29} | {answer:<12} | {}", show(&leadership)).unwrap();
        }
    }
    if mode.regime() == Regime::ThreadsLead {
        writeln!(text, "\nx goes to sleep as leader").unwrap();
        for state in ["x awake", "x awake, background asleep", "x awake, y parked"] {
            let mut leadership = leadership(mode, state);
            let answer = wake(leadership.leader_sleeps(1, 'x', None));
            writeln!(text, "  {state:<29} | {answer:<12} | {}", show(&leadership)).unwrap();
        }
    }
    text
}

type LoopEvent = (&'static str, fn(&mut Leadership<char>) -> Option<String>);

/// Further events where there is an event loop; `None`: the event cannot come about.
const LOOP_EVENTS: [LoopEvent; 6] = [
    ("the event loop looks", |c| {
        let leads = c.event_loop_looks(E);
        Some(if leads { "leads" } else { "turns" }.to_owned())
    }),
    ("the event loop has looked, and sleeps", |c| {
        let has_looked = matches!(&c.lead, Lead::Awake(_));
        has_looked.then(|| wake(c.event_loop_sleeps(E, None)))
    }),
    ("the event loop has looked, and its thread runs tasks", |c| {
        let leads = matches!(&c.lead, Lead::Awake(E));
        leads.then(|| wake(c.event_loop_runs_tasks(E)))
    }),
    ("the event loop ends", |c| Some(wakes(c.remove_event_loop(E, Leaving::Away)))),
    ("the event loop ends while a task waits", |c| {
        Some(wakes(c.remove_event_loop(E, Leaving::Wanted)))
    }),
    ("x, or another thread, begins to wait", |c| Some(follows(c.claim(1)))),
];

/// The table of a mode in which threads lead, where there is an event loop as well.
fn loop_table(mode: Delivery) -> String {
    let mut text = format!("# {mode}, with an event loop\n");
    let both =
        EVENTS.iter().filter(|(event, _)| !event.starts_with('y') && !event.starts_with("x is"));
    let both = both.map(|(event, act)| {
        let act = |c: &mut Leadership<char>| Some(act(c));
        (*event, Box::new(act) as Box<dyn Fn(&mut Leadership<char>) -> Option<String>>)
    });
    let own = LOOP_EVENTS.iter().map(|(event, act)| {
        (*event, Box::new(act) as Box<dyn Fn(&mut Leadership<char>) -> Option<String>>)
    });
    for (event, act) in own.chain(both) {
        writeln!(text, "\n{event}").unwrap();
        for state in LOOP_STATES {
            let mut leadership = leadership(mode, state);
            if let Some(answer) = act(&mut leadership) {
                writeln!(text, "  {state:<29} | {answer:<12} | {}", show(&leadership)).unwrap();
            }
        }
    }
    text
}

/// Which modes share a table: the rules depend on the regime and the mask's time only.
#[test]
fn every_transition_is_as_written() {
    let modes = [Delivery::base(), Delivery::napibusy(), Delivery::suspend()];
    let text = modes.map(table).join("\n") + "\n" + &loop_table(Delivery::suspend());
    expect_file!["table.txt"].assert_eq(&text);
    for x in [0, 20].map(Duration::from_micros) {
        let header = |mode: Delivery| format!("# {mode}\n");
        let rows = |mode| table(mode).replace(&header(mode), "");
        assert_eq!(rows(Delivery::defer(x)), rows(Delivery::base()));
        let suspend = Delivery::suspend_after(x);
        let same = if x.is_zero() { Delivery::base() } else { Delivery::suspend() };
        assert_eq!(rows(suspend.with_suspend_timeout(same.mask())), rows(same), "{suspend}");
    }
}

/// The sleep kinds of a leader that looks again and again; `arrivals` says which looks found packets.
fn sleep_kinds(mode: &str, arrivals: &[bool]) -> Vec<SleepKind> {
    let mut leadership: Leadership<char> = Leadership::new(mode.parse().unwrap(), None);
    let kinds = arrivals.iter().map(|arrives| {
        if *arrives {
            leadership.packets_arrived();
        }
        leadership.sleep_kind()
    });
    kinds.collect()
}

#[test]
fn sleeps_are_deferred_after_packets_and_on_the_link_after_looks_in_vain() {
    const TIMER: SleepKind = SleepKind::Timer(Duration::from_micros(20));
    const LINK: SleepKind = SleepKind::Link;
    let looks = [false, true, true, false, false, false, true, false];
    let once = [LINK, TIMER, TIMER, LINK, LINK, LINK, TIMER, LINK];
    for mode in ["defer:20", "suspend:20", "napibusy,short_timeout=20us"] {
        assert_eq!(sleep_kinds(mode, &looks), once, "{mode}");
    }
    let twice = [LINK, TIMER, TIMER, TIMER, LINK, LINK, TIMER, TIMER];
    assert_eq!(sleep_kinds("suspend:20,defer=2", &looks), twice);
    for mode in ["base", "suspend", "suspend:0", "defer:0", "suspend:20,defer=0"] {
        assert_eq!(sleep_kinds(mode, &looks), [LINK; 8], "{mode}");
    }
}

#[test]
fn a_sleep_that_ends_later_than_what_is_due_is_not_disturbed() {
    for mode in [Delivery::base(), Delivery::napibusy(), Delivery::suspend()] {
        for state in states(mode) {
            assert_eq!(leadership(mode, state).poke(at(10), Some(at(95))), None, "{state}");
            assert_eq!(leadership(mode, state).poke(at(10), None), None, "{state}");
        }
    }
}

#[test]
fn a_thread_in_need_wakes_the_background_thread_once() {
    let mut urgent = leadership(Delivery::suspend(), "vacant, background armed");
    assert_eq!(urgent.need_progress(), Some(BACKGROUND));
    assert_eq!(urgent.need_progress(), None, "it was called already");
    assert_eq!(
        urgent.background_action(at(1_000), at(999)),
        BackgroundAction::Turn { forced: false }
    );
}

#[test]
fn a_thread_that_lost_the_lead_in_its_sleep_gets_it_back_for_free() {
    let mut leadership = leadership(Delivery::suspend(), "x asleep");
    assert!(leadership.claim(2));
    assert_eq!(leadership.leave(2, Leaving::Away), None);
    assert_eq!(show(&leadership), "x asleep; background armed");
    assert!(leadership.claim(1));
}

#[test]
fn of_two_threads_that_a_packet_wakes_on_the_link_one_stays_away_from_it() {
    let mut leadership = leadership(Delivery::suspend(), "y asleep, x asleep");
    leadership.unfollow(1);
    assert!(!leadership.reclaim(1), "y is woken by the same packet");
    leadership.follow(1, 'x');
    assert!(leadership.reclaim(2));
    assert_eq!(leadership.leader_sleeps(2, 'y', None), None);
    assert_eq!(show(&leadership), "y asleep, x parked; background armed");
}

#[test]
fn a_leader_that_goes_to_sleep_calls_the_background_thread_away_from_the_link() {
    let mut leadership = leadership(Delivery::suspend(), "x awake, background asleep");
    assert_eq!(leadership.leader_sleeps(1, 'x', None), Some(BACKGROUND));
    assert_eq!(leadership.background_action(at(1), at(0)), BackgroundAction::Park(None));
}

#[test]
fn the_thread_that_slept_last_is_first() {
    let mut leadership = leadership(Delivery::suspend(), "x awake");
    for (id, handle) in [(2, 'y'), (3, 'z')] {
        leadership.follow(id, handle);
    }
    assert_eq!(leadership.leave(1, Leaving::Away), Some('z'));
    assert!(leadership.claim(3));
    assert_eq!(leadership.leave(3, Leaving::Away), Some('y'));
}

#[test]
fn nobody_is_woken_for_a_lead_that_is_soon_taken_again_and_the_background_thread_watches() {
    let mut leadership = leadership(Delivery::suspend(), "x awake, y parked");
    assert_eq!(leadership.leave(1, Leaving::BackSoon), None);
    let mask = Delivery::suspend().mask();
    assert_eq!(
        leadership.background_action(at(150), at(0)),
        BackgroundAction::Park(Some(mask - micros(150)))
    );
    assert_eq!(
        leadership.background_action(at(200), at(0)),
        BackgroundAction::Turn { forced: true }
    );
    assert!(leadership.claim(1));
    assert_eq!(leadership.leave(1, Leaving::Away), Some('y'));
}

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

#[test]
fn work_is_left_to_a_thread_that_is_back_soon_and_goes_on_if_it_is_not() {
    let looked = |leadership: &mut Leadership<char>, now, last_turn| {
        leadership.background_action(at(now), at(last_turn))
    };
    let parked = |time| BackgroundAction::Park(Some(micros(time)));
    let mut left = leadership(Delivery::suspend(), "vacant, x back soon");
    assert_eq!(left.poke(at(10), Some(at(10))), Some(BACKGROUND), "nobody looks soon enough");
    assert_eq!(looked(&mut left, 30, 10), parked(1_000));
    for turn in (100..3_000).step_by(100) {
        assert_eq!(left.poke(at(turn), Some(at(turn))), None, "the background thread looks");
        if turn % 1_000 == 0 {
            assert_eq!(looked(&mut left, turn + 30, turn), parked(1_000));
        }
    }
    // The thread does not come back.
    assert_eq!(looked(&mut left, 3_100, 2_900), parked(1_000));
    assert_eq!(looked(&mut left, 4_100, 2_900), BackgroundAction::Turn { forced: true });

    // It has been back and left nothing: the background thread stays away as ever.
    let mut back = leadership(Delivery::suspend(), "vacant, watched");
    assert_eq!(looked(&mut back, 1_000, 900), parked(1_000));
    assert_eq!(looked(&mut back, 2_000, 1_900), parked(9_900));
}

#[test]
fn in_fullbusy_there_is_nobody_to_wake() {
    let mut leadership: Leadership<char> = Leadership::new(Delivery::fullbusy(), None);
    assert_eq!(leadership.need_progress(), None);
    assert_eq!(leadership.poke(at(9), Some(at(1))), None);
}

#[test]
fn an_event_loop_that_looks_in_time_keeps_the_background_thread_away() {
    let mut leadership = leadership(Delivery::suspend(), "e asleep, background guards");
    let look = |leadership: &mut Leadership<char>| {
        assert!(leadership.event_loop_looks(E));
        assert_eq!(leadership.event_loop_sleeps(E, None), None);
        assert_eq!(leadership.need_progress(), None, "the loop leads");
    };
    // A packet wakes both.
    let parked = |time| BackgroundAction::Park(Some(micros(time)));
    assert_eq!(leadership.background_action(at(50_000), at(20_000)), parked(10_000));
    for milli in 50..90 {
        look(&mut leadership);
        if milli % 10 == 9 {
            let (now, last_turn) = (milli * 1_000 + 900, milli * 1_000);
            assert_eq!(leadership.background_action(at(now), at(last_turn)), parked(9_100));
        }
    }
    // Nothing comes for a while.
    let action = leadership.background_action(at(100_000), at(89_000));
    assert_eq!(action, BackgroundAction::Guard(LOOP));
}

#[test]
fn tasks_of_an_event_loop_wait_no_longer_than_others_if_its_thread_does_not_look() {
    let mut sleeps = leadership(Delivery::suspend(), "e asleep, background guards");
    assert_eq!(
        sleeps.background_action(at(50_000), at(0)),
        BackgroundAction::Park(Some(micros(10_000)))
    );
    assert_eq!(
        sleeps.background_action(at(60_000), at(0)),
        BackgroundAction::Turn { forced: true }
    );
    sleeps.background_sleeps(None);
    assert!(sleeps.event_loop_looks(E), "it takes the lead back");
    assert_eq!(sleeps.event_loop_sleeps(E, None), Some(BACKGROUND));

    let mut computes = leadership(Delivery::suspend(), "vacant, e runs tasks");
    assert_eq!(computes.need_progress(), None, "it looks again");
    let action = computes.background_action(at(50_000), at(40_000));
    assert_eq!(action, BackgroundAction::Turn { forced: true });
}

#[test]
fn the_end_of_a_guarded_event_loop_wakes_the_thread_that_gets_the_lead_as_well() {
    let mut leadership = leadership(Delivery::suspend(), "e awake");
    leadership.follow(2, 'y');
    assert_eq!(leadership.event_loop_sleeps(E, None), None);
    let action = leadership.background_action(at(20_000), at(0));
    assert_eq!(action, BackgroundAction::Guard(LOOP));
    let woken = leadership.remove_event_loop(E, Leaving::Wanted);
    assert_eq!(woken, [Some('y'), Some(BACKGROUND)]);
    assert!(leadership.claim(2));
}
