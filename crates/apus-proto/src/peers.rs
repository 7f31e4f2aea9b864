//! The peers of an endpoint, by handle, by address and by token.

use std::net::SocketAddr;
use std::ops::{Index, IndexMut};
use std::time::Duration;

use apus_wire::Token;

use crate::lookup::{Lookup, Named};
use crate::peer::{Peer, Theirs};
use crate::slab::{PeerKey, Slab};
use crate::time::Time;

/// How often idle peers are looked for.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Every peer that is remembered.
///
/// An RPC names its peer by a [`PeerKey`], and a peer with RPCs is never removed: such a key can be used as an index.
#[derive(Debug)]
pub(crate) struct Peers {
    slots: Slab<PeerKey, Peer>,
    /// The peer that calls to an address go to.
    by_address: Lookup<PeerKey, SocketAddr>,
    /// The peer that packets with a token are from.
    by_token: Lookup<PeerKey, Token>,
    /// The peer that has told a token, while that token is used.
    by_their_token: Lookup<PeerKey, Theirs>,
    /// Found last, because packets come in runs.
    last_address: Option<(SocketAddr, PeerKey)>,
    last_token: Option<(Token, PeerKey)>,
    /// The slot at which the search for idle peers continues, and when.
    cursor: usize,
    next_check: Time,
}

impl Peers {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            slots: Slab::new(),
            by_address: Lookup::new(seed),
            by_token: Lookup::new(seed),
            by_their_token: Lookup::new(seed),
            last_address: None,
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

    /// The keys of all peers, in the order of their slots.
    pub(crate) fn keys(&self) -> Vec<PeerKey> {
        (0..self.slots()).filter_map(|slot| self.slots.at(slot)).map(|(key, _)| key).collect()
    }

    /// The peer that calls to `address` go to.
    #[inline]
    pub(crate) fn find(&mut self, address: SocketAddr) -> Option<PeerKey> {
        match self.last_address {
            Some((last, key)) if last == address => Some(key),
            _ => {
                let key = self.by_address.find(&self.slots, &address)?;
                self.last_address = Some((address, key));
                Some(key)
            }
        }
    }

    /// The peer whose packets carry `token`.
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

    /// The peer that has told `token`.
    pub(crate) fn find_their_token(&self, token: Token) -> Option<PeerKey> {
        self.by_their_token.find(&self.slots, &Theirs(token))
    }

    /// As [`find_token`](Self::find_token) or, without a token, [`find`](Self::find), and changes nothing.
    #[inline]
    pub(crate) fn look_up(&self, address: SocketAddr, token: Option<Token>) -> Option<PeerKey> {
        match token {
            Some(token) => self.by_token.find(&self.slots, &token),
            None => self.by_address.find(&self.slots, &address),
        }
    }

    /// Remembers a peer by its tokens, if it has any, and not yet by its address.
    pub(crate) fn insert(&mut self, peer: Peer) -> PeerKey {
        if self.len() == 0 {
            self.next_check = peer.met + CHECK_INTERVAL;
        }
        let (has_token, has_met) = (peer.token != Token::NONE, peer.contact.met().is_some());
        let key = self.slots.insert(peer);
        if has_token {
            self.by_token.insert(&self.slots, key);
        }
        if has_met {
            self.by_their_token.insert(&self.slots, key);
        }
        key
    }

    /// Calls to the peer's address go to this peer from now on. Returns the peer to which they went before, if that is another.
    pub(crate) fn take_address(&mut self, key: PeerKey) -> Option<PeerKey> {
        let address = self[key].addr;
        self.last_address = None;
        let before = self.by_address.find(&self.slots, &address);
        if let Some(before) = before {
            self.by_address.remove(before, address);
        }
        self.by_address.insert(&self.slots, key);
        before.filter(|&before| before != key)
    }

    /// Moves a peer to `address`, where calls do not go to it yet.
    pub(crate) fn set_address(&mut self, key: PeerKey, address: SocketAddr) {
        self.leave_address(key);
        self[key].addr = address;
    }

    /// No calls go to this peer any more.
    pub(crate) fn leave_address(&mut self, key: PeerKey) {
        let address = self[key].addr;
        self.by_address.remove(key, address);
        self.last_address = None;
    }

    /// The token that the peer has told is used from now on.
    pub(crate) fn learn_their_token(&mut self, key: PeerKey) {
        self.by_their_token.insert(&self.slots, key);
    }

    /// The token that the peer has told is not used any more.
    pub(crate) fn forget_their_token(&mut self, key: PeerKey) {
        let theirs: Theirs = self[key].name();
        self.by_their_token.remove(key, theirs);
    }

    /// Takes a peer without RPCs out of every table. Returns the bytes that were charged to it.
    pub(crate) fn remove(&mut self, key: PeerKey) -> Option<u64> {
        let peer = self.get(key).filter(|peer| peer.rpcs == 0)?;
        let (token, charged) = (peer.token, peer.usage.charged);
        self.forget_their_token(key);
        self.leave_address(key);
        if token != Token::NONE {
            self.by_token.remove(key, token);
        }
        self.last_token = None;
        self.slots.remove(key);
        Some(charged)
    }

    /// The next peer in a round over all slots; `None` for a slot that is empty.
    pub(crate) fn next_in_round(&mut self) -> Option<(PeerKey, &Peer)> {
        self.cursor = (self.cursor + 1) % self.slots();
        self.slots.at(self.cursor)
    }

    /// When to look for idle peers.
    #[inline]
    pub(crate) fn next_check(&self) -> Option<Time> {
        (self.len() > 0).then_some(self.next_check)
    }

    /// Whether it is time to look for idle peers; notes it if so.
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
