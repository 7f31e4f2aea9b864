//! The bounds within which the model is explored, and the states that each scenario must reach.

use crate::model::Condition;
use crate::packet::{Body, Place, Token};
use crate::state::{Contact, End, Faults, Peer, Phase, Service, State};

/// Bounds of an exploration.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// The calls: the node that calls, and whether the messages are long.
    pub calls: &'static [(u8, bool)],
    /// The faults.
    pub faults: Faults,
    /// Tokens that each node may draw.
    pub tokens: [u8; 2],
    /// Conditions that some state meets.
    pub probes: &'static [Condition],
}

const SHORT: (u8, bool) = (0, false);
const LONG: (u8, bool) = (0, true);
const BACK: (u8, bool) = (1, false);

/// No fault.
const NONE: Faults = Faults {
    restarts: [0; 2],
    moves: [0; 2],
    seconds: 0,
    pauses: 0,
    closings: 0,
    aborts: 0,
    abandons: 0,
    evictions: 0,
    forgeries: 0,
    has_probes: false,
    has_memory: false,
    refusals: 0,
};

fn ends_as(state: &State, call: usize, end: End) -> bool {
    state.calls[call].phase == Phase::Ended(end)
}

fn is_any_peer(state: &State, condition: impl Fn(&Contact) -> bool) -> bool {
    state.nodes.iter().flat_map(|node| &node.peers).any(|peer| condition(&peer.contact))
}

fn is_in_doubt(state: &State) -> bool {
    is_any_peer(state, |contact| matches!(contact, Contact::Met { asking: Some(_), .. }))
}

/// Returns whether node 1 has sent a packet about a call to its client at this address. Only known clients get one.
fn was_known_at(state: &State, place: Place, client: &Peer) -> bool {
    state.packets.iter().any(|packet| {
        let (Body::Grant { stamp, .. } | Body::Response { stamp, .. }) = packet.body else {
            return false;
        };
        packet.to == place && client.theirs() == Some(stamp)
    })
}

fn is_over(state: &State) -> bool {
    is_any_peer(state, |contact| *contact == Contact::Over)
}

const ANSWERED: Condition = ("every call is answered", |_, state| {
    (0..state.calls.len()).all(|call| ends_as(state, call, End::Answered))
});
const LOST_BEFORE: Condition =
    ("a call that was not executed ends as may have executed", |_, state| {
        state.ends().any(|(end, call)| end == End::MayHaveExecuted && call.executed == 0)
    });
const LOST_AFTER: Condition = ("a call that was executed ends as may have executed", |_, state| {
    state.ends().any(|(end, call)| end == End::MayHaveExecuted && call.executed == 1)
});
const DOUBT: Condition = ("a token is in doubt", |_, state| is_in_doubt(state));
const OVER: Condition = ("a run of a peer is over", |_, state| is_over(state));
const RENEWED: Condition = ("a call begins again with the next run and is answered", |_, state| {
    state.ends().any(|(end, call)| {
        end == End::Answered && matches!(call.peer, Some(Token::Drawn(_, number)) if number > 1)
    })
});
const CROSSED: Condition = ("a node knows the other one as client and as server", |_, state| {
    state
        .nodes
        .iter()
        .any(|node| node.peers.iter().filter(|peer| peer.theirs().is_some()).count() == 2)
});
const MOVED: Condition =
    ("a client that was known at one address is answered at another one", |_, state| {
        let mut peers = state.nodes[1].peers.iter().filter(|peer| peer.place == 2);
        peers.any(|peer| was_known_at(state, 0, peer)) && ends_as(state, 0, End::Answered)
    });
const REFUSED: Condition =
    ("a call ends as no such port", |_, state| ends_as(state, 0, End::NoSuchPort));
const REFUSED_MET: Condition = ("a server remembers that it has refused a request", |_, state| {
    state.nodes[1].peers.iter().any(|peer| peer.refused != 0)
});
const FINISHED: Condition =
    ("a call ends as response lost", |_, state| ends_as(state, 0, End::ResponseLost));
const CANCELLED: Condition = ("a request in service has lost its client", |_, state| {
    let mut requests = state.nodes[1].peers.iter().flat_map(|peer| &peer.requests);
    requests.any(|request| request.phase == Service::Cancelled)
});
const ABORTED: Condition =
    ("an ABORT ends a request that is arriving", |_, state| state.calls[0].is_aborted);
const MET_AGAIN: Condition = ("a client is met again after it was forgotten", |_, state| {
    let is_answered = |number| ends_as(state, number, End::Answered);
    is_answered(0) && is_answered(1) && state.calls[0].peer != state.calls[1].peer
});
const SPENT: Condition = ("a token is spent", |_, state| !state.nodes[1].spent.is_empty());
const OVER_TO_UDP: Condition = ("a call goes over to UDP and is answered", |_, state| {
    state.calls[0].peer.is_some() && ends_as(state, 0, End::Answered)
});
const NEAR: Condition = ("a call is answered in memory", |_, state| {
    state.calls[0].peer.is_none() && ends_as(state, 0, End::Answered)
});
const PUT_OFF: Condition =
    ("a request in memory is put off", |_, state| state.calls[0].phase == Phase::PutOff);

