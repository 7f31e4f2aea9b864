//! Forged reports of the network that a node cannot be reached (life-5). They come below sealing, so nothing shows that they are
//! forged: a report costs probes, and no call by itself.

use apus_wire::PathError;

use crate::chance::below;
use crate::check::ledger::Violation;
use crate::check::world::World;

/// What a report may say. It is about an address, so it concerns all paths to it.
const ERRORS: [PathError; 4] = [
    PathError::PortUnreachable,
    PathError::HostUnreachable,
    PathError::ProtocolUnreachable,
    PathError::PermissionDenied,
];

impl World<'_> {
    /// Gives a node the next forged report.
    pub(super) fn report(&mut self) -> Result<(), Violation> {
        let mut any = |count: usize| below(&mut self.rng, count as u32) as usize;
        let (node, about, error) =
            (any(self.nodes.len()), any(self.nodes.len()), any(ERRORS.len()));
        let (address, error) = (self.addresses.of[about], ERRORS[error]);
        if !self.nodes[node].up || self.nodes[node].paused.is_some() {
            return Ok(());
        }
        self.tally.faults += 1;
        self.note(|| format!("node {node} has a forged report about node {about}: {error}"));
        let paths = self.sealing().nodes[node].paths.iter();
        let paths: Vec<_> =
            paths.filter(|path| path.address == address).map(|path| path.path).collect();
        self.note_report(node, about);
        let local = self.local(node);
        for path in paths {
            self.work.disturbed_pair(node, about);
            self.nodes[node].endpoint.handle_path_error(local, path, error);
        }
        self.turn(node)
    }
}
