//! The sealed paths of an engine, each with its peer and its handshakes.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use apus_net::SealedKey;
use apus_proto::{Greeting, Time};
use apus_seal::{AssociationId, Attempts, ClientHandshake, Identity, Need, Role, TlsSession};
use apus_wire::{PathId, Token};

use crate::error::CallError;

/// Pause before the next doubt of a path, after a peer has proved that it knows the path: this at first, doubling.
const DOUBT_PAUSE: Duration = Duration::from_secs(1);
const DOUBT_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Returns the time of the engine as that of `apus-seal`.
pub(super) fn time_of(now: Time) -> Duration {
    now.saturating_since(Time::ZERO)
}

//= docs/protocol.md#seal-18
/// The use of a sealed path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct PathUse {
    /// The number of this node's identity.
    pub(super) local: u8,
    /// The port that the path is for alone: of the peer, or of this node if the path has arrived. 0: all ports.
    pub(super) port: u16,
    /// The peer began the path, and calls to its address do not take it, because one of the two nodes has several identities.
    pub(super) has_arrived: bool,
}

impl PathUse {
    /// Returns the use of a path that is found by its address.
    pub(super) const fn of_key(SealedKey { local, port }: SealedKey) -> Self {
        Self { local, port, has_arrived: false }
    }

    /// Returns a number that stands for the use.
    pub(super) fn label(self) -> u64 {
        u64::from(self.local) | u64::from(self.port) << 8 | u64::from(self.has_arrived) << 24
    }

    pub(super) const fn of_label(label: u64) -> Self {
        Self { local: label as u8, port: (label >> 8) as u16, has_arrived: label >> 24 != 0 }
    }
}

/// A sealed path.
pub(super) struct SealedPath {
    pub(super) address: SocketAddr,
    pub(super) usage: PathUse,
    //= docs/protocol.md#seal-5
    /// The peer, whose name the path keeps; `None` before the first handshake.
    pub(super) peer: Option<Arc<Identity>>,
    /// The role of this node in the last handshake.
    pub(super) role: Role,
    pub(super) attempts: Attempts,
    pub(super) attempt: Option<Attempt>,
    /// Whether packets wait for keys.
    pub(super) is_wanted: bool,
    /// Whether a hint has put the path in doubt.
    pub(super) is_doubted: bool,
    /// The time from which a hint is believed, and the pause after the next one.
    doubts: (Duration, Duration),
    /// Time of the next refresh, if this node began the path.
    pub(super) refresh_at: Option<Duration>,
    /// The time since which the path has no keys; `None` while it has some.
    pub(super) keyless_since: Option<Duration>,
    /// Number of handshakes that were withdrawn one after another.
    pub(super) withdrawn: u8,
    /// The cause of the last failure.
    pub(super) error: Option<CallError>,
    /// Its time among the timers of the table.
    timer: Option<Duration>,
    /// Its time among the spare paths of the table.
    spare: Option<Duration>,
}

/// A handshake that this node has begun.
pub(super) struct Attempt {
    pub(super) number: u64,
    pub(super) id: AssociationId,
    pub(super) greeting: Greeting,
    pub(super) cause: Cause,
    /// The port whose certificate the server is to show; 0 for that of the node.
    pub(super) port: u16,
    /// The token of REPLY, once it is here.
    pub(super) theirs: Option<Token>,
    /// The handshake, unless the worker has it.
    pub(super) handshake: Option<Box<ClientHandshake<TlsSession>>>,
    pub(super) began: Duration,
    /// The generation of the node's files when it began.
    pub(super) generation: u64,
}

/// The reason for a handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    /// Packets wait for keys.
    Wanted,
    /// The peer may have lost its keys.
    Doubted,
    /// The keys are to be replaced, by a handshake that they seal.
    Refresh,
}

