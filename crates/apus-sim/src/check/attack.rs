//! Datagrams of an attacker on the path: it sees all records and flights, and sends any of them again, changed or not.

use crate::check::scenario::FaultType;
use crate::check::seen::Datagram;
use crate::check::world::{World, WorldEvent};

impl World<'_> {
    /// Whether an attacker records datagrams.
    pub(super) fn is_watched(&self) -> bool {
        self.scenario.faults.iter().any(|fault| {
            matches!(
                fault.kind,
                FaultType::Attack { .. } | FaultType::Hostile { .. } | FaultType::Forged { .. }
            )
        })
    }

    /// Sends the next datagram of an attacker.
    pub(super) fn attack(&mut self) {
        let sealing = self.sealing.as_mut().expect("a sealed world");
        let forged = sealing.seen.forge(&mut self.rng, &self.addresses.of);
        let Some(Datagram { from, to, bytes }) = forged else { return };
        self.tally.faults += 1;
        self.disturb(&bytes);
        self.note(|| format!("the attacker sends {} bytes to {to:?} as {from:?}", bytes.len()));
        let arrive = WorldEvent::Arrive { to, from, sender: None, packet: bytes };
        self.schedule(self.now + self.scenario.delay, arrive);
    }
}
