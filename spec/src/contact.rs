//! First contact, doubt, moves, and the end of runs: rules contact-1 to contact-7.

use std::sync::Arc;

use crate::packet::{Body, Packet, Place, Proof, Run, Token};
use crate::revert::Revert;
use crate::state::{Contact, End, Peer, Phase, State};

/// Units in which a CONFIRM that was lost is sent again: 5 s (contact-5).
const CONFIRM_AGAIN: u16 = 4;
/// Units in which a proof is fresh (contact-4).
const FRESH: u16 = 10;
/// Units of silence after which a peer is doubted: 60 s (contact-6).
const CERTAIN: u16 = 55;

/// The state while a step changes it.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) state: State,
    /// The rule that is broken, if any.
    pub(crate) revert: Option<Revert>,
}

/// A packet that has arrived: the node, the sender's address, and the number of the call that the packet names.
#[derive(Clone, Copy)]
pub(crate) struct Arrived {
    pub(crate) node: usize,
    pub(crate) from: Place,
    pub(crate) seq: u8,
}

impl Step {
    pub(crate) fn breaks(&self, revert: Revert) -> bool {
        self.revert == Some(revert)
    }

    pub(crate) fn send(&mut self, node: usize, to: Place, body: Body) {
        let from = self.state.nodes[node].place;
        let packet = Packet { from, to, body };
        if !self.state.packets.contains(&packet) {
            Arc::make_mut(&mut self.state.packets).insert(packet);
        }
    }

    pub(crate) fn find(&self, node: usize, ours: Token) -> Option<usize> {
        self.state.nodes[node].peers.iter().position(|peer| peer.ours == ours)
    }

    pub(crate) fn peer(&mut self, node: usize, at: usize) -> &mut Peer {
        &mut self.state.nodes[node].peers[at]
    }

    fn draw(&mut self, node: usize) -> Token {
        let node = &mut self.state.nodes[node];
        node.drawn += 1;
        Token::Drawn(node.run, node.drawn)
    }

    /// The run whose key a node uses.
    fn key(&self, node: usize) -> Run {
        let run = self.state.nodes[node].run;
        if self.breaks(Revert::KeyOutlivesRun) { Run { number: 0, ..run } } else { run }
    }

    /// Returns the calls at a peer that have not ended, in order.
    fn calls_at(&self, node: usize, ours: Token) -> Vec<usize> {
        let is_there = |it: &usize| {
            let call = &self.state.calls[*it];
            let is_active = !matches!(call.phase, Phase::Future | Phase::Ended(_));
            usize::from(call.from) == node && call.peer == Some(ours) && is_active
        };
        let mut calls: Vec<_> = (0..self.state.calls.len()).filter(is_there).collect();
        calls.sort_by_key(|&call| self.state.calls[call].seq);
        calls
    }

    /// Returns the call of this number at a peer.
    pub(crate) fn call_of(&self, node: usize, ours: Token, seq: u8) -> Option<usize> {
        self.calls_at(node, ours).into_iter().find(|&call| self.state.calls[call].seq == seq)
    }

    /// Returns whether a peer has calls or requests.
    fn is_busy(&self, node: usize, at: usize) -> bool {
        let peer = &self.state.nodes[node].peers[at];
        !peer.requests.is_empty() || !self.calls_at(node, peer.ours).is_empty()
    }

    pub(crate) fn end(&mut self, call: usize, end: End) {
        self.state.calls[call].phase = Phase::Ended(end);
    }

    // ---- calls

    /// A call begins by UDP: to the peer of that address, or by a first contact (contact-2).
    pub(crate) fn begin(&mut self, call: usize) {
        let node = usize::from(self.state.calls[call].from);
        let place = self.state.nodes[1 - node].place;
        let ours = self.peer_for_call(node, place);
        self.begin_at(call, ours);
    }

    fn peer_for_call(&mut self, node: usize, place: Place) -> Token {
        let now = self.state.unit;
        if let Some(ours) = self.state.nodes[node].path(place)
            && let Some(at) = self.find(node, ours)
        {
            // contact-6: after a silence, a peer without calls and requests is met anew.
            let peer = &self.state.nodes[node].peers[at];
            if now - peer.heard < CERTAIN && may_be_known(&peer.contact, now)
                || self.is_busy(node, at)
            {
                return ours;
            }
            self.forget(node, ours);
        }
        let ours = self.draw(node);
        self.state.nodes[node].peers.push(Peer::new(ours, place, Contact::Opening, now));
        self.take_path(node, ours);
        ours
    }

