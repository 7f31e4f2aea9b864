//! Calls that may fail because of an attacker: it has ended a handshake, or has forged reports while the peer was silent.
//!
//! Frames of a handshake are clear, so an attacker that sends a changed copy before the original ends the handshake. Calls of the two
//! nodes may fail then, until a later handshake succeeds. A forged report ends a call only if the peer leaves two probes unanswered
//! for the shortest RTO (life-5). Nothing else excuses a call.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The calls that may fail.
#[derive(Debug, Default)]
pub(super) struct Excuses {
    /// Pairs of nodes of which a handshake has failed, and the time. No later one has succeeded.
    pub(super) without_path: BTreeMap<(usize, usize), Duration>,
    pub(super) calls: BTreeSet<usize>,
    /// The time at which a node last opened a record of another one. A record from another address than that of its path does not
    /// count, because the core waits for a proof that the peer has moved (contact-7), nor does OPEN or CONFIRM.
    pub(super) heard: BTreeMap<(usize, usize), Duration>,
    /// Calls whose server has a forged report about a client that was silent.
    pub(super) given_up: BTreeSet<usize>,
}

impl Excuses {
    pub(super) fn note_record(&mut self, now: Duration, node: usize, peer: usize) {
        self.heard.insert((node, peer), now);
    }

    pub(super) fn has(&self, call: usize) -> bool {
        self.calls.contains(&call)
    }
}
