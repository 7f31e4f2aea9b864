//! The incarnations of a client behind a native link, which has no tokens: told apart by the first bits of its ids,
//! and by 16 bits that it echoes (rules `once-3`, `linux-4`).

use std::time::Duration;

use apus_wire::RpcId;

use crate::history::History;
use crate::id::{Incarnation, SEQUENCE_BITS, sequence};
use crate::time::Time;

/// Challenges made to one peer within an RTO.
const CHALLENGES: usize = 8;

/// The client incarnations at one address whose requests are taken.
#[derive(Debug, Default)]
pub(crate) struct Incarnations {
    current: Option<(Incarnation, History)>,
    /// The one before: after 2^22 calls a client goes on in a new one while requests are under way.
    previous: Option<(Incarnation, History)>,
    /// How many incarnations have begun: the answer to a challenge is worth nothing after another one.
    pub(crate) begun: u32,
    /// Who was challenged lately, and when.
    challenged: Vec<(u64, Time)>,
}

/// Which version of our cutoffs a packet carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Echo {
    /// The one this peer was told last.
    Current,
    /// The one it was told in a challenge to this very incarnation.
    Challenge,
    /// None: its host knows nothing of us.
    None,
    Other,
}

/// What a first packet of a request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Admission {
    Fresh,
    /// It is, and a new incarnation of the client begins with it.
    Begins,
    /// The request was taken before.
    Taken,
    /// Its number is far from those of the client's other requests.
    Stray,
    /// So were those before it: this node and the client do not agree about numbers any more.
    Lost,
    /// It is from another incarnation than the current one: the client has restarted, or this was
    /// under way when it did, or someone else sent it.
    Stale,
}

impl Incarnations {
    /// What a challenge is made for. A Linux client's ids have no incarnation, so there it is for this one request.
    pub(crate) fn challenged_for(id: RpcId) -> u64 {
        let life = Incarnation::of(id);
        if life.is_counted() { id.client_form().0 } else { life.number() }
    }

    /// Whether a request may be taken.
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

    /// The same for a Linux client, whose ids have no incarnation: a host that restarts counts from the start again. That shows
    /// in a number that was taken and no version of ours. It is challenged like a stale incarnation; when the very same request comes
    /// back with the version made for it, a new life begins, in which numbers of the one before count only with that version.
    fn admit_counted(&mut self, id: RpcId, taken: bool, echo: Echo) -> Admission {
        //= docs/protocol.md#linux-4
        let of_before = self.previous.as_ref().is_some_and(|(life, history)| {
            *life == Incarnation::of(id) && history.is_taken(sequence(id))
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

    fn begin(&mut self, life: Incarnation, previous: Option<(Incarnation, History)>) {
        let current = Some((life, History::new()));
        *self =
            Self { current, previous, begun: self.begun.wrapping_add(1), challenged: Vec::new() };
    }

    /// Whether to challenge the sender of a request now: one and the same at most once in a
    /// `rto`, and few different ones.
    pub(crate) fn challenge(&mut self, now: Time, id: RpcId, rto: Duration) -> bool {
        //= docs/protocol.md#once-3
        self.challenged.retain(|&(_, at)| now.saturating_since(at) < rto);
        let life = Self::challenged_for(id);
        let again = self.challenged.iter().any(|&(challenged, _)| challenged == life);
        if again || self.challenged.len() >= CHALLENGES {
            return false;
        }
        self.challenged.push((life, now));
        true
    }

    /// Whether requests of this incarnation are taken.
    pub(crate) fn know(&mut self, id: RpcId) -> bool {
        self.find(Incarnation::of(id)).is_some()
    }

    /// Whether the request was taken, as far as is known.
    pub(crate) fn has_taken(&mut self, id: RpcId) -> bool {
        let history = self.find(Incarnation::of(id));
        history.is_some_and(|history| history.is_taken(sequence(id)))
    }

    /// Notes that the request was taken.
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
            .find(|(life, _)| *life == incarnation)
            .map(|(_, history)| history)
    }

    /// Whether the current incarnation has used up its numbers and goes on in this one.
    fn go_on_in(&self, incarnation: Incarnation) -> bool {
        let near_end = (1 << SEQUENCE_BITS) - crate::history::SPAN;
        let current = self.current.as_ref();
        current
            .is_some_and(|(life, history)| life.next() == incarnation && history.end() >= near_end)
    }

    /// Memory of the histories, in bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        [&self.current, &self.previous].into_iter().flatten().map(|(_, h)| h.bytes()).sum()
    }
}
