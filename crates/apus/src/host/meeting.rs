//! State of one meeting with a process of this host, and of all meetings. [`super::meetings`] changes it.

use std::io;
use std::os::fd::BorrowedFd;

use apus_proto::Time;
use apus_shm::{Listener, Nonce, PendingPair};
use apus_wire::PathId;

use crate::host::neighbour_key::NeighbourKey;
use crate::host::places::Places;
use crate::mail::CallKey;

/// A process of this host that has not proved its address or has not offered memory.
#[derive(Debug)]
pub(crate) struct Meeting {
    pub(super) stage: Stage,
    pub(super) ours: Nonce,
    pub(super) theirs: Option<Nonce>,
    pub(super) place: u64,
    /// The node that the process is expected to be, if this node has connected, or is proved to be. The path is held.
    pub(super) udp: Option<PathId>,
    pub(super) is_client: bool,
    /// Its socket is in the watch.
    pub(super) is_watched: bool,
    /// The user of the process, once it has a place among the pairs.
    pub(super) placed: Option<u32>,
    /// Time at which a client returned the nonce.
    pub(super) nonce_returned_at: Option<Time>,
    /// Time at which the meeting is given up.
    pub(super) until: Time,
    /// Calls that wait for the end of the meeting.
    pub(super) waiting: Vec<WaitingConnect>,
}

/// A call that makes a peer known, and that waits for the end of a meeting with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingConnect {
    pub(super) call: CallKey,
    /// Time at which it waits no longer.
    pub(super) deadline: Option<Time>,
    /// The peer is known, so the call ends without an error.
    pub(super) is_known: bool,
}

#[derive(Debug)]
pub(super) enum Stage {
    Greeting(apus_shm::Meeting),
    Offered(PendingPair),
    Over,
}

impl Meeting {
    /// The waiting calls whose peer is known.
    pub(super) fn known_calls(&self) -> impl Iterator<Item = CallKey> {
        self.waiting.iter().filter(|waiting| waiting.is_known).map(|waiting| waiting.call)
    }

    /// The socket that is watched.
    pub(super) fn watched(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor().filter(|_| self.is_watched)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.stage {
            Stage::Greeting(meeting) => Some(meeting.descriptor()),
            Stage::Offered(pending) => Some(pending.descriptor()),
            Stage::Over => None,
        }
    }

    /// After its nonce, a connecting node sends nothing until this node has returned the nonce. A readable socket before that means
    /// that the process has ended or is no node.
    pub(super) fn expects_nothing(&self) -> bool {
        !self.is_client && self.theirs.is_some() && matches!(self.stage, Stage::Greeting(_))
    }

    /// The user of the process at the other end.
    pub(super) fn uid(&self) -> Option<u32> {
        match &self.stage {
            Stage::Greeting(meeting) => meeting.uid().ok(),
            Stage::Offered(_) | Stage::Over => None,
        }
    }

    /// Lets the process at the other end pass descriptors.
    pub(super) fn allow_descriptors(&self) {
        if let Stage::Greeting(meeting) = &self.stage {
            meeting.allow_descriptors();
        }
    }

    /// The nonce of the process at the other end, if it has arrived.
    pub(super) fn read_theirs(&mut self) -> io::Result<Option<Nonce>> {
        if let (None, Stage::Greeting(meeting)) = (self.theirs, &mut self.stage) {
            self.theirs = meeting.theirs()?;
        }
        Ok(self.theirs)
    }
}

/// Open meetings, and the places at which other nodes begin them.
#[derive(Debug)]
pub(crate) struct Meetings {
    pub(super) listeners: Vec<Listener>,
    pub(crate) places: Places,
    /// The oldest first.
    pub(super) under_way: Vec<NeighbourKey>,
    /// Time of the next timer of a meeting.
    pub(super) due: Option<Time>,
    /// Calls that made a peer known whose meeting has ended.
    pub(crate) connected: Vec<CallKey>,
}

impl Meetings {
    pub(super) fn new(places: Places) -> Self {
        Self {
            listeners: Vec::new(),
            places,
            under_way: Vec::new(),
            due: None,
            connected: Vec::new(),
        }
    }
}
