//! One run of the campaign: nodes on a faulty network, with checks.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use apus_load::{Random, seeded};
use apus_proto::{
    CallOptions, Cookie, Endpoint, Event, Remote, ReplyError, RpcKey, SocketKey, SpentBodies, Time,
};
use apus_seal::AssociationId;
use apus_wire::{PathId, TraceContext};
use derive_more::AddAssign;

use crate::chance::happens;
use crate::check::addresses::{Addresses, Outbox, SentPacket};
use crate::check::compact;
use crate::check::excuses::Excuses;
use crate::check::holes::Hole;
use crate::check::hostile::IssuedToken;
use crate::check::ledger::{
    Fate, LedgerEntry, Violation, context, number_of, request, response, verify,
};
use crate::check::rights;
use crate::check::scenario::{Fault, FaultType, Scenario};
use crate::check::sealing::Sealing;
use crate::check::work::Work;

pub(super) const PORT: u16 = 7;
/// Time until an application retries a response that did not fit the budgets.
const TRY_AGAIN: Duration = Duration::from_millis(1);
/// The port that an endpoint gives its first socket for calls.
pub(super) const CLIENT_PORT: u16 = 32_768;
/// Upper bound on turns of one node in a run. A node with more turns spins.
const TURNS_MAX: u64 = 3_000_000;
/// Bytes that the core charges for an RPC besides its message.
const RPC_BYTES: u64 = 512;

/// Statistics of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, AddAssign)]
pub struct Tally {
    /// Calls begun.
    pub calls: u64,
    /// Calls answered.
    pub answered: u64,
    /// Calls that failed, each with a cause.
    pub failed: u64,
    /// Packets sent, including lost and copied ones.
    pub packets: u64,
    /// Packets lost, damaged, copied, delayed or forged.
    pub faults: u64,
    /// Simulated time.
    pub simulated: Duration,
}

#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum WorldEvent {
    Call(usize),
    Abort(usize, u32),
    Arrive {
        to: PathId,
        from: PathId,
        sender: Option<usize>,
        packet: Vec<u8>,
    },
    Reply {
        node: usize,
        incarnation: u32,
        rpc: RpcKey,
        call: usize,
    },
    Wake {
        node: usize,
        incarnation: u32,
    },
    FaultBegins(usize),
    FaultEnds(usize),
    Hostile(usize),
    /// A node sends a flight of a handshake.
    Flight {
        node: usize,
        incarnation: u32,
        to: PathId,
        over: Option<u64>,
        bytes: Vec<u8>,
    },
    /// Timers of a node's keys and handshakes.
    Tend {
        node: usize,
        incarnation: u32,
    },
}

pub(super) struct Node {
    pub(super) endpoint: Endpoint,
    client: SocketKey,
    pub(super) up: bool,
    pub(super) incarnation: u32,
    /// Its clock is fast by this many parts per million.
    skew: i64,
    /// Time of its next wake-up, if one is scheduled.
    wake_at: Option<Duration>,
    /// Time until which the link to it is busy.
    pub(super) busy_until: Duration,
    turns: u64,
    pub(super) to_attacker: u64,
    pub(super) from_attacker: u64,
    /// The last token that it has issued to the attacker.
    pub(super) issued: Option<IssuedToken>,
    /// Bytes of responses that its application gave.
    given: u64,
    /// Index of the fault that pauses it, if any.
    pub(super) paused: Option<usize>,
    /// Packets that wait for the end of the pause.
    pub(super) queue: Vec<(PathId, Vec<u8>)>,
    /// Upper bound on those packets.
    pub(super) queue_max: usize,
    /// Steps of its application and its timers that wait for the end of the pause.
    deferred: Vec<WorldEvent>,
}

pub(super) struct World<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) nodes: Vec<Node>,
    keys: Vec<Option<RpcKey>>,
    pub(super) entries: Vec<LedgerEntry>,
    pub(super) excuses: Excuses,
    events: BinaryHeap<Reverse<(Duration, u64, WorldEvent)>>,
    serial: u64,
    pub(super) now: Duration,
    pub(super) active: Vec<bool>,
    pub(super) rng: Random,
    pub(super) seen: Vec<Vec<u8>>,
    pub(super) addresses: Addresses,
    pub(super) outbox: Vec<SentPacket>,
    held: Vec<PathId>,
    pub(super) sealing: Option<Box<Sealing>>,
    spent: SpentBodies,
    pub(super) work: Work,
    pub(super) tally: Tally,
    /// The log, if requested.
    pub(super) log: Option<Vec<String>>,
}

