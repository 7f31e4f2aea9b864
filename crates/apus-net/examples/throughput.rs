//! Measures the throughput of a link: one thread sends as fast as it can, another receives, on CPUs 0 and 1, over a link and over
//! bare sockets. The sender waits while half a megabyte is on its way, as with grants. Otherwise the faster side would determine
//! how far the receive buffer, and with it the cache, overflows.
//!
//! `cargo run --release -p apus-net --example throughput -- [ROUNDS] [MILLISECONDS]`; defaults 11, 300.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use apus_net::conformance::towards;
use apus_net::{Link, MAX_DATAGRAM, UdpConfig, UdpLink, cpu};
use apus_wire::{PacketSink, Priority, Transmit};
use bytes::Bytes;

/// Upper bound on the bytes on their way.
const WINDOW: u64 = 512 << 10;

const HEADER: [u8; 56] = [1; 56];

type Receive = dyn FnMut(&mut u64, &mut u64) + Send;

/// A sender and a receiver, each of which runs a burst of work per call.
struct Pair {
    /// Sends, and returns the number of sent bytes.
    send: Box<dyn FnMut() -> u64 + Send>,
    /// Adds the received packets and bytes.
    receive: Box<Receive>,
}

fn bare(len: usize, connected: bool) -> Pair {
    let bind = || {
        let socket =
            socket2::Socket::from(UdpSocket::bind("127.0.0.1:0").expect("loopback is there"));
        let _ = socket.set_recv_buffer_size(8 << 20);
        socket.set_nonblocking(true).expect("always possible");
        UdpSocket::from(socket)
    };
    let (a, b) = (bind(), bind());
    let to = b.local_addr().expect("it is bound");
    if connected {
        a.connect(to).expect("it is there");
    }
    let (bytes, mut buffer) = (vec![1; len], vec![0; 65_536]);
    Pair {
        send: Box::new(move || {
            let sent = if connected { a.send(&bytes) } else { a.send_to(&bytes, to) };
            sent.unwrap_or(0) as u64
        }),
        receive: Box::new(move |packets, total| {
            if let Ok((len, _)) = b.recv_from(&mut buffer) {
                *packets += 1;
                *total += len as u64;
            }
        }),
    }
}

/// Creates links for packets of `len` bytes, with `burst` packets between two flushes.
fn linked(len: usize, burst: usize, config: &UdpConfig) -> Pair {
    let bind =
        || UdpLink::bind(SocketAddr::from(([127, 0, 0, 1], 0)), config).expect("loopback is there");
    let (mut a, mut b) = (bind(), bind());
    let path = towards(&mut a, b.local_addr());
    let body = Bytes::from(vec![1; len - HEADER.len()]);
    Pair {
        send: Box::new(move || {
            for _ in 0..burst {
                let (header, range) = (&HEADER, 0..body.len());
                a.send(Transmit { path, priority: Priority::LOWEST, header, body: &body, range });
            }
            a.flush();
            (burst * len) as u64
        }),
        receive: Box::new(move |packets, bytes| {
            b.recv(&mut |_, packet: &[u8]| {
                *packets += 1;
                *bytes += packet.len() as u64;
            });
        }),
    }
}

/// Returns packets and bytes per second.
fn measure(Pair { mut send, mut receive }: Pair, time: Duration) -> (f64, f64) {
    let stop = Arc::new(AtomicBool::new(false));
    let arrived = Arc::new(AtomicU64::new(0));
    let sender = {
        let (stop, arrived) = (Arc::clone(&stop), Arc::clone(&arrived));
        std::thread::spawn(move || {
            let _ = cpu::pin_current_thread(0);
            let mut sent = 0;
            while !stop.load(Ordering::Relaxed) {
                if sent < arrived.load(Ordering::Relaxed) + WINDOW {
                    sent += send();
                }
            }
        })
    };
    let _ = cpu::pin_current_thread(1);
    let (mut packets, mut bytes) = (0, 0);
    let start = Instant::now();
    while start.elapsed() < time {
        for _ in 0..100 {
            receive(&mut packets, &mut bytes);
            arrived.store(bytes, Ordering::Relaxed);
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    sender.join().expect("the sender does not panic");
    (packets as f64 / seconds, bytes as f64 / seconds)
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("a number"));
    let rounds = arguments.next().unwrap_or(11);
    let time = Duration::from_millis(arguments.next().unwrap_or(300));
    let whole = UdpConfig::default();
    let mut short = UdpConfig::default();
    short.max_packet(1_472);
    let mut plain = short.clone();
    plain.gso(false).gro(false).bundles(false);
    let cases: [(&str, &dyn Fn() -> Pair); 10] = [
        ("64 KB, bare", &|| bare(MAX_DATAGRAM, false)),
        ("64 KB, bare, connected", &|| bare(MAX_DATAGRAM, true)),
        ("64 KB, link", &|| linked(MAX_DATAGRAM, 1, &whole)),
        ("64 KB, link, 4 a flush", &|| linked(MAX_DATAGRAM, 4, &whole)),
        ("1,472 B, bare", &|| bare(1_472, false)),
        ("1,472 B, link, no GSO, no GRO", &|| linked(1_472, 44, &plain)),
        ("1,472 B, link, GSO and GRO", &|| linked(1_472, 44, &short)),
        ("156 B, bare", &|| bare(156, false)),
        ("156 B, link, no bundles", &|| linked(156, 64, &plain)),
        ("156 B, link, 64 a bundle", &|| linked(156, 64, &whole)),
    ];
    let mut results = vec![Vec::new(); cases.len()];
    for _ in 0..rounds {
        for ((_, make), results) in cases.iter().zip(&mut results) {
            results.push(measure(make(), time));
        }
    }
    println!("medians and best of {rounds} runs of {time:?}");
    println!("{:30} {:>10} {:>9} {:>9}", "", "packets/s", "Gb/s", "best");
    for ((name, _), mut results) in cases.into_iter().zip(results) {
        results.sort_by(|left, right| left.1.total_cmp(&right.1));
        let (packets, bytes) = results[results.len() / 2];
        let best = results[results.len() - 1].1;
        println!("{name:30} {packets:10.0} {:9.2} {:9.2}", 8.0 * bytes / 1e9, 8.0 * best / 1e9);
    }
}
