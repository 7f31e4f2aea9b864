//! First contact and its end: the peer of each packet, the introduction of peers, and the end of RPCs with a run of a peer that is
//! over. Rules `contact-1` to `contact-8` of docs/protocol.md.
//!
//! The peer's state machine ([`Contact::handle`]) decides. This file finds the peer, passes the event to it, and carries out the
//! reaction.
//!
//! | packet | the peer is found by | event |
//! |---|---|---|
//! | OPEN | the token in doubt, one of this node's | [`Event::Open`] |
//! | TOKEN | its own token, at its address | [`Event::Token`] |
//! | CONFIRM | its own token | [`Event::Confirm`] |
//! | RPC_UNKNOWN: other version, token unknown, over budget | the peer's token, which the packet repeats, at its address | [`Event::TokenRefused`] |
//! | RPC_UNKNOWN: other version, about an OPEN | its own token, at its address | [`Event::ContactRefused`] |
//! | RPC_UNKNOWN: no contact, for any reason | its own token | [`Event::ContactRefused`] |
//! | any other | its own token | [`Contact::receive`], [`Event::Packet`], [`Event::Elsewhere`] |

use apus_wire::{
    Credentials, Header, Open, Packet, PathId, Proof, RpcUnknown, Stamp, Token, UnknownReason,
};

use crate::contact::{Act, Contact, Event, Met, Opening, PathTaken};
use crate::control::{Body, Reply, turned_round};
use crate::endpoint::Endpoint;
use crate::endpoint::expire::Room;
use crate::endpoint::introduction::NO_CALL;
use crate::endpoint::sweeps::Swept;
use crate::error::CallFailed;
use crate::id::{Ids, Incarnation};
use crate::outgoing::Outgoing;
use crate::peer::Peer;
use crate::rpc::Rpc;
use crate::secrets::{is_fresh, issued_at};
use crate::slab::PeerKey;
use crate::time::Time;
use crate::trace::{TraceMark, pair};

/// Upper bound on the OPENs sent in one call.
const OPENINGS_MAX: usize = 256;

/// A packet that is not an ordinary one of a known peer.
#[derive(Clone, Copy)]
struct Arrived<'a, 'p> {
    from: PathId,
    stamp: Stamp,
    packet: &'a Packet<'p>,
    length: usize,
}

impl Arrived<'_, '_> {
    fn header(&self) -> &Header {
        self.packet.header()
    }
}

impl Endpoint {
    /// Makes both ends known to each other as after a first contact, for a simulation or a test that does not exercise first
    /// contacts. `ours` is the token that the peer uses, `theirs` the token that this node uses; the other endpoint is
    /// introduced with the two exchanged.
    pub fn introduce(&mut self, now: Time, peer: PathId, ours: Token, theirs: Token) {
        let contact = Contact::Met(Met::confirmed(theirs));
        let key = self.insert_peer(Peer::known(peer, ours, contact, now));
        self.peers.take_path(key);
    }

