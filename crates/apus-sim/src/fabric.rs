//! The network: packets, the ports where they wait, and the statistics of ports.

use apus_load::{Random, seeded};
use serde::{Deserialize, Serialize};

use crate::chance;
use crate::queue::{Event, EventQueue, What};
use crate::topology::{Graph, LinkEnd, Links};

/// The index of no packet.
const NONE: u32 = u32::MAX;

/// The buffer space of a switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Buffers {
    /// No limit, so that no packet is lost, as in the Homa paper's simulations.
    #[default]
    Unlimited,
    /// A limit of bytes per port. A packet that does not fit is lost.
    PortBytes(u64),
    /// A number of bytes per switch, which its ports share: a port may hold as much as is free (dynamic threshold with factor 1;
    /// Choudhury and Hahne, 1998).
    SharedBytes(u64),
}

impl Buffers {
    /// Upper bound on bytes that wait at one port.
    pub(crate) fn of_port(self) -> u64 {
        match self {
            Self::Unlimited => u64::MAX,
            Self::PortBytes(bytes) | Self::SharedBytes(bytes) => bytes,
        }
    }
}

/// The order in which a port sends packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Discipline {
    /// The highest of eight levels first, each level in order of arrival.
    Levels,
    /// The lowest rank first. A port holds at most this many bytes and drops the highest rank: pFabric.
    Ranked { bytes: u64 },
}

/// A packet in flight. `H` is the transport's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet<H> {
    pub(crate) header: H,
    /// The transport's number of the packet's message.
    pub(crate) message: u32,
    /// Bytes on the wire, with all headers and gaps.
    pub(crate) wire: u32,
    /// Its rank for [`Discipline::Ranked`].
    pub(crate) rank: u32,
    pub(crate) from: u16,
    pub(crate) to: u16,
    /// Its level for [`Discipline::Levels`]: 0 to 7, 7 first.
    pub(crate) level: u8,
    /// Whether a full port has marked it (ECN).
    pub(crate) marked: bool,
    next: u32,
}

impl<H> Packet<H> {
    pub(crate) fn new(header: H, from: u32, to: u32, wire: u32) -> Self {
        let (from, to) = (from as u16, to as u16);
        Self { header, message: NONE, wire, rank: 0, from, to, level: 0, marked: false, next: NONE }
    }
}

/// A port and its queues.
#[derive(Clone, Debug)]
struct Port {
    busy_until: u64,
    picos_per_byte: u64,
    /// Time from the last bit sent until the next node acts on the packet, in ps.
    latency: u64,
    /// Upper bound on bytes that wait here, besides the switch's limit.
    limit: u64,
    /// Waiting bytes from which packets are marked.
    mark_bytes: u64,
    to: LinkEnd,
    switch: u32,
    layer: u32,
    /// Whether an event is scheduled for the time at which the port is free.
    waking: bool,
    is_nic: bool,
    /// Bit mask of the levels that hold packets.
    occupied: u8,
    first: [u32; 8],
    last: [u32; 8],
    ranked: Vec<u32>,
    queued: u64,
    /// Time at which `queued` last changed, for its mean over time.
    changed: u64,
}

/// Statistics of the ports of one layer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layer {
    pub(crate) ports: u64,
    /// Bytes times picoseconds.
    pub(crate) area: u128,
    pub(crate) max: u64,
    /// Number of arriving packets by queue length in KiB (rounded up), up to the longest queue. A histogram of relative precision
    /// is neither exact to a KiB at every length nor as cheap as one addition per packet.
    pub(crate) queue_len_histogram: Vec<u64>,
    /// Packets sent.
    pub(crate) packets: u64,
    /// Bytes sent.
    pub(crate) bytes: u64,
    /// Packets lost.
    pub(crate) lost: u64,
}

impl Layer {
    /// Notes the queue length that an arriving packet finds.
    fn note_queue_len(&mut self, bytes: u64) {
        let kib = bytes.div_ceil(1024) as usize;
        if kib >= self.queue_len_histogram.len() {
            self.queue_len_histogram.resize(kib + 1, 0);
        }
        self.queue_len_histogram[kib] += 1;
    }

    /// Percentile of the queue lengths that arriving packets find, in bytes.
    pub(crate) fn percentile(&self, percent: f64) -> u64 {
        let total: u64 = self.queue_len_histogram.iter().sum();
        let mut left = apus_load::stats::rank(total, percent);
        for (kib, &count) in self.queue_len_histogram.iter().enumerate() {
            if count >= left {
                return (kib as u64 * 1024).min(self.max);
            }
            left -= count;
        }
        self.max
    }
}

