//! The paths of a link. Each address that the link sends to or receives from is resolved here, once.

use std::collections::HashMap;
use std::collections::hash_map::Entry::Occupied;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};

use apus_wire::{PathId, is_native};

use crate::plain_peers::{PlainPeerCheck, PlainPeers};
use crate::sealed::SealedKey;

/// Upper bound on paths that are kept without being held. Every sender of a packet gets one.
const UNHELD_MAX: usize = 4_096;

/// Upper bound on the links of one node, each with paths of its own. A power of two.
const LINKS: u32 = 4;

/// The paths of one link, each with the link's value for it.
///
/// A held path stays. Of the others, paths without recent use are evicted (second chance): use sets a mark, and a hand that moves
/// around clears marks and evicts the first path without one. So addresses that are seen once, in any number, evict only addresses
/// that were seen once.
#[derive(Debug)]
pub struct PathTable<V> {
    /// Number of the link, below [`LINKS`].
    link: u32,
    /// Randomly keyed hash for the names of paths.
    names: RandomState,
    places: HashMap<Key, usize, foldhash::fast::RandomState>,
    /// The sealed paths that are found by an address, of all identities of this node and for all ports.
    sealed_at: HashMap<SocketAddr, Vec<SealedKey>, foldhash::fast::RandomState>,
    entries: Vec<Entry<V>>,
    unheld: usize,
    /// The number of the identity that was assigned last.
    last_identity: u32,
    /// Number of sealed paths with each identity.
    identities: HashMap<u32, u32, foldhash::fast::RandomState>,
    hand: usize,
    plain_peers: PlainPeerCheck,
    /// The last plain path found, because packets arrive in runs.
    last: Option<(SocketAddr, PathId)>,
}

/// An address, and the choice among its sealed paths: an address has a plain path, and sealed ones.
type Key = (SocketAddr, Option<SealedKey>);

#[derive(Debug)]
struct Entry<V> {
    id: PathId,
    address: SocketAddr,
    /// By which a sealed path is found.
    sealed: Option<SealedKey>,
    held: u32,
    used: bool,
    value: V,
}

/// Returns the number of a path's link, among those of its node.
#[inline]
pub(crate) fn link_of(path: PathId) -> usize {
    path.index() % LINKS as usize
}

fn place_of(path: PathId) -> usize {
    path.index() / LINKS as usize
}

/// Returns the number of the identity of a path's peer; 0 for a plain path.
fn identity_of(path: PathId) -> u32 {
    u32::try_from(path.identity()).expect("the upper half of a name")
}

impl<V> PathTable<V> {
    /// Creates a table for link number `link` of a node.
    ///
    /// # Panics
    ///
    /// If the number is four or more.
    #[must_use]
    pub fn new(link: u32) -> Self {
        assert!(link < LINKS, "a node has few links");
        Self {
            link,
            names: RandomState::new(),
            places: HashMap::default(),
            sealed_at: HashMap::default(),
            entries: Vec::new(),
            unheld: 0,
            last_identity: 0,
            identities: HashMap::default(),
            hand: 0,
            plain_peers: PlainPeerCheck::default(),
            last: None,
        }
    }

    /// Bars the plain paths to all hosts except these.
    #[must_use]
    pub(crate) fn with_plain_peers(self, peers: PlainPeers) -> Self {
        Self { plain_peers: PlainPeerCheck::new(peers), ..self }
    }

    /// Returns the plain path to an address, if there is one.
    #[inline]
    pub fn find(&mut self, address: SocketAddr) -> Option<PathId> {
        match self.last {
            Some((last, path)) if last == address => Some(path),
            _ => self.find_other(address),
        }
    }

    fn find_other(&mut self, address: SocketAddr) -> Option<PathId> {
        let id = self.find_key((address, None))?;
        if !id.is_barred() {
            self.last = Some((address, id));
        } else if self.plain_peers.admits(address.ip()) {
            self.places.remove(&(address, None)); // The machine has this address now. The next path is not barred.
            return None;
        }
        Some(id)
    }

    /// Returns a sealed path to an address, if there is one.
    pub(crate) fn find_sealed(&mut self, address: SocketAddr, key: SealedKey) -> Option<PathId> {
        self.find_key((address, Some(key)))
    }