    /// Returns the sender of a packet over UDP, if the packet is about an RPC (rule `contact-1`).
    #[inline]
    pub(super) fn recognize<'p>(
        &mut self,
        now: Time,
        from: PathId,
        bytes: &[u8],
        packet: impl FnOnce() -> Packet<'p>,
    ) -> Option<PeerKey> {
        let stamp = Stamp::read(bytes)?;
        let found = self.recognize_token(from, stamp);
        if found.is_none() {
            self.on_unusual(now, from, &packet(), bytes);
        }
        found
    }

    /// Returns the peer with this token, if it is at this address and known.
    #[inline]
    pub(super) fn recognize_token(&mut self, from: PathId, stamp: Stamp) -> Option<PeerKey> {
        //= docs/protocol.md#contact-1
        let key = self.peers.find_token(stamp.token)?;
        let peer = self.peers.get_mut(key)?;
        let is_known =
            stamp.version == Stamp::VERSION && peer.path == from && peer.contact.receive();
        is_known.then_some(key)
    }

    /// Handles every packet except those of a known peer, from its address, about an RPC.
    #[cold]
    pub(super) fn on_unusual(
        &mut self,
        now: Time,
        from: PathId,
        packet: &Packet<'_>,
        bytes: &[u8],
    ) {
        let Some(stamp) = Stamp::read(bytes) else { return };
        self.on_unusual_packet(now, from, stamp, packet, bytes.len());
    }

    /// Handles such a packet, which came in a datagram of at least `length` bytes.
    pub(super) fn on_unusual_packet(
        &mut self,
        now: Time,
        from: PathId,
        stamp: Stamp,
        packet: &Packet<'_>,
        length: usize,
    ) {
        let arrived = Arrived { from, stamp, packet, length };
        if from.is_barred() {
            return self.on_barred(arrived);
        }
        match *packet {
            Packet::RpcUnknown { unknown: RpcUnknown { reason }, .. } if is_refusal(reason) => {
                self.on_refusal(now, arrived, reason);
            }
            _ if stamp.version != Stamp::VERSION => {
                self.parts.counters.dropped_version += 1;
                self.refuse_packet(arrived, UnknownReason::OtherVersion);
            }
            Packet::Open { open, .. } => self.on_open(now, arrived, open),
            Packet::Token { credentials, .. } => self.on_token(now, arrived, credentials),
            Packet::Confirm { credentials, .. } => self.on_confirm(now, arrived, credentials),
            _ => self.on_other_packet(now, arrived),
        }
    }

    //= docs/protocol.md#seal-17
    /// Handles a packet by a barred path. A request for a token is refused.
    #[cold]
    fn on_barred(&mut self, arrived: Arrived<'_, '_>) {
        self.parts.counters.dropped_plain += 1;
        if let Packet::Open { .. } = arrived.packet {
            self.refuse_packet(arrived, UnknownReason::ContactSealedOnly);
        }
    }

    /// Answers a request for a token. Keeps no state.
    fn on_open(&mut self, now: Time, arrived: Arrived<'_, '_>, open: Open) {
        self.parts.counters.opens_received += 1;
        let found = self.peers.find_token(open.known);
        match found.filter(|&key| self.may_be_at(key, arrived.from)) {
            Some(key) => self.contact(now, key, Event::Open, arrived),
            None => self.offer_new(now, arrived, arrived.stamp.token),
        }
    }

    /// Handles the token of a peer.
    fn on_token(&mut self, now: Time, arrived: Arrived<'_, '_>, credentials: Credentials) {
        let found = self.peers.find_token(arrived.stamp.token);
        let Some(key) = found.filter(|_| credentials.token != Token::NONE) else {
            self.parts.counters.dropped_token += 1;
            return;
        };
        let peer = &mut self.peers[key];
        if peer.path != arrived.from {
            self.parts.counters.dropped_mismatch += 1;
            return;
        }
        peer.last_rx = now;
        //= docs/wire.md#W57
        peer.compact = credentials.compact;
        self.contact(now, key, Event::Token(credentials), arrived);
    }

    /// Handles a node's proof that it received this node's TOKEN.
    fn on_confirm(&mut self, now: Time, arrived: Arrived<'_, '_>, credentials: Credentials) {
        let (from, ours) = (arrived.from, arrived.stamp.token);
        let Credentials { token: theirs, proof, compact } = credentials;
        let proven = is_fresh(now, proof.issued)
            && proof.code == self.secrets.proof(ours, from, proof.issued);
        if let Some(key) = self.peers.find_token(ours) {
            if !self.may_be_at(key, from) {
                return self.refuse_token(arrived);
            }
            let moved = self.peers[key].path != from;
            return self.contact(now, key, Event::Confirm { theirs, proven, moved }, arrived);
        }
        //= docs/protocol.md#contact-4
        let fits = ours == self.secrets.offered_token(theirs, proof.issued);
        let fits = proven && fits && theirs != Token::NONE && !self.peers.is_spent(ours);
        self.admit(now, arrived, theirs, fits);
        //= docs/wire.md#W57
        if let Some(key) = self.peers.find_token(ours) {
            self.peers[key].compact = compact;
        }
    }

    /// Handles a refusal that repeats the token of the refused packet: that of an OPEN, or the token that the peer has chosen.
    fn on_refusal(&mut self, now: Time, arrived: Arrived<'_, '_>, reason: UnknownReason) {
        let Arrived { from, stamp: Stamp { token, .. }, .. } = arrived;
        if reason == UnknownReason::OtherVersion
            && let Some(key) = self.peers.find_token(token)
            && self.peers[key].path == from
            && self.peers[key].contact.opening().is_some()
        {
            return self.contact(now, key, Event::ContactRefused(reason), arrived);
        }
        let found = self.peers.find_their_token(token);
        match found.filter(|&key| self.peers[key].path == from) {
            Some(key) => self.contact(now, key, Event::TokenRefused(reason), arrived),
            None => self.parts.counters.dropped_token += 1,
        }
    }

    /// Handles a packet without a known token, or with the token of a peer that is not met or is at another address.
    fn on_other_packet(&mut self, now: Time, arrived: Arrived<'_, '_>) {
        let found = self.peers.find_token(arrived.stamp.token);
        let Some(key) = found.filter(|&key| self.may_be_at(key, arrived.from)) else {
            return self.refuse_token(arrived);
        };
        let event = match *arrived.packet {
            _ if self.peers[key].path != arrived.from => Event::Elsewhere,
            Packet::RpcUnknown { unknown, .. } => Event::ContactRefused(unknown.reason),
            _ => Event::Packet,
        };
        self.contact(now, key, event, arrived);
    }

    /// Returns whether a peer may have moved to a path. A peer with an identity has it on every path.
    pub(super) fn may_be_at(&self, key: PeerKey, path: PathId) -> bool {
        //= docs/protocol.md#seal-5
        let present = self.peers[key].path;
        (present.is_sealed(), present.identity()) == (path.is_sealed(), path.identity())
    }

    /// Passes the event of an arrived packet to the contact with a peer, and carries out the reaction.
    fn contact(&mut self, now: Time, key: PeerKey, event: Event, arrived: Arrived<'_, '_>) {
        let spacing = self.parts.config.resend_min / 2;
        let (header, theirs) = (arrived.header(), arrived.stamp.token);
        let peer = &mut self.peers[key];
        match peer.contact.handle(now, spacing, event) {
            Act::Ignore => {}
            Act::DropToken => self.parts.counters.dropped_token += 1,
            Act::DropProof => self.parts.counters.dropped_proof += 1,
            Act::RefuseToken => self.refuse_token(arrived),
            Act::OfferSame => {
                let ours = peer.token;
                self.offer(now, arrived, theirs, ours);
            }
            Act::OfferNew => self.offer_new(now, arrived, theirs),
            Act::OfferAnother(theirs) => self.admit(now, arrived, theirs, false),
            Act::Begin(proof) => self.begin(key, header, proof),
            Act::Confirm(proof) => self.send_confirm(key, header, proof),
            Act::ConfirmWithRequest(proof) => {
                self.send_confirm(key, header, proof);
                self.send_request_again(now, key, header);
            }
            Act::AskProof(theirs) => self.ask_proof(now, key, arrived, theirs),
            Act::Move => self.move_peer(now, key, arrived.from, header),
            Act::Ask => self.ask(now, key, turned_round(header)),
            Act::AskFor(asking) => self.ask_for(now, key, asking, turned_round(header)),
            Act::Answer(doubted, credentials) => {
                self.answer(now, key, doubted, header, credentials)
            }
            Act::FailCall(reason) => self.fail_refused(now, key, header, reason),
            Act::FailConfirmed(reason) => self.fail_confirmed(key, header, reason),
            Act::FailVersion(doubted) => {
                //= docs/protocol.md#contact-8
                let (ours, theirs) = (Stamp::VERSION, arrived.stamp.version);
                let error = CallFailed::OtherVersion { ours, theirs };
                self.sweeps.push_error(Swept::Failed(doubted.unwrap_or(key), now, error));
            }
            Act::NoteNoRoom => self.note_no_room(key, header),
        }
    }

    /// Drops a packet with a token that this node does not know.
    fn refuse_token(&mut self, arrived: Arrived<'_, '_>) {
        self.parts.counters.dropped_token += 1;
        self.refuse_packet(arrived, UnknownReason::TokenUnknown);
    }

    /// Answers a node without state here, with no more bytes than it sent.
    fn refuse_packet(&mut self, arrived: Arrived<'_, '_>, reason: UnknownReason) {
        // Some of the other packets are shorter than the answer, and a lost packet of any other type causes a probe.
        let answered = matches!(
            arrived.packet,
            Packet::Data { .. }
                | Packet::Resend { .. }
                | Packet::Open { .. }
                | Packet::Confirm { .. }
        );
        if answered {
            self.reply_unknown(arrived, arrived.stamp.token, reason);
        }
    }

    /// Refuses a first contact for a port that is not served, or to which the path has no right. Returns `true` if it is refused.
    fn refuse_contact(&mut self, arrived: Arrived<'_, '_>, theirs: Token) -> bool {
        let refusal = self.refuses_contact(arrived.from, arrived.header().dest_port);
        let Some(reason) = refusal else { return false };
        self.reply_unknown(arrived, theirs, reason);
        true
    }

    /// Answers a packet of a node without state here with RPC_UNKNOWN.
    fn reply_unknown(&mut self, arrived: Arrived<'_, '_>, token: Token, reason: UnknownReason) {
        let (header, body) = (turned_round(arrived.header()), Body::Unknown(RpcUnknown { reason }));
        self.parts.reply_to_unknown(Reply { path: arrived.from, token, header, body });
    }

    /// Offers the token `ours` to the sender of a packet, whose own token is `theirs`.
    fn offer(&mut self, now: Time, arrived: Arrived<'_, '_>, theirs: Token, ours: Token) {
        let (path, issued) = (arrived.from, issued_at(now));
        let proof = Proof { code: self.secrets.proof(ours, path, issued), issued };
        let body = Body::Token(Credentials { token: ours, proof, compact: true });
        let header = turned_round(arrived.header());
        self.parts.reply_to_unknown(Reply { path, token: theirs, header, body });
    }

    /// Offers a new token to the sender of a packet, if the port is served for it.
    fn offer_new(&mut self, now: Time, arrived: Arrived<'_, '_>, theirs: Token) {
        if self.refuse_contact(arrived, theirs) {
            return;
        }
        let ours = self.secrets.offered_token(theirs, issued_at(now));
        self.offer(now, arrived, theirs, ours);
    }

    /// Makes the sender of a CONFIRM known if its proof `fits`, the port is served for it and there is room.
    fn admit(&mut self, now: Time, arrived: Arrived<'_, '_>, theirs: Token, fits: bool) {
        let (from, ours) = (arrived.from, arrived.stamp.token);
        if self.refuse_contact(arrived, theirs) {
            return;
        }
        //= docs/protocol.md#contact-4
        if !fits {
            self.parts.counters.dropped_proof += 1;
            return self.offer_new(now, arrived, theirs);
        }
        if !self.make_room(now, Room::ForClient(from)) {
            self.parts.counters.dropped_peers_full += 1;
            return self.reply_unknown(arrived, ours, UnknownReason::OverBudget);
        }
        let contact = Contact::Met(Met::confirmed(theirs));
        let key = self.insert_peer(Peer::known(from, ours, contact, now));
        self.parts.counters.peers_met += 1;
        self.take_path(now, key, arrived.header());
    }

    /// Begins to send to a peer whose token is known now.
    fn begin(&mut self, key: PeerKey, header: &Header, proof: Proof) {
        let peer = &self.peers[key];
        let mark = peer.trace_mark(header.sender_id);
        let before = TraceMark { pair: pair(peer.token, Token::NONE), ..mark };
        self.parts.tracer.peer_met(before, mark);
        self.peers.learn_their_token(key);
        self.parts.counters.peers_met += 1;
        self.send_confirm(key, header, proof);
        self.release(key);
    }

    /// Proves to the peer that its TOKEN was received; `header` belongs to the packet that carried it.
    fn send_confirm(&mut self, key: PeerKey, header: &Header, proof: Proof) {
        let token = self.peers[key].token;
        let credentials = Credentials { token, proof, compact: true };
        self.parts.control(key, turned_round(header), Body::Confirm(credentials));
    }

    /// Sends the request of a call again, which was probably lost with the CONFIRM.
    fn send_request_again(&mut self, now: Time, peer: PeerKey, header: &Header) {
        if let Some(mut step) = self.step_for(peer, header) {
            let (key, end) = (step.key, step.send_request_again(now));
            self.end(now, key, end);
        }
    }

    /// Requests a proof from the sender of a packet that it is the peer and receives at its address.
    fn ask_proof(&mut self, now: Time, key: PeerKey, arrived: Arrived<'_, '_>, theirs: Token) {
        //= docs/protocol.md#contact-7
        self.parts.counters.dropped_elsewhere += 1;
        let peer = &mut self.peers[key];
        let (ours, spacing) = (peer.token, peer.rto(&self.parts.config));
        if peer.may_ask_path(now, arrived.from, arrived.length, spacing) {
            self.offer(now, arrived, theirs, ours);
        }
    }

    /// Moves the peer to `path`, and with it the one that asks on its behalf.
    pub(super) fn move_peer(&mut self, now: Time, key: PeerKey, path: PathId, header: &Header) {
        self.parts.counters.peers_moved += 1;
        //= docs/protocol.md#seal-6
        self.rights.follow(self.peers[key].path, path);
        self.change_path(key, path);
        let peer = &mut self.peers[key];
        peer.last_rx = now;
        //= docs/protocol.md#contact-7
        if let Some(asking) = peer.contact.met().and_then(|met| met.asking) {
            self.change_path(asking, path);
            self.send_open(now, asking);
        }
        self.take_path(now, key, header);
    }

    fn change_path(&mut self, key: PeerKey, path: PathId) {
        self.leave_host(key);
        self.peers.set_path(key, path);
        self.join_host(key);
        let peer = &mut self.peers[key];
        peer.rights = self.rights.of(path);
        peer.loopback = path.is_loopback();
    }

    /// Directs calls by the peer's path to this peer.
    pub(super) fn take_path(&mut self, now: Time, key: PeerKey, header: &Header) {
        if let Some(before) = self.peers.take_path(key) {
            self.lose_path(now, before, key, header);
        }
    }

    /// Handles a peer that loses the calls by its path to `successor`.
    fn lose_path(&mut self, now: Time, key: PeerKey, successor: PeerKey, header: &Header) {
        //= docs/protocol.md#contact-6
        match self.peers[key].contact.on_path_taken(now) {
            PathTaken::Ends => self.end_run(key, Ok(successor)),
            PathTaken::Doubts => self.doubt(now, key, turned_round(header)),
            PathTaken::Stays => {}
        }
    }

    /// Handles a peer without room for this node. The request is repeated while a call waits.
    fn note_no_room(&mut self, peer: PeerKey, header: &Header) {
        let key = self.rpcs.find(peer, header.sender_id.flipped());
        if let Some(rpc) = key.and_then(|key| self.rpcs.get_mut(key)) {
            //= docs/protocol.md#life-9
            rpc.refused = true;
        }
    }

    /// Handles a peer that refuses an OPEN because the port is not served, or not for this node.
    fn fail_refused(&mut self, now: Time, key: PeerKey, header: &Header, reason: UnknownReason) {
        self.peers[key].last_rx = now;
        if let Some(step) = self.step_for(key, header) {
            let rpc = step.key;
            self.fail(rpc, error_of(reason));
        }
        // Other calls may want other ports.
        self.send_open(now, key);
    }

    /// Handles a peer that refuses a CONFIRM because the port is not served, or not for this node. Copies of the CONFIRM and of the
    /// request may arrive once it is.
    fn fail_confirmed(&mut self, peer: PeerKey, header: &Header, reason: UnknownReason) {
        let Some(step) = self.step_for(peer, header) else { return };
        //= docs/protocol.md#contact-3
        let sent = step.rpc.outgoing().is_some_and(Outgoing::is_sent);
        let (key, error) =
            (step.key, if sent { CallFailed::MayHaveExecuted } else { error_of(reason) });
        self.fail(key, error);
    }

    /// Probes whether the peer still knows its token, unless another probe asks already. It may have forgotten this node, or be
    /// another run.
    pub(super) fn doubt(&mut self, now: Time, key: PeerKey, header: Header) {
        if self.peers[key].contact.may_be_doubted() {
            self.ask(now, key, header);
        }
    }

    /// Asks on behalf of a peer in doubt, as another peer.
    fn ask(&mut self, now: Time, doubted: PeerKey, header: Header) {
        let token = self.secrets.token();
        let contact = Contact::Asking(doubted, Opening::new(now, header));
        let path = self.peers[doubted].path;
        let asking = self.insert_peer(Peer::known(path, token, contact, now));
        self.peers[doubted].contact.note_asking(Some(asking));
        self.send_open(now, asking);
    }

    /// Has the OPEN that asks on behalf of `doubted` name the call of a refused packet, if it names none. No node serves the port of
    /// an OPEN without a call, so only one that knows the token answers that.
    fn ask_for(&mut self, now: Time, doubted: PeerKey, asking: PeerKey, header: Header) {
        let call = self.rpcs.find(doubted, header.sender_id).and_then(|key| self.rpcs.get(key));
        let is_call = call.is_some_and(|call| call.is_client() && call.header() == header);
        let Some(opening) = self.peers[asking].contact.opening_mut() else { return };
        //= docs/protocol.md#contact-5
        if is_call && !opening.names_call() {
            opening.header = header;
            self.send_open(now, asking);
        }
    }

    /// Handles the answer that `asking` got on behalf of `doubted`: a token, or the reason from a run that refuses the port.
    fn answer(
        &mut self,
        now: Time,
        asking: PeerKey,
        doubted: PeerKey,
        header: &Header,
        answer: Result<Credentials, UnknownReason>,
    ) {
        let credentials = answer.ok();
        //= docs/protocol.md#contact-5
        // The packet may answer an earlier OPEN than the last one.
        let is_about_call = header.sender_id.client_form() != NO_CALL.sender_id;
        let opening = self.peers[asking].contact.opening();
        let names_call = opening.is_some_and(|opening| opening.names_call());
        if credentials.is_none() && !(is_about_call && names_call) {
            return; // No call wants the port that was refused. A handshake asks as well.
        }
        if self.trust(now, doubted, credentials.map(|credentials| credentials.token)) {
            return self.forget_peer(asking);
        }
        //= docs/protocol.md#contact-6
        let ended = self.retire(doubted);
        let successor = self.succeed(now, asking, header, credentials);
        if ended {
            let reason = answer.err().unwrap_or(UnknownReason::NoContact);
            self.sweeps.push(Swept::Run(doubted, successor.ok_or_else(|| error_of(reason))));
        }
    }

    /// Ends the doubt about a peer's token. Returns `true`, and sends again, if the peer has answered with this token, which is a sign
    /// of it.
    pub(super) fn trust(&mut self, now: Time, doubted: PeerKey, answer: Option<Token>) -> bool {
        let Some(peer) = self.peers.get_mut(doubted) else { return false };
        //= docs/protocol.md#contact-5
        let known = peer.contact.on_answer(answer);
        if known {
            peer.last_rx = now;
            self.release(doubted);
        }
        known
    }

    /// Lets a peer that has asked on behalf of another one take its place, unless calls by the path go to a third one, or the
    /// port is not served. Returns the peer for calls by the path.
    fn succeed(
        &mut self,
        now: Time,
        asking: PeerKey,
        header: &Header,
        credentials: Option<Credentials>,
    ) -> Option<PeerKey> {
        let present = self.peers.find(self.peers[asking].path);
        match credentials.filter(|_| present.is_none()) {
            Some(credentials) => {
                self.peers[asking].contact.confirm(now, credentials);
                self.begin(asking, header, credentials.proof);
                self.peers.take_path(asking);
                Some(asking)
            }
            None => {
                self.forget_peer(asking);
                present
            }
        }
    }

    /// Sends the next OPEN to a peer, if a call waits for its answer.
    pub(super) fn send_open(&mut self, now: Time, key: PeerKey) {
        let Some(peer) = self.peers.get(key) else { return };
        let known = match peer.contact {
            Contact::Opening(_) if peer.rpcs > 0 => Token::NONE,
            Contact::Asking(doubted, _) => {
                let waits = self.peers.get(doubted).filter(|peer| peer.rpcs > 0);
                let Some(waits) = waits else { return self.forget_peer(key) };
                waits.contact.met().map_or(Token::NONE, |met| met.token)
            }
            _ => return,
        };
        let first = peer.flight.first_deferred().and_then(|key| self.rpcs.get(key));
        let first = first.map(Rpc::header);
        let config = &self.parts.config;
        if let Contact::Asking(doubted, _) = peer.contact {
            self.peers[doubted].prober.note(now, config.resend_initial);
        }
        let Some(opening) = self.peers[key].contact.opening_mut() else { return };
        opening.header = first.unwrap_or(opening.header);
        //= docs/protocol.md#contact-2
        if opening.next <= now {
            opening.note_sent(now, config.resend_initial, config.rto_max());
            self.openings.insert((opening.next, key));
        }
        let header = opening.header;
        self.parts.control(key, header, Body::Open(Open { known }));
    }

    /// Sends the OPENs that are due.
    pub(super) fn open_again(&mut self, now: Time) {
        for _ in 0..OPENINGS_MAX {
            let Some(&(due, key)) = self.openings.first().filter(|&&(due, _)| due <= now) else {
                return;
            };
            self.openings.remove(&(due, key));
            let opening = self.peers.get(key).and_then(|peer| peer.contact.opening());
            if opening.is_some_and(|opening| opening.next == due) {
                self.send_open(now, key);
            }
        }
    }

    /// Ends a run of a peer: its RPCs end, a few at a time. Calls that were not transmitted completely begin again with
    /// `successor`, or end with an error.
    pub(super) fn end_run(&mut self, key: PeerKey, successor: Result<PeerKey, CallFailed>) {
        if self.retire(key) {
            self.sweeps.push(Swept::Run(key, successor));
        }
    }

    /// Ends the contact with a peer, and forgets the one that asks on its behalf. Its token stays known as a refused one, so
    /// that it is not introduced once more. Returns `false` if the contact was over already.
    pub(super) fn retire(&mut self, key: PeerKey) -> bool {
        let Some(peer) = self.peers.get(key).filter(|peer| !peer.contact.is_over()) else {
            return false;
        };
        //= docs/protocol.md#contact-6
        let asking = peer.contact.met().and_then(|met| met.asking);
        self.peers.forget_their_token(key);
        self.peers.leave_path(key);
        self.peers[key].contact = Contact::Over;
        self.parts.counters.peers_over += 1;
        if let Some(asking) = asking {
            self.forget_peer(asking);
        }
        true
    }

    /// Adds a peer of a native link, identified by its address.
    pub(super) fn insert_native(&mut self, now: Time, path: PathId) -> PeerKey {
        //= docs/protocol.md#once-5
        let ids = Ids::of_incarnation(Incarnation::from_random(self.secrets.incarnation()));
        let mut peer = Peer::native(path, ids, self.secrets.version_salt(), now);
        if !self.parts.config.confirm_peers {
            peer.confirm();
        }
        self.insert_peer(peer)
    }
}

/// Returns whether the packet is about tokens instead of an RPC, whatever token it carries itself. A refusal carries the token of
/// the refused packet, which is one of this node's own when it has called itself.
pub(super) fn is_about_tokens(packet: &Packet<'_>) -> bool {
    match packet {
        Packet::Token { .. } | Packet::Confirm { .. } => true,
        Packet::RpcUnknown { unknown, .. } => {
            matches!(unknown.reason, UnknownReason::OtherVersion | UnknownReason::TokenUnknown)
                || unknown.reason.is_about_contact()
        }
        _ => false,
    }
}

/// Returns the error of a call whose first contact was refused for this reason.
fn error_of(reason: UnknownReason) -> CallFailed {
    match reason {
        UnknownReason::ContactNotAllowed => CallFailed::NotAllowed,
        UnknownReason::ContactSealedOnly => CallFailed::SealedOnly,
        _ => CallFailed::NoSuchPort,
    }
}

/// Returns whether a packet with this reason carries a copy of the refused packet's token.
fn is_refusal(reason: UnknownReason) -> bool {
    matches!(
        reason,
        UnknownReason::OtherVersion | UnknownReason::TokenUnknown | UnknownReason::OverBudget
    )
}
