//! For any actions of the applications and any faults of the network: every byte is right, no request is executed twice, every call
//! ends, no state is left behind, and every run is the same.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::pair::*;
use apus_proto::{CallError, CallOptions, RpcKey, SocketKey};
use bytes::Bytes;
use proptest::prelude::*;

/// Next action of an application.
#[derive(Clone, Debug)]
enum Step {
    /// A request of this length from this node to the other.
    Call {
        from: usize,
        length: usize,
    },
    /// Gives the nth call so far up.
    Abort {
        nth: usize,
    },
    /// A node answers the oldest request it holds.
    Reply {
        node: usize,
    },
    /// A node abandons the oldest request it holds.
    Abandon {
        node: usize,
    },
    /// A node closes the socket it calls from and opens another.
    Close {
        node: usize,
    },
    Wait {
        time: Duration,
    },
}

#[derive(Clone, Debug)]
struct Scenario {
    steps: Vec<Step>,
    mtu: usize,
    latency: Duration,
    /// Whether the applications hold requests until a step answers them.
    hold: bool,
    /// Whether windows, budgets, bursts and buffers are small, the link is slow, and every call is in an incast.
    tight: bool,
    loss: u64,
    duplicate: u64,
    late: u64,
    seed: u64,
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 16..2_000usize, 2 => 2_000..60_000usize, 1 => 60_000..300_000usize]
}

fn step() -> impl Strategy<Value = Step> {
    let node = 0..2usize;
    prop_oneof![
        8 => (node.clone(), length()).prop_map(|(from, length)| Step::Call { from, length }),
        1 => (0..40usize).prop_map(|nth| Step::Abort { nth }),
        6 => node.clone().prop_map(|node| Step::Reply { node }),
        1 => node.clone().prop_map(|node| Step::Abandon { node }),
        1 => node.prop_map(|node| Step::Close { node }),
        8 => (0..5_000u64).prop_map(|time| Step::Wait { time: micros(time) }),
    ]
}

fn scenario() -> impl Strategy<Value = Scenario> {
    (
        prop::collection::vec(step(), 1..40),
        prop::sample::select(vec![1_472usize, 8_972, 65_507]),
        prop::sample::select(vec![1u64, 10, 200]),
        (any::<bool>(), any::<bool>()),
        prop::sample::select(vec![0u64, 20, 200]),
        (0..100u64, 0..300u64, any::<u64>()),
    )
        .prop_map(|(steps, mtu, latency, (hold, tight), loss, (duplicate, late, seed))| {
            Scenario {
                steps,
                mtu,
                latency: micros(latency),
                hold,
                tight,
                loss,
                duplicate,
                late,
                seed,
            }
        })
}

/// Returns a request whose first bytes are its number.
fn numbered(number: u64, length: usize) -> Bytes {
    [&number.to_le_bytes()[..], &body(length - 8, number)].concat().into()
}

fn number(request: &Bytes) -> u64 {
    u64::from_le_bytes(request[..8].try_into().expect("eight bytes"))
}

/// Returns the answer to a request, with another length and another content.
fn answer(request: &Bytes) -> Bytes {
    let length = 8 + (request.len() * 7 + 13) % 150_000;
    numbered(!number(request), length)
}

struct Call {
    from: usize,
    rpc: RpcKey,
    socket: SocketKey,
    request: Bytes,
    aborted: bool,
}

/// The state of a run beside the net.
struct Run {
    net: Net,
    tight: bool,
    calls: Vec<Call>,
    /// Requests that were given up while executed or under way.
    abandoned: BTreeMap<u64, ()>,
}

