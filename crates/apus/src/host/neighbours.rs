//! Processes of this host that share memory with this one ([`apus_shm`]).
//!
//! A neighbour is met first ([`crate::host::meetings`]) and then *paired*. A look at a pair costs one load, so a polling thread
//! checks every pair with recent messages: the *active* ones. The other pairs are asleep: their processes write to a unix socket
//! after a message, and a [`Watch`] reports the readable sockets. Before the last thread of the node sleeps, the active pairs
//! fall asleep as well.
//!
//! A process that uses the engine of another one ([`crate::shared_engine`]) is a neighbour too, with a [`Role`] of its own.

use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use apus_net::{Link, OwningProcess};
use apus_proto::slab::{Handle, Slab};
use apus_proto::{Body, CallFailed, Endpoint, MessageSink, Moved, Time, Words, sooner};
use apus_shm::{Listener, Pair, PairError, PeerProcess, Watch};
use apus_wire::PathId;

use crate::host::neighbour_key::NeighbourKey;
use crate::mail::Mail;
use crate::observe::stats::MemoryCounters;
use crate::shared_engine::attached::FromEngine;
use crate::shared_engine::forwarder::FromProcess;
use crate::sync;

use crate::host::meeting::{Meeting, Meetings};
use crate::host::paired::{FromNode, Paired, Role, path};
use crate::host::places::Places;
use crate::shared_engine::attaching::{Attaching, Attachments};

#[derive(Debug)]
pub(crate) enum Neighbour {
    /// The process has not proved its address.
    Meeting(Box<Meeting>),
    /// One of the two processes attaches to the engine of the other one.
    Attaching(Box<Attaching>),
    Paired(Box<Paired>),
}

/// A node that was called, or with which memory is shared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Destination {
    /// The path to the node over UDP.
    pub(super) udp: PathId,
    /// The path through memory, if memory is shared with the node.
    pub(super) local: Option<PathId>,
    /// Time of the last attempt to meet the node.
    pub(super) tried: Option<Time>,
}

/// All processes of this host that this node knows.
#[derive(Debug)]
pub(crate) struct Neighbours {
    pub(crate) watch: Watch,
    pub(crate) process: OwningProcess,
    pub(crate) all: Slab<NeighbourKey, Neighbour>,
    pub(crate) meetings: Meetings,
    pub(crate) attachments: Attachments,
    /// Connections are not accepted until this time.
    pub(crate) accept_paused_until: Option<Time>,
    /// Pairs that are read in every turn.
    active: Vec<NeighbourKey>,
    /// Pairs with messages that are not completely in memory, or for which the neighbour was not woken.
    sending: Vec<NeighbourKey>,
    /// Messages are ready to copy; the turn ran out of budget.
    more: bool,
    /// Neighbours that have exited; the end of the turn removes them.
    pub(super) ended: Vec<NeighbourKey>,
    /// Indexed by the path over UDP.
    pub(super) destinations: Vec<Option<Destination>>,
    /// Time of the last check of the watch.
    looked: Time,
    /// Time at which the last message was received.
    last_rx: Time,
    /// Whether the active pairs are asleep as well.
    asleep: bool,
    /// Time of the next search for unused pairs that keep memory.
    pub(super) shrink_at: Option<Time>,
    /// Calls that moved to UDP, because a neighbour ended before it had their requests.
    pub(crate) moved: Vec<Moved>,
    pub(crate) counters: MemoryCounters,
}

impl Neighbours {
    /// Starts to accept other processes at the listeners. `None` if the system has no descriptor left.
    pub(crate) fn open(
        places: Places,
        listeners: Vec<Listener>,
        process: OwningProcess,
        now: Time,
    ) -> Option<Self> {
        let mut neighbours = Self::alone(places, process, now).ok()?;
        for listener in &listeners {
            neighbours.watch.add(listener.descriptor(), LISTENER).ok()?;
        }
        neighbours.meetings.listeners = listeners;
        Some(neighbours)
    }

    /// Creates the state of a process without listeners, which no other process can find.
    pub(crate) fn alone(
        places: Places,
        process: OwningProcess,
        now: Time,
    ) -> std::io::Result<Self> {
        Ok(Self {
            watch: Watch::new()?,
            process,
            all: Slab::new(),
            meetings: Meetings::new(places),
            attachments: Attachments::default(),
            accept_paused_until: None,
            active: Vec::new(),
            sending: Vec::new(),
            more: false,
            ended: Vec::new(),
            destinations: Vec::new(),
            looked: now,
            last_rx: Time::ZERO,
            asleep: false,
            shrink_at: None,
            moved: Vec::new(),
            counters: MemoryCounters::default(),
        })
    }

