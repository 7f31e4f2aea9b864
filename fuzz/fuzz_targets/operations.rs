//! Operations of two applications on a pair of endpoints, on a network that loses, repeats, reorders and damages packets.
//!
//! An input is a list of [`Step`]s. After the last one the network is healed and every request answered. Each run checks:
//!
//! - no input makes an endpoint panic or ask to be called without end;
//! - no request is executed twice, by any incarnation of its server, and an error that denies the execution is true;
//! - messages arrive with the bytes that were sent;
//! - a call ends at most once, and never after it was aborted or its socket closed;
//! - an endpoint holds no more than its budget and the messages of its own application;
//! - every call ends, and both endpoints become idle, within a bounded virtual time after the network is healed.
//!
//! A damaged packet stands for one whose UDP checksum is right by accident. After it, only panics, endless loops, exceeded budgets
//! and calls that end twice are errors.

#![no_main]

use std::collections::VecDeque;
use std::sync::LazyLock;
use std::time::Duration;

use apus_proto::{
    CallFailed, CallOptions, Config, Cookie, Endpoint, Event, Remote, ReplyError, RpcKey,
    SocketKey, SpentBodies, Time,
};
use apus_wire::{PacketSink, PathError, PathId, TraceContext, Transmit, UnknownReason};
use bytes::Bytes;
use libfuzzer_sys::{
    arbitrary::{self, Arbitrary},
    fuzz_target,
};

fuzz_target!(|input: Input| Run::new(&input).check(&input.steps));

