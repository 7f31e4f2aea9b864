//! The whole table: every state, every event, and what follows.

use std::fmt::Write;

use super::*;

const SAFETY: Duration = Duration::from_millis(10);

const BACKGROUND: char = 'b';

fn at(micros: u64) -> Time {
    Time::from_nanos(micros * 1_000)
}

/// A command with threads X (id 1) and Y (id 2) in it, brought into a named state. Thread ids are
/// the handles' alphabet positions: 1 is 'x', 2 is 'y', 3 is 'z'.
fn command(state: &str) -> Command<char> {
    let mut command = Command::new(Delivery::suspend(), Some(BACKGROUND));
    let park = |command: &mut Command<char>| {
        // An application thread leads: the background thread looks and stays away.
        assert!(command.claim(1));
        assert_eq!(command.background_step(at(0), at(0)), Step::Park(Some(SAFETY)));
    };
    match state {
        "background" => command.background_doze(Some(at(90))),
        "vacant, background on link" => {
            command.background_doze(Some(at(90)));
            assert!(command.claim(1));
            assert_eq!(command.leave(1, false), None);
        }
        "vacant, armed" => {
            park(&mut command);
            assert_eq!(command.leave(1, false), None);
        }
        "x awake" => park(&mut command),
        "x awake, background on link" => {
            command.background_doze(None);
            assert!(command.claim(1));
        }
        "x awake, y parked" => {
            park(&mut command);
            command.follow(2, 'y');
        }
        "x asleep" => {
            park(&mut command);
            assert_eq!(command.doze(1, 'x', Some(at(90))), None);
        }
        "x asleep, background disarmed" => {
            park(&mut command);
            assert_eq!(command.doze(1, 'x', Some(at(90))), None);
            assert_eq!(command.background_step(at(0), at(0)), Step::Park(None));
        }
        "y awake, x on link" => {
            park(&mut command);
            assert_eq!(command.doze(1, 'x', Some(at(90))), None);
            assert!(command.claim(2));
        }
        "offered to y" => {
            park(&mut command);
            command.follow(2, 'y');
            assert_eq!(command.leave(1, false), Some('y'));
        }
        _ => panic!("no such state: {state}"),
    }
    command
}

const STATES: [&str; 10] = [
    "background",
    "vacant, background on link",
    "vacant, armed",
    "x awake",
    "x awake, background on link",
    "x awake, y parked",
    "x asleep",
    "x asleep, background disarmed",
    "y awake, x on link",
    "offered to y",
];

fn show(command: &Command<char>) -> String {
    let name = |id: WaiterId| match id {
        1 => 'x',
        2 => 'y',
        _ => 'z',
    };
    let mut text = match &command.lead {
        Lead::Vacant => "vacant".to_owned(),
        Lead::Offered(id) => format!("offered {}", name(*id)),
        Lead::Awake(id) => format!("{} awake", name(*id)),
        Lead::Asleep(sleeping) => format!("{} asleep", sleeping.handle),
        Lead::Background => "background".to_owned(),
    };
    for follower in &command.followers {
        let place = if follower.as_leader.is_some() { "on link" } else { "parked" };
        write!(text, ", {} {place}", follower.handle).unwrap();
    }
    let urgent = if command.urgent { " urgent" } else { "" };
    match command.background {
        Background::Asleep(_) => write!(text, "; on link{urgent}").unwrap(),
        other => write!(text, "; {other:?}{urgent}").unwrap(),
    }
    text
}

fn table(event: &str, act: impl Fn(&mut Command<char>) -> String) -> String {
    let mut lines = format!("{event}\n");
    for state in STATES {
        let mut command = command(state);
        let answer = act(&mut command);
        writeln!(lines, "{state:<30} {answer:<14} {}", show(&command)).unwrap();
    }
    lines
}

fn wake(handle: Option<char>) -> String {
    handle.map_or_else(|| "-".to_owned(), |handle| format!("wake {handle}"))
}

fn check(got: &str, wanted: &str) {
    assert!(got.trim() == wanted.trim(), "\ngot:\n{got}\nwanted:\n{wanted}");
}

