//! The addresses of the nodes, and the packets that leave them.

use apus_wire::{PacketSink, PathId, Priority, Transmit};

/// The addresses of all nodes.
#[derive(Debug)]
pub(super) struct Addresses {
    /// The current address of each node.
    pub(super) of: Vec<PathId>,
    /// Every address that was ever used, with its last owner.
    known: Vec<(PathId, usize)>,
}

impl Addresses {
    pub(super) fn new(nodes: usize) -> Self {
        let mut addresses = Self { of: Vec::new(), known: Vec::new() };
        for node in 0..nodes {
            let address = addresses.fresh(node);
            addresses.of.push(address);
        }
        addresses
    }

    fn fresh(&mut self, node: usize) -> PathId {
        let index = self.known.len() as u8;
        let address = PathId::new(index.into(), index.into());
        self.known.push((address, node));
        address
    }

    /// The current or the last owner of the address.
    pub(super) fn owner(&self, address: PathId) -> Option<usize> {
        let known = self.known.iter().find(|(known, _)| *known == address);
        known.map(|&(_, node)| node)
    }

    /// The node that a packet to the address reaches.
    pub(super) fn reached(&self, address: PathId) -> Option<usize> {
        self.owner(address).filter(|&node| self.of[node] == address)
    }

    /// Gives a node a new address, and its old address to the heir, if there is one.
    pub(super) fn move_node(&mut self, node: usize, heir: Option<usize>) {
        let left = self.of[node];
        self.of[node] = self.fresh(node);
        if let Some(heir) = heir {
            self.of[heir] = left;
            let known = self.known.iter_mut().find(|(known, _)| *known == left);
            known.expect("every address is known").1 = heir;
        }
    }
}

/// A packet that leaves a node's endpoint.
pub(super) struct SentPacket {
    pub(super) node: usize,
    pub(super) path: PathId,
    pub(super) level: Priority,
    pub(super) header_len: usize,
    pub(super) bytes: Vec<u8>,
}

/// Collects the packets of a node's endpoint.
pub(super) struct Outbox<'a> {
    pub(super) node: usize,
    pub(super) mtu: usize,
    pub(super) packets: &'a mut Vec<SentPacket>,
    /// The paths that the endpoint has begun to hold.
    pub(super) held: &'a mut Vec<PathId>,
}

impl PacketSink for Outbox<'_> {
    fn send(&mut self, packet: Transmit<'_>) {
        let bytes = [packet.header, packet.payload()].concat();
        self.packets.push(SentPacket {
            node: self.node,
            path: packet.path,
            level: packet.priority,
            header_len: packet.header.len(),
            bytes,
        });
    }

    fn max_packet(&self, _: PathId) -> usize {
        self.mtu
    }

    fn hold(&mut self, path: PathId) {
        self.held.push(path);
    }
}

/// A hostile node's address.
pub(super) fn attacker() -> PathId {
    PathId::new(255, 255)
}
