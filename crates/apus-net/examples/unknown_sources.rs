//! Measures the cost of a packet for a link bound to all addresses: of a known peer, of an unknown source, and of the latter with a
//! short answer.
//!
//! ```text
//! cargo run --release -p apus-net --example unknown_sources -- [PACKETS]
//! ```

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use apus_net::conformance::towards;
use apus_net::{Link, UdpConfig, UdpLink};
use apus_wire::{PacketSink, Priority, Transmit};

/// Number of packets that wait in the receive buffer outside the measured time.
const BATCH: u32 = 64;

fn main() -> io::Result<()> {
    let packets = std::env::args().nth(1).map_or(20_000, |text| text.parse().expect("a number"));
    let port = UdpSocket::bind("127.0.0.1:0")?.local_addr()?.port();
    let at = SocketAddr::from(([0, 0, 0, 0], port));
    let mut link = UdpLink::bind(at, &UdpConfig::default()).map_err(io::Error::other)?;
    let known = UdpSocket::bind("127.0.0.1:0")?;
    towards(&mut link, known.local_addr()?);
    for (name, unknown_sources, answers) in [
        ("a packet of a known peer", false, false),
        ("the same, answered", false, true),
        ("a packet of a new source", true, false),
        ("the same, answered", true, true),
    ] {
        let mut spent = Duration::ZERO;
        for first in (0..packets).step_by(BATCH as usize) {
            // The sockets stay open until their packets were answered.
            let mut sockets = Vec::new();
            for number in first..first + BATCH {
                if unknown_sources {
                    // 127.0.0.0/8 is this machine.
                    let host = 0x7F01_0000 + number + if answers { 1 << 20 } else { 0 };
                    sockets.push(UdpSocket::bind((Ipv4Addr::from_bits(host), 0))?);
                }
                let socket = sockets.last().unwrap_or(&known);
                socket.send_to(&PACKET, ("127.0.0.1", port))?;
            }
            spent += take(&mut link, answers);
        }
        println!("{name:28}{:8} ns", spent.as_nanos() / u128::from(packets));
    }
    Ok(())
}

/// A packet without payload: NEED_ACK.
const PACKET: [u8; 28] = {
    let mut packet = [0; 28];
    packet[1] = 1;
    packet[11] = 0x17;
    packet
};

/// Receives the waiting packets. Returns the time.
fn take(link: &mut UdpLink, answers: bool) -> Duration {
    let start = Instant::now();
    let mut from = Vec::with_capacity(BATCH as usize);
    while link.recv(&mut |peer, _: &[u8]| from.push(peer)) > 0 {}
    if answers {
        for &to in &from {
            link.send(Transmit::control(to, Priority::HIGHEST, &PACKET));
        }
        link.flush();
    }
    start.elapsed()
}
