//! The kernel's routes and neighbours, over netlink: the way to a peer, and news about changes.

use std::io;
use std::net::{IpAddr, SocketAddr};

use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::link::{LinkAttribute, LinkLayerType, LinkMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteType, RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr as NetlinkAddress};

use super::headers::{ETHERNET_LEN, EthernetAddress, ethernet};

/// The way of packets to a peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Way {
    /// Number of the device.
    pub(super) device: u32,
    /// The Ethernet header of all packets.
    pub(super) ethernet: [u8; ETHERNET_LEN],
    /// The local address.
    pub(super) source: IpAddr,
    /// The peer, or the router on the way to it.
    pub(super) next_hop: IpAddr,
    /// Length of the longest IP packet.
    pub(super) mtu: usize,
}

/// The kernel's answer about the way to a peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum WayAnswer {
    Way(Way),
    /// The kernel does not know the Ethernet address, or has to verify it. Both happen when it sends a packet.
    Unverified,
    /// No packet to this peer leaves by an Ethernet device in the plain way: the peer is on this machine, for instance, or there is
    /// a tunnel.
    Other,
}

/// Returns the way to a peer, from a local address if one is given.
pub(super) fn way(to: SocketAddr, source: Option<IpAddr>) -> io::Result<WayAnswer> {
    let kernel = Kernel::connect()?;
    let Some(route) = kernel.route(to, source)? else { return Ok(WayAnswer::Other) };
    let Some(device) = kernel.device(route.device)? else { return Ok(WayAnswer::Other) };
    let Some(neighbour) = kernel.neighbour(&route)? else { return Ok(WayAnswer::Unverified) };
    Ok(WayAnswer::Way(Way {
        device: route.device,
        ethernet: ethernet(neighbour, device.address, to.is_ipv4()),
        source: route.source,
        next_hop: route.next_hop,
        mtu: route.mtu.unwrap_or(device.mtu).min(device.mtu),
    }))
}

struct Route {
    device: u32,
    next_hop: IpAddr,
    source: IpAddr,
    mtu: Option<usize>,
}

struct Device {
    address: EthernetAddress,
    mtu: usize,
}

/// A socket for questions, which the kernel answers during the call.
struct Kernel(Socket);

impl Kernel {
    fn connect() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&NetlinkAddress::new(0, 0))?;
        socket.set_non_blocking(true)?;
        Ok(Self(socket))
    }

    /// Asks for one object. `None`: the kernel has none.
    fn ask(&self, question: RouteNetlinkMessage) -> io::Result<Option<RouteNetlinkMessage>> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(question));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.0.send(&bytes, 0)?;
        let (answer, _) = self.0.recv_from_full()?;
        let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer);
        match answer.map_err(io::Error::other)?.payload {
            NetlinkPayload::InnerMessage(message) => Ok(Some(message)),
            _ => Ok(None),
        }
    }

    /// Returns the route to a peer, if its packets leave by a device as they are.
    fn route(&self, to: SocketAddr, source: Option<IpAddr>) -> io::Result<Option<Route>> {
        let mut question = RouteMessage::default();
        question.header.address_family = family(to.is_ipv4());
        let whole = if to.is_ipv4() { 32 } else { 128 };
        question.header.destination_prefix_length = whole;
        question.attributes.push(RouteAttribute::Destination(to.ip().into()));
        if let Some(source) = source {
            question.header.source_prefix_length = whole;
            question.attributes.push(RouteAttribute::Source(source.into()));
        }
        if let SocketAddr::V6(to) = to
            && to.scope_id() != 0
        {
            question.attributes.push(RouteAttribute::Oif(to.scope_id()));
        }
        let answer = self.ask(RouteNetlinkMessage::GetRoute(question))?;
        let Some(RouteNetlinkMessage::NewRoute(answer)) = answer else { return Ok(None) };
        if answer.header.kind != RouteType::Unicast {
            return Ok(None);
        }
        let (mut device, mut next_hop, mut local, mut mtu) = (None, Some(to.ip()), source, None);
        for attribute in answer.attributes {
            match attribute {
                RouteAttribute::Oif(number) => device = Some(number),
                RouteAttribute::Gateway(router) => next_hop = route_ip(router),
                RouteAttribute::Via(RouteVia::Inet(router)) => next_hop = Some(router.into()),
                RouteAttribute::Via(RouteVia::Inet6(router)) => next_hop = Some(router.into()),
                RouteAttribute::Via(_) => next_hop = None,
                RouteAttribute::PrefSource(preferred) if source.is_none() => {
                    local = route_ip(preferred);
                }
                RouteAttribute::Metrics(metrics) => {
                    mtu = metrics.iter().find_map(|metric| match metric {
                        RouteMetric::Mtu(mtu) => usize::try_from(*mtu).ok(),
                        _ => None,
                    });
                }
                RouteAttribute::EncapType(_) | RouteAttribute::Encap(_) => return Ok(None),
                _ => {}
            }
        }
        let (Some(device), Some(next_hop), Some(source)) = (device, next_hop, local) else {
            return Ok(None);
        };
        Ok(Some(Route { device, next_hop, source, mtu }))
    }

    /// Returns the address and MTU of a device, if it is an Ethernet one.
    fn device(&self, number: u32) -> io::Result<Option<Device>> {
        let mut question = LinkMessage::default();
        question.header.index = number;
        let answer = self.ask(RouteNetlinkMessage::GetLink(question))?;
        let Some(RouteNetlinkMessage::NewLink(answer)) = answer else { return Ok(None) };
        if answer.header.link_layer_type != LinkLayerType::Ether {
            return Ok(None);
        }
        let (mut address, mut mtu) = (None, None);
        for attribute in answer.attributes {
            match attribute {
                LinkAttribute::Address(bytes) => address = bytes.try_into().ok(),
                LinkAttribute::Mtu(bytes) => mtu = usize::try_from(bytes).ok(),
                _ => {}
            }
        }
        Ok(address.zip(mtu).map(|(address, mtu)| Device { address, mtu }))
    }

    /// Returns the Ethernet address of the next hop, unless the kernel has to verify it first.
    fn neighbour(&self, route: &Route) -> io::Result<Option<EthernetAddress>> {
        let mut question = NeighbourMessage::default();
        question.header.family = family(route.next_hop.is_ipv4());
        question.header.ifindex = route.device;
        let next_hop = match route.next_hop {
            IpAddr::V4(ip) => NeighbourAddress::Inet(ip),
            IpAddr::V6(ip) => NeighbourAddress::Inet6(ip),
        };
        question.attributes.push(NeighbourAttribute::Destination(next_hop));
        let answer = self.ask(RouteNetlinkMessage::GetNeighbour(question))?;
        let Some(RouteNetlinkMessage::NewNeighbour(answer)) = answer else { return Ok(None) };
        Ok(verified(&answer))
    }
}

