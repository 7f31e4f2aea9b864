//! The fault campaign: many small runs on a faulty network, each checked and each repeatable.
//!
//! A seed makes a scenario: two to five nodes, up to eighty calls, up to four faults. The production core runs it with real bytes.
//! These rules hold in every run ([`Violation`] has one variant each):
//!
//! - requests and responses arrive with the bytes that were sent;
//! - no request is executed twice, in one run of its server or in several; an answered call was executed, and an error's claim
//!   about the execution is true;
//! - every call is answered unless a fault occurs for which calls may fail;
//! - every call ends within nine peer timeouts and half a second after the last fault;
//! - a call ends by its deadline; an ended or aborted call is not reported again;
//! - no node holds more bytes than its budget, and none at the end of the run;
//! - an attacker is not sent more bytes than it sent, and a request forged in the name of a node is not executed;
//! - the packets of an RPC stay within a bound by its messages, the network's faults and its age, both in all and while no new data
//!   arrives;
//! - in a sealed run, a node opens nothing that was not sealed for it and for that path, opens no record again and refuses none as
//!   opened that it has not opened; no number of a path is used twice, and no key seals twice with one nonce; no hint ends keys; a path
//!   keeps its name, and no request of a node is executed that the rule of the service does not name;
//! - nothing panics, and no node asks to be called without end.
//!
//! | module | contents |
//! |---|---|
//! | `addresses` | the addresses of the nodes |
//! | `scenario` | the scenario of a seed |
//! | `weighted` | the scenarios of seeds from 1,000,000 to 1,999,999 and from 10,000,000,000 on |
//! | `world` | one run: nodes, calls and faults over time |
//! | `network` | packets between the nodes |
//! | `work` | bounds on the number of packets |
//! | `hostile` | packets of a hostile node |
//! | `ledger` | the state of every call; violations |
//! | `seal_plan` | the scenarios of sealed nodes |
//! | `sealed` | records between the nodes and the network |
//! | `sealing` | the sealed side of a world |
//! | `keys` | the paths, keys and handshakes of a node |
//! | `flights`, `script` | handshakes, and the TLS in them |
//! | `records` | every record, to compare with the opened ones |
//! | `attack`, `seen` | datagrams of an attacker on the path |
//! | `reports` | forged reports of the network |
//! | `rights` | the rules of services |
//! | `holes` | rules that tests break |
//! | `excuses`, `excused` | calls that may fail because of them: the list, and the part of a world that makes and reads it |
//! | `fake_aead` | the cipher |
//! | `cipher` | the same, or AES-128-GCM in a test |

mod addresses;
mod attack;
mod cipher;
mod compact;
mod excused;
mod excuses;
mod fake_aead;
mod flights;
mod holes;
mod hostile;
mod keys;
mod ledger;
mod network;
mod records;
mod reports;
mod rights;
mod scenario;
mod script;
mod seal_plan;
mod sealed;
mod sealing;
mod seen;
mod weighted;
mod work;
mod world;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use self::scenario::Scenario;
use self::world::World;

#[cfg(feature = "holes")]
pub use self::holes::Hole;
pub use self::ledger::Violation;
pub use self::world::Tally;

/// A part of a scenario, such as the result of minimizing a failure.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScenarioSubset {
    /// Whether the nodes speak sealed, with an attacker on the path.
    pub is_sealed: bool,
    /// Calls to make; all if absent.
    pub calls: Option<BTreeSet<usize>>,
    /// Faults to inject; all if absent.
    pub faults: Option<BTreeSet<usize>>,
    /// The rule that the nodes break, if any.
    #[cfg(feature = "holes")]
    pub hole: Option<Hole>,
    /// Whether records are sealed with AES-128-GCM instead of the fake cipher.
    #[cfg(feature = "aes")]
    pub is_real: bool,
}

/// A run that broke a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The part of its scenario that was run.
    pub part: ScenarioSubset,
    /// The broken rule.
    pub violation: Violation,
}

impl Failure {
    /// Arguments of `apus sim check` that reproduce the failure.
    #[must_use]
    pub fn replay(&self) -> String {
        let mut text = format!("--seeds {}..{} --log", self.seed, self.seed + 1);
        if self.part.is_sealed {
            text.push_str(" --sealed");
        }
        for (name, part) in [("calls", &self.part.calls), ("faults", &self.part.faults)] {
            if let Some(part) = part {
                let list: Vec<String> = part.iter().map(usize::to_string).collect();
                let list = if list.is_empty() { "none".to_owned() } else { list.join(",") };
                write!(text, " --{name} {list}").expect("a string takes everything");
            }
        }
        text
    }
}

/// The whole scenario of a seed.
fn whole(seed: u64, is_sealed: bool) -> Scenario {
    let mut scenario = weighted::scenario(seed);
    if is_sealed {
        seal_plan::seal(&mut scenario);
    }
    scenario
}

