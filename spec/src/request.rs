//! Requests, their history, and responses: rules life-5 to life-8, once-1, loss-6 and loss-13.

use crate::contact::{Arrived, Step};
use crate::packet::{Body, Packet, Token, Unknown};
use crate::revert::Revert;
use crate::state::{Call, Contact, End, Phase, Request, Service};

impl Step {
    /// A packet arrives at the node that has its address now.
    pub(crate) fn deliver(&mut self, packet: Packet) {
        let Some(node) = self.state.nodes.iter().position(|it| it.place == packet.to) else {
            return;
        };
        let arrived = |seq| Arrived { node, from: packet.from, seq };
        match packet.body {
            Body::Open { token, known, seq } => self.on_open(arrived(seq), token, known),
            Body::Token { stamp, offered, proof, seq } => {
                self.on_token(arrived(seq), stamp, offered, proof);
            }
            Body::Confirm { stamp, theirs, proof, seq } => {
                self.on_confirm(arrived(seq), stamp, theirs, proof);
            }
            Body::NoContact { stamp, seq } => self.on_no_contact(arrived(seq), stamp),
            Body::TokenUnknown { about, seq } => self.on_token_unknown(arrived(seq), about),
            Body::Request { stamp, seq, part, is_last, call } => {
                if let Some(at) = self.recognize(arrived(seq), stamp, true) {
                    self.on_request(node, at, Part { seq, part, is_last, call });
                }
            }
            Body::Response { stamp, seq, is_last, call, .. } => {
                if self.recognize(arrived(0), stamp, true).is_some() {
                    self.on_response(node, stamp, seq, is_last, call);
                }
            }
            Body::Grant { stamp, seq, of_request } => {
                if let Some(at) = self.recognize(arrived(0), stamp, false) {
                    self.on_grant(node, at, seq, of_request);
                }
            }
            Body::Resend { stamp, seq } => {
                if let Some(at) = self.recognize(arrived(seq), stamp, true) {
                    self.on_resend(node, at, seq);
                }
            }
            Body::Ack { stamp, seq } => {
                if let Some(at) = self.recognize(arrived(0), stamp, false) {
                    self.on_ack(node, at, seq);
                }
            }
            Body::Abort { stamp, seq } => {
                if let Some(at) = self.recognize(arrived(seq), stamp, false) {
                    self.on_abort(node, at, seq);
                }
            }
            Body::Unknown { stamp, seq, reason } => {
                if self.recognize(arrived(seq), stamp, false).is_some() {
                    self.on_unknown(node, stamp, seq, reason);
                }
            }
        }
    }

    // ---- the client

    /// The first packet of a request goes, and RESEND asks for it from now on.
    pub(crate) fn transmit(&mut self, number: usize) {
        let call = &mut self.state.calls[number];
        let (node, seq, is_long) = (usize::from(call.from), call.seq, call.is_long);
        call.phase = if is_long { Phase::Part } else { Phase::Sent };
        if let Some((stamp, place)) = self.route(number) {
            let call = number as u8;
            let request = Body::Request { stamp, seq, part: 0, is_last: !is_long, call };
            self.send(node, place, request);
            if self.state.left.has_probes {
                self.send(node, place, Body::Resend { stamp, seq });
            }
        }
    }

    /// Returns the token and the address for packets about a call.
    fn route(&self, number: usize) -> Option<(Token, u8)> {
        let call = &self.state.calls[number];
        let node = usize::from(call.from);
        let at = call.peer.and_then(|ours| self.find(node, ours))?;
        let peer = &self.state.nodes[node].peers[at];
        Some((peer.theirs()?, peer.place))
    }

    fn on_grant(&mut self, node: usize, at: usize, seq: u8, of_request: bool) {
        let peer = &self.state.nodes[node].peers[at];
        let (ours, place) = (peer.ours, peer.place);
        let Some(stamp) = peer.theirs() else { return };
        if of_request {
            let Some(number) = self.call_of(node, ours, seq) else { return };
            if self.state.calls[number].phase == Phase::Part {
                self.state.calls[number].phase = Phase::Sent;
                let call = number as u8;
                self.send(node, place, Body::Request { stamp, seq, part: 1, is_last: true, call });
            }
            return;
        }
        let granted =
            peer.requests.iter().find(|it| it.seq == seq && it.phase == Service::Answered);
        if let Some(&Request { call, .. }) = granted {
            self.send(node, place, Body::Response { stamp, seq, part: 1, is_last: true, call });
        }
    }

