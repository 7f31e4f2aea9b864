//! First contact and its end: the peer of each packet, the introduction of peers, and the end of RPCs with a run of a peer that is
//! over. Rules `contact-1` to `contact-8` of docs/protocol.md.

use apus_wire::{
    Header, Offer, Open, Packet, PathId, Proof, RpcUnknown, Stamp, Token, UnknownReason,
};

use crate::contact::{Confirming, Contact, Met, Opening};
use crate::control::{Body, Reply, turned_round};
use crate::endpoint::Endpoint;
use crate::endpoint::expire::Room;
use crate::endpoint::sweeps::Swept;
use crate::error::CallFailed;
use crate::id::{Ids, Incarnation};
use crate::outgoing::Outgoing;
use crate::peer::Peer;
use crate::rpc::Rpc;
use crate::secrets::{is_fresh, issued_at};
use crate::slab::PeerKey;
use crate::time::Time;

/// Upper bound on the OPENs sent in one call.
const OPENINGS_MAX: usize = 256;

impl Endpoint {
    /// Makes both ends known to each other as after a first contact, for a simulation or a test that does not exercise first
    /// contacts. `ours` is the token that the peer uses, `theirs` the token that this node uses; the other endpoint is introduced
    /// with the two exchanged.
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
        //= docs/protocol.md#contact-1
        let stamp = Stamp::read(bytes)?;
        if stamp.version == Stamp::VERSION
            && let Some(key) = self.peers.find_token(stamp.token)
            && let Some(peer) = self.peers.get_mut(key)
            && peer.path == from
            && let Contact::Met(met) = &mut peer.contact
        {
            met.knows_us = true;
            return Some(key);
        }
        self.on_unusual(now, from, &packet(), bytes);
        None
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
        let (Some(stamp), length) = (Stamp::read(bytes), bytes.len()) else { return };
        match *packet {
            Packet::RpcUnknown { header, unknown: RpcUnknown { reason } } if is_refusal(reason) => {
                self.on_refusal(now, from, stamp, &header, reason);
            }
            _ if stamp.version != Stamp::VERSION => {
                self.parts.counters.dropped_version += 1;
                self.answer(from, stamp.token, packet, UnknownReason::OtherVersion);
            }
            Packet::Open { header, open } => self.on_open(now, from, stamp.token, &header, open),
            Packet::Token { header, offer } => self.on_token(now, from, stamp.token, header, offer),
            Packet::Confirm { header, offer } => {
                self.on_confirm(now, from, stamp.token, &header, offer);
            }
            _ => self.on_other_token(now, from, stamp.token, packet, length),
        }
    }

    /// Handles a packet without a known token, or with the token of a peer at another address.
    fn on_other_token(
        &mut self,
        now: Time,
        from: PathId,
        token: Token,
        packet: &Packet<'_>,
        length: usize,
    ) {
        let Some(key) = self.peers.find_token(token) else {
            self.parts.counters.dropped_token += 1;
            return self.answer(from, token, packet, UnknownReason::TokenUnknown);
        };
        let peer = &mut self.peers[key];
        match (&peer.contact, packet) {
            (Contact::Opening(_), Packet::RpcUnknown { header, unknown }) if peer.path == from => {
                self.on_not_opened(now, key, header, unknown.reason);
            }
            (Contact::Met(met), Packet::RpcUnknown { header, unknown })
                if peer.path == from && unknown.reason == UnknownReason::NoContact =>
            {
                if !met.knows_us {
                    self.on_not_confirmed(key, header);
                }
            }
            //= docs/protocol.md#contact-7
            (Contact::Met(met), _) if peer.path != from => {
                let (theirs, spacing) = (met.token, peer.rto(&self.parts.config));
                self.parts.counters.dropped_elsewhere += 1;
                if peer.may_ask_path(now, from, length, spacing) {
                    self.offer(now, from, theirs, turned_round(packet.header()), token);
                }
            }
            (Contact::Over, _) => {
                self.parts.counters.dropped_token += 1;
                self.answer(from, token, packet, UnknownReason::TokenUnknown);
            }
            _ => self.parts.counters.dropped_token += 1,
        }
    }

    /// Answers a node without state here, with no more bytes than it sent.
    fn answer(&mut self, to: PathId, token: Token, packet: &Packet<'_>, reason: UnknownReason) {
        // Some of the other packets are shorter than the answer, and a lost packet of any other type causes a probe.
        let answered = matches!(
            packet,
            Packet::Data { .. }
                | Packet::Resend { .. }
                | Packet::Open { .. }
                | Packet::Confirm { .. }
        );
        if answered {
            self.refuse_packet(to, token, packet.header(), reason);
        }
    }

    /// Answers a packet of a node without state here with this reason.
    fn refuse_packet(&mut self, to: PathId, token: Token, header: &Header, reason: UnknownReason) {
        let body = Body::Unknown(RpcUnknown { reason });
        self.parts.reply_to_unknown(Reply { path: to, token, header: turned_round(header), body });
    }

    /// Offers `token` to the node at `to`, whose own token is `theirs`.
    fn offer(&mut self, now: Time, to: PathId, theirs: Token, header: Header, token: Token) {
        let issued = issued_at(now);
        let proof = Proof { code: self.secrets.proof(token, to, issued), issued };
        let body = Body::Token(Offer { token, proof });
        self.parts.reply_to_unknown(Reply { path: to, token: theirs, header, body });
    }

    /// Answers a request for a token. Keeps no state.
    fn on_open(&mut self, now: Time, from: PathId, theirs: Token, header: &Header, open: Open) {
        self.parts.counters.opens_received += 1;
        //= docs/protocol.md#contact-3
        let known = self.peers.find_token(open.known).and_then(|key| self.peers.get(key));
        if known.is_some_and(|peer| peer.contact.met().is_some()) {
            return self.offer(now, from, theirs, turned_round(header), open.known);
        }
        if self.parts.sockets.serves(header.dest_port).is_none() {
            return self.refuse_contact(from, theirs, header);
        }
        let token = self.secrets.offered_token(theirs, issued_at(now));
        self.offer(now, from, theirs, turned_round(header), token);
    }

    /// Refuses a first contact for a port that is not served.
    fn refuse_contact(&mut self, from: PathId, theirs: Token, header: &Header) {
        //= docs/protocol.md#life-6
        self.parts.counters.refused_no_port += 1;
        self.refuse_packet(from, theirs, header, UnknownReason::NoContact);
    }

    /// Handles the token of a peer.
    fn on_token(&mut self, now: Time, from: PathId, ours: Token, header: Header, offer: Offer) {
        let found = self.peers.find_token(ours).filter(|_| offer.token != Token::NONE);
        let Some((key, peer)) = found.and_then(|key| Some((key, self.peers.get_mut(key)?))) else {
            self.parts.counters.dropped_token += 1;
            return;
        };
        if peer.path != from {
            self.parts.counters.dropped_mismatch += 1;
            return;
        }
        peer.last_rx = now;
        match &mut peer.contact {
            //= docs/protocol.md#contact-7
            // The peer requests a proof that this node receives at the address of its packets, or answers twice.
            Contact::Met(met) if met.token == offer.token => {
                let spacing = self.parts.config.resend_min / 2;
                if met.may_confirm(now, spacing) {
                    self.send_confirm(key, &header, offer.proof);
                }
            }
            //= docs/protocol.md#contact-5
            // While this node's CONFIRM may be under way, the packet only answers another OPEN.
            Contact::Met(met) if !met.may_be_known(now) => {
                self.doubt(now, key, turned_round(&header));
            }
            Contact::Met(_) | Contact::Over | Contact::Native => {}
            Contact::Opening(Opening { doubts: None, .. }) => {
                self.confirm(now, key, &header, offer);
            }
            &mut Contact::Opening(Opening { doubts: Some(doubted), .. }) => {
                self.resolve_doubt(now, key, doubted, &header, offer);
            }
        }
    }

    /// Handles the answer of a peer to an OPEN: messages may go there.
    fn confirm(&mut self, now: Time, key: PeerKey, header: &Header, offer: Offer) {
        //= docs/protocol.md#contact-4
        let peer = &mut self.peers[key];
        let before = peer.trace_mark(header.sender_id);
        peer.contact = Contact::Met(Met::confirming(now, offer));
        self.parts.tracer.peer_met(before, peer.trace_mark(header.sender_id));
        self.peers.learn_their_token(key);
        self.parts.counters.peers_met += 1;
        self.send_confirm(key, header, offer.proof);
        self.release(key);
    }

    /// Proves to the peer that its TOKEN was received; `header` belongs to the packet that carried it.
    fn send_confirm(&mut self, key: PeerKey, header: &Header, proof: Proof) {
        let token = self.peers[key].token;
        self.parts.control(key, turned_round(header), Body::Confirm(Offer { token, proof }));
    }

    /// Handles the answer to the probe whether a token is still known.
    fn resolve_doubt(
        &mut self,
        now: Time,
        asking: PeerKey,
        doubted: PeerKey,
        header: &Header,
        offer: Offer,
    ) {
        let met = self.peers.get_mut(doubted).and_then(|peer| peer.contact.met_mut());
        match met {
            //= docs/protocol.md#contact-5
            Some(met) if met.token == offer.token => {
                met.doubted = None;
                self.forget_peer(asking);
                self.release(doubted);
            }
            _ => {
                let successor = self.other_at(asking, doubted);
                if successor.is_none() {
                    self.confirm(now, asking, header, offer);
                    self.end_run(doubted, Some(asking));
                    self.take_path(now, asking, header);
                } else {
                    self.end_run(doubted, successor);
                    self.forget_peer(asking);
                }
            }
        }
    }

    /// Returns the peer for calls by the path of `asking`, unless that is `doubted`.
    fn other_at(&mut self, asking: PeerKey, doubted: PeerKey) -> Option<PeerKey> {
        let path = self.peers[asking].path;
        self.peers.find(path).filter(|&other| other != doubted)
    }

    /// Handles a node's proof that it received this node's TOKEN.
    fn on_confirm(&mut self, now: Time, from: PathId, ours: Token, header: &Header, offer: Offer) {
        let Offer { token: theirs, proof } = offer;
        let shown = is_fresh(now, proof.issued)
            && proof.code == self.secrets.proof(ours, from, proof.issued);
        let found = self.peers.find_token(ours);
        let spent = self.peers.is_spent(ours);
        let over = spent || found.is_some_and(|key| self.peers[key].contact.is_over());
        if let Some(key) = found.filter(|_| !over) {
            let peer = &self.peers[key];
            let same = peer.contact.met().is_some_and(|met| met.token == theirs);
            if !(shown && same) {
                self.parts.counters.dropped_proof += 1;
            } else if peer.path != from {
                self.parts.counters.peers_moved += 1;
                self.move_peer(now, key, from, header);
            }
            return;
        }
        if self.parts.sockets.serves(header.dest_port).is_none() {
            return self.refuse_contact(from, theirs, header);
        }
        //= docs/protocol.md#contact-4
        let fits = ours == self.secrets.offered_token(theirs, proof.issued);
        if !shown || !fits || over || theirs == Token::NONE {
            self.parts.counters.dropped_proof += 1;
            let token = self.secrets.offered_token(theirs, issued_at(now));
            return self.offer(now, from, theirs, turned_round(header), token);
        }
        if !self.make_room(now, Room::ForClient(from)) {
            self.parts.counters.dropped_peers_full += 1;
            return self.refuse_packet(from, ours, header, UnknownReason::OverBudget);
        }
        let contact = Contact::Met(Met::confirmed(theirs));
        let key = self.insert_peer(Peer::known(from, ours, contact, now));
        self.parts.counters.peers_met += 1;
        self.take_path(now, key, header);
    }

    /// Moves the peer to `path`.
    fn move_peer(&mut self, now: Time, key: PeerKey, path: PathId, header: &Header) {
        self.leave_host(key);
        self.peers.set_path(key, path);
        self.join_host(key);
        let peer = &mut self.peers[key];
        peer.last_rx = now;
        peer.loopback = path.is_loopback();
        self.take_path(now, key, header);
    }

    /// Directs calls by the peer's path to this peer. Another peer at this path may be an earlier run, or the same run that called
    /// this node while this node called it: it is probed.
    fn take_path(&mut self, now: Time, key: PeerKey, header: &Header) {
        let Some(before) = self.peers.take_path(key) else { return };
        //= docs/protocol.md#contact-6
        match &self.peers[before].contact {
            Contact::Opening(_) => self.end_run(before, Some(key)),
            // A peer that has not used this node's token yet has just answered its OPEN while it sent its own.
            Contact::Met(met) if met.knows_us || !met.may_be_known(now) => {
                self.doubt(now, before, turned_round(header));
            }
            _ => {}
        }
    }

    /// Handles a peer's report that it does not know the token of a packet, or the packet's version.
    fn on_refusal(
        &mut self,
        now: Time,
        from: PathId,
        stamp: Stamp,
        header: &Header,
        reason: UnknownReason,
    ) {
        let (ours, theirs) = (Stamp::VERSION, stamp.version);
        if let Some(key) = self.peers.find_token(stamp.token)
            && let Some(opening) = self.peers[key].contact.opening()
            && self.peers[key].path == from
            && reason == UnknownReason::OtherVersion
        {
            //= docs/protocol.md#contact-8
            let error = CallFailed::OtherVersion { ours, theirs };
            let swept = Swept::Failed(opening.doubts.unwrap_or(key), now, error);
            return self.sweeps.push_error(swept);
        }
        let spacing = self.parts.config.resend_min / 2;
        let found = self.peers.find_their_token(stamp.token);
        let found = found.and_then(|key| Some((key, self.peers.get_mut(key)?)));
        let found = found.filter(|(_, peer)| peer.path == from);
        let Some((key, met)) = found.and_then(|(key, peer)| Some((key, peer.contact.met_mut()?)))
        else {
            self.parts.counters.dropped_token += 1;
            return;
        };
        if reason == UnknownReason::OverBudget {
            return self.on_no_room(key, header);
        }
        match met.confirm_again(now, spacing) {
            Confirming::Again { offer, first } if reason == UnknownReason::TokenUnknown => {
                self.send_confirm(key, header, offer.proof);
                if first && let Some(mut step) = self.step_for(key, header) {
                    let (key, end) = (step.key, step.send_request_again(now));
                    self.end(now, key, end);
                }
            }
            Confirming::Wait if reason == UnknownReason::TokenUnknown => {}
            _ => self.doubt(now, key, turned_round(header)),
        }
    }

    /// Handles a peer without room for this node. The request is repeated while a call waits.
    fn on_no_room(&mut self, peer: PeerKey, header: &Header) {
        let key = self.rpcs.find(peer, header.sender_id.flipped());
        if let Some(rpc) = key.and_then(|key| self.rpcs.get_mut(key)) {
            //= docs/protocol.md#life-9
            rpc.refused = true;
        }
    }

    /// Probes whether the peer still knows its token. It may have forgotten this node, or be another run.
    pub(super) fn doubt(&mut self, now: Time, key: PeerKey, header: Header) {
        let peer = &self.peers[key];
        if peer.contact.met().is_none_or(|met| met.doubted.is_some()) {
            return;
        }
        let token = self.secrets.token();
        let contact = Contact::Opening(Opening::new(now, header, Some(key)));
        let asking = self.insert_peer(Peer::known(peer.path, token, contact, now));
        if let Some(met) = self.peers[key].contact.met_mut() {
            met.doubted = Some(asking);
        }
        self.send_open(now, asking);
    }

    /// Handles a peer's refusal of an OPEN.
    fn on_not_opened(&mut self, now: Time, key: PeerKey, header: &Header, reason: UnknownReason) {
        if reason != UnknownReason::NoContact {
            return;
        }
        let peer = &mut self.peers[key];
        peer.last_rx = now;
        let Some(opening) = peer.contact.opening() else { return };
        if let Some(doubted) = opening.doubts {
            // The answer comes from another run, which does not serve the port.
            let successor = self.other_at(key, doubted);
            self.forget_peer(key);
            return self.end_run(doubted, successor);
        }
        if let Some(step) = self.step_for(key, header) {
            let rpc = step.key;
            self.fail(rpc, CallFailed::NoSuchPort);
        }
        // Other calls may want other ports.
        self.send_open(now, key);
    }

    /// Handles a peer that refuses a CONFIRM because the port is not served. Copies of the CONFIRM and of the request may arrive
    /// once it is served.
    fn on_not_confirmed(&mut self, peer: PeerKey, header: &Header) {
        let Some(step) = self.step_for(peer, header) else { return };
        //= docs/protocol.md#contact-3
        let sent = step.rpc.outgoing().is_some_and(Outgoing::is_sent);
        let (key, error) =
            (step.key, if sent { CallFailed::MayHaveExecuted } else { CallFailed::NoSuchPort });
        self.fail(key, error);
    }

    /// Sends the next OPEN to a peer, if anything waits for its answer.
    pub(super) fn send_open(&mut self, now: Time, key: PeerKey) {
        let Some(peer) = self.peers.get(key) else { return };
        let Some(&Opening { doubts, .. }) = peer.contact.opening() else { return };
        let doubted = doubts.and_then(|doubted| self.peers.get(doubted));
        let waits = if doubts.is_some() { doubted } else { Some(peer) };
        if waits.is_none_or(|peer| peer.rpcs == 0) {
            if doubts.is_some() {
                self.drop_doubt(key, doubts);
            }
            return;
        }
        let known =
            doubted.and_then(|peer| peer.contact.met()).map_or(Token::NONE, |met| met.token);
        let first = peer.flight.first_deferred().and_then(|key| self.rpcs.get(key));
        let first = first.map(Rpc::header);
        let config = &self.parts.config;
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

    /// Drops a probe whether a token is still known, once nothing depends on it.
    fn drop_doubt(&mut self, asking: PeerKey, doubts: Option<PeerKey>) {
        let met = doubts.and_then(|key| self.peers.get_mut(key)?.contact.met_mut());
        if let Some(met) = met {
            met.doubted = None;
        }
        self.forget_peer(asking);
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

    /// Ends a run of a peer: its RPCs end, a few at a time. Calls that were not transmitted completely begin anew with `successor`.
    /// The run's token stays known as a refused one, so that it is not introduced once more.
    pub(super) fn end_run(&mut self, key: PeerKey, successor: Option<PeerKey>) {
        let Some(peer) = self.peers.get(key).filter(|peer| !peer.contact.is_over()) else {
            return;
        };
        //= docs/protocol.md#contact-6
        let doubted = peer.contact.met().and_then(|met| met.doubted);
        self.peers.forget_their_token(key);
        self.peers.leave_path(key);
        self.peers[key].contact = Contact::Over;
        self.parts.counters.peers_over += 1;
        if let Some(asking) = doubted.filter(|&asking| Some(asking) != successor) {
            self.forget_peer(asking);
        }
        self.sweeps.push(Swept::Run(key, successor));
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
            matches!(
                unknown.reason,
                UnknownReason::OtherVersion
                    | UnknownReason::TokenUnknown
                    | UnknownReason::NoContact
            )
        }
        _ => false,
    }
}

/// Returns whether a packet with this reason carries a copy of the refused packet's token.
fn is_refusal(reason: UnknownReason) -> bool {
    matches!(
        reason,
        UnknownReason::OtherVersion | UnknownReason::TokenUnknown | UnknownReason::OverBudget
    )
}
