//! The production core against a model of the Linux module, under loss, in both roles.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use apus_proto::{CallOptions, Config, Cookie, Endpoint, Event, Remote, SocketKey, Time};
use apus_wire::{PacketSink, PathError, PathId, Transmit};

use crate::module::settings::{MESSAGE_MAX, Settings};
use crate::module::{Emitted, Happened, Module};

const PORT: u16 = 4000;

fn host(number: u8) -> PathId {
    PathId::new(number.into(), number.into()).native()
}

fn apus() -> PathId {
    host(1)
}

fn linux() -> PathId {
    host(2)
}

/// Repeatable random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// A length from W4's quantile table, up to the module's limit.
    fn w4(&mut self) -> usize {
        const POINTS: [(u64, u64); 12] = [
            (0, 53),
            (13, 326),
            (46, 607),
            (61, 1_042),
            (67, 1_813),
            (71, 11_939),
            (76, 44_260),
            (83, 71_156),
            (91, 144_308),
            (96, 538_237),
            (97, 1_002_039),
            (100, 10_000_000),
        ];
        let share = self.below(100);
        let place = POINTS.iter().rposition(|&(at, _)| at <= share).expect("the first is at 0");
        let ((from, low), (to, high)) = (POINTS[place], POINTS[place + 1]);
        let length = low + (high - low) * (share - from) / (to - from);
        (length as usize).min(MESSAGE_MAX)
    }
}

/// A message that starts with its number and has a checkable pattern.
fn body(number: u64, length: usize) -> Vec<u8> {
    let mut random = Random(number);
    let mut bytes: Vec<u8> = number.to_be_bytes().to_vec();
    while bytes.len() < length {
        bytes.extend_from_slice(&random.next().to_be_bytes());
    }
    bytes.truncate(length.max(8));
    bytes
}

#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Step {
    ToApus(Vec<u8>),
    ToLinux(Vec<u8>),
    RefusedByLinux([u8; 8]),
    RefusedByApus([u8; 8]),
    Tick,
    Wake,
}

/// Faults of the network, in thousandths of the packets.
#[derive(Clone, Copy, Default)]
struct Faults {
    loss: u64,
    late: u64,
    twice: u64,
}

/// Two hosts and the wire between them.
struct World {
    now: Duration,
    endpoint: Endpoint,
    socket: SocketKey,
    module: Module,
    packet_max: usize,
    faults: Faults,
    random: Random,
    steps: BinaryHeap<Reverse<(Duration, u64, Step)>>,
    serial: u64,
    /// The next time at which the endpoint must be turned.
    wake_at: Option<Duration>,
    /// Requests of calls in progress, by the caller's key.
    apus_calls: BTreeMap<u64, Vec<u8>>,
    /// The same for calls of the module.
    linux_calls: BTreeMap<u64, Vec<u8>>,
    answered: usize,
    failed: Vec<String>,
    executed: BTreeSet<u64>,
}

struct Wire<'a> {
    packet_max: usize,
    out: &'a mut Vec<Vec<u8>>,
    refused: &'a mut Vec<[u8; 8]>,
}

impl PacketSink for Wire<'_> {
    fn send(&mut self, packet: Transmit<'_>) {
        assert_eq!(packet.path, linux());
        assert!(packet.len() <= self.packet_max, "{} bytes", packet.len());
        self.out.push([packet.header, packet.payload()].concat());
    }

    fn max_packet(&self, _to: PathId) -> usize {
        self.packet_max
    }

    fn refuse(&mut self, _to: PathId, packet: [u8; 8]) {
        self.refused.push(packet);
    }
}