    /// Returns all sealed paths that are found by an address.
    pub(crate) fn sealed_at(&self, address: SocketAddr) -> impl Iterator<Item = PathId> {
        let keys = self.sealed_at.get(&address).into_iter().flatten();
        keys.filter_map(move |&key| {
            let place = *self.places.get(&(address, Some(key)))?;
            Some(self.entries[place].id)
        })
    }

    /// Returns the choice by which a sealed path is found; `None` if it is not found by its address.
    pub(crate) fn sealed_key(&self, path: PathId) -> Option<SealedKey> {
        let place = self.place(path)?;
        let Entry { address, sealed, .. } = &self.entries[place];
        let key = (*sealed)?;
        (self.places.get(&(*address, Some(key))) == Some(&place)).then_some(key)
    }

    /// Changes the key of a sealed path. A path that had this key is no longer found.
    pub(crate) fn set_sealed_key(&mut self, path: PathId, key: SealedKey) {
        let (Some(place), Some(before)) = (self.place(path), self.sealed_key(path)) else { return };
        let address = self.entries[place].address;
        self.unlist(address, before);
        self.entries[place].sealed = Some(key);
        self.list(address, key, place);
    }

    fn list(&mut self, address: SocketAddr, key: SealedKey, place: usize) {
        if self.places.insert((address, Some(key)), place).is_none() {
            self.sealed_at.entry(address).or_default().push(key);
        }
    }

    fn unlist(&mut self, address: SocketAddr, key: SealedKey) {
        self.places.remove(&(address, Some(key)));
        if let Occupied(mut keys) = self.sealed_at.entry(address) {
            keys.get_mut().retain(|&known| known != key);
            if keys.get().is_empty() {
                keys.remove();
            }
        }
    }

    fn find_key(&mut self, key: Key) -> Option<PathId> {
        let entry = &mut self.entries[*self.places.get(&key)?];
        entry.used = true;
        Some(entry.id)
    }

    /// Assigns a plain path to an address, in place of an unheld one if there are many of these. Passes the value of the evicted path
    /// to `evicted`. The address must have no plain path.
    pub fn insert(&mut self, address: SocketAddr, value: V, evicted: impl FnOnce(V)) -> PathId {
        let id = self.insert_entry((address, None), false, 0, value, evicted);
        self.places.insert((address, None), place_of(id));
        self.last = Some((address, id)).filter(|_| !id.is_barred());
        id
    }

    //= docs/protocol.md#seal-5
    /// Assigns a sealed path to an address, as [`insert`](Self::insert) does. If one is found by the same choice, which belongs to
    /// another peer, that one is found by the address no more. It stays while it is held. Without a choice, the new path is not found.
    pub(crate) fn insert_sealed(
        &mut self,
        address: SocketAddr,
        key: Option<SealedKey>,
        value: V,
        evicted: impl FnOnce(V),
    ) -> PathId {
        let identity = self.next_identity();
        let id = self.insert_entry((address, key), true, identity, value, evicted);
        if let Some(key) = key {
            self.list(address, key, place_of(id));
        }
        id
    }

    //= docs/protocol.md#seal-5
    /// Returns the number of a new identity. Strangers can make 2^32 of them in some hours, so numbers come again. The number of a
    /// path in the table does not: the peer of that path could be moved to a path of the new identity. 0 stands for no identity.
    fn next_identity(&mut self) -> u32 {
        loop {
            self.last_identity = self.last_identity.wrapping_add(1);
            if self.last_identity != 0 && !self.identities.contains_key(&self.last_identity) {
                return self.last_identity;
            }
        }
    }

    //= docs/protocol.md#seal-10
    /// Assigns another address to the peer of a sealed path. The new path is not found by the address: whether the peer receives there
    /// is not known.
    pub(crate) fn insert_foreign(
        &mut self,
        address: SocketAddr,
        home: PathId,
        value: V,
        evicted: impl FnOnce(V),
    ) -> PathId {
        self.insert_entry((address, None), true, identity_of(home), value, evicted)
    }

    fn insert_entry(
        &mut self,
        (address, sealed): Key,
        is_sealed: bool,
        identity: u32,
        value: V,
        evicted: impl FnOnce(V),
    ) -> PathId {
        let place = if self.unheld >= UNHELD_MAX { self.evict() } else { self.entries.len() };
        let index = u32::try_from(place).expect("far fewer than 2^30 peers") * LINKS + self.link;
        let mut id = PathId::new(index, self.name((address, is_sealed), identity))
            .on_host(self.host(address));
        if is_sealed {
            id = id.sealed();
            *self.identities.entry(identity).or_default() += 1;
        } else if !self.plain_peers.admits(address.ip()) {
            id = id.barred();
        }
        if is_native(address) {
            id = id.native();
        }
        if address.ip().to_canonical().is_loopback() {
            id = id.loopback();
        }
        let entry = Entry { id, address, sealed, held: 0, used: false, value };
        match self.entries.get_mut(place) {
            Some(old) => evicted(std::mem::replace(old, entry).value),
            None => self.entries.push(entry),
        }
        self.unheld += 1;
        id
    }