    /// Readable when a sleeping neighbour has a message, and when a process connects or ends.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.watch.descriptor().as_raw_fd()
    }

    /// The path through memory to the node at `udp`, if memory is shared with it.
    #[inline]
    pub(crate) fn local_path(&self, udp: PathId) -> Option<PathId> {
        match self.destinations.get(udp.index()) {
            Some(Some(destination)) if destination.udp == udp => destination.local,
            _ => None,
        }
    }

    pub(super) fn set_destination(&mut self, destination: Destination) {
        let index = destination.udp.index();
        if self.destinations.len() <= index {
            self.destinations.resize(index + 1, None);
        }
        self.destinations[index] = Some(destination);
    }

    /// The pairs with the node at `udp`.
    pub(super) fn pairs_with(&self, udp: PathId) -> impl Iterator<Item = NeighbourKey> {
        let is_with = move |key: &NeighbourKey| self.paired(*key)?.udp().filter(|&it| it == udp);
        self.all.keys().filter(move |key| is_with(key).is_some())
    }

    /// The local paths to the node at `udp`.
    #[cfg(feature = "secure")]
    pub(crate) fn local_paths(&self, udp: PathId) -> impl Iterator<Item = PathId> {
        self.pairs_with(udp).map(path)
    }

    /// The path over the network by which the node at the end of a local path has shown its address.
    pub(crate) fn udp(&self, local: PathId) -> Option<PathId> {
        self.paired(NeighbourKey::from_bits(local.name()))?.udp()
    }

    //= docs/protocol.md#seal-11
    /// Ends the pairs with the node at `udp`, whose path has ended.
    #[cfg(feature = "secure")]
    pub(crate) fn end_pairs_with(&mut self, udp: PathId) {
        let pairs: Vec<_> = self.pairs_with(udp).collect();
        self.ended.extend(pairs);
    }

    /// The address of the node at the end of a path.
    pub(crate) fn address(&self, local: PathId) -> Option<SocketAddr> {
        if let Some(attached) = &self.attachments.attached {
            return attached.address(local);
        }
        match self.paired(NeighbourKey::from_bits(local.name()))?.role {
            Role::Node { address, .. } => Some(address),
            Role::Process | Role::Engine => None,
        }
    }

    /// The calling process at the end of a path. `None` for a shared engine, which does not call.
    pub(crate) fn process(&self, local: PathId) -> Option<&PeerProcess> {
        let paired = self.paired(NeighbourKey::from_bits(local.name()))?;
        match paired.role {
            Role::Node { .. } => Some(paired.pair.process()),
            Role::Process | Role::Engine => None,
        }
    }

    pub(crate) fn paired(&self, key: NeighbourKey) -> Option<&Paired> {
        match self.all.get(key)? {
            Neighbour::Paired(paired) => Some(paired),
            Neighbour::Meeting(_) | Neighbour::Attaching(_) => None,
        }
    }

    pub(super) fn meeting_mut(&mut self, key: NeighbourKey) -> Option<&mut Meeting> {
        match self.all.get_mut(key)? {
            Neighbour::Meeting(meeting) => Some(meeting),
            Neighbour::Attaching(_) | Neighbour::Paired(_) => None,
        }
    }

    #[inline]
    pub(super) fn paired_mut(&mut self, key: NeighbourKey) -> Option<&mut Paired> {
        match self.all.get_mut(key)? {
            Neighbour::Paired(paired) => Some(paired),
            Neighbour::Meeting(_) | Neighbour::Attaching(_) => None,
        }
    }

    /// Whether the engine serves this process alone.
    #[inline]
    fn serves_alone(&self) -> bool {
        self.attachments.forwarder.is_none() && self.attachments.attached.is_none()
    }

    /// Whether traffic through memory is recent, so a turn may skip the network.
    #[inline]
    pub(crate) fn are_busy(&self, now: Time) -> bool {
        now < self.last_rx + BUSY
    }

    /// Polls briefly for the next message, if one is expected, or until `stop` returns `true`. A turn of the engine takes as long,
    /// so this delays no other work.
    #[inline]
    pub(crate) fn poll(&self, now: Time, stop: impl Fn() -> bool) {
        if !self.are_busy(now) {
            return;
        }
        for _ in 0..POLLS {
            if self.any_is_ready() || stop() {
                return;
            }
            sync::spin_loop();
        }
    }

    /// Whether neighbours have sent messages in the last microseconds.
    #[inline]
    pub(crate) fn are_active(&self) -> bool {
        !self.active.is_empty()
    }

    /// Whether active neighbours have unread messages, and the engine serves this process alone.
    #[inline]
    pub(crate) fn have_messages(&self) -> bool {
        !self.asleep && self.serves_alone() && self.any_is_ready()
    }

    #[inline]
    fn any_is_ready(&self) -> bool {
        let is_ready = |key: &NeighbourKey| match self.all.get(*key) {
            Some(Neighbour::Paired(paired)) => paired.pair.is_ready(),
            _ => false,
        };
        self.active.iter().any(is_ready)
    }

    /// Receives from the active pairs. `everywhere`: receives from sleeping pairs as well. Returns the number of messages and parts
    /// of messages.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        now: Time,
        everywhere: bool,
        endpoint: &mut Endpoint,
        link: &mut dyn Link,
        mail: &mut Mail,
    ) -> usize {
        if mem::take(&mut self.asleep) {
            self.disarm_bells();
        }
        let mut received = self.receive_active(now, endpoint, mail);
        if everywhere || now.saturating_since(self.looked) > LOOK_EVERY {
            self.looked = now;
            received += self.look(now, endpoint, link, mail);
        }
        if self.meetings.due.is_some_and(|due| due <= now) {
            self.advance_meetings(now, endpoint, link);
        }
        if self.accept_paused_until.is_some_and(|until| until <= now) {
            self.resume_accepting();
        }
        if self.shrink_at.is_some_and(|due| due <= now) {
            self.shrink(now, endpoint);
        }
        if !self.serves_alone() && self.attaching_due().is_some_and(|due| due <= now) {
            self.advance_attaching(now, endpoint);
        }
        received
    }

    /// Receives from the active pairs.
    #[inline]
    pub(crate) fn receive_active(
        &mut self,
        now: Time,
        endpoint: &mut Endpoint,
        mail: &mut Mail,
    ) -> usize {
        let mut received = 0;
        for index in 0..self.active.len() {
            let key = self.active[index];
            let Some(paired) = self.paired_mut(key) else { continue };
            if !paired.pair.is_ready() {
                continue;
            }
            paired.used = now;
            received += self.receive_from(now, key, FRAMES, endpoint, Some(mail));
        }
        if received > 0 {
            self.last_rx = now;
            self.shrink_at.get_or_insert(now + KEPT_FOR);
        }
        received
    }

    /// Receives up to `frames` frames of a neighbour. Messages of a node go to `mail` at once, unless the engine serves other
    /// processes too.
    #[inline]
    pub(crate) fn receive_from(
        &mut self,
        now: Time,
        key: NeighbourKey,
        frames: usize,
        endpoint: &mut Endpoint,
        mail: Option<&mut Mail>,
    ) -> usize {
        let mail = mail.filter(|_| self.serves_alone());
        let Some(Neighbour::Paired(paired)) = self.all.get_mut(key) else { return 0 };
        let counters = &mut self.counters;
        let (forwarder, attached) =
            (self.attachments.forwarder.as_mut(), self.attachments.attached.as_mut());
        let received = match (paired.role, forwarder, attached) {
            (Role::Node { address, .. }, ..) => {
                let (load, short_max) = (paired.pair.load() as u64, paired.pair.short_max());
                let path = path(key);
                let arrivals = endpoint.arrivals(now, path);
                let mut receiver =
                    FromNode { arrivals, path, now, load, short_max, counters, mail, address };
                paired.pair.receive(&mut receiver, frames)
            }
            (Role::Process, Some(forwarder), _) => {
                let message_max = endpoint.longest_message();
                let load = paired.pair.load() as u64;
                let mut receiver = FromProcess { forwarder, key, message_max, load, counters };
                paired.pair.receive(&mut receiver, frames)
            }
            (Role::Engine, _, Some(attached)) => {
                paired.pair.receive(&mut FromEngine { attached, endpoint, now, counters }, frames)
            }
            _ => Ok(0),
        };
        match received {
            Ok(count) if paired.charge_load(key, endpoint, self.attachments.forwarder.as_mut()) => {
                count
            }
            Ok(count) => {
                self.end(key, &TOO_MUCH);
                count
            }
            Err(error) => {
                self.end(key, &error);
                0
            }
        }
    }

    /// Handles the neighbours whose sockets are readable.
    #[cold]
    fn look(
        &mut self,
        now: Time,
        endpoint: &mut Endpoint,
        link: &mut dyn Link,
        mail: &mut Mail,
    ) -> usize {
        self.rest_unused(now);
        let mut ready = [0; READY];
        let count = self.watch.look(&mut ready).len();
        let mut received = 0;
        for &number in &ready[..count] {
            if number == LISTENER {
                self.accept(now, link);
                continue;
            }
            if number == ENGINE_LISTENER {
                self.accept_processes(now, endpoint);
                continue;
            }
            let key = NeighbourKey::from_bits(number);
            match self.all.get_mut(key) {
                Some(Neighbour::Meeting(meeting)) if meeting.expects_nothing() => self.give_up(key),
                Some(Neighbour::Meeting(_)) => self.advance_meeting(now, key, endpoint, link),
                Some(Neighbour::Attaching(_)) => self.attach(now, key, endpoint),
                Some(Neighbour::Paired(_)) => {
                    self.handle_channel(now, key);
                    received += self.receive_from(now, key, FRAMES, endpoint, Some(mail));
                }
                None => {}
            }
        }
        if received > 0 {
            self.last_rx = now;
        }
        received
    }

    /// Handles a neighbour that has written to the socket, or has exited.
    fn handle_channel(&mut self, now: Time, key: NeighbourKey) {
        let Some(paired) = self.paired_mut(key) else { return };
        match paired.pair.handle_channel() {
            Ok(true) => self.activate(now, key),
            Ok(false) if paired.pair.process().has_ended() => {
                self.end(key, &PairError::System(std::io::ErrorKind::UnexpectedEof.into()));
            }
            Ok(false) => {}
            Err(error) => self.end(key, &error),
        }
    }

    /// Sends a message to a neighbour.
    #[inline]
    pub(crate) fn send(&mut self, now: Time, key: NeighbourKey, words: Words, body: &Body) {
        let Some(Neighbour::Paired(paired)) = self.all.get_mut(key) else { return };
        self.counters.messages_sent += 1;
        self.counters.bytes_sent += body.len() as u64;
        let sent = send(&mut paired.pair, words, body);
        if !mem::replace(&mut paired.sends, true) {
            self.sending.push(key);
        }
        if !paired.active {
            self.activate(now, key);
        }
        if let Err(error) = sent {
            self.end(key, &error);
        }
    }

    /// Returns the way to a node for messages that are sent now. `None` if there is no pair with it, or if the engine works for other
    /// processes or another one for this process: their messages have an order among themselves.
    #[inline]
    pub(crate) fn sender(&mut self, now: Time, local: PathId) -> Option<NeighbourSender<'_>> {
        if !self.serves_alone() {
            return None;
        }
        let key = NeighbourKey::from_bits(local.name());
        if !self.paired(key)?.active {
            self.activate(now, key);
        }
        let Self { all, sending, ended, counters, .. } = self;
        let Some(Neighbour::Paired(paired)) = all.get_mut(key) else { return None };
        if !mem::replace(&mut paired.sends, true) {
            sending.push(key);
        }
        Some(NeighbourSender { key, pair: &mut paired.pair, ended, counters })
    }

    /// Sends the endpoint's messages to neighbours, as far as there is room.
    #[inline]
    pub(crate) fn transmit(&mut self, now: Time, endpoint: &mut Endpoint) {
        endpoint.poll_messages(now, &mut Sink { neighbours: self, now });
        if !self.serves_alone() {
            self.send_others(now);
        }
        if !self.sending.is_empty() {
            self.advance(now, endpoint);
        }
    }

    /// Sends messages other than the endpoint's that came up since [`transmit`](Self::transmit).
    #[inline]
    pub(crate) fn transmit_others(&mut self, now: Time, endpoint: &mut Endpoint) {
        if !self.serves_alone() && self.has_others() {
            self.transmit(now, endpoint);
        }
    }

    #[inline]
    fn advance(&mut self, now: Time, endpoint: &mut Endpoint) {
        self.more = false;
        self.shrink_at.get_or_insert(now + KEPT_FOR);
        let mut waits_any = false;
        let mut index = 0;
        while let Some(&key) = self.sending.get(index) {
            let Some(Neighbour::Paired(paired)) = self.all.get_mut(key) else {
                self.sending.swap_remove(index);
                continue;
            };
            let advanced = match paired.pair.is_sending() {
                true => {
                    let advanced = paired.pair.advance(COPIED);
                    paired.charge_memory(key, endpoint);
                    advanced
                }
                false => Ok(false),
            };
            paired.pair.flush();
            paired.used = now;
            let waits = paired.pair.is_sending();
            paired.sends = waits;
            let fits = paired.charge_load(key, endpoint, self.attachments.forwarder.as_mut());
            match advanced {
                Ok(_) if !fits => self.end(key, &TOO_MUCH),
                Ok(more) => self.more |= more,
                Err(error) => self.end(key, &error),
            }
            waits_any |= waits;
            if waits {
                index += 1;
            } else {
                self.sending.swap_remove(index);
            }
        }
        // The neighbours are not armed to report room. All bells are armed again, because a bell that has rung rings only once.
        if waits_any && mem::take(&mut self.asleep) {
            self.disarm_bells();
        }
    }

    /// Whether messages wait for room in a neighbour's memory.
    #[inline]
    pub(crate) fn is_sending(&self) -> bool {
        !self.sending.is_empty()
    }

    /// Time of the next timer.
    #[inline]
    pub(crate) fn due(&self, now: Time) -> Option<Time> {
        if self.more || self.have_ended() {
            return Some(now);
        }
        let own = sooner(sooner(self.meetings.due, self.accept_paused_until), self.shrink_at);
        if self.serves_alone() { own } else { sooner(own, self.others_due(now)) }
    }

    /// Makes a pair active: every turn reads it.
    pub(crate) fn activate(&mut self, now: Time, key: NeighbourKey) {
        let asleep = self.asleep;
        let Some(paired) = self.paired_mut(key) else { return };
        paired.used = now;
        if mem::replace(&mut paired.active, true) {
            return;
        }
        if !asleep {
            paired.pair.disarm_bell();
        }
        self.active.push(key);
        if self.active.len() > ACTIVE_MAX {
            let used = |key: &&NeighbourKey| self.paired(**key).map(|paired| paired.used);
            if let Some(&least) = self.active.iter().min_by_key(used) {
                self.rest(least);
            }
        }
    }

    /// Makes pairs inactive that were not used recently.
    fn rest_unused(&mut self, now: Time) {
        for index in (0..self.active.len()).rev() {
            let key = self.active[index];
            if self.paired(key).is_none_or(|paired| paired.used + ACTIVE_FOR < now) {
                self.rest(key);
            }
        }
    }

    /// Arms a neighbour's bell, unless a message has arrived already.
    fn rest(&mut self, key: NeighbourKey) {
        if let Some(paired) = self.paired_mut(key) {
            paired.pair.prepare_sleep();
            if paired.pair.is_ready() || paired.pair.is_sending() {
                return paired.pair.disarm_bell();
            }
            paired.active = false;
        }
        self.active.retain(|&active| active != key);
    }

    /// Arms the bells of all active pairs. Returns `false` if a message arrived first.
    #[inline]
    pub(crate) fn prepare_sleep(&mut self) -> bool {
        if self.asleep || self.active.is_empty() {
            return true;
        }
        for &key in &self.active {
            if let Some(Neighbour::Paired(paired)) = self.all.get_mut(key) {
                paired.pair.prepare_sleep();
            }
        }
        let mut quiet = true;
        for index in 0..self.active.len() {
            let Some(paired) = self.paired_mut(self.active[index]) else { continue };
            // The next turn detects an error again.
            let has_room =
                paired.pair.is_sending() && paired.pair.advance(1).is_ok_and(|more| more);
            paired.pair.flush();
            quiet &= !paired.pair.is_ready() && !has_room;
        }
        if quiet {
            self.asleep = true;
        } else {
            self.disarm_bells();
        }
        quiet
    }

    fn disarm_bells(&mut self) {
        for &key in &self.active {
            if let Some(Neighbour::Paired(paired)) = self.all.get_mut(key) {
                paired.pair.disarm_bell();
            }
        }
    }

    /// Whether neighbours have exited and must be [removed](Self::remove_ended).
    #[inline]
    pub(crate) fn have_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Marks a neighbour for removal at the end of the turn.
    #[cold]
    pub(crate) fn end(&mut self, key: NeighbourKey, error: &PairError) {
        note_end(key, error, &mut self.ended, &mut self.counters);
    }

    /// Receives the last messages of neighbours that have ended.
    #[cold]
    pub(crate) fn take_last(&mut self, now: Time, endpoint: &mut Endpoint, mail: &mut Mail) {
        for index in 0..self.ended.len() {
            self.receive_from(now, self.ended[index], FRAMES_MAX, endpoint, Some(mail));
        }
    }

    /// Removes the neighbours that have ended.
    #[cold]
    pub(crate) fn remove_ended(&mut self, now: Time, endpoint: &mut Endpoint, link: &mut dyn Link) {
        for key in mem::take(&mut self.ended) {
            self.remove(now, key, endpoint, link);
        }
    }

    fn remove(
        &mut self,
        now: Time,
        key: NeighbourKey,
        endpoint: &mut Endpoint,
        link: &mut dyn Link,
    ) {
        match self.all.take(key) {
            Some(Neighbour::Meeting(meeting)) => {
                self.end_meeting(key);
                if let Some(descriptor) = meeting.watched() {
                    self.watch.remove(descriptor);
                }
                self.meetings.connected.extend(meeting.known_calls());
                if let Some(udp) = meeting.udp {
                    link.release(udp);
                }
            }
            Some(Neighbour::Attaching(attaching)) => {
                self.attachments.attaching.retain(|&attaching| attaching != key);
                self.watch.remove(attaching.pending.descriptor());
            }
            Some(Neighbour::Paired(paired)) => {
                self.counters.pairs_ended += 1;
                self.active.retain(|&active| active != key);
                self.sending.retain(|&sending| sending != key);
                self.watch.remove(paired.pair.descriptor());
                if let Some(process) = paired.pair.process().descriptor() {
                    self.watch.remove(process);
                }
                match paired.role {
                    Role::Node { udp, .. } => {
                        let calls = endpoint.take_unsent(path(key), &paired.unsent_requests());
                        endpoint.remove_local(path(key), CallFailed::MayHaveExecuted);
                        endpoint.remove_rights(path(key));
                        endpoint.forget_run(udp);
                        self.leave_path(udp, path(key));
                        if !calls.is_empty() {
                            self.moved.extend(endpoint.begin_unsent(now, calls, Some(udp)));
                            let known = link.path(udp);
                            endpoint.set_path(now, udp, known.loopback, known.link_mbps);
                            endpoint.report_paths(link); // They hold the path from now on.
                        }
                        link.release(udp);
                    }
                    Role::Process => self.lose_process(key),
                    Role::Engine => self.lose_engine(now, &paired.unsent_requests(), endpoint),
                }
            }
            None => {}
        }
    }

    /// Handles the end of a pair with the node at `udp`, which may have another pair.
    fn leave_path(&mut self, udp: PathId, local: PathId) {
        if self.local_path(udp) == Some(local) {
            let local = self.pairs_with(udp).next().map(path);
            self.set_destination(Destination { udp, local, tried: None });
        }
    }

    /// Ends all pairs. Messages that were sent stay readable for their receivers.
    pub(crate) fn close(&mut self, now: Time, endpoint: &mut Endpoint, link: &mut dyn Link) {
        let all: Vec<_> = self.all.keys().collect();
        all.into_iter().for_each(|key| self.remove(now, key, endpoint, link));
    }
}

