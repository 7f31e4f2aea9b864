//! First contact and its end: whose packet this is, how peers come to be known, and what becomes of
//! the RPCs with a run of a peer that is over. Rules `contact-1` to `contact-8` of docs/protocol.md.

use std::net::SocketAddr;
use std::time::Duration;

use apus_wire::{
    Header, Offer, Open, Packet, Proof, RpcUnknown, Stamp, Token, UnknownReason, is_native,
};
use bytes::Bytes;

use crate::address::Address;
use crate::budget::{Account, RPC_BYTES};
use crate::contact::{Confirming, Contact, Met, Opening};
use crate::control::{Body, Reply};
use crate::cutoffs::unscheduled_priority;
use crate::endpoint::receive::turned_round;
use crate::endpoint::{Admitted, CallOptions, Ended, Endpoint, Event, Sweep, Swept, expire};
use crate::error::{CallError, CallFailed};
use crate::id::{Ids, Incarnation};
use crate::lookup::Named;
use crate::outgoing::Outgoing;
use crate::peer::{Peer, Theirs};
use crate::rpc::{Phase, Rpc};
use crate::secrets::{is_fresh, issued_at};
use crate::slab::{PeerKey, RpcKey, SocketKey};
use crate::time::Time;

/// Answers to unknown nodes that wait to be sent.
const REPLIES_MAX: usize = 1_024;

/// A peer of which nothing was heard for so long may have forgotten us: half of the time after which
/// idle peers are forgotten. It is asked before it is sent anything new.
const CERTAIN_FOR: Duration = Duration::from_secs(60);

/// OPENs that are due and sent in one call.
const OPENINGS_MAX: usize = 256;