#[test]
fn z_begins_to_wait() {
    let got = table("z claims", |c| if c.claim(3) { "leads" } else { "follows" }.to_owned());
    check(
        &got,
        "
z claims
background                     leads          z awake; on link
vacant, background on link     leads          z awake; on link
vacant, armed                  leads          z awake; Armed
x awake                        follows        x awake; Armed
x awake, background on link    follows        x awake; on link
x awake, y parked              follows        x awake, y parked; Armed
x asleep                       leads          z awake, x on link; Armed
x asleep, background disarmed  leads          z awake, x on link; Disarmed
y awake, x on link             follows        y awake, x on link; Armed
offered to y                   leads          z awake; Armed
",
    );
}

#[test]
fn x_leaves_with_nothing_left_to_do() {
    let got = table("x leaves", |c| {
        c.unfollow(1);
        wake(c.leave(1, false))
    });
    check(
        &got,
        "
x leaves
background                     -              background; on link
vacant, background on link     -              vacant; on link
vacant, armed                  -              vacant; Armed
x awake                        -              vacant; Armed
x awake, background on link    -              vacant; on link
x awake, y parked              wake y         offered y; Armed
x asleep                       -              vacant; Armed
x asleep, background disarmed  wake b         vacant; Running
y awake, x on link             -              y awake; Armed
offered to y                   -              offered y; Armed
",
    );
}

#[test]
fn x_leaves_while_a_task_waits() {
    let got = table("x leaves", |c| {
        c.unfollow(1);
        wake(c.leave(1, true))
    });
    check(
        &got,
        "
x leaves
background                     -              background; on link
vacant, background on link     -              vacant; on link
vacant, armed                  -              vacant; Armed
x awake                        wake b         vacant; Running urgent
x awake, background on link    -              background; on link
x awake, y parked              wake y         offered y; Armed
x asleep                       wake b         vacant; Running urgent
x asleep, background disarmed  wake b         vacant; Running urgent
y awake, x on link             -              y awake; Armed
offered to y                   -              offered y; Armed
",
    );
}

#[test]
fn y_leaves() {
    let got = table("y leaves", |c| {
        c.unfollow(2);
        wake(c.leave(2, false))
    });
    check(
        &got,
        "
y leaves
background                     -              background; on link
vacant, background on link     -              vacant; on link
vacant, armed                  -              vacant; Armed
x awake                        -              x awake; Armed
x awake, background on link    -              x awake; on link
x awake, y parked              -              x awake; Armed
x asleep                       -              x asleep; Armed
x asleep, background disarmed  -              x asleep; Disarmed
y awake, x on link             -              x asleep; Armed
offered to y                   -              vacant; Armed
",
    );
}

#[test]
fn something_is_due_sooner_than_the_leader_planned() {
    let got = table("poke for 50 µs", |c| wake(c.poke(at(10), Some(at(50)))));
    check(
        &got,
        "
poke for 50 µs
background                     wake b         background; on link
vacant, background on link     wake b         vacant; Running
vacant, armed                  -              vacant; Armed
x awake                        -              x awake; Armed
x awake, background on link    -              x awake; on link
x awake, y parked              -              x awake, y parked; Armed
x asleep                       wake x         x asleep; Armed
x asleep, background disarmed  wake x         x asleep; Disarmed
y awake, x on link             -              y awake, x on link; Armed
offered to y                   -              offered y; Armed
",
    );
    for state in STATES {
        assert_eq!(command(state).poke(at(10), Some(at(95))), None, "{state}");
        assert_eq!(command(state).poke(at(10), None), None, "{state}");
    }
}

#[test]
fn something_is_due_at_once() {
    let got = table("poke for now", |c| wake(c.poke(at(10), Some(at(10)))));
    check(
        &got,
        "
poke for now
background                     wake b         background; on link
vacant, background on link     wake b         vacant; Running urgent
vacant, armed                  wake b         vacant; Running urgent
x awake                        -              x awake; Armed
x awake, background on link    -              x awake; on link
x awake, y parked              -              x awake, y parked; Armed
x asleep                       wake x         x asleep; Armed
x asleep, background disarmed  wake x         x asleep; Disarmed
y awake, x on link             -              y awake, x on link; Armed
offered to y                   -              offered y; Armed
",
    );
}

