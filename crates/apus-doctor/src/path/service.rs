//! `apus doctor --serve`: the other end of a path.
//!
//! A node with a service, and two UDP sockets of the doctor's own. The service returns each request. A request to *open* names a
//! nonce, and is answered with the ports of the two sockets. One socket answers datagrams that have such a nonce; the other one is
//! never read, and is the target of packets that load the path. So an answer goes only to a host that has shown to a node that it
//! receives at its address, only for a while, and is no longer than its question.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use apus::{Address, Bytes, Config, Node, RecvError, Request};
use apus_load::stop;

use super::packet::{DscpSocket, Packet};

/// The Homa port of the service.
pub(super) const PORT: u16 = 4_000;

/// A request to open, and its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Open {
    pub(super) nonce: u64,
}

impl Open {
    const MAGIC: [u8; 8] = *b"apusopen";

    pub(super) fn request(self) -> Vec<u8> {
        [Self::MAGIC, self.nonce.to_le_bytes()].concat()
    }

    fn parse(body: &[u8]) -> Option<Self> {
        let (magic, nonce) = body.split_first_chunk::<8>()?;
        let nonce = u64::from_le_bytes(nonce.try_into().ok()?);
        (*magic == Self::MAGIC).then_some(Self { nonce })
    }
}

/// The UDP ports of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ports {
    pub(super) answers: u16,
    /// The port of the socket that is never read.
    pub(super) sink: u16,
}

impl Ports {
    const MAGIC: [u8; 8] = *b"apusport";

    fn reply(self) -> Vec<u8> {
        let ports = [self.answers.to_le_bytes(), self.sink.to_le_bytes()].concat();
        [Self::MAGIC.to_vec(), ports].concat()
    }

    /// `None` if the peer is not `apus doctor --serve`.
    pub(super) fn parse(body: &[u8]) -> Option<Self> {
        let (magic, ports) = body.split_first_chunk::<8>()?;
        let [a, b, c, d] = *<&[u8; 4]>::try_from(ports).ok()?;
        let (answers, sink) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
        (*magic == Self::MAGIC).then_some(Self { answers, sink })
    }
}

/// The nonces whose datagrams are answered.
#[derive(Debug, Default)]
struct Visitors(VecDeque<Visitor>);

#[derive(Clone, Copy, Debug)]
struct Visitor {
    nonce: u64,
    until: Instant,
    answers_left: u32,
}

impl Visitors {
    /// Adds a visitor. Beyond [`VISITORS_MAX`], the oldest one is removed and has to open again.
    fn admit(&mut self, nonce: u64, now: Instant) {
        self.0.truncate(VISITORS_MAX - 1);
        let until = now + VISIT_MAX;
        self.0.push_front(Visitor { nonce, until, answers_left: ANSWERS_MAX });
    }

    /// Whether a datagram with this nonce is answered. Counts the answer.
    fn take_answer(&mut self, nonce: u64, now: Instant) -> bool {
        let visitor = self.0.iter_mut().find(|it| it.nonce == nonce && now < it.until);
        visitor.is_some_and(|it| {
            let left = it.answers_left > 0;
            it.answers_left = it.answers_left.saturating_sub(1);
            left
        })
    }
}

/// The peer of another doctor.
#[derive(Debug)]
pub struct Service {
    node: Node,
    port: apus::Port,
    answering: DscpSocket,
    /// A bound socket that is never read: it keeps its port open.
    sink: DscpSocket,
}

impl Service {
    /// Starts a node and its sockets.
    ///
    /// # Errors
    /// When an address is busy, not of this host or not allowed.
    pub fn start(config: &Config) -> Result<Self> {
        let listen = config.listen_address();
        let node = Node::start(config)?;
        let port = node.bind(PORT)?;
        let bind = || {
            let cannot = || format!("cannot open a UDP socket at {}", listen.ip());
            DscpSocket::bind(listen.ip(), TICK).with_context(cannot)
        };
        Ok(Self { answering: bind()?, sink: bind()?, node, port })
    }