fn family(is_ipv4: bool) -> AddressFamily {
    if is_ipv4 { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn route_ip(address: RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some(ip.into()),
        RouteAddress::Inet6(ip) => Some(ip.into()),
        _ => None,
    }
}

/// Returns the Ethernet address of a neighbour, unless it is unknown or stale. The kernel verifies a stale one when it sends a packet,
/// and meanwhile uses it.
fn verified(neighbour: &NeighbourMessage) -> Option<EthernetAddress> {
    use NeighbourState::{Delay, Permanent, Probe, Reachable};
    if !matches!(neighbour.header.state, Reachable | Delay | Probe | Permanent) {
        return None;
    }
    neighbour.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => bytes.as_slice().try_into().ok(),
        _ => None,
    })
}

/// A change of the kernel's tables.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// A neighbour at a device, with its Ethernet address if it is verified.
    Neighbour { device: u32, ip: IpAddr, address: Option<EthernetAddress> },
    /// Routes, devices or addresses.
    Others,
}

/// News about changes.
pub(super) struct Changes {
    socket: Socket,
    buffer: Vec<u8>,
}

/// Room for one datagram of news.
const NEWS_LEN: usize = 16 << 10;

impl Changes {
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.set_non_blocking(true)?;
        for group in [
            libc::RTNLGRP_LINK,
            libc::RTNLGRP_NEIGH,
            libc::RTNLGRP_IPV4_IFADDR,
            libc::RTNLGRP_IPV4_ROUTE,
            libc::RTNLGRP_IPV4_RULE,
            libc::RTNLGRP_IPV6_IFADDR,
            libc::RTNLGRP_IPV6_ROUTE,
            libc::RTNLGRP_IPV6_RULE,
        ] {
            socket.add_membership(group)?;
        }
        Ok(Self { socket, buffer: Vec::with_capacity(NEWS_LEN) })
    }

    /// Passes each change of the next datagram of news to `visit`. Returns `false` if there is none.
    pub(super) fn next(&mut self, mut visit: impl FnMut(Change)) -> bool {
        self.buffer.clear();
        if let Err(error) = self.socket.recv(&mut self.buffer, libc::MSG_DONTWAIT) {
            if error.kind() == io::ErrorKind::WouldBlock {
                return false;
            }
            visit(Change::Others); // The kernel had no room for some of the news.
            return true;
        }
        let mut rest = &self.buffer[..];
        while !rest.is_empty() {
            let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest) else {
                visit(Change::Others);
                break;
            };
            let length = (message.header.length as usize).next_multiple_of(4).max(1);
            rest = rest.get(length..).unwrap_or_default();
            change(&message.payload).into_iter().for_each(&mut visit);
        }
        true
    }
}

