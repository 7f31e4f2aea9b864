//! Compares the XDP link with the UDP link and bare sockets between two network namespaces, joined by a veth pair: the round trip of
//! one packet between two polling threads on CPUs 0 and 1, and a stream in one direction. Needs root.
//!
//! `cargo run --release -p apus-net --example xdp -- [BYTES] [ROUNDS] [SECONDS]`; defaults 156, 5, 1. With a fourth argument (`udp`,
//! `xdp`, `xdp both ways`), only the round trips of that link, for `perf` and `strace`.

use std::fs::File;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use apus_net::conformance::towards;
use apus_net::{Link, UdpConfig, UdpLink, XdpLink, cpu};
use apus_wire::{PacketSink, PacketType, PathId, Priority, Transmit};
use bytes::Bytes;

/// Upper bound on packets of the stream in flight.
const IN_FLIGHT: u64 = 512;

/// Packets per flush of the stream.
const PER_FLUSH: u64 = 64;

fn ip(arguments: &str) {
    let done = Command::new("ip").args(arguments.split(' ')).status().expect("ip is installed");
    assert!(done.success(), "ip {arguments}: {done}");
}

/// The two namespaces.
struct Pair([File; 2]);

impl Pair {
    fn create() -> Self {
        let (there, second) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            there.send(unshare()).expect("the main thread waits");
            _ = ended.recv();
        });
        let (_, first) = unshare();
        let (thread, second) = second.recv().expect("the thread answers");
        let queues = "numtxqueues 1 numrxqueues 1";
        ip(&format!("link add wire {queues} type veth peer name wire {queues} netns {thread}"));
        let pair = Self([first, second]);
        for side in [1, 0] {
            pair.enter(side);
            ip(&format!("addr add {}/24 dev wire", host(side).ip()));
            ip("link set wire up");
        }
        drop(end);
        other.join().expect("the thread does not panic");
        pair
    }

    fn enter(&self, side: usize) {
        // SAFETY: takes integers; only this thread moves.
        let done = unsafe { libc::setns(self.0[side].as_raw_fd(), libc::CLONE_NEWNET) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }
}

/// Moves this thread into a new namespace. Returns its number and the namespace.
fn unshare() -> (i32, File) {
    // SAFETY: both calls take integers and touch no memory of this process; only this thread moves.
    let (done, thread) = unsafe { (libc::unshare(libc::CLONE_NEWNET), libc::gettid()) };
    assert_eq!(done, 0, "needs root: {}", std::io::Error::last_os_error());
    let namespace = File::open(format!("/proc/self/task/{thread}/ns/net"));
    (thread, namespace.expect("it was just made"))
}

fn host(side: usize) -> SocketAddr {
    SocketAddr::from(([10, 79, 0, side as u8 + 1], 0))
}

/// One end of an exchange.
trait End: Send {
    fn address(&self) -> SocketAddr;
    fn send(&mut self, to: SocketAddr, count: u64);
    /// Returns the number of packets, and their last sender.
    fn receive(&mut self) -> (u64, Option<SocketAddr>);
    fn by_xsk(&self) -> u64 {
        0
    }
    /// Returns the number of system calls for sending.
    fn send_calls(&self) -> u64 {
        0
    }
}

struct Bare(UdpSocket, Vec<u8>, Vec<u8>);

impl End for Bare {
    fn address(&self) -> SocketAddr {
        self.0.local_addr().expect("it is bound")
    }

    fn send(&mut self, to: SocketAddr, count: u64) {
        (0..count).for_each(|_| _ = self.0.send_to(&self.1, to));
    }

    fn receive(&mut self) -> (u64, Option<SocketAddr>) {
        let received = self.0.recv_from(&mut self.2).ok();
        (u64::from(received.is_some()), received.map(|(_, from)| from))
    }
}

struct Linked {
    link: Box<dyn Link>,
    header: [u8; 56],
    body: Bytes,
    path: Option<(SocketAddr, PathId)>,
    sent: u64,
}

impl Linked {
    fn new(link: Box<dyn Link>, bytes: usize) -> Self {
        let mut header = [0; 56];
        (header[1], header[11], header[12]) = (1, PacketType::Data as u8, 0xE0);
        let body = Bytes::from(vec![7; bytes - 56]);
        Self { link, header, body, path: None, sent: 0 }
    }
}

impl End for Linked {
    fn address(&self) -> SocketAddr {
        self.link.local_addr()
    }

    fn send(&mut self, to: SocketAddr, count: u64) {
        self.sent += count;
        // A node asks for wanted examinations several times per second, and examines a path in use once per second.
        if self.sent % 256 < count
            && let Some(examination) = self.link.wanted_examination()
        {
            self.link.examined(examination.run());
        }
        let path = match self.path {
            Some((known, path)) if known == to && self.sent % 4_096 >= count => path,
            _ => towards(&mut *self.link, to),
        };
        self.path = Some((to, path));
        let (header, body) = (&self.header[..], &self.body);
        for _ in 0..count {
            let priority = Priority::HIGHEST;
            self.link.send(Transmit { path, priority, header, body, range: 0..body.len() });
        }
        self.link.flush();
    }

    fn receive(&mut self) -> (u64, Option<SocketAddr>) {
        let (mut count, mut last) = (0, None);
        self.link.recv(&mut |from, _: &[u8]| {
            count += 1;
            last = Some(from);
        });
        (count, last.and_then(|from| self.link.address(from)))
    }