    //= docs/protocol.md#seal-5
    /// Returns the number that stands for an address; on a sealed path, also for the identity of its peer.
    fn name(&self, (address, is_sealed): (SocketAddr, bool), identity: u32) -> u64 {
        match is_sealed {
            true => u64::from(identity) << 32 | self.names.hash_one((address, identity)) >> 32,
            false => self.names.hash_one(address),
        }
    }

    /// Returns the number of a host: from its IPv4 address, or from the network of its IPv6 address, because the host may have any
    /// number of addresses in that network.
    fn host(&self, address: SocketAddr) -> u32 {
        let hash = match address.ip().to_canonical() {
            IpAddr::V4(ip) => self.names.hash_one(ip),
            IpAddr::V6(ip) => self.names.hash_one(&ip.octets()[..8]),
        };
        ((hash >> 37) as u32).max(1)
    }

    /// Returns the place of an unheld path without recent use.
    fn evict(&mut self) -> usize {
        loop {
            self.hand = (self.hand + 1) % self.entries.len();
            let entry = &mut self.entries[self.hand];
            if entry.held == 0 && !std::mem::take(&mut entry.used) {
                let (address, sealed, identity) =
                    (entry.address, entry.sealed, identity_of(entry.id));
                // A path that is not found by its address has no place.
                if self.places.get(&(address, sealed)) == Some(&self.hand) {
                    match sealed {
                        Some(key) => self.unlist(address, key),
                        None => _ = self.places.remove(&(address, None)),
                    }
                }
                if let Occupied(mut paths) = self.identities.entry(identity) {
                    *paths.get_mut() -= 1;
                    if *paths.get() == 0 {
                        paths.remove();
                    }
                }
                self.last = None;
                self.unheld -= 1;
                return self.hand;
            }
        }
    }

    /// Returns the place of a path, for [`at`](Self::at), unless the path is forgotten.
    #[inline]
    pub fn place(&self, path: PathId) -> Option<usize> {
        let place = place_of(path);
        (self.entries.get(place)?.id == path).then_some(place)
    }

    /// Returns the value of the path at a place.
    ///
    /// # Panics
    ///
    /// If there is no such place.
    #[inline]
    pub fn at(&self, place: usize) -> &V {
        &self.entries[place].value
    }

    /// Returns the value of the path at a place, to change it.
    ///
    /// # Panics
    ///
    /// If there is no such place.
    #[inline]
    pub fn at_mut(&mut self, place: usize) -> &mut V {
        &mut self.entries[place].value
    }

    /// Returns the value of a path, to change it, unless the path is forgotten.
    #[inline]
    pub fn get_mut(&mut self, path: PathId) -> Option<&mut V> {
        let place = self.place(path)?;
        Some(self.at_mut(place))
    }

    /// Returns the value of a path, unless the path is forgotten.
    #[inline]
    pub fn get(&self, path: PathId) -> Option<&V> {
        Some(self.at(self.place(path)?))
    }

    /// Returns the address that a path leads to, unless the path is forgotten.
    #[inline]
    pub fn address(&self, path: PathId) -> Option<SocketAddr> {
        Some(self.address_at(self.place(path)?))
    }

    /// Returns the address that the path at a place leads to.
    #[inline]
    pub fn address_at(&self, place: usize) -> SocketAddr {
        self.entries[place].address
    }

    /// Holds a path until it is released as often as it was held.
    pub fn hold(&mut self, path: PathId) {
        let Some(place) = self.place(path) else { return };
        let entry = &mut self.entries[place];
        self.unheld -= usize::from(entry.held == 0);
        entry.held += 1;
    }

    /// Reverts one [`hold`](Self::hold).
    pub fn release(&mut self, path: PathId) {
        let Some(place) = self.place(path) else { return };
        let entry = &mut self.entries[place];
        debug_assert!(entry.held > 0, "a path is released as often as it was held");
        if entry.held == 0 {
            return;
        }
        entry.held -= 1;
        entry.used = true;
        self.unheld += usize::from(entry.held == 0);
    }

