//! Packets between two nodes go through a proxy that changes, repeats, swaps and drops them. No node panics, and the server
//! goes on when the proxy is honest again. `APUS_MUTATED_PACKETS` says how many packets, and `APUS_MUTATED_SEED` of which seed.

mod pair;

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use apus::{Address, CallError, CallOptions, Client, Config, Links, Node};
use pair::{PORT, pattern, serve_echo, wait_until};

/// Packets that are looked at in a test of every change.
const PACKETS: u64 = 3_000;

/// Values at which arithmetic goes wrong.
const EDGES: [u32; 8] = [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, 0x8000_0000, u32::MAX];

/// Pseudorandom numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// What is between a client and a server.
struct Proxy {
    address: SocketAddr,
    passed: Arc<AtomicU64>,
    is_honest: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Proxy {
    fn before(server: SocketAddr, seed: u64) -> Self {
        let [front, back] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        back.connect(server).unwrap();
        let address = front.local_addr().unwrap();
        let (passed, is_honest, over) = Default::default();
        let mut proxy = Self { address, passed, is_honest, over, threads: Vec::new() };
        // There is one client, and the first packet is from it.
        let client = Arc::new(Mutex::new(None));
        let known = Arc::clone(&client);
        let [to_server, to_client] = [&back, &front].map(|socket| socket.try_clone().unwrap());
        proxy.pass(front, seed, move |packet, from| {
            *known.lock().unwrap() = Some(from);
            let _ = to_server.send(packet); // Too long a packet, or a server that has gone for now.
        });
        proxy.pass(back, !seed, move |packet, _| {
            let client = *client.lock().unwrap();
            client.into_iter().for_each(|client| drop(to_client.send_to(packet, client)));
        });
        proxy
    }

    /// Passes packets on from a socket.
    fn pass(
        &mut self,
        from: UdpSocket,
        seed: u64,
        send: impl Fn(&[u8], SocketAddr) + Send + 'static,
    ) {
        let (passed, is_honest) = (Arc::clone(&self.passed), Arc::clone(&self.is_honest));
        let over = Arc::clone(&self.over);
        // Only for the end of the test.
        from.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        self.threads.push(thread::spawn(move || {
            let (mut random, mut held) = (Random(seed), Vec::new());
            let mut buffer = vec![0; 65_536];
            while !over.load(Ordering::Relaxed) {
                let Ok((length, sender)) = from.recv_from(&mut buffer) else { continue };
                let mut packet = buffer[..length].to_vec();
                if is_honest.load(Ordering::Relaxed) {
                    send(&packet, sender);
                    continue;
                }
                passed.fetch_add(1, Ordering::Relaxed);
                let times = if random.below(4) > 0 {
                    1
                } else {
                    mutate(&mut random, &mut packet, &mut held)
                };
                (0..times).for_each(|_| send(&packet, sender));
            }
        }));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking());
        }
    }
}

/// Changes a packet. Returns how often it is sent.
fn mutate(random: &mut Random, packet: &mut Vec<u8>, held: &mut Vec<u8>) -> u32 {
    for _ in 0..=random.below(2) {
        // The header is where most is decided.
        let end = if random.below(4) > 0 { packet.len().min(64) } else { packet.len() };
        let at = random.below(end);
        match random.below(8) {
            0 => return 0,
            1 => return 2,
            2 => std::mem::swap(packet, held),
            3 => packet.truncate(at),
            4 => packet.extend_from_within(..at),
            5 if at < packet.len() => packet[at] ^= 1 << random.below(8),
            6 => {
                let edge = EDGES[random.below(EDGES.len())].to_be_bytes();
                packet.iter_mut().skip(at & !3).zip(edge).for_each(|(byte, edge)| *byte = edge);
            }
            // As another type.
            _ => packet
                .iter_mut()
                .skip(11)
                .take(1)
                .for_each(|byte| *byte = 0x10 + random.below(20) as u8),
        }
    }
    1
}

fn from_environment(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn node() -> Node {
    let mut config = Config::server();
    config.listen("127.0.0.1:0".parse().unwrap()).link(Links::Udp);
    // What is lost is given up soon.
    config.set("peer_timeout", "200ms").unwrap();
    Node::start(&config).unwrap()
}

/// A call that may end as it likes, but not by a panic.
fn call(client: &Client, to: Address, length: usize) {
    let mut options = CallOptions::new();
    options.deadline(Duration::from_millis(200));
    let ended = client.call_with(to, pattern(1, length), &options);
    assert!(!matches!(ended, Err(CallError::NodePanicked)), "a node panicked");
}

#[test]
fn no_packet_makes_a_node_panic() {
    let packets = from_environment("APUS_MUTATED_PACKETS", PACKETS);
    let seed = from_environment("APUS_MUTATED_SEED", 1);
    eprintln!("APUS_MUTATED_PACKETS={packets} APUS_MUTATED_SEED={seed}");
    let server = node();
    let service = server.bind(PORT).unwrap();
    let serving = serve_echo(&service);
    let proxy = Proxy::before(server.local_addr(), seed);
    let client_node = node();
    let to = Address::new(proxy.address, PORT);
    thread::scope(|scope| {
        for thread in 0..4 {
            let (client, passed) = (client_node.client().unwrap(), &proxy.passed);
            scope.spawn(move || {
                let mut random = Random(seed ^ (thread << 32));
                while passed.load(Ordering::Relaxed) < packets {
                    let longest = [100, 2_000, 60_000, 300_000][random.below(4)];
                    call(&client, to, 1 + random.below(longest));
                }
            });
        }
    });
    // The client's node goes on, if only to say so: a packet that names a later request has the server take those before for taken
    // (rule once-2), which whoever changes packets can do.
    let client = client_node.client().unwrap();
    call(&client, to, 7);
    drop(client);
    drop(client_node);
    // The server goes on with whoever comes anew.
    proxy.is_honest.store(true, Ordering::Relaxed);
    let client_node = node();
    let client = client_node.client().unwrap();
    wait_until("a call is answered", || {
        let answer = client.call(to, "goes on");
        assert!(!matches!(answer, Err(CallError::NodePanicked)), "a node panicked");
        answer.is_ok_and(|answer| answer == "goes on")
    });
    drop(proxy);
    service.shutdown();
    serving.join().unwrap();
}