/// Sends messages to one node.
pub(crate) struct NeighbourSender<'a> {
    key: NeighbourKey,
    pair: &'a mut Pair,
    ended: &'a mut Vec<NeighbourKey>,
    counters: &'a mut MemoryCounters,
}

impl NeighbourSender<'_> {
    /// Sends a message, or queues it in the pair if there is no room. The node is woken by the next
    /// [`transmit`](Neighbours::transmit).
    #[inline]
    pub(crate) fn send(&mut self, words: Words, body: &Body) {
        self.counters.messages_sent += 1;
        self.counters.bytes_sent += body.len() as u64;
        if let Err(error) = send(self.pair, words, body) {
            note_end(self.key, &error, self.ended, self.counters);
        }
    }
}

/// Sends a message to the node of a pair, or queues it.
#[inline(always)]
fn send(pair: &mut Pair, words: Words, body: &Body) -> Result<(), PairError> {
    match body.as_parts() {
        (body, None) => pair.send(words, body),
        (first, Some(second)) => pair.send_parts(words, [first, second]),
    }
}

/// Adds a neighbour to those that are removed at the end of the turn.
#[cold]
fn note_end(
    key: NeighbourKey,
    error: &PairError,
    ended: &mut Vec<NeighbourKey>,
    counters: &mut MemoryCounters,
) {
    if ended.contains(&key) {
        return; // Its earlier messages are being taken, and one may be incomplete.
    }
    let gone = matches!(error, PairError::System(_));
    counters.pairs_broken += u64::from(!gone);
    ended.push(key);
}