    fn begin_at(&mut self, number: usize, ours: Token) {
        let node = usize::from(self.state.calls[number].from);
        let Some(at) = self.find(node, ours) else { return };
        let reuses = self.breaks(Revert::NumbersReused) && self.calls_at(node, ours).is_empty();
        let peer = self.peer(node, at);
        peer.called = if reuses { 1 } else { peer.called + 1 };
        let seq = peer.called;
        let call = &mut self.state.calls[number];
        (call.peer, call.seq, call.phase) = (Some(ours), seq, Phase::Waiting);
        let peer = &self.state.nodes[node].peers[at];
        match peer.contact {
            Contact::Met { .. } if self.state.unit - peer.heard < CERTAIN => self.transmit(number),
            Contact::Met { .. } => self.doubt(node, ours, seq), // contact-6
            _ if !self.has_other_rpcs(node, ours, number) => self.send_open(node, ours, 0),
            _ => {}
        }
    }

    fn has_other_rpcs(&self, node: usize, ours: Token, call: usize) -> bool {
        self.calls_at(node, ours).iter().any(|&other| other != call)
    }

    /// The calls that have waited for a peer are sent.
    fn release(&mut self, node: usize, ours: Token) {
        for call in self.calls_at(node, ours) {
            if self.state.calls[call].phase == Phase::Waiting {
                self.transmit(call);
            }
        }
    }

    // ---- OPEN, TOKEN, CONFIRM

    /// Sends OPEN, on behalf of the calls that wait. `seq` is named if none does.
    fn send_open(&mut self, node: usize, ours: Token, seq: u8) {
        let Some(at) = self.find(node, ours) else { return };
        let (known, waits) = match self.state.nodes[node].peers[at].contact {
            Contact::Opening => (None, at),
            Contact::Asking(doubted) => {
                let waits = self.find(node, doubted).filter(|&at| self.is_busy(node, at));
                let Some(waits) = waits else { return self.forget(node, ours) };
                (self.state.nodes[node].peers[waits].theirs(), waits)
            }
            _ => return,
        };
        let place = self.state.nodes[node].peers[at].place;
        let first = self.first_waiting(node, self.state.nodes[node].peers[at].ours);
        if waits != at || first.is_some() {
            let seq = first.unwrap_or(seq);
            self.send(node, place, Body::Open { token: ours, known, seq });
        }
    }

    fn first_waiting(&self, node: usize, ours: Token) -> Option<u8> {
        let waits = |&&call: &&usize| self.state.calls[call].phase == Phase::Waiting;
        self.calls_at(node, ours).iter().find(waits).map(|&call| self.state.calls[call].seq)
    }

    /// contact-3: OPEN is answered with the token that it names if that is known, otherwise with a new one.
    pub(crate) fn on_open(&mut self, arrived: Arrived, token: Token, known: Option<Token>) {
        let Arrived { node, from, .. } = arrived;
        let known = known.and_then(|known| self.find(node, known)).filter(|&at| {
            let peer = &self.state.nodes[node].peers[at];
            peer.theirs().is_some() && (peer.place == from || !self.breaks(Revert::KnownByAddress))
        });
        match known {
            Some(at) => {
                let ours = self.state.nodes[node].peers[at].ours;
                self.offer(arrived, token, ours);
            }
            None => self.offer_new(arrived, token),
        }
    }

    fn offer(&mut self, Arrived { node, from, seq }: Arrived, stamp: Token, offered: Token) {
        let by = self.key(node);
        let proof = Proof { by, token: offered, place: from, issued: self.state.unit };
        self.send(node, from, Body::Token { stamp, offered, proof, seq });
    }

    fn offer_new(&mut self, arrived: Arrived, stamp: Token) {
        if !self.refuses_contact(arrived, stamp)
            && let Some(offered) = self.offered_token(arrived.node, stamp, self.state.unit)
        {
            self.offer(arrived, stamp, offered);
        }
    }

    fn offered_token(&self, node: usize, to: Token, issued: u16) -> Option<Token> {
        let Token::Drawn(run, number) = to else { return None };
        Some(Token::Offered { by: self.key(node), to: (run, number), issued })
    }

