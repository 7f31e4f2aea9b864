//! Exploration of a world, breadth first. A counterexample is a shortest one.

use std::collections::{HashSet, VecDeque};
use std::fmt::Write as _;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};

use stateright::{Checker, Expectation, HasDiscoveries, Model};

use crate::model::{ALWAYS, Action, World};
use crate::packet::Packet;

/// Upper bound on the steps that are explored.
const STEPS_MAX: usize = 5_000_000;

/// The result of an exploration.
#[derive(Debug)]
pub struct Explored {
    /// Number of different states.
    pub states: usize,
    /// Number of steps to the farthest state.
    pub depth: usize,
    /// Whether these are all states.
    pub is_complete: bool,
    /// Properties that do not hold, with the steps to the nearest state that shows it; none for a state that is not reached.
    pub failures: Vec<(&'static str, Vec<Action>)>,
}

/// Explores every state of a world.
#[must_use]
pub fn explore(world: &World) -> Explored {
    let checker = world.clone().checker().finish_when(HasDiscoveries::All);
    let checker = checker.target_state_count(STEPS_MAX).spawn_bfs().join();
    let is_complete = checker.state_count() < STEPS_MAX;
    let mut failures = Vec::new();
    for property in world.properties() {
        let is_reached = property.expectation == Expectation::Sometimes;
        if checker.discovery(property.name).is_some() != is_reached {
            failures
                .push((property.name, counterexample(world, property.name).unwrap_or_default()));
        }
    }
    let (states, depth) = (checker.unique_state_count(), checker.max_depth() - 1);
    Explored { states, depth, is_complete, failures }
}

/// Returns the steps to a nearest state that breaks a property. Stateright keeps another one: it looks at 1,500 states at a time,
/// and the last of them that breaks the property replaces the others.
#[must_use]
pub fn counterexample(world: &World, property: &str) -> Option<Vec<Action>> {
    let (_, holds) = ALWAYS.into_iter().find(|&(name, _)| name == property)?;
    // Each step to a new state, and the place of the step before.
    let mut steps: Vec<(usize, Action)> = Vec::new();
    let (mut seen, mut next) = (HashSet::new(), VecDeque::new());
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    next.extend(world.init_states().into_iter().map(|state| (state, usize::MAX)));
    while let Some((state, mut place)) = next.pop_front() {
        if !holds(world, &state) {
            let mut path = Vec::new();
            while let Some(&(before, action)) = steps.get(place) {
                path.push(action);
                place = before;
            }
            path.reverse();
            return Some(path);
        }
        let mut actions = Vec::new();
        world.actions(&state, &mut actions);
        for action in actions {
            let after = world.after(&state, action).filter(|it| world.within_boundary(it));
            if let Some(after) = after.filter(|it| seen.insert(hasher.hash_one(it))) {
                next.push_back((after, steps.len()));
                steps.push((place, action));
            }
        }
        if steps.len() > STEPS_MAX {
            return None;
        }
    }
    None
}

/// Returns a line for each step.
#[must_use]
pub fn listed(steps: &[Action]) -> String {
    let mut text = String::new();
    for step in steps {
        let written = match step {
            Action::Deliver(Packet { from, to, body }) => {
                writeln!(text, "  {from} to {to}: {body:?}")
            }
            _ => writeln!(text, "  {step:?}"),
        };
        written.expect("a string takes everything");
    }
    text
}