/// The neighbours, as the endpoint sees them.
struct Sink<'a> {
    neighbours: &'a mut Neighbours,
    now: Time,
}

impl MessageSink for Sink<'_> {
    #[inline]
    fn send(&mut self, path: PathId, words: Words, body: &Body) {
        match self.neighbours.attachments.engine {
            None => {
                self.neighbours.send(self.now, NeighbourKey::from_bits(path.name()), words, body)
            }
            Some(engine) => self.neighbours.send_by(self.now, engine, path, words, body),
        }
    }

    fn withdraw(&mut self, path: PathId, is_it: &dyn Fn(Words) -> bool) -> bool {
        let engine = self.neighbours.attachments.engine;
        let key = engine.unwrap_or_else(|| NeighbourKey::from_bits(path.name()));
        let paired = self.neighbours.paired_mut(key);
        let withdrawn =
            paired.is_some_and(|paired| paired.pair.is_sending() && paired.pair.withdraw(is_it));
        withdrawn && engine.is_none() // The engine has the address of a request already, and is to forget it.
    }

    fn send_after(&mut self, path: PathId, words: Words, is_it: &dyn Fn(Words) -> bool) {
        let key = NeighbourKey::from_bits(path.name());
        // An engine ignores the request once its address is forgotten.
        let paired =
            self.neighbours.paired_mut(key).filter(|it| matches!(it.role, Role::Node { .. }));
        let follows = paired
            .is_some_and(|paired| paired.pair.is_sending() && paired.pair.send_after(words, is_it));
        if !follows {
            self.send(path, words, &Body::default());
        }
    }
}