    /// contact-3: an OPEN or CONFIRM about no call names the port from which the receiver has called, which serves nothing.
    fn refuses_contact(&mut self, Arrived { node, from, seq }: Arrived, stamp: Token) -> bool {
        let is_open = self.state.nodes[node].is_open && seq != 0;
        if !is_open {
            self.send(node, from, Body::NoContact { stamp, seq });
        }
        !is_open
    }

    /// contact-4, contact-5: TOKEN is answered with CONFIRM, is the answer to a doubt, or is late.
    pub(crate) fn on_token(
        &mut self,
        arrived: Arrived,
        stamp: Token,
        offered: Token,
        proof: Proof,
    ) {
        let (Arrived { node, from, seq }, now) = (arrived, self.state.unit);
        let Some(at) = self.find(node, stamp) else { return };
        if self.peer(node, at).place != from {
            return;
        }
        self.peer(node, at).heard = now;
        match self.state.nodes[node].peers[at].contact {
            Contact::Opening => {
                self.confirm(node, at, offered, proof, seq);
                self.release(node, stamp);
            }
            Contact::Asking(doubted) => {
                self.answer(node, stamp, doubted, Some((offered, proof)), seq);
            }
            Contact::Met { theirs, .. } if theirs == offered => {
                self.send(node, from, Body::Confirm { stamp: offered, theirs: stamp, proof, seq });
            }
            contact @ Contact::Met { .. } => {
                if !may_be_known(&contact, now) || self.breaks(Revert::LateTokenDoubts) {
                    self.doubt(node, stamp, seq);
                }
            }
            Contact::Over => {}
        }
    }

    fn confirm(&mut self, node: usize, at: usize, theirs: Token, proof: Proof, seq: u8) {
        let confirming = Some((proof, self.state.unit));
        let peer = self.peer(node, at);
        peer.contact = Contact::Met { theirs, confirming, asking: None };
        let (ours, place) = (peer.ours, peer.place);
        self.send(node, place, Body::Confirm { stamp: theirs, theirs: ours, proof, seq });
    }

    /// contact-4, contact-7: CONFIRM with a proof makes a client known, once for each token, or moves it.
    pub(crate) fn on_confirm(
        &mut self,
        arrived: Arrived,
        ours: Token,
        theirs: Token,
        proof: Proof,
    ) {
        let (Arrived { node, from, .. }, now) = (arrived, self.state.unit);
        let is_fresh = now - proof.issued <= FRESH || self.breaks(Revert::ProofsLast);
        let is_proven = is_fresh && proof.by == self.key(node) && proof.place == from;
        if let Some(at) = self.find(node, ours) {
            let peer = self.peer(node, at);
            match peer.contact {
                Contact::Over => self.admit(arrived, ours, theirs, false),
                Contact::Met { theirs: it, .. }
                    if it == theirs && is_proven && peer.place != from =>
                {
                    self.move_peer(node, ours, from);
                }
                _ => {}
            }
            return;
        }
        let is_offered = self.offered_token(node, theirs, proof.issued) == Some(ours);
        let is_spent = self.state.nodes[node].spent.contains(&ours);
        self.admit(arrived, ours, theirs, is_proven && is_offered && !is_spent);
    }

    fn admit(&mut self, arrived: Arrived, ours: Token, theirs: Token, fits: bool) {
        if self.refuses_contact(arrived, theirs) {
            return;
        }
        if !fits {
            return self.offer_new(arrived, theirs);
        }
        let contact = Contact::Met { theirs, confirming: None, asking: None };
        let peer = Peer::new(ours, arrived.from, contact, self.state.unit);
        self.state.nodes[arrived.node].peers.push(peer);
        self.take_path(arrived.node, ours);
    }

