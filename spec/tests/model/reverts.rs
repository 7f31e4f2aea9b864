//! Each mended fault that is brought back breaks its property. `tests/model/counterexamples.txt` has a shortest
//! counterexample of each; with `UPDATE=1` the test writes them.

use std::fmt::Write as _;

use apus_model::{ALWAYS, Action, Revert, SCENARIOS, WIDER, World, counterexample, listed};
use stateright::{Checker, Model};

/// The fault, the scenario that shows it, and the property that it breaks.
const EXPECTED: [(Revert, &str, &str); 25] = [
    (Revert::KeyOutlivesRun, "quick restart of the server", ONCE),
    (Revert::SentBeginsAnew, "quick restart of the server", ONCE),
    (Revert::HistoryBeforeToken, "pause", ONCE),
    (Revert::ProofsLast, "pause", ONCE),
    (Revert::TokensUnspent, "a full table", ONCE),
    (Revert::HistoryEndsWithRequest, "loss, copies and delay", ONCE),
    (Revert::AbandonedNotTaken, "calls and requests that are given up", ONCE),
    (Revert::AbandonedNotSaid, "calls and requests that are given up", WAITS),
    (Revert::AbortedNotTaken, "calls and requests that are given up", VAIN),
    (Revert::MoveBeginsHistory, "a move", ONCE),
    (Revert::KnownByAddress, "wider: a move in doubt", CAUSE),
    (Revert::MoveUnproven, "an attacker who repeats packets", ADDRESS),
    (Revert::CrossingDoubts, "wider: crossing first contacts in doubt", CAUSE),
    (Revert::LateTokenDoubts, "OPEN is answered twice", CAUSE),
    (Revert::LostConfirmDoubts, "loss, copies and delay", CAUSE),
    (Revert::RefusalsForgotten, "a port that is closed and opened", DENIED),
    (Revert::RefusalTaken, "a port that is closed and opened", EXECUTED),
    (Revert::LateNoContact, "a port that is closed and opened", DENIED),
    (Revert::RefusedConfirmDenies, "a port that is closed and opened", DENIED),
    (Revert::LateUnknownEnds, "loss, copies and delay", CAUSE),
    (Revert::NumbersReused, "restart of the client", OWN),
    (Revert::DoubtForgotten, "wider: two pauses", WAITS),
    (Revert::CarriedBeginsAnew, "shared memory, and UDP after it", ONCE),
    (Revert::PutOffForGood, "shared memory, and UDP after it", ONCE),
    (Revert::AbortOvertakes, "shared memory, and UDP after it", VAIN),
];

const ONCE: &str = "a request is executed at most once";
const DENIED: &str = "a call that ends as not executed was not executed";
const EXECUTED: &str = "a call that ends as executed was executed";
const OWN: &str = "a call gets its own response";
const CAUSE: &str = "a call fails only after a fault that explains it";
const VAIN: &str = "a request is not executed after its end was taken";
const ADDRESS: &str = "a peer is at an address at which it has received";
const WAITS: &str = "no call waits for ever";

/// Returns the steps to a nearest state that breaks the property.
fn shortest(revert: Revert, scenario: &str, property: &'static str) -> Option<Vec<Action>> {
    let scenario =
        SCENARIOS.into_iter().chain(WIDER).find(|it| it.name == scenario).expect("a scenario");
    let world = World { scenario, revert: Some(revert) };
    let steps = counterexample(&world, property)?;
    // Stateright finds no shorter one. It counts states instead of steps, and leaves the farthest out.
    let nearer = world.checker().target_max_depth(steps.len() + 1).spawn_bfs().join();
    assert!(nearer.discovery(property).is_none(), "{revert:?} has a shorter counterexample");
    Some(steps)
}

#[test]
fn each_mended_fault_breaks_its_property() {
    assert!(Revert::ALL.iter().all(|it| EXPECTED.iter().any(|(revert, ..)| revert == it)));
    assert!(ALWAYS.iter().all(|(name, _)| EXPECTED.iter().any(|(_, _, broken)| broken == name)));
    let (mut text, mut missing) = (String::new(), Vec::new());
    let only = std::env::var("ONLY").ok();
    for (revert, scenario, property) in EXPECTED {
        if only.as_ref().is_some_and(|it| !scenario.contains(it)) {
            continue;
        }
        let Some(steps) = shortest(revert, scenario, property) else {
            missing.push((revert, scenario, property));
            continue;
        };
        let steps = listed(&steps);
        writeln!(text, "{revert:?} breaks: {property}\n  in: {scenario}\n{steps}")
            .expect("a string");
    }
    assert!(missing.is_empty(), "not shown: {missing:#?}");
    if only.is_some() {
        return print!("{text}");
    }
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/model/counterexamples.txt");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(file, &text).expect("the file is written");
    }
    let before = std::fs::read_to_string(file).expect("the file is read");
    assert!(before == text, "other counterexamples, see UPDATE:\n{text}");
}
