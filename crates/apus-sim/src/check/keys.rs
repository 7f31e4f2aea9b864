//! The sealed side of one node: its paths, their keys, and its handshakes. It stands for the link and the driver of handshakes.

use std::collections::BTreeMap;
use std::time::Duration;

use apus_load::Random;
use apus_proto::Greeting;
use apus_seal::{
    AssociationId, Associations, Attempts, ClientHandshake, HandshakeLimits, Handshakes, Need,
    Successor,
};
use apus_wire::{PathId, Token};

use crate::check::cipher::Cipher;
use crate::check::script::{CertificateName, ScriptedTls};
use crate::check::seal_plan::SealPlan;

/// Time for a handshake of a client.
pub(super) const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// Handshakes of one host, at a time and in a second. Replayed HELLOs take places too, and are no subject here.
const PER_HOST: u16 = 1_000;

/// A path: an address, the name of the node there, and its keys.
pub(super) struct SealedPath {
    pub(super) path: PathId,
    pub(super) address: PathId,
    /// The name of the path; `None` before its first handshake.
    pub(super) peer: Option<CertificateName>,
    pub(super) keys: Option<AssociationId>,
    pub(super) attempts: Attempts,
    pub(super) attempt: Option<Attempt>,
    /// Whether a packet waits for keys.
    pub(super) is_wanted: bool,
    /// Whether a hint put the path in doubt.
    pub(super) is_doubted: bool,
    /// Whether the core has been introduced to the peer.
    pub(super) is_introduced: bool,
    /// The time of the next refresh, if this node began the path.
    pub(super) refresh_at: Option<Duration>,
}

/// A handshake that this node has begun.
pub(super) struct Attempt {
    pub(super) handshake: ClientHandshake<ScriptedTls>,
    /// The tokens of HELLO.
    pub(super) greeting: Greeting,
    pub(super) ours: AssociationId,
    /// The association whose path it refreshes.
    pub(super) over: Option<AssociationId>,
    /// The number of the call under way, its request, and its repetitions.
    pub(super) call: u64,
    pub(super) body: Vec<u8>,
    pub(super) repeat_at: Duration,
    pub(super) pause: Duration,
    pub(super) deadline: Duration,
    /// The token of REPLY, once the keys are installed and DONE is awaited.
    pub(super) installed: Option<Token>,
}

/// The sealed side of a node.
pub(super) struct Keys {
    /// The name in the certificate of the node.
    pub(super) name: CertificateName,
    pub(super) table: Associations<Cipher, PathId>,
    pub(super) paths: Vec<SealedPath>,
    /// The path by which an address is called.
    listed: BTreeMap<PathId, usize>,
    pub(super) server: Handshakes<ScriptedTls>,
    /// Answers to the calls of handshakes, by address and number: a call is executed once.
    pub(super) answers: BTreeMap<(PathId, u64), Vec<u8>>,
    /// Time of the next look at timers, if one is scheduled.
    pub(super) tend_at: Option<Duration>,
}

impl SealedPath {
    /// Returns whether a packet waits for keys, or the peer may have lost its own.
    pub(super) fn needs_path(&self) -> bool {
        self.is_wanted && self.keys.is_none() || self.is_doubted
    }

    /// Returns the time of the next handshake; `None` if none is needed. Paths are refreshed until the last call.
    pub(super) fn begin_at(&self, quiet_from: Duration) -> Option<Duration> {
        let earliest = self.attempts.earliest(Need::NoPath)?;
        if self.needs_path() {
            return Some(earliest);
        }
        let at = self.refresh_at.filter(|&at| at < quiet_from && self.keys.is_some())?;
        Some(at.max(earliest))
    }
}

impl Keys {
    pub(super) fn new(node: usize, plan: &SealPlan) -> Self {
        let limits = HandshakeLimits {
            per_host: PER_HOST,
            per_host_and_second: PER_HOST,
            ..HandshakeLimits::default()
        };
        Self {
            name: CertificateName::of(node),
            table: Associations::new(u8::try_from(node).expect("few nodes"), plan.limits),
            paths: Vec::new(),
            listed: BTreeMap::new(),
            server: Handshakes::new(limits),
            answers: BTreeMap::new(),
            tend_at: None,
        }
    }

    /// Adds a path to an address: one that is listed there, or a foreign one for keys and an identity.
    fn add(
        &mut self,
        address: PathId,
        peer: Option<CertificateName>,
        foreign: Option<(AssociationId, u64)>,
    ) -> usize {
        let index = self.paths.len();
        let identity = foreign.map_or(1 + index as u64, |(_, identity)| identity);
        let path = PathId::new(index as u32, identity << 32 | address.name()).sealed();
        self.paths.push(SealedPath {
            path,
            address,
            peer,
            keys: foreign.map(|(id, _)| id),
            attempts: Attempts::default(),
            attempt: None,
            is_wanted: false,
            is_doubted: false,
            is_introduced: false,
            refresh_at: None,
        });
        if foreign.is_none() {
            self.listed.insert(address, index);
        }
        index
    }

