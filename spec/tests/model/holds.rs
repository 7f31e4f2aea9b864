//! Every property holds in every state of every scenario, and every interesting state is reached.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::time::Instant;

use apus_model::{SCENARIOS, Scenario, State, WIDER, World, explore, listed};
use stateright::Model as _;

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

/// Returns the regular steps of a world that change more than addresses, as the states before and after, without their addresses.
fn regular_steps(world: &World) -> Vec<(u64, u64)> {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    let hash = |state: &State| hasher.hash_one(state);
    let mut next = world.init_states();
    let (mut seen, mut steps) = (HashSet::new(), Vec::new());
    while let Some(state) = next.pop() {
        let before = hash(&state.without_addresses());
        let afters = world.regular(&state).into_iter().filter_map(|it| world.after(&state, it));
        let afters = afters.filter(|it| world.within_boundary(it));
        steps.extend(afters.map(|it| (before, hash(&it.without_addresses()))));
        let mut actions = Vec::new();
        world.actions(&state, &mut actions);
        let afters = actions.into_iter().filter_map(|it| world.after(&state, it));
        next.extend(afters.filter(|it| world.within_boundary(it) && seen.insert(hash(it))));
    }
    steps.sort_unstable();
    steps.dedup();
    steps.retain(|(before, after)| before != after);
    steps
}

/// Returns whether no series of steps comes back to where it began: states without a step into them are taken away, until none is
/// left.
fn come_to_an_end(steps: &[(u64, u64)]) -> bool {
    let mut into: BTreeMap<u64, usize> = BTreeMap::new();
    for &(before, after) in steps {
        into.entry(before).or_default();
        *into.entry(after).or_default() += 1;
    }
    let mut free: Vec<u64> = into.iter().filter(|it| *it.1 == 0).map(|it| *it.0).collect();
    let mut taken = 0;
    while let Some(state) = free.pop() {
        taken += 1;
        let begin = steps.partition_point(|it| it.0 < state);
        for (_, after) in steps[begin..].iter().take_while(|it| it.0 == state) {
            let left = into.get_mut(after).expect("a state");
            *left -= 1;
            free.extend((*left == 0).then_some(*after));
        }
    }
    taken == into.len()
}

/// So every call ends, since none waits for ever.
#[test]
fn regular_steps_come_to_an_end_but_for_addresses() {
    for scenario in SCENARIOS {
        let steps = regular_steps(&World { scenario, revert: None });
        assert!(come_to_an_end(&steps), "{}", scenario.name);
    }
}