    /// contact-3: the port is not served.
    pub(crate) fn on_no_contact(&mut self, arrived: Arrived, stamp: Token) {
        let Arrived { node, from, seq } = arrived;
        let Some(at) = self.find(node, stamp) else { return };
        let call = self.call_of(node, stamp, seq);
        let now = self.state.unit;
        let peer = self.peer(node, at);
        if peer.place != from {
            return self.on_stranger(arrived, stamp, false);
        }
        match peer.contact {
            Contact::Opening => {
                peer.heard = now;
                call.into_iter().for_each(|call| self.end(call, End::NoSuchPort));
                self.send_open(node, stamp, seq);
            }
            Contact::Asking(doubted) => self.answer(node, stamp, doubted, None, seq),
            Contact::Met { confirming, .. } => {
                let Some(call) = call else { return };
                if confirming.is_none() && !self.breaks(Revert::LateNoContact) {
                    return;
                }
                let phase = self.state.calls[call].phase;
                let is_sent = matches!(phase, Phase::Sent | Phase::Begun);
                let denies =
                    self.breaks(Revert::RefusedConfirmDenies) || self.breaks(Revert::LateNoContact);
                let may_have_executed = is_sent && !denies;
                self.end(
                    call,
                    if may_have_executed { End::MayHaveExecuted } else { End::NoSuchPort },
                );
            }
            Contact::Over => {}
        }
    }

    // ---- packets about calls

    /// contact-1: returns the peer of a packet about a call. Every other packet is refused, or its sender must prove that it
    /// moved.
    pub(crate) fn recognize(
        &mut self,
        arrived: Arrived,
        stamp: Token,
        is_answered: bool,
    ) -> Option<usize> {
        let (node, now) = (arrived.node, self.state.unit);
        if let Some(at) = self.find(node, stamp) {
            let unproven = self.breaks(Revert::MoveUnproven);
            let peer = self.peer(node, at);
            let is_met = peer.theirs().is_some();
            if peer.place != arrived.from && is_met && unproven {
                self.move_peer(node, stamp, arrived.from);
            }
            let forgets = self.breaks(Revert::MoveBeginsHistory);
            let peer = self.peer(node, at);
            if peer.place != arrived.from && is_met && forgets {
                (peer.place, peer.taken) = (arrived.from, 0);
                peer.requests.clear();
            }
            if let Contact::Met { confirming, .. } = &mut peer.contact
                && peer.place == arrived.from
            {
                *confirming = None;
                peer.heard = now;
                return Some(at);
            }
        }
        self.on_stranger(arrived, stamp, is_answered);
        None
    }

    /// contact-1, contact-7: a packet with an unknown token, or from another address. `is_answered`: it is DATA or RESEND.
    fn on_stranger(&mut self, arrived: Arrived, stamp: Token, is_answered: bool) {
        let Arrived { node, from, seq } = arrived;
        let found = self.find(node, stamp).map(|at| self.state.nodes[node].peers[at].clone());
        match found.map(|peer| (peer.contact, peer.place)) {
            Some((Contact::Met { theirs, .. }, place)) if place != from => {
                self.offer(arrived, theirs, stamp);
            }
            None | Some((Contact::Over, _)) if is_answered => {
                self.send(node, from, Body::TokenUnknown { about: stamp, seq });
            }
            _ => {}
        }
    }

    /// contact-5: the peer does not know its own token. CONFIRM may be lost, or the run of the peer may be over.
    pub(crate) fn on_token_unknown(&mut self, Arrived { node, from, seq }: Arrived, about: Token) {
        let (peers, now) = (&self.state.nodes[node].peers, self.state.unit);
        let is_it = |peer: &&Peer| peer.theirs() == Some(about) && peer.place == from;
        let Some(peer) = peers.iter().find(is_it) else { return };
        let ours = peer.ours;
        match peer.contact {
            Contact::Met { theirs, confirming: Some((proof, since)), .. }
                if is_recent(since, now) && !self.breaks(Revert::LostConfirmDoubts) =>
            {
                self.send(node, from, Body::Confirm { stamp: theirs, theirs: ours, proof, seq });
                let call = self.call_of(node, ours, seq);
                call.into_iter().for_each(|call| self.send_again(call));
            }
            _ => self.doubt(node, ours, seq),
        }
    }

    // ---- doubt

    /// contact-5: another peer asks whether a token is still known.
    fn doubt(&mut self, node: usize, ours: Token, seq: u8) {
        let Some(at) = self.find(node, ours) else { return };
        let place = self.state.nodes[node].peers[at].place;
        let Contact::Met { theirs, confirming, asking: None } = self.peer(node, at).contact else {
            return;
        };
        let token = self.draw(node);
        let peer = Peer::new(token, place, Contact::Asking(ours), self.state.unit);
        self.state.nodes[node].peers.push(peer);
        self.peer(node, at).contact = Contact::Met { theirs, confirming, asking: Some(token) };
        let seq = self.first_waiting(node, ours).unwrap_or(seq);
        self.send_open(node, token, seq);
    }