#[derive(Arbitrary, Debug)]
struct Input {
    /// Whether budgets, windows and bursts are small.
    tight: bool,
    /// Whether packets may be damaged and forged.
    damages: bool,
    mtu: Mtu,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Mtu {
    Least,
    Ethernet,
    Loopback,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Side {
    A,
    B,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Length {
    Short(u8),
    Packets(u16),
    Long(u16),
}

#[derive(Arbitrary, Debug)]
enum Step {
    Call {
        from: Side,
        length: Length,
        deadline_us: Option<u16>,
        traced: bool,
    },
    Connect {
        from: Side,
    },
    /// The application of this node answers one of its requests.
    Reply {
        at: Side,
        nth: u8,
        length: Length,
    },
    /// The application's handler panics.
    Reject {
        at: Side,
        nth: u8,
    },
    /// The application drops the request.
    Abandon {
        at: Side,
        nth: u8,
    },
    /// The caller aborts a call.
    Abort {
        nth: u8,
    },
    /// A node closes its socket for calls and opens another one.
    Close {
        at: Side,
    },
    /// A node stops serving its port, or serves it again.
    ToggleService {
        at: Side,
    },
    /// One of the packets in flight to this node.
    Packet {
        to: Side,
        nth: u8,
        fate: Fate,
    },
    /// At most this many packets arrive at each node, in order.
    Exchange {
        packets: u8,
    },
    Wait {
        micros: u16,
    },
    /// A silence longer than the lifetime of a packet and the memory of a peer.
    LongSilence,
    Restart {
        node: Side,
    },
    /// The network reports that the peer of this node is unreachable.
    PathError {
        at: Side,
    },
    /// Forged bytes in the peer's name. Ignored unless the input damages packets.
    Forge {
        to: Side,
        packet: Vec<u8>,
    },
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Fate {
    Arrives,
    Lost,
    /// The packet arrives, and stays in flight.
    Repeated,
    /// The packet loses its end. Ignored, like the next one, unless the input damages packets.
    Cut(u16),
    /// A bit of the packet flips.
    Flipped(u16),
}

/// Packets do not live for 120 s (rule once-5): this many waits of at most 1 s are shorter.
const STEPS_MAX: usize = 100;
const LONG_SILENCE: Duration = Duration::from_secs(125);
const WAIT_UNIT: Duration = Duration::from_micros(16);
/// Upper bound on bytes of all messages of a run, so that a run is short.
const BYTES_MAX: u32 = 2 << 20;
const PORT: u16 = 7;
/// Delay of the network, one way.
const LATENCY: Duration = Duration::from_micros(10);
const PEER_TIMEOUT: Duration = Duration::from_millis(100);
/// The bound of `apus sim check`: 16 probes half a timeout apart (rule life-4), and slack.
const ENDED_AFTER: Duration = Duration::from_millis(9 * 100 + 500);
const IDLE_AFTER: Duration = Duration::from_millis(40 * 100 + 1_000);
/// Upper bound on turns of both endpoints in a run: about ten times the need of the most packets.
const TURNS_MAX: u32 = 200_000;
const TIGHT_BUDGET: u64 = 600_000;
const BUDGET: u64 = 8 << 20;
/// Bytes that the core charges for an RPC besides its message.
const RPC_BYTES: u64 = 512;
/// Length of the call's number, which begins every message.
const NUMBER_LEN: u32 = 4;

struct Node {
    endpoint: Endpoint,
    /// The socket of its calls.
    client: SocketKey,
    service: Option<SocketKey>,
    /// Requests that the application has not answered, each with its call if known.
    requests: VecDeque<(RpcKey, Option<usize>)>,
    /// Bytes of the messages that its own application sent.
    given: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    UnderWay,
    Ended,
    /// Aborted, its socket closed, or its node restarted. No event may follow.
    Gone,
}

struct Call {
    from: usize,
    rpc: RpcKey,
    request: u32,
    traced: bool,
    response: u32,
    state: State,
    executed: bool,
    /// The error that says that it was not executed.
    denied: Option<CallFailed>,
}

struct Run<'a> {
    input: &'a Input,
    now: Time,
    nodes: [Node; 2],
    /// Packets in flight to each node.
    under_way: [VecDeque<Vec<u8>>; 2],
    calls: Vec<Call>,
    spent: SpentBodies,
    incarnations: u128,
    bytes_left: u32,
    turns: u32,
}

impl<'a> Run<'a> {
    fn new(input: &'a Input) -> Self {
        Self {
            input,
            now: Time::from_nanos(1_000_000_000),
            nodes: [node(input, 1), node(input, 2)],
            under_way: [VecDeque::new(), VecDeque::new()],
            calls: Vec::new(),
            spent: SpentBodies::default(),
            incarnations: 2,
            bytes_left: BYTES_MAX,
            turns: 0,
        }
    }

    fn check(mut self, steps: &[Step]) {
        for step in steps.iter().take(STEPS_MAX) {
            self.take(step);
        }
        self.heal();
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Call { from, length, deadline_us, traced } => {
                self.call(from as usize, length, deadline_us, traced);
            }
            Step::Connect { from } => self.connect(from as usize),
            Step::Reply { at, nth, length } => self.reply(at as usize, nth, length),
            Step::Reject { at, nth } => {
                if let Some((rpc, _)) = self.take_request(at as usize, nth) {
                    self.nodes[at as usize].endpoint.reject(rpc, UnknownReason::HandlerPanicked);
                    self.turn(at as usize);
                }
            }
            Step::Abandon { at, nth } => {
                if let Some((rpc, _)) = self.take_request(at as usize, nth) {
                    self.nodes[at as usize].endpoint.abort(rpc);
                    self.turn(at as usize);
                }
            }
            Step::Abort { nth } => self.abort(nth),
            Step::Close { at } => self.close(at as usize),
            Step::ToggleService { at } => self.toggle_service(at as usize),
            Step::Packet { to, nth, fate } => self.packet(to as usize, nth, fate),
            Step::Exchange { packets } => self.exchange(usize::from(packets)),
            Step::Wait { micros } => self.wait(WAIT_UNIT * u32::from(micros)),
            Step::LongSilence => {
                self.under_way.iter_mut().for_each(VecDeque::clear);
                self.wait(LONG_SILENCE);
                self.under_way.iter_mut().for_each(VecDeque::clear);
            }
            Step::Restart { node } => self.restart(node as usize),
            Step::PathError { at } => {
                let at = at as usize;
                let error = PathError::PortUnreachable;
                self.nodes[at].endpoint.handle_path_error(self.now, path_to(1 - at), error);
                self.turn(at);
            }
            Step::Forge { to, ref packet } if self.input.damages => {
                self.arrive(to as usize, packet);
            }
            Step::Forge { .. } => {}
        }
    }

    /// The length of a message, within the bytes left for this run.
    fn length(&mut self, length: Length) -> u32 {
        let length = match length {
            Length::Short(bytes) => u32::from(bytes),
            Length::Packets(bytes) => u32::from(bytes),
            Length::Long(bytes) => 4 * u32::from(bytes),
        };
        let length = length.min(self.bytes_left);
        self.bytes_left -= length;
        NUMBER_LEN + length
    }

    fn options(&self, deadline_us: Option<u16>, traced: bool) -> CallOptions {
        let deadline = deadline_us.map(|us| self.now + Duration::from_micros(u64::from(us)));
        let number = self.calls.len();
        let trace = context(number).filter(|_| traced).map(Box::new);
        CallOptions { cookie: Cookie::Key(number as u64), deadline, trace }
    }

    fn begun(&mut self, from: usize, rpc: RpcKey, request: u32, traced: bool) {
        let state = State::UnderWay;
        let (executed, denied) = (false, None);
        self.calls.push(Call { from, rpc, request, traced, response: 0, state, executed, denied });
        self.nodes[from].given += u64::from(request) + RPC_BYTES;
    }

    fn call(&mut self, from: usize, length: Length, deadline_us: Option<u16>, traced: bool) {
        let length = self.length(length);
        let body = message(self.calls.len(), false, length);
        let options = self.options(deadline_us, traced);
        let Node { endpoint, client, .. } = &mut self.nodes[from];
        let to = Remote::new(path_to(1 - from), PORT);
        if let Ok(rpc) = endpoint.call(self.now, *client, to, body, options) {
            self.begun(from, rpc, length, traced);
        }
        self.turn(from);
    }

    fn connect(&mut self, from: usize) {
        let options = self.options(None, false);
        let Node { endpoint, client, .. } = &mut self.nodes[from];
        let to = Remote::new(path_to(1 - from), PORT);
        if let Ok(rpc) = endpoint.connect(self.now, *client, to, options) {
            self.begun(from, rpc, 0, false);
        }
        self.turn(from);
    }

    fn take_request(&mut self, at: usize, nth: u8) -> Option<(RpcKey, Option<usize>)> {
        let requests = &mut self.nodes[at].requests;
        let nth = usize::from(nth).checked_rem(requests.len())?;
        requests.remove(nth)
    }

    fn reply(&mut self, at: usize, nth: u8, length: Length) {
        let Some((rpc, call)) = self.take_request(at, nth) else { return };
        let length = self.length(length);
        self.answer(at, rpc, call, length);
    }

    /// Answers a request. A request without room in the budgets stays with the application.
    fn answer(&mut self, at: usize, rpc: RpcKey, call: Option<usize>, length: u32) {
        let body = message(call.unwrap_or(0), true, length);
        match self.nodes[at].endpoint.reply(self.now, rpc, body) {
            Ok(()) => {
                self.nodes[at].given += u64::from(length) + RPC_BYTES;
                if let Some(call) = call {
                    self.calls[call].response = length;
                }
            }
            Err(ReplyError::OverBudget { .. }) => self.nodes[at].requests.push_back((rpc, call)),
            Err(ReplyError::NotInService) => {}
            Err(error) => panic!("a response of {length} bytes was refused: {error}"),
        }
        self.turn(at);
    }

    fn abort(&mut self, nth: u8) {
        let Some(nth) = usize::from(nth).checked_rem(self.calls.len()) else { return };
        let call = &mut self.calls[nth];
        if call.state == State::UnderWay {
            call.state = State::Gone;
            let from = call.from;
            assert!(self.nodes[from].endpoint.abort(call.rpc), "call {nth} was under way");
            self.turn(from);
        }
    }

    /// Forbids further events for the calls of a node.
    fn forget_calls(&mut self, node: usize) {
        let calls = self.calls.iter_mut().filter(|call| call.from == node);
        for call in calls.filter(|call| call.state == State::UnderWay) {
            call.state = State::Gone;
        }
    }

    fn close(&mut self, at: usize) {
        self.forget_calls(at);
        let Node { endpoint, client, .. } = &mut self.nodes[at];
        endpoint.close(*client);
        *client = endpoint.open(None).expect("few ports were taken");
        self.turn(at);
    }

    fn toggle_service(&mut self, at: usize) {
        let Node { endpoint, service, .. } = &mut self.nodes[at];
        match service.take() {
            Some(open) => endpoint.close(open),
            None => *service = Some(endpoint.open(Some(PORT)).expect("the port is free")),
        }
        self.turn(at);
    }

    fn restart(&mut self, at: usize) {
        self.forget_calls(at);
        self.incarnations += 1;
        self.nodes[at] = node(self.input, self.incarnations);
    }

    fn packet(&mut self, to: usize, nth: u8, fate: Fate) {
        let packets = &mut self.under_way[to];
        let Some(nth) = usize::from(nth).checked_rem(packets.len()) else { return };
        let mut packet = match fate {
            Fate::Repeated => packets[nth].clone(),
            _ => packets.remove(nth).expect("there are more"),
        };
        match fate {
            Fate::Lost => return,
            Fate::Cut(length) if self.input.damages => packet.truncate(usize::from(length)),
            Fate::Flipped(bit) if self.input.damages => {
                let bit = usize::from(bit) % (8 * packet.len());
                packet[bit / 8] ^= 1 << (bit % 8);
            }
            _ => {}
        }
        self.arrive(to, &packet);
    }

    /// Gives an endpoint a packet like a link: with its payload at the receive target, if there is one.
    fn arrive(&mut self, to: usize, packet: &[u8]) {
        self.now = self.now + LATENCY;
        let endpoint = &mut self.nodes[to].endpoint;
        let (now, from) = (self.now, path_to(1 - to));
        let mut placed = false;
        if let Some((header, payload)) = packet.split_first_chunk()
            && let Some(place) = endpoint.receive_target()
            && payload.len() <= place.room
        {
            let before = place.message.len();
            place.message.extend_from_slice(payload);
            placed = endpoint.handle_in_place(now, from, header, payload.len());
            if !placed {
                let place = endpoint.receive_target().expect("the state is unchanged");
                place.message.truncate(before);
            }
        }
        if !placed {
            endpoint.handle_packet(now, from, packet);
        }
        self.turn(to);
    }

    fn exchange(&mut self, packets: usize) {
        for _ in 0..packets {
            let Some(to) = (0..2).find(|&to| !self.under_way[to].is_empty()) else { return };
            for to in [to, 1 - to] {
                if let Some(packet) = self.under_way[to].pop_front() {
                    self.arrive(to, &packet);
                }
            }
        }
    }

    /// The time of the next timer, at least a microsecond from now.
    fn next_timeout(&self) -> Option<Time> {
        let due = self.nodes.iter().filter_map(|node| node.endpoint.poll_timeout()).min()?;
        Some(due.max(self.now + Duration::from_micros(1)))
    }

    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(due) = self.next_timeout().filter(|due| *due <= end) {
            self.expire(due);
        }
        self.now = end;
    }

    fn expire(&mut self, due: Time) {
        self.now = due;
        for at in 0..2 {
            let endpoint = &mut self.nodes[at].endpoint;
            if endpoint.poll_timeout().is_some_and(|timeout| timeout <= due) {
                endpoint.handle_timeout(due);
                self.turn(at);
            }
        }
    }

    /// Handles all output of an endpoint after an input.
    fn turn(&mut self, at: usize) {
        let mtu = match self.input.mtu {
            Mtu::Least => 576,
            Mtu::Ethernet => 1472,
            Mtu::Loopback => 65_507,
        };
        let now = self.now;
        loop {
            self.turns += 1;
            assert!(self.turns < TURNS_MAX, "an endpoint asks to be called without end");
            let mut sink = Outbox { mtu, packets: &mut self.under_way[1 - at] };
            let more = self.nodes[at].endpoint.poll_transmit(now, &mut sink);
            while let Some(event) = self.nodes[at].endpoint.poll_event() {
                self.on_event(at, event);
            }
            self.nodes[at].endpoint.take_spent(&mut self.spent);
            self.spent.clear();
            if !more {
                break;
            }
        }
        let budget = if self.input.tight { TIGHT_BUDGET } else { BUDGET };
        let (held, given) = (self.nodes[at].endpoint.held_bytes(), self.nodes[at].given);
        assert!(held <= budget + given, "{held} bytes held, {given} given, {budget} allowed");
    }

    fn on_event(&mut self, at: usize, event: Event) {
        match event {
            Event::Request { rpc, trace, body, .. } => {
                let call = self.on_request(at, &body);
                if let Some(number) = call {
                    let expected = context(number).filter(|_| self.calls[number].traced);
                    assert_eq!(trace.map(|trace| *trace), expected, "the trace of call {number}");
                }
                self.nodes[at].requests.push_back((rpc, call));
            }
            Event::Response { cookie, body, .. } => {
                let number = cookie.number() as usize;
                let length = self.end(at, number).response;
                if !self.input.damages {
                    assert!(self.calls[number].executed, "call {number} was never executed");
                    assert!(body == message(number, true, length), "the response of call {number}");
                }
            }
            Event::Cancelled { .. } => unreachable!("no request is watched"),
            Event::Connected { cookie, .. } => {
                self.end(at, cookie.number() as usize);
            }
            Event::Failed { cookie, error, .. } => {
                self.on_failed(at, cookie.number() as usize, error)
            }
        }
    }

    /// Checks the execution of a request. Returns its call.
    fn on_request(&mut self, at: usize, body: &Bytes) -> Option<usize> {
        if self.input.damages {
            return None;
        }
        let number = body.first_chunk().expect("requests have a number");
        let number = u32::from_le_bytes(*number) as usize;
        let call = &mut self.calls[number];
        assert_eq!(call.from, 1 - at, "call {number} is of the other node");
        assert!(body == &message(number, false, call.request), "the request of call {number}");
        assert!(!call.executed, "call {number} was executed twice");
        assert_eq!(call.denied, None, "call {number} is executed");
        call.executed = true;
        Some(number)
    }

    fn end(&mut self, at: usize, number: usize) -> &mut Call {
        let call = &mut self.calls[number];
        assert_eq!((call.state, call.from), (State::UnderWay, at), "call {number} ended");
        call.state = State::Ended;
        call
    }

    fn on_failed(&mut self, at: usize, number: usize, error: CallFailed) {
        use CallFailed::{
            HandlerPanicked, NoSuchPort, NotAllowed, NotExpected, OtherVersion, Overloaded,
            RequestTooLarge, ResponseLost, SealedOnly,
        };
        let damages = self.input.damages;
        let call = self.end(at, number);
        match error {
            _ if damages => {}
            ResponseLost | HandlerPanicked => assert!(call.executed, "call {number}: {error}"),
            NoSuchPort
            | NotAllowed
            | NotExpected
            | SealedOnly
            | OtherVersion { .. }
            | Overloaded { .. }
            | RequestTooLarge { .. } => {
                assert!(!call.executed, "call {number} was executed, and denied: {error}");
                call.denied = Some(error);
            }
            _ => {}
        }
    }

    /// From now on no packet is lost, both nodes serve, and every request is answered.
    fn heal(&mut self) {
        for at in 0..2 {
            if self.nodes[at].service.is_none() {
                self.toggle_service(at);
            }
        }
        let healed = self.now;
        let (ended_by, idle_by) = (healed + ENDED_AFTER, healed + IDLE_AFTER);
        while self.now <= idle_by && !self.is_over() {
            if self.now > ended_by && !self.input.damages {
                let under_way = self.calls.iter().position(|call| call.state == State::UnderWay);
                assert_eq!(
                    under_way, None,
                    "the call has not ended {ENDED_AFTER:?} after the network is healed"
                );
            }
            for at in 0..2 {
                for _ in 0..self.nodes[at].requests.len() {
                    let (rpc, call) = self.take_request(at, 0).expect("counted above");
                    self.answer(at, rpc, call, NUMBER_LEN);
                }
            }
            if self.under_way.iter().any(|packets| !packets.is_empty()) {
                self.exchange(1);
            } else if let Some(due) = self.next_timeout() {
                self.expire(due);
            } else {
                break;
            }
        }
        assert!(
            self.is_over() || self.input.damages,
            "state is left {IDLE_AFTER:?} after the network is healed"
        );
    }

    fn is_over(&self) -> bool {
        self.nodes.iter().all(|node| node.endpoint.is_idle() && node.requests.is_empty())
            && self.under_way.iter().all(VecDeque::is_empty)
            && self.calls.iter().all(|call| call.state != State::UnderWay)
    }
}

/// The path to a node, the same at every node.
fn path_to(node: usize) -> PathId {
    PathId::new(node as u32, node as u64)
}

fn node(input: &Input, incarnation: u128) -> Node {
    let mut config = Config::default();
    config.peer_timeout(PEER_TIMEOUT);
    let budget = if input.tight { TIGHT_BUDGET } else { BUDGET };
    config.peer_budget(budget).socket_budget(budget).total_budget(budget);
    if input.tight {
        config.unscheduled(3_000).unscheduled_max(10_000).max_incoming(20_000);
        config.overcommitment(1).priorities(2).fifo_share(300).incast_threshold(2);
        config.burst(1_500).link_mbps(2_000);
    }
    let mut endpoint = Endpoint::new(config, incarnation);
    if input.tight {
        endpoint.set_receive_capacity(30_000);
    }
    let client = endpoint.open(None).expect("the first port is free");
    let service = Some(endpoint.open(Some(PORT)).expect("the port is free"));
    Node { endpoint, client, service, requests: VecDeque::new(), given: 0 }
}

/// The trace context of a call, if the call has one.
fn context(call: usize) -> Option<TraceContext> {
    TraceContext::new([1; 16], (call as u64 + 1).to_be_bytes(), 0)
}

/// The bytes of a message: the number of its call, then bytes that differ from call to call and from place to place.
fn message(call: usize, is_response: bool, length: u32) -> Bytes {
    static PATTERN: LazyLock<Vec<u8>> =
        LazyLock::new(|| (0..PATTERN_LEN).map(|place| (place % 251 ^ place / 251) as u8).collect());
    let begin = 2 * (call % 128) + usize::from(is_response);
    let rest = &PATTERN[begin..][..(length - NUMBER_LEN) as usize];
    [&(call as u32).to_le_bytes(), rest].concat().into()
}

/// The longest message, and 256 offsets at which one can begin.
const PATTERN_LEN: usize = 4 * (1 << 16) + 256;

/// Collects an endpoint's packets.
struct Outbox<'a> {
    mtu: usize,
    packets: &'a mut VecDeque<Vec<u8>>,
}

impl PacketSink for Outbox<'_> {
    fn send(&mut self, packet: Transmit<'_>) {
        self.packets.push_back([packet.header, packet.payload()].concat());
    }

    fn max_packet(&self, _: PathId) -> usize {
        self.mtu
    }
}