    fn on_response(&mut self, node: usize, ours: Token, seq: u8, is_last: bool, call: u8) {
        let Some(number) = self.call_of(node, ours, seq) else { return };
        let Some((stamp, place)) = self.route(number) else { return };
        if usize::from(call) != number {
            self.state.is_mixed_up = true;
        }
        if is_last {
            self.end(number, End::Answered);
            self.send(node, place, Body::Ack { stamp, seq });
        } else {
            self.state.calls[number].phase = Phase::Begun;
            self.send(node, place, Body::Grant { stamp, seq, of_request: false });
        }
    }

    /// loss-6: *unknown* has a request sent again. For a response that has begun it is late: a server that had given the
    /// request up would say *finished* (loss-13).
    fn on_unknown(&mut self, node: usize, ours: Token, seq: u8, reason: Unknown) {
        let Some(number) = self.call_of(node, ours, seq) else { return };
        let has_begun = self.state.calls[number].phase == Phase::Begun;
        match reason {
            Unknown::Finished => self.end(number, End::ResponseLost),
            Unknown::NoSuchPort => self.end(number, End::NoSuchPort),
            Unknown::Unknown if has_begun && self.breaks(Revert::LateUnknownEnds) => {
                self.end(number, End::ResponseLost);
            }
            Unknown::Unknown if !has_begun => self.send_again(number),
            Unknown::Unknown => {}
        }
    }

    /// The application gives a call up (life-8).
    pub(crate) fn give_up(&mut self, number: usize) {
        let (Phase::Part | Phase::Sent | Phase::Begun) = self.state.calls[number].phase else {
            return self.end(number, End::GivenUp);
        };
        let (route, call) = (self.route(number), &self.state.calls[number]);
        let (node, seq) = (usize::from(call.from), call.seq);
        self.end(number, End::GivenUp);
        if let Some((stamp, place)) = route {
            self.send(node, place, Body::Abort { stamp, seq });
        }
    }

    // ---- the server

    fn on_request(&mut self, node: usize, at: usize, part: Part) {
        let Part { seq, part: number, is_last, call } = part;
        let is_open = self.state.nodes[node].is_open;
        let peer = self.peer(node, at);
        if let Some(request) = peer.requests.iter_mut().find(|it| it.seq == seq) {
            if request.phase == Service::Arriving && is_last {
                request.phase = Service::Executing;
                peer.taken |= 1 << seq; // once-1: with the last byte.
                self.execute(call);
            }
            return;
        }
        // life-6: a copy of a refused request is refused, whether the port is served now or not.
        if peer.refused & 1 << seq != 0 || !is_open {
            return self.answer_unknown(node, at, seq);
        }
        // once-1: a request that was taken is not taken again. The second packet alone begins nothing.
        if peer.taken & 1 << seq != 0 || number > 0 {
            return;
        }
        let (place, theirs) = (peer.place, peer.theirs());
        if is_last {
            peer.taken |= 1 << seq;
            peer.requests.push(Request { seq, call, phase: Service::Executing });
            self.execute(call);
        } else if let Some(stamp) = theirs {
            peer.requests.push(Request { seq, call, phase: Service::Arriving });
            self.send(node, place, Body::Grant { stamp, seq, of_request: true });
        }
    }

    pub(crate) fn execute(&mut self, call: u8) {
        let call = &mut self.state.calls[usize::from(call)];
        call.executed = (call.executed + 1).min(2);
        call.is_in_vain |= call.is_aborted;
    }

    /// RESEND: the server's last packet goes again, to the client's present address.
    fn on_resend(&mut self, node: usize, at: usize, seq: u8) {
        let peer = self.peer(node, at);
        let (place, theirs) = (peer.place, peer.theirs());
        let request = peer.requests.iter().find(|request| request.seq == seq).copied();
        let Some(Request { call, phase, .. }) = request else {
            return self.answer_unknown(node, at, seq);
        };
        let Some(stamp) = theirs else { return };
        match phase {
            Service::Arriving => {
                self.send(node, place, Body::Grant { stamp, seq, of_request: true })
            }
            Service::Answered => {
                let is_last = !self.state.calls[usize::from(call)].is_long;
                self.send(node, place, Body::Response { stamp, seq, part: 0, is_last, call });
            }
            Service::Executing | Service::Cancelled => {}
        }
    }