/// The scenarios that every change must pass.
pub const SCENARIOS: [Scenario; 12] = [
    Scenario {
        name: "loss, copies and delay",
        calls: &[LONG],
        faults: Faults { has_probes: true, ..NONE },
        tokens: [2, 0],
        probes: &[ANSWERED, DOUBT],
    },
    Scenario {
        name: "OPEN is answered twice",
        calls: &[SHORT],
        faults: Faults { seconds: 1, ..NONE },
        tokens: [2, 0],
        probes: &[ANSWERED, DOUBT],
    },
    Scenario {
        name: "quick restart of the server",
        calls: &[LONG],
        faults: Faults { restarts: [0, 1], ..NONE },
        tokens: [2, 0],
        probes: &[LOST_BEFORE, LOST_AFTER, OVER, RENEWED],
    },
    Scenario {
        name: "restart of the client",
        calls: &[SHORT, SHORT],
        faults: Faults { restarts: [1, 0], ..NONE },
        tokens: [1, 1],
        probes: &[DOUBT, OVER],
    },
    Scenario {
        name: "crossing first contacts",
        calls: &[SHORT, BACK],
        faults: NONE,
        tokens: [1, 1],
        probes: &[ANSWERED, CROSSED],
    },
    Scenario {
        name: "pause",
        calls: &[SHORT],
        faults: Faults { pauses: 1, ..NONE },
        tokens: [2, 0],
        probes: &[LOST_BEFORE, DOUBT],
    },
    Scenario {
        name: "a full table",
        calls: &[SHORT],
        faults: Faults { evictions: 1, ..NONE },
        tokens: [2, 0],
        probes: &[SPENT, LOST_BEFORE],
    },
    Scenario {
        name: "a move",
        calls: &[SHORT],
        faults: Faults { moves: [1, 0], ..NONE },
        tokens: [1, 0],
        probes: &[MOVED],
    },
    Scenario {
        name: "an attacker who repeats packets",
        calls: &[SHORT],
        faults: Faults { forgeries: 1, ..NONE },
        tokens: [1, 0],
        probes: &[ANSWERED],
    },
    Scenario {
        name: "a port that is closed and opened",
        calls: &[SHORT],
        faults: Faults { closings: 1, has_probes: true, ..NONE },
        tokens: [2, 0],
        probes: &[REFUSED, REFUSED_MET, LOST_BEFORE, FINISHED],
    },
    Scenario {
        name: "calls and requests that are given up",
        calls: &[LONG],
        faults: Faults { aborts: 1, abandons: 1, has_probes: true, ..NONE },
        tokens: [1, 0],
        probes: &[CANCELLED, ABORTED, FINISHED],
    },
    Scenario {
        name: "shared memory, and UDP after it",
        calls: &[SHORT],
        faults: Faults { has_memory: true, refusals: 1, aborts: 1, ..NONE },
        tokens: [1, 0],
        probes: &[NEAR, PUT_OFF, OVER_TO_UDP, LOST_BEFORE, LOST_AFTER],
    },
];

/// Wider bounds: minutes of exploration.
pub const WIDER: [Scenario; 6] = [
    Scenario {
        name: "wider: a move, and an attacker who repeats packets",
        calls: &[SHORT],
        faults: Faults { moves: [1, 0], forgeries: 1, ..NONE },
        tokens: [1, 0],
        probes: &[MOVED],
    },
    Scenario {
        name: "wider: a move in doubt",
        calls: &[LONG],
        faults: Faults { moves: [1, 0], ..NONE },
        tokens: [2, 0],
        probes: &[MOVED, DOUBT],
    },
    Scenario {
        name: "wider: two pauses",
        calls: &[SHORT, SHORT],
        faults: Faults { pauses: 2, ..NONE },
        tokens: [2, 0],
        probes: &[LOST_BEFORE, DOUBT, MET_AGAIN],
    },
    Scenario {
        name: "wider: quick restart with probes",
        calls: &[LONG],
        faults: Faults { restarts: [0, 1], has_probes: true, ..NONE },
        tokens: [2, 0],
        probes: &[LOST_BEFORE, LOST_AFTER, OVER, RENEWED],
    },
    Scenario {
        name: "wider: crossing first contacts in doubt",
        calls: &[SHORT, BACK],
        faults: NONE,
        tokens: [2, 1],
        probes: &[ANSWERED, CROSSED],
    },
    Scenario {
        name: "wider: two calls to a port that is closed and opened",
        calls: &[SHORT, SHORT],
        faults: Faults { closings: 1, has_probes: true, ..NONE },
        tokens: [1, 0],
        probes: &[REFUSED, REFUSED_MET],
    },
];
