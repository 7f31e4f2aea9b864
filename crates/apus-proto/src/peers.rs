//! The peers of an endpoint, by handle, by path and by token.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Index, IndexMut};
use std::time::Duration;

use apus_wire::{PacketSink, PathId, Token};

use crate::lookup::{Lookup, Named};
use crate::peer::{EVICTABLE_AFTER, Peer, Theirs};
use crate::slab::{Handle as _, PeerKey, Slab};
use crate::time::Time;

/// Interval between searches for idle peers.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Upper bound on the tokens of forgotten peers that are kept at a time: 2,600 tokens per second.
const SPENT_MAX: usize = 65_536;

/// Report to the link about a path.
#[derive(Clone, Copy, Debug)]
enum PathUse {
    Hold(PathId),
    Release(PathId),
}

/// Every known peer.
///
/// An RPC names its peer by a [`PeerKey`], and a peer with RPCs is never removed, so such a key can be used as an index.
#[derive(Debug)]
pub(crate) struct Peers {
    slots: Slab<PeerKey, Peer>,
    /// The peer for calls by a path, by the path's index.
    by_path: Vec<Option<PeerKey>>,
    /// All peers at each path: also earlier runs, and those that ask on behalf of others.
    at_path: BTreeSet<(PathId, PeerKey)>,
    /// Changes in the use of paths by peers since the last report to the link.
    path_uses: Vec<PathUse>,
    /// The sender of packets with a token.
    by_token: Lookup<PeerKey, Token>,
    /// The peer that has chosen a token, while that token is used.
    by_their_token: Lookup<PeerKey, Theirs>,
    /// Number of peers of each host whose number the link knows.
    by_host: BTreeMap<u32, u32>,
    /// Tokens of peers that were forgotten while their proofs were fresh, with the time, oldest first.
    spent: VecDeque<(Time, Token)>,
    spent_tokens: BTreeSet<u64>,
    /// The last peer found, because packets arrive in runs.
    last_token: Option<(Token, PeerKey)>,
    /// The slot at which the search for idle peers continues.
    cursor: usize,
    /// Time at which that search continues.
    next_check: Time,
}