/// Number of the listener for attaching processes in the watch. No [`NeighbourKey`] has this number or the next one.
pub(crate) const ENGINE_LISTENER: u64 = u64::MAX - 1;

/// Number of all listeners for nodes in the watch. A [`NeighbourKey`] never has it: it would be the last of 2^32 slots.
pub(super) const LISTENER: u64 = u64::MAX;

/// Upper bound on messages and parts of messages that a turn takes from a pair.
const FRAMES: usize = 64;

/// The same for a process that has exited: more than its memory has room for.
const FRAMES_MAX: usize = 4_096;

/// Upper bound on bytes of long messages that a turn copies for a pair. The copy takes about 25 µs.
const COPIED: usize = 256 << 10;

/// A neighbour that sends requests but never reads the responses.
const TOO_MUCH: PairError = PairError::Unexpected("more than it reads");

/// Upper bound on descriptors handled in one check of the watch.
const READY: usize = 16;

/// Upper bound on active pairs: each costs some nanoseconds in every turn.
const ACTIVE_MAX: usize = 16;

/// Time that a pair stays active after its last message.
const ACTIVE_FOR: Duration = Duration::from_millis(2);

/// Time that a pair keeps memory for long messages after its last message.
pub(super) const KEPT_FOR: Duration = Duration::from_secs(1);

/// Interval at which a polling thread checks sleeping neighbours. Each check is one system call.
const LOOK_EVERY: Duration = Duration::from_micros(20);

/// Number of checks of the active pairs in one [poll](Neighbours::poll): about 300 ns on AMD's processors, 700 on Intel's.
const POLLS: usize = 16;

/// Time after a message of a neighbour during which the next one is expected.
const BUSY: Duration = Duration::from_micros(20);
