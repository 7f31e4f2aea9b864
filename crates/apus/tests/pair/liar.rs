//! A process that attaches to an engine by hand and sends arbitrary messages.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::thread;
use std::time::Instant;

use apus::Bytes;
use apus_proto::{MessageKind, Words};
use apus_shm::{MessageReceiver, Pair, PairError, PendingPair, Place, Trust, connect_to};

use super::{FAULT_AFTER, wait_until};

/// Words of messages that are not part of a call.
pub(crate) const ADDRESS: u64 = 8;
pub(crate) const OPEN: u64 = 10;
pub(crate) const OPENED: u64 = 11;
pub(crate) const CLOSE: u64 = 12;
pub(crate) const PEER: u64 = 0x18;
pub(crate) const RULE: u64 = 0x19;
pub(crate) const RULE_SET: u64 = 0x1a;

/// Results of an OPEN.
pub(crate) const YES: u64 = 0;
pub(crate) const IN_USE: u64 = 1;
pub(crate) const FORBIDDEN: u64 = 2;

/// An address in the form that the engine reads.
pub(crate) fn encode(address: SocketAddr) -> Bytes {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let parts = [&address.port().to_le_bytes()[..], &[0; 4], &ip.octets()];
    parts.concat().into()
}

#[derive(Default)]
struct Inbox(Vec<(Words, Bytes)>);

impl MessageReceiver for Inbox {
    fn admits(&mut self, _: Words, _: usize) -> bool {
        true
    }

    fn message(&mut self, words: Words, body: Bytes) {
        self.0.push((words, body));
    }
}

pub(crate) struct Liar {
    pub(crate) pair: Pair,
    inbox: Inbox,
    ended: bool,
}

/// Offers memory to an engine.
pub(crate) fn offer(socket: &Path) -> PendingPair {
    let mut connected = None;
    wait_until("the engine lets it in", || {
        connected = connect_to(&Place::File(socket.to_owned())).ok();
        connected.is_some()
    });
    PendingPair::send(connected.unwrap(), Trust::InPlace, || true).unwrap()
}

impl Liar {
    /// Attaches, and receives the engine's welcome.
    pub(crate) fn attach(socket: &Path) -> Self {
        let mut waiting = Some(offer(socket));
        let mut pair = None;
        wait_until("the engine offers memory", || {
            match waiting.take().unwrap().complete().unwrap() {
                Ok(completed) => pair = Some(completed),
                Err(pending) => waiting = Some(pending),
            }
            pair.is_some()
        });
        let mut liar = Self { pair: pair.unwrap(), inbox: Inbox::default(), ended: false };
        assert_eq!(liar.next().unwrap().0[0] & 0xf, 9, "the engine welcomes it");
        liar
    }

    /// Sends a message. Returns `false` if the engine has ended the process.
    pub(crate) fn say(&mut self, words: Words, body: impl Into<Bytes>) -> bool {
        let said = self.pair.send(words, &body.into());
        self.note(said);
        self.push();
        !self.ended
    }

    /// Copies as many messages as there is room for.
    pub(crate) fn push(&mut self) {
        let copied = self.pair.advance(usize::MAX).map(drop);
        self.note(copied);
        self.pair.flush();
    }

    /// Announces a request and sends it, from a port of its own.
    pub(crate) fn call(
        &mut self,
        to: SocketAddr,
        (from, port, id): (u16, u16, u64),
        body: impl Into<Bytes>,
    ) -> bool {
        let request = MessageKind::Request { from, to: port, remaining: None };
        self.say([ADDRESS, id], encode(to)) && self.say(request.encode(id), body)
    }

    /// Receives the messages that have arrived.
    pub(crate) fn look(&mut self) {
        let received = self.pair.receive(&mut self.inbox, 100).map(drop);
        self.note(received);
        let handled = self.pair.handle_channel().map(drop);
        self.note(handled);
        self.push();
    }

    fn note(&mut self, result: Result<(), PairError>) {
        self.ended |= result.is_err();
    }

    /// The next message; `None` if the engine has ended the process.
    pub(crate) fn next(&mut self) -> Option<(Words, Bytes)> {
        let since = Instant::now();
        while self.inbox.0.is_empty() && !self.ended {
            assert!(since.elapsed() < FAULT_AFTER, "the engine says nothing");
            self.look();
            thread::yield_now();
        }
        (!self.inbox.0.is_empty()).then(|| self.inbox.0.remove(0))
    }

    /// The messages that the engine has sent until it has read everything; `None` if it has ended the process.
    pub(crate) fn answers(&mut self) -> Option<Vec<(Words, Bytes)>> {
        if !self.say(MessageKind::Probe.encode(0), "") {
            return None;
        }
        let mut answers = Vec::new();
        loop {
            let answer = self.next()?;
            if answer.0 == MessageKind::Alive.encode(0) {
                return Some(answers);
            }
            answers.push(answer);
        }
    }

    /// Requests a port, and ignores all messages before the answer.
    pub(crate) fn open(&mut self, port: u16) -> u64 {
        self.say([OPEN, port.into()], "");
        loop {
            if let [OPENED, word] = self.next().unwrap().0 {
                assert_eq!(word as u16, port);
                return word >> 16;
            }
        }
    }

    /// Sends a piece of a rule for a port.
    pub(crate) fn say_rule(&mut self, port: u16, is_last: bool, text: &str) -> bool {
        let body = Bytes::copy_from_slice(text.as_bytes());
        self.say([RULE, u64::from(port) | u64::from(is_last) << 16 | 7 << 32], body)
    }

    /// Gives a port a rule. Returns the engine's answer.
    pub(crate) fn rule(&mut self, port: u16, text: &str) -> u64 {
        self.say_rule(port, true, text);
        loop {
            if let [RULE_SET, word] = self.next().unwrap().0 {
                assert_eq!(word as u32, 7);
                return word >> 32;
            }
        }
    }

    /// Whether the engine has ended the process, or does so before it answers.
    pub(crate) fn is_ended(&mut self) -> bool {
        self.ended || self.answers().is_none()
    }
}