impl Peers {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            slots: Slab::new(),
            by_path: Vec::new(),
            at_path: BTreeSet::new(),
            path_uses: Vec::new(),
            by_token: Lookup::new(seed),
            by_their_token: Lookup::new(seed),
            by_host: BTreeMap::new(),
            spent: VecDeque::new(),
            spent_tokens: BTreeSet::new(),
            last_token: None,
            cursor: 0,
            next_check: Time::ZERO,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots.slots()
    }

    #[inline]
    pub(crate) fn get(&self, key: PeerKey) -> Option<&Peer> {
        self.slots.get(key)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: PeerKey) -> Option<&mut Peer> {
        self.slots.get_mut(key)
    }

    /// Returns the keys of all peers, in the order of their slots.
    pub(crate) fn keys(&self) -> Vec<PeerKey> {
        (0..self.slots()).filter_map(|slot| self.slots.at(slot)).map(|(key, _)| key).collect()
    }

    /// Returns the peer for calls by `path`.
    #[inline]
    pub(crate) fn find(&self, path: PathId) -> Option<PeerKey> {
        self.by_path.get(path.index()).copied().flatten().filter(|&key| self[key].path == path)
    }

    /// Returns all peers at a path.
    pub(crate) fn at(&self, path: PathId) -> Vec<PeerKey> {
        let all = (path, PeerKey::new(0, 0))..=(path, PeerKey::new(u32::MAX, u32::MAX));
        self.at_path.range(all).map(|&(_, key)| key).collect()
    }

    /// Returns the time of the last packet from any peer at a path.
    pub(crate) fn last_rx_at(&self, path: PathId) -> Time {
        let all = self.at(path).into_iter().map(|key| self[key].last_rx);
        all.max().unwrap_or(Time::ZERO)
    }

    /// Returns the peer whose packets carry `token`.
    #[inline]
    pub(crate) fn find_token(&mut self, token: Token) -> Option<PeerKey> {
        match self.last_token {
            Some((last, key)) if last == token => Some(key),
            _ if token == Token::NONE => None,
            _ => {
                let key = self.by_token.find(&self.slots, &token)?;
                self.last_token = Some((token, key));
                Some(key)
            }
        }
    }

    /// Returns the peer that has chosen `token`.
    pub(crate) fn find_their_token(&self, token: Token) -> Option<PeerKey> {
        self.by_their_token.find(&self.slots, &Theirs(token))
    }

    /// Adds a peer under its tokens, if it has any. Calls by its path do not go to it yet.
    pub(crate) fn insert(&mut self, peer: Peer) -> PeerKey {
        if self.len() == 0 {
            self.next_check = peer.met + CHECK_INTERVAL;
        }
        self.path_uses.push(PathUse::Hold(peer.path));
        self.count_host(peer.path, true);
        let (has_token, has_met) = (peer.token != Token::NONE, peer.contact.met().is_some());
        let path = peer.path;
        let key = self.slots.insert(peer);
        self.at_path.insert((path, key));
        if has_token {
            self.by_token.insert(&self.slots, key);
        }
        if has_met {
            self.by_their_token.insert(&self.slots, key);
        }
        key
    }

    /// Directs calls by the peer's path to this peer. Returns the peer to which they went before, if that is another one.
    pub(crate) fn take_path(&mut self, key: PeerKey) -> Option<PeerKey> {
        let path = self[key].path;
        let before = self.find(path);
        if self.by_path.len() <= path.index() {
            self.by_path.resize(path.index() + 1, None);
        }
        self.by_path[path.index()] = Some(key);
        before.filter(|&before| before != key)
    }

    /// Moves a peer to `path`. Calls by that path do not go to it yet.
    pub(crate) fn set_path(&mut self, key: PeerKey, path: PathId) {
        self.leave_path(key);
        let before = std::mem::replace(&mut self[key].path, path);
        self.count_host(before, false);
        self.count_host(path, true);
        self.at_path.remove(&(before, key));
        self.at_path.insert((path, key));
        self.path_uses.extend([PathUse::Hold(path), PathUse::Release(before)]);
    }

    /// Stops directing calls to this peer.
    pub(crate) fn leave_path(&mut self, key: PeerKey) {
        let index = self[key].path.index();
        if let Some(taken) = self.by_path.get_mut(index).filter(|taken| **taken == Some(key)) {
            *taken = None;
        }
    }

    fn count_host(&mut self, path: PathId, more: bool) {
        if path.host() == 0 {
            return;
        }
        let count = self.by_host.entry(path.host()).or_insert(0);
        *count = if more { count.saturating_add(1) } else { count.saturating_sub(1) };
        if *count == 0 {
            self.by_host.remove(&path.host());
        }
    }

    /// Returns the number of peers on the host that a path leads to; 0 if the host is unknown.
    pub(crate) fn on_host_of(&self, path: PathId) -> u32 {
        self.by_host.get(&path.host()).copied().unwrap_or(0)
    }

    /// Records a token that was made known, for as long as its proof is fresh. Returns `false` if there is no room.
    pub(crate) fn spend(&mut self, now: Time, token: Token) -> bool {
        while self.spent.front().is_some_and(|(since, _)| *since + EVICTABLE_AFTER <= now) {
            let oldest = self.spent.pop_front();
            oldest.map(|(_, token)| self.spent_tokens.remove(&token.0));
        }
        if self.spent.len() >= SPENT_MAX {
            return false;
        }
        self.spent.push_back((now, token));
        self.spent_tokens.insert(token.0);
        true
    }

    /// Returns whether a token was made known, and its peer forgotten, while its proof was fresh.
    pub(crate) fn is_spent(&self, token: Token) -> bool {
        self.spent_tokens.contains(&token.0)
    }

    /// Returns whether there are changes of paths to report to the link.
    #[inline]
    pub(crate) fn has_path_changes(&self) -> bool {
        !self.path_uses.is_empty()
    }

    /// Reports to the link the paths that peers have begun or ceased to use.
    #[inline]
    pub(crate) fn report_paths<S: PacketSink + ?Sized>(&mut self, sink: &mut S) {
        for path_use in self.path_uses.drain(..) {
            match path_use {
                PathUse::Hold(path) => sink.hold(path),
                PathUse::Release(path) => sink.release(path),
            }
        }
    }

    /// Begins to use the token that the peer has chosen.
    pub(crate) fn learn_their_token(&mut self, key: PeerKey) {
        self.by_their_token.insert(&self.slots, key);
    }

    /// Ceases to use the token that the peer has chosen.
    pub(crate) fn forget_their_token(&mut self, key: PeerKey) {
        let theirs: Theirs = self[key].name();
        self.by_their_token.remove(key, theirs);
    }

    /// Removes a peer without RPCs from every table. Returns the bytes that were charged to it.
    pub(crate) fn remove(&mut self, key: PeerKey) -> Option<u64> {
        let peer = self.get(key).filter(|peer| peer.rpcs == 0)?;
        let (token, charged, path) = (peer.token, peer.usage.charged, peer.path);
        self.forget_their_token(key);
        self.leave_path(key);
        self.path_uses.push(PathUse::Release(path));
        self.count_host(path, false);
        self.at_path.remove(&(path, key));
        if token != Token::NONE {
            self.by_token.remove(key, token);
        }
        self.last_token = None;
        self.slots.remove(key);
        Some(charged)
    }

    /// Returns the next peer in a round over all slots; `None` for an empty slot.
    pub(crate) fn next_in_round(&mut self) -> Option<(PeerKey, &Peer)> {
        self.cursor = (self.cursor + 1) % self.slots();
        self.slots.at(self.cursor)
    }

    /// Returns the time of the next search for idle peers.
    #[inline]
    pub(crate) fn next_check(&self) -> Option<Time> {
        (self.len() > 0).then_some(self.next_check)
    }

    /// Returns whether a search for idle peers is due, and schedules the next one if so.
    pub(crate) fn begin_check(&mut self, now: Time) -> bool {
        let due = self.next_check().is_some_and(|due| due <= now);
        if due {
            self.next_check = now + CHECK_INTERVAL;
        }
        due
    }
}

impl Index<PeerKey> for Peers {
    type Output = Peer;

    #[inline]
    fn index(&self, key: PeerKey) -> &Peer {
        self.slots.get(key).expect("a peer in use is remembered")
    }
}

impl IndexMut<PeerKey> for Peers {
    #[inline]
    fn index_mut(&mut self, key: PeerKey) -> &mut Peer {
        self.slots.get_mut(key).expect("a peer in use is remembered")
    }
}
