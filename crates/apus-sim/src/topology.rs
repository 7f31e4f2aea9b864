//! Hosts, switches, links, and the paths between them.

use std::fmt;
use std::str::FromStr;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::layout::Layout;

/// The shape of a network.
///
/// Text forms: `leafspine-144` (the Homa paper's: 9 racks of 16 hosts, 4 spines), `leafspine-RxHxS` (racks, hosts per rack,
/// spines), `single-N` (N hosts at one switch), `fattree-K` (K even; K³/4 hosts). A plan may have a table instead: any [`Layout`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Topology {
    /// Racks with one switch each, and every rack connected to every spine.
    LeafSpine {
        /// Number of racks.
        racks: usize,
        /// Number of hosts per rack.
        hosts: usize,
        /// Number of spine switches.
        spines: usize,
    },
    /// One switch.
    Single {
        /// Number of hosts.
        hosts: usize,
    },
    /// A three-level fat tree of switches with this many ports, all links at the hosts' rate.
    FatTree {
        /// Number of ports of a switch; even.
        ports: usize,
    },
    /// Any other shape.
    Layout(Layout),
}

impl Topology {
    /// The simulations of the Homa paper: 144 hosts (SIGCOMM 2018 section 5.2).
    pub const PAPER: Self = Self::LeafSpine { racks: 9, hosts: 16, spines: 4 };

    /// The layers of ports by their names in results, the hosts' first.
    #[must_use]
    pub fn layers(&self) -> &'static [&'static str] {
        match self {
            Self::LeafSpine { .. } => &["nic", "tor_up", "spine_down", "tor_down"],
            Self::Single { .. } => &["nic", "down"],
            Self::Layout(_) => &["nic", "between", "down"],
            Self::FatTree { .. } => {
                &["nic", "edge_up", "aggregation_up", "core_down", "aggregation_down", "edge_down"]
            }
        }
    }

    /// Number of hosts.
    #[must_use]
    pub fn hosts(&self) -> usize {
        match self {
            Self::LeafSpine { racks, hosts, .. } => racks * hosts,
            Self::Single { hosts } => *hosts,
            Self::FatTree { ports } => ports * ports * ports / 4,
            Self::Layout(layout) => layout.hosts(),
        }
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeafSpine { racks: 9, hosts: 16, spines: 4 } => f.write_str("leafspine-144"),
            Self::LeafSpine { racks, hosts, spines } => {
                write!(f, "leafspine-{racks}x{hosts}x{spines}")
            }
            Self::Single { hosts } => write!(f, "single-{hosts}"),
            Self::FatTree { ports } => write!(f, "fattree-{ports}"),
            Self::Layout(layout) => write!(f, "layout-{}", layout.hosts()),
        }
    }
}

impl FromStr for Topology {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || {
            format!(
                "`{text}` is not a topology; known are leafspine-144, leafspine-RxHxS, single-N and fattree-K (K even, 2 to 32)"
            )
        };
        let (kind, size) = text.split_once('-').ok_or_else(error)?;
        let numbers: Vec<usize> =
            size.split('x').map(str::parse).collect::<Result<_, _>>().map_err(|_| error())?;
        let topology = match (kind, numbers[..].as_ref()) {
            ("leafspine", [144]) => Self::PAPER,
            ("leafspine", &[racks, hosts, spines]) => Self::LeafSpine { racks, hosts, spines },
            ("single", &[hosts]) => Self::Single { hosts },
            ("fattree", &[ports]) if ports % 2 == 0 && ports <= 32 => Self::FatTree { ports },
            _ => return Err(error()),
        };
        let empty = matches!(topology, Self::LeafSpine { spines: 0, .. });
        if empty || topology.hosts() < 2 || topology.hosts() > 1 << 14 {
            return Err(error());
        }
        Ok(topology)
    }
}

impl Serialize for Topology {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Layout(layout) => layout.serialize(serializer),
            named => serializer.collect_str(named),
        }
    }
}

impl<'de> Deserialize<'de> for Topology {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameOrLayout;

