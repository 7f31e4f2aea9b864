//! Every property holds in every state of every scenario, and every interesting state is reached.

use std::fmt::Write as _;
use std::time::Instant;

use apus_model::{SCENARIOS, Scenario, WIDER, World, explore, listed};

/// Explores the scenarios, and prints the numbers of states and steps.
fn hold(scenarios: &[Scenario]) {
    let mut text = String::new();
    let only = std::env::var("ONLY").ok();
    let mut is_explored = false;
    for &scenario in scenarios {
        if only.as_ref().is_some_and(|it| !scenario.name.contains(it)) {
            continue;
        }
        is_explored = true;
        let (began, name) = (Instant::now(), scenario.name);
        let explored = explore(&World { scenario, revert: None });
        let (states, depth, seconds) =
            (explored.states, explored.depth, began.elapsed().as_secs_f64());
        assert!(explored.is_complete || name.starts_with("wider"), "{name} has too many states");
        let more = if explored.is_complete { "" } else { " and more" };
        println!("{states:>8}{more} states, {depth:>2} steps deep, {seconds:>4.1} s: {name}");
        for (property, steps) in explored.failures {
            write!(text, "\n{name}: {property}\n{}", listed(&steps))
                .expect("a string takes everything");
        }
    }
    assert!(text.is_empty(), "{text}");
    assert!(is_explored, "no scenario has {only:?} in its name");
}

#[test]
fn every_property_holds() {
    hold(&SCENARIOS);
}

#[test]
#[ignore = "takes minutes; .ci/deep runs it"]
fn every_property_holds_within_wider_bounds() {
    hold(&WIDER);
}
