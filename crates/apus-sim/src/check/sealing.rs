//! The sealed side of a world: the keys of its nodes, all records, and what an attacker has seen.

use apus_wire::PathId;

use crate::check::cipher::Cipher;
use crate::check::keys::{Keys, world_key};
use crate::check::ledger::Violation;
use crate::check::records::Records;
use crate::check::scenario::Scenario;
use crate::check::seal_plan::SealPlan;
use crate::check::seen::Seen;

/// The first bytes of a flight, which no packet has.
pub(super) const FLIGHT: [u8; 4] = [0xFF, 0xFF, 0xFF, 0xF1];

/// The content of a record.
pub(super) enum Content<'a> {
    /// A payload, and the header behind it.
    Parts(&'a [u8], &'a [u8]),
    Whole(&'a [u8]),
}

/// The sealed side of a world.
pub(super) struct Sealing {
    pub(super) plan: SealPlan,
    /// The key of all certificates.
    pub(super) key: [u8; 16],
    pub(super) nodes: Vec<Keys>,
    pub(super) records: Records,
    pub(super) seen: Seen,
    /// Records that came before their keys, which are there now.
    pub(super) kept: Vec<(usize, PathId, Vec<u8>)>,
    /// A rule that a handshake has broken.
    pub(super) violation: Option<Violation>,
}

impl Sealing {
    pub(super) fn new(scenario: &Scenario) -> Self {
        Cipher::begin(scenario.is_real);
        let plan = SealPlan::new(scenario);
        let mut rng = apus_load::seeded(scenario.seed ^ 0x6b65_7973);
        Self {
            nodes: (0..scenario.nodes).map(|node| Keys::new(node, &plan)).collect(),
            key: world_key(&mut rng),
            plan,
            records: Records::default(),
            seen: Seen::default(),
            kept: Vec::new(),
            violation: None,
        }
    }

    /// Discards the keys of a node.
    pub(super) fn restart(&mut self, node: usize) {
        self.nodes[node] = Keys::new(node, &self.plan);
        self.kept.retain(|(of, ..)| *of != node);
    }

    pub(super) fn keep(&mut self, node: usize, from: PathId, datagram: Vec<u8>) {
        self.kept.push((node, from, datagram));
    }
}