        impl<'de> Visitor<'de> for NameOrLayout {
            type Value = Topology;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a network's name or a table of switches and links")
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Topology, E> {
                name.parse().map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Topology, A::Error> {
                let layout = Layout::deserialize(MapAccessDeserializer::new(map))?;
                layout.validate().map_err(A::Error::custom)?;
                Ok(Topology::Layout(layout))
            }
        }

        deserializer.deserialize_any(NameOrLayout)
    }
}

/// Rates and delays of a network. The defaults match the Homa paper's simulations: a grant and the full packet that it asks
/// for take 7.8 µs between racks, as the paper says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Links {
    /// Rate of a host's link, in Gb/s. Default 10.
    pub host_gbps: u64,
    /// Rate of the links between switches of a leaf-spine network, in Gb/s. Default 40.
    pub core_gbps: u64,
    /// Time of a packet through a switch, besides queueing and transmission, in ns. Default 250.
    pub switch_ns: u64,
    /// Delay of any cable, in ns. Default 0.
    pub wire_ns: u64,
    /// Delay of a cable between switches, in ns; `wire_ns` if absent.
    pub core_wire_ns: Option<u64>,
    /// Time from the decision to send until the first bit leaves the host: software and NIC, in ns. Default 1000 (500 and 500).
    pub send_ns: u64,
    /// Time from the last bit at the host until the protocol receives the packet, in ns. Default 500.
    pub receive_ns: u64,
    /// Upper bound on a uniform random addition to `receive_ns`, in ns. Default 0.
    pub receive_jitter_ns: u64,
    /// Packets lost on arrival at each switch, per million. Default 0.
    pub loss_per_million: u32,
}

impl Default for Links {
    fn default() -> Self {
        Self {
            host_gbps: 10,
            core_gbps: 40,
            switch_ns: 250,
            wire_ns: 0,
            core_wire_ns: None,
            send_ns: 1000,
            receive_ns: 500,
            receive_jitter_ns: 0,
            loss_per_million: 0,
        }
    }
}

impl Links {
    /// Time from the last bit sent by `outlet` until the next node acts on the packet, in ns.
    pub(crate) fn latency_ns(&self, outlet: &Outlet) -> u64 {
        let Outlet { wire_ns, .. } = *outlet;
        let node_ns = match outlet.to {
            LinkEnd::Host(_) => self.receive_ns,
            LinkEnd::Switch(_) => self.switch_ns,
        };
        match (outlet.at, outlet.to) {
            (LinkEnd::Host(_), _) => self.send_ns + wire_ns.unwrap_or(self.wire_ns) + node_ns,
            (LinkEnd::Switch(_), LinkEnd::Host(_)) => wire_ns.unwrap_or(self.wire_ns) + node_ns,
            (LinkEnd::Switch(_), LinkEnd::Switch(_)) => {
                wire_ns.or(self.core_wire_ns).unwrap_or(self.wire_ns) + node_ns
            }
        }
    }
}

/// One end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LinkEnd {
    Host(u32),
    Switch(u32),
}

/// One direction of a link: the port of a switch or host where packets wait to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outlet {
    pub(crate) at: LinkEnd,
    pub(crate) to: LinkEnd,
    pub(crate) gbps: u64,
    /// Index into [`Graph::layers`].
    pub(crate) layer: usize,
    /// Delay of its cable in a layout, if it differs from the plan's `links`.
    pub(crate) wire_ns: Option<u64>,
    /// Upper bound on bytes that wait here.
    pub(crate) port_bytes: Option<u64>,
}

/// A network's graph. Outlet `h` is host `h`'s link.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) hosts: usize,
    pub(crate) switches: usize,
    pub(crate) outlets: Vec<Outlet>,
    /// Names of the layers of outlets, for statistics.
    pub(crate) layers: Vec<&'static str>,
    /// The switch of each host.
    pub(crate) edge_of: Vec<u32>,
    /// The outlet that leads down to each host.
    pub(crate) down_to: Vec<u32>,
    /// Index `switch * switches + edge switch`: start and number of the outlets in `ways` that lead there.
    ways_at: Vec<(u32, u32)>,
    ways: Vec<u32>,
    /// Same index: number of outlets from a host at one switch to a host at the other.
    lengths: Vec<u8>,
    /// Whether all paths of one length have the same cost.
    regular: bool,
}