/// Returns the meaning of a piece of news. `None`: it concerns no way to a peer, as the table of a bridge.
fn change(news: &NetlinkPayload<RouteNetlinkMessage>) -> Option<Change> {
    let NetlinkPayload::InnerMessage(news) = news else { return Some(Change::Others) };
    let (neighbour, is_there) = match news {
        RouteNetlinkMessage::NewNeighbour(neighbour) => (neighbour, true),
        RouteNetlinkMessage::DelNeighbour(neighbour) => (neighbour, false),
        _ => return Some(Change::Others),
    };
    let ip = neighbour.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => Some(IpAddr::from(*ip)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => Some(IpAddr::from(*ip)),
        _ => None,
    });
    let address = if is_there { verified(neighbour) } else { None };
    Some(Change::Neighbour { device: neighbour.header.ifindex, ip: ip?, address })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::namespace::{in_a_namespace, ip};
    use super::*;

    const OWN: EthernetAddress = [2, 0, 0, 0, 0, 1];
    const PEER: EthernetAddress = [2, 0, 0, 0, 0, 2];

    /// Moves this thread into a namespace with a device of two addresses, and two permanent neighbours.
    fn with_a_device() -> bool {
        let there = in_a_namespace();
        if there {
            for arguments in [
                "link add wire address 02:00:00:00:00:01 type veth peer name end",
                "link set end up",
                "link set wire mtu 1400 up",
                "addr add 10.1.0.1/24 dev wire",
                "addr add 10.1.0.9/24 dev wire",
                "addr add fd01::1/64 dev wire nodad",
                "neigh replace 10.1.0.2 lladdr 02:00:00:00:00:02 dev wire nud permanent",
                "neigh replace fd01::2 lladdr 02:00:00:00:00:02 dev wire nud permanent",
                "route add 10.9.0.0/16 via 10.1.0.2 mtu 1300",
                "route add blackhole 10.8.0.0/16",
            ] {
                ip(arguments).expect("the namespace is ours");
            }
        }
        there
    }

    fn ask(to: &str, source: Option<&str>) -> WayAnswer {
        way(to.parse().unwrap(), source.map(|source| source.parse().unwrap())).unwrap()
    }

    fn expected(source: &str, next_hop: &str, mtu: usize) -> WayAnswer {
        let [source, next_hop]: [IpAddr; 2] = [source, next_hop].map(|ip| ip.parse().unwrap());
        let ethernet = ethernet(PEER, OWN, next_hop.is_ipv4());
        let WayAnswer::Way(Way { device, .. }) = ask("10.1.0.2:7", None) else { panic!("no way") };
        WayAnswer::Way(Way { device, ethernet, source, next_hop, mtu })
    }

    #[test]
    fn ways_lead_to_neighbours_and_by_routers() {
        if !with_a_device() {
            return;
        }
        assert_eq!(ask("10.1.0.2:7", None), expected("10.1.0.1", "10.1.0.2", 1_400));
        assert_eq!(ask("10.1.0.2:7", Some("10.1.0.9")), expected("10.1.0.9", "10.1.0.2", 1_400));
        assert_eq!(ask("10.9.5.6:7", None), expected("10.1.0.1", "10.1.0.2", 1_300));
        assert_eq!(ask("[fd01::2]:7", None), expected("fd01::1", "fd01::2", 1_400));
    }

    #[test]
    fn there_is_no_way_to_this_machine_or_a_black_hole_and_none_yet_to_strangers() {
        if !with_a_device() {
            return;
        }
        for to in ["127.0.0.1:7", "10.1.0.1:7", "10.8.0.1:7", "192.0.2.1:7", "[::1]:7"] {
            assert_eq!(ask(to, None), WayAnswer::Other, "{to}");
        }
        assert_eq!(ask("10.1.0.1:7", Some("10.1.0.9")), WayAnswer::Other);
        for to in ["10.1.0.3:7", "[fd01::3]:7"] {
            assert_eq!(ask(to, None), WayAnswer::Unverified, "{to}");
        }
        ip("neigh replace 10.1.0.2 lladdr 02:00:00:00:00:02 dev wire nud stale").unwrap();
        assert_eq!(ask("10.1.0.2:7", None), WayAnswer::Unverified);
    }

    /// Reads the news until a change is among them.
    fn wait_for(changes: &mut Changes, wanted: impl Fn(&Change) -> bool) {
        let start = Instant::now();
        let mut seen = Vec::new();
        while !seen.iter().any(&wanted) {
            assert!(start.elapsed() < Duration::from_secs(20), "{seen:?}");
            if !changes.next(|change| seen.push(change)) {
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn changes_of_neighbours_and_routes_are_news() {
        if !with_a_device() {
            return;
        }
        let mut changes = Changes::open().unwrap();
        assert!(!changes.next(|change| panic!("{change:?}")));
        let about = |wanted: Option<EthernetAddress>| {
            move |change: &Change| match change {
                Change::Neighbour { ip, address, .. } => {
                    *ip == IpAddr::from([10, 1, 0, 2]) && *address == wanted
                }
                Change::Others => false,
            }
        };
        ip("neigh replace 10.1.0.2 lladdr 02:00:00:00:00:03 dev wire nud permanent").unwrap();
        wait_for(&mut changes, about(Some([2, 0, 0, 0, 0, 3])));
        ip("neigh del 10.1.0.2 dev wire").unwrap();
        wait_for(&mut changes, about(None));
        ip("route del 10.9.0.0/16").unwrap();
        wait_for(&mut changes, |change| *change == Change::Others);
    }
}