impl SealedPath {
    fn new(address: SocketAddr, usage: PathUse, now: Duration) -> Self {
        Self {
            address,
            usage,
            peer: None,
            role: Role::Client,
            attempts: Attempts::default(),
            attempt: None,
            is_wanted: false,
            is_doubted: false,
            doubts: (Duration::ZERO, DOUBT_PAUSE),
            refresh_at: None,
            keyless_since: Some(now),
            withdrawn: 0,
            error: None,
            timer: None,
            spare: None,
        }
    }

    //= docs/protocol.md#seal-9
    /// Notes a hint that the link believes. Hints of peers that have proved to know the path are believed less and less often.
    pub(super) fn doubt(&mut self, now: Duration) {
        if now >= self.doubts.0 {
            self.is_doubted = true;
        }
    }

    /// Notes whether the peer of a doubted path knew it.
    pub(super) fn end_doubt(&mut self, now: Duration, was_known: bool) {
        let (_, pause) = self.doubts;
        self.doubts = match was_known {
            true => (now + pause, (pause * 2).min(DOUBT_PAUSE_MAX)),
            false => (Duration::ZERO, DOUBT_PAUSE),
        };
    }

    /// Returns the time at which a handshake may begin, if one is needed. A path that is in doubt does not wait for the spacing of
    /// refreshes: its calls do not go on.
    fn begin_at(&self) -> Option<Duration> {
        let earliest = self.attempts.earliest(Need::NoPath)?;
        if self.is_wanted || self.is_doubted {
            return Some(earliest);
        }
        Some(self.refresh_at?.max(earliest))
    }

    /// Has a handshake begin again for the same reason.
    pub(super) fn want_again(&mut self, cause: Cause) {
        match cause {
            Cause::Wanted => self.is_wanted = true,
            Cause::Doubted => self.is_doubted = true,
            Cause::Refresh => self.refresh_at = Some(Duration::ZERO),
        }
    }

    /// Returns the time from which the path may be forgotten: it has no keys, nobody wants some, and no call fails with its error.
    fn spare_from(&self) -> Option<Duration> {
        if self.attempt.is_some() || self.is_wanted || self.is_doubted {
            return None;
        }
        Some(self.keyless_since?.max(self.attempts.earliest(Need::NoPath)?))
    }
}

/// The paths of an engine.
#[derive(Default)]
pub(super) struct SealedPathTable {
    by_id: BTreeMap<PathId, SealedPath>,
    /// The paths of attempts under way, by their number.
    attempts: BTreeMap<u64, PathId>,
    last_attempt: u64,
    busy: BTreeSet<PathId>,
    /// The times at which handshakes may begin.
    timers: BTreeSet<(Duration, PathId)>,
    /// The times from which paths may be forgotten.
    spare: BTreeSet<(Duration, PathId)>,
    /// Paths that have arrived, by the address of their peer and their use.
    arrived: BTreeMap<(SocketAddr, PathUse), BTreeSet<PathId>>,
    /// Number of identities that share the table; 0 stands for 1.
    identities: usize,
    /// Number of paths of each identity.
    counts: BTreeMap<u8, usize>,
}

//= docs/protocol.md#seal-4
/// Upper bound on the paths. Fewer may have keys, so one without keys gives way, unless all of these are called or wait for their
/// next handshake.
const PATHS_MAX: usize = 16_384;

impl SealedPathTable {
    pub(super) fn get(&self, path: PathId) -> Option<&SealedPath> {
        self.by_id.get(&path)
    }

    /// Returns whether a path belongs to the peer with this certificate chain.
    pub(super) fn is_peer(&self, path: PathId, peer: &Identity) -> bool {
        let known = self.get(path).and_then(|entry| entry.peer.as_ref());
        known.is_some_and(|known| known.is_of_chain(peer))
    }