impl Graph {
    pub(crate) fn new(topology: &Topology, links: &Links) -> Self {
        let hosts = topology.hosts();
        let mut graph = Self {
            hosts,
            switches: 0,
            outlets: Vec::new(),
            layers: topology.layers().to_vec(),
            edge_of: Vec::new(),
            down_to: Vec::new(),
            ways_at: Vec::new(),
            ways: Vec::new(),
            lengths: Vec::new(),
            regular: true,
        };
        let down = graph.layers.len() - 1;
        let per_edge = match topology {
            Topology::LeafSpine { hosts, .. } => *hosts,
            Topology::Single { hosts } => *hosts,
            Topology::FatTree { ports } => ports / 2,
            Topology::Layout(layout) => {
                graph.lay_out(layout, links);
                graph.find_ways();
                return graph;
            }
        };
        for host in 0..hosts {
            let (host, edge) = (host as u32, (host / per_edge) as u32);
            graph.edge_of.push(edge);
            graph.outlet(LinkEnd::Host(host), LinkEnd::Switch(edge), links.host_gbps, 0);
        }
        for host in 0..hosts as u32 {
            graph.down_to.push(graph.outlets.len() as u32);
            let edge = graph.edge_of[host as usize];
            graph.outlet(LinkEnd::Switch(edge), LinkEnd::Host(host), links.host_gbps, down);
        }
        graph.switches = hosts / per_edge;
        match *topology {
            Topology::LeafSpine { racks, spines, .. } => {
                graph.connect_spines(racks, spines, links.core_gbps);
            }
            Topology::FatTree { ports } => graph.connect_fat_tree(ports, links.host_gbps),
            Topology::Single { .. } | Topology::Layout(_) => {}
        }
        graph.find_ways();
        graph
    }

    fn lay_out(&mut self, layout: &Layout, links: &Links) {
        self.regular = false;
        self.switches = layout.switches.len();
        for (edge, switch) in layout.switches.iter().enumerate() {
            self.edge_of.extend(std::iter::repeat_n(edge as u32, switch.hosts));
        }
        for (upwards, layer) in [(true, 0), (false, 2)] {
            for host in 0..self.hosts {
                let switch = &layout.switches[self.edge_of[host] as usize];
                let (at, edge) = (LinkEnd::Host(host as u32), LinkEnd::Switch(self.edge_of[host]));
                if !upwards {
                    self.down_to.push(self.outlets.len() as u32);
                }
                let (at, to) = if upwards { (at, edge) } else { (edge, at) };
                let gbps = switch.gbps.unwrap_or(links.host_gbps);
                let (wire_ns, port_bytes) = (switch.wire_ns, switch.port_bytes);
                self.outlets.push(Outlet { at, to, gbps, layer, wire_ns, port_bytes });
            }
        }
        for link in &layout.links {
            let [one, other] =
                link.between.each_ref().map(|name| LinkEnd::Switch(layout.number(name) as u32));
            let gbps = link.gbps.unwrap_or(links.core_gbps);
            let (wire_ns, port_bytes) = (link.wire_ns, link.port_bytes);
            for (at, to) in [(one, other), (other, one)] {
                self.outlets.push(Outlet { at, to, gbps, layer: 1, wire_ns, port_bytes });
            }
        }
    }

    fn outlet(&mut self, at: LinkEnd, to: LinkEnd, gbps: u64, layer: usize) {
        self.outlets.push(Outlet { at, to, gbps, layer, wire_ns: None, port_bytes: None });
    }

    fn pair(&mut self, low: usize, high: usize, gbps: u64, layers: (usize, usize)) {
        let (low, high) = (LinkEnd::Switch(low as u32), LinkEnd::Switch(high as u32));
        self.outlet(low, high, gbps, layers.0);
        self.outlet(high, low, gbps, layers.1);
    }

    fn connect_spines(&mut self, racks: usize, spines: usize, gbps: u64) {
        for rack in 0..racks {
            for spine in 0..spines {
                self.pair(rack, racks + spine, gbps, (1, 2));
            }
        }
        self.switches = racks + spines;
    }

