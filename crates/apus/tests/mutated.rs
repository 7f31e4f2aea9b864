//! Packets that are changed on their way end no node, and do not disturb the calls of others. `.ci/deep` runs it for ten minutes
//! (`APUS_MUTATED_SECONDS`), an ordinary run for a second. `APUS_MUTATED_SEED` repeats the changes, but not their times.

mod pair;

use std::collections::VecDeque;
use std::env;
use std::net::{SocketAddr, UdpSocket};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use apus::{Address, Call, CallError, Config, Node};
use pair::{FAULT_AFTER, PORT, pattern, serve_echo};

/// A generator whose numbers depend only on a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// Values at which arithmetic overflows.
const EXTREMES: [u64; 8] =
    [0, 1, u64::MAX, 1 << 63, i64::MAX as u64, u32::MAX as u64, 1 << 31, 0x7fff_7fff_7fff_7fff];

/// Length of the part of a packet that contains its header.
const HEADER: usize = 96;

/// Number of packets of each direction that may be repeated.
const KEPT: usize = 256;

/// The state that the two threads of the proxy share.
#[derive(Default)]
struct Proxy {
    passes: AtomicBool,
    has_ended: AtomicBool,
    changed: AtomicU64,
}

impl Proxy {
    /// Passes packets on in one direction. `learn` receives their source, `to` returns their destination.
    fn carry(
        &self,
        from: &UdpSocket,
        by: &UdpSocket,
        mut random: Random,
        learn: impl Fn(SocketAddr),
        to: impl Fn() -> Option<SocketAddr>,
    ) {
        let mut kept: VecDeque<Vec<u8>> = VecDeque::new();
        let mut buffer = vec![0; 1 << 16];
        while !self.has_ended.load(Ordering::Relaxed) {
            let Ok((length, sender)) = from.recv_from(&mut buffer) else { continue };
            learn(sender);
            let packet = buffer[..length].to_vec();
            let Some(to) = to() else { continue };
            // A full socket loses packets, as a network does.
            let send = |packet: &[u8]| _ = by.send_to(packet, to);
            if self.passes.load(Ordering::Relaxed) || random.below(3) > 0 {
                send(&packet);
            } else {
                self.changed.fetch_add(1, Ordering::Relaxed);
                change(packet.clone(), &kept, &mut random).iter().for_each(|packet| send(packet));
            }
            kept.push_back(packet);
            if kept.len() > KEPT {
                kept.pop_front();
            }
        }
    }
}

/// The packets that replace a packet.
fn change(mut packet: Vec<u8>, kept: &VecDeque<Vec<u8>>, random: &mut Random) -> Vec<Vec<u8>> {
    let end = packet.len().clamp(1, HEADER);
    for _ in 0..=random.below(3) {
        let at = random.below(end);
        match random.below(8) {
            0 => return Vec::new(),
            1 => return vec![packet.clone(), packet],
            2 if !kept.is_empty() => return vec![kept[random.below(kept.len())].clone(), packet],
            3 => packet.truncate(random.below(packet.len() + 1)),
            4 => {
                let more = random.below(64);
                packet.extend(std::iter::repeat_with(|| random.next() as u8).take(more));
            }
            5 => {
                let bytes = EXTREMES[random.below(EXTREMES.len())].to_be_bytes();
                let length = [1, 2, 4, 8][random.below(4)];
                let places = packet.iter_mut().skip(at);
                places.zip(&bytes[..length]).for_each(|(place, byte)| *place = *byte);
            }
            // Replaces a field by the same field of another packet.
            6 if !kept.is_empty() => {
                let other = &kept[random.below(kept.len())];
                let length = 1 + random.below(16);
                let places = packet.iter_mut().zip(other).skip(at).take(length);
                places.for_each(|(place, byte)| *place = *byte);
            }
            _ => {
                if let Some(place) = packet.get_mut(at) {
                    *place ^= 1 << random.below(8);
                }
            }
        }
    }
    vec![packet]
}

fn number(variable: &str, otherwise: u64) -> u64 {
    env::var(variable).map_or(otherwise, |text| text.parse().expect("a number"))
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    socket
}

