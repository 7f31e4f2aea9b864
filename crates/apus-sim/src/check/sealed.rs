//! Sealing between the nodes and the network: packets leave as records, and records arrive as packets.

use std::time::Duration;

use apus_proto::Rights;
use apus_seal::{
    AssociationId, CLEAR_LEN, HEADER_LEN_MAX, OVERHEAD, OpenError, Role, SealLimits, VERSION_HINT,
    VERSION_SEALED,
};
use apus_wire::{DATA_HEADER_LEN, Header, PathId, Priority};

use crate::check::addresses::SentPacket;
use crate::check::compact;
use crate::check::fake_aead::FakeAead;
use crate::check::holes::Hole;
use crate::check::keys::{Keys, association_of};
use crate::check::ledger::Violation;
use crate::check::network::describe;
use crate::check::rights::DENIED;
use crate::check::sealing::{Content, FLIGHT, Sealing};
use crate::check::world::{World, WorldEvent};

/// An opened record.
struct Opening {
    id: AssociationId,
    home: Option<PathId>,
    content: Vec<u8>,
}

impl World<'_> {
    pub(super) fn sealing(&mut self) -> &mut Sealing {
        self.sealing.as_mut().expect("a sealed world")
    }

    /// Returns the path by which a node calls the node at an address.
    pub(super) fn path_to(&mut self, node: usize, address: PathId) -> PathId {
        match &mut self.sealing {
            Some(sealing) => {
                let keys = &mut sealing.nodes[node];
                let index = keys.resolve(address);
                keys.paths[index].path
            }
            None => address,
        }
    }

    /// Returns the node with the name of a sealed path.
    pub(super) fn peer_of(&self, node: usize, path: PathId) -> Option<usize> {
        let sealing = self.sealing.as_ref()?;
        sealing.nodes[node].paths.get(path.index())?.peer.map(|peer| peer.node)
    }

    /// Seals the packets that a node sends, and gives them to the network.
    pub(super) fn carry_sealed(&mut self) -> Result<(), Violation> {
        for packet in std::mem::take(&mut self.outbox) {
            self.carry_record(&packet)?;
        }
        Ok(())
    }

    /// Seals a packet. A path without keys drops it and asks for a handshake.
    fn carry_record(&mut self, packet: &SentPacket) -> Result<(), Violation> {
        let &SentPacket { node, path, level, header_len, ref bytes } = packet;
        let place = &mut self.sealing().nodes[node].paths[path.index()];
        let (keys, address) = (place.keys, place.address);
        let peer = place.peer.map(|peer| peer.node);
        let (Some(id), Some(peer)) = (keys, peer) else {
            if !std::mem::replace(&mut place.is_wanted, true) {
                self.tend_soon(node);
            }
            if let Some(peer) = peer {
                self.work.missed(node, peer, bytes);
            }
            return Ok(());
        };
        self.tally.packets += 1;
        let name = self.work.sent(self.now, node, peer, bytes)?;
        let content = if header_len < bytes.len() && header_len <= HEADER_LEN_MAX {
            let (header, payload) = bytes.split_at(header_len);
            Content::Parts(payload, header)
        } else {
            Content::Whole(bytes)
        };
        #[cfg(feature = "holes")]
        if self.has(Hole::NumberKept) && is_sent_again(bytes) {
            let header_len = if let Content::Parts(_, header) = content { header.len() } else { 0 };
            self.sealing().nodes[node].table.step_back(id, level, header_len);
        }
        let Some(datagram) = self.seal(node, id, level, &content) else {
            self.work.disturbed(&name);
            return Ok(());
        };
        let clear = *datagram.first_chunk().expect("a record has clear bytes");
        self.note(|| describe(node, peer, bytes));
        if FakeAead::has_reused_nonce() {
            return Err(Violation::NonceReused { node });
        }
        self.sealing().records.seal(clear, (node, peer), bytes, Some(name))?;
        let kind = bytes.get(11).copied();
        if self.give(node, address, datagram, kind) {
            self.work.disturbed(&name);
        }
        Ok(())
    }

    /// Returns a record; `None` if the association has ended.
    pub(super) fn seal(
        &mut self,
        node: usize,
        id: AssociationId,
        level: Priority,
        content: &Content<'_>,
    ) -> Option<Vec<u8>> {
        let now = self.now;
        let table = &mut self.sealing().nodes[node].table;
        let result = match *content {
            Content::Parts(payload, header) => {
                let mut datagram = vec![0; OVERHEAD + payload.len() + header.len()];
                let result = table.seal_parts(now, id, level, payload, header, &mut datagram);
                result.map(|()| datagram)
            }
            Content::Whole(bytes) => {
                let mut datagram = vec![0; OVERHEAD + bytes.len()];
                datagram[CLEAR_LEN..][..bytes.len()].copy_from_slice(bytes);
                table.seal_in_place(now, id, level, &mut datagram).map(|()| datagram)
            }
        };
        if result.is_err() {
            self.note(|| format!("node {node}: the keys of {id:?} have ended"));
        }
        self.tend_soon(node);
        result.ok()
    }

    /// Gives a datagram to the network. `kind` is the type of its packet. Returns whether a fault affected it.
    pub(super) fn give(
        &mut self,
        node: usize,
        to: PathId,
        datagram: Vec<u8>,
        kind: Option<u8>,
    ) -> bool {
        let from = self.addresses.of[node];
        if self.is_watched() {
            let (rng, sealing) = (&mut self.rng, self.sealing.as_mut().expect("a sealed world"));
            sealing.seen.note(rng, from, to, &datagram);
        }
        match self.addresses.owner(to) {
            Some(owner) => self.cross(node, owner, to, datagram, kind),
            None => {
                // HELLO is answered because the node at its address has a token, which the simulation of handshakes leaves out.
                if datagram.first_chunk() != Some(&FLIGHT) {
                    self.nodes[node].to_attacker += datagram.len() as u64;
                }
                true
            }
        }
    }

    /// Delivers a datagram to a node, which may be stopped or paused.
    pub(super) fn arrive_sealed(
        &mut self,
        node: usize,
        from: PathId,
        datagram: Vec<u8>,
        is_there: bool,
    ) -> Result<(), Violation> {
        if self.addresses.owner(from).is_none() {
            self.nodes[node].from_attacker += datagram.len() as u64;
        }
        if is_there {
            self.receive_sealed(node, from, datagram)?;
            self.tend_soon(node);
            return self.turn(node);
        }
        self.disturb(&datagram);
        let place = &mut self.nodes[node];
        if place.up && place.queue.len() < place.queue_max {
            place.queue.push((from, datagram));
        }
        Ok(())
    }

    /// Delivers a datagram to a running node, and then the records that its keys make readable.
    pub(super) fn receive_sealed(
        &mut self,
        node: usize,
        from: PathId,
        datagram: Vec<u8>,
    ) -> Result<(), Violation> {
        self.receive_one(node, from, datagram)?;
        while let Some((node, from, datagram)) = self.sealing().kept.pop() {
            self.receive_one(node, from, datagram)?;
        }
        Ok(())
    }

    fn receive_one(
        &mut self,
        node: usize,
        from: PathId,
        datagram: Vec<u8>,
    ) -> Result<(), Violation> {
        match datagram.first_chunk() {
            Some(&FLIGHT) => self.on_flight(node, from, None, &datagram),
            Some(&[0, 0, VERSION_HINT, ..]) => self.on_hint(node, from, &datagram),
            Some(&[0, 0, VERSION_SEALED, ..]) => self.on_record(node, from, datagram),
            _ => Ok(()), // A plain packet.
        }
    }

    fn on_record(
        &mut self,
        node: usize,
        from: PathId,
        mut datagram: Vec<u8>,
    ) -> Result<(), Violation> {
        let clear = *datagram.first_chunk().unwrap_or(&[0; CLEAR_LEN]);
        let now = self.now;
        let is_early = self.has(Hole::LengthBeforeTag);
        let keys = &mut self.sealing().nodes[node];
        let opening = match open(keys, now, from, &mut datagram, is_early) {
            Ok(opening) => opening,
            Err(error) => return self.on_unopened(node, from, &datagram, error),
        };
        let Opening { id, home, content } = opening;
        let keys = &mut self.sealing().nodes[node];
        let home_path = keys.table.path(id).expect("it has opened a record");
        let name = keys.paths[home_path.index()].peer.expect("a path with keys has a name");
        let index = match home {
            Some(path) => path.index(),
            None => keys.foreign(id, from, name),
        };
        let peer = name.node;
        let path = keys.paths[index].path;
        self.end_if_confirmed(node, id);
        self.sealing().records.open(clear, (node, peer), &content, home.is_some())?;
        if home.is_none() {
            self.note(|| format!("node {node} opens a record of node {peer} from elsewhere"));
            self.disturb(&clear);
        }
        if content.first_chunk() == Some(&FLIGHT) {
            return self.on_flight(node, from, Some(id), &content);
        }
        self.work.arrived(now, peer, node, &content);
        if home.is_some() && !asks_for_token(&content) {
            self.excuses.note_record(now, node, peer);
        }
        let local = self.local(node);
        let endpoint = &mut self.nodes[node].endpoint;
        let before = endpoint.counters().dropped_elsewhere;
        compact::pass(endpoint, local, path, &content);
        //= docs/protocol.md#contact-7
        // An attacker has moved the peer, and its own packets are lost until it proves its address.
        if endpoint.counters().dropped_elsewhere > before {
            self.disturb(&clear);
        }
        Ok(())
    }

    fn on_unopened(
        &mut self,
        node: usize,
        from: PathId,
        datagram: &[u8],
        error: OpenError,
    ) -> Result<(), Violation> {
        self.note(|| format!("node {node} does not open {} bytes: {error}", datagram.len()));
        self.disturb(datagram);
        let sealing = self.sealing();
        // An idle association forgets which numbers below the highest one have come (seal-8).
        let remembers = sealing.plan.limits.key_time == SealLimits::default().key_time;
        if error == OpenError::Replayed
            && remembers
            && sealing.nodes[node].is_home(from, datagram)
            && let Some(peer) = sealing.records.unopened(node, datagram)
        {
            return Err(Violation::RefusedUnopened { node, peer });
        }
        if let Some(hint) = error.hint() {
            self.give(node, from, hint.emit().to_vec(), None);
        }
        Ok(())
    }

    /// Notes that the RPC of a datagram may need more packets.
    pub(super) fn disturb(&mut self, datagram: &[u8]) {
        if let Some(name) = self.sealing().records.name(datagram) {
            self.work.disturbed(&name);
        }
    }

    //= docs/protocol.md#seal-9
    fn on_hint(&mut self, node: usize, from: PathId, datagram: &[u8]) -> Result<(), Violation> {
        let now = self.now;
        let keys = &mut self.sealing().nodes[node];
        let Some(index) = keys.listed(from) else { return Ok(()) };
        let place = &keys.paths[index];
        let Some((id, peer)) = place.keys.zip(place.peer) else { return Ok(()) };
        let has_keys = keys.table.path(id).is_some();
        let result = keys.table.handle_hint(now, id, datagram);
        if has_keys && keys.table.path(id).is_none() {
            return Err(Violation::KeysLost { node, peer: peer.node });
        }
        if result.is_ok() {
            keys.doubt(index);
            self.tend_soon(node);
        }
        self.note(|| format!("node {node} has a hint: {result:?}"));
        Ok(())
    }

    /// Looks at the timers of a node's sealed side before anything else happens.
    pub(super) fn tend_soon(&mut self, node: usize) {
        let quiet_from = self.scenario.quiet_from;
        let now = self.now;
        let keys = &mut self.sealing().nodes[node];
        let Some(due) = keys.due(quiet_from) else { return };
        let at = due.max(now);
        if keys.tend_at.is_none_or(|earlier| at < earlier) {
            keys.tend_at = Some(at);
            let incarnation = self.nodes[node].incarnation;
            self.schedule(at, WorldEvent::Tend { node, incarnation });
        }
    }

    /// Ends keys whose time is over, and does the work of handshakes that is due.
    pub(super) fn tend(&mut self, node: usize) -> Result<(), Violation> {
        let now = self.now;
        let keys = &mut self.sealing().nodes[node];
        keys.tend_at = None;
        keys.table.handle_timeout(now);
        let mut ended = Vec::new();
        while let Some(end) = keys.table.poll_ended() {
            keys.forget(end.id);
            ended.push(end);
        }
        keys.server.expire(now);
        for end in ended {
            self.note(|| format!("node {node}: {:?} ended: {:?}", end.id, end.reason));
        }
        self.remove_failed(node);
        self.tend_attempts(node);
        self.turn(node)?;
        self.tend_soon(node);
        Ok(())
    }

    /// The time of public-key work: at least a microsecond, so that time advances.
    pub(super) fn work_time(&mut self) -> Duration {
        let bound = self.sealing().plan.work_us;
        Duration::from_micros(u64::from(1 + crate::chance::below(&mut self.rng, bound)))
    }
}