    /// Changes the entry of a path, if there is one.
    pub(super) fn update<R>(
        &mut self,
        path: PathId,
        change: impl FnOnce(&mut SealedPath) -> R,
    ) -> Option<R> {
        let entry = self.by_id.get_mut(&path)?;
        let result = change(entry);
        let timer = entry.begin_at().filter(|_| entry.attempt.is_none());
        let spare = entry.spare_from();
        set_time(&mut self.timers, path, &mut entry.timer, timer);
        set_time(&mut self.spare, path, &mut entry.spare, spare);
        Some(result)
    }

    //= docs/protocol.md#seal-18
    /// Has each of several identities have an equal share of the table.
    pub(super) fn share_among(&mut self, identities: usize) {
        self.identities = identities;
    }

    /// Returns whether there is no room for a further path of an identity.
    pub(super) fn is_full(&self, local: u8) -> bool {
        let count = self.counts.get(&local).copied().unwrap_or(0);
        count >= PATHS_MAX / self.identities.max(1)
    }

    /// Makes an entry for a path that has none. Returns `false` if the table is full.
    pub(super) fn add(
        &mut self,
        path: PathId,
        (address, usage): (SocketAddr, PathUse),
        now: Duration,
    ) -> bool {
        if self.by_id.contains_key(&path) {
            return true;
        }
        if self.is_full(usage.local) {
            return false;
        }
        self.insert(path, SealedPath::new(address, usage, now));
        true
    }

    fn insert(&mut self, path: PathId, entry: SealedPath) {
        *self.counts.entry(entry.usage.local).or_default() += 1;
        if entry.usage.has_arrived {
            self.arrived.entry((entry.address, entry.usage)).or_default().insert(path);
        }
        self.by_id.insert(path, entry);
        self.update(path, |_| ());
    }

    /// Returns the paths with a use that have arrived from an address.
    pub(super) fn arrived_from(
        &self,
        address: SocketAddr,
        usage: PathUse,
    ) -> impl Iterator<Item = PathId> {
        self.arrived.get(&(address, usage)).into_iter().flatten().copied()
    }

    /// Returns the path of an identity that has been spare for the longest time.
    pub(super) fn first_spare(&self, now: Duration, local: u8) -> Option<PathId> {
        let spare = self.spare.iter().take_while(|(from, _)| *from <= now);
        let mut paths = spare.map(|&(_, path)| path);
        paths.find(|&path| self.get(path).is_some_and(|entry| entry.usage.local == local))
    }

    pub(super) fn remove(&mut self, path: PathId) -> Option<SealedPath> {
        let mut removed = self.by_id.remove(&path)?;
        set_time(&mut self.timers, path, &mut removed.timer, None);
        set_time(&mut self.spare, path, &mut removed.spare, None);
        removed.attempt.iter().for_each(|attempt| _ = self.attempts.remove(&attempt.number));
        self.busy.remove(&path);
        if let Some(count) = self.counts.get_mut(&removed.usage.local) {
            *count -= 1;
        }
        if let Entry::Occupied(mut paths) = self.arrived.entry((removed.address, removed.usage)) {
            paths.get_mut().remove(&path);
            if paths.get().is_empty() {
                paths.remove();
            }
        }
        Some(removed)
    }

    //= docs/protocol.md#seal-10
    /// Moves a path to another address of its peer, in place of the entry there.
    pub(super) fn rename(&mut self, from: PathId, to: PathId, address: SocketAddr) {
        let Some(moved) = self.remove(from) else { return };
        self.remove(to);
        moved.attempt.iter().for_each(|attempt| _ = self.attempts.insert(attempt.number, to));
        self.insert(to, SealedPath { address, ..moved });
    }

    pub(super) fn next_attempt(&mut self, path: PathId) -> u64 {
        self.last_attempt += 1;
        self.attempts.insert(self.last_attempt, path);
        self.last_attempt
    }

    /// Returns the path of an attempt that is under way.
    pub(super) fn of_attempt(&self, number: u64) -> Option<PathId> {
        self.attempts.get(&number).copied()
    }

    /// Notes whether a path waits because its server had no room for a handshake.
    pub(super) fn set_busy(&mut self, path: PathId, is_busy: bool) {
        if is_busy {
            self.busy.insert(path);
        } else {
            self.busy.remove(&path);
        }
    }

