//! One run of the campaign: nodes on a bad network, watched.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::time::Duration;

use apus_load::{Random, seeded};
use apus_proto::{Address, CallOptions, Endpoint, Event, RpcKey, SocketKey, Time};

use crate::chance::below;
use crate::check::hostile;
use crate::check::ledger::{Entry, Fate, Violation, number_of, request, response, verify};
use crate::check::network::{Outbox, address_of, node_of, stranger};
use crate::check::scenario::{Fault, Kind, Scenario};
use crate::check::work::Work;

const PORT: u16 = 7;
/// Turns of one node in a run; more mean that it spins.
const TURNS_MAX: u64 = 3_000_000;
/// What the core charges for an RPC beside its message.
const RPC_BYTES: u64 = 512;

/// What a run was like, beside right or wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Calls begun.
    pub calls: u64,
    /// Calls answered.
    pub answered: u64,
    /// Calls that failed, each for a reason that was there.
    pub failed: u64,
    /// Packets sent, with those that were lost and copied.
    pub packets: u64,
    /// Packets lost, damaged, copied, delayed or made up.
    pub faults: u64,
    /// Simulated time.
    pub simulated: Duration,
}

#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Step {
    Call(usize),
    Abort(usize, u32),
    Arrive { to: usize, from: SocketAddr, packet: Vec<u8> },
    Reply { node: usize, life: u32, rpc: RpcKey, call: usize },
    Wake { node: usize, life: u32 },
    FaultBegins(usize),
    FaultEnds(usize),
    Hostile(usize),
}

pub(super) struct Node {
    endpoint: Endpoint,
    client: SocketKey,
    pub(super) up: bool,
    pub(super) life: u32,
    /// Fast by this many parts per million.
    skew: i64,
    /// When a wake-up is under way to it.
    wake_at: Option<Duration>,
    /// The link in front of it is busy until then.
    pub(super) busy_until: Duration,
    turns: u64,
    pub(super) to_stranger: u64,
    from_stranger: u64,
    /// Bytes of responses its application gave.
    given: u64,
}

pub(super) struct World<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) nodes: Vec<Node>,
    keys: Vec<Option<RpcKey>>,
    entries: Vec<Entry>,
    steps: BinaryHeap<Reverse<(Duration, u64, Step)>>,
    serial: u64,
    pub(super) now: Duration,
    pub(super) active: Vec<bool>,
    pub(super) rng: Random,
    pub(super) seen: Vec<Vec<u8>>,
    pub(super) outbox: Vec<(usize, SocketAddr, Vec<u8>)>,
    pub(super) work: Work,
    pub(super) tally: Tally,
    /// What happened, when it is wanted.
    pub(super) log: Option<Vec<String>>,
}

fn open(scenario: &Scenario, node: usize, life: u32) -> (Endpoint, SocketKey) {
    let seed = u128::from(scenario.seed) << 64 | (node as u128) << 32 | u128::from(life);
    let mut endpoint = Endpoint::new(scenario.config.clone(), seed);
    let client = endpoint.open(None).expect("the first socket gets a port");
    endpoint.open(Some(PORT)).expect("the port is free");
    (endpoint, client)
}

impl<'a> World<'a> {
    pub(super) fn new(scenario: &'a Scenario, trace: bool) -> Self {
        let skews = |node| {
            let of = |fault: &Fault| match fault.kind {
                Kind::Skew { node: skewed, parts } if skewed == node => Some(i64::from(parts)),
                _ => None,
            };
            scenario.faults.iter().find_map(of).unwrap_or(0)
        };
        let node = |node| {
            let (endpoint, client) = open(scenario, node, 0);
            Node {
                endpoint,
                client,
                up: true,
                life: 0,
                skew: skews(node),
                wake_at: None,
                busy_until: Duration::ZERO,
                turns: 0,
                to_stranger: 0,
                from_stranger: 0,
                given: 0,
            }
        };
        let mut world = Self {
            scenario,
            nodes: (0..scenario.nodes).map(node).collect(),
            keys: vec![None; scenario.calls.len()],
            entries: vec![Entry::new(); scenario.calls.len()],
            steps: BinaryHeap::new(),
            serial: 0,
            now: Duration::ZERO,
            active: vec![false; scenario.faults.len()],
            rng: seeded(scenario.seed ^ 0x776f_726c_6400),
            seen: Vec::new(),
            outbox: Vec::new(),
            work: Work::new(scenario),
            tally: Tally::default(),
            log: trace.then(Vec::new),
        };
        for (index, call) in scenario.calls.iter().enumerate() {
            world.step(call.at, Step::Call(index));
        }
        for (index, fault) in scenario.faults.iter().enumerate() {
            world.step(fault.from, Step::FaultBegins(index));
            world.step(fault.until, Step::FaultEnds(index));
        }
        world
    }

    pub(super) fn step(&mut self, at: Duration, step: Step) {
        self.serial += 1;
        self.steps.push(Reverse((at, self.serial, step)));
    }