    /// Al-Fares et al., SIGCOMM 2008: pods of k/2 edge and k/2 aggregation switches. Aggregation switch `a` of every pod is
    /// connected to the core switches of group `a`.
    fn connect_fat_tree(&mut self, ports: usize, gbps: u64) {
        let half = ports / 2;
        let (edges, aggregations) = (ports * half, ports * half);
        for pod in 0..ports {
            for upper in 0..half {
                let aggregation = edges + pod * half + upper;
                for lower in 0..half {
                    self.pair(pod * half + lower, aggregation, gbps, (1, 4));
                }
                for core in 0..half {
                    let core = edges + aggregations + upper * half + core;
                    self.pair(aggregation, core, gbps, (2, 3));
                }
            }
        }
        self.switches = edges + aggregations + half * half;
    }

    /// Finds all shortest paths from every switch to every switch with hosts.
    fn find_ways(&mut self) {
        let mut leaving = vec![Vec::new(); self.switches];
        for (index, outlet) in self.outlets.iter().enumerate() {
            if let (LinkEnd::Switch(at), LinkEnd::Switch(to)) = (outlet.at, outlet.to) {
                leaving[at as usize].push((index as u32, to as usize));
            }
        }
        self.ways_at = vec![(0, 0); self.switches * self.switches];
        self.lengths = vec![0; self.switches * self.switches];
        let edges = self.edge_of.last().map_or(0, |&edge| edge as usize + 1);
        for edge in 0..edges {
            let distances = distances(&leaving, edge);
            for switch in 0..self.switches {
                let start = self.ways.len();
                let nearer = |&&(_, to): &&(u32, usize)| distances[to] + 1 == distances[switch];
                self.ways.extend(leaving[switch].iter().filter(nearer).map(|&(index, _)| index));
                let count = self.ways.len() - start;
                self.lengths[switch * self.switches + edge] = distances[switch].min(253) as u8 + 2;
                self.ways_at[switch * self.switches + edge] = (start as u32, count as u32);
            }
        }
    }

    /// The outlets of `switch` that lead towards `host`, which is at another switch.
    #[inline]
    pub(crate) fn ways(&self, switch: u32, host: u32) -> &[u32] {
        let edge = self.edge_of[host as usize] as usize;
        let (start, count) = self.ways_at[switch as usize * self.switches + edge];
        &self.ways[start as usize..(start + count) as usize]
    }

    /// Number of outlets on the path between two hosts.
    pub(crate) fn path_length(&self, from: u32, to: u32) -> usize {
        let edges = (self.edge_of[from as usize], self.edge_of[to as usize]);
        usize::from(self.lengths[edges.0 as usize * self.switches + edges.1 as usize])
    }

    /// A number for all pairs of hosts with equal times of messages: the number of outlets between them, or, if links differ, the
    /// pair of their switches.
    pub(crate) fn kind_of_way(&self, from: u32, to: u32) -> usize {
        if self.regular {
            return self.path_length(from, to);
        }
        let edges = (self.edge_of[from as usize], self.edge_of[to as usize]);
        edges.0 as usize * self.switches + edges.1 as usize
    }

    /// The outlets of a packet between two hosts that takes the first path everywhere.
    pub(crate) fn path(&self, from: u32, to: u32) -> Vec<usize> {
        let mut path = vec![from as usize];
        let mut at = self.edge_of[from as usize];
        while at != self.edge_of[to as usize] {
            let outlet = self.ways(at, to)[0] as usize;
            path.push(outlet);
            let LinkEnd::Switch(next) = self.outlets[outlet].to else { break };
            at = next;
        }
        path.push(self.down_to[to as usize] as usize);
        path
    }
}