impl Endpoint {
    /// Makes the peer at `to` known, so that the first call does not have to: an
    /// [`Event::Connected`] or [`Event::Failed`] follows. One round trip, if it is not known yet.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    pub fn connect(
        &mut self,
        now: Time,
        socket: SocketKey,
        to: Address,
        options: CallOptions,
    ) -> Result<RpcKey, CallError> {
        let admitted = self.admit_call(now, socket, to, 0)?;
        let key = self.begin_call(now, admitted, None, options);
        self.start_call(now, key);
        Ok(key)
    }

    /// Both ends know each other from here on, as after a first contact: for a simulation or a test in
    /// which that is not what matters. `ours` is the token the peer was told, `theirs` the one it told;
    /// the other endpoint is introduced with the two exchanged.
    pub fn introduce(&mut self, now: Time, peer: SocketAddr, ours: Token, theirs: Token) {
        let of =
            self.insert_peer(Peer::known(peer, ours, Contact::Met(Met::confirmed(theirs)), now));
        self.peer_index.insert(&self.peers, of);
    }

    /// The peer that a packet over UDP is from, if it is about an RPC (rule `contact-1`).
    #[inline]
    pub(super) fn recognize(
        &mut self,
        now: Time,
        from: SocketAddr,
        bytes: &[u8],
        packet: &Packet<'_>,
    ) -> Option<PeerKey> {
        //= docs/protocol.md#contact-1
        let stamp = Stamp::read(bytes)?;
        if stamp.version == Stamp::VERSION
            && let Some(of) = self.find_token(stamp.token)
            && let Some(peer) = self.peers.get_mut(of)
            && peer.addr == from
            && let Contact::Met(met) = &mut peer.contact
            && !is_about_tokens(packet)
        {
            met.knows_us = true;
            return Some(of);
        }
        self.on_unusual(now, from, stamp, packet, bytes.len());
        None
    }

    /// Everything but a packet of a known peer from its address about an RPC.
    #[cold]
    fn on_unusual(
        &mut self,
        now: Time,
        from: SocketAddr,
        stamp: Stamp,
        packet: &Packet<'_>,
        length: usize,
    ) {
        match *packet {
            Packet::RpcUnknown { header, unknown: RpcUnknown { reason } } if is_refusal(reason) => {
                self.on_refusal(now, from, stamp, &header, reason);
            }
            _ if stamp.version != Stamp::VERSION => {
                self.counters.dropped_version += 1;
                self.answer(from, stamp.token, packet, UnknownReason::OtherVersion);
            }
            Packet::Open { header, open } => self.on_open(now, from, stamp.token, &header, open),
            Packet::Token { header, offer } => self.on_token(now, from, stamp.token, header, offer),
            Packet::Confirm { header, offer } => {
                self.on_confirm(now, from, stamp.token, &header, offer);
            }
            _ => self.on_stranger(now, from, stamp.token, packet, length),
        }
    }

    /// A packet that carries no known token, or not from where the peer is that has it.
    fn on_stranger(
        &mut self,
        now: Time,
        from: SocketAddr,
        token: Token,
        packet: &Packet<'_>,
        length: usize,
    ) {
        let Some(of) = self.find_token(token) else {
            self.counters.dropped_token += 1;
            return self.answer(from, token, packet, UnknownReason::TokenUnknown);
        };
        let peer = self.peers.get_mut(of).expect("found above");
        match (&peer.contact, packet) {
            (Contact::Opening(_), Packet::RpcUnknown { header, unknown }) if peer.addr == from => {
                self.on_not_opened(now, of, header, unknown.reason);
            }
            //= docs/protocol.md#contact-7
            (Contact::Met(met), _) if peer.addr != from => {
                let (theirs, spacing) = (met.token, peer.rto(&self.config));
                self.counters.dropped_elsewhere += 1;
                if peer.may_ask_path(now, from, length, spacing) {
                    self.offer(now, from, theirs, turned_round(packet.header()), token);
                }
            }
            (Contact::Over, _) => {
                self.counters.dropped_token += 1;
                self.answer(from, token, packet, UnknownReason::TokenUnknown);
            }
            _ => self.counters.dropped_token += 1,
        }
    }

    /// Answers a node nothing is kept of, with no more bytes than it sent.
    fn answer(&mut self, to: SocketAddr, token: Token, packet: &Packet<'_>, reason: UnknownReason) {
        // Of the others, some are shorter than the answer, and none is lost without a question.
        let answered = matches!(
            packet,
            Packet::Data { .. }
                | Packet::Resend { .. }
                | Packet::Open { .. }
                | Packet::Confirm { .. }
        );
        if answered {
            let body = Body::Unknown(RpcUnknown { reason });
            self.reply_to_stranger(to, token, turned_round(packet.header()), body);
        }
    }

    /// Queues an answer to a node nothing is kept of.
    pub(super) fn reply_to_stranger(
        &mut self,
        to: SocketAddr,
        token: Token,
        header: Header,
        body: Body,
    ) {
        //= docs/protocol.md#contact-3
        if self.replies.len() >= REPLIES_MAX {
            self.counters.dropped_replies += 1;
            return;
        }
        self.replies.push_back(Reply { to, token, header, body });
    }

    /// Offers `token` to who is at `to` and calls itself by `theirs`.
    fn offer(&mut self, now: Time, to: SocketAddr, theirs: Token, header: Header, token: Token) {
        let issued = issued_at(now);
        let proof = Proof { code: self.secrets.proof(token, to, issued), issued };
        self.reply_to_stranger(to, theirs, header, Body::Token(Offer { token, proof }));
    }

    /// Somebody asks for a token. Nothing is kept.
    fn on_open(&mut self, now: Time, from: SocketAddr, theirs: Token, header: &Header, open: Open) {
        self.counters.opens_received += 1;
        //= docs/protocol.md#contact-3
        let known = self.find_token(open.known).and_then(|of| self.peers.get(of));
        if known.is_some_and(|peer| peer.contact.met().is_some()) {
            return self.offer(now, from, theirs, turned_round(header), open.known);
        }
        if self.serves(header.dest_port).is_none() {
            return self.refuse_port(from, theirs, header);
        }
        let token = self.secrets.offered_token(theirs, issued_at(now));
        self.offer(now, from, theirs, turned_round(header), token);
    }

    fn refuse_port(&mut self, from: SocketAddr, theirs: Token, header: &Header) {
        //= docs/protocol.md#life-6
        self.counters.refused_no_port += 1;
        let body = Body::Unknown(RpcUnknown { reason: UnknownReason::NoSuchPort });
        self.reply_to_stranger(from, theirs, turned_round(header), body);
    }

    /// A peer tells its token.
    fn on_token(&mut self, now: Time, from: SocketAddr, ours: Token, header: Header, offer: Offer) {
        let found = self.find_token(ours).filter(|_| offer.token != Token::NONE);
        let Some((of, peer)) = found.and_then(|of| Some((of, self.peers.get_mut(of)?))) else {
            self.counters.dropped_token += 1;
            return;
        };
        if peer.addr != from {
            self.counters.dropped_mismatch += 1;
            return;
        }
        peer.last_rx = now;
        match &mut peer.contact {
            //= docs/protocol.md#contact-7
            // It asks whether we are where our packets come from, or answers twice.
            Contact::Met(met) if met.token == offer.token => {
                let spacing = self.config.resend_min / 2;
                if met.may_confirm(now, spacing) {
                    self.send_confirm(of, &header, offer.proof);
                }
            }
            //= docs/protocol.md#contact-5
            // While our CONFIRM may be under way, this only answers another OPEN.
            Contact::Met(met) if !met.may_be_known(now) => {
                self.doubt(now, of, turned_round(&header));
            }
            Contact::Met(_) | Contact::Over | Contact::Native => {}
            Contact::Opening(Opening { doubts: None, .. }) => self.confirm(now, of, &header, offer),
            Contact::Opening(Opening { doubts: Some(doubted), .. }) => {
                let doubted = *doubted;
                self.resolve_doubt(now, of, doubted, &header, offer);
            }
        }
    }

    /// The peer that was sent an OPEN has answered: messages may go there.
    fn confirm(&mut self, now: Time, of: PeerKey, header: &Header, offer: Offer) {
        //= docs/protocol.md#contact-4
        let peer = self.peers.get_mut(of).expect("the caller found it");
        peer.contact = Contact::Met(Met::confirming(now, offer));
        self.theirs_index.insert(&self.peers, of);
        self.counters.peers_met += 1;
        self.send_confirm(of, header, offer.proof);
        self.release(of);
    }

    /// Shows the peer that we received its TOKEN; `header` is that of the packet which said so.
    fn send_confirm(&mut self, of: PeerKey, header: &Header, proof: Proof) {
        let token = self.peers.get(of).expect("the caller found it").token;
        self.control(of, turned_round(header), Body::Confirm(Offer { token, proof }));
    }

    /// An answer to the question whether a token is still known.
    fn resolve_doubt(
        &mut self,
        now: Time,
        of: PeerKey,
        doubted: PeerKey,
        header: &Header,
        offer: Offer,
    ) {
        let met = self.peers.get_mut(doubted).and_then(|peer| peer.contact.met_mut());
        match met {
            //= docs/protocol.md#contact-5
            Some(met) if met.token == offer.token => {
                met.doubted = None;
                self.forget_peer(of);
                self.release(doubted);
            }
            _ => {
                let successor = self.other_at(of, doubted);
                if successor.is_none() {
                    self.confirm(now, of, header, offer);
                    self.end_run(doubted, Some(of));
                    self.take_address(now, of, header);
                } else {
                    self.end_run(doubted, successor);
                    self.forget_peer(of);
                }
            }
        }
    }

    /// The peer that calls to the address of `of` go to, if that is not `doubted`.
    fn other_at(&mut self, of: PeerKey, doubted: PeerKey) -> Option<PeerKey> {
        let addr = self.peers.get(of)?.addr;
        self.find_peer(addr).filter(|&other| other != doubted)
    }

    /// A node shows that it received our TOKEN.
    fn on_confirm(
        &mut self,
        now: Time,
        from: SocketAddr,
        ours: Token,
        header: &Header,
        offer: Offer,
    ) {
        let Offer { token: theirs, proof } = offer;
        let shown = is_fresh(now, proof.issued)
            && proof.code == self.secrets.proof(ours, from, proof.issued);
        let found = self.find_token(ours);
        let over = found.is_some_and(|of| self.peers.get(of).is_some_and(|p| p.contact.is_over()));
        if let Some(of) = found.filter(|_| !over) {
            let peer = self.peers.get_mut(of).expect("found above");
            let same = peer.contact.met().is_some_and(|met| met.token == theirs);
            if !(shown && same) {
                self.counters.dropped_proof += 1;
            } else if peer.addr != from {
                self.counters.peers_moved += 1;
                self.move_peer(now, of, from, header);
            }
            return;
        }
        if self.serves(header.dest_port).is_none() {
            return self.refuse_port(from, theirs, header);
        }
        //= docs/protocol.md#contact-4
        let fits = ours == self.secrets.offered_token(theirs, proof.issued);
        if !shown || !fits || over || theirs == Token::NONE {
            self.counters.dropped_proof += 1;
            let token = self.secrets.offered_token(theirs, issued_at(now));
            return self.offer(now, from, theirs, turned_round(header), token);
        }
        if !self.make_room(now, expire::Room::ForClient) {
            self.counters.dropped_peers_full += 1;
            let body = Body::Unknown(RpcUnknown { reason: UnknownReason::OverBudget });
            return self.reply_to_stranger(from, ours, turned_round(header), body);
        }
        let contact = Contact::Met(Met::confirmed(theirs));
        let of = self.insert_peer(Peer::known(from, ours, contact, now));
        self.counters.peers_met += 1;
        self.take_address(now, of, header);
    }

    /// The peer is at `addr` from now on.
    fn move_peer(&mut self, now: Time, of: PeerKey, addr: SocketAddr, header: &Header) {
        let peer = self.peers.get_mut(of).expect("the caller found it");
        self.peer_index.remove(of, peer.addr);
        peer.addr = addr;
        peer.last_rx = now;
        peer.loopback = addr.ip().is_loopback();
        self.take_address(now, of, header);
    }

    /// Calls to the peer's address go to this peer from now on. Another one that was there may be an
    /// earlier run, or the same that has called us while we called it: it is asked.
    fn take_address(&mut self, now: Time, of: PeerKey, header: &Header) {
        let addr = self.peers.get(of).expect("the caller found it").addr;
        self.last_peer = None;
        let before = self.peer_index.find(&self.peers, &addr).filter(|&before| before != of);
        if let Some(before) = before {
            self.peer_index.remove(before, addr);
        }
        self.peer_index.remove(of, addr);
        self.peer_index.insert(&self.peers, of);
        //= docs/protocol.md#contact-6
        match before.and_then(|before| Some((before, &self.peers.get(before)?.contact))) {
            Some((before, Contact::Opening(_))) => self.end_run(before, Some(of)),
            // One that has not heard of us yet has just answered our OPEN while it sent its own.
            Some((before, Contact::Met(met))) if met.knows_us || !met.may_be_known(now) => {
                self.doubt(now, before, turned_round(header));
            }
            _ => {}
        }
    }

    /// A peer says that it does not know the token of a packet of ours, or not its version.
    fn on_refusal(
        &mut self,
        now: Time,
        from: SocketAddr,
        stamp: Stamp,
        header: &Header,
        reason: UnknownReason,
    ) {
        let (ours, theirs) = (Stamp::VERSION, stamp.version);
        if let Some(of) = self.find_token(stamp.token)
            && let Some(peer) = self.peers.get(of)
            && let Some(opening) = peer.contact.opening()
            && peer.addr == from
            && reason == UnknownReason::OtherVersion
        {
            //= docs/protocol.md#contact-8
            let (error, doubted) = (CallFailed::OtherVersion { ours, theirs }, opening.doubts);
            return self.sweep_failed(doubted.unwrap_or(of), now, error);
        }
        let spacing = self.config.resend_min / 2;
        let found = self.theirs_index.find(&self.peers, &Theirs(stamp.token));
        let found = found.and_then(|of| Some((of, self.peers.get_mut(of)?)));
        let found = found.filter(|(_, peer)| peer.addr == from);
        let Some((of, met)) = found.and_then(|(of, peer)| Some((of, peer.contact.met_mut()?)))
        else {
            return self.counters.dropped_token += 1;
        };
        if reason == UnknownReason::OverBudget {
            return self.on_no_room(of, header);
        }
        match met.confirm_again(now, spacing) {
            Confirming::Again { offer, first } if reason == UnknownReason::TokenUnknown => {
                self.send_confirm(of, header, offer.proof);
                if first && let Some(key) = self.rpc_of(of, header) {
                    self.send_request_again(now, of, key);
                }
            }
            Confirming::Wait if reason == UnknownReason::TokenUnknown => {}
            _ => self.doubt(now, of, turned_round(header)),
        }
    }

    /// A peer has no room to know us. It is asked again as long as a call waits.
    fn on_no_room(&mut self, of: PeerKey, header: &Header) {
        let key = self.rpc_index.find(&self.rpcs, &(of, header.sender_id.flipped()));
        if let Some(rpc) = key.and_then(|key| self.rpcs.get_mut(key)) {
            //= docs/protocol.md#life-9
            rpc.refused = true;
        }
    }

    /// The peer may have forgotten us, or be another run: it is asked whether it knows its token.
    pub(super) fn doubt(&mut self, now: Time, of: PeerKey, header: Header) {
        let peer = self.peers.get_mut(of).expect("the caller found it");
        let addr = peer.addr;
        if peer.contact.met().is_none_or(|met| met.doubted.is_some()) {
            return;
        }
        let token = self.secrets.token();
        let contact = Contact::Opening(Opening::new(now, header, Some(of)));
        let asking = self.insert_peer(Peer::known(addr, token, contact, now));
        let peer = self.peers.get_mut(of).expect("looked at above");
        peer.contact.met_mut().expect("looked at above").doubted = Some(asking);
        self.send_open(now, asking);
    }

    /// A peer that was sent an OPEN does not want to know us.
    fn on_not_opened(&mut self, now: Time, of: PeerKey, header: &Header, reason: UnknownReason) {
        if reason != UnknownReason::NoSuchPort {
            return;
        }
        let peer = self.peers.get_mut(of).expect("the caller found it");
        peer.last_rx = now;
        let Some(opening) = peer.contact.opening() else { return };
        if let Some(doubted) = opening.doubts {
            // It is another run, and does not serve the port.
            let successor = self.other_at(of, doubted);
            self.forget_peer(of);
            return self.end_run(doubted, successor);
        }
        if let Some(key) = self.rpc_of(of, header) {
            self.fail(key, CallFailed::NoSuchPort);
        }
        // Others may want other ports.
        self.send_open(now, of);
    }

    /// Lets a call go its way: at once, or when the peer is known.
    #[inline]
    pub(super) fn start_call(&mut self, now: Time, key: RpcKey) {
        let rpc = self.rpcs.get(key).expect("the caller found it");
        let peer = self.peers.get(rpc.peer).expect("peers outlive their RPCs");
        let (of, header) = (rpc.peer, rpc.header());
        if !peer.contact.may_send() {
            self.hold_for_contact(now, key);
        } else if !peer.native && now.saturating_since(peer.last_rx) >= CERTAIN_FOR {
            self.doubt(now, of, header);
            self.hold_for_contact(now, key);
        } else if rpc.phase == Phase::Connecting {
            self.connected(key);
        } else {
            self.requeue(key);
        }
    }

    /// A call that has to wait until the peer is known.
    fn hold_for_contact(&mut self, now: Time, key: RpcKey) {
        let Some(rpc) = self.rpcs.get_mut(key) else { return };
        let (of, header) = (rpc.peer, rpc.header());
        let (place, takes) = match &mut rpc.outgoing {
            Some(message) => {
                self.order.hold(key, message);
                ((message.length(), message.birth, key), message.unscheduled.into())
            }
            None => (connecting(key), 0),
        };
        let peer = self.peers.get_mut(of).expect("peers outlive their RPCs");
        let first = peer.rpcs == 1;
        peer.flight.hold(place, takes);
        let Some(opening) = peer.contact.opening_mut() else { return };
        if first {
            *opening = Opening::new(now, header, None);
            self.send_open(now, of);
        }
    }

    /// Sends the next OPEN to a peer, if anything waits for that.
    pub(super) fn send_open(&mut self, now: Time, of: PeerKey) {
        let Some(peer) = self.peers.get(of) else { return };
        let Some(&Opening { doubts, .. }) = peer.contact.opening() else { return };
        let doubted = doubts.and_then(|doubted| self.peers.get(doubted));
        let waits = if doubts.is_some() { doubted } else { Some(peer) };
        if waits.is_none_or(|peer| peer.rpcs == 0) {
            if doubts.is_some() {
                self.drop_doubt(of, doubts);
            }
            return;
        }
        let known =
            doubted.and_then(|peer| peer.contact.met()).map_or(Token::NONE, |met| met.token);
        let held = peer.flight.first_held().and_then(|key| self.rpcs.get(key)).map(Rpc::header);
        let (first, longest) = (self.config.resend_initial, self.config.rto_max());
        let peer = self.peers.get_mut(of).expect("looked at above");
        let opening = peer.contact.opening_mut().expect("looked at above");
        opening.header = held.unwrap_or(opening.header);
        //= docs/protocol.md#contact-2
        if opening.next <= now {
            opening.note_sent(now, first, longest);
            self.openings.insert((opening.next, of));
        }
        let header = opening.header;
        self.control(of, header, Body::Open(Open { known }));
    }

    /// Nobody needs to know any more whether a token is still known.
    fn drop_doubt(&mut self, of: PeerKey, doubts: Option<PeerKey>) {
        let met = doubts.and_then(|of| self.peers.get_mut(of)?.contact.met_mut());
        if let Some(met) = met {
            met.doubted = None;
        }
        self.forget_peer(of);
    }

    /// OPENs that are due.
    pub(super) fn open_again(&mut self, now: Time) {
        for _ in 0..OPENINGS_MAX {
            let Some(&(due, of)) = self.openings.first().filter(|&&(due, _)| due <= now) else {
                return;
            };
            self.openings.remove(&(due, of));
            let opening = self.peers.get(of).and_then(|peer| peer.contact.opening());
            if opening.is_some_and(|opening| opening.next == due) {
                self.send_open(now, of);
            }
        }
    }

    /// The peer that is asked for, and nothing else, is known.
    pub(super) fn connected(&mut self, key: RpcKey) {
        let Some(ended) = self.remove_rpc(key) else { return };
        self.counters.calls_completed += 1;
        let Ended { socket, cookie, .. } = ended;
        self.events.push_back(Event::Connected { socket, rpc: key, cookie });
    }

    /// A run of a peer is over: what was under way with it ends, a few RPCs at a time. Calls that were
    /// not sent whole begin anew with `successor`. Its token stays known as one that is refused, so
    /// that it is not made known once more.
    pub(super) fn end_run(&mut self, of: PeerKey, successor: Option<PeerKey>) {
        let Some(peer) = self.peers.get_mut(of).filter(|peer| !peer.contact.is_over()) else {
            return;
        };
        //= docs/protocol.md#contact-6
        let doubted = peer.contact.met().and_then(|met| met.doubted);
        self.theirs_index.remove(of, Named::name(peer));
        peer.contact = Contact::Over;
        let addr = peer.addr;
        self.counters.peers_over += 1;
        self.peer_index.remove(of, addr);
        self.last_peer = None;
        if let Some(asking) = doubted.filter(|&asking| Some(asking) != successor) {
            self.forget_peer(asking);
        }
        self.sweeps.push_back(Sweep { of: Swept::Run(of, successor), slot: 0 });
    }

    /// One RPC with a run that is over.
    pub(super) fn end_with_run(&mut self, now: Time, key: RpcKey, successor: Option<PeerKey>) {
        let Some(rpc) = self.rpcs.get(key) else { return };
        if !rpc.is_client() {
            self.counters.requests_orphaned += 1;
            self.remove_rpc(key);
            return;
        }
        let sent = rpc.outgoing.as_ref().is_some_and(Outgoing::is_sent);
        match successor.filter(|&of| self.peers.get(of).is_some_and(|p| !p.contact.is_over())) {
            //= docs/protocol.md#once-3
            _ if sent || rpc.phase == Phase::Incoming => {
                self.fail(key, CallFailed::MayHaveExecuted);
            }
            Some(successor) => self.begin_anew(now, key, successor),
            None => self.fail(key, CallFailed::NoSuchPort),
        }
    }

    /// A call of which the last byte was never sent, so that nobody has executed it, goes to another run.
    fn begin_anew(&mut self, now: Time, key: RpcKey, successor: PeerKey) {
        self.counters.calls_begun_anew += 1;
        let request = self.rpcs.get(key).and_then(|rpc| rpc.outgoing.as_ref());
        let request = request
            .map(|message| (message.body.clone(), message.unscheduled_priority, message.birth));
        self.leave_peer(key);
        let most = self.unscheduled_most();
        let to = self.peers.get_mut(successor).expect("the caller found it");
        let rpc = self.rpcs.get_mut(key).expect("the caller found it");
        to.rpcs += 1;
        to.calls += 1;
        rpc.peer = successor;
        rpc.id = to.ids.next();
        rpc.rto = to.response_rto(&self.config);
        (rpc.queued, rpc.disturbed) = (false, true);
        rpc.note_progress(now);
        let mut cost = RPC_BYTES;
        rpc.outgoing = request.map(|(body, priority, birth)| {
            cost += body.len() as u64;
            let unscheduled = to.unscheduled_of(&self.config, body.len() as u32).min(most);
            Outgoing::new(body, unscheduled, priority, birth)
        });
        self.rpc_index.insert(&self.rpcs, key);
        self.charge(key, cost);
        self.start_call(now, key);
        self.arm(now, key);
    }

    /// Checks whether an RPC with a request of this length can begin, and finds its peer.
    #[inline]
    pub(super) fn admit_call(
        &mut self,
        now: Time,
        socket: SocketKey,
        to: Address,
        length: usize,
    ) -> Result<Admitted, CallError> {
        let local_port = self.port(socket).ok_or(CallError::SocketClosed)?;
        let peer_key = self
            .peer_for_call(now, to.host)
            .ok_or(CallError::TooManyPeers { limit: self.config.peers_max })?;
        //= docs/protocol.md#hostile-9
        let cost = RPC_BYTES + length as u64;
        if !self.has_plenty(peer_key, socket, cost) {
            let room = self.room_to_send(peer_key, socket, Account::Own, 0);
            if length as u64 > room {
                return Err(CallError::OverBudget { length, room });
            }
        }
        let peer = self.peers.get(peer_key).expect("found or inserted above");
        if peer.calls >= self.config.calls_max {
            return Err(CallError::TooManyCalls { limit: self.config.calls_max });
        }
        Ok(Admitted { peer: peer_key, socket, ports: (local_port, to.port) })
    }

    /// Begins an RPC as a client. Without a `body` it only finds out whether the peer is there.
    #[inline]
    pub(super) fn begin_call(
        &mut self,
        now: Time,
        admitted: Admitted,
        body: Option<Bytes>,
        options: CallOptions,
    ) -> RpcKey {
        let Admitted { peer: peer_key, socket, ports } = admitted;
        let most = self.unscheduled_most();
        let mut peer = self.peers.get_mut(peer_key).expect("found when the call was admitted");
        if !peer.is_confirmed() {
            self.trust(peer_key);
            peer = self.peers.get_mut(peer_key).expect("as above");
        }
        peer.calls += 1;
        peer.rpcs += 1;
        let phase = if body.is_some() { Phase::Outgoing } else { Phase::Connecting };
        let mut rpc = Rpc::new(peer.ids.next(), phase, peer_key, socket, ports, now);
        //= docs/protocol.md#incast-1
        //= docs/protocol.md#host-4
        let outstanding = u64::from(self.outstanding) + self.others.calls;
        rpc.incast = outstanding >= u64::from(self.config.incast_threshold);
        rpc.cookie = options.cookie;
        rpc.expires = options.deadline;
        rpc.rto = peer.response_rto(&self.config);
        let mut cost = RPC_BYTES;
        rpc.outgoing = body.map(|body| {
            let length = body.len() as u32;
            cost += u64::from(length);
            let table = peer.cutoffs.as_ref();
            let priority = unscheduled_priority(table, self.config.priorities, length);
            let unscheduled = peer.unscheduled_of(&self.config, length);
            Outgoing::new(body, unscheduled.min(most), priority, self.births)
        });
        self.total.charge(&mut rpc, cost, peer, self.sockets.get_mut(socket));
        self.births += 1;
        self.outstanding += 1;
        self.counters.calls += 1;
        self.counters.calls_in_incast += u64::from(rpc.incast);
        self.insert_rpc(now, rpc)
    }

    /// We call the peer: it is no stranger.
    #[cold]
    fn trust(&mut self, of: PeerKey) {
        let peer = self.peers.get_mut(of).expect("the caller found it");
        let blocked = peer.confirm();
        self.grants.bring_forward(peer, of);
        self.unblock(blocked);
    }

    /// The peer at `addr`, new if need be; `None` if the table is full of peers in use.
    #[inline]
    pub(super) fn peer_for_call(&mut self, now: Time, addr: SocketAddr) -> Option<PeerKey> {
        if let Some(key) = self.find_peer(addr) {
            let peer = self.peers.get(key).expect("found above");
            //= docs/protocol.md#contact-6
            let certain = now.saturating_since(peer.last_rx) < CERTAIN_FOR
                && peer.contact.met().is_none_or(|met| met.may_be_known(now));
            if certain || peer.rpcs > 0 || peer.native {
                return Some(key);
            }
            self.forget_peer(key); // It may have forgotten us, and is met anew.
        }
        if !self.make_room(now, expire::Room::ForServer) {
            return None;
        }
        let key = if is_native(addr) {
            self.insert_native(now, addr)
        } else {
            let nothing = Header { source_port: 1, dest_port: 1, sender_id: apus_wire::RpcId(0) };
            let contact = Contact::Opening(Opening::new(now, nothing, None));
            let token = self.secrets.token();
            self.insert_peer(Peer::known(addr, token, contact, now))
        };
        self.peer_index.insert(&self.peers, key);
        Some(key)
    }

    /// A peer of a native link, which is known by its address.
    pub(super) fn insert_native(&mut self, now: Time, addr: SocketAddr) -> PeerKey {
        //= docs/protocol.md#once-5
        let ids = Ids::of_incarnation(Incarnation::from_random(self.secrets.incarnation()));
        let mut peer = Peer::native(addr, ids, self.secrets.version_salt(), now);
        if !self.config.confirm_peers {
            peer.confirm();
        }
        if self.peers.len() == 0 {
            self.next_peer_check = now + expire::PEER_CHECK;
        }
        self.peers.insert(peer)
    }

    fn insert_peer(&mut self, peer: Peer) -> PeerKey {
        if self.peers.len() == 0 {
            self.next_peer_check = peer.met + expire::PEER_CHECK;
        }
        let met = peer.contact.met().is_some();
        let key = self.peers.insert(peer);
        self.token_index.insert(&self.peers, key);
        if met {
            self.theirs_index.insert(&self.peers, key);
        }
        key
    }

    #[inline]
    pub(super) fn find_token(&mut self, token: Token) -> Option<PeerKey> {
        if let Some((last, key)) = self.last_token
            && last == token
        {
            return Some(key);
        }
        if token == Token::NONE {
            return None;
        }
        let key = self.token_index.find(&self.peers, &token)?;
        self.last_token = Some((token, key));
        Some(key)
    }
}

/// Whether the packet is about tokens, and not about an RPC, whatever token it carries itself: a refusal carries that of the
/// refused packet, which is one of our own when we have called ourselves.
fn is_about_tokens(packet: &Packet<'_>) -> bool {
    match packet {
        Packet::Token { .. } | Packet::Confirm { .. } => true,
        Packet::RpcUnknown { unknown, .. } => {
            matches!(unknown.reason, UnknownReason::OtherVersion | UnknownReason::TokenUnknown)
        }
        _ => false,
    }
}

/// Whether the reason is given with a copy of the refused packet's token.
fn is_refusal(reason: UnknownReason) -> bool {
    matches!(
        reason,
        UnknownReason::OtherVersion | UnknownReason::TokenUnknown | UnknownReason::OverBudget
    )
}

/// Where a call without a message stands among those that wait for the peer.
pub(super) fn connecting(key: RpcKey) -> (u32, u64, RpcKey) {
    (0, 0, key)
}
