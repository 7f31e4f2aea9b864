//! Meetings, after which two nodes of a host share memory: rule local-7 of docs/protocol.md.
//!
//! | step | the node that connects | the node that listens |
//! |---|---|---|
//! | 1 | connects to the unix socket by the other's address, sends a nonce | accepts, sends a nonce |
//! | 2 | returns the nonce over UDP (MEET), until it is answered | knows now which node has connected |
//! | 3 | knows now which node has accepted | returns the other's nonce over UDP, and offers memory |
//! | 4 | offers memory | |
//! | 5 | has both halves | has both halves |

use std::io;
use std::time::Duration;

use apus_net::Link;
use apus_proto::slab::Handle;
use apus_proto::{Endpoint, Time, sooner};
use apus_shm::{Listener, Nonce, Pair, PendingPair, Trust, closer};
use apus_wire::{Meet, PathId};

use super::meeting::{Meeting, Stage, WaitingConnect};
use super::neighbours::{Destination, ENGINE_LISTENER, LISTENER, Neighbour, Neighbours};
use super::paired::{Paired, Role, path};
use super::shares::meetings_share;
use crate::host::neighbour_key::NeighbourKey;
use crate::mail::CallKey;

impl Neighbours {
    /// The path through memory to the node at `udp`, if memory is shared with it. If not, looks now and then whether that node is a
    /// process of this host.
    #[inline]
    pub(crate) fn local_path_to(
        &mut self,
        now: Time,
        udp: PathId,
        link: &mut dyn Link,
    ) -> Option<PathId> {
        let local = self.local_path(udp);
        if local.is_none() && !self.has_tried(now, udp) {
            self.meet(now, udp, link);
        }
        local
    }

    /// Whether this node has recently tried to meet the node at `udp`.
    fn has_tried(&self, now: Time, udp: PathId) -> bool {
        let known = self.destinations.get(udp.index()).copied().flatten();
        let tried = known.filter(|known| known.udp == udp).and_then(|known| known.tried);
        tried.is_some_and(|tried| now < tried + TRY_EVERY)
    }

    #[cold]
    fn meet(&mut self, now: Time, udp: PathId, link: &mut dyn Link) {
        self.set_destination(Destination { udp, local: None, tried: Some(now) });
        let full =
            self.meetings.under_way.len() >= meetings_max() || closer::waiting() > CLOSING_MAX;
        if full || udp.is_native() || self.meeting_with(udp).is_some() {
            return;
        }
        let Some(address) = link.address(udp) else { return };
        for place in self.meetings.places.of(address, link.path(udp).loopback) {
            if let Ok(meeting) = apus_shm::Meeting::connect(&place, nonce()) {
                link.hold(udp);
                return self.begin(now, meeting, Some(udp), link);
            }
        }
    }

    /// The meeting with the node at `udp`.
    fn meeting_with(&mut self, udp: PathId) -> Option<&mut Meeting> {
        let is_with = |key: &NeighbourKey| match self.all.get(*key) {
            Some(Neighbour::Meeting(meeting)) => meeting.udp == Some(udp),
            _ => false,
        };
        let key = self.meetings.under_way.iter().copied().find(is_with)?;
        self.meeting_mut(key)
    }

    /// Accepts connections of other processes.
    pub(super) fn accept(&mut self, now: Time, link: &mut dyn Link) {
        for _ in 0..ACCEPTED {
            if closer::waiting() > CLOSING_MAX {
                return self.pause_accepting(now);
            }
            let Some(accepted) = self.accept_one() else { return };
            let meeting = match accepted {
                Ok(meeting) => meeting,
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => continue, // It has gone.
                Err(_) => return self.pause_accepting(now), // No descriptor is left.
            };
            if self.meetings.under_way.len() >= meetings_max() {
                let oldest = self.meetings.under_way[0];
                self.give_up(oldest);
            }
            self.begin(now, meeting, None, link);
        }
    }

    /// Pauses accepting, because listeners would stay readable.
    fn pause_accepting(&mut self, now: Time) {
        let watched = self.meetings.listeners.iter().map(Listener::descriptor);
        watched.for_each(|descriptor| self.watch.remove(descriptor));
        self.accept_paused_until = Some(now + ACCEPT_PAUSE);
    }