/// Calls through a network that changes packets until `until`, and then once more without changes. Returns the number of changed
/// packets.
fn call_through_faults(config: &Config, server: SocketAddr, seed: u64, until: Instant) -> u64 {
    let (front, back) = (socket(), socket());
    let to = Address::new(front.local_addr().unwrap(), PORT);
    let (proxy, caller) = (Proxy::default(), Mutex::new(None));
    thread::scope(|scope| {
        scope.spawn(|| {
            let learn = |from| *caller.lock().unwrap() = Some(from);
            proxy.carry(&front, &back, Random(seed), learn, || Some(server));
        });
        scope.spawn(|| {
            let random = Random(seed.rotate_left(20) | 1);
            proxy.carry(&back, &front, random, |_| {}, || *caller.lock().unwrap());
        });
        // The proxy ends also if an assertion fails here.
        let called = panic::catch_unwind(AssertUnwindSafe(|| {
            let mut random = Random(seed.rotate_left(40) | 1);
            while Instant::now() < until {
                call_by_one_node(config, to, &mut random, until);
            }
            proxy.passes.store(true, Ordering::Relaxed);
            call_when_sound(config, to);
        }));
        proxy.has_ended.store(true, Ordering::Relaxed);
        called.unwrap_or_else(|panic| panic::resume_unwind(panic));
    });
    proxy.changed.load(Ordering::Relaxed)
}

/// Makes calls until some in a row fail. Answers are not checked. A node may use up its numbers: a request whose number was changed
/// to a high one ends the turn of all lower ones (docs/protocol.md#once-2).
fn call_by_one_node(config: &Config, to: Address, random: &mut Random, until: Instant) {
    let node = Node::start(config).unwrap();
    let client = node.client().unwrap();
    let mut failures = 0;
    while Instant::now() < until && failures < 20 {
        let calls: Vec<_> = (0..16)
            .map(|_| {
                let length = [1, 100, 1_400, 5_000, 20_000, 200_000][random.below(6)];
                client
                    .call(to, pattern(random.next(), length))
                    .deadline(Duration::from_millis(100))
                    .start()
            })
            .collect();
        for call in calls {
            let called = call.and_then(Call::wait);
            assert_ne!(called, Err(CallError::NodePanicked));
            failures = if called.is_ok() { 0 } else { failures + 1 };
        }
    }
}

fn call_when_sound(config: &Config, to: Address) {
    let (node, since) = (Node::start(config).unwrap(), Instant::now());
    let (client, body) = (node.client().unwrap(), pattern(1, 50_000));
    loop {
        let called = client.call(to, body.clone()).wait();
        if called.as_ref().is_ok_and(|answer| *answer == body) {
            break;
        }
        // Earlier packets may still have been on their way.
        let result = called.map(|answer| answer.len());
        assert!(since.elapsed() < FAULT_AFTER, "after the faults no call succeeds: {result:?}");
    }
}

/// Number of networks, each with its own faults.
const NETWORKS: u32 = 3;

#[test]
fn packets_that_are_changed_on_their_way_end_nothing() {
    let seed = number("APUS_MUTATED_SEED", getrandom::u64().unwrap()) | 1;
    let until = Instant::now() + Duration::from_secs(number("APUS_MUTATED_SECONDS", 1));
    println!("APUS_MUTATED_SEED={seed}");
    let mut config = Config::new();
    config.listen("127.0.0.1:0".parse().unwrap()).set("link", "udp").unwrap();
    let server = Node::start(&config).unwrap();
    // Threads of this machine may not run for a long time.
    let sound = Node::start(config.clone().peer_timeout(FAULT_AFTER)).unwrap();
    let service = server.bind(PORT).unwrap();
    let serving = serve_echo(&service);
    let (config, server_at) = (&config, server.local_addr());
    thread::scope(|scope| {
        let networks: Vec<_> = (1..=NETWORKS)
            .map(|number| seed.rotate_left(7 * number) | 1)
            .map(|seed| scope.spawn(move || call_through_faults(config, server_at, seed, until)))
            .collect();
        // A client whose packets are not changed gets the right answers.
        let (client, mut count) = (sound.client().unwrap(), 0);
        while Instant::now() < until {
            count += 1;
            let body = pattern(count, 1 + (count as usize * 7_919) % 30_000);
            let answer = client.call(Address::new(server_at, PORT), body.clone()).wait().unwrap();
            assert!(answer == body, "the answer of call {count}");
        }
        let changed: u64 = networks.into_iter().map(|network| network.join().unwrap()).sum();
        println!("{changed} packets changed, {count} calls beside them");
        assert!(changed > 0);
    });
    let _ = server.close(Duration::from_secs(1)); // Some answers may be on their way to ended clients.
    serving.join().unwrap();
}
