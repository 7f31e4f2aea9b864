//! A switch with a port for each node: strict priority, a bounded queue for each level.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use apus_wire::PathId;

use apus_proto::Time;

use super::Flying;

/// Bytes of a packet on the wire beyond its Homa bytes.
const OVERHEAD: u64 = 70;

#[derive(Debug)]
pub(crate) struct Switch {
    mbps: u64,
    /// Bytes that each level of a port can hold.
    capacity: u64,
    /// Period of each pause and length of its first part: packets that arrive in the first part are read at its end, because nodes
    /// do not run all the time.
    pub(crate) pauses: Option<(Duration, Duration)>,
    ports: BTreeMap<PathId, Port>,
}

#[derive(Debug, Default)]
struct Port {
    levels: [VecDeque<Flying>; 8],
    queued: [u64; 8],
    /// Time until which a packet is on the wire.
    busy: Time,
}

impl Switch {
    pub(crate) fn new(mbps: u64, capacity: u64) -> Self {
        Self { mbps, capacity, pauses: None, ports: BTreeMap::new() }
    }

    pub(super) fn take(&mut self, level: usize, flying: Flying) {
        let port = self.ports.entry(flying.to).or_default();
        let bytes = flying.bytes.len() as u64 + OVERHEAD;
        if port.queued[level] + bytes > self.capacity {
            return; // Lost.
        }
        port.queued[level] += bytes;
        port.levels[level].push_back(flying);
    }

    /// Returns the time at which a port with queued packets is free.
    pub(super) fn next(&self) -> Option<Time> {
        let waiting = self.ports.values().filter(|port| port.queued != [0; 8]);
        waiting.map(|port| port.busy).min()
    }

    /// Returns the packets that go onto the wires now, and their times of arrival.
    pub(super) fn forward(&mut self, now: Time) -> Vec<(Time, Flying)> {
        let mut forwarded = Vec::new();
        for port in self.ports.values_mut().filter(|port| port.busy <= now) {
            let Some(level) = (0..8).rev().find(|&level| port.queued[level] > 0) else { continue };
            let flying = port.levels[level].pop_front().expect("it has bytes");
            let bytes = flying.bytes.len() as u64 + OVERHEAD;
            port.queued[level] -= bytes;
            port.busy = now + Duration::from_nanos(bytes * 8_000 / self.mbps);
            forwarded.push((read_at(port.busy, self.pauses), flying));
        }
        forwarded
    }
}

fn read_at(at: Time, pauses: Option<(Duration, Duration)>) -> Time {
    let Some((span, pause)) = pauses else { return at };
    let within = at.as_nanos() % span.as_nanos() as u64;
    at + pause.saturating_sub(Duration::from_nanos(within))
}