    /// Returns the values of all paths.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.entries.iter_mut().map(|entry| &mut entry.value)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plain_peers::Networks;

    const MAIN: SealedKey = SealedKey { local: 0, port: 0 };
    const KEY: Option<SealedKey> = Some(MAIN);

    fn stranger(number: u32) -> SocketAddr {
        SocketAddr::from((number.to_be_bytes(), 7))
    }

    #[test]
    fn an_address_keeps_its_path_and_another_has_another() {
        let mut table = PathTable::new(1);
        let first = table.insert(stranger(1), 'a', drop);
        let second = table.insert(stranger(2), 'b', drop);
        assert_eq!(table.find(stranger(1)), Some(first));
        assert_eq!(table.find(stranger(2)), Some(second));
        assert_eq!((table.get(first), table.get(second)), (Some(&'a'), Some(&'b')));
        assert_eq!(table.address(second), Some(stranger(2)));
        assert_ne!(first.name(), second.name());
        assert_eq!((link_of(first), link_of(second)), (1, 1));
    }

    #[test]
    fn the_table_is_bounded_and_unknown_sources_evict_neither_what_is_held_nor_what_is_used() {
        let mut table = PathTable::new(0);
        let [held, used] = [1, 2].map(|number| table.insert(stranger(number), (), drop));
        table.hold(held);
        for number in 100..20_000 {
            let path = table.insert(stranger(number), (), drop);
            assert_eq!(table.address(path), Some(stranger(number)));
            if number % 1_000 == 0 {
                assert_eq!(table.find(stranger(2)), Some(used));
            }
        }
        assert_eq!(table.len(), UNHELD_MAX + 1);
        assert_eq!(table.address(held), Some(stranger(1)));
        table.release(held);
        (20_000..40_000).for_each(|number| _ = table.insert(stranger(number), (), drop));
        assert_eq!(table.address(held), None, "the path is no longer held");
        assert_eq!(table.find(stranger(1)), None);
    }

    #[test]
    fn an_address_that_was_forgotten_gets_its_name_back() {
        let mut table = PathTable::new(0);
        let before = table.insert(stranger(1), (), drop);
        (100..20_000).for_each(|number| _ = table.insert(stranger(number), (), drop));
        let after = table.insert(stranger(1), (), drop);
        assert_eq!((before.name(), table.get(before)), (after.name(), None));
    }

    #[test]
    fn an_address_has_a_plain_and_a_sealed_path_and_another_peer_gets_another_one() {
        //= docs/protocol.md#seal-5
        let mut table = PathTable::new(0);
        let plain = table.insert(stranger(1), 'p', drop);
        let first = table.insert_sealed(stranger(1), KEY, '1', drop);
        assert_eq!(
            (table.find(stranger(1)), table.find_sealed(stranger(1), MAIN)),
            (Some(plain), Some(first))
        );
        assert!(first.is_sealed() && !plain.is_sealed() && first.name() != plain.name());
        table.hold(first);
        let second = table.insert_sealed(stranger(1), KEY, '2', drop);
        assert_eq!(table.find_sealed(stranger(1), MAIN), Some(second));
        assert_eq!((table.get(first), table.get(second)), (Some(&'1'), Some(&'2')));
        let foreign = table.insert_foreign(stranger(1), first, '3', drop);
        assert_eq!(table.find_sealed(stranger(1), MAIN), Some(second));
        assert_eq!(table.address(foreign), Some(stranger(1)));
        assert_eq!(foreign.identity(), first.identity());
        assert_ne!((first.identity(), foreign.identity()), (second.identity(), 0));
        table.release(first);
        (100..20_000).for_each(|number| _ = table.insert(stranger(number), 'x', drop));
        assert_eq!(table.get(first), None, "nobody holds it");
    }