impl Node {
    fn new(scenario: &Scenario, node: usize, incarnation: u32) -> Self {
        let seed = u128::from(scenario.seed) << 64 | (node as u128) << 32 | u128::from(incarnation);
        let mut endpoint = Endpoint::new(scenario.config.clone(), seed);
        let client = endpoint.open(None).expect("the first socket gets a port");
        debug_assert_eq!(endpoint.port(client), Some(CLIENT_PORT));
        let service = endpoint.open(Some(PORT)).expect("the port is free");
        if scenario.is_sealed {
            rights::prepare(&mut endpoint, service);
        }
        let of = |fault: &Fault| match fault.kind {
            FaultType::Skew { node: skewed, parts } if skewed == node => Some(i64::from(parts)),
            _ => None,
        };
        Self {
            endpoint,
            client,
            up: true,
            incarnation,
            skew: scenario.faults.iter().find_map(of).unwrap_or(0),
            wake_at: None,
            busy_until: Duration::ZERO,
            turns: 0,
            to_attacker: 0,
            from_attacker: 0,
            issued: None,
            given: 0,
            paused: None,
            queue: Vec::new(),
            queue_max: 0,
            deferred: Vec::new(),
        }
    }
}

impl<'a> World<'a> {
    /// Returns whether the nodes break a rule.
    pub(super) fn has(&self, hole: Hole) -> bool {
        cfg!(feature = "holes") && self.scenario.hole == Some(hole)
    }

    pub(super) fn new(scenario: &'a Scenario, trace: bool) -> Self {
        let node = |node| Node::new(scenario, node, 0);
        let mut world = Self {
            scenario,
            nodes: (0..scenario.nodes).map(node).collect(),
            keys: vec![None; scenario.calls.len()],
            entries: vec![LedgerEntry::new(); scenario.calls.len()],
            excuses: Excuses::default(),
            events: BinaryHeap::new(),
            serial: 0,
            now: Duration::ZERO,
            active: vec![false; scenario.faults.len()],
            rng: seeded(scenario.seed ^ 0x776f_726c_6400),
            seen: Vec::new(),
            addresses: Addresses::new(scenario.nodes),
            outbox: Vec::new(),
            held: Vec::new(),
            sealing: scenario.is_sealed.then(|| Box::new(Sealing::new(scenario))),
            spent: SpentBodies::default(),
            work: Work::new(scenario),
            tally: Tally::default(),
            log: trace.then(Vec::new),
        };
        for (index, call) in scenario.calls.iter().enumerate() {
            world.schedule(call.at, WorldEvent::Call(index));
        }
        for (index, fault) in scenario.faults.iter().enumerate() {
            world.schedule(fault.from, WorldEvent::FaultBegins(index));
            world.schedule(fault.until, WorldEvent::FaultEnds(index));
        }
        world
    }

    pub(super) fn schedule(&mut self, at: Duration, event: WorldEvent) {
        self.serial += 1;
        self.events.push(Reverse((at, self.serial, event)));
    }