    /// A node that has moved sends the last packet of each call again, from its new address.
    pub(crate) fn probe_again(&mut self, node: usize) {
        let peers = self.state.nodes[node].peers.clone();
        for peer in peers
            .iter()
            .filter(|peer| matches!(peer.contact, Contact::Opening | Contact::Asking(_)))
        {
            let is_open =
                |it: &&Packet| matches!(it.body, Body::Open { token, .. } if token == peer.ours);
            let open = self.state.packets.iter().find(is_open).copied();
            open.into_iter().for_each(|open| self.send(node, open.to, open.body));
        }
        for number in 0..self.state.calls.len() {
            let Call { from, seq, phase, .. } = self.state.calls[number];
            let is_sent = matches!(phase, Phase::Part | Phase::Sent | Phase::Begun);
            if usize::from(from) != node || !is_sent {
                continue;
            }
            let Some((stamp, place)) = self.route(number) else { continue };
            self.send(node, place, Body::Resend { stamp, seq });
            if phase == Phase::Begun {
                self.send(node, place, Body::Grant { stamp, seq, of_request: false });
            }
        }
    }

    /// Sends the packets of a request again that were sent.
    pub(crate) fn send_again(&mut self, number: usize) {
        let Call { from, seq, phase, is_long, .. } = self.state.calls[number];
        let (node, call) = (usize::from(from), number as u8);
        let Some((stamp, place)) = self.route(number) else { return };
        let first = Body::Request { stamp, seq, part: 0, is_last: !is_long, call };
        self.send(node, place, first);
        if is_long && phase == Phase::Sent {
            self.send(node, place, Body::Request { stamp, seq, part: 1, is_last: true, call });
        }
    }

    /// life-6, life-7, loss-6: a packet about a request that is not here.
    fn answer_unknown(&mut self, node: usize, at: usize, seq: u8) {
        let takes = self.breaks(Revert::RefusalTaken);
        let forgets = self.breaks(Revert::RefusalsForgotten) || takes;
        let is_silent = self.breaks(Revert::AbandonedNotSaid);
        let is_open = self.state.nodes[node].is_open;
        let peer = self.peer(node, at);
        let (bit, place) = (1 << seq, peer.place);
        let reason = if peer.refused & bit != 0 {
            Unknown::NoSuchPort
        } else if peer.taken & bit != 0 {
            if is_silent { Unknown::Unknown } else { Unknown::Finished }
        } else if !is_open {
            peer.refused |= if forgets { 0 } else { bit };
            peer.taken |= if takes { bit } else { 0 };
            Unknown::NoSuchPort
        } else {
            Unknown::Unknown
        };
        if let Some(stamp) = peer.theirs() {
            self.send(node, place, Body::Unknown { stamp, seq, reason });
        }
    }

    fn on_ack(&mut self, node: usize, at: usize, seq: u8) {
        let forgets = self.breaks(Revert::HistoryEndsWithRequest);
        let peer = self.peer(node, at);
        let before = peer.requests.len();
        peer.requests.retain(|it| it.seq != seq || it.phase != Service::Answered);
        if forgets && peer.requests.len() < before {
            peer.taken &= !(1 << seq);
        }
    }

    /// life-8: a request that is arriving is forgotten and counts as taken; one in service goes on without a client.
    fn on_abort(&mut self, node: usize, at: usize, seq: u8) {
        let forgets = self.breaks(Revert::AbortedNotTaken);
        let peer = self.peer(node, at);
        let Some(index) = peer.requests.iter().position(|it| it.seq == seq) else { return };
        match peer.requests[index].phase {
            Service::Arriving => {
                let call = peer.requests.remove(index).call;
                peer.taken |= if forgets { 0 } else { 1 << seq };
                self.state.calls[usize::from(call)].is_aborted = true;
            }
            Service::Executing => peer.requests[index].phase = Service::Cancelled,
            Service::Cancelled => {}
            Service::Answered => drop(peer.requests.remove(index)),
        }
    }

    /// The application answers a request, or gives it up (life-7).
    pub(crate) fn finish(&mut self, node: usize, at: usize, index: usize, is_answered: bool) {
        let forgets = self.breaks(Revert::AbandonedNotTaken);
        let peer = self.peer(node, at);
        let (place, stamp) = (peer.place, peer.theirs());
        let Request { seq, call, phase } = peer.requests[index];
        if phase == Service::Cancelled || !is_answered {
            peer.requests.remove(index);
            if forgets && !is_answered {
                peer.taken &= !(1 << seq);
            }
            return;
        }
        peer.requests[index].phase = Service::Answered;
        if let Some(stamp) = stamp {
            let is_last = !self.state.calls[usize::from(call)].is_long;
            self.send(node, place, Body::Response { stamp, seq, part: 0, is_last, call });
        }
    }

    /// The server closes its port, and with it its requests.
    pub(crate) fn close(&mut self, node: usize) {
        self.state.nodes[node].is_open = false;
        for peer in &mut self.state.nodes[node].peers {
            peer.requests.clear();
        }
    }
}

/// A packet of a request.
#[derive(Clone, Copy)]
struct Part {
    seq: u8,
    part: u8,
    is_last: bool,
    call: u8,
}
