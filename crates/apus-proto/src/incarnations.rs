//! The incarnations of a client behind a native link, which has no tokens. The first bits of its ids, and 16 bits that it echoes,
//! distinguish them (rules `once-3`, `linux-4`).

use std::time::Duration;

use apus_wire::RpcId;

use crate::history::History;
use crate::id::{Incarnation, SEQUENCE_BITS, sequence};
use crate::time::Time;

/// Upper bound on the challenges to one peer within an RTO.
const CHALLENGES: usize = 8;

/// The client incarnations at one address whose requests the node takes.
#[derive(Debug, Default)]
pub(crate) struct Incarnations {
    current: Option<(Incarnation, History)>,
    /// The previous incarnation: after 2^22 calls, a client continues in a new one while requests of the old one are under way.
    previous: Option<(Incarnation, History)>,
    /// Number of incarnations begun. A new incarnation invalidates the answers to earlier challenges.
    pub(crate) begun: u32,
    /// Recent challenges: incarnation or request, and time.
    challenged: Vec<(u64, Time)>,
}

/// Version of this node's cutoffs in a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Echo {
    /// The version that was last announced to this peer.
    Current,
    /// The version that was sent in a challenge to this very incarnation.
    Challenge,
    /// No version: the peer's host does not know this node.
    None,
    Other,
}

/// Classification of the first packet of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Admission {
    /// A request that was not taken before.
    Fresh,
    /// A request that was not taken before, and the first of a new incarnation of the client.
    Begins,
    /// The request was taken before.
    Taken,
    /// Its number is far from the numbers of the client's other requests.
    Stray,
    /// Its number and those before it are far from the others: this node and the client disagree about numbers.
    Lost,
    /// The request is from another incarnation than the current one: the client has restarted, or the packet was under way when it
    /// did, or a third host sent it.
    Stale,
}

impl Incarnations {
    /// Returns the subject of a challenge: an incarnation, or the single request for a Linux client, whose ids have no incarnation.
    pub(crate) fn challenged_for(id: RpcId) -> u64 {
        let incarnation = Incarnation::of(id);
        if incarnation.is_counted() { id.client_form().0 } else { incarnation.number() }
    }

    /// Classifies a request.
    #[inline]
    pub(crate) fn admit(&mut self, id: RpcId, echo: Echo) -> Admission {
        let incarnation = Incarnation::of(id);
        if let Some(history) = self.find(incarnation) {
            let taken = history.is_taken(sequence(id));
            if incarnation.is_counted() {
                return self.admit_counted(id, taken, echo);
            }
            return if taken { Admission::Taken } else { Admission::Fresh };
        }
        //= docs/protocol.md#once-4
        let goes_on = echo == Echo::Current && self.go_on_in(incarnation);
        //= docs/protocol.md#once-3
        if self.current.is_some() && !goes_on && echo != Echo::Challenge {
            return Admission::Stale;
        }
        let previous = self.current.take().filter(|_| goes_on);
        self.begin(incarnation, previous);
        if echo == Echo::Challenge { Admission::Begins } else { Admission::Fresh }
    }

    /// Classifies a request of a Linux client, whose ids have no incarnation. A restarted host counts from the start again, so its
    /// request has a number that was taken and no version of this node's cutoffs. Such a request is challenged like a stale
    /// incarnation. If the same request returns with the version made for it, a new incarnation begins, in which numbers of the
    /// previous one count only with that version.
    fn admit_counted(&mut self, id: RpcId, taken: bool, echo: Echo) -> Admission {
        //= docs/protocol.md#linux-4
        let of_before = self.previous.as_ref().is_some_and(|(incarnation, history)| {
            *incarnation == Incarnation::of(id) && history.is_taken(sequence(id))
        });
        if !taken && (!of_before || echo == Echo::Current) {
            return Admission::Fresh;
        }
        match echo {
            Echo::Challenge => {
                let previous = self.current.take();
                self.begin(Incarnation::of(id), previous);
                Admission::Begins
            }
            Echo::None => Admission::Stale,
            Echo::Current | Echo::Other => Admission::Taken,
        }
    }

    fn begin(&mut self, incarnation: Incarnation, previous: Option<(Incarnation, History)>) {
        let current = Some((incarnation, History::new()));
        *self =
            Self { current, previous, begun: self.begun.wrapping_add(1), challenged: Vec::new() };
    }

    /// Returns whether to challenge the sender of a request now. The same subject is challenged at most once per `rto`, and only
    /// few different ones are.
    pub(crate) fn challenge(&mut self, now: Time, id: RpcId, rto: Duration) -> bool {
        //= docs/protocol.md#once-3
        self.challenged.retain(|&(_, at)| now.saturating_since(at) < rto);
        let subject = Self::challenged_for(id);
        let again = self.challenged.iter().any(|&(challenged, _)| challenged == subject);
        if again || self.challenged.len() >= CHALLENGES {
            return false;
        }
        self.challenged.push((subject, now));
        true
    }

    /// Returns whether requests of this incarnation are taken.
    pub(crate) fn know(&mut self, id: RpcId) -> bool {
        self.find(Incarnation::of(id)).is_some()
    }

    /// Returns whether the request was taken, as far as the histories show.
    pub(crate) fn has_taken(&mut self, id: RpcId) -> bool {
        let history = self.find(Incarnation::of(id));
        history.is_some_and(|history| history.is_taken(sequence(id)))
    }

    /// Records that the request was taken.
    #[inline]
    pub(crate) fn take(&mut self, id: RpcId) {
        if let Some(history) = self.find(Incarnation::of(id)) {
            history.take(sequence(id));
        }
    }

    fn find(&mut self, incarnation: Incarnation) -> Option<&mut History> {
        [&mut self.current, &mut self.previous]
            .into_iter()
            .flatten()
            .find(|(known, _)| *known == incarnation)
            .map(|(_, history)| history)
    }

    /// Returns whether the current incarnation has used up its numbers and continues in this one.
    fn go_on_in(&self, incarnation: Incarnation) -> bool {
        let near_end = (1 << SEQUENCE_BITS) - crate::history::SPAN;
        let current = self.current.as_ref();
        current.is_some_and(|(current, history)| {
            current.next() == incarnation && history.end() >= near_end
        })
    }

    /// Returns the memory of the histories in bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        [&self.current, &self.previous].into_iter().flatten().map(|(_, h)| h.bytes()).sum()
    }
}