#[derive(Debug)]
pub(crate) struct Fabric<H> {
    pub(crate) graph: Graph,
    /// Time of a packet that bypasses the network, in ps, by the kind of path; `None` if the network carries all packets.
    bypass_ps: Option<Vec<u64>>,
    events: EventQueue,
    pub(crate) now: u64,
    packets: Vec<Packet<H>>,
    free: u32,
    ports: Vec<Port>,
    /// Bytes held by each switch.
    held: Vec<u64>,
    discipline: Discipline,
    buffers: Buffers,
    spray: bool,
    jitter: u64,
    loss_per_million: u32,
    rng: Random,
    pub(crate) layers: Vec<Layer>,
    /// Messages that arrived completely.
    pub(crate) finished: Vec<u32>,
    /// Messages whose numbers may be reused.
    pub(crate) retired: Vec<u32>,
    pub(crate) hops: u64,
    pub(crate) events_done: u64,
    /// A fingerprint of all events.
    pub(crate) hash: u64,
}

/// A fabric's treatment of packets.
#[derive(Clone, Debug)]
pub(crate) struct Treatment {
    pub(crate) discipline: Discipline,
    pub(crate) buffers: Buffers,
    /// Upper bound on waiting bytes at a port of each layer.
    pub(crate) layer_bytes: Vec<u64>,
    /// Waiting bytes from which a port of 10 Gb/s marks packets, if switches mark. Faster ports have more in proportion, because the
    /// bytes of a round trip grow with the rate, but at most half of their buffer.
    pub(crate) mark_bytes: Option<u64>,
    /// Whether each packet takes its own path; otherwise each pair of hosts has one path.
    pub(crate) spray: bool,
    /// With one-way messages, the time of an answer that bypasses the network, in ps, by the kind of path.
    pub(crate) bypass_ps: Option<Vec<u64>>,
}

impl<H: Copy> Fabric<H> {
    pub(crate) fn new(graph: Graph, links: &Links, treatment: Treatment, seed: u64) -> Self {
        let mut layers = vec![Layer::default(); graph.layers.len()];
        let port = |outlet: &crate::topology::Outlet| {
            layers[outlet.layer].ports += 1;
            let is_nic = matches!(outlet.at, LinkEnd::Host(_));
            let limit =
                treatment.layer_bytes[outlet.layer].min(outlet.port_bytes.unwrap_or(u64::MAX));
            let room = treatment.buffers.of_port().min(limit);
            let mark_bytes = treatment
                .mark_bytes
                .map_or(u64::MAX, |at_10_gbps| (at_10_gbps * outlet.gbps / 10).min(room / 2));
            Port {
                busy_until: 0,
                picos_per_byte: 8_000 / outlet.gbps.max(1),
                latency: links.latency_ns(outlet) * 1000,
                limit,
                mark_bytes,
                to: outlet.to,
                switch: if let LinkEnd::Switch(switch) = outlet.at { switch } else { 0 },
                layer: outlet.layer as u32,
                waking: false,
                is_nic,
                occupied: 0,
                first: [NONE; 8],
                last: [NONE; 8],
                ranked: Vec::new(),
                queued: 0,
                changed: 0,
            }
        };
        let ports = graph.outlets.iter().map(port).collect();
        Self {
            held: vec![0; graph.switches],
            graph,
            bypass_ps: treatment.bypass_ps,
            events: EventQueue::new(),
            now: 0,
            packets: Vec::new(),
            free: NONE,
            ports,
            discipline: treatment.discipline,
            buffers: treatment.buffers,
            spray: treatment.spray,
            jitter: links.receive_jitter_ns * 1000,
            loss_per_million: links.loss_per_million,
            rng: seeded(seed),
            layers,
            finished: Vec::new(),
            retired: Vec::new(),
            hops: 0,
            events_done: 0,
            hash: 0,
        }
    }

    /// Resets the statistics of ports. Lost packets count from the beginning.
    pub(crate) fn restart_statistics(&mut self, at: u64) {
        for layer in &mut self.layers {
            *layer = Layer { ports: layer.ports, lost: layer.lost, ..Layer::default() };
        }
        for port in &mut self.ports {
            port.changed = at;
            let layer = &mut self.layers[port.layer as usize];
            layer.max = layer.max.max(port.queued);
        }
    }

    /// The statistics of ports until `at`, which is not before the last event.
    pub(crate) fn statistics(&mut self, at: u64) -> Vec<Layer> {
        for port in &mut self.ports {
            let layer = &mut self.layers[port.layer as usize];
            layer.area += u128::from(port.queued) * u128::from(at - port.changed);
            port.changed = at;
        }
        self.layers.clone()
    }

