//! Attaches processes to a shared engine, and this process to the engine of another one.
//!
//! The process connects to a socket that only entitled processes can reach, so neither side has to prove an address. Both offer
//! memory, and the engine welcomes the process.

use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

use apus_net::OwningProcess;
use apus_proto::slab::Handle;
use apus_proto::{Body, Endpoint, Time, Words, sooner};
use apus_shm::closer::{self, close_elsewhere};
use apus_shm::{Listener, Pair, PairError, PeerProcess, PendingPair, Place, Trust, connect_to};
use apus_wire::PathId;

use crate::host::meetings::{ACCEPT_PAUSE, CLOSING_MAX};
use crate::host::neighbour_key::NeighbourKey;
use crate::host::neighbours::{ENGINE_LISTENER, Neighbour, Neighbours};
use crate::host::paired::{Paired, Role};
use crate::host::places::Places;
use crate::shared_engine::attached::{ATTACH_TIMEOUT, Attached, Attachment};
use crate::shared_engine::attaching::Attaching;
use crate::shared_engine::forwarder::{Forwarder, Limits};

impl Neighbours {
    /// Uses the engine that listens at `path`.
    ///
    /// # Errors
    ///
    /// No descriptor is left.
    pub(crate) fn of_engine(path: &Path, process: OwningProcess, now: Time) -> io::Result<Self> {
        let nowhere = Places::new(([0, 0, 0, 0], 0).into(), None, Vec::new);
        let mut neighbours = Self::alone(nowhere, process, now)?;
        neighbours.attachments.attached = Some(Box::new(Attached::new(path, now)));
        Ok(neighbours)
    }

    /// Lets other processes use the engine.
    ///
    /// # Errors
    ///
    /// The kernel has no memory left.
    pub(crate) fn serve(&mut self, listener: Listener, limits: Limits) -> io::Result<()> {
        self.watch.add(listener.descriptor(), ENGINE_LISTENER)?;
        self.attachments.listener = Some(listener);
        self.attachments.forwarder = Some(Box::new(Forwarder::new(limits)));
        Ok(())
    }