/// Opens a record. `is_early` is a hole: the bytes of a message count before the tag is tested.
fn open(
    keys: &mut Keys,
    now: Duration,
    from: PathId,
    datagram: &mut [u8],
    is_early: bool,
) -> Result<Opening, OpenError> {
    let id = association_of(datagram);
    let admitted = keys.table.admit(from, datagram)?;
    let home = admitted.path();
    let opened = if admitted.header_len() == 0 {
        admitted.open_in_place(now)?
    } else {
        let mut room = vec![0; admitted.text_len() + 8];
        let opened = match admitted.open_into(now, &mut room) {
            Err(OpenError::Forged) if is_early && home.is_some() => {
                let id = id.expect("the datagram was admitted");
                return Ok(Opening { id, home, content: room });
            }
            opened => opened?,
        };
        let (payload, header) = opened.parts();
        debug_assert!(header.len() >= DATA_HEADER_LEN);
        return Ok(Opening { id: opened.id, home, content: [header, payload].concat() });
    };
    Ok(Opening { id: opened.id, home, content: opened.text.to_vec() })
}

/// Whether a packet asks for a token, or proves one (contact-1): the core answers it without state.
fn asks_for_token(packet: &[u8]) -> bool {
    use apus_wire::PacketType::{Confirm, Open};
    Header::parse(packet).is_ok_and(|(kind, _)| matches!(kind, Open | Confirm))
}

/// Whether a packet is DATA that is sent again.
#[cfg(feature = "holes")]
fn is_sent_again(packet: &[u8]) -> bool {
    use apus_wire::Packet;
    matches!(Packet::parse(packet), Ok(Packet::Data { data, .. }) if data.retransmit)
}

impl World<'_> {
    /// Returns whether the rule of a service names a node.
    pub(super) fn is_allowed(&self, node: usize, from: usize) -> bool {
        let plan = self.sealing.as_ref().map(|sealing| &sealing.plan);
        plan.is_none_or(|plan| plan.denied != Some((node, from)))
    }

    /// Reports the rights of the peer of a path to the core of a node. `role` is that of the node in the handshake.
    pub(super) fn set_rights(&mut self, node: usize, index: usize, role: Option<Role>) {
        let place = &self.sealing().nodes[node].paths[index];
        let (path, peer) = (place.path, place.peer);
        let is_open = role == Some(Role::Server) && self.has(Hole::RightsOfAll);
        let is_allowed = peer.is_some_and(|peer| self.is_allowed(node, peer.node));
        let rights = if is_allowed || is_open { Rights::ALL } else { DENIED };
        self.nodes[node].endpoint.set_rights(path, rights);
    }
}