    /// Returns the path by which an address is called, a new one if there is none.
    pub(super) fn resolve(&mut self, address: PathId) -> usize {
        match self.listed.get(&address) {
            Some(&index) => index,
            None => self.add(address, None, None),
        }
    }

    pub(super) fn listed(&self, address: PathId) -> Option<usize> {
        self.listed.get(&address).copied()
    }

    /// Returns the path of the node with this name at an address. A path keeps the name of its first handshake, so another name has
    /// another path, which the address has from now on.
    pub(super) fn named(&mut self, address: PathId, name: CertificateName) -> usize {
        let index = self.resolve(address);
        match self.paths[index].peer {
            Some(peer) if peer != name => {
                let known = |path: &SealedPath| path.address == address && path.peer == Some(name);
                match self.paths.iter().position(known) {
                    Some(index) => {
                        self.listed.insert(address, index);
                        index
                    }
                    None => self.add(address, Some(name), None),
                }
            }
            _ => {
                self.paths[index].peer = Some(name);
                index
            }
        }
    }

    //= docs/protocol.md#seal-10
    /// Returns the path of a record that came from another address than that of the association's path. The address may be forged, so
    /// calls to it do not take this path.
    pub(super) fn foreign(
        &mut self,
        id: AssociationId,
        from: PathId,
        peer: CertificateName,
    ) -> usize {
        let identity = self.table.path(id).map_or(0, PathId::identity);
        let is_known = |it: &SealedPath| it.address == from && it.path.identity() == identity;
        match self.paths.iter().position(is_known) {
            Some(index) => {
                self.paths[index].keys.get_or_insert(id);
                index
            }
            None => self.add(from, Some(peer), Some((id, identity))),
        }
    }

    /// Sends by these keys from now on. Those of before only open datagrams.
    pub(super) fn send_by(
        &mut self,
        now: Duration,
        index: usize,
        id: AssociationId,
        is_refresh: bool,
    ) {
        let place = &mut self.paths[index];
        (place.is_wanted, place.is_doubted, place.refresh_at) = (false, false, None);
        if self.table.path(id).is_none() {
            return; // They have ended before the peer has shown that it has them.
        }
        if let Some(old) = place.keys.replace(id).filter(|&old| old != id) {
            let by = if is_refresh { Successor::Refresh } else { Successor::Crossing };
            self.table.supersede(now, old, by);
        }
    }

    /// Forgets keys that have ended.
    pub(super) fn forget(&mut self, id: AssociationId) {
        self.table.remove(id);
        for path in self.paths.iter_mut().filter(|path| path.keys == Some(id)) {
            let next = path.attempt.as_ref().map(|attempt| attempt.ours);
            path.keys = next.filter(|&next| self.table.path(next).is_some());
        }
    }

    //= docs/protocol.md#seal-9
    /// Notes a hint. A refresh goes over keys that the peer may have lost, so it ends.
    pub(super) fn doubt(&mut self, index: usize) {
        let place = &mut self.paths[index];
        place.is_doubted = true;
        if let Some(refresh) = place.attempt.take_if(|attempt| attempt.over.is_some()) {
            place.attempts = Attempts::default();
            self.forget(refresh.ours);
        }
    }

    /// Moves an association to a path that the core holds. Returns whether it belonged to another one.
    pub(super) fn follow(&mut self, path: PathId) -> bool {
        let place = &self.paths[path.index()];
        let (address, peer) = (place.address, place.peer);
        let Some(id) = place.keys else { return false };
        let moves = self.table.path(id).is_some_and(|home| home != path);
        if moves {
            self.table.move_to(id, path, address);
            self.listed.entry(address).or_insert_with(|| path.index());
            let of_peer = |path: &&mut SealedPath| path.peer == peer;
            let times = self.paths.iter_mut().filter(of_peer).map(|path| path.refresh_at.take());
            let refresh_at = times.flatten().min();
            self.paths[path.index()].refresh_at = refresh_at;
        }
        moves
    }

    /// Returns whether a record comes from the address of its path.
    pub(super) fn is_home(&self, from: PathId, record: &[u8]) -> bool {
        let home = association_of(record).and_then(|id| self.table.path(id));
        home.is_some_and(|home| self.paths[home.index()].address == from)
    }

    /// Returns the time of the next work.
    pub(super) fn due(&self, quiet_from: Duration) -> Option<Duration> {
        let of_path = |path: &SealedPath| match &path.attempt {
            Some(attempt) => Some(attempt.repeat_at.min(attempt.deadline)),
            None => path.begin_at(quiet_from),
        };
        let paths = self.paths.iter().filter_map(of_path);
        paths.chain(self.table.poll_timeout()).chain(self.server.next_timeout()).min()
    }
}

/// Returns the association that a record names.
pub(super) fn association_of(record: &[u8]) -> Option<AssociationId> {
    AssociationId::from_bits(u64::from_be_bytes(record.get(4..12)?.try_into().ok()?))
}

/// A random key for the certificates of a world.
pub(super) fn world_key(rng: &mut Random) -> [u8; 16] {
    use rand::Rng;
    let mut key = [0; 16];
    rng.fill_bytes(&mut key);
    key
}
