//! The steps of the world, and the properties of its states.

use stateright::{Model, Property};

use crate::contact::Step;
use crate::packet::{ATTACKER, Packet, Run, Token};
use crate::revert::Revert;
use crate::scenario::Scenario;
use crate::state::{End, Node, Phase, Service, State};

/// One step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// A call begins.
    Call(usize),
    /// A packet arrives.
    Deliver(Packet),
    /// An application answers the request with this number of the peer with this token.
    Answer(usize, Token, u8),
    /// Node 1 opens its port again.
    Open,
    /// A message of the queue is in memory completely.
    Carry(usize),
    /// A request that was refused for the moment is queued again.
    CarryAgain(usize),
    /// Node 1 reads a message in memory.
    Read,
    /// The application of node 1 answers a request in memory.
    Reply(usize),
    /// Node 0 reads a message in memory.
    Fetch,
    /// Memory ends at node 0.
    EndAtClient,
    /// 6 s pass without a sign that a CONFIRM has arrived.
    Late,

    // The rest are faults.
    /// Memory ends at node 1, whose process goes on.
    EndAtServer,
    /// Node 1 reads a request in memory, and refuses it for the moment.
    Refuse,
    /// The application gives a call up.
    GiveUp(usize),
    /// The application of a server gives a request up.
    Abandon(usize, Token, u8),
    /// A node restarts at its address.
    Restart(usize),
    /// A node moves to its second address.
    Move(usize),
    /// A unit of time passes.
    Second,
    /// 130 s pass.
    Pause,
    /// Node 1 closes its port.
    Close,
    /// Node 1 forgets a peer because its table is full.
    Evict(Token),
    /// An attacker repeats a packet from its own address.
    Forge(Packet),
}

/// The world within the bounds of a scenario.
#[derive(Clone, Debug)]
pub struct World {
    /// The bounds.
    pub scenario: Scenario,
    /// The rule that is broken, if any.
    pub revert: Option<Revert>,
}