#[test]
fn the_background_thread_looks_while_the_engine_is_turned() {
    let got = table("background looks", |c| match c.background_step(at(1_000), at(900)) {
        Step::Turn { forced } => if forced { "forced turn" } else { "turn" }.to_owned(),
        Step::Park(time) => time.map_or_else(|| "park".to_owned(), |time| format!("park {time:?}")),
    });
    check(
        &got,
        "
background looks
background                     turn           background; Running
vacant, background on link     park 9.9ms     vacant; Armed
vacant, armed                  park 9.9ms     vacant; Armed
x awake                        park 10ms      x awake; Armed
x awake, background on link    park 10ms      x awake; Armed
x awake, y parked              park 10ms      x awake, y parked; Armed
x asleep                       park           x asleep; Disarmed
x asleep, background disarmed  park           x asleep; Disarmed
y awake, x on link             park 10ms      y awake, x on link; Armed
offered to y                   park 10ms      offered y; Armed
",
    );
}

#[test]
fn the_background_thread_takes_over_when_the_engine_stands_still_or_somebody_is_in_need() {
    let mut still = command("vacant, armed");
    assert_eq!(still.background_step(at(11_000), at(1_000)), Step::Turn { forced: true });
    let mut urgent = command("vacant, armed");
    assert_eq!(urgent.need_progress(), Some(BACKGROUND));
    assert_eq!(urgent.need_progress(), None, "it was called already");
    assert_eq!(urgent.background_step(at(1_000), at(999)), Step::Turn { forced: false });
}

#[test]
fn a_thread_that_lost_the_lead_in_its_sleep_gets_it_back_for_free() {
    let mut command = command("x asleep");
    assert!(command.claim(2));
    assert_eq!(command.leave(2, false), None);
    assert_eq!(show(&command), "x asleep; Armed");
    assert!(command.claim(1));
}

#[test]
fn a_leader_that_goes_to_sleep_calls_the_background_thread_away_from_the_link() {
    let mut command = command("x awake, background on link");
    assert_eq!(command.doze(1, 'x', None), Some(BACKGROUND));
    assert_eq!(command.background_step(at(1), at(0)), Step::Park(None));
}

#[test]
fn a_thread_that_turns_the_engine_in_passing_keeps_the_background_thread_away() {
    let mut command = command("background");
    command.turned_in_passing();
    assert_eq!(show(&command), "vacant; on link");
    assert_eq!(
        command.background_step(at(100), at(99)),
        Step::Park(Some(SAFETY - (at(100).saturating_since(at(99)))))
    );
    assert_eq!(command.background_step(at(20_000), at(99)), Step::Turn { forced: true });
}

#[test]
fn the_thread_that_slept_last_is_first() {
    let mut command = command("x awake");
    for (id, handle) in [(2, 'y'), (3, 'z')] {
        command.follow(id, handle);
    }
    assert_eq!(command.leave(1, false), Some('z'));
    assert!(command.claim(3));
    assert_eq!(command.leave(3, false), Some('y'));
}

#[test]
fn in_base_nobody_leads_but_the_background_thread() {
    let mut command = Command::new(Delivery::base(), Some(BACKGROUND));
    assert!(!command.claim(1));
    assert_eq!(command.background_step(at(0), at(0)), Step::Turn { forced: false });
    command.background_doze(None);
    assert_eq!(command.poke(at(0), Some(at(50))), Some(BACKGROUND));
}

#[test]
fn in_fullbusy_there_is_nobody_to_wake() {
    let mut command: Command<char> = Command::new(Delivery::fullbusy(), None);
    assert_eq!(command.need_progress(), None);
    assert_eq!(command.poke(at(9), Some(at(1))), None);
}