    fn end_doubt(&mut self, node: usize, doubted: Token) {
        if let Some(at) = self.find(node, doubted)
            && let Contact::Met { asking, .. } = &mut self.peer(node, at).contact
        {
            *asking = None;
        }
    }

    /// The answer to a doubt: the token in doubt, which is trusted; another one, which ends the run; or none, for a port that is
    /// not served.
    fn answer(
        &mut self,
        node: usize,
        asking: Token,
        doubted: Token,
        answer: Option<(Token, Proof)>,
        seq: u8,
    ) {
        self.end_doubt(node, doubted);
        let now = self.state.unit;
        if let Some(at) = self.find(node, doubted)
            && let Some((offered, _)) = answer
            && self.peer(node, at).theirs() == Some(offered)
        {
            self.peer(node, at).heard = now;
            self.release(node, doubted);
            return self.forget(node, asking);
        }
        let ended = self.retire(node, doubted);
        let Some(at) = self.find(node, asking) else { return };
        let place = self.peer(node, at).place;
        let present = self.state.nodes[node].path(place);
        let successor = match answer.filter(|_| present.is_none()) {
            Some((offered, proof)) => {
                self.confirm(node, at, offered, proof, seq);
                self.take_path(node, asking);
                Some(asking)
            }
            None => {
                self.forget(node, asking);
                present
            }
        };
        if ended {
            self.end_run(node, doubted, successor);
        }
    }

    // ---- the end of a run

    /// contact-6: a run of a peer is over. Its token stays known as one that is refused. Returns `false` if it was over already.
    fn retire(&mut self, node: usize, ours: Token) -> bool {
        let Some(at) = self.find(node, ours) else { return false };
        let before = std::mem::replace(&mut self.peer(node, at).contact, Contact::Over);
        self.state.nodes[node].paths.retain(|&(_, token)| token != ours);
        if let Contact::Met { asking: Some(asking), .. } = before {
            self.forget(node, asking);
        }
        before != Contact::Over
    }

    /// contact-6: calls whose request was sent completely may have been executed, others begin anew, requests end.
    fn end_run(&mut self, node: usize, ours: Token, successor: Option<Token>) {
        if let Some(at) = self.find(node, ours) {
            self.peer(node, at).requests.clear();
        }
        for call in self.calls_at(node, ours) {
            let is_sent = matches!(self.state.calls[call].phase, Phase::Sent | Phase::Begun);
            match successor {
                _ if is_sent && !self.breaks(Revert::SentBeginsAnew) => {
                    self.end(call, End::MayHaveExecuted);
                }
                Some(successor) => self.begin_at(call, successor),
                None => self.end(call, End::NoSuchPort),
            }
        }
        if self.breaks(Revert::TokensUnspent) {
            self.forget(node, ours);
        }
    }

    /// Calls to the peer's address go to this peer from now on.
    fn take_path(&mut self, node: usize, ours: Token) {
        let Some(at) = self.find(node, ours) else { return };
        let place = self.peer(node, at).place;
        let before = self.state.nodes[node].path(place).filter(|&before| before != ours);
        let paths = &mut self.state.nodes[node].paths;
        paths.retain(|&(at, _)| at != place);
        paths.push((place, ours));
        paths.sort_unstable();
        let Some(before) = before else { return };
        let Some(at) = self.find(node, before) else { return };
        match self.state.nodes[node].peers[at].contact {
            // contact-6: the peer may be an earlier run, or this one, which has called while it was called.
            Contact::Opening => {
                if self.retire(node, before) {
                    self.end_run(node, before, Some(ours));
                }
            }
            Contact::Met { confirming: Some((_, since)), .. }
                if is_recent(since, self.state.unit) && !self.breaks(Revert::CrossingDoubts) => {}
            Contact::Met { .. } => self.doubt(node, before, 0),
            Contact::Asking(_) | Contact::Over => {}
        }
    }