/// The scenario of a seed, reduced to a part. Calls keep their numbers, which are returned as well.
fn scenario(seed: u64, part: &ScenarioSubset) -> (Scenario, Vec<usize>) {
    let mut scenario = whole(seed, part.is_sealed);
    let mut numbers: Vec<usize> = (0..scenario.calls.len()).collect();
    if let Some(kept) = &part.calls {
        numbers.retain(|number| kept.contains(number));
        scenario.calls = numbers.iter().map(|&number| scenario.calls[number]).collect();
    }
    if let Some(kept) = &part.faults {
        let faults = std::mem::take(&mut scenario.faults).into_iter().enumerate();
        scenario.faults =
            faults.filter(|(i, _)| kept.contains(i)).map(|(_, fault)| fault).collect();
    }
    #[cfg(feature = "holes")]
    {
        scenario.hole = part.hole;
    }
    #[cfg(feature = "aes")]
    {
        scenario.is_real = part.is_real;
    }
    scenario.settle();
    (scenario, numbers)
}

fn attempt(scenario: &Scenario, log: &mut Option<Vec<String>>) -> Result<Tally, Violation> {
    let mut world = World::new(scenario, log.is_some());
    let result = catch_unwind(AssertUnwindSafe(|| world.run()));
    if log.is_some() {
        *log = world.log.take();
    }
    match result {
        Ok(result) => result.map(|()| world.tally),
        Err(panic) => {
            let message = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                .unwrap_or_default();
            Err(Violation::Panicked { message })
        }
    }
}

/// Runs one seed.
///
/// # Errors
///
/// The broken rule.
pub fn check(seed: u64, part: &ScenarioSubset) -> Result<Tally, Box<Failure>> {
    let (scenario, _) = scenario(seed, part);
    attempt(&scenario, &mut None)
        .map_err(|violation| Box::new(Failure { seed, part: part.clone(), violation }))
}

/// The log of a run, one line per event: the scenario first, then packets and events.
#[must_use]
pub fn log(seed: u64, part: &ScenarioSubset) -> Vec<String> {
    let (scenario, numbers) = scenario(seed, part);
    let mut lines = vec![format!(
        "seed {seed}: {} nodes, delay {:?}, {} Gb/s, packets of {} B, peer timeout {:?}",
        scenario.nodes, scenario.delay, scenario.gbps, scenario.mtu, scenario.peer_timeout
    )];
    lines.push(format!("{:?}", scenario.config));
    let faults = scenario.faults.iter().enumerate();
    lines.extend(faults.map(|(index, fault)| format!("fault {index}: {fault}")));
    let calls = scenario.calls.iter().enumerate();
    lines.extend(calls.map(|(index, call)| format!("#{index} (call {}): {call}", numbers[index])));
    let mut log = Some(Vec::new());
    let result = attempt(&scenario, &mut log);
    lines.extend(log.unwrap_or_default());
    lines.push(match result {
        Ok(tally) => format!("all checks passed: {tally:?}"),
        Err(violation) => format!("VIOLATION: {violation}"),
    });
    lines
}

/// Removes parts of a failing scenario that the failure does not need: faults first, then calls by halves. The smaller scenario
/// fails in the same way.
#[must_use]
pub fn minimize(failure: &Failure) -> Failure {
    let full = whole(failure.seed, failure.part.is_sealed);
    let all = |count: usize| (0..count).collect::<BTreeSet<usize>>();
    let mut best = failure.clone();
    let mut faults = best.part.faults.take().unwrap_or_else(|| all(full.faults.len()));
    let mut calls = best.part.calls.take().unwrap_or_else(|| all(full.calls.len()));
    let kind = std::mem::discriminant(&failure.violation);
    let fails = |calls: &BTreeSet<usize>, faults: &BTreeSet<usize>| {
        let (calls, faults) = (Some(calls.clone()), Some(faults.clone()));
        let part = ScenarioSubset { calls, faults, ..failure.part.clone() };
        check(failure.seed, &part)
            .err()
            .filter(|found| std::mem::discriminant(&found.violation) == kind)
    };
    for fault in faults.clone() {
        let fewer: BTreeSet<usize> = faults.iter().copied().filter(|&f| f != fault).collect();
        if let Some(found) = fails(&calls, &fewer) {
            (faults, best) = (fewer, *found);
        }
    }
    let mut step = calls.len().div_ceil(2);
    while step > 0 {
        for chunk in calls.iter().copied().collect::<Vec<_>>().chunks(step) {
            let fewer: BTreeSet<usize> =
                calls.iter().copied().filter(|call| !chunk.contains(call)).collect();
            if let Some(found) = fails(&fewer, &faults) {
                (calls, best) = (fewer, *found);
            }
        }
        step /= 2;
    }
    best.part = ScenarioSubset { calls: Some(calls), faults: Some(faults), ..best.part };
    best
}
