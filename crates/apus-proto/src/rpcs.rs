//! The RPCs of an endpoint, by handle and by name.

use apus_wire::RpcId;

use crate::lookup::{Lookup, Named};
use crate::rpc::Rpc;
use crate::slab::{Handle, PeerKey, RpcKey, Slab};

/// Every RPC, of both roles. Its name is its peer and its id in the form of this side.
///
/// The ids of a peer's calls count without gaps, so the calls under way have places of their own in a small table, and no hash is
/// computed for them. An RPC whose place is taken is found by its hash. A peer can choose ids that take the places of other RPCs, which
/// are then found as fast as without places.
#[derive(Debug)]
pub(crate) struct Rpcs {
    slots: Slab<RpcKey, Rpc>,
    /// The slot of an RPC and 1, or 0. Their number is a power of two.
    places: Vec<u32>,
    /// RPCs whose places are taken.
    by_name: Lookup<RpcKey, Name>,
}

type Name = (PeerKey, RpcId);

/// Number of places of an endpoint without RPCs.
const PLACES_MIN: usize = 64;
/// Upper bound on the number of places, which take 256 KiB.
const PLACES_MAX: usize = 64 << 10;
/// Number of places for each slot, so that RPCs with several peers rarely meet.
const PLACES_EACH: usize = 4;

/// Returns the index of the place of an RPC among `count` places.
#[inline]
fn place_of((peer, id): Name, count: usize) -> usize {
    let (role, number) = (id.0 & 1, id.0 >> 1);
    let spread = (u64::from(peer.index()) << 1 | role).wrapping_mul(0x9e37_79b9) >> 16;
    (number ^ spread) as usize & count.wrapping_sub(1)
}

impl Rpcs {
    pub(crate) fn new(seed: u64) -> Self {
        Self { slots: Slab::new(), places: vec![0; PLACES_MIN], by_name: Lookup::new(seed) }
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
        let name = (peer, id);
        let slot = self.places[place_of(name, self.places.len())].checked_sub(1);
        match slot.and_then(|slot| self.slots.at(slot as usize)) {
            Some((key, rpc)) if rpc.name() == name => Some(key),
            _ => self.find_hashed(name),
        }
    }

    #[cold]
    fn find_hashed(&self, name: Name) -> Option<RpcKey> {
        if self.by_name.is_empty() { None } else { self.by_name.find(&self.slots, &name) }
    }

    #[inline]
    pub(crate) fn insert(&mut self, rpc: Rpc) -> RpcKey {
        debug_assert!(self.find(rpc.peer, rpc.id).is_none(), "ids are unique per peer and role");
        let name = rpc.name();
        let key = self.slots.insert(rpc);
        if self.slots.slots().saturating_mul(PLACES_EACH) > self.places.len() {
            self.make_places();
        }
        self.add_name(key, name);
        key
    }

    #[inline]
    fn add_name(&mut self, key: RpcKey, name: Name) {
        let index = place_of(name, self.places.len());
        let place = &mut self.places[index];
        if *place == 0 {
            *place = key.index().wrapping_add(1); // Fewer than 2^31 RPCs fit into memory.
        } else {
            self.insert_hashed(key);
        }
    }

    #[cold]
    fn insert_hashed(&mut self, key: RpcKey) {
        self.by_name.insert(&self.slots, key);
    }

    #[inline]
    fn remove_name(&mut self, key: RpcKey, name: Name) {
        let index = place_of(name, self.places.len());
        let place = &mut self.places[index];
        if *place == key.index().wrapping_add(1) {
            *place = 0;
        } else {
            self.remove_hashed(key, name);
        }
    }

    #[cold]
    fn remove_hashed(&mut self, key: RpcKey, name: Name) {
        self.by_name.remove(key, name);
    }

    /// Doubles the number of places, up to its bound.
    #[cold]
    fn make_places(&mut self) {
        let count = self.places.len().saturating_mul(2);
        if count > PLACES_MAX {
            return;
        }
        for place in std::mem::replace(&mut self.places, vec![0; count]) {
            let slot = place.checked_sub(1);
            if let Some((key, rpc)) = slot.and_then(|slot| self.slots.at(slot as usize)) {
                let name = rpc.name();
                self.add_name(key, name);
            }
        }
    }

    /// Assigns an RPC to another peer, with the id that it has there.
    pub(crate) fn rename(&mut self, key: RpcKey, peer: PeerKey, id: RpcId) {
        let Some(rpc) = self.slots.get_mut(key) else { return };
        let before = rpc.name();
        (rpc.peer, rpc.id) = (peer, id);
        self.remove_name(key, before);
        self.add_name(key, (peer, id));
    }

    /// Drops an RPC in its place.
    #[inline]
    pub(crate) fn remove(&mut self, key: RpcKey) {
        let _ = self.remove_with(key, |_| ());
    }

    /// Drops an RPC in its place after `take` has taken the parts that are needed.
    #[inline]
    pub(crate) fn remove_with<R>(
        &mut self,
        key: RpcKey,
        take: impl FnOnce(&mut Rpc) -> R,
    ) -> Option<R> {
        let (name, taken) = self.slots.remove_with(key, |rpc| (rpc.name(), take(rpc)))?;
        self.remove_name(key, name);
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use crate::rpc::Phase;
    use crate::slab::SocketKey;
    use crate::time::Time;

    use super::*;

    fn rpc(peer: u32, id: u64) -> Rpc {
        let (peer, socket) = (PeerKey::new(peer, 0), SocketKey::new(0, 0));
        Rpc::new(RpcId(id), Phase::InService, peer, socket, (1, 2), Time::ZERO)
    }

    #[test]
    fn rpcs_are_found_by_their_names_wherever_their_places_are() {
        let mut rpcs = Rpcs::new(1);
        // Most ids of the third peer have the same place.
        let names = (0..3_000_u64).map(|number| match number % 3 {
            0 => (0, number),
            1 => (1, number | 1),
            _ => (2, number << 40),
        });
        let names: Vec<(u32, u64)> = names.collect();
        let keys: Vec<RpcKey> =
            names.iter().map(|&(peer, id)| rpcs.insert(rpc(peer, id))).collect();
        assert!(!rpcs.by_name.is_empty());
        let find = |rpcs: &Rpcs, (peer, id)| rpcs.find(PeerKey::new(peer, 0), RpcId(id));
        for (&name, &key) in names.iter().zip(&keys) {
            assert_eq!(find(&rpcs, name), Some(key));
        }
        assert_eq!(find(&rpcs, (0, 1)), None);
        for &key in keys.iter().step_by(2) {
            rpcs.remove(key);
        }
        for (number, (&name, &key)) in names.iter().zip(&keys).enumerate() {
            assert_eq!(find(&rpcs, name), (number % 2 == 1).then_some(key));
        }
        rpcs.rename(keys[1], PeerKey::new(7, 0), RpcId(8));
        assert_eq!((find(&rpcs, names[1]), find(&rpcs, (7, 8))), (None, Some(keys[1])));
        for &key in &keys {
            rpcs.remove(key);
        }
        assert!(rpcs.len() == 0 && rpcs.by_name.is_empty());
        assert!(rpcs.places.iter().all(|&place| place == 0));
    }
}
