//! The RPCs of an endpoint, by handle and by name.

use apus_wire::RpcId;

use crate::lookup::{Lookup, Named};
use crate::rpc::Rpc;
use crate::slab::{PeerKey, RpcKey, Slab};

/// Every RPC, of both roles. Its name is its peer and its id in the form of this side.
#[derive(Debug)]
pub(crate) struct Rpcs {
    slots: Slab<RpcKey, Rpc>,
    by_name: Lookup<RpcKey, (PeerKey, RpcId)>,
}

impl Rpcs {
    pub(crate) fn new(seed: u64) -> Self {
        Self { slots: Slab::new(), by_name: Lookup::new(seed) }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of slots ever used: the bound of a sweep by [`Rpcs::at`].
    pub(crate) fn slots(&self) -> usize {
        self.slots.slots()
    }

    pub(crate) fn at(&self, slot: usize) -> Option<(RpcKey, &Rpc)> {
        self.slots.at(slot)
    }

    #[inline]
    pub(crate) fn get(&self, key: RpcKey) -> Option<&Rpc> {
        self.slots.get(key)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: RpcKey) -> Option<&mut Rpc> {
        self.slots.get_mut(key)
    }

    #[inline]
    pub(crate) fn find(&self, peer: PeerKey, id: RpcId) -> Option<RpcKey> {
        self.by_name.find(&self.slots, &(peer, id))
    }

    #[inline]
    pub(crate) fn insert(&mut self, rpc: Rpc) -> RpcKey {
        debug_assert!(self.find(rpc.peer, rpc.id).is_none(), "ids are unique per peer and role");
        let key = self.slots.insert(rpc);
        self.by_name.insert(&self.slots, key);
        key
    }

    /// Assigns an RPC to another peer, with the id that it has there.
    pub(crate) fn rename(&mut self, key: RpcKey, peer: PeerKey, id: RpcId) {
        let Some(rpc) = self.slots.get_mut(key) else { return };
        self.by_name.remove(key, (rpc.peer, rpc.id));
        (rpc.peer, rpc.id) = (peer, id);
        self.by_name.insert(&self.slots, key);
    }

    /// Drops an RPC in its place.
    #[inline]
    pub(crate) fn remove(&mut self, key: RpcKey) {
        let name = self.slots.get(key).map(Named::name);
        if let Some(name) = name {
            self.by_name.remove(key, name);
            self.slots.remove(key);
        }
    }
}