    pub(super) fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(format!("{:>12.3?} {}", self.now, line()));
        }
    }

    /// Runs to the end. All calls must end within nine peer timeouts after the last fault, and all state must be gone within forty.
    pub(super) fn run(&mut self) -> Result<(), Violation> {
        let quiet = self.scenario.quiet_from;
        // Sixteen probes to a live peer, half a timeout apart (rule incarnation-4), and slack.
        let bound = self.scenario.peer_timeout * 9 + Duration::from_millis(500);
        let end = quiet + self.scenario.peer_timeout * 40 + Duration::from_secs(1);
        let mut ended = false;
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            if !ended && at > quiet + bound {
                ended = true;
                self.all_ended(bound)?;
            }
            if at > end {
                break;
            }
            self.now = at;
            self.take(event)?;
        }
        self.tally.simulated = self.now;
        self.all_ended(bound)?;
        self.nothing_left()
    }

    fn all_ended(&self, bound: Duration) -> Result<(), Violation> {
        if self.scenario.damages() {
            // Sides that know different lengths wait for each other until a deadline ends the call.
            return Ok(());
        }
        let open = |entry: &LedgerEntry| matches!(entry.fate, Fate::UnderWay | Fate::NotBegun);
        match self.entries.iter().position(open) {
            Some(call) if self.has_no_keys(call) => Err(Violation::HungWithoutKeys { call, bound }),
            Some(call) => Err(Violation::NeverEnded { call, bound }),
            None => Ok(()),
        }
    }

    /// Whether the path of a call has no keys in a sealed world.
    fn has_no_keys(&self, call: usize) -> bool {
        let call = self.scenario.calls[call];
        self.sealing.as_ref().is_some_and(|sealing| {
            let mut paths = sealing.nodes[call.from].paths.iter();
            !paths.any(|path| {
                path.peer.is_some_and(|peer| peer.node == call.to) && path.keys.is_some()
            })
        })
    }

    fn nothing_left(&self) -> Result<(), Violation> {
        if self.scenario.damages() {
            return Ok(());
        }
        for (index, node) in self.nodes.iter().enumerate() {
            if !node.endpoint.is_idle() {
                let rpcs = node.endpoint.active_rpcs();
                return Err(Violation::LeftOver { node: index, rpcs });
            }
        }
        Ok(())
    }

    fn take(&mut self, event: WorldEvent) -> Result<(), Violation> {
        if let Some(node) = self.runs_at(&event).filter(|&node| self.nodes[node].paused.is_some()) {
            self.nodes[node].deferred.push(event);
            return Ok(());
        }
        match event {
            WorldEvent::Call(index) => self.call(index),
            WorldEvent::Abort(index, incarnation) => self.abort(index, incarnation),
            WorldEvent::Arrive { to, from, sender, packet } => {
                self.arrive(to, from, sender, packet)
            }
            WorldEvent::Reply { node, incarnation, rpc, call } => {
                if self.nodes[node].incarnation != incarnation || !self.nodes[node].up {
                    return Ok(());
                }
                let now = self.local(node);
                let planned = self.scenario.calls[call];
                if planned.dropped {
                    self.nodes[node].endpoint.abort(rpc);
                } else {
                    let body = response(call, &planned);
                    match self.nodes[node].endpoint.reply(now, rpc, body) {
                        Ok(()) => {
                            self.nodes[node].given += u64::from(planned.response) + RPC_BYTES;
                        }
                        Err(ReplyError::OverBudget { .. }) => {
                            // The application retries later, when other responses may have been fetched.
                            self.schedule(
                                self.now + TRY_AGAIN,
                                WorldEvent::Reply { node, incarnation, rpc, call },
                            );
                        }
                        Err(_) => {} // The RPC is gone, and with it the need for a response.
                    }
                }
                self.turn(node)
            }
            WorldEvent::Wake { node, incarnation } => {
                let place = &mut self.nodes[node];
                if place.incarnation != incarnation || !place.up || place.wake_at != Some(self.now)
                {
                    return Ok(()); // Another wake-up has replaced it.
                }
                place.wake_at = None;
                let now = self.local(node);
                self.nodes[node].endpoint.handle_timeout(now);
                self.turn(node)
            }
            WorldEvent::FaultBegins(index) => {
                self.begin_fault(index);
                Ok(())
            }
            WorldEvent::FaultEnds(index) => self.end_fault(index),
            WorldEvent::Hostile(index) => self.hostile(index),
            WorldEvent::Flight { node, incarnation, to, over, bytes } => {
                if self.is_running(node, incarnation) {
                    let over = over.and_then(AssociationId::from_bits);
                    self.send_flight(node, to, over, &bytes);
                }
                Ok(())
            }
            WorldEvent::Tend { node, incarnation } => {
                if self.is_running(node, incarnation) {
                    self.tend(node)
                } else {
                    Ok(())
                }
            }
        }
    }

    fn is_running(&self, node: usize, incarnation: u32) -> bool {
        self.nodes[node].incarnation == incarnation && self.nodes[node].up
    }

    /// The node whose process runs this event.
    fn runs_at(&self, event: &WorldEvent) -> Option<usize> {
        match *event {
            WorldEvent::Call(index) | WorldEvent::Abort(index, _) => {
                Some(self.scenario.calls[index].from)
            }
            WorldEvent::Reply { node, .. }
            | WorldEvent::Wake { node, .. }
            | WorldEvent::Flight { node, .. }
            | WorldEvent::Tend { node, .. } => Some(node),
            _ => None,
        }
    }

    /// The time of a node's clock.
    pub(super) fn local(&self, node: usize) -> Time {
        let now = self.now.as_nanos() as i64;
        let skewed = now + now / 1_000_000 * self.nodes[node].skew;
        Time::from_nanos(1_000_000_000 + skewed as u64)
    }

    fn call(&mut self, index: usize) -> Result<(), Violation> {
        let call = self.scenario.calls[index];
        self.entries[index].began = self.now;
        if !self.nodes[call.from].up {
            self.entries[index].fate = Fate::Gone;
            return Ok(());
        }
        self.tally.calls += 1;
        let now = self.local(call.from);
        let path = self.path_to(call.from, self.addresses.of[call.to]);
        let node = &mut self.nodes[call.from];
        let options = CallOptions {
            cookie: Cookie::Key(index as u64),
            deadline: call.deadline.map(|deadline| now + deadline),
            trace: context(index).map(Box::new),
        };
        let to = Remote::new(path, PORT);
        let body = request(index, &call);
        match node.endpoint.call(now, node.client, to, body, options) {
            Ok(key) => {
                node.given += u64::from(call.request) + RPC_BYTES;
                self.keys[index] = Some(key);
                self.entries[index].fate = Fate::UnderWay;
                self.excuse_if_without_path(index);
                if let Some(abort) = call.abort {
                    let incarnation = self.nodes[call.from].incarnation;
                    self.schedule(self.now + abort, WorldEvent::Abort(index, incarnation));
                }
                self.note(|| format!("node {} calls node {}: #{index}", call.from, call.to));
            }
            Err(error) => {
                self.entries[index].fate = Fate::Gone;
                self.note(|| format!("node {} may not call: #{index}: {error}", call.from));
            }
        }
        self.turn(call.from)
    }

    fn abort(&mut self, index: usize, incarnation: u32) -> Result<(), Violation> {
        let node = self.scenario.calls[index].from;
        if self.nodes[node].incarnation != incarnation || self.entries[index].fate != Fate::UnderWay
        {
            return Ok(());
        }
        if let Some(key) = self.keys[index] {
            self.nodes[node].endpoint.abort(key);
            self.entries[index].fate = Fate::Gone;
            self.note(|| format!("node {node} aborts #{index}"));
        }
        self.turn(node)
    }

    /// Handles all output of a node after an event.
    pub(super) fn turn(&mut self, node: usize) -> Result<(), Violation> {
        let now = self.local(node);
        loop {
            let mtu = self.mtu();
            let (packets, held) = (&mut self.outbox, &mut self.held);
            let mut sink = Outbox { node, mtu, packets, held };
            let more = self.nodes[node].endpoint.poll_transmit(now, &mut sink);
            self.follow(node);
            self.carry()?;
            while let Some(event) = self.nodes[node].endpoint.poll_event() {
                self.on_event(node, event)?;
            }
            self.nodes[node].endpoint.take_spent(&mut self.spent);
            self.spent.clear();
            self.nodes[node].turns += 1;
            if self.nodes[node].turns > TURNS_MAX {
                return Err(Violation::Spins { node });
            }
            if !more {
                break;
            }
        }
        let held = self.nodes[node].endpoint.held_bytes();
        // The budget bounds the bytes that peers send, and the application's responses are counted separately.
        if held > self.scenario.total_budget + self.nodes[node].given {
            return Err(Violation::OverBudget { node, held });
        }
        let Node { to_attacker: sent, from_attacker: received, .. } = self.nodes[node];
        // A sender that has shown that it receives at its address may get more bytes.
        if sent > received && !self.nodes[node].issued.is_some_and(|token| token.met) {
            return Err(Violation::Amplified { node, sent, received });
        }
        self.wake_later(node);
        Ok(())
    }

    /// Moves keys to the paths that the endpoint has begun to hold.
    fn follow(&mut self, node: usize) {
        for path in std::mem::take(&mut self.held) {
            if let Some(sealing) = &mut self.sealing
                && sealing.nodes[node].follow(path)
            {
                self.set_rights(node, path.index(), None);
            }
        }
    }

    fn wake_later(&mut self, node: usize) {
        let Some(due) = self.nodes[node].endpoint.poll_timeout() else { return };
        let wait = due.saturating_since(self.local(node));
        // A fast clock waits less, but at least a microsecond, so that time advances.
        let skew = self.nodes[node].skew;
        let wait = wait.as_nanos() as i64;
        let wait = (wait - wait / 1_000_000 * skew).max(1_000) as u64;
        let at = self.now + Duration::from_nanos(wait);
        if self.nodes[node].wake_at.is_none_or(|earlier| at < earlier) {
            self.nodes[node].wake_at = Some(at);
            let incarnation = self.nodes[node].incarnation;
            self.schedule(at, WorldEvent::Wake { node, incarnation });
        }
    }

    fn on_event(&mut self, node: usize, event: Event) -> Result<(), Violation> {
        match event {
            Event::Request { rpc, from, trace, body, .. } => {
                let trace = trace.map(|trace| *trace);
                self.on_request(node, rpc, from.path, trace, &body)
            }
            Event::Response { cookie, body, .. } => {
                let index = cookie.number() as usize;
                let call = self.scenario.calls[index];
                self.end(index, Fate::Answered)?;
                self.tally.answered += 1;
                self.note(|| format!("node {node} has the response of #{index}"));
                if self.entries[index].executed_by.is_none() && !self.scenario.damages() {
                    return Err(Violation::NeverExecuted { call: index });
                }
                if self.scenario.damages() {
                    return Ok(());
                }
                verify(index, "response", &response(index, &call), &body)
            }
            Event::Connected { .. } | Event::Cancelled { .. } => {
                unreachable!("no scenario connects or watches")
            }
            Event::Failed { cookie, error, .. } => {
                let index = cookie.number() as usize;
                self.end(index, Fate::Failed)?;
                self.tally.failed += 1;
                self.note(|| format!("node {node}: #{index} failed: {error}"));
                if !self.scenario.damages() {
                    self.entries[index].fail(index, error.clone())?;
                }
                let call = self.scenario.calls[index];
                let is_excused =
                    call.deadline.is_some() || call.dropped || self.is_excused(index, &error);
                if self.scenario.is_benign() && !is_excused {
                    let error = error.to_string();
                    return Err(Violation::FailedWithoutReason { call: index, error });
                }
                Ok(())
            }
        }
    }

    fn end(&mut self, index: usize, fate: Fate) -> Result<(), Violation> {
        let entry = &mut self.entries[index];
        if entry.fate != Fate::UnderWay {
            return Err(Violation::EndedAgain { call: index });
        }
        entry.fate = fate;
        if let Some(deadline) = self.scenario.calls[index].deadline {
            // Deadlines have the timer's resolution of half a millisecond.
            let caller = self.scenario.calls[index].from;
            let paused = self.scenario.paused(caller);
            let allowed = deadline + deadline / 100 + Duration::from_millis(2) + paused;
            let took = self.now - entry.began;
            if let Some(by) = took.checked_sub(allowed) {
                return Err(Violation::DeadlineMissed { call: index, by });
            }
        }
        Ok(())
    }

    fn on_request(
        &mut self,
        node: usize,
        rpc: RpcKey,
        from: PathId,
        trace: Option<TraceContext>,
        body: &[u8],
    ) -> Result<(), Violation> {
        let incarnation = self.nodes[node].incarnation;
        // An address may have changed hands since the packet was sent.
        let is_sealed = self.scenario.is_sealed;
        let named = self.peer_of(node, from);
        let sender = if is_sealed { named } else { self.addresses.owner(from) };
        let moves = !is_sealed && self.scenario.moves();
        let number = number_of(body, self.entries.len()).filter(|&number| {
            sender.is_some() && (moves || sender == Some(self.scenario.calls[number].from))
        });
        let Some(index) = number else {
            if let Some(from) = sender
                && !self.scenario.damages()
            {
                return Err(Violation::Forged { node, from });
            }
            // A request of an attacker, or a damaged one. It is answered so that all state takes its usual course.
            let now = self.local(node);
            let node = &mut self.nodes[node];
            match node.endpoint.reply(now, rpc, body.to_vec()) {
                Ok(()) => node.given += body.len() as u64 + RPC_BYTES,
                Err(_) => _ = node.endpoint.abort(rpc),
            }
            return Ok(());
        };
        let call = self.scenario.calls[index];
        self.note(|| format!("node {node} executes #{index}"));
        if !self.is_allowed(node, call.from) {
            return Err(Violation::NotAllowed { node, from: call.from });
        }
        if !self.scenario.damages() {
            self.entries[index].execute(index, incarnation)?;
            verify(index, "request", &request(index, &call), body)?;
            let bytes = |trace: Option<TraceContext>| {
                trace.map_or_else(Vec::new, |trace| trace.to_bytes().to_vec())
            };
            verify(index, "trace context", &bytes(context(index)), &bytes(trace))?;
        }
        self.schedule(
            self.now + call.service,
            WorldEvent::Reply { node, incarnation, rpc, call: index },
        );
        Ok(())
    }

    fn begin_fault(&mut self, index: usize) {
        self.active[index] = true;
        let fault = self.scenario.faults[index];
        self.note(|| format!("fault {index} begins: {:?}", fault.kind));
        match fault.kind {
            FaultType::Restart { node } => self.stop(node),
            FaultType::Move { node, heir } => self.addresses.move_node(node, heir),
            FaultType::Rename { node } => self.sealing().nodes[node].name.is_renamed = true,
            FaultType::Pause { node, queue } if self.nodes[node].up => {
                let place = &mut self.nodes[node];
                place.paused.get_or_insert(index);
                place.queue_max = queue;
            }
            FaultType::Hostile { packets, .. }
            | FaultType::Forged { packets, .. }
            | FaultType::Reports { packets }
            | FaultType::Attack { packets } => {
                let span = fault.until.saturating_sub(fault.from);
                for packet in 0..packets {
                    self.schedule(fault.from + span * packet / packets, WorldEvent::Hostile(index));
                }
            }
            _ => {}
        }
    }

    /// Discards the state of a node.
    fn stop(&mut self, node: usize) {
        self.nodes[node].up = false;
        self.nodes[node].paused = None;
        self.nodes[node].queue.clear();
        self.undefer(node);
        for (call, entry) in self.scenario.calls.iter().zip(&mut self.entries) {
            if call.from == node && entry.fate == Fate::UnderWay {
                entry.fate = Fate::Gone;
            }
        }
    }

    fn end_fault(&mut self, index: usize) -> Result<(), Violation> {
        self.active[index] = false;
        self.note(|| format!("fault {index} ends"));
        match self.scenario.faults[index].kind {
            FaultType::Restart { node } => self.restart(node),
            FaultType::Pause { node, .. } if self.nodes[node].paused == Some(index) => {
                return self.resume(node);
            }
            _ => {}
        }
        Ok(())
    }

    fn restart(&mut self, node: usize) {
        self.stop(node); // Another restart may have started it already.
        let incarnation = self.nodes[node].incarnation + 1;
        let next = Node::new(self.scenario, node, incarnation);
        let before = std::mem::replace(&mut self.nodes[node], next);
        self.nodes[node].busy_until = before.busy_until;
        self.nodes[node].turns = before.turns;
        if let Some(sealing) = &mut self.sealing {
            sealing.restart(node);
        }
    }

    /// Resumes a paused node. Its timers may expire before or after the packets that wait for it.
    fn resume(&mut self, node: usize) -> Result<(), Violation> {
        self.nodes[node].paused = None;
        self.nodes[node].wake_at = None;
        let timers_first = happens(&mut self.rng, 500_000);
        let now = self.local(node);
        if timers_first {
            self.nodes[node].endpoint.handle_timeout(now);
            self.turn(node)?;
        }
        for (from, packet) in std::mem::take(&mut self.nodes[node].queue) {
            if self.scenario.is_sealed {
                self.receive_sealed(node, from, packet)?;
            } else {
                compact::pass(&mut self.nodes[node].endpoint, now, from, &packet);
            }
        }
        self.nodes[node].endpoint.handle_timeout(now);
        self.turn(node)?;
        self.undefer(node);
        Ok(())
    }

    fn undefer(&mut self, node: usize) {
        for event in std::mem::take(&mut self.nodes[node].deferred) {
            self.schedule(self.now, event);
        }
    }
}