    /// contact-7: a peer has moved, and with it the one that asks on its behalf.
    fn move_peer(&mut self, node: usize, ours: Token, place: Place) {
        let (Some(at), now) = (self.find(node, ours), self.state.unit) else { return };
        self.state.nodes[node].paths.retain(|&(_, token)| token != ours);
        let peer = self.peer(node, at);
        (peer.place, peer.heard) = (place, now);
        if let Contact::Met { asking: Some(asking), .. } = peer.contact
            && let Some(at) = self.find(node, asking)
        {
            self.peer(node, at).place = place;
            self.send_open(node, asking, 0);
        }
        self.take_path(node, ours);
    }

    /// A peer without calls and requests is forgotten. If it asks on behalf of another one, that one is in doubt no longer.
    fn forget(&mut self, node: usize, ours: Token) {
        let Some(at) = self.find(node, ours).filter(|&at| !self.is_busy(node, at)) else { return };
        let peer = self.state.nodes[node].peers.remove(at);
        self.state.nodes[node].paths.retain(|&(_, token)| token != ours);
        if let Contact::Asking(doubted) = peer.contact {
            self.end_doubt(node, doubted);
        }
    }

    /// A full table forgets a peer (hostile-4).
    pub(crate) fn evict(&mut self, node: usize, ours: Token) {
        if !self.breaks(Revert::TokensUnspent) {
            self.state.nodes[node].spent.push(ours);
        }
        self.forget(node, ours);
    }

    /// 6 s pass: CONFIRMs that wait for a sign of their peers are late.
    pub(crate) fn pass_confirms(&mut self) {
        self.state.unit += 6;
    }

    /// Returns whether a call waits for a sign that its CONFIRM has arrived, and the peer does not know its token.
    pub(crate) fn awaits_sign(&self) -> bool {
        let now = self.state.unit;
        let is_it = |node: usize, peer: &Peer| match peer.contact {
            Contact::Met { theirs, confirming: Some((_, since)), .. } => {
                let is_refusal = |it: &Packet| matches!(it.body, Body::TokenUnknown { about, .. } if about == theirs);
                is_recent(since, now)
                    && !self.calls_at(node, peer.ours).is_empty()
                    && self.state.packets.iter().any(is_refusal)
            }
            _ => false,
        };
        (0..2).any(|node| self.state.nodes[node].peers.iter().any(|peer| is_it(node, peer)))
    }

    /// once-5, contact-4: 130 s pass. Idle peers and spent tokens are forgotten.
    pub(crate) fn pause(&mut self) {
        self.state.unit += 122;
        for node in 0..2 {
            self.state.nodes[node].spent.clear();
            let peers = self.state.nodes[node].peers.clone();
            for peer in peers {
                let Some(at) = self.find(node, peer.ours) else { continue };
                if self.breaks(Revert::HistoryBeforeToken) {
                    self.peer(node, at).taken = 0;
                } else if !self.is_awaited(node, at) || self.breaks(Revert::DoubtForgotten) {
                    self.forget(node, peer.ours);
                }
            }
        }
    }

    /// Returns whether calls or requests of another peer wait for the answer to this one.
    fn is_awaited(&self, node: usize, at: usize) -> bool {
        let Contact::Asking(doubted) = self.state.nodes[node].peers[at].contact else {
            return false;
        };
        self.find(node, doubted).is_some_and(|at| self.is_busy(node, at))
    }

    /// Forgets the peer at an address before the next call by UDP (local-6).
    pub(crate) fn forget_run(&mut self, node: usize, place: Place) {
        let ours = self.state.nodes[node].path(place);
        ours.into_iter().for_each(|ours| self.forget(node, ours));
    }

    /// Returns the peers that a full table may forget.
    pub(crate) fn evictable(&self, node: usize) -> Vec<Token> {
        let peers = self.state.nodes[node].peers.iter().enumerate();
        let idle = peers.filter(|&(at, peer)| peer.theirs().is_some() && !self.is_busy(node, at));
        idle.map(|(_, peer)| peer.ours).collect()
    }
}

/// Returns whether the peer has used this node's token, or CONFIRM may still reach it.
fn may_be_known(contact: &Contact, now: u16) -> bool {
    !matches!(contact, Contact::Met { confirming: Some((_, since)), .. } if !is_recent(*since, now))
}

/// Returns whether a CONFIRM of this time may still arrive.
fn is_recent(since: u16, now: u16) -> bool {
    now - since <= CONFIRM_AGAIN
}