impl World {
    fn new(seed: u64, faults: Faults, settings: Settings, change: impl Fn(&mut Config)) -> Self {
        let mut config = Config::default();
        change(&mut config);
        let mut endpoint = Endpoint::new(config, u128::from(seed));
        let socket = endpoint.open(None).expect("a port");
        endpoint.open(Some(PORT)).expect("a port");
        let mut world = Self {
            now: Duration::ZERO,
            endpoint,
            socket,
            module: Module::new(settings, &[PORT]),
            packet_max: 1_480,
            faults,
            random: Random(seed),
            steps: BinaryHeap::new(),
            serial: 0,
            wake_at: None,
            apus_calls: BTreeMap::new(),
            linux_calls: BTreeMap::new(),
            answered: 0,
            failed: Vec::new(),
            executed: BTreeSet::new(),
        };
        world.step(Duration::from_millis(1), Step::Tick);
        world
    }

    fn step(&mut self, after: Duration, step: Step) {
        self.serial += 1;
        self.steps.push(Reverse((self.now + after, self.serial, step)));
    }

    fn time(&self) -> Time {
        Time::from_nanos(1_000_000_000 + self.now.as_nanos() as u64)
    }

    fn call_linux(&mut self, number: u64, length: usize) {
        self.call_linux_at(PORT, number, length);
    }

    fn call_linux_at(&mut self, port: u16, number: u64, length: usize) {
        let body = body(number, length);
        let options = CallOptions { cookie: Cookie::Key(number), ..CallOptions::default() };
        let to = Remote::new(linux(), port);
        let call = self.endpoint.call(self.time(), self.socket, to, body.clone(), options);
        call.expect("the call is within limits");
        self.apus_calls.insert(number, body);
        self.turn();
    }

    fn call_apus(&mut self, number: u64, length: usize) {
        self.call_apus_at(PORT, number, length);
    }

    fn call_apus_at(&mut self, port: u16, number: u64, length: usize) {
        let body = body(number, length);
        let id = self.module.call(apus(), port, body.clone());
        self.linux_calls.insert(id, body);
        self.turn();
    }

    /// Puts a packet on the wire: 10 µs, and its length at 10 Gb/s.
    fn pass(&mut self, length: usize, step: impl Fn() -> Step) {
        let usual = Duration::from_nanos(10_000 + length as u64 * 8 / 10);
        if self.random.below(1_000) < self.faults.loss {
            return;
        }
        if self.random.below(1_000) < self.faults.twice {
            let late = Duration::from_micros(self.random.below(3_000));
            self.step(usual + late, step());
        }
        let late = match self.random.below(1_000) < self.faults.late {
            true => Duration::from_micros(self.random.below(300)),
            false => Duration::ZERO,
        };
        self.step(usual + late, step());
    }

    /// Turns both hosts until neither has output.
    fn turn(&mut self) {
        loop {
            let (mut out, mut refused) = (Vec::new(), Vec::new());
            let mut wire =
                Wire { packet_max: self.packet_max, out: &mut out, refused: &mut refused };
            let now = self.time();
            if self.endpoint.poll_timeout().is_some_and(|due| due <= now) {
                self.endpoint.handle_timeout(now);
            }
            self.endpoint.poll_transmit(now, &mut wire);
            let mut busy = !out.is_empty() || !refused.is_empty();
            for packet in out {
                self.pass(packet.len(), || Step::ToLinux(packet.clone()));
            }
            for head in refused {
                self.pass(64, || Step::RefusedByApus(head));
            }
            while let Some(event) = self.endpoint.poll_event() {
                busy = true;
                self.on_event(event);
            }
            while let Some(emitted) = self.module.poll_emitted() {
                busy = true;
                match emitted {
                    Emitted::Packet { to, bytes, priority } => {
                        assert!(to == apus() && priority < 8);
                        self.pass(bytes.len(), || Step::ToApus(bytes.clone()));
                    }
                    Emitted::Unreachable { head, .. } => {
                        self.pass(64, || Step::RefusedByLinux(head));
                    }
                }
            }
            while let Some(happened) = self.module.poll_happened() {
                busy = true;
                self.on_happened(happened);
            }
            if !busy {
                break;
            }
        }
        let Some(due) = self.endpoint.poll_timeout() else { return };
        let at = self.now + due.saturating_since(self.time()).max(Duration::from_nanos(100));
        if self.wake_at.is_none_or(|wake| at < wake) {
            self.wake_at = Some(at);
            self.step(at - self.now, Step::Wake);
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Request { rpc, body, .. } => {
                let number = u64::from_be_bytes(body[..8].try_into().expect("8 bytes"));
                assert!(self.executed.insert(number), "request {number} is executed twice");
                let now = self.time();
                self.endpoint.reply(now, rpc, body).expect("the request is in service");
            }
            Event::Response { cookie, body, .. } => {
                let request = self.apus_calls.remove(&cookie.number()).expect("a call under way");
                assert!(body == request, "the response to call {cookie:?}");
                self.answered += 1;
            }
            Event::Connected { .. } | Event::Cancelled { .. } => {
                unreachable!("the world makes no connections and watches nothing")
            }
            Event::Failed { cookie, error, .. } => {
                self.apus_calls.remove(&cookie.number()).expect("a call under way");
                self.failed.push(error.to_string());
            }
        }
    }

