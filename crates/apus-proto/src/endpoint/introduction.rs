//! First contact by a handshake, on sealed paths (rule `seal-1` of docs/protocol.md).
//!
//! The handshake runs below the core, as calls of its driver. Its frames carry the tokens that OPEN, TOKEN and CONFIRM carry on a
//! plain path, with the same meaning:
//!
//! ```text
//! client                                     server
//!   greeting ── HELLO (my token, doubted) ──▶ answer_greeting
//!   answered ◀──── REPLY (my token) ──────────
//!              ── CONTINUE ─────────────────▶ introduced
//!   confirmed ◀─── DONE, or a sealed packet ──
//! ```
//!
//! Until then a link without keys drops the OPENs of the client.

use apus_wire::{Credentials, Header, PathId, Proof, RpcId, Token};

use crate::contact::{Contact, Met};
use crate::endpoint::Endpoint;
use crate::endpoint::expire::Room;
use crate::endpoint::sweeps::Swept;
use crate::peer::Peer;
use crate::secrets::issued_at;
use crate::slab::PeerKey;
use crate::time::Time;
use crate::trace::{TraceMark, pair};

/// The tokens of a HELLO.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Greeting {
    /// The token that the server puts into packets to this node.
    pub token: Token,
    /// The token that this node doubts, which the server may have chosen; [`Token::NONE`] if there is none.
    pub doubted: Token,
}

/// The ports and the id of a packet about no call.
pub(super) const NO_CALL: Header = Header { source_port: 1, dest_port: 1, sender_id: RpcId(0) };

impl Endpoint {
    //= docs/protocol.md#seal-1
    /// Returns the tokens for a handshake with the node at a path. `doubts`: the peer may have lost its keys, so its token is in doubt
    /// as after *token unknown* (contact-5).
    pub fn greeting(&mut self, now: Time, path: PathId, doubts: bool) -> Greeting {
        let Some(key) = self.peers.find(path) else {
            return Greeting { token: self.secrets.token(), doubted: Token::NONE };
        };
        if doubts {
            self.doubt(now, key, NO_CALL);
        }
        let peer = &self.peers[key];
        let Some(met) = peer.contact.met() else {
            return Greeting { token: peer.token, doubted: Token::NONE };
        };
        let asking = met.asking.and_then(|asking| self.peers.get(asking));
        let token = match asking {
            Some(asking) => asking.token,
            // Nobody asks for a peer without RPCs, and a run that is over must not leave its token to the next one.
            None if doubts => self.secrets.token(),
            None => peer.token,
        };
        Greeting { token, doubted: met.token }
    }

    /// Returns the token for the reply to a HELLO with the tokens of `greeting`: the one in doubt, if this node has chosen it for the
    /// node at `path`, which may have moved there, otherwise a new one. Keeps no state.
    pub fn answer_greeting(&mut self, now: Time, path: PathId, greeting: Greeting) -> Token {
        //= docs/protocol.md#contact-5
        let known = self.peers.find_token(greeting.doubted);
        if known.is_some_and(|key| self.is_met_node_of(key, path)) {
            return greeting.doubted;
        }
        self.secrets.offered_token(greeting.token, issued_at(now))
    }

    /// Takes the REPLY to a handshake that this node began with `greeting`, as the client: `theirs` is the token for packets to the
    /// peer. A first contact begins, and the calls that wait for it are sent. Returns `false` if there is no room for the peer, or if
    /// the peer that was greeted is no longer known.
    ///
    /// Nothing shows yet that the server wrote this token, so a doubt waits for [`confirmed`](Self::confirmed).
    pub fn answered(&mut self, now: Time, path: PathId, greeting: Greeting, theirs: Token) -> bool {
        self.on_reply(now, path, greeting, theirs, false)
    }

    /// Notes that the server has shown that it has the secret of the handshake, and so that its token is `theirs`: by DONE, or by a
    /// sealed packet. Ends the doubt of `greeting`. Returns `false` as [`answered`](Self::answered) does.
    pub fn confirmed(
        &mut self,
        now: Time,
        path: PathId,
        greeting: Greeting,
        theirs: Token,
    ) -> bool {
        self.on_reply(now, path, greeting, theirs, true)
    }

    fn on_reply(
        &mut self,
        now: Time,
        path: PathId,
        greeting: Greeting,
        theirs: Token,
        is_confirmed: bool,
    ) -> bool {
        let Some(key) = self.peers.find_token(greeting.token) else {
            return self.on_reply_to_stranger(now, path, greeting, theirs, is_confirmed);
        };
        let peer = &mut self.peers[key];
        if peer.path != path {
            return false;
        }
        peer.last_rx = now;
        match &peer.contact {
            Contact::Opening(_) => self.begin_introduced(now, key, theirs),
            //= docs/protocol.md#seal-1
            Contact::Asking(..) if !is_confirmed => {}
            &Contact::Asking(doubted, _) => self.answer_introduced(now, key, doubted, theirs),
            Contact::Met(met) => return met.token == theirs,
            Contact::Native | Contact::Over => return false,
        }
        true
    }

