//! Scenarios weighted towards past faults: nodes that are client and server at once, restarts within milliseconds, addresses that
//! change hands, pauses longer than any node remembers, forged packets, small packets on fast links, first contacts on bad
//! networks, and hostile nodes with a token.

use std::ops::Range;
use std::time::Duration;

use apus_load::{Random, seeded};

use crate::chance::{below, happens};
use crate::check::scenario::{
    Fault, FaultType, Manner, PlannedCall, REQUEST_MIN, Scenario, call, config, fault, micros,
    millis,
};

/// The main fault of a scenario.
#[derive(Clone, Copy, Debug)]
enum Theme {
    /// Nodes restart within 10 to 500 ms, some more than once.
    Restarts,
    /// Nodes move to another address; the old address is unused, or another node's.
    Moves,
    /// A node is paused for 120 s or longer.
    Pause,
    /// A node is cut off for 120 s or longer.
    Cut,
    /// A sender that sees no packet forges packets of real nodes.
    Forged,
    /// Many small calls between a few nodes over short links.
    Small,
    /// All nodes make first contact while packets are lost and copied.
    FirstContacts,
}

const THEMES: [Theme; 10] = [
    Theme::Restarts,
    Theme::Restarts,
    Theme::Restarts,
    Theme::Moves,
    Theme::Pause,
    Theme::Cut,
    Theme::Forged,
    Theme::Forged,
    Theme::Small,
    Theme::FirstContacts,
];

/// Duration of an absence, in seconds: around the least time for which servers remember calls.
const REMEMBERED_S: Range<u32> = 115..150;

/// Seeds with weighted scenarios. Seeds outside keep the scenarios that they had before weighted ones existed.
const WEIGHTED: Range<u64> = 1_000_000..2_000_000;
/// Seeds from this one on have weighted scenarios as well.
const WEIGHTED_FROM: u64 = 10_000_000_000;

/// The scenario of a seed, weighted or not.
pub(super) fn scenario(seed: u64) -> Scenario {
    if !WEIGHTED.contains(&seed) && seed < WEIGHTED_FROM {
        return Scenario::new(seed);
    }
    let mut rng = seeded(seed.wrapping_mul(0xD134_2543_DE82_EF95) ^ 0x0077_6569_6768_7473);
    let theme = THEMES[below(&mut rng, THEMES.len() as u32) as usize];
    let second = happens(&mut rng, 300_000);
    let second = second.then(|| THEMES[below(&mut rng, THEMES.len() as u32) as usize]);
    let nodes = 2 + below(&mut rng, 3) as usize;
    let peer_timeout = millis([100, 250, 500, 1000][below(&mut rng, 4) as usize]);
    let (config, total_budget) = config(&mut rng, peer_timeout, false);
    let mut scenario = Scenario {
        seed,
        nodes,
        config,
        peer_timeout,
        total_budget,
        calls: Vec::new(),
        faults: Vec::new(),
        delay: micros(1 + below(&mut rng, 100)),
        gbps: [1, 10, 25, 100][below(&mut rng, 4) as usize],
        mtu: [576, 1472, 1472, 8972, 65_507][below(&mut rng, 5) as usize],
        is_sealed: false,
        tight: false,
        quiet_from: Duration::ZERO,
        hole: None,
        is_real: false,
    };
    // Several calls are in progress at a time between the same two nodes, in both directions.
    let span = millis([2, 20, 100, 600][below(&mut rng, 4) as usize] + below(&mut rng, 10));
    let (count, mut room) = (1 + below(&mut rng, 50), 4_000_000);
    scenario.calls = (0..count).map(|_| call(&mut rng, nodes, span, &mut room)).collect();
    for theme in [Some(theme), second].into_iter().flatten() {
        add(&mut rng, &mut scenario, theme, span);
    }
    if happens(&mut rng, 400_000) {
        let more = fault(&mut rng, nodes, span);
        // With undetected damage, a run checks little.
        if !matches!(more.kind, FaultType::CorruptUnnoticed { .. }) {
            scenario.faults.push(more);
        }
    }
    attacker(&mut scenario, span);
    scenario.settle();
    scenario
}

/// Adds an attacker that makes first contact to one scenario of ten.
fn attacker(scenario: &mut Scenario, span: Duration) {
    // A separate generator keeps the other scenarios unchanged.
    let mut rng = seeded(scenario.seed ^ 0x006d_6574);
    if happens(&mut rng, 100_000) {
        let from = part(&mut rng, span);
        let until = from + part(&mut rng, span);
        let kind = FaultType::Hostile { packets: 1 + below(&mut rng, 300), manner: Manner::Met };
        scenario.faults.push(Fault { from, until, kind });
    }
}