    fn on_happened(&mut self, happened: Happened) {
        match happened {
            Happened::Request { from, id, body } => self.module.reply(from, id, body),
            Happened::Response { id, body } => {
                let request = self.linux_calls.remove(&id).expect("a call under way");
                assert!(body == request, "the response to call {id}");
                self.answered += 1;
            }
            Happened::Failed { id, error } => {
                self.linux_calls.remove(&id).expect("a call under way");
                self.failed.push(error.to_owned());
            }
        }
    }

    fn take_step(&mut self) {
        let Reverse((at, _, step)) = self.steps.pop().expect("the module ticks for ever");
        self.now = at;
        self.wake_at = self.wake_at.filter(|&wake| wake > at);
        match step {
            Step::ToApus(packet) => {
                let now = self.time();
                self.endpoint.handle_packet(now, linux(), &packet);
            }
            Step::ToLinux(packet) => self.module.handle_packet(self.now, apus(), &packet),
            Step::RefusedByApus([_, _, high, low, ..]) => {
                self.module.handle_unreachable(apus(), u16::from_be_bytes([high, low]));
            }
            Step::RefusedByLinux([_, _, high, low, ..]) => {
                let error = PathError::NoService(u16::from_be_bytes([high, low]));
                let now = self.time();
                self.endpoint.handle_path_error(now, linux(), error);
            }
            Step::Tick => {
                self.module.tick();
                self.step(Duration::from_millis(1), Step::Tick);
            }
            Step::Wake => {}
        }
        self.turn();
    }

    /// Runs until all calls have ended and no state is left on either side.
    fn run(&mut self) {
        let end = self.now + Duration::from_secs(30);
        loop {
            self.take_step();
            assert!(
                self.now < end,
                "unfinished: {:?} {:?}, {} and {} RPCs, {:?}",
                self.apus_calls.keys(),
                self.linux_calls.keys(),
                self.endpoint.active_rpcs(),
                self.module.rpcs(),
                self.failed
            );
            let over = self.apus_calls.is_empty() && self.linux_calls.is_empty();
            if over && self.endpoint.is_idle() && self.module.rpcs() == 0 {
                break;
            }
        }
        assert_eq!(self.module.complaints(), [""; 0], "everything is as the module sends it");
    }
}

/// Calls in both directions at once, with the lengths of W4.
fn mixed(seed: u64, faults: Faults, settings: Settings) -> World {
    let mut world = World::new(seed, faults, settings, |_| {});
    for number in 0..20 {
        let (ours, theirs) = (world.random.w4(), world.random.w4());
        world.call_linux(1_000 + number, ours);
        world.call_apus(2_000 + number, theirs);
    }
    world.run();
    world
}