    #[test]
    fn an_address_has_a_sealed_path_for_each_identity_and_port_and_others_that_are_not_found() {
        //= docs/protocol.md#seal-18
        let mut table = PathTable::new(0);
        let key = |local, port| SealedKey { local, port };
        let main = table.insert_sealed(stranger(1), Some(key(0, 0)), (), drop);
        let other = table.insert_sealed(stranger(1), Some(key(1, 0)), (), drop);
        let arrived = table.insert_sealed(stranger(1), None, (), drop);
        assert_eq!(table.sealed_key(main), Some(key(0, 0)));
        assert_eq!((table.sealed_key(arrived), table.address(arrived)), (None, Some(stranger(1))));
        assert!(table.sealed_at(stranger(1)).eq([main, other]));
        table.set_sealed_key(other, key(1, 4_000));
        assert_eq!(table.find_sealed(stranger(1), key(1, 0)), None);
        assert_eq!(table.find_sealed(stranger(1), key(1, 4_000)), Some(other));
        table.set_sealed_key(arrived, key(0, 0));
        assert_eq!(table.find_sealed(stranger(1), key(0, 0)), Some(main), "it has no choice");
        [main, arrived].into_iter().for_each(|path| table.hold(path));
        (100..20_000).for_each(|number| _ = table.insert(stranger(number), (), drop));
        assert!(table.sealed_at(stranger(1)).eq([main]), "the other one was evicted");
        let renewed = table.insert_sealed(stranger(1), Some(key(0, 0)), (), drop);
        assert!(table.sealed_at(stranger(1)).eq([renewed]));
        table.release(main);
        (20_000..40_000).for_each(|number| _ = table.insert(stranger(number), (), drop));
        assert_eq!((table.address(main), table.address(arrived)), (None, Some(stranger(1))));
        assert!(table.sealed_at.is_empty());
    }

    #[test]
    fn plain_paths_to_other_hosts_than_the_plain_peers_are_barred() {
        //= docs/protocol.md#seal-17
        let networks = "198.51.100.0/24".parse().unwrap();
        let mut table = PathTable::new(0).with_plain_peers(PlainPeers::Only(networks));
        for (address, barred) in
            [("127.0.0.1:7", false), ("198.51.100.9:7", false), ("203.0.113.9:7", true)]
        {
            let address = address.parse().unwrap();
            let plain = table.insert(address, (), drop);
            let sealed = table.insert_sealed(address, KEY, (), drop);
            assert_eq!((plain.is_barred(), sealed.is_barred()), (barred, false), "{address}");
            assert_eq!(table.find(address), Some(plain));
        }
    }

    #[test]
    fn an_address_that_the_machine_gets_later_gets_another_path() {
        let address = "203.0.113.9:7".parse().unwrap();
        let mut table = PathTable::new(0).with_plain_peers(PlainPeers::Only(Networks::default()));
        let barred = table.insert(address, (), drop);
        table.plain_peers = PlainPeerCheck::default(); // As if the address had been added.
        assert_eq!(table.find(address), None);
        let path = table.insert(address, (), drop);
        assert_eq!((barred.is_barred(), path.is_barred()), (true, false));
        assert_eq!(table.find(address), Some(path));
    }

    #[test]
    fn numbers_of_identities_that_come_again_are_those_of_no_path() {
        //= docs/protocol.md#seal-5
        let mut table = PathTable::new(0);
        let [first, second] =
            [1, 2].map(|number| table.insert_sealed(stranger(number), KEY, (), drop));
        table.hold(first);
        let foreign = table.insert_foreign(stranger(3), second, (), drop);
        table.hold(foreign);
        (100..20_000).for_each(|number| _ = table.insert(stranger(number), (), drop));
        assert_eq!(table.address(second), None, "the other path of its peer is held");
        table.last_identity = u32::MAX - 1;
        let mut numbers = [4, 5, 6].map(|number| {
            let path = table.insert_sealed(stranger(number), KEY, (), drop);
            path.identity()
        });
        assert_eq!(numbers, [u64::from(u32::MAX), 3, 4]);
        table.release(first);
        table.release(foreign);
        (20_000..40_000).for_each(|number| _ = table.insert(stranger(number), (), drop));
        table.last_identity = 0;
        numbers = [7, 8, 9].map(|number| {
            let path = table.insert_sealed(stranger(number), KEY, (), drop);
            path.identity()
        });
        assert_eq!(numbers, [1, 2, 3], "nobody has them any more");
    }

    #[test]
    fn paths_say_what_their_addresses_show() {
        let mut table = PathTable::new(0);
        for (address, native, loopback) in [
            ("127.0.0.1:7", false, true),
            ("[::ffff:127.0.0.1]:7", false, true),
            ("[::1]:0", true, true),
            ("10.0.0.1:0", true, false),
        ] {
            let path = table.insert(address.parse().unwrap(), (), drop);
            assert_eq!((path.is_native(), path.is_loopback()), (native, loopback), "{address}");
        }
    }
}