    /// The next event. Advances the time to it.
    #[inline]
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        let event = self.events.pop()?;
        self.now = event.at;
        self.events_done += 1;
        let word = event.at ^ (u64::from(event.subject) << 40) ^ (u64::from(event.place) << 20);
        self.hash = (self.hash ^ word ^ event.what as u64)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(23);
        Some(event)
    }

    #[inline]
    pub(crate) fn schedule(&mut self, at: u64, what: What, place: u32, subject: u32) {
        self.events.push(Event { at, what, place, subject });
    }

    /// Schedules a call of the transport at `at`.
    pub(crate) fn timer(&mut self, at: u64, place: u32, subject: u32) {
        self.schedule(at.max(self.now), What::Timer, place, subject);
    }

    #[inline]
    pub(crate) fn packet(&self, index: u32) -> &Packet<H> {
        &self.packets[index as usize]
    }

    #[inline]
    fn insert(&mut self, packet: Packet<H>) -> u32 {
        if self.free == NONE {
            self.packets.push(packet);
            return (self.packets.len() - 1) as u32;
        }
        let index = self.free;
        let place = &mut self.packets[index as usize];
        self.free = place.next;
        *place = packet;
        index
    }

    /// Removes a packet from the network.
    #[inline]
    pub(crate) fn remove(&mut self, index: u32) {
        self.packets[index as usize].next = self.free;
        self.free = index;
    }

    /// Whether the host's link would send a packet at once.
    #[inline]
    pub(crate) fn nic_is_idle(&self, host: u32) -> bool {
        let port = &self.ports[host as usize];
        !port.waking && port.busy_until <= self.now
    }

    /// Gives a packet to its sender's link.
    #[inline]
    pub(crate) fn send(&mut self, packet: Packet<H>) {
        let nic = u32::from(packet.from);
        let index = self.insert(packet);
        self.at_port(nic, index);
    }

    /// Gives the receiver's answer to a message, or an acknowledgement, to its sender's link. With one-way messages it bypasses the
    /// network, for every transport: it arrives after the least time of a packet without payload, and takes no bandwidth.
    #[inline]
    pub(crate) fn send_answer(&mut self, packet: Packet<H>) {
        let (from, to) = (u32::from(packet.from), u32::from(packet.to));
        let Some(times) = &self.bypass_ps else { return self.send(packet) };
        let at = self.now + times[self.graph.kind_of_way(from, to)];
        let index = self.insert(packet);
        self.schedule(at, What::AtHost, to, index);
    }

    /// Queues or sends a packet that is ready to leave by a port.
    #[inline]
    pub(crate) fn at_port(&mut self, port: u32, index: u32) {
        let now = self.now;
        let place = &mut self.ports[port as usize];
        let layer = &mut self.layers[place.layer as usize];
        if !place.is_nic && chance::happens(&mut self.rng, self.loss_per_million) {
            layer.lost += 1;
            return self.remove(index);
        }
        layer.note_queue_len(place.queued);
        if !place.waking && place.busy_until <= now {
            return self.start(port, index);
        }
        let wire = u64::from(self.packets[index as usize].wire);
        let allowed = match self.buffers {
            _ if place.is_nic => u64::MAX,
            Buffers::Unlimited => u64::MAX,
            Buffers::PortBytes(bytes) => bytes,
            Buffers::SharedBytes(bytes) => bytes.saturating_sub(self.held[place.switch as usize]),
        };
        if place.queued + wire > allowed.min(place.limit) {
            layer.lost += 1;
            return self.remove(index);
        }
        layer.area += u128::from(place.queued) * u128::from(now - place.changed);
        place.changed = now;
        place.queued += wire;
        layer.max = layer.max.max(place.queued);
        let packet = &mut self.packets[index as usize];
        packet.next = NONE;
        if !place.is_nic {
            self.held[place.switch as usize] += wire;
            packet.marked |= place.queued > place.mark_bytes;
        }
        match self.discipline {
            Discipline::Levels => {
                let level = usize::from(packet.level);
                if place.occupied & (1 << level) == 0 {
                    place.occupied |= 1 << level;
                    place.first[level] = index;
                } else {
                    self.packets[place.last[level] as usize].next = index;
                }
                place.last[level] = index;
            }
            Discipline::Ranked { bytes } => {
                place.ranked.push(index);
                if !place.is_nic && place.queued > bytes {
                    self.drop_last_ranked(port);
                }
            }
        }
        let place = &mut self.ports[port as usize];
        if !place.waking {
            place.waking = true;
            let at = place.busy_until;
            self.schedule(at, What::PortFree, port, 0);
        }
    }

    /// pFabric: drops the packet whose message has the most bytes left.
    fn drop_last_ranked(&mut self, port: u32) {
        let place = &mut self.ports[port as usize];
        let worst = (0..place.ranked.len())
            .max_by_key(|&i| self.packets[place.ranked[i] as usize].rank)
            .expect("one was just put in");
        let index = place.ranked.remove(worst);
        let wire = u64::from(self.packets[index as usize].wire);
        place.queued -= wire;
        self.held[place.switch as usize] -= wire;
        self.layers[place.layer as usize].lost += 1;
        self.remove(index);
    }

    /// Handles the end of a transmission. Returns whether the port is a host's and has no more packets.
    #[inline]
    pub(crate) fn port_free(&mut self, port: u32) -> bool {
        let now = self.now;
        let Some(index) = self.take_next(port) else {
            let place = &mut self.ports[port as usize];
            place.waking = false;
            return place.is_nic;
        };
        let wire = u64::from(self.packets[index as usize].wire);
        let place = &mut self.ports[port as usize];
        self.layers[place.layer as usize].area +=
            u128::from(place.queued) * u128::from(now - place.changed);
        place.changed = now;
        place.queued -= wire;
        if !place.is_nic {
            self.held[place.switch as usize] -= wire;
        }
        place.waking = false;
        self.start(port, index);
        let place = &mut self.ports[port as usize];
        if place.queued > 0 && !place.waking {
            place.waking = true;
            let at = place.busy_until;
            self.schedule(at, What::PortFree, port, 0);
        }
        false
    }

    #[inline]
    fn take_next(&mut self, port: u32) -> Option<u32> {
        let place = &mut self.ports[port as usize];
        if let Discipline::Ranked { .. } = self.discipline {
            let packets = &self.packets;
            // The first packet of the message with the fewest bytes left (pFabric section 4.1: to avoid reordering).
            let best =
                (0..place.ranked.len()).min_by_key(|&i| packets[place.ranked[i] as usize].rank)?;
            let message = packets[place.ranked[best] as usize].message;
            let first = place
                .ranked
                .iter()
                .position(|&index| packets[index as usize].message == message)
                .expect("the best packet itself");
            return Some(place.ranked.remove(first));
        }
        if place.occupied == 0 {
            return None;
        }
        let level = 7 - place.occupied.leading_zeros() as usize;
        let index = place.first[level];
        let next = self.packets[index as usize].next;
        place.first[level] = next;
        if next == NONE {
            place.occupied &= !(1 << level);
        }
        Some(index)
    }

    /// Sends a packet by a free port.
    #[inline]
    fn start(&mut self, port: u32, index: u32) {
        let now = self.now;
        let packet = &self.packets[index as usize];
        let (wire, to) = (u64::from(packet.wire), u32::from(packet.to));
        let flow = u32::from(packet.from) << 16 | to;
        let place = &mut self.ports[port as usize];
        place.busy_until = now + wire * place.picos_per_byte;
        let mut at = place.busy_until + place.latency;
        let (busy_until, is_nic, next) = (place.busy_until, place.is_nic, place.to);
        let layer = &mut self.layers[place.layer as usize];
        layer.packets += 1;
        layer.bytes += wire;
        self.hops += 1;
        if is_nic {
            place.waking = true; // The transport is called when its link is free.
            self.schedule(busy_until, What::PortFree, port, 0);
        }
        match next {
            LinkEnd::Host(host) => {
                if self.jitter > 0 {
                    at += (u64::from(chance::below(&mut self.rng, 1 << 20)) * self.jitter) >> 20;
                }
                self.schedule(at, What::AtHost, host, index);
            }
            LinkEnd::Switch(switch) => {
                let next = self.way(switch, to, flow);
                self.schedule(at, What::AtPort, next, index);
            }
        }
    }

    /// The port by which `switch` forwards a packet to `host`.
    #[inline]
    fn way(&mut self, switch: u32, host: u32, flow: u32) -> u32 {
        if self.graph.edge_of[host as usize] == switch {
            return self.graph.down_to[host as usize];
        }
        let ways = self.graph.ways(switch, host);
        let count = ways.len() as u32;
        if count == 1 {
            return ways[0];
        }
        let choice = if self.spray {
            chance::below(&mut self.rng, count)
        } else {
            (flow.wrapping_mul(0x9E37_79B9) >> 16) % count
        };
        ways[choice as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_of_any_length_are_measured() {
        let mut layer = Layer { max: 6_800_000, ..Layer::default() };
        for bytes in [0, 1_000, 5_000_000, 6_800_000] {
            layer.note_queue_len(bytes);
        }
        let percentiles = [25.0, 50.0, 75.0, 100.0].map(|percent| layer.percentile(percent));
        assert_eq!(percentiles, [0, 1_024, 5_000_192, 6_800_000]);
    }
}