    /// A connection, if one waits at any listener.
    fn accept_one(&self) -> Option<io::Result<apus_shm::Meeting>> {
        let waits = |accepted: &io::Result<apus_shm::Meeting>| !matches!(accepted, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        self.meetings.listeners.iter().map(|listener| listener.accept(nonce())).find(waits)
    }

    /// Resumes accepting, in case descriptors are available again.
    #[cold]
    pub(super) fn resume_accepting(&mut self) {
        self.accept_paused_until = None;
        let listeners = self.meetings.listeners.iter().map(|listener| (listener, LISTENER));
        for (listener, number) in listeners
            .chain(self.attachments.listener.iter().map(|listener| (listener, ENGINE_LISTENER)))
        {
            let _ = self.watch.add(listener.descriptor(), number); // It was watched before, or still is.
        }
    }

    fn begin(
        &mut self,
        now: Time,
        meeting: apus_shm::Meeting,
        udp: Option<PathId>,
        link: &mut dyn Link,
    ) {
        let (ours, place) = (meeting.nonce(), meeting.place());
        let key = self.all.insert(Neighbour::Meeting(Box::new(Meeting {
            stage: Stage::Greeting(meeting),
            ours,
            theirs: None,
            place,
            udp,
            is_client: udp.is_some(),
            is_watched: true,
            placed: None,
            nonce_returned_at: None,
            until: now + MEETING_TIMEOUT,
            waiting: Vec::new(),
        })));
        self.meetings.under_way.push(key);
        self.meetings.due = Some(now + AGAIN);
        let Some(Neighbour::Meeting(meeting)) = self.all.get(key) else { return };
        let watched = meeting.watched().map(|descriptor| self.watch.add(descriptor, key.to_bits()));
        if !matches!(watched, Some(Ok(()))) {
            // No memory is left in the kernel.
            self.all.remove(key);
            self.meetings.under_way.pop();
            udp.into_iter().for_each(|udp| link.release(udp));
        }
    }

    pub(super) fn end_meeting(&mut self, key: NeighbourKey) {
        self.meetings.under_way.retain(|&meeting| meeting != key);
        if self.meetings.under_way.is_empty() {
            self.meetings.due = None;
        }
    }

    pub(super) fn give_up(&mut self, key: NeighbourKey) {
        if self.meetings.under_way.contains(&key) {
            self.counters.meetings_failed += 1;
            self.end_meeting(key);
            self.ended.push(key);
        }
    }

    /// Advances all meetings, and gives up those that take too long.
    #[cold]
    pub(super) fn advance_meetings(
        &mut self,
        now: Time,
        endpoint: &mut Endpoint,
        link: &mut dyn Link,
    ) {
        self.meetings.due = (!self.meetings.under_way.is_empty()).then_some(now + AGAIN);
        for key in self.meetings.under_way.clone() {
            self.end_late_waits(now, key);
            match self.all.get(key) {
                Some(Neighbour::Meeting(meeting)) if meeting.until <= now => self.give_up(key),
                _ => self.advance_meeting(now, key, endpoint, link),
            }
        }
    }

    /// Reads from a process that is being met, and returns its nonce over UDP.
    pub(super) fn advance_meeting(
        &mut self,
        now: Time,
        key: NeighbourKey,
        endpoint: &mut Endpoint,
        link: &mut dyn Link,
    ) {
        let Some(Neighbour::Meeting(meeting)) = self.all.get_mut(key) else { return };
        let Ok(theirs) = meeting.read_theirs() else { return self.give_up(key) };
        match std::mem::replace(&mut meeting.stage, Stage::Over) {
            Stage::Greeting(greeting) => {
                if meeting.is_client && meeting.is_watched && theirs.is_some() {
                    // The offer may come before MEET, and anything from a stranger.
                    self.watch.remove(greeting.descriptor());
                    meeting.is_watched = false;
                }
                meeting.stage = Stage::Greeting(greeting);
                let begins = meeting.is_client && meeting.nonce_returned_at.is_none();
                if begins && theirs.is_some() && !self.place(now, key, endpoint) {
                    return self.give_up(key);
                }
                let Some(meeting) = self.meeting_mut(key) else { return };
                let due = meeting.nonce_returned_at.is_none_or(|at| at + AGAIN <= now);
                if let (Some(nonce), Some(udp), true) =
                    (theirs, meeting.udp, meeting.is_client && due)
                    && endpoint.send_meet(udp, Meet { nonce, place: meeting.place })
                {
                    meeting.nonce_returned_at = Some(now);
                    meeting.allow_descriptors(); // The offer may come before MEET.
                }
            }
            Stage::Offered(pending) => match pending.complete() {
                Ok(Ok(pair)) => self.pair(now, key, pair, endpoint, link),
                Ok(Err(pending)) => meeting.stage = Stage::Offered(pending),
                Err(_) => self.give_up(key),
            },
            Stage::Over => {}
        }
    }

    /// Handles arrived packets: nonces that nodes have returned, or the first contact for which a meeting waits.
    #[inline]
    pub(crate) fn packets_arrived(
        &mut self,
        now: Time,
        endpoint: &mut Endpoint,
        link: &mut dyn Link,
    ) {
        while let Some((from, meet)) = endpoint.poll_meet() {
            self.handle_meet(now, from, meet, endpoint, link);
        }
        // A first contact may be complete. Meetings that strangers began are not checked for every packet.
        let waits = |key: &NeighbourKey| match self.all.get(*key) {
            Some(Neighbour::Meeting(meeting)) => {
                meeting.is_client && meeting.nonce_returned_at.is_none()
            }
            _ => false,
        };
        let waiting: Vec<_> = self.meetings.under_way.iter().copied().filter(waits).collect();
        waiting.into_iter().for_each(|key| self.advance_meeting(now, key, endpoint, link));
    }

    #[cold]
    fn handle_meet(
        &mut self,
        now: Time,
        from: PathId,
        meet: Meet,
        endpoint: &mut Endpoint,
        link: &mut dyn Link,
    ) {
        let is_its = |key: &NeighbourKey| match self.all.get(*key) {
            Some(Neighbour::Meeting(meeting)) => meeting.ours == meet.nonce,
            _ => false,
        };
        let Some(key) = self.meetings.under_way.iter().copied().find(is_its) else { return };
        let pairs = self.pairs_with(from).count();
        let Some(meeting) = self.meeting_mut(key) else { return };
        let Ok(theirs) = meeting.read_theirs() else { return self.give_up(key) };
        //= docs/protocol.md#local-7
        if meet.place != meeting.place || meeting.udp.is_some_and(|udp| udp != from) {
            return self.give_up(key);
        }
        if !meeting.is_client {
            let Some(nonce) = theirs else { return };
            let is_first = meeting.udp.is_none();
            if is_first && (pairs >= PAIRS_MAX || !self.place(now, key, endpoint)) {
                return self.give_up(key);
            }
            let Some(meeting) = self.meeting_mut(key) else { return };
            if meeting.udp.replace(from).is_none() {
                link.hold(from);
            }
            meeting.allow_descriptors();
            endpoint.send_meet(from, Meet { nonce, place: meet.place });
        }
        self.offer_memory(key);
    }

    /// Offers memory to a process that has shown its address. Does nothing if that was done before.
    fn offer_memory(&mut self, key: NeighbourKey) {
        let process = self.process;
        let Some(Neighbour::Meeting(meeting)) = self.all.get_mut(key) else { return };
        let greeting = match std::mem::replace(&mut meeting.stage, Stage::Over) {
            Stage::Greeting(greeting) => greeting,
            stage => return meeting.stage = stage,
        };
        let is_current = move || process.is_current();
        let Ok(pending) = PendingPair::send(greeting.into_socket(), Trust::InPlace, is_current)
        else {
            return self.give_up(key);
        };
        // The socket of a client is not in the watch since its peer has greeted.
        meeting.is_watched =
            meeting.is_watched || self.watch.add(pending.descriptor(), key.to_bits()).is_ok();
        let is_watched = meeting.is_watched;
        meeting.stage = Stage::Offered(pending);
        if !is_watched {
            self.give_up(key);
        }
    }

    /// Registers a node with which memory is now shared.
    fn pair(
        &mut self,
        now: Time,
        key: NeighbourKey,
        pair: Pair,
        endpoint: &mut Endpoint,
        link: &mut dyn Link,
    ) {
        let Some(Neighbour::Meeting(meeting)) = self.all.get(key) else { return };
        let found = meeting.udp.and_then(|udp| Some((udp, link.address(udp)?)));
        debug_assert!(found.is_some(), "the path is held since the peer proved its identity");
        let Some((udp, address)) = found else { return self.give_up(key) };
        self.meetings.connected.extend(meeting.known_calls());
        self.end_meeting(key);
        if let Some(process) = pair.process().descriptor() {
            // Without the pidfd, the end of the socket shows the end of the process.
            let _ = self.watch.add(process, key.to_bits());
        }
        let role = Role::Node { address, udp };
        let paired =
            Paired { pair, role, used: now, active: false, sends: false, stopped: None, load: 0 };
        if let Some(neighbour) = self.all.get_mut(key) {
            *neighbour = Neighbour::Paired(Box::new(paired));
        }
        self.counters.pairs_met += 1;
        endpoint.add_local(now, path(key));
        //= docs/protocol.md#seal-6
        endpoint.set_rights(path(key), endpoint.rights(udp));
        if self.local_path(udp).is_none() {
            let local = Some(path(key));
            self.set_destination(Destination { udp, local, tried: None });
        }
        self.activate(now, key);
    }

    /// Makes a call that connects to the node at `udp` wait until the meeting with that node has ended, or until its deadline.
    pub(crate) fn wait_for_meeting(&mut self, udp: PathId, call: CallKey, deadline: Option<Time>) {
        if let Some(meeting) = self.meeting_with(udp) {
            meeting.waiting.push(WaitingConnect { call, deadline, is_known: false });
            self.meetings.due = sooner(self.meetings.due, deadline);
        }
    }

    /// Ends the waits whose deadline has passed. Those whose peer is not known are also calls of the core, which ends them.
    fn end_late_waits(&mut self, now: Time, key: NeighbourKey) {
        let Some(Neighbour::Meeting(meeting)) = self.all.get_mut(key) else { return };
        let is_late =
            |waiting: &mut WaitingConnect| waiting.deadline.is_some_and(|deadline| deadline <= now);
        for late in meeting.waiting.extract_if(.., is_late).filter(|late| late.is_known) {
            self.meetings.connected.push(late.call);
        }
        let next = meeting.waiting.iter().filter_map(|waiting| waiting.deadline).min();
        self.meetings.due = sooner(self.meetings.due, next);
    }

    /// Notes that the peer of such a call is known. Returns `true` if the call still waits for a meeting.
    pub(crate) fn waits_for_meeting(&mut self, call: CallKey) -> bool {
        for index in 0..self.meetings.under_way.len() {
            if let Some(meeting) = self.meeting_mut(self.meetings.under_way[index])
                && let Some(waiting) = meeting.waiting.iter_mut().find(|it| it.call == call)
            {
                waiting.is_known = true;
                return true;
            }
        }
        false
    }
}

/// A random number, so that only a process that has read it can return it.
fn nonce() -> Nonce {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the kernel has random numbers once it has started");
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
    [word(0), word(8)]
}

/// Interval between attempts to meet a node that shares no memory.
const TRY_EVERY: Duration = Duration::from_millis(100);

/// Upper bound on pairs with one node: one that each of the two nodes has begun.
const PAIRS_MAX: usize = 2;

/// Time for which a node without descriptors accepts no connections.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Descriptors that wait to be closed ([`closer`]) while this process meets others. Each of those may leave one that cannot be
/// closed.
pub(crate) const CLOSING_MAX: usize = 64;

/// Upper bound on open meetings.
fn meetings_max() -> usize {
    MEETINGS_MAX.min(meetings_share())
}

/// Upper bound on open meetings of a process with many descriptors; another connecting process replaces the oldest.
const MEETINGS_MAX: usize = 32;

/// Upper bound on connections accepted in a turn.
const ACCEPTED: usize = 4;

/// Interval at which a nonce is returned again until the peer answers.
const AGAIN: Duration = Duration::from_millis(5);

/// Time after which a meeting without an answer is given up.
const MEETING_TIMEOUT: Duration = Duration::from_millis(500);