/// The least number of links from every switch to `target`.
fn distances(leaving: &[Vec<(u32, usize)>], target: usize) -> Vec<u32> {
    // Links are symmetric, so distances from the target are distances to it.
    let mut distances = vec![u32::MAX / 2; leaving.len()];
    distances[target] = 0;
    let mut queue = std::collections::VecDeque::from([target]);
    while let Some(switch) = queue.pop_front() {
        for &(_, next) in &leaving[switch] {
            if distances[next] > distances[switch] + 1 {
                distances[next] = distances[switch] + 1;
                queue.push_back(next);
            }
        }
    }
    distances
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hops(topology: &str, from: u32, to: u32) -> usize {
        let topology: Topology = topology.parse().unwrap();
        Graph::new(&topology, &Links::default()).path(from, to).len()
    }

    #[test]
    fn names_read_and_write() {
        for name in ["leafspine-144", "leafspine-2x3x1", "single-7", "fattree-4"] {
            assert_eq!(name.parse::<Topology>().unwrap().to_string(), name);
        }
        for name in
            ["leafspine-2x3", "single-1", "fattree-5", "ring-3", "single", "leafspine-2x3x0"]
        {
            assert!(name.parse::<Topology>().is_err(), "{name}");
        }
        assert_eq!(Topology::FatTree { ports: 16 }.hosts(), 1024);
    }

    #[test]
    fn ways_have_the_right_length() {
        assert_eq!(hops("single-5", 0, 4), 2);
        assert_eq!(hops("leafspine-144", 0, 15), 2);
        assert_eq!(hops("leafspine-144", 0, 16), 4);
        assert_eq!(hops("fattree-4", 0, 1), 2);
        assert_eq!(hops("fattree-4", 0, 2), 4);
        assert_eq!(hops("fattree-4", 0, 15), 6);
    }

    const LAYOUT: &str = r#"
        [[switches]]
        name = "left"
        hosts = 2
        gbps = 25
        [[switches]]
        name = "middle"
        [[switches]]
        name = "right"
        hosts = 3
        [[links]]
        between = ["left", "middle"]
        [[links]]
        between = ["middle", "right"]
        gbps = 100
        wire_ns = 7000
        port_bytes = 5000
        [[links]]
        between = ["right", "middle"]
        "#;

    #[test]
    fn a_layout_is_laid_out() {
        let topology: Topology = toml::from_str(LAYOUT).unwrap();
        let text = toml::to_string(&topology).unwrap();
        assert_eq!(toml::from_str::<Topology>(&text).unwrap(), topology);
        assert_eq!((topology.hosts(), topology.to_string().as_str()), (5, "layout-5"));
        let links = Links::default();
        let graph = Graph::new(&topology, &links);
        assert_eq!((graph.path(0, 1).len(), graph.path(0, 2).len()), (2, 4));
        assert_eq!(graph.ways(1, 4).len(), 2);
        let rates: Vec<u64> =
            graph.path(0, 4).iter().map(|&outlet| graph.outlets[outlet].gbps).collect();
        assert_eq!(rates, [25, 40, 100, 10]);
        let long = &graph.outlets[graph.path(0, 4)[2]];
        assert_eq!((links.latency_ns(long), long.port_bytes), (7_250, Some(5_000)));
        assert_ne!(graph.kind_of_way(0, 2), graph.kind_of_way(2, 0));
    }

    #[test]
    fn a_layout_that_is_no_network_is_refused_by_name_and_line() {
        let error = |from: &str, to: &str| {
            let text = LAYOUT.replacen(from, to, 1);
            toml::from_str::<Topology>(&text).unwrap_err().to_string()
        };
        assert!(error("\"middle\"]", "\"centre\"]").contains("link 1 ends at `centre`"));
        assert!(error("gbps = 100", "gbps = 7").contains("gbps of link 2 cannot be 7"));
        assert!(
            error("name = \"right\"", "name = \"left\"").contains("switch `left` occurs twice")
        );
        assert!(
            error("\"left\", \"middle\"", "\"middle\", \"right\"")
                .contains("from `left` to `right`")
        );
        let typo = error("wire_ns", "wire_us");
        assert!(typo.contains("wire_us") && typo.contains("line 16"), "{typo}");
    }

    #[test]
    fn all_spines_are_ways() {
        let graph = Graph::new(&Topology::PAPER, &Links::default());
        assert_eq!(graph.ways(0, 143).len(), 4);
        assert_eq!(graph.switches, 13);
        let tree = Graph::new(&Topology::FatTree { ports: 8 }, &Links::default());
        assert_eq!(tree.ways(0, 127).len(), 4);
        assert_eq!(tree.switches, 80);
    }
}