#[test]
fn calls_both_ways_on_a_good_network() {
    for seed in 0..10 {
        let world = mixed(seed, Faults::default(), Settings::default());
        assert_eq!((world.answered, &world.failed[..]), (40, &[][..]), "seed {seed}");
        let counts = world.module.counts();
        assert_eq!((counts.short, counts.unknown_type, counts.past_end), (0, 0, 0));
        assert_eq!((counts.overlaps, counts.unasked_unknown), (0, 0), "seed {seed}: {counts:?}");
    }
}

#[test]
fn calls_both_ways_under_loss_and_reordering() {
    for seed in 0..30 {
        let faults = Faults { loss: 10 + 20 * (seed % 3), late: 50, twice: 20 };
        let world = mixed(seed, faults, Settings::default());
        assert_eq!((world.answered, &world.failed[..]), (40, &[][..]), "seed {seed}");
        let counts = world.module.counts();
        assert_eq!((counts.short, counts.unknown_type, counts.past_end), (0, 0, 0));
        assert_eq!((counts.overlaps, counts.unasked_unknown), (0, 0), "seed {seed}: {counts:?}");
    }
}

#[test]
fn a_module_whose_packets_pass_no_gro_is_served_as_well() {
    let settings = Settings { gro: false, ..Settings::default() };
    let world = mixed(1, Faults::default(), settings);
    assert_eq!((world.answered, world.failed.len()), (40, 0));
    assert_eq!(world.module.counts().past_end, 0, "our packets say their offset themselves");
}

#[test]
fn the_longest_messages_both_ways() {
    let mut world = World::new(7, Faults::default(), Settings::default(), |_| {});
    world.call_linux(1, MESSAGE_MAX);
    world.call_apus(2, MESSAGE_MAX);
    world.run();
    assert_eq!((world.answered, world.failed.len()), (2, 0));
    assert!(world.module.counts().grants > 0);
}

/// Pieces of packets for a narrower path never straddle a gap of the module's.
#[test]
fn a_path_that_shrinks_in_the_middle_of_messages() {
    for seed in 0..20 {
        let faults = Faults { loss: 50, late: 50, twice: 0 };
        let mut world = World::new(seed, faults, Settings::default(), |_| {});
        for number in 0..6 {
            world.call_linux(number, 300_000);
        }
        for packet_max in [1_480, 1_100, 800, 556] {
            world.packet_max = packet_max;
            for _ in 0..300 {
                world.take_step();
            }
        }
        world.run();
        assert_eq!((world.answered, world.failed.len()), (6, 0), "seed {seed}");
        assert_eq!(world.module.counts().overlaps, 0, "seed {seed}");
    }
}

/// The stripped build has no grants, cutoffs or priorities, sets incoming to 0 and sends RESENDs of 36 bytes.
#[test]
fn the_stripped_build() {
    let settings = Settings { stripped: true, ..Settings::default() };
    for seed in 0..20 {
        let faults = Faults { loss: 10 * (seed % 3), late: 20, twice: 0 };
        let mut world = World::new(seed, faults, settings, |config| {
            config.confirm_peers(false);
        });
        for number in 0..10 {
            let (ours, theirs) = (world.random.w4(), world.random.w4());
            world.call_linux(1_000 + number, ours);
            world.call_apus(2_000 + number, theirs);
        }
        world.run();
        assert_eq!((world.answered, &world.failed[..]), (20, &[][..]), "seed {seed}");
    }
}

#[test]
fn ports_nobody_serves_end_calls_at_once() {
    let mut world = World::new(3, Faults::default(), Settings::default(), |_| {});
    world.call_linux(1, 100);
    world.call_linux_at(9, 2, 100);
    world.call_apus(3, 100);
    world.call_apus_at(9, 4, 100_000);
    world.run();
    assert_eq!(world.answered, 2);
    assert_eq!(world.failed.len(), 2, "{:?}", world.failed);
    assert!(world.failed.iter().any(|error| error == "ENOTCONN"), "{:?}", world.failed);
    assert!(world.now < Duration::from_millis(100), "not by a timeout");
}
