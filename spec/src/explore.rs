//! Exploration of a world, breadth first: the first counterexample is a shortest one.

use std::fmt::Write as _;

use stateright::{Checker, Expectation, HasDiscoveries, Model, Path};

use crate::model::{Action, World};
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
    /// Properties that do not hold, with the steps to the first state that shows it; none for a state that is not reached.
    pub failures: Vec<(&'static str, Vec<Action>)>,
}

/// Explores every state of a world, or, if `until` names a property, up to the first state that breaks it.
#[must_use]
pub fn explore(world: &World, until: Option<&'static str>) -> Explored {
    let finish = until.map_or(HasDiscoveries::All, |name| HasDiscoveries::AnyOf([name].into()));
    let checker = world.clone().checker().finish_when(finish).target_state_count(STEPS_MAX);
    let checker = checker.spawn_bfs().join();
    let is_complete = checker.state_count() < STEPS_MAX;
    let mut failures = Vec::new();
    for property in world.properties() {
        let found = checker.discovery(property.name);
        let is_reached = property.expectation == Expectation::Sometimes;
        if found.is_some() != is_reached {
            let steps = found.map(Path::into_actions).unwrap_or_default();
            failures.push((property.name, steps));
        }
    }
    let (states, depth) = (checker.unique_state_count(), checker.max_depth() - 1);
    Explored { states, depth, is_complete, failures }
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