    /// Accepts the processes that have connected.
    #[cold]
    pub(crate) fn accept_processes(&mut self, now: Time, endpoint: &mut Endpoint) {
        for _ in 0..ACCEPTED {
            let (Some(listener), Some(forwarder)) =
                (&self.attachments.listener, &mut self.attachments.forwarder)
            else {
                return;
            };
            if closer::waiting() > CLOSING_MAX {
                // Each stranger may leave one more descriptor that cannot be closed.
                self.watch.remove(listener.descriptor());
                self.accept_paused_until = Some(now + ACCEPT_PAUSE);
                return;
            }
            let socket = match listener.accept_socket() {
                Ok(socket) => socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    // No descriptor is left, and the listener stays readable.
                    self.watch.remove(listener.descriptor());
                    self.accept_paused_until = Some(now + ACCEPT_PAUSE);
                    return;
                }
            };
            let user = PeerProcess::of(socket.as_fd()).map(|process| process.uid());
            let is_full = forwarder.processes.len() >= forwarder.limits.processes_max;
            if is_full || !user.is_ok_and(|user| forwarder.limits.admit(user)) {
                forwarder.refused[usize::from(is_full)] += 1;
                close_elsewhere(socket); // The process sees the end of the socket.
                continue;
            }
            if self.attachments.attaching.len() >= ATTACHING_MAX {
                let oldest = self.attachments.attaching[0];
                self.fail_attaching(now, oldest, io::ErrorKind::TimedOut.into(), endpoint);
            }
            if let Ok(pending) = PendingPair::send(socket, Trust::InPlace, self.is_current()) {
                let _ = self.begin_attaching(now + OFFER_TIMEOUT, pending, Role::Process);
            }
        }
    }

    fn is_current(&self) -> impl Fn() -> bool + Send + Sync + 'static {
        let process = self.process;
        move || process.is_current()
    }

    fn begin_attaching(&mut self, until: Time, pending: PendingPair, role: Role) -> io::Result<()> {
        let attaching = Neighbour::Attaching(Box::new(Attaching { pending, until, role }));
        let key = self.all.insert(attaching);
        let Some(Neighbour::Attaching(attaching)) = self.all.get(key) else { return Ok(()) };
        let watched = self.watch.add(attaching.pending.descriptor(), key.to_bits());
        match &watched {
            Ok(()) => self.attachments.attaching.push(key),
            Err(_) => drop(self.all.take(key)),
        }
        watched
    }

    /// Time of the next timer about attaching.
    #[inline]
    pub(crate) fn attaching_due(&self) -> Option<Time> {
        let retry = self.attachments.attached.as_ref().and_then(|attached| attached.retry_at);
        let Some(&oldest) = self.attachments.attaching.first() else { return retry };
        match self.all.get(oldest) {
            Some(Neighbour::Attaching(attaching)) => {
                Some(retry.map_or(attaching.until, |retry| retry.min(attaching.until)))
            }
            _ => retry,
        }
    }

    /// Gives up attachments that take too long, and looks for the engine again.
    #[cold]
    pub(crate) fn advance_attaching(&mut self, now: Time, endpoint: &mut Endpoint) {
        while let Some(&oldest) = self.attachments.attaching.first()
            && let Some(Neighbour::Attaching(attaching)) = self.all.get(oldest)
            && attaching.until <= now
        {
            self.fail_attaching(now, oldest, io::ErrorKind::TimedOut.into(), endpoint);
        }
        let Some(attached) = &mut self.attachments.attached else { return };
        if attached.retry_at.take_if(|retry| *retry <= now).is_none() {
            return;
        }
        let socket = connect_to(&Place::File(attached.path.clone()));
        let begun = socket.and_then(|socket| {
            let pending = PendingPair::send(socket, Trust::InPlace, self.is_current());
            self.begin_attaching(now + ATTACH_TIMEOUT, pending.map_err(system)?, Role::Engine)
        });
        if let Err(error) = begun {
            self.lose(now, error, &|_| false, endpoint);
        }
    }

    /// Takes the memory that the other process has offered.
    #[cold]
    pub(crate) fn attach(&mut self, now: Time, key: NeighbourKey, endpoint: &mut Endpoint) {
        let Some(Neighbour::Attaching(attaching)) = self.all.take(key) else { return };
        self.attachments.attaching.retain(|&attaching| attaching != key);
        let Attaching { pending, until, role } = *attaching;
        // The pair watches the descriptor now, under another number.
        self.watch.remove(pending.descriptor());
        match pending.complete() {
            Ok(Ok(pair)) => {
                if let Err(error) = self.attach_pair(now, pair, role, endpoint) {
                    self.not_attached(now, role, error, endpoint);
                }
            }
            Ok(Err(pending)) => {
                if let Err(error) = self.begin_attaching(until, pending, role) {
                    self.not_attached(now, role, error, endpoint);
                }
            }
            Err(error) => self.not_attached(now, role, system(error), endpoint),
        }
    }

    fn attach_pair(
        &mut self,
        now: Time,
        pair: Pair,
        role: Role,
        endpoint: &mut Endpoint,
    ) -> io::Result<()> {
        let process = (pair.process().pid(), pair.process().uid());
        let paired =
            Paired { pair, role, used: now, active: false, sends: false, stopped: None, load: 0 };
        let key = self.all.insert(Neighbour::Paired(Box::new(paired)));
        let Some(paired) = self.paired(key) else { return Ok(()) };
        let number = key.to_bits();
        if let Err(error) = self.watch.add(paired.pair.descriptor(), number) {
            self.all.remove(key);
            return Err(error);
        }
        if let Some(process) = paired.pair.process().descriptor() {
            // Without the pidfd, the end of the socket shows the end of the process.
            let _ = self.watch.add(process, number);
        }
        self.counters.pairs_met += 1;
        match (role, &mut self.attachments.forwarder) {
            (Role::Process, Some(forwarder)) => {
                forwarder.add(key, process, self.meetings.places.local_addr())
            }
            _ => self.attachments.engine = Some(key),
        }
        self.activate(now, key);
        self.receive_from(now, key, 1, endpoint, None);
        Ok(())
    }

    fn fail_attaching(
        &mut self,
        now: Time,
        key: NeighbourKey,
        error: io::Error,
        endpoint: &mut Endpoint,
    ) {
        let Some(Neighbour::Attaching(attaching)) = self.all.take(key) else { return };
        self.attachments.attaching.retain(|&attaching| attaching != key);
        self.watch.remove(attaching.pending.descriptor());
        self.not_attached(now, attaching.role, error, endpoint);
    }

    fn not_attached(&mut self, now: Time, role: Role, error: io::Error, endpoint: &mut Endpoint) {
        self.counters.meetings_failed += 1;
        if matches!(role, Role::Engine) {
            self.lose(now, error, &|_| false, endpoint);
        }
    }

    fn lose(
        &mut self,
        now: Time,
        error: io::Error,
        is_unsent: &dyn Fn(u64) -> bool,
        endpoint: &mut Endpoint,
    ) {
        self.attachments.engine = None;
        if let Some(attached) = &mut self.attachments.attached {
            attached.lose(now, error, is_unsent, endpoint);
        }
    }

    /// Handles the end of the engine that this process uses. `is_unsent`: the engine does not have the whole request with this id.
    pub(crate) fn lose_engine(
        &mut self,
        now: Time,
        is_unsent: &dyn Fn(u64) -> bool,
        endpoint: &mut Endpoint,
    ) {
        // An engine of another version has already reported its error.
        let version = self.attachments.attached.as_mut().map(|attached| &mut attached.attachment);
        let error = match version {
            Some(Attachment::Failed(error)) => {
                std::mem::replace(error, io::ErrorKind::Other.into())
            }
            _ => io::ErrorKind::ConnectionReset.into(),
        };
        self.lose(now, error, is_unsent, endpoint);
    }

    /// Handles the end of an attached process.
    pub(crate) fn lose_process(&mut self, key: NeighbourKey) {
        if let Some(forwarder) = &mut self.attachments.forwarder {
            forwarder.remove(key);
        }
    }

    /// Sends a message to the engine, after the announcement that it needs.
    #[inline]
    pub(crate) fn send_by(
        &mut self,
        now: Time,
        engine: NeighbourKey,
        path: PathId,
        words: Words,
        body: &Body,
    ) {
        let attached = self.attachments.attached.as_ref();
        if let Some((words, body)) = attached.and_then(|it| it.announcement(path, words)) {
            self.send(now, engine, words, &body.into());
        }
        self.send(now, engine, words, body);
    }

    /// Sends messages other than the endpoint's: to processes, or to the engine.
    #[inline]
    pub(crate) fn send_others(&mut self, now: Time) {
        while let Some((to, words, body)) =
            self.attachments.forwarder.as_mut().and_then(|it| it.next_outgoing())
        {
            self.send(now, to, words, &body.into());
        }
        let Some(engine) = self.attachments.engine else { return };
        while let Some((words, body)) =
            self.attachments.attached.as_mut().and_then(|it| it.outgoing.pop_front())
        {
            self.send(now, engine, words, &body.into());
        }
    }

    /// Whether messages other than the endpoint's wait to be sent.
    #[inline]
    pub(crate) fn has_others(&self) -> bool {
        let engine =
            self.attachments.attached.as_ref().filter(|_| self.attachments.engine.is_some());
        self.attachments.forwarder.as_ref().is_some_and(|forwarder| forwarder.has_outgoing())
            || engine.is_some_and(|attached| !attached.outgoing.is_empty())
    }

    /// Time of the next timer for processes or the engine.
    #[inline]
    pub(crate) fn others_due(&self, now: Time) -> Option<Time> {
        if self.has_others() {
            return Some(now);
        }
        let forwarder =
            self.attachments.forwarder.as_ref().and_then(|forwarder| forwarder.due(now));
        sooner(forwarder, self.attaching_due())
    }

    /// Whether an attached process has exited and its end was not handled yet.
    pub(crate) fn has_ended(&self, key: NeighbourKey) -> bool {
        self.paired(key).is_none_or(|paired| paired.pair.process().has_ended())
    }

    /// Changes the users that may attach, and their limits. Ends the attachments of other users, and returns their number.
    pub(crate) fn set_limits(&mut self, limits: Limits) -> usize {
        let Some(forwarder) = &mut self.attachments.forwarder else { return 0 };
        forwarder.limits = limits;
        let mut ended = Vec::new();
        for (&key, process) in &mut forwarder.processes {
            if !forwarder.limits.admit(process.uid) {
                process.expelled = true; // Nothing more that it has said counts.
                ended.push(key);
            }
        }
        ended.iter().for_each(|&key| self.end_process(key, "a process whose user may not attach"));
        ended.len()
    }

    /// Detaches a process.
    pub(crate) fn end_process(&mut self, key: NeighbourKey, why: &'static str) {
        self.end(key, &PairError::Unexpected(why));
    }
}

fn system(error: PairError) -> io::Error {
    match error {
        PairError::System(error) => error,
        other => io::Error::other(other),
    }
}

/// Upper bound on the time in which a process must offer memory.
const OFFER_TIMEOUT: Duration = Duration::from_secs(1);

/// Upper bound on attaching processes. An honest process offers memory before it is accepted, or soon after.
const ATTACHING_MAX: usize = 64;

/// Upper bound on processes accepted in a turn.
const ACCEPTED: usize = 8;
