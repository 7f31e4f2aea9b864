//! Measures the latency of a link: one packet each way between two polling threads, on CPUs 0 and 1, over a link and over bare
//! sockets.
//!
//! `cargo run --release -p apus-net --example pingpong -- [BYTES] [ROUNDS] [SECONDS]`; defaults 156, 5, 1.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use apus_net::{Link, MAX_DATAGRAM, UdpConfig, UdpLink, cpu};
use apus_wire::{PacketSink, Priority, Transmit};

/// One end: `ping` sends, `poll` returns whether a packet has arrived.
trait End: Send {
    fn ping(&mut self, to: SocketAddr);
    fn poll(&mut self) -> Option<SocketAddr>;
    fn addr(&self) -> SocketAddr;
    fn connect(&mut self, _peer: SocketAddr) {}
}

/// A bare socket; with `true`, connected to its peer.
struct Bare(UdpSocket, Vec<u8>, [u8; 65_536], bool);

impl End for Bare {
    fn ping(&mut self, to: SocketAddr) {
        let sent = if self.3 { self.0.send(&self.1) } else { self.0.send_to(&self.1, to) };
        sent.expect("loopback takes it");
    }

    fn poll(&mut self) -> Option<SocketAddr> {
        self.0.recv_from(&mut self.2).ok().map(|(_, from)| from)
    }

    fn addr(&self) -> SocketAddr {
        self.0.local_addr().expect("it is bound")
    }

    fn connect(&mut self, peer: SocketAddr) {
        if self.3 {
            self.0.connect(peer).expect("it is there");
        }
    }
}

struct Linked(UdpLink, Vec<u8>);

impl End for Linked {
    fn ping(&mut self, to: SocketAddr) {
        let path = self.0.resolve(to).expect("the link reaches loopback");
        self.0.send(Transmit::control(path, Priority::HIGHEST, &self.1));
        self.0.flush();
    }

    fn poll(&mut self) -> Option<SocketAddr> {
        let mut seen = None;
        self.0.recv(&mut |from, _: &[u8]| seen = Some(from));
        self.0.address(seen?)
    }

    fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.0.local_addr().port()))
    }
}

fn measure(mut client: Box<dyn End>, mut server: Box<dyn End>, time: Duration) -> Vec<u64> {
    let stop = Arc::new(AtomicBool::new(false));
    let to = server.addr();
    client.connect(to);
    server.connect(client.addr());
    let echo = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            let _ = cpu::pin_current_thread(1);
            while !stop.load(Ordering::Relaxed) {
                if let Some(from) = server.poll() {
                    server.ping(from);
                }
            }
        })
    };
    let _ = cpu::pin_current_thread(0);
    let mut samples = Vec::with_capacity(1 << 20);
    let start = Instant::now();
    while start.elapsed() < time {
        let sent = Instant::now();
        client.ping(to);
        while client.poll().is_none() {}
        samples.push(u64::try_from(sent.elapsed().as_nanos()).expect("not that long"));
    }
    stop.store(true, Ordering::Relaxed);
    echo.join().expect("the echo does not panic");
    samples.sort_unstable();
    samples
}

fn bare(bytes: usize, connected: bool) -> Box<dyn End> {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback is there");
    socket.set_nonblocking(true).expect("always possible");
    Box::new(Bare(socket, vec![1; bytes], [0; 65_536], connected))
}

fn linked(bytes: usize, max_packet: usize, at: SocketAddr) -> Box<dyn End> {
    let link =
        UdpLink::bind(at, UdpConfig::default().max_packet(max_packet)).expect("loopback is there");
    Box::new(Linked(link, vec![1; bytes]))
}

/// Creates a server that is called at any of its machine's addresses, at a port that was free a moment ago.
fn everywhere(bytes: usize) -> Box<dyn End> {
    let free = UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.local_addr());
    linked(bytes, MAX_DATAGRAM, free.expect("a port is free"))
}

fn main() {
    let mut arguments =
        std::env::args().skip(1).map(|text| text.parse::<usize>().expect("a number"));
    let bytes = arguments.next().unwrap_or(156);
    let rounds = arguments.next().unwrap_or(5);
    let time = Duration::from_secs(arguments.next().unwrap_or(1) as u64);
    let one = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    println!("round trips of {bytes} bytes, µs: p10 p50 p99");
    for _ in 0..rounds {
        for (name, make) in [
            ("bare", (&|| bare(bytes, false)) as &dyn Fn() -> Box<dyn End>),
            ("bare, connected", &|| bare(bytes, true)),
            ("link", &|| linked(bytes, MAX_DATAGRAM, one)),
            ("link with GRO", &|| linked(bytes, 1_472, one)),
            ("link, all addresses", &|| everywhere(bytes)),
        ] {
            let samples = measure(make(), make(), time);
            let at = |percent: usize| samples[samples.len() * percent / 100] as f64 / 1_000.0;
            println!("{name:19} {:6.2} {:6.2} {:6.2}", at(10), at(50), at(99));
        }
    }
}