    pub(super) fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(format!("{:>12.3?} {}", self.now, line()));
        }
    }

    /// Runs to the end. All calls must have ended within nine peer timeouts after the last fault
    /// and all state must be gone within forty.
    pub(super) fn run(&mut self) -> Result<(), Violation> {
        let quiet = self.scenario.quiet_from;
        // Sixteen questions to a peer that is there, half a timeout apart (rule life-4), and slack.
        let bound = self.scenario.peer_timeout * 9 + Duration::from_millis(500);
        let end = quiet + self.scenario.peer_timeout * 40 + Duration::from_secs(1);
        let mut ended = false;
        while let Some(Reverse((at, _, step))) = self.steps.pop() {
            if !ended && at > quiet + bound {
                ended = true;
                self.all_ended(bound)?;
            }
            if at > end {
                break;
            }
            self.now = at;
            self.take(step)?;
        }
        self.tally.simulated = self.now;
        self.all_ended(bound)?;
        self.nothing_left()
    }

    fn all_ended(&self, bound: Duration) -> Result<(), Violation> {
        if self.scenario.damages() {
            // Sides that were told different lengths wait for each other; a deadline ends that.
            return Ok(());
        }
        let open = |entry: &Entry| matches!(entry.fate, Fate::UnderWay | Fate::NotBegun);
        match self.entries.iter().position(open) {
            Some(call) => Err(Violation::NeverEnded { call, bound }),
            None => Ok(()),
        }
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

    fn take(&mut self, step: Step) -> Result<(), Violation> {
        match step {
            Step::Call(index) => self.call(index),
            Step::Abort(index, life) => self.abort(index, life),
            Step::Arrive { to, from, packet } => {
                match node_of(from) {
                    Some(sender) if self.nodes[to].up => {
                        self.work.arrived(self.now, self.run_of(sender), self.run_of(to), &packet);
                    }
                    Some(sender) => {
                        self.work.missed(self.run_of(sender), self.run_of(to), &packet);
                    }
                    None => self.nodes[to].from_stranger += packet.len() as u64,
                }
                if !self.nodes[to].up {
                    return Ok(());
                }
                let now = self.local(to);
                self.nodes[to].endpoint.handle_packet(now, from, &packet);
                self.turn(to)
            }
            Step::Reply { node, life, rpc, call } => {
                if self.nodes[node].life != life || !self.nodes[node].up {
                    return Ok(());
                }
                let now = self.local(node);
                let planned = self.scenario.calls[call];
                if planned.dropped {
                    self.nodes[node].endpoint.abort(rpc);
                } else {
                    // It may be gone by now; then nobody wants the response.
                    let _ = self.nodes[node].endpoint.reply(now, rpc, response(call, &planned));
                    self.nodes[node].given += u64::from(planned.response) + RPC_BYTES;
                }
                self.turn(node)
            }
            Step::Wake { node, life } => {
                let place = &mut self.nodes[node];
                if place.life != life || !place.up || place.wake_at != Some(self.now) {
                    return Ok(()); // Another one took its place.
                }
                place.wake_at = None;
                let now = self.local(node);
                self.nodes[node].endpoint.handle_timeout(now);
                self.turn(node)
            }
            Step::FaultBegins(index) => {
                self.begin_fault(index);
                Ok(())
            }
            Step::FaultEnds(index) => {
                self.end_fault(index);
                Ok(())
            }
            Step::Hostile(index) => {
                self.hostile(index);
                Ok(())
            }
        }
    }

    /// What a node's clock shows.
    fn local(&self, node: usize) -> Time {
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
        let node = &mut self.nodes[call.from];
        let options = CallOptions {
            cookie: index as u64,
            deadline: call.deadline.map(|deadline| now + deadline),
        };
        let to = Address::new(address_of(call.to), PORT);
        let body = request(index, &call);
        match node.endpoint.call(now, node.client, to, body, options) {
            Ok(key) => {
                self.keys[index] = Some(key);
                self.entries[index].fate = Fate::UnderWay;
                if let Some(abort) = call.abort {
                    let life = self.nodes[call.from].life;
                    self.step(self.now + abort, Step::Abort(index, life));
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

    fn abort(&mut self, index: usize, life: u32) -> Result<(), Violation> {
        let node = self.scenario.calls[index].from;
        if self.nodes[node].life != life || self.entries[index].fate != Fate::UnderWay {
            return Ok(());
        }
        if let Some(key) = self.keys[index] {
            self.nodes[node].endpoint.abort(key);
            self.entries[index].fate = Fate::Gone;
            self.note(|| format!("node {node} aborts #{index}"));
        }
        self.turn(node)
    }

    /// Everything a node does after something happened to it.
    fn turn(&mut self, node: usize) -> Result<(), Violation> {
        let now = self.local(node);
        loop {
            let mtu = self.mtu();
            let mut sink = Outbox { node, mtu, packets: &mut self.outbox };
            let more = self.nodes[node].endpoint.poll_transmit(now, &mut sink);
            self.carry()?;
            while let Some(event) = self.nodes[node].endpoint.poll_event() {
                self.on_event(node, event)?;
            }
            self.nodes[node].turns += 1;
            if self.nodes[node].turns > TURNS_MAX {
                return Err(Violation::Spins { node });
            }
            if !more {
                break;
            }
        }
        let held = self.nodes[node].endpoint.held_bytes();
        // What peers send is held within the budget; what the application gives is its own doing.
        if held > self.scenario.total_budget + self.nodes[node].given {
            return Err(Violation::OverBudget { node, held });
        }
        let Node { to_stranger: sent, from_stranger: received, .. } = self.nodes[node];
        if sent > received {
            return Err(Violation::Amplified { node, sent, received });
        }
        self.wake_later(node);
        Ok(())
    }

    fn wake_later(&mut self, node: usize) {
        let Some(due) = self.nodes[node].endpoint.poll_timeout() else { return };
        let wait = due.saturating_since(self.local(node));
        // A clock that is fast waits less; a microsecond at least, so that time goes on.
        let skew = self.nodes[node].skew;
        let wait = wait.as_nanos() as i64;
        let wait = (wait - wait / 1_000_000 * skew).max(1_000) as u64;
        let at = self.now + Duration::from_nanos(wait);
        if self.nodes[node].wake_at.is_none_or(|earlier| at < earlier) {
            self.nodes[node].wake_at = Some(at);
            let life = self.nodes[node].life;
            self.step(at, Step::Wake { node, life });
        }
    }

    fn on_event(&mut self, node: usize, event: Event) -> Result<(), Violation> {
        match event {
            Event::Request { rpc, from, body, .. } => self.on_request(node, rpc, from.host, &body),
            Event::Response { cookie, body, .. } => {
                let index = cookie as usize;
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
            Event::Connected { .. } => unreachable!("nobody connects"),
            Event::Failed { cookie, error, .. } => {
                let index = cookie as usize;
                self.end(index, Fate::Failed)?;
                self.tally.failed += 1;
                self.note(|| format!("node {node}: #{index} failed: {error}"));
                if !self.scenario.damages() {
                    self.entries[index].fail(index, error)?;
                }
                let call = self.scenario.calls[index];
                if self.scenario.is_benign() && call.deadline.is_none() && !call.dropped {
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
            // Deadlines are kept to the timer's resolution of half a millisecond.
            let allowed = deadline + deadline / 100 + Duration::from_millis(2);
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
        from: SocketAddr,
        body: &[u8],
    ) -> Result<(), Violation> {
        let life = self.nodes[node].life;
        let number = number_of(body, self.entries.len())
            .filter(|&number| node_of(from) == Some(self.scenario.calls[number].from));
        let Some(index) = number else {
            // A stranger's, or damaged: it is answered so that all state goes its usual way.
            let now = self.local(node);
            self.nodes[node].given += body.len() as u64 + RPC_BYTES;
            let _ = self.nodes[node].endpoint.reply(now, rpc, body.to_vec().into());
            return Ok(());
        };
        let call = self.scenario.calls[index];
        self.note(|| format!("node {node} executes #{index}"));
        if !self.scenario.damages() {
            self.entries[index].execute(index, life)?;
            verify(index, "request", &request(index, &call), body)?;
        }
        self.step(self.now + call.service, Step::Reply { node, life, rpc, call: index });
        Ok(())
    }

    fn begin_fault(&mut self, index: usize) {
        self.active[index] = true;
        let fault = self.scenario.faults[index];
        self.note(|| format!("fault {index} begins: {:?}", fault.kind));
        match fault.kind {
            Kind::Restart { node } => self.stop(node),
            Kind::Hostile { packets, .. } => {
                let span = fault.until.saturating_sub(fault.from);
                for packet in 0..packets {
                    self.step(fault.from + span * packet / packets, Step::Hostile(index));
                }
            }
            _ => {}
        }
    }

    /// The node forgets everything.
    fn stop(&mut self, node: usize) {
        self.nodes[node].up = false;
        for (call, entry) in self.scenario.calls.iter().zip(&mut self.entries) {
            if call.from == node && entry.fate == Fate::UnderWay {
                entry.fate = Fate::Gone;
            }
        }
    }

    fn end_fault(&mut self, index: usize) {
        self.active[index] = false;
        self.note(|| format!("fault {index} ends"));
        if let Kind::Restart { node } = self.scenario.faults[index].kind {
            self.stop(node); // Another restart may have brought it back already.
            let life = self.nodes[node].life + 1;
            let (endpoint, client) = open(self.scenario, node, life);
            let place = &mut self.nodes[node];
            *place = Node {
                endpoint,
                client,
                up: true,
                life,
                skew: place.skew,
                wake_at: None,
                busy_until: place.busy_until,
                turns: place.turns,
                to_stranger: 0,
                from_stranger: 0,
                given: 0,
            };
        }
    }

    fn hostile(&mut self, index: usize) {
        let Kind::Hostile { manner, .. } = self.scenario.faults[index].kind else { return };
        let to = below(&mut self.rng, self.nodes.len() as u32) as usize;
        let packet = hostile::packet(&mut self.rng, manner, &self.seen, PORT);
        self.tally.faults += 1;
        self.step(self.now + self.scenario.delay, Step::Arrive { to, from: stranger(), packet });
    }
}