    /// Takes the REPLY to a greeting whose token belongs to no peer.
    fn on_reply_to_stranger(
        &mut self,
        now: Time,
        path: PathId,
        greeting: Greeting,
        theirs: Token,
        is_confirmed: bool,
    ) -> bool {
        if greeting.doubted == Token::NONE {
            return self.meet(now, path, greeting.token, theirs);
        }
        // OPEN and TOKEN may have ended the doubt in the meantime. A peer that was forgotten is not met by the doubted token: ids would
        // begin again, and its history would refuse them.
        if theirs == greeting.doubted || self.is_met(path, theirs) {
            return self.is_met(path, theirs);
        }
        if !is_confirmed {
            return true;
        }
        //= docs/protocol.md#contact-6
        let doubted = self.peers.find_their_token(greeting.doubted);
        let doubted = doubted.filter(|&key| self.peers[key].path == path);
        let is_met = self.meet(now, path, greeting.token, theirs);
        if is_met
            && let Some(present) = self.peers.find(path)
            && let Some(doubted) = doubted.filter(|&key| self.retire(key))
        {
            self.sweeps.push(Swept::Run(doubted, Ok(present)));
        }
        is_met
    }

    /// Takes the result of a handshake that the node at `path` began, as the server: `ours` is the token of
    /// [`answer_greeting`](Self::answer_greeting), and `theirs` the one for packets to the peer. A known peer moves to `path`. Returns
    /// `false` if there is no room for the peer, or if the token belongs to a run that is over.
    pub fn introduced(&mut self, now: Time, path: PathId, ours: Token, theirs: Token) -> bool {
        let Some(key) = self.peers.find_token(ours) else {
            return self.is_met(path, theirs) || self.meet(now, path, ours, theirs);
        };
        if !self.is_met_node_of(key, path) {
            return false;
        }
        //= docs/protocol.md#contact-5
        // The client doubted this token and named it, so it is the same run. Only another run would have needed the token of HELLO.
        if self.peers[key].path != path {
            //= docs/protocol.md#contact-7
            self.move_peer(now, key, path, &NO_CALL);
        }
        self.peers[key].last_rx = now;
        true
    }

    /// Notes that the node at a path lives, although no packet has arrived by the path: it has asked to be called later.
    pub fn note_sign(&mut self, now: Time, path: PathId) {
        //= docs/protocol.md#life-4
        if let Some(key) = self.peers.find(path) {
            self.peers[key].last_rx = now;
        }
    }

    /// Notes that the node at a sealed path lives if packets have arrived from it by its plain path, on which its handshake runs.
    pub fn share_sign(&mut self, plain: PathId, sealed: PathId) {
        //= docs/protocol.md#life-4
        if let Some(from) = self.peers.find(plain)
            && let Some(to) = self.peers.find(sealed)
        {
            self.peers[to].last_rx = self.peers[to].last_rx.max(self.peers[from].last_rx);
        }
    }

    /// Forgets which requests of a peer were taken, as a hole (once-1).
    #[cfg(feature = "holes")]
    pub fn drop_history(&mut self, ours: Token) {
        if let Some(key) = self.peers.find_token(ours) {
            self.peers[key].drop_history();
        }
    }

    /// Returns whether a peer is met, and is the node at a path: it is there, or has its identity there.
    fn is_met_node_of(&self, key: PeerKey, path: PathId) -> bool {
        let peer = &self.peers[key];
        let is_there = peer.path == path || path.is_sealed() && self.may_be_at(key, path);
        is_there && peer.contact.met().is_some()
    }

    /// Returns whether the node at a path is met by this token.
    fn is_met(&mut self, path: PathId, theirs: Token) -> bool {
        let known = self.peers.find_their_token(theirs).map(|key| &self.peers[key]);
        known.is_some_and(|peer| peer.path == path && peer.contact.met().is_some())
    }

    /// Makes a node known that was not.
    fn meet(&mut self, now: Time, path: PathId, ours: Token, theirs: Token) -> bool {
        //= docs/protocol.md#contact-4
        if self.peers.is_spent(ours) || theirs == Token::NONE {
            return false;
        }
        if !self.make_room(now, Room::ForClient(path)) {
            self.parts.counters.dropped_peers_full += 1;
            return false;
        }
        let contact = Contact::Met(Met::confirmed(theirs));
        let key = self.insert_peer(Peer::known(path, ours, contact, now));
        self.parts.counters.peers_met += 1;
        self.take_path(now, key, &NO_CALL);
        true
    }

    /// Begins to send to a peer whose first contact was a handshake.
    fn begin_introduced(&mut self, now: Time, key: PeerKey, theirs: Token) {
        let peer = &mut self.peers[key];
        //= docs/protocol.md#seal-3
        // The server may end the handshake later than one of its own, so it may not know this node's token yet.
        let proof = Proof { code: 0, issued: issued_at(now) };
        peer.contact.confirm(now, Credentials { token: theirs, proof, compact: true });
        let mark = peer.trace_mark(RpcId(0));
        let before = TraceMark { pair: pair(peer.token, Token::NONE), ..mark };
        self.parts.tracer.peer_met(before, mark);
        self.peers.learn_their_token(key);
        self.parts.counters.peers_met += 1;
        self.release(key);
    }

    /// Handles the answer that a handshake got on behalf of `doubted`.
    fn answer_introduced(&mut self, now: Time, asking: PeerKey, doubted: PeerKey, theirs: Token) {
        //= docs/protocol.md#contact-5
        if self.trust(now, doubted, Some(theirs)) {
            return self.forget_peer(asking);
        }
        //= docs/protocol.md#contact-6
        let ended = self.retire(doubted);
        let present = self.peers.find(self.peers[asking].path);
        if present.is_none() {
            self.begin_introduced(now, asking, theirs);
            self.peers.take_path(asking);
        } else {
            self.forget_peer(asking);
        }
        if ended {
            self.sweeps.push(Swept::Run(doubted, Ok(present.unwrap_or(asking))));
        }
    }
}