/// A named condition.
pub type Condition = (&'static str, fn(&World, &State) -> bool);

/// What holds in every state.
pub const ALWAYS: [Condition; 8] = [
    ("a request is executed at most once", |_, state| {
        state.calls.iter().all(|call| call.executed <= 1)
    }),
    ("a call that ends as not executed was not executed", |_, state| {
        state.ends().all(|(end, call)| !end.denies() || call.executed == 0)
    }),
    ("a call that ends as executed was executed", |_, state| {
        let claims = |end| matches!(end, End::Answered | End::ResponseLost);
        state.ends().all(|(end, call)| !claims(end) || call.executed > 0)
    }),
    ("a call gets its own response", |_, state| !state.is_mixed_up),
    ("a call fails only after a fault that explains it", |_, state| {
        let failed =
            |end: End| end.denies() || matches!(end, End::MayHaveExecuted | End::ResponseLost);
        state.has_cause || state.ends().all(|(end, _)| !failed(end))
    }),
    ("a request is not executed after its end was taken", |_, state| {
        state.calls.iter().all(|call| !call.is_in_vain)
    }),
    ("a peer is at an address at which it has received", |_, state| {
        let peers = state.nodes.iter().flat_map(|node| &node.peers);
        peers.into_iter().all(|peer| peer.place != ATTACKER)
    }),
    ("no call waits for ever", |world, state| !state.is_under_way() || world.goes_on(state)),
];

impl World {
    /// Returns the state after a step, or `None` if the step changes nothing.
    #[must_use]
    pub fn after(&self, state: &State, action: Action) -> Option<State> {
        let mut step = Step { state: state.clone(), revert: self.revert };
        step.act(action);
        (step.state != *state).then_some(step.state)
    }

    /// Returns whether regular steps change something besides the addresses of peers, which copies of CONFIRM from two addresses
    /// change for ever.
    fn goes_on(&self, state: &State) -> bool {
        let unchanged = state.without_addresses();
        let mut reached = vec![state.clone()];
        let mut next = 0;
        while next < reached.len() {
            for action in self.regular(&reached[next]) {
                let Some(after) = self.after(&reached[next], action) else { continue };
                if after.without_addresses() != unchanged {
                    return true;
                }
                if !reached.contains(&after) {
                    reached.push(after);
                }
            }
            next += 1;
        }
        false
    }

    /// Returns the steps that are no faults.
    #[must_use]
    pub fn regular(&self, state: &State) -> Vec<Action> {
        let mut actions = Vec::new();
        for (number, call) in state.calls.iter().enumerate() {
            match call.phase {
                // Calls begin in order, which is one order less to explore.
                Phase::Future
                    if state.calls[..number].iter().all(|it| it.phase != Phase::Future) =>
                {
                    actions.push(Action::Call(number));
                }
                Phase::PutOff if !state.memory.has(number as u8) => {
                    actions.push(Action::CarryAgain(number))
                }
                _ => {}
            }
        }
        actions.extend(state.packets.iter().map(|&packet| Action::Deliver(packet)));
        actions.extend(requests(state).map(|(node, ours, seq)| Action::Answer(node, ours, seq)));
        if !state.nodes[1].is_open {
            actions.push(Action::Open);
        }
        let (memory, step) = (&state.memory, Step { state: state.clone(), revert: self.revert });
        actions.extend(step.awaits_sign().then_some(Action::Late));
        if memory.is_open[0] {
            actions.extend(step.may_carry().into_iter().map(Action::Carry));
            actions.extend((!memory.back.is_empty()).then_some(Action::Fetch));
            actions.extend((!memory.is_open[1]).then_some(Action::EndAtClient));
        }
        if memory.is_open[1] {
            actions.extend((!memory.ring.is_empty()).then_some(Action::Read));
            actions.extend((0..memory.served.len()).map(Action::Reply));
        }
        actions
    }

    fn faults(&self, state: &State) -> Vec<Action> {
        let left = &state.left;
        let mut actions = Vec::new();
        for node in 0..2 {
            actions.extend((left.restarts[node] > 0).then_some(Action::Restart(node)));
            actions.extend((left.moves[node] > 0).then_some(Action::Move(node)));
        }
        actions.extend((left.seconds > 0).then_some(Action::Second));
        actions.extend((left.pauses > 0).then_some(Action::Pause));
        actions.extend((left.closings > 0 && state.nodes[1].is_open).then_some(Action::Close));
        if left.aborts > 0 {
            let active =
                |it: &usize| !matches!(state.calls[*it].phase, Phase::Future | Phase::Ended(_));
            actions.extend((0..state.calls.len()).filter(active).map(Action::GiveUp));
        }
        if left.abandons > 0 {
            actions
                .extend(requests(state).map(|(node, ours, seq)| Action::Abandon(node, ours, seq)));
        }
        if left.evictions > 0 {
            let step = Step { state: state.clone(), revert: self.revert };
            actions.extend(step.evictable(1).into_iter().map(Action::Evict));
        }
        if left.forgeries > 0 {
            actions.extend(state.packets.iter().map(|&packet| Action::Forge(packet)));
        }
        if left.has_memory && state.memory.is_open == [true; 2] {
            actions.extend([Action::EndAtServer, Action::EndAtClient]);
        }
        if left.refusals > 0
            && let Some(crate::memory::Message::Request(_)) = state.memory.ring.first()
        {
            actions.push(Action::Refuse);
        }
        actions
    }
}

/// Returns the requests in service, by node, peer and number.
fn requests(state: &State) -> impl Iterator<Item = (usize, Token, u8)> {
    let peers =
        (0..2).flat_map(|node| state.nodes[node].peers.iter().map(move |peer| (node, peer)));
    peers.flat_map(|(node, peer)| {
        let served = peer.requests.iter();
        let served =
            served.filter(|it| matches!(it.phase, Service::Executing | Service::Cancelled));
        served.map(move |request| (node, peer.ours, request.seq))
    })
}

impl Step {
    fn act(&mut self, action: Action) {
        match action {
            Action::Call(call) => {
                let in_memory = self.state.calls[call].from == 0 && self.state.memory.is_open[0];
                if in_memory { self.begin_in_memory(call) } else { self.begin(call) }
            }
            Action::Deliver(packet) => self.deliver(packet),
            Action::Answer(node, ours, seq) => self.finish_named(node, ours, seq, true),
            Action::Open => self.state.nodes[1].is_open = true,
            Action::Carry(index) => self.carry(index),
            Action::CarryAgain(call) => self.carry_again(call),
            Action::Read => self.read(false),
            Action::Reply(index) => self.reply(index),
            Action::Fetch => self.fetch(),
            Action::EndAtClient => {
                self.state.has_cause = true;
                self.end_memory_at_client();
            }
            Action::Late => {
                self.state.has_cause = true;
                self.pass_confirms();
            }
            _ => self.fail(action),
        }
    }

    fn fail(&mut self, action: Action) {
        let state = &mut self.state;
        // These cost no call its response.
        let is_harmless = matches!(
            action,
            Action::GiveUp(_)
                | Action::Move(_)
                | Action::Forge(_)
                | Action::Refuse
                | Action::Second
        );
        state.has_cause |= !is_harmless;
        match action {
            Action::EndAtServer => self.end_memory_at_server(),
            Action::Refuse => {
                state.left.refusals -= 1;
                self.read(true);
            }
            Action::GiveUp(call) => {
                state.left.aborts -= 1;
                let is_near = matches!(
                    state.calls[call].phase,
                    Phase::Queued | Phase::Carried | Phase::PutOff
                );
                if is_near { self.give_up_in_memory(call) } else { self.give_up(call) }
            }
            Action::Abandon(node, ours, seq) => {
                state.left.abandons -= 1;
                self.finish_named(node, ours, seq, false);
            }
            Action::Restart(node) => {
                state.left.restarts[node] -= 1;
                self.restart(node);
            }
            Action::Move(node) => {
                state.left.moves[node] -= 1;
                state.nodes[node].place += 2;
                self.probe_again(node);
            }
            Action::Second => {
                state.left.seconds -= 1;
                state.unit += 1;
            }
            Action::Pause => {
                state.left.pauses -= 1;
                self.pause();
            }
            Action::Close => {
                state.left.closings -= 1;
                self.close(1);
            }
            Action::Evict(ours) => {
                state.left.evictions -= 1;
                self.evict(1, ours);
            }
            Action::Forge(packet) => {
                state.left.forgeries -= 1;
                self.deliver(Packet { from: ATTACKER, ..packet });
            }
            _ => unreachable!("a regular step"),
        }
    }

    fn finish_named(&mut self, node: usize, ours: Token, seq: u8, is_answered: bool) {
        let Some(at) = self.find(node, ours) else { return };
        let index = self.peer(node, at).requests.iter().position(|it| it.seq == seq);
        if let Some(index) = index {
            self.finish(node, at, index, is_answered);
        }
    }

    fn restart(&mut self, node: usize) {
        let Node { run, place, .. } = self.state.nodes[node];
        let run = Run { number: run.number + 1, ..run };
        self.state.nodes[node] = Node::new(run, place);
        for call in &mut self.state.calls {
            let is_active = !matches!(call.phase, Phase::Future | Phase::Ended(_));
            if usize::from(call.from) == node && is_active {
                call.phase = Phase::Ended(End::Gone);
            }
        }
        if node == 1 {
            self.end_memory_at_server();
        } else {
            self.state.memory.is_open[0] = false;
            self.state.memory.queue.clear();
        }
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.scenario.calls, self.scenario.faults)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend(self.regular(state));
        actions.extend(self.faults(state));
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        self.after(state, action)
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.nodes.iter().zip(self.scenario.tokens).all(|(node, most)| node.drawn <= most)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let always = ALWAYS.into_iter().map(|(name, condition)| Property::always(name, condition));
        let probes = self.scenario.probes.iter();
        let sometimes = probes.map(|&(name, condition)| Property::sometimes(name, condition));
        always.chain(sometimes).collect()
    }
}