impl Run {
    fn new(scenario: &Scenario) -> Self {
        let mut net = Net::new(2, |_, config| {
            if scenario.tight {
                config.unscheduled(3_000).unscheduled_max(10_000).max_incoming(20_000);
                config.overcommitment(1).priorities(2).fifo_share(300).incast_threshold(2);
                // Twice the longest message, because outgoing messages count too: half of it certainly has room.
                config.peer_budget(700_000).burst(1_500).link_mbps(2_000);
            }
        });
        if scenario.tight {
            net.nodes.iter_mut().for_each(|node| node.endpoint.set_receive_capacity(30_000));
        }
        (net.mtu, net.latency, net.keep_sent) = (scenario.mtu, scenario.latency, false);
        net.faults = Some(Faults {
            loss: scenario.loss,
            duplicate: scenario.duplicate,
            late: scenario.late,
            lateness: millis(3),
            random: Random::new(scenario.seed),
        });
        for node in &mut net.nodes {
            node.app = if scenario.hold { App::Hold } else { App::Answer(Box::new(answer)) };
        }
        Self { net, tight: scenario.tight, calls: Vec::new(), abandoned: BTreeMap::new() }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Call { from, length } => {
                let request = numbered(self.calls.len() as u64, length);
                let options = CallOptions::default();
                let rpc = match self.net.try_call(from, 1 - from, request.clone(), options) {
                    Err(CallError::OverBudget { .. }) if self.tight => return,
                    call => call.expect("the call is within limits"),
                };
                let socket = self.net.nodes[from].socket;
                self.calls.push(Call { from, rpc, socket, request, aborted: false });
            }
            Step::Abort { nth } => {
                if let Some(call) = self.calls.get_mut(nth) {
                    call.aborted |= self.net.endpoint(call.from).abort(call.rpc);
                }
            }
            Step::Reply { node } => self.reply(node),
            Step::Abandon { node } => {
                if !self.net.nodes[node].requests.is_empty() {
                    let request = self.net.nodes[node].requests.remove(0);
                    self.abandoned.insert(number(&request.body), ());
                    self.net.endpoint(node).abort(request.rpc);
                }
            }
            Step::Close { node } => {
                let socket = self.net.nodes[node].socket;
                let endpoint = self.net.endpoint(node);
                endpoint.close(socket);
                self.net.nodes[node].socket =
                    self.net.endpoint(node).open(None).expect("client ports are left");
            }
            Step::Wait { time } => self.net.drive_for(time),
        }
    }

    fn reply(&mut self, node: usize) {
        if !self.net.nodes[node].requests.is_empty() {
            let request = self.net.nodes[node].requests.remove(0);
            let (now, body) = (self.net.now, answer(&request.body));
            self.net.nodes[node].answer(now, request.rpc, body);
        }
    }

    /// Stops the faults. Everything that was begun must end.
    fn finish(&mut self) {
        self.net.faults = None;
        for node in &mut self.net.nodes {
            node.app = App::Answer(Box::new(answer));
        }
        for node in [0, 1] {
            while !self.net.nodes[node].requests.is_empty() {
                self.reply(node);
            }
        }
        let before = self.net.now;
        self.net.drive();
        assert!(self.net.now.saturating_since(before) < secs(25));
    }

    fn check(&self) {
        let mut executed = BTreeMap::new();
        for node in [0, 1] {
            for request in &self.net.nodes[node].executed {
                let call = &self.calls[number(request) as usize];
                assert!(call.from == 1 - node && call.request == *request, "a wrong request");
                let times = executed.entry(number(request)).or_insert(0);
                *times += 1;
                assert_eq!(*times, 1, "executed twice");
            }
        }
        for (n, call) in self.calls.iter().enumerate() {
            let closed = self.net.nodes[call.from].endpoint.port(call.socket).is_none();
            match self.net.outcome(call.from, call.rpc) {
                Some(Outcome::Response(body)) => {
                    assert!(*body == answer(&call.request), "a wrong response");
                    assert!(executed.contains_key(&(n as u64)));
                }
                Some(Outcome::Connected) => unreachable!("no step connects"),
                Some(Outcome::Failed(error)) => {
                    assert!(self.abandoned.contains_key(&(n as u64)), "call {n} failed: {error}");
                }
                None => assert!(call.aborted || closed, "call {n} has not ended"),
            }
        }
        for node in &self.net.nodes {
            assert_eq!(node.endpoint.active_rpcs(), 0);
            assert!(node.endpoint.held_bytes() <= 2 * 600, "{}", node.endpoint.held_bytes());
        }
    }
}

fn run(scenario: &Scenario, receive_target: bool) -> u64 {
    let mut run = Run::new(scenario);
    run.net.receive_target = receive_target;
    for step in &scenario.steps {
        run.step(step);
    }
    run.finish();
    run.check();
    run.net.trace_hash
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_call_ends_right_on_a_bad_network(scenario in scenario()) {
        let first = run(&scenario, true);
        prop_assert_eq!(first, run(&scenario, true), "the same run differs");
        prop_assert_eq!(first, run(&scenario, false), "receive_target changes more than a copy");
    }
}

#[test]
fn the_packets_of_a_long_message_land_but_for_the_first_two() {
    for (loss, in_place_packets) in [(0, 98), (300, 1)] {
        let mut net = Net::new(2, |_, _| {});
        net.keep_sent = false;
        net.faults = (loss > 0).then(|| Faults {
            loss,
            duplicate: 100,
            late: 100,
            lateness: millis(1),
            random: Random::new(1),
        });
        let request = body(100 * (1_472 - 56), 7);
        net.nodes[SERVER].app = App::Answer(Box::new(|_| Bytes::from_static(b"done")));
        net.call_from(CLIENT, SERVER, request.clone());
        net.drive();
        assert!(net.nodes[SERVER].executed == [request]);
        let in_place = net.in_place;
        assert!(
            in_place == in_place_packets || (loss > 0 && in_place > in_place_packets),
            "{in_place}"
        );
    }
}
/// Two nodes whose answers are longer than their requests, with small budgets: neither waits for the other's room.
#[test]
fn own_requests_do_not_keep_responses_back() {
    let calls = [(0, 16), (1, 33_164), (1, 31_119), (1, 52_537), (0, 235_009)];
    let steps = calls.map(|(from, length)| Step::Call { from, length }).to_vec();
    let seed = 2_840_832_989_140_646_380;
    let (mtu, latency, loss) = (1_472, 1, 200);
    let (hold, tight, duplicate, late) = (false, true, 0, 0);
    let latency = micros(latency);
    let scenario = Scenario { steps, mtu, latency, hold, tight, loss, duplicate, late, seed };
    run(&scenario, false);
}
