//! Scenarios of sealed nodes: those of all seeds, with short-lived keys and an attacker on the path.

use std::time::Duration;

use apus_load::seeded;
use apus_seal::{OVERHEAD, SealLimits};

use crate::chance::{below, happens};
use crate::check::scenario::{Fault, FaultType, Scenario, micros};

/// Least time between two handshakes of a path.
const REKEY_MIN: Duration = Duration::from_millis(20);

/// The parameters of sealing in a run.
#[derive(Clone, Debug)]
pub(super) struct SealPlan {
    pub(super) limits: SealLimits,
    /// Time between two handshakes of a path.
    pub(super) rekey: Duration,
    pub(super) lifetime: Duration,
    /// Upper bound on the time of public-key work, in µs.
    pub(super) work_us: u32,
    /// A service, and a node that its rule does not name.
    pub(super) denied: Option<(usize, usize)>,
}

impl SealPlan {
    /// The parameters for a scenario. Keys are so short-lived that they end in the middle of messages.
    pub(super) fn new(scenario: &Scenario) -> Self {
        let mut rng = seeded(scenario.seed ^ 0x7365_616c);
        let rng = &mut rng;
        let mut limits = SealLimits::default();
        if happens(rng, 700_000) {
            // A key outlasts the bytes that a sender sends before any answer.
            let key_bytes = [128 << 10, 256 << 10, 1 << 20][below(rng, 3) as usize];
            limits.key_bytes = key_bytes.max(4 * scenario.mtu as u64);
        }
        if happens(rng, 500_000) {
            limits.key_time = micros(1_000 << below(rng, 12));
        }
        let active = scenario.quiet_from.max(Duration::from_millis(5));
        let rekey = active / [1, 3, 10, 30][below(rng, 4) as usize];
        // A handshake takes a small part of the time between two of them.
        let rekey = rekey.max(REKEY_MIN);
        let rekey = if happens(rng, 600_000) { rekey } else { Duration::from_secs(3600) };
        // Some keys end before they would be refreshed.
        let lifetime = if happens(rng, 200_000) { rekey.mul_f64(0.7) } else { rekey * 2 };
        let work_us = [1, 150, 2_000][below(rng, 3) as usize];
        let mut node = || below(rng, scenario.nodes as u32) as usize;
        let (service, client) = (node(), node());
        let denied = (service != client && happens(rng, 250_000)).then_some((service, client));
        #[cfg(feature = "holes")]
        {
            limits.hole = scenario.hole.and_then(crate::check::holes::of_associations);
        }
        Self { limits, rekey, lifetime, work_us, denied }
    }
}

/// Seals the packets of a scenario, and adds an attacker on the path to most scenarios.
pub(super) fn seal(scenario: &mut Scenario) {
    let mut rng = seeded(scenario.seed.wrapping_mul(0xD134_2543_DE82_EF95) ^ 0x7365_616c_6564);
    let rng = &mut rng;
    scenario.is_sealed = true;
    // Datagrams stay as long as they were.
    scenario.mtu -= OVERHEAD;
    let span = scenario.quiet_from.max(Duration::from_millis(5));
    let part = |rng: &mut _| span.mul_f64(f64::from(below(rng, 1_000)) / 1_000.0);
    if happens(rng, 600_000) {
        let from = part(rng);
        let until = from + part(rng);
        let packets = [20, 200, 1_000][below(rng, 3) as usize];
        scenario.faults.push(Fault { from, until, kind: FaultType::Attack { packets } });
    }
    if happens(rng, 50_000) {
        let node = below(rng, scenario.nodes as u32) as usize;
        let from = part(rng);
        let until = from + part(rng);
        scenario.faults.push(Fault { from, until, kind: FaultType::Refuse { node } });
    }
    if happens(rng, 50_000) {
        let node = below(rng, scenario.nodes as u32) as usize;
        let from = part(rng);
        scenario.faults.push(Fault { from, until: from, kind: FaultType::Rename { node } });
    }
    if happens(rng, 150_000) {
        let from = part(rng);
        let until = from + part(rng);
        let packets = [5, 50, 300][below(rng, 3) as usize];
        scenario.faults.push(Fault { from, until, kind: FaultType::Reports { packets } });
    }
    scenario.settle();
}