    /// The address of the node.
    pub fn address(&self) -> Address {
        Address::new(self.node.local_addr(), PORT)
    }

    /// Serves until a [stop] is requested.
    ///
    /// # Errors
    /// When no more requests can be received.
    pub fn run(&self) -> Result<()> {
        let ports = Ports { answers: self.answering.port()?, sink: self.sink.port()? };
        let visitors = Mutex::default();
        thread::scope(|scope| {
            scope.spawn(|| answer_datagrams(&self.answering, &visitors));
            while !stop::requested() {
                match self.port.recv_timeout(TICK) {
                    Ok(request) => answer(request, ports, &visitors),
                    Err(RecvError::Timeout) => {}
                    Err(error) => return Err(error).context("cannot wait for requests"),
                }
            }
            Ok(())
        })
    }
}

fn answer(mut request: Request, ports: Ports, visitors: &Mutex<Visitors>) {
    let body = request.take_body();
    let reply = match Open::parse(&body) {
        Some(Open { nonce }) => {
            lock(visitors).admit(nonce, Instant::now());
            Bytes::from(ports.reply())
        }
        None => body,
    };
    let _ = request.reply(reply); // The caller may be gone.
}

/// Answers datagrams of visitors, with the requested mark.
fn answer_datagrams(socket: &DscpSocket, visitors: &Mutex<Visitors>) {
    let mut bytes = vec![0; 65_536];
    let mut last = None;
    while !stop::requested() {
        let Ok(received) = socket.receive(&mut bytes) else { continue };
        let Some(packet) = Packet::parse(&bytes[..received.length]) else { continue };
        if packet.seen.is_some() || !lock(visitors).take_answer(packet.nonce, Instant::now()) {
            continue;
        }
        // The two lowest bits belong to congestion control.
        let wanted = packet.wanted & 0xfc;
        if last.replace(wanted) != Some(wanted) && socket.mark(wanted).is_err() {
            last = None;
        }
        Packet { seen: received.mark, ..packet }.write(&mut bytes);
        let sent: io::Result<()> = socket.send(&bytes[..received.length], received.from);
        drop(sent); // A question without an answer is repeated.
    }
}

fn lock(visitors: &Mutex<Visitors>) -> std::sync::MutexGuard<'_, Visitors> {
    visitors.lock().unwrap_or_else(PoisonError::into_inner)
}

const VISITORS_MAX: usize = 16;

/// Time for which a visitor is answered.
const VISIT_MAX: Duration = Duration::from_secs(60);

/// Upper bound on the answers to a visitor, more than a visit takes.
const ANSWERS_MAX: u32 = 200_000;

/// Interval between two checks for a request to stop.
const TICK: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_replies_survive_the_trip() {
        let open = Open { nonce: 0x0102_0304_0506_0708 };
        assert_eq!(Open::parse(&open.request()), Some(open));
        assert_eq!(Open::parse(b"apusopen"), None);
        let ports = Ports { answers: 4_001, sink: 65_535 };
        assert_eq!(Ports::parse(&ports.reply()), Some(ports));
        assert_eq!(Ports::parse(&open.request()), None);
    }

    #[test]
    fn only_visitors_are_answered_and_not_for_ever() {
        let (mut visitors, now) = (Visitors::default(), Instant::now());
        assert!(!visitors.take_answer(1, now));
        visitors.admit(1, now);
        assert!(visitors.take_answer(1, now) && !visitors.take_answer(2, now));
        assert!(!visitors.take_answer(1, now + VISIT_MAX));
        visitors.0[0].answers_left = 1;
        assert!(visitors.take_answer(1, now) && !visitors.take_answer(1, now));
        for nonce in 10..10 + VISITORS_MAX as u64 {
            visitors.admit(nonce, now);
        }
        assert_eq!(visitors.0.len(), VISITORS_MAX);
        assert!(!visitors.take_answer(1, now) && visitors.take_answer(10, now));
    }
}