    fn by_xsk(&self) -> u64 {
        self.link.own_counters().xsk_sent
    }

    fn send_calls(&self) -> u64 {
        self.link.own_counters().send_calls
    }
}

fn open(kind: &str, side: usize, bytes: usize) -> Box<dyn End> {
    let mut config = UdpConfig::default();
    config.bundles(!kind.ends_with("without bundles"));
    let link: Box<dyn Link> = match kind {
        "bare sockets" => {
            let socket = UdpSocket::bind(host(side)).expect("the address is ours");
            socket.set_nonblocking(true).expect("always possible");
            return Box::new(Bare(socket, vec![1; bytes], vec![0; 65_536]));
        }
        _ if kind.starts_with("xdp both") => {
            Box::new(XdpLink::bind_receiving(host(side), &config).expect("the address is ours"))
        }
        _ if kind.starts_with("xdp") => {
            Box::new(XdpLink::bind(host(side), &config).expect("the address is ours"))
        }
        _ => Box::new(UdpLink::bind(host(side), &config).expect("the address is ours")),
    };
    Box::new(Linked::new(link, bytes))
}

/// Returns the round trips in nanoseconds, sorted, and the share of packets that left by an XSK.
fn round_trips(pair: &Pair, kind: &str, bytes: usize, time: Duration) -> (Vec<u64>, f64) {
    let stop = AtomicBool::new(false);
    pair.enter(1);
    let mut server = open(kind, 1, bytes);
    let to = server.address();
    let mut samples = Vec::with_capacity(1 << 20);
    let mut by_xsk = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pair.enter(1);
            let _ = cpu::pin_current_thread(1);
            while !stop.load(Ordering::Relaxed) {
                if let (_, Some(from)) = server.receive() {
                    server.send(from, 1);
                }
            }
        });
        pair.enter(0);
        let _ = cpu::pin_current_thread(0);
        let mut client = open(kind, 0, bytes);
        let start = Instant::now();
        while start.elapsed() < time {
            let sent = Instant::now();
            client.send(to, 1);
            while client.receive().0 == 0 && sent.elapsed() < Duration::from_millis(100) {}
            samples.push(u64::try_from(sent.elapsed().as_nanos()).expect("not that long"));
        }
        by_xsk = client.by_xsk();
        stop.store(true, Ordering::Relaxed);
    });
    let share = by_xsk as f64 / samples.len() as f64;
    samples.sort_unstable();
    (samples, share)
}

/// Returns the packets per second in one direction, and the system calls for sending per packet.
fn stream(pair: &Pair, kind: &str, bytes: usize, time: Duration) -> (f64, f64) {
    let (stop, received) = (AtomicBool::new(false), AtomicU64::new(0));
    pair.enter(1);
    let mut server = open(kind, 1, bytes);
    let to = server.address();
    let (mut rate, mut calls) = (0.0, 0.0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pair.enter(1);
            let _ = cpu::pin_current_thread(1);
            while !stop.load(Ordering::Relaxed) {
                received.fetch_add(server.receive().0, Ordering::Relaxed);
            }
        });
        pair.enter(0);
        let _ = cpu::pin_current_thread(0);
        let mut client = open(kind, 0, bytes);
        let (start, mut sent, mut lost) = (Instant::now(), 0, 0);
        while start.elapsed() < time {
            let waits = Instant::now();
            while sent - received.load(Ordering::Relaxed) - lost > IN_FLIGHT - PER_FLUSH {
                if waits.elapsed() > Duration::from_millis(10) {
                    lost = sent - received.load(Ordering::Relaxed);
                }
            }
            client.send(to, PER_FLUSH);
            sent += PER_FLUSH;
        }
        rate = received.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
        calls = client.send_calls() as f64 / sent as f64;
        stop.store(true, Ordering::Relaxed);
    });
    (rate, calls)
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: usize| {
        arguments.next().map_or(default, |text| text.parse::<usize>().expect("a number"))
    };
    let (bytes, rounds) = (number(156), number(5));
    let time = Duration::from_secs(number(1) as u64);
    let only = arguments.next();
    let pair = Pair::create();
    let is_wanted = |kind: &&str| only.as_ref().is_none_or(|only| only == kind);
    for _ in 0..rounds {
        for kind in
            ["bare sockets", "udp", "xdp", "xdp both ways"].iter().filter(|kind| is_wanted(kind))
        {
            let (samples, share) = round_trips(&pair, kind, bytes, time);
            let at = |percent: usize| samples[samples.len() * percent / 100] as f64 / 1_000.0;
            let (p10, p50, p99) = (at(10), at(50), at(99));
            println!(
                "{kind:13} round trip p10 p50 p99 µs {p10:6.2} {p50:6.2} {p99:6.2}, by XSK {share:.3}"
            );
        }
        if only.is_some() {
            continue;
        }
        for kind in [
            "udp",
            "xdp",
            "xdp both ways",
            "udp without bundles",
            "xdp without bundles",
            "xdp both ways without bundles",
        ] {
            for bytes in [bytes, 1_472] {
                let (rate, calls) = stream(&pair, kind, bytes, time);
                let gbps = rate * bytes as f64 * 8.0 / 1e9;
                println!(
                    "{kind:30} {bytes:5} B stream {rate:11.0} packets/s {gbps:6.2} Gb/s, {calls:.4} calls per packet"
                );
            }
        }
    }
}
