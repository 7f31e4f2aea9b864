//! Bytes on the wire, and the least time of a message.

use serde::{Deserialize, Serialize};

use crate::topology::{Graph, Links};

/// Ethernet's bytes around an IP packet: header, checksum, preamble and gap.
const ETHERNET: u32 = 38;
/// The least payload of an Ethernet frame.
const ETHERNET_MIN: u32 = 46;
/// IP and UDP headers.
const IP_UDP: u32 = 28;

/// The packetization of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Framing {
    /// Largest IP packet, in bytes. Default 1500.
    pub mtu: u32,
    /// IP, UDP and protocol headers of a data packet, in bytes. Default 58, which leaves the Homa paper's 1442 bytes of payload;
    /// Apus over UDP has 84.
    pub headers: u32,
}

impl Default for Framing {
    fn default() -> Self {
        Self { mtu: 1500, headers: 58 }
    }
}

impl Framing {
    /// Upper bound on the payload of one packet.
    #[must_use]
    pub fn payload(&self) -> u32 {
        self.mtu.saturating_sub(self.headers).max(1)
    }

    /// Bytes on the wire of a data packet.
    #[inline]
    #[must_use]
    pub fn data_wire(&self, payload: u32) -> u32 {
        (payload + self.headers).max(ETHERNET_MIN) + ETHERNET
    }

    /// Bytes on the wire of a packet without payload. `length` excludes IP and UDP.
    #[inline]
    #[must_use]
    pub fn control_wire(&self, length: u32) -> u32 {
        (length + IP_UDP).max(ETHERNET_MIN) + ETHERNET
    }

    /// Bytes on the wire of a whole message.
    #[must_use]
    pub fn message_wire(&self, bytes: u32) -> u64 {
        let (full, rest) = (bytes / self.payload(), bytes % self.payload());
        let rest = if rest > 0 { u64::from(self.data_wire(rest)) } else { 0 };
        u64::from(full) * u64::from(self.data_wire(self.payload())) + rest
    }
}

/// The least time of messages between hosts, in picoseconds: all packets back to back on an idle network. Slowdowns are relative to
/// it.
#[derive(Debug)]
pub(crate) struct Ideal {
    framing: Framing,
    /// The costs of each port on a path, by the kind of path.
    ways: Vec<Option<Vec<Hop>>>,
}

/// One hop of a path: the port that transmits, and its link.
#[derive(Clone, Copy, Debug)]
struct Hop {
    picos_per_byte: u64,
    latency: u64,
}

impl Ideal {
    pub(crate) fn new(graph: &Graph, links: &Links, framing: Framing) -> Self {
        let mut ways = Vec::new();
        for from in 0..graph.hosts as u32 {
            // One host of each switch stands for all of its hosts.
            if from > 0 && graph.edge_of[from as usize] == graph.edge_of[from as usize - 1] {
                continue;
            }
            for to in (0..graph.hosts as u32).filter(|&to| to != from) {
                let kind = graph.kind_of_way(from, to);
                if ways.len() <= kind {
                    ways.resize(kind + 1, None);
                }
                ways[kind].get_or_insert_with(|| {
                    let path = graph.path(from, to);
                    let outlets = path.into_iter().map(|outlet| &graph.outlets[outlet]);
                    let hops = outlets.map(|outlet| Hop {
                        picos_per_byte: 8_000 / outlet.gbps.max(1),
                        latency: links.latency_ns(outlet) * 1000,
                    });
                    hops.collect()
                });
            }
        }
        Self { framing, ways }
    }

    /// The least time for `bytes` over a path of this kind.
    pub(crate) fn picos(&self, way: usize, bytes: u32) -> u64 {
        let hops = self.ways[way].as_deref().expect("all kinds of paths are in the table");
        let payload = self.framing.payload();
        let packets = bytes.div_ceil(payload).max(1);
        let last = u64::from(self.framing.data_wire(bytes - (packets - 1) * payload));
        let full = u64::from(self.framing.data_wire(payload));
        // Times at which the last full packet and the last packet leave each port.
        let (mut full_end, mut last_end) = (0, 0);
        for (index, hop) in hops.iter().enumerate() {
            let before = if index == 0 { u64::from(packets - 1) } else { 1 };
            if packets > 1 {
                full_end += before * full * hop.picos_per_byte;
            }
            last_end = last_end.max(full_end) + last * hop.picos_per_byte;
            full_end += hop.latency;
            last_end += hop.latency;
        }
        last_end
    }

    /// The least time of a packet without payload, in picoseconds, by the kind of path; 0 for kinds that do not occur.
    pub(crate) fn empty_packets_picos(&self) -> Vec<u64> {
        let kinds = self.ways.iter().enumerate();
        kinds.map(|(way, hops)| hops.as_ref().map_or(0, |_| self.picos(way, 0))).collect()
    }

    /// Number of switches on the longest path.
    pub(crate) fn switches_max(&self) -> u64 {
        self.ways.iter().flatten().map(|hops| hops.len() as u64 - 1).max().unwrap_or(0)
    }

    /// The time of a full packet and of an acknowledgement without payload on the longest path, in picoseconds.
    pub(crate) fn round_trip_picos(&self) -> u64 {
        let kinds = self.ways.iter().enumerate().filter(|(_, hops)| hops.is_some());
        let full = self.framing.payload();
        kinds.map(|(way, _)| self.picos(way, full) + self.picos(way, 0)).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Topology;

    fn ideal() -> Ideal {
        let links = Links::default();
        Ideal::new(&Graph::new(&Topology::PAPER, &links), &links, Framing::default())
    }

    #[test]
    fn a_small_message_takes_what_the_paper_says() {
        // 97 bytes on two links of 10 Gb/s and two of 40, three switches, 1.5 µs of software.
        assert_eq!(ideal().picos(4, 1), 97 * (2 * 800 + 2 * 200) + 750_000 + 1_500_000);
        assert_eq!(ideal().picos(2, 1), 97 * 2 * 800 + 250_000 + 1_500_000);
    }

    #[test]
    fn a_long_message_runs_at_the_rate_of_the_link() {
        let (one, thousand) = (ideal().picos(4, 1442), ideal().picos(4, 1_442_000));
        assert_eq!(thousand - one, 999 * 1538 * 800);
    }

    #[test]
    fn a_short_last_packet_waits_for_the_one_before() {
        let framing = Framing::default();
        let full = ideal().picos(4, 1442);
        let more = ideal().picos(4, 1443);
        assert_eq!(more - full, u64::from(framing.data_wire(1)) * 800);
    }

    #[test]
    fn wire_bytes_add_up() {
        let framing = Framing::default();
        assert_eq!(framing.message_wire(1), 97);
        assert_eq!(framing.message_wire(2884), 2 * 1538);
        assert_eq!(framing.control_wire(34), 100);
    }
}