    /// Returns the paths that wait because their servers had no room.
    pub(super) fn busy(&self) -> impl Iterator<Item = PathId> {
        self.busy.iter().copied()
    }

    /// Returns the paths with attempts under way, and their addresses.
    pub(super) fn under_way(&self) -> impl Iterator<Item = (PathId, SocketAddr)> {
        self.attempts.values().filter_map(|&path| Some((path, self.get(path)?.address)))
    }

    /// Takes the attempt of a path, which has ended.
    pub(super) fn end_attempt(&mut self, path: PathId) -> Option<Attempt> {
        let attempt = self.update(path, |entry| entry.attempt.take())??;
        self.attempts.remove(&attempt.number);
        Some(attempt)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (PathId, &SealedPath)> {
        self.by_id.iter().map(|(&path, entry)| (path, entry))
    }

    /// Returns a path whose handshake may begin now.
    pub(super) fn first_due(&self, now: Duration) -> Option<PathId> {
        self.timers.first().filter(|(at, _)| *at <= now).map(|&(_, path)| path)
    }

    /// Returns the time at which the next handshake may begin.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.timers.first().map(|&(at, _)| at)
    }
}

/// Sets the time of a path in a set of times.
fn set_time(
    times: &mut BTreeSet<(Duration, PathId)>,
    path: PathId,
    present: &mut Option<Duration>,
    time: Option<Duration>,
) {
    if *present != time {
        present.iter().for_each(|&before| _ = times.remove(&(before, path)));
        times.extend(time.map(|time| (time, path)));
        *present = time;
    }
}

#[cfg(test)]
mod tests {
    use apus_seal::{HandshakeError, Name};

    use super::*;

    fn path(number: usize) -> PathId {
        PathId::new(number as u32, number as u64).sealed()
    }