fn add(rng: &mut Random, scenario: &mut Scenario, theme: Theme, span: Duration) {
    let node = below(rng, scenario.nodes as u32) as usize;
    let from = part(rng, span);
    match theme {
        Theme::Restarts => restarts(rng, scenario, span),
        Theme::Moves => {
            for _ in 0..=below(rng, 3) {
                let node = below(rng, scenario.nodes as u32) as usize;
                let heir =
                    (node + 1 + below(rng, scenario.nodes as u32 - 1) as usize) % scenario.nodes;
                let heir = happens(rng, 500_000).then_some(heir);
                let from = part(rng, span);
                scenario.faults.push(Fault {
                    from,
                    until: from,
                    kind: FaultType::Move { node, heir },
                });
            }
        }
        Theme::Pause => {
            let queue = [0, 3, 1_000][below(rng, 3) as usize];
            absence(rng, scenario, from, span, FaultType::Pause { node, queue });
        }
        Theme::Cut => absence(rng, scenario, from, span, FaultType::LinkDown { node }),
        Theme::Forged => {
            for _ in 0..=below(rng, 3) {
                let source = below(rng, scenario.nodes as u32) as usize;
                let target =
                    (source + 1 + below(rng, scenario.nodes as u32 - 1) as usize) % scenario.nodes;
                let packets = 1 + below(rng, 300);
                let from = if happens(rng, 300_000) { Duration::ZERO } else { part(rng, span) };
                let until = from + part(rng, span);
                let kind = FaultType::Forged { source, target, packets };
                scenario.faults.push(Fault { from, until, kind });
            }
        }
        Theme::Small => {
            (scenario.delay, scenario.gbps) = (micros(1 + below(rng, 5)), 100);
            let gather = [2, 50, 2_000][below(rng, 3) as usize];
            for call in &mut scenario.calls {
                call.at = micros(below(rng, gather));
                call.request = REQUEST_MIN + below(rng, 100);
                call.response = REQUEST_MIN + below(rng, 100);
            }
        }
        Theme::FirstContacts => first_contacts(rng, scenario),
    }
}

/// A time in the span.
fn part(rng: &mut Random, span: Duration) -> Duration {
    span.mul_f64(f64::from(below(rng, 1_000)) / 1_000.0)
}

fn restarts(rng: &mut Random, scenario: &mut Scenario, span: Duration) {
    for _ in 0..=below(rng, 3) {
        let node = below(rng, scenario.nodes as u32) as usize;
        let from = part(rng, span);
        let until = from + millis([10, 20, 100, 500][below(rng, 4) as usize]);
        scenario.faults.push(Fault { from, until, kind: FaultType::Restart { node } });
        // The node and its peers resume their calls as soon as it is back.
        for _ in 0..below(rng, 6) {
            let mut more = follow(rng, scenario);
            let of_node = if happens(rng, 500_000) { &mut more.from } else { &mut more.to };
            *of_node = node;
            if more.from != more.to {
                more.at = until + micros(below(rng, 3_000));
                scenario.calls.push(more);
            }
        }
    }
}

/// A call like one of the existing calls.
fn follow(rng: &mut Random, scenario: &Scenario) -> PlannedCall {
    let call = scenario.calls[below(rng, scenario.calls.len() as u32) as usize];
    PlannedCall { deadline: None, abort: None, ..call }
}

/// A fault that keeps a node away for longer than its peers remember it, with calls before, during and after it. Some calls are in
/// service when it begins.
fn absence(
    rng: &mut Random,
    scenario: &mut Scenario,
    from: Duration,
    span: Duration,
    kind: FaultType,
) {
    let until = from
        + Duration::from_millis(u64::from(REMEMBERED_S.start) * 1_000)
        + millis(below(rng, (REMEMBERED_S.end - REMEMBERED_S.start) * 1_000));
    scenario.faults.push(Fault { from, until, kind });
    for index in 0..scenario.calls.len() {
        match below(rng, 6) {
            0 => {
                let away = until - from;
                scenario.calls[index].at = from + part(rng, away);
            }
            1 => scenario.calls[index].at += until,
            2 => scenario.calls[index].service = micros(below(rng, 1_000_000)),
            3 => scenario.calls[index].at = from.saturating_sub(micros(below(rng, 200))),
            _ => {}
        }
        let call = &mut scenario.calls[index];
        call.deadline = call.deadline.filter(|_| happens(rng, 300_000));
    }
    // The last packets before the pause are sometimes lost.
    if happens(rng, 500_000) {
        let before = from.saturating_sub(micros(below(rng, 2_000)));
        let kind = FaultType::Loss { per_million: 500_000, only: None };
        scenario.faults.push(Fault { from: before, until: from + part(rng, span), kind });
    }
}

fn first_contacts(rng: &mut Random, scenario: &mut Scenario) {
    let gather = [1, 100, 5_000][below(rng, 3) as usize];
    scenario.calls.iter_mut().for_each(|call| call.at = micros(below(rng, gather)));
    let until = millis(1 + below(rng, 60));
    let often = [20_000, 200_000, 500_000][below(rng, 3) as usize];
    let late = micros([20, 2_000, 100_000][below(rng, 3) as usize]);
    let kinds = [
        FaultType::Loss { per_million: often, only: None },
        FaultType::Duplicate { per_million: often, late },
        FaultType::Reorder { per_million: often, late },
    ];
    for kind in kinds {
        if happens(rng, 600_000) {
            scenario.faults.push(Fault { from: Duration::ZERO, until, kind });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weighted_seeds_bring_what_others_do_not() {
        let faults = |seeds: Range<u64>| -> Vec<FaultType> {
            let all = seeds.flat_map(|seed| scenario(seed).faults);
            all.map(|fault| fault.kind).collect()
        };
        let new = |kind: &FaultType| {
            matches!(
                kind,
                FaultType::Move { .. } | FaultType::Pause { .. } | FaultType::Forged { .. }
            )
        };
        assert!(!faults(999_800..1_000_000).iter().any(new));
        assert!(!faults(2_000_000..2_000_200).iter().any(new));
        for weighted in [faults(1_000_000..1_000_200), faults(10_000_000_000..10_000_000_200)] {
            assert!(weighted.iter().any(|kind| matches!(kind, FaultType::Move { .. })));
            assert!(weighted.iter().any(|kind| matches!(kind, FaultType::Pause { .. })));
            assert!(weighted.iter().any(|kind| matches!(kind, FaultType::Forged { .. })));
        }
    }
}
