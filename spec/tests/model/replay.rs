//! Walks of the model, taken by two endpoints of `apus-proto`: the same packets are sent, the same requests executed, and the
//! same calls answered, failed and refused. So the model cannot drift from the core.

use apus_model::{Action, SCENARIOS, Scenario, State, WIDER, World};
use stateright::Model;

use crate::twin::Twin;

/// Walks per scenario. With `WALKS=N` other ones.
const WALKS: u64 = 100;
const STEPS: usize = 60;

/// Random numbers, the same in every run (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

/// Returns whether endpoints can take the steps of a scenario: they have no command to forget a peer, and memory is below them.
fn is_replayed(scenario: &Scenario) -> bool {
    !scenario.faults.has_memory && scenario.faults.evictions == 0
}

/// Walks at random, and returns the steps and the first difference.
fn walk(world: &World, seed: u64) -> (Vec<Action>, Result<(), String>) {
    let mut random = Random(seed);
    let mut state = world.init_states().remove(0);
    let (mut twin, mut steps) = (Twin::new(&state), Vec::new());
    for _ in 0..STEPS {
        let mut actions = Vec::new();
        world.actions(&state, &mut actions);
        let next = |action: Action| {
            // An endpoint asks for a proof once in an RTO, whether a node moves or an attacker repeats its packets.
            if matches!(action, Action::Forge(_)) {
                return None;
            }
            let after = world.after(&state, action)?;
            world.within_boundary(&after).then_some((action, after))
        };
        let possible: Vec<(Action, State)> = actions.into_iter().filter_map(next).collect();
        if possible.is_empty() {
            break;
        }
        let (action, after) = possible[random.below(possible.len())].clone();
        steps.push(action);
        if let Err(difference) = twin.step(&state, action, &after) {
            return (steps, Err(difference));
        }
        if twin.is_limited {
            break;
        }
        state = after;
    }
    (steps, Ok(()))
}

#[test]
fn walks_of_the_model_are_walks_of_the_core() {
    let walks = std::env::var("WALKS").ok().and_then(|text| text.parse().ok()).unwrap_or(WALKS);
    let mut failed = Vec::new();
    for scenario in SCENARIOS.into_iter().chain(WIDER).filter(is_replayed) {
        let world = World { scenario, revert: None };
        let (mut wrong, mut taken) = (0, 0);
        let mut shortest: Option<(u64, Vec<Action>, String)> = None;
        for seed in 0..walks {
            let (steps, result) = walk(&world, seed);
            taken += steps.len();
            if let Err(difference) = result {
                wrong += 1;
                if shortest.as_ref().is_none_or(|(_, before, _)| steps.len() < before.len()) {
                    shortest = Some((seed, steps, difference));
                }
            }
        }
        println!("{walks} walks, {taken} steps, {wrong} differ: {}", scenario.name);
        failed.extend(shortest.map(|it| (scenario.name, it)));
    }
    for (name, (seed, steps, difference)) in &failed {
        println!("\n{name}, seed {seed}: {difference}");
        steps.iter().for_each(|step| println!("  {step:?}"));
    }
    assert!(failed.is_empty());
}