    fn address() -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], 7))
    }

    fn at(millis: usize) -> Duration {
        Duration::from_millis(millis as u64)
    }

    //= docs/protocol.md#seal-4
    #[test]
    fn a_full_table_takes_no_path_and_names_the_one_that_has_been_spare_for_longest() {
        let mut table = SealedPathTable::default();
        let end = PATHS_MAX;
        assert!((0..end).all(|number| table.add(
            path(number),
            (address(), PathUse::default()),
            at(number)
        )));
        assert!(!table.add(path(end), (address(), PathUse::default()), at(end)));
        assert!(table.add(path(0), (address(), PathUse::default()), at(end)), "it is there");
        assert_eq!(table.first_spare(at(end), 0), Some(path(0)));
        table.update(path(0), |entry| entry.is_wanted = true);
        table.update(path(1), |entry| entry.is_doubted = true);
        table.update(path(2), |entry| entry.keyless_since = None);
        let error = HandshakeError::OutOfOrder;
        table.update(path(3), |entry| entry.attempts.failed(at(end), error, 0));
        assert_eq!(table.first_spare(at(end), 0), Some(path(4)));
        assert!((4..end).all(|number| table.remove(path(number)).is_some()));
        assert_eq!(
            table.first_spare(at(end), 0),
            None,
            "calls fail with the error of the last one"
        );
        assert_eq!(table.first_spare(at(end + 300), 0), Some(path(3)));
        table.update(path(2), |entry| entry.keyless_since = Some(at(10)));
        assert_eq!(table.first_spare(at(end), 0), Some(path(2)));
        assert!((4..end).all(|number| table.add(
            path(end + number),
            (address(), PathUse::default()),
            at(end)
        )));
        assert!(!table.add(path(end), (address(), PathUse::default()), at(end)));
    }

    //= docs/protocol.md#seal-11
    #[test]
    fn a_verdict_is_about_the_peer_that_was_judged() {
        let name = Name::parse("kv.example.org").unwrap();
        let peer = |chain| Identity { chain: vec![vec![chain]], ..Identity::named(name.clone()) };
        let mut table = SealedPathTable::default();
        table.add(path(1), (address(), PathUse::default()), at(0));
        assert!(!table.is_peer(path(1), &peer(1)), "nobody was introduced");
        table.update(path(1), |entry| entry.peer = Some(Arc::new(peer(1))));
        assert!(table.is_peer(path(1), &peer(1)));
        table.update(path(1), |entry| entry.peer = Some(Arc::new(peer(2))));
        assert!(!table.is_peer(path(1), &peer(1)), "a later handshake has shown another chain");
        assert!(!table.is_peer(path(2), &peer(1)));
    }

    //= docs/protocol.md#seal-18
    #[test]
    fn an_identity_with_many_paths_takes_the_place_of_no_other() {
        let mut table = SealedPathTable::default();
        table.share_among(2);
        let half = PATHS_MAX / 2;
        let of = |local| (address(), PathUse { local, ..PathUse::default() });
        assert!((0..half).all(|number| table.add(path(number), of(1), at(0))));
        assert!(!table.add(path(half), of(1), at(0)) && table.is_full(1) && !table.is_full(0));
        assert!((half..PATHS_MAX).all(|number| table.add(path(number), of(0), at(1))));
        assert_eq!(
            (table.first_spare(at(1), 0), table.first_spare(at(1), 1)),
            (Some(path(half)), Some(path(0)))
        );
        assert!(table.remove(path(0)).is_some() && !table.add(path(0), of(0), at(2)));
        assert!(table.add(path(0), of(1), at(2)));
    }

    //= docs/protocol.md#seal-18
    #[test]
    fn paths_that_have_arrived_are_found_by_address_and_use() {
        let mut table = SealedPathTable::default();
        let usage = |local, port| PathUse { local, port, has_arrived: true };
        let other = SocketAddr::from(([10, 0, 0, 2], 7));
        for (number, from) in [
            (address(), usage(1, 4_000)),
            (address(), usage(1, 4_000)),
            (address(), usage(2, 4_000)),
            (address(), usage(1, 0)),
            (other, usage(1, 4_000)),
            (address(), PathUse { has_arrived: false, ..usage(1, 4_000) }),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(PathUse::of_label(from.1.label()), from.1);
            assert!(table.add(path(number), from, at(0)));
        }
        let found = |table: &SealedPathTable, address, usage| {
            table.arrived_from(address, usage).collect::<Vec<_>>()
        };
        assert_eq!(found(&table, address(), usage(1, 4_000)), [path(0), path(1)]);
        assert_eq!(found(&table, address(), usage(2, 4_000)), [path(2)]);
        table.rename(path(0), path(9), other);
        assert_eq!(found(&table, address(), usage(1, 4_000)), [path(1)]);
        assert_eq!(found(&table, other, usage(1, 4_000)), [path(4), path(9)]);
        (0..10).for_each(|number| _ = table.remove(path(number)));
        assert!(table.arrived.is_empty());
    }

    #[test]
    fn nothing_is_left_of_a_path_that_was_forgotten_or_displaced() {
        let mut table = SealedPathTable::default();
        for number in [1, 2] {
            assert!(table.add(path(number), (address(), PathUse::default()), at(0)));
            table.update(path(number), |entry| entry.is_wanted = true);
            table.set_busy(path(number), true);
        }
        table.update(path(1), |entry| entry.refresh_at = Some(at(5)));
        table.update(path(1), |entry| entry.is_wanted = false);
        assert_eq!(table.next_due(), Some(at(0)));
        table.rename(path(1), path(2), address());
        assert_eq!((table.next_due(), table.busy().count()), (Some(at(5)), 0));
        table.remove(path(2));
        assert_eq!((table.next_due(), table.first_spare(at(9), 0)), (None, None));
        assert_eq!((table.iter().count(), table.timers.len(), table.spare.len()), (0, 0, 0));
    }
}
